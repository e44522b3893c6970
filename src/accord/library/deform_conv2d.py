"""Deformable convolution: Dai et al., ICCV 2017; with masks, Zhu et al., "Deformable ConvNets v2", CVPR 2019.

Offsets may be stored as codes of 8 or 4 bits: an offset is ``scale * code``. Then a code says both how far the whole
pixels are and what the weights of interpolation are, so a table with an entry for each code takes the place of
rounding and subtraction.

Accuracy of codes: an offset is off by at most ``scale / 2`` where it is within range, and interpolation between
neighbours that differ by at most d changes by at most ``d * scale / 2`` along each axis. So a result is off by at most
the sum over taps and channels of ``abs(weight) * mask * scale / 2 * (dy + dx)``, dy and dx the largest differences of
vertical and horizontal neighbours (those of the border and zero among them). Beyond that bound nothing is lost: with
offsets that are codes the result is that of DeformConv2d, to the last rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from accord.contract.contract import NanPolicy
from accord.contract.operator import Tensor, operator
from accord.library.composing import cast, floats, shaped
from accord.library.reference import Array, bilinear, narrow, wide
from accord.ops.microsoft.common import half

__all__ = ["deform_conv2d", "quantized_deform_conv2d"]

#: Sizes of the output.
_OH, _OW = (f"({n} + 2 * padding - dilation * (K{n} - 1) - 1) // stride + 1" for n in "HW")


def _convolved(x: Array, weight: Array, offset: Array, mask: Any, bias: Any, geometry: tuple[int, ...]) -> Array:
    """In float64; ``geometry`` is stride, padding, dilation, groups, groups of offsets."""
    stride, padding, dilation, groups, alike = geometry
    n, c, _, _ = x.shape
    m, per, kh, kw = weight.shape
    oh, ow = offset.shape[2:]
    shifts = offset.reshape(n, alike, kh * kw, 2, oh, ow)
    factor = np.ones((n, alike, kh * kw, oh, ow)) if mask is None else mask.reshape(n, alike, kh * kw, oh, ow)
    rows, columns = (np.arange(s) * stride - padding for s in (oh, ow))
    taps = np.zeros((n, c, kh * kw, oh, ow))
    share = c // alike
    down, right = np.divmod(np.arange(kh * kw)[:, None, None], kw)
    for i in range(n):
        for g in range(alike):
            own = slice(g * share, (g + 1) * share)
            y = rows[:, None] + down * dilation + shifts[i, g, :, 0]
            z = columns + right * dilation + shifts[i, g, :, 1]
            taps[i, own] = bilinear(x[i, own], y, z) * factor[i, g]
    taps = taps.reshape(n, groups, per, kh * kw, oh, ow)
    w = weight.reshape(groups, m // groups, per, kh * kw)
    result = np.einsum("ngctyx,gmct->ngmyx", taps, w, optimize=True).reshape(n, m, oh, ow)
    return np.asarray(result if bias is None else result + bias[:, None, None])


def _or_none(x: Any) -> Any:
    return None if x is None else wide(x)


@operator("accord::DeformConv2d")
def deform_conv2d(
    x: Tensor["T", "N", "C", "H", "W"],
    weight: Tensor["T", "M", "C // groups", "KH", "KW"],
    offset: Tensor["T", "N", "2 * offset_groups * KH * KW", _OH, _OW],
    mask: Tensor["T", "N", "offset_groups * KH * KW", _OH, _OW] | None = None,
    bias: Tensor["T", "M"] | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    offset_groups: int = 1,
) -> Tensor["T", "N", "M", _OH, _OW]:
    """A convolution whose every tap is read at a learned offset (y, x), by bilinear interpolation; zero outside."""
    geometry = (stride, padding, dilation, groups, offset_groups)
    y = _convolved(wide(x), wide(weight), wide(offset), _or_none(mask), _or_none(bias), geometry)
    return narrow(y, x)


@operator("accord::QuantizedDeformConv2d")
def quantized_deform_conv2d(
    x: Tensor["T", "N", "C", "H", "W"],
    weight: Tensor["T", "M", "C // groups", "KH", "KW"],
    codes: Tensor["Q", "N", "2 * offset_groups * KH * KW", _OH, _OW],
    scale: Tensor["float32", 1],
    mask: Tensor["T", "N", "offset_groups * KH * KW", _OH, _OW] | None = None,
    bias: Tensor["T", "M"] | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    offset_groups: int = 1,
) -> Tensor["T", "N", "M", _OH, _OW]:
    """DeformConv2d with the offsets ``scale * codes``."""
    geometry = (stride, padding, dilation, groups, offset_groups)
    offset = wide(codes) * wide(scale)
    return narrow(_convolved(wide(x), wide(weight), offset, _or_none(mask), _or_none(bias), geometry), x)


for _operator in (deform_conv2d, quantized_deform_conv2d):
    floats(_operator, tight=False, nan=NanPolicy.UNDEFINED).scheduling(fuses="contraction")
    _operator.constraint(
        *("groups >= 1", "offset_groups >= 1", "stride >= 1", "dilation >= 1", "padding >= 0", "KH >= 1", "KW >= 1"),
        *("C % groups == 0", "M % groups == 0", "C % offset_groups == 0"),
        *("H + 2 * padding > dilation * (KH - 1)", "W + 2 * padding > dilation * (KW - 1)"),
    )
quantized_deform_conv2d.types(Q=("int8", "int4"))


@deform_conv2d.composition
def interpolated_rows(
    b: Any,
    x: Any,
    weight: Any,
    offset: Any,
    mask: Any,
    bias: Any,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    offset_groups: int,
) -> Any:
    """ONNX's operator, whose kernel interpolates rows as the product needs them."""
    return b(
        "DeformConv",
        *(x, weight, offset, bias, mask),
        strides=(stride, stride),
        pads=(padding,) * 4,
        dilations=(dilation, dilation),
        group=groups,
        offset_group=offset_groups,
    )


quantized_deform_conv2d.kernel("table", "generated", None, constant=("scale",))


@quantized_deform_conv2d.composition
def dequantised(b: Any, x: Any, weight: Any, codes: Any, scale: Any, mask: Any, bias: Any, **geometry: int) -> Any:
    """Where the scale is no constant: offsets as numbers, which a short float would round."""
    dtype = b.fact(x).dtype
    real = ir.DataType.FLOAT if half(dtype) else dtype
    offset = b("Mul", cast(b, codes, real), cast(b, shaped(b, scale), real))
    given = [None if v is None else cast(b, v, real) for v in (x, weight, mask, bias)]
    y = interpolated_rows(b, *given[:2], offset, *given[2:], **geometry)
    return cast(b, y, dtype)
