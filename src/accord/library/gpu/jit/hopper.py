"""Gluon functions for Hopper's warp groups: products that run while what comes next is made.

Gluon is Triton's language of layouts and barriers; it has no interpreter. The compiler puts a barrier behind a wait for
copies, and where memory is written that was read since the last barrier.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

# older versions have another name
copy_tile = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def deform_conv2d(
    bias, output, workspace, N, C, H, W, M, AREA, groups, offset_groups, PER: tl.constexpr, SHARE: tl.constexpr,
    TAPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr,
    HALVES: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """As the function of that name in ``convolutions.py``, for groups of whole blocks of 64 channels.

    Every warp samples. While a step's product runs, the next one's rows are sampled to registers and from there to
    the other half of shared memory; copies bring its weights, and the samples of the one after it. ``HALVES``:
    interpolation is in the type of the image, which takes half the instructions.
    """
    dtype: tl.constexpr = output.dtype.element_ty
    BLOCK_C: tl.constexpr = 64
    rows: tl.constexpr = tl.BlockedLayout([4, 8], [4, 8], [WARPS, 1], [1, 0])
    row: tl.constexpr = tl.SliceLayout(1, rows)
    w_layout: tl.constexpr = tl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    sums: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 16])
    stored: tl.constexpr = tl.BlockedLayout([8, 1], [BLOCK_P // 8, 256 // BLOCK_P], [1, WARPS], [0, 1])
    line: tl.constexpr = tl.BlockedLayout([2], [32], [WARPS], [0])
    a_tiles = tl.allocate_shared_memory(
        dtype, [2, BLOCK_P, BLOCK_C], tl.NVMMASharedLayout.get_default_for([BLOCK_P, BLOCK_C], dtype)
    )
    w_tiles = tl.allocate_shared_memory(
        dtype, [2, BLOCK_M, BLOCK_C], tl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_C], dtype)
    )
    s_tiles = tl.allocate_shared_memory(tl.int64, [2, 4 * BLOCK_P], tl.SwizzledSharedLayout(1, 1, 1, [0]))

    pixels = tl.cast(N, tl.int64) * H * W
    images = workspace.to(tl.pointer_type(dtype), bitcast=True)
    weights = images + (pixels + 1) * C
    bytes_before = ((pixels + 1) * C + tl.cast(M, tl.int64) * (PER * TAPS)) * 2
    samples = (workspace + tl.cdiv(bytes_before, 16) * 16).to(tl.pointer_type(tl.int64), bitcast=True)
    samples += tl.program_id(0).to(tl.int64) * (4 * BLOCK_P)
    strips = tl.num_programs(0).to(tl.int64) * (4 * BLOCK_P)
    own = M // groups
    down = tl.cdiv(own, BLOCK_M)
    group = tl.program_id(1) // down
    first = tl.program_id(1) % down * BLOCK_M

    channel = first + tl.arange(0, BLOCK_M, layout=tl.SliceLayout(1, w_layout))
    if not FULL:
        channel = channel % own  # what is beyond is read at a place that exists and never stored
    k = tl.arange(0, BLOCK_C, layout=tl.SliceLayout(0, w_layout))
    w_at = channel[:, None] * (TAPS * PER) + k[None, :]
    weights += (group * own).to(tl.int64) * (TAPS * PER)
    s_at = tl.arange(0, 4 * BLOCK_P, layout=line)
    c = tl.arange(0, BLOCK_C, layout=tl.SliceLayout(0, rows))

    steps: tl.constexpr = PER // BLOCK_C * TAPS
    total = tl.zeros([BLOCK_P, BLOCK_M], tl.float32, layout=sums)
    fetch_weights(weights, w_at, w_tiles, 0, PER, TAPS, BLOCK_C)
    fetch_samples(samples, s_at, s_tiles.index(0), 0, strips, group, PER, SHARE, TAPS, BLOCK_C)
    fetch_samples(samples, s_at, s_tiles.index(1), 1 % steps, strips, group, PER, SHARE, TAPS, BLOCK_C)
    async_copy.commit_group()
    async_copy.wait_group(0)
    a_tiles.index(0).store(sampled(images, s_tiles, 0, C, c, group, row, dtype, PER, TAPS, BLOCK_P, BLOCK_C, HALVES))
    for step in range(steps - 1):
        fence_async_shared()
        async_copy.wait_group(0)
        b = w_tiles.index(step % 2).permute([1, 0])
        total = warpgroup_mma(a_tiles.index(step % 2), b, total, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])
        fetch_weights(weights, w_at, w_tiles, step + 1, PER, TAPS, BLOCK_C)
        later = tl.minimum(step + 2, steps - 1)
        fetch_samples(samples, s_at, s_tiles.index(step % 2), later, strips, group, PER, SHARE, TAPS, BLOCK_C)
        async_copy.commit_group()
        a = sampled(images, s_tiles, step + 1, C, c, group, row, dtype, PER, TAPS, BLOCK_P, BLOCK_C, HALVES)
        a_tiles.index((step + 1) % 2).store(a)
    fence_async_shared()
    async_copy.wait_group(0)
    b = w_tiles.index((steps - 1) % 2).permute([1, 0])
    total = warpgroup_mma(a_tiles.index((steps - 1) % 2), b, total, is_async=True)
    total = warpgroup_mma_wait(0, deps=[total])

    if bias is not None:
        m = first + tl.arange(0, BLOCK_M, layout=tl.SliceLayout(0, sums))
        total += tl.load(bias + group * own + m, mask=m < own, other=0).to(tl.float32)[None, :]
    result = tl.convert_layout(total.to(dtype), stored)
    p = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK_P
    p += tl.arange(0, BLOCK_P, layout=tl.SliceLayout(1, stored))
    m = first + tl.arange(0, BLOCK_M, layout=tl.SliceLayout(0, stored))
    image, place = (p // AREA).to(tl.int64), p % AREA
    plane = (group * own + m).to(tl.int64) * AREA
    at = (image * M * AREA + place)[:, None] + plane[None, :]
    tl.store(output + at, result, mask=(image < N)[:, None] & (m < own)[None, :])


@gluon.jit
def fetch_weights(weights, w_at, w_tiles, step, PER: tl.constexpr, TAPS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Start a copy of those of a step: of a block of channels, and of a tap."""
    copy_tile(w_tiles.index(step % 2), weights + (step % TAPS * PER + step // TAPS * BLOCK_C) + w_at)


@gluon.jit
def fetch_samples(
    samples, s_at, tile, step, strips, group, PER: tl.constexpr, SHARE: tl.constexpr, TAPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Likewise."""
    offsets = (group * PER + step // TAPS * BLOCK_C) // SHARE
    copy_tile(tile, samples + (offsets * TAPS + step % TAPS) * strips + s_at)


@gluon.jit
def sampled(
    images, s_tiles, step, C, c, group, row: tl.constexpr, dtype: tl.constexpr, PER: tl.constexpr, TAPS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """Rows of a step: 64 channels at each sample."""
    tile = s_tiles.index(step % 2)
    channels = images + (group * PER + step // TAPS * BLOCK_C) + c[None, :]
    top, bottom = tile.slice(0, BLOCK_P).load(row), tile.slice(BLOCK_P, BLOCK_P).load(row)
    t, b = tile.slice(2 * BLOCK_P, BLOCK_P).load(row), tile.slice(3 * BLOCK_P, BLOCK_P).load(row)
    p00 = tl.load(channels + ((top & 0xFFFFFFFF) * C)[:, None])
    p01 = tl.load(channels + (((top >> 32) & 0xFFFFFFFF) * C)[:, None])
    p10 = tl.load(channels + ((bottom & 0xFFFFFFFF) * C)[:, None])
    p11 = tl.load(channels + (((bottom >> 32) & 0xFFFFFFFF) * C)[:, None])
    w00, w01 = t.to(tl.int32).to(tl.float32, bitcast=True), (t >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    w10, w11 = b.to(tl.int32).to(tl.float32, bitcast=True), (b >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    kind: tl.constexpr = dtype if HALVES else tl.float32
    a = p00.to(kind) * w00.to(kind)[:, None] + p01.to(kind) * w01.to(kind)[:, None]
    a += p10.to(kind) * w10.to(kind)[:, None] + p11.to(kind) * w11.to(kind)[:, None]
    return a.to(dtype)
