"""Nodes that do nothing, or that a simpler node can replace."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = [
    "CollapseReshapes",
    "FoldReshapeTarget",
    "GatherBeforeElementwise",
    "GatherToSlice",
    "MergeTransposes",
    "RemoveIdentity",
    "RemoveNeutralArithmetic",
    "RemoveNoOpCast",
    "RemoveNoOpMovement",
    "TransposeToReshape",
]


def _passes_through(node: ir.Node, value: ir.Value | None) -> Patch | None:
    """The patch that puts input ``value`` in place of the node's first output."""
    return None if value is None else Patch({node.outputs[0]: value}, note="does nothing")


class RemoveIdentity(Rule):
    """Remove Identity, inference-mode Dropout, and Sum/Max/Min/Mean/Concat of one input."""

    name: ClassVar[str] = "remove-identity"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Identity", "Dropout", "Sum", "Max", "Min", "Mean", "Concat")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that uses the input in place of the output."""
        x = node.inputs[0] if node.inputs else None
        if node.op_type == "Dropout":
            training = context.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
            if len(node.inputs) > 2 and node.inputs[2] is not None and (training is None or bool(training)):
                return Reason("training_mode is not known to be false")
            if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
                return Reason("the mask output is used")
        elif node.op_type != "Identity" and len(node.inputs) != 1:
            return None
        output = node.outputs[0]
        if output.is_graph_output() and x is not None and not _can_take_name(x, node):
            return None
        return _passes_through(node, x)


def _can_take_name(x: ir.Value, node: ir.Node) -> bool:
    """False if the graph output would have to be produced by another Identity."""
    return not (
        x.is_graph_output()
        or x.is_graph_input()
        or x.is_initializer()
        or x.producer() is None
        or x.graph is not node.graph
    )


class RemoveNoOpCast(Rule):
    """Remove a Cast to the dtype that the value has, and a lossless there-and-back pair of Casts."""

    name: ClassVar[str] = "remove-no-op-cast"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Cast", "CastLike")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that uses the input in place of the output."""
        x = node.inputs[0]
        target = context.tensor(node.outputs[0]).dtype
        source = context.tensor(x).dtype
        if x is None or target is None or source is None:
            return None
        if node.outputs[0].is_graph_output() and not _can_take_name(x, node):
            return None
        if target == source:
            return _passes_through(node, x)
        inner = x.producer()
        if inner is not None and inner.op_type == "Cast" and inner.domain == "":
            origin = inner.inputs[0]
            start = context.tensor(origin).dtype
            if start == target and (start, source) in _LOSSLESS and origin is not None:
                if node.outputs[0].is_graph_output() and not _can_take_name(origin, node):
                    return None
                return _passes_through(node, origin)
        return None


def _lossless() -> frozenset[tuple[ir.DataType, ir.DataType]]:
    t = ir.DataType
    chains = [
        (t.FLOAT16, t.FLOAT, t.DOUBLE),
        (t.BFLOAT16, t.FLOAT, t.DOUBLE),
        (t.INT8, t.INT16, t.INT32, t.INT64),
        (t.UINT8, t.UINT16, t.UINT32, t.UINT64),
        (t.UINT8, t.INT16, t.INT32, t.INT64),
        (t.UINT16, t.INT32, t.INT64),
        (t.UINT32, t.INT64),
        (t.INT8, t.FLOAT16),
        (t.UINT8, t.FLOAT16),
        (t.INT16, t.FLOAT, t.DOUBLE),
        (t.UINT16, t.FLOAT, t.DOUBLE),
        (t.INT32, t.DOUBLE),
        (t.UINT32, t.DOUBLE),
        (t.BOOL, t.UINT8, t.INT16, t.INT32, t.INT64),
        (t.BOOL, t.INT8),
        (t.BOOL, t.FLOAT16, t.FLOAT, t.DOUBLE),
    ]
    return frozenset((a, b) for c in chains for i, a in enumerate(c) for b in c[i + 1 :])


_LOSSLESS = _lossless()


class RemoveNoOpMovement(Rule):
    """Remove Reshape, Transpose, Expand, Tile, Slice, Pad ... that leave every element where it is."""

    name: ClassVar[str] = "remove-no-op-movement"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops(
        "Reshape", "Transpose", "Expand", "Tile", "Slice", "Pad", "Flatten", "Squeeze", "Unsqueeze"
    )

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that uses the input in place of the output."""
        x = node.inputs[0]
        before, after = context.tensor(x), context.tensor(node.outputs[0])
        if x is None or before.shape is None or before.shape != after.shape or not self._keeps_order(node, context):
            return None
        if node.outputs[0].is_graph_output() and not _can_take_name(x, node):
            return None
        return _passes_through(node, x)

    @staticmethod
    def _keeps_order(node: ir.Node, context: RuleContext) -> bool:
        if node.op_type == "Transpose":
            rank = context.tensor(node.inputs[0]).rank or 0
            return list(context.attr(node, "perm", range(rank)[::-1])) == list(range(rank))
        if node.op_type == "Slice":
            steps = context.constant(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else 1
            return steps is not None and bool(np.all(np.asarray(steps) == 1))
        if node.op_type == "Pad":
            pads = context.constant(node.inputs[1])
            return pads is not None and not pads.any()
        return True


class MergeTransposes(Rule):
    """Replace two Transposes in a row by one."""

    name: ClassVar[str] = "merge-transposes"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Transpose")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the composed permutation."""
        x = node.inputs[0]
        inner = x.producer() if x is not None else None
        if inner is None or inner.op_type != "Transpose" or inner.domain != "":
            return None
        rank = context.tensor(x).rank
        if rank is None:
            return Reason("the rank is not known")
        outer_perm = list(context.attr(node, "perm", range(rank)[::-1]))
        inner_perm = list(context.attr(inner, "perm", range(rank)[::-1]))
        b = context.builder()
        y = b("Transpose", inner.inputs[0], perm=[inner_perm[p] for p in outer_perm])
        return patch_from(b, node, [y], f"merged with {inner.name}")


class TransposeToReshape(Rule):
    """Replace a Transpose that only moves axes of size 1 by a Reshape, which costs nothing."""

    name: ClassVar[str] = "transpose-to-reshape"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Transpose")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with a Reshape to the transposed shape."""
        shape = context.tensor(node.inputs[0]).shape
        if shape is None:
            return None
        perm = list(context.attr(node, "perm", range(len(shape))[::-1]))
        moved = [p for p in perm if shape[p] != 1]
        if moved != sorted(moved) or perm == sorted(perm):
            return None
        out = context.tensor(node.outputs[0]).shape
        target = None if out is None else reshape_target(out, shape)
        if target is None:
            return Reason("more than one size is only known at run time")
        b = context.builder()
        return patch_from(b, node, [b("Reshape", node.inputs[0], b.ints(*target))], "only axes of size 1 move")


def reshape_target(out: D.Shape, source: D.Shape) -> list[int] | None:
    """A Reshape target with 0 (copy) and at most one -1 that gives ``out`` from ``source``; None if there is none."""
    target: list[int] = []
    unknown = 0
    for i, d in enumerate(out):
        if isinstance(d, int) and d > 0:
            target.append(d)
        elif i < len(source) and source[i] == d:
            target.append(0)
        elif isinstance(d, int):
            return None  # a size of zero that is no copy needs allowzero
        else:
            target.append(-1)
            unknown += 1
    if unknown > 1:
        return None
    if unknown == 1 and any(d == 0 for d in (*out, *source)):
        return None
    return target


class FoldReshapeTarget(Rule):
    """Give a Reshape, Flatten, Squeeze or Unsqueeze a constant target, so that the arithmetic behind it is dead."""

    name: ClassVar[str] = "fold-reshape-target"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Reshape")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the same Reshape and a constant target."""
        if context.tensor(node.inputs[1]).is_const:
            return None
        source, out = context.tensor(node.inputs[0]).shape, context.tensor(node.outputs[0]).shape
        if source is None or out is None:
            return Reason("the shape is only known at run time")
        target = reshape_target(out, source)
        if target is None:
            return Reason(f"more than one size of {list(map(str, out))} is only known at run time")
        b = context.builder()
        return patch_from(b, node, [b("Reshape", node.inputs[0], b.ints(*target))], f"target {target}")


class CollapseReshapes(Rule):
    """Skip a Reshape, Squeeze, Unsqueeze or Flatten that feeds a Reshape."""

    name: ClassVar[str] = "collapse-reshapes"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Reshape", "Squeeze", "Unsqueeze", "Flatten")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that reshapes the first one's input at once."""
        x = node.inputs[0]
        inner = x.producer() if x is not None else None
        if inner is None or inner.domain != "" or inner.op_type not in ("Reshape", "Squeeze", "Unsqueeze", "Flatten"):
            return None
        source = context.tensor(inner.inputs[0]).shape
        out = context.tensor(node.outputs[0]).shape
        target = None if source is None or out is None else reshape_target(out, source)
        if target is None:
            return Reason("the target cannot be stated as a constant")
        b = context.builder()
        return patch_from(b, node, [b("Reshape", inner.inputs[0], b.ints(*target))], f"skips {inner.name}")


class RemoveNeutralArithmetic(Rule):
    """Remove x+0, x-0, x*1, x/1, x**1 where the constant changes neither value nor shape nor dtype."""

    name: ClassVar[str] = "remove-neutral-arithmetic"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Add", "Sub", "Mul", "Div", "Pow")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that uses the other operand."""
        neutral = 0 if node.op_type in ("Add", "Sub") else 1
        sides = (0, 1) if node.op_type in ("Add", "Mul") else (0,)
        for side in sides:
            x, c = node.inputs[side], node.inputs[1 - side]
            content = context.constant(c, 4096)
            if x is None or content is None or content.dtype.kind not in "fiu":
                continue
            # x + 0 turns -0.0 into 0.0; x + -0.0 and the others keep every bit
            if not bool(np.all(content == neutral)):
                continue
            zero_sign = node.op_type == "Add" and content.dtype.kind == "f" and not bool(np.signbit(content).all())
            if context.tensor(x).shape != context.tensor(node.outputs[0]).shape or context.tensor(x).shape is None:
                return Reason("the constant also broadcasts")
            if node.outputs[0].is_graph_output() and not _can_take_name(x, node):
                return None
            note = "neutral constant" + (" (the sign of a zero may differ)" if zero_sign else "")
            return Patch({node.outputs[0]: x}, note=note)
        return None


#: Elementwise operators that restore a weight from fewer bits.
_RESTORING = frozenset({"Cast", "Mul", "Sub", "Add", "Div"})
_FAR = 8


def _from_constants(value: ir.Value, depth: int = _FAR) -> bool:
    """Whether a value is computed from weights alone, elementwise."""
    if value.const_value is not None and not value.is_graph_input():
        return True
    maker = value.producer()
    if maker is None or depth == 0 or maker.domain != "" or maker.op_type not in _RESTORING:
        return False
    return all(v is not None and _from_constants(v, depth - 1) for v in maker.inputs)


class GatherBeforeElementwise(Rule):
    """Rows looked up in what elementwise operators make of weights → the same operators on the rows looked up.

    So of a table whose weights are stored in few bits only the rows that a run needs are restored.
    """

    name: ClassVar[str] = "gather-before-elementwise"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Gather")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with a Gather for each input of the operator that has rows."""
        table = node.inputs[0]
        maker = None if table is None else table.producer()
        if table is None or maker is None or maker.op_type not in _RESTORING or not _from_constants(table):
            return None
        shape = context.tensor(table).shape
        if shape is None or not shape or int(context.attr(node, "axis", 0)) % len(shape) != 0:
            return Reason("rows are not looked up along the first axis")
        if context.only_use(table) is not node:
            return Reason(f"'{table.name}' has other uses")
        b = context.builder()
        rows: list[ir.Value] = []
        for v in maker.inputs:
            own = context.tensor(v).shape
            if v is None or own is None:
                return Reason("a shape is not known")
            if len(own) == len(shape) and own[0] == shape[0]:
                rows.append(b("Gather", v, node.inputs[1], axis=0))
            elif len(own) == len(shape) and own[0] != 1:
                return Reason(f"'{v.name}' has other rows")
            else:
                rows.append(v)
        attributes: dict[str, Any] = dict(maker.attributes.items())
        restored = b(maker.op_type, *rows, **attributes)
        return patch_from(b, node, [restored], f"{maker.op_type} after the look-up")


class GatherToSlice(Rule):
    """Gather of rows that lie at equal distances, by a constant → Slice, which costs nothing where strides do."""

    name: ClassVar[str] = "gather-to-slice"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Gather")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with Slice, and Squeeze where the index is one number."""
        content = context.constant(node.inputs[1])
        shape = context.tensor(node.inputs[0]).shape
        if content is None or shape is None or context.tensor(node.inputs[0]).is_const:
            return None
        axis = int(context.attr(node, "axis", 0)) % len(shape)
        size = shape[axis]
        if not isinstance(size, int):
            return Reason(f"the size of axis {axis} is only known at run time")
        if content.ndim > 1 or content.size == 0:
            return Reason(f"the indices have {content.ndim} axes, {content.size} elements")
        rows = [int(i) + (size if i < 0 else 0) for i in content.reshape(-1)]
        steps = {b - a for a, b in itertools.pairwise(rows)} or {1}
        step = steps.pop()
        if steps or step < 1:
            return Reason("the indices are not one step apart from each other")
        if not 0 <= rows[0] <= rows[-1] < size:
            return Reason(f"the indices {rows[0]} to {rows[-1]} are not all within {size}")
        b = context.builder()
        bounds = [b.ints(n) for n in (rows[0], rows[-1] + 1, axis, step)]
        y = b("Slice", node.inputs[0], *bounds)
        if content.ndim == 0:
            y = b("Squeeze", y, b.ints(axis))
        return patch_from(b, node, [y], f"rows {rows[0]} to {rows[-1]} of axis {axis}")
