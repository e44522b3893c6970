"""Matrix products: batched, broadcast, with any strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from accord.backends.cpu.contraction import (
    RightMatrix,
    Walk,
    accumulator,
    contraction_phase,
    few_columns,
    matrix_left,
    pack,
)
from accord.backends.loops.nest import merge_axes
from accord.backends.protocol import Array, Phase
from accord.expr.lang import Expr
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access

__all__ = ["matmul_phase", "pack_constant"]


def pack_constant(b: Array, dtype: str, halves: str = "") -> Array:
    """Constant matrices [..., k, n] as panels, one after the other, for a product of operands of ``dtype``.

    ``halves`` says how panels hold numbers that are rounded to bf16, if they are.
    """
    real = accumulator(dtype)
    matrices = np.asarray(b).reshape(-1, *b.shape[-2:])
    return pack(matrices, real, halves).reshape(-1)


def _is_swapped(m: DimLike, n: DimLike, k: DimLike, a: Walk, b: RightMatrix) -> bool:
    columns_along_k = not b.packed and not b.halves and b.step == 1 and b.column != 1 and not few_columns(a.dtype, n, k)
    if not columns_along_k or a.column != 1 or a.dtype != b.dtype or accumulator(a.dtype) != a.dtype:
        return False
    return isinstance(m, int) and m > 0 and few_columns(a.dtype, m, k) == m


def matmul_phase(
    batch: Shape,
    m: DimLike,
    n: DimLike,
    k: DimLike,
    a: Walk,
    b: RightMatrix,
    extras: Sequence[Walk],
    out: Walk,
    expr: Expr,
    operands: tuple[int, ...],
    shared: DimLike = 0,
) -> tuple[Phase, DimLike]:
    """A phase for a batch of products, and the bytes of scratch memory that a thread needs.

    Args:
        batch: Sizes of the batch axes.
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A and rows of B.
        a: Its groups are the batch axes, its one row axis is m, its columns are k.
        b: Its groups are the batch axes.
        extras: Operands 1, 2 ... of the expression; groups and rows as for A.
        out: C; groups and rows as for A.
        expr: What is stored; operand 0 is the sum.
        operands: A, B, the extras, C, scratch.
        shared: See :func:`~accord.backends.cpu.contraction.contraction_phase`.
    """
    if _is_swapped(m, n, k, a, b):
        # few rows of A, against columns of B that follow each other along k: those are the rows of C's transpose
        left = Walk(b.dtype, b.groups, (b.column,), b.step, b.offset)
        right = RightMatrix(a.dtype, a.groups, a.column, a.rows[0], a.offset)
        flipped = [replace(w, rows=(w.column,), column=w.rows[0]) for w in (out, *extras)]
        turned = (operands[1], operands[0], *operands[2:])
        return matmul_phase(batch, n, m, k, left, right, flipped[1:], flipped[0], expr, turned)
    # where B repeats, the matrices of a batch are rows of one product
    apart = [i for i, size in enumerate(batch) if b.groups[i] != 0 and size != 1]
    joined = [i for i in range(len(batch)) if i not in apart]
    walks = [a, out, *extras]
    strides = [Access((*(w.groups[i] for i in joined), w.rows[0])) for w in walks]
    rows, merged, _ = merge_axes((*(batch[i] for i in joined), m), strides)
    if not rows:
        rows, merged = (1,), [Access((0,)) for _ in walks]
    moved = [
        replace(w, groups=tuple(w.groups[i] for i in apart), rows=s.strides) for w, s in zip(walks, merged, strict=True)
    ]
    left, out, *extras = moved
    right = replace(b, groups=tuple(b.groups[i] for i in apart))
    return contraction_phase(
        tuple(batch[i] for i in apart), rows, n, k, matrix_left(left), right, extras, out, expr, operands, shared=shared
    )
