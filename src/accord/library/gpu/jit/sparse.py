"""Products of sparse matrices and dense ones; a program owns a tile of the result, so nothing is added atomically."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sparse_matmul(values, columns, starts, dense, output, N, R, E, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr):
    """CSR: a program makes ``BLOCK_N`` columns of a row, ``BLOCK_E`` elements at a time."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    first, last = tl.load(starts + row), tl.load(starts + row + 1)
    total = tl.zeros([BLOCK_N], tl.float32)
    for e in range(first, last, BLOCK_E):
        at = e + tl.arange(0, BLOCK_E)
        k = tl.load(columns + at, mask=at < last, other=0)
        v = tl.load(values + at, mask=at < last, other=0).to(tl.float32)
        part = tl.load(dense + k[:, None] * N + n[None, :], mask=(at < last)[:, None] & (n < N)[None, :], other=0)
        total += tl.sum(v[:, None] * part.to(tl.float32), 0)
    tl.store(output + row * N + n, total.to(output.dtype.element_ty), mask=n < N)


@triton.jit
def block_sparse_matmul(
    blocks,
    columns,
    starts,
    dense,
    output,
    K,
    N,
    rows,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """BSR: a program makes ``BLOCK_N`` columns of a row of blocks; a block is walked ``BLOCK_C`` columns at a time."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    r, c = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    first, last = tl.load(starts + row), tl.load(starts + row + 1)
    total = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    for e in range(first, last):
        column = tl.load(columns + e) * BC
        for start in tl.static_range(0, BC, BLOCK_C):
            inside = start + c < BC
            a_at = blocks + (e * BR + r[:, None]) * BC + (start + c)[None, :]
            a = tl.load(a_at, mask=(r < BR)[:, None] & inside[None, :], other=0)
            k = column + start + c
            b_at = dense + k[:, None] * N + n[None, :]
            b = tl.load(b_at, mask=(inside & (k < K))[:, None] & (n < N)[None, :], other=0)
            # what of a block lies beyond the matrix does not count, whatever is there
            a = tl.where((k < K)[None, :], a, 0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    i = row * BR + r
    at = i[:, None] * N + n[None, :]
    inside = ((r < BR) & (i < rows))[:, None] & (n < N)[None, :]
    tl.store(output + at, total.to(output.dtype.element_ty), mask=inside)
