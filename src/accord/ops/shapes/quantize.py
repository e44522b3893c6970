"""Shape rules of quantisation: dtypes come from zero points and attributes, shapes from the data."""

from __future__ import annotations

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import axis_of, dtype_attr, int_attr, operator, same_size

T = ir.DataType


def _may_be_single(shape: Shape) -> bool:
    return len(shape) == 0 or (len(shape) == 1 and (shape[0] == 1 or not isinstance(shape[0], int)))


def _check_granularity(n: Inference, x: Shape | None) -> None:
    """The scale is per tensor, per axis or per block; the zero point has its shape."""
    scale = n.tensor(1).shape
    zero = n.tensor(2).shape if n.has(2) else None
    # One element is per tensor, whether it is written as a scalar or as a vector.
    if scale is not None and zero is not None and not (_may_be_single(scale) and _may_be_single(zero)):
        n.require(len(scale) == len(zero), "scale and zero point differ", expected=len(scale), found=len(zero), value=2)
        for a, b in zip(scale, zero, strict=True):
            same_size(n, a, b, "scale and zero point", value=2)
    block = int_attr(n, "block_size", 0, low=0)
    if scale is None or x is None or _may_be_single(scale) or (len(scale) == len(x) == 1 and not block):
        return
    axis = axis_of(n, int_attr(n, "axis", 1), len(x))
    if block == 0:
        n.require(
            len(scale) == 1, "the scale has the wrong rank", expected="0, 1, or blocks", found=len(scale), value=1
        )
        same_size(n, x[axis], scale[0], "the axis and its scales", value=1)
        return
    n.require(len(scale) == len(x), "the scale has the wrong rank", expected=len(x), found=len(scale), value=1)
    for i, (d, s) in enumerate(zip(x, scale, strict=True)):
        same_size(n, D.ceildiv(d, block) if i == axis else d, s, f"sizes of data and scale on axis {i}", value=1)


@operator("QuantizeLinear", inputs=2)
def quantize_linear(n: Inference) -> list[Fact]:
    """The data's shape; the dtype of the zero point, of ``output_dtype``, or uint8."""
    x = n.tensor(0)
    _check_granularity(n, x.shape)
    stated = dtype_attr(n, "output_dtype")
    zero = n.tensor(2).dtype if n.has(2) else None
    if stated is not None and zero is not None and stated is not zero:
        raise n.error("output_dtype differs from the zero point", expected=zero.name, found=stated.name, value=2)
    default = None if n.has(2) else T.UINT8
    return [TensorFact(zero or stated or default, x.shape)]


@operator("DequantizeLinear", inputs=2)
def dequantize_linear(n: Inference) -> list[Fact]:
    """The data's shape; the dtype of ``output_dtype`` or of the scale."""
    x = n.tensor(0)
    zero = n.tensor(2).dtype if n.has(2) else None
    if zero is not None and x.dtype is not None and zero is not x.dtype:
        raise n.error("data and zero point differ in dtype", expected=x.dtype.name, found=zero.name, value=2)
    _check_granularity(n, x.shape)
    return [TensorFact(dtype_attr(n, "output_dtype", n.tensor(1).dtype), x.shape)]


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(n: Inference) -> list[Fact]:
    """uint8 data, a float scale and a uint8 zero point."""
    return [TensorFact(T.UINT8, n.tensor(0).shape), TensorFact(T.FLOAT, ()), TensorFact(T.UINT8, ())]
