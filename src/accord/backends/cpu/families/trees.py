"""Ensembles of decision trees, in the encoding of version 5 of ai.onnx.ml and in the older one by tree and node ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.host import CpuHostKernel
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.trees import Forest, Question, codes_of, descend, forest_of
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Array, Kernel
from accord.backends.view import NodeView
from accord.ir.facts import to_numpy
from accord.ir.reason import Reason

__all__ = ["TreeKernel", "tree_ensemble", "tree_ensemble_regressor"]

_DOMAIN = "ai.onnx.ml"
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_KINDS = ("AVERAGE", "SUM", "MIN", "MAX")


@arranges("TreeEnsemble", "TreeEnsembleRegressor", domain=_DOMAIN)
def any_strides(view: NodeView) -> Arrangement:
    """Python brings the rows into order where they are not."""
    del view
    return Arrangement(strided=True)


@dataclass(frozen=True)
class TreeKernel(CpuHostKernel):
    """The votes of a forest.

    Attributes:
        targets: Columns of the result.
        kind: "AVERAGE", "SUM", "MIN" or "MAX".
        dtype: NumPy's name of the result's type.
        forest: The trees.
    """

    targets: int
    kind: str
    dtype: str
    forest: Forest = field(compare=False)
    name = "trees"

    @property
    def _joined(self) -> str:
        return "SUM" if self.kind == "AVERAGE" else self.kind

    def codes(self) -> Sequence[KernelCode]:
        """For few rows and for many."""
        return codes_of(self.forest, self.targets, self._joined)

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """``[rows, targets]``."""
        x = np.asarray(inputs[0], self.forest.splits.dtype, order="C")
        total = descend(self.forest, x, self.targets, self._joined)
        if self.kind == "AVERAGE":
            total = total / len(self.forest.roots)
        return [total.astype(self.dtype)]


def _rows(view: NodeView) -> str | Reason:
    """The type in which rows are compared."""
    x = known(view.tensor(0), "the input")
    if isinstance(x, Reason):
        return x
    if len(x[0]) != 2 or x[1] not in ("f16", "f32", "f64"):
        return Reason("only rows of floats")
    return "f64" if x[1] == "f64" else "f32"


def _kernel(view: NodeView, made: Forest | str, targets: int, kind: str) -> Kernel | Reason:
    dtype = view.output().dtype
    assert dtype is not None
    if isinstance(made, str):
        return Reason(made)
    if made.targets.size and not 0 <= made.targets.min() <= made.targets.max() < targets:
        return Reason("a leaf votes for a target that there is not")
    return TreeKernel(targets, kind, dtype.numpy().name, made)


@selects("TreeEnsemble", domain=_DOMAIN)
def tree_ensemble(view: NodeView) -> Kernel | Reason:
    """One vote a leaf."""
    dtype = _rows(view)
    if isinstance(dtype, Reason):
        return dtype
    if view.attr("post_transform", 0):
        return Reason("what is computed from the scores is not written out")
    modes = [_MODES[int(m)] for m in _tensor(view, "nodes_modes")]
    splits = _tensor(view, "nodes_splits").astype(np.float32 if dtype == "f32" else np.float64).tolist()
    sets = iter(_member_sets(view))
    values = [tuple(next(sets, ())) if m == "MEMBER" else (s,) for m, s in zip(modes, splits, strict=True)]
    missing = view.attr("nodes_missing_value_tracks_true") or [0] * len(modes)
    children = [
        [-1 - int(i) if leaf else int(i) for i, leaf in zip(view.attr(ids), view.attr(leaves), strict=True)]
        for ids, leaves in (("nodes_truenodeids", "nodes_trueleafs"), ("nodes_falsenodeids", "nodes_falseleafs"))
    ]
    questions = [
        Question(int(f), m, v, yes, no, bool(nan))
        for f, m, v, yes, no, nan in zip(view.attr("nodes_featureids"), modes, values, *children, missing, strict=True)
    ]
    targets = [int(t) for t in view.attr("leaf_targetids")]
    leaves = [[(t, w)] for t, w in zip(targets, _tensor(view, "leaf_weights").tolist(), strict=True)]
    count = view.attr("n_targets")
    made = forest_of(questions, [int(r) for r in view.attr("tree_roots")], leaves, dtype)
    return _kernel(
        view, made, max(targets) + 1 if count is None else int(count), _KINDS[view.attr("aggregate_function", 1)]
    )


def _tensor(view: NodeView, name: str) -> Array:
    return to_numpy(view.attr(name)).reshape(-1).astype(np.float64)


def _member_sets(view: NodeView) -> list[list[float]]:
    """The sets of the nodes that ask for a member, from one list that NaNs delimit."""
    sets: list[list[float]] = [[]]
    for value in _tensor(view, "membership_values").tolist() if view.attr("membership_values") is not None else ():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    return sets


@selects("TreeEnsembleRegressor", domain=_DOMAIN)
def tree_ensemble_regressor(view: NodeView) -> Kernel | Reason:
    """Any number of votes a leaf."""
    dtype = _rows(view)
    if isinstance(dtype, Reason):
        return dtype
    transform = view.attr("post_transform", "NONE")
    if transform != "NONE" or any(view.attr(f"base_values{kind}") is not None for kind in ("", "_as_tensor")):
        return Reason("what is computed from the scores is not written out")
    places = list(zip(view.attr("nodes_treeids"), view.attr("nodes_nodeids"), strict=True))
    modes = [str(m).removeprefix("BRANCH_") for m in view.attr("nodes_modes")]
    number: dict[Any, int] = {}
    leaves: list[list[tuple[int, float]]] = []
    for place, mode in zip(places, modes, strict=True):
        number[place] = -1 - len(leaves) if mode == "LEAF" else len(number) - len(leaves)
        if mode == "LEAF":
            leaves.append([])
    ids = ("nodes_treeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids")
    missing = view.attr("nodes_missing_value_tracks_true") or [0] * len(places)
    nodes = zip(*(view.attr(name) for name in ids), modes, _either(view, "nodes_values"), missing, strict=True)
    try:
        questions = [
            Question(int(feature), mode, (value,), number[tree, yes], number[tree, no], bool(nan))
            for tree, feature, yes, no, mode, value, nan in nodes
            if mode != "LEAF"
        ]
    except KeyError as error:
        return Reason(f"a node names a child {error} that there is not")
    votes = (view.attr(f"target_{part}") for part in ("treeids", "nodeids", "ids"))
    for tree, node, target, weight in zip(*votes, _either(view, "target_weights"), strict=True):
        leaf = number.get((tree, node), 0)
        if leaf < 0:
            leaves[-1 - leaf].append((int(target), weight))
    roots: dict[int, int] = {}
    for tree, node in places:
        roots.setdefault(tree, number[tree, node])
    made = forest_of(questions, [roots[tree] for tree in sorted(roots)], leaves, dtype)
    return _kernel(view, made, int(view.attr("n_targets") or 1), str(view.attr("aggregate_function", "SUM")))


def _either(view: NodeView, name: str) -> list[float]:
    """An attribute that is a list of floats or, with a suffix, a tensor of doubles."""
    tensor = view.attr(f"{name}_as_tensor")
    values = view.attr(name) or [] if tensor is None else to_numpy(tensor).reshape(-1)
    return [float(v) for v in values]
