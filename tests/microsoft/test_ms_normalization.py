"""Normalisations and what stands around them."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft_harness import check, expand_model, node_model, normal

F, H, I32 = np.float32, np.float16, np.int32
X, SKIP = normal(2, 3, 8), normal(2, 3, 8, seed=4)
GAMMA, BETA, BIAS = (normal(8, seed=i) for i in (1, 2, 3))


def rms(x, epsilon=1e-5):
    return x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + epsilon)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("outputs", [[F], [F, None, None, F]])
@pytest.mark.parametrize(
    ("skip", "beta", "bias"),
    [(SKIP, BETA, BIAS), (SKIP, None, BIAS), (SKIP[:1], BETA, None), (SKIP[0], BETA, None)],
)
def test_skip_layer_normalization(outputs, skip, beta, bias):
    check("SkipLayerNormalization", [X, skip, GAMMA, beta, bias], {"epsilon": 1e-5}, outputs)


def test_skip_layer_normalization_statistics():
    total = (X + SKIP).astype(np.float64)
    mean, var = total.mean(-1, keepdims=True), total.var(-1, keepdims=True)
    expected = [(total - mean) / np.sqrt(var + 1e-5) * GAMMA, mean, 1 / np.sqrt(var + 1e-5)]
    inputs, attributes = [X, SKIP, GAMMA], {"epsilon": 1e-5}
    check("SkipLayerNormalization", inputs, attributes, [F] * 3, expected=[e.astype(F) for e in expected])


@pytest.mark.parametrize("outputs", [[F], [F, None, None, F]])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_skip_simplified_layer_normalization(outputs, bias):
    check("SkipSimplifiedLayerNormalization", [X, SKIP, GAMMA, bias], {"epsilon": 1e-5}, outputs)


def test_skip_layer_normalization_in_float16():
    inputs = [v.astype(H) for v in (X, SKIP, GAMMA, BETA, BIAS)]
    check("SkipLayerNormalization", inputs, {}, [H, None, None, H], rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize(
    ("x", "scale", "axis", "outputs", "opset"),
    [
        (X, GAMMA, -1, [F], 24),
        (X, GAMMA, -1, [F, F], 24),
        (X, normal(3, 8), 1, [F, F], 14),
        (X.astype(H), GAMMA, -1, [F], 24),
    ],
)
def test_simplified_layer_normalization(x, scale, axis, outputs, opset):
    loose = {"rtol": 3e-3, "atol": 3e-3} if x.dtype == H else {}
    attributes = {"axis": axis, "epsilon": 1e-4}
    check("SimplifiedLayerNormalization", [x, scale], attributes, outputs, domain="", opset=opset, **loose)


@pytest.mark.parametrize(
    ("inputs", "attributes", "outputs"),
    [
        ([X, GAMMA, BETA], {"axis": -1, "epsilon": 1e-4}, [F]),
        ([X, GAMMA], {"axis": -1, "epsilon": 1e-4}, [F, F, F]),
        ([X, normal(3, 8), normal(3, 8)], {"axis": 1}, [F]),
    ],
)
def test_layer_normalization_before_the_onnx_domain_had_it(inputs, attributes, outputs):
    check("LayerNormalization", inputs, attributes, outputs, domain="", opset=14)


IDS = np.array([[1, 2, 3, 0], [4, 0, 0, 2]], I32)
SEGMENTS = np.array([[0, 0, 1, 1], [0, 1, 1, 0]], I32)
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], I32)
POSITIONS = np.array([[3, 2, 1, 0], [1, 5, 6, 7]], I32)


@pytest.mark.parametrize(
    ("segments", "mask", "positions", "outputs"),
    [
        (SEGMENTS, MASK, None, [F, I32]),
        (None, None, None, [F, I32]),
        (SEGMENTS, None, POSITIONS, [F, None, F]),
    ],
)
def test_embed_layer_normalization(segments, mask, positions, outputs):
    table = None if segments is None else normal(2, 8, seed=2)
    inputs = [IDS, segments, normal(6, 8), normal(10, 8, seed=1), table, GAMMA, BETA, mask, positions]
    check("EmbedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs, constants=(2, 3, 4, 5, 6))


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("dtype", [F, H])
def test_group_norm(last, activation, dtype):
    x = normal(2, 4, 5, 6).astype(dtype)
    skip, bias = normal(2, 6, seed=5).astype(dtype), normal(6, seed=6).astype(dtype)

    def reference(v):
        wide = v.astype(np.float64)
        grouped = wide.transpose(0, 3, 1, 2).reshape(2, 3, -1)
        normed = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
        y = normed.reshape(2, 6, 4, 5).transpose(0, 2, 3, 1) * scale + shift
        y = y * sigmoid(y) if activation else y
        return y.astype(dtype)

    def arranged(v):
        return np.ascontiguousarray(v if last else v.transpose(0, 3, 1, 2))

    scale, shift = normal(6, seed=1), normal(6, seed=2)
    attributes = {"groups": 3, "activation": activation, "channels_last": last}
    loose = {"rtol": 4e-3, "atol": 4e-3} if dtype == H else {}
    expected = arranged(reference(x))
    check("GroupNorm", [arranged(x), scale, shift], attributes, [dtype], expected=[expected], **loose)
    if last:
        total = (x + skip[:, None, None] + bias).astype(dtype)
        inputs, wanted = [x, scale, shift, skip, bias], [reference(total), total]
        check("SkipGroupNorm", inputs, attributes, [dtype, dtype], expected=wanted, **loose)


@pytest.mark.parametrize(("x", "count"), [(normal(2, 3, 8), 0), (normal(2, 24), 3)])
@pytest.mark.parametrize("scale", [None, normal(8, seed=3), normal(3, 8, seed=3), normal(24, seed=3)])
def test_branchwise_rms_norm(x, count, scale):
    check("BranchwiseRMSNorm", [x, scale], {"num_branches": count})


@pytest.mark.parametrize(("width", "activation"), [(8, "silu"), (24, "sigmoid")])
def test_gated_rms_norm(width, activation):
    inputs = [normal(2, 3, 24), normal(width, seed=1), normal(2, 3, 24, seed=2)]
    check("GatedRMSNorm", inputs, {"activation": activation})


def test_gated_add():
    x, y = normal(2, 3, 8), normal(2, 3, 8, seed=1)
    check("GatedAdd", [x, y, normal(2, 3, 1, seed=2)])
    gate, weight = normal(2, 3, 5, seed=3), normal(5, 1, seed=4)
    check("GatedAdd", [x, y, gate, weight], expected=[x + y * sigmoid(gate @ weight)])


def test_engram_gate():
    inputs = [normal(2, 3, 2, 8), normal(2, 3, 2, 8, seed=1), normal(2, 3, 8, seed=2)]
    scales = [normal(2, 8, seed=i) for i in (3, 4, 5)]
    check("EngramGate", inputs + scales, {}, [F, F])


STREAMS = [(normal(2, 3, 4, 8), 0), (normal(2, 3, 32), 4)]


#: Flattened weights go with flattened streams only.
MIXES = [
    (s, shape) for s in STREAMS for shape in [(2, 3, 4), (2, 3, 4, 1), (2, 3, 4, 8), (2, 3, 32)][: 4 if s[1] else 3]
]


@pytest.mark.parametrize(("stream", "shape"), MIXES)
def test_hyper_connection_pre_mix(stream, shape):
    x, count = stream
    mix = normal(*shape, seed=1)
    check("HyperConnectionPreMix", [x, mix], {"num_branches": count, "reduction_scale": 0.5}, shapes=(False,))


@pytest.mark.parametrize(("x", "count"), STREAMS)
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 1), (2, 3, 4, 8)])
@pytest.mark.parametrize("mixed", [False, True])
def test_hyper_connection_post_mix(x, count, shape, mixed):
    stream_mix = normal(2, 3, 4, 4, seed=3) if mixed else None
    inputs = [x, normal(2, 3, 8, seed=2), normal(*shape, seed=1), stream_mix]
    check("HyperConnectionPostMix", inputs, {"num_branches": count})


def test_hyper_connection_low_rank_mix():
    c, h, r = 4, 8, 5
    streams, block, gate = normal(2, 3, c * h), normal(2, 3, h, seed=1), normal(2, 3, c, seed=2)
    scale, down, up = normal(c, h, seed=3), normal(c * h, r, seed=4), normal(r, c * h, seed=5)
    inject = normal(c * h, c, seed=6)
    total = streams.reshape(2, 3, c, h) + gate[..., None] * block[:, :, None]
    normed = rms(total) * scale
    z = 0.7 * (normed.reshape(2, 3, -1) @ down)
    gates = sigmoid((z * sigmoid(z)) @ up).reshape(2, 3, c, h)
    pre = 0.5 * (normed * gates).sum(2)
    post = sigmoid(normed.reshape(2, 3, -1) @ inject / 2.0) * 1.5
    attributes = {"num_branches": c, "silu_alpha": 0.7, "reduction_scale": 0.5, "gate_div": 2.0, "gate_mul": 1.5}
    expected = [v.astype(F) for v in (pre, post, total.reshape(2, 3, -1))]
    inputs = [streams, scale, down, up, inject, block, gate]
    check("HyperConnectionLowRankMix", inputs, attributes, [F] * 3, expected=expected, rtol=1e-4, atol=1e-4)


def test_router_gate_up_proj():
    x, w = normal(3, 8).astype(H), normal(8, 4 + 2 * 5, seed=1).astype(H)
    y = (x.astype(F) @ w.astype(F)).astype(H)
    gate, up = y[:, 4:9].astype(F), y[:, 9:].astype(F)
    activated = (gate * sigmoid(1.5 * gate) * (up + 0.5)).astype(H)
    attributes = {"router_size": 4, "activation_alpha": 1.5, "activation_beta": 0.5}
    check("RouterGateUpProj", [x, w], attributes, [H, H], expected=[y[:, :4], activated], rtol=5e-3, atol=5e-3)


def test_mean_of_a_root_mean_square_is_left_alone():
    model = node_model("SkipSimplifiedLayerNormalization", [X, SKIP, GAMMA], {}, [F, F])
    assert [n.op_type for n in expand_model(model).graph.node] == ["SkipSimplifiedLayerNormalization"]
