"""Deformable convolution: every tap of a patch is read at a learned offset, by linear interpolation.

Dai et al., "Deformable Convolutional Networks" (2017); with masks, Zhu et al. (2018). The rows of A are interpolated as
a block of them is needed, so a product of matrices follows that finds them in the cache.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from accord.backends.cpu.blocking import MOST_CHUNK
from accord.backends.cpu.contraction import Left, RightMatrix, Walk, contraction_phase, packed_size
from accord.backends.cpu.conv import Convolution, Image
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.panels import Filling, PanelSource, clear
from accord.backends.cpu.patches import Window
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.transpose import converted
from accord.backends.protocol import Array, Phase
from accord.expr.lang import Expr, bits, call, cast, operand
from accord.expr.math import expand
from accord.expr.primitives import fma, isnan, max_, min_, select
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["DeformSource", "deform_phases", "offset_table"]

#: As far as offsets are followed: they convert to integers.
_FAR = 2.0**30


@record
class DeformSource(PanelSource):
    """Patches whose taps are read at offsets. Channels of a pixel follow each other.

    Parameters: stride of the images; for each spatial axis its stride and size in the input, the step from output to
    output, and the padding; for the offsets, and the mask if there is one, the first element and strides of images,
    channels and spatial axes. Words of a piece: its first channel, its length, its tap (counted through all groups of
    offsets), and the tap's distance from the first along each axis.

    Attributes:
        dtype: Element type of the image, the offsets and the mask.
        axes: Spatial axes, one to three.
        masked: There is a mask.
        operand: Number of the offsets' operand; that of the mask follows.
        coded: Offsets are bytes, places in a table (:func:`offset_table`) whose operand comes after these.
    """

    dtype: str
    axes: int
    masked: bool
    operand: int
    coded: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters."""
        own = (f"x{i}.{what}" for i in range(self.axes) for what in ("stride", "size", "step", "pad"))
        rows = [f"row{i}" for i in range(self.axes)]
        further = (f"{t}.{what}" for t in ("offset", "mask")[: 1 + self.masked] for what in ("at", "row", "k", *rows))
        return ("a.image", *own, *further)

    def fill(self, b: Builder, want: Filling) -> None:
        """See :class:`accord.backends.cpu.panels.Source`."""
        dtype, p, chunk = want.dtype, want.parameters, want.chunk
        words = 3 + self.axes
        table = b.op(f"getelementptr i64, ptr {p['pieces']}, i64 {b.mul(chunk.first, words)}")
        pieces = b.sub(chunk.last, chunk.first)
        types = {"offset": "u8" if self.coded else self.dtype, "mask": self.dtype}
        tensors = {
            name: b.address(b.operand(self.operand + i), types[name], p[f"{name}.at"])
            for i, name in enumerate(("offset", "mask")[: 1 + self.masked])
        }
        own = {"table": b.operand(self.operand + 1 + self.masked)} if self.coded else {}
        with want.walk(b) as (_, at, start):
            image, pixel = at[0], at[1:]
            place = b.address(want.base, self.dtype, b.mul(image, p["a.image"]))
            here = dict(own)
            for name, address in tensors.items():
                here[name] = b.address(address, types[name], b.mul(image, p[f"{name}.row"]))
                for i, index in enumerate(pixel):
                    here[name] = b.address(here[name], types[name], b.mul(index, p[f"{name}.row{i}"]))
            corner = [b.sub(b.mul(index, p[f"x{i}.step"]), p[f"x{i}.pad"]) for i, index in enumerate(pixel)]
            with b.loop_carrying(0, pieces, 1, (("ptr", start), ("ptr", table))) as (_, (target, entry), later):
                channel, length, tap, *distances = (
                    b.op(f"load i64, ptr {b.address(entry, 'i64', k)}") for k in range(words)
                )
                at_tap = [b.add(c, d) for c, d in zip(corner, distances, strict=True)]
                piece = b.address(place, self.dtype, channel)
                self._sample(b, dtype, p, here, at_tap, tap, piece, length, target)
                later += [b.address(target, dtype, length), b.address(entry, "i64", words)]

    def _sample(
        self,
        b: Builder,
        dtype: str,
        p: Mapping[str, str],
        here: Mapping[str, str],
        at: Sequence[str],
        tap: str,
        piece: str,
        length: str,
        target: str,
    ) -> None:
        """Interpolate the channels of one tap, which would be read at pixel ``at`` without an offset."""
        neighbours = [self._neighbours(b, dtype, p, here, a, at[a], tap) for a in range(self.axes)]
        somewhere = functools.reduce(lambda x, y: b.op(f"and i1 {x}, {y}"), (n[0] for n in neighbours))

        def inside() -> None:
            pairs = [list(n[1]) for n in neighbours]
            if self.masked:
                factor = self._load(b, dtype, here["mask"], b.mul(tap, p["mask.k"]))
                pairs[0] = [(place, b.op(f"fmul {_real(dtype)} {w}, {factor}")) for place, w in pairs[0]]
            corners = []
            for chosen in itertools.product(*pairs):
                place = functools.reduce(b.add, (place for place, _ in chosen))
                weight = functools.reduce(
                    lambda x, y: b.op(f"fmul {_real(dtype)} {x}, {y}"), (weight for _, weight in chosen)
                )
                corners.append((b.address(piece, self.dtype, place), weight))
            self._sum(b, dtype, corners, length, target)

        b.branch(somewhere, inside, lambda: clear(b, dtype, target, length))

    def _load(self, b: Builder, dtype: str, base: str, index: str) -> str:
        return converted(b, 1, Printer(b, 1).load(self.dtype, b.address(base, self.dtype, index)), self.dtype, dtype)

    def _neighbours(
        self, b: Builder, dtype: str, p: Mapping[str, str], here: Mapping[str, str], axis: int, at: str, tap: str
    ) -> tuple[str, list[tuple[str, str]]]:
        """Whether one of the two pixels around the position lies in the image; place and weight of both.

        What lies outside has weight zero, and what has weight zero is not read, for it may be infinite. An offset that
        is no number leads to the first pixel.
        """
        real = _real(dtype)
        number = b.mul(b.add(b.mul(tap, self.axes), axis), p["offset.k"])
        if self.coded:
            low, ratio = self._looked_up(b, dtype, here, number, at)
        else:
            low, ratio = self._computed(b, dtype, here["offset"], number, at)
        high = b.add(low, 1)
        size, stride = p[f"x{axis}.size"], p[f"x{axis}.stride"]
        low_in, high_in = b.compare("ult", low, size), b.compare("ult", high, size)
        rest = b.op(f"fsub {real} 1.0, {ratio}")
        weights = [
            b.op(f"select i1 {valid}, {real} {w}, {real} 0.0") for valid, w in ((low_in, rest), (high_in, ratio))
        ]
        wanted = b.op(f"and i1 {high_in}, {b.op(f'fcmp une {real} {ratio}, 0.0')}")
        first = b.op(f"select i1 {low_in}, i64 {low}, i64 {high}")
        second = b.op(f"select i1 {wanted}, i64 {high}, i64 {first}")
        places = [b.mul(index, stride) for index in (first, second)]
        return b.op(f"or i1 {low_in}, {wanted}"), list(zip(places, weights, strict=True))

    def _computed(self, b: Builder, dtype: str, offsets: str, number: str, at: str) -> tuple[str, str]:
        """The pixel before the position, and how far behind it that is; of an offset that is a number."""
        offset = self._load(b, dtype, offsets, number)
        printer = Printer(b, 1)
        moved = operand(0, dtype)
        near: Expr = max_(min_(select(isnan(moved), 0.0, moved), _FAR), -_FAR)
        whole = call("floor", near)
        ratio = printer.value(expand(near - whole), [offset])
        low = b.add(at, printer.value(expand(cast(whole, "i64")), [offset]))
        low = b.op(f"select i1 {b.op(f'fcmp uno {_real(dtype)} {offset}, 0.0')}, i64 0, i64 {low}")
        return low, ratio

    def _looked_up(self, b: Builder, dtype: str, here: Mapping[str, str], number: str, at: str) -> tuple[str, str]:
        """The same of an offset that is a code."""
        code = b.op(f"load i8, ptr {b.address(here['offset'], 'u8', number)}")
        entry = b.address(here["table"], "i64", b.mul(b.op(f"zext i8 {code} to i64"), 2))
        whole = b.op(f"load i64, ptr {entry}")
        return b.add(at, whole), b.op(f"load {_real(dtype)}, ptr {b.address(entry, 'i64', 1)}")

    def _sum(self, b: Builder, dtype: str, corners: Sequence[tuple[str, str]], length: str, target: str) -> None:
        """The weighted sum of pixels, whole vectors: up to one vector after the last is overwritten."""
        width = machine().width(bits(dtype))
        weights = [Printer(b, width).splat(dtype, weight, width) for _, weight in corners]

        def total(values: Sequence[str]) -> str:
            n = len(corners)
            expr = operand(0, dtype) * operand(n, dtype)
            for i in range(1, n):
                expr = fma(operand(i, dtype), operand(n + i, dtype), expr)
            wide = [converted(b, width, v, self.dtype, dtype) for v in values]
            return Printer(b, width).value(expr, [*wide, *weights])

        whole = b.op(f"and i64 {length}, {-width}")
        with b.loop(0, whole, width) as i:
            loaded = [Printer(b, width).load(self.dtype, b.address(place, self.dtype, i)) for place, _ in corners]
            Printer(b, width).store(dtype, total(loaded), b.address(target, dtype, i))

        def rest() -> None:
            count = b.sub(length, whole)
            loaded = [
                Printer(b, width).load_masked(self.dtype, b.address(place, self.dtype, whole), count)
                for place, _ in corners
            ]
            Printer(b, width).store(dtype, total(loaded), b.address(target, dtype, whole))

        b.branch(b.compare("ne", whole, length), rest)


def offset_table(dtype: str, scale: float, width: int) -> Array:
    """What each byte stands for as a code: the whole pixels of ``scale * code``, and the bits of the rest.

    Args:
        dtype: "f32" or "f64", in which the product is rounded and the rest is kept.
        scale: Finite.
        width: Of a code in bits; bits above it in a byte do not count.
    """
    real = np.float32 if dtype == "f32" else np.float64
    codes = (np.arange(256) + (1 << width - 1)) % (1 << width) - (1 << width - 1)
    offsets = np.clip((codes * real(scale)).astype(real), -_FAR, _FAR)
    whole = np.floor(offsets)
    table = np.zeros((256, 2), np.int64)
    table[:, 0] = whole
    table.view(real).reshape(256, -1)[:, 8 // real().itemsize] = offsets - whole
    return table


def _real(dtype: str) -> str:
    return "float" if dtype == "f32" else "double"


def deform_phases(
    convolution: Convolution,
    offset_groups: int,
    tensors: Sequence[Access],
    extras: Sequence[Image],
    out: Image,
    expr: Expr,
    operands: tuple[int, ...],
    *,
    coded: bool = False,
) -> tuple[list[Phase], DimLike]:
    """A phase for each group, and the scratch bytes that a thread needs.

    Args:
        convolution: What it would be without offsets; channels of its image follow each other.
        offset_groups: Groups of channels with offsets of their own.
        tensors: How the offsets lie, and the mask if there is one.
        extras: Operands 1, 2 ... of the expression, over the output's axes.
        out: The output.
        expr: What is stored; operand 0 is the sum.
        operands: Image, weights (packed, or [M, C / groups, *taps] without gaps), extras, output, scratch, offsets,
            mask, table.
        coded: Offsets are codes; there is a table.
    """
    c = convolution
    axes, taps = len(c.window.taps), math.prod(c.window.taps)
    image, _, *space = c.x.access.strides
    values: dict[str, DimLike] = {"a.image": image}
    for i in range(axes):
        own = {"stride": space[i], "size": c.in_sizes[i], "step": c.window.steps[i], "pad": c.pads[i]}
        values.update({f"x{i}.{name}": v for name, v in own.items()})
    for name, access in zip(("offset", "mask"), tensors, strict=False):
        row, k, *pixels = access.strides
        values.update({f"{name}.at": access.offset, f"{name}.row": row, f"{name}.k": k})
        values.update({f"{name}.row{i}": s for i, s in enumerate(pixels)})
    source = DeformSource(c.x.dtype, axes, len(tensors) > 1, 4 + len(extras), coded)
    k, m = c.length, c.columns
    rows: Shape = (c.images, *c.out_sizes)
    alike = c.groups * c.channels // offset_groups
    phases: list[Phase] = []
    scratch: DimLike = 0
    for g in range(c.groups):
        if c.constant:
            right = RightMatrix(c.dtype, (), offset=g * packed_size(c.dtype, k, m), packed=True)
        else:
            right = RightMatrix(c.x.dtype, (), taps, k, g * m * k, taps=taps)
        pieces = functools.partial(_pieces, c.window, g * c.channels, c.channels, alike)
        left = Left(source, values, (), c.x.access.offset + g * c.channels, pieces)
        walks = [_walk(o, g * m) for o in (out, *extras)]
        phase, own_scratch = contraction_phase((), rows, m, k, left, right, walks[1:], walks[0], expr, operands)
        phases.append(phase)
        scratch = D.maximum(scratch, own_scratch)
    return phases, scratch


def _walk(image: Image, channel: int) -> Walk:
    """An operand over the output's axes from a channel on: rows are images and pixels."""
    row, column, *space = image.access.strides
    return Walk(image.dtype, (), (row, *space), column, image.access.offset + channel * column)


def _pieces(
    window: Window, first: int, channels: int, alike: int, values: Mapping[str, int]
) -> list[tuple[int, tuple[int, ...]]]:
    """Length and words of each piece: the channels ``first`` to ``first + channels`` of each tap.

    Those of one piece have the same offsets, as each ``alike`` neighbours have.
    """
    del values
    taps = math.prod(window.taps)
    cuts = sorted({0, channels, *range(0, channels, MOST_CHUNK), *range(-first % alike, channels, alike)})
    found = []
    for t, place in enumerate(itertools.product(*(range(n) for n in window.taps))):
        distances = [i * d for i, d in zip(place, window.dilations, strict=True)]
        for start, stop in itertools.pairwise(cuts):
            group = (first + start) // alike
            found.append((stop - start, (start, stop - start, group * taps + t, *distances)))
    return found
