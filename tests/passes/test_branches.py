"""Branches of little work are both computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from rules_harness import F, check, compiled, fired, rand, reasons

from accord.backends.reference.evaluator import evaluate
from builders import model, node

RULE = "select-branch"


def branch(nodes, *outputs, constants=None) -> onnx.GraphProto:
    made = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    return helper.make_graph(nodes, "branch", [], [onnx.ValueInfoProto(name=o) for o in outputs], made)


def choice(then, other, *, condition=(), shape=(2, 3), count=1, dtype=F) -> onnx.ModelProto:
    names = ["y", "z"][:count]
    inputs = {"s": (F, list(condition)), "x": (dtype, list(shape)), "w": (dtype, list(shape))}
    nodes = [node("Greater", ["s", "zero"], ["c"]), node("If", ["c"], names, then_branch=then, else_branch=other)]
    return model(nodes, inputs, names, {"zero": np.array(0, F)})


HALF = branch([node("Mul", ["x", "h"], ["t"]), node("Tanh", ["t"], ["u"])], "u", constants={"h": np.array(0.5, F)})
MORE = branch([node("Add", ["x", "w"], ["e"])], "e")
SAME = branch([node("Identity", ["x"], ["i"])], "i")


@pytest.mark.parametrize("condition", [(), (1,)])
@pytest.mark.parametrize(
    ("then", "other", "left"),
    [
        (HALF, MORE, {"Mul", "Tanh", "Add"}),
        (SAME, MORE, {"Add"}),
        (HALF, branch([node("Sub", ["w", "x"], ["d"]), node("Abs", ["d"], ["a"])], "a"), {"Mul", "Tanh", "Sub", "Abs"}),
    ],
)
def test_both_are_computed(condition, then, other, left):
    proto = choice(then, other, condition=condition)
    for truth in (True, False):
        feeds = {"s": np.full(condition, truth, F), "x": rand(2, 3), "w": rand(2, 3)}
        m = compiled(proto)
        assert RULE in fired(m)
        for a, b in zip(m(feeds), evaluate(proto, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    assert left <= {n.op_type for f in [m.compiled.model.graph, *m.compiled.model.functions.values()] for n in f}


def test_two_results():
    then = branch([node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["b"])], "a", "b")
    other = branch([node("Relu", ["w"], ["d"])], "d", "d")
    proto = choice(then, other, count=2)
    left = ["Greater", "Neg", "Exp", "Relu", "Where", "Where"]
    for truth in (True, False):
        feeds = {"s": np.array(truth, F), "x": rand(2, 3), "w": rand(2, 3)}
        check(proto, feeds, RULE, left, disabled_rules=("fuse-loops", "fuse-epilogue"))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"then": branch([node("Softmax", ["x"], ["g"])], "g"), "other": MORE}, "Softmax"),
        ({"then": branch([node("Div", ["x", "w"], ["d"])], "d"), "other": MORE, "dtype": np.int64}, "divides integers"),
        ({"then": HALF, "other": MORE, "shape": ("n", 3)}, "size"),
        ({"then": HALF, "other": MORE, "shape": (100, 100)}, "elements"),
        ({"then": HALF, "other": branch([node("Relu", ["k"], ["r"])], "r", constants={"k": np.zeros(3, F)})}, "kinds"),
        ({"then": HALF, "other": MORE, "condition": ("k",)}, "one element"),
    ],
)
def test_what_stays_a_choice(case, reason):
    m = compiled(choice(**case))
    assert RULE not in fired(m)
    assert any(reason in r for r in reasons(m, RULE)), reasons(m, RULE)


def test_a_loop_with_a_choice_is_bound_once():
    info = helper.make_tensor_value_info
    then = branch([node("Mul", ["h", "half"], ["t"])], "t", constants={"half": np.array(0.5, F)})
    other = branch([node("Add", ["h", "one"], ["e"])], "e", constants={"one": np.array(1, F)})
    body = helper.make_graph(
        [
            node("Greater", ["h", "limit"], ["m"]),
            node("If", ["m"], ["h_2"], then_branch=then, else_branch=other),
            node("Identity", ["go"], ["on"]),
        ],
        "body",
        [info("i", T.INT64, []), info("go", T.BOOL, []), info("h", T.FLOAT, [])],
        [info("on", T.BOOL, []), info("h_2", T.FLOAT, [])],
        [numpy_helper.from_array(np.array(2, F), "limit")],
    )
    proto = model([node("Loop", ["n", "", "x"], ["y"], body=body)], {"n": (np.int64, []), "x": (F, [])}, ["y"])
    m = compiled(proto)
    (child,) = m._first.executor.children.values()
    assert not child.children
    for n in (0, 1, 20):
        feeds = {"n": np.array(n), "x": np.array(0.3, F)}
        np.testing.assert_allclose(m(feeds)[0], evaluate(proto, feeds)[0], rtol=1e-6)
