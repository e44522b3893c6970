"""Conv2d: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016, for its sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.library.composing import floats
from accord.library.linear import ACTIVATIONS, Activation, activated
from accord.library.reference import Array, narrow, spatial, wide

__all__ = ["conv2d", "padded", "windows"]


def padded(x: Array, padding: int) -> Array:
    """Images with zeros on all four sides."""
    return np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))


def windows(x: Array, kernel: tuple[int, int], stride: int, dilation: int) -> Array:
    """[N, C, KH, KW, OH, OW] of the windows in images."""
    oh, ow = (spatial(s, k, stride, 0, dilation) for s, k in zip(x.shape[2:], kernel, strict=True))
    found = np.zeros((*x.shape[:2], *kernel, max(oh, 0), max(ow, 0)))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation, j * dilation
            found[:, :, i, j] = x[
                :, :, top : top + (oh - 1) * stride + 1 : stride, left : left + (ow - 1) * stride + 1 : stride
            ]
    return found


@operator("accord::Conv2d")
def conv2d(
    x: Tensor["T", "N", "C", "H", "W"],
    weight: Tensor["T", "M", "C // groups", "KH", "KW"],
    bias: Tensor["T", "M"] | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    activation: Activation = "none",
) -> Tensor[
    "T",
    "N",
    "M",
    "(H + 2 * padding - dilation * (KH - 1) - 1) // stride + 1",
    "(W + 2 * padding - dilation * (KW - 1) - 1) // stride + 1",
]:
    """The sum over channels of a group and places of the window of pixels times weights; then the activation."""
    m, per, kh, kw = weight.shape
    found = windows(padded(wide(x), padding), (kh, kw), stride, dilation)
    n, _, _, _, oh, ow = found.shape
    found = found.reshape(n, groups, per, kh, kw, oh, ow)
    w = wide(weight).reshape(groups, m // groups, per, kh, kw)
    z = np.einsum("ngcijyx,gmcij->ngmyx", found, w, optimize=True).reshape(n, m, oh, ow)
    z = z if bias is None else z + wide(bias)[:, None, None]
    return narrow(z if activation == "none" else ACTIVATIONS[activation][0](z), x)


floats(conv2d, tight=False).scheduling(fuses="contraction", epilogue=True)
conv2d.constraint(
    *("groups >= 1", "stride >= 1", "dilation >= 1", "padding >= 0", "C % groups == 0", "M % groups == 0"),
    *("H + 2 * padding > dilation * (KH - 1)", "W + 2 * padding > dilation * (KW - 1)", "KH >= 1", "KW >= 1"),
)


@conv2d.composition
def implicit_gemm(
    b: Any, x: Any, weight: Any, bias: Any, *, stride: int, padding: int, dilation: int, groups: int, activation: str
) -> Any:
    """The convolution family chooses among patches, staged images and Winograd, and applies the activation."""
    y = b(
        "Conv",
        *(x, weight, bias),
        strides=(stride, stride),
        pads=(padding,) * 4,
        dilations=(dilation, dilation),
        group=groups,
    )
    return activated(b, y, activation)
