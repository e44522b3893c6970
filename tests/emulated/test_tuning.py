"""Ways to start a kernel that are measured, on the emulated GPU with a clock of our own."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner

import accord
from accord.backends.cuda import backend, choices, tuner
from accord.backends.cuda.choices import name_of, outcome_of
from accord.cli import main
from accord.errors import AccordError, CompileError, InputError
from accord.runtime.warm import tune
from builders import model, node
from emulated_gpu import choice_of

F = np.float32
RNG = np.random.default_rng(11)
W = (RNG.standard_normal((64, 40)) / 8).astype(F)


pytestmark = pytest.mark.usefixtures("quick_tuning")


@pytest.fixture
def clock(gpu, monkeypatch):
    """Seconds that a graph takes, by the tile that it runs with: set by the test; other tiles take 5."""
    times = {}
    last = [0.0]
    replay = gpu.replay

    def replayed(graph, stream):
        replay(graph, stream)
        constants = dict(next(launch for launch in graph.launches if launch is not None).constants)
        last[0] = times.get((constants["BM"], constants.get("BN"), constants.get("SPLITS")), 5.0)

    @contextmanager
    def capturing(stream):
        with capture(stream) as made:
            yield made
        made[0] = Graph(made[0])

    class Graph(list):
        def __init__(self, operations):
            super().__init__(operations)
            self.launches = [_launch_of(o.work) for o in operations]

    capture = gpu.capturing
    monkeypatch.setattr(gpu, "capturing", capturing)
    monkeypatch.setattr(gpu, "replay", replayed)
    monkeypatch.setattr(gpu, "seconds", lambda begin, end: last[0])
    return times


def _launch_of(work):
    """How the kernel of an operation is started; None for a copy."""
    return next((c.cell_contents.launch for c in work.__closure__ if hasattr(c.cell_contents, "launch")), None)


def product(rows=48):
    return model([node("MatMul", ["x", "w"], ["y"])], {"x": (F, [rows, 64])}, ["y"], {"w": W}).SerializeToString()


def tile_of(way):
    return way.m, way.n, way.splits


def loser(m):
    """A way that the rule does not take."""
    choice = choice_of(m)
    return next(w for w in choice.ways()[::-1] if tile_of(w) != tile_of(choice.rule))


def check(m, rows=48):
    x = RNG.standard_normal((rows, 64)).astype(F)
    for _ in range(4):
        np.testing.assert_allclose(m(x)[0], x @ W, rtol=1e-4, atol=1e-4)


def tiles_in_use(m):
    (frames,) = m._first.executor._frames.values()
    program = next(s[0] for s in frames[0].segments if not isinstance(s, int))
    constants = dict(next(e.item.launch.constants for e in program._entries if hasattr(e.item, "launch")))
    return constants["BM"], constants["BN"], constants["SPLITS"]


def test_the_fastest_way_is_used_and_remembered(gpu, clock):
    unmeasured = accord.load(product(), device="cuda", tuning="off")
    check(unmeasured)
    best = loser(unmeasured)
    clock[tile_of(best)] = 1.0
    assert tiles_in_use(unmeasured) == tile_of(choice_of(unmeasured).rule)
    tuned = accord.load(product(), device="cuda", tuning="full")
    assert tile_of(outcome_of(choice_of(tuned)).way) == tile_of(best)
    check(tuned)
    assert tiles_in_use(tuned) == tile_of(best)
    check(unmeasured)  # what runs already takes it up
    assert tiles_in_use(unmeasured) == tile_of(best)
    # another process finds it on disk, and measures nothing
    choices._OUTCOMES.clear()
    clock.clear()
    again = accord.load(product(), device="cuda", tuning="full")
    check(again)
    assert tiles_in_use(again) == tile_of(best)


def test_a_small_gain_is_no_reason(gpu, clock):
    m = accord.load(product(), device="cuda", tuning="off")
    choice = choice_of(m)
    clock[tile_of(choice.rule)] = 4.0
    clock[tile_of(loser(m))] = 3.96
    m = accord.load(product(), device="cuda", tuning="full")
    assert outcome_of(choice).way == choice.rule
    check(m)
    assert tiles_in_use(m) == tile_of(choice.rule)


def test_it_goes_on_beside_runs(gpu, clock):
    """The first result is there before anything is measured, and runs go on while it is."""
    held, enough = threading.Event(), threading.Event()
    measured = tuner._Bench.measured

    def slow(self, *given):
        held.set()
        assert enough.wait(60)
        return measured(self, *given)

    tuner._Bench.measured = slow
    try:
        m = accord.load(product(), device="cuda", tuning="background")
        best = loser(m)
        clock[tile_of(best)] = 1.0
        check(m)
        assert held.wait(60)
        check(m)
        assert tiles_in_use(m) == tile_of(choice_of(m).rule)
        enough.set()
        until = time.monotonic() + 120
        while outcome_of(choice_of(m)) is None or backend._tuner._thread is not None:
            check(m)
            assert time.monotonic() < until
    finally:
        tuner._Bench.measured = measured
    check(m)
    assert tiles_in_use(m) == tile_of(best)


def test_what_fails_is_left_out_with_a_reason(gpu, clock, monkeypatch):
    m = accord.load(product(), device="cuda", tuning="off")
    choice = choice_of(m)
    wrong = loser(m)
    clock[tile_of(wrong)] = 0.1
    started = type(choice).started

    def refusing(self, way):
        if tile_of(way) == tile_of(wrong):
            raise CompileError("there is not enough shared memory")
        return started(self, way)

    monkeypatch.setattr(type(choice), "started", refusing)
    accord.load(product(), device="cuda", tuning="full")
    outcome = outcome_of(choice)
    assert tile_of(outcome.way) != tile_of(wrong)
    assert outcome.refused[name_of(wrong)] == "there is not enough shared memory"


def test_a_wrong_result_is_left_out(gpu, clock, monkeypatch):
    m = accord.load(product(), device="cuda", tuning="off")
    choice = choice_of(m)
    clock[tile_of(loser(m))] = 0.1
    results = tuner._Bench._results
    seen = []

    def disturbed(self, *given):
        seen.append(1)
        found = results(self, *given)
        return found if len(seen) == 1 else [r + 1 for r in found]

    monkeypatch.setattr(tuner._Bench, "_results", disturbed)
    accord.load(product(), device="cuda", tuning="full")
    outcome = outcome_of(choice)
    assert outcome.way == choice.rule
    assert set(outcome.refused.values()) == {"its result is not that of the way by rule"}


def test_nothing_is_left_on_the_device(gpu, clock):
    m = accord.load(product(), device="cuda", tuning="off")
    check(m)
    before = set(gpu.blocks)
    tune(m.executor, wait=True)
    assert set(gpu.blocks) == before
    backend._tuner.stop()
    assert gpu.gate is None


def test_sums_may_be_split_where_the_rule_does_not(gpu, clock):
    deep = model(
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": (F, [16, 512])},
        ["y"],
        {"w": (RNG.standard_normal((512, 32)) / 8).astype(F)},
    ).SerializeToString()
    m = accord.load(deep, device="cuda", tuning="off")
    choice = choice_of(m)
    ways = {w.splits: w for w in choice.ways()}
    assert len(ways) > 1
    x = RNG.standard_normal((16, 512)).astype(F)
    for way in ways.values():
        choices.remember(choice, choices.Outcome(way, {}, {}, {}))
        backend.generation += 1
        for _ in range(4):
            np.testing.assert_allclose(m(x)[0], accord.load(deep)(x)[0], rtol=1e-4, atol=1e-4)
        assert tiles_in_use(m) == tile_of(way)


def test_a_warm_up_makes_all_ready(gpu, clock):
    proto = model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Softmax", ["a"], ["b"]),
            node("Transpose", ["b"], ["y"], perm=[1, 0]),
        ],
        {"x": (F, ["n", 64])},
        ["y"],
        {"w": W},
    ).SerializeToString()
    m = accord.load(proto, device="cuda", tuning="full", warmup=[{"x": (n, 64)} for n in (1, 5, 3)])
    executor = m._first.executor
    assert sorted(executor._frames) == [(1,), (3,), (5,)]
    captured = []
    capture = gpu.capturing
    gpu.capturing = lambda stream: captured.append(1) or capture(stream)
    replayed = gpu.replayed
    for n in (5, 1, 3, 1, 5):
        x = RNG.standard_normal((n, 64)).astype(F)
        e = np.exp(x @ W - (x @ W).max(1, keepdims=True))
        np.testing.assert_allclose(m(x)[0], (e / e.sum(1, keepdims=True)).T, rtol=1e-4, atol=1e-6)
    assert gpu.replayed == replayed + 5 and not captured
    assert sum(o is not None for o in choices._OUTCOMES.values()) == 6  # a product, and rows


def test_a_warm_up_says_what_it_lacks(gpu):
    proto = model([node("Exp", ["x"], ["y"])], {"x": (F, ["n", 2])}, ["y"])
    with pytest.raises(InputError, match="needed for a warm-up"):
        accord.load(proto, device="cuda", warmup=[{}])
    with pytest.raises(InputError, match="no input 'z'"):
        accord.load(proto, device="cuda", warmup=[{"x": (1, 2), "z": (3,)}])
    with pytest.raises(AccordError, match="unknown tuning"):
        accord.load(proto, device="cuda", tuning="always")


def test_runs_wait_for_a_measurement_and_it_for_them():
    gate = tuner.Gate()
    order = []
    inside, go = threading.Event(), threading.Event()

    def work():
        inside.set()
        assert go.wait(10)
        order.append("run")
        return 7

    first = threading.Thread(target=lambda: order.append(gate.run(work)))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=lambda: gate.run(lambda: order.append("second")))

    def measure():
        with gate.alone():
            second.start()
            time.sleep(0.05)
            order.append("measured")

    measuring = threading.Thread(target=measure)
    measuring.start()
    time.sleep(0.05)
    assert order == []
    go.set()
    for thread in (first, measuring):
        thread.join(10)
    second.join(10)
    assert order.index("run") < order.index("measured") < order.index("second")
    assert gate.begun == 2


def run_cli(*arguments):
    result = CliRunner().invoke(main, [*arguments, "--device", "cuda", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_line_tunes_and_explains(gpu, clock, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(product())
    best = loser(accord.load(str(path), device="cuda", tuning="off"))
    clock[tile_of(best)] = 1.0
    (before,) = run_cli("explain", str(path))["ways"]
    assert before["way"] == before["rule"] and not before["seconds"]
    (tuned,) = run_cli("tune", str(path))["ways"]
    assert tuned["way"].startswith(f"m={best.m} n={best.n} ") and tuned["way"] != tuned["rule"]
    (after,) = run_cli("explain", str(path))["ways"]
    assert after == tuned and after["seconds"][after["way"]] == min(after["seconds"].values())
    text = CliRunner().invoke(main, ["explain", str(path), "--device", "cuda"]).output
    assert "Ways to start kernels" in text and after["way"].split()[0] in text


def test_the_command_line_warms_up(gpu, clock, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(product("n"))
    (ways,) = run_cli("tune", str(path), "--shape", "n=7")["ways"]
    assert ways["seconds"]
    run_cli("run", str(path), "--tuning", "full", "--warmup", "n=3", "--warmup", "x=5x64", "--shape", "n=3")
    assert sum(o is not None for o in choices._OUTCOMES.values()) == 3
    result = CliRunner().invoke(main, ["run", str(path), "--device", "cuda", "--warmup", "batch=3"])
    assert result.exit_code == 2 and "no input or size 'batch'" in result.output


def both_ways(gpu, monkeypatch, proto, feeds, near):
    """Each way of the only choice of a model gives what the CPU does, and they are measured beside each other."""
    m = accord.load(proto, device="cuda", tuning="off")
    choice = choice_of(m)
    assert len(choice.ways()) > 1
    expected = accord.load(proto)(*feeds)[0]
    for way in choice.ways():
        choices.remember(choice, choices.Outcome(way, {}, {}, {}))
        backend.generation += 1
        for _ in range(4):
            np.testing.assert_allclose(m(*feeds)[0], expected, atol=near)
    choices._OUTCOMES.clear()
    assert outcome_of(choice).way == choice.ways()[-1]
    with tuner._Bench(gpu, choice.operands()) as bench:
        monkeypatch.setattr(gpu, "seconds", lambda begin, end: 1.0)
        outcome = bench.measured(tuner._Problem(choice), tuner.Gate(), bool)
    assert outcome.way == choice.rule and not outcome.refused


def test_attention_has_a_choice_too(gpu, monkeypatch):
    proto = model(
        [node("Attention", ["q", "k", "v"], ["y"], q_num_heads=2, kv_num_heads=2)],
        {n: (np.float16, [1, 96, 64]) for n in "qkv"},
        ["y"],
    ).SerializeToString()
    both_ways(gpu, monkeypatch, proto, RNG.standard_normal((3, 1, 96, 64)).astype(np.float16), 2e-3)


@pytest.mark.parametrize("shape", [(2, 600), (5, 2, 40)])
def test_rows_have_a_choice_too(gpu, monkeypatch, shape):
    proto = model([node("Softmax", ["x"], ["y"], axis=-1)], {"x": (F, list(shape))}, ["y"]).SerializeToString()
    both_ways(gpu, monkeypatch, proto, [RNG.standard_normal(shape).astype(F)], 1e-5)
