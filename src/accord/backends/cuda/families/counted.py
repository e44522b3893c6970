"""Operators whose data tells how large their results are."""

from __future__ import annotations

from accord.backends.boxes import refusal_of_boxes
from accord.backends.cuda.counted import NonZeroKernel
from accord.backends.cuda.families.table import selects
from accord.backends.cuda.suppression import SuppressionKernel
from accord.backends.loops.table import known
from accord.backends.protocol import Kernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason

__all__ = ["non_max_suppression", "non_zero"]


@selects("NonZero")
def non_zero(view: NodeView) -> Kernel | Reason:
    """Counted in blocks, then written to places that the counts tell."""
    x = known(view.tensor(0), "the input")
    return x if isinstance(x, Reason) else NonZeroKernel("non zero", dtype=x[1])


@selects("NonMaxSuppression")
def non_max_suppression(view: NodeView) -> Kernel | Reason:
    """The best box of a class again and again, each time without those that it overlaps."""
    return refusal_of_boxes(view) or SuppressionKernel(
        "non max suppression", center=bool(view.attr("center_point_box", 0))
    )
