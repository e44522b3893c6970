"""Every operator's expression against the ONNX reference, which runs in f64 for floats of 32 bits or less."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from expr_harness import NUMPY, Array, compile_elementwise, same_bits, special_values
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from accord.backends.reference.kernels import ReferenceKernel
from accord.expr.lang import INTS, SIGNED, Expr, call, cast, const, operand
from accord.expr.math import expand
from accord.expr.onnx_ops import ELEMENTWISE, dtype_name, lower
from accord.expr.primitives import check

FLOATS = ("f32", "f64", "f16", "bf16")
WIDE = ("f32", "f64")
UNSIGNED = tuple(sorted(INTS - SIGNED))
ALL_INTS = tuple(sorted(INTS))
NUMERIC = (*FLOATS, *ALL_INTS)

#: operator → (attributes to try, operand count, element types). The types of all operands are equal.
SAME_TYPE: dict[str, tuple[list[dict[str, Any]], int, Sequence[str]]] = {
    **dict.fromkeys(("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh"), ([{}], 1, FLOATS)),
    **dict.fromkeys(("Exp", "Floor", "HardSwish", "Log", "Reciprocal", "Round", "Sigmoid", "Sin"), ([{}], 1, FLOATS)),
    **dict.fromkeys(("Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "IsNaN", "Erf", "Mish"), ([{}], 1, FLOATS)),
    **dict.fromkeys(("Abs", "Neg", "Relu", "Sign"), ([{}], 1, NUMERIC)),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), ([{}], 2, NUMERIC)),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"), ([{}], 2, NUMERIC)),
    **dict.fromkeys(("Sum", "Mean"), ([{}], 3, FLOATS)),
    **dict.fromkeys(("And", "Or", "Xor"), ([{}], 2, ("bool",))),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), ([{}], 2, ALL_INTS)),
    "BitShift": ([{"direction": "LEFT"}, {"direction": "RIGHT"}], 2, UNSIGNED),
    "BitwiseNot": ([{}], 1, ALL_INTS),
    "Celu": ([{}, {"alpha": 0.5}], 1, WIDE),
    "Elu": ([{}, {"alpha": 0.5}], 1, FLOATS),
    "Gelu": ([{}, {"approximate": "tanh"}], 1, FLOATS),
    "HardSigmoid": ([{}, {"alpha": 0.5, "beta": 0.25}], 1, FLOATS),
    "IsInf": ([{}, {"detect_negative": 0}, {"detect_positive": 0}], 1, FLOATS),
    "LeakyRelu": ([{}, {"alpha": 0.25}], 1, FLOATS),
    "Mod": ([{"fmod": 1}, {"fmod": 0}], 2, NUMERIC),
    "Not": ([{}], 1, ("bool",)),
    "PRelu": ([{}], 2, (*FLOATS, "i32", "u64")),
    "Pow": ([{}], 2, FLOATS),
    "Selu": ([{}, {"alpha": 1.5, "gamma": 2.0}], 1, FLOATS),
    "Shrink": ([{}, {"lambd": 1.5, "bias": 0.5}], 1, (*WIDE, "i32", "i8")),
    "SwiGLU": ([{}, {"alpha": 1.75}], 2, FLOATS),
    "Swish": ([{}, {"alpha": 1.75}], 1, FLOATS),
    "ThresholdedRelu": ([{}, {"alpha": 0.5}], 1, FLOATS),
}
_MIXED = {"BitCast", "Cast", "CastLike", "Clip", "DequantizeLinear", "QuantizeLinear", "Where"}

#: Tolerance in units in the last place of the result's type; the operators that are one rounding give 0.5.
_SLACK = {"f32": 4.0, "f64": 8.0, "f16": 0.51, "bf16": 0.51}
#: Sums that cancel: the error is relative to the terms.
_CANCELS = {"HardSigmoid": 1.0, "HardSwish": 8.0, "Mean": 1e30, "Sum": 1e30}


@functools.cache
def evaluator(op: str, attributes: tuple[tuple[str, Any], ...], inputs: str) -> ReferenceEvaluator:
    """A model of one node; ``inputs`` has a letter for each input, "-" for one that is omitted."""
    names = ["" if c == "-" else f"x{i}" for i, c in enumerate(inputs)]
    node = helper.make_node(op, names, ["y"], **dict(attributes))
    declared = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names if n]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", declared, [result])
    opset = onnx.defs.onnx_opset_version()
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def reference(op: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None]) -> Array:
    layout = "".join("-" if a is None else "x" for a in arrays)
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    with np.errstate(all="ignore"):
        return np.asarray(evaluator(op, tuple(attributes.items()), layout).run(None, feeds)[0])


def widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind in "fV" and array.dtype.itemsize < 8 else array


def _swish(attributes: Mapping[str, Any], x: Array) -> Array:
    return x / (1 + np.exp(-attributes.get("alpha", 1.0) * x))


def _gelu(attributes: Mapping[str, Any], x: Array) -> Array:
    if attributes.get("approximate") == "tanh":
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(x * -math.sqrt(0.5))


#: Where the reference computes in f32 at some point, or does not know the operator in f64.
_BETTER = {
    "Erf": lambda _, x: np.vectorize(math.erf, otypes=[np.float64])(x),
    "Gelu": _gelu,
    "PRelu": lambda _, x, slope: np.where(x < 0, x * slope, x).astype(x.dtype),
    "SwiGLU": lambda attributes, x, y: _swish(attributes, x) * y,
    "Swish": _swish,
}


def expected_of(op: str, attributes: Mapping[str, Any], arrays: Sequence[Array]) -> Array:
    """The reference's result, in f64 for floats."""
    own = _BETTER.get(op)
    if own is not None:
        with np.errstate(all="ignore"):
            return own(attributes, *[widened(a) for a in arrays])
    if op == "Div" and arrays[0].dtype.kind in "iu":
        safe = np.where(arrays[1] == 0, 1, arrays[1]).astype(arrays[1].dtype)
        quotient = reference(op, attributes, (arrays[0], safe))
        return np.where(arrays[1] == 0, 0, quotient).astype(arrays[0].dtype)
    return reference(op, attributes, [widened(a) for a in arrays])


@np.errstate(all="ignore")
def compare(op: str, dtype: str, got: Array, expected: Array, arrays: Sequence[Array]) -> None:
    if got.dtype.kind not in "fV":
        assert np.array_equal(got, expected.astype(got.dtype)), first_difference(got, expected, arrays)
        return
    rounded = expected.astype(got.dtype)
    wide, target = got.astype(np.float64), rounded.astype(np.float64)
    limits = ml_dtypes.finfo(got.dtype)
    unit = np.maximum(np.abs(target) * float(limits.eps), float(limits.smallest_subnormal))
    exact = expected.astype(np.float64)
    error = np.abs(wide - np.where(np.isfinite(target), exact, target))
    slack = _SLACK[dtype] * unit
    if op in _CANCELS:
        slack = slack + _CANCELS[op] * float(limits.eps)
    if op == "Swish":  # alpha x is rounded before its exponential is taken, which makes the error larger by as much
        slack = slack * (1 + 2 * np.minimum(np.abs(widened(arrays[0]).astype(np.float64)), 100))
    good = (wide == target) | (np.isnan(wide) & np.isnan(target)) | (error <= slack)
    # at the end of the range one rounding more or less decides
    top = float(limits.max)
    good |= (np.abs(wide) >= top) & (np.abs(target) >= top) & (np.sign(wide) == np.sign(target))
    inputs = [widened(a) for a in arrays]
    if op in ("Mean", "Sum"):
        good |= ~np.isfinite(wide) & (sum(np.abs(a) for a in inputs) > 3e38)  # the sum overflows on the way
    if op == "SwiGLU":  # the gate underflows on the way
        tiny = 5e-324 if dtype == "f64" else 1.5e-45
        good |= np.isinf(inputs[1]) | (error <= slack + np.abs(inputs[1]) * tiny)
    if op == "Gelu" and dtype == "f64":
        good |= error <= 128 * slack  # the error of the reference's argument
    if op in ("Gelu", "HardSwish", "Mish", "SwiGLU", "Swish"):
        good |= np.isneginf(inputs[0])  # the formula gives NaN, the limit is 0
    assert good.all(), first_difference(got[~good], expected[~good], [a[~good] for a in arrays])


def test_the_slope_of_hard_swish_is_that_of_its_function():
    """A float32 in double precision too: the schema's body has it as an attribute."""
    x = np.linspace(-2.9, 2.9, 101)
    got = compiled("HardSwish", (), ("f64",), "f64")(x)
    (oracle,) = ReferenceKernel(helper.make_node("HardSwish", ["x"], ["y"]), 24).run([x])
    np.testing.assert_allclose(got, x * (x * float(np.float32(1 / 6)) + 0.5), rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(oracle, got, rtol=1e-15, atol=1e-15)


def first_difference(got: Array, expected: Array, arrays: Sequence[Array]) -> str:
    different = np.flatnonzero(~((got == expected) | ((got != got) & (expected != expected))))  # noqa: PLR0124
    k = different[0] if different.size else 0
    return f"{[a[k] for a in arrays]} gives {got[k]!r}, expected {expected[k]!r}"


@functools.cache
def compiled(op: str, attributes: tuple[tuple[str, Any], ...], dtypes: tuple[str, ...], out: str, width: int = 16):
    expr = lower(op, dict(attributes), [operand(i, t) for i, t in enumerate(dtypes)], out)
    assert expr is not None
    assert expr.dtype == out
    check(expand(expr))
    return compile_elementwise(expr, len(dtypes), width)


def result_type(op: str, dtype: str) -> str:
    compares = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN")
    return "bool" if op in compares else dtype


def test_every_operator_is_tested():
    assert set(SAME_TYPE) | _MIXED == set(ELEMENTWISE)


CASES = [(op, dtype) for op, (_, _, dtypes) in sorted(SAME_TYPE.items()) for dtype in dtypes]


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_special_values(op: str, dtype: str):
    attribute_sets, n, _ = SAME_TYPE[op]
    values = special_values(dtype)
    arrays = [v.ravel() for v in np.meshgrid(*[values] * min(n, 2))]
    arrays += [arrays[0][::-1].copy()] * (n - len(arrays))
    if op == "BitShift":
        arrays[1] %= 2 * np.iinfo(arrays[1].dtype).bits
    for attributes in attribute_sets:
        run = compiled(op, tuple(attributes.items()), (dtype,) * n, result_type(op, dtype))
        got = run(*arrays)
        compare(op, dtype, got, expected_of(op, attributes, arrays), arrays)
        if dtype in ("f32", "bf16"):
            scalar = compiled(op, tuple(attributes.items()), (dtype,) * n, result_type(op, dtype), 1)
            assert same_bits(scalar(*arrays), got)


def elements(dtype: str) -> st.SearchStrategy[Any]:
    if dtype == "bool":
        return st.booleans()
    if dtype in INTS:
        info = np.iinfo(NUMPY[dtype])
        return st.integers(int(info.min), int(info.max))
    width = {"f64": 64, "f16": 16}.get(dtype, 32)
    return st.one_of(st.floats(width=width), st.floats(-20, 20, width=width))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_values(data: st.DataObject):
    op, dtype = data.draw(st.sampled_from(CASES))
    attribute_sets, n, _ = SAME_TYPE[op]
    attributes = data.draw(st.sampled_from(attribute_sets))
    exact = NUMPY[dtype] if dtype in INTS or dtype == "bool" else np.float64
    lists = [data.draw(st.lists(elements(dtype), min_size=19, max_size=19)) for _ in range(n)]
    with np.errstate(over="ignore"):
        arrays = [np.array(values, exact).astype(NUMPY[dtype]) for values in lists]
    if op == "BitShift":
        arrays[1] %= 2 * np.iinfo(arrays[1].dtype).bits
    run = compiled(op, tuple(attributes.items()), (dtype,) * n, result_type(op, dtype))
    compare(op, dtype, run(*arrays), expected_of(op, attributes, arrays), arrays)


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("bounds", [(-1, 3), (-1, None), (None, 3), (3, -1), (None, None)])
def test_clip(dtype: str, bounds: tuple[int | None, int | None]):
    values = special_values(dtype)
    low, high = (None if v is None else np.array(abs(v) if dtype[0] == "u" else v).astype(NUMPY[dtype]) for v in bounds)
    args: list[Expr | None] = [operand(0, dtype)]
    args += [None if v is None else const(v.item() if dtype != "bf16" else float(v), dtype) for v in (low, high)]
    expr = lower("Clip", {}, args, dtype)
    assert expr is not None
    expected = values
    expected = expected if low is None else np.maximum(expected, low)
    expected = expected if high is None else np.minimum(expected, high)
    got = compile_elementwise(expr, 1)(values)
    assert np.array_equal(got.astype(np.float64), expected.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("dtype", [*NUMERIC, "bool"])
def test_where_keeps_the_bits(dtype: str):
    a = special_values(dtype)
    b = a[::-1].copy()
    c = np.arange(a.size) % 2 == 0
    expr = lower("Where", {}, [operand(0, "bool"), operand(1, dtype), operand(2, dtype)], dtype)
    assert expr is not None
    assert same_bits(compile_elementwise(expr, 3)(c, a, b), np.where(c, a, b))


@pytest.mark.parametrize(("source", "target"), [("f32", "i8"), ("i64", "f16"), ("bool", "bf16"), ("f16", "bool")])
def test_casts(source: str, target: str):
    x = operand(0, source)
    assert lower("Cast", {"to": 1, "saturate": 1}, [x], target) is cast(x, target)
    assert lower("CastLike", {}, [x, operand(1, target)], target) is cast(x, target)


def test_bit_cast():
    assert lower("BitCast", {"to": 6}, [operand(0, "f32")], "i32") is call("bitcast", operand(0, "f32"), dtype="i32")
    assert lower("BitCast", {"to": 6}, [operand(0, "f32")], "i16") is None
    assert lower("BitCast", {"to": 9}, [operand(0, "bool")], "bool") is operand(0, "bool")


@pytest.mark.parametrize(
    ("base", "power"),
    [p for p in itertools.product((*WIDE, "f16", "i32"), ("f32", "f64", "i32", "i64")) if p[0] != p[1]],
)
def test_pow_of_different_types(base: str, power: str):
    x = np.array([2, 3, 5, 1, 7, 10, 4, 9]).astype(NUMPY[base])
    y = np.array([2, 3, 0, 5, 1, 4, 2, 3]).astype(NUMPY[power])
    got = compiled("Pow", (), (base, power), base)(x, y)
    assert np.allclose(got, np.power(x.astype(np.float64), y.astype(np.float64)), rtol=1e-6)
    for exponent in (2, 3, 0):
        expr = lower("Pow", {}, [operand(0, base), const(exponent, power)], base)
        assert expr is not None
        assert np.allclose(compile_elementwise(expr, 1)(x), x.astype(np.float64) ** exponent, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["i8", "i32", "u16", "i64"])
def test_integer_powers_wrap(dtype: str):
    bases, powers = np.meshgrid(special_values(dtype), np.array([0, 1, 2, 3, 7, 30, 64]).astype(NUMPY[dtype]))
    x, y = bases.ravel(), powers.ravel()
    got = compiled("Pow", (), (dtype, dtype), dtype)(x, y)
    size = 8 * x.dtype.itemsize
    expected = [pow(p, q, 2**size) for p, q in zip(x.tolist(), y.tolist(), strict=True)]
    assert np.array_equal(got, np.array(expected, np.uint64).astype(NUMPY[dtype]))
    for exponent in (0, 1, 5):
        expr = lower("Pow", {}, [operand(0, dtype), const(exponent, dtype)], dtype)
        assert expr is not None
        five = [pow(p, exponent, 2**size) for p in x.tolist()]
        assert np.array_equal(compile_elementwise(expr, 1)(x), np.array(five, np.uint64).astype(NUMPY[dtype]))


def test_integer_powers_to_negative_exponents_are_truncated():
    x, y = np.array([2, 1, -1, -1, 0, -3], np.int32), np.array([-1, -5, -3, -4, -1, -2], np.int32)
    assert compiled("Pow", (), ("i32", "i32"), "i32")(x, y).tolist() == [0, 1, -1, 1, 0, 0]


def test_signed_shifts():
    x, y = np.array([-8, -8, 5, -1, 1], np.int32), np.array([1, 40, 31, -1, 33], np.int32)
    assert compiled("BitShift", (("direction", "RIGHT"),), ("i32", "i32"), "i32")(x, y).tolist() == [-4, -1, 0, -1, 0]
    assert compiled("BitShift", (("direction", "LEFT"),), ("i32", "i32"), "i32")(x, y).tolist() == [
        -16,
        0,
        -(2**31),
        0,
        0,
    ]


@pytest.mark.parametrize("out", ["u8", "i8", "u16", "i16"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32"])
def test_quantize(dtype: str, out: str):
    values = special_values(dtype)
    values = values[~np.isnan(values.astype(np.float64))]
    info = np.iinfo(NUMPY[out])
    scale_type = "f32" if dtype == "i32" else dtype
    for scale, zero in ((0.5, 0), (0.1, 3), (2.0, info.max), (1e-3, info.min)):
        s = np.full(values.shape, scale).astype(NUMPY[scale_type])
        z = np.full(values.shape, zero, NUMPY[out])
        got = compiled("QuantizeLinear", (), (dtype, scale_type, out), out)(values, s, z)
        with np.errstate(all="ignore"):
            quotient = (values.astype(np.float32) / s.astype(np.float32)).astype(NUMPY[scale_type]).astype(np.float64)
        assert np.array_equal(got, np.clip(np.rint(quotient) + zero, info.min, info.max).astype(NUMPY[out]))
    without = lower("QuantizeLinear", {}, [operand(0, dtype), operand(1, scale_type)], out)
    assert without is not None
    zeros = compiled("QuantizeLinear", (), (dtype, scale_type, out), out)(values, s, np.zeros(values.shape, NUMPY[out]))
    assert np.array_equal(compile_elementwise(without, 2)(values, s), zeros)


def test_quantize_agrees_with_the_reference():
    rng = np.random.default_rng(6)
    x = (rng.standard_normal(999) * 40).astype(np.float32)
    x[:7] = [0.5, 1.5, 2.5, -0.5, -1.5, 127.5, -128.5]
    scale, zero = np.float32(0.37), np.uint8(131)
    got = compiled("QuantizeLinear", (), ("f32", "f32", "u8"), "u8")(x, np.full(999, scale), np.full(999, zero))
    assert np.array_equal(got, reference("QuantizeLinear", {}, [x, np.array(scale), np.array(zero)]))
    precise = compiled("QuantizeLinear", (("precision", 10),), ("f32", "f32", "u8"), "u8")
    want = reference("QuantizeLinear", {"precision": 10}, [x, np.array(scale), np.array(zero)])
    assert np.array_equal(precise(x, np.full(999, scale), np.full(999, zero)), want)


@pytest.mark.parametrize("dtype", ["u8", "i8", "u16", "i16", "i32"])
@pytest.mark.parametrize("out", ["f32", "f16", "bf16"])
def test_dequantize(dtype: str, out: str):
    values = special_values(dtype)
    scale = np.full(values.shape, 0.37).astype(NUMPY[out])
    zero = np.full(values.shape, 0 if dtype == "i32" else 5, NUMPY[dtype])
    got = compiled("DequantizeLinear", (), (dtype, out, dtype), out)(values, scale, zero)
    difference = (values.astype(np.int64) - zero).astype(np.float32)
    with np.errstate(over="ignore"):
        assert same_bits(got, (difference * scale.astype(np.float32)).astype(NUMPY[out]))
        bare = compiled("DequantizeLinear", (), (dtype, out), out)(values, scale)
        assert same_bits(bare, (values.astype(np.float32) * scale.astype(np.float32)).astype(NUMPY[out]))


def test_what_has_no_expression():
    x, i = operand(0, "f32"), operand(0, "i32")
    assert lower("MatMul", {}, [x, x], "f32") is None
    assert lower("Exp", {}, [i], "i32") is None
    assert lower("Exp", {}, [None], "f32") is None
    assert lower("Gelu", {"approximate": "other"}, [x], "f32") is None
    assert lower("BitShift", {"direction": "UP"}, [i, i], "i32") is None
    assert lower("QuantizeLinear", {}, [x, x], "f32") is None
    assert lower("DequantizeLinear", {}, [x, x], "f32") is None


def test_names_of_types():
    named = {d.name: dtype_name(d) for d in ir.DataType}
    assert {n for n in named.values() if n} == {*FLOATS, *ALL_INTS, "bool"}
    assert named["BFLOAT16"] == "bf16"
    assert named["UINT16"] == "u16"
    assert all(named[n] is None for n in ("STRING", "FLOAT8E5M2", "INT4", "COMPLEX64", "UNDEFINED"))


def test_roundings_between_operators_are_the_callers_choice():
    x = operand(0, "f16")
    kept = lower("Exp", {}, [lower("Exp", {}, [x], "f16")], "f16")
    dropped = lower("Exp", {}, [lower("Exp", {}, [x], "f32")], "f16")
    assert kept is cast(call("exp", cast(cast(call("exp", cast(x, "f32")), "f16"), "f32")), "f16")
    assert dropped is cast(call("exp", call("exp", cast(x, "f32"))), "f16")
