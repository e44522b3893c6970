"""sin, cos and tan over the whole range of floats.

The argument's size is reduced to r with abs(x) = n * pi / 2 + r. Small arguments: Cody and Waite's subtraction of a
constant split in three, with fused multiply-add. Large ones: Payne and Hanek's product of x with those bits of 1 / pi
that matter ("Radian reduction for trigonometric functions", SIGNUM Newsletter, 1983), in 32-bit digits, behind a branch
that is nearly never taken.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Final

from accord.expr.functions import tables
from accord.expr.functions.binary import FORMATS
from accord.expr.functions.common import INF, horner, in_f64
from accord.expr.lang import Expr, cast, const
from accord.expr.primitives import abs_, bitcast, fma, ge, lt, ne, rare, select, shl, shr

__all__ = ["cos", "sin", "tan"]

#: pi in three parts of one float each, all positive: so a zero stays +0.
_PI: Final = {
    "f32": (float.fromhex("0x1.921fb4p1"), float.fromhex("0x1.4442d0p-23"), float.fromhex("0x1.846988p-47")),
    "f64": (
        float.fromhex("0x1.921fb54442d18p1"),
        float.fromhex("0x1.1a62633145c06p-53"),
        float.fromhex("0x1.c1cd129024e08p-106"),
    ),
}
#: Arguments below this are reduced with the three parts.
_SMALL: Final = {"f32": 2.0**16, "f64": 2.0**24}
#: Digits of 32 bits: those that x has, and those of 1 / pi that are multiplied with them.
_DIGITS: Final = {"f32": (1, 3), "f64": (2, 6)}
_DIGIT: Final = 0xFFFFFFFF
_LEADING: Final = 64  # zeros before the point of 1 / pi, so that no position is negative
_TABLE_BITS: Final = 1344


@functools.cache
def _inverse_pi() -> int:
    """1 / pi in fixed point with _TABLE_BITS bits after the point (John Machin's formula for pi)."""
    scale = 1 << (_TABLE_BITS + 64)

    def arctan_inverse(k: int) -> int:
        total, term, n = 0, scale // k, 1
        while term:
            total += (-1) ** (n // 2) * (term // n)
            term //= k * k
            n += 2
        return total

    pi = 16 * arctan_inverse(5) - 4 * arctan_inverse(239)
    return (scale << _TABLE_BITS) // pi


def sin(x: Expr) -> Expr:
    """Sine."""
    return _reduced(x, lambda r, n: _sine(r, n, x))


def cos(x: Expr) -> Expr:
    """Cosine: the sine a quarter turn on."""
    return _reduced(x, lambda r, n: _sine(r, n + 1, abs_(x)))


def tan(x: Expr) -> Expr:
    """Tangent; f32 is computed in f64."""
    if x.dtype == "f32":
        return cast(tan(in_f64(x)), "f32")
    return _reduced(x, lambda r, n: _tangent(r, n, x))


def _reduced(x: Expr, function: Callable[[Expr, Expr], Expr]) -> Expr:
    """``function(r, n)`` where ``abs(x) = n * pi / 2 + r``; NaN for infinities."""
    size, form = abs_(x), FORMATS[x.dtype]
    count = fma(size, 2 / math.pi, form.magic)
    n = count - form.magic
    r = size
    for part in _PI[x.dtype]:
        r = fma(n, -part / 2, r)
    common = function(r, bitcast(count, form.unsigned))
    large = select(lt(size, INF), function(*_payne_hanek(size)), const(math.nan, x.dtype))
    return rare(ge(size, _SMALL[x.dtype]), large, common)


def _sine(r: Expr, n: Expr, x: Expr) -> Expr:
    """Sine of ``n * pi / 2 + r``, negated if ``x`` is negative."""
    form = FORMATS[r.dtype]
    square = r * r
    sine = fma(horner(square, tables.SIN[r.dtype]), square * r, r)
    cosine = fma(horner(square, tables.COS[r.dtype]), square, 1.0)
    y = select(ne(n & 1, 0), cosine, sine)
    flips = shl(n, form.width - 2) ^ bitcast(x, form.unsigned)
    return bitcast(bitcast(y, form.unsigned) ^ (flips & (1 << (form.width - 1))), r.dtype)


def _tangent(r: Expr, n: Expr, x: Expr) -> Expr:
    """Tangent of ``n * pi / 2 + r``, negated if ``x`` is negative."""
    form = FORMATS[r.dtype]
    square = r * r
    t = fma(horner(square, tables.TAN[r.dtype]), square * r, r)
    y = select(ne(n & 1, 0), -1.0 / t, t)
    return bitcast(bitcast(y, form.unsigned) ^ (bitcast(x, form.unsigned) & (1 << (form.width - 1))), r.dtype)


def _payne_hanek(size: Expr) -> tuple[Expr, Expr]:
    """R and n modulo 4 with ``size = n * pi / 2 + r``; for large ``size``."""
    form = FORMATS[size.dtype]
    own, window = _DIGITS[size.dtype]
    word = cast(bitcast(size, form.unsigned), "u64")
    significand = (word & ((1 << form.fraction) - 1)) | (1 << form.fraction)
    # that bit of 1 / pi whose product with the significand's last bit counts whole turns; higher ones do not matter
    position = shr(word, form.fraction) + ((1 << 64) - form.bias - form.fraction + _LEADING - 1)
    digits = _bits_from(position, window, _table(size.dtype))
    top, *lower = _multiplied([significand & _DIGIT, shr(significand, 32)][:own], digits)
    # two bits of n, then a fraction that is taken as signed: n is one more if it is negative
    negative = ne(top & (1 << 29), 0)
    n = shr(top, 30) + select(negative, const(1, "u64"), const(0, "u64"))
    fraction = [select(negative, ~d, d) & _DIGIT for d in (top, *lower)]
    fraction[0] = fraction[0] & (_DIGIT >> 3)
    total = const(0.0, "f64")
    for k in reversed(range(min(window, 4))):
        total = fma(cast(fraction[k], "f64"), 2.0 ** (-30 - 32 * k), total)
    r = total * (math.pi / 2)
    return cast(select(negative, -r, r), size.dtype), cast(n, form.unsigned)


def _table(dtype: str) -> list[Expr]:
    """1 / pi in digits, from the first that a float of type ``dtype`` can need to the last."""
    form = FORMATS[dtype]
    last = _LEADING + form.bias - form.fraction + 32 * (_DIGITS[dtype][1] + 2)
    digits = _inverse_pi() >> (_TABLE_BITS - 32 * (-(-last // 32)) + _LEADING)
    count = -(-last // 32)
    return [const((digits >> (32 * (count - 1 - k))) & _DIGIT, "u64") for k in range(count)]


def _bits_from(position: Expr, count: int, table: Sequence[Expr]) -> list[Expr]:
    """``count`` digits of the table from bit ``position`` on, first digit first."""
    index = shr(position, 5)
    words = list(table)
    for bit in reversed(range((len(table) - 1).bit_length())):
        taken = ne(index & (1 << bit), 0)
        need = count + (1 << bit)  # what smaller steps can still reach
        words = [
            select(taken, words[k + (1 << bit)], words[k]) if k + (1 << bit) < len(words) else words[k]
            for k in range(min(len(words), need))
        ]
    shift = position & 31
    return [shr(shl(words[k], 32) | words[k + 1], 32 - shift) & _DIGIT for k in range(count)]


def _multiplied(factor: Sequence[Expr], digits: Sequence[Expr]) -> list[Expr]:
    """Last ``len(digits)`` digits of the product, first digit first; ``factor`` has its last digit first."""
    low_first = list(reversed(digits))
    result = [const(0, "u64")] * len(digits)
    for i, m in enumerate(factor):
        carry = const(0, "u64")
        for j, v in enumerate(low_first[: len(digits) - i]):
            t = m * v + result[i + j] + carry
            result[i + j] = t & _DIGIT
            carry = shr(t, 32)
    return list(reversed(result))
