"""Einsum, GroupNormalization, projections, affine chains, and movement that has a name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recognise_harness import F, G, attributes, becomes, compiled, in_onnxruntime, nodes, ops, reasons, same, stays

RNG = np.random.default_rng(16)


def rand(*shape, dtype=F):
    return RNG.standard_normal(shape).astype(dtype)


# Einsum


def test_keras_attention():
    """MultiHeadAttention of Keras through tf2onnx: four Einsums."""
    b, s, h, d = 2, 5, 3, 4
    e = h * d
    g = G(13)
    q, k, v = (g("Add", g("Einsum", "x", rand(e, h, d), equation="abc,cde->abde"), rand(h, d)) for _ in range(3))
    q = g("Mul", q, 0.5)
    p = g("Softmax", g("Einsum", k, q, equation="aecd,abcd->acbe"), axis=-1)
    y = g("Einsum", p, v, equation="acbe,aecd->abcd")
    y = g("Add", g("Einsum", y, rand(h, d, e), equation="abcd,cde->abe"), rand(e))
    proto = g.model({"x": ["b", "s", e]}, y)
    m = compiled(proto)
    assert ops(m).count("Attention") == 1, (ops(m), reasons(m))
    assert "Einsum" not in ops(m)
    same(proto, {"x": rand(b, s, e)}, m, 1e-4)
    in_onnxruntime(m, {"x": rand(b, s, e)}, 1e-4)


# GroupNormalization


def group_norm_torch(g, x, gamma, beta, groups):
    """TorchScript: InstanceNormalization of the groups, then scale and shift."""
    ones, zeros = g.const(np.ones(groups)), g.const(np.zeros(groups))
    y = g("InstanceNormalization", g("Reshape", x, np.array([0, groups, -1])), ones, zeros, epsilon=1e-5)
    y = g("Reshape", y, g("Shape", x))
    return g("Add", g("Mul", y, gamma.reshape(-1, 1, 1)), beta.reshape(-1, 1, 1))


def group_norm_moments(g, x, gamma, beta, groups):
    """Decomposed, with the channels of a group as an axis, scaled before they are joined."""
    c = len(gamma)
    y = g("Reshape", x, np.array([0, groups, c // groups, 5, 6]))
    d = g("Sub", y, g.axes("ReduceMean", y, [2, 3, 4]))
    y = g("Div", d, g("Sqrt", g("Add", g.axes("ReduceMean", g("Mul", d, d), [2, 3, 4]), 1e-5)))
    shape = (1, groups, c // groups, 1, 1)
    y = g("Add", g("Mul", y, gamma.reshape(shape)), beta.reshape(shape))
    return g("Reshape", y, np.array([0, c, 5, 6]))


def group_norm_flat(g, x, gamma, beta, groups):
    y = g("Reshape", x, np.array([0, groups, -1]))
    d = g("Sub", y, g.axes("ReduceMean", y, [2]))
    y = g("Mul", d, g("Pow", g("Add", g.axes("ReduceMean", g("Pow", d, 2.0), [2]), 1e-5), -0.5))
    y = g("Reshape", y, np.array([0, len(gamma), 5, 6]))
    return g("Add", g("Mul", y, gamma.reshape(1, -1, 1, 1)), beta.reshape(1, -1, 1, 1))


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("form", [group_norm_torch, group_norm_moments, group_norm_flat], ids=lambda f: f.__name__)
def test_group_norm(form, opset):
    g = G(opset)
    y = form(g, "x", rand(8), rand(8), 2)
    m = becomes(g.model({"x": ["n", 8, 5, 6]}, y), {"x": rand(2, 8, 5, 6)}, ["GroupNormalization"])
    assert attributes(m, "GroupNormalization")["num_groups"] == 2
    in_onnxruntime(m, {"x": rand(2, 8, 5, 6)}, 1e-4)


def test_a_group_norm_that_is_read_between():
    g = G(13)
    ones, zeros = g.const(np.ones(2)), g.const(np.zeros(2))
    i = g("InstanceNormalization", g("Reshape", "x", np.array([0, 2, -1])), ones, zeros)
    y = g("Reshape", i, np.array([0, 8, 5, 6]))
    proto = g.model({"x": ["n", 8, 5, 6]}, y, i)
    stays(proto, "read by others as well", "recognise-group-norm")


def test_groups_that_cross_the_batch_are_none():
    g = G(13)
    ones, zeros = g.const(np.ones(4)), g.const(np.zeros(4))
    i = g("InstanceNormalization", g("Reshape", "x", np.array([1, 4, -1])), ones, zeros)
    proto = g.model({"x": [2, 8, 5, 6]}, g("Reshape", i, np.array([2, 8, 5, 6])))
    stays(proto, "does not split the channels", "recognise-group-norm")


# projections


def test_projections_become_one():
    g = G(13)
    parts = [g("Sin", g("Add", g("MatMul", "x", rand(6, n)), rand(n))) for n in (3, 4, 5)]
    proto = g.model({"x": ["b", "s", 6]}, *parts)
    m = becomes(proto, {"x": rand(2, 3, 6)}, ["MatMul", "Add", "Split", "Sin", "Sin", "Sin"])
    in_onnxruntime(m, {"x": rand(2, 3, 6)})


def test_projections_of_which_one_has_no_bias():
    g = G(13)
    a = g("Sin", g("Add", g("MatMul", "x", rand(6, 3)), rand(3)))
    b = g("Sin", g("MatMul", "x", rand(6, 4)))
    becomes(g.model({"x": ["b", "s", 6]}, a, b), {"x": rand(2, 3, 6)}, ["MatMul", "Split", "Add", "Sin", "Sin"])


def test_projections_that_are_computed_stay():
    g = G(13)
    a, b = g("MatMul", "x", "w"), g("MatMul", "x", rand(6, 4))
    stays(g.model({"x": ["b", "s", 6], "w": [6, 4]}, a, b), None, "merge-projections")


def test_one_projection_whose_result_is_returned():
    g = G(13)
    a = g("MatMul", "x", rand(6, 3))
    b = g("Add", g("MatMul", "x", rand(6, 4)), rand(4))
    proto = g.model({"x": ["b", 6]}, a, g("Sin", a), b)
    m = compiled(proto)
    assert ops(m).count("MatMul") == 1
    same(proto, {"x": rand(2, 6)}, m)


# affine chains


def test_a_batch_norm_written_out():
    g = G(13)
    y = g("Add", g("MatMul", "x", "w"), rand(4))
    y = g("Mul", g("Sub", y, rand(1, 4)), rand(4))
    y = g("Add", g("Div", y, np.abs(rand(4)) + 1), rand(4))
    becomes(g.model({"x": ["n", 4], "w": [4, 4]}, y), {"x": rand(2, 4), "w": rand(4, 4)}, ["MatMul", "Mul", "Add"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["Mul", "Div", "Add", "Sub", "rsub", "Neg"]), min_size=1, max_size=6))
def test_any_affine_chain(steps):
    g = G(13)
    y = g("MatMul", "x", "w")
    for op in steps:
        c = (np.abs(rand(4)) + 0.5) if RNG.random() < 0.7 else float(RNG.uniform(0.5, 2))
        y = g("Neg", y) if op == "Neg" else g("Sub", c, y) if op == "rsub" else g(op, y, c)
    proto = g.model({"x": ["n", 4], "w": [4, 4]}, y)
    m = compiled(proto)
    assert len(ops(m)) - 1 <= min(len(steps), 2)
    same(proto, {"x": rand(2, 4), "w": rand(4, 4)}, m, 1e-4)


def test_a_chain_whose_middle_is_read_stays_in_parts():
    g = G(13)
    a = g("Mul", g("Div", "x", 3.0), 2.0)
    y = g("Mul", g("Neg", a), 3.0)
    becomes(g.model({"x": ["n", 4]}, y, g("Sin", a)), {"x": rand(2, 4)}, ["Mul", "Mul", "Sin"])


def test_products_merge_anywhere_and_sums_do_not():
    g = G(13)
    y = g("Mul", g("Neg", g("Div", "x", 255.0)), rand(3, 1, 1))
    becomes(g.model({"x": ["n", 3, 4, 4]}, y), {"x": rand(2, 3, 4, 4)}, ["Mul"])
    g = G(13)
    y = g("Div", g("Sub", g("Div", "x", 255.0), rand(3, 1, 1)), rand(3, 1, 1))
    stays(g.model({"x": ["n", 3, 4, 4]}, y), None, "merge-affine")


def test_a_chain_that_would_overflow_stays():
    g = G(13)
    y = g("Mul", g("Mul", g("Mul", "x", 1e30), 1e30), 1e30)
    stays(g.model({"x": ["n", 4]}, y), "would not be finite", "merge-affine")


def test_rounding_by_a_large_number_stays():
    """x + 1.5 * 2**23 - 1.5 * 2**23 rounds x to a whole number."""
    g = G(13)
    y = g("Sub", g("Add", g("Mul", g("MatMul", "x", "w"), 4.0), 12582912.0), 12582912.0)
    proto = g.model({"x": ["n", 4], "w": [4, 4]}, y)
    stays(proto, "the shifts cancel", "merge-affine")


def test_batch_norm_behind_the_transpose_of_a_convolution():
    """Channels-last frameworks: Conv, Transpose, and the batch norm written out."""
    g = G(13)
    y = g("Transpose", g("Conv", "x", rand(6, 3, 3, 3)), perm=[0, 2, 3, 1])
    y = g("Sub", g("Add", y, rand(1, 1, 1, 6)), rand(6))
    y = g("Relu", g("Add", g("Mul", y, rand(6)), rand(6)))
    m = becomes(g.model({"x": ["n", 3, 8, 8]}, y), {"x": rand(2, 3, 8, 8)}, ["Conv", "Transpose", "Relu"], 1e-4)
    assert len(nodes(m, "Conv")[0].inputs) == 3


# movement


def pixel_shuffle(g, x, b=2, c=3):
    y = g("Reshape", x, np.array([0, c, b, b, 4, 5]))
    return g("Reshape", g("Transpose", y, perm=[0, 1, 4, 2, 5, 3]), np.array([0, c, 4 * b, 5 * b]))


def depth_to_space(g, x, b=2, c=3):
    y = g("Reshape", x, np.array([0, b, b, c, 4, 5]))
    return g("Reshape", g("Transpose", y, perm=[0, 3, 4, 1, 5, 2]), np.array([0, c, 4 * b, 5 * b]))


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize(("form", "mode"), [(pixel_shuffle, "CRD"), (depth_to_space, "DCR")])
def test_depth_to_space(form, mode, c):
    g = G(13)
    m = becomes(g.model({"x": ["n", 4 * c, 4, 5]}, form(g, "x", 2, c)), {"x": rand(2, 4 * c, 4, 5)}, ["DepthToSpace"])
    assert attributes(m, "DepthToSpace")["blocksize"] == 2
    assert c == 1 or attributes(m, "DepthToSpace")["mode"] == mode


def test_space_to_depth():
    g = G(13)
    y = g("Reshape", "x", np.array([0, 3, 2, 2, 3, 2]))
    y = g("Reshape", g("Transpose", y, perm=[0, 3, 5, 1, 2, 4]), np.array([0, 12, 2, 3]))
    becomes(g.model({"x": ["n", 3, 4, 6]}, y), {"x": rand(2, 3, 4, 6)}, ["SpaceToDepth"])


@pytest.mark.parametrize("perm", [[0, 2, 1, 3, 4], [0, 1, 2, 4, 3]])
def test_a_shuffle_is_neither(perm):
    g = G(13)
    y = g("Reshape", g("Transpose", g("Reshape", "x", np.array([0, 2, 3, 4, 5])), perm=perm), np.array([0, 6, 4, 5]))
    stays(g.model({"x": ["n", 6, 4, 5]}, y), None, "recognise-depth-space")


def test_slices_put_together():
    g = G(13)
    x = g("Sin", "x")
    parts = [g("Slice", x, np.array([i]), np.array([j]), np.array([1])) for i, j in ((0, 2), (2, 3), (3, 100))]
    becomes(g.model({"x": ["n", 6]}, g("Concat", *parts, axis=-1)), {"x": rand(2, 6)}, ["Sin"])


def test_a_split_put_together():
    g = G(13)
    parts = g("Split", g("Sin", "x"), np.array([1, 2, 3]), outputs=3, axis=1)
    becomes(g.model({"x": ["n", 6]}, g("Concat", *parts, axis=1)), {"x": rand(2, 6)}, ["Sin"])


@pytest.mark.parametrize("order", [(1, 0), (0, 0)])
def test_parts_in_another_order_stay(order):
    g = G(13)
    parts = g("Split", g("Sin", "x"), np.array([3, 3]), outputs=2, axis=1)
    y = g("Concat", *(parts[i] for i in order), axis=1)
    stays(g.model({"x": ["n", 6]}, y), "not put together in their order", "remove-split-concat")


def test_slices_with_a_step_stay():
    g = G(13)
    parts = [g("Slice", "x", np.array([i]), np.array([6]), np.array([1]), np.array([2])) for i in (0, 1)]
    stays(
        g.model({"x": ["n", 6]}, g("Concat", *parts, axis=1)), "not put together in their order", "remove-split-concat"
    )
