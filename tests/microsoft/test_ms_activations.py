"""Activations, convolutions and matrix products with something fused in."""

from __future__ import annotations

import math

import numpy as np
import pytest
from microsoft_harness import check, expand_model, node_model, normal, rng, run_ort

F, H = np.float32, np.float16


def gelu(x):
    return (0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))).astype(x.dtype)


def fast_gelu(x):
    return (0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))).astype(x.dtype)


def sigmoid(x):
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


def softmax(x, axes):
    e = np.exp(x - x.max(axes, keepdims=True))
    return (e / e.sum(axes, keepdims=True)).astype(x.dtype)


X, BIAS = normal(2, 3, 8), normal(8, seed=1)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Gelu", [X], {}),
        ("BiasGelu", [X, BIAS], {}),
        ("FastGelu", [X], {}),
        ("FastGelu", [X, BIAS], {}),
        ("QuickGelu", [X], {}),
        ("QuickGelu", [X], {"alpha": 0.5}),
        ("ScaledSiLU", [X], {"alpha": 0.7}),
        ("ScaledSiLU", [X, F(0.3)], {}),
    ],
)
def test_activation(op, inputs, attributes):
    check(op, inputs, attributes)


def test_scaled_silu_rounds_at_each_step():
    check("ScaledSiLU", [X.astype(H)], {"alpha": 0.7}, [H], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("GemmFastGelu", [X, normal(8, 5), normal(5)], {}, fast_gelu(X @ normal(8, 5) + normal(5))),
        ("BiasSplitGelu", [X, BIAS], {}, (X + BIAS)[..., :4] * gelu((X + BIAS)[..., 4:])),
        ("BiasAdd", [X, BIAS, X], {}, 2 * X + BIAS),
        ("BiasSoftmax", [X, BIAS], {"axis": 2, "is_inner_broadcast": 0}, softmax(X + BIAS, -1)),
        ("BiasSoftmax", [X, X[:1]], {"axis": 1, "is_inner_broadcast": 0}, softmax(X + X[:1], (1, 2))),
        ("SwiGLU", [X, X[::-1]], {}, X * sigmoid(X) * X[::-1]),
        ("SwiGLU", [X], {}, X[..., :4] * sigmoid(X[..., :4]) * X[..., 4:]),
        (
            "SwiGLU",
            [X * 3, X[::-1]],
            {"limit": 1.0, "activation_alpha": 1.7, "activation_beta": 1.0, "round_activation": 1},
            np.minimum(X * 3, 1) * sigmoid(1.7 * np.minimum(X * 3, 1)) * (np.clip(X[::-1], -1, 1) + 1),
        ),
    ],
)
def test_activation_that_only_gpus_have(op, inputs, attributes, expected):
    check(op, inputs, attributes, expected=[expected])


@pytest.mark.parametrize(("op", "first"), [("BiasDropout", 4), ("BitmaskBiasDropout", 4), ("BitmaskDropout", 2)])
@pytest.mark.parametrize("flag", [None, np.array(False)])
def test_dropout_at_inference(op, first, flag):
    inputs = [*(X, BIAS, X)[: first - 1], np.array(0.5, F), flag]
    result = X if op == "BitmaskDropout" else 2 * X + BIAS
    bits = op != "BiasDropout"
    mask = np.full(-(-X.size // 32), 0xFFFFFFFF, np.uint32) if bits else np.ones(X.shape, bool)
    check(op, inputs, {}, [F, mask.dtype], expected=[result, mask], constants=(first,))


def test_dropout_that_may_train_is_left_alone():
    model = node_model("BitmaskDropout", [X, np.array(0.5, F), np.array(True)], {}, [F])
    assert [n.op_type for n in expand_model(model).graph.node] == ["BitmaskDropout"]


# Convolutions


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        (None, None),
        ("Relu", None),
        ("Sigmoid", None),
        ("Tanh", None),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 0.7]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
def test_fused_conv_activation(activation, parameters):
    attributes = {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1], "kernel_shape": [3, 3]}
    attributes |= {} if activation is None else {"activation": activation}
    attributes |= {} if parameters is None else {"activation_params": parameters}
    check("FusedConv", [normal(2, 4, 9, 9), normal(6, 2, 3, 3, seed=1), normal(6, seed=2)], attributes)


@pytest.mark.parametrize("bias", [None, normal(6, seed=2)])
def test_fused_conv_adds_before_the_activation(bias):
    inputs = [normal(2, 4, 9, 9), normal(6, 2, 3, 3, seed=1), bias, normal(2, 6, 9, 9, seed=3)]
    check("FusedConv", inputs, {"group": 2, "auto_pad": "SAME_UPPER", "activation": "Relu"})


def test_channels_last_conv():
    x, w, bias, z = normal(2, 4, 9, 9), normal(6, 4, 3, 3, seed=1), normal(6, seed=2), normal(2, 5, 5, 6, seed=4)
    attributes = {"strides": [2, 2], "pads": [1, 0, 1, 2]}
    plain = node_model("FusedConv", [x, w, bias], attributes, [F])
    y = run_ort(plain, {"x0": x, "x1": w, "x2": bias})[0].transpose(0, 2, 3, 1)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    check("NhwcConv", [last, w, bias], attributes, expected=[y])
    check("NhwcFusedConv", [last, w, bias, z], attributes | {"activation": "Relu"}, expected=[np.maximum(y + z, 0)])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_channels_last_max_pool(dtype):
    x = rng().integers(0, 256, (2, 7, 7, 3)).astype(np.uint8).view(dtype)
    check("NhwcMaxPool", [x], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}, [dtype])
    check("NhwcMaxPool", [x], {"kernel_shape": [3, 2], "dilations": [1, 2], "ceil_mode": 1}, [dtype])


def test_max_pool_with_mask():
    mask = np.ones((1, 1, 8), np.int32)
    mask[..., 5:] = 0
    check("MaxpoolWithMask", [normal(1, 1, 8), mask], {"kernel_shape": [3], "strides": [2], "pads": [1, 1]})


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 2, 1]])
def test_conv_transpose_with_dynamic_pads(pads):
    inputs = [normal(1, 2, 5, 5), normal(2, 3, 3, 3, seed=1), np.array(pads, np.int64), normal(3)]
    check("ConvTransposeWithDynamicPads", inputs, {"strides": [2, 2], "output_padding": [1, 0]})


# Matrix products


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("batch_a", [0, 1])
@pytest.mark.parametrize("batch_b", [0, 1])
def test_fused_mat_mul(trans_a, trans_b, batch_a, batch_b):
    def stored(x, trans, batch):
        x = x.swapaxes(-1, -2) if trans else x
        return np.ascontiguousarray(np.moveaxis(x, -2, 0) if batch else x)

    a, b = stored(normal(2, 3, 4, 5), trans_a, batch_a), stored(normal(2, 3, 5, 6, seed=1), trans_b, batch_b)
    names = ("transA", "transB", "transBatchA", "transBatchB")
    attributes = dict(zip(names, (trans_a, trans_b, batch_a, batch_b), strict=True))
    check("FusedMatMul", [a, b], attributes | {"alpha": 0.5})


@pytest.mark.parametrize(
    ("op", "a", "b", "attributes"),
    [
        ("TransposeMatMul", normal(4, 3), normal(4, 5), {"transA": 1, "alpha": 2.0}),
        ("FusedMatMul", normal(4), normal(4, 5), {"transA": 1}),
        ("FusedMatMul", normal(3, 4), normal(4), {"transB": 1, "alpha": 2.0}),
    ],
)
def test_matrix_product_of_low_rank(op, a, b, attributes):
    check(op, [a, b], attributes)


GEMM_ACTIVATIONS = [
    ("Relu", {}),
    ("LeakyRelu", {"activation_alpha": 0.2}),
    ("Elu", {"activation_alpha": 0.3}),
    ("Selu", {"activation_alpha": 1.1, "activation_gamma": 0.9}),
    ("Sigmoid", {}),
    ("HardSigmoid", {"activation_alpha": 0.2, "activation_beta": 0.4}),
    ("Softplus", {}),
    ("ThresholdedRelu", {"activation_alpha": 0.4}),
    ("Tanh", {}),
    ("Softsign", {}),
    ("ScaledTanh", {"activation_alpha": 0.5, "activation_beta": 0.7}),
    ("ParametricSoftplus", {"activation_alpha": 0.5, "activation_beta": 0.7}),
]


@pytest.mark.parametrize(("name", "parameters"), GEMM_ACTIVATIONS)
def test_fused_gemm(name, parameters):
    attributes = {"transB": 1, "alpha": 0.7, "beta": 0.3, "activation": name, **parameters}
    check("FusedGemm", [normal(3, 4), normal(5, 4, seed=1), normal(5, seed=2)], attributes)


def test_fused_mat_mul_activation():
    a, b = normal(2, 3, 4), normal(2, 5, 4, seed=1)
    product = 0.5 * a @ b.swapaxes(1, 2)
    attributes = {"transB": 1, "alpha": 0.5}
    expected = {
        "Relu": np.maximum(product, 0),
        "Softmax": softmax(product, 1),
        "LeakyRelu": np.where(product > 0, product, 0.1 * product).astype(F),
    }
    for name, y in expected.items():
        extra = {"activation": name, "activation_axis": 1, "activation_alpha": 0.1}
        check("FusedMatMulActivation", [a, b], attributes | extra, expected=[y])


def test_sparse_to_dense_mat_mul_on_a_dense_value():
    a, b = normal(4, 3), normal(5, 4, seed=1)
    expected = 2 * a.T @ b.T
    check("SparseToDenseMatMul", [a, b], {"transA": 1, "transB": 1, "alpha": 2.0}, expected=[expected])
