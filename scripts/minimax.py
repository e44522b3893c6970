"""Minimax coefficients for the functions of ``accord.expr``.

``python scripts/minimax.py NAME ...`` prints the coefficients of the named fits, lowest power first, and the greatest
weighted error that remains after they were rounded to their type. Without names it lists the fits.

Method: Remez exchange on ``w(x) * (f(x) - P(x) / Q(x))`` in 60-digit arithmetic (E. W. Cheney, "Introduction to
Approximation Theory", chapter 5). A coefficient is rounded to its type, then the remaining ones are fitted again, so
that they absorb its rounding.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable, Sequence

import mpmath as mp

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]


@dataclasses.dataclass(frozen=True)
class Fit:
    """One approximation ``f(x) ~ P(x) / Q(x)``.

    Attributes:
        function: What is approximated.
        low: Start of the interval.
        high: End of the interval.
        powers: Exponents of x in P.
        below: Exponents of x in Q, besides the constant term 1; empty for a polynomial.
        weight: Of the error, not negative.
        bits: Precision of the coefficients: 24 or 53.
    """

    function: Function
    low: float
    high: float
    powers: Sequence[int]
    below: Sequence[int] = ()
    weight: Function = lambda _: mp.mpf(1)
    bits: int = 24


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
    """The exchange for P when Q is given: ``f Q ~ P`` with weight ``w / Q``."""

    def __init__(self, fit: Fit, q: dict[int, mp.mpf]) -> None:
        self.fit = fit
        self.q = q
        self.p: dict[int, mp.mpf] = {}
        self.grid = [mp.mpf(fit.low), *chebyshev(fit, 24 * len(fit.powers) + 101), mp.mpf(fit.high)]
        self.values = [self._target(x) for x in self.grid]

    def _target(self, x: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
        below = evaluate(self.q, x)
        return self.fit.function(x) * below, self.fit.weight(x) / below

    def _error(self, x: mp.mpf) -> mp.mpf:
        f, w = self._target(x)
        return w * (f - evaluate(self.p, x))

    def run(self) -> mp.mpf:
        """Fit the coefficients; gives the greatest weighted error."""
        n = len(self.fit.powers) + 1
        points = chebyshev(self.fit, n)
        for _ in range(40):
            level = self._solve(points)
            errors = self._errors()
            moved = extrema(self.grid, errors, self._error, n)
            if moved is None or max(map(abs, errors)) <= abs(level) * mp.mpf("1.0001"):
                break
            points = moved
        return max(map(abs, errors))

    def _errors(self) -> list[mp.mpf]:
        return [w * (f - evaluate(self.p, x)) for x, (f, w) in zip(self.grid, self.values, strict=True)]

    def _solve(self, points: Sequence[mp.mpf]) -> mp.mpf:
        """Coefficients whose error alternates on the points; gives its level."""
        n = len(points)
        a, b = mp.matrix(n, n), mp.matrix(n, 1)
        for i, x in enumerate(points):
            f, w = self._target(x)
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
        return max(map(abs, self._errors()))


def denominator(fit: Fit) -> dict[int, mp.mpf]:
    """Q of the best ratio.

    On fixed points ``w (f Q - P) = +-e Q`` is an eigenvalue problem for e once P is eliminated; the right solution is
    the one whose Q has no zero in the interval (C. B. Dunham, "Choice of basis for Chebyshev approximation", 1982).
    """
    powers, below = list(fit.powers), [0, *fit.below]
    n = len(powers) + len(below)
    points = chebyshev(fit, n)
    grid = [mp.mpf(fit.low), *chebyshev(fit, 24 * n + 101), mp.mpf(fit.high)]
    q: dict[int, mp.mpf] = {}
    for _ in range(25):
        known = [(x, fit.function(x), fit.weight(x)) for x in points]
        left = mp.matrix([[w * x**k for k in powers] for x, _, w in known])
        full, _ = mp.qr(left, mode="full")
        null = full[:, len(powers) : n].T
        m1 = null * mp.matrix([[w * f * x**k for k in below] for x, f, w in known])
        m2 = null * mp.matrix([[(-1) ** i * x**k for k in below] for i, (x, _, _) in enumerate(known)])
        levels, vectors = mp.eig(m2**-1 * m1)
        chosen = None
        for j, level in enumerate(levels):
            if abs(mp.im(level)) > abs(level) * mp.mpf(10) ** -20 or not mp.re(vectors[0, j]):
                continue
            trial = {k: mp.re(vectors[i, j] / vectors[0, j]) for i, k in enumerate(below)}
            if all(evaluate(trial, x) > 0 for x in grid) and (chosen is None or abs(level) < abs(chosen)):
                chosen, q = mp.re(level), trial
        if chosen is None:
            raise ArithmeticError("no denominator without a zero in the interval")
        p = _numerator(known, powers, q, chosen)

        def error(x: mp.mpf, p: dict[int, mp.mpf] = p, q: dict[int, mp.mpf] = q) -> mp.mpf:
            return fit.weight(x) * (fit.function(x) - evaluate(p, x) / evaluate(q, x))

        errors = [error(x) for x in grid]
        moved = extrema(grid, errors, error, n)
        if moved is None or max(abs(e) for e in errors) <= abs(chosen) * mp.mpf("1.0001"):
            break
        points = moved
    return q


def _numerator(
    known: Sequence[tuple[mp.mpf, mp.mpf, mp.mpf]], powers: Sequence[int], q: dict[int, mp.mpf], level: mp.mpf
) -> dict[int, mp.mpf]:
    n = len(powers)
    a = mp.matrix([[x**k for k in powers] for x, _, _ in known[:n]])
    b = mp.matrix([(f - (-1) ** i * level / w) * evaluate(q, x) for i, (x, f, w) in enumerate(known[:n])])
    solution = mp.lu_solve(a, b)
    return {k: solution[j] for j, k in enumerate(powers)}


def solve(fit: Fit) -> tuple[mp.mpf, mp.mpf, list[float], list[float]]:
    """Errors before and after rounding, and the coefficients of P and Q."""
    q = denominator(fit) if fit.below else {0: mp.mpf(1)}
    ideal = Polynomial(fit, q).run()
    q = {k: mp.mpf(rounded(c, fit.bits)) for k, c in q.items()}
    best = Polynomial(fit, q)
    best.run()
    worst = best.round_all()
    return ideal, worst, *([rounded(t[k], fit.bits) for k in sorted(t)] for t in (best.p, q))


def report(name: str, fit: Fit) -> None:
    """Print the coefficients of one fit."""
    ideal, worst, p, q = solve(fit)
    print(f"{name}: error 2**{float(mp.log(worst, 2)):.2f} (unrounded 2**{float(mp.log(ideal, 2)):.2f})")
    print(f"  P = ({', '.join(map(repr, p))})")
    if fit.below:
        print(f"  Q = ({', '.join(map(repr, q))})")


def _exp(x: mp.mpf) -> mp.mpf:
    return mp.exp(x)


LN2 = float(mp.log(2))
FITS: dict[str, Fit] = {
    "exp_f32": Fit(
        lambda x: (mp.exp(x) - 1 - x) / x**2 if x else mp.mpf(0.5), -LN2 / 2, LN2 / 2, range(5), (), lambda x: x**2 / mp.exp(x)
    ),
}

if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("\n".join(FITS))
    for chosen in sys.argv[1:]:
        report(chosen, FITS[chosen])
