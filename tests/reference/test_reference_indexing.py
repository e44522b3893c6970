"""Indexing, scattering, ordering: against ONNX Runtime, and by NumPy where it has no rule or another one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_harness import assert_agrees, assert_close, normal, run

_SETTINGS = settings(max_examples=40, deadline=None)
_seeds = st.integers(0, 2**32 - 1)
_shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
_REDUCTIONS = ["none", "add", "mul", "max", "min"]


@_SETTINGS
@given(_shapes, st.data(), st.sampled_from([np.int32, np.int64]), _seeds)
def test_gather(shape: list[int], data: st.DataObject, dtype: Any, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    places = data.draw(st.lists(st.integers(0, 3), max_size=2))
    (x,) = normal(seed, shape)
    rng = np.random.default_rng(seed)
    assert_agrees("Gather", [x, rng.integers(-shape[axis], shape[axis], places).astype(dtype)], axis=axis)
    inner = [data.draw(st.integers(1, n)) for n in shape]
    inner[axis] = data.draw(st.integers(1, 5))
    indices = rng.integers(-shape[axis], shape[axis], inner).astype(dtype)
    assert_agrees("GatherElements", [x, indices], axis=axis)


@_SETTINGS
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data(), _seeds)
def test_gather_nd(shape: list[int], data: st.DataObject, seed: int) -> None:
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    outer = shape[:batch] + data.draw(st.lists(st.integers(1, 3), max_size=2))
    rng = np.random.default_rng(seed)
    indices = np.stack([rng.integers(-shape[batch + i], shape[batch + i], outer) for i in range(depth)], axis=-1)
    (x,) = normal(seed, shape)
    assert_agrees("GatherND", [x, indices], batch_dims=batch)


@_SETTINGS
@given(st.sampled_from(_REDUCTIONS), _shapes, st.data(), _seeds)
def test_scatter_elements(reduction: str, shape: list[int], data: st.DataObject, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    inner = tuple(data.draw(st.integers(1, n)) for n in shape)
    rng = np.random.default_rng(seed)
    x, updates = normal(seed, shape, inner)
    if reduction == "none":  # no place may be named twice
        indices = np.argsort(rng.random(inner), axis=axis)
    else:
        indices = rng.integers(-shape[axis], shape[axis], inner)
    assert_agrees("ScatterElements", [x, indices, updates], opset=18, axis=axis, reduction=reduction)


@_SETTINGS
@given(st.sampled_from(_REDUCTIONS), _shapes, st.data(), _seeds)
def test_scatter_nd(reduction: str, shape: list[int], data: st.DataObject, seed: int) -> None:
    depth = data.draw(st.integers(1, len(shape)))
    count = int(np.prod(shape[:depth]))
    rng = np.random.default_rng(seed)
    if reduction == "none":  # no place may be named twice
        places = rng.permutation(count)[: data.draw(st.integers(1, count))]
    else:
        places = rng.integers(0, count, data.draw(st.integers(1, 6)))
    indices = np.stack(np.unravel_index(places, shape[:depth]), axis=-1).astype(np.int64)
    indices -= np.array(shape[:depth]) * rng.integers(0, 2, indices.shape)  # counted from the end, half of them
    x, updates = normal(seed, shape, (len(places), *shape[depth:]))
    assert_agrees("ScatterND", [x, indices, updates], opset=18, reduction=reduction)


@_SETTINGS
@given(_shapes, st.data(), st.sampled_from([np.float32, np.float64, np.int32, np.int64]), _seeds)
def test_order(shape: list[int], data: st.DataObject, dtype: Any, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)  # many are equal
    k = np.array([data.draw(st.integers(0, shape[axis]))])
    assert_agrees("TopK", [x, k], 2, opset=11, axis=axis, largest=data.draw(st.integers(0, 1)))
    options = {name: data.draw(st.integers(0, 1)) for name in ("keepdims", "select_last_index")}
    assert_agrees(data.draw(st.sampled_from(["ArgMax", "ArgMin"])), [x], opset=13, axis=axis, **options)


@_SETTINGS
@given(_shapes, st.data(), st.sampled_from([np.float32, np.int32, np.int64]), _seeds)
def test_cumulative_sums(shape: list[int], data: st.DataObject, dtype: Any, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    options = {"exclusive": data.draw(st.integers(0, 1)), "reverse": data.draw(st.integers(0, 1))}
    x = np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)
    assert_agrees("CumSum", [x, np.array(axis)], opset=14, **options)


@_SETTINGS
@given(st.data(), _seeds)
def test_rearrangements(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, image, deep = normal(seed, (3, 4), (1, 2, 4, 6), (1, 8, 2, 3))
    ints = rng.integers(0, 4, (3, 4))
    choose, integers = (lambda *v: data.draw(st.sampled_from(v))), (lambda a, b: data.draw(st.integers(a, b)))
    assert_agrees("DepthToSpace", [deep], opset=13, blocksize=2, mode=choose("DCR", "CRD"))
    assert_agrees("SpaceToDepth", [image], opset=13, blocksize=2)
    assert_agrees("Compress", [x, rng.random(3) < 0.5], opset=11, axis=choose(None, 0, 1, -1))
    assert_agrees("ReverseSequence", [x, rng.integers(1, 4, 4)], time_axis=0, batch_axis=1)
    assert_agrees("NonZero", [ints.astype(choose(np.float32, np.int32, np.bool_))], opset=13)
    assert_agrees("Unique", [ints], 4, opset=11, sorted=integers(0, 1), axis=choose(None, 0, 1))
    assert_agrees("Tile", [x, np.array([integers(0, 3), integers(0, 3)])], opset=13)
    assert_agrees("Trilu", [x, np.array(integers(-4, 4))], opset=14, upper=integers(0, 1))
    assert_agrees("CenterCropPad", [x, np.array([integers(1, 6), integers(1, 6)])], opset=18)
    assert_agrees("OneHot", [ints - 2, np.array(3), np.array([2, 5], np.float32)], opset=11, axis=integers(-3, 2))
    assert_agrees("Split", [x], 2, opset=18, axis=integers(-1, 1), num_outputs=2)


@_SETTINGS
@given(st.data(), _seeds)
def test_non_maximum_suppression(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = data.draw(st.integers(1, 8))
    low = rng.integers(0, 8, (1, count, 2))
    boxes = np.concatenate([low, low + rng.integers(1, 6, (1, count, 2))], axis=-1).astype(np.float32)
    scores = rng.random((1, 2, count)).astype(np.float32)
    most, overlap = data.draw(st.integers(0, 5)), data.draw(st.sampled_from([0, 0.3, 0.7]))
    least = data.draw(st.sampled_from([None, np.array([0.4], np.float32)]))
    inputs = [boxes, scores, np.array([most]), np.array([overlap], np.float32), least]
    assert_agrees("NonMaxSuppression", inputs, opset=11, center_point_box=data.draw(st.integers(0, 1)))


# --- by NumPy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint64, np.float32])
def test_one_hot_of_narrow_indices_and_a_depth_beyond_them(dtype: Any) -> None:
    indices = np.array([0, 3, 100], dtype)
    got = run("OneHot", [indices, np.array(300), np.array([0, 1])], opset=11)
    assert got.shape == (3, 300)
    assert (got == (np.arange(300) == indices[:, None])).all()


def test_one_hot_from_the_end_and_out_of_range() -> None:
    got = run("OneHot", [np.array([-1, -4, 4, 2], np.int8), np.array(4), np.array([0, 1])], opset=11)
    assert got.tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    huge = np.array([2**64 - 1, 2**63], np.uint64)
    assert not run("OneHot", [huge, np.array(4), np.array([0, 1])], opset=11).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_nan_is_an_extreme_like_any_other(dtype: Any) -> None:
    x = np.array([[2, np.nan, 5, np.nan], [1, -np.inf, np.inf, 0]], dtype)
    axes = np.array([1])
    for op in ("ReduceMax", "ReduceMin"):
        got = run(op, [x, axes], opset=20, keepdims=0).astype(np.float64)
        assert np.isnan(got[0])
        assert got[1] == (np.inf if op == "ReduceMax" else -np.inf)
    for op, plain in (("ArgMax", 2), ("ArgMin", 1)):
        assert run(op, [x], opset=13, axis=1, keepdims=0).tolist() == [1, plain]
        assert run(op, [x], opset=13, axis=1, keepdims=0, select_last_index=1).tolist() == [3, plain]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_top_k_puts_nan_above_infinity(dtype: Any) -> None:
    x = np.array([1, np.nan, np.inf, np.nan, -np.inf, 1], dtype)
    opset = 24 if dtype == ml_dtypes.bfloat16 else 11
    k = np.array([6])
    assert run("TopK", [x, k], 2, opset=opset)[1].tolist() == [1, 3, 2, 0, 5, 4]
    assert run("TopK", [x, k], 2, opset=opset, largest=0)[1].tolist() == [4, 0, 5, 2, 1, 3]


def test_clip_keeps_nan_between_any_limits() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0], np.float32)
    got = run("Clip", [x, np.array(-1, np.float32), np.array(1, np.float32)])
    assert_close(got, np.array([np.nan, 1, -1, 0], np.float32))
    integers = run("Clip", [np.array([-200, 5, 200], np.int16), np.array(-100, np.int16), None])
    assert integers.tolist() == [-100, 5, 200]


def test_shifts_by_the_width_or_backwards() -> None:
    x, by = np.array([-8, 8, -1, 5], np.int8), np.array([-1, -1, 9, 2], np.int8)
    assert run("BitShift", [x, by], opset=28, direction="RIGHT").tolist() == [-1, 0, -1, 1]
    assert run("BitShift", [x, by], opset=28, direction="LEFT").tolist() == [0, 0, 0, 20]
    assert run("BitShift", [np.array([255], np.uint8), np.array([8], np.uint8)], direction="LEFT").tolist() == [0]


# --- empty tensors -------------------------------------------------------------------------------------------

_EMPTY = np.zeros((0, 3), np.float32)
_NO_PLACES = np.zeros((0,), np.int64)
_ONES = np.ones(8, np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "shapes"),
    [
        ("Relu", [_EMPTY], {}, [(0, 3)]),
        ("Add", [_EMPTY, np.ones(3, np.float32)], {}, [(0, 3)]),
        ("Add", [_EMPTY, np.ones((1, 1), np.float32)], {}, [(0, 3)]),
        ("MatMul", [_EMPTY, np.ones((3, 2), np.float32)], {}, [(0, 2)]),
        ("MatMul", [_EMPTY.T.copy(), _EMPTY], {}, [(3, 3)]),
        ("Gemm", [_EMPTY.T.copy(), _EMPTY, np.ones(3, np.float32)], {}, [(3, 3)]),
        ("Conv", [np.zeros((0, 2, 4), np.float32), np.ones((5, 2, 3), np.float32)], {}, [(0, 5, 2)]),
        ("ConvTranspose", [np.zeros((0, 2, 4), np.float32), np.ones((2, 5, 3), np.float32)], {}, [(0, 5, 6)]),
        ("MaxPool", [np.zeros((0, 2, 4), np.float32)], {"kernel_shape": [2]}, [(0, 2, 3), (0, 2, 3)]),
        ("AveragePool", [np.zeros((0, 2, 4), np.float32)], {"kernel_shape": [2]}, [(0, 2, 3)]),
        ("GlobalAveragePool", [np.zeros((0, 2, 4), np.float32)], {}, [(0, 2, 1)]),
        ("Softmax", [_EMPTY], {"axis": 0}, [(0, 3)]),
        ("LogSoftmax", [_EMPTY], {}, [(0, 3)]),
        ("Hardmax", [_EMPTY], {}, [(0, 3)]),
        ("LayerNormalization", [_EMPTY, np.ones(3, np.float32)], {}, [(0, 3), (0, 1), (0, 1)]),
        ("InstanceNormalization", [np.zeros((0, 2, 4), np.float32), *[np.ones(2, np.float32)] * 2], {}, [(0, 2, 4)]),
        ("BatchNormalization", [_EMPTY, *[np.ones(3, np.float32)] * 4], {}, [(0, 3)]),
        ("Concat", [_EMPTY, np.ones((2, 3), np.float32)], {"axis": 0}, [(2, 3)]),
        ("Split", [_EMPTY], {"axis": 0}, [(0, 3), (0, 3)]),
        ("Slice", [_EMPTY, np.array([0]), np.array([-9]), np.array([0]), np.array([-1])], {}, [(0, 3)]),
        ("Reshape", [_EMPTY, np.array([0, -1])], {"allowzero": 0}, [None]),
        ("Reshape", [_EMPTY, np.array([3, 0])], {"allowzero": 1}, [(3, 0)]),
        ("Transpose", [_EMPTY], {}, [(3, 0)]),
        ("Expand", [np.ones((1, 3), np.float32), np.array([0, 3])], {}, [(0, 3)]),
        ("Tile", [_EMPTY, np.array([2, 2])], {}, [(0, 6)]),
        ("Gather", [np.ones((2, 3), np.float32), _NO_PLACES], {}, [(0, 3)]),
        ("GatherND", [np.ones((2, 3), np.float32), np.zeros((0, 1), np.int64)], {}, [(0, 3)]),
        ("ScatterND", [np.ones((2, 3), np.float32), np.zeros((0, 1), np.int64), _EMPTY], {}, [(2, 3)]),
        ("ScatterElements", [_EMPTY, np.zeros((0, 3), np.int64), _EMPTY], {}, [(0, 3)]),
        ("TopK", [_EMPTY, np.array([0])], {"axis": 0}, [(0, 3), (0, 3)]),
        ("TopK", [_EMPTY, np.array([2])], {"axis": 1}, [(0, 2), (0, 2)]),
        ("NonZero", [_EMPTY], {}, [(2, 0)]),
        ("Unique", [_EMPTY], {}, [(0,), (0,), (0,), (0,)]),
        ("CumSum", [_EMPTY, np.array(0)], {"exclusive": 1}, [(0, 3)]),
        ("Pad", [_EMPTY, np.array([2, 0, 0, 0])], {}, [(2, 3)]),
        ("Resize", [np.zeros((0, 1, 4), np.float32), None, np.array([1, 1, 2], np.float32)], {}, [(0, 1, 8)]),
        ("OneHot", [_NO_PLACES, np.array(4), np.array([0.0, 1.0])], {}, [(0, 4)]),
        ("Einsum", [_EMPTY], {"equation": "ij->j"}, [(3,)]),
        ("LSTM", [np.zeros((0, 2, 3), np.float32), *normal(0, (1, 8, 3), (1, 8, 2))], {}, [(0, 1, 2, 2)]),
        ("GroupNormalization", [np.zeros((0, 8, 3), np.float32), _ONES, _ONES], {"num_groups": 2}, [(0, 8, 3)]),
        ("GlobalMaxPool", [np.zeros((2, 3, 0), np.float32)], {}, [(2, 3, 1)]),
        ("DeformConv", [np.zeros((0, 1, 3), np.float32), *normal(0, (1, 1, 2), (0, 2, 2))], {}, [(0, 1, 2)]),
        ("QuantizeLinear", [_EMPTY, np.array(0.5, np.float32)], {}, [(0, 3)]),
        ("Range", [np.array(3), np.array(3), np.array(1)], {}, [(0,)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_empty_tensors(op: str, inputs: list[Any], attributes: dict[str, Any], shapes: list[Any]) -> None:
    if shapes == [None]:  # what -1 stands for cannot be told
        from accord.errors import ExecutionError

        with pytest.raises(ExecutionError, match="do not fit"):
            run(op, inputs, **attributes)
        return
    found = run(op, inputs, len(shapes), **attributes)
    assert [value.shape for value in (found if len(shapes) > 1 else [found])] == shapes


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_there_is_no_extreme_of_nothing(op: str) -> None:
    from accord.errors import ExecutionError

    with pytest.raises(ExecutionError, match="empty"):
        run(op, [_EMPTY], axis=0)
    assert run(op, [_EMPTY], axis=1).shape == (0, 1)
