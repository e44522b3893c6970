"""Tree ensembles of ai.onnx.ml, in the encoding of version 5 and in the older one by tree and node ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accord.backends.reference.ml_linear import labels_of, transform_scores
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require

_DOMAIN = "ai.onnx.ml"
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


@dataclass(frozen=True, slots=True)
class _Forest:
    """Interior nodes of all trees; a child below zero is the leaf of number ``-1 - child``."""

    features: Sequence[int]
    modes: Sequence[str]
    splits: Array
    members: Sequence[Array | None]
    missing_true: Sequence[int]
    true_child: Sequence[int]
    false_child: Sequence[int]
    roots: Sequence[int]

    def leaves(self, x: Array) -> Array:
        """Leaf that each row reaches in each tree: (rows, trees)."""
        result = np.zeros((len(x), len(self.roots)), dtype=np.int64)
        for tree, root in enumerate(self.roots):
            pending = [(root, np.arange(len(x)), 0)]
            while pending:
                node, rows, depth = pending.pop()
                if node < 0:
                    result[rows, tree] = -1 - node
                    continue
                require(depth <= len(self.features), "the nodes of a tree form a cycle")
                if rows.size:
                    yes = self._decide(node, x[rows, self.features[node]])
                    pending.append((self.true_child[node], rows[yes], depth + 1))
                    pending.append((self.false_child[node], rows[~yes], depth + 1))
        return result

    def _decide(self, node: int, values: Array) -> Array:
        mode = self.modes[node]
        if mode == "BRANCH_MEMBER":
            members = self.members[node]
            yes = np.isin(values, members if members is not None else [])
        else:
            require(mode in _COMPARISONS, f"node mode '{mode}' is unknown")
            yes = _COMPARISONS[mode](values, self.splits[node].astype(values.dtype))
        missing = np.isnan(values)
        return np.asarray(np.where(missing, bool(self.missing_true[node]), yes)).astype(bool)


def _aggregate(votes: list[tuple[int, float]], targets: int, function: str, trees: int) -> Array:
    """Combine the weights that fall on each target; a target without a weight gets zero."""
    require(function in ("SUM", "AVERAGE", "MIN", "MAX"), f"aggregate_function '{function}' is unknown")
    result = np.zeros(targets)
    if function in ("SUM", "AVERAGE"):
        for target, weight in votes:
            result[target] += weight
        return result / trees if function == "AVERAGE" else result
    extreme = min if function == "MIN" else max
    best: dict[int, float] = {}
    for target, weight in votes:
        best[target] = extreme(best.get(target, weight), weight)
    for target, weight in best.items():
        result[target] = weight
    return result


def _member_sets(modes: Array, values: Array | None) -> list[Array | None]:
    """The set of each membership node, from one list that NaNs delimit."""
    count = int((modes == _MODES.index("BRANCH_MEMBER")).sum())
    if values is None:
        require(count == 0, "a membership node has no membership_values")
        return [None] * len(modes)
    ends = np.flatnonzero(np.isnan(values))
    groups = [part[~np.isnan(part)] for part in np.split(values, ends + 1)]
    groups = [part for number, part in enumerate(groups) if number < len(ends) or part.size]
    require(len(groups) == count, f"{len(groups)} sets of members for {count} membership nodes")
    remaining = iter(groups)
    return [next(remaining) if mode == _MODES.index("BRANCH_MEMBER") else None for mode in modes]


@implements("TreeEnsemble", domain=_DOMAIN, since=5)
def tree_ensemble(op: OpNode, x: Array) -> Array:
    """Combine the leaves that each row reaches, by target."""
    modes = op["nodes_modes"].reshape(-1)
    nodes = len(modes)
    true_child = [-1 - i if leaf else i for i, leaf in zip(op["nodes_truenodeids"], op["nodes_trueleafs"], strict=True)]
    false_child = [
        -1 - i if leaf else i for i, leaf in zip(op["nodes_falsenodeids"], op["nodes_falseleafs"], strict=True)
    ]
    forest = _Forest(
        op["nodes_featureids"],
        [_MODES[int(mode)] for mode in modes],
        op["nodes_splits"].reshape(-1),
        _member_sets(modes, op["membership_values"]),
        op["nodes_missing_value_tracks_true"] or [0] * nodes,
        true_child,
        false_child,
        op["tree_roots"],
    )
    require(x.ndim == 2, f"a tensor of rank {x.ndim} is not a batch of rows")
    targets, weights = op["leaf_targetids"], op["leaf_weights"].reshape(-1).astype(np.float64)
    function = ("AVERAGE", "SUM", "MIN", "MAX")[op["aggregate_function"]]
    count = op["n_targets"] if op["n_targets"] is not None else max(targets) + 1
    rows = [
        _aggregate([(targets[leaf], weights[leaf]) for leaf in row], count, function, len(forest.roots))
        for row in forest.leaves(x)
    ]
    transform = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[op["post_transform"]]
    return transform_scores(np.array(rows).reshape(-1, count), transform).astype(x.dtype)


def _either(op: OpNode, name: str) -> Array | None:
    """An attribute that is a list of floats or, with a suffix, a tensor of doubles."""
    tensor = op[f"{name}_as_tensor"]
    if tensor is not None:
        return np.asarray(tensor).reshape(-1)
    return None if op[name] is None else np.array(op[name], dtype=np.float32)


def _old_forest(op: OpNode) -> tuple[_Forest, list[tuple[int, int]]]:
    """The forest of the older encoding, and the (tree, node) ids of its leaves."""
    places = list(zip(op["nodes_treeids"], op["nodes_nodeids"], strict=True))
    leaves = [i for i, mode in enumerate(op["nodes_modes"]) if mode == "LEAF"]
    leaf_number = {i: number for number, i in enumerate(leaves)}
    index = {place: -1 - leaf_number[i] if i in leaf_number else i for i, place in enumerate(places)}
    children = []
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        children.append(
            [
                0 if i in leaf_number else index[(tree, child)]
                for i, (tree, child) in enumerate(zip(op["nodes_treeids"], op[name], strict=True))
            ]
        )
    roots: dict[int, int] = {}
    for i, (tree, _) in enumerate(places):
        roots.setdefault(tree, index[places[i]])
    splits = _either(op, "nodes_values")
    require(splits is not None, "the nodes have no values")
    assert splits is not None
    forest = _Forest(
        op["nodes_featureids"],
        op["nodes_modes"],
        splits,
        [None] * len(places),
        op["nodes_missing_value_tracks_true"] or [0] * len(places),
        children[0],
        children[1],
        [roots[tree] for tree in sorted(roots)],
    )
    return forest, [places[i] for i in leaves]


def _votes(op: OpNode, prefix: str, leaves: list[tuple[int, int]]) -> list[list[tuple[int, float]]]:
    """The (target, weight) pairs of each leaf."""
    weights = _either(op, f"{prefix}_weights")
    require(weights is not None, "the leaves have no weights")
    assert weights is not None
    by_leaf: dict[tuple[int, int], list[tuple[int, float]]] = {}
    ids = (op[f"{prefix}_{part}"] for part in ("treeids", "nodeids", "ids"))
    for tree, node, target, weight in zip(*ids, weights.tolist(), strict=True):
        by_leaf.setdefault((tree, node), []).append((target, weight))
    return [by_leaf.get(leaf, []) for leaf in leaves]


def _rows(x: Array) -> Array:
    require(x.ndim == 2, f"a tensor of rank {x.ndim} is not a batch of rows")
    return x if x.dtype.kind == "f" else x.astype(np.float32)


@implements("TreeEnsembleRegressor", domain=_DOMAIN)
def tree_ensemble_regressor(op: OpNode, x: Array) -> Array:
    """Combine the leaves that each row reaches, by target, then add the base values."""
    forest, leaves = _old_forest(op)
    votes = _votes(op, "target", leaves)
    targets = op["n_targets"] if op["n_targets"] is not None else 1
    rows = [
        _aggregate([vote for leaf in row for vote in votes[leaf]], targets, op["aggregate_function"], len(forest.roots))
        for row in forest.leaves(_rows(x))
    ]
    base = _either(op, "base_values")
    scores = np.array(rows).reshape(-1, targets) + (0 if base is None else base.astype(np.float64))
    return transform_scores(scores, op["post_transform"]).astype(np.float32)


@implements("TreeEnsembleClassifier", domain=_DOMAIN)
def tree_ensemble_classifier(op: OpNode, x: Array) -> tuple[Array, Array]:
    """Sum the votes of the leaves that each row reaches; the class with the best score is the label.

    If the leaves vote for the first class only, the votes are for the positive of two classes, and the negative one
    gets the complement: one minus a probability, or the opposite of a margin.
    """
    numbers, words = op["classlabels_int64s"], op["classlabels_strings"]
    classes = len(numbers or words or [])
    require(classes > 0, "no class labels are given")
    forest, leaves = _old_forest(op)
    votes = _votes(op, "class", leaves)
    rows = [
        _aggregate([vote for leaf in row for vote in votes[leaf]], classes, "SUM", 1) for row in forest.leaves(_rows(x))
    ]
    base = _either(op, "base_values")
    scores = np.array(rows).reshape(-1, classes)
    if base is not None:
        scores = scores + base.astype(np.float64)
    transform = op["post_transform"]
    if set(op["class_ids"]) == {0} and classes <= 2:
        positive = scores[:, 0]
        weights = _either(op, "class_weights")
        # Weights without a sign are probabilities, whose complement is meant; others are margins.
        probable = transform in (None, "NONE", "PROBIT") and weights is not None and bool((weights >= 0).all())
        scores = np.stack([1 - positive if probable else -positive, positive], axis=1)
    scores = transform_scores(scores, transform)
    chosen = np.argmax(scores, axis=1)
    if classes == 1:  # the only label stands for the positive class
        return labels_of(chosen, [0, *numbers] if numbers else None, ["", *words] if words else None), scores.astype(
            np.float32
        )
    return labels_of(chosen, numbers, words), scores.astype(np.float32)
