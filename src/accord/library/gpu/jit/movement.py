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
def _rows(H, FACTOR: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """A program's rows of large planes, and where their pixels are in the first of ``FACTOR`` small ones."""
    row = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    if WIDE:
        row = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH)
    plane, y = row // (H * FACTOR), row % (H * FACTOR)
    row = row.to(tl.int64)
    return row, ((plane.to(tl.int64) * FACTOR + y % FACTOR) * FACTOR * H + y // FACTOR) * WIDTH


@triton.jit
def pixel_shuffle(
    x, output, ROWS, H, FACTOR: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    HIGH: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program writes ``HIGH`` of the result's ``ROWS`` rows (of all images and channels), ``BLOCK`` pixels of each.

    A row has the pixels of one row of ``FACTOR`` channels in turn; ``WAYS`` is the power of two that holds so many.
    """
    source = x.to(tl.pointer_type(UNIT), bitcast=True)
    target = output.to(tl.pointer_type(UNIT), bitcast=True)
    row, first = _rows(H, FACTOR, WIDTH, HIGH, WIDE)
    way = tl.arange(0, WAYS)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < ROWS)[:, None, None] & (way < FACTOR)[None, :, None] & (at < WIDTH)[None, None, :]
    channel = first[:, None] + (way.to(tl.int64) * H * WIDTH)[None, :]
    pixel = tl.permute(tl.load(source + channel[:, :, None] + at[None, None, :], mask=inside), (0, 2, 1))
    if WAYS == FACTOR:  # neighbours are stored at once
        out = tl.program_id(1) * BLOCK * FACTOR + tl.arange(0, BLOCK * FACTOR)
        there = (row < ROWS)[:, None] & (out < WIDTH * FACTOR)[None, :]
        pixel = tl.reshape(pixel, [HIGH, BLOCK * FACTOR])
        tl.store(target + row[:, None] * (WIDTH * FACTOR) + out[None, :], pixel, mask=there)
    else:
        out = at[:, None] * FACTOR + way[None, :]
        to = row[:, None, None] * (WIDTH * FACTOR) + out[None, :, :]
        tl.store(target + to, pixel, mask=tl.permute(inside, (0, 2, 1)))


@triton.jit
def pixel_unshuffle(
    x, output, ROWS, H, FACTOR: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    HIGH: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The inverse, of ``ROWS`` rows of the input; ``H`` and ``WIDTH`` are those of the result."""
    source = x.to(tl.pointer_type(UNIT), bitcast=True)
    target = output.to(tl.pointer_type(UNIT), bitcast=True)
    row, first = _rows(H, FACTOR, WIDTH, HIGH, WIDE)
    way = tl.arange(0, WAYS)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < ROWS)[:, None, None] & (way < FACTOR)[None, :, None] & (at < WIDTH)[None, None, :]
    if WAYS == FACTOR:
        out = tl.program_id(1) * BLOCK * FACTOR + tl.arange(0, BLOCK * FACTOR)
        there = (row < ROWS)[:, None] & (out < WIDTH * FACTOR)[None, :]
        pixel = tl.load(source + row[:, None] * (WIDTH * FACTOR) + out[None, :], mask=there)
        pixel = tl.reshape(pixel, [HIGH, BLOCK, WAYS])
    else:
        out = at[:, None] * FACTOR + way[None, :]
        to = row[:, None, None] * (WIDTH * FACTOR) + out[None, :, :]
        pixel = tl.load(source + to, mask=tl.permute(inside, (0, 2, 1)))
    channel = first[:, None] + (way.to(tl.int64) * H * WIDTH)[None, :]
    tl.store(target + channel[:, :, None] + at[None, None, :], tl.permute(pixel, (0, 2, 1)), mask=inside)


@triton.jit
def places(block, PLANE, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Of a block of the pixels of all images, the image and the place in there; ``WIDE``: they are very many."""
    p = tl.cast(block, tl.int64 if WIDE else tl.int32) * BLOCK + tl.arange(0, BLOCK)
    return (p // PLANE).to(tl.int64), (p % PLANE).to(tl.int32)


@triton.jit
def turned(x, target, N, C, PLANE, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Images with their channels last, and a pixel of zeros behind them; a program has ``BLOCK`` by ``BLOCK``.

    Then a pixel's channels are read at once, wherever somebody looks.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    image, pixel = places(tl.program_id(0), PLANE, BLOCK, WIDE)
    inside = (c < C)[:, None] & (image < N)[None, :]
    v = tl.load(x + (image[None, :] * C + c[:, None]) * PLANE + pixel[None, :], mask=inside, other=0)
    there = (place <= tl.cast(N, tl.int64) * PLANE)[:, None] & (c < C)[None, :]
    tl.store(target + place[:, None] * C + c[None, :], tl.trans(v), mask=there)


@triton.jit
def channels_last(x, workspace, N, C, PLANE, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """:func:`turned`, into scratch memory."""
    turned(x, workspace.to(tl.pointer_type(x.dtype.element_ty), bitcast=True), N, C, PLANE, BLOCK, WIDE)
