"""Times of launches on the GPU of this machine: replays of a CUDA graph, so that the host's part is not in them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Captured", "by_turns", "covered", "device_seconds", "graph_of", "median_us"]

#: Replays that do not count.
_WARM_UP = 3


def median_us(calls: Sequence[Callable[[], Any]], launches: int | None = None, replays: int = 9) -> float:
    """Microseconds of one call, as the median over replays of a graph of many.

    Args:
        calls: As of :func:`graph_of`.
        launches: Likewise.
        replays: How many count.
    """
    return by_turns({"": graph_of(calls, launches)}, replays)[""]


@dataclass(frozen=True)
class Captured:
    """A CUDA graph of ``launches`` calls."""

    graph: Any
    launches: int


def graph_of(calls: Sequence[Callable[[], Any]], launches: int | None = None) -> Captured:
    """A graph of calls.

    Args:
        calls: Start work on the current stream, on one set of operands each; they take turns, so sets that together
            exceed the cache let no call find its operands there.
        launches: Calls in the graph; by default each once.
    """
    import torch

    count = launches or len(calls)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is made the first time may not be captured
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(count):
            calls[i % len(calls)]()
    return Captured(graph, count)


def by_turns(graphs: Mapping[str, Captured], replays: int = 9) -> dict[str, float]:
    """Microseconds of one call of each graph: medians over rounds in which all are replayed one after the other."""
    import torch

    times: dict[str, list[float]] = {label: [] for label in graphs}
    for _ in range(_WARM_UP + replays):
        for label, captured in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            captured.graph.replay()
            end.record()
            end.synchronize()
            times[label].append(start.elapsed_time(end) * 1e3 / captured.launches)
    return {label: statistics.median(t[_WARM_UP:]) for label, t in times.items()}


def device_seconds(run: Callable[[], Any], runs: int) -> dict[str, Any]:
    """What the device itself needs for a run, from CUPTI's records; the process must not be timed afterwards.

    Args:
        run: Does its work and waits for it.
        runs: How many are recorded.

    Returns:
        "span": the median of the seconds from the start of a run's first kernel or copy to the end of the last;
        "busy": of those in which at least one is under way; "launches": kernels and copies of a run. Or "missing": why
        nothing can be recorded.
    """
    from accord.backends.cuda.cupti import Copy, Fill, Kernel, recording
    from accord.errors import AccordError

    marks = []
    try:
        with recording() as activity:
            run()
            for _ in range(runs):
                begun = activity.now()
                run()
                marks.append((begun, activity.now()))
    except AccordError as error:
        return {"missing": str(error)}
    work = sorted((r.start, r.end) for r in activity.records if isinstance(r, (Kernel, Copy, Fill)))
    own = [[(a, b) for a, b in work if begun <= a < ended] for begun, ended in marks]
    if not all(own):
        return {"missing": "no kernel was recorded"}
    return {
        "span": statistics.median(max(b for _, b in run) - run[0][0] for run in own) * 1e-9,
        "busy": statistics.median(covered(run) for run in own) * 1e-9,
        "launches": statistics.median(len(run) for run in own),
    }


def covered(spans: Sequence[tuple[int, int]]) -> int:
    """Length of the union of spans that are sorted by their starts."""
    total, until = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total
