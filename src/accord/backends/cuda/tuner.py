"""Measuring choices on a GPU, in a thread of its own, between the runs of models.

Machine code of all ways is compiled by processes that yield to others. Then the ways of a choice take turns on memory
of the tuner's own, in graphs of some launches each; weights are read from several copies, because in a model others
have taken their place in the cache since they were read. A way whose result is not that of the way by rule is left out.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from accord.backends.cuda import program
from accord.backends.cuda.choices import Choice, Operand, Outcome, Started, name_of, outcome_of, remember
from accord.backends.cuda.code import CudaLaunch, Variant, WrittenText
from accord.backends.cuda.compilers import Compilers, serve_all
from accord.backends.cuda.driver import Device, Graph, chosen
from accord.backends.cuda.lanes import borrowed
from accord.errors import AccordError, CompileError, ExecutionError

__all__ = ["Gate", "Tuner"]

_T = TypeVar("_T")
#: Turns of each way; a way that is so much slower than the fastest after the first few has no more of them.
_TURNS: Final = 9
_FEW: Final = 3
_FAR_BEHIND: Final = 1.3
#: A way has to be faster than the one by rule by this part of its time.
_LEAST_GAIN: Final = 0.02
#: Launches in a graph.
_LAUNCHES: Final = (10, 64)
#: Bytes that one choice may take to be measured.
_MEMORY: Final = 2 << 30
#: How much of what is in a result may be rounding.
_ROUNDING: Final = 0.02
#: Choices that are compiled together, and those that may wait.
_BATCH: Final = 32
_WAITING: Final = 4096
#: What is left to others, as a multiple of what is taken, while models run.
_PAUSE: Final = 4.0
#: Random elements, which are repeated.
_PATTERN: Final = 1 << 20


class Gate:
    """Keeps runs, of which there may be several at a time, from measurements."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False
        #: Runs that have begun.
        self.begun = 0

    def run(self, work: Callable[[], _T]) -> _T:
        """Do a run; it waits for the measurement that is under way."""
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._running += 1
            self.begun += 1
        try:
            return work()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While nothing runs."""
        with self._changed:
            self._closed = True
            while self._running:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


class Tuner:
    """Measures choices on one GPU.

    Args:
        gpu: The GPU.
        found: Called when better ways are known.
    """

    def __init__(self, gpu: Device, found: Callable[[], None]) -> None:
        self._gpu = gpu
        self._found = found
        self._changed = threading.Condition()
        self._pending: deque[Choice] = deque()
        self._known: set[str] = set()
        #: Threads that wait for outcomes.
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._stopped = False
        atexit.register(self.stop)

    def tune(self, choices: Sequence[Choice], *, wait: bool) -> None:
        """Measure what was not measured yet.

        Args:
            choices: What to measure.
            wait: Return when it is done, and leave nothing to others meanwhile.
        """
        new = {c.key: c for c in choices if outcome_of(c) is None}
        with self._changed:
            for key, choice in new.items():
                if key not in self._known and len(self._pending) < _WAITING and not self._stopped:
                    self._known.add(key)
                    self._pending.append(choice)
            if self._pending and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="accord-tuning", daemon=True)
                self._thread.start()
            if not wait:
                return
            self._waiting += 1
            try:
                while not self._known.isdisjoint(new) and self._thread is not None:
                    self._changed.wait()
            finally:
                self._waiting -= 1

    def stop(self) -> None:
        """Measure nothing more; returns when what is under way has ended."""
        with self._changed:
            self._stopped = True
            self._pending.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        """The thread: batch after batch, until nothing is left."""
        compilers: Compilers | None = None
        with contextlib.suppress(OSError):  # threads of this process compile then
            compilers = Compilers(lowly=True)
        gate = self._gpu.gate = Gate()
        try:
            while True:
                with self._changed:
                    batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
                    if not batch:
                        self._thread = None
                        self._changed.notify_all()
                        return
                try:
                    with chosen(self._gpu.ordinal):
                        better = self._measured(batch, compilers, gate)
                finally:
                    with self._changed:
                        self._known.difference_update(c.key for c in batch)
                        self._changed.notify_all()
                if better:
                    self._found()
        except BaseException:
            with self._changed:
                self._pending.clear()
                self._known.clear()
                self._thread = None
                self._changed.notify_all()
            if self._gpu.lost is None:
                raise
            # whoever runs a model is told that the device is lost
        finally:
            if self._gpu.gate is gate:
                self._gpu.gate = None
            if compilers is not None:
                compilers.close()

    def _measured(self, batch: Sequence[Choice], compilers: Compilers | None, gate: Gate) -> bool:
        """Measure some choices; whether other ways than those by rule have won."""
        problems = [_Problem(c) for c in batch]
        variants = dict.fromkeys(v for p in problems for v in p.variants)
        failures: dict[Variant, AccordError] = {}
        serve_all(
            compilers,
            list(variants),
            self._gpu.architecture,
            share=1.0 if self._waiting else 0.25,
            failures=failures,
            stopped=lambda: self._stopped,
        )
        better = False
        for p in problems:
            if self._stopped:
                return better
            p.refuse(failures)
            with _Bench(self._gpu, p.choice.operands()) as bench:
                outcome = bench.measured(p, gate, lambda: not self._waiting)
            if outcome is not None:
                remember(p.choice, outcome)
                better |= outcome.way != p.choice.rule
        return better


class _Problem:
    """A choice, what each way starts, and why ways are left out."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.started: dict[Any, tuple[Started, ...]] = {}
        self.refused: dict[Any, str] = {}
        for way in choice.ways():
            try:
                self.started[way] = tuple(s for s in choice.started(way) if s.launch.tasks)
            except CompileError as error:
                self.refused[way] = error.message

    @property
    def variants(self) -> list[Variant]:
        """All machine code that is needed."""
        return [v for started in self.started.values() for v in _variants(started)]

    def refuse(self, failures: Mapping[Variant, AccordError]) -> None:
        """Leave out what does not compile."""
        for way, started in list(self.started.items()):
            wrong = [failures[v] for v in _variants(started) if v in failures]
            if wrong:
                self.leave_out(way, wrong[0].message)

    def leave_out(self, way: Any, reason: str) -> None:
        """Do without a way."""
        del self.started[way]
        self.refused[way] = reason

    def outcome(self, seconds: Mapping[Any, float]) -> Outcome:
        """The fastest way; the one by rule where the gain is small."""
        rule = self.choice.rule
        best = min(seconds, key=seconds.__getitem__, default=rule)
        if rule in seconds and seconds[best] > seconds[rule] * (1 - _LEAST_GAIN):
            best = rule
        usual, taken = self.choice.started(rule), self.choice.started(best)
        texts = {
            n: written
            for n, (t, u) in enumerate(zip(taken, usual, strict=False))
            if t.kernel is not None
            and t.kernel != u.kernel
            and t.launch.tasks
            and isinstance(written := t.kernel.as_stored(), WrittenText)
        }
        return Outcome(
            best,
            {name_of(w): s for w, s in seconds.items()},
            {name_of(w): why for w, why in self.refused.items()},
            texts,
        )


def _variants(started: Sequence[Started]) -> list[Variant]:
    """The machine code that is needed."""
    return [
        Variant.of(s.kernel, s.launch, aligned=True)
        for s in started
        if s.kernel is not None and isinstance(s.launch, CudaLaunch)
    ]


class _Bench:
    """Memory, a stream and graphs to measure the ways of one choice."""

    def __init__(self, gpu: Device, operands: Sequence[Operand]) -> None:
        self._gpu = gpu
        self._operands = operands
        self._close = contextlib.ExitStack()
        cold = sum(_nbytes(o) for o in operands if o.cold)
        wanted = 3 * gpu.cache // 2  # beyond the cache, so that none is found in it
        self._launches = min(max(_LAUNCHES[0], -(-wanted // cold) if cold else 0), _LAUNCHES[1])
        self._copies = [min(self._launches, 1 + wanted // _nbytes(o)) if o.cold else 1 for o in operands]

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self._close.close()

    def measured(self, problem: _Problem, gate: Gate, polite: Callable[[], bool]) -> Outcome | None:
        """What is found; None if there is not enough memory to look.

        Args:
            problem: The choice.
            gate: Keeps runs out while something is timed.
            polite: Whether to leave most of the device to runs.
        """
        gpu = self._gpu
        gpu.enter()
        if sum(n * _nbytes(o) for n, o in zip(self._copies, self._operands, strict=True)) > _MEMORY:
            return None
        stream = self._close.enter_context(borrowed(gpu)).origin
        try:
            places = [self._filled(o, n, stream) for o, n in zip(self._operands, self._copies, strict=True)]
            graphs = self._graphs(problem, places, stream)
        except MemoryError:
            return None
        times: dict[Any, list[float]] = {way: [] for way in graphs}
        behind: dict[Any, float] = {}
        seen = gate.begun
        begin, end = gpu.event(timed=True), gpu.event(timed=True)
        self._close.callback(gpu.forget_event, begin)
        self._close.callback(gpu.forget_event, end)
        for turn in range(_TURNS + 1):
            for way in list(times):
                clock = time.perf_counter()
                with gate.alone():
                    gpu.record(begin, stream)
                    gpu.replay(graphs[way].handle, stream)
                    gpu.record(end, stream)
                    gpu.wait(stream)
                times[way].append(gpu.seconds(begin, end) / self._launches)
                if polite() and gate.begun != seen:
                    seen = gate.begun
                    time.sleep(_PAUSE * (time.perf_counter() - clock))
            if turn == 0:
                for found in times.values():  # the first of each also loads it
                    found.clear()
            if turn == _FEW:
                middle = {way: statistics.median(found) for way, found in times.items()}
                limit = _FAR_BEHIND * min(middle.values(), default=0.0)
                behind = {w: s for w, s in middle.items() if s > limit and w != problem.choice.rule}
                times = {w: found for w, found in times.items() if w not in behind}
        if not times:
            return None
        return problem.outcome({w: statistics.median(t) for w, t in times.items()} | behind)

    def _filled(self, operand: Operand, copies: int, stream: Any) -> list[int]:
        """Addresses of memory with random elements."""
        pattern = _random(operand.dtype)[: operand.count]
        found = []
        for _ in range(copies):
            nbytes = _nbytes(operand)
            address = self._gpu.allocate(nbytes)
            self._close.callback(self._gpu.free, address)
            for at in range(0, nbytes, pattern.nbytes):
                part = min(pattern.nbytes, nbytes - at)
                self._gpu.to_device(address + at, pattern.ctypes.data, part, stream)
            if operand.nan:
                last = np.full(1, np.nan, pattern.dtype)
                self._gpu.to_device(address + nbytes - last.nbytes, last.ctypes.data, last.nbytes, stream)
            found.append(address)
        self._gpu.wait(stream)
        return found

    def _graphs(self, problem: _Problem, places: Sequence[Sequence[int]], stream: Any) -> dict[Any, Graph]:
        """A graph for each way that runs and is right."""
        gpu = self._gpu
        rule = problem.choice.rule
        expected: list[np.ndarray[Any, Any]] | None = None
        graphs: dict[Any, Graph] = {}
        for way in sorted(problem.started, key=lambda w: w != rule):
            try:
                kernels = [
                    program.item_of(gpu, s.kernel, s.launch, np.array(table, np.int64), 0)
                    for table in _tables(places, self._launches)
                    for s in problem.started[way]
                ]
                for kernel in kernels:  # all of them: what a first start allocates cannot be captured
                    kernel.start(stream)
                results = self._results(places, stream)
                if expected is None:
                    expected = results
                elif not all(map(_agree, results, expected)):
                    problem.leave_out(way, "its result is not that of the way by rule")
                    continue
                with gpu.capturing(stream) as made:
                    for kernel in kernels:
                        kernel.start(stream)
            except (CompileError, ExecutionError) as error:
                if gpu.lost is not None:
                    raise
                problem.leave_out(way, error.message)
                continue
            graphs[way] = Graph(gpu, made[0], kernels)
        return graphs

    def _results(self, places: Sequence[Sequence[int]], stream: Any) -> list[np.ndarray[Any, Any]]:
        """What was written."""
        found = []
        for operand, place in zip(self._operands, places, strict=True):
            if operand.written:
                array = np.empty(operand.count, _dtype(operand.dtype))
                self._gpu.to_host(array.ctypes.data, place[0], array.nbytes, stream)
                found.append(array)
        self._gpu.wait(stream)
        return found


def _tables(places: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The addresses for each launch."""
    return [[own[k % len(own)] for own in places] for k in range(count)]


def _dtype(dtype: str) -> np.dtype[Any]:
    kind = {"f": "float", "i": "int", "u": "uint"}
    found: np.dtype[Any]
    if dtype == "bf16":
        import ml_dtypes

        found = np.dtype(ml_dtypes.bfloat16)
    else:
        found = np.dtype("bool" if dtype == "bool" else f"{kind[dtype[0]]}{dtype[1:]}")
    return found


def _nbytes(operand: Operand) -> int:
    return operand.count * _dtype(operand.dtype).itemsize


@functools.cache
def _random(dtype: str) -> np.ndarray[Any, Any]:
    """Elements of both signs, of which none is large."""
    rng = np.random.default_rng(0)
    if _dtype(dtype).kind in "iub":
        return rng.integers(0, 2, _PATTERN).astype(_dtype(dtype))
    return rng.uniform(-1, 1, _PATTERN).astype(np.float32).astype(_dtype(dtype))


def _agree(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether two results differ by rounding only."""
    if a.dtype.kind in "iub":
        return bool(np.array_equal(a, b))
    left, right = a.astype(np.float32), b.astype(np.float32)
    finite = np.isfinite(left) & np.isfinite(right)
    if not np.array_equal(np.isnan(left), np.isnan(right)):
        return False
    size = float(np.linalg.norm(right[finite]))
    return float(np.linalg.norm(left[finite] - right[finite])) <= _ROUNDING * size + math.ulp(1.0)
