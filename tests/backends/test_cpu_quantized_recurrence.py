"""LSTM with 8-bit weights in machine code against the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accord.backends.cpu import recurrence
from accord.errors import ExecutionError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = ["x", "w", "r", "b", "lens", "h", "c", "p", "ws", "wz", "rs", "rz"]
#: Whether a code was rounded the other way, for all outputs that were compared.
CODES: list[bool] = []
WEIGHTS = ("w", "r", "ws", "wz", "rs", "rz")


def layer(dtype: Any, sizes: tuple[int, int, int, int], rng: np.random.Generator, **how: Any) -> tuple[Any, Any]:
    """Model and feeds of a random node."""
    steps, batch, features, hidden = sizes
    direction = how.get("direction", "forward")
    d = 2 if direction == "bidirectional" else 1
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    middle = 0 if dtype == np.int8 else 128
    state = (d, batch, hidden)
    parameters = (d, 4 * hidden) if how.get("per_column") else (d,)
    feeds: dict[str, np.ndarray] = {
        "x": rng.standard_normal((steps, batch, features)).astype(np.float32),
        "b": (rng.standard_normal((d, 8 * hidden)) / 2).astype(np.float32),
        "lens": rng.integers(0, steps + 1, batch).astype(np.int32),
        "h": rng.uniform(-1, 1, state).astype(np.float32),
        "c": rng.uniform(-1, 1, state).astype(np.float32),
        "p": rng.uniform(-1, 1, (d, 3 * hidden)).astype(np.float32),
    }
    feeds = {n: a for n, a in feeds.items() if n == "x" or n in how.get("given", ())}
    for name, k in (("w", features), ("r", hidden)):
        feeds[name] = rng.integers(low, high + 1, (d, k, 4 * hidden)).astype(dtype)
        feeds[f"{name}s"] = (rng.uniform(0.5, 1, parameters) / 128 / math.sqrt(k)).astype(np.float32)
        zero = rng.integers(middle - 40, middle + 40, parameters) if how.get("zeros") else np.full(parameters, middle)
        feeds[f"{name}z"] = zero.astype(dtype)
    outputs = [n if n in how.get("outputs", ("y",)) else "" for n in ("y", "y_h", "y_c")]
    while not outputs[-1]:
        outputs.pop()
    attributes = {"hidden_size": hidden, "direction": direction, **how.get("attributes", {})}
    inputs = [n if n in feeds else "" for n in NAMES]
    proto_node = node("DynamicQuantizeLSTM", inputs, outputs, domain="com.microsoft", **attributes)
    constants = {n: a for n, a in feeds.items() if n in how.get("constant", WEIGHTS)}
    feeds = {n: a for n, a in feeds.items() if n not in constants}
    symbolic = how.get("symbolic", False)
    declared = {n: (a.dtype, [f"{n}{i}" for i in range(a.ndim)] if symbolic else a.shape) for n, a in feeds.items()}
    proto = model([proto_node], declared, [n for n in outputs if n], constants, opset=22, domains={"com.microsoft": 1})
    return proto, feeds


def agree(proto: Any, feeds: Any, found: list[np.ndarray]) -> None:
    """Equal to f32, unless a code falls so near to the middle of two that an error of f32 decides: a step of the codes.

    That is allowed to two of a hundred models, and to four more: which ones are drawn is chance.
    """
    for a, b in zip(found, Model(proto, Options(level=0, reference=True))(feeds), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        finite = np.isfinite(b)  # without a bound, states may grow beyond all numbers
        np.testing.assert_array_equal(a[~finite], b[~finite])
        scale = max(1.0, float(np.abs(b[finite]).max(initial=0)))
        worst = float(np.abs(a[finite] - b[finite]).max(initial=0)) / scale
        assert worst < 0.02
        CODES.append(worst > 5e-6)
    assert sum(CODES) <= 4 + len(CODES) / 50


@st.composite
def layers(draw):
    sizes = (
        draw(st.integers(1, 6)),
        draw(st.sampled_from([1, 1, 2, 3, 7, 13])),
        draw(st.sampled_from([1, 3, 16, 21])),
        draw(st.sampled_from([1, 2, 5, 16, 19, 32, 64])),
    )
    how: dict[str, Any] = {
        "direction": draw(st.sampled_from(["forward", "reverse", "bidirectional"])),
        "given": draw(st.sets(st.sampled_from(["b", "lens", "h", "c", "p"]))),
        "outputs": draw(st.sets(st.sampled_from(["y", "y_h", "y_c"]), min_size=1)),
        "constant": draw(st.sampled_from([WEIGHTS, WEIGHTS, (*WEIGHTS, "b", "p"), (), ("r",), ("rs", "rz")])),
        "per_column": draw(st.booleans()),
        "zeros": draw(st.booleans()),
        "symbolic": draw(st.booleans()),
    }
    attributes: dict[str, Any] = {"input_forget": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        attributes["clip"] = 0.4
    if draw(st.integers(0, 2)) == 0:
        count = 6 if how["direction"] == "bidirectional" else 3
        names = ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Elu", "Softsign"]
        attributes["activations"] = draw(st.lists(st.sampled_from(names), min_size=count, max_size=count))
        attributes["activation_alpha"] = [0.3, 0.6][: draw(st.integers(1, 2))]
        attributes["activation_beta"] = [0.2]
    how["attributes"] = attributes
    return draw(st.sampled_from([np.int8, np.uint8])), sizes, how, draw(st.integers(0, 2**32))


@SETTINGS
@given(layers())
def test_layers(drawn):
    dtype, sizes, how, seed = drawn
    proto, feeds = layer(dtype, sizes, np.random.default_rng(seed), **how)
    agree(proto, feeds, list(Model(proto, Options(level=0, strict=True))(feeds)))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("batch", [1, 30])
def test_wide_layers(dtype, batch):
    rng = np.random.default_rng(batch)
    proto, feeds = layer(dtype, (3, batch, 40, 192), rng, given=("b",), zeros=True, outputs=("y", "y_h", "y_c"))
    agree(proto, feeds, list(Model(proto, Options(level=0, strict=True))(feeds)))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_steps_on_several_threads(direction, monkeypatch):
    monkeypatch.setattr(recurrence, "_MEMBER_NS", 1)
    rng = np.random.default_rng(0)
    how = {"direction": direction, "zeros": True, "given": ("h", "lens"), "outputs": ("y", "y_h", "y_c")}
    proto, feeds = layer(np.uint8, (60, 3, 8, 150), rng, **how)
    fast = Model(proto, Options(level=0, strict=True, threads=2))
    alone = list(fast(feeds))
    agree(proto, feeds, alone)
    for _ in range(50):
        for a, b in zip(fast(feeds), alone, strict=True):
            np.testing.assert_array_equal(a, b)


def test_one_range_for_the_batch():
    """An entry's large states make the steps of the codes coarser for all, until its sequence has ended."""
    rng = np.random.default_rng(0)
    attributes = {"activations": ["Sigmoid", "Tanh", "Relu"]}
    proto, feeds = layer(np.int8, (8, 2, 4, 16), rng, given=("lens", "c"), outputs=("y", "y_h"), attributes=attributes)
    feeds["c"][:, 1] *= 1000
    feeds["lens"][...] = 8, 4
    agree(proto, feeds, list(Model(proto, Options(level=0, strict=True))(feeds)))


@pytest.mark.parametrize("length", [-1, 4])
def test_a_length_outside_the_steps(length):
    proto, feeds = layer(np.int8, (3, 2, 3, 4), np.random.default_rng(0), given=("lens",))
    fast = Model(proto, Options(level=0, strict=True))
    with pytest.raises(ExecutionError, match="outside"):
        fast({**feeds, "lens": np.array([1, length], np.int32)})
    agree(proto, feeds, list(fast(feeds)))
