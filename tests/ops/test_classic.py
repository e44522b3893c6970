"""Classical models, compiled, against the reference of the operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from standard_harness import check

SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)
transforms = st.sampled_from(["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
dtypes = st.sampled_from([np.float32, np.float32, np.float64])
COMPARISONS = ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"]


def classic(op: str, x: Any, outputs: int = 1, *, version: int = 1, rtol: float = 1e-5, **attributes: Any) -> None:
    check(op, [x], outputs, domain="ai.onnx.ml", version=version, rtol=rtol, **attributes)


def labels_of(draw: Any, count: int, ints: str = "classlabels_ints") -> dict[str, Any]:
    if draw(st.booleans()):
        return {"classlabels_strings": [f"c{k}" for k in range(count)]}
    return {ints: [10 + 3 * k for k in range(count)]}


# trees


@st.composite
def forests(draw, columns: int, modes: list[str]):
    """Nodes (tree, node, feature, mode, split, yes, no, missing) and leaves (tree, node) of some trees."""
    rows: list[list[Any]] = []
    leaves: list[tuple[int, int]] = []

    def grow(tree: int, depth: int, number: int) -> int:
        if depth == 0 or draw(st.integers(0, 2)) == 0:
            leaves.append((tree, number))
            rows.append([tree, number, 0, "LEAF", 0.0, 0, 0, 0])
            return number + 1
        feature, mode, split = draw(st.integers(0, columns - 1)), draw(st.sampled_from(modes)), draw(st.integers(-3, 3))
        row = [tree, number, feature, mode, split / 4, number + 1, 0, draw(st.integers(0, 1))]
        rows.append(row)
        row[6] = grow(tree, depth - 1, number + 1)
        return grow(tree, depth - 1, row[6])

    for tree in range(draw(st.integers(1, 4))):
        grow(tree, 4, 0)
    return rows, leaves


def rows_of(draw: Any, columns: int, dtype: Any) -> np.ndarray:
    """Rows that meet splits exactly, and some NaN."""
    rng = np.random.default_rng(draw(seeds))
    x = (rng.integers(-5, 6, (draw(st.sampled_from([1, 5, 40, 77])), columns)) / 4).astype(dtype)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


PARTS = ("treeids", "nodeids", "ids")
NAMES = "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true".split()


@SETTINGS
@given(st.data())
def test_trees_by_ids(data):
    """Leaves with several votes or none, base values, transforms; regression and classification."""
    draw = data.draw
    columns, targets = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rows, leaves = draw(forests(columns, draw(st.sampled_from([["LEQ"], ["LT"], COMPARISONS]))))
    nodes = {f"nodes_{name}": [row[i] for row in rows] for i, name in enumerate(NAMES)}
    nodes["nodes_modes"] = [m if m == "LEAF" else f"BRANCH_{m}" for m in nodes["nodes_modes"]]
    x = rows_of(draw, columns, draw(dtypes))
    rng = np.random.default_rng(draw(seeds))
    votes = [(*leaf, t) for leaf in leaves for t in range(targets) if draw(st.integers(0, 4))]
    if draw(st.booleans()):
        votes = [(*leaf, draw(st.integers(0, targets - 1))) for leaf in leaves]
    votes = votes or [(*leaves[0], 0)]
    weights = rng.standard_normal(len(votes)).astype(np.float32)
    for prefix in ("target", "class"):
        scores: dict[str, Any] = {f"{prefix}_{p}": [v[i] for v in votes] for i, p in enumerate(PARTS)}
        scores[f"{prefix}_weights"] = (np.abs(weights) if draw(st.booleans()) else weights).tolist()
        scores["post_transform"] = draw(transforms)
        if draw(st.booleans()):
            scores["base_values"] = rng.standard_normal(targets).astype(np.float32).tolist()
        if prefix == "target":
            kind = draw(st.sampled_from(["SUM", "AVERAGE", "MIN", "MAX"]))
            classic(
                "TreeEnsembleRegressor", x, version=3, n_targets=targets, aggregate_function=kind, **nodes, **scores
            )
        else:
            labels = labels_of(draw, targets, "classlabels_int64s")
            classic("TreeEnsembleClassifier", x, 2, version=3, **labels, **nodes, **scores)


@SETTINGS
@given(st.data())
def test_trees_by_numbers(data):
    """The encoding of version 5, with sets of members and dtypes of any width."""
    draw = data.draw
    columns, targets = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from(["f2", "f4", "f8"]))
    rows, leaves = draw(forests(columns, draw(st.sampled_from([["LEQ"], [*COMPARISONS, "MEMBER"]]))))
    inner = [r for r in rows if r[3] != "LEAF"]
    if not inner:
        return
    number = {(r[0], r[1]): k for k, r in enumerate(inner)}
    leaf = {place: k for k, place in enumerate(leaves)}
    children: dict[str, list[int]] = {}
    for side, at in (("true", 5), ("false", 6)):
        places = [(r[0], r[at]) for r in inner]
        children[f"nodes_{side}nodeids"] = [number.get(p, leaf.get(p, 0)) for p in places]
        children[f"nodes_{side}leafs"] = [int(p in leaf) for p in places]
    members = [draw(st.lists(st.integers(-4, 4), min_size=1, max_size=3)) for r in inner if r[3] == "MEMBER"]
    sets = [v for m in members for v in (*(k / 4 for k in m), np.nan)]
    rng = np.random.default_rng(draw(seeds))
    trees = [r[0] for r in inner]
    classic(
        "TreeEnsemble",
        rows_of(draw, columns, dtype),
        version=5,
        rtol=2e-3 if dtype == "f2" else 1e-5,
        n_targets=targets,
        aggregate_function=draw(st.integers(0, 3)),
        post_transform=draw(st.sampled_from([0, 1, 2])),
        tree_roots=[trees.index(t) for t in dict.fromkeys(trees)],
        nodes_featureids=[r[2] for r in inner],
        nodes_modes=tensor(np.array([[*COMPARISONS, "MEMBER"].index(r[3]) for r in inner], np.uint8)),
        nodes_splits=tensor(np.array([r[4] for r in inner], dtype)),
        nodes_missing_value_tracks_true=[r[7] for r in inner],
        leaf_targetids=[int(t) for t in rng.integers(0, targets, len(leaves))],
        leaf_weights=tensor(rng.standard_normal(len(leaves)).astype(dtype)),
        **({"membership_values": tensor(np.array(sets, dtype))} if sets else {}),
        **children,
    )


def tensor(array: np.ndarray) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(array)


# linear models, support vectors, features


@SETTINGS
@given(st.data(), st.integers(1, 4), st.integers(1, 4), transforms, dtypes, seeds)
def test_linear_models(data, classes, columns, transform, dtype, seed):
    rng = np.random.default_rng(seed)
    sets = 1 if classes == 2 and data.draw(st.booleans()) else classes
    x = rng.standard_normal((5, columns)).astype(dtype)
    common: dict[str, Any] = {
        "coefficients": rng.standard_normal(sets * columns).astype(np.float32).tolist(),
        "intercepts": rng.standard_normal(sets).astype(np.float32).tolist(),
        "post_transform": transform,
    }
    classic("LinearClassifier", x, 2, **labels_of(data.draw, classes), **common)
    classic("LinearRegressor", x, targets=sets, **common)


@SETTINGS
@given(st.sampled_from(["LINEAR", "POLY", "RBF", "SIGMOID"]), st.sampled_from([0, 3]), st.booleans(), dtypes, seeds)
def test_support_vectors(kernel, supports, one_class, dtype, seed):
    rng = np.random.default_rng(seed)
    classic(
        "SVMRegressor",
        rng.standard_normal((4, 3)).astype(dtype),
        kernel_type=kernel,
        kernel_params=[0.5, 0.3, 2.0],
        n_supports=supports,
        **({"support_vectors": rng.standard_normal(3 * supports).tolist()} if supports else {}),
        coefficients=rng.standard_normal(supports or 3).tolist(),
        rho=[0.2],
        one_class=int(one_class),
    )


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@SETTINGS
@given(dtypes, seeds, st.booleans())
def test_features(norm, dtype, seed, whole):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4, 3)).astype(dtype)
    ints = rng.integers(0, 4, (4, 3))
    classic("Scaler", ints if whole else x, offset=[0.5, 1.0, -2.0], scale=[2.0])
    classic("Normalizer", x * (rng.random((4, 1)) < 0.7).astype(dtype), norm=norm)
    classic("Imputer", np.where(ints == 0, np.nan, x).astype(dtype), imputed_value_floats=[1.0, 2.0, 3.0],
            replaced_value_float=float("nan"))  # fmt: skip
    classic("Imputer", ints, imputed_value_int64s=[7], replaced_value_int64=2)
