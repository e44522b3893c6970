"""The element parts of QuantizeLinear and DequantizeLinear: scale and zero point are operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from accord.expr.functions.binary import FORMATS
from accord.expr.lang import FLOATS, SIGNED, Expr, bits, call, cast, const
from accord.expr.primitives import bitcast, eq, gt, lt, max_, min_, select

__all__ = ["PRECISION", "data_range", "dequantize_linear", "quantize_linear", "quantized", "quantized_product"]

#: Values of the attribute "precision" (TensorProto.DataType).
PRECISION: Final = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}


def quantize_linear(attributes: Mapping[str, Any], args: Sequence[Expr | None], out_dtype: str) -> Expr | None:
    """``saturate(round(x / scale) + zero_point)``, ties to even; NaN gives the zero point.

    The quotient has the attribute's precision, or that of the scale.
    """
    x, scale, zero = (*args, None, None)[:3]
    precision = attributes.get("precision") or 0
    if x is None or scale is None or out_dtype not in ("i8", "u8", "i16", "u16"):
        return None
    work = PRECISION.get(int(precision)) if precision else scale.dtype
    if work not in FLOATS:
        return None
    real = "f64" if work == "f64" else "f32"
    quotient = cast(cast(x, work), real) / cast(cast(scale, work), real)
    return quantized(cast(cast(quotient, work), real), const(0, out_dtype) if zero is None else zero, out_dtype)


def quantized(quotient: Expr, zero: Expr, out_dtype: str) -> Expr:
    """``saturate(round(quotient) + zero)`` for a quotient of f32 or f64, ties to even; NaN gives the zero point."""
    real = quotient.dtype
    form = FORMATS[real]
    size = bits(out_dtype)
    lowest = -(1 << size - 1) if out_dtype in SIGNED else 0
    offset = cast(zero, real)
    low = lowest - offset
    high = lowest + (1 << size) - 1 - offset
    # comparisons in the order of the machine's own minimum and maximum, which let NaN pass
    limited = select(gt(low, quotient), low, quotient)
    limited = select(lt(high, limited), high, limited)
    # this addition rounds to an integer, which its low bits then hold
    whole = bitcast(limited + form.magic, form.signed)
    return cast(whole + cast(zero, form.signed), out_dtype)


def data_range(low: Expr, high: Expr) -> tuple[Expr, Expr]:
    """Scale (f32) and zero point (u8) that cover the data and 0, from the least and the greatest element of f32.

    Data of zeros alone has scale 1.
    """
    high, low = max_(high, 0.0), min_(low, 0.0)
    scale = select(eq(high, low), 1.0, (high - low) / 255.0)
    return scale, cast(call("round", max_(min_(-low / scale, 255.0), 0.0)), "u8")


def quantized_product(x: Expr, factor: Expr, zero: Expr, out_dtype: str) -> Expr:
    """``saturate(round(x * factor) + zero)`` for an i32 below 2**24 and an f32 factor, the product below 2**22.

    The product is not rounded before it is rounded to an integer: that is one fused operation.
    """
    form = FORMATS["f32"]
    whole = bitcast(call("fma", cast(x, "f32"), factor, const(form.magic, "f32")), "i32")
    moved = whole + (cast(zero, "i32") - 0x4B400000)  # the bits of the magic number
    lowest = -(1 << bits(out_dtype) - 1) if out_dtype in SIGNED else 0
    return cast(max_(lowest, min_(lowest + (1 << bits(out_dtype)) - 1, moved)), out_dtype)


def dequantize_linear(_: Mapping[str, Any], args: Sequence[Expr | None], out_dtype: str) -> Expr | None:
    """``(x - zero_point) * scale``, the difference without rounding, the product in f32 or f64."""
    x, scale, zero_point = (*args, None, None)[:3]
    if x is None or scale is None or x.dtype in FLOATS or scale.dtype not in FLOATS or out_dtype not in FLOATS:
        return None
    real = "f64" if out_dtype == "f64" else "f32"
    difference = x
    if zero_point is not None:
        wide = "i32" if bits(x.dtype) <= 16 else "i64"
        difference = cast(x, wide) - cast(zero_point, wide)
    return cast(cast(difference, real) * cast(scale, real), out_dtype)
