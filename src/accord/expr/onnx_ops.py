"""ONNX elementwise operators as expressions, as the newest version of the operator set defines them.

f16 and bf16 operands are widened to f32, the operator is computed there and its result is rounded once. An operator
that computes in f32 can also be lowered with result type f32 from f32 operands that stand for f16 values: so a fusion
keeps or drops roundings in between.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from accord.expr.lang import FLOATS, INTS, SIGNED, Expr, bits, call, cast, const
from accord.expr.onnx_quantize import dequantize_linear, quantize_linear
from accord.expr.primitives import abs_, bitcast, eq, gt, idiv, irem, isnan, lt, max_, min_, ne, select, shl, shr

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["ELEMENTWISE", "dtype_name", "lower"]

Attributes = Mapping[str, Any]
Rule = Callable[[Attributes, Sequence[Expr]], "Expr | None"]
RawRule = Callable[[Attributes, Sequence["Expr | None"], str], "Expr | None"]

_NAMES: Final = {
    "BOOL": "bool",
    "FLOAT": "f32",
    "DOUBLE": "f64",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    **{f"{s}{n}": f"{s[0].lower()}{n}" for s in ("INT", "UINT") for n in (8, 16, 32, 64)},
}


def dtype_name(dtype: ir.DataType) -> str | None:
    """The element type's name in expressions; None for strings, complex and low-bit numbers."""
    return _NAMES.get(dtype.name)


def lower(op_type: str, attributes: Attributes, args: Sequence[Expr | None], out_dtype: str) -> Expr | None:
    """One output element of an operator as an expression of one element of each input.

    Args:
        op_type: Operator of the ONNX domain.
        attributes: Python values by name; defaults are those of the specification.
        args: The inputs' elements; None for an omitted one.
        out_dtype: Type of the output, which is the result's.

    Returns:
        The expression, or None if the operator is not elementwise or has no meaning here for these types or attributes.
    """
    raw = _RAW.get(op_type)
    if raw is not None:
        return raw(attributes, args, out_dtype)
    rule = _RULES.get(op_type)
    if rule is None or not args:
        return None
    wide = [cast(a, "f32") if a.dtype in ("f16", "bf16") else a for a in args if a is not None]
    if len(wide) != len(args) or (op_type in _REAL_ONLY and wide[0].dtype not in FLOATS):
        return None
    result = rule(attributes, wide)
    return None if result is None else cast(result, out_dtype)


def _number(attributes: Attributes, name: str, default: float) -> float:
    """An attribute, which is an f32; so is its default."""
    value = attributes.get(name)
    return _f32(default if value is None else float(value))


def _f32(value: float) -> float:
    return float(const(value, "f32").value or 0.0)


def _text(attributes: Attributes, name: str, default: str) -> str:
    value = attributes.get(name)
    return value.decode() if isinstance(value, bytes) else default if value is None else str(value)


def _function(name: str) -> Rule:
    """A function or primitive of one float."""
    return lambda _, a: call(name, a[0])


def _comparison(name: str) -> Rule:
    return lambda _, a: call(name, a[0], a[1], dtype="bool")


def _joined(name: str) -> Rule:
    """A primitive of two operands over any number of them."""
    return lambda _, a: functools.reduce(lambda x, y: call(name, x, y), a)


def _div(_: Attributes, a: Sequence[Expr]) -> Expr:
    return a[0] / a[1] if a[0].dtype in FLOATS else idiv(a[0], a[1])


def _mod(attributes: Attributes, a: Sequence[Expr]) -> Expr:
    """Sign of the divisor, or with ``fmod`` of the dividend; an integer by zero gives 0."""
    truncated = bool(attributes.get("fmod") or 0)
    x, y = a
    if x.dtype in FLOATS:
        return call("fmod" if truncated else "floor_mod", x, y)
    rest = irem(x, y)
    if truncated or x.dtype not in SIGNED:
        return rest
    return select(ne(rest, 0) & lt(rest ^ y, 0), rest + y, rest)


def _mean(_: Attributes, a: Sequence[Expr]) -> Expr:
    return functools.reduce(lambda x, y: x + y, a) / float(len(a))


def _relu(_: Attributes, a: Sequence[Expr]) -> Expr:
    return max_(0, a[0])


def _leaky_relu(attributes: Attributes, a: Sequence[Expr]) -> Expr:
    return select(lt(a[0], 0.0), a[0] * _number(attributes, "alpha", 0.01), a[0])


def _prelu(_: Attributes, a: Sequence[Expr]) -> Expr:
    return select(lt(a[0], 0), a[0] * a[1], a[0])


def _thresholded_relu(attributes: Attributes, a: Sequence[Expr]) -> Expr:
    return select(gt(a[0], _number(attributes, "alpha", 1.0)), a[0], 0.0)


def _elu(attributes: Attributes, a: Sequence[Expr]) -> Expr:
    return select(lt(a[0], 0.0), call("expm1", a[0]) * _number(attributes, "alpha", 1.0), a[0])


def _celu(attributes: Attributes, a: Sequence[Expr]) -> Expr | None:
    """max(0, x) + min(0, alpha * expm1(x / alpha)): the second term has the sign of x."""
    alpha = _number(attributes, "alpha", 1.0)
    return select(lt(a[0], 0.0), call("expm1", a[0] / alpha) * alpha, a[0]) if alpha else None


def _selu(attributes: Attributes, a: Sequence[Expr]) -> Expr:
    alpha = _number(attributes, "alpha", 1.67326319217681884765625)
    gamma = _number(attributes, "gamma", 1.05070102214813232421875)
    return select(gt(a[0], 0.0), a[0], call("expm1", a[0]) * alpha) * gamma


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return max_(0.0, min_(1.0, x * alpha + beta))


def _gelu(attributes: Attributes, a: Sequence[Expr]) -> Expr | None:
    name = {"none": "gelu_erf", "tanh": "gelu_tanh"}.get(_text(attributes, "approximate", "none"))
    return None if name is None else call(name, a[0])


def _swish(attributes: Attributes, a: Sequence[Expr]) -> Expr:
    alpha = _number(attributes, "alpha", 1.0)
    return call("silu", a[0]) if alpha == 1 else a[0] * call("sigmoid", a[0] * alpha)


def _shrink(attributes: Attributes, a: Sequence[Expr]) -> Expr:
    bias, threshold = _number(attributes, "bias", 0.0), _number(attributes, "lambd", 0.5)
    x = a[0] if a[0].dtype in FLOATS else cast(a[0], "f64")
    return cast(select(lt(x, -threshold), x + bias, select(gt(x, threshold), x - bias, 0.0)), a[0].dtype)


def _sign(_: Attributes, a: Sequence[Expr]) -> Expr:
    x = a[0]
    if x.dtype in INTS - SIGNED:
        return min_(1, x)
    if x.dtype in SIGNED:
        return max_(-1, min_(1, x))
    return select(gt(x, 0.0), const(1.0, x.dtype), select(lt(x, 0.0), const(-1.0, x.dtype), x))  # 0 and NaN stay


def _is_inf(attributes: Attributes, a: Sequence[Expr]) -> Expr:
    negative = bool(attributes.get("detect_negative", 1))
    positive = bool(attributes.get("detect_positive", 1))
    if negative and positive:
        return eq(abs_(a[0]), math.inf)
    if negative or positive:
        return eq(a[0], math.inf if positive else -math.inf)
    return const(False, "bool")


def _bit_shift(attributes: Attributes, a: Sequence[Expr]) -> Expr | None:
    shift = {"LEFT": shl, "RIGHT": shr}.get(_text(attributes, "direction", ""))
    return None if shift is None else shift(a[0], a[1])


def _pow(_: Attributes, a: Sequence[Expr]) -> Expr:
    """The base's type is the result's. Integer powers are exact modulo 2**n, those to negative exponents truncated."""
    x, y = a
    if x.dtype in INTS and y.dtype in INTS:
        return _integer_pow(x, y)
    if x.dtype in INTS:
        return cast(call("pow", cast(x, "f64"), cast(y, "f64")), x.dtype)
    if y.op == "const" and y.value is not None and float(y.value) == y.value:
        return call("pow", x, const(float(y.value), x.dtype))
    narrow = y.dtype == "f32" or (y.dtype in INTS and bits(y.dtype) <= 16)
    work = x.dtype if narrow else "f64"
    return cast(call("pow", cast(x, work), cast(y, work)), x.dtype)


def _integer_pow(x: Expr, y: Expr) -> Expr:
    """By squaring over the exponent's bits."""
    steps = bits(y.dtype) - (y.dtype in SIGNED)
    known = int(y.value) if y.op == "const" and y.value is not None else None
    if known is not None and known >= 0:
        steps = known.bit_length()
    result, square = const(1, x.dtype), x
    for k in range(steps):
        taken = ne(shr(y, k) & 1, 0)
        result = select(taken, result * square, result)
        square = square * square if k + 1 < steps else square
    if y.dtype not in SIGNED or (known is not None and known >= 0):
        return result
    odd = ne(y & 1, 0)
    inverse = select(eq(x, 1), const(1, x.dtype), const(0, x.dtype))
    if x.dtype in SIGNED:
        inverse = select(eq(x, -1), select(odd, const(-1, x.dtype), const(1, x.dtype)), inverse)
    return select(lt(y, 0), inverse, result)


def _cast(_: Attributes, args: Sequence[Expr | None], out_dtype: str) -> Expr | None:
    return None if args[0] is None else cast(args[0], out_dtype)


def _bit_cast(_: Attributes, args: Sequence[Expr | None], out_dtype: str) -> Expr | None:
    (x,) = args
    if x is None or "bool" in (x.dtype, out_dtype) or bits(x.dtype) != bits(out_dtype):
        return x if x is not None and x.dtype == out_dtype else None
    return bitcast(x, out_dtype)


def _where(_: Attributes, args: Sequence[Expr | None], out_dtype: str) -> Expr | None:
    condition, a, b = args
    if condition is None or a is None or b is None:
        return None
    return cast(select(condition, a, b), out_dtype)


def _clip(_: Attributes, args: Sequence[Expr | None], out_dtype: str) -> Expr | None:
    """Min(max, Max(x, min)); a bound may be omitted."""
    x, low, high = (*args, None, None)[:3]
    if x is None:
        return None
    if x.dtype in ("f16", "bf16"):
        x = cast(x, "f32")
        low = None if low is None else cast(low, "f32")
        high = None if high is None else cast(high, "f32")
    x = x if low is None else max_(low, x)
    x = x if high is None else min_(high, x)
    return cast(x, out_dtype)


_RAW: Final[dict[str, RawRule]] = {
    "BitCast": _bit_cast,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "DequantizeLinear": dequantize_linear,
    "QuantizeLinear": quantize_linear,
    "Where": _where,
}

_UNARY_REAL: Final = {
    **{
        name: name.lower() for name in ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf")
    },
    **{name: name.lower() for name in ("Exp", "Floor", "Log", "Mish", "Reciprocal", "Round", "Sigmoid", "Sin", "Sinh")},
    **{name: name.lower() for name in ("Softplus", "Sqrt", "Tan", "Tanh")},
}

_RULES: Final[dict[str, Rule]] = {
    **{op: _function(name) for op, name in _UNARY_REAL.items()},
    "Abs": _function("abs"),
    "Add": _joined("add"),
    "And": _joined("and"),
    "BitShift": _bit_shift,
    "BitwiseAnd": _joined("and"),
    "BitwiseNot": _function("not"),
    "BitwiseOr": _joined("or"),
    "BitwiseXor": _joined("xor"),
    "Celu": _celu,
    "Div": _div,
    "Elu": _elu,
    "Equal": _comparison("eq"),
    "Gelu": _gelu,
    "Greater": _comparison("gt"),
    "GreaterOrEqual": _comparison("ge"),
    "HardSigmoid": lambda t, a: _hard_sigmoid(a[0], _number(t, "alpha", 0.2), _number(t, "beta", 0.5)),
    "HardSwish": lambda _, a: a[0] * _hard_sigmoid(a[0], _f32(1 / 6), 0.5),
    "IsInf": _is_inf,
    "IsNaN": lambda _, a: isnan(a[0]),
    "LeakyRelu": _leaky_relu,
    "Less": _comparison("lt"),
    "LessOrEqual": _comparison("le"),
    "Max": _joined("max"),
    "Mean": _mean,
    "Min": _joined("min"),
    "Mod": _mod,
    "Mul": _joined("mul"),
    "Neg": _function("neg"),
    "Not": _function("not"),
    "Or": _joined("or"),
    "PRelu": _prelu,
    "Pow": _pow,
    "Relu": _relu,
    "Selu": _selu,
    "Shrink": _shrink,
    "Sign": _sign,
    "Softsign": lambda _, a: a[0] / (abs_(a[0]) + 1.0),
    "Sub": _joined("sub"),
    "Sum": _joined("add"),
    "SwiGLU": lambda t, a: _swish(t, a) * a[1],
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
    "Xor": _joined("xor"),
}

_REAL_ONLY: Final = frozenset(
    {"Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Mean", "Selu", "Softsign"}
    | {"SwiGLU", "Swish", "ThresholdedRelu", *_UNARY_REAL}
)

#: Every operator that :func:`lower` knows.
ELEMENTWISE: Final = frozenset(_RULES) | frozenset(_RAW)
