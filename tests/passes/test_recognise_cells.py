"""Unrolled LSTM and GRU cells, as exporters write one step."""

from __future__ import annotations

import numpy as np
import pytest
from recognise_harness import F, G, attributes, compiled, in_onnxruntime, nodes, ops, reasons, same

RNG = np.random.default_rng(17)
B, X, H = 2, 5, 4


def rand(*shape, dtype=F):
    return RNG.standard_normal(shape).astype(dtype)


FEEDS = {"x": rand(B, X), "h": rand(B, H), "c": rand(B, H)}
LSTM_INPUTS = {"x": ["b", X], "h": ["b", H], "c": ["b", H]}
GRU_INPUTS = {"x": ["b", X], "h": ["b", H]}


def lstm(g, i, f, o, p, c):
    new = g("Add", g("Mul", g("Sigmoid", f), c), g("Mul", g("Sigmoid", i), g("Tanh", p)))
    return g("Mul", g("Sigmoid", o), g("Tanh", new)), new


def torch_lstm(g, x="x", h="h", c="c", features=X):
    """torch.nn.LSTMCell: two Gemms, their sum split into i, f, g, o."""
    a = g("Gemm", h, rand(4 * H, H), rand(4 * H), transB=1)
    total = g("Add", a, g("Gemm", x, rand(4 * H, features), rand(4 * H), transB=1))
    i, f, p, o = g("Split", total, np.array([H] * 4), outputs=4, axis=1)
    return lstm(g, i, f, o, p, c)


def keras_lstm(g, x="x", h="h", c="c", features=X):
    """implementation=1: a product for each gate."""

    def gate():
        return g("Add", g("Add", g("MatMul", x, rand(features, H)), rand(H)), g("MatMul", h, rand(H, H)))

    return lstm(g, gate(), gate(), gate(), gate(), c)


def tf_lstm(g, x="x", h="h", c="c", features=X):
    """BasicLSTMCell: input and state joined, one product, slices i, j, f, o, one added to f."""
    total = g("Add", g("MatMul", g("Concat", x, h, axis=1), rand(features + H, 4 * H)), rand(4 * H))
    cuts = [g("Slice", total, np.array([k * H]), np.array([k * H + H]), np.array([1])) for k in range(4)]
    i, p, f, o = cuts
    return lstm(g, i, g("Add", f, 1.0), o, p, c)


def mixed_lstm(g, x="x", h="h", c="c", features=X):
    """The recurrent part given to the Gemm of the input as its bias."""
    a = g("MatMul", h, rand(H, 4 * H))
    total = g("Gemm", x, rand(features, 4 * H), a, alpha=0.5)
    i, f, p, o = g("Split", total, np.array([H] * 4), outputs=4, axis=1)
    return lstm(g, i, f, o, p, c)


LSTMS = [torch_lstm, keras_lstm, tf_lstm, mixed_lstm]


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("form", LSTMS, ids=lambda f: f.__name__)
def test_lstm_cell(form, opset):
    g = G(opset)
    h, c = form(g)
    proto = g.model(LSTM_INPUTS, h, c)
    m = compiled(proto)
    assert ops(m).count("LSTM") == 1, reasons(m)
    assert not set(ops(m)) & {"Sigmoid", "Tanh", "MatMul", "Gemm"}
    assert attributes(m, "LSTM")["hidden_size"] == H
    same(proto, FEEDS, m)
    in_onnxruntime(m, FEEDS)


@pytest.mark.parametrize("form", LSTMS, ids=lambda f: f.__name__)
def test_steps_that_follow_each_other(form):
    g = G(13)
    h, c = form(g)
    h, c = form(g, "x", h, c)
    h, c = form(g, h, h, c, H) if form is not tf_lstm else (h, c)
    proto = g.model(LSTM_INPUTS, h, c)
    m = compiled(proto)
    same(proto, FEEDS, m)
    assert ops(m).count("LSTM") >= 2, reasons(m)


def test_a_cell_state_that_is_read_before_the_output():
    g = G(13)
    h, c = torch_lstm(g)
    # c is read by a node that stands before the one that makes h
    g.nodes.insert(len(g.nodes) - 1, g.nodes[-1].__class__(op_type="Sin", input=[c], output=["s"]))
    proto = g.model(LSTM_INPUTS, h, "s")
    m = compiled(proto)
    assert "LSTM" in ops(m), reasons(m)
    same(proto, FEEDS, m)


def test_a_gate_that_is_read_elsewhere():
    g = G(13)
    h, c = torch_lstm(g)
    gate = next(n for n in g.nodes if n.op_type == "Sigmoid").output[0]
    m = compiled(g.model(LSTM_INPUTS, h, c, gate))
    assert "LSTM" not in ops(m)
    assert any("is also read by the caller" in r for r in reasons(m, "recognise-lstm-cell"))


def test_weights_that_are_computed():
    g = G(13)
    a = g("Add", g("MatMul", "h", "w"), g("MatMul", "x", rand(X, 4 * H)))
    i, f, p, o = g("Split", a, np.array([H] * 4), outputs=4, axis=1)
    m = compiled(g.model({**LSTM_INPUTS, "w": [H, 4 * H]}, *lstm(g, i, f, o, p, "c")))
    assert "LSTM" not in ops(m)
    assert any("no sum of products with constant" in r for r in reasons(m, "recognise-lstm-cell"))


def test_three_inputs():
    g = G(13)
    a = g("Add", g("MatMul", "h", rand(H, 4 * H)), g("MatMul", "x", rand(X, 4 * H)))
    a = g("Add", a, g("MatMul", "y", rand(3, 4 * H)))
    i, f, p, o = g("Split", a, np.array([H] * 4), outputs=4, axis=1)
    m = compiled(g.model({**LSTM_INPUTS, "y": ["b", 3]}, *lstm(g, i, f, o, p, "c")))
    assert "LSTM" not in ops(m)
    assert any("made of 3 values" in r for r in reasons(m, "recognise-lstm-cell"))


# GRU


def torch_gru(g, mix, x="x", h="h"):
    """torch.nn.GRUCell: r, z, n in this order; the reset comes after the product."""
    a = g("Gemm", x, rand(3 * H, X), rand(3 * H), transB=1)
    b = g("Gemm", h, rand(3 * H, H), rand(3 * H), transB=1)
    ra, za, na = g("Split", a, np.array([H] * 3), outputs=3, axis=1)
    rb, zb, nb = g("Split", b, np.array([H] * 3), outputs=3, axis=1)
    r, z = g("Sigmoid", g("Add", ra, rb)), g("Sigmoid", g("Add", za, zb))
    n = g("Tanh", g("Add", na, g("Mul", r, nb)))
    return mix(g, z, n, h)


def keras_gru(g, mix, x="x", h="h"):
    """reset_after=False: the state is reset before the product."""

    def part(v, k):
        return g("MatMul", v, rand(k, H))

    z = g("Sigmoid", g("Add", g("Add", part(x, X), rand(H)), part(h, H)))
    r = g("Sigmoid", g("Add", part(h, H), g("Add", part(x, X), rand(H))))
    n = g("Tanh", g("Add", g("Add", part(x, X), rand(H)), part(g("Mul", r, h), H)))
    return mix(g, z, n, h)


def plain(g, z, n, h):
    return g("Add", g("Mul", g("Sub", 1.0, z), n), g("Mul", z, h))


def keras_mix(g, z, n, h):
    """z keeps the state."""
    return g("Add", g("Mul", z, h), g("Mul", g("Sub", 1.0, z), n))


def swapped(g, z, n, h):
    """z takes the proposal."""
    return g("Add", g("Mul", g("Sub", 1.0, z), h), g("Mul", n, z))


def difference(g, z, n, h):
    return g("Add", n, g("Mul", z, g("Sub", h, n)))


@pytest.mark.parametrize("mix", [plain, keras_mix, swapped, difference], ids=lambda f: f.__name__)
@pytest.mark.parametrize("form", [torch_gru, keras_gru], ids=lambda f: f.__name__)
def test_gru_cell(form, mix):
    g = G(13)
    h = form(g, mix)
    proto = g.model(GRU_INPUTS, h)
    m = compiled(proto)
    assert ops(m).count("GRU") == 1, reasons(m)
    assert not set(ops(m)) & {"Sigmoid", "Tanh", "MatMul", "Gemm"}
    assert attributes(m, "GRU")["linear_before_reset"] == int(form is torch_gru)
    feeds = {k: FEEDS[k] for k in ("x", "h")}
    same(proto, feeds, m)
    in_onnxruntime(m, feeds)


@pytest.mark.parametrize("form", [torch_gru, keras_gru], ids=lambda f: f.__name__)
def test_gru_steps_that_follow_each_other(form):
    g = G(13)
    h = form(g, plain, "x", form(g, plain))
    proto = g.model(GRU_INPUTS, h)
    m = compiled(proto)
    assert ops(m).count("GRU") == 2, reasons(m)
    assert len(nodes(m, "GRU")[1].inputs) == 6
    same(proto, {k: FEEDS[k] for k in ("x", "h")}, m)


@pytest.mark.parametrize(
    "mix",
    [
        lambda g, z, n, h: g("Add", g("Mul", g("Sub", 1.0, z), n), g("Mul", z, g("Mul", h, 0.5))),
        lambda g, z, n, h: g("Sub", g("Mul", g("Sub", 1.0, z), n), g("Mul", z, h)),
        lambda g, z, n, h: g("Add", g("Mul", g("Sub", 2.0, z), n), g("Mul", z, h)),
    ],
)
def test_other_mixtures_stay(mix):
    g = G(13)
    proto = g.model(GRU_INPUTS, torch_gru(g, mix))
    m = compiled(proto)
    assert "GRU" not in ops(m)
    same(proto, {k: FEEDS[k] for k in ("x", "h")}, m)
