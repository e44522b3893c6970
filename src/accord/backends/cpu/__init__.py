"""The CPU backend: kernels generated with LLVM for the machine at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accord.backends.discovery import import_modules
from accord.backends.protocol import (
    Arrangement,
    Array,
    Backend,
    FixedLaunch,
    Kernel,
    Launches,
    NativeKernel,
    Program,
    Turns,
)
from accord.ir.reason import FUSED_DOMAIN, Reason

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = ["CpuBackend", "backend"]


class CpuBackend(Backend):
    """See the module's text. LLVM and the generators are imported with the first node."""

    name = "cpu"
    device = "cpu"

    def select(self, view: NodeView) -> Kernel | Reason:
        """A generated kernel, a view, or why not; one that is chosen later where a run knows more."""
        from accord.backends.cpu.late import LateKernel
        from accord.backends.late import late_or

        kernel = self.known(view)
        return late_or(view, kernel, LateKernel) if isinstance(kernel, Reason) else kernel

    def select_late(self, view: NodeView) -> Kernel | Reason:
        """A kernel that is chosen when it runs."""
        from accord.backends.cpu.late import LateKernel
        from accord.backends.cpu.objects import ObjectKernel
        from accord.backends.late import late_node

        kernel = self.known(view)
        if isinstance(kernel, (Reason, ObjectKernel)):
            return kernel
        return late_node(view, LateKernel)

    def known(self, view: NodeView) -> Kernel | Reason:
        """As :meth:`select`, by what is known now."""
        kernel = self._generic(view)
        if not isinstance(kernel, NativeKernel):
            return kernel
        from accord.backends.cpu.loops import lower_loops
        from accord.backends.loops.program import lowered

        return lowered(kernel, lower_loops)

    def _generic(self, view: NodeView) -> Kernel | Reason:
        """A kernel some of whose phases may be loop programs."""
        from accord.backends.cpu.families import declared, movements
        from accord.backends.cpu.families.roots import ROOTS
        from accord.backends.cpu.families.table import TABLE
        from accord.backends.cpu.objects import object_kernel
        from accord.backends.fused import select_fused

        foreign = _foreign()
        if foreign is not None:
            return foreign
        _register()
        if view.node.domain == FUSED_DOMAIN:
            return select_fused(view, ROOTS)
        own = declared.select_declared(view)
        if own is not None:
            return own
        early = movements.integers(view)
        if early is not None:
            return early
        selector = TABLE.selector(view.node.domain, view.node.op_type)
        kernel = Reason(f"no kernel is generated for {view.node.op_type}") if selector is None else selector(view)
        return object_kernel(view) or kernel if isinstance(kernel, Reason) else kernel

    def arrange(self, view: NodeView) -> Arrangement:
        """What the operator's family says; row-major where it says nothing."""
        from accord.backends.cpu.families import declared
        from accord.backends.cpu.families.roots import ROOTS
        from accord.backends.cpu.families.table import TABLE
        from accord.backends.cpu.objects import objects_of
        from accord.backends.fused import arrange_fused

        _register()
        if view.node.domain == FUSED_DOMAIN:
            return arrange_fused(view, ROOTS)
        own = declared.arrange_declared(view)
        if own is not None:
            return own
        if objects_of(view) is not None:
            return Arrangement(strided=True)
        arranger = TABLE.arranger(view.node.domain, view.node.op_type)
        return Arrangement() if arranger is None else arranger(view)

    def fuses(self, root: NodeView) -> Reason | None:
        """What has a kernel that applies an epilogue."""
        from accord.backends.cpu.families.roots import ROOTS

        foreign = _foreign()
        if foreign is not None:
            return foreign
        _register()
        refusal = ROOTS.refusal(root)
        if refusal is not None:
            return refusal
        kernel = ROOTS.select(root)
        return kernel if isinstance(kernel, Reason) else None

    def joins(self, nodes: Sequence[NodeView]) -> Reason | None:
        """What makes one loop program, or a product and what expands its weight."""
        from accord.backends.cpu.families.coded import coded_weight
        from accord.backends.loops.groups import can_join

        foreign = _foreign()
        if foreign is not None:
            return foreign
        _register()
        if len(nodes) > 1 and nodes[-1].node.op_type in ("MatMul", "Gemm"):
            weight = coded_weight(nodes[:-1], nodes[-1])
            return weight if isinstance(weight, Reason) else None
        return can_join(nodes)

    def program(self, launches: Launches, operands: Sequence[Array], threads: int = 1, turns: Turns = ()) -> Program:
        """A walk over machine code."""
        from accord.backends.cpu.program import CpuProgram

        del turns
        return CpuProgram(launches, operands, threads)

    def prepare(self, kernels: Sequence[NativeKernel]) -> None:
        """Find their machine code in the cache, or compile it on all cores."""
        from accord.backends.cpu.jit import load
        from accord.backends.cpu.program import KernelCode

        phases = [p for k in kernels for p in k.phases]
        codes = [p.code for p in phases if isinstance(p.code, KernelCode)]
        codes += [needed for code in codes for needed in code.needs]
        for p in phases:
            if isinstance(p.launch, FixedLaunch):
                codes += [param for param in p.launch.launch.params if isinstance(param, KernelCode)]
        load(list(dict.fromkeys(codes)))


def _foreign() -> Reason | None:
    """Why nothing can be compiled on this machine."""
    from accord.backends.cpu.link import LINKABLE
    from accord.backends.cpu.machine import machine

    arch = machine().arch
    return None if arch in LINKABLE else Reason(f"machine code for {arch} cannot be linked yet")


def _register() -> None:
    import_modules("accord.backends.loops.members", "accord.backends.cpu.families")


backend = CpuBackend()
