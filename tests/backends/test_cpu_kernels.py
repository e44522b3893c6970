"""Generated kernels against the reference: random shapes, strides, broadcasts, axes, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accord.runtime.model import Model
from accord.runtime.options import Options
from builders import model, node

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RNG = np.random.default_rng(11)


def both(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], *, rtol: float = 1e-5, atol: float = 1e-5) -> Model:
    """Run on the generated kernels alone and on the reference alone, as written; the outputs must agree."""
    fast = Model(proto, Options(level=0, strict=True))
    slow = Model(proto, Options(level=0, reference=True))
    for a, b in zip(fast(feeds), slow(feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol)
    return fast


def values(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return RNG.random(shape) < 0.5
    if dtype.kind in "iu":
        return RNG.integers(0, 9, shape).astype(dtype)
    return RNG.standard_normal(shape).astype(dtype)


sizes = st.integers(0, 20)
small_shapes = st.lists(st.sampled_from([1, 2, 3, 5, 16, 17, 33]), min_size=0, max_size=4).map(tuple)


@st.composite
def broadcast_pairs(draw):
    out = draw(small_shapes)
    sides = []
    for _ in range(2):
        keep = draw(st.integers(0, len(out)))
        sides.append(tuple(1 if draw(st.booleans()) and draw(st.booleans()) else d for d in out[len(out) - keep :]))
    return sides


@SETTINGS
@given(broadcast_pairs(), st.sampled_from(["float32", "float64", "int32", "int64"]), st.booleans())
def test_broadcasting(shapes, dtype, symbolic):
    a, b = shapes
    declared = [[f"{n}{i}" for i in range(len(s))] if symbolic else s for n, s in zip("ab", shapes, strict=True)]
    proto = model([node("Add", ["a", "b"], ["y"])], {"a": (dtype, declared[0]), "b": (dtype, declared[1])}, ["y"])
    both(proto, {"a": values(a, dtype), "b": values(b, dtype)})


@SETTINGS
@given(small_shapes.filter(bool), st.data(), st.booleans())
def test_transpose(shape, data, symbolic):
    perm = data.draw(st.permutations(range(len(shape))))
    dtype = data.draw(st.sampled_from(["float32", "float64", "float16", "int8", "bool"]))
    declared = [f"d{i}" for i in range(len(shape))] if symbolic else shape
    both(
        model([node("Transpose", ["x"], ["y"], perm=perm)], {"x": (dtype, declared)}, ["y"]),
        {"x": values(shape, dtype)},
    )


@SETTINGS
@given(small_shapes.filter(bool), st.data())
def test_slice(shape, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    bound = st.sampled_from([-(2**62), -7, -3, -1, 0, 1, 2, 5, 18, 2**62])
    starts, ends = ([data.draw(bound) for _ in axes] for _ in range(2))
    steps = [data.draw(st.sampled_from([-3, -1, 1, 2, 5])) for _ in axes]
    constants = {n: np.array(v, np.int64) for n, v in zip("seap", (starts, ends, axes, steps), strict=True)}
    proto = model([node("Slice", ["x", "s", "e", "a", "p"], ["y"])], {"x": (np.float32, shape)}, ["y"], constants)
    both(proto, {"x": values(shape)})


@SETTINGS
@given(small_shapes.filter(bool), st.data())
def test_concat_and_split(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    pieces = {
        f"x{i}": tuple(n if a == axis % len(shape) else d for a, d in enumerate(shape)) for i, n in enumerate(parts)
    }
    proto = model(
        [
            node("Concat", list(pieces), ["c"], axis=axis),
            node("Split", ["c", "n"], [f"y{i}" for i in range(len(parts))], axis=axis),
        ],
        {n: (np.float32, s) for n, s in pieces.items()},
        ["c", *(f"y{i}" for i in range(len(parts)))],
        {"n": np.array(parts, np.int64)},
    )
    both(proto, {n: values(s) for n, s in pieces.items()})


@SETTINGS
@given(small_shapes.filter(bool), st.data())
def test_pad(shape, data):
    pads = [data.draw(st.integers(-min(2, d - 1), 4)) for d in (*shape, *shape)]
    for axis, d in enumerate(shape):  # never cut more than there is
        if pads[axis] + pads[axis + len(shape)] < -d:
            pads[axis] = 0
    proto = model(
        [node("Pad", ["x", "p", "v"], ["y"])],
        {"x": (np.float32, shape)},
        ["y"],
        {"p": np.array(pads, np.int64), "v": np.float32(2.5)},
    )
    both(proto, {"x": values(shape)})


@SETTINGS
@given(small_shapes.filter(bool), st.data())
def test_gather(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    index = data.draw(st.sampled_from(["int32", "int64"]))
    chosen = data.draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), max_size=5))
    proto = model(
        [node("Gather", ["x", "i"], ["y"], axis=axis)], {"x": (np.float32, shape), "i": (index, ["k"])}, ["y"]
    )
    both(proto, {"x": values(shape), "i": np.array(chosen, index)})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
def test_depth_and_space(op, mode):
    attributes = {"mode": mode} if op == "DepthToSpace" else {}
    proto = model([node(op, ["x"], ["y"], blocksize=2, **attributes)], {"x": (np.float32, ["n", 8, 4, 6])}, ["y"])
    both(proto, {"x": values((2, 8, 4, 6))})


_REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
]


@SETTINGS
@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 16, 31, 65]), min_size=1, max_size=4).map(tuple),
    st.sampled_from(_REDUCTIONS),
    st.sampled_from(["float32", "float64", "float16"]),
    st.booleans(),
    st.data(),
)
def test_reductions(shape, op, dtype, keep, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=len(shape)))
    symbolic = data.draw(st.booleans())
    declared = [f"d{i}" for i in range(len(shape))] if symbolic else shape
    proto = model(
        [node(op, ["x", "a"], ["y"], keepdims=int(keep))],
        {"x": (dtype, declared)},
        ["y"],
        {"a": np.array(axes, np.int64)},
    )
    x = values(shape, dtype)
    if op == "ReduceProd":
        x = np.sign(x) * (1 + np.abs(x) / 16).astype(dtype)
    loose = 2e-2 if dtype == "float16" else 1e-4
    both(proto, {"x": x}, rtol=loose, atol=loose)


def test_a_maximum_keeps_nan():
    x = np.array([[1, np.nan, 3], [-np.inf, -np.inf, -np.inf]], np.float32)
    proto = model(
        [node("ReduceMax", ["x", "a"], ["y"])], {"x": (np.float32, [2, 3])}, ["y"], {"a": np.array([1], np.int64)}
    )
    y = both(proto, {"x": x})(x)[0]
    assert np.isnan(y[0, 0]) and y[1, 0] == -np.inf


@SETTINGS
@given(
    st.sampled_from([((), ()), ((3,), (3,)), ((2, 3), (3,)), ((), (4,)), ((2, 1), (1, 3)), ((1,), (5,))]),
    st.integers(1, 40),
    st.integers(1, 100),
    st.integers(1, 40),
    st.sampled_from(["float32", "float64"]),
    st.booleans(),
)
def test_matmul(batches, m, n, k, dtype, symbolic):
    a, b = (*batches[0], m, k), (*batches[1], k, n)
    names = {"a": [f"a{i}" for i in range(len(a))], "b": [f"b{i}" for i in range(len(b))]}
    proto = model(
        [node("MatMul", ["a", "b"], ["y"])],
        {"a": (dtype, names["a"] if symbolic else a), "b": (dtype, names["b"] if symbolic else b)},
        ["y"],
    )
    both(proto, {"a": values(a, dtype), "b": values(b, dtype)}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("a", "b"), [((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3))]
)
def test_matmul_of_vectors(a, b):
    proto = model([node("MatMul", ["a", "b"], ["y"])], {"a": (np.float32, a), "b": (np.float32, b)}, ["y"])
    both(proto, {"a": values(a), "b": values(b)})


@SETTINGS
@given(
    st.integers(1, 30),
    st.integers(1, 70),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, (), (1,), ("n",), ("m", 1), ("m", "n"), (1, "n")]),
    st.booleans(),
)
def test_gemm(m, n, k, trans_a, trans_b, bias, constant_b):
    a, b = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
    inputs = {"a": (np.float32, a), "b": (np.float32, b)}
    feeds = {"a": values(a), "b": values(b)}
    if bias is not None:
        shape = tuple({"m": m, "n": n}.get(d, d) for d in bias)
        inputs["c"], feeds["c"] = (np.float32, shape), values(shape)
    constants = {"b": feeds.pop("b")} if constant_b else {}
    if constant_b:
        del inputs["b"]
    names = ["a", "b", *(["c"] if bias is not None else [])]
    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": 0.5, "beta": 1.5}
    proto = model([node("Gemm", names, ["y"], **attributes)], inputs, ["y"], constants)
    fast = Model(proto, Options(level=0))
    slow = Model(proto, Options(level=0, reference=True))
    np.testing.assert_allclose(fast(feeds)[0], slow(feeds)[0], rtol=1e-4, atol=1e-4)


@SETTINGS
@given(st.integers(1, 3), st.data())
def test_conv(rank, data):
    group = data.draw(st.sampled_from([1, 1, 2, 3]))
    c, m = group * data.draw(st.integers(1, 5)), group * data.draw(st.integers(1, 9))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    strides = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    size = [data.draw(st.integers((k - 1) * d + 1, 12)) for k, d in zip(kernel, dilations, strict=True)]
    attributes: dict[str, Any] = {"group": group, "strides": strides, "dilations": dilations}
    mode = data.draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if mode == "NOTSET":
        attributes["pads"] = [data.draw(st.integers(0, 2)) for _ in range(2 * rank)]
    else:
        attributes["auto_pad"] = mode
    w = values((m, c // group, *kernel))
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    constants = {"w": w.astype(dtype)}
    if data.draw(st.booleans()):
        constants["b"] = values((m,)).astype(dtype)
    shape = (2, c, *size)
    declared = ["n", c, *(f"s{i}" for i in range(rank))] if data.draw(st.booleans()) else shape
    proto = model([node("Conv", ["x", *constants], ["y"], **attributes)], {"x": (dtype, declared)}, ["y"], constants)
    both(proto, {"x": values(shape, dtype)}, rtol=1e-4, atol=1e-4)
