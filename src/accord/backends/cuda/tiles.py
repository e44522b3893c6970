"""Tiles of contractions: which are sensible for a problem and a device, and what a launch with one needs.

The order is that of a rough model of time: of what a multiprocessor multiplies, what it reads through the second-level
cache, and what a tile costs beside; a result of few tiles leaves multiprocessors idle. The model only has to bring the
best few to the front; a runtime measures those.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from accord.backends.cuda.code import CudaLaunch, KernelText, TensorMap, exact_hints, hints_of
from accord.backends.cuda.contraction import WHOLE_TERMS, ContractionKernel, Problem
from accord.backends.cuda.hopper_contraction import (
    PIECES,
    HopperContraction,
    has_registers,
    shares_of,
)
from accord.backends.cuda.walks import rows_of, suits_hopper
from accord.errors import CompileError
from accord.expr.cost import cost_of
from accord.expr.lang import bits
from accord.record import record

__all__ = ["Device", "Tile", "candidates", "launches", "text_of", "workspace"]


@record
class Device:
    """What tiles are chosen for.

    Attributes:
        architecture: 90 for sm_90.
        shared: Bytes of shared memory that a block may use.
        processors: Multiprocessors.
    """

    architecture: int
    shared: int
    processors: int


@record
class Tile:
    """How a contraction is cut.

    Attributes:
        m: Rows of a tile.
        n: Columns.
        k: Elements of the last depth axis in a step.
        warps: Of a program.
        stages: Steps that are in flight.
        group: Rows of tiles that go together.
        splits: Parts of a sum.
        flat: All depth axes are walked as one.
        described: A and B are read through tensor descriptors, which a kernel makes in scratch memory of its own.
        hopper: Of :class:`HopperContraction`, which has as many programs as this says and walks the tiles; 0: of the
            Triton text.
        turns: There each group of warps has a tile of its own.
    """

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 3
    group: int = 8
    splits: int = 1
    flat: bool = False
    described: bool = False
    hopper: int = 0
    turns: bool = False


#: Shared memory of a block on sm_90 beside its barriers.
_HOPPER_SHARED: Final = (227 << 10) - 2048
#: Tile of the kernel that adds parts.
_ADDING: Final = Tile(8, 128, 16, 4, 1)
#: Sums that a thread finishes at once, if there are more: half as many where that takes more operations than these.
_HELD, _PLAIN = 64, 12.0
#: Elements of a step that a thread reads one by one.
_NARROW: Final = 16
#: Most parts of a sum, and the fewest steps that are worth a part.
_MOST_SPLITS, _FEWEST_STEPS = 16, 2


def launches(
    kernel: ContractionKernel, tile: Tile, sizes: Sequence[int], hints: Sequence[str] | None = None
) -> tuple[CudaLaunch, CudaLaunch]:
    """How ``kernel`` and then ``kernel.parts`` are started; without tasks if the result is empty, or not split.

    Args:
        kernel: The kernel.
        tile: How it is cut.
        sizes: Values of the kernel's ``names``.
        hints: What is known of these for all sizes, see :func:`exact_hints`; None: they are always the same.

    Raises:
        CompileError: the tile is not for this kernel: it splits sums that are made across, has descriptors where
            there can be none, or steps of whole numbers that are too long.
    """
    if tile.described and not kernel.describable:
        raise CompileError("the operands of this kernel have no descriptors")
    if kernel.across and tile.splits > 1:
        raise CompileError("sums that are made across are not split", expected=1, found=tile.splits)
    if kernel.precision == "whole" and not kernel.across and tile.k > WHOLE_TERMS:
        raise CompileError("float32 does not add as many products exactly", expected=WHOLE_TERMS, found=tile.k)
    p = kernel.problem(sizes)
    known = exact_hints(sizes) if hints is None else tuple(hints)
    if tile.hopper:
        if not suits_hopper(kernel, sizes):
            raise CompileError("the copy engine does not take the operands of this kernel")
        known = hints_of(sizes)  # its sizes are those of the tensor maps
    values = dict(zip(kernel.names, sizes, strict=True))
    # a constant offset would be added in each step, after all else
    kept = [
        (n, values[n], "" if n[0] == "o" and values[n] else hint)
        for n, hint in zip(kernel.names, known, strict=True)
        if n not in kernel.sized
    ]
    names, numbers, own_hints = zip(*kept, strict=True)

    def started(own: Tile, parts: int, *, needed: bool) -> CudaLaunch:
        grid = (-(-p.m // own.m) * -(-p.n // own.n) * p.batch, parts, 1)
        maps: tuple[TensorMap, ...] = ()
        if own.hopper:
            text = _hopper_text(kernel, own, sizes)
            down = -(-rows_of(kernel, sizes, text.rows) // own.m)
            grid = (min(own.hopper, down * -(-p.n // own.n) * p.batch), 1, 1)
            maps = text.maps(sizes, own.k)
            constants = _hopper_constants(text, own, p)
        else:
            constants = _constants(kernel, own, p, tile.splits)
        made = CudaLaunch.of(
            names,
            numbers,
            own_hints,
            grid,
            {n: values[n] for n in kernel.sized} | dict(constants),
            wide=any(abs(n) >= 1 << 31 for n in sizes),
            warps=own.warps,
            stages=own.stages,
        )
        return replace(made, tasks=made.tasks if needed else 0, maps=maps)

    return started(tile, tile.splits, needed=True), started(_ADDING, 1, needed=tile.splits > 1)


def text_of(kernel: ContractionKernel, tile: Tile, sizes: Sequence[int]) -> KernelText:
    """The text that a launch with a tile starts."""
    return _hopper_text(kernel, tile, sizes) if tile.hopper else kernel


def _hopper_text(kernel: ContractionKernel, tile: Tile, sizes: Sequence[int]) -> HopperContraction:
    steps = tile.stages * (tile.m + tile.n) * tile.k * bits(kernel.product) // 8
    return HopperContraction.of(kernel, sizes, tile.m, tile.n, _HOPPER_SHARED - steps, turns=tile.turns)


def _hopper_constants(text: HopperContraction, tile: Tile, p: Problem) -> tuple[tuple[str, int | bool], ...]:
    return (
        ("BM", text.rows),
        ("BN", tile.n),
        ("BK", tile.k),
        ("STAGES", tile.stages),
        ("GROUP", tile.group),
        *_divisors(p),
    )


def _divisors(p: Problem) -> tuple[tuple[str, int], ...]:
    """What divides sizes and strides."""
    whole = ((name, math.gcd(size, 16)) for name, size in (("VM", p.m), ("VN", p.n), ("VK", p.inner)))
    return (*whole, *((f"v{i}", width) for i, width in enumerate(p.widths)))


def _constants(kernel: ContractionKernel, tile: Tile, p: Problem, splits: int) -> tuple[tuple[str, int | bool], ...]:
    held = _HELD if cost_of(kernel.expr) <= _PLAIN else _HELD // 2
    return (
        ("BM", tile.m),
        ("BN", tile.n),
        ("BK", tile.k),
        ("GROUP", tile.group),
        ("SPLITS", splits),
        ("PARTS", min(4, max(1, tile.m * tile.n // (32 * tile.warps * held)))),
        ("DESCRIBED", tile.described),
        ("COPIED", tile.stages > 1),
        ("FLAT", tile.flat),
        ("EVEN_M", p.m % tile.m == 0),
        ("EVEN_N", p.n % tile.n == 0),
        ("EVEN_K", (p.k if tile.flat else p.inner) % tile.k == 0),
        *_divisors(p),
    )


def workspace(kernel: ContractionKernel, tile: Tile, sizes: Sequence[int]) -> int:
    """Bytes of the parts of split sums."""
    p = kernel.problem(sizes)
    if tile.splits == 1:
        return 0
    return tile.splits * p.batch * p.m * p.n * bits(kernel.sums) // 8


# which tiles


#: Products of f16 in a multiprocessor and a cycle, by architecture (the newest that is not newer).
_PRODUCTS: Final = {70: 512, 80: 1024, 86: 512, 90: 2048, 100: 4096, 120: 1024}
#: Cycles until a kernel has begun. What follows was fitted to 570 measured tiles (the convolutions of ResNet-50, and
#: linear layers) on an H200. Of a program: its beginning, and for each element of its tile a share of what finishes it.
_START, _BEGIN, _END = 1700.0, 920.0, 0.0075
#: Of a step: for each warp; until what it reads is there, or what is mostly in the multiprocessor's own cache; and the
#: bytes that it gets through the second cache in a cycle, twice as many through its own (which copies by far pass).
_STEP, _LATENCY, _NEAR, _BYTES = 28.0, 1640.0, 980.0, 72.0
#: What tiles of fewer rows than matrix units take multiply, beside whole rates.
_NARROW_RATE: Final = 0.12
#: Bytes that all move in a cycle; how their time and the programs' join: neither hides the other completely.
_MOVED, _JOINED = 3800.0, 1.1
#: Until the second kernel of split sums has started, and bytes that a multiprocessor gets there in a cycle.
_LAUNCH, _ADDED = 2600.0, 12.7
#: Cycles that finishing a sum takes a thread beside its operations, and for each one.
_FINISH, _OPERATION = 12.0, 1.2
#: Cycles for the descriptors of a program, and those of a step that reads through them.
_DESCRIBING, _DESCRIBED_STEP = 1200.0, 20.0
_SHAPES: Final = (
    (16, 32), (16, 64), (16, 128), (32, 32), (32, 64), (32, 128), (64, 32), (64, 64), (64, 128), (64, 256),
    (128, 32), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128),
)  # fmt: skip
#: Tiles of one shape among the first, and the share of all that each text has of them at least.
_ALIKE, _OF_EACH = 2, 4
#: Products of a type beside those of f16.
_SHARE: Final = {"f16": 1.0, "bf16": 1.0, "i8": 2.0, "f32": 1 / 16, "f64": 1 / 32}


def candidates(
    kernel: ContractionKernel,
    sizes: Sequence[int],
    device: Device,
    most: int | None = 6,
    *,
    described: bool = False,
) -> tuple[Tile, ...]:
    """Tiles for a problem, the one by rule first.

    Args:
        kernel: The kernel.
        sizes: Values of the kernel's ``names``.
        device: What it runs on.
        most: How many; None: all.
        described: Also tiles with descriptors, for which a launch needs scratch memory.
    """
    p = kernel.problem(sizes)
    if kernel.across:
        return _across(p, device)[:most]
    found = [(_cycles(kernel, p, device, t), t) for t in _sensible(kernel, p, device, described=described)]
    if device.architecture == 90 and suits_hopper(kernel, sizes):
        found += [(_hopper_cycles(kernel, sizes, p, device, t), t) for t in _hopper_tiles(kernel, p, device)]
    ranked = sorted((cycles, i, t) for i, (cycles, t) in enumerate(found))
    shapes: Counter[tuple[int, int, bool, bool, bool]] = Counter()
    first: list[Tile] = []
    others: list[Tile] = []
    for _, _, tile in ranked:  # few of each shape first
        shape = (tile.m, tile.n, tile.hopper > 0, tile.turns, tile.stages > 1)
        shapes[shape] += 1
        (others if shapes[shape] > _ALIKE else first).append(tile)
    return _some([*first, *others], most)


def _some(tiles: Sequence[Tile], most: int | None) -> tuple[Tile, ...]:
    """The first ``most`` tiles; among them the first of each text, because the model may misjudge all of one."""
    if most is None or most >= len(tiles):
        return tuple(tiles)
    own = {hopper: [t for t in tiles if (t.hopper > 0) == hopper][: most // _OF_EACH] for hopper in (False, True)}
    kept = [t for both in own.values() for t in both]
    kept += [t for t in tiles if t not in kept][: most - len(kept)]
    return tuple(t for t in tiles if t in kept)


def _across(p: Problem, device: Device) -> tuple[Tile, ...]:
    """Tiles of products that are made one by one: as wide as the columns, and enough of them."""
    n = min(64, max(16, _power(p.n)))
    enough = max(1, p.m * -(-p.n // n) // (4 * device.processors))
    m = max(1, min(4096 // n, _power(enough)))
    shapes = ((m, n), (max(1, m // 2), n), (m * 2, n), (m * 2, max(8, n // 2)), (max(1, m // 4), n))
    return tuple(dict.fromkeys(Tile(m, n, 16, 4 if m * n > 512 else 1, 1) for m, n in shapes))


def _sensible(kernel: ContractionKernel, p: Problem, device: Device, *, described: bool) -> Iterator[Tile]:
    item = max(bits(kernel.product), bits(kernel.a.own.dtype), bits(kernel.b.own.dtype)) // 8
    exact = kernel.product == "f64" or (kernel.product == "f32" and kernel.precision == "ieee")
    fine = -(-p.m // 64) * -(-p.n // 64) * p.batch < 2 * device.processors
    ways = [kernel.axes[3] > 1 and p.inner < 16]
    if kernel.axes[3] > 1 and 16 <= p.inner <= 64 and not kernel.windows:
        # what passes through registers is read at once, or by more programs at once
        ways = [fine] if kernel.tail else [False, True]
    narrow = any(p.widths[i] * bits(x.own.dtype) < 32 for i, x in enumerate((kernel.a, kernel.b)))
    aligned = all(p.widths[i] * bits(x.own.dtype) == 128 for i, x in enumerate((kernel.a, kernel.b)))
    whole = described and device.architecture >= 90 and kernel.describable and aligned and not exact
    for m, n in _SHAPES:
        if not fine and (m < min(64, _power(p.m)) or n < min(64, p.n)) and not exact:
            continue
        if (m > 16 and m >= 2 * p.m) or (n > 32 and n >= 2 * p.n) or (exact and m * n > 64 * 64):
            continue
        warps = min(8, max(4, m * n * (2 if kernel.product == "f64" else 1) // (32 * _HELD)))
        depths: tuple[int, ...] = (
            (16, 32) if exact else (128 // item,) if m * n > 64 * 64 else (256 // item, 128 // item)
        )
        if narrow:  # elements that are read one by one are held in registers
            depths = (max(16, min(64, _NARROW * 32 * warps // m)),)
        for flat in ways:
            length = p.k if flat else p.inner
            if kernel.tail and flat:
                depths = (128 // item, 256 // item, 512 // item)
            for k in sorted({min(k, max(16, 32 // item, _power(length))) for k in depths}):
                most = min(4, device.shared // ((m + n) * k * item)) if not exact else 2
                steps = -(-p.k // k) if flat else p.outer * -(-p.inner // k)
                few = [1] if kernel.tail else []  # what does not count is left out in registers, or not copied
                for stages in (*few, *range(min(most, max(2, most - 1)), most + 1)):
                    for splits in _splits(p, m, n, steps, device):
                        yield Tile(m, n, k, warps, stages, 8, splits, flat)
                        if whole:
                            yield Tile(m, n, k, warps, stages, 8, splits, flat, described=True)


def _splits(p: Problem, m: int, n: int, steps: int, device: Device) -> Iterator[int]:
    """Numbers of parts: one, and, where tiles are few, those with which they fill the device."""
    yield 1
    tiles = -(-p.m // m) * -(-p.n // n) * p.batch
    splits = 2
    while splits <= _MOST_SPLITS and tiles * splits <= 2 * device.processors and steps >= splits * _FEWEST_STEPS:
        yield splits
        splits *= 2


def _cycles(kernel: ContractionKernel, p: Problem, device: Device, t: Tile) -> float:
    """Roughly how long a problem takes."""
    item = bits(kernel.a.own.dtype) / 8
    newest = max(a for a in _PRODUCTS if a <= device.architecture)
    share = _SHARE[kernel.product] * (8 if kernel.product == "f32" and kernel.precision != "ieee" else 1)
    rate = _PRODUCTS[newest] * share * (1.0 if t.m >= 64 else _NARROW_RATE)
    steps = -(-p.k // t.k) if t.flat else p.outer * -(-p.inner // t.k)
    steps = -(-steps // t.splits)
    tiles = -(-p.m // t.m) * -(-p.n // t.n) * p.batch * t.splits
    together = _together(t, item, device)
    busy = min(together, -(-tiles // device.processors))  # programs of a multiprocessor that share it
    a_step = max(
        busy * (t.m * t.n * t.k / rate + (_DESCRIBED_STEP if t.described else _STEP * t.warps)),
        busy * (t.m + t.n) * t.k * item / (_BYTES if t.stages > 1 else 2 * _BYTES),
        _LATENCY / (t.stages - 1) if t.stages > 1 else _NEAR,
    )
    one = _BEGIN + _DESCRIBING * t.described + steps * a_step + _END * _finish_cycles(kernel) * busy * t.m * t.n
    slots = device.processors * together
    total: float = one if tiles <= slots else tiles / slots * one + 0.9 * one / busy
    moved = (p.m * p.inner + p.n * p.k + p.m * p.n) * p.batch * item
    total = _START + (total**_JOINED + (_BEGIN + moved / _MOVED) ** _JOINED) ** (1 / _JOINED)
    if t.splits > 1:
        total += _LAUNCH + 8.0 * t.splits * p.batch * p.m * p.n / (device.processors * _ADDED)
    return total


def _together(t: Tile, item: float, device: Device) -> int:
    """Programs that a multiprocessor has room for."""
    threads = 32 * t.warps
    shared = t.stages * (t.m + t.n) * t.k * item + 1024
    registers = 56 + t.m * t.n // threads + 3 * int(t.m * t.k * item / 16) // threads
    if t.stages == 1:
        registers += int((t.m + t.n) * t.k * item / 4) // threads
    most = (int((device.shared + 1024) // shared), 64 // t.warps, 65536 // (threads * min(255, registers)), 16)
    return max(1, min(most))


# warp groups


#: Rows and columns of tiles that groups of warps make together (three where three divides the rows), and of those that
#: two make in turns.
_TOGETHER: Final = (
    (128, 64), (128, 96), (128, 128), (128, 144), (128, 192), (128, 256), (256, 64), (256, 96), (256, 128), (256, 160),
    (256, 192), (192, 96), (192, 128), (192, 192), (192, 256),
)  # fmt: skip
_IN_TURNS: Final = (
    (64, 64), (64, 96), (64, 128), (64, 192), (64, 256), (128, 64), (128, 128), (128, 160), (128, 192),
)  # fmt: skip
#: Bytes of shared memory in a cycle; cycles until a step has been copied, and until a kernel has its first one. Fitted,
#: as what follows, to 270 measured tiles of linear layers and convolutions on one H200.
_SHARED, _COPY, _FIRST = 128.0, 2450.0, 3350.0
#: Cycles in which a row of a box of so many bytes is copied, one of fewer, and one of a matrix (seen with seven
#: convolutions, within 20 %).
_LINE, _BOX_ROW, _SHORT_BOX_ROW, _MATRIX_ROW = 128, 3.3, 5.2, 1.5
#: Bytes that all move in a cycle, and how their time and the tiles' join.
_STREAMED, _OVERLAPPED = 2500.0, 1.9
#: Cycles that finishing a sum takes a thread beside its operations, and for each one, where two groups of warps do so
#: at once; how these grow with more groups.
_CLOSE, _CLOSE_OPERATION, _CROWD = 10.3, 1.04, 2.2
#: Rows of tiles that follow each other before the next columns.
_BAND: Final = 1024


def _hopper_tiles(kernel: ContractionKernel, p: Problem, device: Device) -> Iterator[Tile]:
    item, stored = bits(kernel.product) // 8, bits(kernel.out.dtype) // 8
    for turns, shapes in ((False, _TOGETHER), (True, _IN_TURNS)):
        for m, n in shapes:
            if (m > 64 and m >= 2 * p.m) or (n > 64 and n >= 2 * p.n) or not has_registers(kernel, m, n, turns=turns):
                continue
            k = min(128 // item, max(16, _power(p.inner)))
            pieces = PIECES * min(m * 2 if turns else m, 3 * 128) * min(n & -n, 64 // stored) * stored
            stages = min(8 * 128 // (k * item), (_HOPPER_SHARED - pieces) // ((m + n) * k * item))
            yield Tile(m, n, k, 4, stages, max(1, _BAND // m), hopper=device.processors, turns=turns)


def _hopper_cycles(kernel: ContractionKernel, sizes: Sequence[int], p: Problem, device: Device, t: Tile) -> float:
    """As :func:`_cycles`: shared memory has to take each step once and to give it to the matrix units."""
    groups, rows, widths = shares_of(t.m, t.n, turns=t.turns)
    item = bits(kernel.product) // 8
    copied = (t.m + t.n) * t.k * item
    read = t.m // 64 * sum(64 + width for width in widths) * t.k * item
    busy = max(t.m * t.n * t.k / _PRODUCTS[90], (copied + read) / _SHARED)
    if not kernel.describable:
        a_row = _BOX_ROW if t.k * item == _LINE else _SHORT_BOX_ROW
        busy = max(busy, a_row * t.m + _MATRIX_ROW * t.n)
    # a step's memory is free again one and a half steps after it was copied
    a_tile = p.outer * -(-p.inner // t.k) * max(busy, _COPY / (t.stages - 1.5))
    finish = rows * t.n / 128 * (_CLOSE + _CLOSE_OPERATION * cost_of(kernel.expr))
    down = -(-rows_of(kernel, sizes, rows) // t.m)
    rounds = -(-(down * -(-p.n // t.n) * p.batch) // device.processors)
    if t.turns:
        total = max(rounds * a_tile, -(-rounds // 2) * (a_tile + finish)) + finish
    else:
        total = rounds * (a_tile + finish * (groups / 2) ** _CROWD)
    moved = (p.m * p.inner + p.n * p.k + p.m * p.n) * p.batch * item
    join = _OVERLAPPED
    return float(((_FIRST + total) ** join + (_FIRST + moved / _STREAMED) ** join) ** (1 / join))


def _finish_cycles(kernel: ContractionKernel) -> float:
    """What a thread takes to finish a sum."""
    return _FINISH + _OPERATION * cost_of(kernel.expr)


def _power(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()
