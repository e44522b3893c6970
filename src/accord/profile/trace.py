"""A profile as a Chrome trace: open it in Perfetto or chrome://tracing."""

from __future__ import annotations

import os
from typing import Any

from accord.backends.cuda.cupti import Copy, Kernel
from accord.profile.device import DeviceProfile
from accord.profile.profile import Profile
from accord.profile.steps import StepRecord
from accord.runtime.observed import Operand

__all__ = ["chrome_trace"]

#: Numbers of the host's tracks: steps, and calls of the driver; those of streams and of their copies follow.
_THREAD, _CALLS, _STREAMS, _COPIES = 1, 2, 100, 100_000


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """The timeline of one run: a complete event for each execution of a step, and a counter of the arena's use.

    Of a run on a GPU: what the host executed and called, and what each stream did, its copies apart.
    """
    process = os.getpid()
    place = {"pid": process, "tid": _THREAD}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "args": {"name": f"accord: {profile.name}"}, **place},
        {"ph": "M", "name": "thread_name", "args": {"name": "steps"}, **place},
    ]
    if profile.device is not None:
        events += _device_events(profile, profile.device, process)
        return {"displayTimeUnit": "ms", "traceEvents": events}
    for happening in profile.timeline:
        record = profile.steps[happening.step]
        start = happening.start * 1e6
        events.append(
            {
                "ph": "X",
                "cat": record.backend,
                "name": record.node,
                "ts": start,
                "dur": happening.duration * 1e6,
                "args": _arguments(profile, record),
                **place,
            }
        )
        if not record.within and record.index < len(profile.memory.live):
            counted = {"in use": profile.memory.live[record.index]}
            events.append({"ph": "C", "name": "arena bytes", "ts": start, "args": counted, **place})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _device_events(profile: Profile, device: DeviceProfile, process: int) -> list[dict[str, Any]]:
    """Events of a run on a GPU, whose times are nanoseconds since the run began."""

    def event(name: str, start: int, end: int, track: int, kind: str, **arguments: Any) -> dict[str, Any]:
        place = {"pid": process, "tid": track}
        return {"ph": "X", "cat": kind, "name": name, "ts": start / 1e3, "dur": (end - start) / 1e3, **place} | {
            "args": {n: v for n, v in arguments.items() if v is not None}
        }

    events, tracks = [], {_CALLS: "calls of the driver"}
    for w in device.windows:
        name = profile.node_of(w.steps[0]) or "step"
        shown = name if len(w.steps) == 1 else f"{len(w.steps)} steps from {name}"
        events.append(event(shown, w.start, w.end, _THREAD, "host" if w.host else "native"))
    for c in device.calls:
        events.append(event(c.name, c.start, c.end, _CALLS, "runtime" if c.runtime else "driver"))
    for work, step in device.timeline:
        node = profile.node_of(step)
        if isinstance(work, Kernel):
            track, title = _STREAMS + work.stream, f"{device.device}, stream {work.stream}"
            record = None if step is None else profile.steps[profile.keys[step]] if step in profile.keys else None
            known: dict[str, Any] = {} if record is None else _arguments(profile, record)
            known |= {"grid": list(work.grid), "block": list(work.block), "registers": work.registers}
            known |= {"shared bytes": work.shared, "local bytes": work.local, "machine code": work.name}
            events.append(event(node or work.name, work.start, work.end, track, "kernel", **known))
        else:
            track, title = _COPIES + work.stream, f"{device.device}, copies of stream {work.stream}"
            name, known = "fill", {"bytes": work.nbytes, "node": node}
            if isinstance(work, Copy):
                name = f"copy {work.direction}"
                rate = work.nbytes / (work.end - work.start) if work.end > work.start else None
                known |= {"source": work.source, "target": work.target, "GB/s": rate}
            events.append(event(name, work.start, work.end, track, "copy", **known))
        tracks[track] = title
    named = [
        {"ph": "M", "name": "thread_name", "args": {"name": title}, "pid": process, "tid": track}
        for track, title in tracks.items()
    ]
    return [*named, *events]


def _arguments(profile: Profile, s: StepRecord) -> dict[str, Any]:
    found = {
        "operator": s.op,
        "kernel": s.kernel,
        "backend": s.backend,
        "why there": s.reason,
        "inputs": ", ".join(_text(x) for x in s.inputs),
        "outputs": ", ".join(_text(x) for x in s.outputs),
        "median us": s.median * 1e6,
        "share": profile.share(s.median),
        "calls a run": s.calls,
        "bytes": s.nbytes,
        "operations": s.operations,
        "GFLOP/s": None if s.rate is None else s.rate / 1e9,
        "GB/s": None if s.bandwidth is None else s.bandwidth / 1e9,
        "of attainable": s.efficiency,
        "limit": s.limit,
    }
    return {name: value for name, value in found.items() if value is not None}


def _text(operand: Operand | None) -> str:
    if operand is None:
        return "-"
    shape = "" if operand.shape is None else f"[{'×'.join(map(str, operand.shape))}]"
    return f"{operand.dtype}{shape}"
