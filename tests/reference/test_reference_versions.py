"""Earlier versions of operators, whose attributes and meanings differ from today's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from reference_harness import assert_close, run

_X = np.arange(1, 13, dtype=np.float32).reshape(1, 3, 2, 2)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic_with_a_broadcast_axis(op: str) -> None:
    b = np.array([1, 2, 4], np.float32)
    got = run(op, [_X, b], opset=6, broadcast=1, axis=1)
    assert_close(got, run(op, [_X, b.reshape(1, 3, 1, 1)]))


def test_arithmetic_without_broadcast_needs_equal_shapes() -> None:
    from accord.errors import ExecutionError

    with pytest.raises(ExecutionError, match="differ"):
        run("Add", [_X, np.ones(2, np.float32)], opset=6)


def test_gemm_broadcasts_only_when_asked() -> None:
    a, b, c = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), np.arange(4, dtype=np.float32)
    assert_close(run("Gemm", [a, b, c], opset=6, broadcast=1), np.tile(3 + c, (2, 1)))


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "want"),
    [
        ("Slice", 1, {"axes": [1], "starts": [1], "ends": [99]}, _X[:, 1:]),
        ("Squeeze", 1, {"axes": [0]}, _X[0]),
        ("Unsqueeze", 1, {"axes": [0, 5]}, _X[None, ..., None]),
        ("Reshape", 1, {"shape": [0, -1]}, _X.reshape(1, 12)),
        (
            "Pad",
            1,
            {"paddings": [0, 0, 0, 1, 0, 0, 0, 0], "value": 5.0},
            np.pad(_X, [(0, 0)] * 3 + [(1, 0)], constant_values=5),
        ),
        (
            "Pad",
            2,
            {"pads": [0, 0, 0, 0, 0, 0, 1, 0], "mode": "edge"},
            np.pad(_X, [(0, 0)] * 2 + [(0, 1), (0, 0)], "edge"),
        ),
        ("Clip", 6, {"min": 2.0, "max": 4.0}, np.clip(_X, 2, 4)),
        ("Cast", 1, {"to": "INT32"}, _X.astype(np.int32)),
        ("Cast", 6, {"to": TensorProto.INT32}, _X.astype(np.int32)),
        ("ReduceSum", 1, {"axes": [1, 2], "keepdims": 0}, _X.sum(axis=(1, 2))),
        ("Dropout", 6, {"is_test": 1}, _X),
        ("Dropout", 7, {"ratio": 0.9}, _X),
        ("Upsample", 7, {"scales": [1.0, 1.0, 2.0, 1.0]}, np.repeat(_X, 2, axis=2)),
        ("Upsample", 1, {"height_scale": 1.0, "width_scale": 2.0}, np.repeat(_X, 2, axis=3)),
        ("LpPool", 1, {"kernel_shape": [2, 2], "p": 1.0}, _X.sum(axis=(2, 3), keepdims=True)),
        ("Hardmax", 1, {}, (np.arange(12) == 11).reshape(_X.shape).astype(np.float32)),
    ],
)
def test_attributes_that_became_inputs(op: str, opset: int, attributes: dict[str, Any], want: Any) -> None:
    assert_close(run(op, [_X], opset=opset, **attributes), want)


def test_split_and_top_k_by_attributes() -> None:
    parts = run("Split", [_X], 2, opset=2, axis=1, split=[1, 2])
    assert [p.shape[1] for p in parts] == [1, 2]
    values, indices = run("TopK", [_X], 2, opset=1, axis=1, k=1)
    assert_close(values, _X[:, 2:])
    assert (indices == 2).all()


def test_batch_normalization_of_version_6() -> None:
    scale, bias, mean, variance = (np.full(3, v, np.float32) for v in (2, 1, 4, 9))
    got = run("BatchNormalization", [_X, scale, bias, mean, variance], opset=6, is_test=1, epsilon=0.0)
    assert_close(got, (_X - 4) / 3 * 2 + 1)
    whole = [np.full(12, v, np.float32) for v in (2, 1, 4, 9)]
    assert_close(run("BatchNormalization", [_X, *whole], opset=6, is_test=1, spatial=0, epsilon=0.0), got)
    y, new_mean, new_variance, saved_mean, saved_variance = run(
        "BatchNormalization", [_X, scale, bias, mean, variance], 5, opset=7, momentum=0.5, epsilon=0.0
    )
    batch = _X.mean(axis=(0, 2, 3))
    assert_close(saved_mean, batch)
    assert_close(saved_variance, _X.var(axis=(0, 2, 3)))
    assert_close(new_mean, (batch + 4) / 2)
    assert_close(new_variance, (_X.var(axis=(0, 2, 3)) + 9) / 2)
    assert_close(y.mean(axis=(0, 2, 3)), np.ones(3, np.float32))


def test_resize_of_versions_10_and_11() -> None:
    x = np.array([[1, 2]], np.float32)
    scales = np.array([1, 2], np.float32)
    assert run("Resize", [x, scales], opset=10).tolist() == [[1, 1, 2, 2]]
    linear = run("Resize", [x, scales], opset=10, mode="linear")
    assert linear.tolist() == [[1, 1.5, 2, 2]]
    empty = np.zeros(0, np.float32)
    got = run(
        "Resize",
        [x, empty, scales],
        opset=11,
        coordinate_transformation_mode="tf_half_pixel_for_nn",
        nearest_mode="floor",
    )
    assert got.tolist() == [[1, 1, 2, 2]]


def test_group_normalization_scaled_by_group() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    by_group = [np.array([1, 2], np.float32), np.array([0, 1], np.float32)]
    by_channel = [np.repeat(v, 2) for v in by_group]
    old = run("GroupNormalization", [x, *by_group], opset=18, num_groups=2)
    assert_close(old, run("GroupNormalization", [x, *by_channel], opset=21, num_groups=2))


def test_label_encoder_of_version_1() -> None:
    options: dict[str, Any] = {"domain": "ai.onnx.ml", "opset": 1, "classes_strings": ["a", "b"]}
    assert run("LabelEncoder", [np.array(["b", "z"], object)], **options).tolist() == [1, -1]
    assert run("LabelEncoder", [np.array([1, 7])], **options).tolist() == ["b", "_Unused"]
