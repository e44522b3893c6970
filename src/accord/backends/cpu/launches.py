"""How kernels are started for given sizes: the work is cut into tasks.

A stored plan needs these functions and nothing else of the modules that write the kernels, which stay unloaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from accord.backends.protocol import Launch
from accord.ir import dims as D
from accord.ir.dims import DimLike

__all__ = [
    "launch_copy",
    "launch_indexed",
    "launch_loops",
    "launch_projection",
    "launch_resampling",
    "launch_windows",
    "table_bytes",
    "table_places",
]

#: Elements of a loop program's task: few enough that there are tasks for all threads, as many as make its start cheap.
#: Those of expensive expressions count more.
_LOOP_ELEMENTS = 65536
_LEAST_ELEMENTS = 8192
_TASKS = 16
#: Elements that one task of an indexed copy should have at least.
_INDEXED_ELEMENTS = 16384
#: Multiplications, or loads of a pool, that a task of windows should have at least: some 20 us of work.
_WORK = 1 << 18
#: Bytes of a task that copies.
_COPY_BLOCK = 1 << 18
#: Multiplications that a task should have at least.
_TASK_PRODUCTS = 1_500_000
#: Rows of one task: few enough for a cache.
_TASK_ROWS = 96


def launch_loops(form: tuple[int, int, bool, bool, int, int, float], sizes: Sequence[int]) -> Launch:
    """Blocks of two kept axes make a task: enough elements for a thread, and of about equal size.

    They are the innermost two, without the one that is woven.
    """
    kept, reduced, across, staged, woven, lanes, weight = form
    extents = sizes[:kept]
    row = max(1, math.prod(sizes[kept : kept + reduced]))
    elements = min(_LOOP_ELEMENTS, max(_LEAST_ELEMENTS, math.prod(extents) * row // _TASKS))
    wanted = max(1, int(elements / (1 + weight / 8)) // row)
    unit = lanes if staged else 1
    wanted //= woven or 1
    outer = extents[: max(0, kept - 1 - (not across) - bool(woven))]
    if across:
        inner_block, inner_blocks, mid = 1, 1, extents[-1]
    else:
        inner_block, inner_blocks = _blocks(extents[-1], wanted, lanes)
        mid = extents[len(outer)] if kept > 1 + bool(woven) else 1
    mid_block, mid_blocks = _blocks(mid, wanted // inner_block, unit)
    tasks = mid_blocks * inner_blocks * math.prod(outer)
    blocks = (mid_block, mid_blocks, inner_block, inner_blocks)
    return Launch((*sizes[: kept + reduced], *blocks, *sizes[kept + reduced :]), tasks)


def _blocks(extent: int, wanted: int, unit: int) -> tuple[int, int]:
    """Size and number of blocks of about ``wanted`` elements, a multiple of ``unit`` unless there is one."""
    count = max(1, extent // max(1, wanted))
    size = -(-extent // count)
    if count > 1:
        size = -(-size // unit) * unit
    return max(1, size), -(-extent // max(1, size))


def launch_windows(rank: int, weight: int, sizes: Sequence[int]) -> Launch:
    """Parameters of the functions of :class:`~accord.backends.cpu.windows.WindowWriter`.

    Args:
        rank: Number of spatial axes.
        weight: Work of one tap of one channel.
        sizes: Of ``window_dims`` and of the operands.
    """
    images, channels = sizes[:2]
    axes = [tuple(sizes[2 + 6 * a : 8 + 6 * a]) for a in range(rank)]
    rest = sizes[2 + 6 * rank :]
    pixels, taps = images, 1
    for out, _, kernel, *_ in axes:
        pixels *= out
        taps *= kernel
    out, size, kernel, stride, pad, dilation = axes[-1]
    # positions whose window is inside the image along the innermost axis
    low = min(-(-pad // stride), out)
    high = max(low, min(out, (size + pad - (kernel - 1) * dilation - 1) // stride + 1))
    work = max(1, channels * taps * weight)
    block = max(1, min(pixels, _WORK // work))
    if block > out > 0:
        block -= block % out  # whole rows
    geometry = [v for a in axes for v in a]
    return Launch((pixels, block, channels, low, high, *geometry, *rest), -(-pixels // block) if pixels else 0)


def launch_indexed(axes: int, sequential: int, in_order: bool, limits: int, sizes: Sequence[int]) -> Launch:
    """Parameters of :class:`~accord.backends.cpu.indexing.IndexedCode`."""
    extents, bounds = sizes[:axes], sizes[len(sizes) - 2 * limits :]
    refused = any(size > bound for size, bound in zip(bounds[::2], bounds[1::2], strict=True))
    mid, inner = extents[axes - 2 - sequential], extents[-1]
    times = math.prod(extents[axes - 1 - sequential : axes - 1])
    inner_block = inner if in_order else min(inner, max(64, _INDEXED_ELEMENTS // max(1, times)))
    inner_block = max(1, inner_block if inner_block == inner else -(-inner_block // 64) * 64)
    mid_block = max(1, min(mid, _INDEXED_ELEMENTS // max(1, inner * times)))
    mid_blocks, inner_blocks = -(-mid // mid_block), -(-inner // inner_block)
    params = (
        *extents,
        mid_block,
        inner_block,
        mid_blocks,
        inner_blocks,
        int(refused),
        *sizes[axes : len(sizes) - 2 * limits],
    )
    tasks = math.prod(extents[: axes - 2 - sequential]) * mid_blocks * inner_blocks
    return Launch(params, tasks if times else 0)


def launch_copy(sizes: Sequence[int]) -> Launch:
    """Parameters of :class:`~accord.backends.cpu.indexing.CopyCode`."""
    return Launch((sizes[0], _COPY_BLOCK), -(-sizes[0] // _COPY_BLOCK))


def table_bytes(target: DimLike, count: DimLike) -> DimLike:
    """Room for one axis, with weights of any type."""
    return D.floordiv(target * count * 16 + 127, 64) * 64


def table_places(sizes: Sequence[int], dtype: str) -> list[tuple[int, int]]:
    """Byte offsets of each axis' indices and weights.

    Args:
        sizes: Target length and taps of a position for each axis, one after the other.
        dtype: Of the weights.
    """
    places, at = [], 0
    for target, count in zip(sizes[::2], sizes[1::2], strict=True):
        places.append((at, at + target * count * 8))
        at += table_bytes(target, count)  # type: ignore[assignment]
    return places


def launch_resampling(outer: int, rank: int, acc: str, sizes: Sequence[int]) -> Launch:
    """Parameters of a resampling by tables (:mod:`accord.backends.cpu.resample`)."""
    channels, *rest = sizes
    extents, counts = rest[: outer + rank], rest[outer + rank : outer + 2 * rank]
    pixels, taps = 1, 1
    for e in extents:
        pixels *= e
    for c in counts:
        taps *= c
    pairs = [v for pair in zip(extents[outer:], counts, strict=True) for v in pair]
    layout = [v for c, place in zip(counts, table_places(pairs, acc), strict=True) for v in (c, *place)]
    work = max(1, channels * taps)
    size = max(1, min(pixels, _WORK // work))
    if size > extents[-1] > 0:
        size -= size % extents[-1]
    params = (pixels, size, channels, *extents, *layout, *rest[outer + 2 * rank :])
    return Launch(params, -(-pixels // size) if channels else 0)


def launch_projection(line: int, sizes: Sequence[int]) -> Launch:
    """Parameters of the products before a recurrence (:mod:`accord.backends.cpu.projection`)."""
    rows, outer, k, panels, directions, *rest = sizes
    block = min(rows, _TASK_ROWS) or 1
    blocks = -(-rows // block)
    group = min(panels, -(-_TASK_PRODUCTS // max(1, block * k * line))) or 1
    groups = -(-panels // group)
    tasks = directions * groups * outer * blocks
    return Launch((rows, outer, k, panels, block, blocks, group, groups, *rest), tasks)
