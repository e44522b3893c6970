"""Pointwise kernels: every output element is an expression of one element of each operand.

This covers elementwise operators, broadcasting, and (with the expression "x") every movement of data that is affine:
transpose, slice, expand, tile, depth-to-space, the parts of concat and split. It is a loop program without reductions.
"""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.loops import LoopProgram, Operand, Output, loop_phase
from accord.backends.protocol import Phase
from accord.expr.lang import Expr, cast
from accord.ir.dims import Shape
from accord.ir.strides import Access

__all__ = ["pointwise_phase"]


def pointwise_phase(
    extents: Shape,
    inputs: Sequence[tuple[str, Access]],
    outputs: Sequence[tuple[str, Access]],
    exprs: Sequence[Expr],
    operands: tuple[int, ...],
) -> Phase:
    """A phase that computes ``exprs`` over ``extents``.

    Args:
        extents: The iteration space.
        inputs: dtype and access of each input, in the order of the expressions' operands.
        outputs: dtype and access of each output.
        exprs: One for each output.
        operands: Which of the kernel's operands they are: inputs, then outputs.
    """
    n = len(inputs)
    program = LoopProgram(
        extents,
        frozenset(),
        tuple(Operand(dtype, access) for dtype, access in inputs),
        (),
        tuple(Output(cast(e, dtype), access) for e, (dtype, access) in zip(exprs, outputs, strict=True)),
    )
    phase, _ = loop_phase(program, operands[:n], operands[n:], 0)
    return phase
