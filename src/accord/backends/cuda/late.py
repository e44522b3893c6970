"""Kernels of a GPU that are chosen when a run tells what the plan could not know (:mod:`accord.backends.late`).

What decides is read on the host; the data stays in the GPU's memory, and so do the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.backends.late import LateNode, Maker
from accord.backends.memory import DeviceArray
from accord.backends.prepared import Prepared
from accord.backends.protocol import HostKernel, Kernel, NativeKernel, ViewKernel
from accord.errors import ExecutionError
from accord.ir import dims as D
from accord.ir.reason import Reason
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.cuda import CudaBackend
    from accord.backends.view import NodeView

__all__ = ["LateKernel", "late_maker", "start_native"]


@record
class _Form:
    """How to run the node on inputs of some shapes.

    Attributes:
        kernel: What runs.
        outputs: Shape and element type of each output; None for one without a name.
        prepared: The kernel for these sizes, if it is a native one.
        constants: What it reads in place of inputs.
    """

    kernel: Kernel
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...]
    prepared: Prepared | None
    constants: dict[int, DeviceArray]


@record
class LateKernel(LateNode):
    """Runs on arrays of one GPU, which are row-major.

    Attributes:
        ordinal: The GPU's number.
    """

    ordinal: int = field(default=0)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.model, self.deciding, self.precision, self.ordinal)

    @property
    def space(self) -> str:  # type: ignore[override]
        """The GPU's memory."""
        return self._backend().space

    @property
    def hosted(self) -> tuple[int, ...]:  # type: ignore[override]
        """What decides."""
        return self.deciding

    def _backend(self) -> CudaBackend:
        from accord.backends.cuda import backend

        return backend.numbered(self.ordinal)

    def form(self, view: NodeView) -> _Form | Reason:
        """See :meth:`LateNode.form`."""
        backend = self._backend()
        kernel = backend.known(view)
        if isinstance(kernel, Reason):
            return kernel
        if isinstance(kernel, HostKernel) and kernel.space != self.space:
            return Reason("it runs in Python")
        outputs: list[tuple[tuple[int, ...], np.dtype[Any]] | None] = []
        for j, o in enumerate(view.node.outputs):
            fact = view.output(j)
            if o.name and fact.shape is not None and fact.dtype is not None and D.is_known(fact.shape):
                outputs.append((tuple(int(d) for d in fact.shape), np.dtype(fact.dtype.numpy())))
            elif o.name and not isinstance(kernel, HostKernel):
                return Reason("the sizes of its results are not known")
            else:
                outputs.append(None)
        if not isinstance(kernel, NativeKernel):
            return _Form(kernel, tuple(outputs), None, {})
        sizes = [D.evaluate(d, {}) for d in kernel.dims]
        constants = {i: DeviceArray.of(backend.memory, c() if callable(c) else c) for i, c in kernel.constants.items()}
        return _Form(kernel, tuple(outputs), Prepared(backend, kernel, sizes), constants)

    def start(self, form: _Form, inputs: Sequence[Any]) -> Sequence[Any]:
        """See :meth:`LateNode.start`."""
        kernel, memory = form.kernel, self._backend().memory
        if isinstance(kernel, ViewKernel):
            assert form.outputs[0] is not None
            return [inputs[0].view(form.outputs[0][0])]
        if isinstance(kernel, HostKernel):
            hosted = set(kernel.hosted) - set(self.deciding)
            return kernel.run([a.numpy() if i in hosted else a for i, a in enumerate(inputs)])
        assert form.prepared is not None
        outputs = [None if o is None else DeviceArray.empty(memory, *o) for o in form.outputs]
        operands = [form.constants.get(i, inputs[i]) for i in kernel.reads]
        operands = [DeviceArray.of(memory, a) if isinstance(a, np.ndarray) else a for a in operands]
        start_native(form.prepared, [*operands, *(o for o in outputs if o is not None)])
        return outputs

    def without(self, inputs: Sequence[Any], why: Reason) -> Sequence[Any]:
        """See :meth:`LateNode.without`."""
        memory = self._backend().memory
        results = super().without([a.numpy() if isinstance(a, DeviceArray) else a for a in inputs], why)
        return [None if r is None else DeviceArray.of(memory, np.asarray(r)) for r in results]


def late_maker(ordinal: int) -> Maker:
    """What makes late kernels of a GPU."""

    def make(name: str, model: bytes, deciding: tuple[int, ...], precision: str) -> LateKernel:
        return LateKernel(name, model, deciding, precision, ordinal=ordinal)

    return make


def start_native(prepared: Prepared, operands: Sequence[DeviceArray]) -> None:
    """Run a kernel on arrays: inputs in ``reads``, named outputs; it gets a workspace of its own.

    Raises:
        ExecutionError: it refused its data.
        MemoryError: there is not enough memory for the workspace.
    """
    addresses = [a.address for a in operands]
    scratch = operands[0].memory.allocate(prepared.workspace) if prepared.workspace else None
    if scratch is not None:
        addresses.append(scratch.address)
    if prepared.run(addresses):
        raise ExecutionError(
            "an index is outside its axis",
            remedy="Correct the indices: they count from 0, or from the end where they are negative.",
        )
