"""Operators whose data tells how large their results are."""

from __future__ import annotations

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
    for i, what in enumerate(("the boxes", "the scores")):
        found = known(view.tensor(i), what)
        if isinstance(found, Reason):
            return found
        if found[1] != "f32" or len(found[0]) != 3:
            return Reason(f"{what} are no float32 tensor of rank 3")
    return SuppressionKernel("non max suppression", center=bool(view.attr("center_point_box", 0)))
