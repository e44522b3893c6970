"""Movements of data that the CPU has beside the shared ones, and integers that are known before the run."""

from __future__ import annotations

from accord.backends.cpu.families.sampling import sampled_pad
from accord.backends.cpu.families.table import selects
from accord.backends.cpu.movement import integers_phase
from accord.backends.loops.members import movements
from accord.backends.loops.table import known
from accord.backends.protocol import Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason

__all__ = ["integers", "pad"]

_INTEGERS = frozenset({"i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"})


def integers(view: NodeView) -> Kernel | None:
    """A kernel for any node whose one output holds integers that are sizes: it reads nothing."""
    named = [i for i, o in enumerate(view.node.outputs) if o.name != ""]
    if len(named) != 1:
        return None
    fact = view.output(named[0])
    found = known(fact, "the output")
    if isinstance(found, Reason) or found[1] not in _INTEGERS or fact.is_const:
        return None
    elements = fact.elements()
    if elements is None:
        return None
    return NativeKernel(f"integers {found[1]}", (integers_phase(elements, found[1], 0),), ())


@selects("Pad")
def pad(view: NodeView) -> Kernel | Reason:
    """Constant padding is a movement; others look elements up."""
    return movements.pad(view) if view.attr("mode", "constant") == "constant" else sampled_pad(view)
