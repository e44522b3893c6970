"""Convolutions as contractions: rows are images and pixels of the result, depth is taps and channels of a group.

Images of few channels are first brought into an order in which a pixel's channels, and so those of all taps along the
last axis, follow each other (:class:`Packing`): what a row reads for a step is then one piece of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from accord.backends.cpu.pools import Pooling
from accord.backends.cuda.contraction import ContractionKernel, Factor, Window, contraction_kernel
from accord.backends.cuda.lines import power_of_two
from accord.backends.cuda.windows import WindowKernel, pool_kernel
from accord.backends.epilogue import Epilogue, Extra
from accord.backends.images import Axis
from accord.backends.protocol import Array
from accord.expr.lang import Expr, bits, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access, contiguous
from accord.record import record

__all__ = ["FEW", "Convolution", "Packing", "packing_of"]

#: Products of a group at one tap, up to which they are made one by one.
_SMALL: Final = 16
#: Channels below which images are packed; a whole vector of 16 bytes needs no packing.
FEW: Final = 8
#: Elements of a step of matrix units; bytes of a load, as many as can be and as few as should be.
_STEP: Final = 16
_WIDEST, _NARROWEST = 16, 8


@record
class Convolution:
    """A convolution of any number of spatial axes.

    A tap ``t`` of output ``o`` reads the input at ``o * step + t * dilation - pad``.

    Attributes:
        images: Batch size.
        groups: Number of groups.
        channels: Input channels of a group.
        columns: Output channels of a group.
        in_sizes: Spatial sizes of the input.
        out_sizes: Spatial sizes of the output.
        taps: Of the kernel.
        steps: From output to output.
        dilations: From tap to tap.
        pads: In front of each axis.
    """

    images: DimLike
    groups: DimLike
    channels: DimLike
    columns: DimLike
    in_sizes: Shape
    out_sizes: Shape
    taps: Shape
    steps: Shape
    dilations: Shape
    pads: Shape

    def kernel(
        self,
        x: Factor,
        weights: Factor,
        out: Access,
        expr: Expr,
        extras: Sequence[Extra] = (),
        precision: str = "ieee",
    ) -> tuple[ContractionKernel, tuple[DimLike, ...]]:
        """The kernel, and the integers that its launch needs; see :func:`contraction_kernel`.

        Args:
            x: The input; accesses over images, channels and spatial axes.
            weights: Accesses over output channels, input channels of a group, and taps.
            out: How the result lies, over images, channels and spatial axes.
            expr: What is stored, of the sum and ``extras``.
            extras: Over the axes of the result.
            precision: How float32 is multiplied.

        Raises:
            CompileError: types are not multiplied, or do not agree.
        """
        return contraction_kernel(
            (self.groups,),
            (self.images, *self.out_sizes),
            (self.columns,),
            (*self.taps, self.channels),
            _moved(x, self._image),
            _moved(weights, self._weights),
            self.of_result(out),
            expr,
            [Extra(e.dtype, self.of_result(e.access)) for e in extras],
            self._windows(),
            precision,
            across=self.across,
        )

    @property
    def across(self) -> bool:
        """Whether groups are too small for matrix units: depthwise convolutions, and those of few channels."""
        if not isinstance(self.channels, int) or not isinstance(self.columns, int):
            return False
        return self.groups != 1 and self.channels * self.columns <= _SMALL

    def _windows(self) -> list[Window]:
        """Of those axes along which a tap may lie outside of the input."""
        found = []
        axes = zip(self.out_sizes, self.taps, self.steps, self.dilations, self.pads, self.in_sizes, strict=True)
        for i, (outputs, taps, step, dilation, pad, size) in enumerate(axes):
            last = (outputs - 1) * step + (taps - 1) * dilation - pad
            if not (D.proves_le(pad, 0) and D.proves_le(0, dilation) and D.proves_le(last, size - 1)):
                found.append(Window(1 + i, i, step, dilation, pad, size))
        return found

    def _image(self, access: Access) -> Access:
        image, channel, *space = access.strides
        rows = (image, *(s * step for s, step in zip(space, self.steps, strict=True)))
        depth = (*(s * dilation for s, dilation in zip(space, self.dilations, strict=True)), channel)
        offset = access.offset
        for stride, pad in zip(space, self.pads, strict=True):
            offset = offset - stride * pad
        return Access((channel * self.channels, *rows, *depth), offset)

    def _weights(self, access: Access) -> Access:
        output, channel, *taps = access.strides
        return Access((output * self.columns, *taps, channel, output), access.offset)

    def of_result(self, access: Access) -> Access:
        """An access over images, channels and spatial axes as one over groups, rows and columns."""
        image, channel, *space = access.strides
        return Access((channel * self.columns, image, *space, channel), access.offset)


@record
class Packing:
    """How a convolution's image and weights lie once the image is packed.

    The packed image has its channels last, filled up with zeros, and its borders around it. Taps of the last axis and
    channels are one axis of the depth; it is filled up too, with taps whose weights are zeros.

    Attributes:
        of: The convolution.
        dtype: Of image and weights.
        channels: Of a pixel of the packed image.
        taps: Along the last axis.
        tail: Elements of the depth's last axis that are of no tap.
    """

    of: Convolution
    dtype: str
    channels: int
    taps: int
    tail: int

    @property
    def sizes(self) -> Shape:
        """Of the packed image: images, spatial axes, channels."""
        found = []
        taken = (*self.of.taps[:-1], self.taps)
        for outputs, taps, step, dilation in zip(
            self.of.out_sizes, taken, self.of.steps, self.of.dilations, strict=True
        ):
            found.append(D.maximum(outputs - 1, 0) * step + (taps - 1) * dilation + 1)
        found[-1] = D.ceildiv(found[-1], _STEP) * _STEP  # rows begin at whole lines
        return (self.of.images, *found, self.channels)

    @property
    def bytes(self) -> DimLike:
        """Of the packed image."""
        return D.product(self.sizes) * (bits(self.dtype) // 8)

    def image_kernel(self, image: Access) -> tuple[WindowKernel, tuple[DimLike, ...]]:
        """What packs images: a window of one tap, which finds zeros outside.

        Args:
            image: How the input lies, over images, channels and spatial axes.
        """
        batch, channel, *space = image.strides
        _, *sizes, channels = self.sizes
        pads = zip(sizes, self.of.in_sizes, self.of.pads, strict=True)
        axes = [Axis(out, size, 1, 1, pad, 1) for out, size, pad in pads]
        axes.append(Axis(channels, self.of.channels, 1, 1, 0, 1))
        outer, *inner = contiguous(self.sizes)
        value = operand(0, self.dtype)
        source, target = Access((batch, 0, *space, channel), image.offset), Access((outer, outer, *inner))
        pooling = Pooling(value, "add", 0.0, value, False)
        return pool_kernel(self.of.images, 1, axes, (self.dtype, source), target, pooling, Epilogue(value))

    def kernel(
        self, out: Access, expr: Expr, extras: Sequence[Extra] = ()
    ) -> tuple[ContractionKernel, tuple[DimLike, ...]]:
        """The kernel that multiplies, of the packed image and packed weights; see :meth:`Convolution.kernel`."""
        c = self.of
        batch, *space, _ = contiguous(self.sizes)
        rows = (batch, *(s * step for s, step in zip(space, c.steps, strict=True)))
        taps = tuple(s * dilation for s, dilation in zip(space[:-1], c.dilations[:-1], strict=True))
        depth = (*c.taps[:-1], self.taps * self.channels)
        column, *steps = contiguous((c.columns, *depth))
        return contraction_kernel(
            (c.groups,),
            (c.images, *c.out_sizes),
            (c.columns,),
            depth,
            Factor(self.dtype, Access((0, *rows, *taps, 1))),
            Factor(self.dtype, Access((0, *steps, column))),
            c.of_result(out),
            expr,
            [Extra(e.dtype, c.of_result(e.access)) for e in extras],
            tail=self.tail,
        )

    def weights(self, values: Array) -> Array:
        """Weights ``[M, C, *taps]`` as :meth:`kernel` wants them: ``[M, *taps, C]``, filled up with zeros."""
        last = np.moveaxis(values, 1, -1)
        filled = [(0, 0)] * last.ndim
        filled[-2:] = [(0, self.taps - last.shape[-2]), (0, self.channels - last.shape[-1])]
        return np.ascontiguousarray(np.pad(last, filled))


def packing_of(c: Convolution, dtype: str) -> Packing | None:
    """How a convolution of few channels is packed; None: it is not, because that would cost more than it saves."""
    if c.groups != 1 or not isinstance(c.channels, int) or not c.channels < FEW or not D.is_known(c.taps):
        return None
    if dtype not in ("f16", "bf16") or c.taps[-1] == 1 or c.dilations[-1] != 1 or not isinstance(c.steps[-1], int):
        return None
    pixel = c.steps[-1] * bits(dtype) // 8  # bytes from row to row for each channel
    channels = c.channels
    if pixel * channels % _WIDEST:
        channels = power_of_two(channels)
        while pixel * channels % _NARROWEST:
            channels *= 2
    together = _STEP // math.gcd(_STEP, channels)
    taps = -(-c.taps[-1] // together) * together
    return Packing(c, dtype, channels, taps, (taps - c.taps[-1]) * channels)


def _moved(factor: Factor, over: Callable[[Access], Access]) -> Factor:
    extras = tuple(Extra(e.dtype, over(e.access)) for e in factor.extras)
    return Factor(factor.dtype, over(factor.access), factor.expr, extras)
