"""Values of primitives whose operands are constants."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import Final

from accord.expr.lang import FLOATS, INTS, SIGNED, Expr, bits, const

__all__ = ["fold"]

Number = float | int | bool

_COMPARE: Final[dict[str, Callable[[Number, Number], bool]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_INT: Final[dict[str, Callable[[int, int], int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "min": min,
    "max": max,
}


def _divided(a: float, b: float) -> float:
    """``a / b`` with the results that IEEE 754 gives to division by zero."""
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


# on f32 these round twice, first to f64; for one operation that gives the same (S. A. Figueroa, "When is double
# rounding innocuous?", SIGNUM Newsletter, 1995)
_FLOAT: Final[dict[str, Callable[[float, float], float]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divided,
    "min": lambda a, b: a if math.isnan(a) or a < b else b,
    "max": lambda a, b: a if math.isnan(a) or a > b else b,
}
_WHOLE: Final[dict[str, Callable[[float], int]]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}
_FORMAT: Final = {"f16": "<e", "f32": "<f", "f64": "<d"}


def fold(node: Expr) -> Expr:
    """``node`` as a constant, if its operands are constants and its value is found here; else ``node``."""
    if not node.args or any(a.op != "const" or a.value is None for a in node.args):
        return node
    values = [a.value for a in node.args if a.value is not None]
    value = _value(node, values)
    return node if value is None else const(value, node.dtype)


def _value(node: Expr, v: list[Number]) -> Number | None:
    op, source = node.op, node.args[0].dtype
    if op in _COMPARE:
        return _COMPARE[op](v[0], v[1])
    if op == "isnan":
        return v[0] != v[0]
    if op == "cast":
        return _cast(v[0], source, node.dtype)
    if op == "bitcast":
        return _bitcast(v[0], source, node.dtype)
    if op == "not":
        return not v[0] if source == "bool" else _wrapped(~int(v[0]), node.dtype)
    if source in FLOATS:
        return _float(op, [float(x) for x in v])
    if source in INTS and op in _INT:
        return _wrapped(_INT[op](int(v[0]), int(v[1])), node.dtype)
    if source in INTS and op in ("neg", "abs"):
        return _wrapped(-int(v[0]) if op == "neg" or v[0] < 0 else int(v[0]), node.dtype)
    if source == "bool" and op in _INT and op not in ("add", "sub", "mul"):
        return bool(_INT[op](int(v[0]), int(v[1])))
    return None


def _float(op: str, v: list[float]) -> float | None:
    if op in _FLOAT:
        return _FLOAT[op](v[0], v[1])
    x = v[0]
    if op == "neg":
        return -x
    if op == "abs":
        return abs(x)
    if op == "sqrt":
        return math.sqrt(x) if x >= 0 else math.nan
    if op in _WHOLE:
        return math.copysign(float(_WHOLE[op](x)), x) if math.isfinite(x) else x
    return None


def _wrapped(value: int, dtype: str) -> int:
    """``value`` modulo 2**n in the range of ``dtype``."""
    n = bits(dtype)
    value &= (1 << n) - 1
    return value - (1 << n) if dtype in SIGNED and value >> (n - 1) else value


def _cast(value: Number, source: str, target: str) -> Number | None:
    if target == "bool":
        return value != 0
    if target in FLOATS:
        exact = source in FLOATS or abs(value) <= 2**53
        return float(value) if exact else None
    if source not in FLOATS:
        return _wrapped(int(value), target)
    wide = 64 if target in ("i64", "u32", "u64") else 32
    fits = math.isfinite(value) and abs(value) < 2.0 ** (wide - 1)
    return _wrapped(int(value), target) if fits else None


def _bitcast(value: Number, source: str, target: str) -> Number | None:
    if source in INTS and target in INTS:
        return _wrapped(int(value), target)
    if source in _FORMAT and target in INTS and not math.isnan(value):
        return _wrapped(int.from_bytes(struct.pack(_FORMAT[source], value), "little"), target)
    if source in INTS and target in _FORMAT:
        raw = int(value).to_bytes(bits(source) // 8, "little", signed=source in SIGNED)
        number = float(struct.unpack(_FORMAT[target], raw)[0])
        return None if math.isnan(number) else number
    return None
