"""Elementwise operators: one expression of broadcast operands."""

from __future__ import annotations

from accord.backends.loops.group import DECLARED, EXACT, MEMBERS, Group, Term, wide
from accord.backends.loops.groups import member
from accord.backends.loops.space import cut, unify
from accord.backends.loops.table import known
from accord.backends.view import NodeView
from accord.expr.declared import lower_node
from accord.expr.lang import Expr, cast, const
from accord.expr.onnx_ops import ELEMENTWISE
from accord.ir.dims import DimLike
from accord.ir.reason import Reason

__all__ = ["dropout", "elementwise", "quantize", "spread"]

_QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear"})


@member(*sorted(ELEMENTWISE - _QUANTIZE))
def elementwise(group: Group, view: NodeView) -> Reason | None:
    """What :mod:`accord.expr.onnx_ops` can write as an expression."""
    found = known(view.output(), "the output")
    if isinstance(found, Reason):
        return found
    shape, dtype = found
    op = view.node.op_type
    # CastLike takes nothing but the dtype from its second input
    terms = group.inputs(view, 1 if op == "CastLike" else None)
    if isinstance(terms, Reason):
        return terms
    for i, t in enumerate(terms):
        if t is not None and (len(t.axes) > len(shape) or (i and op == "Clip" and t.axes)):
            return Reason(f"input {i} does not broadcast to the output")
    axes = group.broadcast(shape, [t for t in terms if t is not None])
    if isinstance(axes, Reason):
        return axes
    expr = _lowered(view, terms, dtype)
    if expr is None:
        return Reason(f"{op} of these dtypes or attributes has no expression")
    return group.define(view, 0, expr, axes)


MEMBERS[DECLARED] = elementwise


def _lowered(view: NodeView, terms: list[Term | None], dtype: str) -> Expr | None:
    op = view.node.op_type
    if view.node.domain == "" and op in EXACT:
        arguments = [None if t is None else cast(t.expr, t.dtype) for t in terms]
        return lower_node(view, arguments, dtype)
    return lower_node(view, [None if t is None else t.expr for t in terms], wide(dtype))


@member("Dropout")
def dropout(group: Group, view: NodeView) -> Reason | None:
    """Outside training: the input, and a mask that keeps everything."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    training = view.tensor(2) if view.has(2) else None
    if training is not None and not (training.is_const and not training.numpy().any()):
        return Reason("it may be run for training")
    for j, result in enumerate((x.expr, const(True, "bool"))[: len(view.node.outputs)]):
        refused = group.define(view, j, result, x.axes) if view.node.outputs[j].name else None
        if refused is not None:
            return refused
    return None


@member(*sorted(_QUANTIZE))
def quantize(group: Group, view: NodeView) -> Reason | None:
    """Scale and zero point are one value, one along an axis, or one for each block along an axis."""
    terms = group.inputs(view)
    if isinstance(terms, Reason):
        return terms
    found = known(view.output(), "the output")
    x, scale = terms[0], terms[1]
    if isinstance(found, Reason) or x is None or scale is None:
        return found if isinstance(found, Reason) else Reason("an input is absent")
    block = int(view.attr("block_size", 0))
    for t in terms[1:]:
        refused = None if t is None else spread(view, x, t, block)
        if refused is not None:
            return refused
    expr = _lowered(view, terms, found[1])
    if expr is None:
        return Reason(f"{view.node.op_type} of these dtypes or attributes has no expression")
    return group.define(view, 0, expr, x.axes)


def spread(view: NodeView, x: Term, parameter: Term, block: int) -> Reason | None:
    """Walk a scale or zero point along the axes of ``x``."""
    if not any(parameter.axes):
        return None
    axis = view.axis(int(view.attr("axis", 1)), len(x.axes))
    if len(parameter.axes) == 1 and not block:
        return None if unify(x.axes[axis], parameter.axes[0]) else Reason("the scale has another size than the axis")
    if len(parameter.axes) != len(x.axes) or not block:
        return Reason("the scale has a shape that is neither a value, an axis nor blocks")
    blocks: DimLike = parameter.shape[axis]
    parts = cut(x.axes[axis], (blocks, block))
    if parts is None:
        return Reason("the last block is not whole")
    for a, run in enumerate(parameter.axes):
        if not unify(parts[0] if a == axis else x.axes[a], run):
            return Reason("the scale has other sizes than the blocks")
    return None
