"""Operators that early versions marked experimental."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from upgrade_harness import Array, assert_same, check, floats, model, node, operators, run, upgrade

from accord.errors import UnsupportedError

X = floats(2, 3, 6, 7)


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("Affine", {"alpha": 2.0, "beta": 0.5}, 2 * X + np.float32(0.5)),
        ("Affine", {}, X),
        ("Scale", {"scale": 0.5}, X / 2),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}, 2 * np.tanh(X / 2)),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}, 2 * np.log1p(np.exp(X / 2))),
        (
            "ImageScaler",
            {"scale": 2.0, "bias": [1.0, 2.0, 3.0]},
            2 * X + np.array([1, 2, 3], dtype=np.float32).reshape(3, 1, 1),
        ),
        ("ImageScaler", {"scale": 2.0}, 2 * X),
        ("Crop", {"border": [1, 2, 3, 0]}, X[:, :, 2:6, 1:4]),
        ("Crop", {"border": [1, 2, 0, 0], "scale": [3, 4]}, X[:, :, 2:5, 1:5]),
        ("ThresholdedRelu", {"alpha": 0.5}, np.where(X > 0.5, X, 0).astype(np.float32)),
    ],
)
def test_of_one_tensor(op: str, attributes: dict[str, Any], expected: Array) -> None:
    label = 21 if op == "ThresholdedRelu" else None
    check(model(7, [node(op, "x", **attributes)], {"x": X}), {"x": X}, [expected], label=label)


def test_image_scaler_in_another_dtype() -> None:
    x = X.astype(np.float64)
    proto = model(7, [node("ImageScaler", "x", bias=[1.0, 2.0, 3.0])], {"x": x}, outputs={"y": TensorProto.DOUBLE})
    check(proto, {"x": x}, [x + np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1)])


@pytest.mark.parametrize("across", [0, 1])
@pytest.mark.parametrize("variance", [0, 1])
def test_mean_variance_normalization(across: int, variance: int) -> None:
    axes = (0, 1, 2, 3) if across else (0, 2, 3)
    centered = X - X.mean(axes, keepdims=True)
    expected = centered / X.std(axes, keepdims=True) if variance else centered
    nodes = [node("MeanVarianceNormalization", "x", across_channels=across, normalize_variance=variance)]
    check(model(7, nodes, {"x": X}), {"x": X}, [expected], atol=1e-5)


def test_mean_variance_normalization_9() -> None:
    check(model(9, [node("MeanVarianceNormalization", "x")], {"x": X}), {"x": X}, atol=1e-5)


def test_dynamic_slice() -> None:
    feeds = {"x": X, "s": np.array([1, 2]), "e": np.array([2, 6]), "a": np.array([1, 3])}
    check(model(7, [node("DynamicSlice", "xsea")], feeds), feeds, [X[:, 1:2, :, 2:6]])


def test_fully_connected() -> None:
    feeds = {"x": floats(2, 3, 4), "w": floats(5, 12, seed=1), "c": floats(5, seed=2)}
    expected = feeds["x"].reshape(2, 12) @ feeds["w"].T + feeds["c"]
    check(model(1, [node("FC", "xwc")], feeds), feeds, [expected], atol=1e-5)


def test_embedding() -> None:
    table, indices = floats(4, 6), np.array([5, 0, 2])
    nodes = [node("Embedding", "i", input_dim=6, output_dim=4, weights=numpy_helper.from_array(table))]
    check(model(1, nodes, {"i": indices}), {"i": indices}, [table.T[indices]])


@pytest.mark.parametrize(
    ("attributes", "feeds", "shape"),
    [
        ({"shape": [2, 3]}, {}, (2, 3)),
        ({}, {"s": floats(2, 3)}, (2, 3)),
        ({"extra_shape": [4]}, {"s": floats(2, 3)}, (2, 3, 4)),
        ({"input_as_shape": 1}, {"s": np.array([2, 3], dtype=np.int64)}, (2, 3)),
        ({"input_as_shape": 1, "extra_shape": [4]}, {"s": np.array([2, 3], dtype=np.int32)}, (2, 3, 4)),
    ],
)
def test_fills(attributes: dict[str, Any], feeds: dict[str, Array], shape: tuple[int, ...]) -> None:
    data = feeds or {"unused": floats(1)}
    values = np.arange(np.prod(shape), dtype=np.float32)
    given = node("GivenTensorFill", list(feeds), values=values, **attributes)
    check(model(7, [given], data), data, [values.reshape(shape)])
    constant = node("ConstantFill", list(feeds), value=3.0, dtype=TensorProto.INT64, **attributes)
    check(model(7, [constant], data, outputs={"y": TensorProto.INT64}), data, [np.full(shape, 3, dtype=np.int64)])


def test_against_onnx_runtime() -> None:
    nodes = [
        node("ImageScaler", ["x"], ["a"], scale=0.5, bias=[0.1, 0.2, 0.3]),
        node("Crop", ["a"], ["b"], border=[1, 1, 1, 1]),
        node("ParametricSoftplus", ["b"], ["c"], alpha=0.5, beta=2.0),
        node("ScaledTanh", ["c"], ["d"], alpha=1.5, beta=0.5),
        node("Affine", ["d"], alpha=2.0, beta=1.0),
    ]
    proto = model(8, nodes, {"x": X})
    assert_same(run(upgrade(proto)[0], {"x": X}), run(proto, {"x": X}), rtol=1e-4)


@pytest.mark.parametrize(("op", "reason"), [("ATen", "PyTorch"), ("GRUUnit", "equations")])
def test_without_an_equivalent(op: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        upgrade(model(7, [node(op, "x")], {"x": X}))
    assert caught.value.op == op
    assert caught.value.remedy


def test_loop_index_tensor() -> None:
    feeds = {"x": X, "i": np.array(2)}
    new = check(model(1, [node("LoopIndexTensor", "xi", axis=1)], feeds), feeds, [X[:, 2]])
    assert operators(new)[-1] == "Gather"
