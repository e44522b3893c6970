"""What loop programs compute over an axis: kinds of reductions and their states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from accord.errors import CompileError
from accord.expr.lang import FLOATS, SIGNED, Expr, bits, call, const, operand
from accord.expr.primitives import eq, gt, isnan, lt, select
from accord.record import record

__all__ = ["Form", "Reduction", "Result", "form_of"]


@record
class Reduction:
    """A combination of expressions over all reduced axes.

    Attributes:
        kind: "add", "mul", "min", "max" of a number (NaN wins); "or", "and" of a bool; "first_max", "last_max",
            "first_min", "last_min" of a number and its index (i64), whose results are the extreme number and where it
            is (NaN is extreme).
        args: What is combined, one expression for each result.
        running: "" for the whole; "inclusive" or "exclusive": what it is up to each element, with it or without. The
            elements are taken in the order of the reduced axis, of which there must be one.
    """

    kind: str
    args: tuple[Expr, ...]
    running: str = ""

    @property
    def key(self) -> str:
        """A text for the code's name."""
        return f"{self.kind}{self.running}({'|'.join(a.key for a in self.args)})"

    @property
    def compensated(self) -> bool:
        """Whether it is a sum that loses digits."""
        return self.kind == "add" and self.args[0].dtype in FLOATS and not self.running


@record
class Result:
    """A value: result ``part`` of a reduction."""

    reduction: int
    part: int = 0


@record
class Form:
    """How a reduction works. A state has several parts; expressions number them from 0 on.

    Attributes:
        start: The state before any element.
        add: The state and the elements' values (which follow it) → the next state.
        merge: Two states → the state of both.
        final: The state → the results.
    """

    start: tuple[Expr, ...]
    add: tuple[Expr, ...]
    merge: tuple[Expr, ...]
    final: tuple[Expr, ...]


def form_of(reduction: Reduction) -> Form:
    """The form of a reduction.

    Raises:
        CompileError: its kind is not known.
    """
    dtypes = tuple(a.dtype for a in reduction.args)
    if reduction.kind in _INDEXED:
        return _indexed(dtypes, *_INDEXED[reduction.kind])
    if reduction.kind not in _NEUTRAL:
        raise CompileError(f"'{reduction.kind}' is not a kind of reduction", found=reduction.kind)
    (dtype,) = dtypes
    start = const(_NEUTRAL[reduction.kind](dtype), dtype)
    if reduction.kind in ("min", "max") and dtype in FLOATS and not reduction.running:
        return _extreme(start, gt if reduction.kind == "max" else lt)
    join = (call(reduction.kind, operand(0, dtype), operand(1, dtype)),)
    return Form((start,), join, join, (operand(0, dtype),))


def _lowest(dtype: str) -> float | int | bool:
    if dtype == "bool":
        return False
    if dtype in FLOATS:
        return -math.inf
    return -(1 << bits(dtype) - 1) if dtype in SIGNED else 0


def _highest(dtype: str) -> float | int | bool:
    if dtype == "bool":
        return True
    if dtype in FLOATS:
        return math.inf
    return (1 << bits(dtype) - (dtype in SIGNED)) - 1


_NEUTRAL: Final[dict[str, Callable[[str], float | int | bool]]] = {
    "add": lambda _: 0,
    "mul": lambda _: 1,
    "min": _highest,
    "max": _lowest,
    "or": lambda _: False,
    "and": lambda _: True,
}


def _extreme(start: Expr, wins: Callable[[Expr, Expr], Expr]) -> Form:
    """The greatest or least number, and whether there was a NaN: so there is one instruction from state to state."""
    dtype = start.dtype
    best, nan = operand(0, dtype), operand(1, "bool")
    x = operand(2, dtype)
    found = (select(wins(x, best), x, best), nan | isnan(x))
    merged = (select(wins(x, best), x, best), nan | operand(3, "bool"))
    return Form((start, const(False, "bool")), found, merged, (select(nan, const(math.nan, dtype), best),))


#: Kind → (looks for the greatest, the last of equal ones).
_INDEXED: Final = {
    "first_max": (True, False),
    "last_max": (True, True),
    "first_min": (False, False),
    "last_min": (False, True),
}


def _indexed(dtypes: Sequence[str], greatest: bool, last: bool) -> Form:
    dtype = dtypes[0]
    v, i, w, j = operand(0, dtype), operand(1, "i64"), operand(2, dtype), operand(3, "i64")
    wins = gt(w, v) if greatest else lt(w, v)
    same = eq(w, v)
    if dtype in FLOATS:
        wins = wins | (isnan(w) & ~isnan(v))
        same = same | (isnan(w) & isnan(v))
    wins = wins | (same & (gt(j, i) if last else lt(j, i)))
    join = (select(wins, w, v), select(wins, j, i))
    nowhere = const(-1 if last else (1 << 63) - 1, "i64")  # loses to every index
    start = const((_lowest if greatest else _highest)(dtype), dtype)
    return Form((start, nowhere), join, join, (v, i))
