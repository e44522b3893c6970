"""Random graphs on an emulated GPU give the reference's outputs, and the kinds of faults that they found."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import accord
from accord.runtime.model import Model
from accord.runtime.options import MAX_LEVEL, Options
from builders import model, node
from library_cases_on_gpu import steps

sys.path.append(str(Path(__file__).parents[1] / "passes"))

from random_graphs import RandomGraph
from random_nodes import random_graph

F = np.float32


def check(graph: RandomGraph, proto: onnx.ModelProto) -> None:
    for level in (0, MAX_LEVEL):
        compiled = Model(proto, Options(device="cuda", level=level, tuning="off"))
        wrong = graph.check(compiled(graph.feeds))
        assert wrong is None, f"level {level}: {wrong}"


# the interpreter adds one after the other, in float32: of all graphs some are further off than a GPU, of these none is
@pytest.mark.parametrize(
    "first", [*range(0, 60, 20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(60, 1740, 240))]
)
def test_random_graphs(gpu, first):
    for seed in range(first, first + (20 if first < 60 else 240)):
        made = random_graph(random.Random(seed))
        if made is not None:
            check(*made)


OVER_ONE = [(op, axis) for op in ("LpNormalization", "Softmax") for axis in range(4)]


@pytest.mark.parametrize(("op", "axis"), [*OVER_ONE, ("LayerNormalization", 3)])
def test_an_axis_of_one_element_is_normalised_in_any_order_of_memory(gpu, op, axis):
    """A convolution leaves its channels last, so the axis that is innermost is not the one that is reduced."""
    shape = [2, 4, 6, 6]
    shape[axis] = 1
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((shape[1], shape[1], 1, 1)).astype(F)}
    constants |= {"scale": np.full(1, 2, F), "bias": np.full(1, 0.5, F)} if op == "LayerNormalization" else {}
    norm = node(op, ["c", *(n for n in constants if n != "w")], ["y"], axis=axis)
    proto = model([node("Conv", ["x", "w"], ["c"]), norm], {"x": (F, shape)}, ["y"], constants)
    x = rng.standard_normal(shape).astype(F)
    expected = Model(proto, Options(reference=True))(x)[0]
    np.testing.assert_allclose(accord.load(proto, device="cuda")(x)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [1, 5, 700])
def test_a_result_that_takes_an_operands_place_is_not_read_as_that_operand(gpu, width):
    """Two results of a value a row, the first of which is stored where that value was."""
    nodes = [
        node("ReduceSum", ["x", "axes"], ["total"]),
        node("Tile", ["r", "times"], ["row"]),  # memory of the plan's own, which nothing else needs
        node("Add", ["row", "total"], ["first"]),
        node("Mul", ["row", "total"], ["second"]),
        node("Sub", ["x", "second"], ["third"]),
    ]
    inputs = {"x": (F, [14, width]), "r": (F, [7, 1])}
    constants = {"axes": np.array([1]), "times": np.array([2, 1])}
    proto = model(nodes, inputs, ["first", "second", "third"], constants)
    m = accord.load(proto, device="cuda")
    places = {s.name: s.root for s in m.plan.slots}
    assert places["first"] == places["row"]
    x = np.random.default_rng(1).standard_normal((14, width)).astype(F)
    r = np.linspace(-1, 2, 7, dtype=F).reshape(7, 1)
    total, row = x.sum(1, keepdims=True), np.tile(r, (2, 1))
    for got, expected in zip(m(x, r), (row + total, row * total, x - row * total), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=str(steps(m)))


def test_float64_becomes_bfloat16(gpu):
    proto = model([node("Cast", ["x"], ["y"], to=onnx.TensorProto.BFLOAT16)], {"x": (np.float64, [4])}, ["y"])
    x = np.array([3.375, -0.05810546875, 1e300, np.nan])
    (got,) = accord.load(proto, device="cuda")(x)
    np.testing.assert_array_equal(got.astype(F), np.array([3.375, -0.05810547, np.inf, np.nan], F))
