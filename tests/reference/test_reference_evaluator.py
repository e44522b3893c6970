"""``evaluate``: whole models, functions, external data, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from reference_harness import assert_close, model_of

from accord.backends.reference.evaluator import evaluate
from accord.errors import (
    ExecutionError,
    ExternalDataError,
    GraphError,
    InputError,
    ModelFormatError,
    UnknownOperatorError,
)

_X = {"x": np.array([1, 2], np.float32)}


def _function(name: str, nodes: list[onnx.NodeProto], **options: Any) -> onnx.FunctionProto:
    return helper.make_function(
        "own", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)], **options
    )


def _with_reference(node: onnx.NodeProto, attribute: str, outer: str, kind: int) -> onnx.NodeProto:
    node.attribute.add(name=attribute, ref_attr_name=outer, type=kind)
    return node


def test_functions_pass_attributes_on() -> None:
    relu = _with_reference(helper.make_node("LeakyRelu", ["a"], ["b"]), "alpha", "slope", onnx.AttributeProto.FLOAT)
    inner = _function("Inner", [relu], attributes=["slope"])
    call = helper.make_node("Inner", ["a"], ["b"], domain="own")
    outer = _function(
        "Outer",
        [_with_reference(call, "slope", "steep", onnx.AttributeProto.FLOAT)],
        attribute_protos=[helper.make_attribute("steep", 0.5)],
    )
    feeds = {"x": np.array([-4, 4], np.float32)}
    for attributes, want in (({}, [-2, 4]), ({"steep": 0.25}, [-1, 4])):
        node = helper.make_node("Outer", ["x"], ["y"], domain="own", **attributes)
        model = model_of([node], feeds, ["y"], imports={"own": 1}, functions=[inner, outer])
        assert evaluate(model, feeds)[0].tolist() == want
    # Without a value anywhere, the reference falls away and the operator's own default counts.
    node = helper.make_node("Inner", ["x"], ["y"], domain="own")
    model = model_of([node], feeds, ["y"], imports={"own": 1}, functions=[inner])
    assert_close(evaluate(model, feeds)[0], np.array([-0.04, 4], np.float32))


def test_attribute_references_reach_into_subgraphs() -> None:
    inside = _with_reference(helper.make_node("LeakyRelu", ["a"], ["t"]), "alpha", "slope", onnx.AttributeProto.FLOAT)
    branch = helper.make_graph([inside], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([helper.make_node("Neg", ["a"], ["t"])], "else", [], [onnx.ValueInfoProto(name="t")])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True])),
        helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=other),
    ]
    function = _function("Choose", nodes, attributes=["slope"])
    feeds = {"x": np.array([-4], np.float32)}
    node = helper.make_node("Choose", ["x"], ["y"], domain="own", slope=0.5)
    model = model_of([node], feeds, ["y"], imports={"own": 1}, functions=[function])
    assert evaluate(model, feeds)[0].tolist() == [-2]


def test_a_function_sees_nothing_of_its_caller_and_cannot_call_itself() -> None:
    leaking = _function("Leak", [helper.make_node("Add", ["a", "x"], ["b"])])
    node = helper.make_node("Leak", ["x"], ["y"], domain="own")
    with pytest.raises(GraphError, match="'x'"):
        evaluate(model_of([node], _X, ["y"], imports={"own": 1}, functions=[leaking]), _X)
    endless = _function("Again", [helper.make_node("Again", ["a"], ["b"], domain="own")])
    node = helper.make_node("Again", ["x"], ["y"], domain="own")
    with pytest.raises(GraphError, match="calls itself"):
        evaluate(model_of([node], _X, ["y"], imports={"own": 1}, functions=[endless]), _X)


def test_initializers_are_defaults_of_inputs() -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        {**_X, "w": np.zeros(2, np.float32)},
        ["y"],
        initializers={"w": np.array([10, 20], np.float32)},
    )
    assert evaluate(model, _X)[0].tolist() == [11, 22]
    assert evaluate(model, {**_X, "w": np.ones(2, np.float32)})[0].tolist() == [2, 3]
    assert evaluate(model, _X, outputs=["w", "y"])[0].tolist() == [10, 20]


def test_sparse_initializers() -> None:
    model = model_of([helper.make_node("Add", ["x", "s"], ["y"])], _X, ["y"])
    for indices in (np.array([1]), np.array([[1]])):
        values = numpy_helper.from_array(np.array([5], np.float32), "s")
        del model.graph.sparse_initializer[:]
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [2]))
        assert evaluate(model, _X)[0].tolist() == [1, 7]
    model.graph.sparse_initializer[0].dims[:] = [1]
    with pytest.raises(GraphError, match="outside its shape"):
        evaluate(model, _X)


def test_low_bit_tensors_and_strings() -> None:
    weights = helper.make_tensor("w", TensorProto.INT4, [3], [-8, 7, -1])
    model = model_of([helper.make_node("DequantizeLinear", ["w", "s"], ["y"])], {}, ["y"])
    model.graph.initializer.extend([weights, helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])])
    assert evaluate(model, {})[0].tolist() == [-4, 3.5, -0.5]
    words = {"a": np.array(["x", "y"], object), "b": np.array(["z"], object)}
    model = model_of([helper.make_node("StringConcat", ["a", "b"], ["y"])], words, ["y"])
    for given in (words, {"a": np.array(["x", "y"]), "b": ["z"]}):
        feeds = {k: v if isinstance(v, np.ndarray) else np.array(v) for k, v in given.items()}
        assert evaluate(model, feeds)[0].tolist() == ["xz", "yz"]


def test_optionals_and_sequences() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("SequenceAt", ["s", "p"], ["e"]),
        helper.make_node("Optional", ["e"], ["o"]),
        helper.make_node("OptionalHasElement", ["o"], ["full"]),
        helper.make_node("OptionalHasElement", [""], ["none"]),
        helper.make_node("OptionalGetElement", ["o"], ["y"]),
    ]
    model = model_of(nodes, _X, ["s", "full", "none", "y"], initializers={"p": np.array(-1)})
    sequence, full, none, y = evaluate(model, _X)
    assert [v.tolist() for v in sequence] == [[1, 2], [1, 2]]
    assert (bool(full), bool(none), y.tolist()) == (True, False, [1, 2])


def test_external_data(tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], _X, ["y"], initializers={"w": np.ones(2, np.float32)}
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert evaluate(path, _X)[0].tolist() == [2, 3]
    assert evaluate(str(path), _X)[0].tolist() == [2, 3]
    with pytest.raises(GraphError, match="external file"):
        evaluate(onnx.load(path, load_external_data=False), _X)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ExternalDataError):
        evaluate(path, _X)


def test_external_data_stays_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    folder = tmp_path / "model"
    folder.mkdir()
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], _X, ["y"])
    weights = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2])
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../secret.bin")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ExternalDataError):
        evaluate(folder / "model.onnx", _X)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ModelFormatError):
        evaluate(path, {})


def test_wrong_inputs() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], _X, ["y"])
    with pytest.raises(InputError, match="No value is given"):
        evaluate(model, {})
    with pytest.raises(InputError, match="'z'"):
        evaluate(model, {**_X, "z": np.ones(2)})
    with pytest.raises(InputError, match="float32"):
        evaluate(model, {"x": np.ones(2)})


def test_malformed_graphs() -> None:
    model = model_of([helper.make_node("Relu", ["nowhere"], ["y"], name="n")], _X, ["y"])
    with pytest.raises(GraphError, match="before anything produces it") as caught:
        evaluate(model, _X)
    assert (caught.value.node, caught.value.value) == ("n", "nowhere")
    model = model_of([helper.make_node("Own", ["x"], ["y"], domain="nobody")], _X, ["y"])
    with pytest.raises(UnknownOperatorError, match="does not import"):
        evaluate(model, _X)
    broken = model_of([helper.make_node("Add", ["x", "w"], ["y"])], _X, ["y"])
    broken.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[3]).float_data.append(1.0)
    with pytest.raises(GraphError, match="initializer"):
        evaluate(broken, _X)


@pytest.mark.parametrize(
    ("op", "attributes", "fragment"),
    [("Loop", {}, "iteration number and condition"), ("Scan", {"num_scan_inputs": 3}, "num_scan_inputs")],
)
def test_a_body_that_does_not_fit_its_operator(op: str, attributes: dict[str, Any], fragment: str) -> None:
    body = helper.make_graph([], "body", [], [])
    node = helper.make_node(op, ["x", "x"], ["y"], name="n", body=body, **attributes)
    with pytest.raises(GraphError, match=fragment) as caught:
        evaluate(model_of([node], _X, ["y"]), _X)
    assert caught.value.node == "n"


def test_malformed_types_and_shapes() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], _X, ["y"])
    model.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(GraphError, match="99"):
        evaluate(model, _X)
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], _X, ["y"], initializers={"w": np.ones(2, np.float32)}
    )
    model.graph.initializer[0].dims[:] = [-1]
    with pytest.raises(GraphError, match="negative"):
        evaluate(model, _X)


def test_the_failing_node_is_named_in_a_subgraph() -> None:
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"], name="deep")], "b", [], [onnx.ValueInfoProto(name="t")]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch, name="if")
    feeds = {**_X, "c": np.array(True), "w": np.ones(3, np.float32)}
    with pytest.raises(ExecutionError) as caught:
        evaluate(model_of([node], feeds, ["y"]), feeds)
    assert caught.value.node == "deep"


def test_a_model_of_the_first_versions_imports_nothing() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], _X, ["y"])
    del model.opset_import[:]
    assert evaluate(model, _X)[0].tolist() == [1, 2]
