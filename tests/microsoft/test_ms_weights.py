"""Weights of few bits, and mixtures of experts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from microsoft_harness import check, expand_model, node_model, normal, rng, run_ort

from accord.ops.microsoft.blocks import unpack_array

F, H, U8, I32, I64 = np.float32, np.float16, np.uint8, np.int32, np.int64
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def packed(*shape, seed=0):
    return rng(seed).integers(0, 256, shape).astype(U8)


def scales(*shape, low=0.01, high=0.02):
    return rng().uniform(low, high, shape).astype(F)


def test_unpacking_is_low_bits_first():
    assert unpack_array(np.array([0b11100100], U8), 2).tolist() == [0, 1, 2, 3]
    assert unpack_array(np.array([0x21, 0x43], U8), 4).tolist() == [1, 2, 3, 4]
    assert unpack_array(np.array([0b11010001, 0b01011000, 0b00011111], U8), 3).tolist() == [1, 2, 3, 4, 5, 6, 7, 0]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("k", "n", "block"), [(64, 5, 32), (80, 6, 16), (70, 4, 32)])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
def test_mat_mul_n_bits(bits, k, n, block, zeros):
    if (bits, zeros) == (8, "float"):
        pytest.skip("ONNX Runtime's CPU kernel has no such form")
    blocks = -(-k // block)
    weight = packed(n, blocks, block * bits // 8)
    points = {
        "none": None,
        "packed": packed(n, -(-blocks * bits // 8), seed=1),
        "float": rng().uniform(0, 2**bits, (n, blocks)).astype(F),
    }[zeros]
    inputs = [normal(2, 3, k), weight, scales(n, blocks), points, None, normal(n)]
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    check("MatMulNBits", inputs, attributes, constants=(1, 2, 3, 5), **CLOSE)
    # A weight that is not constant takes the long way.
    check("MatMulNBits", inputs, attributes, constants=(5,), shapes=(False,), **CLOSE)


def test_mat_mul_n_bits_keeps_4_bits_packed():
    inputs = [normal(3, 64), packed(5, 2, 16), scales(5, 2)]
    model = node_model("MatMulNBits", inputs, {"K": 64, "N": 5, "bits": 4, "block_size": 32}, [F], constants=(1, 2))
    expanded = expand_model(model)
    assert [n.op_type for n in expanded.graph.node] == ["DequantizeLinear", "Transpose", "MatMul"]
    weight = next(t for t in expanded.graph.initializer if list(t.dims) == [5, 64])
    assert weight.raw_data == inputs[1].tobytes()


def test_mat_mul_n_bits_in_float16():
    inputs = [normal(2, 64).astype(H), packed(5, 2, 16), scales(5, 2).astype(H)]
    attributes = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    check("MatMulNBits", inputs, attributes, [H], constants=(1, 2), rtol=1e-2, atol=1e-2)


def test_mat_mul_n_bits_with_groups():
    groups = (rng().permutation(64) // 32).astype(I32)
    x, weight, scale = normal(3, 64), packed(5, 2, 16), scales(5, 2)
    attributes = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    check("MatMulNBits", [x, weight, scale, None, groups], attributes, constants=(1, 2, 4), **CLOSE)
    # ONNX Runtime 1.32 takes no notice of zero points beside groups; its documentation does.
    points = packed(5, 1, seed=1)
    values = unpack_array(weight.reshape(5, -1), 4) - unpack_array(points, 4)[:, groups].astype(F)
    expected = [x @ (values * scale[:, groups]).T]
    inputs = [x, weight, scale.reshape(-1), points.reshape(-1), groups]
    check("MatMulNBits", inputs, attributes, constants=(1, 2, 3, 4), expected=expected, **CLOSE)


def test_mat_mul_n_bits_without_a_weight():
    inputs = [normal(2, 3, 64), np.zeros((5, 2, 0), U8), np.zeros((5, 2), F), None, None, normal(5)]
    attributes = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    check("MatMulNBits", inputs, attributes, constants=(1, 2, 5), shapes=(False,))


def dequantized(weight, scale, bits, k):
    n, blocks = scale.shape
    values = unpack_array(weight.reshape(n, -1), bits).reshape(n, blocks, -1) - F(2 ** (bits - 1))
    return (values * scale[..., None]).reshape(n, -1)[:, :k]


def rms(x, scale):
    return x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * scale


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_fused_mat_mul_n_bits():
    x, skip, norm = normal(3, 64), normal(3, 64, seed=1), normal(64, seed=2)
    weights = [(packed(n, 2, 16, seed=n), scales(n, 2)) for n in (5, 6, 7)]
    full = [dequantized(w, s, 4, 64).T for w, s in weights]
    bias = normal(5, seed=3)
    a = rms(x + skip, norm)
    attributes = {"K": 64, "bits": 4, "block_size": 32, "epsilon": 1e-6}
    q_inputs = [x, skip, norm, *weights[0], bias, *weights[1], None, *weights[1], None]
    expected = [(a @ full[0] + bias), a @ full[1], a @ full[1], x + skip]
    constants = (3, 4, 6, 7, 9, 10)
    sizes = {"Nq": 5, "Nkv": 6}
    wanted = [e.astype(F) for e in expected]
    check("MatMulNBitsQkv", q_inputs, attributes | sizes, [F] * 4, expected=wanted, constants=constants, **CLOSE)
    gate, up = x @ full[0] + bias, x @ full[0]
    m_inputs = [x, None, None, *weights[0], bias, *weights[0], None]
    wanted = [(gate * sigmoid(gate) * up).astype(F)]
    activation = {"N": 5, "activation": "silu"}
    check("MatMulNBitsMlp", m_inputs, attributes | activation, expected=wanted, constants=(3, 4, 6, 7), **CLOSE)


def test_mat_mul_n_bits_with_an_adapter():
    x, base = normal(3, 64), (packed(5, 2, 16), scales(5, 2))
    down, up = (packed(3, 2, 32, seed=1), scales(3, 2)), (packed(5, 1, 32, seed=2), scales(5, 1))
    full = [dequantized(*base, 4, 64).T, dequantized(*down, 8, 64).T, dequantized(*up, 8, 3).T]
    expected = [(x @ full[0] + x @ full[1] @ full[2]).astype(F)]
    inputs = [x, *base, *down, *up]
    check("MatMulNBitsQLoRA", inputs, {"K": 64, "N": 5}, expected=expected, constants=range(1, 7), **CLOSE)


# Tables


@pytest.mark.parametrize("dtype", [ml_dtypes.uint4, ml_dtypes.int4])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_of_4_bit_data(dtype, zeros):
    low = 0 if dtype == ml_dtypes.uint4 else -8

    def codes(*shape, seed=0):
        return rng(seed).integers(low, low + 16, shape).astype(I32).astype(dtype)

    points = codes(7, 3, seed=1) if zeros else None
    inputs = [codes(7, 48), np.array([[1, 3], [6, 0]], I64), scales(7, 3), points]
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16}
    check("GatherBlockQuantized", inputs, attributes, constants=(0, 2, 3))
    deep = [codes(7, 32, 3), np.array([1, 2], I64), scales(7, 2, 3)]
    check("GatherBlockQuantized", deep, attributes | {"gather_axis": 2}, constants=(0, 2))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_of_bytes(bits, zeros):
    points = packed(7, -(-4 * bits // 8), seed=1) if zeros else None
    inputs = [packed(7, 64 * bits // 8), np.array([[1, 3], [6, 0]], I64), scales(7, 4), points]
    attributes = {"bits": bits, "gather_axis": 0, "quantize_axis": 1, "block_size": 16}
    check("GatherBlockQuantized", inputs, attributes, constants=(0, 2, 3))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_gather_of_8_bit_floats(dtype):
    data, indices = normal(7, 48).astype(dtype), np.array([1, 3], I64)
    check("GatherBlockQuantized", [data, indices, scales(7, 3)], {"block_size": 16}, constants=(0, 2))
    check("GatherBlockQuantized", [data, indices, scales(1, 1)], {"block_size": 0}, constants=(0, 2))


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("k", "n", "block"), [(64, 5, 32), (33, 7, 16)])
@pytest.mark.parametrize("trans", [0, 1])
def test_mat_mul_bnb4(kind, k, n, block, trans):
    x = normal(3, k if trans else n)
    inputs = [x, packed((n * k + 1) // 2), scales(-(-n * k // block), low=0.1, high=0.3)]
    attributes = {"K": k, "N": n, "block_size": block, "quant_type": kind, "transB": trans}
    expected = None
    if not trans:
        whole = node_model("MatMulBnb4", [np.eye(k, dtype=F), *inputs[1:]], attributes | {"transB": 1}, [F])
        feeds = {"x0": np.eye(k, dtype=F), "x1": inputs[1], "x2": inputs[2]}
        expected = [x @ run_ort(whole, feeds)[0].T]
    check("MatMulBnb4", inputs, attributes, constants=(1, 2), expected=expected, **CLOSE)


# Experts

EXPERTS, TOKENS, WIDTH, INNER = 4, 6, 16, 32
X, LOGITS = normal(TOKENS, WIDTH), normal(TOKENS, EXPERTS, seed=1)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize(("k", "normalize"), [(1, 0), (2, 0), (2, 1)])
def test_moe(activation, k, normalize):
    gated = activation == "swiglu"
    first = normal(EXPERTS, (1 + gated) * INNER, WIDTH, seed=2) * F(0.3)
    second = normal(EXPERTS, WIDTH, INNER, seed=3) * F(0.3)
    biases = normal(EXPERTS, (1 + gated) * INNER, seed=4), normal(EXPERTS, WIDTH, seed=5)
    attributes = {"k": k, "activation_type": activation, "normalize_routing_weights": normalize}
    if gated:
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.0}
    check("MoE", [X, LOGITS, first, biases[0], second, biases[1]], attributes, **CLOSE)
    dense = X.reshape(2, 3, WIDTH)
    check("MoE", [dense, LOGITS, first, None, second], attributes, **CLOSE)


def test_moe_in_forms_that_only_gpus_have():
    first, third = (normal(EXPERTS, INNER, WIDTH, seed=i) * F(0.3) for i in (2, 6))
    second = normal(EXPERTS, WIDTH, INNER, seed=3) * F(0.3)
    shares = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    best = LOGITS.argmax(-1)

    def mixed(hidden):
        return np.stack([shares[i, e] * second[e] @ hidden(X[i], e) for i, e in enumerate(best)]).astype(F)

    def gated(x, e):
        g = first[e] @ x
        return g * sigmoid(g) * (third[e] @ x)

    for attributes in ({"activation_type": "silu"}, {"activation_type": "swiglu"}):
        inputs = [X, LOGITS, first, None, second, None, third]
        check("MoE", inputs, attributes, expected=[mixed(gated)], **CLOSE)
    halves = np.concatenate([first, third], axis=1)
    attributes = {"activation_type": "swiglu", "swiglu_fusion": 2}
    check("MoE", [X, LOGITS, halves, None, second], attributes, expected=[mixed(gated)], **CLOSE)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("block", "zeros"), [(None, False), (16, False), (16, True)])
@pytest.mark.parametrize("activation", ["silu", "swiglu"])
def test_q_moe(bits, block, zeros, activation):
    gated = activation == "swiglu"

    def layer(out, inner, seed):
        blocks = 1 if block is None else inner // block
        weight = packed(EXPERTS, out, inner * bits // 8, seed=seed)
        factors = scales(EXPERTS, out, *([] if block is None else [blocks])) * F(16 / 2**bits)
        points = packed(EXPERTS, out, -(-blocks * bits // 8), seed=seed + 1) if zeros else None
        return weight, factors, points

    first, second = layer((1 + gated) * INNER, WIDTH, 2), layer(WIDTH, INNER, 4)
    biases = normal(EXPERTS, (1 + gated) * INNER, seed=7), normal(EXPERTS, WIDTH, seed=8)
    head = [X, LOGITS, *first[:2], biases[0], *second[:2], biases[1]]
    inputs = [*head, None, None, None, first[2], second[2]]
    attributes = {"k": 2, "activation_type": activation, "expert_weight_bits": bits, "normalize_routing_weights": 1}
    attributes |= {"block_size": block} if block else {}
    attributes |= {"swiglu_fusion": 1} if gated else {}
    # Some of ONNX Runtime's kernels round the activations to 8 bits.
    check("QMoE", inputs, attributes, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("groups", [{}, {"n_group": 4, "topk_group": 2, "group_topk": 2}])
def test_moe_group_router(groups):
    check("MoEGroupRouter", [normal(5, 16), normal(16, seed=2) * F(0.1)], {"top_k": 4, **groups})


def test_moe_group_router_in_full():
    check("MoEGroupRouter", [normal(5, 16), normal(16, seed=2) * F(0.1)], {"top_k": 4}, [None, F, F])
