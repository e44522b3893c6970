"""Sequences without padding, linear recurrences, causal convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft_harness import check, expand_model, node_model, normal

F, I32 = np.float32, np.int32
B, S, N, H = 3, 4, 2, 4
D = N * H
COUNTS = np.array([1, 2, 4], I32)
OFFSETS = np.array([[0, 4, 5, 8], [9, 10, 11, 1], [2, 3, 6, 7]], I32)
SUMS = np.array([0, 1, 3, 7], I32)
PLACES = OFFSETS.reshape(-1)[:7]
KNOWN = {"shapes": (False,)}


def restored(x):
    full = np.zeros((B * S, x.shape[1]), x.dtype)
    full[PLACES] = x
    return full.reshape(B, S, -1)


def packed(x):
    return x.reshape(B * S, -1)[PLACES].astype(F)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads(x):
    return x.reshape(B, -1, N, H).transpose(0, 2, 1, 3)


def attend(q, k, v, mask, scale=H**-0.5):
    y = softmax(heads(q) @ heads(k).swapaxes(-1, -2) * scale + mask) @ heads(v)
    return y.transpose(0, 2, 1, 3).reshape(B, -1, D)


VALID = np.where(np.arange(S) < COUNTS[:, None], 0, -10000.0)[:, None, None]


def test_remove_and_restore_padding():
    x = normal(B, S, D)
    rows = packed(x)
    check("RemovePadding", [x, COUNTS], {}, [F, I32, I32, I32], expected=[rows, OFFSETS, SUMS, np.array([4], I32)])
    check("RestorePadding", [rows, OFFSETS], {}, expected=[restored(rows)])


def test_packed_multi_head_attention():
    q, k, v = (normal(7, D, seed=i) for i in range(3))
    bias, scores = normal(3 * D, seed=9), normal(1, N, S, S, seed=4)
    shifted = [restored(x + c) for x, c in zip((q, k, v), np.split(bias, 3), strict=True)]
    expected = packed(attend(*shifted, VALID + scores))
    inputs = [q, k, v, bias, OFFSETS, SUMS, scores]
    check("PackedMultiHeadAttention", inputs, {"num_heads": N}, expected=[expected])
    together = np.stack([x.reshape(7, N, H) for x in (q, k, v)], axis=2)
    expected = packed(attend(restored(q), restored(k), restored(v), VALID))
    check("PackedMultiHeadAttention", [together, *[None] * 3, OFFSETS, SUMS], {"num_heads": N}, expected=[expected])


def test_packed_attention():
    x, w, bias = normal(7, 5), normal(5, 3 * D, seed=1), normal(3 * D, seed=9)
    parts = [restored(p) for p in np.split(x @ w + bias, 3, axis=1)]
    expected = packed(attend(*parts, VALID, 0.3))
    attributes = {"num_heads": N, "scale": 0.3}
    check("PackedAttention", [x, w, bias, OFFSETS, SUMS], attributes, expected=[expected], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_decoder_attention(static, cached):
    query, encoder = normal(S, B, D), normal(5, B, D, seed=2)
    w_q, w_kv, bias = normal(D, D, seed=3), normal(D, 2 * D, seed=4), normal(3 * D, seed=9)
    caches = [normal(B, N, 3, H, seed=i) for i in (5, 6)]
    q = query.transpose(1, 0, 2) @ w_q + bias[:D]
    if static and cached:
        k, v = caches
    else:
        source = (encoder if static else query).transpose(1, 0, 2) @ w_kv + bias[D:]
        k, v = heads(source[..., :D]), heads(source[..., D:])
        if cached:
            k, v = (np.concatenate([c, x], axis=2) for c, x in zip(caches, (k, v), strict=True))
    padding = np.zeros((B, k.shape[2]), bool)
    padding[1, -1] = True
    scores = heads(q) @ k.swapaxes(-1, -2) / np.sqrt(H) + np.where(padding, -10000.0, 0)[:, None, None]
    y = (softmax(scores) @ v).transpose(2, 0, 1, 3).reshape(S, B, D)
    flags = [np.array([f]) for f in (static, cached, cached, True)]
    inputs = [query, encoder, w_q, w_kv, bias, padding, *caches, *flags]
    expected = [v_.astype(F) for v_ in (y, k, v)]
    options = {"constants": (8, 9, 10, 11), "rtol": 1e-4, "atol": 1e-4}
    check("DecoderAttention", inputs, {"num_heads": N}, [F] * 3, expected=expected, **options)


def test_longformer_attention():
    x, mask, flags = normal(B, S, D), np.zeros((B, S), F), np.zeros((B, S), I32)
    flags[0, 1] = flags[2, 3] = 1
    mask[1, 3:] = -10000
    weights = [normal(D, 3 * D, seed=1), normal(3 * D, seed=9), normal(D, 3 * D, seed=2), normal(3 * D, seed=3)]
    local, everywhere = x @ weights[0] + weights[1], x @ weights[2] + weights[3]
    near = np.abs(np.arange(S)[:, None] - np.arange(S)) <= 1
    seen = near | (flags > 0)[:, None, None]
    padding = mask[:, None, None]
    narrow = attend(*np.split(local, 3, axis=-1), np.where(seen, padding, -np.inf))
    wide = attend(*np.split(everywhere, 3, axis=-1), padding)
    expected = np.where((flags > 0)[..., None], wide, narrow).astype(F)
    inputs = [x, weights[0], weights[1], mask, weights[2], weights[3], flags]
    attributes = {"num_heads": N, "window": 1}
    check("LongformerAttention", inputs, attributes, expected=[expected], rtol=1e-4, atol=1e-4)


# Recurrences

RULES = ["linear", "gated", "delta", "gated_delta"]
K_SIZE, V_SIZE, LENGTH = 4, 3, 5


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("queries", "keys", "values"), [(2, 2, 2), (4, 2, 2), (2, 2, 4), (2, 1, 4)])
@pytest.mark.parametrize("per_key", [False, True])
def test_linear_attention(rule, queries, keys, values, per_key):
    q, k = normal(2, LENGTH, queries * K_SIZE), normal(2, LENGTH, keys * K_SIZE, seed=1) * F(0.5)
    v = normal(2, LENGTH, values * V_SIZE, seed=2)
    decay = normal(2, LENGTH, values * (K_SIZE if per_key else 1), seed=3) * F(0.3) - F(0.5)
    state = normal(2, values, K_SIZE, V_SIZE, seed=5) if per_key else None
    rate = normal(2, LENGTH, values, seed=4)
    inputs = [q, k, v, state, decay if "gated" in rule else None, rate if "delta" in rule else None]
    attributes = {"q_num_heads": queries, "kv_num_heads": values, "update_rule": rule}
    check("LinearAttention", inputs, attributes, [F, F], rtol=1e-4, atol=1e-4, **KNOWN)


def test_linear_attention_with_one_rate_and_a_scale():
    q, k, v = normal(2, LENGTH, 8), normal(2, LENGTH, 8, seed=1) * F(0.5), normal(2, LENGTH, 6, seed=2)
    inputs = [q, k, v, None, normal(2, LENGTH, 2, seed=3) * F(0.3) - F(0.5), normal(2, LENGTH, 1, seed=4)]
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "scale": 0.7}
    check("LinearAttention", inputs, attributes, [F, F], rtol=1e-4, atol=1e-4, **KNOWN)


def test_linear_attention_gate():
    inputs = [normal(2, LENGTH, 4), normal(4, seed=1), -np.abs(normal(4, seed=2)), normal(2, LENGTH, 4, seed=3)]
    check("LinearAttentionGate", inputs, {}, [F, F])


GATES = [
    {},
    {"qk_l2_norm": 1, "gate_activation": "softplus", "beta_activation": "sigmoid"},
    {"gate_activation": "sigmoid", "gate_lower_bound": -3.0},
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("values", [2, 4])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("gates", GATES)
def test_gated_delta_net(rule, values, ragged, gates):
    gated = "gated" in rule
    if gates and not gated:
        pytest.skip("there is no gate to activate")
    sums = np.array([0, 2, 9], I32) if ragged else None
    tokens = 9 if ragged else 10
    q, k = normal(tokens, 2, K_SIZE), normal(tokens, 2, K_SIZE, seed=1) * F(0.5)
    width = (K_SIZE,) if values == 4 else ()
    decay = normal(tokens, values, *width, seed=3) * F(0.3) - F(0.5) if gated else None
    rate = normal(tokens, values, seed=6) if "delta" in rule else None
    own = [normal(values, seed=i) for i in (8, 9)] if gates else [None, None]
    state = normal(2, values, V_SIZE, K_SIZE, seed=7)
    inputs = [q, k, normal(tokens, values, V_SIZE, seed=2), sums, decay, rate, state, *own]
    check("GatedDeltaNet", inputs, {"update_rule": rule, **gates}, [F, F], rtol=1e-4, atol=1e-4, **KNOWN)


@pytest.mark.parametrize("packed_inputs", [False, True])
def test_gated_delta_net_in_other_layouts(packed_inputs):
    state = normal(2, 4, V_SIZE, K_SIZE, seed=7)
    if packed_inputs:
        qkv = [normal(10, 2 * 2 * K_SIZE + 4 * V_SIZE) * F(0.5), None, None]
        gates = [normal(10, 4, seed=3) * F(0.3) - F(0.5), normal(10, 4, seed=4)]
    else:
        q = normal(2, LENGTH, 2, K_SIZE)
        qkv = [q, q * F(0.3), normal(2, LENGTH, 4, V_SIZE, seed=2)]
        gates = [normal(2, LENGTH, 4, seed=3) * F(0.3) - F(0.5), normal(2, LENGTH, 4, seed=4)]
    check("GatedDeltaNet", [*qkv, None, *gates, state], {}, [F, F], rtol=1e-4, atol=1e-4, **KNOWN)


# Causal convolutions


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (4, 2)])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("last", [0, 1])
def test_causal_conv_with_state(kernel, dilation, activation, given, last):
    history = (kernel - 1) * dilation
    x, weight = normal(2, 6, LENGTH), normal(6, 1, kernel, seed=1)
    bias, state = (normal(6, seed=3), normal(2, 6, history, seed=4)) if given else (None, None)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(2, LENGTH, 2, 3)
        state = None if state is None else np.ascontiguousarray(state.transpose(0, 2, 1)).reshape(2, history, 2, 3)
    attributes = {"dilation": dilation, "activation": activation, "channels_last": last}
    check("CausalConvWithState", [x, weight, bias, state], attributes, [F, F], constants=(1,))


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (4, 2)])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_varlen_causal_conv_with_state(kernel, dilation, activation):
    sums, history = np.array([0, 1, 5, 9], I32), (kernel - 1) * dilation
    inputs = [normal(9, 6), normal(6, 1, kernel, seed=1), sums, normal(6, seed=2), normal(3, 6, history, seed=4)]
    attributes = {"dilation": dilation, "activation": activation}
    check("VarlenCausalConvWithState", inputs, attributes, [F, F], constants=(1,))


def test_windows_of_states_are_left_alone():
    inputs = [normal(1, 6, 5), normal(6, 1, 3, seed=1), None, normal(2, 1, 6, 2)]
    model = node_model("CausalConvWithState", inputs, {"state_window": 2}, [F, F])
    assert [n.op_type for n in expand_model(model).graph.node] == ["CausalConvWithState"]
