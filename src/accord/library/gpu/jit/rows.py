"""Normalisations and softmax: a program takes whole rows; statistics are float32 whatever the elements are.

A row that fits is read once and stays in registers, so the variance is that of the centred row. Longer rows are walked
in pieces, their statistics joined as Chan, Golub and LeVeque ("Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances", 1979) do, and read again for the result.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _parameters(p, at, inside):
    """What belongs to the elements of a row, from memory unless it is here already."""
    return (tl.load(p + at, mask=inside) if p.dtype.is_ptr() else p).to(tl.float32)


@triton.jit
def _scaled(z, weight, bias, at, inside):
    """``z * weight + bias``, either of which may be absent."""
    if weight is not None:
        z = z * _parameters(weight, at, inside)
    if bias is not None:
        z = z + _parameters(bias, at, inside)
    return z


@triton.jit
def layer_norm(
    x, weight, bias, output, lead, D, eps, epilogue: tl.constexpr, extras, CENTRED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr, STREAM: tl.constexpr, AGAIN: tl.constexpr, WALK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """LayerNorm, or RMSNorm where nothing is centred, of rows of up to ``BLOCK`` elements.

    A program has ``ROWS`` rows at once, ``WALK`` times, and the next ``STAGES - 1`` are on their way to shared memory
    meanwhile. ``EVEN``: nothing is outside. ``STREAM``: nobody reads soon what is read and written here. ``AGAIN``: a
    row is read a second time, from the first cache, for its result, and takes no registers until then.
    """
    at = tl.arange(0, BLOCK)[None, :]
    first = tl.program_id(0).to(tl.int64) * ROWS
    step = tl.num_programs(0).to(tl.int64) * ROWS
    last: tl.constexpr = "evict_first" if STREAM else ""
    modifier: tl.constexpr = ".cs" if STREAM else ""
    if WALK > 1:  # the same for all of them
        if weight is not None:
            weight = tl.load(weight + at, mask=None if EVEN else at < D)
        if bias is not None:
            bias = tl.load(bias + at, mask=None if EVEN else at < D)
    for turn in tl.range(WALK, num_stages=STAGES):
        row = first + turn * step + tl.arange(0, ROWS)[:, None]
        inside = None if EVEN else (at < D) & (row < lead)
        own = tl.load(x + row * D + at, mask=inside, other=None if EVEN else 0, eviction_policy="" if AGAIN else last)
        z = own.to(tl.float32)
        mean = 0.0
        if CENTRED:
            mean = (tl.sum(z, 1) / D)[:, None]
            z = z - mean if EVEN else tl.where(inside, z - mean, 0.0)
        scale = (1.0 / tl.sqrt_rn(tl.sum(z * z, 1) / D + eps))[:, None]
        if AGAIN:
            z = tl.load(x + row * D + at, mask=inside, eviction_policy="evict_first").to(tl.float32) - mean
        z = _scaled(z * scale, weight, bias, at, None if EVEN else at < D)
        if epilogue is not None:
            z = epilogue(z, row * D + at, at < D if EVEN else inside, extras)
        tl.store(output + row * D + at, z.to(output.dtype.element_ty), mask=inside, cache_modifier=modifier)


@triton.jit
def layer_norm_long(
    x, weight, bias, output, D, eps, epilogue: tl.constexpr, extras, CENTRED: tl.constexpr, BLOCK: tl.constexpr
):
    """As :func:`layer_norm`, of rows of any length."""
    row = tl.program_id(0).to(tl.int64) * D
    at = tl.arange(0, BLOCK)
    mean, spread, count = 0.0, 0.0, 0.0
    for start in range(0, D, BLOCK):
        inside = start + at < D
        z = tl.load(x + row + start + at, mask=inside, other=0).to(tl.float32)
        own = tl.minimum(D - start, BLOCK).to(tl.float32)
        if CENTRED:
            here = tl.sum(z, 0) / own
            z = tl.where(inside, z - here, 0.0)
            gap = here - mean
            spread += gap * gap * (count * own / (count + own))
            mean += gap * (own / (count + own))
        spread += tl.sum(z * z, 0)
        count += own
    scale = 1.0 / tl.sqrt_rn(spread / D + eps)
    for start in range(0, D, BLOCK):
        inside = start + at < D
        z = tl.load(x + row + start + at, mask=inside, other=0).to(tl.float32)
        z = _scaled((z - mean) * scale, weight, bias, start + at, inside)
        if epilogue is not None:
            z = epilogue(z, row + start + at, inside, extras)
        tl.store(output + row + start + at, z.to(output.dtype.element_ty), mask=inside)


@triton.jit
def group_norm(
    x, weight, bias, output, C, groups, eps, epilogue: tl.constexpr, extras, PLANE: tl.constexpr, LENGTH: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """A program normalises the ``LENGTH`` elements of a group of an image; a channel has ``PLANE`` of them.

    It has ``HIGH`` times ``WIDE`` at once, and ``WIDE`` divides ``PLANE``. Each place of these has a mean and a spread
    of its own (Welford, 1962), which are joined at the end; the result is made from the last elements to the first,
    because the last are still in the cache. ``STREAM``: nobody reads soon what is read last and written here.
    """
    last: tl.constexpr = "evict_first" if STREAM else ""
    modifier: tl.constexpr = ".cs" if STREAM else ""
    BLOCK: tl.constexpr = HIGH * WIDE
    EVEN: tl.constexpr = LENGTH % BLOCK == 0
    program = tl.program_id(0)
    first = program.to(tl.int64) * LENGTH
    channel = (program % groups) * (C // groups)
    part = tl.arange(0, HIGH) * WIDE
    at = part[:, None] + tl.arange(0, WIDE)[None, :]
    mean = tl.zeros([HIGH, WIDE], tl.float32)
    spread = tl.zeros([HIGH, WIDE], tl.float32)
    for k in range((LENGTH + BLOCK - 1) // BLOCK):
        inside = k * BLOCK + at < LENGTH
        z = tl.load(x + first + k * BLOCK + at, mask=None if EVEN else inside).to(tl.float32)
        gap = z - mean
        higher = mean + gap * (1.0 / (tl.cast(k, tl.float32) + 1.0))
        more = spread + gap * (z - higher)
        mean = higher if EVEN else tl.where(inside, higher, mean)
        spread = more if EVEN else tl.where(inside, more, spread)
    count = tl.where(at < LENGTH, (LENGTH - 1 - at) // BLOCK + 1, 0).to(tl.float32)
    whole = tl.sum(tl.sum(mean * count, 1), 0) / LENGTH
    gap = mean - whole
    scale = 1.0 / tl.sqrt_rn(tl.sum(tl.sum(spread + gap * gap * count, 1), 0) / LENGTH + eps)
    for back in range((LENGTH + BLOCK - 1) // BLOCK):
        start = ((LENGTH + BLOCK - 1) // BLOCK - 1 - back) * BLOCK
        inside = start + at < LENGTH
        z = tl.load(x + first + start + at, mask=None if EVEN else inside, eviction_policy=last).to(tl.float32)
        own = (start + part) // PLANE
        z = _scaled((z - whole) * scale, weight, bias, (channel + own)[:, None], (start + part < LENGTH)[:, None])
        if epilogue is not None:
            z = epilogue(z, first + start + at, inside, extras)
        tl.store(output + first + start + at, z.to(output.dtype.element_ty), mask=inside, cache_modifier=modifier)


@triton.jit
def softmax(x, output, lead, D, epilogue: tl.constexpr, extras, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Softmax of rows of up to ``BLOCK`` elements; NaN where all of a row is minus infinity."""
    at = tl.arange(0, BLOCK)[None, :]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = (at < D) & (row < lead)
    z = tl.load(x + row * D + at, mask=inside, other=float("-inf")).to(tl.float32)
    peak = tl.max(z, 1)
    e = tl.exp(z - tl.where(peak == float("-inf"), 0.0, peak)[:, None])
    e = e / tl.sum(e, 1)[:, None]
    if epilogue is not None:
        e = epilogue(e, row * D + at, inside, extras)
    tl.store(output + row * D + at, e.to(output.dtype.element_ty), mask=inside)


@triton.jit
def softmax_long(x, output, D, epilogue: tl.constexpr, extras, BLOCK: tl.constexpr):
    """As :func:`softmax`, of rows of any length: maximum and sum in one pass (Milakov and Gimelshein, 2018)."""
    row = tl.program_id(0).to(tl.int64) * D
    at = tl.arange(0, BLOCK)
    peak = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        z = tl.load(x + row + start + at, mask=start + at < D, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, z)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.exp(z - base)
        peak = higher
    top = tl.max(peak, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    whole = tl.sum(total * tl.exp(peak - top), 0)
    for start in range(0, D, BLOCK):
        inside = start + at < D
        z = tl.load(x + row + start + at, mask=inside, other=float("-inf")).to(tl.float32)
        e = tl.exp(z - top) / whole
        if epilogue is not None:
            e = epilogue(e, row + start + at, inside, extras)
        tl.store(output + row + start + at, e.to(output.dtype.element_ty), mask=inside)
