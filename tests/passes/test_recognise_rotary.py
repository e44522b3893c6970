"""Rotary embeddings as exporters write them: halves, pairs, parts, tables that are computed or gathered."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from recognise_harness import F, G, attributes, becomes, compiled, in_onnxruntime, ops, reasons, same, stays

RNG = np.random.default_rng(14)
B, H, S, D = 2, 3, 5, 8
RULE = "recognise-rotary"
ROT = "RotaryEmbedding"


def rand(*shape, dtype=F):
    return RNG.standard_normal(shape).astype(dtype)


def cut(g, x, start, end, axis=-1, step=1):
    return g("Slice", x, np.array([start]), np.array([end]), np.array([axis]), np.array([step]))


BIG = 2**63 - 1


def rotate_half(g, x, half=D // 2):
    return g("Concat", g("Neg", cut(g, x, half, BIG)), cut(g, x, 0, half), axis=-1)


def rotate_split(g, x):
    a, b = g("Split", x, np.array([D // 2, D // 2]), outputs=2, axis=-1)
    return g("Concat", g("Mul", b, -1.0), a, axis=-1)


def rotate_pairs(g, x):
    """GPT-J: rotate_every_two."""
    odd = g.axes("Unsqueeze", g("Neg", cut(g, x, 1, BIG, step=2)), [4])
    even = g.axes("Unsqueeze", cut(g, x, 0, BIG, step=2), [4])
    return g("Reshape", g("Concat", odd, even, axis=4), np.array([0, 0, 0, D]))


def angles(g, size=D, interleaved=False):
    """Angles of positions (b, s): frequencies side by side, each twice."""
    inverse = np.array(1 / 10000 ** (np.arange(0, size, 2) / size))
    f = g("MatMul", g.axes("Unsqueeze", g("Cast", "p", to=1), [2]), g.const(inverse.reshape(1, -1)))
    if interleaved:
        u = g.axes("Unsqueeze", f, [3])
        wide = g("Expand", u, np.array([1, 1, 1, 2]))
        return g("Reshape", wide, np.array([0, 0, size]))
    return g("Concat", f, f, axis=-1)


def tables(g, size=D, axis=1, interleaved=False):
    a = angles(g, size, interleaved)
    return tuple(g.axes("Unsqueeze", g(op, a), [axis]) for op in ("Cos", "Sin"))


def turned(g, x, cos, sin, rotate=rotate_half):
    return g("Add", g("Mul", x, cos), g("Mul", rotate(g, x), sin))


POSITIONS = np.arange(B * S).reshape(B, S).astype(np.int64)
LLAMA_LEFT = ["Cast", "Unsqueeze", "MatMul", "Concat", *["Cos", "Unsqueeze", "Slice", "Squeeze"], "Sin"]
LLAMA_LEFT += ["Unsqueeze", "Slice", "Squeeze", ROT]


@pytest.mark.parametrize("opset", [13, 17, 24])
@pytest.mark.parametrize("rotate", [rotate_half, rotate_split], ids=lambda f: f.__name__)
def test_llama(rotate, opset):
    g = G(opset)
    y = turned(g, "x", *tables(g), rotate)
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    feeds = {"x": rand(B, H, S, D), "p": POSITIONS}
    m = becomes(proto, feeds, LLAMA_LEFT)
    assert attributes(m, ROT) == {}
    in_onnxruntime(m, feeds)


def test_queries_and_keys_share_their_tables():
    g = G(17)
    cos, sin = tables(g)
    y, z = turned(g, "x", cos, sin), turned(g, "k", cos, sin)
    proto = g.model({"x": ["b", H, "s", D], "k": ["b", 1, "s", D], "p": (np.int64, ["b", "s"])}, y, z)
    becomes(proto, {"x": rand(B, H, S, D), "k": rand(B, 1, S, D), "p": POSITIONS}, [*LLAMA_LEFT, ROT])


def test_tables_that_are_gathered():
    """Older Hugging Face: cached tables, rows by position, axes put in behind."""
    g = G(14)
    theta = np.concatenate([np.outer(np.arange(32), 1 / 10 ** np.arange(D // 2))] * 2, axis=1)
    cos, sin = (g.axes("Unsqueeze", g("Gather", g.const(f(theta)), "p", axis=0), [1]) for f in (np.cos, np.sin))
    y = turned(g, "x", cos, sin)
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    left = ["Gather", "Unsqueeze", "Slice", "Squeeze"] * 2 + [ROT]
    becomes(proto, {"x": rand(B, H, S, D), "p": POSITIONS}, left)


def test_constant_tables_for_the_whole_batch():
    g = G(14)
    theta = np.concatenate([np.outer(np.arange(S), 1 / 10 ** np.arange(D // 2))] * 2, axis=1)
    y = turned(g, "x", g.const(np.cos(theta)), g.const(np.sin(theta)))
    m = compiled(g.model({"x": ["b", H, S, D]}, y))
    assert ROT in ops(m), reasons(m)
    assert "Add" not in ops(m)
    same(g.model({"x": ["b", H, S, D]}, y), {"x": rand(B, H, S, D)}, m)
    in_onnxruntime(m, {"x": rand(B, H, S, D)})


def test_heads_behind_the_length():
    """(batch, length, heads, size) is the packed form with its last axis split."""
    g = G(17)
    y = turned(g, "x", *tables(g, axis=2))
    proto = g.model({"x": ["b", "s", H, D], "p": (np.int64, ["b", "s"])}, y)
    m = compiled(proto)
    assert attributes(m, ROT)["num_heads"] == H
    assert "Add" not in ops(m)
    same(proto, {"x": rand(B, S, H, D), "p": POSITIONS}, m)


def test_neighbours_as_pairs():
    g = G(17)
    y = turned(g, "x", *tables(g, interleaved=True), rotate_pairs)
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    m = compiled(proto)
    assert attributes(m, ROT) == {"interleaved": 1}
    assert "Add" not in ops(m)
    feeds = {"x": rand(B, H, S, D), "p": POSITIONS}
    same(proto, feeds, m)
    in_onnxruntime(m, feeds)


def narrow_tables(g):
    """Cosines and sines of half the width."""
    f = g("MatMul", g.axes("Unsqueeze", g("Cast", "p", to=1), [2]), rand(1, D // 2))
    return [g.axes("Unsqueeze", g(op, f), [1]) for op in ("Cos", "Sin")]


def product(g, a, b, table):
    """Real and imaginary part of ``a + ib`` times ``cos + i sin``."""
    cos, sin = table
    return g("Sub", g("Mul", a, cos), g("Mul", b, sin)), g("Add", g("Mul", a, sin), g("Mul", b, cos))


def test_halves_turned_one_by_one():
    """Real and imaginary parts, put together at the end; tables of half the width."""
    g = G(17)
    a, b = g("Split", "x", np.array([D // 2, D // 2]), outputs=2, axis=3)
    real, imaginary = product(g, a, b, narrow_tables(g))
    y = g("Concat", real, imaginary, axis=-1)
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    left = ["Cast", "Unsqueeze", "MatMul", "Cos", "Sin", ROT]
    becomes(proto, {"x": rand(B, H, S, D), "p": POSITIONS}, left)


def test_pairs_turned_one_by_one():
    """A complex product written out: pairs on an axis of their own, stacked again."""
    g = G(17)
    pairs = g("Reshape", "x", np.array([0, 0, 0, -1, 2]))
    a, b = (g("Gather", pairs, np.array(i), axis=4) for i in (0, 1))
    real, imaginary = product(g, a, b, narrow_tables(g))
    y = g("Concat", g.axes("Unsqueeze", real, [4]), g.axes("Unsqueeze", imaginary, [4]), axis=4)
    y = g("Reshape", y, np.array([0, 0, 0, D]))
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    m = compiled(proto)
    assert attributes(m, ROT) == {"interleaved": 1}, reasons(m)
    same(proto, {"x": rand(B, H, S, D), "p": POSITIONS}, m)


def test_the_first_features_only():
    """GPT-NeoX, Phi: the rest passes by."""
    g = G(17)
    first, rest = cut(g, "x", 0, 4), cut(g, "x", 4, BIG)
    y = g("Concat", turned(g, first, *tables(g, 4), lambda g, x: rotate_half(g, x, 2)), rest, axis=-1)
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    m = compiled(proto)
    assert attributes(m, ROT) == {"rotary_embedding_dim": 4}
    assert "Add" not in ops(m)
    feeds = {"x": rand(B, H, S, D), "p": POSITIONS}
    same(proto, feeds, m)
    in_onnxruntime(m, feeds)


def test_a_factor_on_the_tables():
    """Scaled variants multiply cosines and sines by one number."""
    g = G(17)
    cos, sin = tables(g)
    y = turned(g, "x", g("Mul", cos, 1.2), g("Mul", sin, 1.2))
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    m = compiled(proto)
    assert ROT in ops(m), reasons(m)
    same(proto, {"x": rand(B, H, S, D), "p": POSITIONS}, m)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_in_other_types(dtype):
    g = G(22, dtype)
    a = angles(g)
    code = 10 if dtype is np.float16 else 16
    g.nodes[0].attribute[0].i = code
    cos, sin = (g.axes("Unsqueeze", g(op, a), [1]) for op in ("Cos", "Sin"))
    y = turned(g, "x", cos, sin)
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    m = compiled(proto)
    assert ROT in ops(m), reasons(m)
    same(proto, {"x": rand(B, H, S, D, dtype=dtype), "p": POSITIONS}, m)


def test_with_an_attention_the_heads_are_packed():
    """Queries and keys are turned between their split and the product; everything is packed in the end."""
    g = G(17)
    e = H * D

    def split(x):
        return g("Transpose", g("Reshape", x, np.array([0, 0, H, D])), perm=[0, 2, 1, 3])

    def linear():
        return g("MatMul", "x", rand(e, e))

    cos, sin = tables(g)
    q, k, v = turned(g, split(linear()), cos, sin), turned(g, split(linear()), cos, sin), split(linear())
    p = g("Softmax", g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 0.3), axis=-1)
    y = g("Reshape", g("Transpose", g("MatMul", p, v), perm=[0, 2, 1, 3]), np.array([0, 0, e]))
    proto = g.model({"x": ["b", "s", e], "p": (np.int64, ["b", "s"])}, y)
    m = compiled(proto)
    left = ops(m)
    assert left.count(ROT) == 2
    assert left.count("Attention") == 1
    assert "Transpose" not in left, (left, reasons(m))
    assert "Reshape" not in left
    feeds = {"x": rand(B, S, e), "p": POSITIONS}
    same(proto, feeds, m, 1e-4)
    in_onnxruntime(m, feeds, 1e-4)


# what must stay


def test_the_other_way_round():
    g = G(17)
    cos, sin = tables(g)
    y = g("Sub", g("Mul", "x", cos), g("Mul", rotate_half(g, "x"), sin))
    y = g("Add", y, 0.0) if False else y
    other = g("Add", g("Mul", "x", cos), g("Mul", g("Neg", rotate_half(g, "x")), sin))
    stays(g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, other), "turned the other way", RULE)


def test_tables_that_differ_within_a_pair():
    g = G(17)
    y = turned(g, "x", "c", "s")
    proto = g.model({"x": ["b", H, "l", D], "c": ["b", 1, "l", D], "s": ["b", 1, "l", D]}, y)
    stays(proto, "not known to be the same for both features", RULE)


def test_halves_of_tables_for_pairs():
    """Tables for halves do not fit a rotation of neighbours."""
    g = G(17)
    y = turned(g, "x", *tables(g), rotate_pairs)
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    stays(proto, "not known to be the same for both features", RULE)


def test_tables_by_head():
    g = G(17)
    f = rand(1, H, S, D // 2)
    c = np.concatenate([f, f], -1)
    y = turned(g, "x", c, c)
    stays(g.model({"x": ["b", H, S, D]}, y), "not by position", RULE)


def test_a_value_between_that_is_read_elsewhere():
    g = G(17)
    cos, sin = tables(g)
    r = rotate_half(g, "x")
    y = g("Add", g("Mul", "x", cos), g("Mul", r, sin))
    proto = g.model({"x": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y, r)
    stays(proto, "is also read by the caller", RULE)


def test_a_rotation_of_something_else():
    g = G(17)
    cos, sin = tables(g)
    y = g("Add", g("Mul", "x", cos), g("Mul", rotate_half(g, "z"), sin))
    proto = g.model({"x": ["b", H, "s", D], "z": ["b", H, "s", D], "p": (np.int64, ["b", "s"])}, y)
    stays(proto, None, RULE)
