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

from accord.contract.contract import NanPolicy
from accord.contract.operator import Tensor, operator
from accord.library.composing import floats
from accord.library.reference import Array, bilinear, narrow, wide

__all__ = ["deform_conv2d", "quantized_deform_conv2d"]


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
    for i in range(n):
        for g in range(alike):
            own = slice(g * share, (g + 1) * share)
            for t in range(kh * kw):
                y = rows[:, None] + t // kw * dilation + shifts[i, g, t, 0]
                z = columns[None, :] + t % kw * dilation + shifts[i, g, t, 1]
                taps[i, own, t] = bilinear(x[i, own], y, z) * factor[i, g, t]
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
    offset: Tensor["T", "N", "2 * offset_groups * KH * KW", "OH", "OW"],
    mask: Tensor["T", "N", "offset_groups * KH * KW", "OH", "OW"] | None = None,
    bias: Tensor["T", "M"] | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    offset_groups: int = 1,
) -> Tensor["T", "N", "M", "OH", "OW"]:
    """A convolution whose every tap is read at a learned offset (y, x), by bilinear interpolation; zero outside."""
    geometry = (stride, padding, dilation, groups, offset_groups)
    y = _convolved(wide(x), wide(weight), wide(offset), _or_none(mask), _or_none(bias), geometry)
    return narrow(y, x)


@operator("accord::QuantizedDeformConv2d")
def quantized_deform_conv2d(
    x: Tensor["T", "N", "C", "H", "W"],
    weight: Tensor["T", "M", "C // groups", "KH", "KW"],
    codes: Tensor["Q", "N", "2 * offset_groups * KH * KW", "OH", "OW"],
    scale: Tensor["float32"],
    mask: Tensor["T", "N", "offset_groups * KH * KW", "OH", "OW"] | None = None,
    bias: Tensor["T", "M"] | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    offset_groups: int = 1,
) -> Tensor["T", "N", "M", "OH", "OW"]:
    """DeformConv2d with the offsets ``scale * codes``; ``scale`` is one number."""
    geometry = (stride, padding, dilation, groups, offset_groups)
    offset = np.asarray(codes).astype(np.float64) * float(np.asarray(scale).reshape(()))
    return narrow(_convolved(wide(x), wide(weight), offset, _or_none(mask), _or_none(bias), geometry), x)


for _operator in (deform_conv2d, quantized_deform_conv2d):
    floats(_operator, tight=False, nan=NanPolicy.UNDEFINED, batch=("N",)).scheduling(fuses="contraction")
    _operator.constraint(
        *("groups >= 1", "offset_groups >= 1", "stride >= 1", "dilation >= 1", "padding >= 0", "KH >= 1", "KW >= 1"),
        *("C % groups == 0", "M % groups == 0", "C % offset_groups == 0"),
        "OH == (H + 2 * padding - dilation * (KH - 1) - 1) // stride + 1",
        "OW == (W + 2 * padding - dilation * (KW - 1) - 1) // stride + 1",
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


quantized_deform_conv2d.kernel("table", "generated", None)


@quantized_deform_conv2d.composition
def dequantised(b: Any, x: Any, weight: Any, codes: Any, scale: Any, mask: Any, bias: Any, **geometry: int) -> Any:
    """Where the scale is no constant: offsets as numbers."""
    dtype = b.fact(x).dtype
    number = b("Cast", b("Reshape", scale, b.ints()), to=int(dtype))
    offset = b("Mul", b("Cast", codes, to=int(dtype)), number)
    return interpolated_rows(b, x, weight, offset, mask, bias, **geometry)
