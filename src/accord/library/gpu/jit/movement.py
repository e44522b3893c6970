"""Channels and pixels in another order: elements move as units of up to eight bytes, stores are contiguous."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def channel_shuffle(
    x,
    output,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PLANE: tl.constexpr,
    UNIT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program writes ``BLOCK`` units of an image; a plane has ``PLANE`` of them."""
    source = x.to(tl.pointer_type(UNIT), bitcast=True)
    target = output.to(tl.pointer_type(UNIT), bitcast=True)
    program = tl.program_id(0)
    image = (program // BLOCKS).to(tl.int64) * CHANNELS * PLANE
    at = program % BLOCKS
    if WIDE:
        at = at.to(tl.int64)
    at = at * BLOCK + tl.arange(0, BLOCK)
    channel = at // PLANE
    wanted = (channel % GROUPS) * (CHANNELS // GROUPS) + channel // GROUPS
    inside = at < CHANNELS * PLANE
    tl.store(target + image + at, tl.load(source + image + wanted * PLANE + at % PLANE, mask=inside), mask=inside)


@triton.jit
def pixel_shuffle(
    x,
    output,
    H,
    FACTOR: tl.constexpr,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program writes ``ROWS`` rows of the result, each of one row of ``FACTOR`` channels, element by element."""
    source = x.to(tl.pointer_type(UNIT), bitcast=True)
    target = output.to(tl.pointer_type(UNIT), bitcast=True)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for k in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + k  # of all rows of all images and channels of the result
        plane, y = row // (H * FACTOR), row % (H * FACTOR)
        first = ((plane * FACTOR + y % FACTOR) * FACTOR * H + y // FACTOR) * WIDTH
        inside = at < WIDTH * FACTOR
        pixel = tl.load(source + first + (at % FACTOR).to(tl.int64) * H * WIDTH + at // FACTOR, mask=inside)
        tl.store(target + row * (WIDTH * FACTOR) + at, pixel, mask=inside)


@triton.jit
def pixel_unshuffle(
    x,
    output,
    H,
    FACTOR: tl.constexpr,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program reads a row of a channel and writes a row of ``FACTOR`` channels of the result."""
    source = x.to(tl.pointer_type(UNIT), bitcast=True)
    target = output.to(tl.pointer_type(UNIT), bitcast=True)
    row = tl.program_id(0).to(tl.int64)  # of all rows of all images and channels
    plane, y = row // H, row % H
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    per = WIDTH // FACTOR
    channel, column = at // per, at % per
    pixel = tl.load(source + row * WIDTH + column * FACTOR + channel, mask=inside)
    first = ((plane * FACTOR + y % FACTOR) * FACTOR * (H // FACTOR) + y // FACTOR) * per
    tl.store(target + first + channel.to(tl.int64) * (H // FACTOR) * per + column, pixel, mask=inside)


@triton.jit
def turned(x, target, N, C, PLANE, BLOCK: tl.constexpr):
    """Images with their channels last, and a pixel of zeros behind them; a program has ``BLOCK`` by ``BLOCK``.

    Then a pixel's channels are read at once, wherever somebody looks.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pixels = tl.cast(N, tl.int64) * PLANE
    image, pixel = place // PLANE, place % PLANE
    inside = (c < C)[:, None] & (place < pixels)[None, :]
    v = tl.load(x + (image[None, :] * C + c[:, None]) * PLANE + pixel[None, :], mask=inside, other=0)
    there = (place <= pixels)[:, None] & (c < C)[None, :]
    tl.store(target + place[:, None] * C + c[None, :], tl.trans(v), mask=there)


@triton.jit
def channels_last(x, workspace, N, C, PLANE, BLOCK: tl.constexpr):
    """:func:`turned`, into scratch memory."""
    turned(x, workspace.to(tl.pointer_type(x.dtype.element_ty), bitcast=True), N, C, PLANE, BLOCK)
