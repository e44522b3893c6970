"""Shape rules on symbolic sizes, and the symbolic content of shape arithmetic."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from shapes_harness import (
    BOOL,
    F16,
    F32,
    I32,
    I64,
    U8,
    H,
    N,
    S,
    W,
    content,
    f32,
    floats,
    i64,
    infer,
    infer_all,
    ints,
    scalar,
)

from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.facts import Fact, OptionalFact, SequenceFact, TensorFact, constant_fact

UNKNOWN = TensorFact(F32, None)

#: op, inputs, attributes, expected shape
SHAPES: dict[str, tuple[str, list[Fact | None], dict[str, Any], tuple[DimLike, ...] | None]] = {
    "broadcast": ("Add", [f32(N, 1, 4), f32(S, 1)], {}, (N, S, 4)),
    "broadcast symbols": ("Mul", [f32(N), f32(S)], {}, (D.broadcast(N, S),)),
    "broadcast unknown": ("Mul", [f32(N), UNKNOWN], {}, None),
    "where": ("Where", [TensorFact(BOOL, (N, 1)), f32(1, 3), f32()], {}, (N, 3)),
    "matmul": ("MatMul", [f32(N, 1, S, 4), f32(8, 4, 5)], {}, (N, 8, S, 5)),
    "matmul vector": ("MatMul", [f32(4), f32(N, 4, 5)], {}, (N, 5)),
    "matmul two vectors": ("MatMul", [f32(4), f32(4)], {}, ()),
    "gemm": ("Gemm", [f32(4, N), f32(5, 4)], {"transA": 1, "transB": 1}, (N, 5)),
    "einsum": ("Einsum", [f32(N, S, 4), f32(N, H, 4)], {"equation": "b i d, b j d -> b i j"}, (N, S, H)),
    "einsum implicit": ("Einsum", [f32(N, S), f32(S, H)], {"equation": "ij,jk"}, (N, H)),
    "einsum dots": ("Einsum", [f32(1, 2, S), f32(2, S, 5)], {"equation": "...ij,...jk->...ik"}, (2, 2, 5)),
    "conv": ("Conv", [f32(N, 3, H, W), f32(8, 3, 3, 3)], {"pads": [1] * 4}, (N, 8, H, W)),
    "conv dilated": ("Conv", [f32(N, 3, H), f32(8, 3, 3)], {"dilations": [2]}, (N, 8, H - 4)),
    "conv open kernel": ("Conv", [f32(N, 3, H), f32(8, 3, S)], {}, (N, 8, H - S + 1)),
    "transpose": ("Transpose", [f32(N, S, 4)], {"perm": [0, 2, 1]}, (N, 4, S)),
    "transpose reversed": ("Transpose", [f32(N, S, 4)], {}, (4, S, N)),
    "flatten": ("Flatten", [f32(N, S, 4)], {"axis": -1}, (N * S, 4)),
    "squeeze": ("Squeeze", [f32(N, 1, 1), ints(-1)], {}, (N, 1)),
    "squeeze all": ("Squeeze", [f32(3, 1, 1)], {}, (3,)),
    "squeeze open": ("Squeeze", [f32(N, 1)], {}, None),
    "squeeze attribute": ("Squeeze", [f32(N, 1)], {"axes": [1], "opset": 11}, (N,)),
    "unsqueeze": ("Unsqueeze", [f32(N, 4), ints(0, -1)], {}, (1, N, 4, 1)),
    "concat": ("Concat", [f32(N, 2), f32(N, S), f32(N, 3)], {"axis": 1}, (N, S + 5)),
    "concat unknown": ("Concat", [f32(N, 2), UNKNOWN], {"axis": 0}, (D.symbol("o0.0"), 2)),
    "gather": ("Gather", [f32(N, 4, S), i64(2, H)], {"axis": 1}, (N, 2, H, S)),
    "gather nd": ("GatherND", [f32(N, S, 4), i64(N, 7, 1)], {"batch_dims": 1}, (N, 7, 4)),
    "expand": ("Expand", [f32(N, 1), ints(3, 1, S)], {}, (3, N, S)),
    "expand unknown": ("Expand", [f32(4), i64(2)], {}, (D.symbol("o0.0"), 4)),
    "tile": ("Tile", [f32(N, 2), ints(2, S)], {}, (2 * N, 2 * S)),
    "pad": ("Pad", [f32(N, H), ints(0, 1, 0, S)], {}, (N, H + S + 1)),
    "pad axes": ("Pad", [f32(N, H), ints(1, 2), None, ints(-1)], {}, (N, H + 3)),
    "depth to space": ("DepthToSpace", [f32(N, 8, H, W)], {"blocksize": 2}, (N, 2, 2 * H, 2 * W)),
    "range": ("Range", [scalar(0), scalar(S), scalar(3)], {}, (D.floordiv(S + 2, 3),)),
    "constant of shape": ("ConstantOfShape", [ints(N, 3)], {}, (N, 3)),
    "one hot": ("OneHot", [i64(N, S), scalar(7), f32(2)], {"axis": 1}, (N, 7, S)),
    "reduce": ("ReduceMean", [f32(N, H, W), ints(-1)], {}, (N, H, 1)),
    "reduce drop": ("ReduceMean", [f32(N, H, W), ints(0, 2)], {"keepdims": 0}, (H,)),
    "reduce all": ("ReduceMean", [f32(N, H, W)], {"keepdims": 0}, ()),
    "reduce noop": ("ReduceMean", [f32(N, H)], {"noop_with_empty_axes": 1}, (N, H)),
    "reduce unknown axes": ("ReduceMean", [f32(N, H), i64(1)], {"keepdims": 0}, (D.symbol("o0.0"),)),
    "arg max": ("ArgMax", [f32(N, H)], {"axis": 1, "keepdims": 0}, (N,)),
    "global pool": ("GlobalAveragePool", [f32(N, 3, H, W)], {}, (N, 3, 1, 1)),
    "resize scales": ("Resize", [f32(N, 3, H, W), None, floats(1, 1, 2, 0.5)], {}, (N, 3, 2 * H, D.floordiv(W, 2))),
    "resize axes": ("Resize", [f32(N, 3, H), None, None, ints(S)], {"axes": [2]}, (N, 3, S)),
    "resize odd": ("Resize", [f32(N, H), None, floats(1, 0.7)], {}, (N, D.symbol("o0.0"))),
    "resize policy": (
        "Resize",
        [f32(1, 1, 10, 20), None, None, ints(7, 9)],
        {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        (1, 1, 5, 9),
    ),
    "resize crop": (
        "Resize",
        [f32(10, 20), floats(0, 0.25, 1, 0.75), floats(2, 3)],
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        (20, 30),
    ),
    "old alignment": ("Add", [f32(N, 3, H), f32(3)], {"opset": 6, "broadcast": 1, "axis": 1}, (N, 3, H)),
    "resize v10": ("Resize", [f32(N, H), floats(1, 3)], {"opset": 10}, (N, 3 * H)),
    "grid sample": ("GridSample", [f32(N, 3, H, W), f32(N, S, 5, 2)], {}, (N, 3, S, 5)),
    "col2im": ("Col2Im", [f32(N, 12, S), ints(H, W), ints(2, 3)], {}, (N, 2, H, W)),
    "roi align": ("RoiAlign", [f32(N, 3, H, W), f32(S, 4), i64(S)], {"output_height": 7}, (S, 3, 7, 1)),
    "conv transpose": ("ConvTranspose", [f32(N, 4, H), f32(4, 2, 3)], {"strides": [2], "group": 2}, (N, 4, 2 * H + 1)),
    "conv transpose shape": ("ConvTranspose", [f32(N, 4, H), f32(4, 2, 3)], {"output_shape": [9]}, (N, 2, 9)),
    "hann": ("HannWindow", [scalar(S)], {}, (S,)),
    "dft": ("DFT", [f32(N, S, 1), None, scalar(1)], {"onesided": 1}, (N, D.floordiv(S, 2) + 1, 2)),
    "inverse dft": ("DFT", [f32(N, S, 2)], {"onesided": 1, "inverse": 1}, (N, 2 * S - 2, 1)),
    "string split": ("StringSplit", [TensorFact(ir.DataType.STRING, (N,))], {"outputs": 2}, (N, D.symbol("o0.0"))),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    op, inputs, attributes, expected = SHAPES[name]
    fact = infer_all(op, *inputs, **attributes)[0]
    assert isinstance(fact, TensorFact)
    assert fact.shape == expected


def test_window_sizes_have_one_form() -> None:
    """A padded convolution of stride 2 and SAME both leave ``(H + 1) // 2``."""
    half = D.floordiv(H + 1, 2)
    weight = f32(8, 3, 3)
    assert infer("Conv", f32(N, 3, H), weight, strides=[2], pads=[1, 1]).shape == (N, 8, half)
    assert infer("Conv", f32(N, 3, H), weight, strides=[2], auto_pad="SAME_UPPER").shape == (N, 8, half)
    twice = infer("MaxPool", f32(N, 8, half), kernel_shape=[3], strides=[2], pads=[1, 1], outputs=1)
    assert twice.shape == (N, 8, D.floordiv(H + 3, 4))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads"),
    [(7, 2, 2, (0, 0)), (6, 3, 2, (1, 1)), (4, 2, 3, (1, 1)), (10, 3, 4, (0, 2)), (5, 5, 2, (2, 2)), (5, 1, 1, (0, 1))],
)
def test_ceil_mode_leaves_out_windows_in_the_padding(
    size: int, kernel: int, stride: int, pads: tuple[int, int]
) -> None:
    attributes = {"kernel_shape": [kernel], "strides": [stride], "pads": list(pads), "ceil_mode": 1}
    starts = [i for i in range(0, 99, stride) if i < size + pads[0] and i - stride + kernel < size + sum(pads)]
    assert infer("MaxPool", f32(1, 1, size), **attributes).shape == (1, 1, len(starts))
    symbolic = infer("MaxPool", f32(1, 1, H), **attributes).shape
    assert symbolic is not None
    assert D.evaluate(symbolic[2], {"H": size}) == len(starts)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (0, 3, 1),
        (1, 2**63 - 1, 1),
        (-3, -1, 1),
        (-2, 2**31 - 1, 1),
        (6, 2, 1),
        (0, -1, 2),
        (-1, -(2**63), -1),
        (5, 0, -2),
        (-2, -9, -1),
        (3, -(2**31), -3),
    ],
)
def test_slice_is_that_of_numpy(size: int, start: int, end: int, step: int) -> None:
    # Backwards, ONNX clamps a start in front of the axis to its first element; NumPy takes nothing.
    picked = np.arange(size)[max(start, -size) if step < 0 else start : end : step]
    expected = len(picked)
    bounds = [ints(v) for v in (start, end, 0, step)]
    assert infer("Slice", f32(size), *bounds).shape == (expected,)
    symbolic = infer("Slice", f32(N), *bounds).shape
    assert symbolic is not None
    assert D.evaluate(symbolic[0], {"N": size}) == expected
    vector = infer("Slice", ints(*range(size)), *bounds)
    assert content(vector) == tuple(picked)


def test_slice_with_symbolic_bounds() -> None:
    assert infer("Slice", f32(N, S), ints(0), ints(S), ints(1)).shape == (N, S)
    assert infer("Slice", f32(N, S + 2), ints(1), ints(S + 1), ints(1)).shape == (N, S)
    open_end = infer("Slice", f32(N, S), ints(0), i64(1), ints(1)).shape
    assert open_end == (N, D.symbol("o0.0"))
    assert infer("Slice", f32(N, S), i64(1), i64(1), i64(1)).shape == (D.symbol("o0.0"), D.symbol("o0.1"))


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("start", [0, 2, -2, -N, N, N - 2, 2 - N, 3 - S, S - 3])
@pytest.mark.parametrize("end", [0, -1, 2**31 - 1, -(2**31), N, -N, N - 2, 1 - N, S - 2, 2 - S])
def test_bounds_of_either_sign(start: DimLike, end: DimLike, step: int) -> None:
    """``x[:, -n:]`` and ``x[:, : n - 1]``, where n may be too small or too large for the sign that is meant."""
    length = infer("Slice", f32(N), ints(start), ints(end), ints(0), ints(step)).shape[0]
    for n, s in itertools.product((0, 1, 2, 3, 5), (0, 1, 3, 4, 9)):
        sizes = {"N": n, "S": s}
        first, last = (D.evaluate(b, sizes) for b in (start, end))
        # backwards, ONNX clamps a start in front of the axis to its first element; NumPy takes nothing
        picked = range(n)[max(first, -n) if step < 0 and n else first : last : step]
        assert D.evaluate(length, sizes) == len(picked), (n, s)


# content -------------------------------------------------------------------------------------------------------


def test_shape_arithmetic_keeps_its_meaning() -> None:
    """Shape → Gather → Mul → Concat → Reshape: the usual way to merge two axes."""
    shape = infer("Shape", f32(N, S, 12, 64))
    assert content(shape) == (N, S, 12, 64)
    batch = infer("Gather", shape, scalar(0))
    assert (batch.shape, content(batch)) == ((), (N,))
    hidden = infer("Mul", infer("Gather", shape, scalar(-1)), infer("Gather", shape, scalar(2)))
    assert content(hidden) == (768,)
    parts = [infer("Unsqueeze", x, ints(0)) for x in (batch, scalar(-1), hidden)]
    target = infer("Concat", *parts, axis=0)
    assert content(target) == (N, -1, 768)
    assert infer("Reshape", f32(N, S, 12, 64), target).shape == (N, S, 768)


def test_reshape_infers_by_cancelling() -> None:
    assert infer("Reshape", f32(N, S, 768), ints(0, 0, 12, -1)).shape == (N, S, 12, 64)
    assert infer("Reshape", f32(N, S, H), ints(S, -1)).shape == (S, N * H)
    assert infer("Reshape", f32(N, 6), ints(-1, 4)).shape == (D.floordiv(3 * N, 2), 4)
    assert infer("Reshape", TensorFact(F32, None), ints(2, 0, -1)).shape == (2, D.symbol("o0.0"), D.symbol("o0.1"))
    assert infer("Reshape", f32(N, 3), i64(4)).shape == tuple(D.symbol(f"o0.{i}") for i in range(4))
    assert infer("Reshape", f32(N, 3), i64(S)).shape is None
    assert infer("Reshape", f32(0, 3), ints(3, 0), allowzero=1).shape == (3, 0)
    assert content(infer("Reshape", ints(N), ir_scalar_shape())) == (N,)


def ir_scalar_shape() -> TensorFact:
    return constant_fact(np.zeros(0, dtype=np.int64))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("Size", [f32(N, S, 2)], {}, (2 * N * S,)),
        ("Shape", [f32(N, S, 2)], {"start": 1, "end": -1}, (S,)),
        ("Add", [ints(N, 2), ints(1)], {}, (N + 1, 3)),
        ("Sub", [ints(N), scalar(N)], {}, (0,)),
        ("Div", [ints(N, 7), scalar(2)], {}, (D.floordiv(N, 2), 3)),
        ("Div", [scalar(-7), scalar(2)], {}, (-3,)),
        ("Div", [scalar(N * S), scalar(S)], {}, (N,)),
        ("Div", [scalar(N - 1), scalar(2)], {}, None),
        ("Div", [scalar(1), scalar(0)], {}, None),
        ("Mod", [scalar(-7), scalar(3)], {}, (2,)),
        ("Mod", [scalar(N), scalar(3)], {"fmod": 1}, (D.modulo(N, 3),)),
        ("Mod", [scalar(N - 9), scalar(3)], {"fmod": 1}, None),
        ("Min", [ints(N, 9), ints(4)], {}, (D.minimum(N, 4), 4)),
        ("Max", [scalar(N), scalar(0)], {}, (N,)),
        ("Neg", [scalar(N)], {}, (-N,)),
        ("Abs", [ints(N, -3)], {}, (N, 3)),
        ("Equal", [ints(N, 4), ints(-1)], {}, (0, 0)),
        ("Equal", [scalar(N), scalar(N)], {}, (1,)),
        ("Equal", [scalar(N), scalar(1)], {}, (D.maximum(1 - D.maximum(N - 1, 1 - N), 0),)),
        ("Less", [scalar(N), scalar(4)], {}, (D.minimum(D.maximum(4 - N, 0), 1),)),
        ("Less", [scalar(N), scalar(N + 1)], {}, (1,)),
        ("GreaterOrEqual", [scalar(N), scalar(0)], {}, (1,)),
        ("LessOrEqual", [scalar(N + 1), scalar(N)], {}, (0,)),
        ("Not", [scalar(True, np.bool_)], {}, (0,)),
        ("And", [scalar(True, np.bool_), scalar(False, np.bool_)], {}, (0,)),
        ("Where", [constant_fact(np.array([True, False])), ints(N, S), ints(1)], {}, (N, 1)),
        ("Where", [TensorFact(BOOL, ()), scalar(N), scalar(S)], {}, None),
        ("Clip", [scalar(N), scalar(1), scalar(8)], {}, (D.minimum(D.maximum(N, 1), 8),)),
        ("Cast", [ints(N, 3)], {"to": int(I32)}, (N, 3)),
        ("Cast", [ints(0, 3)], {"to": int(BOOL)}, (0, 1)),
        ("Cast", [ints(N)], {"to": int(U8)}, None),
        ("Cast", [floats(2.75)], {"to": int(I64)}, (2,)),
        ("CastLike", [scalar(N), scalar(1, np.int32)], {}, (N,)),
        ("Identity", [ints(N)], {}, (N,)),
        ("ReduceProd", [ints(N, S, 2)], {"keepdims": 0}, (2 * N * S,)),
        ("ReduceSum", [ints(N, 3), ints(0)], {}, (N + 3,)),
        ("ReduceMax", [ints(N, 0)], {}, (N,)),
        ("ReduceMin", [ints(4, 7)], {}, (4,)),
        ("Range", [scalar(0), scalar(3), scalar(1)], {}, (0, 1, 2)),
        ("Range", [scalar(N), scalar(N + 3), scalar(1)], {}, (N, N + 1, N + 2)),
        ("ConstantOfShape", [ints(2)], {"value": ir.tensor(np.array([5], dtype=np.int64))}, (5, 5)),
        ("Expand", [scalar(N), ints(2)], {}, (N, N)),
        ("Tile", [ints(N, 1), ints(2)], {}, (N, 1, N, 1)),
        ("Squeeze", [ints(N)], {}, (N,)),
        ("GatherND", [ints(N, S), ints(1)], {}, (S,)),
        ("Floor", [scalar(3.0, np.float32)], {}, None),
        ("SequenceLength", [SequenceFact(f32(2), S)], {}, (S,)),
        ("OptionalHasElement", [OptionalFact(f32(2))], {}, None),
        ("OptionalHasElement", [f32(2)], {}, (1,)),
        ("OptionalHasElement", [], {}, (0,)),
    ],
)
def test_elements(
    op: str, inputs: list[Fact], attributes: dict[str, Any], expected: tuple[DimLike, ...] | None
) -> None:
    fact = infer(op, *inputs, **attributes)
    assert content(fact) == expected
    if expected is not None and D.is_known(expected):
        assert fact.is_const
        assert fact.data is None


def test_split_divides_elements() -> None:
    parts = infer_all("Split", ints(N, S, 3), ints(1, 2), outputs=2)
    assert [content(p) for p in parts if isinstance(p, TensorFact)] == [(N,), (S, 3)]
    equal = infer_all("Split", f32(4 * N, 3), outputs=2, num_outputs=2)
    assert [p.shape for p in equal if isinstance(p, TensorFact)] == [(2 * N, 3)] * 2
    uneven = infer_all("Split", f32(N), outputs=2, num_outputs=2)
    half = D.floordiv(N + 1, 2)
    assert [p.shape for p in uneven if isinstance(p, TensorFact)] == [(half,), (N - half,)]


def test_sizes_survive_a_cast_to_float_and_back() -> None:
    """Exporters compute ``floor(float(H) * 2.0)``; a fraction is not followed."""
    size = infer("Cast", scalar(H), to=int(F32))
    doubled = infer("Floor", infer("Mul", size, scalar(2.0, np.float32)))
    assert content(infer("Cast", doubled, to=int(I64))) == (2 * H,)
    assert content(infer("Mul", size, scalar(0.5, np.float32))) is None
    assert content(infer("Div", size, scalar(2.0, np.float32))) is None
    assert content(infer("Cast", scalar(H), to=int(F16))) is None


def test_the_order_of_pads_is_turned_around_in_a_matrix() -> None:
    """As PyTorch's exporter writes paddings that depend on sizes: what was last axis first is first axis first."""
    pads = infer("Concat", ints(1, 2, 3, S), ints(0, 0), axis=0)
    rows = infer("Reshape", pads, ints(-1, 2))
    assert (rows.shape, rows.table, rows.data) == ((3, 2), (1, 2, 3, S, 0, 0), None)
    backwards = infer("Slice", rows, ints(-1), ints(-(2**63) + 1), ints(0), ints(-1))
    assert backwards.table == (0, 0, 3, S, 1, 2)
    turned = infer("Cast", infer("Transpose", backwards, perm=[1, 0]), to=int(I32))
    assert turned.table == (0, 3, 1, 0, S, 2)
    flat = infer("Reshape", turned, ints(-1))
    assert content(flat) == (0, 3, 1, 0, S, 2)
    assert infer("Pad", f32(N, S, 4), infer("Cast", flat, to=int(I64))).shape == (N, 2 * S + 3, 7)
    assert infer("Add", rows, ints(1)).table is None  # nothing is computed with such matrices


def test_known_matrices_are_constants() -> None:
    part = infer("Slice", infer("Reshape", ints(5, S, 7, 8), ints(2, 2)), ints(1), ints(2), ints(0))
    assert part.shape == (1, 2)
    np.testing.assert_array_equal(part.numpy(), [[7, 8]])


def test_content_stops_at_64_elements() -> None:
    assert content(infer("Expand", scalar(N), ints(64))) == (N,) * 64
    assert content(infer("Expand", scalar(N), ints(65))) is None
    assert infer("Range", scalar(0), scalar(65), scalar(1)).const is None


def test_overflow_is_not_followed() -> None:
    assert infer("Mul", scalar(2**62), scalar(4)).const is None
    assert infer("Sub", scalar(0, np.uint8), scalar(1, np.uint8)).const is None


# dtypes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("IsNaN", [f32(2)], {}, [BOOL]),
        ("Equal", [f32(2), f32(2)], {}, [BOOL]),
        ("Pow", [TensorFact(F16, (2,)), f32(2)], {}, [F16]),
        ("Dropout", [f32(2)], {"outputs": 2}, [F32, BOOL]),
        ("MaxPool", [f32(1, 1, 4)], {"kernel_shape": [2], "outputs": 2}, [F32, I64]),
        ("TopK", [f32(4), ints(2)], {"outputs": 2}, [F32, I64]),
        ("MatMulInteger", [TensorFact(U8, (2, 3)), TensorFact(ir.DataType.INT8, (3, 4))], {}, [I32]),
        ("QuantizeLinear", [f32(4), f32()], {}, [U8]),
        ("QuantizeLinear", [f32(4), f32()], {"output_dtype": int(ir.DataType.INT4)}, [ir.DataType.INT4]),
        ("DequantizeLinear", [TensorFact(U8, (4,)), TensorFact(F16, ())], {}, [F16]),
        ("DynamicQuantizeLinear", [f32(4)], {"outputs": 3}, [U8, F32, U8]),
        ("LayerNormalization", [TensorFact(F16, (2, 3)), TensorFact(F16, (3,))], {"outputs": 3}, [F16, F32, F32]),
        ("Multinomial", [f32(2, 3)], {}, [I32]),
        ("RandomUniform", [], {"shape": [2]}, [F32]),
        ("RandomNormalLike", [f32(2)], {"dtype": int(F16)}, [F16]),
        ("EyeLike", [f32(2, 2)], {"dtype": int(I64)}, [I64]),
        ("Constant", [], {"value_floats": [1.0]}, [F32]),
        ("Constant", [], {"value_string": "x"}, [ir.DataType.STRING]),
        ("ConstantOfShape", [ints(2)], {}, [F32]),
        ("NonZero", [f32(2)], {}, [I64]),
        ("OneHot", [i64(2), scalar(3), TensorFact(F16, (2,))], {}, [F16]),
    ],
)
def test_dtypes(op: str, inputs: list[Fact], attributes: dict[str, Any], expected: list[ir.DataType]) -> None:
    facts = infer_all(op, *inputs, **attributes)
    assert [f.dtype for f in facts if isinstance(f, TensorFact)] == expected


# several outputs, data-dependent sizes --------------------------------------------------------------------------


def test_lstm_layouts() -> None:
    weights = (f32(2, 32, 5), f32(2, 32, 8))
    every, last, cell = infer_all("LSTM", f32(S, N, 5), *weights, outputs=3, direction="bidirectional")
    assert [f.shape for f in (every, last, cell) if isinstance(f, TensorFact)] == [
        (S, 2, N, 8),
        (2, N, 8),
        (2, N, 8),
    ]
    every, last = infer_all("LSTM", f32(N, S, 5), *weights, outputs=2, direction="bidirectional", layout=1)
    assert [f.shape for f in (every, last) if isinstance(f, TensorFact)] == [(N, S, 2, 8), (N, 2, 8)]


def test_attention_appends_to_its_past() -> None:
    q, kv = f32(N, S, 32), f32(N, S, 16)
    past = f32(N, 2, H, 8)
    facts = infer_all("Attention", q, kv, kv, None, past, past, outputs=4, q_num_heads=4, kv_num_heads=2)
    assert [f.shape for f in facts if isinstance(f, TensorFact)] == [
        (N, S, 32),
        (N, 2, H + S, 8),
        (N, 2, H + S, 8),
        (N, 4, S, H + S),
    ]


def test_sizes_that_depend_on_data_are_new_symbols() -> None:
    count = D.symbol("o0.0")
    assert infer("NonZero", f32(2, 3)).shape == (2, count)
    assert infer("Compress", f32(N, 3), TensorFact(BOOL, (S,)), axis=0).shape == (count, 3)
    assert infer("Compress", f32(4), constant_fact(np.array([True, False, True]))).shape == (2,)
    facts = infer_all("Unique", f32(N, 3), outputs=4)
    assert [f.shape for f in facts if isinstance(f, TensorFact)] == [(count,), (count,), (3 * N,), (count,)]
    assert infer("NonMaxSuppression", f32(1, N, 4), f32(1, 3, N)).shape == (count, 3)


def test_sequences_know_length_and_common_sizes() -> None:
    (same,) = infer_all("SequenceConstruct", f32(N, 3), f32(N, 3))
    assert same == SequenceFact(f32(N, 3), 2)
    assert infer("ConcatFromSequence", same, axis=1).shape == (N, 6)
    assert infer("ConcatFromSequence", same, axis=0, new_axis=1).shape == (2, N, 3)
    (mixed,) = infer_all("SequenceConstruct", f32(N, 3), f32(N, 5))
    # The size on which they differ is a new symbol for each element that is taken out.
    assert infer("SequenceAt", mixed, scalar(0)).shape == (N, D.symbol("o0.0"))
    (empty,) = infer_all("SequenceEmpty", dtype=int(I64))
    (grown,) = infer_all("SequenceInsert", empty, i64(N))
    assert grown == SequenceFact(i64(N), 1)
    assert infer_all("SequenceErase", grown) == [SequenceFact(i64(N), 0)]
    assert infer_all("SplitToSequence", f32(N, 6), scalar(2), axis=1) == [SequenceFact(f32(N, 2), 3)]
    (chunks,) = infer_all("SplitToSequence", f32(N, 6), axis=1, keepdims=0)
    assert chunks == SequenceFact(f32(N), 6)


def test_unknown_inputs_give_unknown_but_typed_outputs() -> None:
    for op, count, attributes in (
        ("Conv", 2, {}),
        ("Softmax", 1, {}),
        ("Concat", 2, {"axis": 0}),
        ("Resize", 1, {"opset": 10}),
        ("Transpose", 1, {}),
    ):
        inputs: list[Fact] = [UNKNOWN] * count
        if op == "Resize":
            inputs.append(floats(1, 1, 2, 2))
        fact = infer(op, *inputs, **attributes)
        assert fact.dtype == F32
    assert infer("Conv", TensorFact(None, None), TensorFact(None, None)) == TensorFact(None, None)
    assert infer("Resize", UNKNOWN, None, floats(1, 1, 2, 2)).rank == 4
