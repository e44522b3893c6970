"""The binary representation of floats; exponent and mantissa through integers, where there is no instruction."""

from __future__ import annotations

import dataclasses
from typing import Final

from accord.expr.lang import Expr, cast, const
from accord.expr.primitives import abs_, bitcast, copysign, eq, ge, gt, lt, max_, min_, select, shl, shr

__all__ = ["FORMATS", "Format", "exponent", "ldexp", "mantissa"]


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A binary interchange format of IEEE 754.

    Attributes:
        width: Bits of the whole.
        unsigned: Integer type of the same size.
        signed: Signed integer type of the same size.
        fraction: Bits of the fraction, without the leading one.
        bias: Of the exponent.
    """

    width: int
    unsigned: str
    signed: str
    fraction: int
    bias: int

    @property
    def magic(self) -> float:
        """1.5 * 2**fraction: added to a small number, it leaves the number's nearest integer in the low bits."""
        return 1.5 * 2.0**self.fraction


FORMATS: Final = {"f32": Format(32, "u32", "i32", 23, 127), "f64": Format(64, "u64", "i64", 52, 1023)}


def ldexp(x: Expr, n: Expr) -> Expr:
    """Two multiplications by powers of two that are normal numbers, so that only the last one rounds."""
    form = FORMATS[x.dtype]
    limited = max_(-2.0 * form.bias + 2, min_(2.0 * form.bias, n))
    half = (limited * 0.5 + form.magic) - form.magic
    return x * _power_of_two(half) * _power_of_two(limited - half)


def _power_of_two(n: Expr) -> Expr:
    """``2**n`` for an integer with -bias < n <= bias in a float type."""
    form = FORMATS[n.dtype]
    # the sum's low bits are n + bias; the shift drops the rest
    return bitcast(shl(bitcast(n + (form.magic + form.bias), form.unsigned), form.fraction), n.dtype)


def _normal(x: Expr) -> tuple[Expr, Expr]:
    """``abs(x)`` scaled to a normal number, and the bias that its exponent field then has."""
    form = FORMATS[x.dtype]
    size = abs_(x)
    tiny = lt(size, 2.0 ** (1 - form.bias))
    shift = form.fraction + 1
    scaled = select(tiny, size * 2.0**shift, size)
    bias = select(tiny, const(form.bias + shift, x.dtype), const(form.bias, x.dtype))
    return scaled, bias


def exponent(x: Expr) -> Expr:
    """``floor(log2(abs(x)))`` from the exponent field."""
    form = FORMATS[x.dtype]
    scaled, bias = _normal(x)
    field = cast(cast(shr(bitcast(scaled, form.unsigned), form.fraction), form.signed), x.dtype)
    size = abs_(x)
    finite = select(lt(size, float("inf")), field - bias, size)
    return select(eq(x, 0.0), const(-float("inf"), x.dtype), finite)


def mantissa(x: Expr) -> Expr:
    """The fraction with an exponent that puts it into [3/4, 3/2)."""
    form = FORMATS[x.dtype]
    scaled, _ = _normal(x)
    fraction = bitcast(scaled, form.unsigned) & ((1 << form.fraction) - 1)
    one = bitcast(fraction | (form.bias << form.fraction), x.dtype)
    inside = select(ge(one, 1.5), one * 0.5, one)
    size = abs_(x)
    special = eq(size, 0.0) | eq(x, float("inf"))
    nan = const(float("nan"), x.dtype)
    return select(special, copysign(const(1.0, x.dtype), x), select(gt(x, 0.0), inside, nan))
