"""Watching runs: what wants to see the steps of a run while it goes on, and the collector of their times.

A watch is in force for the runs of one thread (:func:`watched`), those of body graphs included. A run that nobody
watches asks once whether anybody does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from accord.plan.plan import Storage
from accord.record import record

if TYPE_CHECKING:
    from accord.plan.plan import Step
    from accord.runtime.arena import Arena
    from accord.runtime.executor import Executor
    from accord.runtime.frame import Frame, Segment

__all__ = ["WATCH", "Collector", "Running", "StepTime", "Watch", "WatchedRun", "watched"]

#: Steps whose times one collector keeps.
MAX_TIMES: Final = 1_000_000


@record
class Running:
    """A run under way: memory is attached, the caller's arrays are bound.

    Attributes:
        executor: Whose plan runs.
        frame: Its sizes and segments.
        arena: Where intermediate values live.
        env: Values of symbols; steps that find sizes out add to it.
        arrays: The caller's inputs and the new outputs, by root slot.
    """

    executor: Executor
    frame: Frame
    arena: Arena
    env: dict[str, int]
    arrays: Mapping[int, Any]

    def step(self, index: int) -> Step:
        """Step ``index`` of the plan."""
        return self.executor.plan.steps[index]

    def execute(self, segment: Segment, seconds: np.ndarray[Any, Any] | None = None) -> None:
        """Run one segment.

        Args:
            segment: One of the frame's.
            seconds: Receives one float64 for each phase of a native segment; NaN where the backend cannot tell.
        """
        self.executor.run_segment(segment, self.frame, self.arena, self.env, seconds)

    def value(self, slot: int) -> Any:
        """What a slot holds now, on its own memory, which later steps may use again; None for -1."""
        return None if slot < 0 else self.frame.read(slot, self.arena, self.arrays)


class Watch(ABC):
    """Runs the segments of the runs that it watches."""

    @abstractmethod
    def run(self, run: Running) -> None:
        """Execute all segments of ``run`` in order; called again, within, for the runs of body graphs."""


#: The watch in force for this thread.
WATCH: ContextVar[Watch | None] = ContextVar("accord_watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let ``watch`` see the runs of this thread."""
    token = WATCH.set(watch)
    try:
        yield
    finally:
        WATCH.reset(token)


# times


@dataclass(slots=True)
class StepTime:
    """One execution of one step.

    Attributes:
        executor: Whose plan the step belongs to.
        index: Number of the step.
        start: When it began; nanoseconds of ``time.perf_counter``.
        duration: Nanoseconds; None if the backend measures nothing within a segment of several steps.
        own: ``duration`` without the steps of bodies.
        facts: What the collector's ``describe`` said.
    """

    executor: Executor
    index: int
    start: int
    duration: int | None
    own: int | None
    facts: Any = None

    @property
    def step(self) -> Step:
        """The step."""
        return self.executor.plan.steps[self.index]


@dataclass(slots=True)
class WatchedRun:
    """The steps of one run.

    Attributes:
        start: When its first step began; nanoseconds of ``time.perf_counter``.
        times: In the order in which steps ended.
    """

    start: int
    times: list[StepTime] = field(default_factory=list)


#: What is to be noted of a step: called before it runs, gives what is called after it.
Describe = Callable[[Running, int], Callable[[], Any]]


class Collector(Watch):
    """Collects the time of each step.

    Args:
        describe: Looks at the operands of a step; what it finds is kept with the step's time. It is called outside the
            times, once for each set of sizes for steps whose sizes follow from the input shapes, else each time.
        known: What was found before, to be shared between collectors of one executor.

    Attributes:
        runs: What was collected, a run each.
    """

    def __init__(self, describe: Describe, known: dict[tuple[int, tuple[int, ...], int], Any] | None = None) -> None:
        self.runs: list[WatchedRun] = []
        self._describe = describe
        self._known = {} if known is None else known
        self._depth = 0
        self._inner = 0  # time of steps of bodies within the step under way
        self._count = 0

    def run(self, run: Running) -> None:
        """Execute and time the segments."""
        if not self._depth:
            self.runs.append(WatchedRun(time.perf_counter_ns()))
            self._inner = 0
        self._depth += 1
        try:
            for segment in run.frame.segments:
                if isinstance(segment, int):
                    self._python_step(run, segment)
                else:
                    self._native_steps(run, segment[1], segment)
        finally:
            self._depth -= 1

    def _python_step(self, run: Running, index: int) -> None:
        begun = time.perf_counter_ns()
        finish = self._looking(run, index)
        outer, self._inner = self._inner, 0
        start = time.perf_counter_ns()
        run.execute(index)
        duration = time.perf_counter_ns() - start
        self._note(StepTime(run.executor, index, start, duration, duration - self._inner, finish()))
        # looking at operands is not the time of the step around this one either
        self._inner = outer + time.perf_counter_ns() - begun

    def _native_steps(self, run: Running, steps: Sequence[int], segment: Segment) -> None:
        begun = time.perf_counter_ns()
        finish = {i: self._looking(run, i) for i in dict.fromkeys(steps)}
        seconds = np.empty(len(steps))
        start = time.perf_counter_ns()
        run.execute(segment, seconds)
        whole = time.perf_counter_ns() - start
        durations: dict[int, int | None] = {}
        if not np.isnan(seconds).any():
            nanoseconds = np.rint(seconds * 1e9).astype(np.int64).tolist()
            for i, n in zip(steps, nanoseconds, strict=True):
                durations[i] = (durations.get(i) or 0) + n
        else:
            durations = dict.fromkeys(finish, whole if len(finish) == 1 else None)
        for i, duration in durations.items():
            self._note(StepTime(run.executor, i, start, duration, duration, finish[i]()))
            start += duration or 0
        self._inner += time.perf_counter_ns() - begun

    def _looking(self, run: Running, index: int) -> Callable[[], Any]:
        """What to call after step ``index`` for its facts."""
        key = (id(run.executor), run.frame.key, index)
        if key in self._known:
            return lambda: self._known[key]
        finish = self._describe(run, index)
        if not self._is_static(run, index):
            return finish

        def found() -> Any:
            self._known[key] = finish()
            return self._known[key]

        return found

    def _is_static(self, run: Running, index: int) -> bool:
        """Whether the sizes of a step follow from the input shapes."""
        step, slots = run.step(index), run.executor.plan.slots
        return not step.late and all(
            slots[i].storage is not Storage.LATE for i in (*step.inputs, *step.outputs) if i >= 0
        )

    def _note(self, time_of: StepTime) -> None:
        if self._count < MAX_TIMES:
            self._count += 1
            self.runs[-1].times.append(time_of)
