"""Which operator's values first leave the range of their type: the watch for models in half precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from accord.backends.memory import DeviceArray
from accord.plan.types import TensorType
from accord.runtime.executor import Executor
from accord.runtime.model import Model
from accord.runtime.watch import Running, Watch, watched

__all__ = ["Overflow", "first_overflow"]


@dataclass(frozen=True, slots=True)
class Overflow:
    """A step that made numbers that are not finite of numbers that are.

    Attributes:
        node: Of the graph; the first of those that one kernel computes.
        op: What it computes.
        kernel: Its kernel.
        value: The result.
        dtype: What the result is stored in.
        shape: Of the result.
        infinite: Elements that are infinite.
        nan: Elements that are no number.
        largest: The greatest magnitude among its operands; None if it has none.
    """

    node: str
    op: str
    kernel: str
    value: str
    dtype: str
    shape: tuple[int, ...]
    infinite: int
    nan: int
    largest: float | None

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    def __str__(self) -> str:
        bad = [f"{n:,} {what}" for n, what in ((self.infinite, "infinite"), (self.nan, "NaN")) if n]
        operands = "" if self.largest is None else f"; its operands reach {self.largest:.4g}"
        return f"{self.op} '{self.node}': '{self.value}' ({self.dtype}) has {' and '.join(bad)} elements{operands}"


def first_overflow(model: Model, inputs: Mapping[str, Any]) -> Overflow | None:
    """Run a model step by step and find the first operator whose values leave the range of their type.

    Infinite numbers that are given (a mask's, say) are no overflow where they come in, nor is what is infinite because
    of them; what is no number is.

    Args:
        model: The model, as a rule loaded with ``precision="float16"``.
        inputs: By name.

    Returns:
        The step; None if all values stay in range.

    Raises:
        InputError: the inputs do not fit the model.
        ExecutionError: a kernel failed.
    """
    executor, values = model.executor_for(inputs)
    found = Executor(executor.plan, executor.backends, executor.device, stepwise=True)
    watch = _RangeWatch()
    with watched(watch):
        found.run(values)
    return watch.found


class _RangeWatch(Watch):
    def __init__(self) -> None:
        self.found: Overflow | None = None

    def run(self, run: Running) -> None:
        """Execute the segments, and look at each step until one overflows."""
        for segment in run.frame.segments:
            index = segment if isinstance(segment, int) else segment[1][0]
            step = run.step(index)
            if self.found is not None or step.placement.kernel is None:  # control flow: its bodies are looked at
                run.execute(segment)
                continue
            before = [a for slot in step.inputs if (a := _numbers(run.value(slot))) is not None]
            kept = [a.copy() for a in before]  # a result may take an operand's memory
            run.execute(segment)
            self._look(run, index, kept)

    def _look(self, run: Running, index: int, operands: Sequence[np.ndarray[Any, Any]]) -> None:
        step, slots = run.step(index), run.executor.plan.slots
        given_infinite = any(np.isinf(a).any() for a in operands)
        given_nan = any(np.isnan(a).any() for a in operands)
        for slot in step.outputs:
            result = None if slot < 0 else _numbers(run.value(slot))
            if result is None:
                continue
            infinite, nan = int(np.isinf(result).sum()), int(np.isnan(result).sum())
            if (nan and not given_nan) or (infinite and not given_infinite and not given_nan):
                type_ = slots[slot].type
                kernel = step.placement.kernel
                sizes = [np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in operands]
                self.found = Overflow(
                    step.placement.node,
                    step.placement.op,
                    "" if kernel is None else kernel.name,
                    slots[slot].name,
                    (type_.name if isinstance(type_, TensorType) else None) or str(result.dtype),
                    result.shape,
                    infinite,
                    nan,
                    float(max(sizes)) if sizes else None,
                )
                return


def _numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """A tensor of floating-point numbers, as float64 or what it is; None for all else."""
    array = value.numpy() if isinstance(value, DeviceArray) else value
    if not isinstance(array, np.ndarray):
        return None
    if array.dtype.kind == "f":
        return array
    return array.astype(np.float32) if array.dtype.name in ("bfloat16",) else None
