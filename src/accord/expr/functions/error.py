"""The error function and the activation that is made of it."""

from __future__ import annotations

from typing import Final

from accord.expr.functions import tables
from accord.expr.functions.common import exp_reduced, horner, in_f64, ldexp
from accord.expr.lang import Expr, cast
from accord.expr.primitives import abs_, copysign, fma, lt, max_, min_, select

__all__ = ["erf", "erfc", "gelu_erf"]

_ERF_END: Final = 3.92  # from here on erf rounds to 1 in f32
_ERF_MIDDLE: Final = 2.4600000381469727
_ERFC_END: Final = 27.3  # from here on erfc underflows in f64
_ERFC_SCALE: Final = 3.75
_GELU_SHIFT: Final = 2.0
_GELU_END: Final = {"f32": 14.6, "f64": 38.6}  # from here on gelu of minus this underflows


def erf(x: Expr) -> Expr:
    """Error function."""
    size = abs_(x)
    square = size * size
    small = fma(horner(square, tables.ERF[x.dtype]), size, size)
    if x.dtype == "f64":
        return copysign(select(lt(size, 1.0), small, 1.0 - _erfc_positive(size)), x)
    limited = min_(_ERF_END, size)
    large = horner(limited - _ERF_MIDDLE, tables.ERF_TAIL["f32"])
    return copysign(select(lt(size, 1.0), small, large), x)


def erfc(x: Expr) -> Expr:
    """1 - erf(x), relative to its own size; f32 is computed in f64."""
    if x.dtype == "f32":
        return cast(erfc(in_f64(x)), "f32")
    size = abs_(x)
    y = _erfc_positive(size)
    small = 1.0 - fma(horner(x * x, tables.ERF["f64"]), x, x)
    return select(lt(size, 0.5), small, select(lt(x, 0.0), 2.0 - y, y))


def _erfc_positive(size: Expr) -> Expr:
    """erfc(size) = exp(-size**2) q(t) / (1 + 2 size) with t = (size - k) / (size + k), f64.

    Form: M. M. Shepherd and J. G. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x**2) erfc x", 1981.
    """
    a = min_(_ERFC_END, size)
    q = _erfc_ratio(a)
    p, n = _exp_of_square(a, 1.0)
    return ldexp(fma(q, p, q), n)


def _erfc_ratio(a: Expr) -> Expr:
    """erfc(a) / exp(-a**2)."""
    t = (a - _ERFC_SCALE) / (a + _ERFC_SCALE)
    return horner(t, tables.ERFC["f64"]) / fma(a, 2.0, 1.0)


def _exp_of_square(a: Expr, factor: float) -> tuple[Expr, Expr]:
    """Gives p and n with exp(-factor * a**2) = (1 + p) * 2**n; what a**2 loses by rounding is put back."""
    square = a * a
    lost = fma(a, a, -square)
    n, r = exp_reduced(square, scale=-factor)
    r = r + lost
    ratio = tables.EXP_RATIO["f32"] if a.dtype == "f32" else (1.0, *tables.EXP["f64"])
    return horner(r, [c * (-factor) ** (k + 1) for k, c in enumerate(ratio)]) * r, n


def gelu_erf(x: Expr) -> Expr:
    """The product of x and the normal distribution: max(x, 0) - abs(x) erfc(abs(x) / sqrt(2)) / 2."""
    a = min_(_GELU_END[x.dtype], abs_(x))
    if x.dtype == "f64":
        q = _erfc_ratio(a * 0.5**0.5) * (a * 0.5)
    else:
        y = a / (a + _GELU_SHIFT)
        q = fma(horner(y, tables.GELU["f32"]) * y, y, y)
    p, n = _exp_of_square(a, 0.5)
    return max_(0.0, x) - ldexp(fma(q, p, q), n)
