"""PixelShuffle: Shi et al., "Real-Time Single Image and Video Super-Resolution", CVPR 2016, equation 4.

On a device that has neither this operator nor DepthToSpace, views and one permutation take its place at load.
"""

from __future__ import annotations

from typing import Any

from accord.contract.operator import Tensor, operator
from accord.library.composing import dims, size
from accord.library.reference import FLOATS, narrow

__all__ = ["pixel_shuffle", "pixel_unshuffle"]


@operator("accord::PixelShuffle")
def pixel_shuffle(
    x: Tensor["T", "N", "C", "H", "W"], *, factor: int
) -> Tensor["T", "N", "C // (factor * factor)", "H * factor", "W * factor"]:
    """``factor**2`` channels become the pixels of a block: channel ``(c, i, j)`` goes to pixel (i, j) of channel c."""
    n, c, h, w = x.shape
    y = x.reshape(n, c // factor**2, factor, factor, h, w).transpose(0, 1, 4, 2, 5, 3)
    return narrow(y.reshape(n, c // factor**2, h * factor, w * factor), x)


@operator("accord::PixelUnshuffle")
def pixel_unshuffle(
    x: Tensor["T", "N", "C", "H", "W"], *, factor: int
) -> Tensor["T", "N", "C * factor * factor", "H // factor", "W // factor"]:
    """The inverse of PixelShuffle."""
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // factor, factor, w // factor, factor).transpose(0, 1, 3, 5, 2, 4)
    return narrow(y.reshape(n, c * factor**2, h // factor, w // factor), x)


pixel_shuffle.constraint("factor >= 1", "C % (factor * factor) == 0")
pixel_unshuffle.constraint("factor >= 1", "H % factor == 0", "W % factor == 0")
for _operator in (pixel_shuffle, pixel_unshuffle):
    _operator.types(T=(*FLOATS, "int8", "uint8", "int16", "int32", "int64")).semantic(batch=("N",))
    _operator.execution(layouts=("contiguous", "strided")).scheduling(fuses="movement")


@pixel_shuffle.composition
def depth_to_space(b: Any, x: Any, *, factor: int) -> Any:
    """ONNX's operator."""
    return b("DepthToSpace", x, blocksize=factor, mode="CRD")


@pixel_unshuffle.composition
def views(b: Any, x: Any, *, factor: int) -> Any:
    """Views and one permutation; ONNX's SpaceToDepth has another order of channels."""
    batch, channels, height, width = (size(b, x, axis) for axis in range(4))
    rows, columns = b("Div", height, b.ints(factor)), b("Div", width, b.ints(factor))
    y = b("Reshape", x, dims(b, batch, channels, rows, factor, columns, factor))
    y = b("Transpose", y, perm=(0, 1, 3, 5, 2, 4))
    return b("Reshape", y, dims(b, batch, b("Mul", channels, b.ints(factor**2)), rows, columns))
