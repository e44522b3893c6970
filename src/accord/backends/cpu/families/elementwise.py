"""Elementwise operators: one expression of broadcast operands."""

from __future__ import annotations

import onnx_ir as ir

from accord.backends.cpu.families.table import known, selects
from accord.backends.cpu.nest import Access, broadcast_access, contiguous
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.protocol import Kernel, NativeKernel, NodeView
from accord.expr.lang import Expr, operand
from accord.expr.onnx_ops import ELEMENTWISE, lower
from accord.ir import dims as D
from accord.ir.patch import Reason

__all__ = ["elementwise"]


def attributes_of(node: ir.Node) -> dict[str, object]:
    """Attributes as Python values."""
    return {a.name: a.value for a in node.attributes.values()}


@selects(*sorted(ELEMENTWISE))
def elementwise(view: NodeView) -> Kernel | Reason:
    """The kernel of an operator that :mod:`accord.expr.onnx_ops` can write as an expression."""
    node = view.node
    out = known(view.output(), "the output")
    if isinstance(out, Reason):
        return out
    shape, dtype = out
    reads: list[int] = []
    inputs: list[tuple[str, Access]] = []
    arguments: list[Expr | None] = []
    in_place: list[tuple[int, int]] = []
    for i, value in enumerate(node.inputs):
        if value is None:
            arguments.append(None)
            continue
        found = known(view.tensor(i), f"input {i}")
        if isinstance(found, Reason):
            return found
        in_shape, in_dtype = found
        arguments.append(operand(len(reads), in_dtype))
        inputs.append((in_dtype, broadcast_access(in_shape, shape)))
        reads.append(i)
        if in_shape == shape:
            in_place.append((0, i))
    expr = lower(node.op_type, attributes_of(node), arguments, dtype)
    if expr is None:
        return Reason(f"{node.op_type} of these dtypes or attributes has no expression")
    phase = pointwise_phase(shape, inputs, [(dtype, Access(contiguous(shape)))], [expr], tuple(range(len(inputs) + 1)))
    return NativeKernel(
        f"pointwise {node.op_type} {dtype}",
        (phase,),
        tuple(reads),
        in_place=tuple(in_place),
        flops=D.product(shape),
    )
