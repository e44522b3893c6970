"""A run that would need more memory than there is fails with an error, before the memory is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from model_builders import model, value
from onnx import TensorProto, helper

from accord.errors import ExecutionError, InputError
from accord.runtime.growth import refuse_growth
from accord.runtime.model import Model
from accord.runtime.options import Options

node = helper.make_node
INT64 = TensorProto.INT64
HUGE = 2**40


def compiled(source):
    return Model(source, Options(reference=True))


def test_output_of_symbolic_size():
    made = compiled(
        model(
            [node("Add", ["x", "z"], ["y"])],
            [value("x", ["n", 1]), value("z", [1, "n"])],
            [value("y", ["n", "n"])],
        )
    )
    side = np.zeros(2_000_000, np.float32)
    with pytest.raises(ExecutionError, match="more memory than there is") as caught:
        made(side[:, None], side[None])
    assert caught.value.remedy
    assert made(np.ones((2, 1), np.float32), np.ones((1, 2), np.float32))[0].sum() == 8  # it goes on serving


def test_intermediate_of_symbolic_size():
    nodes = [node("Add", ["x", "z"], ["h"]), node("ReduceSum", ["h"], ["y"], keepdims=0)]
    made = compiled(model(nodes, [value("x", ["n", 1]), value("z", [1, "n"])], [value("y", [])]))
    side = np.zeros(2_000_000, np.float32)
    with pytest.raises(ExecutionError, match="more memory than there is"):
        made(side[:, None], side[None])


def test_negative_size():
    kernel = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 5], [1.0] * 5)
    made = compiled(model([node("Conv", ["x", "w"], ["y"])], [value("x", [1, 1, "n"])], [value("y", None)], [kernel]))
    with pytest.raises(InputError, match="negative"):
        made(np.zeros((1, 1, 3), np.float32))
    assert made(np.ones((1, 1, 5), np.float32))[0].tolist() == [[[5.0]]]


@pytest.mark.parametrize("reference", [True, False])
def test_view_that_would_reach_past_its_memory(reference):
    """[n, 4] as [n, 3, -1]: the last size is computed as 4n // 3n, which holds only where nothing is left over."""
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Concat", ["n", "rest"], ["s"], axis=0),
        node("Reshape", ["h", "s"], ["r"]),
        node("Neg", ["r"], ["y"]),
    ]
    rest = helper.make_tensor("rest", INT64, [2], [3, -1])
    made = Model(model(nodes, [value("x", ["n", "m"])], [value("y", None)], [rest]), Options(reference=reference))
    assert made(np.ones((2, 6), np.float32))[0].shape == (2, 3, 2)
    for columns in (4, 2, 7):
        with pytest.raises((InputError, ExecutionError)):
            made(np.ones((2, columns), np.float32))


def test_size_divided_by_zero():
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Shape", ["x"], ["m"], start=1, end=2),
        node("Div", ["n", "m"], ["q"]),
        node("ConstantOfShape", ["q"], ["y"]),
    ]
    made = compiled(model(nodes, [value("x", ["n", "m"])], [value("y", None)]))
    assert made(np.ones((4, 2), np.float32))[0].shape == (2,)
    with pytest.raises(InputError, match="divided by another one that is zero"):
        made(np.ones((4, 0), np.float32))


def test_empty_output_with_a_size_that_numpy_cannot_count():
    made = compiled(
        model([node("Reshape", ["x", "s"], ["y"], allowzero=1)], [value("x", [0])], [value("y", None)],
              [helper.make_tensor("s", INT64, [3], [0, 2**40, 2**40])])
    )  # fmt: skip
    with pytest.raises(InputError, match="too large"):
        made(np.zeros(0, np.float32))


@pytest.mark.parametrize(
    ("op", "inputs", "arrays"),
    [
        ("ConstantOfShape", [("s", [2])], [[HUGE, HUGE]]),
        ("Expand", [("x", [1]), ("s", [2])], [None, [HUGE, 4]]),
        ("Tile", [("x", [1]), ("s", [1])], [None, [HUGE]]),
        ("Range", [("a", []), ("b", []), ("c", [])], [0, HUGE, 1]),
        ("Pad", [("x", [1]), ("s", [2])], [None, [0, HUGE]]),
    ],
)
def test_size_that_only_the_content_tells(op, inputs, arrays):
    declared = [
        value(n, shape, TensorProto.FLOAT if a is None else INT64) for (n, shape), a in zip(inputs, arrays, strict=True)
    ]
    made = compiled(model([node(op, [n for n, _ in inputs], ["y"], name="grow")], declared, [value("y", None, 0)]))
    given = [np.ones(1, np.float32) if a is None else np.array(a, np.int64) for a in arrays]
    with pytest.raises(ExecutionError, match="more memory than there is") as caught:
        made(*given)
    assert caught.value.node


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("Resize", (np.ones((1, 1), np.float32), None, np.array([1e7, 1e7], np.float32))),
        ("Resize", (np.ones((1, 1), np.float32), None, None, np.array([HUGE, 1]))),
        ("OneHot", (np.ones(4, np.int64), np.array(HUGE), np.zeros(2, np.float32))),
        ("MelWeightMatrix", (np.array(2**20), np.array(2**30))),
        ("HannWindow", (np.array(HUGE),)),
        ("CenterCropPad", (np.ones(1, np.float32), np.array([HUGE]))),
        ("Range", (np.array(0.0), np.array(1.0), np.array(1e-30))),
    ],
)
def test_operators_that_grow(op, arguments):
    with pytest.raises(ExecutionError, match="more memory"):
        refuse_growth(op, arguments)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("Expand", (np.ones((2, 1)), np.array([2, 5]))),
        ("Range", (np.array(0), np.array(5), np.array(0))),
        ("Resize", (np.ones((1, 1)), None, np.array([np.nan, 1]))),
        ("Tile", (np.ones(2), np.array([-1]))),
        ("Pad", (np.ones(2), None)),
        ("Relu", (np.ones(2),)),
    ],
)
def test_the_rest_is_left_to_the_kernel(op, arguments):
    refuse_growth(op, arguments)


def test_scan_outputs_of_an_endless_loop(monkeypatch):
    from accord.runtime import rounds

    monkeypatch.setattr(rounds, "physical_memory", lambda: 1 << 20)
    body = helper.make_graph(
        [node("Identity", ["k"], ["again"]), node("Identity", ["s"], ["next"]), node("Identity", ["s"], ["scan"])],
        "body",
        [value("i", [], INT64), value("k", [], TensorProto.BOOL), value("s", [64])],
        [value("again", [], TensorProto.BOOL), value("next", [64]), value("scan", [64])],
    )
    made = compiled(
        model(
            [node("Loop", ["n", "", "x"], ["last", "y"], body=body)],
            [value("n", [], INT64), value("x", [64])],
            [value("y", None)],
        )
    )
    assert made(np.array(3), np.ones(64, np.float32))[0].shape == (3, 64)
    with pytest.raises(ExecutionError, match="scan outputs do not fit"):
        made(np.array(2**62), np.ones(64, np.float32))
