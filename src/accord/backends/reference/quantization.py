"""Conversions between element types, and linear quantisation."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import (
    BFLOAT16,
    LOW_BIT_INTEGERS,
    DType,
    integer_range,
    is_float,
    is_integer,
    narrow,
    normal_axis,
    numpy_dtype,
    require,
    strings,
    widen,
)

__all__ = ["cast_values", "quantize_dynamically", "quantize_values"]

_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
#: The 8-bit floats that the ``saturate`` attribute is about.
_FLOAT8: frozenset[DType] = frozenset(
    numpy_dtype(t)
    for t in (
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
    )
)


def _parse(text: Any, dtype: DType) -> Any:
    word = str(text).strip()
    if is_float(dtype):
        return float(word)
    try:
        return int(word)
    except ValueError:
        return int(float(word))


def _to_e8m0(x: Array, saturate: bool, round_mode: str) -> Array:
    """Convert to powers of two: exponent bytes biased by 127, of which 255 is NaN; the sign is dropped."""
    magnitude = np.abs(x.astype(np.float64))
    fraction, exponent = np.frexp(magnitude)  # magnitude = fraction * 2**exponent, fraction in [0.5, 1)
    below = exponent - 1
    up = {"up": fraction > 0.5, "down": np.zeros(x.shape, dtype=bool), "nearest": fraction >= 0.75}
    require(round_mode in up, f"round_mode '{round_mode}' is unknown")
    byte = np.where(magnitude == 0, -1, below + up[round_mode] + 127)
    byte = np.where(np.isinf(magnitude), 255, byte)
    byte = np.clip(byte, 0, 254) if saturate else np.where((byte < 0) | (byte > 254), 255, byte)
    return np.where(np.isnan(magnitude), 255, byte).astype(np.uint8).view(_E8M0)


def _to_float8(x: Array, dtype: DType, saturate: bool) -> Array:
    if saturate:
        # NaN passes through the limits unchanged; infinities become the largest finite value.
        largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        x = np.clip(x, -largest, largest)
    return narrow(x, dtype)


def _to_integer(x: Array, dtype: DType) -> Array:
    """Convert to integers: floats are truncated, then surplus high bits are dropped; NaN gives 0.

    The specification leaves out-of-range floats undefined; this is its rule for integers, so every machine gives
    the same.
    """
    if is_float(x.dtype):
        wide = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=2.0**64, neginf=-(2.0**63)))
        large = wide >= 2.0**63
        low = np.where(large, np.clip(wide - 2.0**63, 0, 2.0**63 - 1024), np.clip(wide, -(2.0**63), None))
        bits = low.astype(np.int64)
        if dtype == np.uint64:
            return np.where(large, bits.astype(np.uint64) + np.uint64(2**63), bits.astype(np.uint64))
        x = np.where(large, np.int64(2**63 - 1), bits) if dtype == np.int64 else bits
    if dtype in LOW_BIT_INTEGERS:
        least, most = integer_range(dtype)
        width = most - least + 1
        return ((x.astype(np.int64) - least) % width + least).astype(dtype)
    return x.astype(dtype)


def cast_values(x: Array, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """Convert the elements of a tensor to another type, as Cast does.

    Args:
        x: Tensor of any element type.
        dtype: Target type; ``object`` for strings.
        saturate: For 8-bit floats, whether values out of range become the largest finite one.
        round_mode: For float8e8m0: up, down or nearest.

    Returns:
        A tensor of the same shape.

    Raises:
        ValueError: A string is not a number, or ``round_mode`` is unknown.
    """
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "O":
        flat = [_parse(text, np.dtype(np.float64) if dtype.kind == "b" else dtype) for text in x.reshape(-1)]
        source = np.array(flat, dtype=np.int64 if is_integer(dtype) else np.float64).reshape(x.shape)
        return cast_values(source, dtype, saturate, round_mode)
    wide = widen(x)
    if dtype.kind == "O":
        return strings([str(value) for value in wide.reshape(-1)], x.shape)
    if dtype.kind == "b":
        return np.asarray(wide != 0)
    if dtype == _E8M0:
        return _to_e8m0(wide, saturate, round_mode)
    if dtype in _FLOAT8:
        return _to_float8(wide.astype(np.float64) if wide.dtype.kind != "f" else wide, dtype, saturate)
    return _to_integer(wide, dtype) if is_integer(dtype) else narrow(wide, dtype)


@implements("Cast")
def cast(op: OpNode, x: Array) -> Array:
    """Convert to the type of the attribute ``to``."""
    target = op["to"]
    if isinstance(target, str):  # version 1 names the type
        target = TensorProto.DataType.Value(target)
    saturate = op["saturate"] is None or bool(op["saturate"])
    return cast_values(x, numpy_dtype(target), saturate, op["round_mode"] or "up")


@implements("CastLike")
def cast_like(op: OpNode, x: Array, like: Array) -> Array:
    """Convert to the type of the second input."""
    saturate = op["saturate"] is None or bool(op["saturate"])
    return cast_values(x, like.dtype, saturate, op["round_mode"] or "up")


@implements("BitCast")
def bit_cast(op: OpNode, x: Array) -> Array:
    """Read the bits as another type of the same width."""
    dtype = numpy_dtype(op["to"])
    require("O" not in (dtype.kind, x.dtype.kind), "strings have no bit pattern")
    require(_bits(dtype) == _bits(x.dtype), f"{x.dtype} and {dtype} differ in width")
    raw = np.ascontiguousarray(x)
    if x.dtype in LOW_BIT_INTEGERS or dtype in LOW_BIT_INTEGERS:
        mask = (1 << _bits(dtype)) - 1
        # ml_dtypes keeps small types in whole bytes, with the sign of integers extended into the upper bits.
        pattern = raw.view(np.uint8) & np.uint8(mask)
        if dtype in LOW_BIT_INTEGERS:
            return cast_values(pattern, dtype)
        return pattern.view(dtype)
    return raw.view(dtype).reshape(x.shape)


def _bits(dtype: DType) -> int:
    if dtype in LOW_BIT_INTEGERS:
        low, high = integer_range(dtype)
        return (high - low).bit_length()
    if dtype.kind == "V" and dtype != BFLOAT16:
        return int(ml_dtypes.finfo(dtype).bits)  # type: ignore[no-untyped-call]
    return dtype.itemsize * 8


def quantize_values(x: Array, zero: Array | None, dtype: DType, saturate: bool = True) -> Array:
    """Round scaled values to a quantised type: half to even, then the zero point is added, then limited.

    NaN counts as zero for integers.

    Args:
        x: Values already divided by the scale.
        zero: Zero point that broadcasts with ``x``, or None for 0.
        dtype: The quantised type: integer, or a float of 8 bits or less.
        saturate: For 8-bit floats, whether values out of range become the largest finite one.

    Returns:
        A tensor of ``x``'s shape.
    """
    values = x.astype(np.float64)
    if is_float(dtype):
        return cast_values(values if zero is None else values + widen(zero), dtype, saturate)
    values = np.rint(np.nan_to_num(values, nan=0.0))
    if zero is not None:
        values = values + widen(zero).astype(np.float64)
    low, high = integer_range(dtype)
    return np.clip(values, low, high).astype(np.int64).astype(dtype)


def _spread(parameter: Array, x: Array, op: OpNode) -> Array:
    """Make a scale or zero point broadcast with the tensor: per tensor, per axis, or per block."""
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    axis = normal_axis(1 if op["axis"] is None else op["axis"], x.ndim)
    block = op["block_size"] or 0
    if not block:
        require(
            parameter.ndim == 1 and parameter.size == x.shape[axis],
            f"a scale of shape {list(parameter.shape)} does not fit axis {axis} of {list(x.shape)}",
        )
        return parameter.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    require(block > 0, f"block_size {block} is negative")
    expected = [math.ceil(n / block) if a == axis else n for a, n in enumerate(x.shape)]
    require(list(parameter.shape) == expected, f"scales for blocks have shape {list(parameter.shape)}, not {expected}")
    return np.take(np.repeat(parameter, block, axis=axis), range(x.shape[axis]), axis=axis)


@implements("QuantizeLinear")
def quantize_linear(op: OpNode, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """Divide by the scale in its precision (or the one asked for), round, add the zero point, limit."""
    dtype = zero.dtype if zero is not None else numpy_dtype(op["output_dtype"] or TensorProto.UINT8)
    if zero is not None:
        require(
            not op["output_dtype"] or numpy_dtype(op["output_dtype"]) == dtype,
            "output_dtype differs from the zero point's type",
        )
        require(zero.size == scale.size, f"scale {scale.shape} and zero point {zero.shape} differ in shape")
    precision = numpy_dtype(op["precision"]) if op["precision"] else scale.dtype
    if not is_float(precision) or precision == _E8M0:
        precision = np.dtype(np.float32)
    compute = np.dtype(np.float64) if precision == np.float64 else np.dtype(np.float32)
    dividend: Array = x.astype(precision).astype(compute)
    divisor: Array = _spread(scale, x, op).astype(precision).astype(compute)
    ratio = np.divide(dividend, divisor).astype(precision)
    point = None if zero is None else _spread(zero, x, op)
    saturate = op["saturate"] is None or bool(op["saturate"])
    return quantize_values(ratio, point, dtype, saturate)


@implements("DequantizeLinear")
def dequantize_linear(op: OpNode, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """Subtract the zero point, multiply by the scale; the result has the scale's type or the one asked for."""
    dtype = numpy_dtype(op["output_dtype"]) if op["output_dtype"] else scale.dtype
    values = widen(x).astype(np.float64)
    if zero is not None:
        require(zero.size == scale.size, f"scale {scale.shape} and zero point {zero.shape} differ in shape")
        values = values - widen(_spread(zero, x, op))
    return np.asarray(values * widen(_spread(scale, x, op)).astype(np.float64)).astype(dtype)


@implements("DynamicQuantizeLinear")
def dynamic_quantize_linear(_op: OpNode, x: Array) -> tuple[Array, Array, Array]:
    """Data, scale and zero point."""
    return quantize_dynamically(x)


def quantize_dynamically(x: Array) -> tuple[Array, Array, Array]:
    """Quantise to uint8 with a scale and zero point that cover the data and 0; all-zero data has scale 1."""
    high = np.float32(max(0.0, float(x.max(initial=0))))
    low = np.float32(min(0.0, float(x.min(initial=0))))
    scale = np.float32(1) if high == low else (high - low) / np.float32(255)
    zero = np.rint(np.clip(-low / scale, 0, 255)).astype(np.uint8)
    return quantize_values(x / scale, zero, np.dtype(np.uint8)), np.asarray(scale), np.asarray(zero)
