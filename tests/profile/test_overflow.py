"""The first operator whose values leave the range of their type."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import accord
from accord.cli import main
from accord.profile.overflow import first_overflow
from builders import model, node

F = np.float32
APART = ("fuse-epilogue", "fuse-loops")


def growing(scale: float) -> onnx.ModelProto:
    """Two products of which the second grows, a normalisation that hides it, and a bound after that."""
    nodes = [
        node("MatMul", ["x", "a"], ["first"], name="small"),
        node("MatMul", ["first", "b"], ["second"], name="large"),
        node("Softmax", ["second"], ["s"], axis=-1),
        node("Relu", ["s"], ["y"]),
    ]
    weights = {"a": np.full((8, 8), 0.5, F), "b": np.full((8, 4), scale, F)}
    return model(nodes, {"x": (F, [2, 8])}, ["y"], weights)


X = {"x": np.full((2, 8), 2.0, F)}


def test_the_first_operator_is_named():
    found = first_overflow(accord.load(growing(3000.0), precision="float16", disabled_rules=APART), X)
    assert found is not None
    assert (found.node, found.dtype, found.infinite, found.nan) == ("large", "float16", 8, 0)
    assert found.largest == pytest.approx(3000.0)
    assert "8 infinite elements" in str(found)


def test_in_range_and_in_float32_there_is_none():
    assert first_overflow(accord.load(growing(3.0), precision="float16"), X) is None
    assert first_overflow(accord.load(growing(3000.0)), X) is None


def test_infinite_numbers_that_are_given_are_none():
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "mask"], ["a"]),
        node("Softmax", ["a"], ["y"], axis=-1),
    ]
    proto = model(nodes, {"x": (F, [2, 8]), "mask": (F, [2, 4])}, ["y"], {"w": np.ones((8, 4), F)})
    mask = np.where(np.eye(2, 4) > 0, -np.inf, 0).astype(F)
    m = accord.load(proto, precision="float16", disabled_rules=APART)
    assert first_overflow(m, {**X, "mask": mask}) is None
    mask[:] = -np.inf  # a row that sees nothing is no number
    found = first_overflow(m, {**X, "mask": mask})
    assert found is not None
    assert found.nan == 8


def test_bodies_are_watched():
    def branch(name: str, factor: float) -> onnx.GraphProto:
        made = model([node("MatMul", ["x", f"w{name}"], [f"{name}y"], name=name)], {}, [f"{name}y"], {}).graph
        made.initializer.append(onnx.numpy_helper.from_array(np.full((8, 4), factor, F), f"w{name}"))
        made.name = name
        return made

    nodes = [node("If", ["c"], ["y"], then_branch=branch("fits", 1.0), else_branch=branch("grows", 60000.0))]
    proto = model(nodes, {"c": (np.bool_, []), "x": (F, [2, 8])}, ["y"], {})
    m = accord.load(proto, precision="float16", disabled_rules=APART)
    assert first_overflow(m, {**X, "c": np.array(True)}) is None
    found = first_overflow(m, {**X, "c": np.array(False)})
    assert found is not None
    assert found.op == "MatMul"


def test_the_command_line_says_so(tmp_path):
    path, data = tmp_path / "m.onnx", tmp_path / "x.npy"
    onnx.save(growing(3000.0), path)
    np.save(data, X["x"])
    arguments = ["run", str(path), "--input", f"x={data}", "--check-range", "--disable-rule", "fuse-loops"]
    run = CliRunner().invoke(main, [*arguments, "--precision", "float16", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.output)["overflow"]["node"] == "large"
    run = CliRunner().invoke(main, arguments)
    assert "stay in the range" in run.output
