"""What the CPU computes other operators together with: its own kernels with epilogues, and declared C functions."""

from __future__ import annotations

from accord.backends.cpu.families import declared
from accord.backends.cpu.families.coded import PREPARES
from accord.backends.cpu.families.table import TABLE
from accord.backends.fused import Roots
from accord.backends.protocol import Arrangement, Kernel
from accord.backends.view import NodeView
from accord.ir.reason import FUSED_DOMAIN, Reason

__all__ = ["ROOTS"]


class _CpuRoots(Roots):
    prepares = PREPARES

    def refusal(self, view: NodeView) -> Reason | None:
        if (view.node.domain, view.node.op_type) in TABLE.roots:
            return None
        if view.node.domain in ("", FUSED_DOMAIN):
            return Reason(f"cpu computes nothing together with {view.node.op_type}")
        return declared.takes_epilogue(view)

    def select(self, root: NodeView) -> Kernel | Reason:
        selector = TABLE.selector(root.node.domain, root.node.op_type) or declared.select_declared
        return selector(root) or Reason(f"{root.node.op_type} is not declared")

    def arrange(self, root: NodeView) -> Arrangement | None:
        arranger = TABLE.arranger(root.node.domain, root.node.op_type)
        return declared.arrange_declared(root) if arranger is None else arranger(root)


ROOTS = _CpuRoots()
