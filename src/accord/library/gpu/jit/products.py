"""Products with weight matrices: tiles of the result, float32 sums, everything behind them done before the store."""

from __future__ import annotations

import triton
import triton.language as tl

from accord.library.gpu.jit.activations import activated


@triton.jit
def tile_of(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of a program's tile: ``GROUP`` rows of tiles go together, so that operands stay in the cache."""
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    together = GROUP * across
    first = program // together * GROUP
    high = tl.minimum(down - first, GROUP)
    return first + program % together % high, program % together // high


@triton.jit
def _linear(
    x,
    weight,
    bias,
    residual,
    M,
    N,
    K,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
):
    i, j = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP)
    row = i * BLOCK_M + tl.arange(0, BLOCK_M)
    column = j * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # rows and columns beyond the edge are read at a place that exists and never stored
    x_at = x + (row % M).to(tl.int64)[:, None] * K + k[None, :]
    w_at = weight + (column % N).to(tl.int64)[None, :] * K + k[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            a, b = tl.load(x_at), tl.load(w_at)
        else:
            left = k < K - start
            a = tl.load(x_at, mask=left[None, :], other=0)
            b = tl.load(w_at, mask=left[:, None], other=0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        x_at += BLOCK_K
        w_at += BLOCK_K
    if bias is not None:
        total += tl.load(bias + column, mask=column < N, other=0).to(tl.float32)[None, :]
    total = activated(total, ACTIVATION, x.dtype.element_ty.primitive_bitwidth == 16)
    at = row.to(tl.int64)[:, None] * N + column[None, :]
    inside = (row < M)[:, None] & (column < N)[None, :]
    if residual is not None:
        total += tl.load(residual + at, mask=inside, other=0).to(tl.float32)
    return total, at, inside


@triton.jit
def linear(
    x,
    weight,
    bias,
    residual,
    output,
    lead,
    N,
    K,
    epilogue: tl.constexpr,
    extras,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
):
    """``activation(x @ weight.T + bias) + residual``."""
    total, at, inside = _linear(
        x, weight, bias, residual, lead, N, K, ACTIVATION, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION, GROUP
    )
    if epilogue is not None:
        total = epilogue(total, at, inside, extras)
    tl.store(output + at, total.to(output.dtype.element_ty), mask=inside)


@triton.jit
def projection(
    x,
    weight,
    bias,
    workspace,
    ROWS,
    P,
    M,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
):
    """``x @ weight.T + bias`` into scratch memory."""
    result = workspace.to(tl.pointer_type(x.dtype.element_ty), bitcast=True)
    total, at, inside = _linear(
        x, weight, bias, None, ROWS, P, M, ACTIVATION, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION, GROUP
    )
    tl.store(result + at, total.to(result.dtype.element_ty), mask=inside)
