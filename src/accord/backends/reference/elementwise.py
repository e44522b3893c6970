"""Elementwise arithmetic, comparison, logic and bit operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import is_float, normal_axis, require, scalar, to_accumulator, widen

__all__ = ["align", "erf", "erfc", "truncated_quotient"]


def _by_element(function: Callable[[float], float], x: Array) -> Array:
    flat = np.asarray(x, dtype=np.float64).reshape(-1)
    return np.fromiter(map(function, flat.tolist()), dtype=np.float64, count=flat.size).reshape(x.shape)


def erf(x: Array) -> Array:
    """Error function of an array, in float64: the C library's, so right to the last bit or so."""
    return _by_element(math.erf, x)


def erfc(x: Array) -> Array:
    """One minus the error function, in float64, without cancellation."""
    return _by_element(math.erfc, x)


#: Exact, or rounded correctly by NumPy in the element's own type.
_EXACT: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Round": np.rint,
    "Sign": np.sign,
    "Sqrt": np.sqrt,
}
#: Computed in float64, since NumPy's float32 versions are off by a few units in the last place.
_TRANSCENDENTAL: dict[str, Callable[[Any], Any]] = {
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": erf,
    "Exp": np.exp,
    "Log": np.log,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Tan": np.tan,
    "Tanh": np.tanh,
}


@implements(*_EXACT)
def exact(op: OpNode, x: Array) -> Array:
    """Apply a function of one variable; floats below 32 bits are computed in float32."""
    return np.asarray(_EXACT[op.op_type](widen(x))).astype(x.dtype)


@implements(*_TRANSCENDENTAL)
def transcendental(op: OpNode, x: Array) -> Array:
    """Apply a function of one variable in float64."""
    return np.asarray(_TRANSCENDENTAL[op.op_type](x.astype(np.float64))).astype(x.dtype)


def align(op: OpNode, a: Array, b: Array) -> Array:
    """Give the second operand the shape that broadcasts as the operator's version says.

    Before version 7, broadcasting was limited and asked for by attributes: ``b`` matches a run of ``a``'s axes
    that begins at ``axis``.

    Args:
        op: The node.
        a: First operand.
        b: Second operand.

    Returns:
        ``b``, perhaps with axes of length one appended.

    Raises:
        ValueError: The shapes do not fit the attributes.
    """
    if op.version >= 7 or not op["broadcast"]:
        require(op.version >= 7 or a.shape == b.shape, f"shapes {a.shape} and {b.shape} differ")
        return b
    axis = op["axis"]
    if axis is None:
        return b
    axis = normal_axis(axis, a.ndim)
    require(axis + b.ndim <= a.ndim, f"shape {b.shape} does not fit {a.shape} at axis {axis}")
    return b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))


def truncated_quotient(a: Array, b: Array) -> Array:
    """Integer division that truncates towards zero.

    A zero divisor gives 0, and the lowest integer divided by -1 gives itself (the quotient wraps around): both
    are undefined in C and trap on common processors.
    """
    quotient = np.floor_divide(a, b)
    remainder = a - quotient * b
    up = (b != 0) & (remainder != 0) & ((a < 0) != (b < 0))
    return np.asarray(quotient + up).astype(a.dtype)


def _divide(a: Array, b: Array) -> Array:
    return np.asarray(np.divide(a, b)) if a.dtype.kind == "f" else truncated_quotient(a, b)


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Div": _divide,
    "Mul": np.multiply,
    "Sub": np.subtract,
}


@implements(*_ARITHMETIC)
def arithmetic(op: OpNode, a: Array, b: Array) -> Array:
    """Add, subtract, multiply or divide with broadcasting; integers wrap around."""
    return np.asarray(_ARITHMETIC[op.op_type](widen(a), widen(align(op, a, b)))).astype(a.dtype)


@implements("Mod")
def mod(op: OpNode, a: Array, b: Array) -> Array:
    """Remainder with the divisor's sign, or the dividend's if ``fmod`` is set; 0 for an integer divisor of 0."""
    function = np.fmod if op["fmod"] else np.mod
    return np.asarray(function(widen(a), widen(b))).astype(a.dtype)


def _integer_power(base: Array, exponent: Array) -> Array:
    """Integer powers that wrap around; a negative exponent gives the reciprocal truncated towards zero."""
    negative = exponent < 0
    result = np.power(base, np.where(negative, 0, exponent).astype(base.dtype))
    if not negative.any():
        return np.asarray(result)
    odd = (exponent & 1).astype(bool)
    reciprocal = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(negative, reciprocal, result)


@implements("Pow")
def power(op: OpNode, base: Array, exponent: Array) -> Array:
    """Power with broadcasting; the result has the base's type."""
    exponent = align(op, base, exponent)
    if is_float(base.dtype) or is_float(exponent.dtype):
        result = np.power(base.astype(np.float64), exponent.astype(np.float64))
    else:
        result = _integer_power(base, exponent)
    return np.asarray(result).astype(base.dtype)


_VARIADIC: dict[str, Callable[[Any, Any], Any]] = {
    "Max": np.maximum,
    "Min": np.minimum,
    "Sum": np.add,
}


@implements(*_VARIADIC)
def variadic(op: OpNode, *inputs: Array) -> Array:
    """Combine any number of tensors with broadcasting; a NaN anywhere makes Max and Min NaN."""
    result = reduce(_VARIADIC[op.op_type], [to_accumulator(x) for x in inputs])
    return np.asarray(result).astype(inputs[0].dtype)


@implements("Mean")
def mean(_op: OpNode, *inputs: Array) -> Array:
    """Average of any number of tensors with broadcasting, taken in float64."""
    total = reduce(np.add, [x.astype(np.float64) for x in inputs])
    return np.asarray(total / len(inputs)).astype(inputs[0].dtype)


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}


@implements(*_COMPARISONS)
def comparison(op: OpNode, a: Array, b: Array) -> Array:
    """Compare with broadcasting; strings compare as wholes."""
    return np.asarray(_COMPARISONS[op.op_type](widen(a), widen(align(op, a, b)))).astype(bool)


_LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}


@implements(*_LOGIC)
def logic(op: OpNode, a: Array, b: Array) -> Array:
    """Combine booleans, or the bits of integers, with broadcasting."""
    return np.asarray(_LOGIC[op.op_type](a, align(op, a, b)))


@implements("Not", "BitwiseNot")
def negation(_op: OpNode, x: Array) -> Array:
    """Negate booleans, or the bits of integers."""
    return np.asarray(np.invert(x))


@implements("BitShift")
def bit_shift(op: OpNode, a: Array, b: Array) -> Array:
    """Shift the bits; a shift by the width or more gives what repeated shifts by one would."""
    require(op["direction"] in ("LEFT", "RIGHT"), f"direction '{op['direction']}' is neither LEFT nor RIGHT")
    function = np.left_shift if op["direction"] == "LEFT" else np.right_shift
    return np.asarray(function(a, b)).astype(a.dtype)


@implements("IsNaN")
def is_nan(_op: OpNode, x: Array) -> Array:
    """Tell which elements are NaN."""
    return np.asarray(np.isnan(widen(x)))


@implements("IsInf")
def is_inf(op: OpNode, x: Array) -> Array:
    """Tell which elements are infinite, with the signs asked for."""
    wide = widen(x)
    positive = np.isposinf(wide) if op["detect_positive"] else np.zeros(x.shape, dtype=bool)
    negative = np.isneginf(wide) if op["detect_negative"] else np.zeros(x.shape, dtype=bool)
    return np.asarray(positive | negative)


@implements("Clip")
def clip(op: OpNode, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Limit the elements; if the limits cross, every element becomes the upper one. NaN stays NaN."""
    lower = op["min"] if low is None else scalar(low)
    upper = op["max"] if high is None else scalar(high)
    result = widen(x)
    if lower is not None:
        result = np.maximum(result, np.asarray(lower, dtype=result.dtype))
    if upper is not None:
        result = np.minimum(result, np.asarray(upper, dtype=result.dtype))
    return np.asarray(result).astype(x.dtype)


@implements("Where")
def where(_op: OpNode, condition: Array, x: Array, y: Array) -> Array:
    """Choose between two tensors element by element, with broadcasting."""
    return np.where(condition, x, y).astype(x.dtype)


@implements("Identity")
def identity(_op: OpNode, x: Any) -> Any:
    """Return the input: tensor, sequence or optional."""
    return x
