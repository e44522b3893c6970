"""Native steps whose sizes only earlier steps of a run tell: started on arrays that are made for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from accord.backends.memory import Block, DeviceArray, Memory
from accord.backends.prepared import Prepared
from accord.backends.protocol import Backend, NativeKernel
from accord.errors import AccordError
from accord.ir import dims as D
from accord.ir.compute import SizeFunction, compile_dims
from accord.ir.dims import DimLike
from accord.plan.plan import Plan, Step
from accord.runtime.frame import disagreement

__all__ = ["LateSizes", "LateSteps"]

#: Kernels that are kept ready for sizes that were met.
MAX_LATE = 256


class LateSizes:
    """Sizes that are asked for in each run: computed as they are written the first time, compiled from the second on.

    Args:
        dims: The sizes.
    """

    def __init__(self, dims: Iterable[DimLike]) -> None:
        self.dims = tuple(dims)
        self._symbols = tuple(sorted(frozenset[str]().union(*map(D.symbols_of, self.dims))))
        self._function: SizeFunction | None = None
        self._met = False

    def __call__(self, env: Mapping[str, int]) -> Sequence[int]:
        """Their values for those of symbols.

        Raises:
            KeyError: a symbol is not in ``env``.
            ZeroDivisionError: a division by a size that is zero.
        """
        if self._function is None:
            if not self._met:
                self._met = True
                return [D.evaluate(d, env) for d in self.dims]
            self._function = compile_dims(self.dims, self._symbols)
        return self._function([env[s] for s in self._symbols])


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
        #: By number of the step: of its agreements, of its kernel and outputs, and how many are the kernel's.
        self._sizes: dict[int, tuple[LateSizes, LateSizes, int]] = {}

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
        sizes = self._sizes.get(index)
        if sizes is None:
            sizes = self._sizes[index] = self._asked(step, kernel)
        pairs = sizes[0](env)
        for a, size, other in zip(step.agreements, pairs[::2], pairs[1::2], strict=True):
            if not a.holds(size, other):
                raise disagreement(a, step, size, other)
        backend = self.backends[step.placement.backend]
        values = sizes[1](env)
        at = sizes[2]
        prepared = self._ready(index, kernel, backend, values[:at])
        outputs = []
        for o in step.outputs:
            if o >= 0:
                rank = len(self.plan.slots[o].shape or ())
                outputs.append(
                    self._array(o, values[at : at + rank], values[at + rank : at + 2 * rank], backend.memory)
                )
                at += 2 * rank
        operands = [self._laid_out(step.inputs[i], arguments[i]) for i in kernel.reads]
        operands += outputs
        addresses = [_address(a) for a in operands]
        if prepared.workspace:
            scratch = _scratch(backend.memory, prepared.workspace)
            addresses.append(scratch.address if isinstance(scratch, Block) else _address(scratch))
        number = prepared.run(addresses)
        if number:
            raise refused(number)
        produced = iter(outputs)
        return [next(produced) if o >= 0 else None for o in step.outputs]

    def _ready(self, index: int, kernel: NativeKernel, backend: Backend, sizes: Sequence[int]) -> Prepared:
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

    def _asked(self, step: Step, kernel: NativeKernel) -> tuple[LateSizes, LateSizes, int]:
        dims: list[DimLike] = [*kernel.dims]
        count = len(dims)
        for o in step.outputs:
            if o >= 0:
                slot = self.plan.slots[o]
                shape = slot.shape or ()
                dims += [*shape, *(slot.strides if slot.strides is not None else (0,) * len(shape))]
        return LateSizes(d for a in step.agreements for d in (a.size, a.other)), LateSizes(dims), count

    def _array(self, slot: int, shape: Sequence[int], strides: Sequence[int], memory: Memory | None) -> Any:
        """A new array that lies as the plan says; without gaps, since a late value is nobody's part."""
        s = self.plan.slots[slot]
        shape = tuple(shape)
        assert s.dtype is not None
        if memory is not None:  # the plan knows how it lies
            return DeviceArray.empty(memory, shape, s.dtype)
        if s.strides is None:
            return np.empty(shape, s.dtype)
        order = sorted(range(len(shape)), key=lambda a: (-strides[a], a))
        made = np.empty([shape[a] for a in order], s.dtype)
        return made.transpose(np.argsort(order))

    def _laid_out(self, slot: int, value: Any) -> Any:
        """The array whose memory a kernel gets: row-major, unless the plan says how the value lies."""
        far = isinstance(value, DeviceArray)
        return value if far or self.plan.slots[slot].strides is not None else np.asarray(value, order="C")


def _address(array: Any) -> int:
    """Where an array begins; a third of the time that ``array.ctypes.data`` takes."""
    if isinstance(array, DeviceArray):
        return array.address
    address: int = array.__array_interface__["data"][0]
    return address


def _scratch(memory: Memory | None, nbytes: int) -> Block | np.ndarray[Any, Any]:
    """Memory for a kernel's workspace, until it is dropped."""
    return np.empty(nbytes, np.uint8) if memory is None else memory.allocate(nbytes)
