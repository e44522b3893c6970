"""Operators that belong to no family."""

from __future__ import annotations

from accord.backends.cpu.families.table import known, selects
from accord.backends.cpu.movement import integers_phase
from accord.backends.protocol import Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason

__all__ = ["sizes"]


@selects("Shape", "Size")
def sizes(view: NodeView) -> Kernel | Reason:
    """Sizes of a tensor whose rank is known; nothing is read."""
    found = known(view.output(), "the output")
    elements = view.output().elements()
    if isinstance(found, Reason) or elements is None:
        return Reason("the rank of the input is not known")
    return NativeKernel(f"integers {found[1]}", (integers_phase(elements, found[1], 0),), ())
