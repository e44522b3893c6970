"""Operators that ONNX 1.0 to 1.4 marked experimental and that later versions dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, as_dtype, rebuild, reshape, scalar_like, unsupported

__all__: list[str] = []


def _linear(b: Builder, x: ir.Value, factor: float, offset: float = 0.0) -> ir.Value:
    y = x if factor == 1 else b("Mul", x, scalar_like(b, factor, x))
    return y if offset == 0 else b("Add", y, scalar_like(b, offset, x))


@expands("Affine")
def affine(b: Builder, n: Inference) -> Outputs:
    """``alpha * x + beta``."""
    return [_linear(b, required(n, 0), n.attr("alpha", 1.0), n.attr("beta", 0.0))]


@expands("Scale")
def scale(b: Builder, n: Inference) -> Outputs:
    """``scale * x``."""
    return [_linear(b, required(n, 0), n.attr("scale", 1.0))]


@expands("ScaledTanh")
def scaled_tanh(b: Builder, n: Inference) -> Outputs:
    """``alpha * tanh(beta * x)``."""
    inner = b("Tanh", _linear(b, required(n, 0), n.attr("beta", 1.0)))
    return [_linear(b, inner, n.attr("alpha", 1.0))]


@expands("ParametricSoftplus")
def parametric_softplus(b: Builder, n: Inference) -> Outputs:
    """``alpha * ln(exp(beta * x) + 1)``."""
    inner = b("Softplus", _linear(b, required(n, 0), n.attr("beta", 1.0)))
    return [_linear(b, inner, n.attr("alpha", 1.0))]


@expands("ImageScaler")
def image_scaler(b: Builder, n: Inference) -> Outputs:
    """``scale * x`` plus one number per channel; the image is [N, C, H, W]."""
    x = required(n, 0)
    y = _linear(b, x, n.attr("scale", 1.0))
    bias = n.attr("bias")
    if not bias:
        return [y]
    column = b.const(np.array(bias, dtype=np.float32).reshape(-1, 1, 1))
    return [b("Add", y, b("CastLike", column, x) if b.fact(x).dtype != ir.DataType.FLOAT else column)]


@expands("Crop")
def crop(b: Builder, n: Inference) -> Outputs:
    """Borders (left, top, right, bottom) off an image [N, C, H, W], or (height, width) from the top left border on."""
    left, top, right, bottom = n.attr("border", (0, 0, 0, 0))
    size = n.attr("scale")
    last = np.iinfo(np.int64).max
    ends = (-bottom if bottom else last, -right if right else last) if size is None else (top + size[0], left + size[1])
    return [b("Slice", required(n, 0), b.ints(top, left), b.ints(*ends), b.ints(2, 3))]


@expands("DynamicSlice")
def dynamic_slice(b: Builder, n: Inference) -> Outputs:
    """Slice with its parameters as inputs, which is Slice today."""
    return rebuild(b, n, op_type="Slice")


@expands("MeanVarianceNormalization", before=13)
def mean_variance_normalization(b: Builder, n: Inference) -> Outputs:
    """Before 9 attributes said whether channels are taken together and whether the variance is made 1.

    The batch belongs to the statistics, as with the default axes today, which are stated in any case.
    """
    x = required(n, 0)
    axes = n.attr("axes") or ((0, 1, 2, 3) if n.attr("across_channels", 0) else (0, 2, 3))
    if n.attr("normalize_variance", 1):
        return [b("MeanVarianceNormalization", x, axes=axes)]
    return [b("Sub", x, b("ReduceMean", x, b.ints(*axes), keepdims=1))]


@expands("FC")
def fully_connected(b: Builder, n: Inference) -> Outputs:
    """``x @ w^T + b`` with both coerced to 2-D."""
    x = b("Flatten", required(n, 0), axis=n.attr("axis", 1))
    w = b("Flatten", required(n, 1), axis=n.attr("axis_w", 1))
    return [b("Gemm", x, w, given(n, 2), transB=1)]


@expands("Embedding")
def embedding(b: Builder, n: Inference) -> Outputs:
    """Columns of the weights [O, I]."""
    weights = n.attr("weights")
    n.require(weights is not None, "attribute weights is missing")
    table = b("Transpose", b.const(weights), perm=(1, 0))
    return [b("Gather", table, required(n, 0), axis=0)]


@expands("ConstantFill")
def constant_fill(b: Builder, n: Inference) -> Outputs:
    """One number in the shape that an attribute, an input or the shape of an input states."""
    dtype = ir.DataType(n.attr("dtype", int(ir.DataType.FLOAT)))
    value = np.array([n.attr("value", 0.0)], dtype=np.float64).astype(dtype.numpy())
    return [b("ConstantOfShape", _stated_shape(b, n), value=value)]


@expands("GivenTensorFill")
def given_tensor_fill(b: Builder, n: Inference) -> Outputs:
    """The numbers of ``values`` in the shape that an attribute, an input or the shape of an input states."""
    values = b.const(np.array(n.attr("values", ()), dtype=np.float32))
    source = given(n, 0)
    dtype = None if source is None or n.attr("input_as_shape", 0) else b.fact(source).dtype
    filled = values if dtype is None else as_dtype(b, values, dtype)
    return [reshape(b, filled, _stated_shape(b, n))]


def _stated_shape(b: Builder, n: Inference) -> ir.Value:
    source = given(n, 0)
    if source is None:
        return b.ints(*n.attr("shape", ()))
    sizes = as_dtype(b, source, ir.DataType.INT64) if n.attr("input_as_shape", 0) else b("Shape", source)
    extra: Sequence[int] = n.attr("extra_shape", ())
    return b("Concat", sizes, b.ints(*extra), axis=0) if extra else sizes


@expands("ATen")
def aten(b: Builder, n: Inference) -> Outputs:
    """A call into another framework's library."""
    name = n.attr("operator", "?")
    raise unsupported(
        n, f"the operator calls '{name}' of PyTorch's library, which ONNX does not define.", "Export it again."
    )


@expands("GRUUnit")
def gru_unit(b: Builder, n: Inference) -> Outputs:
    """One step of a GRU, for which no version of the specification gives the equations."""
    raise unsupported(n, "no version of ONNX defines the equations of this operator.", "Export it as GRU.")
