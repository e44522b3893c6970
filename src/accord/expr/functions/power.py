"""x**y with the full meaning of IEEE 754's pow."""

from __future__ import annotations

import math
from typing import Final

from accord.expr.functions import tables
from accord.expr.functions.binary import FORMATS
from accord.expr.functions.common import INF, horner, in_f64, ldexp, rint
from accord.expr.functions.logarithm import split
from accord.expr.lang import Expr, call, cast, const
from accord.expr.primitives import abs_, bitcast, eq, fma, gt, lt, max_, min_, ne, select, sqrt

__all__ = ["pow_", "reciprocal", "rsqrt"]

#: 1 / log(2) and 2 / 3, each as a float and what is left of it.
_LOG2E: Final = (float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56"))
_TWO_THIRDS: Final = (float.fromhex("0x1.5555555555555p-1"), float.fromhex("0x1.5555555555555p-55"))
_CHAIN_LIMIT: Final = 64


def reciprocal(x: Expr) -> Expr:
    """1 / x."""
    return 1.0 / x


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x)."""
    return 1.0 / sqrt(x)


def pow_(x: Expr, y: Expr) -> Expr:
    """x**y. Constant exponents that allow it become multiplications and square roots."""
    if y.op == "const":
        short = _constant_power(x, float(y.value or 0.0))
        if short is not None:
            return short
    size = abs_(x)
    return _with_sign(_pow_f32(size, y) if x.dtype == "f32" else _pow_f64(size, y), x, y)


def _constant_power(x: Expr, y: float) -> Expr | None:
    if abs(y) == 0.5:
        # IEEE 754's pow knows no negative zero and no NaN here
        root = select(eq(x, -INF), const(INF, x.dtype), sqrt(x + 0.0))
        return root if y > 0 else 1.0 / root
    if not y.is_integer() or abs(y) > _CHAIN_LIMIT:
        return None
    n = int(abs(y))
    if n <= (1 if y < 0 else 3):  # f32: at most one rounding more than one
        power = _chain(x, n)
        return 1.0 / power if y < 0 else power
    if x.dtype == "f64":
        return None
    power = _chain(in_f64(x), n)
    return cast(1.0 / power if y < 0 else power, "f32")


def _chain(x: Expr, n: int) -> Expr:
    """x**n for n >= 0 by squaring."""
    result: Expr | None = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        x = x * x if n else x
    return const(1.0, x.dtype) if result is None else result


def _with_sign(z: Expr, x: Expr, y: Expr) -> Expr:
    """``z = abs(x)**y`` turned into x**y."""
    form = FORMATS[x.dtype]
    whole = eq(call("floor", y), y)
    half = y * 0.5
    odd = whole & ne(call("floor", half), half)
    minus = lt(bitcast(x, form.signed), const(0, form.signed))
    signed = select(odd & minus, -z, z)
    undefined = lt(x, 0.0) & gt(x, -INF) & ~whole
    valid = select(undefined, const(math.nan, x.dtype), signed)
    one = eq(y, 0.0) | eq(x, 1.0) | (eq(x, -1.0) & eq(abs_(y), INF))
    return select(one, const(1.0, x.dtype), valid)


def _pow_f32(size: Expr, y: Expr) -> Expr:
    """size**y through a logarithm in f64."""
    m, e = split(size)
    f = in_f64(m + -1.0)
    log = fma(f, horner(f, tables.POW_LOG2["f64"]), in_f64(e))
    t = max_(-200.0, min_(200.0, in_f64(y) * log))
    n = rint(t)
    r = cast(t - n, "f32")
    return ldexp(horner(r, (1.0, *tables.EXP2["f32"])), cast(n, "f32"))


def _pow_f64(size: Expr, y: Expr) -> Expr:
    """size**y through a logarithm of about 64 bits, as the sum of two floats."""
    log, log_low = _log2(size)
    t = log * y
    t_low = fma(log, y, -t) + log_low * y
    t_low = select(lt(abs_(t), 1200.0), t_low, const(0.0, "f64"))  # beyond, only the limit counts
    t = max_(-1200.0, min_(1200.0, t))
    n = rint(t)
    return ldexp(horner((t - n) + t_low, (1.0, *tables.EXP2["f64"])), n)


def _log2(x: Expr) -> tuple[Expr, Expr]:
    """log2(x) of an f64 as the sum of two floats.

    log(m) = 2 s + 2/3 s**3 + s**5 q(s**2) with s = f / (2 + f), f = m - 1.
    """
    m, e = split(x)
    f = m + -1.0
    d = f + 2.0
    s = f / d
    s_low = (fma(-s, d, f) - s * (f - (d + -2.0))) / d
    square = s * s
    square_low = fma(s, s, -square) + (s + s) * s_low
    cube = square * s
    cube_low = fma(square, s, -cube) + (square_low * s + square * s_low)
    third = cube * _TWO_THIRDS[0]
    third_low = fma(cube, _TWO_THIRDS[0], -third) + fma(cube, _TWO_THIRDS[1], cube_low * _TWO_THIRDS[0])
    rest = cube * square * horner(square, tables.LOG_RATIO_REST["f64"])
    double = s + s
    high = double + third
    low = ((double - high) + third) + (third_low + (s_low + s_low) + rest)
    log = high + low
    log_low = (high - log) + low
    product = log * _LOG2E[0]
    product_low = fma(log, _LOG2E[0], -product) + fma(log, _LOG2E[1], log_low * _LOG2E[0])
    total = e + product
    return total, ((e - total) + product) + product_low
