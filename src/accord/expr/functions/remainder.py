"""Remainders of floating-point division, exact as in C's fmod."""

from __future__ import annotations

from typing import Final

from accord.expr.functions.common import in_f64
from accord.expr.lang import Expr, call, cast
from accord.expr.primitives import abs_, copysign, fma, ge, le, lt, ne, rare, select

__all__ = ["floor_mod", "fmod"]

_STEP: Final = 50  # bits of the quotient found by one division, less than a float has
#: Divisions that the greatest quotient of two floats needs.
_STEPS: Final = {"f32": 6, "f64": 42}


def fmod(x: Expr, y: Expr) -> Expr:
    """X - trunc(x / y) * y without rounding, with the sign of x; f32 is computed in f64."""
    a, b = abs_(x), abs_(y)
    if x.dtype == "f32":
        a, b = in_f64(a), in_f64(b)
    quotient = a / b
    common = _step(a, b, quotient)
    rest = rare(ge(quotient, 2.0**_STEP), _long_division(a, b, _STEPS[x.dtype]), common)
    return copysign(abs_(cast(select(lt(a, b), a, rest), x.dtype)), x)


def floor_mod(x: Expr, y: Expr) -> Expr:
    """X - floor(x / y) * y with the sign of y, as Python's and NumPy's ``%``."""
    m = fmod(x, y)
    opposite = ne(m, 0.0) & (lt(m, 0.0) ^ lt(y, 0.0))
    return select(opposite, m + y, copysign(abs_(m), y))


def _step(a: Expr, b: Expr, quotient: Expr) -> Expr:
    """``a`` modulo ``b`` for a quotient that fits a float; rounding can only have made it one too great."""
    r = fma(-call("trunc", quotient), b, a)
    return select(lt(r, 0.0), r + b, r)


def _long_division(a: Expr, b: Expr, steps: int) -> Expr:
    """``a`` modulo ``b`` in steps of some quotient bits each."""
    scaled = [b]
    for _ in range(steps - 1):
        scaled.append(scaled[-1] * 2.0**_STEP)
    for s in reversed(scaled):
        a = select(le(s, a), _step(a, s, a / s), a)
    return a
