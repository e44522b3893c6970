"""Sizes that only a run can tell must agree before machine code starts: else it would read past its inputs."""

from __future__ import annotations

import numpy as np
import pytest

from accord.errors import AccordError, InputError
from accord.runtime.model import Model
from accord.runtime.options import Options
from builders import model, node

F, I64 = np.float32, np.int64


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, F)


def loaded(nodes, inputs, outputs=("y",), constants=None, **options) -> Model:
    return Model(model(nodes, inputs, list(outputs), constants), Options(**options))


#: Nodes, declared inputs, constants, sizes that fit, sizes that do not.
CASES = {
    "two broadcast inputs": (
        [node("Add", ["a", "b"], ["y"])],
        {"a": ["n"], "b": ["m"]},
        {},
        [(5,), (5,)],
        [(5,), (7,)],
    ),
    "a broadcast constant": ([node("Mul", ["a", "c"], ["y"])], {"a": ["n"]}, {"c": ones(7)}, [(7,)], [(5,)]),
    "three broadcast inputs": (
        [node("Sum", ["a", "b", "c"], ["y"])],
        {"a": ["n"], "b": ["m"], "c": ["k"]},
        {},
        [(1,), (4,), (4,)],
        [(4,), (1,), (3,)],
    ),
    "inner sizes of MatMul": (
        [node("MatMul", ["a", "b"], ["y"])],
        {"a": ["n", "k"], "b": ["m", 3]},
        {},
        [(2, 4), (4, 3)],
        [(2, 9), (4, 3)],
    ),
    "inner size of MatMul and a constant": (
        [node("MatMul", ["a", "w"], ["y"])],
        {"a": ["n", "k"]},
        {"w": ones(64, 8)},
        [(2, 64)],
        [(2, 4096)],
    ),
    "batches of MatMul": (
        [node("MatMul", ["a", "b"], ["y"])],
        {"a": ["n", 2, 4], "b": ["m", 4, 3]},
        {},
        [(5, 2, 4), (1, 4, 3)],
        [(5, 2, 4), (3, 4, 3)],
    ),
    "Gemm and what it adds": (
        [node("Gemm", ["a", "w", "c"], ["y"])],
        {"a": ["n", 4], "c": ["m", 3]},
        {"w": ones(4, 3)},
        [(2, 4), (1, 3)],
        [(4, 4), (3, 3)],
    ),
    "channels of Conv": (
        [node("Conv", ["x", "w"], ["y"])],
        {"x": [1, "c", 4, 4]},
        {"w": ones(2, 8, 1, 1)},
        [(1, 8, 4, 4)],
        [(1, 3, 4, 4)],
    ),
    "channels of a grouped Conv": (
        [node("Conv", ["x", "w"], ["y"], group=2)],
        {"x": [1, "c", 4, 4]},
        {"w": ones(2, 4, 1, 1)},
        [(1, 8, 4, 4)],
        [(1, 4, 4, 4)],
    ),
    "other axes of Concat": (
        [node("Concat", ["a", "b"], ["y"], axis=0)],
        {"a": [2, "n"], "b": [3, "m"]},
        {},
        [(2, 4), (3, 4)],
        [(2, 4), (3, 8)],
    ),
    "parts of Split": (
        [node("Split", ["x", "s"], ["y", "z"])],
        {"x": ["n"]},
        {"s": np.array([4, 4], I64)},
        [(8,)],
        [(5,)],
    ),
    "slope of PRelu": (
        [node("PRelu", ["x", "s"], ["y"])],
        {"x": [2, "n"], "s": ["m"]},
        {},
        [(2, 4), (1,)],
        [(2, 4), (8,)],
    ),
    "blocks of DepthToSpace": (
        [node("DepthToSpace", ["x"], ["y"], blocksize=2)],
        {"x": [2, "c", 2, 2]},
        {},
        [(2, 8, 2, 2)],
        [(2, 7, 2, 2)],
    ),
    "a size that the graph computes": (
        [
            node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1], strides=[2, 2]),
            node("Resize", ["p", "", "s"], ["u"], mode="nearest"),
            node("Add", ["x", "u"], ["y"]),
        ],
        {"x": [1, 1, "h", "w"]},
        {"s": np.array([1, 1, 2, 2], F)},
        [(1, 1, 32, 48)],
        [(1, 1, 32, 47)],
    ),
}


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("case", list(CASES))
def test_sizes_that_disagree_are_an_error(case, reference):
    nodes, declared, constants, fits, differs = CASES[case]
    inputs = {n: (F, shape) for n, shape in declared.items()}
    m = loaded(nodes, inputs, nodes[-1].output, constants, reference=reference)
    m(*(ones(*shape) for shape in fits))
    with pytest.raises(AccordError) as caught:
        m(*(ones(*shape) for shape in differs))
    assert caught.value.op == nodes[-1].op_type
    m(*(ones(*shape) for shape in fits))


def test_the_error_names_the_sizes():
    m = loaded([node("Add", ["a", "b"], ["y"])], {"a": (F, ["n"]), "b": (F, ["m"])})
    with pytest.raises(InputError, match=r"broadcast do not fit each other\. Expected: broadcast\(m, n\) = 5, or 1"):
        m(ones(7), ones(5))


@pytest.mark.parametrize(("a", "b"), [(1, 4), (4, 1), (0, 1), (1, 0), (0, 0), (1, 1)])
def test_what_broadcasts_still_does(a, b):
    m = loaded([node("Add", ["a", "b"], ["y"])], {"a": (F, ["n"]), "b": (F, ["m"])})
    np.testing.assert_array_equal(m(ones(a), ones(b))[0], ones(a) + ones(b))


def test_sizes_that_data_decide():
    """Two sizes that are known only after NonZero has run."""
    nodes = [
        node("NonZero", ["a"], ["i"]),
        node("NonZero", ["b"], ["j"]),
        node("Cast", ["i"], ["p"], to=1),
        node("Cast", ["j"], ["q"], to=1),
        node("Add", ["p", "q"], ["y"]),
    ]
    m = loaded(nodes, {"a": (F, [9]), "b": (F, [9])})
    three, four = (np.arange(9) < 3).astype(F), (np.arange(9) < 4).astype(F)
    np.testing.assert_array_equal(m(three, three)[0], [[0, 2, 4]])
    with pytest.raises(AccordError) as caught:
        m(three, four)
    assert caught.value.op is not None and "Add" in caught.value.op


def test_a_branch_that_is_not_taken_is_not_checked():
    body = {
        "then_branch": [node("Add", ["a", "b"], ["t"])],
        "else_branch": [node("Neg", ["a"], ["t"])],
    }
    graphs = {name: model(nodes, {}, ["t"]).graph for name, nodes in body.items()}
    m = loaded([node("If", ["c"], ["y"], **graphs)], {"c": (np.bool_, []), "a": (F, ["n"]), "b": (F, ["m"])})
    a, b = ones(3), ones(4)
    np.testing.assert_array_equal(m(np.array(False), a, b)[0], -a)
    with pytest.raises(AccordError) as caught:
        m(np.array(True), a, b)
    assert caught.value.op is not None and "Add" in caught.value.op


def test_known_sizes_state_nothing():
    m = loaded([node("MatMul", ["a", "w"], ["y"])], {"a": (F, [2, 64])}, constants={"w": ones(64, 8)})
    assert all(not step.agreements for step in m.compiled.plan.steps)
