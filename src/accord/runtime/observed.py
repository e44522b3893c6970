"""What a step reads, writes and computes in a run: shapes, bytes and operations, from its operands as they are.

Values in a device's memory are not fetched: their sizes are those of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from accord.backends.memory import HOST, DeviceArray
from accord.backends.protocol import NativeKernel
from accord.ir import dims as D
from accord.plan.plan import Storage
from accord.plan.types import TensorType
from accord.runtime.watch import Running

__all__ = ["Observed", "Operand", "observe"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A value that a step read or made.

    Attributes:
        dtype: Its ONNX element type in lower case; NumPy's name for packed weights; else what it is.
        shape: None for what is no tensor.
        nbytes: Memory that it occupies; elements that several share count once.
        constant: It is a weight.
    """

    dtype: str
    shape: tuple[int, ...] | None
    nbytes: int
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """A step in a run.

    Attributes:
        inputs: What the kernel read, by position; None for what it did not read.
        outputs: What it made, by position; None for what the node does not name.
        read: Bytes of the inputs, each memory once, weights included.
        constants: Bytes of the weights among them.
        written: Bytes of the outputs.
        operations: Arithmetic operations; None if the kernel does not say.
    """

    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    read: int
    constants: int
    written: int
    operations: int | None


def observe(run: Running, index: int) -> Callable[[], Observed]:
    """Look at the inputs of step ``index``, which is about to run; what is returned is called when it has run."""
    step = run.step(index)
    kernel = step.kernel
    positions: Iterable[int] = range(len(step.inputs))
    if kernel is not None and kernel.reads is not None:
        positions = kernel.reads
    slots = {i: step.inputs[i] for i in positions if step.inputs[i] >= 0}
    found = {slot: _operand(run, slot) for slot in slots.values()}
    inputs = tuple(found.get(slots.get(i, -1)) for i in range(len(step.inputs)))

    def finish() -> Observed:
        outputs = tuple(None if o < 0 else _operand(run, o) for o in step.outputs)
        operations = None
        if isinstance(kernel, NativeKernel) and D.symbols_of(kernel.flops) <= run.env.keys():
            operations = D.evaluate(kernel.flops, run.env) or None
        return Observed(
            inputs,
            outputs,
            sum(x.nbytes for x in found.values()),
            sum(x.nbytes for x in found.values() if x.constant),
            sum(x.nbytes for x in outputs if x is not None),
            operations,
        )

    return finish


def _operand(run: Running, slot: int) -> Operand:
    s = run.executor.plan.slots[slot]
    root = run.executor.plan.slots[s.root]
    constant = root.storage is Storage.CONSTANT
    named = s.type.name if isinstance(s.type, TensorType) else None
    sizes = run.frame.sizes
    far = s.space != HOST or isinstance(run.arrays.get(s.root), DeviceArray)
    if s.dtype is not None and far and slot in sizes.shapes:
        shape, strides = sizes.shapes[slot], sizes.strides.get(slot)
        return Operand(
            named or str(s.dtype), shape, _count(shape, strides or (1,) * len(shape)) * s.dtype.itemsize, constant
        )
    value = run.value(slot)
    if isinstance(value, DeviceArray):  # made while running
        return Operand(named or str(value.dtype), value.shape, value.nbytes, constant)
    if isinstance(value, np.ndarray):
        return Operand(named or str(value.dtype), value.shape, _bytes(value), constant)
    return Operand(str(s.type), None, _bytes(value), constant)


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return _count(value.shape, value.strides) * value.itemsize
    return sum(_bytes(v) for v in value) if isinstance(value, list) else 0


def _count(shape: Iterable[int], strides: Iterable[int]) -> int:
    """Elements in memory; an axis along which all are the same memory counts once."""
    count = 1
    for size, stride in zip(shape, strides, strict=True):
        count *= size if stride or not size else 1
    return count
