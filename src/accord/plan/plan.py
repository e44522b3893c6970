"""Plan: what a run does, as frozen data.

A *slot* is a place for one value, a *step* runs one kernel on slots. Sizes are symbolic; a run with new input shapes
evaluates them (:meth:`Plan.sizes`) and changes nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.backends.protocol import Kernel, NativeKernel
from accord.ir.compute import compile_dims
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact
from accord.ir.infer import Agreement

if TYPE_CHECKING:
    from accord.placement.placer import Placement

__all__ = ["Plan", "Slot", "Step", "Storage", "SubPlan"]


class Storage(enum.Enum):
    """Where a slot's memory comes from."""

    INPUT = "input"  #: the caller's array
    CONSTANT = "constant"  #: the model's weights
    ARENA = "arena"  #: the planned arena
    OUTPUT = "output"  #: a new array for each run, returned to the caller
    LATE = "late"  #: made while running: its size depends on data, or it is no tensor


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one value.

    Attributes:
        name: The value's name in the model.
        fact: dtype and shape.
        dtype: NumPy element type; None for what is no tensor of fixed-size elements.
        storage: Where the memory comes from; that of ``root``.
        root: The slot whose memory this one shares (itself, unless it is a view or computed in place).
        first: The step that writes it; -1 for inputs and constants.
        last: The last step that reads it; ``len(steps)`` if it is returned.
        nbytes: Size in bytes, symbolic.
    """

    name: str
    fact: Fact
    dtype: np.dtype[Any] | None
    storage: Storage
    root: int
    first: int
    last: int
    nbytes: DimLike

    @property
    def shape(self) -> Shape | None:
        """Symbolic shape of a tensor, else None."""
        return getattr(self.fact, "shape", None)


@dataclass(frozen=True, slots=True)
class SubPlan:
    """The plan of a body graph and how its inputs are filled.

    Attributes:
        name: Attribute that holds the graph: "then_branch", "body".
        plan: The body's plan. Its inputs are the graph's own, then the captured values.
        formal: Number of the graph's own inputs.
        captured: Slots of the outer plan for the rest.
    """

    name: str
    plan: Plan
    formal: int
    captured: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel on slots; -1 stands for an absent input or output.

    Attributes:
        placement: Node, backend, kernel and the reason.
        inputs: Slots of the node's inputs; those that the kernel does not read are -1.
        outputs: Slots of the node's outputs.
        late: Sizes are known only when it runs.
        bodies: Body graphs of control flow.
        attributes: Attributes of control flow that the runtime needs.
        workspace: Slot of the scratch memory, or -1.
        frees: Late slots that nothing reads after this step.
        agreements: What must hold of sizes before a native kernel may start.
    """

    placement: Placement
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    late: bool = False
    bodies: tuple[SubPlan, ...] = ()
    attributes: Mapping[str, Any] | None = None
    workspace: int = -1
    frees: tuple[int, ...] = ()
    agreements: tuple[Agreement, ...] = ()

    @property
    def kernel(self) -> Kernel | None:
        """The kernel; None for control flow."""
        return self.placement.kernel


@dataclass(frozen=True)
class Plan:
    """Everything a run needs.

    Attributes:
        name: Graph name.
        inputs: Slots of the graph's inputs, then of captured values.
        outputs: Slots of the outputs.
        slots: All slots.
        steps: All steps in order.
        constants: Content of the constant slots.
        symbols: Symbols whose values are known when a run starts, in order.
        defaults: Content of optional inputs that the caller left out.
        threads: Threads that may work on a step; workspaces have room for so many.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    constants: Mapping[int, np.ndarray[Any, Any]]
    symbols: tuple[str, ...]
    defaults: Mapping[int, np.ndarray[Any, Any]]
    threads: int = 1

    @cached_property
    def static_slots(self) -> tuple[int, ...]:
        """Slots whose size follows from the input shapes."""
        return tuple(
            i
            for i, s in enumerate(self.slots)
            if s.storage is not Storage.LATE and s.dtype is not None and s.shape is not None
        )

    @cached_property
    def native_steps(self) -> tuple[int, ...]:
        """Native steps that are not late."""
        return tuple(i for i, s in enumerate(self.steps) if isinstance(s.kernel, NativeKernel) and not s.late)

    @cached_property
    def _agreements(self) -> dict[Agreement, Step]:
        """What must hold of sizes that the input shapes tell, and a step that needs it."""
        early: dict[Agreement, Step] = {}
        for step in self.steps:
            if not step.late:
                early |= {a: step for a in step.agreements if a not in early}
        return early

    @cached_property
    def _agreement_function(self) -> Callable[[Sequence[int]], tuple[int, ...]]:
        return compile_dims([d for a in self._agreements for d in (a.size, a.other)], self.symbols)

    def broken(self, values: Sequence[int]) -> tuple[Agreement, Step, int, int] | None:
        """The first agreement that values of the symbols break, a step that needs it, and the two sizes."""
        flat = self._agreement_function(values)
        for (a, step), size, other in zip(self._agreements.items(), flat[::2], flat[1::2], strict=True):
            if not a.holds(size, other):
                return a, step, size, other
        return None

    @cached_property
    def _size_function(self) -> tuple[Callable[[Sequence[int]], tuple[int, ...]], list[int], list[int]]:
        flat: list[DimLike] = []
        slot_ends: list[int] = []
        for i in self.static_slots:
            flat.extend(self.slots[i].shape or ())
            slot_ends.append(len(flat))
        step_ends: list[int] = []
        for i in self.native_steps:
            kernel = self.steps[i].kernel
            assert isinstance(kernel, NativeKernel)
            flat.extend(kernel.dims)
            step_ends.append(len(flat))
        return compile_dims(flat, self.symbols), slot_ends, step_ends

    def sizes(self, values: Sequence[int]) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]:
        """Shapes of static slots, and sizes of native steps, for values of the symbols."""
        function, slot_ends, step_ends = self._size_function
        flat = function(values)
        shapes: dict[int, tuple[int, ...]] = {}
        start = 0
        for i, end in zip(self.static_slots, slot_ends, strict=True):
            shapes[i] = flat[start:end]
            start = end
        steps: dict[int, tuple[int, ...]] = {}
        for i, end in zip(self.native_steps, step_ends, strict=True):
            steps[i] = flat[start:end]
            start = end
        return shapes, steps
