"""How the bulk copy engine walks what a contraction multiplies and stores, and which contractions it can serve.

A matrix is two axes behind those of the batch. Rows of images are *boxes*: A is walked along the axes of the image, a
box of so many images, lines and pixels is copied for each tap, moved by the tap, and what lies outside of the image is
zero.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from accord.backends.cuda.contraction import BATCH, COLUMNS, DEPTH, ROWS, ContractionKernel
from accord.backends.cuda.contraction_writer import uses_sum
from accord.expr.lang import bits
from accord.record import record

__all__ = ["Side", "Walk", "box_of", "order_of", "rows_of", "stored_by_copies", "suits_hopper"]

#: Axes that the copy engine walks, elements of one that it copies, and from one to the next.
_MOST_AXES, _MOST_COPIED, _MOST_STEP = 5, 256, 8
_CACHE_LINE = 8


def suits_hopper(kernel: ContractionKernel, sizes: Sequence[int]) -> bool:
    """Whether the kernel exists for a pattern, with values of its integers that the copy engine takes.

    The memory's addresses have to be whole 16 bytes too.
    """
    factors = (kernel.a, kernel.b)
    if (
        kernel.product not in ("f16", "bf16")
        or kernel.precision == "whole"
        or not uses_sum(kernel)
        or any(f.expr.op != "operand" for f in factors)
    ):
        return False
    if min(sizes[: sum(kernel.axes)]) <= 0 or not (kernel.describable or _has_boxes(kernel)):
        return False
    walks: list[Walk | None]
    if kernel.describable:
        walks = [Walk.of_matrix(kernel, i, sizes) for i in (0, 1)]
    else:
        walks = [Walk.of_boxes(kernel, sizes), Walk.of_taps(kernel, sizes)]
    return all(w is not None and w.is_whole and len(w.shape) <= _MOST_AXES for w in walks)


def _has_boxes(kernel: ContractionKernel) -> bool:
    """Whether rows and depth of A may be boxes of what it lies in; channels follow each other, taps do not."""
    if kernel.across or kernel.axes[COLUMNS] != 1:
        return False
    _, of_rows, of_depth = kernel.a.own.kinds
    _, depth, columns = kernel.b.own.kinds
    last = kernel.axes[DEPTH] - 1
    return (
        (set(of_rows), of_depth[-1], {depth[-1], columns}) == ({"s"}, "1", {"1", "s"})
        and "0" not in of_depth + depth
        and all(w.row >= 0 and w.depth < last for w in kernel.windows)
    )


@record
class Walk:
    """How the copy engine walks a tensor: from the outermost axis, in elements.

    Attributes:
        offset: Of the first element.
        shape: Sizes of axes.
        strides: The last is 1.
        steps: From one element of a block to the next.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[int, ...]

    @staticmethod
    def of_matrix(kernel: ContractionKernel, i: int, sizes: Sequence[int], *, rows: bool = False) -> Walk:
        """Of a tensor that is one for each group of axes but the batch; with ``rows``, its rows one by one."""
        offset, strides = kernel.walk(i, sizes)
        extents = _extents(kernel, sizes)
        found = _batch(kernel, i, sizes)
        for g in order_of(kernel, i):
            if rows and g == ROWS:
                found += zip(extents[g], strides[g], strict=True)
            else:
                found.append((math.prod(extents[g]), strides[g][-1]))
        return Walk.through(offset, found)

    @staticmethod
    def of_boxes(kernel: ContractionKernel, sizes: Sequence[int]) -> Walk | None:
        """Of A: what its rows go through, taps that move none of them, channels; None if windows do not walk it so."""
        offset, strides = kernel.walk(0, sizes)
        extents, moves = _extents(kernel, sizes), _moves(kernel, sizes)
        if moves is None:
            return None
        values = dict(zip(kernel.names, sizes, strict=True))
        limits = {w.row: values[f"w{i}_size"] for i, w in enumerate(kernel.windows)}
        found = [(n, s, 1) for n, s in _batch(kernel, 0, sizes)]
        for axis, move in enumerate(moves):
            count, stride = extents[ROWS][axis], strides[ROWS][axis] // move.step
            last = (count - 1) * move.step
            if move.tap >= 0:
                last += (extents[DEPTH][move.tap] - 1) * move.dilation
            found.append((limits.get(axis, last + 1), stride, move.step))
            offset += move.pad * stride
        *taps, channels = extents[DEPTH]
        moved = {m.tap for m in moves}
        found += [(taps[tap], strides[DEPTH][tap], 1) for tap in range(len(taps)) if tap not in moved]
        found.append((channels - kernel.tail, strides[DEPTH][-1], 1))  # zeros are put behind these
        shape, spread, steps = zip(*found, strict=True)
        return Walk(offset, shape, spread, steps)

    @staticmethod
    def of_taps(kernel: ContractionKernel, sizes: Sequence[int]) -> Walk | None:
        """Of B: taps as one axis; None if they are none."""
        offset, strides = kernel.walk(1, sizes)
        extents = _extents(kernel, sizes)
        *taps, near = strides[DEPTH]
        *counts, channels = extents[DEPTH]
        if any(a != b * n for a, b, n in zip(taps, taps[1:], counts[1:], strict=False)):
            return None
        found = _batch(kernel, 1, sizes) + ([(math.prod(counts), taps[-1])] if taps else [])
        both = {DEPTH: (channels, near), COLUMNS: (extents[COLUMNS][0], strides[COLUMNS][0])}
        return Walk.through(offset, found + [both[g] for g in order_of(kernel, 1)])

    @staticmethod
    def through(offset: int, axes: Sequence[tuple[int, int]]) -> Walk:
        """From sizes and strides."""
        shape, strides = zip(*axes, strict=True)
        return Walk(offset, shape, strides, ())

    @property
    def is_whole(self) -> bool:
        """Whether places along all axes are whole 16 bytes."""
        *strides, last = self.strides
        return last == 1 and min(strides) > 0 and all(n % _CACHE_LINE == 0 for n in (*strides, self.offset))


def _extents(kernel: ContractionKernel, sizes: Sequence[int]) -> list[Sequence[int]]:
    """Sizes of the axes of each group."""
    ends = itertools.accumulate(kernel.axes, initial=0)
    return [sizes[first:last] for first, last in itertools.pairwise(ends)]


def _batch(kernel: ContractionKernel, i: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes and strides of a tensor's batch axes; one if they are walked as one."""
    kinds, strides = kernel.patterns[i].kinds[0], kernel.walk(i, sizes)[1][BATCH]
    extents = _extents(kernel, sizes)[BATCH]
    if len(kinds) < len(extents):
        extents, strides = (math.prod(extents),), strides[-1:]
    return [(n, s) for n, s, kind in zip(extents, strides, kinds, strict=True) if kind != "0"]


def order_of(kernel: ContractionKernel, i: int) -> list[int]:
    """The groups of a tensor's last two axes; those of the last one are neighbours."""
    pattern = kernel.patterns[i]
    groups = [(g, kinds) for g, kinds in zip(kernel.shares[i], pattern.kinds, strict=True) if g != BATCH]
    return [g for g, _ in sorted(groups, key=lambda x: x[1].endswith("1"))]


@record
class Side:
    """A box, along a row axis: its first element of A is at ``place * step + tap * dilation - pad``.

    Attributes:
        rows: How many it holds, a power of two.
        tap: Number of the depth axis that moves it; -1: none does.
        step: From row to row.
        dilation: From tap to tap.
        pad: In front.
    """

    rows: int = 1
    tap: int = -1
    step: int = 1
    dilation: int = 0
    pad: int = 0


def _moves(kernel: ContractionKernel, sizes: Sequence[int]) -> list[Side] | None:
    """Along each row axis what moves it; None if that is none of A's elements.

    Where all taps lie inside there is no window to say so. Then a tap is taken to move the axis that has few of its
    strides as its own, if the copy engine has no axis left for it.
    """
    _, strides = kernel.walk(0, sizes)
    values = dict(zip(kernel.names, sizes, strict=True))
    found = [Side() for _ in strides[ROWS]]
    for i, w in enumerate(kernel.windows):
        step, dilation, pad = (values[f"w{i}_{part}"] for part in ("step", "dilation", "pad"))
        stride = strides[ROWS][w.row]
        if (
            not 0 < step <= _MOST_STEP
            or stride % step
            or (w.depth >= 0 and strides[DEPTH][w.depth] * step != stride * dilation)
        ):
            return None
        found[w.row] = Side(1, w.depth, step, dilation, pad)
    free = [axis for axis, _ in enumerate(found) if all(w.row != axis for w in kernel.windows)]
    still = [tap for tap in range(len(strides[DEPTH]) - 1) if all(w.depth != tap for w in kernel.windows)]
    room = _MOST_AXES - len(_batch(kernel, 0, sizes)) - len(found) - 1
    while still and free and len(still) > room:
        tap = still.pop(0)
        own = strides[DEPTH][tap]
        axis = min(free, key=lambda axis: strides[ROWS][axis] // math.gcd(strides[ROWS][axis], own))
        near = math.gcd(strides[ROWS][axis], own)
        if strides[ROWS][axis] // near > _MOST_STEP:
            return None
        free.remove(axis)
        found[axis] = Side(1, tap, strides[ROWS][axis] // near, own // near)
    return found


def box_of(kernel: ContractionKernel, sizes: Sequence[int], rows: int) -> tuple[Side, ...]:
    """A box of so many rows, such that few lie outside of the result; () where rows are a matrix."""
    return () if kernel.describable else _box(kernel, tuple(sizes), rows)


@functools.lru_cache(maxsize=4096)  # asked for each tile that is ranked, and again for each launch
def _box(kernel: ContractionKernel, sizes: tuple[int, ...], rows: int) -> tuple[Side, ...]:
    moves = _moves(kernel, sizes)
    if moves is None:
        return ()
    extents = _extents(kernel, sizes)[ROWS]

    def boxes(rest: int, axes: Sequence[Side]) -> Iterable[tuple[int, ...]]:
        if not axes:
            return [()] if rest == 1 else []
        sides = [1 << i for i in range(rest.bit_length()) if axes[0].step << i <= _MOST_COPIED]
        return [(side, *others) for side in sides for others in boxes(rest // side, axes[1:])]

    # neighbours in memory first
    best = min(boxes(rows, moves), key=lambda box: (_count(extents, box), tuple(-side for side in reversed(box))))
    return tuple(replace(move, rows=side) for move, side in zip(moves, best, strict=True))


def _count(extents: Sequence[int], box: Sequence[int]) -> int:
    return math.prod(-(-n // side) for n, side in zip(extents, box, strict=True))


def rows_of(kernel: ContractionKernel, sizes: Sequence[int], rows: int) -> int:
    """How many rows there are with those that lie in boxes of ``rows`` but outside of the result."""
    box = box_of(kernel, sizes, rows)
    extents = _extents(kernel, sizes)[ROWS]
    return _count(extents, [side.rows for side in box]) * rows if box else math.prod(extents)


def stored_by_copies(kernel: ContractionKernel, sizes: Sequence[int]) -> bool:
    """Whether the copy engine can store the results."""
    out, last = kernel.out, len(kernel.patterns) - 1
    if out.dtype == "bool" or "0" in out.kinds[0] or set(out.kinds[1]) != {"s"} or out.kinds[2] != "1":
        return False
    if kernel.describable and len(out.kinds[1]) > 1:
        return False
    walk = Walk.of_matrix(kernel, last, sizes, rows=not kernel.describable)
    whole = all(n % (128 // bits(out.dtype)) == 0 for n in (*walk.strides[:-1], walk.offset))
    return whole and min(walk.strides) > 0 and len(walk.shape) <= _MOST_AXES
