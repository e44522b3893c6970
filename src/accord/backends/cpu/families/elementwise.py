"""Elementwise operators: one expression of broadcast operands."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from accord.backends.cpu.families.table import arranges, known, selects
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.protocol import Arrangement, Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.expr.lang import Expr, operand
from accord.expr.onnx_ops import ELEMENTWISE, lower
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, broadcast_access, contiguous, order_of

__all__ = ["elementwise", "quantize"]

_QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear"})


def attributes_of(node: ir.Node) -> dict[str, object]:
    """Attributes as Python values."""
    return {a.name: a.value for a in node.attributes.values()}


@arranges(*sorted(ELEMENTWISE - _QUANTIZE))
def follow_largest(view: NodeView) -> Arrangement:
    """The output's axes lie as those of the first input of its shape that lies without gaps."""
    shape = view.output().shape
    for i in range(len(view.node.inputs)):
        fact = view.tensor(i)
        if view.has(i) and not fact.is_const and shape is not None and fact.shape == shape:
            order = order_of(shape, view.access(i))
            if order is not None:
                return Arrangement(outputs=(order,), strided=True)
    return Arrangement(strided=True)


@selects(*sorted(ELEMENTWISE - _QUANTIZE))
def elementwise(view: NodeView) -> Kernel | Reason:
    """The kernel of an operator that :mod:`accord.expr.onnx_ops` can write as an expression."""
    out = known(view.output(), "the output")
    if isinstance(out, Reason):
        return out
    shape, dtype = out
    # CastLike takes nothing but the dtype from its second input
    count = 1 if view.node.op_type == "CastLike" else len(view.node.inputs)
    shapes: list[Shape | None] = []
    for i in range(count):
        found = known(view.tensor(i), f"input {i}") if view.has(i) else None
        if isinstance(found, Reason):
            return found
        if found is not None and (len(found[0]) > len(shape) or (i and view.node.op_type == "Clip" and found[0])):
            return Reason(f"input {i} does not broadcast to the output")
        shapes.append(None if found is None else found[0])
    accesses = [None if s is None else broadcast_access(s, shape, view.access(i)) for i, s in enumerate(shapes)]
    in_place = [(0, i) for i, s in enumerate(shapes) if s == shape]
    return _kernel(view, shape, shape, dtype, accesses, view.output_access(), in_place)


def _kernel(
    view: NodeView,
    shape: Shape,
    extents: Shape,
    dtype: str,
    accesses: Sequence[Access | None],
    out: Access,
    in_place: Sequence[tuple[int, int]],
) -> Kernel | Reason:
    """The pointwise kernel whose operands are walked as accesses say over ``extents``, a split of ``shape``."""
    reads: list[int] = []
    inputs: list[tuple[str, Access]] = []
    arguments: list[Expr | None] = []
    for i, access in enumerate(accesses):
        if access is None:
            arguments.append(None)
            continue
        found = known(view.tensor(i), f"input {i}")
        if isinstance(found, Reason):
            return found
        arguments.append(operand(len(reads), found[1]))
        inputs.append((found[1], access))
        reads.append(i)
    expr = lower(view.node.op_type, attributes_of(view.node), arguments, dtype)
    if expr is None:
        return Reason(f"{view.node.op_type} of these dtypes or attributes has no expression")
    phase = pointwise_phase(extents, inputs, [(dtype, out)], [expr], tuple(range(len(inputs) + 1)))
    return NativeKernel(
        f"pointwise {view.node.op_type} {dtype}",
        (phase,),
        tuple(reads),
        in_place=tuple(in_place),
        flops=D.product(shape),
    )


@selects(*sorted(_QUANTIZE))
def quantize(view: NodeView) -> Kernel | Reason:
    """Scale and zero point are one value, one along an axis, or one for each block along an axis."""
    x, y = known(view.tensor(0), "the input"), known(view.output(), "the output")
    scale = known(view.tensor(1), "the scale")
    for found in (x, y, scale):
        if isinstance(found, Reason):
            return found
    assert not isinstance(x, Reason) and not isinstance(y, Reason) and not isinstance(scale, Reason)
    shape, dtype = y
    scale_shape = scale[0]
    extents: Shape = shape
    strides: list[DimLike] = [0] * len(shape)
    block = int(view.attr("block_size", 0))
    if len(scale_shape) == 0 or all(d == 1 for d in scale_shape):
        pass
    elif len(scale_shape) == 1 and not block:
        strides[view.axis(int(view.attr("axis", 1)), len(shape))] = 1
    elif len(scale_shape) == len(shape) and block:
        axis = view.axis(int(view.attr("axis", 1)), len(shape))
        if scale_shape[axis] * block != shape[axis]:
            return Reason("the last block is not whole")
        own = contiguous(scale_shape)
        extents = (*shape[:axis], scale_shape[axis], block, *shape[axis + 1 :])
        strides = [*own[: axis + 1], 0, *own[axis + 1 :]]
    else:
        return Reason("the scale has a shape that is neither a value, an axis nor blocks")
    small = Access(tuple(strides))
    accesses = [Access(contiguous(extents)), small, small if view.has(2) else None]
    out = Access(contiguous(extents))
    return _kernel(view, shape, extents, dtype, accesses, out, [(0, 0)] if x[1] == dtype else [])
