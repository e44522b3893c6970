"""Sorting and search."""

from __future__ import annotations

from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.search import top_k_phase, top_k_workspace
from accord.backends.loops.table import output_operands
from accord.backends.ordering import top_k_of
from accord.backends.protocol import Arrangement, Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason

__all__ = ["top_k"]


@arranges("TopK")
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


@selects("TopK")
def top_k(view: NodeView) -> Kernel | Reason:
    """The k greatest or smallest elements of each line, in order whether that is asked for or not."""
    asked = top_k_of(view)
    if isinstance(asked, Reason):
        return asked
    shape, dtype, axis, count = asked
    wanted = [number >= 0 for number in output_operands(view.node, 1)]
    wanted += [False] * (2 - len(wanted))
    values, indices = (view.output_access(i) if w else None for i, w in enumerate(wanted))
    phase = top_k_phase(
        dtype,
        shape,
        axis,
        count,
        (view.access(0), values, indices),
        largest=bool(view.attr("largest", 1)),
        operands=tuple(range(2 + sum(wanted))),
    )
    return NativeKernel(f"top k {dtype}", (phase,), (0,), workspace=top_k_workspace(dtype, shape[axis], count))
