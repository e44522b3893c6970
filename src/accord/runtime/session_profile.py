"""What a session records while profiling is on: stages, runs and nodes, in the form of ONNX Runtime's profiles."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from accord.errors import AccordError
from accord.runtime.observed import Observed, Operand, observe
from accord.runtime.watch import Collector, StepTime, watched

__all__ = ["SessionProfile"]

#: Events that one profile keeps; ONNX Runtime keeps as many.
_MAX_EVENTS: Final = 1_000_000


class SessionProfile:
    """Events of one session; several threads may add to it.

    Attributes:
        start: When it began, in nanoseconds since 1970.
    """

    def __init__(self) -> None:
        self.start = time.time_ns()
        self._clock = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self._known: dict[tuple[int, tuple[int, ...], int], Any] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Record what happens within as an event of the session."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self._add("Session", name, began, time.perf_counter_ns() - began, {})

    @contextmanager
    def nodes(self, provider: str) -> Iterator[None]:
        """Record each step of the runs within as an event of its node.

        Steps that their backend does not time have none.

        Args:
            provider: Of the session.
        """
        collector = Collector(observe, self._known)
        try:
            with watched(collector):
                yield
        finally:
            for t in (t for run in collector.runs for t in run.times):
                if t.duration is not None:
                    name = f"{t.step.placement.node}_kernel_time"
                    self._add("Node", name, t.start, t.duration, _arguments(t, provider))

    def write(self, prefix: str, stages: Mapping[str, float]) -> str:
        """Write the events as a Chrome trace.

        Args:
            prefix: Start of the file's name.
            stages: Seconds of each stage of compilation.

        Returns:
            The file's name.

        Raises:
            AccordError: the file cannot be written.
        """
        events = list(self._events)
        start = next((e["ts"] for e in events if e["name"] == "session_initialization"), 0)
        for stage, seconds in stages.items():
            duration = round(seconds * 1e6)
            events.append(_event("Session", f"stage_{stage}", start, duration, {}))
            start += duration
        stamp = datetime.fromtimestamp(self.start / 1e9).strftime("%Y-%m-%d_%H-%M-%S_%f")
        path = Path(f"{prefix.rstrip('_')}_{stamp}.json")
        try:
            path.write_text(json.dumps(sorted(events, key=lambda e: int(e["ts"]))), encoding="utf-8")
        except OSError as error:
            raise AccordError(f"cannot write the profile '{path}': {error.strerror}") from error
        return str(path)

    def _add(self, category: str, name: str, began: int, duration: int, arguments: dict[str, Any]) -> None:
        if len(self._events) < _MAX_EVENTS:
            self._events.append(_event(category, name, (began - self._clock) // 1000, duration // 1000, arguments))


def _event(category: str, name: str, start: int, duration: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """A complete event of the Chrome trace format; times in microseconds."""
    return {
        "cat": category,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "dur": duration,
        "ts": start,
        "ph": "X",
        "name": name,
        "args": arguments,
    }


def _arguments(t: StepTime, provider: str) -> dict[str, Any]:
    """What ONNX Runtime says of a node, numbers as text as there; and where and by what Accord ran it."""
    placement, seen = t.step.placement, t.facts
    assert isinstance(seen, Observed)
    return {
        "op_name": placement.op,
        "provider": provider,
        "node_index": str(t.index),
        "input_type_shape": [_type_shape(x) for x in seen.inputs if x is not None],
        "output_type_shape": [_type_shape(x) for x in seen.outputs if x is not None],
        "activation_size": str(seen.read - seen.constants),
        "parameter_size": str(seen.constants),
        "output_size": str(seen.written),
        "backend": placement.backend,
        "kernel": "control flow" if placement.kernel is None else placement.kernel.name,
    }


def _type_shape(operand: Operand) -> dict[str, list[int]]:
    return {operand.dtype: list(operand.shape or ())}
