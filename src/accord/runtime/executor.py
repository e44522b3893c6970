"""The executor: runs one plan, from several threads at once.

Frames (sizes) and arenas (memory) are pooled. A run borrows one of each; as many exist as runs were ever under way at
the same time, and the frames of sizes that have not been used for long are dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from accord.backends.memory import HOST, Block, DeviceArray, Memory
from accord.backends.protocol import Backend, Caller, HostKernel, NativeKernel, ViewKernel
from accord.errors import ExecutionError
from accord.ir import dims as D
from accord.ir.compute import content_symbol
from accord.plan.plan import Plan, Slot, Step, Storage
from accord.runtime import control
from accord.runtime.arena import Arena, orders_for
from accord.runtime.binding import Binding
from accord.runtime.failing import blame
from accord.runtime.frame import Frame, Segment
from accord.runtime.growth import refuse_growth
from accord.runtime.late_steps import LateSizes, LateSteps, LateStretch
from accord.runtime.returned import ReturnedMemory
from accord.runtime.shortage import no_memory_for_constants, no_memory_for_run
from accord.runtime.solve import solve
from accord.runtime.watch import WATCH, Running

__all__ = ["Executor"]

#: Frames kept for sizes that were used lately: half a kilobyte a step each. Making one takes longer than a small run.
MAX_FRAMES = 512
#: Sets of input shapes whose sizes are remembered.
MAX_SHAPES = 1024


class Executor:
    """Runs a plan.

    Args:
        plan: The plan.
        backends: By name.
        device: The backend that makes output arrays.
        stepwise: Each step is a segment of its own, so that a watch sees what it read and what it made.
    """

    def __init__(self, plan: Plan, backends: Mapping[str, Backend], device: Backend, *, stepwise: bool = False) -> None:
        self.plan = plan
        self.stepwise = stepwise
        self.backends = backends
        self.device = device
        self._memories = {b.memory.space: b.memory for b in backends.values() if b.memory is not None}
        self._lock = threading.Lock()
        self._prepared = False
        self._orders = orders_for(plan)
        self._late_steps = LateSteps(plan, backends)
        #: Constants in other memories than the host's, by slot.
        self._uploaded: dict[int, Block] = {}
        self._frames: OrderedDict[tuple[int, ...], list[Frame]] = OrderedDict()
        #: The device's when these frames were made; what it starts may be another thing since.
        self._generation = device.generation
        self._arenas: list[Arena] = []
        #: Runs that were under way at the same time.
        self._abreast = 0
        self._returned = ReturnedMemory()
        #: Which axes of a late slot are symbols, and which.
        self._told: dict[int, list[tuple[int, str]]] = {}
        #: By number of the step.
        self._view_sizes: dict[int, LateSizes] = {}
        self._solved: dict[Any, tuple[tuple[int, ...], dict[str, int]]] = {}
        #: Inputs of one integer that are symbols of the plan.
        names = [plan.slots[i].name for i in plan.inputs]
        self._contents = [(k, s) for k, n in enumerate(names) if (s := content_symbol(n)) in plan.symbols]
        #: For each input the memory other than the host's in which it may be; None if that is none.
        self._read_in = [
            plan.slots[plan.lent[i]].space if i in plan.lent and self._free(i) else None for i in plan.inputs
        ]
        #: Whether steps find sizes out while they run, which they add to a run's symbols.
        self._late = any(s.late for s in plan.steps)
        #: For each memory class that is returned, the output that owns the array, which is all of it; others of the
        #: class are copied.
        self._owners: dict[int, int] = {}
        for i in plan.outputs:
            slot = plan.slots[i]
            if slot.storage is Storage.OUTPUT and (slot.nbytes, slot.offset) == (plan.slots[slot.root].nbytes, 0):
                self._owners.setdefault(slot.root, i)
        self._owned = [
            (position, i, plan.slots[i].root, dtype)
            for position, i in enumerate(plan.outputs)
            if self._owners.get(plan.slots[i].root) == i and (dtype := plan.slots[i].dtype) is not None
        ]
        #: Whether nothing keeps a run from reading and writing the caller's memory on a device, and no other.
        self._far = (
            None not in self._read_in
            and len(self._owned) == len(plan.outputs)
            and all(isinstance(s.kernel, (NativeKernel, ViewKernel)) and not s.late for s in plan.steps)
        )
        self.children: dict[tuple[int, str], Executor] = {
            (i, body.name): Executor(body.plan, backends, device, stepwise=stepwise)
            for i, step in enumerate(plan.steps)
            for body in step.bodies
        }

    # running

    def run(
        self,
        inputs: Sequence[Any],
        outer: Mapping[str, int] | None = None,
        into: Mapping[int, np.ndarray[Any, Any] | DeviceArray | Memory] | None = None,
        stream: int | None = None,
    ) -> list[Any]:
        """The outputs for ``inputs`` (in the plan's order, checked and contiguous).

        Args:
            inputs: Arrays (:class:`~accord.backends.memory.DeviceArray` too), lists for sequences, None for an absent
                optional.
            outer: Values of symbols that an outer plan knows.
            into: By number of the output, memory to return it in where the shape is right: row-major, of the output's
                dtype, apart from all inputs. What was in it is lost. Or the memory in which to make it.
            stream: The device's stream on which the caller wants the run: see
                :attr:`accord.backends.protocol.Caller.stream`.

        Raises:
            InputError: sizes that do not fit each other.
            ExecutionError: a kernel failed.
        """
        inputs = self._near(inputs)
        caller = self._caller(inputs, into, stream)
        key, env = self._sizes(inputs, outer)
        outputs: list[Any] = self._on_frame(key, self._run, inputs, env, into or {}, caller)
        return outputs

    def binding(self, inputs: Sequence[Any], outputs: Mapping[int, Any]) -> Binding | None:
        """What :meth:`run_bound` needs to do again what :meth:`run` did with ``inputs`` on a device, into ``outputs``.

        None where a run reads or writes memory of the host, or where steps need Python.
        """
        if not self._far or outputs.keys() != {position for position, *_ in self._owned}:
            return None
        if any(not isinstance(v, DeviceArray) for v in (*inputs, *outputs.values())):
            return None
        given = [*zip(self.plan.inputs, inputs, strict=True), *((r, outputs[k]) for k, _, r, _ in self._owned)]
        if not all(self._fits(slot, v) for slot, v in given):
            return None
        key, env = self._sizes(inputs, None)
        if self._on_frame(key, lambda frame, _: any(isinstance(segment, int) for segment in frame.segments)):
            return None
        apart = {slot: a.kept_by(None) for slot, a in zip(self.plan.inputs, inputs, strict=True)}
        made = tuple(outputs[position].kept_by(None) for position, *_ in self._owned)
        apart |= {root: a for (_, _, root, _), a in zip(self._owned, made, strict=True)}
        streams = (a.stream for a in (*inputs, *outputs.values()))
        return Binding(key, env, apart, made, tuple(dict.fromkeys(s for s in streams if s is not None)))

    def run_bound(self, binding: Binding, stream: int | None = None) -> int | None:
        """A run on the memory of ``binding``, which its caller keeps alive.

        Args:
            binding: Of a run with equal arrays.
            stream: As for :meth:`run`.

        Returns:
            The stream on which the outputs may still be made; None: they are there.

        Raises:
            ExecutionError: a kernel failed.
        """
        caller = Caller(stream, binding.arrivals) if binding.arrivals or stream is not None else None
        self._on_frame(binding.key, self._run_again, binding, caller)
        return stream if caller is not None and caller.pending is not None else None

    def _run_again(self, frame: Frame, arena: Arena, binding: Binding, caller: Caller | None) -> None:
        if frame.bound is not binding:
            frame.bind_caller(binding.arrays, arena)
            frame.bound = binding
        self._run_segments(frame, arena, binding.env, caller)

    def _on_frame(self, key: tuple[int, ...], action: Callable[..., Any], *arguments: Any) -> Any:
        """What ``action`` gives for a frame for these sizes, an arena that it is attached to, and ``arguments``."""
        try:
            frame, arena = self._borrow(key)
            try:
                return action(frame, arena, *arguments)
            finally:
                frame.release()
                self._give_back(frame, arena)
        except MemoryError as error:
            raise no_memory_for_run(error, self.plan, key) from error

    def _near(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """``inputs``; those in another memory that the plan does not read there as copies in the host's."""
        for v in inputs:
            if isinstance(v, DeviceArray):
                break
        else:
            return inputs
        return [
            v.numpy() if isinstance(v, DeviceArray) and not (v.space == space and self._fits(i, v)) else v
            for i, v, space in zip(self.plan.inputs, inputs, self._read_in, strict=True)
        ]

    def _caller(self, inputs: Sequence[Any], into: Mapping[int, Any] | None, stream: int | None) -> Caller | None:
        """What the run has to do with others' streams; None: nothing."""
        given = [*inputs, *into.values()] if into else inputs
        arrivals = {v.stream: None for v in given if isinstance(v, DeviceArray) and v.stream is not None}
        return Caller(stream, tuple(arrivals)) if arrivals or stream is not None else None

    def _fits(self, slot: int, array: DeviceArray) -> bool:
        """Whether the plan can have input or output ``slot`` where an array of the caller's is."""
        far = self.plan.lent.get(slot)
        if far is None or self.plan.slots[far].space != array.space:
            return False
        return array.address % self.plan.alignments.get(far, 1) == 0

    def _free(self, slot: int) -> bool:
        """Whether nobody needs to know what is in an input."""
        return content_symbol(self.plan.slots[slot].name) not in self.plan.symbols

    def prepare(self) -> None:
        """Have the machine code of all steps and of all body graphs: a run waits for no compiler.

        Raises:
            CompileError: machine code could not be generated.
        """
        if self._prepared:
            return
        kernels: dict[str, list[NativeKernel]] = {}
        for step in self.plan.steps:
            if isinstance(step.kernel, NativeKernel):
                kernels.setdefault(step.placement.backend, []).append(step.kernel)
            elif isinstance(step.kernel, HostKernel):
                step.kernel.prepare()
        with self.device.active():
            for backend, found in kernels.items():
                self.backends[backend].prepare(found)
        self._upload()
        for child in self.children.values():
            child.prepare()
        self._prepared = True

    def _upload(self) -> None:
        """Bring constants to the memories in which they are read."""
        for space, memory in self._memories.items():
            slots = [i for i in self.plan.constants if self.plan.slots[i].space == space]
            try:
                blocks = memory.upload_all([self.plan.constants[i] for i in slots])
            except MemoryError as error:
                self._uploaded.clear()
                raise no_memory_for_constants(error, self.plan, space) from error
            self._uploaded.update(zip(slots, blocks, strict=True))

    def memory(self, env: Mapping[str, int]) -> tuple[Frame, int]:
        """The frame for these sizes and the size of its arenas in bytes; nothing is run."""
        frame, arena = self._borrow(tuple(env[s] for s in self.plan.symbols), attach=False)
        self._give_back(frame, arena)
        return frame, frame.arena_bytes + sum(frame.space_bytes.values())

    def held(self) -> int:
        """Bytes of the arenas that are kept, those of body graphs too."""
        with self._lock:
            own = sum(a.nbytes for a in self._arenas)
        return own + self._returned.held() + sum(c.held() for c in self.children.values())

    def trim(self) -> int:
        """Give memory that no run uses back to the system; returns the number of bytes."""
        with self._lock:
            freed = sum(a.nbytes for a in self._arenas)
            for arena in self._arenas:
                arena.settle()
            self._arenas.clear()
            self._frames.clear()
            self._late_steps.forget()
            self._abreast = 0
        return freed + self._returned.trim() + sum(c.trim() for c in self.children.values())

    def _sizes(self, inputs: Sequence[Any], outer: Mapping[str, int] | None) -> tuple[tuple[int, ...], dict[str, int]]:
        """Values of the plan's symbols, as the key of a frame and by name; remembered for shapes that were met."""
        known: tuple[Any, ...] | None = None
        if not self._contents:
            try:
                known = (*[a.shape for a in inputs], *(outer.items() if outer else ()))
            except AttributeError:  # a sequence, or an absent optional
                known = None
            found = self._solved.get(known)
            if found is not None:
                key, env = found
                return key, dict(env) if self._late else env
        env = self._solve(inputs, outer)
        key = tuple(env[s] for s in self.plan.symbols)
        if known is not None:
            if len(self._solved) >= MAX_SHAPES:
                self._solved.clear()
            self._solved[known] = key, dict(env) if self._late else env
        return key, env

    def environment(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Values of all symbols of sizes, and of the contents of inputs of one integer.

        Raises:
            InputError: sizes that do not fit each other.
        """
        env = self._solve(inputs, None)
        for slot, value in zip(self.plan.inputs, inputs, strict=True):
            if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iub":
                env[content_symbol(self.plan.slots[slot].name)] = int(value.reshape(()))
        return env

    def _solve(self, inputs: Sequence[Any], outer: Mapping[str, int] | None) -> dict[str, int]:
        return solve(self.plan, self._contents, inputs, outer)

    def _borrow(self, key: tuple[int, ...], *, attach: bool = True) -> tuple[Frame, Arena]:
        with self._lock:
            if (generation := self.device.generation) != self._generation:
                self._generation = generation
                self._frames.clear()
                self._late_steps.forget()
            free = self._frames.get(key)
            frame = free.pop() if free else None
            if free is not None:
                self._frames.move_to_end(key)
            if self._arenas:
                arena = self._arenas.pop()
            else:
                arena = Arena()
                self._abreast += 1
        if frame is None:
            self.prepare()
            constants = {i: b.address for i, b in self._uploaded.items()}
            with self.device.active():
                frame = Frame(self.plan, key, self._orders, self.backends, constants=constants, stepwise=self.stepwise)
            frame.generation = generation
        if attach:
            try:
                frame.attach(arena)
            except MemoryError:
                self.trim()  # what is kept for other sizes is worth less than this run
                frame.attach(arena)
            self._returned.limit = max(self._returned.limit, frame.returned_bytes * self._abreast)
        return frame, arena

    def _give_back(self, frame: Frame, arena: Arena) -> None:
        with self._lock:
            if frame.generation == self._generation:
                self._frames.setdefault(frame.key, []).append(frame)
            self._arenas.append(arena)
            while len(self._frames) > MAX_FRAMES:
                self._frames.popitem(last=False)

    def _run(
        self,
        frame: Frame,
        arena: Arena,
        inputs: Sequence[Any],
        env: dict[str, int],
        into: Mapping[int, np.ndarray[Any, Any] | DeviceArray | Memory],
        caller: Caller | None,
    ) -> list[Any]:
        plan = self.plan
        arrays: dict[int, Any] = dict(zip(plan.inputs, inputs, strict=True))
        for position, i, root, dtype in self._owned:
            if root not in arrays:
                arrays[root] = self._new_output(into.get(position), root, frame.returned[i], dtype)
        values = frame.values
        for i, value in zip(plan.inputs, inputs, strict=True):
            values[i] = value
        frame.bind_caller(arrays, arena)
        watch = WATCH.get()
        if watch is not None:
            arena.settle()
            self._settle(caller, arrays)
            watch.run(Running(self, frame, arena, env, arrays))
            return [self._result(i, values, arrays) for i in plan.outputs]
        if caller is not None and any(isinstance(s, int) for s in frame.segments):
            self._settle(caller, arrays)  # steps that Python starts are on no stream of the caller's
        self._run_segments(frame, arena, env, caller)
        results = [self._result(i, values, arrays) for i in plan.outputs]
        if caller is not None:
            for r in results:
                if isinstance(r, DeviceArray):
                    r.stream = None if caller.pending is None else caller.stream
        return results

    def _run_segments(self, frame: Frame, arena: Arena, env: dict[str, int], caller: Caller | None) -> None:
        if arena.pending is not None:
            caller = Caller() if caller is None else caller
            caller.before, arena.pending = arena.pending, None
        try:
            for segment in self._stretched(frame) if self._late else frame.segments:
                if not isinstance(segment, tuple):
                    if caller is not None and caller.pending is not None:
                        caller.pending.wait()
                        caller.pending = None
                    if isinstance(segment, int):
                        self._python_step(segment, self.plan.steps[segment], frame.values, env, arena)
                    else:
                        self._late_stretch(segment, frame.values, env, arena)
                    continue
                program, steps = segment  # as run_segment, without a call for each
                failed = program.run() if caller is None else program.run_for(caller)
                if failed >= 0:
                    raise self._refused(steps[failed], program.refusal)
        finally:
            if caller is not None:
                arena.pending = caller.pending or caller.before

    def _stretched(self, frame: Frame) -> list[Segment | LateStretch]:
        """The segments of a frame, with stretches of late steps as one."""
        if frame.stretched is None:
            found: list[Segment | LateStretch] = []
            inside: set[int] = set()
            for segment in frame.segments:
                if isinstance(segment, int) and segment in inside:
                    continue
                stretch = self._late_steps.stretches.get(segment) if isinstance(segment, int) else None
                if stretch is not None:
                    inside.update(stretch.steps)
                found.append(segment if stretch is None else stretch)
            frame.stretched = found
        return frame.stretched

    @staticmethod
    def _settle(caller: Caller | None, arrays: Mapping[int, Any]) -> None:
        """Wait for all that a run would have others' streams wait for."""
        if caller is None:
            return
        streams = {*caller.arrivals, *(() if caller.stream is None else (caller.stream,))}
        for memory in {id(a.memory): a.memory for a in arrays.values() if isinstance(a, DeviceArray)}.values():
            for stream in streams:
                memory.settle(stream)

    def _new_output(
        self, given: np.ndarray[Any, Any] | DeviceArray | Memory | None, root: int, shape: tuple[int, ...], dtype: Any
    ) -> Any:
        """Where output ``root`` goes: what was given for it, if it can be there."""
        if isinstance(given, (DeviceArray, Memory)):
            if isinstance(given, Memory):
                given = DeviceArray.empty(given, shape, dtype)
            if not self._fits(root, given):
                given = None
        if given is not None and given.shape == shape:
            return given
        return np.zeros(shape, dtype) if self.device.zeros else self._returned.array(shape, dtype)

    def run_segment(
        self,
        segment: Segment,
        frame: Frame,
        arena: Arena,
        env: dict[str, int],
        seconds: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Run one segment of a frame; ``seconds`` receives the time of each phase of a native one."""
        if isinstance(segment, int):
            self._python_step(segment, self.plan.steps[segment], frame.values, env, arena)
            return
        program, steps = segment
        failed = program.run() if seconds is None else program.run_timed(seconds)
        if failed >= 0:
            raise self._refused(steps[failed], program.refusal)

    def _result(self, i: int, values: list[Any], arrays: Mapping[int, Any]) -> Any:
        root = self.plan.slots[i].root
        return arrays[root] if self._owners.get(root) == i else _copy(values[i])

    def _refused(self, index: int, number: int) -> ExecutionError:
        step = self.plan.steps[index]
        placement = step.placement
        if isinstance(step.kernel, NativeKernel) and step.kernel.foreign:
            from accord.kernels.library import status_message

            return ExecutionError(f"{step.kernel.name}: {status_message(number)}", node=placement.node, op=placement.op)
        return ExecutionError(
            "an index is outside its axis",
            node=placement.node,
            op=placement.op,
            remedy="Correct the indices: they count from 0, or from the end where they are negative.",
        )

    # steps that Python runs

    def _late_stretch(self, stretch: LateStretch, values: list[Any], env: dict[str, int], arena: Arena) -> None:
        try:
            stretch.run(values, env, arena, self._refused)
        except Exception as error:  # noqa: BLE001  it is raised as the step's
            step = self.plan.steps[stretch.steps[0]]
            blame(step, error, [values[i] if i >= 0 else None for i in step.inputs])

    def _python_step(self, index: int, step: Step, values: list[Any], env: dict[str, int], arena: Arena) -> None:
        kernel = step.kernel
        if isinstance(kernel, NativeKernel):
            self._late_stretch(self._late_steps.single(index), values, env, arena)
            return
        arguments = [values[i] if i >= 0 else None for i in step.inputs]
        results: Sequence[Any]
        try:
            if kernel is None:
                results = control.run(self, index, step, arguments, values, env)
            elif isinstance(kernel, HostKernel):
                if step.late:
                    refuse_growth(step.placement.op, arguments)
                results = kernel.run(arguments)
            else:
                shape = self._shape(index, env)
                source = arguments[0]
                results = [source.view(shape) if isinstance(source, DeviceArray) else np.asarray(source).reshape(shape)]
        except Exception as error:  # noqa: BLE001  likewise
            blame(step, error, arguments)
        self._store(step, results, values, env, arena)

    def _store(self, step: Step, results: Sequence[Any], values: list[Any], env: dict[str, int], arena: Arena) -> None:
        for i, made in zip(step.outputs, results, strict=False):
            if i < 0:
                continue
            slot = self.plan.slots[i]
            produced = self._brought(made, slot) if step.kernel is None else made
            if slot.storage is Storage.LATE:
                values[i] = _detached(produced, arena)
                self._bind_late(i, produced, env)
                continue
            target = values[i]
            if produced is target:
                continue
            result: Any = produced if isinstance(target, DeviceArray) else np.asarray(produced)
            if result.shape != target.shape or result.dtype != target.dtype:
                raise ExecutionError(
                    "the kernel's result is not what its contract says",
                    node=step.placement.node,
                    op=step.placement.op,
                    value=slot.name,
                    expected=f"{target.dtype}{list(target.shape)}",
                    found=f"{result.dtype}{list(result.shape)}",
                    remedy="Correct the operator's shape rule or its reference.",
                )
            if isinstance(target, DeviceArray):
                target.take(result)
            else:
                np.copyto(target, result)
        for i in step.frees:
            if i not in self.plan.inputs:
                values[i] = None

    def _brought(self, value: Any, slot: Slot) -> Any:
        """A result of control flow in the memory that the plan has it in."""
        if isinstance(value, DeviceArray) and slot.space == HOST:
            return value.numpy()
        if isinstance(value, np.ndarray) and slot.space != HOST:
            memory = self.device.memory
            assert memory is not None
            return DeviceArray.of(memory, value)
        return value

    def _bind_late(self, i: int, result: Any, env: dict[str, int]) -> None:
        """Note sizes that a late value tells."""
        if not isinstance(result, (np.ndarray, DeviceArray)):
            return
        told = self._told.get(i)
        if told is None:
            shape = enumerate(self.plan.slots[i].shape or ())
            told = self._told[i] = [(a, str(d)) for a, d in shape if D.symbols_of(d) == {str(d)}]
        for axis, name in told:
            if axis < len(result.shape):  # a rank that is wrong is its reader's error
                env.setdefault(name, result.shape[axis])

    def _shape(self, index: int, env: Mapping[str, int]) -> tuple[int, ...]:
        """Of the output of a step that makes a view."""
        sizes = self._view_sizes.get(index)
        if sizes is None:
            shape = self.plan.slots[self.plan.steps[index].outputs[0]].shape
            assert shape is not None
            sizes = self._view_sizes[index] = LateSizes(shape)
        return tuple(sizes(env))


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_copy(v) for v in value]
    return value


def _detached(value: Any, arena: Arena) -> Any:
    """``value`` with no part in the arena, whose memory will be used again."""
    if isinstance(value, np.ndarray):
        return value.copy() if np.may_share_memory(value, arena.buffer) else value
    if isinstance(value, DeviceArray):
        return value.copy() if arena.holds(value) else value
    if isinstance(value, list):
        return [_detached(v, arena) for v in value]
    return value
