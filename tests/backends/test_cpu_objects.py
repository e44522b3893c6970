"""Operators on strings, sequences and optionals: no fall-back, whatever is known when the plan is made."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from accord.backends.cpu.objects import ObjectKernel
from accord.errors import ExecutionError, FallbackError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options

STRICT = Options(strict=True)


def compiled(nodes, inputs, outputs, opset: int = 21) -> Model:
    infos = [helper.make_value_info(n, t) for n, t in inputs.items()]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), STRICT)


def tensor(dtype: int, shape) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(dtype, shape)


def test_a_split_and_joined_sequence():
    """Elements of a sequence live in the arena only as long as their step runs, so they must be copies."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("SplitToSequence", ["r"], ["s"], axis=0),
        helper.make_node("SequenceErase", ["s", "i"], ["t"]),
        helper.make_node("SequenceInsert", ["t", "r"], ["u"]),
        helper.make_node("SequenceLength", ["u"], ["n"]),
        helper.make_node("ConcatFromSequence", ["u"], ["c"], axis=0),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    m = compiled(nodes, {"x": tensor(TensorProto.FLOAT, ["a", 3]), "i": tensor(TensorProto.INT64, [])}, ["y", "n"])
    kinds = [s.kernel.name for s in m.compiled.plan.steps if isinstance(s.kernel, ObjectKernel)]
    assert kinds == ["sequences in Python"] * 4  # the length is known from the sizes
    for rows in (2, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        y, n = m({"x": x, "i": np.array(0)})
        r = np.maximum(x, 0)
        np.testing.assert_array_equal(y, -np.concatenate([r[1:], r]))
        assert n == rows


@pytest.mark.parametrize("shape", [[2], ["n"], None])
def test_strings_of_any_shape(shape):
    nodes = [
        helper.make_node("StringConcat", ["a", "b"], ["c"]),
        helper.make_node("Equal", ["c", "c"], ["e"]),
        helper.make_node("Concat", ["c", "a"], ["y"], axis=0),
    ]
    m = compiled(nodes, {name: tensor(TensorProto.STRING, shape) for name in "ab"}, ["y", "e"])
    y, e = m({"a": np.array(["x", "y"], object), "b": np.array(["1", "2"], object)})
    assert y.tolist() == ["x1", "y2", "x", "y"] and e.tolist() == [True, True]


def test_an_optional_that_is_none():
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["h"]),
        helper.make_node("OptionalHasElement", ["x"], ["t"]),
        helper.make_node("OptionalHasElement", [""], ["f"]),
        helper.make_node("OptionalGetElement", ["x"], ["y"]),
    ]
    x = tensor(TensorProto.FLOAT, [2])
    m = compiled(nodes, {"o": helper.make_optional_type_proto(x), "x": x}, ["h", "t", "f", "y"])
    h, t, f, y = m({"o": None, "x": np.ones(2, np.float32)})
    assert (bool(h), bool(t), bool(f), y.tolist()) == (False, True, False, [1, 1])


def test_a_kernel_in_python_can_be_stored_and_names_its_node_in_errors():
    nodes = [helper.make_node("SequenceAt", ["s", "i"], ["y"], name="pick")]
    sequence = helper.make_sequence_type_proto(tensor(TensorProto.FLOAT, None))
    m = compiled(nodes, {"s": sequence, "i": tensor(TensorProto.INT64, [])}, ["y"])
    (step,) = m.compiled.plan.steps
    again = pickle.loads(pickle.dumps(step.kernel))
    assert again == step.kernel and again.portable
    items = [np.zeros(1, np.float32), np.ones(2, np.float32)]
    assert again.run([items, np.array(-1)])[0].tolist() == m({"s": items, "i": np.array(1)})[0].tolist() == [1, 1]
    with pytest.raises(ExecutionError, match="outside") as caught:
        m({"s": items, "i": np.array(2)})
    assert caught.value.node == "pick"


def test_numbers_that_nothing_is_generated_for_are_no_objects():
    node = helper.make_node("Gradient", ["x"], ["g"], domain="ai.onnx.preview.training", xs=["x"], y="x")
    graph = helper.make_graph(
        [node], "g", [helper.make_value_info("x", tensor(1, [2]))], [onnx.ValueInfoProto(name="g")]
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview.training", 1)]
    with pytest.raises(FallbackError):
        Model(helper.make_model(graph, opset_imports=imports), STRICT)
