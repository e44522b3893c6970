"""What the GPU computes other operators together with: its kernels with epilogues."""

from __future__ import annotations

from accord.backends.cuda.families.table import TABLE
from accord.backends.fused import Roots
from accord.backends.protocol import Arrangement, Kernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason

__all__ = ["ROOTS"]


class _CudaRoots(Roots):
    def refusal(self, view: NodeView) -> Reason | None:
        if (view.node.domain, view.node.op_type) in TABLE.roots:
            return None
        return Reason(f"cuda computes nothing together with {view.node.op_type}")

    def select(self, root: NodeView) -> Kernel | Reason:
        selector = TABLE.selector(root.node.domain, root.node.op_type)
        return Reason(f"no kernel is generated for {root.node.op_type}") if selector is None else selector(root)

    def arrange(self, root: NodeView) -> Arrangement | None:
        arranger = TABLE.arranger(root.node.domain, root.node.op_type)
        return None if arranger is None else arranger(root)


ROOTS = _CudaRoots()
