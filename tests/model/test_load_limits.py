"""Sizes are checked before memory is taken, and depth before the stack is."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_builders import FLOAT, add_w, chain, external, graph, linear, model, nested, tensor, value
from onnx import TensorProto, helper

from accord.errors import ExternalDataError, GraphError, LimitError, ModelError, ModelFormatError
from accord.model.load import Limits, load_model
from accord.model.wire import scan


def fails(source, kind, *texts, **options):
    with pytest.raises(kind) as caught:
        load_model(source, **options)
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    return caught.value


@pytest.fixture
def little_memory():
    """Fails the test if it takes more than 64 MiB."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


HUGE = [
    ([2**50], LimitError),
    ([2**31, 2**31], LimitError),
    ([2**62, 2**62, 2**62], LimitError),
    ([2**63 - 1], LimitError),
    ([0, 2**62, 2**62], LimitError),  # NumPy refuses these sizes though there is no element
    ([10**9], ModelFormatError),
    ([1] * 33, LimitError),
    ([1] * 5000, LimitError),
    ([-1], ModelFormatError),
    ([-(2**63)], ModelFormatError),
]


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("dims", "kind"), HUGE)
def test_claims_of_a_stored_tensor(dims, kind):
    w = onnx.TensorProto(name="w", data_type=FLOAT, dims=dims, raw_data=b"1234")
    assert fails(add_w(w), kind).value == "w"


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("dims", [[2**50], [2**62, 4], [1] * 40])
def test_claims_of_external_and_sparse_tensors(dims, tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(64))
    fails(add_w(external("w", dims, location="w.bin")), LimitError, base_dir=tmp_path)
    source = model([helper.make_node("Add", ["x", "w"], ["y"])])
    values, indices = tensor("w", np.ones(1, np.float32)), tensor("", np.zeros(1, np.int64))
    source.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
    fails(source, LimitError)


@pytest.mark.usefixtures("little_memory")
def test_sparse_tensor_that_does_not_fit_into_memory():
    source = model([helper.make_node("Add", ["x", "w"], ["y"])])
    values, indices = tensor("w", np.ones(1, np.float32)), tensor("", np.zeros(1, np.int64))
    source.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2**40]))
    fails(source, LimitError, "does not fit into memory", limits=Limits(max_tensor_bytes=2**62))


@pytest.mark.parametrize("shape", [(2**50, 2**20), (2**62,), ("n", 2**60)])
def test_claims_of_a_declared_type(shape):
    fails(model([helper.make_node("Relu", ["x"], ["y"])], [value("x", shape)]), LimitError, "too large")


def test_axes_of_a_declared_type():
    fails(model([helper.make_node("Relu", ["x"], ["y"])], [value("x", ["n"] * 33)]), LimitError, "too many axes")


def test_tensor_limit_can_be_lowered():
    fails(linear(), LimitError, "max_tensor_bytes", limits=Limits(max_tensor_bytes=40))


# depth


def test_depth_within_the_limit():
    load_model(nested(8))
    fails(nested(8), LimitError, "nested too deeply", limits=Limits(max_nesting=7))


def test_deep_file():
    fails(nested(9).SerializeToString(), LimitError, limits=Limits(max_nesting=8))
    fails(chain(60).SerializeToString(), ModelError, "nested too deeply")


@pytest.mark.parametrize("depth", [40, 3000])
def test_deep_message_does_not_overflow_the_stack(depth):
    fails(chain(depth), LimitError, "nested too deeply")


def test_deep_type_does_not_overflow_the_stack():
    source = linear()
    proto = source.graph.value_info.add(name="deep").type
    for _ in range(3000):
        proto = proto.sequence_type.elem_type
    proto.tensor_type.elem_type = FLOAT
    fails(source, LimitError, "nested too deeply")


def test_deep_caller_graph_does_not_overflow_the_stack():
    x = ir.val("x", ir.DataType.FLOAT, (2,))
    c = ir.val("c", ir.DataType.BOOL, ())
    node = ir.node("Identity", [x])
    for _ in range(400):
        body = ir.Graph([], [node.outputs[0]], nodes=[node])
        node = ir.node("If", [c], {"then_branch": body, "else_branch": ir.Graph([], [], nodes=[])})
    source = ir.Model(ir.Graph([c, x], [node.outputs[0]], nodes=[node], opset_imports={"": 20}), ir_version=10)
    fails(source, LimitError, "nested too deeply")


# numbers of parts


def test_number_of_nodes():
    fails(linear(), LimitError, "too many nodes", limits=Limits(max_nodes=2))
    load_model(linear(), limits=Limits(max_nodes=3))
    fails(ir.from_proto(linear()), LimitError, "too many nodes", limits=Limits(max_nodes=2))


def test_nodes_in_bodies_count():
    fails(nested(6), LimitError, "too many nodes", limits=Limits(max_nodes=40))


def test_many_small_parts_are_refused_before_parsing():
    body = b"\x0a\x00" * 3_000_000  # six megabytes of empty nodes become 240 megabytes when parsed
    length = len(body)
    head = bytearray(b"\x08\x0a\x3a")
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    fails(bytes(head) + body, LimitError, "too many parts", limits=Limits(max_nodes=1000))


def test_scan_stops_at_its_limit():
    with pytest.raises(LimitError):
        scan(linear().SerializeToString(), max_messages=3)


@pytest.mark.parametrize("where", ["node", "value", "op", "domain", "graph", "attribute"])
def test_names_too_long(where):
    source = model([helper.make_node("LeakyRelu", ["x"], ["y"], name="n", alpha=0.5)])
    node, long = source.graph.node[0], "n" * 2000
    if where == "node":
        node.name = long
    elif where == "value":
        node.input[0] = source.graph.input[0].name = long
    elif where == "op":
        node.op_type = long
    elif where == "domain":
        node.domain = long
    elif where == "graph":
        source.graph.name = long
    else:
        node.attribute[0].name = long
    error = fails(source, LimitError, "a name is too long", limits=Limits(max_name_bytes=1000))
    assert len(str(error)) < 500


# functions


def function(name: str, calls: list[str]) -> onnx.FunctionProto:
    nodes, last = [], "x"
    for i, called in enumerate(calls):
        nodes.append(helper.make_node(called, [last], [f"t{i}"], domain="local" if called != "Relu" else ""))
        last = f"t{i}"
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["x"], [last], nodes, imports)


def calling(name: str, functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    node = helper.make_node(name, ["x"], ["y"], domain="local")
    return model([node], functions=functions, opsets={"": 20, "local": 1})


def test_function_that_calls_itself():
    fails(calling("F", [function("F", ["F"])]), GraphError, "local::F → local::F", "Loop")


def test_functions_that_call_each_other():
    functions = [function("A", ["Relu", "B"]), function("B", ["C"]), function("C", ["Relu", "A"])]
    error = fails(calling("A", functions), GraphError, "call each other in a ring")
    assert error.op in ("local::A", "local::B", "local::C")


def test_recursion_through_a_body():
    inner = helper.make_node("F", ["x"], ["t"], domain="local")
    body = graph([inner], outputs=[value("t", None)])
    node = helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=body)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    recursive = helper.make_function("local", "F", ["c", "x"], ["r"], [node], imports)
    call = helper.make_node("F", ["c", "x"], ["y"], domain="local")
    source = model(
        [call], [value("c", (), TensorProto.BOOL), value("x")], functions=[recursive], opsets={"": 20, "local": 1}
    )
    fails(source, GraphError, "call each other in a ring")


def test_functions_that_explode_when_inlined():
    functions = [function("F0", ["Relu"] * 10)]
    functions += [function(f"F{i}", [f"F{i - 1}"] * 10) for i in range(1, 20)]
    fails(calling("F19", functions), LimitError, "once its functions are inlined", "more than 10^18")
    load_model(calling("F2", functions[:3]))


def test_functions_of_one_name():
    fails(calling("F", [function("F", ["Relu"]), function("F", ["Relu", "Relu"])]), GraphError, "same name")


def test_external_without_a_folder_is_refused_before_its_size_matters():
    fails(add_w(external("w", [4], location="w.bin")), ExternalDataError, "came without a folder")
