"""Loops whose bodies are native: what comes out is what a run of the body for each round gives."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper

from accord.errors import AccordError, ExecutionError
from accord.runtime import control, rounds
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SIZE = 4


def info(name: str, *shape, dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def body_of(draw, values: list[str], count: int) -> tuple[list[onnx.NodeProto], list[str]]:
    """Nodes on values of one shape, and ``count`` of all values, some of them maybe given as they are or twice."""
    nodes: list[onnx.NodeProto] = []
    given = values
    values = [*values]
    for k in range(draw(st.integers(0, 5))):
        a, b = (draw(st.sampled_from(values)) for _ in range(2))
        op = draw(st.sampled_from(["Add", "Mul", "Tanh", "MatMul", "Transpose", "Identity", "Softmax"]))
        inputs = {"Add": [a, b], "Mul": [a, b], "MatMul": [a, "w"]}.get(op, [a])
        nodes.append(node(op, inputs, [f"v{k}"], **({"perm": [1, 0]} if op == "Transpose" else {})))
        values.append(f"v{k}")
        if op == "MatMul" and draw(st.booleans()):
            nodes.append(node("Sigmoid", [f"v{k}"], [f"u{k}"]))
            values.append(f"u{k}")
    chosen = [draw(st.sampled_from(values)) for _ in range(count)]
    if draw(st.booleans()) and not set(chosen) & set(given):  # some of them may be one value
        return nodes, chosen
    nodes += [node("Identity", [v], [f"y{k}"]) for k, v in enumerate(chosen)]
    return nodes, [f"y{k}" for k in range(count)]


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def both(proto: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], level: int, threads: int = 1) -> None:
    fast = Model(proto, Options(level=level, threads=threads, strict=True))
    slow = Model(proto, Options(level=0, reference=True))
    kept = [{n: a.copy() for n, a in f.items()} for f in feeds]
    for f, k in zip(feeds, kept, strict=True):
        same(fast(f), slow(f))
        for n, a in f.items():
            np.testing.assert_array_equal(a, k[n])  # what a caller gives is only read


def weights(seed: int) -> dict[str, np.ndarray]:
    return {"w": (np.random.default_rng(seed).standard_normal((SIZE, SIZE)) * 0.5).astype(np.float32)}


@SETTINGS
@given(st.data(), st.integers(0, 3), st.integers(0, 3), st.integers(1, 2), st.booleans())
def test_loops(data, level, carried, collected, ends):
    nodes, made = body_of(data.draw, [*(f"c{k}" for k in range(carried)), "outside"], carried + collected)
    ready = [node("Less", ["i", "last"], ["go"])] if ends else [node("Identity", ["c"], ["go"])]
    inputs = [info("i", dtype=T.INT64), info("c", dtype=T.BOOL), *(info(f"c{k}", SIZE, SIZE) for k in range(carried))]
    outputs = [info("go", dtype=T.BOOL), *(info(y, SIZE, SIZE) for y in made)]
    body = helper.make_graph([*ready, *nodes], "body", inputs, outputs)
    results = [f"r{k}" for k in range(carried + collected)]
    trips = data.draw(st.sampled_from(["n", ""])) if ends else "n"
    loop = node("Loop", [trips, "first", *(f"x{k}" for k in range(carried))], results, body=body)
    given_ = {f"x{k}": (np.float32, ["a" if k else SIZE, SIZE]) for k in range(carried)}
    given_ |= {
        "n": (np.int64, []),
        "first": (np.bool_, []),
        "last": (np.int64, []),
        "outside": (np.float32, [SIZE, SIZE]),
    }
    proto = model([loop], given_, results, weights(1)) if results else None
    if proto is None:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    feeds = []
    for n, first, last in ((5, True, 2), (1, True, 9), (0, True, 1), (3, False, 1), (70, True, 66), (2, True, 0)):
        values = {f"x{k}": rng.standard_normal((SIZE, SIZE)).astype(np.float32) for k in range(carried)}
        values |= {"n": np.array(n), "first": np.array(first), "last": np.array(last)}
        feeds.append(values | {"outside": rng.standard_normal((SIZE, SIZE)).astype(np.float32)})
    both(proto, feeds, level)


@SETTINGS
@given(st.data(), st.integers(0, 3), st.integers(0, 2), st.integers(1, 2), st.integers(1, 2))
def test_scans(data, level, states, scanned, collected):
    names = [*(f"c{k}" for k in range(states)), *(f"s{k}" for k in range(scanned))]
    nodes, made = body_of(data.draw, [*names, "outside"], states + collected)
    body = helper.make_graph(nodes, "body", [info(n, SIZE, SIZE) for n in names], [info(y, SIZE, SIZE) for y in made])
    results = [f"r{k}" for k in range(states + collected)]
    axes = [data.draw(st.sampled_from([0, 1, 2, -1])) for _ in range(scanned)]
    attributes = {
        "num_scan_inputs": scanned,
        "scan_input_axes": axes,
        "scan_input_directions": [data.draw(st.integers(0, 1)) for _ in range(scanned)],
        "scan_output_axes": [data.draw(st.sampled_from([0, 1, 2, -1])) for _ in range(collected)],
        "scan_output_directions": [data.draw(st.integers(0, 1)) for _ in range(collected)],
    }
    inputs = [*(f"x{k}" for k in range(states)), *(f"z{k}" for k in range(scanned))]
    scan = node("Scan", inputs, results, body=body, **attributes)
    shapes = [[SIZE, SIZE]] * states
    for axis in axes:
        shape: list = [SIZE, SIZE]
        shape.insert(axis if axis >= 0 else axis + 3, "t")
        shapes.append(shape)
    given_ = {n: (np.float32, s) for n, s in zip(inputs, shapes, strict=True)} | {"outside": (np.float32, [SIZE, SIZE])}
    proto = model([scan], given_, results, weights(2))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    feeds = [
        {n: rng.standard_normal([t if d == "t" else d for d in s]).astype(np.float32) for n, (_, s) in given_.items()}
        for t in (1, 4, 7, 30)
    ]
    both(proto, feeds, level)


def counting(collected: onnx.NodeProto) -> onnx.ModelProto:
    """A loop that counts, and collects what ``collected`` makes of it."""
    body = helper.make_graph(
        [node("Add", ["c0", "one"], ["y0"]), node("Identity", ["c"], ["go"]), collected],
        "body",
        [info("i", dtype=T.INT64), info("c", dtype=T.BOOL), info("c0")],
        [info("go", dtype=T.BOOL), info("y0"), info("s")],
    )
    loop = node("Loop", ["n", "", "x"], ["r", "all"], body=body)
    inputs = {"n": (np.int64, []), "x": (np.float32, [])}
    return model(
        [loop], inputs, ["r", "all"], {"one": np.array(1, np.float32), "table": np.arange(5, dtype=np.float32)}
    )


def test_each_round_takes_one_call(monkeypatch):
    m = Model(counting(node("Neg", ["y0"], ["s"])), Options(strict=True))
    monkeypatch.setattr(control._Caller, "__call__", lambda *_: pytest.fail("a round by itself"))
    last, every = m({"n": np.array(1000), "x": np.array(0, np.float32)})
    assert last == 1000
    np.testing.assert_array_equal(every, -np.arange(1, 1001, dtype=np.float32))


def test_a_value_that_grows_is_run_round_by_round():
    body = helper.make_graph(
        [node("Concat", ["c0", "c0"], ["y0"], axis=0), node("Identity", ["c"], ["go"])],
        "body",
        [info("i", dtype=T.INT64), info("c", dtype=T.BOOL), info("c0", None)],
        [info("go", dtype=T.BOOL), info("y0", None)],
    )
    proto = model(
        [node("Loop", ["n", "", "x"], ["r"], body=body)], {"n": (np.int64, []), "x": (np.float32, ["a"])}, ["r"]
    )
    both(proto, [{"n": np.array(n), "x": np.arange(3, dtype=np.float32)} for n in (0, 1, 4)], 1)


def test_an_index_that_a_round_refuses_names_its_node():
    m = Model(counting(node("Gather", ["table", "i"], ["s"], name="entry")), Options(strict=True))
    good = m({"n": np.array(5), "x": np.array(0, np.float32)})
    np.testing.assert_array_equal(good[1], np.arange(5, dtype=np.float32))
    for n in (6, 12, 100):
        with pytest.raises(ExecutionError, match="an index is outside its axis") as caught:
            m({"n": np.array(n), "x": np.array(0, np.float32)})
        assert caught.value.node == "entry"
    same(m({"n": np.array(5), "x": np.array(0, np.float32)}), good)


def test_more_rows_than_there_is_memory_for(monkeypatch):
    m = Model(counting(node("Neg", ["y0"], ["s"])), Options(strict=True))
    monkeypatch.setattr(rounds, "physical_memory", lambda: 100_000)
    assert m({"n": np.array(3000), "x": np.array(0, np.float32)})[0] == 3000
    with pytest.raises(AccordError, match="scan outputs do not fit into memory") as caught:
        m({"n": np.array(1 << 40), "x": np.array(0, np.float32)})
    assert caught.value.node is not None


def test_a_loop_that_may_be_long_is_not_refused_for_that(monkeypatch):
    """Its condition ends it early, and rows are large."""
    body = helper.make_graph(
        [node("Less", ["i", "last"], ["go"]), node("Neg", ["c0"], ["y0"]), node("Exp", ["y0"], ["s"])],
        "body",
        [info("i", dtype=T.INT64), info("c", dtype=T.BOOL), info("c0", 1 << 19)],
        [info("go", dtype=T.BOOL), info("y0", 1 << 19), info("s", 1 << 19)],
    )
    loop = node("Loop", ["n", "", "x"], ["r", "all"], body=body)
    inputs = {"n": (np.int64, []), "last": (np.int64, []), "x": (np.float32, [1 << 19])}
    m = Model(model([loop], inputs, ["r", "all"]), Options(strict=True))
    x = np.linspace(-1, 1, 1 << 19, dtype=np.float32)
    monkeypatch.setattr(rounds, "physical_memory", lambda: 64 << 20)
    for last in (0, 4, 6):
        every = m({"n": np.array(1 << 40), "last": np.array(last), "x": x})[1]
        assert every.shape == (last + 1, 1 << 19)
        for k in range(last + 1):
            np.testing.assert_allclose(every[k], np.exp(x if k % 2 else -x), rtol=1e-5)
    with pytest.raises(AccordError, match="scan outputs do not fit into memory"):
        m({"n": np.array(1 << 40), "last": np.array(40), "x": x})


@pytest.mark.parametrize("threads", [1, 2])
def test_rounds_on_several_threads(threads):
    rng = np.random.default_rng(4)
    body = helper.make_graph(
        [node("Identity", ["c"], ["go"]), node("MatMul", ["c0", "w"], ["p"]), node("Tanh", ["p"], ["y0"])],
        "body",
        [info("i", dtype=T.INT64), info("c", dtype=T.BOOL), info("c0", 64, 256)],
        [info("go", dtype=T.BOOL), info("y0", 64, 256)],
    )
    loop = node("Loop", ["n", "", "x"], ["r"], body=body)
    inputs = {"n": (np.int64, []), "x": (np.float32, [64, 256])}
    weight = {"w": (rng.standard_normal((256, 256)) / 16).astype(np.float32)}
    m = Model(model([loop], inputs, ["r"], weight), Options(strict=True, threads=threads))
    x = rng.standard_normal((64, 256)).astype(np.float32)
    for n in (3, 40):
        expected = x
        for _ in range(n):
            expected = np.tanh(expected @ weight["w"])
        np.testing.assert_allclose(m({"n": np.array(n), "x": x})[0], expected, rtol=1e-3, atol=1e-4)
