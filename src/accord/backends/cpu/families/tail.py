"""Operators that belong to no family."""

from __future__ import annotations

from accord.backends.cpu.determinant import determinant_phase
from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.movement import integers_phase
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS
from accord.ir import dims as D
from accord.ir.reason import Reason

__all__ = ["determinant", "sizes"]


@arranges("Det")
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


@selects("Shape", "Size")
def sizes(view: NodeView) -> Kernel | Reason:
    """Sizes of a tensor whose rank is known; nothing is read."""
    found = known(view.output(), "the output")
    elements = view.output().elements()
    if isinstance(found, Reason) or elements is None:
        return Reason("the rank of the input is not known")
    return NativeKernel(f"integers {found[1]}", (integers_phase(elements, found[1], 0),), ())


@selects("Det")
def determinant(view: NodeView) -> Kernel | Reason:
    """Elimination with pivots, one matrix at a time."""
    x = known(view.tensor(0), "the input")
    if isinstance(x, Reason):
        return x
    shape, dtype = x
    if dtype not in FLOATS or len(shape) < 2:
        return Reason("only matrices of floats")
    phase = determinant_phase(dtype, shape, view.access(0), view.output_access(), (0, 1, 2))
    return NativeKernel(f"determinant {dtype}", (phase,), (0,), workspace=D.maximum(shape[-1] * shape[-1], 1) * 8)
