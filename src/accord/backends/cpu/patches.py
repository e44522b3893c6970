"""The patches of an image as rows of A: what a convolution multiplies with its weights.

A row is one output pixel; along k it has the taps' input channels. It is copied in *pieces* that follow each other in
memory: with channels innermost the channels of a tap, or of all taps of one line of the kernel; in row-major images
the taps of a line. What lies in the padding is zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from accord.backends.cpu.blocking import MOST_CHUNK
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.panels import Filling, PanelSource, clear, copy
from accord.record import record

__all__ = ["AXIS_NAMES", "PatchSource", "Window", "length_of", "pieces_of", "reach"]

#: Parameters of a spatial axis.
AXIS_NAMES = ("stride", "size", "step", "pad", "low", "high")


@record
class Window:
    """A kernel as it slides over an image, one entry for each spatial axis.

    A tap ``t`` of output ``o`` reads the input at ``o * step + t * dilation - pad``.

    Attributes:
        taps: Size of the kernel.
        steps: From output to output.
        dilations: From tap to tap; may be negative.
    """

    taps: tuple[int, ...]
    steps: tuple[int, ...]
    dilations: tuple[int, ...]


@record
class PatchSource(PanelSource):
    """Patches of an image with ``axes`` spatial axes.

    Parameters: stride of the images, then for each spatial axis its stride and size in the input, the step from output
    to output, the padding, and the least and the greatest distance of a tap from the first. Words of a piece: its
    offset, its length, elements of a tap of the last axis, and its distance from the first tap along each axis.

    Attributes:
        dtype: Element type in memory.
        axes: Spatial axes, one to three.
        images: The rows have an axis of images before those of the output's pixels.
    """

    dtype: str
    axes: int
    images: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters."""
        own = (f"x{i}.{what}" for i in range(self.axes) for what in AXIS_NAMES)
        return (*(("a.image",) if self.images else ()), *own)

    def fill(self, b: Builder, want: Filling) -> None:
        """See :class:`accord.backends.cpu.panels.Source`."""
        dtype, p, chunk = want.dtype, want.parameters, want.chunk
        words = 3 + self.axes
        table = b.op(f"getelementptr i64, ptr {p['pieces']}, i64 {b.mul(chunk.first, words)}")
        pieces = b.sub(chunk.last, chunk.first)
        with want.walk(b) as (_, at, start):
            place = want.base
            if self.images:
                place = b.address(place, self.dtype, b.mul(at[0], p["a.image"]))
            pixel = at[-self.axes :]
            corners = [b.sub(b.mul(index, p[f"x{i}.step"]), p[f"x{i}.pad"]) for i, index in enumerate(pixel)]
            inside = "true"
            for i, corner in enumerate(corners):
                place = b.address(place, self.dtype, b.mul(corner, p[f"x{i}.stride"]))
                low = b.compare("sge", b.add(corner, p[f"x{i}.low"]), 0)
                high = b.compare("slt", b.add(corner, p[f"x{i}.high"]), p[f"x{i}.size"])
                inside = b.op(f"and i1 {inside}, {b.op(f'and i1 {low}, {high}')}")

            def whole(place: str = place, start: str = start) -> None:
                with b.loop_carrying(0, pieces, 1, (("ptr", start), ("ptr", table))) as (_, (target, entry), later):
                    offset, length = (self._word(b, entry, k) for k in range(2))
                    copy(b, dtype, self.dtype, b.address(place, self.dtype, offset), length, target)
                    later += [b.address(target, dtype, length), b.address(entry, "i64", words)]

            def padded(place: str = place, start: str = start, corners: Sequence[str] = corners) -> None:
                with b.loop_carrying(0, pieces, 1, (("ptr", start), ("ptr", table))) as (_, (target, entry), later):
                    offset, length, unit, *distances = (self._word(b, entry, k) for k in range(words))
                    source = b.address(place, self.dtype, offset)
                    self._clipped(b, dtype, p, corners, distances, source, length, unit, target)
                    later += [b.address(target, dtype, length), b.address(entry, "i64", words)]

            b.branch(inside, whole, padded)

    @staticmethod
    def _word(b: Builder, entry: str, index: int) -> str:
        return b.op(f"load i64, ptr {b.address(entry, 'i64', index)}")

    def _clipped(
        self,
        b: Builder,
        dtype: str,
        p: Mapping[str, str],
        corners: Sequence[str],
        distances: Sequence[str],
        source: str,
        length: str,
        unit: str,
        target: str,
    ) -> None:
        """Copy the part of a piece that lies in the image; the rest is zero."""
        places = [b.add(c, d) for c, d in zip(corners, distances, strict=True)]
        valid = "true"
        for i, at in enumerate(places[:-1]):
            valid = b.op(f"and i1 {valid}, {b.compare('ult', at, p[f'x{i}.size'])}")
        last = self.axes - 1
        before = b.mul(b.sub(0, places[last]), unit)
        until = b.mul(b.sub(p[f"x{last}.size"], places[last]), unit)
        low = b.max(b.min(before, length), 0)
        high = b.max(b.min(until, length), low)
        low = b.op(f"select i1 {valid}, i64 {low}, i64 {length}")
        high = b.op(f"select i1 {valid}, i64 {high}, i64 {length}")
        padding = p.get("padding")
        clear(b, dtype, target, low, padding)
        copy(b, dtype, self.dtype, b.address(source, self.dtype, low), b.sub(high, low), b.address(target, dtype, low))
        clear(b, dtype, b.address(target, dtype, high), b.sub(length, high), padding)


def pieces_of(
    window: Window, channels: int, strides: Sequence[int], channel: int, *, channels_inner: bool
) -> list[tuple[int, tuple[int, ...]]]:
    """Length and words of each piece of a patch, in the order of k.

    Args:
        window: The kernel.
        channels: Input channels of a group.
        strides: Of the input's spatial axes.
        channel: Stride of the input's channels.
        channels_inner: k counts taps, then channels; else channels, then taps.
    """
    if not length_of(window, channels):
        return []
    dilations = window.dilations
    outer = [range(t) for t in window.taps[:-1]]
    width, last = window.taps[-1], dilations[-1]
    inner = channels if channels_inner else 1
    step = channel if channels_inner else 1
    # taps of a line that follow each other make one piece
    joined = width * inner <= MOST_CHUNK and (inner == 1 or step == 1) and last * strides[-1] == inner
    if joined or inner == 1 or step == 1:
        count = 1 if joined else -(-inner // MOST_CHUNK)
        size = -(-inner // count)
        parts = [(at, min(size, inner - at)) for at in range(0, inner, size)]
    else:
        parts = [(at, 1) for at in range(inner)]
    pieces = []
    for c in range(1 if channels_inner else channels):
        for taps in itertools.product(*outer):
            place = c * channel + sum(t * d * s for t, d, s in zip(taps, dilations, strides, strict=False))
            far = [t * d for t, d in zip(taps, dilations, strict=False)]
            if joined:
                pieces.append((width * inner, (place, width * inner, inner, *far, 0)))
                continue
            for t in range(width):
                for at, length in parts:
                    where = place + t * last * strides[-1] + at * step
                    pieces.append((length, (where, length, length, *far, t * last)))
    return pieces


def reach(window: Window) -> list[tuple[int, int]]:
    """Least and greatest distance of a tap from the first along each axis."""
    ends = [(t - 1) * d for t, d in zip(window.taps, window.dilations, strict=True)]
    return [(min(0, e), max(0, e)) for e in ends]


def length_of(window: Window, channels: int) -> int:
    """Length of a patch."""
    return channels * math.prod(window.taps)
