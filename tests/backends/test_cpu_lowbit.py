"""Conversions from and to low-bit types against the reference: every code, every half float, ties, extremes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import node

FLOAT8 = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]
FLOATS = [*FLOAT8, "FLOAT8E8M0", "FLOAT4E2M1"]
INTEGERS = ["INT4", "UINT4", "INT2", "UINT2"]
WIDE = ["FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16"]
RNG = np.random.default_rng(5)


def dtype_of(name: str) -> np.dtype:
    return np.dtype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name)))


def graph(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[str, list]], outputs: dict[str, str]) -> onnx.ModelProto:
    made = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, getattr(TensorProto, t), s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, getattr(TensorProto, t), None) for n, t in outputs.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def same_bits(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Generated kernels and reference give the same bits; any NaN is as good as another."""
    fast = Model(proto, Options(level=0, strict=True))(feeds)
    slow = Model(proto, Options(level=0, reference=True))(feeds)
    for a, b in zip(fast, slow, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        wide = a.astype(np.float64)
        np.testing.assert_array_equal(wide, b.astype(np.float64))
        if a.dtype.kind != "b":
            number = ~np.isnan(wide)
            np.testing.assert_array_equal(np.signbit(wide[number]), np.signbit(b.astype(np.float64)[number]))


def converted(source: str, target: str, x: np.ndarray, **attributes) -> None:
    op = node("Cast", ["x"], ["y"], to=getattr(TensorProto, target), **attributes)
    same_bits(graph([op], {"x": (source, ["n"])}, {"y": target}), {"x": x})


@pytest.mark.parametrize("target", ["FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16", "INT32", "UINT8", "BOOL"])
@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS])
def test_every_code(source, target):
    dtype = dtype_of(source)
    size = {"4": 4, "2": 2, "1": 4}.get(source[-1], 8) if not source.startswith("FLOAT8") else 8
    codes = np.arange(1 << size, dtype=np.uint8).view(dtype)
    if target in ("INT32", "UINT8"):
        wide = codes.astype(np.float64)
        codes = codes[np.isfinite(wide) & (np.abs(wide) < 2**31) & (wide >= 0)]
    converted(source, target, codes)


def numbers(source: str) -> np.ndarray:
    """All half floats; of wider types also what lies just beside and between them, and extremes."""
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        if source in ("FLOAT16", "BFLOAT16"):
            return half if source == "FLOAT16" else half.view(ml_dtypes.bfloat16)
        dtype = dtype_of(source)
        x = half.astype(dtype)
        more = [np.nextafter(x, dtype.type(s) * np.inf) for s in (-1, 1)]
        powers = np.ldexp(dtype.type(1), np.arange(-150, 128)).astype(dtype)
        near = [powers * dtype.type(f) for f in (1, 1.5, 1.25, 0.999, 1.001)]
        spread = (RNG.standard_normal(20000) * 10.0 ** RNG.integers(-30, 30, 20000)).astype(dtype)
        return np.concatenate([x, *more, *near, spread, -powers])


def within(x: np.ndarray, bound: float) -> np.ndarray:
    """Those that are no NaN and do not exceed a bound."""
    with np.errstate(invalid="ignore"):
        return x[np.abs(x.astype(np.float64)) <= bound]


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", WIDE)
@pytest.mark.parametrize("target", FLOAT8)
def test_to_8_bit_floats(source, target, saturate):
    converted(source, target, numbers(source), saturate=saturate)


@pytest.mark.parametrize("source", WIDE)
def test_to_4_bit_floats(source):
    converted(source, "FLOAT4E2M1", within(numbers(source), np.inf))


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"])
def test_to_powers_of_two(source, saturate, round_mode):
    converted(source, "FLOAT8E8M0", numbers(source), saturate=saturate, round_mode=round_mode)


@pytest.mark.parametrize("source", ["FLOAT", "FLOAT16", "DOUBLE", "INT32", "INT64", "UINT8"])
@pytest.mark.parametrize("target", INTEGERS)
def test_to_small_integers(source, target):
    if source in ("FLOAT", "FLOAT16", "DOUBLE"):
        x = within(numbers(source), 2.0**62)
    else:
        info = np.iinfo(dtype_of(source))
        x = RNG.integers(info.min, info.max, 5000, dtype=info.dtype)
    converted(source, target, x)


@pytest.mark.parametrize("source", ["INT64", "UINT64", "INT32", "INT8"])
@pytest.mark.parametrize("target", FLOAT8)
def test_integers_to_8_bit_floats(source, target):
    info = np.iinfo(dtype_of(source))
    small = np.arange(max(info.min, -70000), min(info.max, 70000)).astype(info.dtype)
    converted(source, target, np.concatenate([small, np.array([info.min, info.max], info.dtype)]))


@pytest.mark.parametrize("between", ["FLOAT8E4M3FN", "INT4"])
def test_there_and_back_in_one_kernel(between):
    nodes = [
        node("Cast", ["x"], ["c"], to=getattr(TensorProto, between)),
        node("CastLike", ["c", "x"], ["y"]),
    ]
    proto = graph(nodes, {"x": ("FLOAT", ["n"])}, {"y": "FLOAT", "c": between})
    x = np.linspace(-7, 7, 1000, dtype=np.float32)
    same_bits(proto, {"x": x})
    fused = Model(graph(nodes, {"x": ("FLOAT", ["n"])}, {"y": "FLOAT"}), Options(strict=True))
    (y,) = fused({"x": x})
    np.testing.assert_array_equal(y, x.astype(dtype_of(between) if between != "INT4" else np.int32).astype(np.float32))


@pytest.mark.parametrize("scales", [(), (5,), (3, 5)])
@pytest.mark.parametrize("kind", [*FLOAT8, "FLOAT4E2M1", *INTEGERS])
@pytest.mark.parametrize("scale_type", ["FLOAT", "FLOAT16"])
def test_quantisation(kind, scales, scale_type):
    attributes = {"axis": 1} if len(scales) == 1 else {"axis": 0, "block_size": 4} if scales else {}
    x = (RNG.standard_normal((12, 5)) * 20).astype(dtype_of(scale_type))
    scale = RNG.uniform(0.1, 3, scales).astype(x.dtype)
    zero = np.asarray(RNG.integers(0, 2, scales) * (kind in INTEGERS)).astype(dtype_of(kind))
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
    ]
    inputs = {"x": (scale_type, [12, 5]), "s": (scale_type, list(scales)), "z": (kind, list(scales))}
    same_bits(graph(nodes, inputs, {"q": kind, "y": scale_type}), {"x": x, "s": scale, "z": zero})
