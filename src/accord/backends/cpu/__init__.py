"""The CPU backend: kernels generated with LLVM for the machine at hand."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.protocol import Arrangement, Array, Backend, Kernel, Launch, Phase, Program
from accord.backends.view import NodeView
from accord.ir.reason import FUSED_DOMAIN, Reason

__all__ = ["CpuBackend", "backend"]


class CpuBackend(Backend):
    """See the module's text. LLVM and the generators are imported with the first node."""

    name = "cpu"
    device = "cpu"

    def select(self, view: NodeView) -> Kernel | Reason:
        """A generated kernel, a view, or why not."""
        from accord.backends.cpu.families import fused, movements
        from accord.backends.cpu.families.table import SELECTORS

        _register()
        if view.node.domain == FUSED_DOMAIN:
            return fused.select_fused(view)
        early = movements.integers(view)
        if early is not None:
            return early
        selector = SELECTORS.get((view.node.domain, view.node.op_type))
        if selector is None:
            return Reason(f"no kernel is generated for {view.node.op_type}")
        return selector(view)

    def arrange(self, view: NodeView) -> Arrangement:
        """What the operator's family says; row-major where it says nothing."""
        from accord.backends.cpu.families import fused
        from accord.backends.cpu.families.table import ARRANGERS

        _register()
        if view.node.domain == FUSED_DOMAIN:
            return fused.arrange_fused(view)
        arranger = ARRANGERS.get((view.node.domain, view.node.op_type))
        return Arrangement() if arranger is None else arranger(view)

    def fuses(self, root: NodeView) -> Reason | None:
        """What has a kernel that applies an epilogue."""
        from accord.backends.cpu.families.table import ROOTS, SELECTORS

        _register()
        key = (root.node.domain, root.node.op_type)
        if key not in ROOTS:
            return super().fuses(root)
        kernel = SELECTORS[key](root)
        return kernel if isinstance(kernel, Reason) else None

    def program(self, launches: Sequence[tuple[Phase, Launch]], operands: Sequence[Array]) -> Program:
        """A walk over machine code."""
        from accord.backends.cpu.program import CpuProgram

        return CpuProgram(launches, operands)


def _register() -> None:
    """Importing a family registers its operators."""
    from accord.backends.cpu.families import (
        contractions,
        elementwise,
        generators,
        inside,
        movements,
        normalisations,
        reductions,
    )

    del contractions, elementwise, generators, inside, movements, normalisations, reductions


backend = CpuBackend()
