"""The null backend: plans and accounts like a real device, and runs nothing.

Every node gets a kernel, so placement, memory and stream plans can be made and looked at on a machine without the
device. Outputs have the right shape and dtype and hold zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accord.backends.protocol import (
    Arrangement,
    Array,
    Backend,
    Concurrency,
    Kernel,
    Launches,
    NativeKernel,
    Phase,
    Program,
    Turns,
    ViewKernel,
)
from accord.contract.registry import contract_for
from accord.errors import UnknownOperatorError
from accord.ir import dims as D
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = ["NullBackend", "backend"]


class _Nothing(Program):
    def run(self) -> int:
        """Nothing."""
        return -1


class NullBackend(Backend):
    """See the module's text."""

    name = "null"
    device = "null"
    zeros = True
    #: As of a GPU, so that streams can be looked at.
    concurrency = Concurrency(streams=4, event=1e-6, least=2.5e-6, flops=2e14, bandwidth=3e12, link=4e10)

    def arrange(self, view: NodeView) -> Arrangement:
        """Nothing runs, so anything will do."""
        del view
        return Arrangement(strided=True)

    def select(self, view: NodeView) -> Kernel | Reason:
        """A kernel for every node whose outputs are tensors of a known rank."""
        try:
            contract = contract_for(view.node.domain, view.node.op_type, view.opset)
            if (0, 0) in contract.execution.views and view.has(0):
                return ViewKernel()
            in_place = contract.execution.in_place
        except UnknownOperatorError:
            in_place = ()
        outputs = [f for f, o in zip(view.outputs, view.node.outputs, strict=True) if o.name]
        if not all(isinstance(f, TensorFact) and f.shape is not None and f.dtype is not None for f in outputs):
            return Reason("an output is no tensor of known rank")
        reads = tuple(i for i, v in enumerate(view.node.inputs) if v is not None)
        elements = sum((D.product(f.shape or ()) for f in outputs if isinstance(f, TensorFact)), start=0)
        return NativeKernel("null", (Phase(None, (), (elements,)),), reads, in_place=in_place)

    def program(self, launches: Launches, operands: Sequence[Array], threads: int = 1, turns: Turns = ()) -> Program:
        """A program that does nothing."""
        del launches, operands, threads, turns
        return _Nothing()


backend = NullBackend()
