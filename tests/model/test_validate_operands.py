"""What a node is given agrees with its operator's contract, once the dtypes are known."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from model_builders import FLOAT, branches, graph, model, tensor, value
from onnx import TensorProto, helper

from accord.errors import AccordError, ModelTypeError
from accord.ir.facts import FactTable
from accord.model.load import load_model
from accord.model.operands import check_operands, declared_outputs
from accord.runtime.model import Model
from accord.runtime.options import Options

node = helper.make_node
BOOL, INT64, DOUBLE = TensorProto.BOOL, TensorProto.INT64, TensorProto.DOUBLE


def compiled(source):
    return Model(source, Options(reference=True))


def checked(source):
    """Check by declared types alone: shape rules, which run before, have words of their own for some mistakes."""
    loaded = load_model(source)
    check_operands(loaded, FactTable(), loaded.opset_imports, declared_outputs(loaded))


def fails(source, *texts, check=checked):
    with pytest.raises(ModelTypeError) as caught:
        compiled(source)
    with pytest.raises(ModelTypeError) as caught:
        check(source)
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    return caught.value


def test_two_types_for_one_variable():
    source = model([node("Add", ["x", "z"], ["y"], name="add")], [value("x"), value("z", dtype=DOUBLE)])
    error = fails(source, "'A' and 'B' must have the same type", "Cast")
    assert (error.node, error.op, error.value) == ("add", "Add", "z")
    assert (error.expected, error.found) == ("tensor(float)", "tensor(double)")


def test_type_that_the_operator_does_not_accept():
    error = fails(
        model([node("Exp", ["x"], ["y"])], [value("x", dtype=INT64)], [value("y", dtype=INT64)]), "does not accept"
    )
    assert error.found == "tensor(int64)"
    assert "tensor(float)" in error.expected


def test_type_of_an_intermediate_value():
    nodes = [node("Shape", ["x"], ["s"]), node("Mul", ["x", "s"], ["y"], name="mul")]
    assert fails(model(nodes, outputs=[value("y", None)]), check=compiled).node == "mul"


def test_concrete_types():
    source = model([node("Where", ["x", "x", "x"], ["y"])])
    assert fails(source, "'condition'").expected == "tensor(bool)"


def test_variadic_inputs_of_one_type():
    source = model([node("Concat", ["x", "z"], ["y"], axis=0)], [value("x"), value("z", dtype=INT64)])
    fails(source, "must have the same type")


def test_sequence_where_a_tensor_is_wanted():
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    assert fails(model([node("Relu", ["x"], ["y"])], [sequence])).found == "seq(tensor(float))"


def test_nodes_in_bodies():
    body = [node("Add", ["x", "k"], ["t"], name="inner")]
    source = branches(body, [node("Identity", ["x"], ["e"])])
    source.graph.initializer.append(tensor("k", np.ones(3, np.int64)))
    assert fails(source).node == "inner"


def test_output_of_another_type_than_declared():
    error = fails(
        model([node("Relu", ["x"], ["y"])], outputs=[value("y", dtype=INT64)]), "than the model states", check=compiled
    )
    assert (error.value, error.expected, error.found) == ("y", "tensor(int64)", "tensor(float)")


def test_right_types_pass():
    body = graph([node("Relu", ["e"], ["r"])], [value("e", None)], [value("r", None)])
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    output = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    compiled(model([node("SequenceMap", ["x"], ["y"], body=body)], [sequence], [output]))
    compiled(model([node("Where", ["c", "x", "x"], ["y"])], [value("c", dtype=BOOL), value("x")]))


@pytest.mark.parametrize(("op", "given"), [("Add", ["x", ""]), ("Min", ["", "x"])])
def test_input_that_a_functions_call_leaves_out(op, given):
    inner = node(op, ["a", "b"], ["c"], name="inner")
    function = helper.make_function("l", "F", ["a", "b"], ["c"], [inner], [helper.make_opsetid("", 20)])
    source = model([node("F", given, ["y"], domain="l")], functions=[function], opsets={"": 20, "l": 1})
    with pytest.raises(AccordError) as caught:
        compiled(source)
    assert caught.value.node is not None
    assert "input" in str(caught.value)


def test_attribute_that_a_functions_call_leaves_out():
    inner = node("Concat", ["a", "a"], ["c"], name="inner")
    inner.attribute.add(name="axis", ref_attr_name="k", type=onnx.AttributeProto.INT)
    function = helper.make_function("l", "F", ["a"], ["c"], [inner], [helper.make_opsetid("", 20)], ["k"])
    source = model([node("F", ["x"], ["y"], domain="l")], outputs=[value("y", None)], functions=[function],
                   opsets={"": 20, "l": 1})  # fmt: skip
    with pytest.raises(AccordError, match="axis"):
        compiled(source)
