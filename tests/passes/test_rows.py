"""Linear layers between Reshapes, views before products, shorter ways of views, rows that a constant names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recognise_harness import G
from rules_harness import F, check, compiled, fired, ops, rand, reasons

from accord.backends.reference.evaluator import evaluate
from builders import model, node

INT = np.int64


def linear(*, before: bool, after: bool, bias: tuple[int, ...] | None, transposed: bool, tail: str = "Relu"):
    """``tail(reshape(gemm(reshape(x))))`` of x [2, 3, 8], with both Reshapes, or one."""
    nodes = [node("Neg", ["x"], ["r"])]
    rows = "r"
    if before:
        nodes.append(node("Reshape", ["r", "flat"], ["rows"]))
        rows = "rows"
    nodes.append(node("Gemm", [rows, "w", *(["b"] if bias is not None else [])], ["g"], transB=int(transposed)))
    last = "g"
    if after:
        nodes.append(node("Reshape", ["g", "apart"], ["p"]))
        last = "p"
    nodes.append(node(tail, [last], ["y"]))
    constants = {"flat": np.array([-1, 8], INT), "apart": np.array([2, 3, 5], INT)}
    constants["w"] = rand(*((5, 8) if transposed else (8, 5)))
    if bias is not None:
        constants["b"] = rand(*bias)
    used = {v for n in nodes for v in n.input}
    shape = [2, 3, 8] if before else [6, 8]
    return model(nodes, {"x": (F, shape)}, ["y"], {k: v for k, v in constants.items() if k in used}), shape


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (1,), ()], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_linear_layer_meets_what_follows(before, after, bias, transposed):
    proto, shape = linear(before=before, after=after, bias=bias, transposed=transposed)
    left = [o for o in ops(compiled(proto)) if o != "Reshape"]
    assert left == ["Neg", "MatMul", *(["Add"] if bias is not None else []), "Relu"]
    m = check(proto, {"x": rand(*shape)}, "unflatten-gemm", ops(compiled(proto)))
    if before and after:
        assert "Reshape" not in ops(m)


def test_a_bias_for_each_row_stays_with_gemm():
    proto, shape = linear(before=True, after=True, bias=(6, 5), transposed=False)
    m = compiled(proto)
    assert "unflatten-gemm" not in fired(m)
    assert any("same for all rows" in r for r in reasons(m, "unflatten-gemm"))
    x = rand(*shape)
    np.testing.assert_allclose(m({"x": x})[0], evaluate(proto, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_a_reshape_that_cuts_rows_is_no_linear_layer():
    proto = model(
        [node("Neg", ["x"], ["r"]), node("Reshape", ["r", "s"], ["rows"]), node("Gemm", ["rows", "w"], ["y"])],
        {"x": (F, [2, 3, 8])},
        ["y"],
        {"s": np.array([2, 24], INT), "w": rand(24, 5)},
    )
    assert "unflatten-gemm" not in fired(compiled(proto))


@pytest.mark.parametrize("size", ["batch", 2])
def test_sizes_known_at_run_time(size):
    proto = model(
        [
            node("Reshape", ["x", "flat"], ["rows"]),
            node("Gemm", ["rows", "w", "b"], ["g"]),
            node("Reshape", ["g", "apart"], ["y"]),
        ],
        {"x": (F, [size, 3, 8])},
        ["y"],
        {"flat": np.array([-1, 8], INT), "apart": np.array([-1, 3, 5], INT), "w": rand(8, 5), "b": rand(5)},
    )
    check(proto, {"x": rand(2, 3, 8)}, "unflatten-gemm", ["MatMul", "Add"])


@pytest.mark.parametrize("bias", [None, (5,), (1, 1, 5), (), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("transpose", [True, False], ids=["transpose", "reshape"])
def test_views_go_before_a_product(transpose, bias):
    added = [] if bias is None else [node("Add", ["c", "m"], ["a"]), node("Clip", ["a", "low", "high"], ["b"])]
    read = "b" if added else "m"
    view = node("Transpose", [read], ["v"], perm=[1, 0, 2]) if transpose else node("Reshape", [read, "s"], ["v"])
    nodes = [node("Neg", ["x"], ["r"]), node("MatMul", ["r", "w"], ["m"]), *added, view, node("Add", ["v", "z"], ["y"])]
    shape, after = ([2, 3, 8], [3, 2, 5]) if transpose else ([3, 1, 8], [3, 5])
    left = ["Neg", "Transpose" if transpose else "Reshape", "MatMul", *(n.op_type for n in added), "Add"]
    constants = {"w": rand(8, 5)} | ({} if transpose else {"s": np.array([3, 5], INT)})
    if added:
        constants |= {"c": rand(*bias), "low": np.array(-1, F), "high": np.array(1, F)}
    proto = model(nodes, {"x": (F, shape), "z": (F, after)}, ["y"], constants)
    feeds = {"x": rand(*shape), "z": rand(*after)}
    want = sorted(left)
    m = compiled(proto, disabled_rules=("sink-transpose",))
    assert sorted(ops(m)) == want
    check(proto, feeds, "view-before-product", ops(m), disabled_rules=("sink-transpose",))


@pytest.mark.parametrize(
    ("view", "shape"),
    [
        (node("Transpose", ["m"], ["v"], perm=[0, 2, 1]), [2, 3, 8]),
        (node("Reshape", ["m", "s"], ["v"]), [2, 3, 8]),
    ],
    ids=["last axis", "other axes"],
)
def test_views_that_stay_behind_a_product(view, shape):
    nodes = [node("MatMul", ["x", "w"], ["m"]), view, node("Softmax", ["v"], ["y"])]
    constants = {"w": rand(8, 5)} | ({"s": np.array([3, 2, 5], INT)} if view.op_type == "Reshape" else {})
    proto = model(nodes, {"x": (F, shape)}, ["y"], constants)
    m = compiled(proto)
    assert "view-before-product" not in fired(m)
    assert reasons(m, "view-before-product")
    x = rand(*shape)
    np.testing.assert_allclose(m({"x": x})[0], evaluate(proto, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_a_way_of_views_gets_shorter():
    g = G()
    y = g("Reshape", "x", np.array([5, 24], INT))
    y = g(
        "Reshape",
        g("Transpose", g("Reshape", y, np.array([5, 12, 2], INT)), perm=[1, 0, 2]),
        np.array([3, 4, 5, 2], INT),
    )
    y = g("Softmax", g("Transpose", y, perm=[0, 2, 1, 3]), axis=1)
    proto = g.model({"x": [5, 3, 8]}, y)
    x = rand(5, 3, 8)
    m = check(proto, {"x": x}, "shorten-views", ["Reshape", "Transpose", "Softmax"])
    assert "collapse-reshapes" in fired(m)


SIZES = (2, 3, 4)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_way_of_views_means_the_same(data):
    g = G()
    shape = [2, 3, 4, 2]
    value = g("Neg", "x")
    for _ in range(data.draw(st.integers(2, 6))):
        kind = data.draw(st.sampled_from(["transpose", "join", "split", "one"]))
        if kind == "transpose":
            perm = data.draw(st.permutations(range(len(shape))))
            value, shape = g("Transpose", value, perm=list(perm)), [shape[p] for p in perm]
            continue
        at = data.draw(st.integers(0, len(shape) - 1))
        if kind == "join" and at + 1 < len(shape):
            shape = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
        elif kind == "split" and shape[at] % 2 == 0 and len(shape) < 6:
            shape = [*shape[:at], 2, shape[at] // 2, *shape[at + 1 :]]
        elif kind == "one" and len(shape) < 6:
            shape = [*shape[:at], 1, *shape[at:]]
        value = g("Reshape", value, np.array(shape, INT))
    proto = g.model({"x": [2, 3, 4, 2]}, g("Exp", value))
    x = rand(2, 3, 4, 2)
    np.testing.assert_allclose(compiled(proto)({"x": x})[0], evaluate(proto, {"x": x})[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "axis", "left"),
    [
        (np.array(1), 0, ["Neg", "Slice", "Squeeze", "Exp"]),
        (np.array(-1), 2, ["Neg", "Slice", "Squeeze", "Exp"]),
        (np.array([0, 2]), 0, ["Neg", "Slice", "Exp"]),
        (np.array([1, -1]), -2, ["Neg", "Slice", "Exp"]),
        (np.array([2]), 1, ["Neg", "Slice", "Exp"]),
    ],
    ids=["one", "last", "every second", "negative", "one of one axis"],
)
def test_rows_that_a_constant_names_are_a_slice(rows, axis, left):
    proto = model(
        [node("Neg", ["x"], ["n"]), node("Gather", ["n", "i"], ["s"], axis=axis), node("Exp", ["s"], ["y"])],
        {"x": (F, [3, 3, 4])},
        ["y"],
        {"i": rows.astype(INT)},
    )
    check(proto, {"x": rand(3, 3, 4)}, "gather-to-slice", left, disabled_rules=("fuse-loops", "fuse-epilogue"))


@pytest.mark.parametrize(
    ("rows", "size", "why"),
    [
        (np.array([0, 0]), 3, "one step apart"),
        (np.array([2, 1]), 3, "one step apart"),
        (np.array([0, 1, 3]), 4, "one step apart"),
        (np.array([[0, 1]]), 3, "2 axes"),
        (np.array([0, 1]), "n", "only known at run time"),
    ],
    ids=["repeated", "backwards", "uneven", "matrix", "symbolic"],
)
def test_rows_that_are_no_slice(rows, size, why):
    proto = model(
        [node("Neg", ["x"], ["n"]), node("Gather", ["n", "i"], ["s"]), node("Exp", ["s"], ["y"])],
        {"x": (F, [size, 4])},
        ["y"],
        {"i": rows.astype(INT)},
    )
    m = compiled(proto)
    assert any(why in r for r in reasons(m, "gather-to-slice"))
    x = rand(4 if size == "n" else size, 4)
    np.testing.assert_allclose(m({"x": x})[0], evaluate(proto, {"x": x})[0], rtol=1e-6)


def test_heads_of_a_joint_projection_with_the_length_first_are_packed():
    """As torch.nn.MultiheadAttention is exported: one projection, three rows of it, batch and heads in one axis."""
    batch, length, heads, size = 3, 5, 2, 4
    width = heads * size
    g = G()
    x = g("Transpose", "x", perm=[1, 0, 2])
    qkv = g("Add", g("MatMul", x, rand(width, 3 * width)), rand(3 * width))
    qkv = g("Reshape", qkv, np.array([1, length, batch, 3, width], INT))
    qkv = g.axes("Squeeze", g("Transpose", qkv, perm=[3, 1, 2, 0, 4]), [3])
    split = []
    for i in range(3):
        part = g("Reshape", g("Gather", qkv, np.array(i, INT), axis=0), np.array([length, batch * heads, size], INT))
        part = g("Transpose", part, perm=[1, 0, 2])
        split.append(g("Reshape", part, np.array([batch, heads, length, size], INT)))
    q, k, v = split
    scores = g("MatMul", g("Mul", q, 0.5**0.5), g("Mul", g("Transpose", k, perm=[0, 1, 3, 2]), 0.5**0.5))
    y = g("Transpose", g("MatMul", g("Softmax", scores, axis=-1), v), perm=[2, 0, 1, 3])
    y = g("Gemm", g("Reshape", y, np.array([length * batch, width], INT)), rand(width, width), rand(width))
    y = g("Transpose", g("Reshape", y, np.array([length, batch, width], INT)), perm=[1, 0, 2])
    proto = g.model({"x": [batch, length, width]}, g("Add", y, "x"))
    m = compiled(proto)
    assert "pack-attention-heads" in fired(m)
    assert "Gather" not in ops(m)
    assert ops(m)[-3:] == ["MatMul", "Add", "Add"]
    assert "product-before-transpose" in fired(m)
    assert ops(m)[:2] == ["MatMul", "Add"]
    data = rand(batch, length, width)
    np.testing.assert_allclose(m({"x": data})[0], evaluate(proto, {"x": data})[0], rtol=2e-5, atol=2e-5)


def test_heads_whose_shape_cannot_be_stated_are_not_packed():
    """Batch and length are both known only at run time, and the rows come with the length first."""
    heads, size = 2, 4
    width = heads * size
    g = G()
    parts = []
    for _ in range(3):
        part = g("Reshape", g("MatMul", "x", rand(width, width)), np.array([0, 0, heads, size], INT))
        parts.append(g("Transpose", part, perm=[1, 2, 0, 3]))
    q, k, v = parts
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), 0.5)
    y = g("Transpose", g("MatMul", g("Softmax", scores, axis=-1), v), perm=[2, 0, 1, 3])
    proto = g.model({"x": ["length", "batch", width]}, g("Reshape", y, np.array([0, 0, width], INT)))
    m = compiled(proto)
    assert "Attention" in ops(m)
    data = rand(5, 3, width)
    np.testing.assert_allclose(m({"x": data})[0], evaluate(proto, {"x": data})[0], rtol=2e-5, atol=2e-5)
