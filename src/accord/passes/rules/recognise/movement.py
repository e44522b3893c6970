"""Data movement that has a name: pixels to channels and back, and slices that are put together again."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.region import allows
from accord.passes.rules.recognise.views import Axes, Views

__all__ = ["RecogniseDepthSpace", "RemoveSplitConcat"]


class RecogniseDepthSpace(Rule):
    """Reshape, Transpose, Reshape between channels and positions → DepthToSpace or SpaceToDepth.

    A channel shuffle is the same three nodes between channels and channels. No operator is named for it; the three
    are views and a copy at most.
    """

    name: ClassVar[str] = "recognise-depth-space"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Reshape")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the operator."""
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        if inner is None or inner.op_type != "Transpose" or inner.domain != "":
            return None
        dtype = context.tensor(node.outputs[0]).dtype
        views = Views(context)
        chain = views.back(node.outputs[0])
        if chain is None or not allows("DepthToSpace", dtype, context):
            return None
        for start in chain.points[:-1]:
            found = _mode(views.axes(start), views.axes(chain.last))
            if found is None:
                continue
            op, block, mode = found
            between = [p.value for p in chain.points[chain.points.index(start) + 1 : -1]]
            if any(context.only_use(v) is None for v in between):
                return Reason("a value between is read by others as well")
            b = context.builder()
            y = b(op, start.value, blocksize=block, mode=mode)
            return patch_from(b, node, [y], f"blocks of {block}")
        return None


def _mode(before: Axes, after: Axes) -> tuple[str, int, str | None] | None:
    """The operator, its block size and its mode; None if it is neither."""
    if len(before) != 4 or len(after) != 4 or before[0] != after[0]:
        return None
    (_, c, h, w), (_, c2, h2, w2) = before, after
    if len(c) >= 2 and len(h2) == len(h) + 1 and len(w2) == len(w) + 1 and h2[:-1] == h and w2[:-1] == w:
        pair = (h2[-1], w2[-1])
        block = pair[0].size
        if not isinstance(block, int) or pair[1].size != block:
            return None
        if c == (*pair, *c2):
            return "DepthToSpace", block, "DCR"
        return ("DepthToSpace", block, "CRD") if c == (*c2, *pair) else None
    if len(c2) >= 2 and len(h) == len(h2) + 1 and len(w) == len(w2) + 1 and h[:-1] == h2 and w[:-1] == w2:
        pair = (h[-1], w[-1])
        block = pair[0].size
        if isinstance(block, int) and pair[1].size == block and c2 == (*pair, *c):
            return "SpaceToDepth", block, None
    return None


class RemoveSplitConcat(Rule):
    """Concat of all parts of a Split, or of slices that follow each other from end to end → the value itself."""

    name: ClassVar[str] = "remove-split-concat"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Concat")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that uses the value that was taken apart."""
        first = node.inputs[0]
        producer = first.producer() if first is not None else None
        rank = context.tensor(node.outputs[0]).rank
        if producer is None or producer.domain != "" or rank is None or len(node.inputs) < 2:
            return None
        if producer.op_type not in ("Split", "Slice"):
            return None
        axis = int(context.attr(node, "axis", 0)) % rank
        x = producer.inputs[0]
        if x is None or context.tensor(x).shape != context.tensor(node.outputs[0]).shape:
            return None
        parts = _split_parts(producer, axis, context) if producer.op_type == "Split" else None
        whole = list(node.inputs) == parts if parts is not None else self._follow(node, x, axis, context)
        if not whole:
            return Reason(f"the parts of '{x.name}' are not put together in their order")
        return Patch({node.outputs[0]: x}, note="put together what was taken apart")

    @staticmethod
    def _follow(node: ir.Node, x: ir.Value, axis: int, context: RuleContext) -> bool:
        """True if the inputs are slices of ``x`` along ``axis``, each beginning where the last one ended."""
        shape = context.tensor(x).shape
        assert shape is not None
        at: D.DimLike = 0
        for part in node.inputs:
            bounds = None if part is None else _slice_bounds(part, x, axis, context)
            if bounds is None or bounds[0] != at:
                return False
            at = bounds[1]
        return at == shape[axis]


def _split_parts(split: ir.Node, axis: int, context: RuleContext) -> list[ir.Value] | None:
    rank = context.tensor(split.inputs[0]).rank
    own = rank is not None and int(context.attr(split, "axis", 0)) % rank == axis
    return list(split.outputs) if own else []


def _slice_bounds(part: ir.Value, x: ir.Value, axis: int, context: RuleContext) -> tuple[D.DimLike, D.DimLike] | None:
    """Where a slice of ``x`` along ``axis`` alone begins and ends."""
    node = part.producer()
    if node is None or node.op_type != "Slice" or node.domain != "" or node.inputs[0] is not x:
        return None
    shape = context.tensor(x).shape
    elements = [context.tensor(v).elements() if v is not None else None for v in node.inputs[1:]]
    if shape is None or elements[0] is None or len(elements[0]) != 1:
        return None
    axes = elements[2] if len(elements) > 2 and elements[2] is not None else (0,)
    steps = elements[3] if len(elements) > 3 and elements[3] is not None else (1,)
    length = context.tensor(part).shape
    if (
        len(axes) != 1
        or not isinstance(axes[0], int)
        or axes[0] % len(shape) != axis
        or steps != (1,)
        or length is None
    ):
        return None
    start = elements[0][0]
    if isinstance(start, int) and start < 0:
        start = shape[axis] + start
    if not (D.proves_le(0, start) and D.proves_le(start, shape[axis])):
        return None
    return start, start + length[axis]
