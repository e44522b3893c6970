"""RNN, GRU and LSTM: against their equations, one sequence and one step at a time, and against ONNX Runtime.

ONNX Runtime does not limit the cell before the last activation of an LSTM, has defaults of its own for the parameters
of activations, and knows no layout 1; so it is not asked about these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_harness import assert_agrees, assert_close, normal, run

_seeds = st.integers(0, 2**32 - 1)
_PARAMETERS = {"LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1, "HardSigmoid": 2, "Affine": 2, "ScaledTanh": 2}
_NAMES = ["Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", *_PARAMETERS]
#: Operator → number of gates, of activation functions, of states.
_KINDS = {"RNN": (1, 1, 1), "GRU": (3, 2, 1), "LSTM": (4, 3, 2)}


def _tensors(seed: int, gates: int, steps: int, batch: int, size: int, hidden: int, count: int) -> list[Any]:
    """X, W, R, B, initial_h, initial_c, P: small, so that no state grows beyond what float32 and exp can hold."""
    shapes = (
        (steps, batch, size),
        (count, gates * hidden, size),
        (count, gates * hidden, hidden),
        (count, 2 * gates * hidden),
        (count, batch, hidden),
        (count, batch, hidden),
        (count, 3 * hidden),
    )
    return [v / 4 for v in normal(seed, *shapes)]


# --- the specification's equations ---------------------------------------------------------------------------


def _function(name: str, clip: float | None) -> Callable[[Any], Any]:
    """An activation with the defaults of the operator of its name; ``clip`` bounds its argument."""
    plain: dict[str, Callable[[Any], Any]] = {
        "Relu": lambda x: np.maximum(0, x),
        "Tanh": np.tanh,
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "Softsign": lambda x: x / (1 + np.abs(x)),
        "Softplus": lambda x: np.log(1 + np.exp(x)),
        "LeakyRelu": lambda x: np.where(x >= 0, x, 0.01 * x),
        "ThresholdedRelu": lambda x: np.where(x >= 1, x, 0),
        "Elu": lambda x: np.where(x >= 0, x, np.exp(x) - 1),
        "HardSigmoid": lambda x: np.minimum(np.maximum(0.2 * x + 0.5, 0), 1),
        "Affine": lambda x: x,
        "ScaledTanh": np.tanh,
    }
    return plain[name] if clip is None else lambda x: plain[name](np.clip(x, -clip, clip))


def _step(op: str, f: list[Any], x: Any, h: Any, c: Any, w: Any, r: Any, b: Any, p: Any, option: int) -> Any:
    """New h and c of one sequence; the weights are those of one direction, by gate."""
    wb, rb = b
    if op == "RNN":
        return f[0](w[0] @ x + r[0] @ h + wb[0] + rb[0]), c
    if op == "GRU":
        z = f[0](w[0] @ x + r[0] @ h + wb[0] + rb[0])
        reset = f[0](w[1] @ x + r[1] @ h + wb[1] + rb[1])
        hidden = reset * (r[2] @ h + rb[2]) if option else r[2] @ (reset * h) + rb[2]
        return (1 - z) * f[1](w[2] @ x + hidden + wb[2]) + z * h, c
    i = f[0](w[0] @ x + r[0] @ h + p[0] * c + wb[0] + rb[0])
    forget = 1 - i if option else f[0](w[2] @ x + r[2] @ h + p[2] * c + wb[2] + rb[2])
    cell = forget * c + i * f[1](w[3] @ x + r[3] @ h + wb[3] + rb[3])
    o = f[0](w[1] @ x + r[1] @ h + p[1] * cell + wb[1] + rb[1])
    return o * f[2](cell), cell


@pytest.mark.parametrize("op", _KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=_seeds)
def test_equations(op: str, data: st.DataObject, seed: int) -> None:
    gates, functions, states = _KINDS[op]
    steps, batch, size, hidden = (data.draw(st.integers(1, 4)) for _ in range(4))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    x, w, r, b, h, c, p = _tensors(seed, gates, steps, batch, size, hidden, count)
    lengths = np.array([data.draw(st.integers(0, steps)) for _ in range(batch)], np.int32)
    clip = data.draw(st.sampled_from([None, 0.2]))
    option, layout = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    names = [data.draw(st.sampled_from(_NAMES)) for _ in range(functions * count)]

    y = np.zeros((steps, count, batch, hidden))
    last_h, last_c = h.astype(np.float64), c.astype(np.float64)
    for d in range(count):
        f = [_function(name, clip) for name in names[d * functions : (d + 1) * functions]]
        by_gate = [
            w[d].reshape(gates, hidden, size).astype(np.float64),
            r[d].reshape(gates, hidden, hidden).astype(np.float64),
            b[d].reshape(2, gates, hidden).astype(np.float64),
            p[d].reshape(3, hidden).astype(np.float64),
        ]
        for n in range(batch):
            order = range(lengths[n])
            for t in reversed(order) if direction == "reverse" or d == 1 else order:
                last_h[d, n], last_c[d, n] = _step(
                    op, f, x[t, n].astype(np.float64), last_h[d, n], last_c[d, n], *by_gate, option
                )
                y[t, d, n] = last_h[d, n]

    attributes: dict[str, Any] = {"direction": direction, "activations": names, "clip": clip, "layout": layout}
    if op != "RNN":
        attributes["linear_before_reset" if op == "GRU" else "input_forget"] = option
    if layout:  # the batch comes first
        x, h, c = (v.swapaxes(0, 1) for v in (x, h, c))
        y, last_h, last_c = y.transpose(2, 0, 1, 3), last_h.swapaxes(0, 1), last_c.swapaxes(0, 1)
    inputs = [x, w, r, b, lengths, h, *([c, p] if op == "LSTM" else [])]
    found = run(op, inputs, 1 + states, opset=14, **attributes)
    for have, want in zip(found, (y, last_h, last_c), strict=False):
        assert_close(have, want, 1e-4, 1e-5)


@pytest.mark.parametrize("op", _KINDS)
def test_defaults(op: str) -> None:
    gates, functions, states = _KINDS[op]
    x, w, r = normal(0, (3, 2, 4), (2, gates * 5, 4), (2, gates * 5, 5))
    bare = run(op, [x, w, r], 1 + states, opset=14, direction="bidirectional", hidden_size=5)
    zeros = np.zeros((2, 2, 5), np.float32)
    rest = [np.zeros((2, 2 * gates * 5), np.float32), np.full(2, 3, np.int32), zeros]
    rest += [zeros, np.zeros((2, 15), np.float32)] if op == "LSTM" else []
    names = {1: ["Tanh"], 2: ["Sigmoid", "Tanh"], 3: ["Sigmoid", "Tanh", "Tanh"]}[functions] * 2
    full = run(op, [x, w, r, *rest], 1 + states, opset=14, direction="bidirectional", activations=names)
    for left, right in zip(bare, full, strict=True):
        assert_close(left, right, 0, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_half_precision_is_rounded_once(dtype: Any) -> None:
    x, w, r = (v.astype(dtype) for v in normal(0, (50, 2, 4), (1, 12, 4), (1, 12, 3)))
    y, last = run("LSTM", [x, w, r], 2, opset=14, hidden_size=3)
    wide = run("LSTM", [v.astype(np.float64) for v in (x, w, r)], 2, opset=14, hidden_size=3)
    assert_close(y, wide[0].astype(dtype), 0, 0)
    assert_close(last, wide[1].astype(dtype), 0, 0)


# --- ONNX Runtime --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", _KINDS)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), seed=_seeds)
def test_peer(op: str, data: st.DataObject, seed: int) -> None:
    gates, functions, states = _KINDS[op]
    steps, batch, size, hidden = (data.draw(st.integers(1, 4)) for _ in range(4))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    x, w, r, b, h, c, p = _tensors(seed, gates, steps, batch, size, hidden, count)
    lengths = np.array([data.draw(st.integers(1, steps)) for _ in range(batch)], np.int32)
    present = [data.draw(st.booleans()) for _ in range(5)]
    optional = [b, lengths, h, *([c, p] if op == "LSTM" else [])]
    inputs = [x, w, r, *(v if keep else None for v, keep in zip(optional, present, strict=False))]
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if op == "GRU":
        attributes["linear_before_reset"] = data.draw(st.integers(0, 1))
    if op == "LSTM":
        attributes["input_forget"] = data.draw(st.integers(0, 1))
    elif data.draw(st.booleans()):
        attributes["clip"] = 0.2
    if data.draw(st.booleans()):
        names = [data.draw(st.sampled_from(_NAMES)) for _ in range(functions * count)]
        attributes["activations"] = names
        parameters = [n for n in names if n in _PARAMETERS]
        attributes["activation_alpha"] = [0.25 + 0.1 * i for i, _ in enumerate(parameters)] or None
        attributes["activation_beta"] = [0.5 + 0.1 * i for i, n in enumerate(parameters) if _PARAMETERS[n] > 1] or None
    assert_agrees(op, inputs, 1 + states, opset=14, rtol=1e-3, atol=1e-4, **attributes)
