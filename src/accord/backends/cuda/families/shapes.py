"""Shape and Size of tensors whose rank only a run tells; others are known when the plan is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from accord.backends.cuda.families.table import selects
from accord.backends.protocol import HostKernel, Kernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason
from accord.record import record

__all__ = ["ShapeKernel", "shape"]


@record
class ShapeKernel(HostKernel):
    """Looks at an array and not into it.

    Attributes:
        bounds: First and last axis; None for the number of elements.
    """

    bounds: tuple[int, int | None] | None

    name = "shape"
    untouched = (0,)
    #: It is made of plain values, so a stored plan can hold it.
    portable = True

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """See :class:`~accord.backends.protocol.HostKernel`."""
        (array,) = inputs
        if self.bounds is None:
            return [np.array(array.size, np.int64)]
        return [np.array(array.shape[slice(*self.bounds)], np.int64)]


@selects("Shape", "Size")
def shape(view: NodeView) -> Kernel | Reason:
    """Nothing of the array is read."""
    bounds = None
    if view.node.op_type == "Shape":
        end = view.attr("end")
        bounds = (int(view.attr("start", 0)), None if end is None else int(end))
    return ShapeKernel(bounds)
