"""Sine and cosine of an angle in turns.

The argument is brought near 0 by subtracting a multiple of a quarter, which is exact, so angles that are fractions of
a turn have no error but that of the fraction; quarters of a turn give exactly 0, 1 and -1.
"""

from __future__ import annotations

import math

from accord.expr.functions import tables
from accord.expr.functions.common import horner
from accord.expr.lang import Expr, call, cast
from accord.expr.primitives import fma, ne, select

__all__ = ["cos_turns", "sin_turns"]


def cos_turns(x: Expr) -> Expr:
    """Cosine of ``2 pi x``; ``x`` is f64 and less than 2**50 in size."""
    return _wave(x, 1)


def sin_turns(x: Expr) -> Expr:
    """Sine of ``2 pi x``; ``x`` is f64 and less than 2**50 in size."""
    return _wave(x, 0)


def _wave(x: Expr, ahead: int) -> Expr:
    """Sine of ``2 pi x``, ``ahead`` quarters of a turn on."""
    quarters = call("round", x * 4.0)
    r = (x - quarters * 0.25) * (2 * math.pi)
    square = r * r
    sine = fma(horner(square, tables.SIN["f64"]), square * r, r)
    cosine = fma(horner(square, tables.COS["f64"]), square, 1.0)
    n = cast(quarters, "i64") + ahead
    y = select(ne(n & 1, 0), cosine, sine)
    return select(ne(n & 2, 0), -y, y)
