"""Convolution as contraction: output pixels are rows, output channels are columns, k is taps x input channels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from accord.backends.cpu.contraction import Left, RightMatrix, Walk, accumulator, contraction_phase, matrix_left
from accord.backends.cpu.jit import machine
from accord.backends.cpu.nest import merge_axes
from accord.backends.cpu.panels import aligned, pack_matrix
from accord.backends.cpu.patches import AXIS_NAMES, PatchSource, Window, length_of, pieces_of, reach
from accord.backends.cpu.tile import vectors_for
from accord.backends.protocol import Array, Phase
from accord.expr.lang import Expr, bits
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access

__all__ = ["Comb", "Image", "combs", "conv_phase", "pack_weights", "transposed_phases"]


@dataclass(frozen=True)
class Image:
    """An image or what is combined with one: strides of the images, channels and spatial axes."""

    dtype: str
    access: Access

    def walk(self, channels: int, *, images: bool) -> Walk:
        """Its groups are groups of ``channels`` (and before them the images, unless those are rows)."""
        image, channel, *space = self.access.strides
        groups = (channel * channels,)
        if images:
            return Walk(self.dtype, groups, (image, *space), channel, self.access.offset)
        return Walk(self.dtype, (image, *groups), tuple(space), channel, self.access.offset)


def channels_inner(x: Access) -> bool:
    """Whether k counts taps, then channels, for an image that lies so; else channels, then taps."""
    return x.strides[1] == 1


def pack_weights(w: Array, groups: int, x: Access, dtype: str) -> Array:
    """Constant weights [M, C / groups, *taps] as panels, one group after the other.

    Args:
        w: The weights.
        groups: Number of groups.
        x: How the image lies, which decides about the order of k.
        dtype: Of the image.
    """
    real = accumulator(dtype)
    m, channels = w.shape[0] // groups, w.shape[1]
    by_group = w.reshape(groups, m, channels, -1)
    order = (0, 3, 2, 1) if channels_inner(x) else (0, 2, 3, 1)
    matrices = by_group.transpose(order).reshape(groups, -1, m)
    return pack_matrix(matrices, real, vectors_for(real, m)).reshape(-1)


def conv_phase(
    images: DimLike,
    groups: int,
    channels: tuple[int, int],
    in_sizes: Shape,
    out_sizes: Shape,
    window: Window,
    pads: Sequence[DimLike],
    x: Image,
    weights: str | None,
    extras: Sequence[Image],
    out: Image,
    expr: Expr,
    operands: tuple[int, ...],
    *,
    inside: bool = False,
    weights_at: int = 0,
) -> tuple[Phase, DimLike]:
    """A phase for a convolution of one to three spatial axes, and the scratch bytes that a thread needs.

    Args:
        images: Batch size.
        groups: Number of groups.
        channels: Input and output channels of one group.
        in_sizes: Spatial sizes of the input.
        out_sizes: Spatial sizes of the output.
        window: The kernel.
        pads: Padding in front of each axis.
        x: The image.
        weights: Element type of weights [M, C / groups, *taps] without gaps; None if they were packed.
        extras: Operands 1, 2 ... of the expression, over the output's axes.
        out: The output.
        expr: What is stored; operand 0 is the sum.
        operands: Image, weights, extras, output, scratch.
        inside: No tap lies in the padding.
        weights_at: First element of packed weights.
    """
    c, m = channels
    k = length_of(window, c)
    # an output whose channels are apart is written in lines of pixels, which end with the image
    rows_of_images = out.access.strides[1] == 1 or images == 1
    dtype = accumulator(x.dtype)
    if weights is None:
        width = machine().width(bits(dtype))
        right = RightMatrix(dtype, (k * -(-m // width) * width,), offset=weights_at, packed=True)
    else:
        right = RightMatrix(weights, (m * k,), 1, k)
    left = x.walk(c, images=rows_of_images)
    walks = [o.walk(m, images=rows_of_images) for o in (out, *extras)]
    rows: Shape = (images, *out_sizes) if rows_of_images else out_sizes
    group_sizes: Shape = (groups,) if rows_of_images else (images, groups)
    if not rows_of_images:
        right = replace(right, groups=(0, *right.groups))
    if inside and all(t == 1 for t in window.taps):
        steps = (1, *window.steps) if rows_of_images else window.steps
        strides = tuple(s * step for s, step in zip(left.rows, steps, strict=True))
        rows, (own, *others), _ = merge_axes(rows, [Access(strides), *(Access(w.rows) for w in walks)])
        if not rows:
            rows, own, others = (1,), Access((0,)), [Access((0,)) for _ in walks]
        walks = [replace(w, rows=at.strides) for w, at in zip(walks, others, strict=True)]
        a = matrix_left(replace(left, rows=own.strides))
    else:
        inner = weights is None and channels_inner(x.access)
        a = _patches(left, x.access, in_sizes, window, pads, c, inner, images=rows_of_images)
    return contraction_phase(group_sizes, rows, m, k, a, right, walks[1:], walks[0], expr, operands)


def _patches(
    left: Walk,
    x: Access,
    in_sizes: Shape,
    window: Window,
    pads: Sequence[DimLike],
    channels: int,
    inner: bool,
    *,
    images: bool,
) -> Left:
    axes = len(window.taps)
    values: dict[str, DimLike] = {"a.image": left.rows[0]} if images else {}
    strides = x.strides[2:]
    for i, (low, high) in enumerate(reach(window)):
        own = (strides[i], in_sizes[i], window.steps[i], pads[i], low, high)
        values.update({f"x{i}.{name}": v for name, v in zip(AXIS_NAMES, own, strict=True)})
    values["x.channel"] = x.strides[1]
    pieces = functools.partial(_pieces, window, channels, inner)
    return Left(PatchSource(left.dtype, axes, images), values, left.groups, left.offset, pieces)


def _pieces(window: Window, channels: int, inner: bool, values: Mapping[str, int]) -> list[tuple[int, tuple[int, ...]]]:
    strides = [values[f"x{i}.stride"] for i in range(len(window.taps))]
    return pieces_of(window, channels, strides, values["x.channel"], channels_inner=inner)


@dataclass(frozen=True)
class Comb:
    """One output in ``step`` along an axis of a transposed convolution: those at ``first + q * step``.

    Output ``q`` of them reads the input at ``q + offset`` and what follows in steps of ``dilation``, once for each of
    ``taps``; so the outputs of one comb for each axis are an ordinary convolution (Shi et al., "Is the deconvolution
    layer the same as a convolutional layer?", 2016).

    Attributes:
        first: First output.
        step: From output to output.
        taps: The kernel's elements that meet these outputs, from the lowest input upwards.
        offset: Input that the first of them reads, relative to ``q``.
        dilation: From input to input.
    """

    first: int
    step: int
    taps: tuple[int, ...]
    offset: int
    dilation: int


def combs(taps: int, step: int, dilation: int, pad: int) -> list[Comb]:
    """The combs of an axis: input ``i`` and tap ``t`` add to output ``i * step + t * dilation - pad``."""
    found = []
    for first in range(step):
        met = [t for t in reversed(range(taps)) if (first + pad - t * dilation) % step == 0]
        offset = (first + pad - met[0] * dilation) // step if met else 0
        found.append(Comb(first, step, tuple(met), offset, dilation // math.gcd(step, dilation)))
    return found


def transposed_phases(
    images: DimLike,
    groups: int,
    w: Array,
    in_sizes: Shape,
    out_sizes: Shape,
    axes: Sequence[Sequence[Comb]],
    x: Image,
    extras: Sequence[Image],
    out: Image,
    expr: Expr,
    operands: tuple[int, ...],
) -> tuple[list[Phase], Array, DimLike]:
    """Phases of a transposed convolution, its packed weights, and the scratch bytes that a thread needs.

    Args:
        images: Batch size.
        groups: Number of groups.
        w: Weights [C, M / groups, *taps].
        in_sizes: Spatial sizes of the input.
        out_sizes: Spatial sizes of the output.
        axes: The combs of each axis.
        x: The image.
        extras: Operands 1, 2 ... of the expression, over the output's axes.
        out: The output.
        expr: What is stored; operand 0 is the sum.
        operands: Image, weights, extras, output, scratch.
    """
    c, m = w.shape[0] // groups, w.shape[1]
    phases: list[Phase] = []
    packed: list[Array] = []
    scratch: DimLike = 0
    at = 0
    for chosen in itertools.product(*axes):
        window = Window(
            tuple(len(comb.taps) for comb in chosen), (1,) * len(chosen), tuple(comb.dilation for comb in chosen)
        )
        part = w[np.ix_(range(w.shape[0]), range(m), *(comb.taps for comb in chosen))]
        part = part.reshape(groups, c, m, *window.taps).swapaxes(1, 2).reshape(groups * m, c, *window.taps)
        packed.append(pack_weights(part, groups, x.access, x.dtype))
        sizes = tuple(D.ceildiv(n - comb.first, comb.step) for n, comb in zip(out_sizes, chosen, strict=True))
        inside = all(comb.offset >= 0 for comb in chosen) and all(
            D.proves_le(n + comb.offset + (len(comb.taps) - 1) * comb.dilation, size)
            for n, comb, size in zip(sizes, chosen, in_sizes, strict=True)
        )
        source = _moved(x, [comb.offset for comb in chosen]) if inside else x
        phase, own = conv_phase(
            images,
            groups,
            (c, m),
            in_sizes,
            sizes,
            window,
            [0 if inside else -comb.offset for comb in chosen],
            source,
            None,
            [_combed(e, chosen) for e in extras],
            _combed(out, chosen),
            expr,
            operands,
            inside=inside,
            weights_at=at,
        )
        at += packed[-1].size
        phases.append(phase)
        scratch = D.maximum(scratch, own)
    joined = aligned((at,), packed[0].dtype)
    np.concatenate(packed, out=joined)
    return phases, joined, scratch


def _combed(image: Image, chosen: Sequence[Comb]) -> Image:
    """The outputs of one comb for each axis."""
    moved = _moved(image, [comb.first for comb in chosen]).access
    steps = [1, 1, *(comb.step for comb in chosen)]
    strides = tuple(stride * step for stride, step in zip(moved.strides, steps, strict=True))
    return Image(image.dtype, Access(strides, moved.offset))


def _moved(image: Image, pixels: Sequence[int]) -> Image:
    """The image from a pixel on."""
    offset = image.access.offset
    for stride, n in zip(image.access.strides[2:], pixels, strict=True):
        offset = offset + stride * n
    return Image(image.dtype, Access(image.access.strides, offset))
