"""What only a run tells: sizes, deciding contents, control flow. The data stays on the device."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import agree
from onnx import TensorProto, helper

import accord
from accord.backends.memory import DeviceArray
from accord.backends.protocol import HostKernel
from accord.errors import ExecutionError
from builders import model, node
from late_cases import COMMON, ints

F = np.float32
SETTINGS = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
X = np.random.default_rng(3).standard_normal((3, 4, 5)).astype(F)


CASES = {
    **COMMON,
    "ReduceL2 of no axes": (node("ReduceL2", ["x", "a"], ["y"]), {"a": ints()}),
    "Slice of nothing": (node("Slice", ["x", "a", "b"], ["y"]), {"a": ints(2), "b": ints(1)}),
    "Pad by reflection": (node("Pad", ["x", "a"], ["y"], mode="reflect"), {"a": ints(1, 0, 2, 0, 2, 0)}),
    "Unsqueeze": (node("Unsqueeze", ["x", "a"], ["y"]), {"a": ints(0, -1)}),
    "Range": (node("Range", ["a", "b", "c"], ["y"]), {"a": F(5), "b": F(-4), "c": F(-2)}),
    "CumSum": (node("CumSum", ["x", "a"], ["y"]), {"a": np.array(-1)}),
    "Resize": (node("Resize", ["x", "", "s"], ["y"], mode="linear"), {"s": np.array([1, 2, 1.5], F)}),
    "CenterCropPad": (node("CenterCropPad", ["x", "a"], ["y"]), {"a": ints(5, 2, 5)}),
    "DFT": (node("DFT", ["x", "", "a"], ["y"]), {"a": np.array(0)}),
    "HannWindow": (node("HannWindow", ["a"], ["y"]), {"a": np.array(7)}),
}


@pytest.mark.parametrize("name", CASES)
def test_content_that_only_a_run_tells(gpu, name):
    op, more = CASES[name]
    feeds = {n: a for n, a in {"x": X[..., :1] if name == "DFT" else X, **more}.items() if n in op.input}
    known = {n: (a.dtype, a.shape) for n, a in feeds.items()}
    symbolic = {n: (a.dtype, [f"{n}{i}" for i in range(a.ndim)]) for n, a in feeds.items()}
    if name == "DFT":
        symbolic["x"] = (F, ["p", "q", 1])
    for shapes in (known, symbolic):
        agree(model([op], shapes, list(op.output)), feeds, rtol=1e-5, atol=1e-5, device="cuda")


@SETTINGS
@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 3))
def test_sizes_that_other_steps_find(gpu, first, last, times):
    """A value of late size goes through kernels whose sizes follow from it; nothing but the result is fetched."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Slice", ["r", "a", "b", "c"], ["s"]),
        node("Exp", ["s"], ["e"]),
        node("MatMul", ["e", "w"], ["m"]),
        node("Concat", ["m", "m"], ["d"], axis=0),
        node("ReduceSum", ["d", "c"], ["y"], keepdims=0),
        node("Tile", ["m", "k"], ["z"]),
    ]
    shapes = {"x": (F, ["n", 3]), "a": (np.int64, [1]), "b": (np.int64, [1]), "k": (np.int64, [2])}
    rng = np.random.default_rng(first)
    rows = rng.standard_normal((5, 3)).astype(F)
    constants = {"c": ints(0), "w": rng.standard_normal((3, 2)).astype(F)}
    feeds = {"x": rows, "a": ints(first), "b": ints(last), "k": ints(times, 1)}
    proto = model(nodes, shapes, ["y", "z"], constants)
    compiled = agree(proto, feeds, rtol=1e-5, atol=1e-5, device="cuda")
    fetched = []
    original = DeviceArray.numpy
    try:
        DeviceArray.numpy = lambda self: fetched.append(self.shape) or original(self)  # type: ignore[method-assign]
        for _ in range(4):  # the same kernels again, later as graphs
            compiled(feeds)
    finally:
        DeviceArray.numpy = original  # type: ignore[method-assign]
    assert len(fetched) <= 4 * 2  # the two results


def test_new_contents_make_no_new_kernels(gpu):
    """Sizes are parameters: other axes' sizes, pads and targets run the same text."""
    m = accord.load(
        model(
            [node("Slice", ["x", "a", "b"], ["y"])],
            {"x": (F, ["n"]), "a": (np.int64, [1]), "b": (np.int64, [1])},
            ["y"],
        ),
        device="cuda",
    )
    texts = set()
    for n, a, b in ((9, 1, 8), (20, 3, 19), (31, 5, 7)):
        gpu.started.clear()
        x = np.arange(n, dtype=F)
        np.testing.assert_array_equal(m({"x": x, "a": ints(a), "b": ints(b)})[0], x[a:b])
        texts.add(tuple(gpu.started))
    assert len(texts) == 1


def test_a_computed_control_input_is_fetched_with_its_reason(gpu):
    nodes = [node("ReduceMax", ["i"], ["m"], keepdims=1), node("Tile", ["x", "m"], ["y"])]
    m = accord.load(model(nodes, {"x": (F, [3]), "i": (np.int64, ["n"])}, ["y"]), device="cuda")
    got = m({"x": np.arange(3, dtype=F), "i": ints(1, 2)})[0]
    np.testing.assert_array_equal(got, np.tile(np.arange(3, dtype=F), 2))
    copies = [s.placement.copies for s in m.plan.steps if "reads 'm'" in s.placement.copies]
    assert len(copies) == 1
    assert "Tile" in copies[0]


def body(nodes, inputs, outputs):
    """A body graph; inputs and outputs are name → (ONNX type, shape)."""
    infos = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in v.items()] for v in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *infos)


FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loops_keep_what_they_carry_on_the_device(gpu, trips):
    inside = body(
        [
            node("Add", ["s", "x"], ["t"]),
            node("ReduceSum", ["t"], ["total"], keepdims=0),
            node("Less", ["total", "limit"], ["go"]),
            node("Identity", ["t"], ["scan"]),
        ],
        {"i": (INT, []), "c": (BOOL, []), "s": (FLOAT, [2, 3])},
        {"go": (BOOL, []), "t": (FLOAT, [2, 3]), "scan": (FLOAT, [2, 3])},
    )
    nodes = [
        node("Exp", ["z"], ["x"]),
        node("Loop", ["n", "", "z"], ["last", "all"], body=inside),
        node("Mul", ["last", "last"], ["y"]),
    ]
    shapes = {"n": (np.int64, []), "z": (F, [2, 3]), "limit": (F, [])}
    feeds = {"n": np.array(trips), "z": X[0, :2, :3], "limit": F(25)}
    agree(model(nodes, shapes, ["y", "all"]), feeds, rtol=1e-5, atol=1e-5, device="cuda")


@pytest.mark.parametrize(("in_axis", "out_axis"), [(0, 0), (1, 1), (2, -1)])
@pytest.mark.parametrize("reverse", [0, 1])
def test_scans_along_any_axis(gpu, in_axis, out_axis, reverse):
    shape = [d for a, d in enumerate(X.shape) if a != in_axis]
    inside = body(
        [node("Add", ["s", "e"], ["t"]), node("Tanh", ["t"], ["o"])],
        {"s": (FLOAT, shape), "e": (FLOAT, shape)},
        {"t": (FLOAT, shape), "o": (FLOAT, shape)},
    )
    attributes = {"scan_input_axes": [in_axis], "scan_output_axes": [out_axis]}
    attributes |= {"scan_input_directions": [reverse], "scan_output_directions": [reverse]}
    op = node("Scan", ["s", "x"], ["last", "y"], body=inside, num_scan_inputs=1, **attributes)
    feeds = {"s": np.zeros(shape, F), "x": X}
    nodes = [op, node("Neg", ["y"], ["z"])]
    proto = model(nodes, {n: (F, a.shape) for n, a in feeds.items()}, ["last", "z"])
    agree(proto, feeds, rtol=1e-5, atol=1e-5, device="cuda")


@pytest.mark.parametrize("yes", [True, False])
def test_branches_read_what_is_on_the_device(gpu, yes):
    then, other = (
        helper.make_graph([node(op, ["e"], ["r"])], op, [], [onnx.ValueInfoProto(name="r")]) for op in ("Neg", "Sqrt")
    )
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("If", ["c"], ["r"], then_branch=then, else_branch=other),
        node("Add", ["r", "e"], ["y"]),
    ]
    shapes = {"x": (F, ["n", 5]), "c": (np.bool_, [])}
    agree(model(nodes, shapes, ["y"]), {"x": X[0], "c": np.array(yes)}, rtol=1e-5, atol=1e-5, device="cuda")


def test_shapes_of_unknown_rank_read_nothing(gpu):
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Reshape", ["r", "a"], ["q"]),
        node("Shape", ["q"], ["s"]),
        node("Size", ["q"], ["n"]),
    ]
    m = accord.load(model(nodes, {"x": (F, [12]), "a": (np.int64, ["k"])}, ["s", "n"]), device="cuda")
    shape, count = m({"x": np.ones(12, F), "a": ints(3, 2, 2)})
    assert shape.tolist() == [3, 2, 2]
    assert count == 12
    assert not [s.placement.copies for s in m.plan.steps if "reads 'q'" in s.placement.copies]


def test_a_late_kernel_refuses_an_index(gpu):
    nodes = [node("Slice", ["x", "a", "b"], ["s"]), node("Gather", ["s", "i"], ["y"])]
    shapes = {"x": (F, ["n"]), "a": (np.int64, [1]), "b": (np.int64, [1]), "i": (np.int64, ["k"])}
    m = accord.load(model(nodes, shapes, ["y"]), device="cuda")
    feeds = {"x": np.arange(9, dtype=F), "a": ints(2), "b": ints(6)}
    np.testing.assert_array_equal(m({**feeds, "i": ints(3, -1)})[0], [5, 5])
    with pytest.raises(ExecutionError, match="outside") as caught:
        m({**feeds, "i": ints(4)})
    assert caught.value.op == "Gather"
    np.testing.assert_array_equal(m({**feeds, "i": ints(0)})[0], [2])


def test_what_is_chosen_late_can_be_stored(gpu):
    nodes = [
        node("NonZero", ["x"], ["i"]),
        node("Tile", ["x", "k"], ["t"]),
        node("Shape", ["t"], ["s"]),
        node("NonMaxSuppression", ["b", "c", "k"], ["n"]),
    ]
    shapes = {"x": (F, None), "k": (np.int64, [1]), "b": (F, [1, 2, 4]), "c": (F, [1, 1, 2])}
    m = accord.load(model(nodes, shapes, ["i", "s", "n"]), device="cuda")
    kernels = [s.kernel for s in m.plan.steps if isinstance(s.kernel, HostKernel)]
    assert len(kernels) >= 5
    assert all(getattr(k, "portable", False) for k in kernels)
    again = [pickle.loads(pickle.dumps(k)) for k in kernels]
    assert [(type(k), k.space, k.returns) for k in again] == [(type(k), k.space, k.returns) for k in kernels]


def test_what_no_sizes_give_a_kernel_waits_for_no_run(gpu):
    """Sizes that are guessed one by one fit no attention, those of other operands do; float64 has no kernel here."""
    free, known = ["a", "b", "c", "d"], [1, 2, 5, 8]
    for dtype, backend in ((np.float64, "cpu"), (np.float32, "cuda")):
        inputs = {"q": (dtype, known), "k": (dtype, free), "v": (dtype, free)}
        m = accord.load(model([node("Attention", ["q", "k", "v"], ["y"])], inputs, ["y"]), device="cuda")
        (place,) = [s.placement for s in m.plan.steps if s.placement.op == "Attention"]
        assert place.backend == backend
        q, k = np.ones((1, 2, 5, 8), dtype), np.ones((1, 2, 3, 8), dtype)
        np.testing.assert_allclose(m(q, k, k)[0], q, rtol=1e-6)
