"""Transposed convolution: an ordinary one for each comb of output pixels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from accord.backends.combs import Comb
from accord.backends.cpu.contraction import RightMatrix, packed_size
from accord.backends.cpu.conv import Convolution, Image
from accord.backends.cpu.panels import aligned
from accord.backends.cpu.patches import Window
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.epilogue import accumulator
from accord.backends.protocol import Array, Phase
from accord.expr.lang import Expr, bits, cast, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["CombWeights", "pack_combs", "transposed_phases"]


@record
class CombWeights:
    """The weights of one comb for each axis, and of those beside the last one.

    Attributes:
        convolution: What they are for.
        taps: For each of the combs beside each other, which taps along each axis.
    """

    convolution: Convolution
    taps: tuple[tuple[tuple[int, ...], ...], ...]

    def pack(self, w: Array) -> Array:
        """Their part of weights [C, M / groups, *taps], packed."""
        c = self.convolution
        parts = [w[np.ix_(range(w.shape[0]), range(w.shape[1]), *taps)] for taps in self.taps]
        by_group = np.concatenate(parts, axis=1).reshape(c.groups, c.channels, c.columns, *c.window.taps)
        return c.pack(by_group.swapaxes(1, 2))

    def place(self, dtype: str, access: Access, right: RightMatrix, operands: tuple[int, int]) -> list[Phase]:
        """Phases that put their part of weights that are not constant where ``right`` says.

        Args:
            dtype: Element type of the weights.
            access: How they lie.
            right: See :meth:`~accord.backends.cpu.conv.Convolution.placed`.
            operands: Numbers of the weights and of the memory for their parts.
        """
        c = self.convolution
        columns = c.columns // len(self.taps)
        channel, column, *space = access.strides
        met = math.prod(c.window.taps)
        # k counts taps, then channels; else channels, then taps
        along = [math.prod(c.window.taps[i + 1 :]) * (c.channels if c.channels_inner else 1) for i in range(len(space))]
        own = 1 if c.channels_inner else met
        phases = []
        for i, taps in enumerate(self.taps):
            steps = [t[1] - t[0] if len(t) > 1 else 0 for t in taps]
            first = access.offset
            for t, s in zip(taps, space, strict=True):
                first = first + (t[0] * s if t else 0)
            source = Access(
                (channel * c.channels, channel, *(d * s for d, s in zip(steps, space, strict=True)), column), first
            )
            target = Access(
                (right.groups[0], own * right.step, *(a * right.step for a in along), right.column),
                right.offset + i * columns * right.column,
            )
            extents = (c.groups, c.channels, *c.window.taps, columns)
            value = cast(operand(0, dtype), right.dtype)
            phases.append(pointwise_phase(extents, [(dtype, source)], [(right.dtype, target)], [value], operands))
        return phases


def pack_combs(weights: Sequence[CombWeights], w: Array) -> Array:
    """Weights [C, M / groups, *taps] as the phases of :func:`transposed_phases` read them."""
    packed = [own.pack(w) for own in weights]
    joined = aligned((sum(own.size for own in packed),), packed[0].dtype)
    np.concatenate(packed, out=joined)
    return joined


def transposed_phases(
    images: DimLike,
    groups: int,
    w: tuple[int, ...],
    in_sizes: Shape,
    out_sizes: Shape,
    axes: Sequence[Sequence[Comb]],
    x: Image,
    extras: Sequence[Image],
    out: Image,
    expr: Expr,
    operands: tuple[int, ...],
    live: tuple[str, Access] | None = None,
) -> tuple[list[Phase], tuple[CombWeights, ...], DimLike]:
    """Phases of a transposed convolution, their weights, and the scratch bytes that a thread needs.

    Args:
        images: Batch size.
        groups: Number of groups.
        w: Shape of the weights: C, M / groups, taps.
        in_sizes: Spatial sizes of the input.
        out_sizes: Spatial sizes of the output.
        axes: The combs of each axis.
        x: The image.
        extras: Operands 1, 2 ... of the expression, over the output's axes.
        out: The output.
        expr: What is stored; operand 0 is the sum.
        operands: Image, weights of :func:`pack_combs`, extras, output, scratch.
        live: Element type of weights that are not constant, and how they lie: they are the second operand as they are,
            and are put in order in the scratch memory.
    """
    c, m = w[0] // groups, w[1]
    size = bits(accumulator(x.dtype)) // 8
    shared = 0 if live is None else -(-math.prod(w) * size // 64) * 64
    phases: list[Phase] = []
    weights: list[CombWeights] = []
    scratch: DimLike = 0
    at = 0
    joins = groups == 1 and all(_columns(image, m) is not None for image in (out, *extras))
    last_axis = _alike(axes[-1], out_sizes[-1]) if joins else [(comb,) for comb in axes[-1]]
    for outer, beside in itertools.product(itertools.product(*axes[:-1]), last_axis):
        chosen = (*outer, beside[0])
        taps = tuple(len(comb.taps) for comb in chosen)
        sizes = tuple(D.ceildiv(n - comb.first, comb.step) for n, comb in zip(out_sizes, chosen, strict=True))
        inside = all(comb.offset >= 0 for comb in chosen) and all(
            D.proves_le(n + comb.offset + (len(comb.taps) - 1) * comb.dilation, size)
            for n, comb, size in zip(sizes, chosen, in_sizes, strict=True)
        )
        offsets = [comb.offset for comb in chosen]
        convolution = Convolution(
            images,
            groups,
            c,
            m * len(beside),
            in_sizes,
            sizes,
            Window(taps, (1,) * len(taps), tuple(comb.dilation for comb in chosen)),
            (0,) * len(taps) if inside else tuple(-offset for offset in offsets),
            x.moved(offsets) if inside else x,
            constant=True,
            inside=inside,
        )
        places = [_combed(image, chosen, _columns(image, m) if len(beside) > 1 else None) for image in (out, *extras)]
        weights.append(CombWeights(convolution, tuple(tuple(c.taps for c in (*outer, last)) for last in beside)))
        if live is None:
            phase, own = convolution.phase(places[1:], places[0], expr, operands, weights_at=at)
            at += groups * packed_size(convolution.dtype, convolution.length, convolution.columns)
        else:
            right, memory = convolution.placed(at), operands[-1]
            phases += weights[-1].place(*live, right, (operands[1], memory)) if convolution.length else []
            at += groups * convolution.length * convolution.columns
            reads = (operands[0], memory, *operands[2:])
            phase, own = convolution.phase(places[1:], places[0], expr, reads, right=right, shared=shared)
        phases.append(phase)
        scratch = D.maximum(scratch, own)
    return phases, tuple(weights), scratch + shared


def _columns(image: Image, channels: int) -> DimLike | None:
    """The distance of channels if those of neighbouring pixels go on with it; None if they do not."""
    channel, pixel = image.access.strides[1], image.access.strides[-1]
    if image.repeated:
        return channel
    if channels == 1:
        return pixel
    return channel if pixel == channel * channels else None


def _alike(axis: Sequence[Comb], size: DimLike) -> list[tuple[Comb, ...]]:
    """Neighbouring combs of one length that read the same inputs: their outputs may be columns of one product."""

    def kind(comb: Comb) -> tuple[object, ...]:
        return len(comb.taps), comb.offset, comb.dilation, D.ceildiv(size - comb.first, comb.step)

    return [tuple(group) for _, group in itertools.groupby(axis, kind)]


def _combed(image: Image, chosen: Sequence[Comb], columns: DimLike | None) -> Image:
    """The outputs of one comb for each axis; ``columns`` is the distance of columns, if it is not that of channels."""
    moved = image.moved([comb.first for comb in chosen]).access
    steps = (1, 1, *(comb.step for comb in chosen))
    strides = [stride * step for stride, step in zip(moved.strides, steps, strict=True)]
    if columns is not None:
        strides[1] = columns
    return replace(image, access=Access(tuple(strides), moved.offset))
