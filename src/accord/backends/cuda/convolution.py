"""Convolutions as contractions: rows are images and pixels of the result, depth is taps and channels of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from accord.backends.cuda.contraction import ContractionKernel, Factor, Window, contraction_kernel
from accord.backends.epilogue import Extra
from accord.expr.lang import Expr
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Convolution"]

#: Products of a group at one tap, up to which they are made one by one.
_SMALL: Final = 16


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


def _moved(factor: Factor, over: Callable[[Access], Access]) -> Factor:
    extras = tuple(Extra(e.dtype, over(e.access)) for e in factor.extras)
    return Factor(factor.dtype, over(factor.access), factor.expr, extras)
