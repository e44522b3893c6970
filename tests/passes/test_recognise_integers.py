"""Graphs as quantisation tools write them: what becomes a product of integers, and what stays float and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from recognise_harness import G, compiled, ops, reasons, stays

import accord
from accord.backends.reference.evaluator import evaluate
from accord.runtime.model import Model

F = np.float32
MIDDLE = np.uint8(128)
RULE = "recognise-integer-product"
RNG = np.random.default_rng(8)


def scale(*shape: int) -> np.ndarray:
    return (RNG.random(shape) * 0.02 + 0.01).astype(F)


def whole(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)


def dequantised(g: G, data: Any, s: Any, zero: Any, **attributes: Any) -> str:
    return g("DequantizeLinear", data, g.const(s), g.const(zero), **attributes)


def quantised(g: G, x: str, s: float, zero: Any) -> str:
    return g("QuantizeLinear", x, g.const(np.array(s, F)), g.const(zero))


def fake(g: G, x: str, s: float = 0.02, zero: Any = MIDDLE) -> str:
    """A float value on the grid of 8-bit integers."""
    return dequantised(g, quantised(g, x, s, zero), np.array(s, F), zero)


def conv(g: G, x: str, *, each: bool, bias: str, dtype: Any = np.int8, channels: int = 12, filters: int = 20) -> str:
    """A convolution with quantised filters, by tensor or by channel, and a bias: "int32", "float" or none."""
    shape = (filters,) if each else ()
    s = scale(*shape)
    w = dequantised(g, g.const(whole((filters, channels, 3, 3), dtype)), s, np.zeros(shape, dtype), axis=0)
    inputs = [x, w]
    if bias == "int32":
        unit = np.asarray(F(0.02) * s, F)
        b = dequantised(g, g.const(RNG.integers(-900, 900, filters, np.int32)), unit, np.zeros(shape, np.int32), axis=0)
        inputs.append(b)
    elif bias == "float":
        inputs.append(g.const(RNG.standard_normal(filters).astype(F)))
    return g("Conv", *inputs, pads=[1, 1, 1, 1])


def check(proto: Any, feeds: dict[str, Any], want: dict[str, int]) -> Model:
    """The phase leaves these operators; results are the reference's, within a step of what is quantised."""
    m = compiled(proto)
    left = Counter(ops(m))
    assert {k: left[k] for k in want} == want, reasons(m)
    expected = evaluate(proto, feeds)
    for found in (list(m(feeds)), list(accord.load(proto, threads=1)(feeds))):
        for f, e in zip(found, expected, strict=True):
            assert f.dtype == e.dtype
            if f.dtype == F:
                np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)
            else:
                off = np.abs(f.astype(int) - e.astype(int))
                assert off.max() <= 1 and off.mean() < 0.002
    return m


IMAGE = {"x": (F, (2, 12, 9, 11))}


def image() -> dict[str, Any]:
    return {"x": RNG.standard_normal((2, 12, 9, 11)).astype(F)}


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("zero", [np.uint8(0), np.uint8(100), np.int8(-128), np.int8(3)])
def test_a_convolution_that_is_quantised_again(each, dtype, relu, zero):
    g = G(21)
    y = conv(g, fake(g, "x"), each=each, bias="int32", dtype=dtype)
    y = quantised(g, g("Relu", y) if relu else y, 0.3, zero)
    clamps = relu and zero not in (0, -128)
    check(g.model(IMAGE, y), image(), {"QLinearConv": 1, "Conv": 0, "Relu": 0, "Max": int(clamps)})


@pytest.mark.parametrize("bias", ["float", "none"])
@pytest.mark.parametrize("each", [False, True])
def test_a_convolution_with_a_bias_or_an_activation_of_floats(each, bias):
    g = G(21)
    y = g("Sigmoid", conv(g, fake(g, "x"), each=each, bias=bias))
    y = quantised(g, y, 0.004, np.uint8(0))
    m = check(g.model(IMAGE, y), image(), {"ConvInteger": 1, "Conv": 0, "QLinearConv": 0})
    assert not reasons(m, RULE)


def test_a_result_that_stays_float():
    g = G(21)
    y = conv(g, fake(g, "x", zero=np.int8(5)), each=True, bias="int32")
    check(g.model(IMAGE, y), image(), {"ConvInteger": 1, "Conv": 0})


def test_a_bias_in_other_units_stays_float():
    g = G(21)
    x = fake(g, "x")
    w = dequantised(g, g.const(whole((20, 12, 3, 3), np.int8)), np.array(0.01, F), np.int8(0))
    b = dequantised(g, g.const(RNG.integers(-900, 900, 20, np.int32)), np.array(0.5, F), np.int32(0))
    y = quantised(g, g("Conv", x, w, b), 0.3, np.uint8(0))
    check(g.model(IMAGE, y), image(), {"ConvInteger": 1, "QLinearConv": 0})


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_products(each, turned):
    for again in (False, True):
        g = G(21)
        shape, axis = ((18, 30), 0) if turned else ((30, 18), 1)
        s = scale(18) if each else scale()
        w = dequantised(g, g.const(whole(shape, np.int8)), s, np.zeros(s.shape, np.int8), axis=axis)
        y = g("MatMul", fake(g, "x"), g("Transpose", w, perm=[1, 0]) if turned else w)
        y = quantised(g, y, 0.4, np.uint8(130)) if again else g("Add", y, g.const(scale(18)))
        feeds = {"x": RNG.standard_normal((2, 7, 30)).astype(F)}
        want = {"QLinearMatMul": int(again), "MatMulInteger": int(not again), "MatMul": 0}
        check(g.model({"x": (F, (2, 7, 30))}, y), feeds, want)


def test_products_of_two_values():
    g = G(21)
    y = g("MatMul", fake(g, "a"), fake(g, "b", 0.03, np.int8(2)))
    feeds = {n: RNG.standard_normal(s).astype(F) for n, s in (("a", (3, 5, 16)), ("b", (3, 16, 9)))}
    proto = g.model({n: (F, a.shape) for n, a in feeds.items()}, quantised(g, y, 0.1, np.int8(0)))
    check(proto, feeds, {"QLinearMatMul": 1, "MatMul": 0})


@pytest.mark.parametrize("trans", [0, 1])
def test_gemm(trans):
    g = G(21)
    shape = (11, 24) if trans else (24, 11)
    w = dequantised(g, g.const(whole(shape, np.int8)), scale(11), np.zeros(11, np.int8), axis=1 - trans)
    y = g("Gemm", fake(g, "x"), w, g.const(scale(11)), transB=trans)
    feeds = {"x": RNG.standard_normal((6, 24)).astype(F)}
    check(g.model({"x": (F, (6, 24))}, y), feeds, {"MatMulInteger": 1, "Gemm": 0})


def test_dynamic_quantisation_is_one_kernel():
    g = G(21)
    data, s, zero = g("DynamicQuantizeLinear", "x", outputs=3)
    total = g("MatMulInteger", data, g.const(whole((64, 40), np.int8)), zero, g.const(np.int8(3)))
    y = g("Mul", g("Cast", total, to=1), g("Mul", s, g.const(scale())))
    y = g("Relu", g("Add", y, g.const(scale(40))))
    proto = g.model({"x": (F, (9, 64))}, y)
    feeds = {"x": RNG.standard_normal((9, 64)).astype(F)}
    (found,), (expected,) = accord.load(proto, threads=1)(feeds), evaluate(proto, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    m = accord.load(proto, threads=1)
    names = [k for k in ops(m) if "MatMulInteger" in k]
    assert len(names) == 1 and "Relu" in names[0] and not any(k in ("Cast", "Add", "Relu") for k in ops(m))


# what stays float


def test_weights_alone():
    g = G(21)
    y = conv(g, "x", each=True, bias="none")
    m = stays(g.model(IMAGE, y), "only its second operand is quantised", RULE)
    assert "Conv" in ops(m)


def test_scales_along_the_sum():
    g = G(21)
    w = dequantised(g, g.const(whole((30, 18), np.int8)), scale(30), np.zeros(30, np.int8), axis=0)
    proto = g.model({"x": (F, (7, 30))}, g("MatMul", fake(g, "x"), w))
    stays(proto, "along an axis that is summed over", RULE)


def test_sums_that_may_not_fit():
    g = G(21)
    w = dequantised(g, g.const(np.ones((33100, 2), np.int8)), scale(), np.int8(0))
    proto = g.model({"x": (F, (2, 33100))}, g("MatMul", fake(g, "x"), w))
    stays(proto, "may not fit 32 bits", RULE)


def test_sixteen_bits():
    g = G(21)
    w = dequantised(g, g.const(whole((30, 18), np.int16)), scale(), np.int16(0))
    stays(g.model({"x": (F, (7, 30))}, g("MatMul", fake(g, "x"), w)), "only its first operand", RULE)


def test_a_gemm_that_scales():
    g = G(21)
    w = dequantised(g, g.const(whole((24, 11), np.int8)), scale(), np.int8(0))
    proto = g.model({"x": (F, (6, 24))}, g("Gemm", fake(g, "x"), w, alpha=0.5))
    stays(proto, "scales its operands", RULE)
