"""Recurrent cells: all gates of a block of units in one program, products and sums in float32."""

from __future__ import annotations

import triton
import triton.language as tl

from accord.library.gpu.jit.activations import sigmoid, tanh


@triton.jit
def _product(total, x, x_row, rows, N, weight, w_row, present, K, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """``total + x[rows] @ weight[w_row].T`` over ``K``, of the rows of weights that are ``present``."""
    k = tl.arange(0, BLOCK_K)
    for start in range(0, K, BLOCK_K):
        at = start + k
        a = tl.load(x + rows[:, None] * x_row + at[None, :], mask=(rows < N)[:, None] & (at < K)[None, :], other=0)
        w_at = weight + w_row[None, :].to(tl.int64) * K + at[:, None]
        b = tl.load(w_at, mask=present[None, :] & (at < K)[:, None], other=0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def _gates(
    x, hidden, rows, N, weight, recurrence, bias, row, present, I, H, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Both products of a block of rows of the batch and those ``row`` of the weights that are ``present``."""
    total = tl.zeros([BLOCK_N, row.shape[0]], tl.float32)
    total = _product(total, x, I, rows, N, weight, row, present, I, BLOCK_K, PRECISION)
    total = _product(total, hidden, H, rows, N, recurrence, row, present, H, BLOCK_K, PRECISION)
    if bias is not None:
        total += tl.load(bias + row, mask=present, other=0).to(tl.float32)[None, :]
    return total


@triton.jit
def _lstm_units(
    x, hidden, cell, weight, recurrence, bias, rows, first, N, I, H, BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """New hidden and cell state of a block of rows, and of units from ``first`` on.

    The gates (input, output, forget, cell) of a unit are neighbours in one product.
    """
    column = tl.arange(0, 4 * BLOCK_H)
    own, gate = first + column // 4, column % 4
    total = _gates(
        x, hidden, rows, N, weight, recurrence, bias, gate * H + own, own < H, I, H, BLOCK_N, BLOCK_K, PRECISION
    )
    even, odd = tl.split(tl.reshape(total, [BLOCK_N, BLOCK_H, 2, 2]))
    i, f = tl.split(even)
    o, g = tl.split(odd)
    unit = first + tl.arange(0, BLOCK_H)
    inside = (rows < N)[:, None] & (unit < H)[None, :]
    c = tl.load(cell + rows[:, None] * H + unit[None, :], mask=inside, other=0).to(tl.float32)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@triton.jit
def lstm_cell(
    x, hidden, cell, weight, recurrence, bias, output0, output1, N, I, H, BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of an LSTM."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.program_id(1) * BLOCK_H
    h, c = _lstm_units(
        x, hidden, cell, weight, recurrence, bias, rows, first, N, I, H, BLOCK_N, BLOCK_H, BLOCK_K, PRECISION
    )
    unit = first + tl.arange(0, BLOCK_H)
    at = rows[:, None] * H + unit[None, :]
    inside = (rows < N)[:, None] & (unit < H)[None, :]
    tl.store(output0 + at, h.to(output0.dtype.element_ty), mask=inside)
    tl.store(output1 + at, c.to(output1.dtype.element_ty), mask=inside)


@triton.jit
def gru_cell(
    x, hidden, weight, recurrence, bias, recurrence_bias, output, N, I, H, BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of a GRU; gates are update, reset, new."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    unit = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    present = unit < H
    z = _gates(x, hidden, rows, N, weight, recurrence, bias, unit, present, I, H, BLOCK_N, BLOCK_K, PRECISION)
    r = _gates(x, hidden, rows, N, weight, recurrence, bias, H + unit, present, I, H, BLOCK_N, BLOCK_K, PRECISION)
    new = tl.zeros([BLOCK_N, BLOCK_H], tl.float32)
    own = tl.zeros([BLOCK_N, BLOCK_H], tl.float32)
    new = _product(new, x, I, rows, N, weight, 2 * H + unit, present, I, BLOCK_K, PRECISION)
    own = _product(own, hidden, H, rows, N, recurrence, 2 * H + unit, present, H, BLOCK_K, PRECISION)
    if bias is not None:
        new += tl.load(bias + 2 * H + unit, mask=present, other=0).to(tl.float32)[None, :]
    if recurrence_bias is not None:
        z += tl.load(recurrence_bias + unit, mask=present, other=0).to(tl.float32)[None, :]
        r += tl.load(recurrence_bias + H + unit, mask=present, other=0).to(tl.float32)[None, :]
        own += tl.load(recurrence_bias + 2 * H + unit, mask=present, other=0).to(tl.float32)[None, :]
    new = tanh(new + sigmoid(r) * own)
    at = rows[:, None] * H + unit[None, :]
    inside = (rows < N)[:, None] & present[None, :]
    h = tl.load(hidden + at, mask=inside, other=0).to(tl.float32)
    z = sigmoid(z)
    tl.store(output + at, ((1.0 - z) * new + z * h).to(output.dtype.element_ty), mask=inside)


@triton.jit
def lstm(
    x, hidden, cell, weight, recurrence, bias, output0, output1, output2, workspace, L, N, I, H,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``L`` steps; a program has ``BLOCK_N`` rows of the batch, all units, and their state in scratch memory.

    The cell state is float32 there. A step reads the hidden state that the whole program wrote in the step before.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    states = workspace.to(tl.pointer_type(tl.float32), bitcast=True)
    lane = tl.arange(0, BLOCK_H)
    for first in range(0, H, BLOCK_H):
        unit = first + lane
        at = rows[:, None] * H + unit[None, :]
        inside = (rows < N)[:, None] & (unit < H)[None, :]
        tl.store(output1 + at, tl.load(hidden + at, mask=inside, other=0), mask=inside)
        tl.store(states + at, tl.load(cell + at, mask=inside, other=0).to(tl.float32), mask=inside)
    now, previous = x, output1
    target = output0
    for _ in range(L):
        tl.debug_barrier()
        for first in range(0, H, BLOCK_H):
            unit = first + lane
            at = rows[:, None] * H + unit[None, :]
            inside = (rows < N)[:, None] & (unit < H)[None, :]
            h, c = _lstm_units(
                now, previous, states, weight, recurrence, bias, rows, first, N, I, H, BLOCK_N, BLOCK_H, BLOCK_K,
                PRECISION,
            )  # fmt: skip
            tl.store(states + at, c, mask=inside)
            tl.store(target + at, h.to(output0.dtype.element_ty), mask=inside)
        previous = target
        now += tl.cast(N, tl.int64) * I
        target += tl.cast(N, tl.int64) * H
    tl.debug_barrier()
    for first in range(0, H, BLOCK_H):
        unit = first + lane
        at = rows[:, None] * H + unit[None, :]
        inside = (rows < N)[:, None] & (unit < H)[None, :]
        tl.store(output1 + at, tl.load(previous + at, mask=inside, other=0), mask=inside)
        tl.store(output2 + at, tl.load(states + at, mask=inside, other=0).to(output2.dtype.element_ty), mask=inside)
