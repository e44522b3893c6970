"""Profiling a model: runs it, times each step, and holds the times against what the machine can do."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import accord
from accord.backends.cpu.machine import machine
from accord.errors import BackendError, CompileError
from accord.plan.plan import Storage
from accord.profile.device_peaks import peaks_of
from accord.profile.device_runs import gpu_of, recorded
from accord.profile.measured import Measured, measured
from accord.profile.peaks import Peaks, peaks
from accord.profile.steps import StepRecord, live_bytes, records, slot_bytes, walk, with_single
from accord.runtime.observed import observe
from accord.runtime.watch import Collector, watched

if TYPE_CHECKING:
    from accord.backends.cuda import CudaBackend
    from accord.passes.manager import SkippedRule
    from accord.profile.device import DeviceProfile
    from accord.runtime.executor import Executor
    from accord.runtime.model import Model

__all__ = ["FORMAT", "Happening", "Memory", "Profile", "profile", "roofline"]

#: Version of the form of ``op_profile.json``.
FORMAT: Final = 1
#: A step that is faster than its bound by more than this shows that the peaks were measured on a busy machine.
_TOO_FAST: Final = 1.05


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a run.

    Attributes:
        arena: Bytes of the planned arena.
        live: Bytes of it in use while each step of the outermost plan runs.
        constants: Bytes of weights.
        outputs: Bytes that are returned.
    """

    arena: int
    live: tuple[int, ...]
    constants: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Happening:
    """One execution of a step; what a step of control flow starts happens within it.

    Attributes:
        step: Number of the record in :attr:`Profile.steps`.
        start: Seconds since the run's first step.
        duration: Seconds.
    """

    step: int
    start: float
    duration: float


@dataclass(slots=True)
class Profile:
    """What was measured.

    Attributes:
        name: Of the graph.
        threads: For one run.
        runs: How many were timed.
        shapes: Of the inputs, by name; None for what is no array.
        symbolic: Names of the inputs' sizes that the caller may choose.
        median: Middle time of a run in seconds, nobody watching.
        least: The least.
        outside: Seconds of a run that pass outside its steps.
        single: The least time on one thread; None if ``threads`` is 1.
        steps: One record a step, in order of execution.
        memory: Of the outermost plan.
        peaks: What the machine can do on so many threads; None for a device that cannot be measured.
        timeline: What happened when in one run, the one whose time is in the middle.
        skipped: Gives the rewrites that looked at a node and did not happen; a model that was found on disk is compiled
            for it.
        device: What the GPU did, of a model that runs on one; times of its steps are then those that CUPTI recorded.
        without_device: Why that is not known: times of steps are those between events, started one by one.
        keys: Number of the record in :attr:`steps` by the ``id`` of the plan's executor and the number of the step.
        gpu: Name of the GPU that it ran on; "" for none.
    """

    name: str
    threads: int
    runs: int
    shapes: Mapping[str, tuple[int, ...] | None]
    symbolic: tuple[str, ...]
    median: float
    least: float
    outside: float
    single: float | None
    steps: list[StepRecord]
    memory: Memory
    peaks: Peaks | None
    timeline: tuple[Happening, ...]
    skipped: Callable[[], Sequence[SkippedRule]] = tuple
    device: DeviceProfile | None = None
    without_device: str = ""
    keys: Mapping[tuple[int, int], int] = field(default_factory=dict)
    gpu: str = ""

    @property
    def in_steps(self) -> float:
        """Seconds of a run that pass in steps."""
        return sum(s.median for s in self.steps)

    @property
    def operations(self) -> int:
        """Arithmetic operations of a run, as far as kernels say."""
        return sum(s.operations or 0 for s in self.steps)

    @property
    def bound(self) -> float:
        """The least seconds that the machine needs for the steps, one after the other."""
        return sum(s.bound.seconds for s in self.steps if s.bound is not None)

    @property
    def total(self) -> float:
        """Seconds that a run is made of: less than the middle run takes on a busy machine, which most steps escape."""
        return self.in_steps + self.outside

    def share(self, seconds: float) -> float:
        """Part of a run."""
        return seconds / self.total if self.total else 0.0

    def data(self) -> dict[str, Any]:
        """As JSON can hold it: everything but the timeline."""
        from accord.profile.advice import advise

        at = machine()
        return {
            "format": FORMAT,
            "accord": accord.__version__,
            "machine": {
                "arch": at.arch,
                "cpu": at.cpu,
                "vector_bits": at.vector_bits,
                "caches": {"L1": at.l1d, "L2": at.l2, "L3": at.l3},
                "cores": at.cores,
                "system": platform.platform(),
                "python": platform.python_version(),
            },
            "graph": self.name,
            "threads": self.threads,
            "runs": self.runs,
            "inputs": {n: None if s is None else list(s) for n, s in self.shapes.items()},
            "seconds": {
                "median": self.median,
                "least": self.least,
                "in_steps": self.in_steps,
                "outside_steps": self.outside,
                "one_thread_least": self.single,
            },
            "operations": self.operations,
            "roofline": None if self.peaks is None else {"bound": self.bound, "share": self.bound / self.median},
            "peaks": None if self.peaks is None else self.peaks.data(),
            "steps": [self.step_data(s) for s in self.steps],
            "by_operator": self._totals(lambda s: s.op),
            "by_kernel": self._totals(lambda s: s.kernel),
            "device": self._device_data(),
            "memory": asdict(self.memory),
            "advice": [asdict(a) for a in advise(self)],
        }

    def node_of(self, key: tuple[int, int] | None) -> str | None:
        """The node of a step of :attr:`device`."""
        place = None if key is None else self.keys.get(key)
        return None if place is None else self.steps[place].node

    def _device_data(self) -> dict[str, Any] | None:
        if self.device is None:
            return {"missing": self.without_device} if self.without_device else None
        return self.device.data({key: self.steps[i].node for key, i in self.keys.items()})

    def step_data(self, s: StepRecord) -> dict[str, Any]:
        """One step as JSON can hold it."""
        known = asdict(replace(s, bound=None))
        del known["bound"]
        return {
            **known,
            "share": self.share(s.median),
            "flops_per_second": s.rate,
            "bytes_per_second": s.bandwidth,
            "attainable_seconds": None if s.bound is None else s.bound.seconds,
            "limit": s.limit,
            "memory_level": None if s.bound is None else s.bound.level,
            "efficiency": s.efficiency,
        }

    def _totals(self, key: Callable[[StepRecord], str]) -> list[dict[str, Any]]:
        """Sums by operator or kernel, the longest first."""
        groups: dict[str, list[StepRecord]] = {}
        for s in self.steps:
            groups.setdefault(key(s), []).append(s)
        found = [
            {
                "name": name,
                "steps": len(group),
                "seconds": (seconds := sum(s.median for s in group)),
                "share": self.share(seconds),
                "bytes": sum(s.nbytes for s in group),
                "operations": sum(s.operations or 0 for s in group),
            }
            for name, group in groups.items()
        ]
        return sorted(found, key=lambda g: -float(g["seconds"]))


def profile(
    model: Model,
    inputs: Mapping[str, Any],
    *,
    runs: int = 20,
    again: bool = False,
    advance: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Run ``model`` and measure it.

    Args:
        model: The model.
        inputs: By name.
        runs: Timed runs; as many again without a watch, and on one thread if the model has more.
        again: Measure the machine's peaks even if they are known.
        advance: Called after each part of the work with the name of the next; there are three.

    Raises:
        InputError: the inputs do not fit the model.
        ExecutionError: a kernel failed.
    """
    executor, values = model.executor_for(inputs)
    plan = executor.plan
    advance("runs")
    many = measured(executor, values, runs)
    backend = gpu_of(executor)
    device, missing = (None, "") if backend is None else _recorded(many, executor, values, runs)
    advance("runs on one thread")
    one = measured(executor, values, runs, threads=1) if plan.threads > 1 and backend is None else None
    advance("the machine")
    at = device_peaks(model, backend, again=again)
    on = None if backend is None else backend.name
    found = records(many.executor, many.watched, at, on)
    if not again and any((s.efficiency or 0) > _TOO_FAST for s in found.values()):
        at = device_peaks(model, backend, again=True)
        found = records(many.executor, many.watched, at, on)
    steps = list(found.values())
    if one is not None:
        steps = with_single(steps, records(one.executor, one.watched, at).values())
    positions = {key: i for i, key in enumerate(found)}
    middle = many.middle()
    timeline = (
        Happening(positions[id(t.executor), t.index], (t.start - middle.start) * 1e-9, (t.duration or 0) * 1e-9)
        for t in middle.times
    )
    return Profile(
        name=plan.name,
        threads=plan.threads,
        runs=runs,
        shapes={n: tuple(v.shape) if hasattr(v, "shape") else None for n, v in inputs.items()},
        symbolic=tuple(sorted({d for v in model.inputs for d in v.shape or () if isinstance(d, str)})),
        median=statistics.median(many.seconds),
        least=min(many.seconds),
        outside=many.outside,
        single=None if one is None else min(one.seconds),
        steps=steps,
        memory=_memory(many),
        peaks=at,
        timeline=tuple(sorted(timeline, key=lambda h: (h.start, -h.duration))),
        skipped=lambda: model.compiled.log.skipped,
        device=device,
        without_device=missing,
        keys=positions,
        gpu="" if backend is None else backend.gpu.name,
    )


def _recorded(many: Measured, executor: Executor, values: Sequence[Any], runs: int) -> tuple[DeviceProfile | None, str]:
    """What the GPU did; where that is known, the times of its steps become those that it needed itself."""
    try:
        device = recorded(executor, values, runs)
    except BackendError as error:
        return None, str(error)
    seconds = device.by_step()
    native = {step for w in device.windows if not w.host for step in w.steps}
    if many.executor is executor:
        for t in (t for run in many.watched for t in run.times):
            key = id(t.executor), t.index
            if key in native and (key in seconds or t.step.placement.op == "Copy"):
                t.duration = t.own = round(seconds.get(key, 0.0) * 1e9)
    return device, ""


def roofline(model: Model, inputs: Mapping[str, Any], seconds: float) -> dict[str, float] | None:
    """A whole run against what the machine can, from one watched run and a time that was measured before.

    Args:
        model: The model, which has run with these inputs.
        inputs: By name.
        seconds: How long a run takes.

    Returns:
        "operations" of a run; "flops_per_second"; "peak", the part of the time that the operations need at the peaks of
        their dtypes; "roofline", the part that each step's operations or bytes need, whichever is more. None where the
        machine cannot be measured.
    """
    executor, values = model.executor_for(inputs)
    backend = gpu_of(executor)
    at = device_peaks(model, backend)
    if at is None:
        return None
    collector = Collector(observe)
    with watched(collector):
        executor.run(values)
    steps = records(executor, collector.runs, at, None if backend is None else backend.name).values()
    operations = sum(s.operations or 0 for s in steps)
    bounds = [s.bound for s in steps if s.bound is not None]
    return {
        "operations": operations,
        "flops_per_second": operations / seconds,
        "peak": sum(b.arithmetic for b in bounds) / seconds,
        "roofline": sum(b.seconds for b in bounds) / seconds,
    }


def device_peaks(model: Model, backend: CudaBackend | None, *, again: bool = False) -> Peaks | None:
    """The peaks of the device that a model runs on, or those of its GPU; None where Accord cannot measure it."""
    if backend is not None:
        return peaks_of(backend.gpu, again=again)
    if model.options.device != "cpu":
        return None
    try:
        return peaks(model.plan.threads, again=again)
    except CompileError:  # machine code for this processor cannot be made; the model runs without
        return None


def _memory(seen: Measured) -> Memory:
    plan, frame = seen.executor.plan, seen.frame
    constants = sum(a.nbytes for e, _ in walk(seen.executor) for a in e.plan.constants.values())
    if frame is None:
        return Memory(0, (), constants, 0)
    roots = {plan.slots[o].root for o in plan.outputs if plan.slots[o].storage is Storage.OUTPUT}
    returned = sum(slot_bytes(frame, r) for r in roots)
    return Memory(frame.arena_bytes, tuple(live_bytes(plan, frame)), constants, returned)
