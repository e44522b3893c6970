"""Inverse trigonometric functions."""

from __future__ import annotations

from typing import Final

from accord.expr.functions import tables
from accord.expr.functions.common import horner
from accord.expr.lang import Expr
from accord.expr.primitives import abs_, copysign, fma, gt, lt, select, sqrt

__all__ = ["acos", "asin", "atan"]

#: pi / 2 as a float of each type and what is left of it.
_HALF_PI: Final = {
    "f32": (1.57079637050628662109375, -4.371138828673792e-8),
    "f64": (1.5707963267948965580, 6.123233995736765886e-17),
}


def atan(x: Expr) -> Expr:
    """Arc tangent."""
    high, low = _HALF_PI[x.dtype]
    size = abs_(x)
    large = gt(size, 1.0)
    t = select(large, 1.0 / size, size)
    square = t * t
    cubic = horner(square, tables.ATAN[x.dtype]) * (square * t)
    turned = high - (t + (cubic + -low))
    return copysign(select(large, turned, cubic + t), x)


def _asin_parts(size: Expr) -> tuple[Expr, Expr, Expr]:
    """Whether ``size`` is over 1/2, t and p with asin(t) = t + p; t is size, or asin(size) = pi / 2 - 2 asin(t)."""
    large = gt(size, 0.5)
    square = select(large, fma(size, -0.5, 0.5), size * size)
    t = select(large, sqrt(square), size)
    return large, t, horner(square, tables.ASIN[size.dtype]) * (square * t)


def asin(x: Expr) -> Expr:
    """Arc sine, NaN beyond 1."""
    high, low = _HALF_PI[x.dtype]
    large, t, p = _asin_parts(abs_(x))
    turned = high - ((t + t) + ((p + p) + -low))
    return copysign(select(large, turned, t + p), x)


def acos(x: Expr) -> Expr:
    """Arc cosine, NaN beyond 1."""
    high, low = _HALF_PI[x.dtype]
    large, t, p = _asin_parts(abs_(x))
    negative = lt(x, 0.0)
    double = (t + t) + (p + p)
    # over 1/2 no subtraction of nearly equal numbers: acos(x) = 2 asin(t)
    far = select(negative, 2.0 * high - (double + -2.0 * low), double)
    signed = select(negative, -t, t)
    near = high - (signed + (select(negative, -p, p) + -low))
    return select(large, far, near)
