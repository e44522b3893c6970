"""Kernels for a GPU that the tests declare, right and wrong ones."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled_rows(x, w, output, N, D, stride_x_0, stride_x_1, alpha, workspace, BLOCK: tl.constexpr):
    """output = x · w · alpha by row; w may be absent."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride_x_0 + d * stride_x_1, mask=d < D, other=0).to(tl.float32)
    if w is not None:
        v *= tl.load(w + d, mask=d < D, other=0).to(tl.float32)
    tl.store(output + row * D + d, (v * alpha).to(output.dtype.element_ty), mask=d < D)


@triton.jit
def through_workspace(x, workspace, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    scratch = workspace.to(tl.pointer_type(tl.float32))
    tl.store(scratch + d, tl.load(x + d, mask=d < D, other=0) * 3, mask=d < D)


@triton.jit
def from_workspace(workspace, output, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    scratch = workspace.to(tl.pointer_type(tl.float32))
    tl.store(output + d, tl.load(scratch + d, mask=d < D, other=0) + 1, mask=d < D)


@triton.jit
def product(x, output, B: tl.constexpr):
    """Both operands and the result go through shared memory, 4·B² bytes each."""
    i = tl.arange(0, B)
    at = i[:, None] * B + i[None, :]
    a = tl.load(x + at)
    tl.store(output + at, tl.dot(a, tl.trans(a)))


@triton.jit
def everything_at_once(x, output, D, BLOCK: tl.constexpr):
    """Each thread holds far more than it has registers for."""
    d = tl.arange(0, BLOCK)
    v = tl.load(x + d, mask=d < D, other=0)
    total = tl.sum(v, 0)
    tl.store(output + d, total * v, mask=d < D)


@triton.jit
def misspelt(x, output, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    v = tl.load(x + d, mask=d < D)

    tl.store(output + d, v * factor, mask=d < D)  # noqa: F821


@triton.jit
def unaligned_block(x, output, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    tl.store(output + d, tl.load(x + d, mask=d < D), mask=d < D)


@triton.jit
def wants_more(x, output, D, temperature):
    tl.store(output, tl.load(x) * temperature)


@triton.jit
def writes_outside(x, output, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    tl.store(output + d.to(tl.int64) * (1 << 30) * (1 << 10), tl.load(x + d, mask=d < D), mask=d < D)


@triton.jit
def with_epilogue(x, w, output, N, D, alpha, epilogue: tl.constexpr, extras, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    v = tl.load(x + row * D + d, mask=d < D, other=0).to(tl.float32) * alpha
    if epilogue is not None:
        v = epilogue(v, row * D + d, d < D, extras)
    tl.store(output + row * D + d, v, mask=d < D)


@triton.jit
def far_where_large(x, output, N):
    i = tl.program_id(0)
    v = tl.load(x + i)
    far = tl.where(v > 1e6, 1 << 42, 0).to(tl.int64)
    tl.store(output + i + far, v)


@triton.jit
def thrice(x, output, N):
    i = tl.program_id(0)
    tl.store(output + i, tl.load(x + i) * 3)


@triton.jit
def typed_constant(x, output, D, C: tl.constexpr, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    tl.store(output + d, tl.load(x + d, mask=d < D) * C, mask=d < D)
