"""Operators of ai.onnx.ml against ONNX Runtime.

ONNX Runtime is asked only where its results follow from the operators' text: it applies no transform to a single score
(but PROBIT), nor SOFTMAX to a pair that it made of one; of classes for which no leaf votes, it chooses none; and NaN is
unequal to everything even where the node sends it to the false branch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_harness import assert_agrees, normal

_SETTINGS = settings(max_examples=40, deadline=None)
_seeds = st.integers(0, 2**32 - 1)
_transforms = st.sampled_from(["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
_kernels = st.sampled_from(["LINEAR", "POLY", "RBF", "SIGMOID"])
_BRANCHES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def _agree(op: str, inputs: list[Any], outputs: int = 1, *, version: int = 1, **attributes: Any) -> None:
    assert_agrees(op, inputs, outputs, domain="ai.onnx.ml", opset=version, **attributes)


@_SETTINGS
@given(st.integers(3, 5), st.integers(1, 4), _transforms, _seeds)
def test_linear_models(classes: int, columns: int, transform: str, seed: int) -> None:
    x, weights, offsets = normal(seed, (3, columns), (classes * columns,), (classes,))
    common = {"coefficients": weights.tolist(), "intercepts": offsets.tolist(), "post_transform": transform}
    labels = [10 + i for i in range(classes)]
    _agree("LinearClassifier", [x], 2, classlabels_ints=labels, multi_class=1, **common)
    _agree("LinearRegressor", [x], targets=classes, **common)


@_SETTINGS
@given(
    _kernels, st.integers(1, 3), st.lists(st.integers(1, 3), min_size=3, max_size=4), _transforms, st.booleans(), _seeds
)
def test_support_vector_machines(
    kernel: str, columns: int, counts: list[int], transform: str, calibrated: bool, seed: int
) -> None:
    total, classes = sum(counts), len(counts)
    pairs = classes * (classes - 1) // 2
    x, vectors, factors, rho, slopes, shifts = normal(
        seed, (3, columns), (total * columns,), (total * (classes - 1),), (pairs,), (pairs,), (pairs,)
    )
    common = {
        "kernel_type": kernel,
        "kernel_params": [0.5, 0.3, 2.0],
        "support_vectors": vectors.tolist(),
    }
    extra = {"prob_a": slopes.tolist(), "prob_b": shifts.tolist()} if calibrated else {}
    _agree(
        "SVMClassifier",
        [x],
        2,
        vectors_per_class=counts,
        coefficients=factors.tolist(),
        rho=rho.tolist(),
        post_transform=transform,
        classlabels_ints=[10 + i for i in range(classes)],
        **common,
        **extra,
    )
    for one_class in (0, 1):
        _agree(
            "SVMRegressor",
            [x],
            n_supports=total,
            coefficients=factors[:total].tolist(),
            rho=[0.2],
            one_class=one_class,
            **common,
        )


def _forest(data: st.DataObject, columns: int) -> tuple[dict[str, list[Any]], list[tuple[int, int]]]:
    """Attributes of up to three random trees, and the (tree, node) ids of their leaves."""
    rows: list[list[Any]] = []
    leaves = []

    def grow(tree: int, depth: int, count: int) -> int:
        """Append a subtree whose root has the id ``count``; the first id that is left."""
        if depth == 0 or data.draw(st.booleans()):
            leaves.append((tree, count))
            rows.append([tree, count, 0, "LEAF", 0.0, 0, 0, 0])
            return count + 1
        split = [data.draw(st.integers(0, columns - 1)), data.draw(st.sampled_from(_BRANCHES))]
        row = [tree, count, *split, data.draw(st.integers(-4, 4)) / 4, count + 1, 0, data.draw(st.integers(0, 1))]
        rows.append(row)
        row[6] = grow(tree, depth - 1, count + 1)
        return grow(tree, depth - 1, row[6])

    for tree in range(data.draw(st.integers(1, 3))):
        grow(tree, 3, 0)
    names = "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true".split()
    return {f"nodes_{name}": [row[i] for row in rows] for i, name in enumerate(names)}, leaves


@pytest.mark.parametrize("op", ["TreeEnsembleRegressor", "TreeEnsembleClassifier"])
@_SETTINGS
@given(st.data(), st.integers(1, 3), st.integers(3, 4), _transforms, _seeds)
def test_trees(op: str, data: st.DataObject, columns: int, targets: int, transform: str, seed: int) -> None:
    nodes, leaves = _forest(data, columns)
    rng = np.random.default_rng(seed)
    x = (rng.integers(-6, 7, (4, columns)) / 4).astype(np.float32)
    if "BRANCH_NEQ" not in nodes["nodes_modes"]:
        x[0, 0] = np.nan
    votes = [(tree, node, target) for tree, node in leaves for target in range(targets)]
    prefix = "class" if op == "TreeEnsembleClassifier" else "target"
    attributes: dict[str, Any] = {
        f"{prefix}_treeids": [v[0] for v in votes],
        f"{prefix}_nodeids": [v[1] for v in votes],
        f"{prefix}_ids": [v[2] for v in votes],
        f"{prefix}_weights": rng.standard_normal(len(votes)).astype(np.float32).tolist(),
        "post_transform": transform,
    }
    if data.draw(st.booleans()):
        attributes["base_values"] = rng.standard_normal(targets).astype(np.float32).tolist()
    if op == "TreeEnsembleClassifier":
        _agree(op, [x], 2, version=3, classlabels_int64s=[10 + i for i in range(targets)], **nodes, **attributes)
    else:
        function = data.draw(st.sampled_from(["SUM", "AVERAGE", "MIN", "MAX"]))
        _agree(op, [x], version=3, n_targets=targets, aggregate_function=function, **nodes, **attributes)


@_SETTINGS
@given(st.data(), _seeds)
def test_preparation_of_features(data: st.DataObject, seed: int) -> None:
    x, offsets, factors, wider = normal(seed, (2, 3), (3,), (3,), (2, 2))
    ints = np.random.default_rng(seed).integers(0, 5, (2, 3))
    _agree("Binarizer", [x], threshold=0.2)
    _agree("Scaler", [data.draw(st.sampled_from([x, ints]))], offset=offsets.tolist(), scale=factors.tolist())
    _agree("Normalizer", [data.draw(st.sampled_from([x, x * 0]))], norm=data.draw(st.sampled_from(["MAX", "L1", "L2"])))
    holes = np.where(ints == 0, np.float32(np.nan), x)
    new = data.draw(st.sampled_from([[1.0], [1.0, 2.0, 3.0]]))
    _agree("Imputer", [holes], imputed_value_floats=new, replaced_value_float=float("nan"))
    _agree("OneHotEncoder", [ints], cats_int64s=[1, 2, 4], zeros=1)
    _agree("FeatureVectorizer", [x, wider], inputdimensions=[3, 2])
    _agree("ArrayFeatureExtractor", [x, ints[0] % 3])
    _agree("LabelEncoder", [ints], version=2, keys_int64s=[1, 3], values_floats=[0.5, 2.0], default_float=-3.0)
