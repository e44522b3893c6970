"""Argument reduction for the trigonometric functions: x = n * unit + r with unit = pi or pi / 2.

Small arguments: Cody and Waite's subtraction of n times a constant split in three, with fused multiply-add. Large ones:
Payne and Hanek's product of x with the bits of 2 / pi that matter ("Radian reduction for trigonometric functions",
SIGNUM Newsletter, 1983), in 32-bit digits; it is printed behind a branch that is nearly never taken.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from accord.expr.functions.binary import FORMATS
from accord.expr.functions.common import ldexp
from accord.expr.lang import Expr, cast, const
from accord.expr.primitives import abs_, bitcast, fma, lt, ne, rare, select, shl, shr

__all__ = ["Reduced", "reduce_pi"]

#: 2 / pi, its first 1216 bits after the point.
_TWO_OVER_PI: Final = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb18d5d0856033046fc7b6babf0cfbc209af4361da9e391615ee61b0865"
    "99855f14a068408d8dffd8804d732731",
    16,
)
_BITS: Final = 1216
_DIGIT: Final = 0xFFFFFFFF

#: pi / 2 in three parts: the first two of few enough bits for n times them to be subtracted without rounding.
_HALF_PI: Final = {
    "f32": (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512451e-15),
    "f64": (1.5707963267948965580, 6.123233995736765886e-17, -1.4973849048591833e-33),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Reduced:
    """``x = n * unit + r``: r in the type of x, and n's low bits in an unsigned integer of the same size."""

    r: Expr
    n: Expr
