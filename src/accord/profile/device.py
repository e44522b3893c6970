"""What a GPU did during runs: kernels and copies by step, the gaps between them and why, and what should not happen.

Everything here follows from CUPTI's records (:mod:`accord.backends.cuda.cupti`) and from when the host executed which
segment of a run.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, TypeAlias

from accord.backends.cuda.cupti import Activity, Call, Copy, Fill, Kernel, Wait
from accord.backends.cuda.parts import PIECE
from accord.profile.occupancy import Limits, Occupancy, occupancy

__all__ = [
    "CopyTime",
    "DeviceProfile",
    "Expected",
    "Finding",
    "Gap",
    "KernelTime",
    "RunWindows",
    "Window",
    "Work",
    "analyse",
]

#: A step: the ``id`` of its plan's executor, and its number.
Key: TypeAlias = tuple[int, int]
#: Something that the device does.
Work: TypeAlias = Kernel | Copy | Fill

#: Calls that wait for work that nobody asked about, and what to call instead.
_SYNCHRONOUS: Final = {
    **dict.fromkeys(("cuCtxSynchronize", "cudaDeviceSynchronize"), "wait for an event of the stream instead"),
    **dict.fromkeys(("cudaMemcpy", "cudaMemcpy2D", "cudaMemcpyToSymbol"), "cudaMemcpyAsync on the stream"),
    **dict.fromkeys(("cuMemcpy", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD"), "the Async form on the stream"),
    **dict.fromkeys(("cudaMemset", "cuMemsetD8", "cuMemsetD32"), "the Async form on the stream"),
    **dict.fromkeys(("cudaFree", "cuMemFree", "cudaFreeHost", "cuMemFreeHost"), "keep the memory, as workspace"),
    **dict.fromkeys(("cudaMalloc", "cuMemAlloc", "cudaHostAlloc", "cuMemHostAlloc"), "declare it as workspace"),
    "cudaStreamSynchronize": "let the stream go on; the run waits once, at its end",
    "cudaEventSynchronize": "let the stream wait for the event (cudaStreamWaitEvent)",
}
#: The driver's calls by which Accord itself waits; in a step that Python runs they are somebody else's.
_WAITING: Final = {"cuStreamSynchronize", "cuEventSynchronize"}
#: Nanoseconds between the end of what was waited for and the start of what waited.
_AFTER: Final = 3000
#: Gaps shorter than these nanoseconds are no gaps: a kernel of the same stream follows at once.
_GAP: Final = 500
#: In the names of kernels that a library starts to add parts of sums, behind the one that made them.
_ADDS: Final = "splitK"


@dataclass(frozen=True, slots=True)
class Expected:
    """A launch that a segment makes.

    Attributes:
        step: Its step.
        nbytes: Of a copy; None of a kernel.
        name: Of a kernel in the machine code; None where a library starts its own, of which there may be several.
    """

    step: Key
    nbytes: int | None = None
    name: str | None = ""


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which the host executed a segment.

    Attributes:
        steps: The steps of the segment.
        start: Nanoseconds of CUPTI's clock.
        end: Likewise.
        host: It is none of the device's: steps of the host's, views, control flow.
        launches: What it starts on the device, in order.
    """

    steps: tuple[Key, ...]
    start: int
    end: int
    host: bool
    launches: tuple[Expected, ...] = ()


@dataclass(slots=True)
class RunWindows:
    """One run.

    Attributes:
        start: Nanoseconds of CUPTI's clock.
        end: Likewise.
        windows: In order of their start, those of bodies within those of their step.
        addresses: Of memory that the caller lent, and of arenas, by name.
    """

    start: int
    end: int = 0
    windows: list[Window] = field(default_factory=list)
    addresses: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One launch of a kernel in a run.

    Attributes:
        name: In the machine code.
        step: The step that started it, if that is known.
        seconds: The median over the runs.
        stream: Number of the stream.
        graph: Whether a graph started it.
        grid: Blocks.
        threads: Of a block.
        registers: Of a thread.
        shared: Bytes of shared memory of a block.
        local: Bytes of local memory of a thread: registers that were spilled, arrays that did not fit.
        occupancy: In theory.
        achieved: What Nsight Compute measured of it; None if it was not asked.
        memory_bytes: Read from the device's memory and written to it, likewise.
    """

    name: str
    step: Key | None
    seconds: float
    stream: int
    graph: bool
    grid: tuple[int, int, int]
    threads: int
    registers: int
    shared: int
    local: int
    occupancy: Occupancy
    achieved: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CopyTime:
    """A copy of a run.

    Attributes:
        direction: See :class:`accord.backends.cuda.cupti.Copy`.
        pageable: One end is memory of the host that is not pinned.
        nbytes: How many.
        step: The step that it belongs to, if that is known.
        seconds: The median over the runs.
        stream: Number of the stream.
    """

    direction: str
    pageable: bool
    nbytes: int
    step: Key | None
    seconds: float
    stream: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a stream had nothing to do.

    Attributes:
        cause: In words.
        seconds: How long.
        stream: Which.
        after: What ended before it.
        before: What began after it.
    """

    cause: str
    seconds: float
    stream: int
    after: str
    before: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should not happen in a run.

    Attributes:
        kind: "default stream", "synchronisation", "pageable copy".
        what: The kernel, the call, the direction of the copy.
        step: In which step, if that is known.
        times: In one run.
        seconds: In one run: of the kernel, of the call, of the copy.
        remedy: What to do instead.
    """

    kind: str
    what: str
    step: Key | None
    times: float
    seconds: float
    remedy: str


@dataclass(slots=True)
class DeviceProfile:
    """What the device did in a run.

    Attributes:
        device: Its name.
        limits: What its multiprocessors have.
        span: Seconds from the first thing that it did to the end of the last; the median over the runs.
        busy: Seconds of them in which it did something.
        kernels: In the order in which they were started.
        copies: Likewise.
        gaps: Of the run whose span is in the middle.
        findings: What should not happen.
        timeline: What it did in that run, with the step; times in nanoseconds since the run began.
        windows: When the host executed what in that run, likewise.
        calls: The host's calls of the driver and the runtime in that run, likewise.
        without_graph: Why kernels were started one by one; "" if a graph started all that can be.
        lost: Records that CUPTI lost.
    """

    device: str
    limits: Limits
    span: float
    busy: float
    kernels: tuple[KernelTime, ...]
    copies: tuple[CopyTime, ...]
    gaps: tuple[Gap, ...]
    findings: tuple[Finding, ...]
    timeline: tuple[tuple[Work, Key | None], ...]
    windows: tuple[Window, ...]
    calls: tuple[Call, ...]
    without_graph: str
    lost: int

    def by_step(self) -> dict[Key, float]:
        """Seconds that the device spent on each step."""
        found: dict[Key, float] = {}
        times = [(k.step, k.seconds) for k in self.kernels] + [(c.step, c.seconds) for c in self.copies]
        for step, seconds in times:
            if step is not None:
                found[step] = found.get(step, 0.0) + seconds
        return found

    def causes(self) -> dict[str, float]:
        """Seconds of gaps by cause, the longest first."""
        found: dict[str, float] = {}
        for g in self.gaps:
            found[g.cause] = found.get(g.cause, 0.0) + g.seconds
        return dict(sorted(found.items(), key=lambda c: -c[1]))

    def data(self, names: Mapping[Key, str]) -> dict[str, Any]:
        """As JSON can hold it; ``names`` gives the node of a step."""

        def named(items: Iterable[Any]) -> list[dict[str, Any]]:
            return [asdict(x) | {"step": names.get(x.step) if x.step else None} for x in items]

        return {
            "name": self.device,
            "limits": asdict(self.limits),
            "seconds": {"span": self.span, "busy": self.busy},
            "kernels": named(self.kernels),
            "copies": [c | {"bytes_per_second": c["nbytes"] / c["seconds"] or None} for c in named(self.copies)],
            "gaps": [asdict(g) for g in self.gaps],
            "gaps_by_cause": self.causes(),
            "findings": named(self.findings),
            "without_graph": self.without_graph,
            "lost_records": self.lost,
        }


# analysis


class _Host:
    """What the host did when: calls by their correlation, windows by time."""

    def __init__(self, activity: Activity, run: RunWindows) -> None:
        self.run = run
        self._starts = [w.start for w in run.windows]
        inside = [r for r in activity.records if isinstance(r, (Call, Wait)) and run.start <= r.start < run.end]
        self.calls = sorted((r for r in inside if isinstance(r, Call)), key=lambda c: c.start)
        self.waits = [r for r in inside if isinstance(r, Wait)]
        self.by_correlation = {c.correlation: c for c in self.calls}

    def window(self, at: int) -> int | None:
        """Number of the innermost window at a time."""
        for k in range(bisect_right(self._starts, at) - 1, -1, -1):
            if self.run.windows[k].end >= at:
                return k
        return None

    def started(self, work: Work) -> int:
        """When the host started something; when it began where that is not known."""
        call = self.by_correlation.get(work.correlation)
        return work.start if call is None else call.start


def analyse(
    activity: Activity,
    runs: Sequence[RunWindows],
    device: str,
    limits: Limits,
    host_steps: Callable[[Key], bool] = lambda step: True,
) -> DeviceProfile:
    """What the device did.

    Args:
        activity: The records.
        runs: The same run several times.
        device: Name of the device.
        limits: Its limits.
        host_steps: Whether a step that Python executes is a kernel of its own; else Accord's own waits are in it.
    """
    hosts = [_Host(activity, run) for run in runs]
    work = [_work_of(activity, host) for host in hosts]
    spans = [max(w.end for w, _ in own) - min(w.start for w, _ in own) if own else 0 for own in work]
    middle = sorted(range(len(runs)), key=spans.__getitem__)[len(runs) // 2] if runs else 0
    kernels, copies = _medians(work, limits)
    own = work[middle] if work else []
    return DeviceProfile(
        device=device,
        limits=limits,
        span=statistics.median(spans) * 1e-9 if spans else 0.0,
        busy=statistics.median(_covered([w for w, _ in one]) for one in work) * 1e-9 if work else 0.0,
        kernels=kernels,
        copies=copies,
        gaps=tuple(_gaps(hosts[middle], [w for w, _ in own])) if own else (),
        findings=tuple(_findings(activity, hosts, work, host_steps)),
        timeline=tuple((_since(w, runs[middle].start), step) for w, step in own),
        windows=tuple(_since(w, runs[middle].start) for w in runs[middle].windows) if runs else (),
        calls=tuple(_since(c, runs[middle].start) for c in hosts[middle].calls) if runs else (),
        without_graph=_without_graph(work, runs),
        lost=activity.lost,
    )


def _since(item: Any, start: int) -> Any:
    return replace(item, start=item.start - start, end=item.end - start)


def _work_of(activity: Activity, host: _Host) -> list[tuple[Work, Key | None]]:
    """What the device did in a run, in the order in which it was started, with the step."""
    run = host.run
    found: dict[int | None, list[Work]] = {}
    for record in activity.records:
        if isinstance(record, (Kernel, Copy, Fill)) and run.start <= (at := host.started(record)) < run.end:
            found.setdefault(host.window(at), []).append(record)
    result: list[tuple[Work, Key | None]] = []
    for number in sorted(found, key=lambda k: -1 if k is None else k):
        own = sorted(found[number], key=lambda w: (host.started(w), w.node, w.start))
        window = None if number is None else run.windows[number]
        result += _attributed(own, window)
    return result


def _attributed(own: Sequence[Work], window: Window | None) -> list[tuple[Work, Key | None]]:
    """Each piece of work with its step: by order, if a segment made the launches that it should have."""
    if window is None:
        return [(w, None) for w in own]
    if len(window.steps) == 1:
        return [(w, window.steps[0]) for w in own]
    kernels = [e for e in window.launches if e.nbytes is None]
    next_kernel = iter(_steps_of([w.name for w in own if isinstance(w, Kernel)], kernels))
    copies = [(e.step, e.nbytes) for e in window.launches if e.nbytes is not None]
    result: list[tuple[Work, Key | None]] = []
    for w in own:
        step = None
        if isinstance(w, Kernel):
            step = next(next_kernel)
        elif isinstance(w, Copy):
            # one whose two ends are the same memory was never started; a large one may be started in pieces
            fits = (k for k, (_, left) in enumerate(copies) if left == w.nbytes or left > w.nbytes == PIECE)
            place = next(fits, None)
            if place is not None:
                step, left = copies[place]
                copies[: place + 1] = [(step, left - w.nbytes)] if left > w.nbytes else []
        result.append((w, step))
    return result


def _steps_of(names: Sequence[str], expected: Sequence[Expected]) -> list[Key | None]:
    """The step of each kernel, by order.

    A call of a library may start several: what is none of ours between two of ours is its own.
    """
    if len(names) == len(expected):
        return [e.step for e in expected]
    ours = {e.name for e in expected}
    found: list[Key | None] = []
    calls: list[Key] = []
    for e in (*expected, None):
        if e is not None and e.name is None:
            calls.append(e.step)
            continue
        found += _shared(list(itertools.takewhile(lambda name: name not in ours, names[len(found) :])), calls)
        calls = []
        if e is not None:
            if names[len(found) : len(found) + 1] != [e.name]:
                return [None] * len(names)
            found.append(e.step)
    return found if len(found) == len(names) else [None] * len(names)


def _shared(names: Sequence[str], calls: Sequence[Key]) -> list[Key | None]:
    """The step of each kernel that calls of a library, one after the other, have started."""
    if len(set(calls)) == 1:
        return [calls[0]] * len(names)
    first = [_ADDS not in name for name in names]
    if first[:1] == [True] and sum(first) == len(calls):
        return [calls[k - 1] for k in itertools.accumulate(first)]
    return [None] * len(names)


def _medians(
    work: Sequence[Sequence[tuple[Work, Key | None]]], limits: Limits
) -> tuple[tuple[KernelTime, ...], tuple[CopyTime, ...]]:
    """One record for each launch, over the runs that are made of the same launches as most are."""
    forms = [tuple((type(w), getattr(w, "name", ""), step) for w, step in one) for one in work]
    usual = max(forms, key=forms.count, default=())
    alike = [one for one, form in zip(work, forms, strict=True) if form == usual]
    kernels, copies = [], []
    times = zip(*(_own_times([w for w, _ in one]) for one in alike), strict=True)
    for same, own in zip(zip(*alike, strict=True), times, strict=True):
        seconds = statistics.median(own) * 1e-9
        first, step = same[0]
        if isinstance(first, Kernel):
            kernels.append(_kernel_time(first, step, seconds, limits))
        elif isinstance(first, Copy):
            copies.append(CopyTime(first.direction, first.pageable, first.nbytes, step, seconds, first.stream))
    return tuple(kernels), tuple(copies)


def _own_times(work: Sequence[Work]) -> list[int]:
    """Nanoseconds of each piece of work, without those in which it waited on its stream, where kernels start early."""
    times, until = [0] * len(work), dict[int, int]()
    for i, w in sorted(enumerate(work), key=lambda x: x[1].start):
        begin = max(w.start, until.get(w.stream, 0))
        times[i] = max(0, w.end - begin)
        until[w.stream] = max(w.end, begin)
    return times


def _kernel_time(k: Kernel, step: Key | None, seconds: float, limits: Limits) -> KernelTime:
    threads = k.block[0] * k.block[1] * k.block[2]
    blocks = k.grid[0] * k.grid[1] * k.grid[2]
    return KernelTime(
        name=k.name,
        step=step,
        seconds=seconds,
        stream=k.stream,
        graph=bool(k.node),
        grid=k.grid,
        threads=threads,
        registers=k.registers,
        shared=k.shared,
        local=k.local,
        occupancy=occupancy(limits, threads, k.registers, k.shared, blocks),
    )


def _covered(work: Iterable[Work]) -> int:
    """Nanoseconds in which at least one piece of work was under way."""
    total, until = 0, 0
    for w in sorted(work, key=lambda w: w.start):
        total += max(0, w.end - max(w.start, until))
        until = max(until, w.end)
    return total


# gaps


def _gaps(host: _Host, work: Sequence[Work]) -> list[Gap]:
    """The gaps of each stream, and of the device before its first work and after its last.

    A stream that has done nothing yet waits since the device was last busy, if it is idle.
    """
    ordered = sorted(work, key=lambda w: w.start)
    first = last = ordered[0]
    found = [Gap("the host prepares the run", (first.start - host.run.start) * 1e-9, first.stream, "", _name(first))]
    latest = {first.stream: first}
    for b in ordered[1:]:
        a = latest.get(b.stream, last)
        if b.start - a.end >= _GAP:
            found.append(Gap(_cause(host, work, a, b), (b.start - a.end) * 1e-9, b.stream, _name(a), _name(b)))
        latest[b.stream] = max(latest.get(b.stream, b), b, key=lambda w: w.end)
        last = max(last, b, key=lambda w: w.end)
    found.append(Gap("the host ends the run", max(0, host.run.end - last.end) * 1e-9, last.stream, _name(last), ""))
    return found


def _cause(host: _Host, work: Sequence[Work], a: Work, b: Work) -> str:
    """Why a stream had nothing to do between ``a`` and ``b``."""
    started = host.started(b)
    if a.correlation != b.correlation and started > a.end:
        slept = max((w for w in host.waits if w.end > a.end and w.start < started), key=_length, default=None)
        called = max(
            (c for c in host.calls if c.name in _SYNCHRONOUS and c.end > a.end and c.start < started),
            key=_length,
            default=None,
        )
        if called is not None:
            return f"the host waits in {called.name}"
        number = host.window((a.end + started) // 2)
        if number is not None and host.run.windows[number].host:
            return "a step runs on the host"
        if isinstance(a, Copy) and a.pageable:
            return "the host waits in a copy that is pageable"
        if slept is not None and slept.what != "stream for event":
            return f"the host waits for a{'n' if slept.what[0] in 'ae' else ''} {slept.what}"
        return "the host starts it late"
    elsewhere = any(w.stream != b.stream and a.end < w.end <= b.start and b.start - w.end <= _AFTER for w in work)
    if elsewhere:
        return "it waits for another stream"
    if isinstance(a, Copy) or isinstance(b, Copy):
        return "between a copy and a kernel"
    return "between two kernels of a graph" if b.node else "between two launches"


def _length(item: Call | Wait) -> int:
    return item.end - item.start


def _name(work: Work) -> str:
    if isinstance(work, Kernel):
        return work.name
    return f"copy {work.direction}" if isinstance(work, Copy) else "fill"


# what should not happen


def _findings(
    activity: Activity,
    hosts: Sequence[_Host],
    work: Sequence[Sequence[tuple[Work, Key | None]]],
    host_steps: Callable[[Key], bool],
) -> list[Finding]:
    found: dict[tuple[str, str, Key | None, str], list[int]] = {}
    for host, own in zip(hosts, work, strict=True):
        for w, step in own:
            if isinstance(w, Kernel) and (w.context, w.stream) in activity.default_streams:
                remedy = "start it on the stream that the launch is given"
                found.setdefault(("default stream", w.name, step, remedy), []).append(w.end - w.start)
            if isinstance(w, Copy) and w.pageable:
                remedy = "give it memory that is pinned, or that is on the device"
                found.setdefault(("pageable copy", w.direction, step, remedy), []).append(w.end - w.start)
        for call in _outermost(host.calls):
            number = host.window(call.start)
            window = None if number is None else host.run.windows[number]
            step = window.steps[0] if window is not None and len(window.steps) == 1 else None
            remedy = _SYNCHRONOUS.get(call.name, "")
            if call.name in _WAITING and window is not None and window.host and step and host_steps(step):
                remedy = "let the stream go on; the run waits once, at its end"
            if remedy:
                found.setdefault(("synchronisation", call.name, step, remedy), []).append(call.end - call.start)
    runs = len(hosts)
    made = [Finding(*key[:3], len(t) / runs, sum(t) * 1e-9 / runs, key[3]) for key, t in found.items()]
    return sorted(made, key=lambda f: -f.seconds)


def _outermost(calls: Sequence[Call]) -> list[Call]:
    """Calls that no other call makes: the runtime calls the driver."""
    result: list[Call] = []
    until: dict[int, int] = {}
    for c in calls:
        if c.start >= until.get(c.thread, 0):
            result.append(c)
            if c.runtime:
                until[c.thread] = c.end
    return result


def _without_graph(work: Sequence[Sequence[tuple[Work, Key | None]]], runs: Sequence[RunWindows]) -> str:
    """Why kernels that a graph could start were started one by one."""
    alone = 0
    for one, run in zip(work, runs, strict=True):
        by_window: dict[tuple[Key, ...], list[Kernel]] = {}
        for w, step in one:
            owner = next((x for x in run.windows if step in x.steps and not x.host), None)
            if isinstance(w, Kernel) and owner is not None:
                by_window.setdefault(owner.steps, []).append(w)
        alone += sum(len(k) for k in by_window.values() if len(k) > 1 and not any(x.node for x in k))
    if not alone:
        return ""
    places = {name for run in runs for name in run.addresses}
    moved = sorted(n for n in places if len({run.addresses.get(n) for run in runs}) > 1)
    kernels = f"{alone / len(runs):.0f} kernels of a run were started one by one"
    if moved:
        return f"{kernels}: the addresses of {', '.join(moved[:4])} change from run to run"
    return f"{kernels}, though no address changes from run to run"
