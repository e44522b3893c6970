"""8-bit arithmetic: bit for bit where the operator is defined by integers."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft_harness import check, normal, rng

F, I8, U8, I32 = np.float32, np.int8, np.uint8, np.int32
DTYPES = [U8, I8]


def integers(dtype, *shape, seed=0):
    return rng(seed).integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


def zero(dtype, value):
    return np.array(value if dtype == I8 else value + 100, dtype)


#: The second and the third put many results on the border of two steps.
SCALES = [(0.0213, 0.0337, 0.0481), (0.01, 0.01, 0.02), (0.02, 0.02, 0.01)]


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("shapes", [((2, 3, 64), (3, 64)), ((2, 64), (1, 1))])
def test_binary(op, dtype, scales, shapes):
    a, b, c = (np.array(s, F) for s in scales)
    left, right = integers(dtype, *shapes[0]), integers(dtype, *shapes[1], seed=1)
    check(op, [left, a, zero(dtype, 3), right, b, zero(dtype, -6), c, zero(dtype, 7)], {}, [dtype])


def test_binary_without_zero_points():
    a, b, c = (np.array(s, F) for s in (0.02, 0.03, 0.05))
    x, y = integers(U8, 64), integers(U8, 64, seed=1)
    expected = np.clip(np.rint(x * (a / c) + y * (b / c)), 0, 255).astype(U8)
    check("QLinearAdd", [x, a, None, y, b, None, c], {}, [U8], expected=[expected])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("x_scale", "y_scale"), [(0.05, 0.04), (0.02, 0.04), (0.02, 0.01)])
@pytest.mark.parametrize(
    ("op", "attributes", "shape"),
    [
        ("QLinearSigmoid", {}, (256,)),
        ("QLinearLeakyRelu", {"alpha": 0.5}, (256,)),
        ("QLinearSoftmax", {"opset": 13}, (4, 32)),
        ("QLinearSoftmax", {"opset": 12, "axis": 1}, (4, 5, 6)),
        ("QLinearSoftmax", {"opset": 13, "axis": 1}, (4, 5, 6)),
    ],
)
def test_unary(dtype, x_scale, y_scale, op, attributes, shape):
    parameters = np.array(x_scale, F), zero(dtype, 3), np.array(y_scale, F), zero(dtype, 8)
    check(op, [integers(dtype, *shape), *parameters], attributes, [dtype], steps=1 if op == "QLinearSoftmax" else 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_concat_and_where(dtype):
    scale, other = np.array(0.04, F), np.array(0.03, F)
    first, second = integers(dtype, 2, 3), integers(dtype, 2, 5, seed=1)
    inputs = [scale, zero(dtype, 3), first, scale, zero(dtype, 3), second, other, zero(dtype, 1)]
    check("QLinearConcat", inputs, {"axis": 1}, [dtype], constants=(0, 1, 3, 4, 6, 7))
    choice = rng().integers(0, 2, (3, 4)).astype(bool)
    left, right = integers(dtype, 3, 4), integers(dtype, 4, seed=1)
    inputs = [choice, left, scale, zero(dtype, 3), right, other, zero(dtype, 1), np.array(0.05, F), zero(dtype, 2)]
    check("QLinearWhere", inputs, {}, [dtype], constants=(2, 3, 5, 6, 7, 8))


def images(dtype, last):
    x = integers(dtype, 2, 3, 9, 9)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("y_scale", [0.03, 0.08])
def test_pools(dtype, last, y_scale):
    parameters = np.array(0.04, F), zero(dtype, 3), np.array(y_scale, F), zero(dtype, 7)
    for counted in (0, 1):
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "count_include_pad": counted}
        inputs = [images(dtype, last), *parameters]
        check("QLinearAveragePool", inputs, window | {"channels_last": last}, [dtype], steps=1)
    square = {"kernel_shape": [2, 2], "channels_last": last}
    check("QLinearAveragePool", [images(dtype, last), *parameters], square, [dtype], steps=1)
    check("QLinearGlobalAveragePool", [images(dtype, last), *parameters], {"channels_last": last}, [dtype], steps=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [0, 1])
def test_conv(dtype, last):
    weight = integers(I8, 4, 3, 3, 3, seed=1)
    scales = rng().uniform(0.001, 0.003, 4).astype(F)
    bias = rng().integers(-500, 500, 4).astype(I32)
    parameters = [weight, scales, np.zeros(4, I8), np.array(0.5, F), zero(dtype, 1), bias]
    inputs = [images(dtype, last), np.array(0.04, F), zero(dtype, 3), *parameters]
    attributes = {"channels_last": last, "pads": [1, 1, 1, 1]}
    check("QLinearConv", inputs, attributes, [dtype], constants=range(1, 9))


PAIRS = [(U8, I8), (U8, U8), (I8, I8)]


@pytest.mark.parametrize(("a_type", "b_type"), PAIRS)
@pytest.mark.parametrize("trans", [0, 1])
def test_q_gemm(a_type, b_type, trans):
    a, b = integers(a_type, 4, 8), integers(b_type, *((6, 8) if trans else (8, 6)), seed=1)
    c = rng().integers(-1000, 1000, 6).astype(I32)
    per_column = rng().uniform(0.01, 0.02, 6).astype(F), np.zeros(6, b_type)
    head = [a, np.array(0.02, F), zero(a_type, 3), b]
    single = [*head, np.array(0.01, F), np.array(2, b_type), c]
    check("QGemm", single, {"transB": trans, "alpha": 0.5}, [F], rtol=1e-6)
    inputs = [*head, *per_column, c, np.array(0.1, F), zero(a_type, 5)]
    check("QGemm", inputs, {"transB": trans}, [a_type])


@pytest.mark.parametrize(("a_type", "b_type"), PAIRS)
def test_mat_mul_integer_to_float(a_type, b_type):
    a, b = integers(a_type, 2, 4, 8), integers(b_type, 8, 6, seed=1)
    scales = rng().uniform(0.01, 0.02, 6).astype(F)
    inputs = [a, b, np.array(0.02, F), scales, zero(a_type, 3), np.zeros(6, b_type), normal(6)]
    check("MatMulIntegerToFloat", inputs, {}, rtol=1e-6)
    check(
        "MatMulIntegerToFloat", [a, b, np.array(0.02, F), np.array(0.01, F), None, np.array(1, b_type)], {}, rtol=1e-6
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_dynamic_quantize_mat_mul(dtype):
    x, w = normal(2, 4, 8) * 3, integers(dtype, 8, 6)
    check("DynamicQuantizeMatMul", [x, w, np.array(0.02, F), zero(dtype, 1), normal(6)])
    check("DynamicQuantizeMatMul", [x, w, rng().uniform(0.01, 0.02, 6).astype(F), np.zeros(6, dtype)])


@pytest.mark.parametrize("dtype", [U8, I8, np.uint16, np.int16])
def test_linear_quantization(dtype):
    x, scales = normal(2, 4, 8) * 3, rng().uniform(0.01, 0.1, 4).astype(F)
    middle = np.array(3, dtype)
    check("QuantizeLinear", [x, np.array(0.05, F), middle], {}, [dtype])
    check("QuantizeLinear", [x, scales, np.arange(4).astype(dtype)], {"axis": 1}, [dtype])
    check("DequantizeLinear", [integers(dtype, 2, 4, 8), np.array(0.05, F), middle])
    check("DequantizeLinear", [integers(dtype, 2, 4, 8), scales, np.arange(4).astype(dtype)], {"axis": 1})


def test_integer_arithmetic():
    a, b = integers(np.int16, 2, 4, 8) // 32, integers(np.int16, 8, 6, seed=1) // 32
    check("MatMulInteger16", [a, b], {}, [I32])
    wide = [v.view(np.uint16) for v in (a, b)]
    check("MatMulInteger16", wide, {}, [np.uint32], expected=[wide[0].astype(np.uint32) @ wide[1].astype(np.uint32)])
    x, y = integers(U8, 3, 4), integers(U8, 4, seed=1)
    product = (x.astype(I32) - 3) * (y.astype(I32) - 5)
    check("MulInteger", [x, np.array(3, U8), y, np.array(5, U8)], {}, [I32], expected=[product])
    check("MulInteger", [x, None, y], {}, [I32], expected=[x.astype(I32) * y])
    for dtype, result in ((U8, np.uint32), (I8, I32)):
        data = integers(dtype, 3, 4, 5)
        expected = [data.astype(result).sum((0, 2), dtype=result)]
        check("ReduceSumInteger", [data], {"axes": [0, 2], "keepdims": 0}, [result], expected=expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_mean(dtype):
    x, low, high = images(dtype, 0), np.iinfo(dtype).min, np.iinfo(dtype).max
    mean = ((x.astype(np.float64) - int(zero(dtype, 3))) * 0.04).mean((2, 3), keepdims=True)
    expected = np.clip(np.rint(mean / 0.03) + int(zero(dtype, 1)), low, high).astype(dtype)
    inputs = [x, np.array(0.04, F), zero(dtype, 3), np.array(0.03, F), zero(dtype, 1)]
    check("QLinearReduceMean", inputs, {"axes": [2, 3], "keepdims": 1}, [dtype], expected=[expected], steps=1)


N, H = 2, 8
D = N * H
MASKS = [None, np.array([2, 4], I32), np.array([[1, 1, 0, 0], [1, 1, 1, 1]], I32)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_q_attention(dtype, causal, mask):
    x, w = integers(U8, 2, 4, 12), integers(dtype, 12, 3 * D, seed=1)
    scales = np.array(0.01, F), np.array(0.005, F)
    inputs = [x, w, normal(3 * D), *scales, mask, np.array(120, U8), np.array(3, dtype)]
    check("QAttention", inputs, {"num_heads": N, "unidirectional": causal}, rtol=1e-4, atol=1e-4)


def test_q_attention_with_a_past():
    x, w = integers(U8, 2, 4, 12), integers(I8, 12, 3 * D, seed=1)
    scales = np.array(0.01, F), rng().uniform(0.004, 0.006, 3 * D).astype(F)
    inputs = [x, w, normal(3 * D), *scales, np.ones((2, 7), I32), np.array(120, U8), np.zeros(3 * D, I8)]
    inputs.append(normal(2, 2, N, 3, H))
    check("QAttention", inputs, {"num_heads": N, "unidirectional": 1}, [F, F], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_q_embed_layer_normalization(dtype):
    ids, segments = np.array([[1, 2, 3, 0], [4, 0, 0, 2]], I32), np.array([[0, 0, 1, 1], [0, 1, 1, 0]], I32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], I32)
    tables = [integers(dtype, *s, seed=i) for i, s in enumerate(((6, 8), (10, 8), (2, 8), (8,), (8,)))]
    scales = [np.array(v, F) for v in (0.01, 0.02, 0.03, 0.04, 0.05)]
    zeros = [np.array(v, dtype) for v in (1, 2, 3, 4, 5)]
    inputs = [ids, segments, *tables, mask, *scales, *zeros]
    constants = (*range(2, 7), *range(8, 18))
    options = {"constants": constants, "rtol": 1e-4, "atol": 1e-4}
    check("QEmbedLayerNormalization", inputs, {"epsilon": 1e-5}, [F, I32], **options)


# LSTM

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
LENGTHS = [None, np.array([5, 2, 3], I32), np.array([3, 2, 3], I32)]


def lstm(direction, dtype, *, lengths=None, state=False, peepholes=False, per_column=False, **attributes):
    count = 2 if direction == "bidirectional" else 1
    low, high, middle = (-90, 90, 0) if dtype == I8 else (30, 220, 128)
    w, r = (rng(i).integers(low, high, (count, k, 4 * HIDDEN)).astype(dtype) for i, k in enumerate((WIDTH, HIDDEN)))
    shape = (count, 4 * HIDDEN) if per_column else (count,)
    scale, zeros = rng().uniform(0.005, 0.01, shape).astype(F), np.full(shape, middle, dtype)
    states = [normal(count, BATCH, HIDDEN, seed=i) * F(0.5) if state else None for i in (2, 3)]
    bias = normal(count, 8 * HIDDEN, seed=1) * F(0.3)
    peeping = normal(count, 3 * HIDDEN, seed=4) * F(0.3) if peepholes else None
    inputs = [normal(STEPS, BATCH, WIDTH), w, r, bias, lengths, *states, peeping, scale, zeros, scale, zeros]
    attributes |= {"hidden_size": HIDDEN, "direction": direction}
    options = {"constants": (1, 2, 8, 9, 10, 11), "rtol": 1e-4, "atol": 1e-4, "shapes": (False,)}
    check("DynamicQuantizeLSTM", inputs, attributes, [F] * 3, **options)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_dynamic_quantize_lstm(direction, dtype, lengths):
    lstm(direction, dtype, lengths=lengths, state=True)


def test_dynamic_quantize_lstm_options():
    lstm("bidirectional", U8, lengths=LENGTHS[1], peepholes=True, state=True)
    lstm("forward", I8, per_column=True)
    lstm("bidirectional", U8, clip=0.5, input_forget=1)
    activations = {"activations": ["HardSigmoid", "Relu", "Tanh"] * 2}
    lstm("bidirectional", U8, **activations, activation_alpha=[0.3, 0.2], activation_beta=[0.4, 0.5])
