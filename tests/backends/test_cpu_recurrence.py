"""RNN, GRU and LSTM in machine code against the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import empty_like, run_node, run_strided

from accord.backends.cpu import recurrence
from accord.errors import ExecutionError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
ACTIVATIONS = [
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign",
    "Softplus",
]  # fmt: skip
TOLERANCE = {"float32": 3e-6, "float64": 1e-14, "float16": 1e-3}


class Layer:
    """A random recurrent node: model, feeds."""

    def __init__(self, op: str, dtype: str, sizes: tuple[int, int, int, int], rng: np.random.Generator, **how: Any):
        steps, batch, features, hidden = sizes
        direction, layout = how.get("direction", "forward"), how.get("layout", 0)
        d = 2 if direction == "bidirectional" else 1
        g = GATES[op]
        state = (batch, d, hidden) if layout else (d, batch, hidden)
        shapes = {
            "x": (batch, steps, features) if layout else (steps, batch, features),
            "w": (d, g * hidden, features),
            "r": (d, g * hidden, hidden),
            "b": (d, 2 * g * hidden),
            "lens": (batch,),
            "h": state,
            "c": state,
            "p": (d, 3 * hidden),
        }
        given_names = ["x", "w", "r", *(n for n in ("b", "lens", "h", "c", "p") if n in how.get("given", ()))]
        if op != "LSTM":
            given_names = [n for n in given_names if n not in ("c", "p")]
        scale = {"w": features, "r": hidden}  # so that activations without a bound do not make states grow
        self.feeds = {
            n: (rng.standard_normal(shapes[n]) / 2 / math.sqrt(scale.get(n, 1))).astype(dtype) for n in given_names
        }
        if "lens" in self.feeds:
            self.feeds["lens"] = rng.integers(0, steps + 1, batch).astype(np.int32)
        order = ["x", "w", "r", "b", "lens", "h", "c", "p"]
        names = [n if n in self.feeds else "" for n in order]
        while not names[-1]:
            names.pop()
        outputs = [
            n if n in how.get("outputs", ("y",)) else "" for n in ("y", "y_h", "y_c")[: 3 if op == "LSTM" else 2]
        ]
        while not outputs[-1]:
            outputs.pop()
        attributes = {"hidden_size": hidden, "direction": direction, "layout": layout, **how.get("attributes", {})}
        proto_node = node(op, names, outputs, **attributes)
        constant = how.get("constant", ())
        constants = {n: a for n, a in self.feeds.items() if n in constant}
        self.feeds = {n: a for n, a in self.feeds.items() if n not in constant}
        symbolic = how.get("symbolic", False)
        inputs = {
            n: (a.dtype, [f"{n}{i}" for i in range(a.ndim)] if symbolic else a.shape) for n, a in self.feeds.items()
        }
        self.proto: onnx.ModelProto = model([proto_node], inputs, [n for n in outputs if n], constants, opset=22)

    def reference(self) -> list[np.ndarray]:
        return list(Model(self.proto, Options(level=0, reference=True))(self.feeds))


@st.composite
def layers(draw):
    op = draw(st.sampled_from(list(GATES)))
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    sizes = (
        draw(st.integers(1, 6)),
        draw(st.sampled_from([1, 1, 2, 3, 7, 13])),
        draw(st.sampled_from([1, 3, 16, 21])),
        draw(st.sampled_from([1, 2, 5, 16, 19, 32, 64])),
    )
    how: dict[str, Any] = {
        "direction": draw(st.sampled_from(["forward", "reverse", "bidirectional"])),
        "layout": draw(st.integers(0, 1)),
        "given": draw(st.sets(st.sampled_from(["b", "lens", "h", "c", "p"]))),
        "outputs": draw(st.sets(st.sampled_from(["y", "y_h", "y_c"]), min_size=1)),
        "constant": draw(st.sampled_from([(), ("w", "r"), ("w", "r", "b", "p"), ("r", "p"), ("b",)])),
        "symbolic": draw(st.booleans()),
    }
    if op != "LSTM" and how["outputs"] == {"y_c"}:
        how["outputs"] = {"y_h"}
    attributes: dict[str, Any] = {}
    if op == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    if op == "LSTM":
        attributes["input_forget"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        attributes["clip"] = 0.4
    if draw(st.integers(0, 2)) == 0:
        count = FUNCTIONS[op] * (2 if how["direction"] == "bidirectional" else 1)
        attributes["activations"] = draw(st.lists(st.sampled_from(ACTIVATIONS), min_size=count, max_size=count))
        attributes["activation_alpha"] = [0.3, 0.6][: draw(st.integers(1, 2))]
        attributes["activation_beta"] = [0.2]
    how["attributes"] = attributes
    return op, dtype, sizes, how, draw(st.integers(0, 2**32))


def agree(found, wanted, dtype):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        scale = max(1.0, float(np.abs(b.astype(np.float64)).max(initial=0)))
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), atol=TOLERANCE[dtype] * scale, rtol=0)


@SETTINGS
@given(layers())
def test_layers(drawn):
    op, dtype, sizes, how, seed = drawn
    layer = Layer(op, dtype, sizes, np.random.default_rng(seed), **how)
    agree(Model(layer.proto, Options(level=0, strict=True))(layer.feeds), layer.reference(), dtype)


@SETTINGS
@given(layers())
def test_any_strides(drawn):
    op, dtype, sizes, how, seed = drawn
    layer = Layer(op, dtype, sizes, np.random.default_rng(seed), **how)
    agree(run_strided(layer.proto, layer.feeds, seed), layer.reference(), dtype)


@pytest.mark.parametrize("op", list(GATES))
@pytest.mark.parametrize("batch", [1, 30])
def test_wide_layers(op, batch):
    rng = np.random.default_rng(batch)
    layer = Layer(op, "float32", (3, batch, 40, 192), rng, constant=("w", "r", "b"), given=("b",), outputs=("y", "y_h"))
    agree(Model(layer.proto, Options(level=0, strict=True))(layer.feeds), layer.reference(), "float32")


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("op", list(GATES))
def test_members_that_come_at_any_time(op, direction, together, monkeypatch):
    """The parts of a step are whose they will, one after the other or at once: the result has the same bits."""
    how = {"direction": direction, "given": ("b", "h"), "constant": ("w", "r", "b")}
    layer = Layer(op, "float32", (40, 3, 8, 75), np.random.default_rng(0), **how)
    feeds = {n: np.ascontiguousarray(a) for n, a in layer.feeds.items()}
    shape = layer.reference()[0].shape

    def run(seed: int) -> np.ndarray:
        output = empty_like(shape, np.float32)
        kernel = run_node(layer.proto, feeds, [output], seed=seed, together=together)
        sizes.append(kernel.phases[-1].fixed().launch(()).tasks)
        return output

    sizes: list[int] = []
    monkeypatch.setattr(recurrence, "_MEMBER_NS", 1e9)
    alone = run(0)
    monkeypatch.setattr(recurrence, "_MEMBER_NS", 1)
    for seed in range(20):
        np.testing.assert_array_equal(run(seed), alone)
    assert sizes[1] == 4 * sizes[0]


@pytest.mark.parametrize("op", list(GATES))
def test_no_step(op):
    layer = Layer(op, "float32", (0, 2, 3, 4), np.random.default_rng(0), given=("h", "c"), outputs=("y", "y_h", "y_c"))
    found = Model(layer.proto, Options(level=0, strict=True))(layer.feeds)
    np.testing.assert_array_equal(found[1], layer.feeds["h"])
    if op == "LSTM":
        np.testing.assert_array_equal(found[2], layer.feeds["c"])


def test_a_repeated_step():
    layer = Layer("LSTM", "float32", (5, 2, 8, 16), np.random.default_rng(0), outputs=("y",))
    layer.feeds["x"][...] = layer.feeds["x"][0]
    agree(run_strided(layer.proto, layer.feeds, 1, repeat=["x"]), layer.reference(), "float32")


@pytest.mark.parametrize("length", [-1, 4])
def test_a_length_outside_the_steps(length):
    layer = Layer("GRU", "float32", (3, 2, 3, 4), np.random.default_rng(0), given=("lens",))
    fast = Model(layer.proto, Options(level=0, strict=True))
    with pytest.raises(ExecutionError, match="outside"):
        fast({**layer.feeds, "lens": np.array([1, length], np.int32)})
    agree(fast(layer.feeds), layer.reference(), "float32")


def test_not_a_number_spreads_to_its_own_entry_only():
    layer = Layer("LSTM", "float32", (4, 3, 8, 16), np.random.default_rng(3), constant=("w", "r"))
    layer.feeds["x"][1, 1, 2] = np.nan
    found = Model(layer.proto, Options(level=0, strict=True))(layer.feeds)[0]
    wanted = layer.reference()[0]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    assert np.isnan(found[1:, :, 1]).all() and not np.isnan(found[:, :, [0, 2]]).any()


@SETTINGS
@given(
    st.lists(st.sampled_from([1, 2, 3, 5, 18]), min_size=2, max_size=4).map(tuple),
    st.sampled_from(["float32", "float64", "float16", "int8", "bool"]),
    st.integers(0, 1),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_reverse_sequence(shape, dtype, time, symbolic, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    lengths = rng.integers(0, shape[time] + 1, shape[1 - time])
    proto = model(
        [node("ReverseSequence", ["x", "n"], ["y"], time_axis=time, batch_axis=1 - time)],
        {"x": (dtype, [f"d{i}" for i in range(len(shape))] if symbolic else shape), "n": (np.int64, [shape[1 - time]])},
        ["y"],
    )
    feeds = {"x": x, "n": lengths}
    (wanted,) = Model(proto, Options(level=0, reference=True))(feeds)
    np.testing.assert_array_equal(Model(proto, Options(level=0, strict=True))(feeds)[0], wanted)
    np.testing.assert_array_equal(run_strided(proto, feeds, seed)[0], wanted)


@pytest.mark.parametrize("length", [-1, 4])
def test_a_length_that_reverse_sequence_refuses(length):
    proto = model(
        [node("ReverseSequence", ["x", "n"], ["y"])], {"x": (np.float32, [3, 2]), "n": (np.int64, [2])}, ["y"]
    )
    with pytest.raises(ExecutionError, match="outside"):
        Model(proto, Options(level=0, strict=True))(np.ones((3, 2), np.float32), np.array([1, length]))


@pytest.mark.parametrize("op", list(GATES))
@pytest.mark.parametrize("constant", [(), ("w", "r", "b")])
def test_bfloat16(op, constant):
    import ml_dtypes

    rng = np.random.default_rng(5)
    layer = Layer(op, ml_dtypes.bfloat16, (4, 3, 9, 20), rng, given=("b", "h"), constant=constant, outputs=("y", "y_h"))
    found = Model(layer.proto, Options(level=0, strict=True))(layer.feeds)
    for a, b in zip(found, layer.reference(), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=0, atol=1 / 128)
