"""Minimax coefficients for the functions of ``accord.expr``.

``python scripts/minimax.py > src/accord/expr/functions/tables.py`` computes all of them again, in fifteen seconds; with
names of tables as arguments only those are printed.

Method: Remez exchange on ``w(x) * (f(x) - P(x))`` in 60-digit arithmetic (E. W. Cheney, "Introduction to Approximation
Theory", chapter 3). The coefficients are then rounded to their type one after the other; those that remain make up for
the rounding.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable, Sequence

import mpmath as mp  # type: ignore[import-untyped]

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]


@dataclasses.dataclass(frozen=True)
class Fit:
    """One approximation ``f(x) ~ sum(c[k] * x**(step * k))``.

    Attributes:
        function: What is approximated.
        low: Start of the interval.
        high: End of the interval.
        terms: Number of coefficients.
        weight: Of the error, not negative: makes it relative to what the polynomial is used for.
        step: 2 for a polynomial in the square of x.
        bits: Precision of the coefficients: 24 or 53.
    """

    function: Function
    low: float
    high: float
    terms: int
    weight: Function
    step: int = 1
    bits: int = 24

    @property
    def powers(self) -> range:
        """Exponents of x."""
        return range(0, self.step * self.terms, self.step)


def rounded(x: mp.mpf, bits: int) -> float:
    """``x`` rounded to a float of 24 or 53 bits."""
    value = float(x)
    return struct.unpack("<f", struct.pack("<f", value))[0] if bits == 24 else value


def chebyshev(fit: Fit, n: int) -> list[mp.mpf]:
    """``n`` points inside the interval, denser at its ends."""
    low, high = mp.mpf(fit.low), mp.mpf(fit.high)
    return [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (i + 0.5) / n) for i in range(n)]


def evaluate(terms: dict[int, mp.mpf], x: mp.mpf) -> mp.mpf:
    """The polynomial with these coefficients by exponent."""
    return mp.fsum(c * x**k for k, c in terms.items())


def extrema(grid: Sequence[mp.mpf], errors: Sequence[mp.mpf], error: Function, n: int) -> list[mp.mpf] | None:
    """Where the error is greatest, once in each of its ``n`` signs; None if it has fewer."""
    runs: list[tuple[mp.mpf, int]] = []
    for i, e in enumerate(errors):
        if runs and (e > 0) == (runs[-1][0] > 0):
            if abs(e) > abs(runs[-1][0]):
                runs[-1] = (e, i)
        else:
            runs.append((e, i))
    while len(runs) > n:
        runs.pop(0 if abs(runs[0][0]) < abs(runs[-1][0]) else -1)
    return [_refined(grid, i, error) for _, i in runs] if len(runs) == n else None


def _refined(grid: Sequence[mp.mpf], i: int, error: Function) -> mp.mpf:
    """The extremum near grid point ``i``, by a parabola through its neighbours."""
    if i in (0, len(grid) - 1):
        return grid[i]
    xs = grid[i - 1 : i + 2]
    ys = [error(x) for x in xs]
    d1, d2 = (xs[1] - xs[0]) * (ys[1] - ys[2]), (xs[1] - xs[2]) * (ys[1] - ys[0])
    if d1 == d2:
        return xs[1]
    top = xs[1] - ((xs[1] - xs[0]) * d1 - (xs[1] - xs[2]) * d2) / (2 * (d1 - d2))
    return top if xs[0] < top < xs[2] else xs[1]


class Polynomial:
    """The exchange for one fit."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self.p: dict[int, mp.mpf] = {}
        self.grid = [mp.mpf(fit.low), *chebyshev(fit, 24 * fit.terms + 101), mp.mpf(fit.high)]
        self.values = [(fit.function(x), fit.weight(x)) for x in self.grid]

    def error(self, x: mp.mpf) -> mp.mpf:
        """The weighted error at one point."""
        return self.fit.weight(x) * (self.fit.function(x) - evaluate(self.p, x))

    def run(self) -> mp.mpf:
        """Fit the coefficients; gives the greatest weighted error."""
        n = self.fit.terms + 1
        points = chebyshev(self.fit, n)
        for _ in range(40):
            level = self.solve(points)
            errors = self.errors()
            moved = extrema(self.grid, errors, self.error, n)
            if moved is None or max(map(abs, errors)) <= abs(level) * mp.mpf("1.0001"):
                break
            points = moved
        return max(map(abs, errors))

    def errors(self) -> list[mp.mpf]:
        """The weighted errors on the grid."""
        return [w * (f - evaluate(self.p, x)) for x, (f, w) in zip(self.grid, self.values, strict=True)]

    def solve(self, points: Sequence[mp.mpf]) -> mp.mpf:
        """Coefficients whose error alternates on the points; gives its level."""
        n = len(points)
        a, b = mp.matrix(n, n), mp.matrix(n, 1)
        for i, x in enumerate(points):
            f, w = self.fit.function(x), self.fit.weight(x)
            for j, k in enumerate(self.fit.powers):
                a[i, j] = w * x**k
            a[i, n - 1] = (-1) ** i
            b[i] = w * f
        solution = mp.lu_solve(a, b)
        self.p = {k: solution[j] for j, k in enumerate(self.fit.powers)}
        return solution[n - 1]

    def round_all(self) -> mp.mpf:
        """Round the coefficients, lowest power first; the later ones make up for it as well as they can.

        They follow by least squares, since what is left to fit need not have a best fit that alternates.
        """
        sample = list(zip(self.grid, self.values, strict=True))[::3]
        powers = list(self.fit.powers)
        while powers:
            k = powers.pop(0)
            exact = self.p[k]
            self.p[k] = mp.mpf(rounded(exact, self.fit.bits))
            if powers:
                a = mp.matrix([[w * x**j for j in powers] for x, (_, w) in sample])
                b = mp.matrix([w * (exact - self.p[k]) * x**k for x, (_, w) in sample])
                change = mp.lu_solve(a, b)
                for i, j in enumerate(powers):
                    self.p[j] += change[i]
        return max(map(abs, self.errors()))


def _over(f: Function, limit: mp.mpf | float) -> Function:
    """``f`` with its limit at 0, where it is a quotient 0/0."""
    return lambda x: f(x) if x else mp.mpf(limit)


def _both(
    function: Function, low: float, high: float, weight: Function, terms: tuple[int, int], step: int = 1
) -> dict[str, Fit]:
    return {
        dtype: Fit(function, low, high, count, weight, step, size)
        for dtype, count, size in zip(("f32", "f64"), terms, (24, 53), strict=True)
        if count
    }


def _odd(f: Function, high: float, terms: tuple[int, int], third: mp.mpf) -> dict[str, Fit]:
    """f(x) = x + x**3 q(x**2), relative error of f."""
    return _both(_over(lambda x: (f(x) - x) / x**3, third), 0, high, _over(lambda x: x**3 / f(x), 0), terms, 2)


def _exp_ratio(terms: int) -> dict[str, Fit]:
    f = _over(lambda x: mp.expm1(x) / x, 1)
    return _both(f, -HALF_LN2, HALF_LN2, lambda x: abs(x) / mp.exp(x), (terms, 0))


HALF_LN2 = float(mp.log(2) / 2) * 1.0005  # a little more than half a step, since n comes from a rounded product
QUARTER_PI = float(mp.pi / 4) * 1.01
THIRD = mp.mpf(1) / 3
LOG2E_F32 = mp.mpf(rounded(1 / mp.log(2), 24))
ROOT2 = mp.sqrt(2)
ERF_SPLIT, ERF_END = 1.0, 3.92
ERF_MIDDLE = rounded(mp.mpf(ERF_SPLIT + ERF_END) / 2, 24)
GELU_K, GELU_END = 2.0, 14.6
ERFC_K, ERFC_END = 3.75, 27.3


def _gelu(y: mp.mpf) -> mp.mpf:
    a = GELU_K * y / (1 - y)
    return ((a + GELU_K) * mp.exp(a * a / 2) * mp.erfc(a / ROOT2) / 2 - 1) / y


def _erfc(t: mp.mpf) -> mp.mpf:
    a = ERFC_K * (1 + t) / (1 - t)
    return mp.exp(a * a) * mp.erfc(a) * (1 + 2 * a)


def _log_ratio(s: mp.mpf) -> mp.mpf:
    return (mp.log1p(2 * s / (1 - s)) - 2 * s) / s**3


#: name, what the polynomial is, its fits by dtype
TABLES: dict[str, tuple[str, dict[str, Fit]]] = {
    "EXP": (
        "exp(x) = 1 + x + x**2 q(x), |x| <= log(2) / 2",
        _both(
            _over(lambda x: (mp.exp(x) - 1 - x) / x**2, 0.5), -HALF_LN2, HALF_LN2, lambda x: x**2 / mp.exp(x), (5, 10)
        ),
    ),
    "EXPM1": (
        "expm1(x) = x + x**2 q(x), |x| <= log(2) / 2",
        _both(
            _over(lambda x: (mp.expm1(x) - x) / x**2, 0.5),
            -HALF_LN2,
            HALF_LN2,
            _over(lambda x: abs(x**2 / mp.expm1(x)), 0),
            (6, 10),
        ),
    ),
    "EXP_RATIO": ("exp(x) = 1 + x q(x), |x| <= log(2) / 2", _exp_ratio(6)),
    "EXP_SHORT": ("the same with a term less", _exp_ratio(5)),
    "EXP2": (
        "2**x = 1 + x q(x), |x| <= 1/2",
        _both(
            _over(lambda x: (mp.mpf(2) ** x - 1) / x, mp.log(2)), -0.5, 0.5, lambda x: abs(x) / mp.mpf(2) ** x, (6, 12)
        ),
    ),
    "TANH": ("tanh(x) = x + x**3 q(x**2), |x| <= 0.65", _odd(mp.tanh, 0.65, (5, 0), -THIRD)),
    "SINH": ("sinh(x) = x + x**3 q(x**2), |x| <= 1", _odd(mp.sinh, 1, (4, 8), THIRD / 2)),
    "LOG": (
        "log(1 + x) = x + x**2 q(x), -1/4 <= x <= 1/2",
        _both(
            _over(lambda x: (mp.log1p(x) - x) / x**2, -0.5),
            -0.25,
            0.5,
            _over(lambda x: abs(x**2 / mp.log1p(x)), 0),
            (8, 0),
        ),
    ),
    "LOG_RATIO": (
        "log((1 + s) / (1 - s)) = 2 s + s**3 q(s**2), |s| <= 1/5",
        _both(_over(_log_ratio, 2 * THIRD), 0, 0.2, lambda s: s**2 / 2, (0, 8), 2),
    ),
    "LOG_RATIO_REST": (
        "log((1 + s) / (1 - s)) = 2 s + 2/3 s**3 + s**5 q(s**2), |s| <= 1/5",
        _both(
            _over(lambda s: (_log_ratio(s) - 2 * THIRD) / s**2, mp.mpf(2) / 5), 0, 0.2, lambda s: s**4 / 2, (0, 8), 2
        ),
    ),
    "LOG2": (
        "log2(1 + x) = c x + x**2 q(x), -1/4 <= x <= 1/2, c = log2(e) as f32",
        _both(
            _over(lambda x: mp.log1p(x) / mp.log(2) / x - LOG2E_F32, 1 / mp.log(2) - LOG2E_F32),
            -0.25,
            0.5,
            _over(lambda x: abs(x / mp.log1p(x)), 1),
            (10, 0),
        ),
    ),
    "LOG1P": (
        "log(1 + x) = x + x**2 q(x), 0 <= x <= 1",
        _both(_over(lambda x: (mp.log1p(x) - x) / x**2, -0.5), 0, 1, _over(lambda x: x**2 / mp.log1p(x), 0), (9, 0)),
    ),
    "POW_LOG2": (
        "log2(1 + x) = x q(x), -1/4 <= x <= 1/2, in f64 for pow of f32",
        {
            "f64": Fit(
                _over(lambda x: mp.log1p(x) / mp.log(2) / x, 1 / mp.log(2)),
                -0.25,
                0.5,
                13,
                _over(lambda x: abs(x / mp.log1p(x)), 1),
                1,
                53,
            )
        },
    ),
    "SIN": ("sin(x) = x + x**3 q(x**2), |x| <= pi/4", _odd(mp.sin, QUARTER_PI, (3, 6), -THIRD / 2)),
    "COS": (
        "cos(x) = 1 + x**2 q(x**2), |x| <= pi/4",
        _both(_over(lambda x: (mp.cos(x) - 1) / x**2, -0.5), 0, QUARTER_PI, lambda x: x**2 / mp.cos(x), (3, 7), 2),
    ),
    "TAN": ("tan(x) = x + x**3 q(x**2), |x| <= pi/4", _odd(mp.tan, QUARTER_PI, (0, 14), THIRD)),
    "ATAN": ("atan(x) = x + x**3 q(x**2), |x| <= 1", _odd(mp.atan, 1, (8, 20), -THIRD)),
    "ASIN": ("asin(x) = x + x**3 q(x**2), |x| <= 1/2", _odd(mp.asin, 0.5, (5, 12), THIRD / 2)),
    "ERF": (
        "erf(x) = x + x q(x**2), |x| <= 1",
        _both(
            _over(lambda x: mp.erf(x) / x - 1, 2 / mp.sqrt(mp.pi) - 1),
            0,
            ERF_SPLIT,
            _over(lambda x: x / mp.erf(x), 1),
            (6, 13),
            2,
        ),
    ),
    "ERF_TAIL": (
        f"erf(x) = q(x - {ERF_MIDDLE!r}), 1 <= x <= {ERF_END}",
        _both(
            lambda t: mp.erf(t + mp.mpf(ERF_MIDDLE)),
            ERF_SPLIT - ERF_MIDDLE,
            ERF_END - ERF_MIDDLE,
            lambda _: mp.mpf(1),
            (13, 0),
        ),
    ),
    "ERFC": (
        f"erfc(x) = exp(-x**2) / (1 + 2 x) q((x - {ERFC_K}) / (x + {ERFC_K})), 0 <= x <= {ERFC_END}",
        _both(_erfc, -1, (ERFC_END - ERFC_K) / (ERFC_END + ERFC_K), lambda t: 1 / _erfc(t), (0, 24)),
    ),
    "GELU": (
        f"x erfc(x / sqrt(2)) / 2 = exp(-x**2 / 2) (y + y**2 q(y)) with y = x / (x + {GELU_K}), 0 <= x <= {GELU_END}",
        _both(
            _over(_gelu, 0.5 - mp.sqrt(2 / mp.pi) * GELU_K / 2),
            0,
            GELU_END / (GELU_END + GELU_K),
            _over(lambda y: y / (1 + y * _gelu(y)), 0),
            (11, 0),
        ),
    ),
}


def table(name: str) -> str:
    """The Python text of one table."""
    meaning, fits = TABLES[name]
    head = [f"#: {meaning}"]
    entries: list[str] = []
    for dtype, fit in fits.items():
        best = Polynomial(fit)
        best.run()
        worst = best.round_all()
        head.append(f"#: {dtype}: error 2**{float(mp.log(worst, 2)):.1f}")
        entries += _entry(dtype, [rounded(best.p[k], fit.bits) for k in fit.powers])
    return "\n".join([*head, f"{name}: Final = {{", *entries, "}"])


def _entry(dtype: str, values: Sequence[float]) -> list[str]:
    return [f'    "{dtype}": (', *(f"        {v!r}," for v in values), "    ),"]


if __name__ == "__main__":
    print('"""Coefficients of polynomials, lowest power first. Written by scripts/minimax.py, which says how."""\n')
    print("from __future__ import annotations\n\nfrom typing import Final\n")
    print("\n\n".join(table(name) for name in sys.argv[1:] or TABLES))
