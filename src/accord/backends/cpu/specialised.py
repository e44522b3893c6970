"""Kernels for nodes whose sizes are the content of an input: made for each content when it is known.

Machine code is the same for all sizes, so what is made anew is a launch; the last few are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.backends.cpu.program import CpuProgram
from accord.backends.protocol import Array, HostKernel, Kernel, Launch, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.errors import ExecutionError
from accord.ir import dims as D
from accord.ir.facts import FactTable, TensorFact, constant_fact
from accord.ir.infer import Analyzer
from accord.ir.reason import Reason

__all__ = ["SpecialisedKernel"]

#: Launches that are kept.
_KEPT = 16
#: Integer inputs of up to this many elements are taken for sizes.
_SIZES = 64


class _Prepared:
    """A kernel for known sizes: launches and outputs."""

    def __init__(self, kernel: NativeKernel, outputs: list[tuple[tuple[int, ...], np.dtype[Any]] | None]) -> None:
        launches = kernel.launches([D.evaluate(d, {}) for d in kernel.dims])
        self.kernel = kernel
        self.outputs = outputs
        self.launches: list[tuple[Phase, Launch]] = [
            (p, launch) for p, launch in zip(kernel.phases, launches, strict=True) if launch.tasks
        ]
        self.workspace = D.evaluate(kernel.workspace, {})

    def run(self, inputs: Sequence[Any]) -> list[Array | None]:
        kernel = self.kernel
        arrays = [kernel.constants.get(i, inputs[i]) for i in kernel.reads]
        operands = [np.require(a, requirements="C") for a in arrays]
        outputs = [None if o is None else np.empty(*o) for o in self.outputs]
        operands += [o for o in outputs if o is not None]
        operands.append(np.empty(self.workspace, np.uint8))
        addresses = np.array([a.ctypes.data for a in operands], np.int64)
        program = CpuProgram(self.launches, [addresses[list(p.operands)] for p, _ in self.launches])
        if program.run() >= 0:
            raise ExecutionError("an index is outside its axis")
        return outputs


class SpecialisedKernel(HostKernel):
    """A node that gets its native kernel when its inputs are there.

    Args:
        view: The node.
        select: Makes the kernel of a node all of whose sizes are integers.
    """

    name = "specialised"

    def __init__(self, view: NodeView, select: Callable[[NodeView], Kernel | Reason]) -> None:
        node = view.node
        self.reads = tuple(i for i in range(len(node.inputs)) if view.has(i))
        self._select = select
        self._domain, self._op = node.domain, node.op_type
        self._attributes = {
            name: attribute
            for name, attribute in ((n, _resolved(view, a)) for n, a in node.attributes.items())
            if attribute is not None
        }
        self._outputs = [o.name for o in node.outputs]
        self._opsets = dict(view.analyzer.opsets)
        self._prepared: OrderedDict[Any, _Prepared] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Outputs for ``inputs``.

        Raises:
            ExecutionError: there is no kernel for what the inputs say.
            ModelTypeError: the inputs contradict the operator.
        """
        key = tuple(None if a is None else (a.shape, a.dtype, _content(a)) for a in inputs)
        with self._lock:
            prepared = self._prepared.get(key)
            if prepared is None:
                prepared = self._prepare(inputs)
                self._prepared[key] = prepared
                if len(self._prepared) > _KEPT:
                    self._prepared.popitem(last=False)
            else:
                self._prepared.move_to_end(key)
        return prepared.run(inputs)

    def _prepare(self, inputs: Sequence[Any]) -> _Prepared:
        facts = FactTable()
        values: list[ir.Value | None] = []
        for number, array in enumerate(inputs):
            if array is None:
                values.append(None)
                continue
            value = ir.Value(name=f"input {number}")
            if _content(array) is None:
                facts[value] = TensorFact(ir.DataType.from_numpy(array.dtype), tuple(array.shape))
            else:
                facts[value] = constant_fact(np.array(array))
            values.append(value)
        outputs = [ir.Value(name=name) for name in self._outputs]
        node = ir.Node(self._domain, self._op, values, self._attributes.values(), outputs=outputs)
        analyzer = Analyzer(facts, self._opsets)
        analyzer.infer(node)
        view = NodeView(node, analyzer)
        kernel = self._select(view)
        if not isinstance(kernel, NativeKernel):
            raise ExecutionError(f"there is no kernel for these inputs: {kernel}")
        results: list[tuple[tuple[int, ...], np.dtype[Any]] | None] = []
        for number, output in enumerate(outputs):
            fact = view.output(number)
            if not output.name:
                results.append(None)
                continue
            assert fact.shape is not None and fact.dtype is not None
            results.append((tuple(D.evaluate(d, {}) for d in fact.shape), fact.dtype.numpy()))
        return _Prepared(kernel, results)


def _resolved(view: NodeView, attribute: ir.Attr) -> ir.Attr | None:
    """An attribute with its own value; None if it refers to one that is not given."""
    if not attribute.is_ref():
        return attribute
    found = view.analyzer.attributes.get(attribute.ref_attr_name or "")
    return None if found is None else ir.Attr(attribute.name, found.type, found.value)


def _content(array: Array) -> bytes | None:
    """The content of what may be sizes, None for other data."""
    if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > _SIZES:
        return None
    return array.tobytes()
