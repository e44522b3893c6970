"""The iteration space of a group of operators: axes that are found to be the same, and axes that are cut in parts.

Each axis of a value is a *run*: parts of axes, outermost first, whose sizes multiply to the axis's own. Where two
values meet element by element their runs are unified; a reshape cuts and joins runs. So the views inside a group are
index maps and cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from accord.ir import dims as D
from accord.ir.dims import DimLike

__all__ = ["Axis", "Run", "cut", "is_scaled", "leaves", "same", "strides_of", "unify"]


class Axis:
    """A part of an axis, until it is found to be another one, or several.

    Attributes:
        extent: Its size.
        parts: What it has become, outermost first; None while it stands for itself.
        factor: What a stride along it is multiplied by: 0 where an axis of unknown size turns out to be 1 and is
            broadcast, else 1.
    """

    __slots__ = ("extent", "factor", "parts")

    def __init__(self, extent: DimLike) -> None:
        self.extent = extent
        self.parts: tuple[Axis, ...] | None = None
        self.factor: DimLike = 1


Run: TypeAlias = "tuple[Axis, ...]"


def leaves(run: Iterable[Axis]) -> list[Axis]:
    """The axes that stand for themselves, outermost first."""
    found: list[Axis] = []
    for axis in run:
        if axis.parts is None:
            found.append(axis)
        else:
            found.extend(leaves(axis.parts))
    return found


def is_scaled(run: Iterable[Axis]) -> bool:
    """Whether an axis of the run may be broadcast, depending on sizes that only a run of the model tells."""
    return any(axis.factor != 1 or (axis.parts is not None and is_scaled(axis.parts)) for axis in run)


def strides_of(run: Sequence[Axis], stride: DimLike) -> list[tuple[Axis, DimLike]]:
    """The leaves of an axis whose elements lie ``stride`` apart, each with its stride."""
    found: list[tuple[Axis, DimLike]] = []
    for axis in reversed(run):
        if axis.parts is None:
            found.append((axis, stride * axis.factor))
        else:
            found.extend((leaf, s * axis.factor) for leaf, s in reversed(strides_of(axis.parts, stride)))
        stride = stride * axis.extent
    found.reverse()
    return found


def unify(a: Sequence[Axis], b: Sequence[Axis]) -> bool:
    """Make two runs of equal size the same axes, cutting them where the other one is cut.

    Returns:
        False if their sizes do not tell how.
    """
    left, right = leaves(a), leaves(b)
    while left and right:
        x, y = left.pop(0), right.pop(0)
        if x is y:
            continue
        if x.extent == y.extent:
            y.parts = (x,)
        elif (inner := _quotient(x.extent, y.extent)) is not None:
            _split(x, y.extent, inner)
            assert x.parts is not None
            y.parts = x.parts[:1]
            left.insert(0, x.parts[1])
        elif (inner := _quotient(y.extent, x.extent)) is not None:
            _split(y, x.extent, inner)
            assert y.parts is not None
            y.parts = (x, y.parts[1])
            right.insert(0, y.parts[1])
        else:
            return False
    return not left and not right


def same(a: Sequence[Axis], b: Sequence[Axis]) -> bool:
    """Whether two runs are the same axes."""
    left, right = leaves(a), leaves(b)
    return len(left) == len(right) and all(x is y for x, y in zip(left, right, strict=True))


def cut(run: Sequence[Axis], extents: Sequence[DimLike]) -> list[Run] | None:
    """A run as several ones of these sizes, outermost first; None if sizes do not tell where to cut."""
    rest = leaves(run)
    found: list[Run] = []
    for extent in extents:
        left: DimLike = extent
        taken: list[Axis] = []
        while left != 1:
            if not rest:
                return None
            axis = rest.pop(0)
            outer: DimLike | None = 1 if left == axis.extent else _quotient(left, axis.extent)
            if outer is None:
                inner = _quotient(axis.extent, left)
                if inner is None:
                    return None
                _split(axis, left, inner)
                assert axis.parts is not None
                axis, after = axis.parts
                rest.insert(0, after)
                outer = 1
            taken.append(axis)
            left = outer
        found.append(tuple(taken))
    return None if rest else found


def _split(axis: Axis, outer: DimLike, inner: DimLike) -> None:
    axis.parts = (Axis(outer), Axis(inner))


def _quotient(whole: DimLike, part: DimLike) -> DimLike | None:
    """``whole / part`` if ``part`` divides it whatever the sizes are."""
    if part == 0 or whole == 0:
        return None
    quotient = D.floordiv(whole, part)
    return quotient if quotient * part == whole else None
