"""Runs of one executor, by turns with nobody watching and with a collector, so that disturbances meet both."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from accord.runtime.executor import Executor
from accord.runtime.observed import Observed, observe
from accord.runtime.watch import Collector, Running, WatchedRun, watched

if TYPE_CHECKING:
    from accord.runtime.frame import Frame

__all__ = ["Measured", "measured"]

#: Runs before the first that counts: programs settle how many threads each of their phases gets in the first three.
_WARM_UP: Final = 4


class Measured:
    """Times of an executor.

    Args:
        executor: Whose runs are measured.
        values: Inputs in the plan's order.
        runs: How many are watched, and how many are not.

    Attributes:
        executor: As given.
        seconds: Of the runs that nobody watched.
        watched: The others.
        frames: The last frame of each plan that ran, by the ``id`` of its executor.
    """

    def __init__(self, executor: Executor, values: Sequence[Any], runs: int) -> None:
        self.executor = executor
        self.seconds: list[float] = []
        self.frames: dict[int, Frame] = {}
        collector = Collector(self._describe)
        for _ in range(_WARM_UP):
            executor.run(values)
        with _no_collection():
            for k in range(runs + 1):
                with watched(collector):
                    executor.run(values)
                start = time.perf_counter_ns()
                executor.run(values)
                if k:  # in the first round the collector saw the operands for the first time
                    self.seconds.append((time.perf_counter_ns() - start) * 1e-9)
        self.watched: list[WatchedRun] = collector.runs[1:]

    @property
    def complete(self) -> bool:
        """Whether every step was timed."""
        return all(t.duration is not None for run in self.watched for t in run.times)

    @property
    def frame(self) -> Frame | None:
        """The last frame of the outermost plan; None if none of its steps runs."""
        return self.frames.get(id(self.executor))

    @property
    def outside(self) -> float:
        """Seconds of a run that pass outside its steps: a run that nobody watched less the steps of the one before."""
        steps = [sum(t.own or 0 for t in run.times) * 1e-9 for run in self.watched]
        return max(0.0, statistics.median(whole - inner for whole, inner in zip(self.seconds, steps, strict=True)))

    def middle(self) -> WatchedRun:
        """The watched run whose time is in the middle."""
        ordered = sorted(self.watched, key=lambda run: sum(t.own or 0 for t in run.times))
        return ordered[len(ordered) // 2]

    def _describe(self, run: Running, index: int) -> Callable[[], Observed]:
        self.frames[id(run.executor)] = run.frame
        return observe(run, index)


def measured(executor: Executor, values: Sequence[Any], runs: int, threads: int | None = None) -> Measured:
    """Times of an executor's runs.

    Args:
        executor: The executor; where its backends time no steps within a segment, another one for its plan is used, in
            which each step is a segment.
        values: Inputs in the plan's order.
        runs: How many are watched, and how many are not.
        threads: Other than the plan's own number of threads.
    """
    if threads is not None:
        plan = replace(executor.plan, threads=threads)
        executor = Executor(plan, executor.backends, executor.device, stepwise=executor.stepwise)
    found = Measured(executor, values, runs)
    if found.complete:
        return found
    return Measured(Executor(executor.plan, executor.backends, executor.device, stepwise=True), values, runs)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection within: it would count for whatever step it falls in."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
