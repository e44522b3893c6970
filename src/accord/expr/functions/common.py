"""What the functions share: polynomials, split constants, exponentials in pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from accord.expr.lang import Expr, call, cast, const
from accord.expr.primitives import fma

__all__ = ["INF", "LN2", "LOG2E", "exp_reduced", "horner", "in_f64", "ldexp", "rint"]

INF: Final = math.inf
LOG2E: Final = math.log2(math.e)
#: log(2) as a float of each type and what is left of it.
LN2: Final = {
    "f32": (0.693147182464599609375, -1.904654323148236017e-9),
    "f64": (0.693147180559945286227, 2.319046813846299558e-17),
}


def horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial with these coefficients, lowest power first."""
    result = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def rint(x: Expr) -> Expr:
    """Nearest integer, ties to even."""
    return call("round", x)


def ldexp(x: Expr | float, n: Expr) -> Expr:
    """``x * 2**n``."""
    return call("ldexp", x if isinstance(x, Expr) else const(x, n.dtype), n)


def exp_reduced(x: Expr, *, scale: float = 1.0) -> tuple[Expr, Expr]:
    """``n`` and ``r`` with ``scale * x = n log(2) + scale * r`` and r small (Cody and Waite, two constants).

    ``scale`` is a power of two or its negative: it costs nothing.
    """
    high, low = LN2[x.dtype]
    n = rint(x * (LOG2E * scale))
    r = fma(n, -low / scale, fma(n, -high / scale, x))
    return n, r


def in_f64(x: Expr) -> Expr:
    """``x`` as f64."""
    return cast(x, "f64")
