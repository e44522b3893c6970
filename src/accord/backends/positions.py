"""Positions in images between the elements: grids of them, and which elements are near."""

from __future__ import annotations

from accord.expr.lang import Expr, call, const
from accord.expr.primitives import eq, ge, gt, isnan, le, lt, max_, min_, ne, select
from accord.record import record

__all__ = ["Grid", "cubic", "fold", "spread"]

#: As far as positions are followed: they convert to integers.
_FAR = 2.0**40
_CUBIC = -0.75


def fold(index: Expr, period: Expr) -> Expr:
    """``index`` modulo ``period``, in float64; both are integers."""
    return index - call("floor", index / period) * period


def cubic(t: Expr, a: float) -> Expr:
    """Weight of an element at distance ``t`` >= 0: Keys, "Cubic Convolution Interpolation" (1981), equation 4."""
    inner = ((a + 2) * t - (a + 3)) * t * t + 1.0
    outer = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return select(le(t, 1.0), inner, select(lt(t, 2.0), outer, 0.0))


def spread(i: Expr, n: Expr, *, aligned: bool) -> Expr:
    """The position, from -1 to 1, of element ``i`` of an axis of ``n`` elements; f64."""
    if aligned:  # a single position is where the spacing begins
        return select(gt(n, 1.0), i * 2.0 / max_(n - 1.0, 1.0), 0.0) - 1.0
    return (i * 2.0 + 1.0) / n - 1.0


@record
class Grid:
    """How positions become taps.

    Attributes:
        mode: "nearest", "linear" or "cubic".
        padding: "zeros", "border" or "reflection".
        aligned: -1 and 1 are the centres of the outer elements, not their edges.
    """

    mode: str
    padding: str
    aligned: bool

    @property
    def taps(self) -> int:
        """Along each axis."""
        return {"nearest": 1, "linear": 2, "cubic": 4}[self.mode]

    @property
    def weighted(self) -> bool:
        """Whether there are weights."""
        return self.mode != "nearest"

    @property
    def fill(self) -> float | None:
        """What stands for a pixel that is outside; None: what is outside has no weight, or there is no outside."""
        return 0.0 if self.mode == "nearest" and self.padding == "zeros" else None

    def pairs(self, unit: Expr, length: Expr) -> list[tuple[Expr, Expr | None]]:
        """Index and weight of each tap along an axis of ``length``, for the normalised position ``unit``; float64."""
        at = (unit + 1.0) / 2.0 * (length - 1.0) if self.aligned else ((unit + 1.0) * length - 1.0) / 2.0
        at = max_(min_(select(isnan(at), 0.0, at), _FAR), -_FAR)
        if self.mode == "nearest":
            near = call("round", at)
            index = self._placed(near, length)
            if self.padding == "zeros":
                index = select(_inside(near, length), index, -1.0)
            return [(index, None)]
        base = call("floor", at)
        ratio = at - base
        one = const(1.0, "f64")
        weights = [one - ratio, ratio]
        if self.mode == "cubic":
            weights = [cubic(t, _CUBIC) for t in (ratio + 1.0, ratio, one - ratio, 2.0 - ratio)]
        found: list[tuple[Expr, Expr | None]] = []
        for k, share in enumerate(weights):
            index = base + float(k if self.mode == "linear" else k - 1)
            weight = select(_inside(index, length), share, 0.0) if self.padding == "zeros" else share
            # a tap of weight zero must not turn the sum into NaN by being infinite
            found.append((self._placed(select(ne(weight, 0.0), index, base), length), weight))
        return found

    def _placed(self, index: Expr, length: Expr) -> Expr:
        if self.padding == "reflection" and self.aligned:
            period = (length - 1.0) * 2.0
            folded = fold(index, max_(period, 1.0))
            index = select(eq(length, 1.0), 0.0, min_(folded, period - folded))
        elif self.padding == "reflection":
            period = length * 2.0
            folded = fold(index, period)
            index = select(lt(folded, length), folded, period - 1.0 - folded)
        return max_(min_(index, length - 1.0), 0.0)


def _inside(index: Expr, length: Expr) -> Expr:
    return ge(index, 0.0) & lt(index, length)
