"""Expansions: 8-bit arithmetic.

Products are integer products. Most other operators are computed between DequantizeLinear and QuantizeLinear. Sums,
products and averages of elements often fall on the border of two steps; there the order of operations decides, and it
is ONNX Runtime's: the zero point is added before the rounding, where QuantizeLinear adds it after.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.attention import finish_with_state, input_projection
from accord.ops.microsoft.common import (
    Outputs,
    cast,
    copy_attributes,
    like_cast,
    size,
    swap_last_axes,
    to_channels_first,
    to_channels_last,
    wants,
)
from accord.ops.microsoft.fused import CONV_ATTRIBUTES
from accord.ops.microsoft.normalization import mask_lengths
from accord.ops.microsoft.schemas import DOMAIN, NHWC_DOMAIN

__all__ = ["dequantize", "quantize", "scaled_product"]

FLOAT, INT32, UINT32 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.UINT32


def _scalar(b: Builder, x: ir.Value | None) -> ir.Value | None:
    """A parameter of one element as a scalar: the operators take it as a vector too."""
    if x is None or b.fact(x).rank == 0:
        return x
    return b("Reshape", x, b.ints()) if b.shape(x) == (1,) or b.fact(x).rank is None else x


def dequantize(b: Builder, x: ir.Value, scale: ir.Value, zero: ir.Value | None, axis: int | None = None) -> ir.Value:
    """``(x - zero) * scale`` in float32."""
    return b("DequantizeLinear", x, _scalar(b, scale), _scalar(b, zero), axis=axis)


def quantize(b: Builder, x: ir.Value, scale: ir.Value, zero: ir.Value | None, like: ir.Value) -> ir.Value:
    """``saturate(round(x / scale) + zero)`` in the dtype of ``like``."""
    dtype = b.fact(like).dtype
    output = None if zero is not None or dtype is None else int(dtype)
    return b("QuantizeLinear", x, _scalar(b, scale), _scalar(b, zero), output_dtype=output)


@expands("QuantizeLinear", domain=DOMAIN)
def quantize_linear(b: Builder, n: Inference) -> Outputs:
    """As in the ONNX domain; the axis counts only for vectors of parameters."""
    return [
        b("QuantizeLinear", required(n, 0), _scalar(b, required(n, 1)), _scalar(b, given(n, 2)), axis=n.attr("axis"))
    ]


@expands("DequantizeLinear", domain=DOMAIN)
def dequantize_linear(b: Builder, n: Inference) -> Outputs:
    """As in the ONNX domain; the axis counts only for vectors of parameters."""
    return [dequantize(b, required(n, 0), required(n, 1), given(n, 2), n.attr("axis"))]


# Elementwise ------------------------------------------------------------------------------------------------------


def _float(b: Builder, x: ir.Value) -> ir.Value:
    return b("Cast", x, to=int(FLOAT))


def _rounded(b: Builder, x: ir.Value, like: ir.Value) -> ir.Value:
    """``saturate(round(x))`` in the 8-bit dtype of ``like``."""
    dtype = b.fact(like).dtype
    low, high = (-128, 127) if dtype == ir.DataType.INT8 else (0, 255)
    clipped = b("Clip", b("Round", x), b.scalar(low, x), b.scalar(high, x))
    return like_cast(b, clipped, like)


def _zero_point(b: Builder, x: ir.Value | None) -> ir.Value:
    """A zero point in float32; 0 if there is none."""
    scalar = _scalar(b, x)
    return b.const(np.array(0, np.float32)) if scalar is None else _float(b, scalar)


@expands("QLinearAdd", domain=DOMAIN)
def q_linear_add(b: Builder, n: Inference) -> Outputs:
    """``a * A_scale / C_scale + (b * B_scale / C_scale + constant)``: the zero points make one constant."""
    scale = required(n, 6)
    ratios = [b("Div", required(n, i), scale) for i in (1, 4)]
    zeros = [b("Mul", r, _zero_point(b, given(n, i))) for r, i in zip(ratios, (2, 5), strict=True)]
    constant = b("Sub", _zero_point(b, given(n, 7)), b("Add", *zeros))
    left, right = (b("Mul", _float(b, required(n, i)), r) for i, r in zip((0, 3), ratios, strict=True))
    return [_rounded(b, b("Add", left, b("Add", right, constant)), required(n, 0))]


@expands("QLinearMul", domain=DOMAIN)
def q_linear_mul(b: Builder, n: Inference) -> Outputs:
    """The product of integers, times one factor, plus the zero point."""
    factor = b("Div", b("Mul", required(n, 1), required(n, 4)), required(n, 6))
    left, right = (b("Sub", _float(b, required(n, i)), _zero_point(b, given(n, i + 2))) for i in (0, 3))
    y = b("Add", b("Mul", b("Mul", left, right), factor), _zero_point(b, given(n, 7)))
    return [_rounded(b, y, required(n, 0))]


def _unary(b: Builder, n: Inference, build: Callable[[ir.Value], ir.Value]) -> list[ir.Value]:
    x = dequantize(b, required(n, 0), required(n, 1), given(n, 2))
    return [quantize(b, build(x), required(n, 3), given(n, 4), required(n, 0))]


@expands("QLinearSigmoid", domain=DOMAIN)
def q_linear_sigmoid(b: Builder, n: Inference) -> Outputs:
    """Sigmoid."""
    return _unary(b, n, lambda x: b("Sigmoid", x))


@expands("QLinearLeakyRelu", domain=DOMAIN)
def q_linear_leaky_relu(b: Builder, n: Inference) -> Outputs:
    """LeakyRelu."""
    return _unary(b, n, lambda x: b("LeakyRelu", x, alpha=n.attr("alpha", 0.01)))


@expands("QLinearSoftmax", domain=DOMAIN)
def q_linear_softmax(b: Builder, n: Inference) -> Outputs:
    """Over one axis, or, for models older than version 13, over all axes from it on."""
    axis, rank = n.attr("axis", -1), n.tensor(0).rank
    if n.attr("opset", 13) >= 13:
        return _unary(b, n, lambda x: b("Softmax", x, axis=axis))
    if rank is None:
        return None
    first = n.axis(axis, rank)

    def flattened(x: ir.Value) -> ir.Value:
        return b("Reshape", b("Softmax", b("Flatten", x, axis=first), axis=-1), b("Shape", x))

    return _unary(b, n, flattened)


@expands("QLinearReduceMean", domain=DOMAIN)
def q_linear_reduce_mean(b: Builder, n: Inference) -> Outputs:
    """Mean over axes."""
    axes = b.ints(*n.attr("axes"))
    return _unary(b, n, lambda x: b("ReduceMean", x, axes, keepdims=n.attr("keepdims", 1)))


@expands("QLinearWhere", domain=DOMAIN)
def q_linear_where(b: Builder, n: Inference) -> Outputs:
    """Both branches are brought to the scale of the result before the choice."""
    branches = (
        quantize(b, dequantize(b, required(n, i), required(n, i + 1), given(n, i + 2)), required(n, 7), given(n, 8), x)
        for i, x in ((1, required(n, 1)), (4, required(n, 4)))
    )
    return [b("Where", required(n, 0), *branches)]


@expands("QLinearConcat", domain=DOMAIN)
def q_linear_concat(b: Builder, n: Inference) -> Outputs:
    """Each part is brought to the scale of the result; inputs come as data, scale, zero point."""
    scale, zero = required(n, 0), required(n, 1)
    parts = [
        quantize(b, dequantize(b, required(n, i), required(n, i + 1), given(n, i + 2)), scale, zero, zero)
        for i in range(2, len(n.node.inputs), 3)
    ]
    return [b("Concat", *parts, axis=n.attr("axis"))]


# Windows ----------------------------------------------------------------------------------------------------------


@expands("QLinearAveragePool", domain=NHWC_DOMAIN)
@expands("QLinearAveragePool", domain=DOMAIN)
def q_linear_average_pool(b: Builder, n: Inference) -> Outputs:
    """AveragePool in either layout."""
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    rank = len(n.attr("kernel_shape")) + 2
    last = n.node.domain == NHWC_DOMAIN or bool(n.attr("channels_last", 0))
    x = dequantize(b, required(n, 0), required(n, 1), given(n, 2))
    y = b("AveragePool", to_channels_first(b, x, rank) if last else x, **copy_attributes(n, *names))
    y = b("Add", b("Div", y, required(n, 3)), _zero_point(b, given(n, 4)))
    return [_rounded(b, to_channels_last(b, y, rank) if last else y, required(n, 0))]


@expands("QLinearGlobalAveragePool", domain=DOMAIN)
def q_linear_global_average_pool(b: Builder, n: Inference) -> Outputs:
    """GlobalAveragePool in either layout."""
    rank = n.tensor(0).rank
    if rank is None:
        return None
    if not n.attr("channels_last", 0):
        return _unary(b, n, lambda x: b("GlobalAveragePool", x))
    return _unary(b, n, lambda x: to_channels_last(b, b("GlobalAveragePool", to_channels_first(b, x, rank)), rank))


@expands("QLinearConv", domain=DOMAIN)
def q_linear_conv(b: Builder, n: Inference) -> Outputs:
    """The ONNX operator, between transposes if the channels are last."""
    last = bool(n.attr("channels_last", 0))
    rank = n.tensor(3).rank or n.tensor(0).rank
    if rank is None:
        return None
    x = to_channels_first(b, required(n, 0), rank) if last else required(n, 0)
    parameters = [_scalar(b, given(n, i)) if i != 3 else required(n, i) for i in range(1, 8)]
    y = b("QLinearConv", x, *parameters, given(n, 8), **copy_attributes(n, *CONV_ATTRIBUTES))
    return [to_channels_last(b, y, rank) if last else y]


# Matrix products --------------------------------------------------------------------------------------------------


def scaled_product(
    b: Builder,
    a: tuple[ir.Value, ir.Value, ir.Value | None],
    w: tuple[ir.Value, ir.Value, ir.Value | None],
    bias: ir.Value | None,
) -> ir.Value:
    """``(a - zero) @ (w - zero)`` in int32, times both scales, plus ``bias``; each side is data, scale, zero point."""
    product = b("MatMulInteger", a[0], w[0], _scalar(b, a[2]), _scalar(b, w[2]))
    y = b("Mul", b("Cast", product, to=int(FLOAT)), b("Mul", a[1], w[1]))
    return y if bias is None else b("Add", y, bias)


@expands("MatMulIntegerToFloat", domain=DOMAIN)
def mat_mul_integer_to_float(b: Builder, n: Inference) -> Outputs:
    """MatMulInteger, scaled; a vector of scales or zero points of B has one for each column."""
    sides = [(required(n, i), cast(b, required(n, i + 2), FLOAT), given(n, i + 4)) for i in (0, 1)]
    bias = given(n, 6)
    y = scaled_product(b, sides[0], sides[1], None if bias is None else cast(b, bias, FLOAT))
    return [cast(b, y, n.tensor(2).dtype or FLOAT)]


@expands("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_mat_mul(b: Builder, n: Inference) -> Outputs:
    """The range of A decides its scale at run time."""
    a = b.multi("DynamicQuantizeLinear", 3, required(n, 0))
    return [scaled_product(b, (a[0], a[1], a[2]), (required(n, 1), required(n, 2), given(n, 3)), given(n, 4))]


@expands("MatMulInteger16", domain=DOMAIN)
def mat_mul_integer_16(b: Builder, n: Inference) -> Outputs:
    """In 32 bits, wrapping around; unsigned if an input is."""
    dtypes = (n.tensor(0).dtype, n.tensor(1).dtype)
    target = UINT32 if dtypes == (ir.DataType.UINT16, ir.DataType.UINT16) else INT32
    return [b("MatMul", *(b("Cast", required(n, i), to=int(target)) for i in (0, 1)))]


@expands("MulInteger", domain=DOMAIN)
def mul_integer(b: Builder, n: Inference) -> Outputs:
    """Zero points are the second and the fourth input."""

    def centred(index: int) -> ir.Value:
        x, zero = cast(b, required(n, index), INT32), given(n, index + 1)
        return x if zero is None else b("Sub", x, cast(b, zero, INT32))

    return [b("Mul", centred(0), centred(2))]


@expands("ReduceSumInteger", domain=DOMAIN)
def reduce_sum_integer(b: Builder, n: Inference) -> Outputs:
    """In int32 for signed data, uint32 for unsigned."""
    target = UINT32 if n.tensor(0).dtype == ir.DataType.UINT8 else INT32
    wide = cast(b, required(n, 0), target)
    return [b("ReduceSum", wide, b.ints(*n.attr("axes")), keepdims=n.attr("keepdims", 1))]


@expands("QGemm", domain=DOMAIN)
def q_gemm(b: Builder, n: Inference) -> Outputs:
    """C counts in units of the product of the scales; without a scale of the result, it is float32."""
    a, w = required(n, 0), required(n, 3)
    if n.attr("transA", 0):
        a = swap_last_axes(b, a, 2)
    if n.attr("transB", 0):
        w = swap_last_axes(b, w, 2)
    total = b("MatMulInteger", a, w, _scalar(b, given(n, 2)), _scalar(b, given(n, 5)))
    c = given(n, 6)
    if c is not None:
        total = b("Add", total, c)
    scale = b("Mul", required(n, 1), required(n, 4))
    alpha = n.attr("alpha", 1.0)
    if alpha != 1.0:
        scale = b("Mul", scale, b.scalar(alpha, scale))
    y = b("Mul", b("Cast", total, to=int(FLOAT)), scale)
    y_scale = given(n, 7)
    return [y if y_scale is None else quantize(b, y, y_scale, given(n, 8), a)]


# Transformers -----------------------------------------------------------------------------------------------------


@expands("QAttention", domain=DOMAIN)
def q_attention(b: Builder, n: Inference) -> Outputs:
    """An integer input projection, then Attention in float."""
    if n.attr("do_rotary", 0) or n.attr("past_present_share_buffer", 0):
        return None
    left = (required(n, 0), required(n, 3), given(n, 6))
    right = (required(n, 1), required(n, 4), given(n, 7))
    projected = scaled_product(b, left, right, required(n, 2))
    return finish_with_state(b, n, input_projection(b, n, projected), given(n, 5), given(n, 8), None)


@expands("QEmbedLayerNormalization", domain=DOMAIN)
def q_embed_layer_normalization(b: Builder, n: Inference) -> Outputs:
    """Rows are gathered as integers and dequantized after."""
    ids = required(n, 0)

    def table(data: int, scale: int) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        return required(n, data), required(n, scale), given(n, scale + 5)

    def rows(data: int, scale: int, index: ir.Value) -> ir.Value:
        x, s, zero = table(data, scale)
        return dequantize(b, b("Gather", x, index, axis=0), s, zero)

    segments = given(n, 1)
    position, scale, zero = table(3, 9)
    leading = b("Slice", position, b.ints(0), size(b, ids, 1), b.ints(0))
    total = b("Add", rows(2, 8, ids), dequantize(b, leading, scale, zero))
    if segments is not None:
        total = b("Add", total, rows(4, 10, segments))
    gamma, beta = (dequantize(b, *table(i, i + 6)) for i in (5, 6))
    y = b("LayerNormalization", total, gamma, beta, axis=-1, epsilon=n.attr("epsilon", 1e-12))
    return [y, mask_lengths(b, given(n, 7), ids) if wants(n, 1) else None]
