"""Plan: what a run does, as frozen data.

A *slot* is a place for one value, a *step* runs one kernel on slots. Sizes are symbolic; a run with new input shapes
evaluates them (:meth:`Plan.sizes`) and changes nothing else.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from accord.backends.memory import HOST
from accord.backends.protocol import Kernel, NativeKernel, ViewKernel
from accord.ir.agreement import Agreement
from accord.ir.compute import SizeFunction, compile_dims
from accord.ir.dims import DimLike, Shape, symbols_of
from accord.placement.placement import Placement
from accord.plan.types import TensorType, ValueType
from accord.record import record

__all__ = ["NativeRun", "Plan", "Sizes", "Slot", "Step", "Storage", "SubPlan", "all_plans", "all_steps"]

_T = TypeVar("_T")


class Storage(enum.Enum):
    """Where a slot's memory comes from."""

    INPUT = "input"  #: the caller's array
    CONSTANT = "constant"  #: the model's weights
    ARENA = "arena"  #: the planned arena
    OUTPUT = "output"  #: a new array for each run, returned to the caller
    LATE = "late"  #: made while running: its size depends on data, or it is no tensor


@record
class Slot:
    """A place for one value.

    Attributes:
        name: The value's name in the model.
        type: What it holds.
        dtype: NumPy element type; None for what is no tensor of fixed-size elements.
        storage: Where the memory comes from; that of ``root``.
        root: The slot whose memory this one shares (itself, unless it is a view or computed in place).
        first: The step that writes it; -1 for inputs and constants.
        last: The last step that reads it; ``len(steps)`` if it is returned.
        nbytes: Size of its elements in bytes, symbolic.
        offset: Where it starts in its root's memory, in bytes, symbolic.
        strides: In elements, symbolic; None for row-major.
        whole: The slot whose elements it has in another shape, or -1.
        space: The memory that it is in.
    """

    name: str
    type: ValueType
    dtype: np.dtype[Any] | None
    storage: Storage
    root: int
    first: int
    last: int
    nbytes: DimLike
    offset: DimLike = 0
    strides: tuple[DimLike, ...] | None = None
    whole: int = -1
    space: str = HOST

    @property
    def shape(self) -> Shape | None:
        """Symbolic shape of a tensor, else None."""
        return self.type.shape if isinstance(self.type, TensorType) else None


@record
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


@record
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
        stream: The stream of its device on which it runs.
        waits: Steps on other streams of the same program whose end it waits for.
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
    stream: int = 0
    waits: tuple[int, ...] = ()

    @property
    def kernel(self) -> Kernel | None:
        """The kernel; None for control flow."""
        return self.placement.kernel

    @property
    def touched(self) -> set[int]:
        """Slots that it reads or writes, its scratch memory and what its bodies capture among them."""
        found = {*self.inputs, *self.outputs, self.workspace, *(c for b in self.bodies for c in b.captured)}
        return found - {-1}


@record
class NativeRun:
    """Consecutive native steps of one backend, which one program runs; no other step is between them.

    Attributes:
        backend: Its name.
        steps: Numbers of the steps, in order.
    """

    backend: str
    steps: tuple[int, ...]


@record
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
        """Slots whose size follows from the input shapes: not that of a captured value that only a run can size."""
        known = set(self.symbols)
        return tuple(
            i
            for i, s in enumerate(self.slots)
            if s.storage is not Storage.LATE
            and s.dtype is not None
            and s.shape is not None
            and (s.storage is not Storage.INPUT or all(symbols_of(d) <= known for d in s.shape))
        )

    @cached_property
    def alignments(self) -> dict[int, int]:
        """Bytes that the addresses of some of :attr:`lent` must be multiples of, as kernels ask."""
        far = set(self.lent.values())
        found: dict[int, int] = {}
        for step in self.steps:
            if isinstance(step.kernel, NativeKernel) and step.kernel.alignment > 1:
                for root in {self.slots[i].root for i in (*step.inputs, *step.outputs) if i >= 0} & far:
                    found[root] = max(found.get(root, 1), step.kernel.alignment)
        return found

    @cached_property
    def lent(self) -> dict[int, int]:
        """Inputs and outputs that may be in another memory than the host's: their root to that of their copy there.

        Nothing but the copy between the two reads or writes the one in the host's memory.
        """
        uses: Counter[int] = Counter()
        for step in self.steps:
            uses.update({self.slots[i].root for i in step.touched})
        uses.update(self.outputs)
        found: dict[int, int] = {}
        for step in self.steps:
            if step.placement.op != "Copy":
                continue
            source, target = step.inputs[0], step.outputs[0]
            near, far = (source, target) if self.slots[target].space != HOST else (target, source)
            own, other = self.slots[near], self.slots[self.slots[far].root]
            returned = own.storage is Storage.OUTPUT
            if own.root != near or uses[near] != 1 + returned or own.storage not in (Storage.INPUT, Storage.OUTPUT):
                continue
            plain = own.strides is None and self.slots[far].strides is None and self.slots[far].offset == 0
            whole = other.storage is Storage.ARENA and other.nbytes == own.nbytes
            if plain and whole and self.slots[far].root not in found.values():
                found[near] = self.slots[far].root
        return found

    @cached_property
    def all_lent(self) -> bool:
        """Whether all copies between memories are of inputs and outputs that may be there already."""
        copied = [s for s in self.steps if s.placement.op == "Copy"]
        return all(s.inputs[0] in self.lent or s.outputs[0] in self.lent for s in copied)

    @cached_property
    def native_steps(self) -> tuple[int, ...]:
        """Native steps that are not late."""
        return tuple(i for i, s in enumerate(self.steps) if isinstance(s.kernel, NativeKernel) and not s.late)

    def is_free(self, index: int) -> bool:
        """True for a view that shares its input's memory: nothing has to run."""
        step = self.steps[index]
        if not isinstance(step.kernel, ViewKernel):
            return False
        out = step.outputs[0]
        return out < 0 or (
            self.slots[out].storage is not Storage.LATE and self.slots[out].root == self.slots[step.inputs[0]].root
        )

    @cached_property
    def segments(self) -> tuple[NativeRun | int, ...]:
        """What is run, in order: consecutive native steps, and single steps of other kinds by number."""
        native = set(self.native_steps)
        found: list[tuple[str, list[int]] | int] = []
        for index, step in enumerate(self.steps):
            if index not in native:
                if not self.is_free(index):
                    found.append(index)
                continue
            last = found[-1] if found else None
            if isinstance(last, tuple) and last[0] == step.placement.backend:
                last[1].append(index)
            else:
                found.append((step.placement.backend, [index]))
        return tuple(f if isinstance(f, int) else NativeRun(f[0], tuple(f[1])) for f in found)

    @property
    def native_runs(self) -> list[NativeRun]:
        """Those of :attr:`segments` that are programs."""
        return [s for s in self.segments if isinstance(s, NativeRun)]

    @property
    def is_serial(self) -> bool:
        """Whether steps end in the order in which they are numbered."""
        return not any(s.stream for s in self.steps)

    def ended(self) -> list[int]:
        """For each step a set, a bit for each step: those that have surely ended when it starts."""
        found = [(1 << i) - 1 for i in range(len(self.steps))]
        for run in self.native_runs:
            before = found[run.steps[0]]
            last: dict[int, int] = {}  # on each stream
            for i in run.steps:
                step = self.steps[i]
                known = before
                for other in (*step.waits, *([last[step.stream]] if step.stream in last else [])):
                    known |= found[other] | 1 << other
                found[i] = known
                last[step.stream] = i
        return found

    @cached_property
    def _agreements(self) -> dict[Agreement, Step]:
        """What must hold of sizes that the input shapes tell, and a step that needs it."""
        early: dict[Agreement, Step] = {}
        for step in self.steps:
            if not step.late:
                early |= {a: step for a in step.agreements if a not in early}
        return early

    @cached_property
    def _agreement_function(self) -> SizeFunction:
        return compile_dims([d for a in self._agreements for d in (a.size, a.other)], self.symbols)

    def broken(self, values: Sequence[int]) -> tuple[Agreement, Step, int, int] | None:
        """The first agreement that values of the symbols break, a step that needs it, and the two sizes."""
        flat = self._agreement_function(values)
        for (a, step), size, other in zip(self._agreements.items(), flat[::2], flat[1::2], strict=True):
            if not a.holds(size, other):
                return a, step, size, other
        return None

    @cached_property
    def _size_function(self) -> SizeFunction:
        """Of each static slot the shape, the strides and the offset, then the dims of each native step."""
        flat: list[DimLike] = []
        for i in self.static_slots:
            slot = self.slots[i]
            flat.extend(slot.shape or ())
            flat.extend(slot.strides or ())
            flat.extend(() if slot.offset == 0 else (slot.offset,))
        for i in self.native_steps:
            kernel = self.steps[i].kernel
            assert isinstance(kernel, NativeKernel)
            flat.extend(kernel.dims)
        return compile_dims(flat, self.symbols)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the fields, and the functions that take long to compile."""
        kept = (*self.__dataclass_fields__, "_agreement_function", "_size_function")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def sizes(self, values: Sequence[int]) -> Sizes:
        """All sizes for values of the symbols."""
        flat = self._size_function(values)
        shapes: dict[int, tuple[int, ...]] = {}
        strides: dict[int, tuple[int, ...]] = {}
        offsets: dict[int, int] = {}
        start = 0
        for i in self.static_slots:
            slot = self.slots[i]
            end = start + len(slot.shape or ())
            shapes[i] = flat[start:end]
            start = end
            if slot.strides:
                end += len(slot.strides)
                strides[i] = flat[start:end]
                start = end
            if slot.offset != 0:
                offsets[i] = flat[start]
                start += 1
        steps: dict[int, tuple[int, ...]] = {}
        for i in self.native_steps:
            kernel = self.steps[i].kernel
            assert isinstance(kernel, NativeKernel)
            end = start + len(kernel.dims)
            steps[i] = flat[start:end]
            start = end
        return Sizes(shapes, strides, offsets, steps)


@record
class Sizes:
    """The sizes of a plan for one set of input shapes.

    Attributes:
        shapes: Of static slots.
        strides: Of static slots that are not row-major, in elements.
        offsets: Of static slots that do not start where their root does, in bytes.
        steps: Values of the kernels' dims, by native step.
    """

    shapes: dict[int, tuple[int, ...]]
    strides: dict[int, tuple[int, ...]]
    offsets: dict[int, int]
    steps: dict[int, tuple[int, ...]]

    def of_slots(self, slots: Sequence[int]) -> Sizes:
        """Those of some slots, and of no step."""

        def chosen(known: Mapping[int, _T]) -> dict[int, _T]:
            return {i: known[i] for i in slots if i in known}

        return Sizes(chosen(self.shapes), chosen(self.strides), chosen(self.offsets), {})


def all_plans(plan: Plan) -> Iterator[Plan]:
    """``plan`` and the plans of its bodies."""
    yield plan
    for step in plan.steps:
        for body in step.bodies:
            yield from all_plans(body.plan)


def all_steps(plan: Plan) -> Iterator[Step]:
    """The steps of ``plan`` and of its bodies."""
    for each in all_plans(plan):
        yield from each.steps
