"""sin, cos and tan over the whole range of floats.

The argument's size is reduced to r with abs(x) = (n + shift) * unit + r. Small arguments: Cody and Waite's subtraction of
a constant split in three, with fused multiply-add. Large ones: Payne and Hanek's product of x with those bits of
1 / unit that matter ("Radian reduction for trigonometric functions", SIGNUM Newsletter, 1983), in 32-bit digits, behind
a branch that is nearly never taken.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

from accord.expr.functions import tables
from accord.expr.functions.binary import FORMATS
from accord.expr.functions.common import INF, horner
from accord.expr.lang import Expr, cast, const
from accord.expr.primitives import abs_, bitcast, fma, ge, lt, ne, rare, select, shl, shr

__all__ = ["cos", "sin", "tan"]

#: pi in three parts of one float each, all positive: so a zero stays +0.
_PI: Final = {
    "f32": (float.fromhex("0x1.921fb4p1"), float.fromhex("0x1.4442d0p-23"), float.fromhex("0x1.846988p-47")),
    "f64": (
        float.fromhex("0x1.921fb54442d18p1"),
        float.fromhex("0x1.1a62633145c06p-53"),
        float.fromhex("0x1.c1cd129024e09p-106"),
    ),
}
#: Arguments below this are reduced with the three parts.
_SMALL: Final = {"f32": 2.0**16, "f64": 2.0**24}
#: Digits of 32 bits: those that x has, and those of 1 / unit that are multiplied with them.
_DIGITS: Final = {"f32": (1, 3), "f64": (2, 6)}
_DIGIT: Final = 0xFFFFFFFF
_LEADING: Final = 64  # zeros before the point of 1 / unit, so that no position is negative
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
    size, form = abs_(x), FORMATS[x.dtype]
    count = fma(size, 1 / math.pi, form.magic)
    r = _remainder(size, count - form.magic, 1.0)
    common = _flip(_sin(r), bitcast(count, form.unsigned), x)
    r, n = _payne_hanek(size, half_turns=1, quarter_shift=False)
    large = select(lt(size, INF), _flip(_sin(r), n, x), const(math.nan, x.dtype))
    return rare(ge(size, _SMALL[x.dtype]), large, common)


def cos(x: Expr) -> Expr:
    """Cosine: minus the sine of what is left of an odd multiple of pi / 2, for even n."""
    size, form = abs_(x), FORMATS[x.dtype]
    count = fma(size, 1 / math.pi, -0.5) + form.magic
    r = _remainder(size, (count - form.magic) + 0.5, 1.0)
    common = _flip(_sin(r), ~bitcast(count, form.unsigned), None)
    r, n = _payne_hanek(size, half_turns=1, quarter_shift=True)
    large = select(lt(size, INF), _flip(_sin(r), ~n, None), const(math.nan, x.dtype))
    return rare(ge(size, _SMALL[x.dtype]), large, common)


def tan(x: Expr) -> Expr:
    """Tangent."""
    size, form = abs_(x), FORMATS[x.dtype]
    count = fma(size, 2 / math.pi, form.magic)
    r = _remainder(size, count - form.magic, 0.5)
    common = _tan(r, bitcast(count, form.unsigned), x)
    r, n = _payne_hanek(size, half_turns=2, quarter_shift=False)
    large = select(lt(size, INF), _tan(r, n, x), const(math.nan, x.dtype))
    return rare(ge(size, _SMALL[x.dtype]), large, common)


def _remainder(size: Expr, n: Expr, unit: float) -> Expr:
    """``size - n * unit * pi``."""
    for part in _PI[size.dtype]:
        size = fma(n, -part * unit, size)
    return size


def _sin(r: Expr) -> Expr:
    square = r * r
    return fma(horner(square, tables.SIN[r.dtype]), square * r, r)


def _flip(y: Expr, n: Expr, x: Expr | None) -> Expr:
    """``y`` with its sign changed if n is odd, and again if x is negative."""
    top = FORMATS[y.dtype]
    width = top.width
    sign = shl(n, width - 1)
    if x is not None:
        sign = sign ^ (bitcast(x, top.unsigned) & (1 << (width - 1)))
    return bitcast(bitcast(y, top.unsigned) ^ sign, y.dtype)


def _tan(r: Expr, n: Expr, x: Expr) -> Expr:
    square = r * r
    t = fma(horner(square, tables.TAN[r.dtype]), square * r, r)
    y = select(ne(n & 1, 0), -1.0 / t, t)
    return _flip(y, const(0, n.dtype), x)


def _payne_hanek(size: Expr, *, half_turns: int, quarter_shift: bool) -> tuple[Expr, Expr]:
    """r and n with ``size = (n + shift) * pi / half_turns + r``, n modulo 2, shift 1/2 or 0; for large ``size``."""
    form = FORMATS[size.dtype]
    own, window = _DIGITS[size.dtype]
    word = cast(bitcast(size, form.unsigned), "u64")
    significand = (word & ((1 << form.fraction) - 1)) | (1 << form.fraction)
    # the bit of 1 / pi whose product with the significand's last bit counts single half turns
    exponent = shr(word, form.fraction) + ((1 << 64) - form.bias - form.fraction + _LEADING + half_turns - 2)
    digits = _bits_from(exponent, window, _table(size.dtype))
    product = _multiplied([significand & _DIGIT, shr(significand, 32)][:own], digits)
    top = product[0] + ((1 << 64) - (1 << 30)) if quarter_shift else product[0]
    # the top bit is n's, the rest a fraction, taken as signed: then n is one more if the fraction is negative
    negative = ne(top & (1 << 30), 0)
    n = (shr(top, 31) + select(negative, const(1, "u64"), const(0, "u64"))) & 1
    turned = [top, *product[1:]]
    turned = [select(negative, ~d, d) & _DIGIT for d in turned]
    turned[0] = turned[0] & (_DIGIT >> 2)
    total = const(0.0, "f64")
    for k in reversed(range(min(window, 4))):
        total = fma(cast(turned[k], "f64"), 2.0 ** (-31 - 32 * k), total)
    r = total * (math.pi / half_turns)
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
