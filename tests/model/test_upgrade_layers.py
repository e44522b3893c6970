"""Softmax, normalisation, dropout, pooling, recurrent and sampling operators of old versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from upgrade_harness import Array, check, floats, model, node, operators, run, upgrade

SHAPES = ["known", "ranks", "nothing"]


def flat_softmax(op: str, x: Array, axis: int) -> Array:
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1) if x.size else x.reshape(0, 1)
    shifted = flat - flat.max(axis=1, keepdims=True, initial=-np.inf)
    if op == "Hardmax":
        result = (np.arange(flat.shape[1]) == flat.argmax(axis=1)[:, None]).astype(np.float32)
    elif op == "Softmax":
        result = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    else:
        result = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result.reshape(x.shape)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    op=st.sampled_from(["Softmax", "LogSoftmax", "Hardmax"]),
    opset=st.sampled_from([1, 7, 11, 12]),
    shapes=st.sampled_from(SHAPES),
)
def test_softmax(data: st.DataObject, op: str, opset: int, shapes: str) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    written = axis - len(shape) if opset >= 11 and data.draw(st.booleans()) else axis
    x = floats(*shape)
    check(model(opset, [node(op, "x", axis=written)], {"x": x}, shapes=shapes), {"x": x}, [flat_softmax(op, x, axis)])


@pytest.mark.parametrize(
    ("shape", "attributes", "built"),
    [
        ((2, 5), {}, ["Softmax"]),
        ((2, 5, 1, 1), {}, ["Softmax"]),
        ((2, 3, 4), {"axis": 2}, ["Softmax"]),
        ((2, 3, 4), {}, ["Flatten", "Softmax", "Shape", "Reshape"]),
    ],
)
def test_softmax_stays_one_node_where_it_can(
    shape: tuple[int, ...], attributes: dict[str, int], built: list[str]
) -> None:
    x = floats(*shape)
    new = check(model(11, [node("Softmax", "x", **attributes)], {"x": x}), {"x": x})
    assert operators(new) == built


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0)])
def test_softmax_of_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, dtype=np.float32)
    check(model(11, [node("Softmax", "x")], {"x": x}, shapes="ranks"), {"x": x}, [x])


# BatchNormalization -------------------------------------------------------------------------------------------------


def batch_parameters(*shape: int) -> dict[str, Array]:
    names = {"s": floats(*shape, seed=1), "c": floats(*shape, seed=2), "m": floats(*shape, seed=3)}
    return {**names, "v": np.abs(floats(*shape, seed=4)) + np.float32(0.5)}


def normalised(x: Array, p: dict[str, Array], epsilon: float = 1e-5) -> Array:
    return (x - p["m"]) / np.sqrt(p["v"] + np.float32(epsilon)) * p["s"] + p["c"]


@pytest.mark.parametrize(
    ("opset", "attributes"),
    [
        (1, {"consumed_inputs": [0, 0, 0, 1, 1], "is_test": 1}),
        (6, {"is_test": 1, "spatial": 1, "epsilon": 1e-3}),
        (6, {}),
        (7, {"spatial": 1}),
        (9, {"momentum": 0.5}),
    ],
)
def test_batch_normalization(opset: int, attributes: dict[str, Any]) -> None:
    x, p = floats(2, 3, 4, 5), batch_parameters(3)
    columns = {k: a.reshape(3, 1, 1) for k, a in p.items()}
    feeds = {"x": x, **p}
    new = check(
        model(opset, [node("BatchNormalization", "xscmv", **attributes)], feeds),
        feeds,
        [normalised(x, columns, attributes.get("epsilon", 1e-5))],
        atol=1e-5,
    )
    assert operators(new) == ["BatchNormalization"]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("opset", [6, 7, 8])
def test_batch_normalization_per_element(opset: int, shapes: str) -> None:
    x, p = floats(2, 3, 4, 5), batch_parameters(3, 4, 5)
    feeds = {"x": x, **p}
    proto = model(opset, [node("BatchNormalization", "xscmv", spatial=0)], feeds, shapes=shapes)
    check(proto, feeds, [normalised(x, p)], atol=1e-5)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("opset", [1, 6, 7, 9, 13])
@pytest.mark.parametrize("spatial", [1, 0])
def test_batch_normalization_in_training(opset: int, spatial: int, shapes: str) -> None:
    if opset >= 9:
        spatial = 1
    x = floats(4, 3, 5)
    p = batch_parameters(3) if spatial else batch_parameters(3, 5)
    feeds = {"x": x, **p}
    attributes = {} if opset >= 9 else {"spatial": spatial}
    outputs = dict.fromkeys(("y", "rm", "rv", "sm", "sv"), TensorProto.FLOAT)
    nodes = [node("BatchNormalization", "xscmv", list(outputs), momentum=0.75, **attributes)]
    axes = (0, 2) if spatial else (0,)
    mean, variance = x.mean(axes), x.var(axes)
    column = (lambda a: a.reshape(3, 1)) if spatial else (lambda a: a)
    batch = {"m": column(mean), "v": column(variance), "s": column(p["s"]), "c": column(p["c"])}
    new, _ = upgrade(model(opset, nodes, feeds, outputs=outputs, shapes=shapes))
    kept, fresh = np.float32(0.75), np.float32(0.25)
    expected = [
        normalised(x, batch),
        p["m"] * kept + mean * fresh,
        p["v"] * kept + variance * fresh,
        mean,
        variance,
    ]
    # ONNX Runtime has no training kernel for all versions; the same composition is computed there step by step.
    for got, want in zip(run_training(new, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_batch_normalization_with_outputs_that_a_test_does_not_fill() -> None:
    x, p = floats(2, 3, 4), batch_parameters(3)
    outputs = dict.fromkeys(("y", "rm", "rv", "sm", "sv"), TensorProto.FLOAT)
    nodes = [node("BatchNormalization", "xscmv", list(outputs), is_test=1)]
    expected = normalised(x, {k: a.reshape(3, 1) for k, a in p.items()})
    feeds = {"x": x, **p}
    check(model(6, nodes, feeds, outputs=outputs), feeds, [expected, p["m"], p["v"], p["m"], p["v"]], atol=1e-5)


def run_training(proto: Any, feeds: dict[str, Array]) -> list[Array]:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(proto).run(None, feeds)


def test_batch_normalization_of_numbers_in_training() -> None:
    x, p = floats(6), batch_parameters(1)
    outputs = dict.fromkeys(("y", "rm", "rv", "sm", "sv"), TensorProto.FLOAT)
    new, _ = upgrade(model(9, [node("BatchNormalization", "xscmv", list(outputs))], {"x": x, **p}, outputs=outputs))
    # One channel, which no evaluator takes for BatchNormalization itself.
    del new.graph.output[:3]
    new.graph.node.remove(next(n for n in new.graph.node if n.op_type == "BatchNormalization"))
    mean, variance = run(new, {"x": x, **p})
    np.testing.assert_allclose([mean, variance], [[x.mean()], [x.var()]], rtol=1e-5)


# Dropout, GroupNormalization ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opset", "attributes"),
    [(1, {"is_test": 1, "consumed_inputs": [0]}), (6, {"is_test": 1}), (7, {"ratio": 0.9}), (11, {})],
)
def test_dropout(opset: int, attributes: dict[str, Any]) -> None:
    x = floats(3, 4)
    assert operators(check(model(opset, [node("Dropout", "x", **attributes)], {"x": x}), {"x": x}, [x])) == ["Dropout"]


@pytest.mark.parametrize(("opset", "kind"), [(6, TensorProto.FLOAT), (9, TensorProto.FLOAT), (10, TensorProto.BOOL)])
def test_dropout_mask(opset: int, kind: int) -> None:
    x = floats(3, 4)
    attributes = {"is_test": 1} if opset < 7 else {}
    kinds = {"y": TensorProto.FLOAT, "mask": kind}
    proto = model(opset, [node("Dropout", "x", ["y", "mask"], **attributes)], {"x": x}, outputs=kinds)
    check(proto, {"x": x}, [x, np.ones((3, 4), dtype=bool if kind == TensorProto.BOOL else np.float32)])


def test_dropout_in_training() -> None:
    x = np.ones((100, 100), dtype=np.float32)
    new, _ = upgrade(model(6, [node("Dropout", "x", ratio=0.25)], {"x": x}))
    y = run(new, {"x": x})[0]
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert 0.2 < (y == 0).mean() < 0.3


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_group_normalization(shapes: str, dtype: type) -> None:
    x = floats(2, 6, 3, 4).astype(dtype)
    feeds = {"x": x, "s": floats(2, seed=1).astype(dtype), "c": floats(2, seed=2).astype(dtype)}
    groups = x.reshape(2, 2, -1)
    mean, variance = groups.mean(2, keepdims=True), groups.var(2, keepdims=True)
    per_group = (groups - mean) / np.sqrt(variance + np.float32(1e-3)) * feeds["s"][:, None] + feeds["c"][:, None]
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.DOUBLE
    nodes = [node("GroupNormalization", "xsc", num_groups=2, epsilon=1e-3)]
    proto = model(18, nodes, feeds, outputs={"y": kind}, shapes=shapes)
    new, _ = upgrade(proto)
    # float64 at float64's precision: float32 would be off by 1e-7.
    tolerance = 1e-5 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(run(new, feeds)[0], per_group.reshape(x.shape).astype(dtype), tolerance, tolerance)


# pooling ------------------------------------------------------------------------------------------------------------


def windows(x: Array, kernel: int, stride: int, pad: int) -> Array:
    padded = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    return np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))[:, :, ::stride, ::stride]


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 2.5])
def test_lp_pool(p: float) -> None:
    x = floats(1, 2, 6, 6)
    expected = (np.abs(windows(x, 3, 2, 1)) ** p).sum((-2, -1)) ** (1 / p)
    proto = model(1, [node("LpPool", "x", p=p, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])], {"x": x})
    new = check(proto, {"x": x}, [expected.astype(np.float32)], rtol=1e-4)
    assert (operators(new) == ["LpPool"]) == p.is_integer()


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("p", [None, 1.0, 2.5])
def test_global_lp_pool(p: float | None, shapes: str) -> None:
    x = floats(2, 3, 4, 5)
    power = 2.0 if p is None else p
    expected = (np.abs(x) ** power).sum((2, 3), keepdims=True) ** (1 / power)
    proto = model(1, [node("GlobalLpPool", "x", **({} if p is None else {"p": p}))], {"x": x}, shapes=shapes)
    check(proto, {"x": x}, [expected.astype(np.float32)], label=21, rtol=1e-4)


def test_roi_align_without_half_pixel() -> None:
    feeds = {
        "x": floats(1, 2, 8, 8),
        "r": np.array([[0.5, 1, 6, 7]], dtype=np.float32),
        "i": np.array([0], dtype=np.int64),
    }
    proto = model(10, [node("RoiAlign", "xri", output_height=2, output_width=3, sampling_ratio=2)], feeds)
    check(proto, feeds, label=21)


# recurrent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("direction", [None, "forward", "reverse", "bidirectional"])
def test_recurrent(op: str, gates: int, direction: str | None) -> None:
    count = 2 if direction == "bidirectional" else 1
    feeds = {"x": floats(3, 2, 4), "w": floats(count, gates * 5, 4, seed=1), "r": floats(count, gates * 5, 5, seed=2)}
    attributes = {} if direction is None else {"direction": direction}
    kinds = {"y": TensorProto.FLOAT, "h": TensorProto.FLOAT}
    old = model(6, [node(op, "xwr", list(kinds), hidden_size=5, output_sequence=1, **attributes)], feeds, outputs=kinds)
    same = model(7, [node(op, "xwr", list(kinds), hidden_size=5, **attributes)], feeds, outputs=kinds)
    check(old, feeds, run(same, feeds))


def test_gru_with_the_misspelt_default() -> None:
    feeds = {"x": floats(3, 2, 4), "w": floats(1, 15, 4, seed=1), "r": floats(1, 15, 5, seed=2)}
    old = model(1, [node("GRU", "xwr", ["", "y"], hidden_size=5, direction="foward")], feeds)
    check(old, feeds, run(model(7, [node("GRU", "xwr", ["", "y"], hidden_size=5)], feeds), feeds))


# sampling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, "bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str | None) -> None:
    feeds = {"x": floats(1, 2, 5, 6), "g": np.tanh(floats(1, 3, 4, 2, seed=1))}
    attributes = {} if mode is None else {"mode": mode}
    check(model(16, [node("GridSample", "xg", **attributes)], feeds), feeds, rtol=1e-4)


@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 1, "inverse": 1}, {"axis": -2, "onesided": 1}])
@pytest.mark.parametrize("length", [None, 4])
def test_dft(attributes: dict[str, int], length: int | None) -> None:
    x = floats(5, 6, 1) if not attributes.get("inverse") else floats(5, 6, 2)
    constants = {} if length is None else {"n": np.array(length)}
    proto = model(17, [node("DFT", ["x", *constants], **attributes)], {"x": x}, constants=constants)
    check(proto, {"x": x}, atol=1e-4)
