"""Elementwise operators, Clip, PRelu, Selu and Gemm of old versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from upgrade_harness import check, floats, model, node, operators, upgrade

SHAPES = ["known", "ranks", "nothing"]

FUNCTIONS = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
}
LOGICAL = {"And", "Or", "Xor"}
COMPARISONS = {"Equal", "Greater", "Less"}


def operands(op: str, left: tuple[int, ...], right: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if op in LOGICAL:
        return rng.integers(0, 2, left).astype(bool), rng.integers(0, 2, right).astype(bool)
    if op == "Equal":
        return rng.integers(0, 3, left).astype(np.int32), rng.integers(0, 3, right).astype(np.int32)
    low = np.float32(0.5)
    return rng.random(left, np.float32) + low, np.asarray(rng.random(right, np.float32) + low)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_broadcast_with_axis(op: str, shapes: str) -> None:
    a, c = operands(op, (2, 3, 4, 5), (3, 4))
    feeds = {"a": a, "c": c}
    kind = TensorProto.BOOL if op in LOGICAL | COMPARISONS else TensorProto.FLOAT
    proto = model(6, [node(op, "ac", broadcast=1, axis=1)], feeds, outputs={"y": kind}, shapes=shapes)
    expected = FUNCTIONS[op](a, c.reshape(3, 4, 1))
    new = check(proto, feeds, [expected])
    if shapes != "nothing":
        assert operators(new) == ["Unsqueeze", op]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), shapes=st.sampled_from(SHAPES))
def test_broadcast_any_axis(data: st.DataObject, shapes: str) -> None:
    left = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    axis = data.draw(st.integers(0, len(left) - 1))
    length = data.draw(st.integers(0, len(left) - axis))
    negative = length > 0 and axis != len(left) - 1 and data.draw(st.booleans())
    a, c = operands("Add", left, left[axis : axis + length])
    proto = model(
        6,
        [node("Add", "ac", broadcast=1, axis=axis - len(left) if negative else axis)],
        {"a": a, "c": c},
        shapes=shapes,
    )
    expected = a + c.reshape(c.shape + (1,) * (len(left) - axis - length))
    check(proto, {"a": a, "c": c}, [expected])


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(("right", "axis"), [((5,), None), ((4, 5), None), ((), None), ((1, 1), None), ((4, 5), -1)])
def test_broadcast_of_last_axes(right: tuple[int, ...], axis: int | None, shapes: str) -> None:
    a, c = operands("Sub", (2, 3, 4, 5), right)
    attributes = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    new = check(model(6, [node("Sub", "ac", **attributes)], {"a": a, "c": c}, shapes=shapes), {"a": a, "c": c}, [a - c])
    if shapes != "nothing":
        assert operators(new) == ["Sub"]


def test_one_element_with_axis() -> None:
    a, c = operands("Mul", (2, 3, 4), (1,))
    check(model(6, [node("Mul", "ac", broadcast=1, axis=2)], {"a": a, "c": c}), {"a": a, "c": c}, [a * c])


UNARY = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Exp": np.exp,
    "Floor": np.floor,
    "Neg": np.negative,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Elu": lambda x: np.where(x < 0, np.exp(x) - 1, x),
    "LeakyRelu": lambda x: np.where(x < 0, np.float32(0.01) * x, x),
    "HardSigmoid": lambda x: np.clip(np.float32(0.2) * x + np.float32(0.5), 0, 1),
    "Selu": lambda x: np.float32(1.0507) * np.where(x > 0, x, np.float32(1.6732) * (np.exp(x) - 1)),
}


@pytest.mark.parametrize("op", UNARY)
def test_unary_with_consumed_inputs(op: str) -> None:
    x = floats(3, 4)
    new = check(model(1, [node(op, "x", consumed_inputs=[0])], {"x": x}), {"x": x}, [UNARY[op](x)])
    assert all(a.name != "consumed_inputs" for a in new.graph.node[0].attribute)


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_positive_with_consumed_inputs(op: str) -> None:
    x = np.abs(floats(3, 4)) + np.float32(0.5)
    function = {"Log": np.log, "Sqrt": np.sqrt, "Reciprocal": lambda v: 1 / v}[op]
    check(model(1, [node(op, "x", consumed_inputs=[0])], {"x": x}), {"x": x}, [function(x)])


@pytest.mark.parametrize("op", ["Sum", "Max", "Min", "Mean"])
def test_variadic_with_consumed_inputs(op: str) -> None:
    feeds = {name: floats(2, 3, seed=i) for i, name in enumerate("abc")}
    stacked = np.stack(list(feeds.values()))
    expected = {"Sum": stacked.sum(0), "Max": stacked.max(0), "Min": stacked.min(0), "Mean": stacked.mean(0)}[op]
    check(model(1, [node(op, "abc", consumed_inputs=[0, 0, 0])], feeds), feeds, [expected])


def test_instance_normalization_with_consumed_inputs() -> None:
    feeds = {"x": floats(2, 3, 4, 5), "s": floats(3, seed=1), "c": floats(3, seed=2)}
    x = feeds["x"]
    mean, variance = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 1e-3) * feeds["s"].reshape(3, 1, 1) + feeds["c"].reshape(3, 1, 1)
    proto = model(1, [node("InstanceNormalization", "xsc", consumed_inputs=[0], epsilon=1e-3)], feeds)
    check(proto, feeds, [expected], atol=1e-5)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(
    ("x_shape", "slope_shape"),
    [((2, 3, 4, 5), (3,)), ((2, 3, 4), (1,)), ((2, 3), (3,)), ((2, 3, 4), (3, 1)), ((2, 3, 4), ()), ((3,), (3,))],
)
def test_prelu(x_shape: tuple[int, ...], slope_shape: tuple[int, ...], shapes: str) -> None:
    x, slope = floats(*x_shape), floats(*slope_shape, seed=1)
    aligned = slope.reshape(3, *[1] * (len(x_shape) - 2)) if slope_shape == (3,) and len(x_shape) > 2 else slope
    feeds = {"x": x, "s": slope}
    proto = model(6, [node("PRelu", "xs", consumed_inputs=[0, 0])], feeds, shapes=shapes)
    check(proto, feeds, [np.where(x < 0, x * aligned, x)])


@pytest.mark.parametrize("opset", [6, 7, 10])
@pytest.mark.parametrize("bounds", [{}, {"min": -0.5}, {"max": 0.25}, {"min": -0.5, "max": 0.25}])
def test_clip(opset: int, bounds: dict[str, float]) -> None:
    x = floats(3, 4)
    expected = np.clip(x, bounds.get("min", -np.inf), bounds.get("max", np.inf))
    new = check(model(opset, [node("Clip", "x", **bounds)], {"x": x}), {"x": x}, [expected])
    assert operators(new) == ["Clip"]
    assert len(new.graph.initializer) == len(bounds)


def test_clip_of_unknown_bounds_has_no_bound() -> None:
    x = floats(3, 4)
    limits = {"min": float(np.finfo(np.float32).min), "max": float(np.finfo(np.float32).max)}
    assert not upgrade(model(10, [node("Clip", "x", **limits)], {"x": x}))[0].graph.initializer


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_clip_bound_takes_the_dtype_of_the_data(dtype: type) -> None:
    x = floats(3, 4).astype(dtype)
    kind = {np.float16: TensorProto.FLOAT16, np.float64: TensorProto.DOUBLE}[dtype]
    proto = model(10, [node("Clip", "x", min=-0.5, max=1e30)], {"x": x}, outputs={"y": kind})
    check(proto, {"x": x}, [np.maximum(x, dtype(-0.5))])


@pytest.mark.parametrize("c_shape", [(3, 4), (4,), (1,), (3, 1)])
def test_gemm(c_shape: tuple[int, ...]) -> None:
    feeds = {"a": floats(5, 3), "b": floats(4, 5, seed=1), "c": floats(*c_shape, seed=2)}
    nodes = [node("Gemm", "abc", transA=1, transB=1, alpha=0.5, beta=2.0, broadcast=1)]
    expected = np.float32(0.5) * (feeds["a"].T @ feeds["b"].T) + np.float32(2) * feeds["c"]
    check(model(6, nodes, feeds), feeds, [expected], atol=1e-5)
