"""Pointwise kernels on the CPU, for kernels of several phases that are the CPU's own."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.loops import loop_phase
from accord.backends.loops.program import elements
from accord.backends.protocol import Phase
from accord.expr.lang import Expr
from accord.ir.dims import Shape
from accord.ir.strides import Access

__all__ = ["pointwise_phase"]


def pointwise_phase(
    extents: Shape,
    inputs: Sequence[tuple[str, Access]],
    outputs: Sequence[tuple[str, Access]],
    exprs: Sequence[Expr],
    operands: Sequence[int],
) -> Phase:
    """As :func:`accord.backends.loops.program.pointwise`, for this machine."""
    n = len(inputs)
    phase, _ = loop_phase(elements(extents, inputs, outputs, exprs), operands[:n], operands[n:], 0)
    return phase
