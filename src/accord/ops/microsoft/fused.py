"""Expansions: convolutions and matrix products with an addition, a scale or an activation fused in."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import (
    Outputs,
    activate,
    copy_attributes,
    swap_last_axes,
    to_channels_first,
    to_channels_last,
)
from accord.ops.microsoft.schemas import DOMAIN

__all__ = ["CONV_ATTRIBUTES", "POOL_ATTRIBUTES", "matrix_product"]

CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
POOL_ATTRIBUTES = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


@expands("FusedConv", domain=DOMAIN)
def fused_conv(b: Builder, n: Inference) -> Outputs:
    """The sum with Z comes before the activation."""
    y = b("Conv", required(n, 0), required(n, 1), given(n, 2), **copy_attributes(n, *CONV_ATTRIBUTES))
    z = given(n, 3)
    if z is not None:
        y = b("Add", y, z)
    return _activated(b, n, y)


def _activated(b: Builder, n: Inference, y: ir.Value) -> list[ir.Value] | None:
    result = activate(b, y, n.attr("activation"), tuple(n.attr("activation_params", ())))
    return None if result is None else [result]


@expands("NhwcConv", "NhwcFusedConv", domain=DOMAIN)
def nhwc_conv(b: Builder, n: Inference) -> Outputs:
    """Conv between two transposes; Z, if given, is channels-last too."""
    rank = n.tensor(1).rank or n.tensor(0).rank
    if rank is None:
        return None
    x = to_channels_first(b, required(n, 0), rank)
    y = b("Conv", x, required(n, 1), given(n, 2), **copy_attributes(n, *CONV_ATTRIBUTES))
    y = to_channels_last(b, y, rank)
    z = given(n, 3)
    if z is not None:
        y = b("Add", y, z)
    return _activated(b, n, y)


@expands("NhwcMaxPool", domain=DOMAIN)
def nhwc_max_pool(b: Builder, n: Inference) -> Outputs:
    """MaxPool between two transposes."""
    rank = len(n.attr("kernel_shape")) + 2
    y = b("MaxPool", to_channels_first(b, required(n, 0), rank), **copy_attributes(n, *POOL_ATTRIBUTES))
    return [to_channels_last(b, y, rank)]


@expands("MaxpoolWithMask", domain=DOMAIN)
def maxpool_with_mask(b: Builder, n: Inference) -> Outputs:
    """Masked elements become the lowest value.

    ONNX Runtime's kernel ends its walk along a window's last axis at the first masked element, which is the same
    for what the operator is made for: masks of right-hand padding.
    """
    x, mask = required(n, 0), required(n, 1)
    lowest = b.scalar(float(np.finfo(np.float32).min), x)
    kept = b("Where", b("Cast", mask, to=int(ir.DataType.BOOL)), x, lowest)
    return [b("MaxPool", kept, **copy_attributes(n, "auto_pad", "kernel_shape", "pads", "strides"))]


@expands("ConvTransposeWithDynamicPads", domain=DOMAIN)
def conv_transpose_with_dynamic_pads(b: Builder, n: Inference) -> Outputs:
    """The padding of a transposed convolution is what is cut off its borders, and Slice can do that at run time."""
    names = ("dilations", "group", "kernel_shape", "output_padding", "strides")
    pads = given(n, 2)
    if pads is None:
        attributes = copy_attributes(n, "auto_pad", *names)
        return [b("ConvTranspose", required(n, 0), required(n, 1), given(n, 3), **attributes)]
    rank = n.tensor(0).rank
    if rank is None or n.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    y = b("ConvTranspose", required(n, 0), required(n, 1), given(n, 3), **copy_attributes(n, *names))
    begin, end = b.multi("Split", 2, pads, axis=0, num_outputs=2)
    stop = b("Sub", b("Shape", y, start=2), end)
    return [b("Slice", y, begin, stop, b.ints(*range(2, rank)))]


# Matrix products --------------------------------------------------------------------------------------------------


def _batch_first(b: Builder, x: ir.Value, rank: int) -> ir.Value:
    """From (M, batch..., K) to (batch..., M, K)."""
    return x if rank < 3 else b("Transpose", x, perm=(*range(1, rank - 1), 0, rank - 1))


def _prepared(b: Builder, x: ir.Value, rank: int | None, trans: bool, batch: bool) -> ir.Value | None:
    if not trans and not batch:
        return x
    if rank is None:
        return None
    if batch:
        x = _batch_first(b, x, rank)
    return swap_last_axes(b, x, rank) if trans and rank > 1 else x


def matrix_product(b: Builder, n: Inference) -> ir.Value | None:
    """``alpha * op(A) @ op(B)`` by the attributes of FusedMatMul; None where a rank is needed and unknown."""
    sides = []
    for i, side in enumerate("AB"):
        trans, batch = bool(n.attr(f"trans{side}", 0)), bool(n.attr(f"transBatch{side}", 0))
        prepared = _prepared(b, required(n, i), n.tensor(i).rank, trans, batch)
        if prepared is None:
            return None
        sides.append(prepared)
    y = b("MatMul", *sides)
    alpha = n.attr("alpha", 1.0)
    return y if alpha == 1.0 else b("Mul", y, b.scalar(alpha, y))


@expands("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_mat_mul(b: Builder, n: Inference) -> Outputs:
    """A matrix product with transposes and a scale."""
    y = matrix_product(b, n)
    return None if y is None else [y]


@expands("SparseToDenseMatMul", domain=DOMAIN)
def sparse_to_dense_mat_mul(b: Builder, n: Inference) -> Outputs:
    """A sparse constant is dense by the time it is a value; a matrix that stays sparse is left alone."""
    return fused_mat_mul(b, n) if n.tensor(0).dtype is not None else None


def _named_activation(b: Builder, n: Inference, y: ir.Value) -> ir.Value | None:
    name = n.attr("activation", "")
    if name.lower() in ("softmax", "logsoftmax"):
        return b("Softmax" if name.lower() == "softmax" else "LogSoftmax", y, axis=n.attr("activation_axis", -1))
    parameters = [n.attr(f"activation_{p}") for p in ("alpha", "beta", "gamma")]
    # Selu's second parameter is called gamma, everyone else's beta.
    chosen = [p for p in parameters if p is not None]
    return activate(b, y, name, chosen)


@expands("FusedMatMulActivation", domain=DOMAIN)
def fused_mat_mul_activation(b: Builder, n: Inference) -> Outputs:
    """FusedMatMul, then an activation."""
    y = matrix_product(b, n)
    result = None if y is None else _named_activation(b, n, y)
    return None if result is None else [result]


@expands("FusedGemm", domain=DOMAIN)
def fused_gemm(b: Builder, n: Inference) -> Outputs:
    """Gemm, then an activation."""
    attributes: dict[str, Any] = copy_attributes(n, "alpha", "beta", "transA", "transB")
    result = _named_activation(b, n, b("Gemm", required(n, 0), required(n, 1), given(n, 2), **attributes))
    return None if result is None else [result]
