"""Every node is a possible use of its operator."""

from __future__ import annotations

import onnx
import pytest
from model_builders import FLOAT, graph, model, value
from onnx import TensorProto, helper

from accord.contract.contract import Attribute, Contract, Parameter, Semantic
from accord.contract.registry import register, unregister
from accord.errors import GraphError, ModelFormatError, ModelTypeError, UnknownOperatorError
from accord.model.load import load_model

node = helper.make_node
BOOL = TensorProto.BOOL
INT64 = TensorProto.INT64


def fails(source, kind, *texts):
    with pytest.raises(kind) as caught:
        load_model(source)
    assert type(caught.value) is kind
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    return caught.value


# operators


def test_unknown_operator_offers_the_nearest():
    error = fails(model([node("Rleu", ["x"], ["y"], name="r")]), UnknownOperatorError, "Relu")
    assert (error.node, error.op) == ("r", "Rleu")


def test_operator_of_another_opset():
    fails(model([node("Gelu", ["x"], ["y"])], opsets={"": 13}), UnknownOperatorError, "exists from version 20")
    fails(model([node("Upsample", ["x", "x"], ["y"])], opsets={"": 13}), UnknownOperatorError, "removed in version 10")


def test_unknown_domain():
    fails(model([node("Thing", ["x"], ["y"], domain="my.ops")], opsets={"": 20, "my.ops": 1}), UnknownOperatorError)


def test_node_without_an_operator():
    fails(model([node("", ["x"], ["y"], name="n")]), GraphError, "names no operator")


@pytest.fixture
def scale():
    contract = Contract(
        Semantic(
            "my.ops", "Scale", 1, (Parameter("X", "T"),), (Parameter("Y", "T"),), {"T": frozenset({"tensor(float)"})},
            {"factor": Attribute("factor", "FLOAT", True)},
        )
    )  # fmt: skip
    register(contract)
    yield
    unregister("my.ops", "Scale")


@pytest.mark.usefixtures("scale")
@pytest.mark.parametrize("opsets", [{"": 20, "my.ops": 1}, {"": 20}])
def test_operator_of_a_user_even_where_its_domain_is_not_imported(opsets):
    source = model([node("Scale", ["x"], ["y"], domain="my.ops", factor=2.0)], opsets=opsets)
    assert load_model(source).opset_imports["my.ops"] == 1
    fails(model([node("Scale", ["x"], ["y"], domain="my.ops")], opsets=opsets), GraphError, "'factor' is missing")


def test_microsoft_domain_needs_no_import():
    source = model([node("QuickGelu", ["x"], ["y"], domain="com.microsoft")])
    assert load_model(source).opset_imports["com.microsoft"] == 1


@pytest.mark.parametrize(("domain", "shown"), [("", "ai.onnx"), ("ai.onnx.ml", "ai.onnx.ml")])
def test_onnx_domains_must_be_imported(domain, shown):
    op, attributes = ("Relu", {}) if not domain else ("Scaler", {"offset": [0.0], "scale": [1.0]})
    opsets = {"ai.onnx.ml": 3} if not domain else {"": 20}
    error = fails(
        model([node(op, ["x"], ["y"], name="n", domain=domain, **attributes)], opsets=opsets),
        ModelFormatError,
        f"'{shown}' without importing it",
    )
    assert error.node == "n"


# arity


@pytest.mark.parametrize(
    ("op", "inputs", "text"),
    [
        ("Add", ["x"], "too few inputs Expected: 2 (A, B)"),
        ("Add", ["x", "x", "x"], "too many inputs Expected: 2 (A, B)"),
        ("Relu", [], "too few inputs Expected: 1 (X)"),
        ("Clip", ["x", "x", "x", "x"], "too many inputs Expected: 1 to 3 (input, min?, max?)"),
        ("Concat", [], "too few inputs Expected: at least 1 (inputs...)"),
        ("Add", ["x", ""], "input 'B' is left out"),
        ("Add", ["", "x"], "input 'A' is left out"),
        ("Min", ["x", "", "x"], "one of the inputs 'data_0' is left out"),
    ],
)
def test_inputs(op, inputs, text):
    attributes = {"axis": 0} if op == "Concat" else {}
    with pytest.raises(GraphError) as caught:
        load_model(model([node(op, inputs, ["y"], name="n", **attributes)]))
    text = text.split(" Expected: ")
    assert all(t in str(caught.value) for t in text), str(caught.value)
    assert (caught.value.node, caught.value.op) == ("n", op)


def test_optional_inputs_may_be_left_out():
    load_model(model([node("Clip", ["x", "", "x"], ["y"])]))
    load_model(model([node("Clip", ["x"], ["y"])]))


def test_outputs():
    fails(model([node("Relu", ["x"], ["y", "z"])]), GraphError, "too many outputs", "1 (Y)", "Found: 2")
    fails(model([node("Relu", ["x"], []), node("Abs", ["x"], ["y"])]), GraphError, "too few outputs")
    fails(model([node("TopK", ["x", "k"], ["y"])], [value("x"), value("k", (1,), INT64)]), GraphError, "2 (Values, Ind")
    load_model(model([node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2])]))


# attributes


def test_unknown_attribute_offers_the_nearest():
    error = fails(model([node("Softmax", ["x"], ["y"], name="n", axes=1)]), GraphError, "no attribute 'axes'", "'axis'")
    assert error.node == "n"


def test_attribute_of_another_opset():
    fails(model([node("Squeeze", ["x"], ["y"], axes=[0])], opsets={"": 13}), GraphError, "no attribute 'axes'")
    load_model(model([node("Squeeze", ["x"], ["y"], axes=[0])], opsets={"": 11}))


def test_attribute_of_the_wrong_type():
    error = fails(model([node("Softmax", ["x"], ["y"], axis=1.0)]), ModelTypeError, "'axis' has the wrong type")
    assert (error.expected, error.found) == ("INT", "FLOAT")


def test_attribute_that_is_no_text():
    source = model([node("DepthToSpace", ["x"], ["y"], blocksize=1, mode="DCR")])
    source.graph.node[0].attribute[1].s = b"\xff\xfe"
    fails(source, GraphError, "'mode' is no text")


def test_attribute_that_is_missing():
    fails(model([node("Concat", ["x"], ["y"])]), GraphError, "'axis' is missing", "axis: INT")
    fails(model([node("If", ["c"], ["y"])], [value("c", (), BOOL)]), GraphError, "branch' is missing")


def test_attribute_twice():
    source = model([node("Softmax", ["x"], ["y"], axis=1)])
    source.graph.node[0].attribute.add().CopyFrom(source.graph.node[0].attribute[0])
    fails(source, GraphError, "'axis' is given twice")


@pytest.mark.parametrize("axis", [33, -33, 2**63 - 1, -(2**63)])
def test_axis_that_no_tensor_has(axis):
    error = fails(model([node("Softmax", ["x"], ["y"], axis=axis)]), ModelTypeError, "'axis' names no axis")
    assert error.found == axis
    fails(model([node("Transpose", ["x"], ["y"], perm=[0, axis])]), ModelTypeError, "'perm' names no axis")


def test_attributes_for_tools_are_ignored():
    load_model(model([node("Relu", ["x"], ["y"], __note="kept")]))


def test_reference_outside_a_function():
    source = model([node("Softmax", ["x"], ["y"], name="n")])
    source.graph.node[0].attribute.add(name="axis", ref_attr_name="k", type=onnx.AttributeProto.INT)
    assert fails(source, GraphError, "'axis' refers to 'k'", "in none").node == "n"


# functions


def function(**options):
    inner = node("Softmax", ["a"], ["b"], name="inner")
    inner.attribute.add(name="axis", ref_attr_name=options.pop("ref", "k"), type=onnx.AttributeProto.INT)
    return helper.make_function("l", "F", ["a"], ["b"], [inner], [helper.make_opsetid("", 20)], ["k"], **options)


def calling(made, inputs=("x",), outputs=("y",), opsets=None, **attributes):
    call = node("F", list(inputs), list(outputs), name="call", domain="l", **attributes)
    return model([call], functions=[made], opsets=opsets or {"": 20, "l": 1})


def test_function_call():
    load_model(calling(function(), k=1))
    assert load_model(calling(function(), opsets={"": 20}, k=1)).opset_imports["l"] == 1


def test_function_call_that_does_not_fit():
    fails(calling(function(), ["x", "x"]), GraphError, "too many inputs", "at most 1: a")
    fails(calling(function(), ["x"], ["y", "z"]), GraphError, "too many outputs", "at most 1: b")
    fails(calling(function(), kk=1), GraphError, "no attribute 'kk'")
    fails(calling(function(), k=1.5), ModelTypeError, "another type", "Expected: INT", "Found: FLOAT")


def test_nodes_in_functions_are_checked():
    fails(calling(function(ref="q")), GraphError, "unknown attribute 'q' of its function")
    made = function()
    made.node[0].input.append("a")
    assert fails(calling(made), GraphError, "too many inputs").node == "inner"
    made = function()
    made.node[0].op_type = "Sofmax"
    fails(calling(made), UnknownOperatorError, "Softmax")


def test_function_attribute_twice():
    made = function()
    made.attribute.append("k")
    fails(calling(made), GraphError, "declared twice")


def test_function_without_imports_takes_the_models():
    made = function()
    del made.opset_import[:]
    load_model(calling(made, k=1))


def test_function_named_like_an_operator_comes_first():
    inner = node("Abs", ["a"], ["b"])
    made = helper.make_function("", "Relu", ["a"], ["b"], [inner], [helper.make_opsetid("", 20)])
    loaded = load_model(model([node("Relu", ["x"], ["y"])], functions=[made]))
    assert ("", "Relu", "") in loaded.functions


# bodies


def body(inputs, outputs, nodes=None):
    names = [o.name for o in outputs]
    made = nodes if nodes is not None else [node("Identity", ["x"], [n]) for n in names]
    return graph(made, inputs, outputs)


CONDITION = value("c", (), BOOL)


def test_if_outputs():
    one, two = body([], [value("a")]), body([], [value("b"), value("d")])
    source = model([node("If", ["c"], ["y"], name="i", then_branch=one, else_branch=two)], [CONDITION, value("x")])
    error = fails(source, GraphError, "outputs of 'else_branch' does not fit", "Found: 2: b, d")
    assert error.node == "i"


def test_if_branch_with_an_input():
    bad = body([value("p")], [value("a")])
    source = model([node("If", ["c"], ["y"], then_branch=bad, else_branch=bad)], [CONDITION, value("x")])
    fails(source, GraphError, "number of inputs of 'then_branch'", "Found: 1: p")


LOOP_INPUTS = [value("i", (), INT64), value("k", (), BOOL), value("s")]
LOOP_OUTPUTS = [value("again", (), BOOL), value("next"), value("scan")]


def loop(inputs=LOOP_INPUTS, outputs=LOOP_OUTPUTS, given=("n", "c", "x"), results=("y", "z")):
    made = node("Loop", list(given), list(results), name="loop", body=body(inputs, outputs))
    return model([made], [value("n", (), INT64), CONDITION, value("x")])


def test_loop():
    load_model(loop())
    fails(loop(inputs=LOOP_INPUTS[:2]), GraphError, "number of inputs of 'body'", "Expected: 3")
    fails(loop(outputs=LOOP_OUTPUTS[:2]), GraphError, "number of outputs of 'body'", "Expected: 3")
    fails(loop(given=("n", "c")), GraphError, "number of inputs of 'body'", "Expected: 2")
    fails(loop(results=("y",)), GraphError, "number of outputs of 'body'", "Expected: 2")
    fails(loop(given=("n", "c", "x", "x", "x")), GraphError, "fewer outputs than carried values")


def scan(scanned=1, given=("x", "x"), **attributes):
    made = body([value("s"), value("e", (3,))], [value("next"), value("scan", (3,))])
    source = model(
        [node("Scan", list(given), ["y", "z"], name="scan", body=made, num_scan_inputs=scanned, **attributes)]
    )
    del source.graph.output[0].type.tensor_type.shape.dim[:]
    return source


def test_scan():
    load_model(scan(scan_input_axes=[0], scan_output_directions=[1]))
    for scanned in (0, -1, 3, 2**40):
        fails(scan(scanned), GraphError, "num_scan_inputs does not fit", "1 to 2")
    fails(scan(given=("x",)), GraphError, "does not fit")
    fails(scan(scan_input_axes=[0, 1]), GraphError, "'scan_input_axes' has the wrong length")
    fails(scan(scan_output_directions=[2]), GraphError, "impossible entry")


def test_sequence_map():
    made = body([value("e")], [value("r")], [node("Relu", ["e"], ["r"])])
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    output = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    load_model(model([node("SequenceMap", ["x"], ["y"], body=made)], [sequence], [output]))
    two = model([node("SequenceMap", ["x", "x"], ["y"], body=made)], [sequence], [output])
    fails(two, GraphError, "number of inputs of 'body'", "Expected: 2")


def test_nodes_in_bodies_are_checked():
    bad = body([], [value("a")], [node("Softmax", ["x"], ["a"], name="inner", axi=1)])
    source = model([node("If", ["c"], ["y"], then_branch=bad, else_branch=bad)], [CONDITION, value("x")])
    assert fails(source, GraphError, "no attribute 'axi'").node == "inner"
