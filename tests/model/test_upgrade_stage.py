"""The stage itself: names, versions, functions, inputs with defaults, notes, errors."""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from upgrade_harness import check, floats, model, node, operators, run, upgrade

from accord.errors import GraphError, ModelTypeError, UnsupportedError
from accord.ir.facts import TensorFact
from accord.model.normalise import normalise

FLOAT = TensorProto.FLOAT


def info(name: str, kind: int = FLOAT, shape: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def function(
    name: str, inputs: str, outputs: str, nodes: list[onnx.NodeProto], opset: int = 17, **kwargs: object
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, list(inputs), list(outputs), nodes, imports, **kwargs)


def reference(op: str, attribute: str, kind: int, refers: str, inputs: str, outputs: str) -> onnx.NodeProto:
    """A node whose ``attribute`` takes the value of the function's attribute ``refers``."""
    made = helper.make_node(op, list(inputs), list(outputs))
    made.attribute.append(onnx.AttributeProto(name=attribute, ref_attr_name=refers, type=kind))
    return made


def test_names_stay_readable_and_unique() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="Softmax_3", axis=1),
        helper.make_node("Softmax", ["a"], ["y"], axis=1),
        helper.make_node("Identity", ["x"], ["Softmax_3/Flatten"]),
        helper.make_node("Add", ["a", "Softmax_3/Flatten"], ["z"]),
    ]
    x = floats(2, 3, 4)
    new, _ = upgrade(model(11, nodes, {"x": x}, outputs={"y": FLOAT, "z": FLOAT}))
    check(model(11, nodes, {"x": x}, outputs={"y": FLOAT, "z": FLOAT}), {"x": x})
    values = [o for n in new.graph.node for o in n.output] + [i.name for i in new.graph.initializer] + ["x"]
    assert len(set(values)) == len(values)
    assert len({n.name for n in new.graph.node if n.name}) == len([n for n in new.graph.node if n.name])
    assert [n.output[0] for n in new.graph.node if n.op_type == "Reshape"] == ["a", "y"]
    assert (new.graph.node[0].name, new.graph.node[0].output[0]) == ("Softmax_3/Flatten", "Softmax_3/Flatten_2")


def test_a_single_new_node_keeps_the_name() -> None:
    nodes = [helper.make_node("Clip", ["x"], ["y"], name="Clip_0", min=0.0)]
    new, _ = upgrade(model(6, nodes, {"x": floats(2)}))
    assert [(n.op_type, n.name, list(n.output)) for n in new.graph.node] == [("Clip", "Clip_0", ["y"])]


def test_notes_say_what_was_done() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="Softmax_3", axis=1),
        helper.make_node("Constant", [], ["c"], name="Constant_4", value_float=1.0),
        helper.make_node("Add", ["a", "c"], ["y"], name="Add_5"),
    ]
    notes = upgrade(model(12, nodes, {"x": floats(2, 3, 4)}))[1].notes
    assert [str(n) for n in notes] == [
        "Softmax_3 (Softmax): opset 12 → 24: Flatten, Softmax, Shape, Reshape",
        "Constant_4 (Constant): opset 12 → 24: initializer",
    ]
    assert (notes[0].node, notes[0].version, notes[0].target) == ("Softmax_3", 12, 24)


def test_facts_of_all_values() -> None:
    nodes = [node("Softmax", ["x"], ["a"], axis=1), node("ReduceSum", ["a"], axes=[2], keepdims=0)]
    result = normalise(ir.from_proto(model(11, nodes, {"x": floats(2, 3, 4)}, shapes="ranks")))
    for made in result.model.graph.all_nodes():
        for output in made.outputs:
            fact = result.facts[output]
            assert isinstance(fact, TensorFact)
            assert fact.dtype is not None
            assert fact.shape is not None
    assert str(result.facts[result.model.graph.outputs[0]]) == "float[x_0, x_1]"


# versions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("declared", "expected"), [(7, 24), (24, 24), (25, 25), (28, 28)])
def test_declared_version(declared: int, expected: int) -> None:
    new, result = upgrade(model(declared, [node("Relu", "x")], {"x": floats(2)}))
    assert [(o.domain, o.version) for o in new.opset_import] == [("", expected)]
    assert result.analyzer.opsets[""] == expected


@pytest.mark.parametrize("version", [0, 29, 1000])
def test_unknown_version(version: int) -> None:
    newest = onnx.defs.onnx_opset_version()
    assert newest < 29
    with pytest.raises(UnsupportedError, match=rf"version {version}\b.*{newest}"):
        upgrade(model(version, [node("Relu", "x")], {"x": floats(2)}))


def test_imports_that_nothing_uses_are_dropped() -> None:
    proto = model(17, [node("Relu", "x")], {"x": floats(2)}, imports={"ai.onnx.ml": 3, "com.example": 1})
    assert [o.domain for o in upgrade(proto)[0].opset_import] == [""]


def test_without_an_import_of_the_onnx_domain() -> None:
    unknown = helper.make_node("Op", ["x"], ["y"], domain="com.example")
    proto = model(17, [unknown], {"x": floats(2)}, imports={"com.example": 3})
    del proto.opset_import[0]
    assert {o.domain: o.version for o in upgrade(proto)[0].opset_import} == {"": 24, "com.example": 3}
    proto.graph.node.add().CopyFrom(node("Relu", ["y"], ["z"]))
    with pytest.raises(GraphError, match="not imported"):
        upgrade(proto)


def test_before_version_3_of_the_format_no_import_means_1() -> None:
    x = floats(2, 3, 4)
    proto = model(1, [node("Softmax", "x", axis=1)], {"x": x})
    del proto.opset_import[:]
    proto.ir_version = 2
    assert operators(upgrade(proto)[0]) == ["Flatten", "Softmax", "Shape", "Reshape"]


def test_the_format_is_new_enough_for_the_version() -> None:
    new, _ = upgrade(model(7, [node("Relu", "x")], {"x": floats(2)}))
    assert new.ir_version == helper.find_min_ir_version_for([helper.make_opsetid("", 24)])


# inputs with defaults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 8])
def test_initializers_listed_as_inputs(version: int) -> None:
    """Up to version 3 of the format every initializer was listed; later a listed one is a default."""
    nodes = [node("Reshape", ["x", "shape"])]
    feeds = {"x": floats(2, 3), "shape": np.array([3, 2])}
    proto = model(7, nodes, feeds, constants={"shape": feeds["shape"]})
    proto.ir_version = version
    result = normalise(ir.from_proto(proto))
    assert [i.name for i in result.model.graph.inputs] == (["x"] if version == 3 else ["x", "shape"])
    fact = result.facts.tensor(result.model.graph.node(0).inputs[1])
    assert fact.is_const == (version == 3)
    assert run(ir.to_proto(result.model), {"x": feeds["x"]})[0].shape == (3, 2)


# functions ----------------------------------------------------------------------------------------------------------


def test_function_is_read_in_its_own_version() -> None:
    """Softmax of 11 in a function, Softmax of 17 in the model."""
    old = function("Flat", "v", "w", [node("Softmax", ["v"], ["w"], axis=1)], opset=11)
    nodes = [helper.make_node("Flat", ["x"], ["a"], domain="local"), node("Softmax", ["a"], axis=1)]
    x = floats(2, 3, 4)
    proto = model(17, nodes, {"x": x}, functions=[old], imports={"local": 1})

    def softmax(v: np.ndarray) -> np.ndarray:
        e = np.exp(v - v.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    new = check(proto, {"x": x}, [softmax(softmax(x.reshape(2, 12)).reshape(2, 3, 4))])
    assert not new.functions
    assert [o.domain for o in new.opset_import] == [""]


def test_function_of_a_later_version_raises_that_of_the_model() -> None:
    later = function("F", "v", "w", [node("Relu", ["v"], ["w"])], opset=26)
    proto = model(11, [helper.make_node("F", ["x"], ["y"], domain="local")], {"x": floats(2)}, functions=[later])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    assert [o.version for o in upgrade(proto)[0].opset_import] == [26]


@pytest.mark.parametrize(("given", "slope"), [({"slope": 0.5}, 0.5), ({}, 0.25)])
def test_attributes_of_a_call_and_their_defaults(given: dict[str, float], slope: float) -> None:
    body = [reference("LeakyRelu", "alpha", onnx.AttributeProto.FLOAT, "slope", "v", "w")]
    leaky = function("Leaky", "v", "w", body, attribute_protos=[helper.make_attribute("slope", 0.25)])
    x = floats(3, 4)
    call = helper.make_node("Leaky", ["x"], ["y"], domain="local", **given)
    proto = model(17, [call], {"x": x}, functions=[leaky], imports={"local": 1})
    check(proto, {"x": x}, [np.where(x < 0, np.float32(slope) * x, x)])


def test_an_attribute_that_the_call_leaves_out_is_left_out() -> None:
    body = [reference("LeakyRelu", "alpha", onnx.AttributeProto.FLOAT, "slope", "v", "w")]
    leaky = function("Leaky", "v", "w", body, attributes=["slope"])
    x = floats(3, 4)
    call = helper.make_node("Leaky", ["x"], ["y"], domain="local")
    proto = model(17, [call], {"x": x}, functions=[leaky], imports={"local": 1})
    check(proto, {"x": x}, [np.where(x < 0, np.float32(0.01) * x, x)])


def test_calls_in_calls_and_in_branches() -> None:
    inner = function("Inner", "v", "w", [reference("Constant", "value_float", 1, "c", "", "k"), node("Add", "vk", "w")])
    inner.attribute.append("c")
    call = reference("Inner", "c", onnx.AttributeProto.FLOAT, "d", "v", "w")
    call.domain = "local"
    then = helper.make_graph([node("Neg", ["w"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([node("Identity", ["v"], ["e"])], "else", [], [info("e")])
    branch = node("If", ["on"], ["o"], then_branch=then, else_branch=other)
    outer = helper.make_function(
        "local",
        "Outer",
        ["v", "on"],
        ["o"],
        [call, branch],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
        ["d"],
    )
    calls = [
        helper.make_node("Outer", ["x", "p"], ["a"], domain="local", d=2.0),
        helper.make_node("Outer", ["a", "p"], ["y"], domain="local", d=3.0),
    ]
    x = floats(3)
    for on in (True, False):
        feeds = {"x": x, "p": np.array(on)}
        proto = model(17, calls, feeds, functions=[inner, outer], imports={"local": 1})
        new = check(proto, feeds, [-(-(x + np.float32(2)) + np.float32(3)) if on else x])
        assert not new.functions


def test_inputs_that_a_call_leaves_out() -> None:
    clip = helper.make_function(
        "local", "C", ["v", "lo", "hi"], ["w"], [node("Clip", ["v", "lo", "hi"], ["w"])], [helper.make_opsetid("", 17)]
    )
    feeds = {"x": floats(4), "h": np.array(0.5, dtype=np.float32)}
    nodes = [
        helper.make_node("C", ["x", "", "h"], ["a"], domain="local"),
        helper.make_node("C", ["a"], ["y"], domain="local"),
    ]
    proto = model(17, nodes, feeds, functions=[clip], imports={"local": 1})
    check(proto, feeds, [np.minimum(feeds["x"], np.float32(0.5))])


def test_function_that_hands_its_input_on() -> None:
    same = function("Same", "v", "v", [])
    nodes = [
        helper.make_node("Same", ["x"], ["a"], domain="local"),
        helper.make_node("Same", ["a"], ["y"], domain="local"),
        node("Relu", ["a"], ["z"]),
    ]
    x = floats(4)
    proto = model(17, nodes, {"x": x}, outputs={"y": FLOAT, "z": FLOAT}, functions=[same], imports={"local": 1})
    assert operators(check(proto, {"x": x}, [x, np.maximum(x, 0)])) == ["Identity", "Relu"]


def test_function_that_yields_a_value_twice() -> None:
    twice = helper.make_function(
        "local", "Twice", ["v"], ["w", "w"], [node("Relu", ["v"], ["w"])], [helper.make_opsetid("", 17)]
    )
    x = floats(4)
    nodes = [helper.make_node("Twice", ["x"], ["y", "z"], domain="local")]
    proto = model(17, nodes, {"x": x}, outputs={"y": FLOAT, "z": FLOAT}, functions=[twice], imports={"local": 1})
    assert operators(check(proto, {"x": x}, [np.maximum(x, 0)] * 2)) == ["Relu", "Identity"]


def test_body_output_that_is_a_value_of_the_function() -> None:
    """A branch that yields a value from outside becomes one with an Identity."""
    then = helper.make_graph([node("Relu", ["v"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([node("Identity", ["v"], ["e"])], "else", [], [info("e")])
    choose = helper.make_function(
        "local",
        "Choose",
        ["v", "on"],
        ["o"],
        [node("If", ["on"], ["o"], then_branch=then, else_branch=other)],
        [helper.make_opsetid("", 17)],
    )
    feeds = {"x": floats(4), "p": np.array(False)}
    nodes = [helper.make_node("Choose", ["x", "p"], ["y"], domain="local")]
    check(model(17, nodes, feeds, functions=[choose], imports={"local": 1}), feeds, [feeds["x"]])


def test_function_that_calls_itself() -> None:
    loop = function("F", "v", "w", [helper.make_node("G", ["v"], ["w"], domain="local")])
    back = function("G", "v", "w", [helper.make_node("F", ["v"], ["w"], domain="local")])
    call = helper.make_node("F", ["x"], ["y"], domain="local", name="call")
    with pytest.raises(GraphError, match="calls itself"):
        upgrade(model(17, [call], {"x": floats(2)}, functions=[loop, back], imports={"local": 1}))


def test_call_that_does_not_fit() -> None:
    one = function("F", "v", "w", [node("Relu", ["v"], ["w"])])
    call = helper.make_node("F", ["x", "x"], ["y"], domain="local", name="call")
    with pytest.raises(GraphError, match="does not fit") as caught:
        upgrade(model(17, [call], {"x": floats(2)}, functions=[one], imports={"local": 1}))
    assert caught.value.node == "call"


# order and errors ---------------------------------------------------------------------------------------------------


def test_nodes_out_of_order() -> None:
    nodes = [node("Softmax", ["a"], axis=1), node("Relu", ["x"], ["a"])]
    x = floats(2, 3, 4)
    proto = model(11, nodes, {"x": x})
    ordered = model(11, nodes[::-1], {"x": x})
    new, _ = upgrade(proto)
    np.testing.assert_allclose(run(new, {"x": x})[0], run(ordered, {"x": x})[0], rtol=1e-5)


def test_cycle() -> None:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"])]
    with pytest.raises(GraphError, match="cycle"):
        upgrade(model(17, nodes, {"x": floats(2)}))


def test_a_contradiction_names_the_node() -> None:
    nodes = [helper.make_node("Squeeze", ["x"], ["y"], name="Squeeze_0", axes=[5])]
    with pytest.raises(ModelTypeError) as caught:
        upgrade(model(11, nodes, {"x": floats(2, 1)}))
    assert caught.value.op == "Squeeze"


def test_initializer_of_a_branch_stays_in_it() -> None:
    then = helper.make_graph([node("Clip", ["x"], ["t"], min=0.5)], "then", [], [info("t")])
    other = helper.make_graph([node("Identity", ["x"], ["e"])], "else", [], [info("e")])
    feeds = {"x": floats(3), "c": np.array(True)}
    new = check(model(8, [node("If", ["c"], then_branch=then, else_branch=other)], feeds), feeds)
    branch = next(a.g for a in new.graph.node[0].attribute if a.name == "then_branch")
    assert len(branch.initializer) == 1
    assert not new.graph.initializer
    assert numpy_helper.to_array(branch.initializer[0]) == np.float32(0.5)


# time ---------------------------------------------------------------------------------------------------------------


def test_time_of_a_large_model() -> None:
    """1,000 nodes, half of which are constants of an old exporter; well under a millisecond a node."""
    nodes, value = [], "x"
    for i in range(250):
        nodes.append(node("Constant", [], [f"c{i}"], value=numpy_helper.from_array(floats(1, 8, 1, 1))))
        nodes.append(node("Add", [value, f"c{i}"], [f"a{i}"]))
        nodes.append(node("Clip", [f"a{i}"], [f"r{i}"], min=0.0, max=6.0))
        nodes.append(node("ReduceMean", [f"r{i}"], [f"v{i}"], axes=[2, 3], keepdims=1))
        value = f"v{i}"
    nodes.append(node("Identity", [value]))
    proto = model(10, nodes, {"x": floats(1, 8, 4, 4)})
    best = min(_timed(ir.from_proto(proto)) for _ in range(3))
    assert best < 1.0


def _timed(loaded: ir.Model) -> float:
    start = time.perf_counter()
    normalise(loaded)
    return time.perf_counter() - start
