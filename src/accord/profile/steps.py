"""From the times of runs to one record a step: what it took, moved and computed, and what the machine needs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from accord.backends.protocol import NativeKernel, ViewKernel
from accord.plan.plan import Plan, Step
from accord.profile.peaks import Bound, Peaks, bound
from accord.runtime.arena import arena_blocks
from accord.runtime.executor import Executor
from accord.runtime.frame import Frame
from accord.runtime.observed import Observed, Operand
from accord.runtime.watch import StepTime, WatchedRun

__all__ = ["StepRecord", "live_bytes", "records", "slot_bytes", "walk", "with_single"]

#: Operators that read only those elements of input 0 that they give.
_PICKING: Final = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "EmbedLayerNormalization"})
_EIGHT_BITS: Final = frozenset({"int8", "uint8"})
_SINGLE: Final = frozenset({"float", "float32", "float16", "bfloat16"})
_HALVES: Final = {"float16": "f16", "bfloat16": "bf16"}
_DOUBLE: Final = frozenset({"double", "float64"})


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is known of one step of a plan, or of the plan of a body; times and amounts are those of one run.

    Attributes:
        node: Its node.
        op: The operator; those that were joined, with "+" between.
        kernel: Name of the kernel.
        backend: Where it ran.
        fallback: That backend is slow but right.
        reason: Why it ran there.
        within: Nodes of control flow around it, from the outermost.
        index: Number of the step in its plan.
        late: Its sizes are known only when it runs.
        calls: How many times a run executes it.
        median: Middle of the runs' times in seconds, without what steps of its bodies took.
        least: The least of them.
        single: The least time on one thread; None if that was not measured.
        inputs: Operands of the last call.
        outputs: Likewise.
        read: Bytes read.
        constants: Bytes of weights among them.
        written: Bytes written.
        operations: Arithmetic operations; None if the kernel does not say.
        dtype: What it computes with, of the dtypes that have a peak; None for others.
        bound: The least time that the machine needs; None for control flow, and where that is not known.
        sources: Nodes that made its inputs.
        readers: Nodes that read its outputs.
    """

    node: str
    op: str
    kernel: str
    backend: str
    fallback: bool
    reason: str
    within: tuple[str, ...]
    index: int
    late: bool
    calls: int
    median: float
    least: float
    single: float | None
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    read: int
    constants: int
    written: int
    operations: int | None
    dtype: str | None
    bound: Bound | None
    sources: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def rate(self) -> float | None:
        """Operations a second."""
        return None if self.operations is None or not self.median else self.operations / self.median

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second."""
        return self.nbytes / self.median if self.nbytes and self.median else None

    @property
    def efficiency(self) -> float | None:
        """What it achieved of what the machine can for its operations and bytes."""
        if self.bound is None or not self.bound.seconds or not self.median:
            return None
        return self.bound.seconds / self.median

    @property
    def limit(self) -> str | None:
        """What the machine's least time comes from: "arithmetic", or the level of memory."""
        if self.bound is None or not self.bound.seconds:
            return None
        return "arithmetic" if self.bound.arithmetic >= self.bound.transfer else self.bound.level

    @property
    def is_transfer(self) -> bool:
        """It brings a value from one memory to another."""
        return self.op == "Copy"

    @property
    def is_copy(self) -> bool:
        """It only brings a value into another order of axes: the plan put it there."""
        return self.op == "Identity" and self.backend not in ("plan", "runtime")


def walk(executor: Executor, within: tuple[str, ...] = ()) -> Iterator[tuple[Executor, tuple[str, ...]]]:
    """``executor`` and those of its bodies, with the nodes of control flow around each."""
    yield executor, within
    for (index, _), child in executor.children.items():
        yield from walk(child, (*within, executor.plan.steps[index].placement.node))


def records(
    executor: Executor, runs: Sequence[WatchedRun], at: Peaks | None, device: str | None = None
) -> dict[tuple[int, int], StepRecord]:
    """One record for each step that the runs executed, in order of first execution.

    They are found by the ``id`` of the executor of their plan and by their number in it.

    Args:
        executor: Whose runs they are.
        runs: The same run several times.
        at: What the machine can do, if that is known.
        device: The backend that this is true of; None: of all.
    """
    around = {id(e): within for e, within in walk(executor)}
    found: dict[tuple[int, int], list[list[StepTime]]] = {}
    for number, run in enumerate(runs):
        for t in run.times:
            per_run = found.setdefault((id(t.executor), t.index), [[] for _ in runs])
            per_run[number].append(t)
    links = {id(e): _links(e.plan) for e, _ in walk(executor)}
    made = {}
    for key, per_run in found.items():
        sources, readers = links[key[0]]
        record = _record(around[key[0]], per_run, at, device)
        made[key] = replace(record, sources=sources.get(key[1], ()), readers=readers.get(key[1], ()))
    return made


def with_single(many: Iterable[StepRecord], single: Iterable[StepRecord]) -> list[StepRecord]:
    """Records with the least times that one thread took."""
    known = {(s.within, s.index, s.node): s.least for s in single}
    return [replace(r, single=known.get((r.within, r.index, r.node))) for r in many]


def _links(plan: Plan) -> tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, ...]]]:
    """By number of the step: the nodes that made its inputs, and those that read its outputs, past views."""
    maker: dict[int, int] = {}  # slot → step
    sources: dict[int, tuple[str, ...]] = {}
    readers: dict[int, tuple[str, ...]] = {}
    names = [s.placement.node for s in plan.steps]
    for index, step in enumerate(plan.steps):
        makers = dict.fromkeys(maker[i] for i in step.inputs if i in maker)
        if isinstance(step.kernel, ViewKernel) and step.inputs[0] in maker:
            maker.update({o: maker[step.inputs[0]] for o in step.outputs if o >= 0})
            continue
        sources[index] = tuple(names[m] for m in makers)
        for m in makers:
            readers[m] = (*readers.get(m, ()), names[index])
        maker.update({o: index for o in step.outputs if o >= 0})
    return sources, readers


def _record(within: tuple[str, ...], runs: list[list[StepTime]], at: Peaks | None, device: str | None) -> StepRecord:
    seconds = [sum(t.own or 0 for t in times) * 1e-9 for times in runs]
    calls = runs[-1] or next(times for times in reversed(runs) if times)
    last = calls[-1]
    step, placement = last.step, last.step.placement
    seen: list[Observed] = [t.facts for t in calls]
    read, written = sum(_read(step, o) for o in seen), sum(o.written for o in seen)
    operations = [o.operations for o in seen if o.operations is not None]
    if device is not None and (placement.backend != device or _crosses(last)):
        at = None  # what a device can says nothing of the host, nor of the way between them
    dtype = _dtype(step, seen[-1], at)
    total = sum(operations) if operations else None
    control = placement.kernel is None
    return StepRecord(
        node=placement.node,
        op=placement.op,
        kernel=placement.kernel.name if placement.kernel is not None else "control flow",
        backend=placement.backend,
        fallback=placement.fallback,
        reason=placement.reason,
        within=within,
        index=last.index,
        late=step.late,
        calls=len(calls),
        median=statistics.median(seconds),
        least=min(seconds),
        single=None,
        inputs=seen[-1].inputs,
        outputs=seen[-1].outputs,
        read=0 if control else read,
        constants=sum(o.constants for o in seen),
        written=0 if control else written,
        operations=total,
        dtype=dtype,
        bound=None if control or at is None else _bound(at, dtype, step, seen),
    )


def _crosses(of: StepTime) -> bool:
    """Whether a step reads one memory and writes another."""
    slots = of.executor.plan.slots
    return len({slots[i].space for i in (*of.step.inputs, *of.step.outputs) if i >= 0}) > 1


def _bound(at: Peaks, dtype: str | None, step: Step, seen: Iterable[Observed]) -> Bound:
    """The sum over the calls; the level is that of the last."""
    seconds = arithmetic = transfer = 0.0
    level = ""
    for o in seen:
        b = bound(at, dtype, o.operations or 0, _read(step, o), o.written)
        seconds, arithmetic, transfer = seconds + b.seconds, arithmetic + b.arithmetic, transfer + b.transfer
        level = b.level
    return Bound(seconds, arithmetic, transfer, level)


def _read(step: Step, seen: Observed) -> int:
    """Bytes that are read: of a table that elements are picked from, no more than are given."""
    first = seen.inputs[0] if seen.inputs else None
    if first is None or not _PICKING.intersection(step.placement.op.split("+")):
        return seen.read
    return seen.read - max(0, first.nbytes - seen.written)


def _dtype(step: Step, seen: Observed, at: Peaks | None) -> str | None:
    if not isinstance(step.kernel, NativeKernel):
        return None
    inputs = [x.dtype for x in seen.inputs if x is not None]
    if sum(d in _EIGHT_BITS for d in inputs) > 1:
        return "i8"
    names = {*inputs, *(x.dtype for x in seen.outputs if x is not None)}
    for name, half in _HALVES.items():
        if at is not None and half in at.multiply and name in names:
            return half
    return "f64" if names & _DOUBLE else "f32" if names & _SINGLE else None


def live_bytes(plan: Plan, frame: Frame) -> list[int]:
    """Bytes of the arena that are in use while each step runs."""
    changes = [0] * (len(plan.steps) + 2)
    for block in arena_blocks(plan):
        changes[max(block.first, 0)] += slot_bytes(frame, block.key)
        changes[min(block.last, len(plan.steps)) + 1] -= slot_bytes(frame, block.key)
    live, total = [], 0
    for change in changes[: len(plan.steps)]:
        total += change
        live.append(total)
    return live


def slot_bytes(frame: Frame, slot: int) -> int:
    """Bytes of the elements of a slot whose size follows from the input shapes, else 0."""
    dtype, count = frame.plan.slots[slot].dtype, 1
    for n in frame.sizes.shapes.get(slot, (0,)):
        count *= n
    return 0 if dtype is None else count * dtype.itemsize
