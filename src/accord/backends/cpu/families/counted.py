"""Operators whose data tells how large their outputs are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from accord.backends.boxes import refusal_of_boxes
from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.host import CpuHostKernel
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.selection import CountCode, FlatPositionsCode, NonZeroCode, UnravelCode, coordinates_of
from accord.backends.cpu.suppression import SuppressionCode, suppress
from accord.backends.cpu.unique import UniqueCode, unique_rows
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Kernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason
from accord.record import record

__all__ = ["non_max_suppression", "non_zero", "unique"]


@arranges("NonZero", "Unique", "NonMaxSuppression")
def any_strides(view: NodeView) -> Arrangement:
    """Python brings them into order where they are not."""
    del view
    return Arrangement(strided=True)


@record
class NonZeroKernel(CpuHostKernel):
    """Coordinates of elements that are not zero.

    Attributes:
        dtype: Of the elements.
        rank: Of the tensor; a scalar has coordinates of no axis.
    """

    dtype: str
    rank: int
    name = "non zero"

    def codes(self) -> Sequence[KernelCode]:
        """Counting, writing, taking apart; all at once."""
        codes = CountCode(self.dtype), FlatPositionsCode(self.dtype), UnravelCode(self.rank)
        return (*codes, NonZeroCode(self.dtype, self.rank))

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """int64 ``[rank, count]``."""
        return [coordinates_of(np.asarray(inputs[0], order="C"), self.dtype)]


@selects("NonZero")
def non_zero(view: NodeView) -> Kernel | Reason:
    """A pass that counts and one that writes."""
    x = known(view.tensor(0), "the input")
    if isinstance(x, Reason):
        return x
    return NonZeroKernel(x[1], len(x[0]))


@record
class UniqueKernel(CpuHostKernel):
    """Distinct elements, or slices along an axis.

    Attributes:
        dtype: Of the elements.
        axis: Not negative; None for elements.
        ordered: In ascending order, not by first appearance.
    """

    dtype: str
    axis: int | None
    ordered: bool
    name = "unique"

    def codes(self) -> Sequence[KernelCode]:
        """The one that does it."""
        return (UniqueCode(self.dtype, self.ordered),)

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Values, first positions, inverse, counts."""
        x = inputs[0] if self.axis is not None else np.asarray(inputs[0]).reshape(-1)
        axis = self.axis or 0
        count = x.shape[axis]
        rows = np.ascontiguousarray(np.moveaxis(x, axis, 0)).reshape(count, x.size // count if count else 1)
        first, inverse, counts = unique_rows(rows, self.dtype, ordered=self.ordered)
        return [np.take(x, first, axis=axis), first, inverse, counts]


@selects("Unique")
def unique(view: NodeView) -> Kernel | Reason:
    """A stable sort and one pass."""
    x = known(view.tensor(0), "the input")
    if isinstance(x, Reason):
        return x
    axis = view.attr("axis")
    normal = None if axis is None else view.axis(int(axis), len(x[0]))
    return UniqueKernel(x[1], normal, bool(view.attr("sorted", 1)))


@record
class SuppressionKernel(CpuHostKernel):
    """Non-maximum suppression.

    Attributes:
        center: See :func:`~accord.backends.cpu.suppression.suppress`.
    """

    center: bool
    name = "non max suppression"

    def codes(self) -> Sequence[KernelCode]:
        """With a score threshold and without."""
        return SuppressionCode(self.center, least=True), SuppressionCode(self.center, least=False)

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """int64 ``[kept, 3]``.

        Raises:
            ValueError: boxes and scores do not fit each other, or the overlap threshold lies outside [0, 1].
        """
        boxes, scores, limit, threshold, least = (*inputs, None, None, None)[:5]
        boxes, scores = np.ascontiguousarray(boxes), np.ascontiguousarray(scores)
        if boxes.shape != (scores.shape[0], scores.shape[2], 4):
            raise ValueError(f"boxes {boxes.shape} and scores {scores.shape} do not fit")
        most = 0 if limit is None else max(0, int(_value(limit)))
        overlap = 0.0 if threshold is None else float(_value(threshold))
        if not 0 <= overlap <= 1:
            raise ValueError(f"iou_threshold {overlap} is outside [0, 1]")
        above = None if least is None else float(_value(least))
        return [suppress(boxes, scores, most, overlap, above, center=self.center)]


def _value(x: Any) -> Any:
    """The one element of a scalar or of a tensor of one element."""
    return np.asarray(x).reshape(()).item()


@selects("NonMaxSuppression")
def non_max_suppression(view: NodeView) -> Kernel | Reason:
    """Candidates sorted once, then compared with what is kept."""
    return refusal_of_boxes(view) or SuppressionKernel(bool(view.attr("center_point_box", 0)))
