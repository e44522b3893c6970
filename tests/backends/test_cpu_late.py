"""Kernels that are chosen when a run tells ranks, sizes and deciding contents."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accord.backends.cpu.late import LateKernel
from accord.backends.late import DECIDING
from accord.errors import AccordError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node
from late_cases import COMMON, ints

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RNG = np.random.default_rng(3)


def both(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], level: int = 0) -> Model:
    fast = Model(proto, Options(level=level, strict=True))
    slow = Model(proto, Options(level=0, reference=True))
    for a, b in zip(fast(feeds), slow(feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-6)
    return fast


def late_kernels(m: Model) -> list[LateKernel]:
    return [s.kernel for s in m.compiled.plan.steps if isinstance(s.kernel, LateKernel)]


X = RNG.standard_normal((3, 4, 5)).astype(np.float32)

CASES = {
    **COMMON,
    "ReduceL2": (node("ReduceL2", ["x", "a"], ["y"]), {"a": ints()}),
    "Unsqueeze": (node("Unsqueeze", ["x", "a"], ["y"]), {"a": ints(0, 3)}),
    "TopK": (node("TopK", ["x", "a"], ["y", "z"]), {"a": ints(2)}),
    "Range": (node("Range", ["a", "b", "c"], ["y"]), {"a": np.array(5), "b": np.array(-4), "c": np.array(-2)}),
    "CumSum": (node("CumSum", ["x", "a"], ["y"]), {"a": np.array(1)}),
}


@pytest.mark.parametrize("name", CASES)
def test_content_that_only_a_run_tells(name):
    op, more = CASES[name]
    feeds = {n: a for n, a in {"x": X, **more}.items() if n in op.input}
    both(model([op], {n: (a.dtype, a.shape) for n, a in feeds.items()}, list(op.output)), feeds)
    symbolic = {n: (a.dtype, [f"{n}{i}" for i in range(a.ndim)]) for n, a in feeds.items()}
    both(model([op], symbolic, list(op.output)), feeds)


@SETTINGS
@given(st.lists(st.sampled_from([1, 3, 4]), max_size=4), st.lists(st.sampled_from([1, 3, 4]), max_size=4), st.data())
def test_ranks_that_only_a_run_tells(a, b, data):
    """Squeezing axes that are given to the model leaves tensors of any rank."""
    rank = max(len(a), len(b))
    out = [1] * rank
    for shape in (a, b):
        for k, n in enumerate(reversed(shape)):
            out[-1 - k] = max(out[-1 - k], n)
    a = [out[len(out) - len(a) + k] if data.draw(st.booleans()) else 1 for k in range(len(a))]
    b = [out[len(out) - len(b) + k] for k in range(len(b))]
    nodes = [
        node("Squeeze", ["p", "s"], ["a"]),
        node("Squeeze", ["q", "t"], ["b"]),
        node("Sub", ["a", "b"], ["d"]),
        node("Exp", ["d"], ["y"]),
    ]
    feeds = {"p": RNG.standard_normal((1, *a)).astype(np.float32), "q": RNG.standard_normal((*b, 1)).astype(np.float32)}
    feeds |= {"s": ints(0), "t": ints(-1)}
    proto = model(nodes, {n: (v.dtype, v.shape) for n, v in feeds.items()}, ["y"])
    both(proto, feeds, level=data.draw(st.sampled_from([0, 3])))


def test_the_shape_of_a_tensor_of_any_rank():
    nodes = [node("Squeeze", ["p", "s"], ["a"]), node("Shape", ["a"], ["y"]), node("Size", ["a"], ["z"])]
    feeds = {"p": X[np.newaxis], "s": ints(0)}
    both(model(nodes, {n: (v.dtype, v.shape) for n, v in feeds.items()}, ["y", "z"]), feeds)


def test_products_of_any_rank():
    nodes = [node("Squeeze", ["p", "s"], ["a"]), node("MatMul", ["a", "w"], ["y"])]
    w = RNG.standard_normal((5, 7)).astype(np.float32)
    feeds = {"p": X[np.newaxis], "s": ints(0)}
    both(model(nodes, {n: (v.dtype, v.shape) for n, v in feeds.items()}, ["y"], {"w": w}), feeds)


def test_updates_of_any_rank():
    nodes = [node("Squeeze", ["p", "s"], ["u"]), node("ScatterND", ["x", "i", "u"], ["y"])]
    feeds = {"p": X[np.newaxis, :2, 1], "s": ints(0), "x": X[0], "i": np.array([[3], [0]])}
    both(model(nodes, {n: (v.dtype, v.shape) for n, v in feeds.items()}, ["y"]), feeds)


def test_a_form_is_chosen_once():
    op = node("ReduceSum", ["x", "a"], ["y"])
    m = both(model([op], {"x": (np.float32, ["n", 4]), "a": (np.int64, [1])}, ["y"]), {"x": X[0, :, :4], "a": ints(0)})
    (kernel,) = late_kernels(m)
    for n, axis in ((4, 0), (4, 1), (9, 0), (4, 0), (9, 0)):
        x = RNG.standard_normal((n, 4)).astype(np.float32)
        np.testing.assert_allclose(m({"x": x, "a": ints(axis)})[0], x.sum(axis, keepdims=True), rtol=1e-5)
    assert len(kernel._forms) == 3


def test_threads_share_a_form():
    op = node("Tile", ["x", "a"], ["y"])
    m = Model(model([op], {"x": (np.float32, ["n"]), "a": (np.int64, [1])}, ["y"]), Options(strict=True))
    wrong = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            x, k = rng.standard_normal(int(rng.integers(1, 9))).astype(np.float32), int(rng.integers(0, 4))
            if not np.array_equal(m({"x": x, "a": ints(k)})[0], np.tile(x, k)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_content_that_contradicts_the_operator_is_an_error():
    op = node("ReduceSum", ["x", "a"], ["y"])
    m = Model(model([op], {"x": (np.float32, [3, 4]), "a": (np.int64, [1])}, ["y"]), Options(strict=True))
    with pytest.raises(AccordError, match="axis") as caught:
        m({"x": X[0, :3, :4], "a": ints(5)})
    assert caught.value.op == "ReduceSum"
    assert m({"x": np.ones((3, 4), np.float32), "a": ints(1)})[0].tolist() == [[4], [4], [4]]


def test_strings_are_left_to_python_at_once():
    op = node("Expand", ["x", "a"], ["y"])
    m = Model(model([op], {"x": (np.dtype(object), [1]), "a": (np.int64, [1])}, ["y"]), Options(level=0, strict=True))
    assert m.compiled.plan.steps[0].kernel.name == "strings in Python"
    assert m({"x": np.array(["a"], object), "a": ints(2)})[0].tolist() == ["a", "a"]


def test_a_kernel_that_is_missed_late_is_told(monkeypatch):
    op = node("Tile", ["x", "a"], ["y"])
    m = Model(model([op], {"x": (np.float32, ["n"]), "a": (np.int64, [1])}, ["y"]), Options(strict=True))
    from accord.backends.cpu import CpuBackend
    from accord.ir.reason import Reason

    monkeypatch.setattr(CpuBackend, "known", lambda self, view: Reason("not today"))
    with pytest.warns(RuntimeWarning, match="not today"):
        assert m({"x": np.ones(2, np.float32), "a": ints(2)})[0].tolist() == [1, 1, 1, 1]


def test_deciding_inputs_exist():
    for op, numbers in DECIDING.items():
        schema = onnx.defs.get_schema(op)
        assert max(numbers) < len(schema.inputs), op
