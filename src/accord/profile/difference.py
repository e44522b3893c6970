"""How far values are from those that are right, measured in tolerances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from accord.contract.contract import Tolerance
from accord.contract.registry import TOLERANCE

__all__ = ["Bounds", "Difference", "differences"]

_NONE = Tolerance(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What values may differ by.

    Attributes:
        rtol: For all dtypes; None: what the contract declares for the dtype, and nothing for integers.
        atol: Likewise.
        declared: Tolerances by dtype where they are not the usual ones.
    """

    rtol: float | None = None
    atol: float | None = None
    declared: Mapping[str, Tolerance] | None = None

    def of(self, dtype: np.dtype[Any]) -> Tolerance:
        """The tolerance for elements of ``dtype``."""
        known = (self.declared or TOLERANCE).get(dtype.name, _NONE)
        return Tolerance(known.rtol if self.rtol is None else self.rtol, known.atol if self.atol is None else self.atol)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one value is from the right one.

    Attributes:
        value: Its name.
        excess: The greatest error in tolerances: more than 1 is too much; infinite for another shape or dtype, for NaN
            in one of the two, and for texts that differ.
        error: The greatest absolute error; None where there is no such number.
        where: Index of the element with the greatest excess.
        expected: That element, or what else is right.
        found: What was there instead.
        beyond: Elements beyond the tolerance.
        elements: All elements.
        tolerance: As text.
    """

    value: str
    excess: float
    error: float | None
    where: tuple[int, ...]
    expected: str
    found: str
    beyond: int
    elements: int
    tolerance: str

    @property
    def is_fault(self) -> bool:
        """Whether it is beyond the tolerance."""
        return self.excess > 1

    def data(self) -> dict[str, Any]:
        """As JSON can hold it: None for infinity."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}
        return {**finite, "where": list(self.where)}

    def __str__(self) -> str:
        if self.error is None:
            return f"'{self.value}': {self.expected} is right, {self.found} was found"
        at = f" at [{', '.join(map(str, self.where))}]" if self.where else ""
        return (
            f"'{self.value}': {self.beyond:,} of {self.elements:,} elements beyond {self.tolerance}; greatest error "
            f"{self.error:.3g}, worst{at}: {self.expected} is right, {self.found} was found"
        )


def differences(
    names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any], bounds: Bounds
) -> list[Difference]:
    """How far values are from the right ones, the worst first; sequences and maps element by element.

    Args:
        names: Of the values.
        expected: The right ones: arrays, lists, maps or None.
        actual: Those to judge.
        bounds: What they may differ by.
    """
    found: list[Difference] = []
    for name, want, have in zip(names, expected, actual, strict=True):
        _compare(name, want, have, bounds, found)
    return sorted(found, key=lambda d: -d.excess)


def _compare(name: str, want: Any, have: Any, bounds: Bounds, found: list[Difference]) -> None:
    if isinstance(want, (list, tuple)):
        if not isinstance(have, (list, tuple)) or len(want) != len(have):
            found.append(_other(name, f"a sequence of {len(want)}", _described(have)))
            return
        for i, (a, b) in enumerate(zip(want, have, strict=True)):
            _compare(f"{name}[{i}]", a, b, bounds, found)
    elif isinstance(want, dict):
        if not isinstance(have, dict) or want.keys() != have.keys():
            found.append(_other(name, f"a map of {len(want)}", _described(have)))
            return
        for key, a in want.items():
            _compare(f"{name}[{key!r}]", a, have[key], bounds, found)
    elif want is None or have is None:
        if want is not have:
            found.append(_other(name, _described(want), _described(have)))
    else:
        found.append(_compare_arrays(name, np.asarray(want), np.asarray(have), bounds))


def _compare_arrays(name: str, want: np.ndarray[Any, Any], have: np.ndarray[Any, Any], bounds: Bounds) -> Difference:
    if want.shape != have.shape or (want.dtype != have.dtype and "O" not in (want.dtype.kind, have.dtype.kind)):
        return _other(name, _described(want), _described(have))
    if want.dtype.kind in "OUST":
        wrong = np.asarray(want.astype(object) != have.astype(object))
        return _exact(name, want, have, wrong)
    tolerance = bounds.of(want.dtype)
    if want.dtype.kind in "biu" and tolerance == _NONE:
        return _exact(name, want, have, np.asarray(want != have))
    a, b = _wide(want), _wide(have)
    with np.errstate(all="ignore"):
        error = np.abs(b - a)
        allowed = tolerance.atol + tolerance.rtol * np.abs(a)
        excess = np.where(error == 0, 0.0, error / allowed)
    same = (a == b) | (np.isnan(a) & np.isnan(b))  # infinities too
    error, excess = np.where(same, 0.0, error), np.where(same, 0.0, excess)
    error, excess = (np.where(np.isnan(x), np.inf, x) for x in (error, excess))
    text = f"{tolerance.atol:.3g} + {tolerance.rtol:.3g} × |right|"
    return _worst(name, want, have, error, excess, text)


def _exact(
    name: str, want: np.ndarray[Any, Any], have: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any]
) -> Difference:
    excess = np.where(wrong, np.inf, 0.0)
    is_text = want.dtype.kind in "OUST"
    error = excess if is_text else np.abs(have.astype(np.float64) - want.astype(np.float64))
    return _worst(name, want, have, error, excess, "equality")


def _worst(
    name: str,
    want: np.ndarray[Any, Any],
    have: np.ndarray[Any, Any],
    error: np.ndarray[Any, Any],
    excess: np.ndarray[Any, Any],
    tolerance: str,
) -> Difference:
    if not want.size:
        return Difference(name, 0.0, 0.0, (), "", "", 0, 0, tolerance)
    where = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), want.shape))
    return Difference(
        name,
        float(excess.max()),
        float(error.max()),
        where,
        _element(want[where]),
        _element(have[where]),
        int((excess > 1).sum()),
        want.size,
        tolerance,
    )


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Real elements as float64; complex ones as such."""
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _element(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, np.floating) else str(value)


def _other(name: str, expected: str, found: str) -> Difference:
    return Difference(name, float("inf"), None, (), expected, found, 1, 1, "equality")


def _described(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
