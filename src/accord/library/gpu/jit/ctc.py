"""Connectionist temporal classification: a program has one sequence; all sums are of float32 logarithms.

The forward variables of a step are kept relative to the greatest of the step before; what was taken out is summed in
float64, so precision does not suffer with length.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _log_sum(a, b, c):
    """``log(exp(a) + exp(b) + exp(c))``; minus infinity if all are."""
    top = tl.maximum(a, tl.maximum(b, c))
    base = tl.where(top == float("-inf"), 0.0, top)
    return base + tl.log(tl.exp(a - base) + tl.exp(b - base) + tl.exp(c - base))


@triton.jit
def _row_log_sum(row, C, BLOCK_C: tl.constexpr):
    """Logarithm of the sum of exponentials of a row of logits."""
    c = tl.arange(0, BLOCK_C)
    peak = tl.full([BLOCK_C], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_C], tl.float32)
    for start in range(0, C, BLOCK_C):
        z = tl.load(row + start + c, mask=start + c < C, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, z)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.exp(z - base)
        peak = higher
    top = tl.max(peak, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    return base + tl.log(tl.sum(total * tl.exp(peak - base), 0))


@triton.jit
def _forward(
    rows, targets, lengths, target_lengths, output, N, C, S, blank, NORMALISED: tl.constexpr, STATES: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    steps, length = tl.load(lengths + n), tl.load(target_lengths + n).to(tl.int32)
    s = tl.arange(0, STATES)
    there = s < 2 * length + 1
    label = tl.load(targets + n * S + s // 2, mask=(s % 2 == 1) & there, other=0)
    label = tl.where(s % 2 == 1, label, blank)
    before = tl.load(targets + n * S + s // 2 - 1, mask=(s % 2 == 1) & (s >= 3) & there, other=0)
    may_skip = (s % 2 == 1) & (s >= 3) & (label != before) & (label != blank)
    alpha = tl.where(s == 0, 0.0, float("-inf"))
    taken = tl.zeros([1], tl.float64)
    row = rows + n * C
    for _ in range(steps):
        one = tl.where(s >= 1, tl.gather(alpha, tl.maximum(s - 1, 0), 0), float("-inf"))
        two = tl.where(may_skip, tl.gather(alpha, tl.maximum(s - 2, 0), 0), float("-inf"))
        p = tl.load(row + label, mask=there, other=0).to(tl.float32)
        if not NORMALISED:
            p = p - _row_log_sum(row, C, BLOCK_C)
        alpha = tl.where(there, _log_sum(alpha, one, two) + p, float("-inf"))
        top = tl.max(alpha, 0)
        top = tl.where(top == float("-inf"), 0.0, top)
        alpha = alpha - top
        taken += top.to(tl.float64)
        row += tl.cast(N, tl.int64) * C
    last = (s == 2 * length) | (s == 2 * length - 1)
    ends = tl.where(last, alpha, float("-inf"))
    top = tl.max(ends, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    found = (base + tl.log(tl.sum(tl.exp(ends - base), 0))).to(tl.float64) + taken
    tl.store(output + n + tl.arange(0, 1), (-found).to(tl.float32))


@triton.jit
def ctc_forward(
    log_probs, targets, lengths, target_lengths, output, N, C, S, blank, STATES: tl.constexpr, BLOCK_C: tl.constexpr
):
    """From logarithms of probabilities."""
    _forward(log_probs, targets, lengths, target_lengths, output, N, C, S, blank, True, STATES, BLOCK_C)


@triton.jit
def ctc_loss(
    logits, targets, lengths, target_lengths, output, N, C, S, blank, STATES: tl.constexpr, BLOCK_C: tl.constexpr
):
    """From logits, whose softmax is never stored."""
    _forward(logits, targets, lengths, target_lengths, output, N, C, S, blank, False, STATES, BLOCK_C)


@triton.jit
def best_labels(logits, workspace, L, N, C, BLOCK_C: tl.constexpr):
    """The first greatest logit of each step and sequence, into scratch memory [N, L]."""
    best = workspace.to(tl.pointer_type(tl.int32), bitcast=True)
    step, n = tl.program_id(0) // N, tl.program_id(0) % N
    row = logits + tl.program_id(0).to(tl.int64) * C
    c = tl.arange(0, BLOCK_C)
    peak = tl.full([BLOCK_C], float("-inf"), tl.float32)
    where = tl.zeros([BLOCK_C], tl.int32) + C
    for start in range(0, C, BLOCK_C):
        z = tl.load(row + start + c, mask=start + c < C, other=float("-inf")).to(tl.float32)
        # a first -inf counts too: all of a row may be
        better = (z > peak) | ((where == C) & (start + c < C))
        peak = tl.where(better, z, peak)
        where = tl.where(better, start + c, where)
    top = tl.max(peak, 0)
    first = tl.min(tl.where(peak == top, where, C), 0)
    tl.store(best + n.to(tl.int64) * L + step, first)


@triton.jit
def collapse(lengths, workspace, output0, output1, L, blank, BLOCK: tl.constexpr):
    """Repeats once, without blanks: places are a running sum; -1 behind the last label."""
    n = tl.program_id(0).to(tl.int64)
    best = workspace.to(tl.pointer_type(tl.int32), bitcast=True) + n * L
    steps = tl.load(lengths + n)
    t = tl.arange(0, BLOCK)
    count = 0
    for start in range(0, L, BLOCK):
        at = start + t
        label = tl.load(best + at, mask=at < steps, other=0)
        before = tl.load(best + at - 1, mask=(at < steps) & (at > 0), other=0)
        kept = ((at < steps) & (label != blank) & ((at == 0) | (label != before))).to(tl.int32)
        place = count + tl.cumsum(kept, 0) - 1
        tl.store(output0 + n * L + place, label.to(tl.int64), mask=kept == 1)
        count += tl.sum(kept, 0)
    for start in range(0, L, BLOCK):
        at = start + t
        tl.store(output0 + n * L + at, tl.full([BLOCK], -1, tl.int64), mask=(at >= count) & (at < L))
    tl.store(output1 + n, count.to(tl.int64))
