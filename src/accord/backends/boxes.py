"""Boxes: corners, areas, and how much they overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accord.backends.loops.table import known
from accord.expr.lang import Expr, operand
from accord.expr.primitives import gt, max_, min_, select
from accord.ir.reason import Reason

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = ["corners", "overlaps", "refusal_of_boxes"]


def corners(*, center: bool) -> list[Expr]:
    """Ordered corners (y1, x1, y2, x2) and area of a box of four f32: two corners, or center and size (x, y, w, h)."""
    x = [operand(i, "f32") for i in range(4)]
    if center:
        found = [x[1] - x[3] / 2.0, x[0] - x[2] / 2.0, x[1] + x[3] / 2.0, x[0] + x[2] / 2.0]
    else:
        found = [min_(x[0], x[2]), min_(x[1], x[3]), max_(x[0], x[2]), max_(x[1], x[3])]
    return [*found, (found[2] - found[0]) * (found[3] - found[1])]


def overlaps(x: Sequence[Expr]) -> Expr:
    """Whether a kept box (0 to 4) overlaps a candidate (5 to 9) by more than a threshold (10)."""
    height = max_(0.0, min_(x[2], x[7]) - max_(x[0], x[5]))
    width = max_(0.0, min_(x[3], x[8]) - max_(x[1], x[6]))
    shared = height * width
    union = x[4] + x[9] - shared
    return gt(union, 0.0) & gt(shared / select(gt(union, 0.0), union, 1.0), x[10])


def refusal_of_boxes(view: NodeView) -> Reason | None:
    """Why boxes and scores of a NonMaxSuppression are none that kernels are generated for."""
    for i, what in enumerate(("the boxes", "the scores")):
        found = known(view.tensor(i), what)
        if isinstance(found, Reason):
            return found
        if found[1] != "f32" or len(found[0]) != 3:
            return Reason(f"{what} are no float32 tensor of rank 3")
    return None
