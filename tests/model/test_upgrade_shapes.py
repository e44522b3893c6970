"""Operators of old versions that move data: parameters that were attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from upgrade_harness import check, floats, model, node, operators, run, upgrade

from accord.errors import UnsupportedError

SHAPES = ["known", "ranks", "nothing"]


@pytest.mark.parametrize("shapes", SHAPES)
def test_concat_default_axis(shapes: str) -> None:
    feeds = {"a": floats(2, 3, 4), "b": floats(2, 5, 4)}
    expected = np.concatenate(list(feeds.values()), axis=1)
    check(model(3, [node("Concat", "ab")], feeds, shapes=shapes), feeds, [expected])


@pytest.mark.parametrize("shape", [[6, 4], [0, -1], [24], [2, 0, 2, 2]])
def test_reshape_attribute(shape: list[int]) -> None:
    x = floats(2, 3, 4)
    target = [x.shape[i] if s == 0 else s for i, s in enumerate(shape)]
    proto = model(4, [node("Reshape", "x", shape=shape, consumed_inputs=[0])], {"x": x})
    check(proto, {"x": x}, [x.reshape(target)])


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("constant", [True, False])
def test_tile_axis(axis: int, shapes: str, constant: bool) -> None:
    x = floats(2, 3, 4)
    parameters = {"tiles": np.array(3, dtype=np.float32), "axis": np.array(axis, dtype=np.float32)}
    feeds = {"x": x} if constant else {"x": x, **parameters}
    proto = model(
        5, [node("Tile", ["x", "tiles", "axis"])], feeds, shapes=shapes, constants=parameters if constant else None
    )
    check(proto, feeds, [np.concatenate([x] * 3, axis=axis)])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_slice_attributes(data: st.DataObject) -> None:
    x = floats(4, 5, 6)
    axes = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
    bound = st.one_of(st.integers(-8, 8), st.just(2**31 - 1))
    starts = [data.draw(st.integers(-8, 8)) for _ in axes]
    ends = [data.draw(bound) for _ in axes]
    slices = [slice(None)] * 3
    for axis, start, end in zip(axes, starts, ends, strict=True):
        slices[axis] = slice(max(start + x.shape[axis], 0) if start < 0 else start, end)
    proto = model(9, [node("Slice", "x", axes=axes, starts=starts, ends=ends)], {"x": x})
    check(proto, {"x": x}, [x[tuple(slices)]])


def test_slice_without_axes() -> None:
    x = floats(4, 5, 6)
    check(model(1, [node("Slice", "x", starts=[1, 0], ends=[3, -1])], {"x": x}), {"x": x}, [x[1:3, 0:-1]])


@pytest.mark.parametrize("opset", [1, 2, 7, 11])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("sizes", [None, "attribute"])
def test_split(opset: int, axis: int | None, sizes: str | None) -> None:
    x = floats(4, 6)
    parts = [1, 3] if axis in (None, 0) else [2, 4]
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    if sizes:
        attributes["split"] = parts
        expected = np.split(x, [parts[0]], axis=axis or 0)
    else:
        expected = np.split(x, 2, axis=axis or 0)
    kinds = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
    check(model(opset, [node("Split", "x", "yz", **attributes)], {"x": x}, outputs=kinds), {"x": x}, expected)


def test_split_sizes_in_the_dtype_of_the_data() -> None:
    x = floats(4, 6)
    kinds = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
    feeds = {"x": x, "s": np.array([1, 5], dtype=np.float32)}
    check(model(1, [node("Split", "xs", "yz", axis=1)], feeds, outputs=kinds), feeds, np.split(x, [1], axis=1))


@pytest.mark.parametrize("opset", [13, 17])
def test_split_13_without_sizes(opset: int) -> None:
    x = floats(4, 6)
    kinds = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
    new = check(model(opset, [node("Split", "x", "yz", axis=1)], {"x": x}, outputs=kinds), {"x": x})
    assert [a.i for a in new.graph.node[0].attribute if a.name == "num_outputs"] == [2]


def test_split_13_with_sizes_stays() -> None:
    x = floats(4, 6)
    kinds = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
    sizes = {"s": np.array([1, 5])}
    proto = model(13, [node("Split", "xs", "yz", axis=1)], {"x": x}, outputs=kinds, constants=sizes)
    assert not upgrade(proto)[1].notes
    check(proto, {"x": x})


@pytest.mark.parametrize("opset", [1, 7, 11])
@pytest.mark.parametrize("shapes", ["known", "nothing"])
def test_squeeze_and_unsqueeze(opset: int, shapes: str) -> None:
    x = floats(1, 3, 1, 4)
    feeds = {"x": x}
    check(model(opset, [node("Squeeze", "x", axes=[0, 2])], feeds, shapes=shapes), feeds, [x[0, :, 0]])
    check(model(opset, [node("Unsqueeze", "x", axes=[5, 0])], feeds, shapes=shapes), feeds, [x[None, ..., None]])
    if shapes == "known":
        check(model(opset, [node("Squeeze", "x")], feeds), feeds, [x[0, :, 0]])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize(("opset", "name"), [(1, "paddings"), (2, "pads"), (10, "pads")])
def test_pad(opset: int, name: str, mode: str) -> None:
    x = floats(3, 4)
    pads = {name: [1, 2, 0, 1]}
    value = {"value": 0.5} if mode == "constant" else {}
    expected = np.pad(
        x, [(1, 0), (2, 1)], mode=mode, **({"constant_values": np.float32(0.5)} if mode == "constant" else {})
    )
    check(model(opset, [node("Pad", "x", mode=mode, **pads, **value)], {"x": x}), {"x": x}, [expected])


@pytest.mark.parametrize("opset", [1, 9])
def test_top_k_attribute(opset: int) -> None:
    x = floats(3, 5)
    kinds = {"y": TensorProto.FLOAT, "i": TensorProto.INT64}
    order = np.argsort(-x, axis=0)[:2]
    proto = model(opset, [node("TopK", "x", "yi", k=2, axis=0)], {"x": x}, outputs=kinds)
    check(proto, {"x": x}, [np.take_along_axis(x, order, 0), order.astype(np.int64)])


@pytest.mark.parametrize("opset", [9, 10])
def test_one_hot_negative_index_is_no_class(opset: int) -> None:
    indices = np.array([[0, -1], [2, 3]], dtype=np.int64)
    feeds = {"i": indices, "d": np.array([3], dtype=np.int64), "v": np.array([2, 5], dtype=np.float32)}
    expected = np.where(indices[..., None] == np.arange(3), np.float32(5), np.float32(2))
    check(model(opset, [node("OneHot", "idv")], feeds), feeds, [expected])


def test_one_hot_of_floats() -> None:
    indices = np.array([1, 0, -2], dtype=np.float32)
    feeds = {"i": indices, "d": np.array(3, dtype=np.float32), "v": np.array([0, 1], dtype=np.float32)}
    expected = (indices[None] == np.arange(3)[:, None]).astype(np.float32)
    check(model(9, [node("OneHot", "idv", axis=0)], feeds), feeds, [expected])


def test_one_hot_of_indices_that_are_not_negative_stays() -> None:
    depth, values = np.array(3), np.array([0, 1], dtype=np.float32)
    unsigned = {"i": np.array([1, 2], dtype=np.uint8), "d": depth, "v": values}
    assert not upgrade(model(9, [node("OneHot", "idv")], unsigned))[1].notes
    known = {"i": np.array([1, 2])}
    assert not upgrade(model(9, [node("OneHot", "idv")], {"d": depth, "v": values}, constants=known))[1].notes


@pytest.mark.parametrize("opset", [9, 10, 11])
def test_scatter(opset: int) -> None:
    x, i, u = floats(3, 3), np.array([[1, 0, 2], [0, 2, 1]]), floats(2, 3, seed=1)
    expected = x.copy()
    np.put_along_axis(expected, i, u, axis=0)
    feeds = {"x": x, "i": i, "u": u}
    new = check(model(opset, [node("Scatter", "xiu", axis=0)], feeds), feeds, [expected])
    assert operators(new) == ["ScatterElements"]


REDUCTIONS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
}


@pytest.mark.parametrize(
    ("op", "opset"), [(op, v) for op in REDUCTIONS for v in (1, 7, 11, 12, 17) if op != "ReduceSum" or v < 13]
)
@pytest.mark.parametrize("axes", [None, [1], [0, 2]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(op: str, opset: int, axes: list[int] | None, keepdims: int) -> None:
    x, function = floats(2, 3, 4), REDUCTIONS[op]
    attributes = {} if axes is None else {"axes": axes}
    expected = function(x, axis=None if axes is None else tuple(axes), keepdims=bool(keepdims))
    proto = model(opset, [node(op, "x", keepdims=keepdims, **attributes)], {"x": x})
    check(proto, {"x": x}, [np.asarray(expected)], rtol=1e-4)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"])
@pytest.mark.parametrize("opset", [7, 11, 13])
def test_composite_reductions(op: str, opset: int) -> None:
    x = np.abs(floats(2, 3, 4)) + np.float32(0.1)
    check(model(opset, [node(op, "x", axes=[-1] if opset >= 11 else [2])], {"x": x}), {"x": x})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("value_float", 1.5, TensorProto.FLOAT),
        ("value_floats", [1.5, 2.5], TensorProto.FLOAT),
        ("value_int", 3, TensorProto.INT64),
        ("value_ints", [3, 4], TensorProto.INT64),
        ("value_string", "a", TensorProto.STRING),
        ("value_strings", ["a", "b"], TensorProto.STRING),
        ("value", numpy_helper.from_array(np.array([[1, 2]], dtype=np.int32)), TensorProto.INT32),
    ],
)
def test_constant(name: str, value: Any, kind: int) -> None:
    x = floats(2)
    nodes = [node("Constant", [], ["c"], **{name: value}), node("Identity", ["c"]), node("Identity", ["x"], ["z"])]
    proto = model(12, nodes, {"x": x}, outputs={"y": kind, "z": TensorProto.FLOAT})
    new, _ = upgrade(proto)
    assert operators(new) == ["Identity", "Identity"]
    assert [i.name for i in new.graph.initializer] == ["c"]
    for got, expected in zip(run(new, {"x": x}), run(proto, {"x": x}), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_constant_as_output() -> None:
    proto = model(12, [node("Constant", [], value_floats=[1.0, 2.0])], {"x": floats(1)})
    assert run(upgrade(proto)[0], {"x": floats(1)})[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("name", "kind"), [("INT32", TensorProto.INT32), ("bool", TensorProto.BOOL)])
def test_cast_by_name(name: str, kind: int) -> None:
    x = floats(3) * 3
    expected = x.astype({TensorProto.INT32: np.int32, TensorProto.BOOL: bool}[kind])
    check(model(5, [node("Cast", "x", to=name)], {"x": x}, outputs={"y": kind}), {"x": x}, [expected])


def test_cast_to_an_unknown_name() -> None:
    with pytest.raises(UnsupportedError, match="FLOAT7"):
        upgrade(model(5, [node("Cast", "x", to="FLOAT7")], {"x": floats(3)}))
