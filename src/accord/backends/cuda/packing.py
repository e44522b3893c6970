"""Convolutions of few channels, such as the first one of an image model.

Images are first brought into an order in which a pixel's channels, and so those of all taps along the last axis, follow
each other, with their borders around them: what a row of the contraction reads for a step is then one piece of memory,
and nothing has to be asked about where it lies. Where windows neither overlap nor have anything in front (patches), all
that one of them reads is one piece, and the convolution is a product of matrices.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from accord.backends.cuda.code import CudaLaunch, KernelText
from accord.backends.cuda.contraction import ContractionKernel, Factor, contraction_kernel
from accord.backends.cuda.convolution import Convolution
from accord.backends.cuda.lines import HEAD, NEXT, WAIT, Code, ceildiv, power_of_two
from accord.backends.epilogue import Extra
from accord.backends.protocol import Array
from accord.expr.lang import Expr, bits
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access, contiguous
from accord.record import record

__all__ = ["FEW", "PackKernel", "Packing", "pack_launch", "packing_of"]

#: Channels below which images are packed; a whole vector of 16 bytes needs no packing.
FEW: Final = 8
#: Elements of a step of matrix units; bytes of a load, as many as can be and as few as should be.
_STEP: Final = 16
_WIDEST, _NARROWEST = 16, 8
#: Pixels of a program.
_PIXELS: Final = 256


@record
class PackKernel(KernelText):
    """The Triton text that packs images.

    A program packs pixels of one row. Parameters: pointers of the image and of the packed one; then the integers in
    ``names``. Compile-time ones: BLOCK (pixels).

    Attributes:
        dtype: Of the elements.
        rank: Number of spatial axes.
        inputs: Channels of a pixel.
        channels: Of a packed pixel, the last ones zeros.
        patch: Pixels of a patch along each axis; empty: rows of pixels follow each other.
    """

    dtype: str
    rank: int
    inputs: int
    channels: int
    patch: tuple[int, ...] = ()

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"pack_{hashlib.sha256(f'{self}'.encode()).hexdigest()[:24]}"

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of both."""
        return (self.dtype, self.dtype)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters that are integers, in order.

        Images; of each spatial axis the packed size, the image's size, what lies in front of it, and the image's
        stride; the image's offset, and the strides of its images and channels.
        """
        axes = [f"{part}{a}" for a in range(self.rank) for part in ("n", "size", "pad", "s")]
        return ("images", *axes, "offset", "s_image", "s_channel")

    def text(self) -> str:
        """The module."""
        code, last = Code(), self.rank - 1
        code("row = tl.program_id(0)", "rest = row")
        for a in reversed(range(last)):
            code(f"i{a} = rest % n{a}", f"at{a} = i{a} - pad{a}", f"rest = rest // n{a}")
        places = [f"tl.cast(at{a}, tl.int64) * s{a}" for a in range(last)]
        code(f"x += {' + '.join(['tl.cast(rest, tl.int64) * s_image', 'offset', *places])}")
        code(
            "pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
            f"i{last} = pixel",
            f"at{last} = pixel - pad{last}",
        )
        code(f"width = tl.zeros([], tl.int32) + size{last}")
        for a in range(last):  # a row outside has no pixels
            code(f"width = tl.where((at{a} >= 0) & (at{a} < size{a}), width, 0)")
        code(f"inside = (at{last} >= 0) & (at{last} < width)", f"place = at{last}.to(tl.int64) * s{last}")
        width = power_of_two(self.channels)
        values = []
        code(WAIT)
        for c in range(width):
            load = f"tl.load(x + place + {c} * s_channel, mask=inside, other=0.0)"
            code(f"v{c} = {load if c < self.inputs else 'tl.zeros_like(v0)'}")
            values.append(f"v{c}")
        code(f"channel = tl.arange(0, {width})[None, :]")
        code(f"packed = tl.reshape({_joined(values)}, [BLOCK, {width}])")
        code(NEXT)
        code(f"y += ({self._place()})[:, None] * {self.channels} + channel")
        code(f"tl.store(y, packed, mask=(pixel < n{last})[:, None] & (channel < {self.channels}))")
        return HEAD + code.function(self.symbol, ["x", "y", *self.names, "BLOCK: tl.constexpr"])

    def _place(self) -> str:
        """The number of a packed pixel."""
        last = self.rank - 1
        if not self.patch:
            return f"tl.cast(row, tl.int64) * n{last} + pixel"
        place, within = "tl.cast(rest, tl.int64)", ""
        for a, side in enumerate(self.patch):
            place = f"({place}) * (n{a} // {side}) + i{a} // {side}"
            within = f"({within}) * {side} + i{a} % {side}" if within else f"i{a} % {side}"
        return f"({place}) * {math.prod(self.patch)} + {within}"


def _joined(values: Sequence[str]) -> str:
    """Values side by side, as the last axes of a block."""
    if len(values) == 1:
        return values[0]
    return f"tl.join({_joined(values[::2])}, {_joined(values[1::2])})"


def pack_launch(kernel: PackKernel, hints: Sequence[str], sizes: Sequence[int]) -> CudaLaunch:
    """How it is started.

    Args:
        kernel: The kernel.
        hints: What is known of its integers, see :func:`~accord.backends.cuda.code.exact_hints`.
        sizes: Values of its integers.
    """
    values = dict(zip(kernel.names, sizes, strict=True))
    *outer, width = (values[f"n{a}"] for a in range(kernel.rank))
    block = min(_PIXELS, power_of_two(width))
    grid = (values["images"] * math.prod(outer), ceildiv(width, block), 1)
    return CudaLaunch.of(
        kernel.names, sizes, hints, grid, {"BLOCK": block}, wide=max(map(abs, sizes)) >= 1 << 31,
        warps=max(1, min(4, block // 32)),
    )  # fmt: skip


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
        patches: Windows neither overlap nor have anything in front, and what each of them reads is one piece.
    """

    of: Convolution
    dtype: str
    channels: int
    taps: int
    tail: int
    patches: bool = False

    @property
    def sizes(self) -> Shape:
        """Of the packed image: images, spatial axes, channels; where it is in patches, their pixels behind them."""
        c = self.of
        if self.patches:
            return (c.images, *c.out_sizes, *c.taps, self.channels)
        return (c.images, *self._space(), self.channels)

    def _space(self) -> Shape:
        """Pixels along each axis."""
        c = self.of
        if self.patches:
            return tuple(outputs * taps for outputs, taps in zip(c.out_sizes, c.taps, strict=True))
        found = []
        for outputs, taps, step, dilation in zip(
            c.out_sizes, (*c.taps[:-1], self.taps), c.steps, c.dilations, strict=True
        ):
            found.append(D.maximum(outputs - 1, 0) * step + (taps - 1) * dilation + 1)
        found[-1] = D.ceildiv(found[-1], _STEP) * _STEP  # rows begin at whole lines
        return tuple(found)

    @property
    def bytes(self) -> DimLike:
        """Of the packed image."""
        return D.product(self.sizes) * (bits(self.dtype) // 8)

    def image_kernel(self, image: Access) -> tuple[PackKernel, tuple[DimLike, ...]]:
        """What packs images, and its integer parameters.

        Args:
            image: How the input lies, over images, channels and spatial axes.
        """
        c = self.of
        batch, channel, *space = image.strides
        axes = zip(self._space(), c.in_sizes, c.pads, space, strict=True)
        assert isinstance(c.channels, int)
        patch = tuple(c.taps) if self.patches and D.is_known(c.taps) else ()
        kernel = PackKernel(self.dtype, len(space), c.channels, self.channels, patch)
        return kernel, (c.images, *(d for axis in axes for d in axis), image.offset, batch, channel)

    def kernel(
        self, out: Access, expr: Expr, extras: Sequence[Extra] = ()
    ) -> tuple[ContractionKernel, tuple[DimLike, ...]]:
        """The kernel that multiplies, of the packed image and packed weights; see :meth:`Convolution.kernel`."""
        c, rank = self.of, len(self.of.taps)
        batch, *space, _ = contiguous(self.sizes)
        depth = (*c.taps[:-1], self.taps * self.channels)
        if self.patches:
            rows, taps = (batch, *space[:rank]), tuple(space[rank:-1])
        else:
            rows = (batch, *(s * step for s, step in zip(space, c.steps, strict=True)))
            taps = tuple(s * dilation for s, dilation in zip(space[:-1], c.dilations[:-1], strict=True))
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
    apart = c.taps == c.steps and all(p == 0 for p in c.pads) and all(d == 1 for d in c.dilations)
    if apart and math.prod(c.taps) * c.channels * bits(dtype) // 8 % _WIDEST == 0:
        return Packing(c, dtype, c.channels, c.taps[-1], 0, patches=True)
    pixel = c.steps[-1] * bits(dtype) // 8  # bytes from row to row for each channel
    channels = c.channels
    if pixel * channels % _WIDEST:
        channels = power_of_two(channels)
        while pixel * channels % _NARROWEST:
            channels *= 2
    together = _STEP // math.gcd(_STEP, channels)
    taps = -(-c.taps[-1] // together) * together
    return Packing(c, dtype, channels, taps, (taps - c.taps[-1]) * channels)
