"""An image with its padding in scratch memory, channels innermost: rows of A that lie there at one distance.

For a block of output lines the input lines that they read are copied once, with zeros where the padding is. A row of
A is then read in place: along k it has one segment for each line of the kernel. That costs a copy of each input
element, where :mod:`accord.backends.cpu.patches` copies it once for each tap, so it is what convolutions of few
channels need, whose products take little more time than their copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.panels import Filling, clear, copy, gather, transpose
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.transpose import converted
from accord.expr.lang import bits
from accord.record import record

__all__ = ["MOST_INTERLEAVED", "STAGE_NAMES", "StageSource"]

#: Parameters of a spatial axis: stride and size of the input, step from output to output, padding, and how many inputs
#: one output reaches over.
STAGE_NAMES = ("stride", "size", "step", "pad", "span")
#: Channels of a row-major image that are interleaved by shuffles of whole vectors.
MOST_INTERLEAVED = 4


@record
class StageSource:
    """A padded copy of an image of one or two spatial axes. The rows are the pixels of one image.

    Parameters: those of :data:`STAGE_NAMES` for each axis, the stride of channels and their number, the length of an
    output line, and the bytes of the stage from one line of the kernel to the next.

    Attributes:
        dtype: Element type in memory.
        axes: Spatial axes.
        mode: How the image lies: "copy" (channels next to each other, pixels too), "pixels" (channels next to each
            other), "planes" (pixels next to each other), "any"; or the number of channels, 2 to
            :data:`MOST_INTERLEAVED`, with pixels next to each other.
    """

    dtype: str
    axes: int
    mode: str

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters."""
        own = (f"x{i}.{what}" for i in range(self.axes) for what in STAGE_NAMES)
        return (*own, "x.channel", "x.channels", "x.line", "a.segment")

    @property
    def direct(self) -> bool:
        """Never: it is read where it was copied to."""
        return False

    @property
    def staged(self) -> bool:
        """Always."""
        return True

    @property
    def transposes(self) -> bool:
        """Pixels follow each other, channels do not."""
        return self.mode == "planes"

    def fill(self, b: Builder, want: Filling) -> None:
        """See :class:`accord.backends.cpu.panels.Source`; here ``pitch`` is the bytes of a line of pixels."""
        dtype, p, first, count = want.dtype, want.parameters, want.first, want.count
        last = self.axes - 1
        begin, columns = (first, count) if self.axes == 1 else ("0", p["x.line"])  # a block of whole lines, or of one
        pixels = b.add(b.mul(b.sub(columns, 1), p[f"x{last}.step"]), p[f"x{last}.span"])
        left = b.sub(b.mul(begin, p[f"x{last}.step"]), p[f"x{last}.pad"])
        low = b.max(b.min(b.sub(0, left), pixels), 0)
        high = b.max(b.min(b.sub(p[f"x{last}.size"], left), pixels), low)
        start = b.address(want.base, self.dtype, b.mul(left, p[f"x{last}.stride"]))
        if self.axes == 1:
            self._line(b, dtype, p, start, (low, high, pixels), want.panel)
            return
        top = b.sub(b.mul(b.op(f"udiv i64 {first}, {p['x.line']}"), p["x0.step"]), p["x0.pad"])
        lines = b.op(f"udiv i64 {count}, {p['x.line']}")
        height = b.add(b.mul(b.sub(lines, 1), p["x0.step"]), p["x0.span"])
        with b.loop(0, height) as i:
            at = b.add(top, i)
            inside = b.compare("ult", at, p["x0.size"])
            target = b.op(f"getelementptr i8, ptr {want.panel}, i64 {b.mul(i, want.pitch)}")
            place = b.address(start, self.dtype, b.mul(at, p["x0.stride"]))
            begin, end = (b.op(f"select i1 {inside}, i64 {edge}, i64 {pixels}") for edge in (low, high))
            self._line(b, dtype, p, place, (begin, end, pixels), target)

    def _line(
        self, b: Builder, dtype: str, p: Mapping[str, str], place: str, limits: tuple[str, str, str], target: str
    ) -> None:
        """Copy pixels [low, high) of a line of ``pixels``, whose pixel 0 would lie at ``place``; the rest is zero."""
        low, high, pixels = limits
        channels, last = p["x.channels"], self.axes - 1
        padding = p.get("padding")
        clear(b, dtype, target, b.mul(low, channels), padding)
        source = b.address(place, self.dtype, b.mul(low, p[f"x{last}.stride"]))
        to = b.address(target, dtype, b.mul(low, channels))
        self._pixels(b, dtype, p, source, b.sub(high, low), to)
        end = b.mul(high, channels)
        clear(b, dtype, b.address(target, dtype, end), b.sub(b.mul(pixels, channels), end), padding)

    def _pixels(self, b: Builder, dtype: str, p: Mapping[str, str], source: str, count: str, target: str) -> None:
        channels, step = p["x.channels"], p[f"x{self.axes - 1}.stride"]
        line = b.mul(channels, bits(dtype) // 8)
        if self.mode == "copy":
            copy(b, dtype, self.dtype, source, b.mul(count, channels), target)
        elif self.mode == "planes":
            function = p["a.transpose"]
            transpose(b, function, dtype, self.dtype, source, p["x.channel"], channels, count, target, line, exact=True)
        elif self.mode.isdigit():
            self._interleave(b, dtype, int(self.mode), p["x.channel"], source, count, target)
        else:
            with b.loop(0, count) as i:
                pixel = b.address(source, self.dtype, b.mul(i, step))
                to = b.address(target, dtype, b.mul(i, channels))
                if self.mode == "pixels":
                    copy(b, dtype, self.dtype, pixel, channels, to)
                else:
                    gather(b, dtype, self.dtype, pixel, p["x.channel"], channels, to)

    def _interleave(
        self, b: Builder, dtype: str, channels: int, step: str, source: str, count: str, target: str
    ) -> None:
        """A vector of pixels at a time: one load for each channel, one store for each as well."""
        width = machine().width(bits(dtype))
        type_ = vector(dtype, width)
        with b.loop(0, count, width) as i:
            left = b.min(b.sub(count, i), width)
            planes = []
            for c in range(channels):
                at = b.address(source, self.dtype, b.add(i, b.mul(step, c) if c else "0"))
                loaded = Printer(b, width).load_masked(self.dtype, at, left)
                planes.append(converted(b, width, loaded, self.dtype, dtype))
            for v in range(channels):
                places = [divmod(v * width + k, channels) for k in range(width)]  # pixel and channel of each element
                joined = planes[0]
                for c in range(1, channels):
                    order = [
                        width + pixel if own == c else k if c > 1 else pixel for k, (pixel, own) in enumerate(places)
                    ]
                    index = ", ".join(f"i32 {k}" for k in order)
                    joined = b.op(f"shufflevector {type_} {joined}, {type_} {planes[c]}, <{width} x i32> <{index}>")
                at = b.address(target, dtype, b.add(b.mul(i, channels), v * width))
                Printer(b, width).store(dtype, joined, at)

    @contextmanager
    def lines(
        self, b: Builder, dtype: str, parameters: Mapping[str, str], row: str, rows: str, panel: str, pitch: str
    ) -> Iterator[tuple[str, str, str, str]]:
        """``for each output line``: its first row in the block, rows, address, and bytes from row to row."""
        del row
        p = parameters
        last = self.axes - 1
        a_row = b.mul(b.mul(p[f"x{last}.step"], p["x.channels"]), bits(dtype) // 8)
        if self.axes == 1:
            yield "0", rows, panel, a_row
            return
        down = b.mul(pitch, p["x0.step"])
        count = b.op(f"udiv i64 {rows}, {p['x.line']}")
        with b.loop(0, count) as i:
            at = b.op(f"getelementptr i8, ptr {panel}, i64 {b.mul(i, down)}")
            yield b.mul(i, p["x.line"]), p["x.line"], at, a_row
