"""Attention as exporters write it: heads, masks, scales and repeats in all placements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recognise_harness import F, G, attributes, compiled, in_onnxruntime, nodes, ops, reasons, same, stays

from builders import node

RNG = np.random.default_rng(13)
B, S, H, D = 2, 5, 4, 8
E = H * D
RULE = "recognise-attention"
LOW = float(np.finfo(F).min)


def rand(*shape, dtype=F):
    return RNG.standard_normal(shape).astype(dtype)


def linear(g, x, out=E, name=None):
    """A projection whose result has some spread, so that probabilities differ."""
    return g("Add", g("MatMul", x, g.const(RNG.standard_normal((E, out)) / 3)), g.const(RNG.standard_normal(out) / 3))


def heads(g, x, perm=(0, 2, 1, 3), count=H):
    """(batch, length, E) to heads, as everybody does it."""
    return g("Transpose", g("Reshape", x, np.array([0, 0, count, D])), perm=list(perm))


def joined(g, y):
    return g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), np.array([0, 0, E]))


def projections(g, x="x"):
    return [linear(g, x) for _ in range(3)]


def run(g, y, left, inputs=None, feeds=None, tolerance=2e-5):
    """The attention is whole, in its packed form, and what is left beside the projections is ``left``."""
    g.nodes.append(node("Sin", [y], ["out"]))
    proto = g.model({"x": ["b", "s", E], **(inputs or {})}, "out")
    m = compiled(proto)
    assert [o for o in ops(m) if o not in ("MatMul", "Add", "Sin", "Split")] == left, (ops(m), reasons(m))
    same(proto, {"x": rand(B, S, E), **(feeds or {})}, m, tolerance)
    return m


PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int64)


# BERT


def bert_torchscript(g, mask=None, div=True):
    """Hugging Face through the TorchScript exporter: shapes computed, keys transposed at once, scores divided."""
    q, k, v = projections(g)

    def split(x, perm):
        b = g.axes("Unsqueeze", g("Gather", g("Shape", x), np.array(0)), [0])
        s = g.axes("Unsqueeze", g("Gather", g("Shape", x), np.array(1)), [0])
        shape = g("Concat", b, s, np.array([H]), np.array([D]), axis=0)
        return g("Transpose", g("Reshape", x, shape), perm=perm)

    scores = g("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
    scores = g("Div", scores, math.sqrt(D)) if div else g("Mul", scores, 1 / math.sqrt(D))
    if mask is not None:
        scores = g("Add", scores, mask)
    y = g("MatMul", g("Softmax", scores, axis=-1 if g.opset >= 13 else 3), split(v, [0, 2, 1, 3]))
    y = g("Transpose", y, perm=[0, 2, 1, 3])
    b = g.axes("Unsqueeze", g("Gather", g("Shape", y), np.array(0)), [0])
    s = g.axes("Unsqueeze", g("Gather", g("Shape", y), np.array(1)), [0])
    return g("Reshape", y, g("Concat", b, s, np.array([E]), axis=0))


@pytest.mark.parametrize("div", [True, False])
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_bert_without_a_mask(opset, div):
    g = G(opset)
    m = run(g, bert_torchscript(g, div=div), ["Attention"])
    found = attributes(m, "Attention")
    assert (found["q_num_heads"], found["kv_num_heads"]) == (H, H)
    assert found["scale"] == pytest.approx(1 / math.sqrt(D), rel=1e-6)


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_bert_with_padding(opset):
    """(batch, 1, 1, length) of 0 and -10000 that is added; ONNX Runtime wants all queries named."""
    g = G(opset)
    wide = g.axes("Unsqueeze", g("Cast", "m", to=1), [1, 2])
    mask = g("Mul", g("Sub", 1.0, wide), -10000.0)
    y = bert_torchscript(g, mask)
    g.nodes.append(node("Sin", [y], ["out"]))
    proto = g.model({"x": ["b", "s", E], "m": (np.int64, ["b", "s"])}, "out")
    m = compiled(proto)
    assert "Softmax" not in ops(m)
    assert len(nodes(m, "Attention")[0].inputs) == 4
    same(proto, {"x": rand(B, S, E), "m": PADDING}, m)
    in_onnxruntime(m, {"x": rand(B, S, E), "m": PADDING})


def test_dynamo_with_a_guard_against_nan():
    """torch.onnx.export(dynamo=True): both sides scaled, keys transposed in three axes, NaN made 0."""
    g = G(18)
    q, k, v = (heads(g, p) for p in projections(g))
    root = D**-0.25
    flat = g(
        "Transpose",
        g(
            "Reshape",
            k,
            g("Concat", np.array([-1]), g("Slice", g("Shape", k), np.array([2]), np.array([3])), np.array([D]), axis=0),
        ),
        perm=[0, 2, 1],
    )
    kt = g(
        "Reshape",
        flat,
        g(
            "Concat",
            g("Slice", g("Shape", k), np.array([0]), np.array([2])),
            np.array([D]),
            g("Slice", g("Shape", k), np.array([2]), np.array([3])),
            axis=0,
        ),
    )
    scores = g("MatMul", g("Mul", q, root), g("Mul", kt, root))
    scores = g("Add", scores, g("Where", "m", 0.0, LOW))
    p = g("Softmax", scores, axis=-1)
    p = g("Where", g("IsNaN", p), 0.0, p)
    m = run(
        g,
        joined(g, g("MatMul", p, v)),
        ["Where", "Attention"],
        {"m": (np.bool_, ["b", 1, "s", "s"])},
        {"m": rand(B, 1, S, S) > -1},
    )
    assert attributes(m, "Attention")["scale"] == pytest.approx(1 / math.sqrt(D), rel=1e-6)


def test_tensorflow_in_two_axes():
    """tf2onnx of BERT keeps (batch * length, hidden) between layers."""
    g = G(13)
    flat = g("Reshape", "x", np.array([-1, E]))

    def split(p):
        return g("Transpose", g("Reshape", p, g.const(np.array([-1, S, H, D]))), perm=[0, 2, 1, 3])

    q, k, v = (split(p) for p in projections(g, flat))
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 1 / math.sqrt(D))
    y = g("MatMul", g("Softmax", g("Add", scores, "m"), axis=3), v)
    y = g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), np.array([-1, E]))
    y = g("Sin", y)
    proto = g.model({"x": ["b", S, E], "m": ["b", 1, S, S]}, y)
    m = compiled(proto)
    assert "Softmax" not in ops(m)
    assert "Attention" in ops(m), reasons(m)
    same(proto, {"x": rand(B, S, E), "m": rand(B, 1, S, S)}, m)


def paddle(g):
    """SVTR of PaddleOCR: one projection, transposed to the front, sliced; the queries scaled."""
    x = g("Reshape", linear(g, "x", 3 * E), np.array([0, 0, 3, H, D]))
    x = g("Transpose", x, perm=[2, 0, 3, 1, 4])
    q, k, v = (g.axes("Squeeze", g("Slice", x, np.array([i]), np.array([i + 1]), np.array([0])), [0]) for i in range(3))
    scores = g("MatMul", g("Mul", q, g.const([1 / math.sqrt(D)])), g("Transpose", k, perm=[0, 1, 3, 2]))
    return joined(g, g("MatMul", g("Softmax", scores, axis=3), v))


def test_paddle():
    g = G(12)
    m = run(g, paddle(g), ["Reshape", "Transpose", *["Slice", "Squeeze"] * 3, "Attention", "Transpose", "Reshape"])
    assert "q_num_heads" not in attributes(m, "Attention")


def test_timm_splits():
    """Vision transformers: Split instead of Slice, the scale on the product."""
    g = G(17)
    x = g("Transpose", g("Reshape", linear(g, "x", 3 * E), np.array([0, 0, 3, H, D])), perm=[2, 0, 3, 1, 4])
    q, k, v = (g.axes("Squeeze", p, [0]) for p in g("Split", x, np.array([1, 1, 1]), outputs=3, axis=0))
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 0.3)
    y = joined(g, g("MatMul", g("Softmax", scores, axis=-1), v))
    m = run(g, y, ["Reshape", "Transpose", "Squeeze", "Squeeze", "Squeeze", "Attention", "Transpose", "Reshape"])
    assert attributes(m, "Attention")["scale"] == pytest.approx(0.3, rel=1e-6)


# three axes


def test_batch_and_heads_as_one_axis():
    """BART, OPT and their kin: torch.bmm on (batch * heads, length, size), the mask added in four axes."""
    g = G(14)
    q, k, v = projections(g)
    q = g("Mul", q, 1 / math.sqrt(D))
    q, k, v = (
        g(
            "Reshape",
            heads(g, p),
            g("Concat", np.array([-1]), g("Slice", g("Shape", p), np.array([1]), np.array([2])), np.array([D]), axis=0),
        )
        for p in (q, k, v)
    )
    scores = g("MatMul", q, g("Transpose", k, perm=[0, 2, 1]))
    size = g("Slice", g("Shape", "x"), np.array([1]), np.array([2]))
    four = g("Concat", g("Slice", g("Shape", "x"), np.array([0]), np.array([1])), np.array([H]), size, size, axis=0)
    scores = g("Add", g("Reshape", scores, four), "m")
    scores = g("Reshape", scores, g("Concat", np.array([-1]), size, size, axis=0))
    y = g("MatMul", g("Softmax", scores, axis=2), v)
    y = g(
        "Reshape",
        y,
        g(
            "Concat",
            g("Slice", g("Shape", "x"), np.array([0]), np.array([1])),
            np.array([H]),
            size,
            np.array([D]),
            axis=0,
        ),
    )
    m = run(g, joined(g, y), ["Attention"], {"m": ["b", 1, "s", "s"]}, {"m": rand(B, 1, S, S)})
    assert attributes(m, "Attention")["q_num_heads"] == H


def test_length_first():
    """torch.nn.MultiheadAttention: (length, batch, hidden), heads joined to the batch."""
    g = G(14)
    x = g("Transpose", "x", perm=[1, 0, 2])
    parts = []
    for p in projections(g, x):
        t = g(
            "Reshape",
            p,
            g("Concat", g("Slice", g("Shape", p), np.array([0]), np.array([1])), np.array([-1]), np.array([D]), axis=0),
        )
        parts.append(g("Transpose", t, perm=[1, 0, 2]))
    q, k, v = parts
    scores = g("MatMul", g("Mul", q, 1 / math.sqrt(D)), g("Transpose", k, perm=[0, 2, 1]))
    y = g("MatMul", g("Softmax", scores, axis=-1), v)
    y = g("Reshape", g("Transpose", y, perm=[1, 0, 2]), g("Shape", x))
    y = g("Sin", y)
    proto = g.model({"x": ["b", "s", E]}, y)
    m = compiled(proto)
    assert "Softmax" not in ops(m), reasons(m)
    assert "Attention" in ops(m)
    same(proto, {"x": rand(B, S, E)}, m)


def test_one_head():
    """Three axes that are nothing but batch, length and size."""
    g = G(13)
    q, k, v = (linear(g, "x", D) for _ in range(3))
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 2, 1])), 0.5)
    m = run(g, g("MatMul", g("Softmax", scores, axis=-1), v), ["Attention"])
    assert attributes(m, "Attention")["q_num_heads"] == 1


def test_values_before_probabilities():
    """YOLO: V Pᵀ over channels first; the result is transposed."""
    g = G(17)
    v = g("Transpose", heads(g, linear(g, "x")), perm=[0, 1, 3, 2])
    q, k = heads(g, linear(g, "x")), heads(g, linear(g, "x"), (0, 2, 3, 1))
    p = g("Softmax", g("Mul", g("MatMul", q, k), 0.3), axis=-1)
    y = g("MatMul", v, g("Transpose", p, perm=[0, 1, 3, 2]))
    run(g, y, ["Reshape", "Transpose", "Reshape", "Transpose", "Reshape", "Transpose", "Attention", "Transpose"])


# grouped queries


def repeat_kv(g, x, kv, how):
    """(b, kv, s, D) with every head H / kv times in a row."""
    if how == "expand":
        wide = g("Expand", g.axes("Unsqueeze", x, [2]), np.array([1, 1, H // kv, 1, 1]))
    elif how == "tile":
        wide = g("Tile", g.axes("Unsqueeze", x, [2]), np.array([1, 1, H // kv, 1, 1]))
    else:
        u = g.axes("Unsqueeze", x, [2])
        wide = g("Concat", *[u] * (H // kv), axis=2)
    return g("Reshape", wide, np.array([0, H, -1, D]))


@pytest.mark.parametrize("how", ["expand", "tile", "concat"])
@pytest.mark.parametrize("kv", [1, 2])
def test_grouped_queries(kv, how):
    g = G(17)
    q = heads(g, linear(g, "x"))
    k, v = (heads(g, linear(g, "x", kv * D), count=kv) for _ in range(2))
    k, v = repeat_kv(g, k, kv, how), repeat_kv(g, v, kv, how)
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 0.3)
    m = run(g, joined(g, g("MatMul", g("Softmax", scores, axis=-1), v)), ["Attention"])
    found = attributes(m, "Attention")
    assert (found["q_num_heads"], found["kv_num_heads"]) == (H, kv)


def test_one_head_of_keys_that_the_product_broadcasts():
    g = G(17)
    q = heads(g, linear(g, "x"))
    k, v = (heads(g, linear(g, "x", D), count=1) for _ in range(2))
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 0.3)
    m = run(g, joined(g, g("MatMul", g("Softmax", scores, axis=-1), v)), ["Attention"])
    assert attributes(m, "Attention")["kv_num_heads"] == 1


def test_heads_repeated_in_another_order_are_not_grouped():
    """All heads, then all again: kept as they are."""
    g = G(17)
    q = heads(g, linear(g, "x"))
    k, v = (heads(g, linear(g, "x", 2 * D), count=2) for _ in range(2))
    k, v = g("Concat", k, k, axis=1), g("Concat", v, v, axis=1)
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 0.3)
    y = g("Sin", joined(g, g("MatMul", g("Softmax", scores, axis=-1), v)))
    proto = g.model({"x": ["b", "s", E]}, y)
    m = compiled(proto)
    assert ops(m).count("Concat") == 2
    assert "Attention" in ops(m)
    same(proto, {"x": rand(B, S, E)}, m)


# masks, caps, types


def simple(g, mask=lambda g, s: s, scale=0.3, dtype=None):
    q, k, v = (heads(g, p) for p in projections(g))
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), scale)
    return joined(g, g("MatMul", g("Softmax", mask(g, scores), axis=-1), v))


MASKS = {
    "added": lambda g, s: g("Add", s, "a"),
    "added first": lambda g, s: g("Add", "a", s),
    "subtracted": lambda g, s: g("Sub", s, "a"),
    "two": lambda g, s: g("Add", g("Add", s, "a"), "c"),
    "infinite": lambda g, s: g("Where", "k", s, -np.inf),
    "inverse": lambda g, s: g("Where", "k", -np.inf, s),
    "lowest": lambda g, s: g("Where", "k", s, LOW),
    "both": lambda g, s: g("Add", g("Where", "k", s, LOW), "a"),
    "two bools": lambda g, s: g("Where", "k", g("Where", "l", s, -np.inf), -np.inf),
    "scaled": lambda g, s: g("Mul", g("Add", s, "a"), 0.5),
    "capped": lambda g, s: g("Add", g("Mul", g("Tanh", g("Div", s, 2.0)), 2.0), "a"),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(
    "shape", [("s", "s"), (1, "s"), (1, 1, "s"), ("b", 1, 1, "s"), ("b", H, "s", "s"), (1, H, "s", 1)]
)
def test_masks(kind, shape):
    g = G(17)
    y = simple(g, MASKS[kind])
    g.nodes.append(node("Sin", [y], ["out"]))
    used = {n for n_ in g.nodes for n in n_.input}
    declared = {"a": (F, shape), "c": (F, shape), "k": (np.bool_, shape), "l": (np.bool_, shape)}
    inputs = {k: v for k, v in declared.items() if k in used}
    concrete = [{"s": S, "b": B}.get(d, d) for d in shape]
    feeds = {"x": rand(B, S, E)}
    for name, (dtype, _) in inputs.items():
        feeds[name] = rand(*concrete) if dtype is F else RNG.random(concrete) > (0.2 if kind != "inverse" else 0.8)
        if dtype is np.bool_:
            feeds[name][..., 0] = kind != "inverse"  # every query sees a key
    proto = g.model({"x": ["b", "s", E], **inputs}, "out")
    m = compiled(proto)
    assert "Softmax" not in ops(m), reasons(m)
    same(proto, feeds, m)
    in_onnxruntime(m, feeds)
    cap = attributes(m, "Attention").get("softcap")
    assert cap == (pytest.approx(2.0) if kind == "capped" else None)


def test_a_query_that_sees_nothing():
    """The operator gives zeros, as the guard does; without one, softmax of nothing is NaN."""
    g = G(17)

    def mask(g, s):
        return g("Where", "k", s, -np.inf)

    q, k, v = (heads(g, p) for p in projections(g))
    p = g("Softmax", mask(g, g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))), axis=-1)
    y = joined(g, g("MatMul", g("Where", g("IsNaN", p), 0.0, p), v))
    keep = np.ones((B, 1, S, S), bool)
    keep[0, 0, 2] = False
    run(g, y, ["Attention"], {"k": (np.bool_, ["b", 1, "s", "s"])}, {"k": keep})


def test_softmax_in_float_of_scores_in_half():
    g = G(17, np.float16)
    q, k, v = (heads(g, p) for p in projections(g))
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 0.3)
    p = g("Cast", g("Softmax", g("Add", g("Cast", scores, to=1), "a"), axis=-1), to=10)
    y = g("Sin", joined(g, g("MatMul", p, v)))
    proto = g.model({"x": ["b", "s", E], "a": (F, ["b", 1, 1, "s"])}, y)
    m = compiled(proto)
    assert attributes(m, "Attention")["softmax_precision"] == 1
    feeds = {"x": rand(B, S, E, dtype=np.float16), "a": rand(B, 1, 1, S)}
    same(proto, feeds, m, 1e-2)
    in_onnxruntime(m, feeds, 1e-2)


def test_lengths_that_differ():
    """Cross attention: keys from elsewhere, another size of the values."""
    g = G(17)
    q = heads(g, linear(g, "x"))
    k = heads(g, linear(g, "y"))
    v = g("Transpose", g("Reshape", linear(g, "y", H * 3), np.array([0, 0, H, 3])), perm=[0, 2, 1, 3])
    y = g("MatMul", g("Softmax", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), axis=-1), v)
    y = g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), np.array([0, 0, H * 3]))
    run(g, y, ["Attention"], {"y": ["b", "t", E]}, {"y": rand(B, 7, E)})


def test_static_sizes():
    g = G(17)
    y = g("Sin", simple(g, lambda g, s: g("Add", s, g.const(rand(1, 1, S, S)))))
    proto = g.model({"x": [1, S, E]}, y)
    m = compiled(proto)
    assert "Attention" in ops(m), reasons(m)
    same(proto, {"x": rand(1, S, E)}, m)


@st.composite
def placements(draw):
    """Scales and transposes of queries, keys and scores in any place."""
    g = G(draw(st.sampled_from([13, 18])))
    batch = draw(st.sampled_from(["b", 1, B]))
    length = draw(st.sampled_from(["s", S]))

    def maybe_scaled(x):
        how = draw(st.integers(0, 3))
        return [lambda: x, lambda: g("Mul", x, 0.5), lambda: g("Div", x, 1.5), lambda: g("Mul", 0.8, x)][how]()

    def split(x, last=(0, 2, 1, 3)):
        x = maybe_scaled(x)
        return maybe_scaled(heads(g, x, last))

    q, k, v = projections(g)
    q = split(q)
    k = split(k, (0, 2, 3, 1)) if draw(st.booleans()) else g("Transpose", split(k), perm=[0, 1, 3, 2])
    k = maybe_scaled(k)
    scores = maybe_scaled(g("MatMul", q, k))
    inputs = {}
    if draw(st.booleans()):
        inputs["a"] = [batch, draw(st.sampled_from([1, H])), draw(st.sampled_from([1, length])), length]
        scores = maybe_scaled(g("Add", scores, "a"))
    y = g("MatMul", g("Softmax", scores, axis=draw(st.sampled_from([-1, 3]))), heads(g, v))
    y = g("Sin", joined(g, y) if draw(st.booleans()) else y)
    sizes = {"b": B, "s": S}
    feeds = {n: rand(*[sizes.get(d, d) for d in shape]) for n, shape in inputs.items()}
    feeds["x"] = rand(sizes.get(batch, batch), S, E)
    return g.model({"x": [batch, length, E], **inputs}, y), feeds


@settings(max_examples=40, deadline=None)
@given(placements())
def test_any_placement(case):
    proto, feeds = case
    m = compiled(proto)
    assert "Softmax" not in ops(m), reasons(m)
    same(proto, feeds, m, 1e-4)


# what must stay


def test_probabilities_that_are_read_elsewhere():
    g = G(17)
    q, k, v = (heads(g, p) for p in projections(g))
    p = g("Softmax", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    y = g("MatMul", p, v)
    stays(g.model({"x": ["b", "s", E]}, y, p), "the probabilities are read by others", RULE)


def test_scores_that_are_read_elsewhere():
    g = G(17)
    q, k, v = (heads(g, p) for p in projections(g))
    s = g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))
    y = g("MatMul", g("Softmax", g("Mul", s, 0.3), axis=-1), v)
    stays(g.model({"x": ["b", "s", E]}, y, s), "is also a graph output", RULE)
    stays(g.model({"x": ["b", "s", E]}, y, g("Sin", s)), "is also read by", RULE)


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (lambda g, s: g("Where", "k", s, -10000.0), "other scores may be as low"),
        (lambda g, s: g("Where", "k", s, "f"), "not a constant number"),
        (lambda g, s: g("Mul", s, "f"), "not a constant number"),
        (lambda g, s: g("Add", s, "w"), "broadcasts the scores"),
        (lambda g, s: g("Mul", g("Tanh", g("Add", s, "f")), 3.0), "before the soft cap"),
        (lambda g, s: g("Mul", s, -1.0), "is not positive"),
    ],
)
def test_masks_that_are_none(mask, why):
    g = G(17)
    y = simple(g, mask)
    used = {n for n_ in g.nodes for n in n_.input}
    inputs = {"k": (np.bool_, ["b", 1, "s", "s"]), "f": (F, ["b", 1, 1, "s"]), "w": (F, [3, 1, 1, 1, 1])}
    proto = g.model({"x": ["b", "s", E], **{k: v for k, v in inputs.items() if k in used}}, y)
    if "w" in used:
        return  # five axes: the rest of the graph would not fit
    stays(proto, why, RULE)


def test_a_softmax_over_the_queries():
    g = G(17)
    q, k, v = (heads(g, p) for p in projections(g))
    p = g("Softmax", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), axis=2)
    stays(g.model({"x": ["b", "s", E]}, g("MatMul", p, v)), None, RULE)


@pytest.mark.parametrize("batches", [("b", 1), (1, "b")])
def test_keys_for_the_whole_batch(batches):
    g = G(17)
    q = heads(g, linear(g, "x"))
    k, v = (heads(g, linear(g, "y")) for _ in range(2))
    p = g("Softmax", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    proto = g.model({"x": [batches[0], "s", E], "y": [batches[1], "t", E]}, g("MatMul", p, v))
    stays(proto, "one for the whole batch", RULE)
