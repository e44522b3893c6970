"""Resampling: every output element is a weighted sum of elements along some axes of the source.

Which elements, and with what weights, is read from one table for each resampled axis (see :mod:`taptables`). The other
axes are kept; lanes run along one of them whose elements follow each other, the channels of an image. Output pixels,
which are what is not lanes, are numbered; a task is a range of them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from accord.backends.cpu.images import Cut, Image, Lanes, Params, Pattern, channel_blocks, cut_of, dims_of, pattern_of
from accord.backends.cpu.jit import machine
from accord.backends.cpu.launches import launch_resampling
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.epilogue import Epilogue
from accord.backends.protocol import Phase
from accord.expr.lang import Expr, bits, const
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["ResampleCode", "ResampleWriter", "Space", "resample_code", "resample_phase"]

#: Taps of a pixel up to which code is written for each.
_UNROLLED = 16


@record
class Space:
    """How the axes of a tensor are gone through.

    Attributes:
        lane: The axis of lanes; None: every element is by itself.
        outer: Other axes that are kept.
        resampled: Axes along which the source is resampled.
    """

    lane: int | None
    outer: tuple[int, ...]
    resampled: tuple[int, ...]

    def access(self, access: Access) -> Access:
        """The strides of lanes, outer and resampled axes, in this order."""
        lane = 0 if self.lane is None else access.strides[self.lane]
        return Access((lane, *(access.strides[a] for a in (*self.outer, *self.resampled))), access.offset)


@record
class ResampleCode(KernelCode):
    """Operands: source, extras, output, tables.

    Attributes:
        outer: Number of outer axes.
        taps: Taps along each resampled axis; 0 where only a run can tell.
        weighted: Whether the taps have weights; else there is one for each axis.
        acc: Type of the sums, and of the weights.
        fill: What stands in positions that are marked as outside; None: there are none.
        line: Lanes run along the last resampled axis instead, whose outputs follow each other.
        cut: How the lanes' axis is cut.
        source: Patterns; the channel is the lanes' axis.
        extras: Of the epilogue.
        output: The output.
        final: Expression of the sum and the extras.
    """

    outer: int
    taps: tuple[int, ...]
    weighted: bool
    acc: str
    fill: float | int | None
    line: bool
    cut: Cut
    source: Pattern
    extras: tuple[Pattern, ...]
    output: Pattern
    final: Expr

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.outer};{self.taps};{self.weighted};{self.acc};{self.fill!r};{self.line};{self.cut};{self.source};{self.extras};"
            f"{self.output};{self.final.key}"
        )
        return "resample_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        return ResampleWriter(self).write(name)


@dataclass(slots=True)
class _Table:
    """The table of an axis while code is written."""

    indices: str
    weights: str
    count: str


class ResampleWriter:
    """Parameters: pixels, pixels of a task, lanes, outer extents, resampled extents; for each resampled axis the taps
    of a position and the byte offsets of indices and weights; then source, extras and output.
    """

    def __init__(self, code: ResampleCode) -> None:
        from accord.expr.math import expand  # what starts a stored kernel expands nothing

        self.code = code
        self.width = machine().width(max(bits(code.acc), 8))
        self.final = expand(code.final)
        total = functools.reduce(lambda a, b: a * b, code.taps, 1)
        self.unrolled = 0 < total <= _UNROLLED

    def write(self, name: str) -> str:
        """The kernel's module."""
        code, b = self.code, Builder(name)
        self.b = b
        params = Params(b)
        pixels, size, self.lanes = params.take(3)
        extents = params.take(code.outer + len(code.taps))
        layout = self.layout(params)
        axes = 1 + len(extents)
        self.source = Image(b, code.source, b.operand(0), params, axes)
        index = self.further(params, 1)
        self.extras = []
        for pattern in code.extras:
            self.extras.append(Image(b, pattern, b.operand(index), params, axes))
            index += 1
        self.output = Image(b, code.output, b.operand(index), params, axes)
        memory = b.operand(index + 1)
        self.tables = []
        for count, *places in layout:
            indices, weights = (b.op(f"getelementptr i8, ptr {memory}, i64 {at}") for at in places)
            self.tables.append(_Table(indices, weights, count))
        with b.loop("%first", "%last") as task:
            begin = b.mul(task, size)
            end = b.min(b.add(begin, size), pixels)
            length = extents[-1]
            stop = b.add(b.op(f"udiv i64 {b.sub(end, 1)}, {length}"), 1)
            with b.loop(b.op(f"udiv i64 {begin}, {length}"), stop) as row:
                origin = b.mul(row, length)
                first = b.max(b.sub(begin, origin), 0)
                last = b.min(b.sub(end, origin), length)
                position: list[str] = []
                rest = row
                for extent in reversed(extents[:-1]):
                    rest, here = b.divmod(rest, extent)
                    position.append(here)
                position.reverse()
                self.row(position, first, last)
        return b.module()

    def layout(self, params: Params) -> list[list[str]]:
        """For each resampled axis the taps of a position and the byte offsets of its indices and weights."""
        return [params.take(3) for _ in self.code.taps]

    def further(self, params: Params, index: int) -> int:
        """Read what comes after the source, from operand ``index`` on; the operand after the last one taken."""
        del params
        return index

    def row(self, position: Sequence[str], first: str, last: str) -> None:
        """Write the pixels ``first`` to ``last`` of a row.

        ``position`` is along the outer axes and all resampled ones but the last.
        """
        b, outer, rank = self.b, self.code.outer, len(self.code.taps)
        base = self.source.at([(1 + a, p) for a, p in enumerate(position[:outer])])
        places = [(1 + a, p) for a, p in enumerate(position)]
        output = self.output.at(places)
        extras = [e.at(places) for e in self.extras]
        inner = outer + rank
        above = position[outer:]
        inside = self.inside(list(zip(range(rank - 1), above, strict=True)))
        known = [(base, "")]
        if self.unrolled:
            for a, p in enumerate(above):
                known = self.taken(known, a, p)
        if self.code.line:
            first = self._line(known[0][0], first, last, output)
        with b.loop(first, last) as x:
            here = [(e, e.at([(inner, x)], at)) for e, at in zip(self.extras, extras, strict=True)]
            target = self.output.at([(inner, x)], output)
            valid = self.inside([(rank - 1, x)])
            if inside is not None and valid is not None:
                valid = b.op(f"and i1 {inside}, {valid}")
            self.pixel(valid, known, [*above, x], here, target)

    def _line(self, source: str, first: str, last: str, output: str) -> str:
        """Copy whole vectors of neighbouring pixels; where the pixels that are left begin."""
        b, dtype = self.b, self.code.source.dtype
        axis = len(self.code.taps) - 1
        width = machine().width(64)
        stop = b.add(first, b.mul(b.op(f"sdiv i64 {b.sub(last, first)}, {width}"), width))
        stride = self.source.strides[1 + self.code.outer + axis]
        with b.loop(first, stop, width) as x:
            lanes = Lanes(b, width, x, None)
            ints = vector("i64", width)
            table = b.address(self.tables[axis].indices, "i64", self.place(axis, x))
            index = b.op(f"mul {ints} {lanes.printer.load('i64', table)}, {lanes.spread(stride)}")
            value = Printer(b, width).value(self.final, [lanes.gather(dtype, source, index)])
            lanes.store(self.output.dtype, "1", value, output, 1)
        return stop

    def inside(self, positions: Sequence[tuple[int, str]]) -> str | None:
        """Whether positions along axes are inside the source; None where there are none, or all are."""
        b = self.b
        valid = None
        for a, p in positions if self.code.fill is not None else ():
            index = b.op(f"load i64, ptr {b.address(self.tables[a].indices, 'i64', self.place(a, p))}")
            here = b.compare("sge", index, 0)
            valid = here if valid is None else b.op(f"and i1 {valid}, {here}")
        return valid

    def place(self, axis: int, position: str, tap: str | int = 0) -> str:
        """Where in its table a tap of a position is."""
        count: str | int = self.code.taps[axis] or self.tables[axis].count
        return self.b.add(self.b.mul(position, count), tap)

    def _tap(self, known: tuple[str, str], axis: int, place: str) -> tuple[str, str]:
        """Address and weight of ``known`` after one more axis."""
        b, table, acc = self.b, self.tables[axis], scalar(self.code.acc)
        address, weight = known
        index = b.op(f"load i64, ptr {b.address(table.indices, 'i64', place)}")
        address = self.source.at([(1 + self.code.outer + axis, index)], address)
        if not self.code.weighted:
            return address, weight
        share = b.op(f"load {acc}, ptr {b.address(table.weights, self.code.acc, place)}")
        return address, b.op(f"fmul {acc} {weight}, {share}") if weight else share

    def taken(self, known: Sequence[tuple[str, str]], axis: int, position: str) -> list[tuple[str, str]]:
        """All taps of ``known`` and one more axis."""
        count = self.code.taps[axis]
        return [self._tap(k, axis, self.place(axis, position, t)) for k in known for t in range(count)]

    def pixel(
        self,
        valid: str | None,
        known: Sequence[tuple[str, str]],
        position: Sequence[str],
        extras: Sequence[tuple[Image, str]],
        target: str,
    ) -> None:
        """Write one pixel.

        Args:
            valid: Whether it is inside, an i1; None: it is.
            known: Addresses and weights after the axes that are already taken: all but the last one where taps are
                unrolled, else none.
            position: Along each resampled axis, as the tables count it.
            extras: Operands of the epilogue and their addresses.
            target: Address of the output.
        """
        if valid is None:
            self._summed_up(known, position, extras, target)
            return
        self.b.branch(
            valid,
            functools.partial(self._summed_up, known, position, extras, target),
            functools.partial(self._filled, extras, target),
        )

    def _summed_up(
        self,
        known: Sequence[tuple[str, str]],
        position: Sequence[str],
        extras: Sequence[tuple[Image, str]],
        target: str,
    ) -> None:
        b, code = self.b, self.code
        groups = (1,) if self.unrolled and code.weighted else (4, 1)
        if not self.unrolled:
            for group in channel_blocks(b, self.width, self.lanes, code.cut, groups=groups):
                self._store(group, self._summed(known[0], position, group), extras, target)
            return
        taken = self.taken(known, len(code.taps) - 1, position[-1])
        # spread before the loops over channels
        wide = [Printer(b, self.width).splat(code.acc, w, self.width) if w else "" for _, w in taken]
        for group in channel_blocks(b, self.width, self.lanes, code.cut, groups=groups):
            values = []
            for lanes in group:
                total = ""
                for (address, weight), spread in zip(taken, wide, strict=True):
                    x = self._element(lanes, address)
                    share = spread if lanes.width > 1 else weight
                    total = self._added(lanes, x, share, total) if code.weighted else x
                values.append(total)
            self._store(group, values, extras, target)

    def _summed(self, start: tuple[str, str], position: Sequence[str], group: Sequence[Lanes]) -> list[str]:
        """Sums over loops of taps."""
        b, code = self.b, self.code
        type_ = vector(code.acc, group[0].width)

        def nested(axis: int, known: tuple[str, str], sums: list[str]) -> list[str]:
            if axis == len(code.taps):
                address, weight = known
                spread = group[0].printer.splat(code.acc, weight, group[0].width)
                return [
                    self._added(lanes, self._element(lanes, address), spread, s)
                    for lanes, s in zip(group, sums, strict=True)
                ]
            table = self.tables[axis]
            carried = tuple((type_, s) for s in sums)
            with b.loop_carrying(0, code.taps[axis] or table.count, 1, carried) as (t, inside, following):
                tap = self._tap(known, axis, self.place(axis, position[axis], t))
                following.extend(nested(axis + 1, tap, inside))
            return following

        zero = "zeroinitializer" if group[0].width > 1 else "0.0"
        return nested(0, start, [zero] * len(group))

    def _element(self, lanes: Lanes, address: str) -> str:
        return lanes.read(self.source, address, self.code.acc if self.code.weighted else None, axis=0)

    def _added(self, lanes: Lanes, x: str, share: str, total: str) -> str:
        b, acc = self.b, self.code.acc
        type_ = vector(acc, lanes.width)
        if not total:
            return b.op(f"fmul {type_} {x}, {share}")
        suffix = acc if lanes.width == 1 else f"v{lanes.width}{acc}"
        b.declare(f"declare {type_} @llvm.fmuladd.{suffix}({type_}, {type_}, {type_})")
        return b.op(f"call {type_} @llvm.fmuladd.{suffix}({type_} {x}, {type_} {share}, {type_} {total})")

    def _filled(self, extras: Sequence[tuple[Image, str]], target: str) -> None:
        """A pixel that is outside."""
        assert self.code.fill is not None
        fill = const(self.code.fill, self.code.acc)
        for group in channel_blocks(self.b, self.width, self.lanes, self.code.cut):
            values = [Printer(self.b, lanes.width).value(fill, []) for lanes in group]
            self._store(group, values, extras, target)

    def _store(
        self, group: Sequence[Lanes], values: Sequence[str], extras: Sequence[tuple[Image, str]], target: str
    ) -> None:
        output = self.output
        for lanes, value in zip(group, values, strict=True):
            found = [value, *(lanes.read(image, at, axis=0) for image, at in extras)]
            result = Printer(self.b, lanes.width).value(self.final, found)
            lanes.store(output.dtype, output.channel, result, target, output.strides[0])


def resample_code(
    out: Shape,
    space: Space,
    taps: Sequence[int],
    source: tuple[str, Access],
    output: Access,
    acc: str,
    weighted: bool,
    final: Expr,
    epilogue: Epilogue,
    fill: float | int | None,
) -> ResampleCode:
    """The code of :func:`resample_phase`, whose arguments these are."""
    channels = 1 if space.lane is None else out[space.lane]
    width = machine().width(max(bits(acc), 8)) if space.lane is not None else 1
    own, target = (pattern_of(t, space.access(a), 0) for t, a in (source, (final.dtype, output)))
    extras = tuple(pattern_of(e.dtype, space.access(e.access), 0) for e in epilogue.extras)
    cut = cut_of(channels, width, [own, target, *extras])
    if space.lane is None:
        cut = Cut(False, "single")
    copies = space.lane is None and not weighted and fill is None and not extras
    line = copies and output.strides[space.resampled[-1]] == 1
    return ResampleCode(len(space.outer), tuple(taps), weighted, acc, fill, line, cut, own, extras, target, final)


def resample_phase(
    out: Shape,
    space: Space,
    counts: Sequence[tuple[int, DimLike]],
    source: tuple[str, Access],
    output: Access,
    acc: str,
    weighted: bool,
    final: Expr,
    epilogue: Epilogue,
    operands: tuple[int, ...],
    fill: float | int | None = None,
) -> Phase:
    """A phase for resampling.

    Args:
        out: The output's shape.
        space: How it is gone through.
        counts: For each resampled axis its taps at load time (0: not known) and at run time.
        source: dtype and access over the output's axes; along resampled ones the strides of the source.
        output: How the output lies.
        acc: Type of sums and weights.
        weighted: Whether there are weights.
        final: Expression of the sum (of type ``acc``) and the epilogue's extras.
        epilogue: For the extras.
        operands: Source, extras, output, tables.
        fill: What stands outside; None if nothing is.
    """
    code = resample_code(out, space, [c for c, _ in counts], source, output, acc, weighted, final, epilogue, fill)
    channels = 1 if space.lane is None else out[space.lane]
    rank = len(space.resampled)
    dims: list[DimLike] = [channels, *(out[a] for a in (*space.outer, *space.resampled))]
    dims += [count for _, count in counts]
    for access in (source[1], *(e.access for e in epilogue.extras), output):
        dims += dims_of(space.access(access))
    launch = functools.partial(launch_resampling, len(space.outer), rank, acc)
    return Phase(code, operands, tuple(dims), launch)
