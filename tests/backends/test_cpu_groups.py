"""Operators of the loops family, alone and in groups, against the reference: random layouts, sizes and types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loops_harness import Graph, Layout

from accord.backends.loops.groups import can_join
from accord.backends.protocol import NativeKernel
from accord.ir.reason import Reason
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RNG = np.random.default_rng(8)
F32 = np.float32


def values(shape, dtype: Any = F32) -> np.ndarray:
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return RNG.random(shape) < 0.5
    if dtype.kind in "iu":
        return RNG.integers(0, 9, shape).astype(dtype)
    return RNG.standard_normal(shape).astype(dtype)


@st.composite
def layouts(draw, rank: int) -> Layout:
    order = tuple(draw(st.permutations(range(rank))))
    return Layout(order, tuple(draw(st.sampled_from([0, 0, 2])) for _ in order))


def check(
    proto: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    draw: Any = None,
    env: dict[str, int] | None = None,
    *,
    rtol: float = 2e-6,
    atol: float = 2e-6,
) -> NativeKernel:
    """One kernel of all nodes against the reference; inputs and outputs lie anyhow if ``draw`` is given."""
    expected = Model(proto, Options(level=0, reference=True))(feeds)
    graph = Graph(proto)
    places: dict[str, Layout] = {}
    if draw is not None:
        for name, array in (*feeds.items(), *zip((o.name for o in proto.graph.output), expected, strict=True)):
            places[name] = draw(layouts(array.ndim))
    kernel, results = graph.run(feeds, places, env)
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol)
    return kernel


def declared(shape, symbolic: bool, letter: str = "d") -> tuple[list[Any], dict[str, int]]:
    if not symbolic:
        return list(shape), {}
    names = [f"{letter}{i}" for i in range(len(shape))]
    return names, dict(zip(names, shape, strict=True))


small = st.lists(st.sampled_from([1, 2, 3, 7, 16, 19, 40]), min_size=1, max_size=4).map(tuple)
LOOSE = {np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 2e-2, np.dtype(np.float64): 1e-12}
FLOATS = st.sampled_from([np.float32, np.float64, np.float16, ml_dtypes.bfloat16])


@SETTINGS
@given(
    small, st.data(), FLOATS, st.booleans(), st.sampled_from(["Softmax", "LogSoftmax", "Hardmax", "LpNormalization"])
)
def test_along_one_axis(shape, data, dtype, symbolic, op):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes, env = declared(shape, symbolic)
    attributes = {"p": data.draw(st.sampled_from([1, 2]))} if op == "LpNormalization" else {}
    proto = model([node(op, ["x"], ["y"], axis=axis, **attributes)], {"x": (dtype, sizes)}, ["y"])
    loose = LOOSE.get(np.dtype(dtype), 2e-6)
    check(proto, {"x": values(shape, dtype)}, data.draw, env, rtol=loose, atol=loose)


@SETTINGS
@given(small, st.data(), FLOATS, st.booleans(), st.booleans())
def test_layer_normalization(shape, data, dtype, rms, symbolic):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    tail = shape[axis:]
    sizes, env = declared(shape[: len(shape) - len(tail)], symbolic)
    sizes += tail
    scale = values(tuple(data.draw(st.sampled_from([d, 1])) for d in tail), dtype)
    feeds = {"x": values(shape, dtype) + np.asarray(3, dtype)}
    constants = {"s": scale}
    outputs = ["y"]
    if not rms:
        constants["b"] = values(tail, dtype)
        outputs += ["m", "d"] if data.draw(st.booleans()) else []
    op = "RMSNormalization" if rms else "LayerNormalization"
    inputs = {"x": (dtype, sizes)}
    if data.draw(st.booleans()):  # operands that are not constant
        inputs |= {n: (dtype, c.shape) for n, c in constants.items()}
        feeds |= constants
        constants = {}
    names = ["x", "s", *(["b"] if not rms else [])]
    proto = model([node(op, names, outputs, axis=axis)], inputs, outputs, constants)
    loose = LOOSE.get(np.dtype(dtype), 1e-5)
    if dtype == np.float64 and len(outputs) > 1:
        loose = 1e-6  # the statistics are of f32
    check(proto, feeds, data.draw, env, rtol=loose, atol=10 * loose)


@SETTINGS
@given(
    st.sampled_from([(2, 6, 5), (1, 6, 3, 7), (3, 12, 4, 4), (2, 6, 1, 1), (1, 32, 9, 8)]),
    st.data(),
    FLOATS,
    st.sampled_from(["InstanceNormalization", "GroupNormalization", "BatchNormalization", "MeanVarianceNormalization"]),
)
def test_normalisations_of_images(shape, data, dtype, op):
    c = shape[1]
    feeds = {"x": values(shape, dtype) * np.asarray(2, dtype) - np.asarray(1, dtype)}
    names = {
        "InstanceNormalization": ["s", "b"],
        "GroupNormalization": ["s", "b"],
        "BatchNormalization": ["s", "b", "m", "v"],
        "MeanVarianceNormalization": [],
    }[op]
    attributes: dict[str, Any] = {}
    if op == "GroupNormalization":
        attributes["num_groups"] = data.draw(st.sampled_from([1, 2, 3, c] if c % 3 == 0 else [1, 2, c]))
    if op == "MeanVarianceNormalization":
        attributes["axes"] = data.draw(st.sampled_from([[0, 2], [2], [0, 1, 2]]))
    constants = {n: np.abs(values((c,), dtype)) + np.asarray(0.1, dtype) for n in names}
    inputs = {"x": (dtype, shape)}
    if data.draw(st.booleans()):
        inputs |= dict.fromkeys(names, (dtype, (c,)))
        feeds |= constants
        constants = {}
    proto = model([node(op, ["x", *names], ["y"], **attributes)], inputs, ["y"], constants)
    loose = LOOSE.get(np.dtype(dtype), 2e-5)
    check(proto, feeds, data.draw, rtol=loose, atol=5 * loose)


REDUCTIONS = {
    "ReduceL1": "any",
    "ReduceL2": "float",
    "ReduceLogSum": "positive",
    "ReduceLogSumExp": "float",
    "ReduceMax": "any",
    "ReduceMean": "any",
    "ReduceMin": "any",
    "ReduceProd": "small",
    "ReduceSum": "any",
    "ReduceSumSquare": "any",
}


@SETTINGS
@given(small, st.data(), st.sampled_from(sorted(REDUCTIONS)), st.booleans(), st.booleans())
def test_reduce(shape, data, op, keep, symbolic):
    kind = REDUCTIONS[op]
    dtype = data.draw(
        st.sampled_from([np.float32, np.float64, np.float16] + ([np.int32, np.int64] if kind == "any" else []))
    )
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=len(shape)))
    noop = data.draw(st.sampled_from([0, 0, 1]))
    x = values(shape, dtype)
    if kind == "positive":
        x = np.abs(x) + np.asarray(0.1, dtype)
    if kind == "small":
        x = np.sign(x) * (1 + np.abs(x) / 16).astype(dtype)
    sizes, env = declared(shape, symbolic)
    proto = model(
        [node(op, ["x", "a"], ["y"], keepdims=int(keep), noop_with_empty_axes=noop)],
        {"x": (dtype, sizes)},
        ["y"],
        {"a": np.array(axes, np.int64)},
    )
    loose = LOOSE.get(np.dtype(dtype), 2e-5)
    check(proto, {"x": x}, data.draw, env, rtol=loose, atol=loose)


@SETTINGS
@given(small, st.data(), st.sampled_from(["ArgMax", "ArgMin"]), st.booleans(), st.booleans())
def test_arg_extreme(shape, data, op, keep, last):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtype = data.draw(st.sampled_from([np.float32, np.int32, np.uint8, np.float16]))
    attributes = {"axis": axis, "keepdims": int(keep), "select_last_index": int(last)}
    x = RNG.integers(0, 5, shape).astype(dtype)
    check(model([node(op, ["x"], ["y"], **attributes)], {"x": (dtype, shape)}, ["y"]), {"x": x}, data.draw)


@SETTINGS
@given(small, st.data(), st.sampled_from(["CumSum", "CumProd"]), st.booleans(), st.booleans())
def test_cumulative(shape, data, op, exclusive, reverse):
    axis = data.draw(st.integers(0, len(shape) - 1))
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.int32]))
    x = values(shape, dtype)
    if op == "CumProd":
        x = (1 + x / 16).astype(dtype)
    attributes = {"exclusive": int(exclusive), "reverse": int(reverse)}
    sizes, env = declared(shape, data.draw(st.booleans()))
    proto = model(
        [node(op, ["x", "a"], ["y"], **attributes)], {"x": (dtype, sizes)}, ["y"], {"a": np.int64(axis)}, opset=26
    )
    check(proto, {"x": x}, data.draw, env, rtol=1e-5, atol=1e-5)


@SETTINGS
@given(st.sampled_from([(2, 6, 5, 3), (1, 40, 9, 7), (2, 12, 16, 5)]), st.data())
def test_rows_in_short_pieces(shape, data):
    """Reduced axes that do not follow each other in memory."""
    axes = data.draw(st.sampled_from([[1, 3], [0, 2], [0, 3], [0, 1, 3]]))
    nodes = [
        node("ReduceMean", ["x", "a"], ["m"]),
        node("Sub", ["x", "m"], ["d"]),
        node("Abs", ["d"], ["e"]),
        node("ReduceMax", ["e", "a"], ["s"]),
        node("Div", ["d", "s"], ["y"]),
    ]
    sizes, env = declared(shape, data.draw(st.booleans()))
    proto = model(nodes, {"x": (F32, sizes)}, ["y", "m"], {"a": np.array(axes)})
    check(proto, {"x": values(shape) + 3}, data.draw, env, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_global_pools(op, order):
    x = values((2, 20, 5, 7))
    for p in (1, 2, 3) if op == "GlobalLpPool" else (0,):
        proto = model([node(op, ["x"], ["y"], **({"p": p} if p else {}))], {"x": (F32, x.shape)}, ["y"])
        graph = Graph(proto)
        _, (got,) = graph.run({"x": x}, {"x": Layout(order)})
        np.testing.assert_allclose(got, Model(proto, Options(level=0, reference=True))(x)[0], rtol=1e-5, atol=1e-6)


def test_generators():
    x = values((3, 5, 18))
    for upper in (0, 1):
        for k in (-2, 0, 3):
            check(
                model(
                    [node("Trilu", ["x", "k"], ["y"], upper=upper)],
                    {"x": (F32, ["b", 5, "c"])},
                    ["y"],
                    {"k": np.int64(k)},
                ),
                {"x": x},
                env={"b": 3, "c": 18},
            )
    for k in (-1, 0, 4):
        eye = model([node("EyeLike", ["x"], ["y"], k=k, dtype=7)], {"x": (F32, [5, 19])}, ["y"])
        check(eye, {"x": values((5, 19))})
    for axis in (0, 1, -1):
        for dtype in (np.int64, np.int32, np.float32):
            index = np.array([[0, 3, -1, 7], [2, -4, 5, -9]], dtype)
            proto = model(
                [node("OneHot", ["i", "d", "v"], ["y"], axis=axis)],
                {"i": (dtype, ["n", 4]), "v": (F32, [2])},
                ["y"],
                {"d": np.int64(6)},
            )
            check(proto, {"i": index, "v": np.array([0.5, 2.5], F32)}, env={"n": 2})


@SETTINGS
@given(st.data(), st.sampled_from(["Add", "Where", "PRelu", "Max", "Equal", "Clip", "CastLike"]))
def test_elementwise(data, op):
    shape = data.draw(small)
    parts = [tuple(1 if data.draw(st.sampled_from([False, False, True])) else d for d in shape) for _ in range(3)]
    dtypes = [F32, F32, F32]
    if op == "PRelu":
        parts[0] = shape
    if op == "Where":
        dtypes[0] = np.bool_
    if op == "Clip":
        parts[1:] = [(), ()]
    if op == "CastLike":
        dtypes[1] = np.int32
    count = 3 if op in ("Where", "Max", "Clip") else 2
    names = ["a", "b", "c"][:count]
    feeds = {n: values(p, t) for n, p, t in zip(names, parts, dtypes, strict=False)}
    proto = model([node(op, names, ["y"])], {n: (f.dtype, f.shape) for n, f in feeds.items()}, ["y"])
    check(proto, feeds, data.draw)


def test_dropout_outside_training():
    proto = model([node("Dropout", ["x"], ["y", "m"])], {"x": (F32, ["n", 5])}, ["y", "m"])
    check(proto, {"x": values((3, 5))}, env={"n": 3})
    trained = [node("Dropout", ["x", "r", "t"], ["y"])]
    why = refused(trained, {"x": (F32, [3]), "t": (np.bool_, [])}, ["y"], {"r": F32(0.5)})
    assert "training" in why


def test_sizes_that_may_be_one():
    """Whether an axis is broadcast is known when it runs."""
    proto = model([node("Add", ["a", "b"], ["y"])], {"a": (F32, ["n", "m"]), "b": (F32, ["k", "m"])}, ["y"])
    for n, k in ((5, 1), (1, 5), (5, 5), (1, 1)):
        check(proto, {"a": values((n, 20)), "b": values((k, 20))}, env={"n": n, "k": k, "m": 20})


# groups


def _layer_norm(axis: int = -1) -> list[onnx.NodeProto]:
    return [
        node("ReduceMean", ["x", "axis"], ["m"]),
        node("Sub", ["x", "m"], ["d"]),
        node("Pow", ["d", "two"], ["dd"]),
        node("ReduceMean", ["dd", "axis"], ["v"]),
        node("Add", ["v", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["s"]),
        node("Div", ["d", "s"], ["n"]),
        node("Mul", ["n", "g"], ["w"]),
        node("Add", ["w", "b"], ["y"]),
    ]


@SETTINGS
@given(st.data(), st.booleans(), st.sampled_from([1, 2, 3, -1]))
def test_a_layer_norm_in_parts(data, symbolic, axis):
    shape = data.draw(st.sampled_from([(2, 5, 33, 3), (1, 2, 64, 16), (3, 7, 1, 20)]))
    sizes, env = declared(shape[:-1], symbolic)
    sizes.append(c := shape[-1])
    constants = {"axis": np.array([axis]), "two": F32(2), "eps": F32(1e-3), "g": values((c,)), "b": values((c,))}
    proto = model(_layer_norm(), {"x": (F32, sizes)}, ["y"], constants)
    # rows of a few elements that are nearly equal: what is lost of the mean is divided by a small deviation
    check(proto, {"x": values(shape) + 5}, data.draw, env, rtol=1e-4, atol=2e-4)


def test_a_softmax_with_scale_and_mask():
    nodes = [
        node("Mul", ["x", "scale"], ["a"]),
        node("Unsqueeze", ["mask", "axes"], ["u"]),
        node("Cast", ["u"], ["f"], to=1),
        node("Sub", ["one", "f"], ["r"]),
        node("Mul", ["r", "low"], ["z"]),
        node("Add", ["a", "z"], ["t"]),
        node("Softmax", ["t"], ["y"]),
    ]
    constants = {"scale": F32(0.125), "axes": np.array([1, 2]), "one": F32(1), "low": F32(-10000)}
    proto = model(nodes, {"x": (F32, ["b", 3, "s", "t"]), "mask": (np.int64, ["b", "t"])}, ["y"], constants)
    feeds = {"x": values((2, 3, 9, 21)), "mask": RNG.integers(0, 2, (2, 21))}
    kernel = check(proto, feeds, env={"b": 2, "s": 9, "t": 21})
    assert len(kernel.phases) == 1
    assert can_join(Graph(proto).views()) is None


@SETTINGS
@given(st.data())
def test_views_between_operators(data):
    """Axes cut, joined, exchanged and repeated between elementwise operators and a reduction."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Reshape", ["r", "s4"], ["c"]),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 1, 3]),
        node("Expand", ["k", "e"], ["kk"]),
        node("Add", ["t", "kk"], ["p"]),
        node("ReduceSum", ["p", "last"], ["q"], keepdims=0),
        node("Unsqueeze", ["q", "last"], ["u"]),
        node("Div", ["p", "u"], ["y"]),
    ]
    constants = {"s4": np.array([2, 5, 3, 16]), "e": np.array([2, 3, 5, 16]), "last": np.array([-1])}
    proto = model(nodes, {"x": (F32, [2, 5, 48]), "k": (F32, [2, 1, 5, 1])}, ["y"], constants)
    feeds = {"x": values((2, 5, 48)), "k": np.abs(values((2, 1, 5, 1))) + 1}
    check(proto, feeds, data.draw, rtol=1e-5)


def test_a_reshape_with_symbolic_sizes():
    nodes = [
        node("Mul", ["x", "c"], ["m"]),
        node("Reshape", ["m", "s"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3]),
        node("Tanh", ["t"], ["y"]),
    ]
    proto = model(nodes, {"x": (F32, ["b", "n", 24])}, ["y"], {"c": F32(0.5), "s": np.array([0, 0, 4, 6])})
    check(proto, {"x": values((2, 7, 24))}, env={"b": 2, "n": 7})


@SETTINGS
@given(st.data(), st.sampled_from([0, 1]), st.booleans(), st.booleans())
def test_a_running_sum_that_later_passes_need(data, axis, reverse, read_before):
    """It is known only while it runs: what reads it after a reduction gets it from memory."""
    shape = data.draw(st.sampled_from([(23, 13), (5, 70), (1, 9), (16, 16)]))
    along = {"axis": np.array([axis]), "at": np.int64(axis)}
    nodes = [node("CumSum", ["x", "at"], ["c"], reverse=int(reverse))]
    if read_before:
        nodes += [node("ReduceMax", ["c", "axis"], ["m"]), node("Sub", ["c", "m"], ["y"])]
    else:
        nodes += [node("ReduceMax", ["x", "axis"], ["m"]), node("Mul", ["c", "m"], ["p"]), node("Exp", ["p"], ["y"])]
    sizes, env = declared(shape, data.draw(st.booleans()))
    proto = model(nodes, {"x": (F32, sizes)}, ["y", "c"], along)
    check(proto, {"x": values(shape) / 8}, data.draw, env, rtol=2e-5, atol=2e-5)


def test_several_outputs():
    nodes = [
        node("Add", ["x", "y"], ["s"]),
        node("LayerNormalization", ["s", "g", "b"], ["n", "mean", "inverse"], axis=-1),
        node("Sigmoid", ["n"], ["z"]),
    ]
    constants = {"g": values((40,)), "b": values((40,))}
    inputs = {"x": (F32, ["r", 40]), "y": (F32, ["r", 40])}
    proto = model(nodes, inputs, ["s", "z", "mean"], constants)
    check(proto, {"x": values((9, 40)), "y": values((9, 40))}, env={"r": 9}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_narrow_floats_are_rounded_once(dtype):
    """Between the operators of a group f32 is kept; a Cast rounds."""
    x = np.array([1.0, 3.0, 100.0, 0.3], dtype)
    nodes = [node("Mul", ["x", "third"], ["a"]), node("Sub", ["a", "x"], ["b"]), node("Add", ["b", "x"], ["y"])]
    third = np.asarray(1 / 3, dtype)
    kernel, (y,) = Graph(model(nodes, {"x": (dtype, [4])}, ["y"], {"third": third})).run({"x": x}, {})
    wide = x.astype(F32) * third.astype(F32)
    np.testing.assert_array_equal(y, ((wide - x.astype(F32)) + x.astype(F32)).astype(dtype))
    assert kernel.name.startswith("loops Mul Sub Add")
    code = 10 if dtype == np.float16 else 16
    nodes = [node("Exp", ["x"], ["a"]), node("Cast", ["a"], ["b"], to=code), node("Cast", ["b"], ["y"], to=1)]
    x = values((30,))
    _, (y,) = Graph(model(nodes, {"x": (F32, [30])}, ["y"])).run({"x": x}, {})
    np.testing.assert_allclose(y, np.exp(x).astype(dtype).astype(F32), rtol=1e-2)
    np.testing.assert_array_equal(y, y.astype(dtype).astype(F32))


def refused(nodes, inputs, outputs, constants=None) -> str:
    why = can_join(Graph(model(nodes, inputs, outputs, constants)).views())
    assert isinstance(why, Reason)
    return why.text


def test_what_does_not_join():
    x = {"x": (F32, [4, 5])}
    axes = {"a": np.array([0]), "b": np.array([1])}
    two = [node("ReduceSum", ["x", "a"], ["p"]), node("ReduceSum", ["x", "b"], ["q"]), node("Mul", ["p", "q"], ["y"])]
    assert "different axes" in refused(two, x, ["y"], axes)
    turned = [node("Relu", ["x"], ["r"]), node("Transpose", ["r"], ["t"]), node("Add", ["r", "t"], ["y"])]
    assert "twice" in refused(turned, {"x": (F32, [4, 4])}, ["y"])
    last = [node("Relu", ["x"], ["r"]), node("Transpose", ["r"], ["y"])]
    assert "costs nothing" in refused(last, x, ["y"])
    assert "costs nothing" in refused([node("Transpose", ["x"], ["y"])], x, ["y"])
    again = [node("Exp", ["k"], ["e"]), node("Add", ["x", "e"], ["y"])]
    assert "several times" in refused(again, {**x, "k": (F32, [5])}, ["y"])
    outer = [node("ReduceSum", ["x", "b"], ["r"], keepdims=0), node("Add", ["r", "z"], ["y"])]
    assert "several times" in refused(outer, {**x, "z": (F32, [3, 4])}, ["y"], axes)
    apart = [node("Relu", ["x"], ["y"]), node("Relu", ["z"], ["w"])]
    assert "different axes" in refused(apart, {**x, "z": (F32, [7])}, ["y", "w"])
    whole = [node("ReduceMax", ["x"], ["m"]), node("Div", ["x", "m"], ["y"])]
    assert "threads" in refused(whole, {"x": (F32, [1000, 1000])}, ["y"])
    ends = [node("CumSum", ["x", "b0"], ["p"]), node("CumSum", ["p", "b0"], ["y"], reverse=1)]
    assert "both ends" in refused(ends, x, ["y"], {"b0": np.int64(1)})
    assert "no loops" in refused([node("NonZero", ["x"], ["y"])], x, ["y"])


def test_constants_of_a_batch_normalization_are_folded():
    constants = {n: np.abs(values((6,))) + F32(0.5) for n in ("s", "b", "m", "v")}
    proto = model([node("BatchNormalization", ["x", *constants], ["y"])], {"x": (F32, ["n", 6, 5])}, ["y"], constants)
    kernel = check(proto, {"x": values((2, 6, 5))}, env={"n": 2})
    assert kernel.reads == (0, 1, 2)
    assert sorted(kernel.constants) == [1, 2]


def test_in_place_only_where_elements_stay():
    proto = model([node("Add", ["x", "z"], ["y"])], {"x": (F32, [3, 5]), "z": (F32, [1, 5])}, ["y"])
    graph = Graph(proto)
    assert graph.run({"x": values((3, 5)), "z": values((1, 5))}, {})[0].in_place == ((0, 0),)
    turned = {"x": Layout((1, 0))}
    assert graph.run({"x": values((3, 5)), "z": values((1, 5))}, turned)[0].in_place == ()
    softmax = Graph(model([node("Softmax", ["x"], ["y"])], {"x": (F32, [3, 5])}, ["y"]))
    assert softmax.run({"x": values((3, 5))}, {})[0].in_place == ((0, 0),)
    # the sum is kept in the output's memory while x is still needed
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("ReduceSum", ["e", "a"], ["s"]),
        node("Div", ["e", "s"], ["d"]),
        node("Mul", ["d", "x"], ["y"]),
    ]
    late = Graph(model(nodes, {"x": (F32, [3, 500])}, ["y"], {"a": np.array([1])}))
    assert late.run({"x": values((3, 500))}, {})[0].in_place == ()


@SETTINGS
@given(st.data(), st.sampled_from(["Softmax", "LogSoftmax", "LayerNormalization", "CumSum", "LpNormalization"]))
def test_in_place(data, op):
    """The output lies where the input lay."""
    shape = data.draw(st.sampled_from([(5, 40), (3, 7, 33), (16, 20), (2, 70)]))
    place = data.draw(layouts(len(shape)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    constants: dict[str, Any] = {}
    attributes: dict[str, Any] = {"axis": axis}
    if op == "LayerNormalization":
        constants["s"] = values(shape[axis:])
    if op == "CumSum":
        constants, attributes = {"a": np.int64(axis)}, {"reverse": 1}
    proto = model([node(op, ["x", *constants], ["y"], **attributes)], {"x": (F32, shape)}, ["y"], constants)
    x = values(shape)
    expected = Model(proto, Options(level=0, reference=True))({"x": x})[0]
    kernel, (got,) = Graph(proto).run({"x": x}, {"x": place, "y": place}, in_place=True)
    assert (0, 0) in kernel.in_place
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_quantisation_along_an_axis_and_in_blocks():
    x = values((3, 8, 5)) * 20
    scale, zero = np.array([0.5, 0.25, 0.125], F32), np.array([3, 128, 7], np.uint8)
    proto = model(
        [node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=0)], {"x": (F32, x.shape)}, ["q"], {"s": scale, "z": zero}
    )
    check(proto, {"x": x})
    blocks = np.abs(values((3, 4, 5))) + F32(0.1)
    proto = model(
        [node("QuantizeLinear", ["x", "s"], ["q"], axis=1, block_size=2, output_dtype=3)],
        {"x": (F32, x.shape)},
        ["q"],
        {"s": blocks},
    )
    check(proto, {"x": x})


PAIRS = {
    "a row and itself as a column": ([1, 7], node("Transpose", ["a"], ["b"], perm=[1, 0]), [0, 1]),
    "the same along one axis": ([1, 7], node("Transpose", ["a"], ["b"], perm=[1, 0]), [1]),
    "rows with each other": ([1, 5, 3], node("Transpose", ["a"], ["b"], perm=[1, 0, 2]), [2]),
    "all there is": ([1, 4, 4, 3], node("Transpose", ["a"], ["b"], perm=[2, 1, 0, 3]), [0, 1, 2, 3]),
    "by another view": ([1, 5, 3], node("Reshape", ["a", "shape"], ["b"]), [-1]),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("symbolic", [False, True])
def test_a_value_beside_itself_turned_around(name, symbolic):
    """One axis of the value is two of the difference: distances of all pairs."""
    shape, turned, axes = PAIRS[name]
    nodes = [
        node("Relu", ["x"], ["a"]),
        turned,
        node("Sub", ["a", "b"], ["d"]),
        node("Mul", ["d", "d"], ["e"]),
        node("ReduceSum", ["e", "axes"], ["y"], keepdims=0),
    ]
    constants = {"axes": np.array(axes)} | ({"shape": np.array([-1, 1, 3])} if "shape" in turned.input else {})
    declared = [f"d{i}" if symbolic and d > 1 else d for i, d in enumerate(shape)]
    proto = model(nodes, {"x": (F32, declared)}, ["y"], constants)
    x = values(shape)
    expected = Model(proto, Options(level=0, reference=True))(x)[0]
    np.testing.assert_allclose(Model(proto, Options())(x)[0], expected, rtol=1e-5)
