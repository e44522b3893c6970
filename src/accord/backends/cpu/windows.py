"""Sliding windows over images: what convolutions of few channels and pools have in common.

The output's pixels are numbered through batch and spatial axes. A task is a range of them, cut at the ends of rows of
the innermost axis. A row is computed in blocks of several pixels, which share what they read; where windows leave the
image along the row, a block reads zeros (or another neutral element) for what is outside. Outer axes are cut to the
taps that are inside. Lanes run along the channels.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accord.backends.cpu.images import Image, Lanes, Params, Pattern
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.images import Axis
from accord.expr.lang import Expr
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["Row", "WindowWriter", "window_dims"]


def window_dims(images: DimLike, channels: DimLike, axes: Sequence[Axis]) -> tuple[DimLike, ...]:
    """What :func:`~accord.backends.cpu.launches.launch_windows` reads first."""
    dims: list[DimLike] = [images, channels]
    for a in axes:
        dims += (a.out, a.size, a.kernel, a.stride, a.pad, a.dilation)
    return tuple(dims)


@record
class _Size:
    """An axis while code is written: SSA names."""

    out: str
    size: str
    kernel: str
    stride: str
    pad: str
    dilation: str


@dataclass(slots=True)
class Row:
    """A part of a row of the output while code is written.

    Attributes:
        channels: Number of output channels.
        axes: The spatial axes.
        position: Batch and outer spatial coordinates.
        source: Address of the input where the window of the row's position 0 begins; may lie outside the image.
        taps: For each outer spatial axis the range of taps that are inside the image.
        low: First position along the row whose window is inside.
        high: End of those positions.
        first: First position of the part.
        last: End of the part.
        target: Address of the output's pixel at ``first``.
        step: Elements from one pixel of the output to the next.
    """

    channels: str
    axes: list[_Size]
    position: list[str]
    source: str
    taps: list[tuple[str, str]]
    low: str
    high: str
    first: str
    last: str
    target: str
    step: str


class WindowWriter(ABC):
    """Writes the functions of a kernel of sliding windows.

    Parameters: pixels, pixels of a task, channels, first and last inner position whose window is inside, then for each
    spatial axis its :class:`Axis`; then those of the input, of what :meth:`further` takes, of the extras, the stride of
    the output's channels, and those of the output. Operands are in the same order.

    Args:
        rank: Number of spatial axes.
        width: Elements of a vector.
        pixels: Neighbouring outputs that are computed at once; 0: always one.
        image: The input.
        extras: Of the epilogue.
        output: The first output.
        final: What is stored, an expression of the values that :meth:`store` is given and of the extras after them.
    """

    def __init__(
        self,
        rank: int,
        width: int,
        pixels: int,
        image: Pattern,
        extras: Sequence[Pattern],
        output: Pattern,
        final: Expr,
    ) -> None:
        self.rank = rank
        self.width = width
        self.pixels = pixels
        self._image = image
        self._extra_patterns = tuple(extras)
        self._output = output
        self._final = final

    @abstractmethod
    def further(self, b: Builder, params: Params, index: int) -> int:
        """Read what the rows need besides geometry, image and extras.

        Args:
            b: Where to write.
            params: Parameters, in order.
            index: First operand to take.

        Returns:
            The operand after the last one taken.
        """

    @abstractmethod
    def pixel(self, b: Builder, row: Row, at: str) -> None:
        """Write one output pixel whose window may leave the image."""

    @abstractmethod
    def block(self, b: Builder, row: Row, at: str, *, edge: bool) -> None:
        """Write :attr:`pixels` output pixels from ``at`` on; with ``edge``, their windows may leave the image along the
        row, and the row may end before the last of them.
        """

    def store(self, b: Builder, row: Row, lanes: Lanes, position: str, values: Sequence[str]) -> None:
        """Store the output pixel at ``position`` of the row."""
        found = list(values)
        for extra, start in zip(self.extras, self._extra_rows, strict=True):
            found.append(lanes.read(extra, extra.at([(1 + self.rank, position)], start)))
        result = Printer(b, lanes.width).value(self._final, found)
        target = b.address(row.target, self._output.dtype, b.mul(b.sub(position, row.first), row.step))
        lanes.store(self._output.dtype, self._output.channel, result, target, self._channel_stride)

    def _operands(self, b: Builder, params: Params) -> int:
        """Read everything but geometry and the output; the operand after the last one taken."""
        axes = 2 + self.rank
        self.input = Image(b, self._image, b.operand(0), params, axes)
        index = self.further(b, params, 1)
        self.extras = []
        for pattern in self._extra_patterns:
            self.extras.append(Image(b, pattern, b.operand(index), params, axes))
            index += 1
        self._channel_stride = params.next()
        return index

    # functions

    @staticmethod
    def _places(position: Sequence[str]) -> list[tuple[int, str]]:
        """Batch and outer spatial coordinates with their axes."""
        return [(0, position[0]), *((2 + a, p) for a, p in enumerate(position[1:]))]

    def _coordinates(self) -> list[str]:
        return ["%n", *(f"%o{a}" for a in range(self.rank - 1))]

    def row_function(self, name: str) -> Builder:
        """``name(params, operands, batch, outer coordinates, first, last, target, step)``: part of a row."""
        position = self._coordinates()
        arguments = ", ".join(f"i64 {p}" for p in (*position, "%first", "%last"))
        b = Builder(
            name,
            f"ptr noalias readonly %params, ptr noalias readonly %operands, {arguments}, ptr %target, i64 %step",
            internal=True,
        )
        params = Params(b, 2)
        channels, low, high = params.take(3)
        axes = [_Size(*params.take(6)) for _ in range(self.rank)]
        self._operands(b, params)
        source = self.input.at([(0, "%n")])
        taps = []
        for a, axis in enumerate(axes):
            if a == self.rank - 1:
                start = b.sub(0, axis.pad)
            else:
                start = b.sub(b.mul(position[1 + a], axis.stride), axis.pad)
                taps.append(inside_taps(b, axis, start))
            source = self.input.at([(2 + a, start)], source)
        row = Row(channels, axes, position, source, taps, low, high, "%first", "%last", "%target", "%step")
        self._extra_rows = [e.at(self._places(position)) for e in self.extras]
        self._row(b, row)
        return b

    def _row(self, b: Builder, row: Row) -> None:
        if not self.pixels:
            with b.loop(row.first, row.last) as at:
                self.pixel(b, row, at)
            return
        limit = b.min(row.high, row.last)
        with b.loop(row.first, row.last, self.pixels) as at:
            fits = b.compare("sle", b.add(at, self.pixels), limit)
            inside = b.op(f"and i1 {fits}, {b.compare('sge', at, row.low)}")
            b.branch(
                inside,
                functools.partial(self.block, b, row, at, edge=False),
                functools.partial(self.block, b, row, at, edge=True),
            )

    def main_function(self, name: str, row_name: str) -> Builder:
        """The kernel: tasks are ranges of pixels."""
        b = Builder(name)
        params = Params(b)
        pixels, size, *_ = params.take(5)
        axes = [_Size(*params.take(6)) for _ in range(self.rank)]
        index = self._operands(b, params)
        output = Image(b, self._output, b.operand(index), params, 2 + self.rank)
        with b.loop("%first", "%last") as task:
            begin = b.mul(task, size)
            end = b.min(b.add(begin, size), pixels)

            def target(position: Sequence[str], first: str, done: str) -> tuple[str, str]:
                del done
                inner = 1 + self.rank
                return output.at([*self._places(position), (inner, first)]), output.strides[inner]

            self._rows(b, axes, begin, end, row_name, target)
        return b

    def fill_function(self, name: str, row_name: str) -> Builder:
        """``name(params, operands, first, count, target, step)``: pixels into rows of a panel, without a gap between
        channels; ``step`` is elements from row to row.
        """
        b = Builder(
            name,
            "ptr noalias readonly %params, ptr noalias readonly %operands, i64 %first, i64 %count, ptr %target, "
            "i64 %step",
            internal=True,
        )
        params = Params(b, 5)
        axes = [_Size(*params.take(6)) for _ in range(self.rank)]
        self._operands(b, params)

        def target(position: Sequence[str], first: str, done: str) -> tuple[str, str]:
            del position, first
            return b.address("%target", self._output.dtype, b.mul(done, "%step")), "%step"

        self._rows(b, axes, "%first", b.add("%first", "%count"), row_name, target)
        return b

    def _rows(
        self,
        b: Builder,
        axes: Sequence[_Size],
        begin: str,
        end: str,
        row_name: str,
        target: Callable[[Sequence[str], str, str], tuple[str, str]],
    ) -> None:
        """Call the row's function for each row of pixels ``begin`` to ``end``, which are not none."""
        length = axes[-1].out
        first_row = b.op(f"udiv i64 {begin}, {length}")
        stop_row = b.add(b.op(f"udiv i64 {b.sub(end, 1)}, {length}"), 1)
        with b.loop(first_row, stop_row) as number:
            origin = b.mul(number, length)
            first = b.max(b.sub(begin, origin), 0)
            last = b.min(b.sub(end, origin), length)
            position: list[str] = []
            rest = number
            for axis in reversed(axes[:-1]):
                rest, index = b.divmod(rest, axis.out)
                position.append(index)
            position.append(rest)
            position.reverse()
            address, step = target(position, first, b.sub(b.add(origin, first), begin))
            coordinates = ", ".join(f"i64 {p}" for p in (*position, first, last))
            b.emit(f"call void @{row_name}(ptr %params, ptr %operands, {coordinates}, ptr {address}, i64 {step})")


def inside_taps(b: Builder, axis: _Size, start: str) -> tuple[str, str]:
    """The range of taps of a window that begins at ``start`` that are inside the image."""
    return taps_before(b, axis, start, "0"), taps_before(b, axis, start, axis.size)


def taps_before(b: Builder, axis: _Size, start: str, limit: str) -> str:
    """How many taps of a window that begins at ``start`` lie before ``limit``."""
    room = b.max(b.sub(limit, start), 0)
    count = b.op(f"udiv i64 {b.sub(b.add(room, axis.dilation), 1)}, {axis.dilation}")
    return b.min(count, axis.kernel)


def over_taps(
    b: Builder,
    ranges: Sequence[tuple[str, str]],
    carried: Sequence[tuple[str, str]],
    body: Callable[[list[str], list[str]], list[str]],
    taps: Sequence[str] = (),
) -> list[str]:
    """Nested loops over ``ranges`` of taps that carry values through ``body(taps, values)``."""
    if not ranges:
        return body(list(taps), [c for _, c in carried])
    with b.loop_carrying(*ranges[0], 1, tuple(carried)) as (i, inside, following):
        types = [t for t, _ in carried]
        inner = list(zip(types, inside, strict=True))
        following.extend(over_taps(b, ranges[1:], inner, body, (*taps, i)))
    return following
