"""What a pass of a Fourier transform computes, element by element.

A pass of radix r takes lengths n = r m apart. With p < m and lines of elements that have the same angle it computes ::

    y[r p + j] = w_n^(p j) * sum over k of x[p + m k] * w_r^(j k)        w_n = exp(-2 pi i / n)

where each index selects a line, whose length each pass multiplies by r. The result is in order after the last pass:
Stockham's algorithm (Van Loan, "Computational Frameworks for the Fast Fourier Transform", 1992, section 1.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accord.expr.lang import Expr, operand
from accord.expr.primitives import fma

__all__ = ["RADICES", "butterfly", "factors", "times"]

#: Radices with a pass of their own.
RADICES = (8, 4, 5, 3, 2)

_Complex = tuple[Expr, Expr]


def factors(n: int) -> list[int]:
    """The radices of a transform of length ``n``, in the order of the passes; ones without a pass come as they are.

    Small ones come first, as in NumPy: sums that cancel then leave remainders like those in the standard's test cases.
    """
    found = []
    for radix in (4, 2, 3, 5):
        while n % radix == 0:
            found.append(radix)
            n //= radix
    # eight is two passes fewer than four and two, and three fours are two eights
    fours, twos = found.count(4), found.count(2)
    if fours and twos:
        found.remove(4)
        found.remove(2)
        found.insert(0, 8)
        fours -= 1
    while fours >= 3:
        for _ in range(3):
            found.remove(4)
        found[:0] = [8, 8]
        fours -= 3
    divisor = 7
    while n > 1:
        if divisor * divisor > n:
            divisor = n
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 2
    return found


# complex arithmetic on expressions


def _add(a: _Complex, b: _Complex) -> _Complex:
    return a[0] + b[0], a[1] + b[1]


def _sub(a: _Complex, b: _Complex) -> _Complex:
    return a[0] - b[0], a[1] - b[1]


def times(a: _Complex, w: _Complex) -> _Complex:
    """The product of two complex numbers."""
    return fma(a[0], w[0], -(a[1] * w[1])), fma(a[0], w[1], a[1] * w[0])


def _scaled(a: _Complex, factor: float) -> _Complex:
    return a[0] * factor, a[1] * factor


def _plus_scaled(a: _Complex, b: _Complex, factor: float) -> _Complex:
    return fma(b[0], factor, a[0]), fma(b[1], factor, a[1])


def _turned(a: _Complex) -> _Complex:
    """A quarter turn back: ``-i a``."""
    return a[1], -a[0]


def _two(a: Sequence[_Complex]) -> list[_Complex]:
    return [_add(a[0], a[1]), _sub(a[0], a[1])]


def _three(a: Sequence[_Complex]) -> list[_Complex]:
    total, difference = _add(a[1], a[2]), _sub(a[1], a[2])
    middle, side = _plus_scaled(a[0], total, -0.5), _turned(_scaled(difference, math.sin(math.pi / 3)))
    return [_add(a[0], total), _add(middle, side), _sub(middle, side)]


def _four(a: Sequence[_Complex]) -> list[_Complex]:
    even, odd = _two((a[0], a[2])), _two((a[1], a[3]))
    side = _turned(odd[1])
    return [_add(even[0], odd[0]), _add(even[1], side), _sub(even[0], odd[0]), _sub(even[1], side)]


def _five(a: Sequence[_Complex]) -> list[_Complex]:
    outer, inner = _two((a[1], a[4])), _two((a[2], a[3]))
    c, s = (tuple(f(2 * math.pi * k / 5) for k in (1, 2)) for f in (math.cos, math.sin))
    first = _plus_scaled(_plus_scaled(a[0], outer[0], c[0]), inner[0], c[1])
    second = _plus_scaled(_plus_scaled(a[0], outer[0], c[1]), inner[0], c[0])
    first_side = _turned(_plus_scaled(_scaled(outer[1], s[0]), inner[1], s[1]))
    second_side = _turned(_plus_scaled(_scaled(outer[1], s[1]), inner[1], -s[0]))
    return [
        _add(a[0], _add(outer[0], inner[0])),
        _add(first, first_side),
        _add(second, second_side),
        _sub(second, second_side),
        _sub(first, first_side),
    ]


def _eight(a: Sequence[_Complex]) -> list[_Complex]:
    even, odd = _four(a[::2]), _four(a[1::2])
    half = math.sqrt(0.5)
    turned = _turned(odd[1]), _turned(odd[3])
    odd[1] = _scaled(_add(odd[1], turned[0]), half)
    odd[2] = _turned(odd[2])
    odd[3] = _scaled(_sub(turned[1], odd[3]), half)
    return [_add(e, o) for e, o in zip(even, odd, strict=True)] + [_sub(e, o) for e, o in zip(even, odd, strict=True)]


_SMALL: dict[int, Callable[[Sequence[_Complex]], list[_Complex]]] = {2: _two, 3: _three, 4: _four, 5: _five, 8: _eight}


def butterfly(radix: int, dtype: str) -> list[_Complex]:
    """Outputs of a pass; operands are the inputs' parts, then those of the angles of outputs 1, 2, ..."""
    pairs = [(operand(2 * k, dtype), operand(2 * k + 1, dtype)) for k in range(2 * radix - 1)]
    sums = _SMALL[radix](pairs[:radix])
    return [sums[0], *(times(s, w) for s, w in zip(sums[1:], pairs[radix:], strict=True))]
