"""Profiles: records by step, totals, memory, the timeline."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from profile_harness import PEAKS, convolution, loop

import accord
from accord.profile import profile as module
from accord.profile.profile import Profile, profile, roofline
from accord.profile.trace import chrome_trace
from builders import model, node

X = np.random.default_rng(1).random((2, 8, 16, 16), np.float32)


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peaks", lambda threads, again=False: PEAKS)


def test_records_of_steps() -> None:
    loaded = accord.load(convolution(), threads=1)
    found = profile(loaded, {"x": X}, runs=4)
    assert (found.runs, found.threads, found.single) == (4, 1, None)
    assert found.shapes == {"x": (2, 8, 16, 16)}
    assert found.symbolic == ("N",)
    assert 0 < found.least <= found.median
    conv = next(s for s in found.steps if s.op.startswith("Conv"))
    assert (conv.backend, conv.fallback, conv.within, conv.calls) == ("cpu", False, (), 1)
    assert 0 < conv.least <= conv.median
    assert conv.operations == 2 * (2 * 16 * 14 * 14) * 8 * 9
    assert conv.dtype == "f32"
    assert conv.bound is not None
    assert conv.bound.arithmetic == pytest.approx(conv.operations / 1e11)
    assert conv.efficiency == pytest.approx(conv.bound.seconds / conv.median)
    assert conv.rate == pytest.approx(conv.operations / conv.median)
    product = next(s for s in found.steps if s.op == "MatMul")
    assert conv.node in product.sources or any("reorder" in s for s in product.sources)
    assert found.operations == sum(s.operations or 0 for s in found.steps)
    assert sum(found.share(s.median) for s in found.steps) <= 1 + 1e-9


def test_links_look_through_views() -> None:
    nodes = [
        node("Exp", ["x"], ["a"], name="first"),
        node("Reshape", ["a", "shape"], ["b"], name="view"),
        node("Softmax", ["b"], ["y"], name="second", axis=0),
    ]
    proto = model(nodes, {"x": (np.float32, [4, 6])}, ["y"], {"shape": np.array([24], np.int64)})
    found = profile(accord.load(proto, level=0), {"x": np.zeros((4, 6), np.float32)}, runs=1)
    first, second = found.steps
    assert (first.node, first.readers, first.sources) == ("first", ("second",), ())
    assert (second.node, second.sources, second.readers) == ("second", ("first",), ())


def test_threads_are_compared_with_one() -> None:
    found = profile(accord.load(convolution(), threads=2), {"x": X}, runs=3)
    assert found.single is not None
    assert all(s.single is not None and s.single > 0 for s in found.steps)
    assert profile(accord.load(convolution(), threads=1), {"x": X}, runs=1).steps[0].single is None


def test_control_flow() -> None:
    feed = {"x": np.zeros(50, np.float32), "count": np.array(5)}
    found = profile(accord.load(loop()), feed, runs=3)
    (outer,) = (s for s in found.steps if s.op == "Loop")
    inner = [s for s in found.steps if s.within]
    assert outer.kernel == "control flow"
    assert outer.bound is None
    assert outer.nbytes == 0
    assert inner
    assert all(s.within == (outer.node,) and s.calls == 5 for s in inner)
    exp = next(s for s in inner if s.op.startswith("Exp"))
    assert exp.written >= 5 * 50 * 4
    events = [e for e in chrome_trace(found)["traceEvents"] if e["ph"] == "X"]
    (around,) = (e for e in events if e["name"] == outer.node)
    inside = [e for e in events if e["name"] == exp.node]
    assert len(inside) == 5
    assert all(around["ts"] <= e["ts"] and e["ts"] + e["dur"] <= around["ts"] + around["dur"] + 1 for e in inside)


def test_memory() -> None:
    names = ["x", "a", "b", "c", "y"]
    nodes = [node("Softmax", [i], [o], axis=k % 2) for k, (i, o) in enumerate(itertools.pairwise(names))]
    loaded = accord.load(model(nodes, {"x": (np.float32, [64, 64])}, ["y"]))
    found = profile(loaded, {"x": np.ones((64, 64), np.float32)}, runs=1)
    assert found.memory.arena == loaded.memory({})["arena"]
    assert len(found.memory.live) == len(loaded.plan.steps)
    assert 0 < max(found.memory.live) <= found.memory.arena
    assert found.memory.outputs == 64 * 64 * 4
    counters = [e for e in chrome_trace(found)["traceEvents"] if e["ph"] == "C"]
    assert max(e["args"]["in use"] for e in counters) == max(found.memory.live)


def test_picking_reads_only_what_it_gives() -> None:
    table = np.zeros((10_000, 8), np.float32)
    proto = model([node("Gather", ["t", "i"], ["y"])], {"i": (np.int64, [3])}, ["y"], {"t": table})
    (step,) = profile(accord.load(proto), {"i": np.array([1, 2, 3])}, runs=1).steps
    assert step.written == 3 * 8 * 4
    assert step.read == step.written + 3 * 8


def test_json_has_all_of_it() -> None:
    found = profile(accord.load(convolution()), {"x": X}, runs=2)
    data = json.loads(json.dumps(found.data()))
    assert data["format"] == module.FORMAT
    assert {"machine", "seconds", "steps", "by_operator", "by_kernel", "memory", "advice", "peaks"} <= data.keys()
    assert sum(t["steps"] for t in data["by_operator"]) == len(data["steps"]) == len(found.steps)
    assert data["roofline"]["share"] == pytest.approx(found.bound / found.median)
    for s in data["steps"]:
        assert s["share"] == pytest.approx(s["median"] / found.total)
        assert {
            "node",
            "kernel",
            "read",
            "written",
            "operations",
            "efficiency",
            "limit",
            "bytes_per_second",
        } <= s.keys()


def test_the_trace_is_what_chrome_reads() -> None:
    found = profile(accord.load(convolution()), {"x": X}, runs=2)
    trace = json.loads(json.dumps(chrome_trace(found)))
    events = trace["traceEvents"]
    steps = [e for e in events if e["ph"] == "X"]
    assert [e["name"] for e in steps] == [s.node for s in found.steps]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and {"pid", "tid", "cat", "args"} <= e.keys() for e in steps)
    assert [e["ts"] for e in steps] == sorted(e["ts"] for e in steps)
    assert steps[0]["args"]["inputs"].startswith("float[2×8×16×16]")
    assert {e["ph"] for e in events} == {"M", "X", "C"}


def test_a_model_with_nothing_to_do() -> None:
    proto = model([node("Identity", ["x"], ["y"])], {"x": (np.float32, [3])}, ["y"])
    found = profile(accord.load(proto), {"x": np.ones(3, np.float32)}, runs=1)
    assert found.operations == 0
    json.dumps(found.data())


def test_a_backend_that_times_nothing_is_timed_step_by_step() -> None:
    found = profile(accord.load(convolution(), device="null"), {"x": X}, runs=2)
    assert found.peaks is None
    assert all(s.bound is None and s.efficiency is None and s.limit is None for s in found.steps)
    assert all(s.median > 0 for s in found.steps)
    assert found.data()["roofline"] is None


def test_a_step_faster_than_the_machine_has_it_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def slow_machine(threads: int, again: bool = False):
        asked.append(again)
        rates = {d: type(r)(r.best / (1 if again else 1e9), 0.0) for d, r in PEAKS.multiply.items()}
        return type(PEAKS)(threads, rates, PEAKS.levels)

    monkeypatch.setattr(module, "peaks", slow_machine)
    found = profile(accord.load(convolution()), {"x": X}, runs=1)
    assert asked == [False, True]
    assert found.peaks is not None
    assert found.peaks.multiply["f32"].best == 1e11


def test_the_share_of_a_whole_run() -> None:
    loaded = accord.load(convolution())
    found = roofline(loaded, {"x": X}, 0.01)
    assert found is not None
    whole: Profile = profile(loaded, {"x": X}, runs=1)
    assert found["operations"] == whole.operations
    assert found["flops_per_second"] == pytest.approx(whole.operations / 0.01)
    assert found["roofline"] == pytest.approx(whole.bound / 0.01)
    assert 0 < found["peak"] <= found["roofline"]
    assert roofline(accord.load(convolution(), device="null"), {"x": X}, 0.01) is None
