"""Logarithms and the inverse hyperbolic functions."""

from __future__ import annotations

import math
from typing import Final

from accord.expr.functions import tables
from accord.expr.functions.common import LN2, LOG2E, horner, in_f64, ldexp
from accord.expr.lang import Expr, call, cast, const
from accord.expr.primitives import abs_, copysign, fma, gt, lt, max_, min_, select, sqrt

__all__ = ["acosh", "asinh", "atanh", "log", "log1p", "log1p_unit", "log2", "split"]

_HUGE: Final = 2.0**100  # from here on 1 is lost beside x, and x**2 could overflow
_MAX: Final = {"f32": float.fromhex("0x1.fffffep127"), "f64": float.fromhex("0x1.fffffffffffffp1023")}


def split(x: Expr) -> tuple[Expr, Expr]:
    """M in [3/4, 3/2) and e with x = m * 2**e; e is -inf and inf for 0 and infinity, m is NaN below zero."""
    m = call("mantissa", x)
    e = call("exponent", x)
    return m, select(lt(m, 1.0), e + 1.0, e)


def _log(e: Expr, f: Expr) -> Expr:
    """E log(2) + log(1 + f) for f in [-1/4, 1/2)."""
    high, low = LN2[f.dtype]
    if f.dtype == "f32":
        # the constant's error is so small that one is enough
        return fma(e, high, fma(f * f, horner(f, tables.LOG["f32"]), f))
    # K. C. Ng's form (FreeBSD msun, e_log.c): f - (f**2 / 2 - s (f**2 / 2 + R)) with s = f / (2 + f)
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    rest = z * horner(z, tables.LOG_RATIO["f64"])
    small = fma(s, half + rest, e * low)
    return fma(e, high, f - (half - small))


def log(x: Expr) -> Expr:
    """Natural logarithm: -inf at 0, NaN below."""
    m, e = split(x)
    return _log(e, m + -1.0)


def log2(x: Expr) -> Expr:
    """Logarithm to base 2."""
    m, e = split(x)
    f = m + -1.0
    if x.dtype == "f64":
        return fma(_log(const(0.0, "f64"), f), LOG2E, e)
    first, *rest = tables.LOG2["f32"]
    head = const(LOG2E, "f32")
    return fma(f, head, f * horner(f, (first, *rest))) + e


def log1p(x: Expr) -> Expr:
    """log(1 + x), accurate near 0."""
    # exponents are kept finite where they scale, so that -1 and infinity need no case of their own
    _, e = split(x + 1.0)
    scale = ldexp(1.0, -max_({"f32": -30.0, "f64": -60.0}[x.dtype], e))
    f = fma(min_(_MAX[x.dtype], x), scale, scale + -1.0)
    y = copysign(abs_(_log(e, f)), x)  # for -0; all others have that sign already
    return select(lt(x, -1.0), const(math.nan, x.dtype), y)


def log1p_unit(x: Expr) -> Expr:
    """log(1 + x) for x in [0, 1], f32."""
    return fma(x * x, horner(x, tables.LOG1P["f32"]), x)


def asinh(x: Expr) -> Expr:
    """Inverse hyperbolic sine; f32 is computed in f64."""
    if x.dtype == "f32":
        return cast(asinh(in_f64(x)), "f32")
    size = abs_(x)
    huge = gt(size, _HUGE)
    square = size * size
    near = size + square / (sqrt(square + 1.0) + 1.0)
    y = log1p(select(huge, size, near))
    return copysign(select(huge, y + LN2["f64"][0], y), x)


def acosh(x: Expr) -> Expr:
    """Inverse hyperbolic cosine, NaN below 1; f32 is computed in f64."""
    if x.dtype == "f32":
        return cast(acosh(in_f64(x)), "f32")
    t = x + -1.0
    huge = gt(x, _HUGE)
    near = t + sqrt(t * (t + 2.0))
    y = log1p(select(huge, x, near))
    return select(lt(x, 1.0), const(math.nan, "f64"), select(huge, y + LN2["f64"][0], y))


def atanh(x: Expr) -> Expr:
    """Inverse hyperbolic tangent, NaN beyond 1; f32 is computed in f64."""
    if x.dtype == "f32":
        return cast(atanh(in_f64(x)), "f32")
    size = abs_(x)
    return copysign(log1p((size + size) / (1.0 - size)) * 0.5, x)
