"""Late steps that are started together: what comes out is what each gives by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accord.errors import AccordError, ExecutionError, InputError
from accord.runtime import late_steps
from accord.runtime.arena import Arena
from accord.runtime.late_steps import LateStretch
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from accord.runtime.watch import Collector, watched
from builders import model, node

WIDTH = 6
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RNG = np.random.default_rng(7)
CONSTANTS = {
    "w": RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32),
    "limit": np.array(0.5, np.float32),
    "first": np.array([0]),
    "last": np.array([1]),
    "pairs": np.array([-1, 2, 3]),
    "flat": np.array([-1]),
    "rows": np.array([-1, WIDTH]),
    "sizes": np.array([2, 4]),
}


class Chosen:
    """Nodes on rows of ``x`` whose number only a run tells."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        #: For each number of rows: values of them, and their places in what they were taken from.
        self.chosen: list[tuple[list[str], str]] = []
        self.sources: dict[str, str] = {}
        self.made = 0
        self.choose("x")
        for _ in range(draw(st.integers(1, 9))):
            self.step()
        everything = [v for values, _ in self.chosen for v in values]
        self.outputs = draw(st.lists(st.sampled_from(everything), min_size=1, max_size=3, unique=True))
        if draw(st.booleans()):  # of a size that is known before
            self.outputs.append(self.back(everything[-1], self.chosen[-1][1]))

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes) -> str:
        names = [f"v{self.made + k}" for k in range(outputs)]
        self.made += outputs
        self.nodes.append(node(op, list(inputs), names, **attributes))
        return names[0]

    def choose(self, source: str) -> None:
        mask = self.add("Greater", self.add("ReduceMean", source, "last", keepdims=0), "limit")
        places = self.add("Squeeze", self.add("NonZero", mask), "first")
        self.sources[places] = source
        self.chosen.append(([self.add("Gather", source, places)], places))

    def back(self, x: str, places: str) -> str:
        return self.add("ScatterND", self.sources[places], self.add("Unsqueeze", places, "last"), x, reduction="add")

    def step(self) -> None:
        values, places = self.draw(st.sampled_from(self.chosen))
        x, other = (self.draw(st.sampled_from(values)) for _ in range(2))
        kind = self.draw(st.integers(0, 10))
        if kind == 0:
            values.append(self.add("Relu", x))
        elif kind == 1:
            values.append(self.add("Add", x, other))
        elif kind == 2:
            values.append(self.add("MatMul", x, "w"))
        elif kind == 3:
            values.append(self.add("Softmax", x, axis=self.draw(st.sampled_from([0, 1]))))
        elif kind == 4:  # views with something between
            shape = self.draw(st.sampled_from(["pairs", "flat"]))
            values.append(self.add("Reshape", self.add("Sigmoid", self.add("Reshape", x, shape)), "rows"))
        elif kind == 5:  # a view of a view
            values.append(self.add("Reshape", self.add("Reshape", x, "pairs"), "rows"))
        elif kind == 6:
            turned = self.add("Neg", self.add("Transpose", x, perm=[1, 0]))
            values.append(self.add("Transpose", turned, perm=[1, 0]))
        elif kind == 7:
            first = self.add("Split", x, "sizes", axis=1, outputs=2)
            values.append(self.add("Concat", f"v{int(first[1:]) + 1}", first, axis=1))
        elif kind == 8:  # to where the rows came from, and from there
            values.append(self.add("Gather", self.back(other, places), places))
        elif kind == 9:  # something of the input in between
            values.append(self.add("Add", x, self.add("ReduceMax", self.add("Abs", "x"), "first", keepdims=1)))
        else:  # another number of rows
            self.choose(self.add("Concat", "x", x, axis=0))

    def model(self) -> onnx.ModelProto:
        used = {i for n in self.nodes for i in n.input}
        constants = {n: a for n, a in CONSTANTS.items() if n in used}
        return model(self.nodes, {"x": (np.float32, ["t", WIDTH])}, self.outputs, constants)


def inputs(seed: int) -> list[dict[str, np.ndarray]]:
    """None of the rows chosen, all, some; sizes that were met and new ones."""
    rng = np.random.default_rng(seed)
    some = [rng.standard_normal((t, WIDTH)).astype(np.float32) + 0.4 for t in (5, 9, 5, 1, 9, 5)]
    found = [some[0], some[1], np.full_like(some[0], -1), np.full_like(some[0], 1), *some[2:], some[0]]
    return [{"x": x} for x in found]


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def stretches(m: Model) -> list[LateStretch]:
    return [*m._first.executor._late_steps.stretches.values()]


@SETTINGS
@given(st.data(), st.integers(0, 2), st.integers(1, 2))
def test_whatever_follows_a_choice_of_rows(data, level, threads):
    proto = Chosen(data.draw).model()
    fast = Model(proto, Options(level=level, threads=threads, strict=True))
    slow = Model(proto, Options(level=0, reference=True))
    for feeds in inputs(data.draw(st.integers(0, 99))):
        expected = slow(feeds)
        same(fast(feeds), expected)
        with watched(Collector(lambda run, index: lambda: None)):  # each step by itself
            same(fast(feeds), expected)


EXPERT = [
    node("ReduceMean", ["x", "last"], ["m"], keepdims=0, name="mean"),
    node("Greater", ["m", "limit"], ["g"], name="greater"),
    node("NonZero", ["g"], ["p"], name="non zero"),
    node("Squeeze", ["p", "first"], ["q"], name="squeeze"),
    node("Gather", ["x", "q"], ["a"], name="rows"),
    node("MatMul", ["a", "w"], ["b"], name="product"),
    node("Relu", ["b"], ["c"], name="relu"),
    node("Unsqueeze", ["q", "last"], ["u"], name="unsqueeze"),
    node("ScatterND", ["x", "u", "c"], ["y"], name="back", reduction="add"),
]


def expert(*more: onnx.NodeProto, outputs=("y",), inputs=None) -> onnx.ModelProto:
    nodes = [*EXPERT, *more]
    constants = {n: a for n, a in CONSTANTS.items() if any(n in k.input for k in nodes)}
    return model(nodes, {"x": (np.float32, ["t", WIDTH])} | (inputs or {}), list(outputs), constants)


def test_one_call_for_all_that_follows():
    """Nothing is made anew for sizes that were met, and nothing in between has an array of its own."""
    m = Model(expert(), Options(strict=True))
    (stretch,) = stretches(m)
    assert {"MatMul+Relu", "ScatterND"} <= {m.plan.steps[i].placement.op for i in stretch.steps}
    for _ in range(2):
        for feeds in inputs(0):
            m(feeds)
        assert len(stretch._ready) == len({(len(f["x"]), int((f["x"].mean(1) > 0.5).sum())) for f in inputs(0)})
    assert not stretch._made


def test_what_is_kept_for_sizes_is_bounded(monkeypatch):
    monkeypatch.setattr(late_steps, "MAX_LATE", 8)
    m = Model(expert(), Options(strict=True))
    slow = Model(expert(), Options(level=0, reference=True))
    for feeds in inputs(0):
        same(m(feeds), slow(feeds))
        assert len(stretches(m)[0]._ready) <= 2


def test_an_index_that_is_refused_names_its_node():
    far = node("Add", ["q", "far"], ["r"])
    more = [far, node("Gather", ["c", "r"], ["z"], name="too far")]
    m = Model(expert(*more, outputs=("y", "z"), inputs={"far": (np.int64, [])}), Options(strict=True))
    x = np.ones((3, WIDTH), np.float32)
    good = m({"x": x, "far": np.array(0)})
    with pytest.raises(ExecutionError, match="an index is outside its axis") as caught:
        m({"x": x, "far": np.array(1)})
    assert caught.value.node == "too far"
    same(m({"x": x, "far": np.array(0)}), good)


def test_sizes_that_do_not_fit_name_their_node():
    more = node("Add", ["c", "other"], ["z"], name="sum")
    m = Model(expert(more, outputs=("y", "z"), inputs={"other": (np.float32, ["k", WIDTH])}), Options(strict=True))
    x = np.ones((3, WIDTH), np.float32)
    good = m({"x": x, "other": x})
    with pytest.raises(InputError) as caught:
        m({"x": x, "other": x[:2]})
    assert "sum" in str(caught.value)
    same(m({"x": x, "other": x}), good)


def test_memory_that_there_is_not_names_a_node(monkeypatch):
    m = Model(expert(), Options(strict=True))
    x = np.ones((300, WIDTH), np.float32)

    def full(self, memory, nbytes):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(AccordError, match="not enough memory") as caught:
        patch.setattr(Arena, "scratch_in", full)
        m({"x": x})
    assert caught.value.node is not None
    same(m({"x": x}), Model(expert(), Options(level=0, reference=True))({"x": x}))


def test_threads_share_what_is_kept():
    m = Model(expert(), Options(strict=True))
    slow = Model(expert(), Options(level=0, reference=True))
    feeds = inputs(3)
    expected = [slow(f) for f in feeds]

    def work(seed: int) -> None:
        for k in np.random.default_rng(seed).integers(0, len(feeds), 200):
            same(m(feeds[k]), expected[k])

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(work, range(4))] == [None] * 4
