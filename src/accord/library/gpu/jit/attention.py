"""Attention in blocks: Dao, "FlashAttention-2", 2023, algorithm 1; any head grouping, masks, windows, score functions.

A program holds a block of queries and walks the keys that they see. Blocks that all of them see in full take a path
without comparisons. Scores, their maxima and sums are float32; the exponentials are of base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def alibi(s, i, j, head, heads, parameter):
    """Linear biases: scores fall with distance, at a slope of ``2**(-8 (head + 1) / heads)``."""
    slope = tl.exp2(-8.0 * (head + 1).to(tl.float32) / heads)
    return s - slope * (i - j).to(tl.float32)


@triton.jit
def soft_cap(s, i, j, head, heads, parameter):
    """``parameter * tanh(s / parameter)``."""
    u = s / parameter
    e = tl.exp(-2.0 * tl.abs(u))
    t = (1.0 - e) / (1.0 + e)
    return parameter * tl.where(u < 0, -t, t)


@triton.jit
def prefix(s, i, j, head, heads, parameter):
    """Keys behind the query's own place are seen only if they are among the first ``parameter``."""
    return tl.where((j <= i) | (j < parameter), s, float("-inf"))


@triton.jit
def _walk(
    q,
    sums,
    total,
    peak,
    k_block,
    v_block,
    mask_rows,
    low,
    high,
    K,
    k_row,
    v_row,
    head,
    heads,
    window,
    parameter,
    scale,
    rows,
    FULL: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SCORE: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BD: tl.constexpr,
    BE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The keys from ``low`` to ``high``; ``FULL``: every query sees every one of them, and nothing is added."""
    LOG2E: tl.constexpr = 1.4426950408889634
    LEAST: tl.constexpr = -3.4028234663852886e38
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    column = tl.arange(0, BLOCK_K)
    k_at = k_block + low.to(tl.int64) * k_row + (column[None, :] * k_row + d[:, None])
    v_at = v_block + low.to(tl.int64) * v_row + (column[:, None] * v_row + e[None, :])
    for start in range(low, high, BLOCK_K):
        j = start + column
        if FULL:
            k = tl.load(k_at) if BD == D else tl.load(k_at, mask=d[:, None] < D, other=0)
        else:
            k = tl.load(k_at, mask=(j[None, :] < K) & (d[:, None] < D), other=0)
        s = tl.dot(q, k, input_precision=PRECISION)
        if FULL:  # the factor is positive: the greatest product is the greatest score, and one FMA makes the exponent
            higher = tl.maximum(peak, tl.max(s, 1) * (scale * LOG2E))
            p = tl.exp2(s * (scale * LOG2E) - higher[:, None])
            kept = tl.exp2(peak - higher)
        else:
            s = s * scale
            i = rows[:, None]
            if SCORE is not None:
                s = SCORE(s, i, j[None, :], head, heads, parameter)
            seen = (j < K)[None, :]
            if CAUSAL:
                seen = seen & (j[None, :] <= i)
            if WINDOW:
                seen = seen & (i - j[None, :] <= window) & (j[None, :] - i <= window)
            if mask_rows is not None:
                s += tl.load(mask_rows + j[None, :], mask=(j < K)[None, :], other=0).to(tl.float32)
            # finite scores stay so: a row that sees only the least number is no empty one
            more = tl.where((s * LOG2E < LEAST) & (s > float("-inf")), LEAST, s * LOG2E)
            s = tl.where(seen, more, float("-inf"))
            higher = tl.maximum(peak, tl.max(s, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            p = tl.exp2(s - base[:, None])
            kept = tl.exp2(peak - base)
        total = total * kept + tl.sum(p, 1)
        sums = sums * kept[:, None]
        if FULL:
            v = tl.load(v_at) if BE == E else tl.load(v_at, mask=e[None, :] < E, other=0)
        else:
            v = tl.load(v_at, mask=(j[:, None] < K) & (e[None, :] < E), other=0)
        sums = tl.dot(p.to(v.dtype), v, sums, input_precision=PRECISION)
        peak = higher
        k_at += BLOCK_K * k_row
        v_at += BLOCK_K * v_row
    return sums, total, peak


@triton.jit
def _attend(
    q_head,
    k_head,
    v_head,
    mask_head,
    o_head,
    first,
    head,
    heads,
    Q,
    K,
    q_row,
    k_row,
    v_row,
    o_row,
    window,
    parameter,
    scale,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SCORE: tl.constexpr,
    POSITIVE: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BD: tl.constexpr,
    BE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``BLOCK_Q`` queries of a head, from ``first`` on."""
    rows = first + tl.arange(0, BLOCK_Q)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    q_at = q_head + rows.to(tl.int64)[:, None] * q_row + d[None, :]
    q = tl.load(q_at, mask=(rows[:, None] < Q) & (d[None, :] < D), other=0)
    mask_rows = None
    if mask_head is not None:
        mask_rows = mask_head + tl.minimum(rows, Q - 1).to(tl.int64)[:, None] * K  # rows beyond Q are not stored
    sums = tl.zeros([BLOCK_Q, BE], tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    low, high = first * 0, K
    if CAUSAL:
        high = tl.minimum(K, first + BLOCK_Q)
    if WINDOW:
        low = tl.maximum(first - window, 0) // BLOCK_K * BLOCK_K
        # compared without adding: the window may be as large as an integer is
        high = tl.where(window < high - first - BLOCK_Q, first + BLOCK_Q + window, high)
    PLAIN: tl.constexpr = POSITIVE and SCORE is None and not WINDOW and mask_head is None
    if PLAIN:
        whole = tl.minimum(first, K) if CAUSAL else K
        whole = whole // BLOCK_K * BLOCK_K
        sums, total, peak = _walk(
            q, sums, total, peak, k_head, v_head, None, low, whole, K, k_row, v_row, head, heads, window, parameter,
            scale, rows, True, CAUSAL, WINDOW, None, D, E, BD, BE, BLOCK_K, PRECISION,
        )  # fmt: skip
        low = whole
    sums, total, peak = _walk(
        q, sums, total, peak, k_head, v_head, mask_rows, low, high, K, k_row, v_row, head, heads, window, parameter,
        scale, rows, False, CAUSAL, WINDOW, SCORE, D, E, BD, BE, BLOCK_K, PRECISION,
    )  # fmt: skip
    y = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    o_at = o_head + rows.to(tl.int64)[:, None] * o_row + e[None, :]
    tl.store(o_at, y.to(o_head.dtype.element_ty), mask=(rows[:, None] < Q) & (e[None, :] < E))


@triton.jit
def _share(Q, heads, BLOCK_Q: tl.constexpr):
    """What a program does: the batch's head, the head, the first query.

    Neighbours share a head, whose keys stay in the cache; the blocks that see most start first.
    """
    blocks = tl.cdiv(Q, BLOCK_Q)
    program = tl.program_id(0)
    block, own = blocks - 1 - program % blocks, program // blocks
    return own, own % heads, block * BLOCK_Q


@triton.jit
def attention(
    query, key, value, mask, output, H, G, Q, K, factor, reach, parameter, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    SCORE: tl.constexpr, POSITIVE: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Row-major queries [B, H, Q, D], keys [B, G, K, D], values [B, G, K, E]; a program for each block of queries."""
    bh, head, first = _share(Q, H, BLOCK_Q)
    group = ((bh // H) * G + head // (H // G)).to(tl.int64)
    own = bh.to(tl.int64)
    mask_head = None
    if mask is not None:
        mask_head = mask + own * Q * K
    _attend(
        query + own * Q * D, key + group * K * D, value + group * K * E, mask_head, output + own * Q * E,
        first, head, H, Q, K, D, D, E, E, reach, parameter, factor, CAUSAL, WINDOW, SCORE, POSITIVE, D, E,
        BD, BE, BLOCK_Q, BLOCK_K, PRECISION,
    )  # fmt: skip


@triton.jit
def scored_attention(
    query, key, value, output, H, G, Q, K, factor, reach, parameter, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    SCORE: tl.constexpr, POSITIVE: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of operators without a mask."""
    attention(
        query, key, value, None, output, H, G, Q, K, factor, reach, parameter, CAUSAL, WINDOW, SCORE, POSITIVE, D, E,
        BD, BE, BLOCK_Q, BLOCK_K, PRECISION,
    )  # fmt: skip


@triton.jit
def attention_of_rows(
    workspace, output, S, heads, groups, factor, CAUSAL: tl.constexpr, POSITIVE: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows of query, key and value heads side by side, as a projection leaves them; heads of the result likewise."""
    rows = workspace.to(tl.pointer_type(output.dtype.element_ty), bitcast=True)
    bh, head, query = _share(S, heads, BLOCK_Q)
    group = head // (heads // groups)
    width = (heads + 2 * groups) * D
    first = (bh // heads).to(tl.int64) * S
    row = rows + first * width
    _attend(
        row + head * D, row + (heads + group) * D, row + (heads + groups + group) * D, None,
        output + first * heads * D + head * D, query, head, heads, S, S, width, width, width, heads * D,
        0, 0.0, factor, CAUSAL, False, None, POSITIVE, D, D, BD, BD, BLOCK_Q, BLOCK_K, PRECISION,
    )  # fmt: skip
