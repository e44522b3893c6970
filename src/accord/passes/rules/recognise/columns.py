"""Which columns of a value are equal, whatever its rows are."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.passes.rule import RuleContext
from accord.passes.rules.recognise.views import Views

__all__ = ["same_columns"]

_UNARY = frozenset({"Cos", "Sin", "Cast", "Identity", "Neg", "Exp", "Sqrt", "Reciprocal"})
_BINARY = frozenset({"Mul", "Div", "Add", "Sub", "Pow"})
_ROWS = frozenset({"Gather", "Slice", "Squeeze", "Unsqueeze"})
_DEEPEST = 24
#: A larger constant is not looked into.
_LARGEST = 1 << 23


def same_columns(
    value: ir.Value, first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], context: RuleContext
) -> bool:
    """True if the columns ``first`` of ``value`` are known to equal the columns ``second``, each its partner."""
    if np.array_equal(first, second):
        return True
    labels = _labels(value, context, _DEEPEST)
    return labels is not None and all(labels[i] == labels[j] for i, j in zip(first, second, strict=True))


def _labels(value: ir.Value, context: RuleContext, depth: int) -> list[Hashable] | None:
    """A label for each column; columns with one label are equal."""
    shape = context.tensor(value).shape
    if not shape or not isinstance(shape[-1], int) or depth == 0:
        return None
    width = shape[-1]
    content = context.constant(value)
    if content is not None:
        if content.size > _LARGEST:
            return None
        rows = np.ascontiguousarray(content.reshape(-1, width).T)
        return [row.tobytes() for row in rows]
    node = value.producer()
    if node is None or node.domain != "" or node.graph is not value.graph:
        return [(value, i) for i in range(width)]
    found = _of_node(node, value, width, context, depth - 1)
    return found if found is not None else [(value, i) for i in range(width)]


def _of_node(node: ir.Node, value: ir.Value, width: int, context: RuleContext, depth: int) -> list[Hashable] | None:
    op = node.op_type
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return None
    rank = context.tensor(value).rank or 0
    if op in _UNARY:
        return _labels(first, context, depth)
    if op in _BINARY:
        both = [_operand(v, width, context, depth) for v in node.inputs]
        return None if both[0] is None or both[1] is None else list(zip(*both, strict=True))
    if op == "Concat" and int(context.attr(node, "axis", 0)) % rank == rank - 1:
        out: list[Hashable] = []
        for v in node.inputs:
            part = None if v is None else _labels(v, context, depth)
            if part is None:
                return None
            out.extend(part)
        return out
    if op in _ROWS and context.tensor(first).shape and _keeps_columns(node, first, width, context):
        return _labels(first, context, depth)
    return _of_view(value, context, depth)


def _operand(value: ir.Value | None, width: int, context: RuleContext, depth: int) -> list[Hashable] | None:
    """Labels of an operand that is broadcast to ``width`` columns."""
    if value is None:
        return None
    shape = context.tensor(value).shape
    if shape is not None and (len(shape) == 0 or shape[-1] == 1):
        return [(value, 0)] * width
    return _labels(value, context, depth)


def _keeps_columns(node: ir.Node, source: ir.Value, width: int, context: RuleContext) -> bool:
    """True if a node chooses or arranges rows and leaves the last axis as it is."""
    shape = context.tensor(source).shape
    assert shape is not None
    rank = len(shape)
    if shape[-1] != width:
        return False
    if node.op_type == "Gather":
        return int(context.attr(node, "axis", 0)) % rank != rank - 1
    if node.op_type == "Slice":
        axes = context.constant(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
        return axes is not None and all(int(a) % rank != rank - 1 for a in axes)
    return width != 1


def _of_view(value: ir.Value, context: RuleContext, depth: int) -> list[Hashable] | None:
    """Labels of a view whose last axis is its base's, with repeats."""
    views = Views(context)
    chain = views.back(value)
    if chain is None or len(chain.points) < 2:
        return None
    base = chain.points[0]
    own, source = views.axes(chain.last)[-1], views.axes(base)[-1]
    if tuple(f for f in own if not f.repeated) != source:
        return None
    labels = _labels(base.value, context, depth)
    sizes = [f.size for f in own]
    if labels is None or not all(isinstance(s, int) for s in sizes):
        return None
    kept = [1 if f.repeated else f.size for f in own]
    index = np.arange(len(labels)).reshape([k for k in kept if isinstance(k, int)])
    return [labels[int(i)] for i in np.broadcast_to(index, [s for s in sizes if isinstance(s, int)]).reshape(-1)]
