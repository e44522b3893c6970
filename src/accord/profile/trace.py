"""A profile as a Chrome trace: open it in Perfetto or chrome://tracing."""

from __future__ import annotations

import os
from typing import Any

from accord.profile.profile import Profile
from accord.profile.steps import StepRecord
from accord.runtime.observed import Operand

__all__ = ["chrome_trace"]

#: Number of the trace's one track.
_THREAD = 1


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """The timeline of one run: a complete event for each execution of a step, and a counter of the arena's use."""
    process = os.getpid()
    place = {"pid": process, "tid": _THREAD}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "args": {"name": f"accord: {profile.name}"}, **place},
        {"ph": "M", "name": "thread_name", "args": {"name": "steps"}, **place},
    ]
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
