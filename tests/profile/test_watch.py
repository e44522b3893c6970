"""Watching runs: segments, values, times, and what steps read and write."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from profile_harness import convolution, loop

import accord
from accord.backends.cpu.program import CpuProgram
from accord.backends.protocol import NativeKernel
from accord.errors import ExecutionError
from accord.runtime.executor import Executor
from accord.runtime.model import Model
from accord.runtime.observed import observe
from accord.runtime.watch import MAX_TIMES, WATCH, Collector, Running, Watch, watched
from builders import model, node
from cpu_harness import Counting

X = np.random.default_rng(1).random((2, 8, 16, 16), np.float32)


def stepwise(loaded: Model) -> Executor:
    found, _ = loaded.executor_for({"x": X})
    return Executor(loaded.plan, found.backends, found.device, stepwise=True)


def test_a_watched_run_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = accord.load(convolution())
    collector = Collector(observe)
    with watched(collector):
        found = loaded(X)
        again = loaded(X)
    np.testing.assert_array_equal(found[0], loaded(X)[0])
    np.testing.assert_array_equal(again[0], found[0])
    assert len(collector.runs) == 2, "the run after the block was not watched"
    assert WATCH.get() is None
    for run in collector.runs:
        assert [t.step.placement.node for t in run.times] == [
            s.placement.node for s in loaded.plan.steps if isinstance(s.kernel, NativeKernel)
        ]
        assert all(t.duration is not None and t.duration >= 0 and t.own == t.duration for t in run.times)
        assert [t.start for t in run.times] == sorted(t.start for t in run.times)


def test_a_watch_is_of_one_thread() -> None:
    loaded = accord.load(convolution())
    collector = Collector(observe)
    with watched(collector):
        other = threading.Thread(target=loaded, args=(X,))
        other.start()
        other.join()
    assert collector.runs == []


def test_steps_of_a_stepwise_executor_are_segments() -> None:
    loaded = accord.load(convolution())
    executor = stepwise(loaded)

    class Values(Watch):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def run(self, run: Running) -> None:
            for segment in run.frame.segments:
                run.execute(segment)
                assert not isinstance(segment, int)
                (index,) = set(segment[1])
                self.seen.append(index)
                for slot in run.step(index).outputs:
                    assert np.isfinite(run.value(slot)).all()

    watch = Values()
    with watched(watch):
        (found,) = executor.run([X])
    assert len(watch.seen) == len(set(watch.seen)) > 1
    np.testing.assert_array_equal(found, loaded(X)[0])


def test_what_a_step_reads_and_writes() -> None:
    loaded = accord.load(convolution(), threads=1)
    collector = Collector(observe)
    with watched(collector):
        loaded(X)
    steps = {t.step.placement.op.split("+")[0]: t.facts for t in collector.runs[0].times}
    conv, product = steps["Conv"], steps["MatMul"]
    assert conv.operations == 2 * (2 * 16 * 14 * 14) * 8 * 9
    assert conv.written == 2 * 16 * 14 * 14 * 4
    assert conv.read - conv.constants == X.nbytes
    assert conv.constants >= 16 * 8 * 9 * 4
    assert conv.outputs[0].shape == (2, 16, 14, 14)
    assert product.operations == 2 * (2 * 16 * 14 * 32) * 14
    assert product.inputs[1].constant
    assert not product.inputs[0].constant


def test_memory_that_elements_share_counts_once() -> None:
    nodes = [node("Expand", ["x", "shape"], ["wide"]), node("Exp", ["wide"], ["y"])]
    proto = model(nodes, {"x": (np.float32, [1, 8])}, ["y"], {"shape": np.array([100, 8], np.int64)})
    loaded = accord.load(proto, level=0)
    collector = Collector(observe)
    with watched(collector):
        loaded(np.ones((1, 8), np.float32))
    exp = next(t.facts for t in collector.runs[0].times if t.step.placement.op == "Exp")
    assert exp.inputs[0].shape == (100, 8)
    assert (exp.read, exp.written) == (32, 3200)


def test_bodies_are_watched_and_their_time_is_not_their_step_s() -> None:
    loaded = accord.load(loop())
    collector = Collector(observe)
    with watched(collector):
        loaded({"x": np.zeros(1000, np.float32), "count": np.array(3)})
    times = collector.runs[0].times
    inner = [t for t in times if t.step.placement.op.startswith("Exp")]
    (outer,) = (t for t in times if t.step.placement.op == "Loop")
    assert len(inner) == 3
    within = [t for t in times if t.executor is not outer.executor]
    assert outer.duration is not None
    assert outer.own is not None
    assert 0 < outer.own <= outer.duration - sum(t.duration or 0 for t in within)
    assert all(outer.start <= t.start <= outer.start + outer.duration for t in within)


def test_values_sized_while_running_are_described() -> None:
    nodes = [node("NonZero", ["x"], ["where"]), node("Cast", ["where"], ["f"], to=1), node("Exp", ["f"], ["y"])]
    loaded = accord.load(model(nodes, {"x": (np.float32, [100])}, ["y"]), level=1)
    collector = Collector(observe)
    with watched(collector):
        loaded(np.arange(100, dtype=np.float32) % 2)
        loaded(np.zeros(100, np.float32))
    first, second = (next(t.facts for t in run.times if t.step.placement.op == "Exp") for run in collector.runs)
    assert (first.outputs[0].shape, first.written) == ((1, 50), 200)
    assert (second.outputs[0].shape, second.written) == ((1, 0), 0)


def test_a_run_that_fails_ends_its_collection() -> None:
    nodes = [node("Gather", ["x", "i"], ["y"])]
    loaded = accord.load(model(nodes, {"x": (np.float32, [4]), "i": (np.int64, [1])}, ["y"]))
    collector = Collector(observe)
    x = np.zeros(4, np.float32)
    with watched(collector):
        with pytest.raises(ExecutionError):
            loaded(x, np.array([7]))
        loaded(x, np.array([1]))
    assert [len(run.times) for run in collector.runs] == [0, 1]


def test_timed_runs_choose_threads_as_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[int] = []
    monkeypatch.setattr(CpuProgram, "_settle", lambda program: settled.append(1))
    counting = Counting([2, 2], turns=1, threads=2)
    seconds = np.empty(2)
    for _ in range(5):
        assert counting.program.run_timed(seconds) == -1
        assert (seconds >= 0).all()
    assert settled == [1]


def test_a_collector_keeps_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_TIMES == 1_000_000
    monkeypatch.setattr("accord.runtime.watch.MAX_TIMES", 3)
    loaded = accord.load(convolution())
    collector = Collector(observe)
    with watched(collector):
        for _ in range(5):
            loaded(X)
    assert sum(len(run.times) for run in collector.runs) == 3
