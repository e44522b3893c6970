"""Layouts: strides of reshapes, reorders, views, joins written in place."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

import accord
from accord.ir import dims as D
from accord.ir.strides import (
    Access,
    axis_groups,
    broadcast_access,
    channels_last,
    contiguous,
    in_order,
    order_of,
    reshaped,
    reshaping,
)
from accord.runtime.model import Model
from accord.runtime.options import Options


def place(array: np.ndarray, access: Access) -> np.ndarray:
    """The flat memory in which ``array`` lies as ``access`` says."""
    memory = np.full(1 + sum((n - 1) * s for n, s in zip(array.shape, access.strides, strict=True)), -1)
    view(memory, array.shape, access)[...] = array
    return memory


def view(memory: np.ndarray, shape, access: Access) -> np.ndarray:
    strides = [s * memory.itemsize for s in access.strides]
    return np.lib.stride_tricks.as_strided(memory[access.offset :], shape, strides)


SHAPES = [(2, 6, 4, 5), (1, 6, 4, 5), (6, 1, 4), (12,), (2, 3, 2, 2), (1, 1), (), (3, 0, 2), (0, 0)]
ORDERS = [(s, o) for s in SHAPES for o in itertools.permutations(range(len(s)))]


@pytest.mark.parametrize(("shape", "order"), ORDERS)
def test_order_is_found_again(shape, order):
    access = Access(in_order(shape, order))
    found = order_of(shape, access)
    assert found is not None
    assert sorted(found) == list(range(len(shape)))
    same = in_order(shape, found)
    assert all(a == b for a, b, n in zip(same, access.strides, shape, strict=True) if n > 1)


def test_axes_around_an_empty_one_are_no_repetition():
    """A stride of 0 says that an axis is broadcast."""
    for order in itertools.permutations(range(3)):
        assert 0 not in in_order((4, 0, 5), order)


def test_gaps_have_no_order():
    assert order_of((2, 3), Access((4, 1))) is None
    assert order_of((2, 3), Access((0, 1))) is None


@st.composite
def _reshapes(draw):
    factors = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5))

    def cut() -> tuple[int, ...]:
        shape, at = [], 0
        while at < len(factors):
            n = draw(st.integers(1, len(factors) - at))
            shape.append(int(np.prod(factors[at : at + n])))
            at += n
        for _ in range(draw(st.integers(0, 2))):
            shape.insert(draw(st.integers(0, len(shape))), 1)
        return tuple(shape)

    shape, target = cut(), cut()
    order = tuple(draw(st.permutations(range(len(shape)))))
    return shape, target, order


@given(_reshapes())
@settings(max_examples=300, deadline=None)
def test_reshape_without_and_with_a_copy(case):
    shape, target, order = case
    array = np.arange(int(np.prod(shape))).reshape(shape)
    access = Access(in_order(shape, order))
    memory = place(array, access)
    alias = reshaped(shape, access, target)
    if alias is not None:
        np.testing.assert_array_equal(view(memory, target, alias), array.reshape(target))
    copy = reshaping(shape, access, target)
    if copy is not None:
        out = Access(in_order(target, copy.order))
        result = np.full(array.size, -1)
        view(result, copy.extents, copy.target(out))[...] = view(memory, copy.extents, copy.source)
        np.testing.assert_array_equal(view(result, target, out), array.reshape(target))


def test_channel_shuffle_stays_channels_last():
    n, h_, w = (D.symbol(s) for s in "nhw")
    shape = (n, 12, h_, w)
    access = Access(in_order(shape, channels_last(4)))
    split = reshaped(shape, access, (n, 3, 4, h_, w))
    assert split is not None
    swapped = Access(tuple(split.strides[a] for a in (0, 2, 1, 3, 4)))
    assert reshaped((n, 4, 3, h_, w), swapped, shape) is None
    copy = reshaping((n, 4, 3, h_, w), swapped, shape)
    assert copy is not None
    assert copy.order == channels_last(4)


def test_axis_groups_of_symbols():
    n, s = D.symbol("n"), D.symbol("s")
    assert axis_groups((n, s, 384), (n * s, 384)) == [([0, 1], [0]), ([2], [1])]
    assert axis_groups((n, 8), (s, 8)) is None
    assert axis_groups((n, 0, 8), (0, 8)) is None


def test_broadcast_keeps_own_strides():
    access = broadcast_access((3, 1), (2, 3, 4), Access((5, 1), 7))
    assert access == Access((0, 5, 0), 7)
    assert contiguous((2, 3)) == (3, 1)


# whole models


def run_both(nodes, inputs, outputs, feeds, initializers=()):
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info(n, T.FLOAT, s) for n, s in inputs.items()],
        [h.make_tensor_value_info(n, T.FLOAT, None) for n in outputs],
        list(initializers),
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    compiled = accord.load(model)
    want = Model(model, Options(reference=True))
    for got, expected in zip(compiled(feeds), want(feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        assert got.flags.c_contiguous
    return compiled.compiled.plan


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(name, *values):
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def kinds(plan):
    return [s.placement.op for s in plan.steps if s.placement.backend not in ("plan",)]


def test_views_run_nothing():
    nodes = [
        h.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        h.make_node("Slice", ["t", "b", "e", "a"], ["s"]),
        h.make_node("Unsqueeze", ["s", "a"], ["u"]),
        h.make_node("Relu", ["u"], ["y"]),
    ]
    plan = run_both(
        nodes, {"x": ["n", 3, 8]}, ["y"], {"x": floats(2, 3, 8)}, [ints("b", 2), ints("e", 7), ints("a", 1)]
    )
    assert kinds(plan) == ["Relu"]


def test_split_and_concat_move_nothing():
    nodes = [
        h.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
        h.make_node("Relu", ["a"], ["c"]),
        h.make_node("Neg", ["b"], ["d"]),
        h.make_node("Concat", ["c", "d"], ["e"], axis=1),
        h.make_node("Abs", ["e"], ["y"]),
    ]
    plan = run_both(nodes, {"x": ["n", 6, 5]}, ["y"], {"x": floats(2, 6, 5)})
    assert sorted(kinds(plan)) == ["Abs", "Neg", "Relu"]


def test_nested_concats_share_one_block():
    nodes = [
        h.make_node("Relu", ["x"], ["a"]),
        h.make_node("Neg", ["x"], ["b"]),
        h.make_node("Concat", ["a", "b"], ["ab"], axis=1),
        h.make_node("Exp", ["ab"], ["c"]),
        h.make_node("Concat", ["ab", "c"], ["abc"], axis=1),
        h.make_node("Tanh", ["abc"], ["y"]),
    ]
    plan = run_both(nodes, {"x": [2, "c", 3]}, ["y"], {"x": floats(2, 4, 3)})
    assert sorted(kinds(plan)) == ["Exp", "Neg", "Relu", "Tanh"]


@pytest.mark.parametrize(
    "extra",
    [
        h.make_node("Identity", ["a"], ["z"]),  # returned as well
        h.make_node("Reshape", ["a", "flat"], ["z"]),  # needed without gaps
    ],
)
def test_a_value_with_other_needs_is_copied(extra):
    nodes = [
        h.make_node("Relu", ["x"], ["a"]),
        h.make_node("Neg", ["x"], ["b"]),
        h.make_node("Concat", ["a", "b"], ["y"], axis=1),
        extra,
    ]
    run_both(nodes, {"x": [2, 4, 3]}, ["y", "z"], {"x": floats(2, 4, 3)}, [ints("flat", -1)])


def test_the_same_value_twice_in_a_concat():
    nodes = [h.make_node("Relu", ["x"], ["a"]), h.make_node("Concat", ["a", "a"], ["y"], axis=0)]
    run_both(nodes, {"x": [2, 3]}, ["y"], {"x": floats(2, 3)})


def test_parts_of_an_input_are_returned():
    nodes = [h.make_node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2), h.make_node("Neg", ["b"], ["c"])]
    run_both(nodes, {"x": [4, 3]}, ["a", "c", "b"], {"x": floats(4, 3)})


def test_in_place_never_touches_a_part_of_a_join():
    nodes = [
        h.make_node("Relu", ["x"], ["a"]),
        h.make_node("Neg", ["a"], ["b"]),
        h.make_node("Concat", ["a", "b"], ["c"], axis=1),
        h.make_node("Exp", ["b"], ["d"]),
    ]
    run_both(nodes, {"x": [2, 3]}, ["c", "d"], {"x": floats(2, 3)})
