"""Causal masks in the spellings of exporters, and keys and values that are appended to those of earlier steps."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from recognise_harness import F, G, attributes, compiled, in_onnxruntime, nodes, ops, reasons, same

RNG = np.random.default_rng(15)
B, S, H, D = 2, 5, 3, 4
E = H * D
LOW = float(np.finfo(F).min)


def rand(*shape, dtype=F):
    return RNG.standard_normal(shape).astype(dtype)


def heads(g, x):
    return g("Transpose", g("Reshape", x, np.array([0, 0, H, D])), perm=[0, 2, 1, 3])


def attention(g, masked):
    q, k, v = (heads(g, g("MatMul", "x", rand(E, E))) for _ in range(3))
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 0.5)
    y = g("MatMul", g("Softmax", masked(g, scores), axis=-1), v)
    return g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), np.array([0, 0, E]))


def length(g):
    return g("Slice", g("Shape", "x"), np.array([1]), np.array([2]))


def scalar(g):
    return g("Gather", g("Shape", "x"), np.array(1))


def by_trilu(g, scores):
    """torch.tril(torch.ones(s, s))."""
    s = length(g)
    ones = g("ConstantOfShape", g("Concat", s, s, axis=0), value=onnx.numpy_helper.from_array(np.ones(1, F)))
    keep = g("Cast", g("Trilu", ones, upper=0), to=9)
    return g("Where", keep, scores, -np.inf)


def by_triu(g, scores):
    """torch.triu(torch.full((s, s), -inf), diagonal=1), added."""
    s = length(g)
    full = g("Expand", g.const(np.array([[LOW]])), g("Concat", s, s, axis=0))
    return g("Add", scores, g("Trilu", full, np.array(1), upper=1))


def by_ranges(g, scores):
    """Hugging Face before 4.36: where(arange < arange + 1)."""
    r = g("Range", np.array(0), scalar(g), np.array(1))
    less = g("Less", r, g.axes("Unsqueeze", g("Add", r, np.array(1)), [1]))
    mask = g("Where", less, g.const(0.0), g.const(LOW))
    return g("Add", scores, g.axes("Unsqueeze", mask, [0, 1]))


def by_comparison(g, scores):
    """torch.export: index tensors of all four axes compared."""
    r = g("Range", np.array(0), scalar(g), np.array(1))
    keep = g("LessOrEqual", g.axes("Unsqueeze", r, [0, 1, 2]), g.axes("Unsqueeze", r, [0, 1, 3]))
    return g("Where", keep, scores, -np.inf)


def by_buffer(g, scores):
    """GPT-2: a large constant, sliced."""
    table = g.const(np.tril(np.ones((1, 1, 32, 32), bool)))
    s = length(g)
    cut = g("Slice", table, np.array([0]), s, np.array([2]))
    cut = g("Slice", cut, np.array([0]), s, np.array([3]))
    return g("Where", cut, scores, LOW)


FORMS = [by_trilu, by_triu, by_ranges, by_comparison, by_buffer]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("sizes", [("b", "s"), (B, S)], ids=["symbols", "numbers"])
def test_causal(form, sizes):
    g = G(18)
    proto = g.model({"x": [*sizes, E]}, g("Sin", attention(g, form)))
    m = compiled(proto)
    assert attributes(m, "Attention").get("is_causal") == 1, (ops(m), reasons(m))
    assert len(nodes(m, "Attention")[0].inputs) == 3
    feeds = {"x": rand(B, S, E)}
    same(proto, feeds, m)
    in_onnxruntime(m, feeds)


def test_layers_share_their_mask():
    g = G(18)
    s = length(g)
    ones = g("ConstantOfShape", g("Concat", s, s, axis=0), value=onnx.numpy_helper.from_array(np.ones(1, F)))
    keep = g("Cast", g("Trilu", ones, upper=0), to=9)

    def masked(g, scores):
        return g("Where", keep, scores, -np.inf)

    y = attention(g, masked)
    z = attention(g, masked)
    proto = g.model({"x": ["b", "s", E]}, g("Sin", g("Add", y, z)))
    m = compiled(proto)
    assert [n.attributes["is_causal"].value for n in nodes(m, "Attention")] == [1, 1]
    assert "Trilu" not in ops(m)
    same(proto, {"x": rand(B, S, E)}, m)


def padding(g):
    return g.axes("Unsqueeze", g("Cast", "p", to=9), [1, 2])


def test_with_padding_the_padding_remains():
    g = G(18)

    def masked(g, scores):
        r = g("Range", np.array(0), scalar(g), np.array(1))
        keep = g("LessOrEqual", g.axes("Unsqueeze", r, [0]), g.axes("Unsqueeze", r, [1]))
        return g("Where", g("And", g.axes("Unsqueeze", keep, [0, 1]), padding(g)), scores, -np.inf)

    proto = g.model({"x": ["b", "s", E], "p": (np.int64, ["b", "s"])}, g("Sin", attention(g, masked)))
    m = compiled(proto)
    assert attributes(m, "Attention")["is_causal"] == 1
    assert "Range" not in ops(m)
    feeds = {"x": rand(B, S, E), "p": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])}
    same(proto, feeds, m)
    in_onnxruntime(m, feeds)


def test_with_padding_a_finite_frontier_stays():
    """A row whose keys are all padding is shared out among those that the frontier hides, unlike with is_causal."""
    g = G(18)

    def masked(g, scores):
        pad = g("Where", padding(g), g.const(0.0), g.const(LOW))
        return g("Add", by_ranges(g, scores), pad)

    proto = g.model({"x": ["b", "s", E], "p": (np.int64, ["b", "s"])}, g("Sin", attention(g, masked)))
    m = compiled(proto)
    assert "is_causal" not in attributes(m, "Attention")
    feeds = {"x": rand(B, S, E), "p": np.array([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])}
    same(proto, feeds, m)


@pytest.mark.parametrize(
    "form",
    [
        lambda g, s: g("Where", g("Cast", g("Trilu", _ones(g), np.array(1), upper=0), to=9), s, -np.inf),
        lambda g, s: g("Where", g("Cast", g("Trilu", _ones(g), upper=1), to=9), s, -np.inf),
        lambda g, s: g("Add", s, g("Mul", g("Trilu", _ones(g), np.array(1), upper=1), -8.0)),
        lambda g, s: g("Add", s, g("Sub", g("Trilu", _ones(g), upper=0), 1.0)),
    ],
)
def test_other_masks_stay(form):
    g = G(18)
    proto = g.model({"x": ["b", "s", E]}, g("Sin", attention(g, form)))
    m = compiled(proto)
    assert "is_causal" not in attributes(m, "Attention")
    same(proto, {"x": rand(B, S, E)}, m)


def _ones(g):
    s = length(g)
    return g("ConstantOfShape", g("Concat", s, s, axis=0), value=onnx.numpy_helper.from_array(np.ones(1, F)))


# the cache


def step(g, repeat=1, masked=lambda g, s: s, outputs=True):
    """One step of a decoder: keys and values appended, and returned."""
    kv = H // repeat
    q = heads(g, g("MatMul", "x", rand(E, E)))
    new = []
    for _ in range(2):
        p = g("Reshape", g("MatMul", "x", rand(E, kv * D)), np.array([0, 0, kv, D]))
        new.append(g("Transpose", p, perm=[0, 2, 1, 3]))
    k, v = (g("Concat", past, n, axis=-2) for past, n in zip(("pk", "pv"), new, strict=True))
    wide = [k, v]
    if repeat > 1:
        for i, t in enumerate(wide):
            u = g("Expand", g.axes("Unsqueeze", t, [2]), np.array([1, 1, repeat, 1, 1]))
            wide[i] = g("Reshape", u, np.array([0, H, -1, D]))
    scores = g("Mul", g("MatMul", q, g("Transpose", wide[0], perm=[0, 1, 3, 2])), 0.5)
    y = g("MatMul", g("Softmax", masked(g, scores), axis=-1), wide[1])
    y = g("Sin", g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), np.array([0, 0, E])))
    past = ["b", kv, "n", D]
    return {"x": ["b", "s", E], "pk": past, "pv": past}, (y, k, v) if outputs else (y,)


def feeds(repeat=1, n=6, s=2):
    kv = H // repeat
    return {"x": rand(B, s, E), "pk": rand(B, kv, n, D), "pv": rand(B, kv, n, D)}


@pytest.mark.parametrize("repeat", [1, 3])
def test_cache(repeat):
    g = G(18)
    inputs, outputs = step(g, repeat)
    proto = g.model(inputs, *outputs)
    m = compiled(proto)
    assert "Concat" not in ops(m), reasons(m)
    assert "Transpose" not in ops(m)
    found = attributes(m, "Attention")
    assert (found["q_num_heads"], found["kv_num_heads"]) == (H, H // repeat)
    assert len(nodes(m, "Attention")[0].outputs) == 3
    same(proto, feeds(repeat), m)
    in_onnxruntime(m, feeds(repeat))


def test_cache_with_a_mask():
    g = G(18)
    inputs, outputs = step(g, masked=lambda g, s: g("Add", s, "m"))
    proto = g.model({**inputs, "m": ["b", 1, 1, "t"]}, *outputs)
    m = compiled(proto)
    assert "Concat" not in ops(m) or nodes(m, "Attention")[0].inputs[4] is not None, reasons(m)
    assert len(nodes(m, "Attention")[0].outputs) == 3
    f = {**feeds(), "m": rand(B, 1, 1, 8)}
    same(proto, f, m)
    in_onnxruntime(m, f)


def test_the_frontier_moves_with_the_cache():
    """Queries are the last of all positions: their places are counted from the length of the past."""
    g = G(18)

    def masked(g, scores):
        past = g("Gather", g("Shape", "pk"), np.array(2))
        now = g("Gather", g("Shape", "x"), np.array(1))
        total = g("Add", past, now)
        rows = g("Range", past, total, np.array(1))
        columns = g("Range", np.array(0), total, np.array(1))
        keep = g("LessOrEqual", g.axes("Unsqueeze", columns, [0]), g.axes("Unsqueeze", rows, [1]))
        return g("Where", keep, scores, -np.inf)

    inputs, outputs = step(g, masked=masked)
    proto = g.model(inputs, *outputs)
    m = compiled(proto)
    assert attributes(m, "Attention").get("is_causal") == 1, reasons(m)
    assert len(nodes(m, "Attention")[0].outputs) == 3
    same(proto, feeds(), m)
    in_onnxruntime(m, feeds())


def test_a_cache_that_is_read_before():
    g = G(18)

    def masked(g, scores):
        keys = g.nodes[[n.op_type for n in g.nodes].index("Concat")].output[0]
        total = g("Gather", g("Shape", keys), np.array(2))
        bias = g("Cast", g("Range", np.array(0), total, np.array(1)), to=1)
        return g("Add", scores, bias)

    inputs, outputs = step(g, masked=masked)
    proto = g.model(inputs, *outputs)
    m = compiled(proto)
    assert ops(m).count("Attention") == 1
    assert any("also read by" in r for r in reasons(m, "recognise-cache"))
    same(proto, feeds(), m)


def test_without_being_returned_it_still_is_a_cache():
    g = G(18)
    inputs, outputs = step(g, outputs=False)
    proto = g.model(inputs, *outputs)
    m = compiled(proto)
    assert "Concat" not in ops(m)
    same(proto, feeds(), m)
