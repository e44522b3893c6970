"""Native steps whose sizes only earlier steps of a run tell: started on arrays that are made for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from accord.backends.memory import Block, DeviceArray, Memory
from accord.backends.prepared import Prepared
from accord.backends.protocol import Backend, NativeKernel
from accord.errors import AccordError
from accord.ir import dims as D
from accord.plan.plan import Plan
from accord.runtime.frame import disagreement

__all__ = ["LateSteps"]

#: Kernels that are kept ready for sizes that were met.
MAX_LATE = 256


class LateSteps:
    """The late native steps of a plan.

    Args:
        plan: The plan.
        backends: By name.
    """

    def __init__(self, plan: Plan, backends: Mapping[str, Backend]) -> None:
        self.plan = plan
        self.backends = backends
        self._lock = threading.Lock()
        #: By number of the step, and sizes.
        self._prepared: OrderedDict[tuple[int, ...], Prepared] = OrderedDict()

    def forget(self) -> None:
        """Drop what is kept ready."""
        with self._lock:
            self._prepared.clear()

    def run(
        self,
        index: int,
        kernel: NativeKernel,
        arguments: Sequence[Any],
        env: Mapping[str, int],
        refused: Callable[[int], AccordError],
    ) -> list[Any]:
        """The outputs of step ``index``.

        Args:
            index: Of the step.
            kernel: Its kernel.
            arguments: Its inputs.
            env: Values of symbols.
            refused: Makes the error for the number with which the kernel refused its data.

        Raises:
            AccordError: sizes do not fit each other, or the kernel refused its data.
        """
        step = self.plan.steps[index]
        for a in step.agreements:
            size, other = D.evaluate(a.size, env), D.evaluate(a.other, env)
            if not a.holds(size, other):
                raise disagreement(a, step, size, other)
        backend = self.backends[step.placement.backend]
        prepared = self._ready(index, kernel, backend, [D.evaluate(d, env) for d in kernel.dims])
        outputs = [self._array(o, env, backend.memory) for o in step.outputs if o >= 0]
        operands = [self._laid_out(step.inputs[i], arguments[i]) for i in kernel.reads]
        operands += outputs
        addresses = [a.address if isinstance(a, DeviceArray) else a.ctypes.data for a in operands]
        if prepared.workspace:
            scratch = _scratch(backend.memory, prepared.workspace)
            addresses.append(scratch.address if isinstance(scratch, Block) else scratch.ctypes.data)
        number = prepared.run(addresses)
        if number:
            raise refused(number)
        produced = iter(outputs)
        return [next(produced) if o >= 0 else None for o in step.outputs]

    def _ready(self, index: int, kernel: NativeKernel, backend: Backend, sizes: list[int]) -> Prepared:
        """The kernel of a late step for these sizes, kept for the next time."""
        key = (index, *sizes)
        with self._lock:
            found = self._prepared.get(key)
            if found is None:
                found = self._prepared[key] = Prepared(backend, kernel, sizes, self.plan.threads)
                if len(self._prepared) > MAX_LATE:
                    self._prepared.popitem(last=False)
            else:
                self._prepared.move_to_end(key)
            return found

    def _array(self, slot: int, env: Mapping[str, int], memory: Memory | None) -> Any:
        """A new array that lies as the plan says; without gaps, since a late value is nobody's part."""
        s = self.plan.slots[slot]
        shape = tuple(D.evaluate(d, env) for d in s.shape or ())
        assert s.dtype is not None
        if memory is not None:  # the plan knows how it lies
            return DeviceArray.empty(memory, shape, s.dtype)
        if s.strides is None:
            return np.empty(shape, s.dtype)
        steps = [D.evaluate(d, env) for d in s.strides]
        order = sorted(range(len(shape)), key=lambda a: (-steps[a], a))
        made = np.empty([shape[a] for a in order], s.dtype)
        return made.transpose(np.argsort(order))

    def _laid_out(self, slot: int, value: Any) -> Any:
        """The array whose memory a kernel gets: row-major, unless the plan says how the value lies."""
        far = isinstance(value, DeviceArray)
        return value if far or self.plan.slots[slot].strides is not None else np.asarray(value, order="C")


def _scratch(memory: Memory | None, nbytes: int) -> Block | np.ndarray[Any, Any]:
    """Memory for a kernel's workspace, until it is dropped."""
    return np.empty(nbytes, np.uint8) if memory is None else memory.allocate(nbytes)
