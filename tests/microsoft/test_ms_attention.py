"""Attention with as many key heads as query heads, rotary embedding, relative positions."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft_harness import check, expand_model, node_model, normal, rng

F, I32 = np.float32, np.int32
B, S, N, H, P = 2, 4, 2, 8, 3
D = N * H
Q, K, V = (normal(B, S, D, seed=i) for i in range(3))
BIAS = normal(3 * D, seed=7)
PAST_KEY, PAST_VALUE = normal(B, N, P, H, seed=4), normal(B, N, P, H, seed=5)
#: The second row of the first and the third mask hide everything from some queries.
KEYS = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], I32)
PAIRS = rng().integers(0, 2, (B, S, S)).astype(I32)
#: Scores of about -10000 carry less of what the masked keys had.
MASKED = {"rtol": 1e-4, "atol": 1e-3}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    ("inputs", "attributes", "outputs"),
    [
        ([Q, K, V], {}, [F]),
        ([Q, K, V, BIAS], {"scale": 0.3}, [F]),
        ([Q, K, V, BIAS, KEYS], {}, [F]),
        ([Q, K, V, BIAS, KEYS], {"mask_filter_value": -3.0}, [F]),
        ([Q, K, V, None, PAIRS], {}, [F]),
        ([Q, K, V, None, np.array([2, 3], I32), normal(1, N, S, S)], {}, [F]),
        ([Q, K, V, BIAS], {}, [F, F, F]),
        ([Q, K, V, BIAS, None, None, PAST_KEY, PAST_VALUE], {}, [F, F, F]),
        ([Q, K, V, None, np.ones((B, S + P), I32), normal(B, 1, S, S + P), PAST_KEY, PAST_VALUE], {}, [F, F, F]),
        ([Q, K, V, BIAS, None, None, PAST_KEY, PAST_VALUE], {}, [F, F, F, F]),
        ([Q, K, V, BIAS, KEYS], {}, [F, None, None, F]),
    ],
)
def test_multi_head_attention(inputs, attributes, outputs, causal):
    check("MultiHeadAttention", inputs, {"num_heads": N, "unidirectional": causal, **attributes}, outputs, **MASKED)


@pytest.mark.parametrize(
    "inputs",
    [
        [Q, normal(B, 6, D), normal(B, 6, N * 5, seed=1)],
        [Q, normal(B, N, 6, H), normal(B, N, 6, H, seed=1)],
        [Q, normal(B, N, 6, H), normal(B, N, 6, H, seed=1), None, np.array([[1] * 5 + [0], [1] * 6], I32)],
    ],
)
def test_multi_head_cross_attention(inputs):
    check("MultiHeadAttention", inputs, {"num_heads": N}, **MASKED)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads(x):
    return x.reshape(*x.shape[:2], N, -1).transpose(0, 2, 1, 3)


def attend(q, k, v):
    y = softmax(heads(q) @ heads(k).swapaxes(-1, -2) / np.sqrt(H)) @ heads(v)
    return y.transpose(0, 2, 1, 3).reshape(B, S, -1)


def test_multi_head_attention_unpacks():
    expected = [attend(Q, K, V).astype(F)]
    packed = np.stack([x.reshape(B, S, N, H) for x in (Q, K, V)], axis=3)
    check("MultiHeadAttention", [packed], {"num_heads": N}, expected=expected)
    pair = np.stack([x.reshape(B, S, N, H) for x in (K, V)], axis=3)
    check("MultiHeadAttention", [Q, pair], {"num_heads": N}, expected=expected)


def test_shared_buffers_are_left_alone():
    inputs = [Q, K, V, None, None, None, PAST_KEY, PAST_VALUE, np.array([P], I32)]
    model = node_model("MultiHeadAttention", inputs, {"num_heads": N}, [F])
    assert [n.op_type for n in expand_model(model).graph.node] == ["MultiHeadAttention"]


X, W = normal(B, S, 5), normal(5, 3 * D, seed=3)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([X, W, BIAS], [F]),
        ([X, W], [F]),
        ([X, W, BIAS], [F, F]),
        ([X, W, BIAS, np.array([2, 4], I32)], [F]),
        ([X, W, BIAS, np.array([3, 4, 1, 0], I32)], [F]),
        ([X, W, BIAS, KEYS], [F]),
        ([X, W, BIAS, PAIRS], [F]),
        ([X, W, BIAS, np.ones((B, S + P), I32), normal(2, B, N, P, H)], [F, F]),
        ([X, W, BIAS, KEYS, None, normal(1, N, S, S)], [F]),
    ],
)
def test_attention(inputs, outputs, causal):
    check("Attention", inputs, {"num_heads": N, "unidirectional": causal}, outputs, **MASKED)


def test_attention_of_unequal_widths():
    attributes = {"num_heads": N, "qkv_hidden_sizes": [16, 16, 12], "scale": 0.2}
    check("Attention", [X, normal(5, 44), normal(44)], attributes, rtol=1e-4, atol=1e-4)


# One new token

STEP = [normal(B, 1, D, seed=i) for i in range(3)]
CROSS = [normal(B, N, 6, H, seed=i) for i in (0, 1)]
CACHE = [normal(B, N, 6, H, seed=i) for i in (0, 3)]


@pytest.mark.parametrize(
    ("mask", "attributes", "outputs"),
    [(None, {}, [F]), (np.array([[1] * 5 + [0], [1] * 6], I32), {"output_qk": 1}, [F, None, None, F])],
)
def test_decoder_cross_attention(mask, attributes, outputs):
    check("DecoderMaskedMultiHeadAttention", [STEP[0], *CROSS, mask], {"num_heads": N, **attributes}, outputs, **MASKED)


@pytest.mark.parametrize("length", [3, 5])
def test_decoder_self_attention(length):
    inputs = [*STEP, None, None, *CACHE, np.array([length], I32), None, None, BIAS]
    check("DecoderMaskedMultiHeadAttention", inputs, {"num_heads": N, "past_present_share_buffer": 1}, [F] * 3)


def test_decoder_self_attention_follows_beams():
    beams = rng(1).integers(0, 2, (1, 2, 6)).astype(I32)
    mask, bias = np.ones((2, 4), I32), normal(1, N, 1, 4)
    inputs = [*STEP, mask, bias, *CACHE, np.array([3], I32), np.array([2], I32), beams, BIAS]
    attributes = {"num_heads": N, "past_present_share_buffer": 1, "output_qk": 1}
    check("DecoderMaskedMultiHeadAttention", inputs, attributes, [F] * 4)


# Rotary embedding

COS, SIN = normal(10, H // 2, seed=5), normal(10, H // 2, seed=6)
IDS = np.array([[0, 1, 2], [4, 7, 9]], np.int64)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ([normal(B, N, 3, H), IDS, COS, SIN], {}),
        ([normal(B, 3, D), np.array([2], np.int64), COS, SIN], {"num_heads": N}),
        ([normal(B, 3, D), IDS, COS[:, :2], SIN[:, :2]], {"num_heads": N, "rotary_embedding_dim": 4}),
    ],
)
def test_rotary_embedding(inputs, attributes, interleaved):
    check("RotaryEmbedding", inputs, {"interleaved": interleaved, **attributes})


def test_rotary_embedding_counts_heads_by_the_caches():
    check("RotaryEmbedding", [normal(B, 3, D), IDS, COS, SIN], {}, constants=(2, 3), shapes=(False,))


@pytest.mark.parametrize(("layout", "sections"), [(0, [2, 1, 1]), (1, [2, 1, 1]), (0, [4, 0, 0])])
@pytest.mark.parametrize("separate", [False, True])
def test_m_rotary_embedding(layout, sections, separate):
    positions = rng().integers(0, 10, (3, B, 3))
    x = normal(B, N, 3, H) if separate else normal(B, 3, D)
    attributes = {"num_heads": N, "mrope_section": sections, "mrope_layout": layout}
    check("MRotaryEmbedding", [x, positions, COS, SIN], attributes)


def test_gemma_rotary_embedding():
    angles = normal(B, 3, H)
    tensors = [normal(B, N, 3, H, seed=i).astype(np.float16) for i in range(4)]
    cos, sin = (f(angles)[:, None].astype(np.float16) for f in (np.cos, np.sin))
    expected = [tensors[0] * cos + tensors[1] * sin, tensors[2] * cos + tensors[3] * sin]
    check("GemmaRotaryEmbedding", [angles, *tensors], {}, [np.float16] * 2, expected=expected, rtol=2e-3, atol=2e-3)


# Relative positions


def t5_bucket(distance, bidirectional, buckets, largest):
    """Bucket of key position minus query position, one by one."""
    result = 0
    if bidirectional:
        buckets //= 2
        result += buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return result + distance
    far = exact + int(np.log(distance / exact) / np.log(largest / exact) * (buckets - exact))
    return result + min(far, buckets - 1)


@pytest.mark.parametrize("bidirectional", [0, 1])
def test_relative_position_bias(bidirectional):
    table = normal(8, N)
    by_head = table.reshape(N, 8)
    buckets = np.array([[t5_bucket(k - q, bidirectional, 8, 20) for k in range(30)] for q in range(25)])
    inputs = [table, np.array([25], np.int64), np.array([30], np.int64)]
    attributes = {"is_bidirectional": bidirectional, "max_distance": 20}
    check("RelativePositionBias", inputs, attributes, expected=[by_head[:, buckets][None]], constants=(0,))


def test_gated_relative_position_bias():
    query, query_bias, rel_pos = normal(B, S, D), normal(D, seed=1), normal(1, N, S, S, seed=2)
    weight, bias, eco = normal(H, 6, seed=3), normal(6, seed=4), normal(1, N, 1, 1, seed=5)
    projected = (heads(query + query_bias) @ weight + bias).reshape(B, N, S, 2, 3).sum(-1)
    u, r = np.split(1 / (1 + np.exp(-projected)), 2, axis=-1)
    expected = (u * (r * eco - 1) + 2) * rel_pos
    inputs = [query, query_bias, rel_pos, weight, bias, eco]
    check("GatedRelativePositionBias", inputs, {"num_heads": N}, expected=[expected.astype(F)], constants=(3,))
