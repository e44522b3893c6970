"""Kernels of the CPU that are chosen when a run tells what the plan could not know (:mod:`accord.backends.late`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.backends.cpu.host import start
from accord.backends.cpu.program import KernelCode
from accord.backends.late import LateNode
from accord.backends.protocol import Alias, Array, HostKernel, Kernel, ViewKernel
from accord.ir import dims as D
from accord.ir.reason import Reason
from accord.ir.strides import Access, Order, in_order
from accord.record import record

if TYPE_CHECKING:
    import onnx_ir as ir

    from accord.backends.view import NodeView

__all__ = ["LateKernel"]


@record
class _Output:
    """Shape, element type, and order of axes in memory (None: row-major) of an output."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Order | None

    def empty(self) -> Array:
        """A new array."""
        if self.order is None:
            return np.empty(self.shape, self.dtype)
        return np.empty([self.shape[a] for a in self.order], self.dtype).transpose(np.argsort(self.order))


@record
class _Form:
    """How to run the node on inputs of some shapes.

    Attributes:
        kernel: What runs.
        inputs: For each input the order of axes that it must have in memory; None for row-major.
        outputs: How to make each output; None for one without a name.
    """

    kernel: Kernel
    inputs: tuple[Order | None, ...]
    outputs: tuple[_Output | None, ...]


class LateKernel(LateNode):
    """Runs on NumPy's arrays."""

    def form(self, view: NodeView) -> _Form | Reason:
        """See :meth:`LateNode.form`."""
        return _form(view)

    def start(self, form: _Form, inputs: Sequence[Any]) -> Sequence[Any]:
        """See :meth:`LateNode.start`."""
        kernel = form.kernel
        if isinstance(kernel, ViewKernel):
            assert form.outputs[0] is not None
            return [np.asarray(inputs[0], order="C").reshape(form.outputs[0].shape)]
        if isinstance(kernel, HostKernel):
            return kernel.run(inputs)
        outputs = [None if o is None else o.empty() for o in form.outputs]
        arrays = [kernel.constants.get(i, inputs[i]) for i in kernel.reads]
        operands = [_laid_out(a, form.inputs[i]) for i, a in zip(kernel.reads, arrays, strict=True)]
        operands += [o for o in outputs if o is not None]
        sizes = [D.evaluate(d, {}) for d in kernel.dims]
        operands.append(np.empty(max(1, sizes[-1]), np.uint8))
        for phase, launch in zip(kernel.phases, kernel.launches(sizes), strict=True):
            if launch.tasks:
                assert isinstance(phase.code, KernelCode)
                start(phase.code, launch.params, [operands[i] for i in phase.operands], launch.tasks)
        return outputs


def _laid_out(array: Any, order: Order | None) -> Array:
    """``array`` with its axes in memory as ``order`` says, and no gaps."""
    if order is None:
        return np.asarray(array, order="C")
    return np.ascontiguousarray(np.asarray(array).transpose(order)).transpose(np.argsort(order))


def _form(view: NodeView) -> _Form | Reason:
    """How to run a node whose facts are all known."""
    from accord.backends.cpu import backend

    wanted = backend.arrange(view)
    orders = tuple(wanted.inputs[i] if i < len(wanted.inputs) else None for i in range(len(view.node.inputs)))
    layouts: dict[ir.Value, Access] = {}
    for i, (v, order) in enumerate(zip(view.node.inputs, orders, strict=True)):
        if v is not None and order is not None:
            layouts[v] = Access(in_order(view.tensor(i).shape or (), order))
    outputs: list[_Output | None] = []
    for j, o in enumerate(view.node.outputs):
        fact = view.output(j)
        asked = wanted.outputs[j] if j < len(wanted.outputs) else None
        order = None if isinstance(asked, Alias) else asked
        if not o.name:
            outputs.append(None)
        elif fact.shape is None or fact.dtype is None or not D.is_known(fact.shape):
            outputs.append(_Output((), np.dtype(np.uint8), None))  # only what Python makes can be so
        else:
            shape = tuple(int(d) for d in fact.shape)
            outputs.append(_Output(shape, np.dtype(fact.dtype.numpy()), order))
            if order is not None:
                layouts[o] = Access(in_order(shape, order))
    kernel = backend.known(type(view)(view.node, view.analyzer, layouts))
    return kernel if isinstance(kernel, Reason) else _Form(kernel, orders, tuple(outputs))
