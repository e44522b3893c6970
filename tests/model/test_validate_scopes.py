"""Names, scopes and order: each name has one definition, visible and first."""

from __future__ import annotations

import itertools
import time

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_builders import branches, graph, linear, model, tensor, value
from onnx import TensorProto, helper

from accord.errors import GraphError
from accord.model.load import load_model

node = helper.make_node
BOOL = TensorProto.BOOL
INT64 = TensorProto.INT64


def fails(source, *texts):
    with pytest.raises(GraphError) as caught:
        load_model(source)
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    return caught.value


# one definition


def test_two_nodes_with_one_output():
    source = model([node("Relu", ["x"], ["y"], name="a"), node("Abs", ["x"], ["y"], name="b")])
    error = fails(source, "defined twice", "a and b")
    assert (error.node, error.op, error.value) == ("b", "Abs", "y")


def test_one_node_with_an_output_twice():
    fails(model([node("Split", ["x"], ["y", "y"], num_outputs=2)]), "defined twice")


def test_output_named_like_an_input():
    fails(model([node("Relu", ["x"], ["x"], name="a")], outputs=[value("x")]), "defined twice", "input and a")


def test_output_named_like_an_initializer():
    fails(model([node("Relu", ["x"], ["w"])], initializers=[tensor("w", np.ones(2, np.float32))]), "defined twice")


def test_input_twice():
    fails(model([node("Relu", ["x"], ["y"])], [value("x"), value("x")]), "defined twice", "input and input")


def test_initializer_twice():
    w = tensor("w", np.ones((2, 3), np.float32))
    fails(model([node("Add", ["x", "w"], ["y"])], initializers=[w, w]), "defined twice", "initializer")


def test_initializer_as_the_default_of_an_input():
    w = tensor("w", np.ones((2, 3), np.float32))
    loaded = load_model(model([node("Add", ["x", "w"], ["y"])], [value("x"), value("w")], initializers=[w]))
    assert loaded.graph.inputs[1].const_value is not None


def test_initializer_without_a_name():
    w = tensor("", np.ones((2, 3), np.float32))
    fails(model([node("Relu", ["x"], ["y"])], initializers=[w]), "an initializer without a name")


def test_input_without_a_name():
    fails(model([node("Relu", ["x"], ["y"])], [value("x"), value("")]), "an input without a name")


def test_sparse_initializer_named_like_another():
    source = linear()
    values = tensor("w", np.ones(1, np.float32))
    source.graph.sparse_initializer.append(helper.make_sparse_tensor(values, tensor("", np.zeros(1, np.int64)), [3, 4]))
    fails(source, "defined twice")


def test_nodes_of_one_name_are_fine_and_told_apart_in_messages():
    source = model([node("Relu", ["x"], ["h"], name="n"), node("Softmax", ["h"], ["y"], name="n", axi=1)])
    assert fails(source, "no attribute 'axi'").node == "n → y"
    source.graph.node[1].ClearField("attribute")
    load_model(source)


def test_node_without_a_name_is_called_by_its_output():
    assert fails(model([node("Softmax", ["x"], ["y"], axi=1)]), "no attribute").node == "y"


# edges


def test_value_that_nothing_produces():
    source = linear()
    source.graph.node[1].input[0] = "hh"
    error = fails(source, "nothing produces it")
    assert (error.node, error.op, error.value) == ("add", "Add", "hh")


def test_nearest_name_is_offered():
    source = model([node("Relu", ["encoder.weihgt"], ["y"])], initializers=[])
    source.graph.initializer.append(tensor("encoder.weight", np.ones((2, 3), np.float32)))
    assert fails(source).remedy == "Did you mean 'encoder.weight'?"


def test_output_that_nothing_produces():
    error = fails(model([node("Relu", ["x"], ["logits"])], outputs=[value("logit")]), "produced by nothing")
    assert error.value == "logit"
    assert error.remedy == "Did you mean 'logits'?"


def test_no_outputs():
    fails(model([node("Relu", ["x"], ["y"])], outputs=[]), "no outputs")
    fails(model([], inputs=[], outputs=[]), "the graph is empty")


def test_output_that_is_an_input_or_an_initializer():
    loaded = load_model(model([], outputs=[value("x"), value("w")], initializers=[tensor("w", np.ones(2, np.float32))]))
    assert [v.name for v in loaded.graph.outputs] == ["x", "w"]


# order


def test_unsorted_nodes_are_sorted():
    source = linear()
    source.graph.node.reverse()
    loaded = load_model(source)
    assert [n.op_type for n in loaded.graph] == ["MatMul", "Add", "Relu"]


def test_order_of_a_sorted_graph_is_kept():
    nodes = [node("Relu", ["x"], [f"t{i}"], name=f"n{i}") for i in (3, 1, 2)] + [node("Sum", ["t1", "t2", "t3"], ["y"])]
    assert [n.name for n in load_model(model(nodes)).graph][:3] == ["n3", "n1", "n2"]


def test_body_that_reads_a_value_produced_later():
    source = branches([node("Identity", ["late"], ["t"])], [node("Identity", ["late"], ["e"])])
    source.graph.node.append(node("Relu", ["x"], ["late"], name="relu"))
    loaded = load_model(source)
    assert [n.op_type for n in loaded.graph] == ["Relu", "If"]


def test_unsorted_body_and_function():
    body = [node("Relu", ["h"], ["t"]), node("Abs", ["x"], ["h"])]
    loaded = load_model(branches(body, [node("Identity", ["x"], ["e"])]))
    assert [n.op_type for n in loaded.graph[0].attributes["then_branch"].value] == ["Abs", "Relu"]
    function = helper.make_function("l", "F", ["x"], ["y"], [node("Relu", ["h"], ["y"]), node("Abs", ["x"], ["h"])],
                                    [helper.make_opsetid("", 20)])  # fmt: skip
    source = model([node("F", ["x"], ["y"], domain="l")], functions=[function], opsets={"": 20, "l": 1})
    assert [n.op_type for n in load_model(source).functions["l", "F", ""]] == ["Abs", "Relu"]


def test_cycle_names_its_nodes():
    source = model(
        [
            node("Add", ["x", "c"], ["a"], name="first"),
            node("Relu", ["a"], ["b"], name="second"),
            node("Abs", ["b"], ["c"], name="third"),
            node("Neg", ["c"], ["y"], name="outside"),
        ]
    )
    error = fails(source, "a cycle of 3 nodes")
    ring = error.message.split(": ")[1].split(" → ")
    assert ring[0] == ring[-1]
    assert set(ring) == {"first", "second", "third"}
    following = {"first": "second", "second": "third", "third": "first"}
    assert all(following[a] == b for a, b in itertools.pairwise(ring))


def test_node_that_reads_itself():
    fails(model([node("Add", ["x", "y"], ["y"], name="own")]), "a cycle of 1 node: own → own")


def test_cycle_through_a_body():
    source = branches([node("Identity", ["z"], ["t"])], [node("Identity", ["x"], ["e"])])
    source.graph.node.append(node("Relu", ["y"], ["z"], name="relu"))
    fails(source, "a cycle of 2 nodes", "choose", "relu")


def test_cycle_in_a_body():
    body = [node("Add", ["x", "t"], ["h"], name="a"), node("Relu", ["h"], ["t"], name="b")]
    fails(branches(body, [node("Identity", ["x"], ["e"])]), "a cycle of 2 nodes")


def test_long_cycle_is_shortened():
    nodes = [node("Relu", [f"t{(i + 1) % 50}"], [f"t{i}"], name=f"n{i}") for i in range(50)]
    error = fails(model(nodes, outputs=[value("t0")]), "a cycle of 50 nodes", "...")
    assert len(str(error)) < 400


def test_long_chain_needs_no_recursion():
    nodes = [node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in reversed(range(3000))]
    source = model([*nodes, node("Relu", ["x"], ["t0"])], outputs=[value("t3000")])
    assert [n.inputs[0].name for n in load_model(source).graph][:2] == ["x", "t0"]


# bodies


def test_body_reads_outer_values_and_its_own():
    body = [node("Relu", ["x"], ["h"]), node("Add", ["h", "x"], ["t"])]
    load_model(branches(body, [node("Identity", ["x"], ["e"])]))


def test_outer_graph_does_not_see_into_a_body():
    source = branches([node("Relu", ["x"], ["t"])], [node("Relu", ["x"], ["e"])])
    source.graph.node.append(node("Abs", ["t"], ["z"], name="outer"))
    source.graph.output[0].name = "z"
    error = fails(source, "inside another graph", "graph 'then'", "Make it an output")
    assert (error.node, error.value) == ("outer", "t")


def test_one_branch_does_not_see_into_the_other():
    fails(branches([node("Relu", ["x"], ["t"])], [node("Relu", ["t"], ["e"], name="r")]), "inside another graph")


def test_body_that_returns_an_outer_value():
    source = branches([], [node("Relu", ["x"], ["e"])])
    source.graph.node[0].attribute[0].g.output[0].name = "x"
    error = fails(source, "a value of an outer graph", "Identity")
    assert "choose" in error.value


def test_body_that_returns_nothing():
    fails(branches([node("Relu", ["x"], ["u"])], [node("Relu", ["x"], ["e"])]), "produced by nothing")


def test_body_may_shadow_an_outer_name():
    source = branches([node("Relu", ["x"], ["h"]), node("Abs", ["h"], ["t"])], [node("Relu", ["x"], ["e"])])
    source.graph.node.insert(0, node("Neg", ["x"], ["h"]))
    loaded = load_model(source)
    inner = loaded.graph[1].attributes["then_branch"].value
    assert inner[1].inputs[0] is inner[0].outputs[0]


def test_reading_a_name_before_shadowing_it_is_ambiguous():
    source = branches([node("Abs", ["h"], ["u"]), node("Relu", ["u"], ["h"]), node("Neg", ["h"], ["t"])],
                      [node("Relu", ["x"], ["e"])])  # fmt: skip
    source.graph.node.insert(0, node("Neg", ["x"], ["h"]))
    fails(source, "an outer graph has the name too", "Rename the inner value")


def test_names_are_unique_in_the_loaded_model():
    body = [node("Relu", ["x"], ["h"]), node("Abs", ["h"], ["t"])]
    source = branches(body, body)
    for attribute in source.graph.node[0].attribute:
        attribute.g.output[0].name = "t"
    loaded = load_model(source)
    names = [o.name for n in loaded.graph.all_nodes() for o in n.outputs]
    assert len(names) == len(set(names)) == 5
    assert [v.name for v in (*loaded.graph.inputs, *loaded.graph.outputs)] == ["c", "x", "y"]


def test_unnamed_values_of_a_callers_graph_get_names():
    x = ir.val("x", ir.DataType.FLOAT, (2,))
    inner = ir.node("Relu", [x])
    last = ir.node("Abs", [inner.outputs[0]])
    last.outputs[0].name = "y"
    source = ir.Model(ir.Graph([x], last.outputs, nodes=[inner, last], opset_imports={"": 20}), ir_version=10)
    inner.outputs[0].name = None
    assert load_model(source).graph[0].outputs[0].name
    assert inner.outputs[0].name is None


def test_callers_graph_without_names_outside():
    x = ir.val("x", ir.DataType.FLOAT, (2,))
    made = ir.node("Relu", [x])
    source = ir.Model(ir.Graph([x], made.outputs, nodes=[made], opset_imports={"": 20}), ir_version=10)
    made.outputs[0].name = ""
    fails(source, "output 0 of the model has no name")


def test_callers_graph_with_two_inputs_of_one_name():
    a, b = (ir.val("x", ir.DataType.FLOAT, (2,)) for _ in range(2))
    made = ir.node("Add", [a, b])
    made.outputs[0].name = "y"
    source = ir.Model(ir.Graph([a, b], made.outputs, nodes=[made], opset_imports={"": 20}), ir_version=10)
    fails(source, "two inputs of the model have the same name")


def test_function_sees_only_its_own():
    function = helper.make_function("l", "F", ["a"], ["b"], [node("Add", ["a", "x"], ["b"], name="inner")],
                                    [helper.make_opsetid("", 20)])  # fmt: skip
    source = model([node("F", ["x"], ["y"], domain="l")], functions=[function], opsets={"": 20, "l": 1})
    error = fails(source, "function l::F")
    assert (error.node, error.value) == ("inner", "x")


def test_function_whose_output_is_missing():
    function = helper.make_function("l", "F", ["a"], ["c"], [node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 20)])
    source = model([node("F", ["x"], ["y"], domain="l")], functions=[function], opsets={"": 20, "l": 1})
    fails(source, "a function's output is produced by none of its nodes", "function l::F: c")


def test_captured_value_in_a_loop_body_and_a_scan_body():
    body = graph(
        [node("Identity", ["cond"], ["again"]), node("Add", ["state", "x"], ["next"])],
        [value("i", (), INT64), value("cond", (), BOOL), value("state")],
        [value("again", (), BOOL), value("next")],
    )
    load_model(model([node("Loop", ["n", "", "x"], ["y"], body=body)], [value("n", (), INT64), value("x")]))


# speed


def test_eight_hundred_nodes_are_checked_in_thirty_milliseconds():
    from accord.model.external import ExternalFiles
    from accord.model.limits import DEFAULT_LIMITS
    from accord.model.survey import Survey
    from accord.model.validate import validate

    nodes, last = [], "x"
    for i in range(400):
        nodes += [node("Add", [last, "w"], [f"a{i}"]), node("LeakyRelu", [f"a{i}"], [f"b{i}"], alpha=0.1)]
        last = f"b{i}"
    w = tensor("w", np.ones((2, 3), np.float32))
    source = model([*nodes, node("Identity", [last], ["y"])], initializers=[w])
    load_model(source)  # reads the schemas
    best = 1.0
    for _ in range(5):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        start = time.perf_counter()
        Survey(DEFAULT_LIMITS, ExternalFiles(None)).run(proto)
        middle = time.perf_counter()
        made = ir.serde.deserialize_model(proto)
        resumed = time.perf_counter()
        validate(made)
        best = min(best, time.perf_counter() - resumed + middle - start)
    assert best < 0.03
