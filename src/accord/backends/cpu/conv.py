"""Convolution as contraction: output pixels are rows, output channels are columns, k is taps x input channels."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from accord.backends.cpu.contraction import Left, RightMatrix, Walk, accumulator, contraction_phase, matrix_left
from accord.backends.cpu.jit import machine
from accord.backends.cpu.nest import merge_axes
from accord.backends.cpu.panels import pack_matrix
from accord.backends.cpu.patches import AXIS_NAMES, PatchSource, Window, length_of, pieces_of, reach
from accord.backends.cpu.tile import vectors_for
from accord.backends.protocol import Array, Phase
from accord.expr.lang import Expr, bits
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access

__all__ = ["Image", "conv_phase", "pack_weights"]


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
    """
    c, m = channels
    k = length_of(window, c)
    # an output whose channels are apart is written in lines of pixels, which end with the image
    rows_of_images = out.access.strides[1] == 1 or images == 1
    dtype = accumulator(x.dtype)
    if weights is None:
        width = machine().width(bits(dtype))
        right = RightMatrix(dtype, (k * -(-m // width) * width,), packed=True)
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
