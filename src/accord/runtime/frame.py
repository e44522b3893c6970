"""A frame: a plan bound to one set of sizes, ready to run on some arena.

Binding evaluates every size once and lays out one table with the address of each operand of each native step. A run
then writes the addresses of the caller's arrays into the table and starts the programs; it allocates nothing but
outputs.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from accord.backends.memory import HOST, DeviceArray
from accord.backends.protocol import Backend, HostKernel, Launch, NativeKernel, Phase, Program, Turn
from accord.errors import ExecutionError, InputError
from accord.ir.agreement import Agreement
from accord.ir.dims import DimLike
from accord.model.limits import physical_memory
from accord.plan.arena import align
from accord.plan.plan import Plan, Sizes, Step, Storage
from accord.runtime.arena import Arena, Orders
from accord.runtime.binding import Binding
from accord.runtime.growth import HOST_SCRATCH

__all__ = ["Frame", "Segment", "disagreement", "phase_name"]

#: A program and the step of each of its phases, or the index of a step that Python runs.
Segment: TypeAlias = "tuple[Program, list[int]] | int"

#: NumPy refuses shapes whose product of sizes, leaving out those that are 0, is not far below 2^63.
_MAX_ELEMENTS = 1 << 56


@dataclass(slots=True)
class _Run:
    """Consecutive native steps of one backend: phases, the spans of their operands in the table, their steps.

    Attributes:
        backend: Its name.
        launches: Phases and how they start.
        spans: Where each one's operands are in the table.
        steps: Each one's step.
        turns: When each one may start.
        staged: Where an operand is that is memory of the host for a copy, and the step.
    """

    backend: str
    launches: list[tuple[Phase, Launch]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    staged: list[tuple[int, int]] = field(default_factory=list)
    _ends: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of a step: phases after which it has ended
    _last: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of a stream: the same for its last step

    def start(self, step: Step) -> tuple[int, ...]:
        """Phases on other streams that must have ended before the first phase of ``step``.

        A step waits for another's last phase. One that has no phases for the sizes at hand (a value is empty) hands on
        what it would have waited for.
        """
        waits = {*self._last.get(step.stream, ()), *(p for w in step.waits for p in self._ends[w])}
        return tuple(sorted(p for p in waits if self.turns[p].stream != step.stream))

    def end(self, index: int, step: Step, waits: tuple[int, ...], count: int) -> None:
        """Note that step ``index`` has added ``count`` phases."""
        before = self._last.get(step.stream, ())
        ends = (len(self.turns) - 1,) if count else tuple(sorted({*before, *waits}))
        self._ends[index] = self._last[step.stream] = ends


class Frame:
    """See the module's text.

    Attributes:
        key: The symbols' values.
        returned: Shape of each output whose size is known before the run.
        returned_bytes: Of all memory that is returned, as far as it is known before the run.
        arena_bytes: Arena in the host's memory that a run needs.
        space_bytes: Arenas in other memories that it needs, by space.
        staging_bytes: Memory of the host on the way to other memories that it needs, by their space.
        segments: In order.
        stretched: The same with steps that are started together, once the executor has made it.
        values: For each slot the array (or other value) that Python steps see.
        generation: The device's when it was made.
        bound: What the caller's arrays were bound by last, if their addresses are still in the table.
    """

    generation = 0

    def __init__(
        self,
        plan: Plan,
        key: tuple[int, ...],
        orders: Orders,
        backends: Mapping[str, Backend],
        *,
        constants: Mapping[int, int] | None = None,
        stepwise: bool = False,
    ) -> None:
        self.plan = plan
        self._stepwise = stepwise
        self.key = key
        try:
            broken = plan.broken(key)
            if broken is not None:
                raise disagreement(*broken)
            sizes = plan.sizes(key)
        except ZeroDivisionError as error:
            raise InputError(
                f"a size is divided by another one that is zero for these inputs{self._symbols()}",
                remedy="Give inputs without empty axes.",
            ) from error
        self._sizes = sizes
        nbytes = {
            i: _count(sizes.shapes[i]) * s.dtype.itemsize
            for i in plan.static_slots
            if (s := plan.slots[i]).dtype is not None
        }
        self._refuse_impossible(nbytes)
        self._bases, self.arena_bytes = orders[HOST](nbytes).offsets(nbytes)
        self.space_bytes: dict[str, int] = {}
        for space, order in orders.items():
            if space != HOST:
                bases, self.space_bytes[space] = order(nbytes).offsets(nbytes)
                self._bases.update(bases)
        self._constants = constants or {}
        self._memories = {b.memory.space: b.memory for b in backends.values() if b.memory is not None}
        self._space_bases: dict[str, int] = {}
        #: By number of the step: where the host's memory for a copy is, and in the staging of which space. Each has its
        #: own place: the host fills them ahead of the device.
        self._staged_at: dict[int, tuple[str, int]] = {}
        self.staging_bytes: dict[str, int] = {}
        for i in plan.native_steps:
            step = plan.steps[i]
            if isinstance(step.kernel, NativeKernel) and step.kernel.staged:
                space = backends[step.placement.backend].space
                start = self.staging_bytes.get(space, 0)
                self._staged_at[i] = space, start
                self.staging_bytes[space] = start + align(nbytes[step.outputs[0]])
        self.returned_bytes = sum(nbytes.get(i, 0) for i in {plan.slots[o].root for o in plan.outputs})
        self._refuse_too_large(nbytes)
        self._base = self._version = 0
        self.bound: Binding | None = None
        self.values: list[Any] = [plan.constants.get(i) for i in range(len(plan.slots))]
        self._table = np.zeros(0, np.int64)
        self.segments: list[Segment] = []
        self.stretched: list[Any] | None = None
        self._lay_out(sizes.steps, backends)
        python_slots = self._python_slots(HOST)
        #: Values in other memories that Python hands on: slot, its root, where it begins there, and its shape.
        self._far_views: list[tuple[int, int, int, tuple[int, ...]]] = []
        self._note_far()
        self._arena_views = [
            (i, self._bases[plan.slots[i].root]) for i in python_slots if plan.slots[i].storage is Storage.ARENA
        ]
        self._caller_views = [
            (i, plan.slots[i].root)
            for i in python_slots
            if plan.slots[i].storage is Storage.OUTPUT
            or (plan.slots[i].storage is Storage.INPUT and plan.slots[i].root != i)
        ]
        self._transient = {i for i, _ in self._caller_views} | set(plan.inputs)
        self._transient |= {i for i, s in enumerate(plan.slots) if s.storage is Storage.LATE}
        self._transient |= {i for i, *_ in self._far_views}
        self._constant_views(python_slots)
        self.returned = {i: sizes.shapes[i] for i in plan.outputs if i in sizes.shapes}
        # many frames are kept, so each keeps only what its runs need
        self._sizes = sizes.of_slots(python_slots)

    @functools.cached_property
    def sizes(self) -> Sizes:
        """The sizes of all slots and steps, worked out again for who watches."""
        return self.plan.sizes(self.key)

    def _refuse_impossible(self, nbytes: Mapping[int, int]) -> None:
        """Sizes that no value can have, or that would let a view reach past the memory that it is a view of."""
        slots = self.plan.slots
        for i, shape in self._sizes.shapes.items():
            if any(d < 0 for d in shape):  # such as a window that is larger than its input
                raise self._size_error(i, "a size is negative", "at least 0", "Give larger inputs.")
            if _count([d for d in shape if d]) >= _MAX_ELEMENTS:
                raise self._size_error(i, "a size is too large", f"at most {_MAX_ELEMENTS:,} elements", None)
            source = slots[i].whole
            if source in nbytes and nbytes[source] != nbytes.get(i, nbytes[source]):
                whole = f"as many elements as '{slots[source].name}' of shape {list(self._sizes.shapes[source])}"
                raise self._size_error(i, "the shape does not hold all elements", whole, None)

    def _size_error(self, slot: int, message: str, expected: str, remedy: str | None) -> InputError:
        return InputError(
            f"{message} for these inputs{self._symbols()}",
            value=self.plan.slots[slot].name,
            expected=expected,
            found=f"[{', '.join(map(str, self.plan.slots[slot].shape or ()))}] = {list(self._sizes.shapes[slot])}",
            remedy=remedy or "Check the sizes of the inputs.",
        )

    def _symbols(self) -> str:
        """The sizes that the inputs have, for messages."""
        symbols = ", ".join(f"{s} = {v}" for s, v in zip(self.plan.symbols, self.key, strict=True))
        return f" ({symbols})" if symbols else ""

    def _refuse_too_large(self, nbytes: Mapping[int, int]) -> None:
        """What no machine of this size can hold; asking for it could end the process instead of raising an error."""
        plan = self.plan
        needed = self.arena_bytes + self.returned_bytes + sum(self.staging_bytes.values())
        needed += max((self._scratch(step) for step in plan.steps if isinstance(step.kernel, HostKernel)), default=0)
        if needed > physical_memory():
            largest = max(nbytes, key=lambda i: nbytes[i])
            raise ExecutionError(
                "the run needs more memory than there is",
                value=plan.slots[largest].name,
                expected=f"at most {physical_memory():,} bytes",
                found=f"{needed:,} bytes; this value alone has shape {list(self._sizes.shapes[largest])}",
                remedy="Give smaller inputs, or split the batch.",
            )

    def _scratch(self, step: Step) -> int:
        """Bytes that a kernel in Python takes for itself: it computes in a wider dtype, and in more than one piece."""
        return HOST_SCRATCH * sum(
            _count(shape) for o in step.outputs if (shape := self._sizes.shapes.get(o)) is not None
        )

    def _constant_views(self, python_slots: Sequence[int]) -> None:
        for i in python_slots:
            s = self.plan.slots[i]
            if s.storage is Storage.CONSTANT and s.root != i:
                self.values[i] = self._part(i, self.values[s.root])

    def _part(
        self, i: int, source: np.ndarray[Any, Any], start: int = 0, sizes: Sizes | None = None
    ) -> np.ndarray[Any, Any]:
        """The array of slot ``i`` in the memory of its root, which is row-major and begins at byte ``start``."""
        dtype = self.plan.slots[i].dtype
        assert dtype is not None
        sizes = self._sizes if sizes is None else sizes
        strides = sizes.strides.get(i)
        nbytes = None if strides is None else tuple(s * dtype.itemsize for s in strides)
        shape = sizes.shapes[i]
        offset = start + sizes.offsets.get(i, 0) if _count(shape) else 0
        part: np.ndarray[Any, Any] = np.ndarray(shape, dtype, source.reshape(-1).view(np.uint8), offset, nbytes)
        return part

    def _note_far(self) -> None:
        """Note the values in other memories that a Python step touches; constants stay where they are."""
        plan = self.plan
        for space in self.space_bytes:
            for i in self._python_slots(space):
                slot, shape = plan.slots[i], self._sizes.shapes.get(i)
                if slot.storage is Storage.LATE or shape is None or slot.dtype is None:
                    continue
                start = self._sizes.offsets.get(i, 0)
                if slot.storage is Storage.CONSTANT:
                    address = self._constants[slot.root] + start
                    self.values[i] = DeviceArray(self._memories[space], address, shape, slot.dtype)
                else:
                    self._far_views.append((i, slot.root, start, shape))

    def _python_slots(self, space: str) -> list[int]:
        """Slots in a memory that a Python step touches, or that are returned."""
        plan = self.plan
        used = set(plan.outputs)
        for index, step in enumerate(plan.steps):
            if step.late or not (isinstance(step.kernel, NativeKernel) or plan.is_free(index)):
                used.update(step.inputs)
                used.update(step.outputs)
                used.update(c for b in step.bodies for c in b.captured)
        return sorted(i for i in used if i >= 0 and plan.slots[i].space == space)

    def _lay_out(self, step_sizes: Mapping[int, tuple[int, ...]], backends: Mapping[str, Backend]) -> None:
        """Build the operand table and the programs."""
        plan = self.plan
        operands: list[int] = []  # slot of each table entry
        runs: list[_Run | int] = []
        for segment in plan.segments:
            if isinstance(segment, int):
                runs.append(segment)
            elif self._stepwise:
                for index in segment.steps:
                    alone = replace(plan.steps[index], stream=0, waits=())
                    runs.append(self._run([(index, alone)], segment.backend, step_sizes, operands))
            else:
                steps = [(index, plan.steps[index]) for index in segment.steps]
                runs.append(self._run(steps, segment.backend, step_sizes, operands))
        self._table = np.zeros(len(operands), np.int64)
        arenas: dict[str, list[tuple[int, int]]] = {}
        caller: dict[int, list[tuple[int, int]]] = {}
        far = set(plan.lent.values())
        #: Table entries of what a caller may have there already, by root: where, and what to add to the address.
        self._lent_entries: dict[int, list[tuple[int, int]]] = {}
        #: Roots whose entries point to a caller's memory, and where that is.
        self._lent: dict[int, int] = {}
        for i, slot in enumerate(operands):
            if slot < 0:
                continue
            root, start = plan.slots[slot].root, self._sizes.offsets.get(slot, 0)
            storage = plan.slots[root].storage
            if storage is Storage.ARENA:
                arenas.setdefault(plan.slots[root].space, []).append((i, self._bases[root] + start))
                if root in far:
                    self._lent_entries.setdefault(root, []).append((i, start))
            elif storage is Storage.CONSTANT:
                place = self._constants.get(root)
                self._table[i] = (self.values[root].ctypes.data if place is None else place) + start
            elif storage in (Storage.INPUT, Storage.OUTPUT):
                caller.setdefault(root, []).append((i, start))
        #: By space, which entries of the table point into its arena, and how far.
        self._arena_entries = _as_arrays(arenas)
        places: dict[str, list[tuple[int, int]]] = {}
        for run in runs:
            for i, index in run.staged if isinstance(run, _Run) else ():
                space, start = self._staged_at[index]
                places.setdefault(space, []).append((i, start))
        #: By space, which entries of the table are places for copies, and how far into its staging.
        self._staging_entries = _as_arrays(places)
        self._staging_bases: dict[str, int] = {}
        # NumPy takes several times as long to store one element
        self._cells = (ctypes.c_int64 * len(operands)).from_buffer(self._table.data) if operands else None
        #: Table entries of the caller's arrays by root: where, and what to add to the address.
        self._entries = caller
        for run in runs:
            if isinstance(run, int):
                self.segments.append(run)
            elif run.launches:
                tables = [self._table[a:b] for a, b in run.spans]
                rest = (plan.threads, run.turns) if any(t.stream for t in run.turns) else (plan.threads,)
                program = backends[run.backend].program(run.launches, tables, *rest)
                program.name_of = functools.partial(phase_name, plan, run.steps)
                self.segments.append((program, run.steps))

    def _run(
        self,
        steps: Sequence[tuple[int, Step]],
        backend: str,
        step_sizes: Mapping[int, tuple[int, ...]],
        operands: list[int],
    ) -> _Run:
        """Consecutive steps; their operands' slots are added to ``operands``, and -1 for what is staged in no slot."""
        run = _Run(backend)
        for index, step in steps:
            kernel = step.kernel
            assert isinstance(kernel, NativeKernel)
            slots = [step.inputs[i] for i in kernel.reads] + [o for o in step.outputs if o >= 0]
            if step.workspace >= 0:
                slots.append(step.workspace)
            if kernel.staged:
                slots.append(-1)
            launches = kernel.launches(step_sizes[index])
            started = [(p, launch) for p, launch in zip(kernel.phases, launches, strict=True) if launch.tasks]
            waits = run.start(step)
            for k, (phase, launch) in enumerate(started):
                start = len(operands)
                operands.extend(slots[i] for i in phase.operands)
                run.launches.append((phase, launch))
                run.spans.append((start, len(operands)))
                if kernel.staged:
                    run.staged.append((len(operands) - 1, index))
                run.steps.append(index)
                run.turns.append(Turn(step.stream, () if k else waits))
            run.end(index, step, waits, len(started))
        return run

    def attach(self, arena: Arena) -> None:
        """Point everything that lives in the arena into ``arena``."""
        for space, nbytes in self.space_bytes.items():
            base = arena.ensure_in(self._memories[space], nbytes)
            if base != self._space_bases.get(space):
                self._space_bases[space] = base
                self._point(space, base)
        self._note(arena)
        arena.ensure(self.arena_bytes)
        if arena.address == self._base and arena.address:
            return
        self._base = arena.address
        self._point(HOST, arena.address)
        for i, offset in self._arena_views:
            self.values[i] = self._part(i, arena.buffer, offset)

    def _point(self, space: str, base: int) -> None:
        """Write the addresses of what lives in the arena of ``space``."""
        found = self._arena_entries.get(space)
        if found is not None:
            entries, offsets = found
            self._table[entries] = offsets + base
            self.bound = None  # there may be entries of the caller's among them

    def bind_caller(self, arrays: Mapping[int, Any], arena: Arena) -> None:
        """Write the addresses of the caller's inputs and of the new outputs, by root slot."""
        self.bound = None
        cells = self._cells
        staged = bool(self.staging_bytes) and not self.plan.all_lent
        for slot, entries in self._entries.items():
            array = arrays[slot]
            if isinstance(array, DeviceArray):
                address = array.address
                self._lend(slot, address)
            else:
                address = array.__array_interface__["data"][0]
                staged = True
                if self._lent:
                    self._take_back(slot)
            for i, start in entries:
                cells[i] = address + start  # type: ignore[index]
        if staged:
            self._attach_staging(arena)
        for i, root in self._caller_views:
            source = arrays.get(root)
            self.values[i] = None if source is None else self._caller_part(i, source)
        for i, root, start, shape in self._far_views:
            far = self.plan.slots[i]
            base = self._lent.get(root)
            if base is None:
                base = self._space_bases.get(far.space, 0) + self._bases[root]  # there is none for no bytes
            assert far.dtype is not None
            self.values[i] = DeviceArray(self._memories[far.space], base + start, shape, far.dtype)

    def _attach_staging(self, arena: Arena) -> None:
        for space, nbytes in self.staging_bytes.items():
            base = arena.ensure_staging(self._memories[space], nbytes)
            if base != self._staging_bases.get(space):
                self._staging_bases[space] = base
                found = self._staging_entries.get(space)  # there is none if all copies are of no bytes
                if found is not None:
                    self._table[found[0]] = found[1] + base
        self._note(arena)

    def _note(self, arena: Arena) -> None:
        """Tell programs if blocks of the arena are new, which their addresses need not show."""
        if arena.version != self._version:
            self._version = arena.version
            for segment in self.segments:
                if not isinstance(segment, int):
                    segment[0].memory = arena.version

    def _lend(self, slot: int, address: int) -> None:
        """Let the copy of ``slot`` in another memory be the caller's own; the copy to itself does nothing."""
        root = self.plan.lent[slot]
        for i, start in self._lent_entries[root]:
            self._cells[i] = address + start  # type: ignore[index]
        self._lent[root] = address

    def _take_back(self, slot: int) -> None:
        """Let the copy of ``slot`` be in the arena again."""
        root = self.plan.lent.get(slot, -1)
        if root in self._lent:
            base = self._space_bases[self.plan.slots[root].space] + self._bases[root]
            for i, start in self._lent_entries[root]:
                self._cells[i] = base + start  # type: ignore[index]
            del self._lent[root]

    def _caller_part(self, i: int, source: Any) -> Any:
        """The array of slot ``i`` in an array of the caller's, or in a returned one."""
        sizes = self._sizes
        shape = sizes.shapes[i]
        if i in sizes.strides or i in sizes.offsets or source.size != _count(shape):
            return self._part(i, source)
        dtype = self.plan.slots[i].dtype
        if source.dtype != dtype:  # computed in place as another type of the same size
            source = source.reshape(-1).view(dtype)
        return source if source.shape == shape else source.reshape(shape)

    def read(self, i: int, arena: Arena, arrays: Mapping[int, Any]) -> Any:
        """What slot ``i`` holds at this moment of a run with the caller's ``arrays``: an array on its memory.

        Of what is in a memory that the host cannot read, it is a copy.
        """
        slot = self.plan.slots[i]
        sizes = self.sizes
        if slot.storage is Storage.LATE or i not in sizes.shapes:
            return self.values[i]
        if slot.space != HOST:
            return self._fetched(i, sizes)
        if slot.storage is Storage.ARENA:
            return self._part(i, arena.buffer, self._bases[slot.root], sizes)
        source = self.values[slot.root] if slot.storage is Storage.CONSTANT else arrays.get(slot.root)
        return None if source is None else self._part(i, source, 0, sizes)

    def _fetched(self, i: int, sizes: Sizes) -> Any:
        """A copy of what slot ``i`` holds in its memory."""
        root, slots = self.plan.slots[i].root, self.plan.slots
        dtype = slots[root].dtype
        assert dtype is not None
        space = slots[root].space
        address = self._constants.get(root)
        if root in self._lent:  # the caller's memory
            entry, start = self._lent_entries[root][0]
            address = int(self._table[entry]) - start
        elif address is None:
            address = self._space_bases[space] + self._bases[root]
        whole = np.empty(_count(sizes.shapes[root]) * dtype.itemsize, np.uint8)
        if whole.size:
            self._memories[space].read(address, whole)
        return self._part(i, whole, 0, sizes)

    def release(self) -> None:
        """Forget the caller's arrays and what was made while running, so that a pooled frame keeps none alive."""
        for i in self._transient:
            self.values[i] = None


def disagreement(agreement: Agreement, step: Step, size: int, other: int) -> InputError:
    """The error of a node two sizes of which do not fit each other."""
    if agreement.condition:
        return InputError(
            f"the contract's condition '{agreement.condition}' does not hold for these inputs",
            node=step.placement.node,
            op=step.placement.op,
            remedy="Give inputs of other sizes.",
        )
    return InputError(
        f"{agreement.what} do not fit each other",
        node=step.placement.node,
        op=step.placement.op,
        expected=_sized(agreement.size, size) + (", or 1" if agreement.ones else ""),
        found=_sized(agreement.other, other),
        remedy="Give inputs of other sizes.",
    )


def _sized(dim: DimLike, value: int) -> str:
    """A size as it is written, and as it is for these inputs."""
    return str(value) if isinstance(dim, int) else f"{dim} = {value}"


def _as_arrays(
    places: Mapping[str, Sequence[tuple[int, int]]],
) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Pairs of integers by space, as two arrays."""
    return {
        space: (np.array([i for i, _ in found], np.int64), np.array([at for _, at in found], np.int64))
        for space, found in places.items()
    }


def phase_name(plan: Plan, steps: Sequence[int], number: int) -> str:
    """The kernel and the node of a phase of a program."""
    step = plan.steps[steps[number]]
    name = "?" if not isinstance(step.kernel, NativeKernel) else step.kernel.name
    return f"kernel '{name}' of node '{step.placement.node}'"


def _count(shape: Sequence[int]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n
