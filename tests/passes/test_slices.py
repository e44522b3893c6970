"""Slices of one row become Gather."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from rules_harness import F, check, compiled, fired, rand, reasons

from accord.errors import AccordError
from accord.runtime.model import Model
from accord.runtime.options import Options
from builders import model, node

RULE = "gather-row-of-slice"
ONE, ZERO = np.array([1]), np.array([0])


def row(axis=0, squeezed=None, more=1, steps=None, written="vector", returned=False) -> onnx.ModelProto:
    """A slice of ``x`` at ``i``; with the sum made before or after the axis is added."""
    constants = {"axis": np.array([axis]), "squeezed": np.array([axis if squeezed is None else squeezed])}
    constants |= {"zero": ZERO, "more": np.array(more if written == "scalar" else [more])}
    if written == "vector":
        nodes = [node("Unsqueeze", ["i", "zero"], ["s"]), node("Add", ["s", "more"], ["e"])]
    else:
        nodes = [node("Add", ["more", "i"], ["n"])]
        nodes += [node("Unsqueeze", [a, "zero"], [b]) for a, b in (("i", "s"), ("n", "e"))]
    names = ["x", "s", "e", "axis"]
    if steps is not None:
        constants["steps"] = np.array([steps])
        names.append("steps")
    nodes += [node("Slice", names, ["c"]), node("Squeeze", ["c", "squeezed"], ["y"])]
    return model(nodes, {"x": (F, [3, 4, 5]), "i": (np.int64, [])}, ["y", "c"] if returned else ["y"], constants)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("written", ["vector", "scalar"])
def test_a_row(axis, written):
    size = (3, 4, 5)[axis]
    for i in (0, size - 1, -2, -size):
        feeds = {"x": rand(3, 4, 5), "i": np.array(i)}
        check(row(axis, written=written), feeds, RULE, ["Gather"])


def test_a_place_outside_is_refused_as_before():
    m = Model(row(), Options(strict=True))
    for i in (3, -4):
        with pytest.raises(AccordError):
            m({"x": rand(3, 4, 5), "i": np.array(i)})


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"more": 2}, "does not end one after"),
        ({"steps": 2}, "has steps"),
        ({"returned": True}, "read by others"),
    ],
)
def test_what_is_left(case, reason):
    m = compiled(row(**case))
    assert RULE not in fired(m)
    assert any(reason in r for r in reasons(m, RULE))


def test_a_loop_that_takes_rows_is_bound_once():
    nodes = [
        node("Unsqueeze", ["i", "zero"], ["s"]),
        node("Add", ["s", "one"], ["e"]),
        node("Slice", ["x", "s", "e", "zero"], ["c"]),
        node("Squeeze", ["c", "zero"], ["r"]),
        node("Add", ["h", "r"], ["g"]),
        node("Identity", ["go"], ["on"]),
    ]
    info = helper.make_tensor_value_info
    given = [info("i", T.INT64, []), info("go", T.BOOL, []), info("h", T.FLOAT, [5])]
    body = helper.make_graph(nodes, "b", given, [info("on", T.BOOL, []), info("g", T.FLOAT, [5])])
    loop = node("Loop", ["n", "", "start"], ["y"], body=body)
    constants = {"zero": ZERO, "one": ONE, "start": np.zeros(5, F)}
    proto = model([loop], {"x": (F, ["t", 5]), "n": (np.int64, [])}, ["y"], constants)
    (child,) = Model(proto, Options(strict=True))._first.executor.children.values()
    assert not any(s.late for s in child.plan.steps)
    x = rand(9, 5)
    np.testing.assert_allclose(compiled(proto)({"x": x, "n": np.array(9)})[0], x.sum(0), rtol=1e-5)
