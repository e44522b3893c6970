"""The CPU backend: kernels generated with LLVM for the machine at hand."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.protocol import Arrangement, Array, Backend, Kernel, Launch, NodeView, Phase, Program
from accord.ir.patch import Reason

__all__ = ["CpuBackend", "backend"]


class CpuBackend(Backend):
    """See the module's text. LLVM and the generators are imported with the first node."""

    name = "cpu"
    device = "cpu"

    def select(self, view: NodeView) -> Kernel | Reason:
        """A generated kernel, a view, or why not."""
        from accord.backends.cpu.families import (
            contractions,
            elementwise,
            movements,
            reductions,
            regions,
            sampling,
            windows,
        )
        from accord.backends.cpu.families.table import SELECTORS

        del (
            contractions,
            elementwise,
            reductions,
            regions,
            sampling,
            windows,
        )  # importing a family registers its operators
        early = movements.integers(view)
        if early is not None:
            return early
        selector = SELECTORS.get((view.node.domain, view.node.op_type))
        if selector is None:
            return Reason(f"no kernel is generated for {view.node.op_type}")
        return selector(view)

    def arrange(self, view: NodeView) -> Arrangement:
        """What the operator's family asks for; row-major where it asks for nothing."""
        from accord.backends.cpu.families import regions, sampling, windows
        from accord.backends.cpu.families.table import ARRANGERS

        del regions, sampling, windows  # importing a family registers its operators
        arranger = ARRANGERS.get((view.node.domain, view.node.op_type))
        return Arrangement() if arranger is None else arranger(view)

    def program(self, launches: Sequence[tuple[Phase, Launch]], operands: Sequence[Array]) -> Program:
        """A walk over machine code."""
        from accord.backends.cpu.program import CpuProgram

        return CpuProgram(launches, operands)


backend = CpuBackend()
