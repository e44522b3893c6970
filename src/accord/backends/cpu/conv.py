"""Convolution as contraction: output pixels are rows, output channels are columns, k is taps x input channels."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from accord.backends.cpu.blocking import Stage, run_length
from accord.backends.cpu.contraction import (
    Left,
    RightMatrix,
    Walk,
    accumulator,
    contraction_phase,
    few_columns,
    matrix_left,
    pack,
    packed_size,
)
from accord.backends.cpu.jit import machine
from accord.backends.cpu.lanes import Lanes, lanes_for
from accord.backends.cpu.patches import AXIS_NAMES, PatchSource, Window, length_of, pieces_of, reach
from accord.backends.cpu.stage import MOST_INTERLEAVED, STAGE_NAMES, StageSource
from accord.backends.loops.nest import merge_axes
from accord.backends.protocol import Array, Phase
from accord.expr.lang import Expr, bits
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Convolution", "Image"]

#: An image is staged for at most so many vectors of output channels, and input channels of a group: a copy of patches
#: takes a seventh of the products' time for one vector, a thirtieth for four. Of integers, whose products take a
#: quarter of that time, for any number.
_STAGED_VECTORS: Final = 4
_STAGED_CHANNELS: Final = 128
#: Lines of output that are shorter than this are too short for tiles of their own.
_SHORT_LINE: Final = 6


@record
class Image:
    """An image or what is combined with one: strides of the images, channels and spatial axes.

    Attributes:
        dtype: Element type in memory.
        access: How it lies.
        repeated: Its channels are there once more for each output of a step along the last axis.
    """

    dtype: str
    access: Access
    repeated: bool = False

    def walk(self, channels: int, *, images: bool) -> Walk:
        """Its groups are groups of ``channels`` (and before them the images, unless those are rows)."""
        image, channel, *space = self.access.strides
        groups = (channel * channels,)
        if images:
            return Walk(self.dtype, groups, (image, *space), channel, self.access.offset)
        return Walk(self.dtype, (image, *groups), tuple(space), channel, self.access.offset)

    def moved(self, pixels: Sequence[int]) -> Image:
        """The image from a pixel on."""
        offset = self.access.offset
        for stride, n in zip(self.access.strides[2:], pixels, strict=True):
            offset = offset + stride * n
        return replace(self, access=Access(self.access.strides, offset))


@record
class Convolution:
    """A convolution of one to three spatial axes.

    Attributes:
        images: Batch size.
        groups: Number of groups.
        channels: Input channels of a group.
        columns: Output channels of a group.
        in_sizes: Spatial sizes of the input.
        out_sizes: Spatial sizes of the output.
        window: The kernel.
        pads: Padding in front of each axis.
        x: The input.
        constant: The weights are packed at load.
        inside: No tap lies in the padding.
        halves: How panels hold numbers that are rounded to bf16, if they are.
        padding: Which of the extras is what there is around an image of integers, less nothing; None for zeros.
        way: "staged" or "patches": how rows of A are made, if the image is no matrix; "": by rule.
    """

    images: DimLike
    groups: int
    channels: int
    columns: int
    in_sizes: Shape
    out_sizes: Shape
    window: Window
    pads: tuple[DimLike, ...]
    x: Image
    constant: bool
    inside: bool = False
    halves: str = ""
    padding: int | None = None
    way: str = ""

    @property
    def dtype(self) -> str:
        """In which sums are made."""
        return accumulator(self.x.dtype)

    @property
    def length(self) -> int:
        """Length of the sums."""
        return length_of(self.window, self.channels)

    @property
    def pointwise(self) -> bool:
        """It is a product of matrices."""
        return self.inside and all(t == 1 for t in self.window.taps)

    @property
    def stageable(self) -> bool:
        """Whether the image can be staged, and a stage holds no more than what is read."""
        w = self.window
        dense = all(s <= (t - 1) * d + 1 for t, s, d in zip(w.taps, w.steps, w.dilations, strict=True))
        joined = lanes_for(self.dtype).count
        return (
            not self.pointwise
            and not self.halves
            and len(w.taps) <= 2
            and 0 not in w.taps
            and min(w.dilations) > 0
            and self.channels <= _STAGED_CHANNELS * joined
            and self.channels % joined == 0
            and dense
        )

    @property
    def staged(self) -> bool:
        """Whether the image is staged, not copied patch by patch.

        By rule it is where products take little more time than the copies, and where a line of output is no shorter
        than a tile.
        """
        if self.way or not self.stageable:
            return self.way == "staged"
        vectors = -(-self.columns // machine().width(bits(self.dtype)))
        line = self.out_sizes[-1]
        short = len(self.window.taps) == 2 and isinstance(line, int) and line < _SHORT_LINE
        return (vectors <= _STAGED_VECTORS or lanes_for(self.dtype).count > 1) and not short

    @property
    def ways(self) -> tuple[str, ...]:
        """What :attr:`way` may be, the one by rule first."""
        if not self.stageable:
            return ("patches",)
        return ("staged", "patches") if self.staged else ("patches", "staged")

    @property
    def channels_inner(self) -> bool:
        """K counts taps, then channels; else channels, then taps."""
        return self.staged or self.x.access.strides[1] == 1

    def matrices(self, w: Array) -> Array:
        """Constant weights [M, C / groups, *taps] as B: [groups, k, M / groups]."""
        by_group = w.reshape(self.groups, self.columns, self.channels, -1)
        order = (0, 3, 2, 1) if self.channels_inner else (0, 2, 3, 1)
        return by_group.transpose(order).reshape(self.groups, self.length, self.columns)

    def pack(self, w: Array) -> Array:
        """Constant weights [M, C / groups, *taps] as panels, one group after the other."""
        return pack(self.matrices(w), self.dtype, self.halves).reshape(-1)

    def placed(self, at: int) -> RightMatrix:
        """Weights that are not constant, put without gaps from element ``at`` on: [groups, k, columns], or turned.

        The transpose, whose stride along k is 1, is for few columns.
        """
        k, m = self.length, self.columns
        step, column = (1, k) if few_columns(self.dtype, m, k) else (m, 1)
        return RightMatrix(self.dtype, (k * m,), step, column, at)

    def phase(
        self,
        extras: Sequence[Image],
        out: Image,
        expr: Expr,
        operands: tuple[int, ...],
        *,
        weights_at: int = 0,
        right: RightMatrix | None = None,
        shared: DimLike = 0,
    ) -> tuple[Phase, DimLike]:
        """A phase, and the scratch bytes that a thread needs.

        Args:
            extras: Operands 1, 2 ... of the expression, over the output's axes.
            out: The output.
            expr: What is stored; operand 0 is the sum.
            operands: Image, weights (packed, or [M, C / groups, *taps] without gaps), extras, output, scratch.
            weights_at: First element of packed weights.
            right: How weights lie that are not as ``operands`` says.
            shared: See :func:`~accord.backends.cpu.contraction.contraction_phase`.
        """
        # an output whose channels are apart is written in lines of pixels, which end with the image; so does a stage
        images = not self.staged and (out.access.strides[1] == 1 or self.images == 1)
        k, m = self.length, self.columns
        if right is not None:
            pass
        elif self.constant:
            size = packed_size(self.dtype, k, m, self.halves)
            right = RightMatrix(self.dtype, (size,), offset=weights_at, packed=True, halves=self.halves)
        else:
            taps = math.prod(self.window.taps)
            count = taps if self.channels_inner else 1
            right = RightMatrix(self.x.dtype, (m * k,), taps, k, taps=count, halves=self.halves)
            if not self.channels_inner or taps == 1:
                right = replace(right, step=1)
        walks = [o.walk(m, images=images) for o in (out, *extras)]
        rows: Shape = (self.images, *self.out_sizes) if images else self.out_sizes
        groups: Shape = (self.groups,) if images else (self.images, self.groups)
        if not images:
            right = replace(right, groups=(0, *right.groups))
        left = self.x.walk(self.channels, images=images)
        if self.pointwise:
            steps = (1, *self.window.steps) if images else self.window.steps
            strides = tuple(s * step for s, step in zip(left.rows, steps, strict=True))
            rows, (own, *others), _ = merge_axes(rows, [Access(strides), *(Access(w.rows) for w in walks)])
            if not rows:
                rows, own, others = (1,), Access((0,)), [Access((0,)) for _ in walks]
            left, *walks = (replace(w, rows=at.strides) for w, at in zip((left, *walks), (own, *others), strict=True))
            if not self.halves and few_columns(
                self.dtype, m, k
            ):  # each line is a product of its own, which may be stored as one line
                left, *walks = (replace(w, groups=(*w.groups, *w.rows[:-1]), rows=w.rows[-1:]) for w in (left, *walks))
                right = replace(right, groups=(*right.groups, *(0 for _ in rows[:-1])))
                groups, rows = (*groups, *rows[:-1]), rows[-1:]
            a = matrix_left(left)
        else:
            few = not self.halves and bool(few_columns(self.dtype, m, k, right))
            a = self.stage(left, few=few) if self.staged else self._patches(left, images=images)
        a = replace(a, padding=self.padding)
        return contraction_phase(groups, rows, m, k, a, right, walks[1:], walks[0], expr, operands, shared=shared)

    def _patches(self, left: Walk, *, images: bool) -> Left:
        strides = self.x.access.strides
        values: dict[str, DimLike] = {"a.image": left.rows[0]} if images else {}
        for i, (low, high) in enumerate(reach(self.window)):
            own = (strides[2 + i], self.in_sizes[i], self.window.steps[i], self.pads[i], low, high)
            values.update({f"x{i}.{name}": v for name, v in zip(AXIS_NAMES, own, strict=True)})
        values["x.channel"] = strides[1]
        pieces = functools.partial(_pieces, self.window, self.channels, self.channels_inner)
        return Left(PatchSource(left.dtype, len(self.window.taps), images), values, left.groups, left.offset, pieces)

    def stage(self, left: Walk, *, few: bool = False) -> Left:
        """The image, staged.

        Args:
            left: How it is walked, with images as groups.
            few: Tiles have their vectors along k.
        """
        w, strides = self.window, self.x.access.strides
        spans = [(t - 1) * d + 1 for t, d in zip(w.taps, w.dilations, strict=True)]
        values: dict[str, DimLike] = {}
        for i, span in enumerate(spans):
            own = (strides[2 + i], self.in_sizes[i], w.steps[i], self.pads[i], span)
            values.update({f"x{i}.{name}": v for name, v in zip(STAGE_NAMES, own, strict=True)})
        values["x.channel"], values["x.channels"] = strides[1], self.channels
        values["x.line"] = self.out_sizes[-1]
        values["a.segment"] = 0  # known when the stage is laid out
        channel, pixel = strides[1], strides[-1]
        if (channel == 1 or self.channels == 1) and pixel == self.channels:
            mode = "copy"
        elif channel == 1:
            mode = "pixels"
        elif pixel == 1:
            mode = str(self.channels) if 2 <= self.channels <= MOST_INTERLEAVED else "planes"
        else:
            mode = "any"
        layout = _StageLayout(self.dtype, w, self.channels, few)
        bound: tuple[DimLike, DimLike] = (layout.pixel * spans[0] + layout.slack, 1)
        if len(w.taps) == 2:
            bound = (layout.line(self.out_sizes[-1]) * spans[0] + layout.slack, self.out_sizes[-1])
        source = StageSource(left.dtype, len(w.taps), mode)
        return Left(source, values, left.groups, left.offset, stage=layout.make, bound=bound)


def _pieces(window: Window, channels: int, inner: bool, values: Mapping[str, int]) -> list[tuple[int, tuple[int, ...]]]:
    strides = [values[f"x{i}.stride"] for i in range(len(window.taps))]
    return pieces_of(window, channels, strides, values["x.channel"], channels_inner=inner)


@record
class _StageLayout:
    """How an image is staged, and how its rows are read."""

    dtype: str
    window: Window
    channels: int
    few: bool

    @property
    def lanes(self) -> Lanes:
        """What an element of a tile is."""
        return lanes_for(self.dtype)

    @property
    def pixel(self) -> int:
        """Bytes of a pixel."""
        return self.channels * bits(self.lanes.left) // 8

    @property
    def slack(self) -> int:
        """Bytes that may be overwritten after the end: a vector of pixels, or a vector."""
        return (machine().width(bits(self.lanes.left)) + 1) * max(self.pixel, 64)

    def line(self, columns: DimLike) -> DimLike:
        """Bytes of a staged line for ``columns`` pixels of output: whole vectors, and one more."""
        span = (self.window.taps[-1] - 1) * self.window.dilations[-1] + 1
        pixels = (columns - 1) * self.window.steps[-1] + span
        return (D.floordiv(pixels * self.pixel + 63, 64) + 1) * 64

    def make(self, values: Mapping[str, int]) -> tuple[Stage, list[tuple[int, ...]]]:
        """The stage for these sizes, and the calls of a tile."""
        w = self.window
        if len(w.taps) == 1:
            span = (w.taps[0] - 1) * w.dilations[0] + 1
            stage = Stage(1, w.steps[0], span, self.pixel, self.slack, 0)
            return stage, self._calls(1, 0, values["m"])
        line = D.evaluate(self.line(values["x.line"]), {})
        span = (w.taps[0] - 1) * w.dilations[0] + 1
        stage = Stage(values["x.line"], w.steps[0], span, line, self.slack, line * w.dilations[0])
        return stage, self._calls(w.taps[0], stage.segment, values["m"])

    def _calls(self, lines: int, segment: int, rows: int) -> list[tuple[int, ...]]:
        """One call for as many lines of the kernel as may be summed in registers; for few columns, for all of them."""
        taps, dilation = self.window.taps[-1], self.window.dilations[-1]
        joined = dilation == 1
        length = self.channels * (taps if joined else 1) // self.lanes.count
        # half the usual run: where channels are so few, others sum one channel's taps at a time, and err less for it
        at_once = max(1, run_length(self.dtype, self.channels * lines * taps, rows) // 2 // length)
        if self.few:
            at_once = lines
        calls: list[tuple[int, ...]] = []
        if joined:
            for first in range(0, lines, at_once):
                calls.append((first * segment, first * length, length, min(at_once, lines - first)))
            return calls
        for i in range(lines):
            for t in range(taps):
                calls.append((i * segment + t * dilation * self.pixel, (i * taps + t) * length, length, 1))
        return calls
