"""Recurrent layers and linear attention against the reference."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import agree, strided_model

from builders import node

F = np.float32
SETTINGS = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SEEDS = st.integers(0, 2**32 - 1)


@SETTINGS
@given(
    st.sampled_from([("RNN", 1), ("GRU", 3), ("LSTM", 4)]),
    st.sampled_from(["forward", "reverse", "bidirectional"]),
    st.sampled_from([(0, 2), (1, 1), (3, 5)]),
    st.sampled_from([1, 5, 34]),
    st.booleans(),
    st.booleans(),
    SEEDS,
)
def test_layers(gpu, kind, direction, sizes, hidden, batch_first, lengths, seed):
    """Sequences of their own lengths, states, biases and peepholes that are there or not, two orders of axes."""
    rng = np.random.default_rng(seed)
    (op, gates), (steps, batch), features = kind, sizes, 3
    directions = 2 if direction == "bidirectional" else 1
    if lengths:
        batch_first = False

    def numbers(*shape):
        return rng.uniform(-1, 1, shape).astype(F)

    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    feeds = {
        "x": numbers(batch, steps, features) if batch_first else numbers(steps, batch, features),
        "w": numbers(directions, gates * hidden, features),
        "r": numbers(directions, gates * hidden, hidden) / 4,
    }
    if rng.random() < 0.7:
        feeds["b"] = numbers(directions, 2 * gates * hidden)
    if lengths:
        feeds["n"] = rng.integers(0, steps + 1, batch).astype(np.int32)
    if rng.random() < 0.5:
        feeds["h"] = numbers(*state)
    if op == "LSTM" and rng.random() < 0.5:
        feeds |= {"c": numbers(*state), "p": numbers(directions, 3 * hidden)}
    names = ["x", "w", "r", "b", "n", "h", *(["c", "p"] if op == "LSTM" else [])]
    attributes = {"hidden_size": hidden, "direction": direction, "layout": int(batch_first)}
    if op == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(2))
    outputs = ["y", "yh", *(["yc"] if op == "LSTM" else [])]
    made = node(op, [n if n in feeds else "" for n in names], outputs, **attributes)
    proto, given_ = strided_model(made, feeds, seed=seed, plain=("w",) if seed % 2 else ())
    agree(proto, given_, rtol=2e-5, atol=2e-5, device="cuda")


@SETTINGS
@given(
    st.sampled_from(["linear", "gated", "delta", "gated_delta"]),
    st.sampled_from([1, 2]),
    st.sampled_from([(0, 2, 2), (1, 8, 4), (5, 5, 40)]),
    st.booleans(),
    SEEDS,
)
def test_linear_attention(gpu, rule, group, sizes, past, seed):
    rng = np.random.default_rng(seed)
    steps, size, width = sizes
    heads = 2

    def numbers(*shape):
        return rng.uniform(-1, 1, shape).astype(F)

    feeds = {
        "q": numbers(2, steps, heads * group * size),
        "k": numbers(2, steps, heads * size) / 2,
        "v": numbers(2, steps, heads * width),
    }
    if past:
        feeds["s"] = numbers(2, heads, size, width)
    if "gated" in rule:
        feeds["g"] = -np.abs(numbers(2, steps, heads * size if seed % 2 else heads))
    if "delta" in rule:
        feeds["b"] = np.abs(numbers(2, steps, heads if seed % 3 else 1))
    names = [n if n in feeds else "" for n in ("q", "k", "v", "s", "g", "b")]
    while names[-1] == "":
        names.pop()
    made = node("LinearAttention", names, ["y", "t"], q_num_heads=heads * group, kv_num_heads=heads, update_rule=rule)
    proto, given_ = strided_model(made, feeds, seed=seed, opset=27)
    agree(proto, given_, rtol=2e-5, atol=2e-5, device="cuda")
