"""Small models in old versions, and the comparison of a model before and after ``normalise``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from accord.model.normalise import Normalised, normalise

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def model(
    opset: int,
    nodes: Sequence[onnx.NodeProto],
    feeds: Feeds,
    *,
    outputs: Mapping[str, int] | None = None,
    shapes: str = "known",
    constants: Feeds | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    imports: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of ``nodes``; ``shapes`` says what it declares of its inputs: "known", "ranks" or "nothing"."""
    inputs = []
    for name, array in feeds.items():
        declared: list[int | str] | None = list(array.shape)
        if shapes == "ranks":
            declared = [f"{name}_{i}" for i in range(array.ndim)]
        elif shapes == "nothing":
            declared = None
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), declared))
    results = [
        helper.make_tensor_value_info(name, dtype, None)
        for name, dtype in (outputs or {"y": TensorProto.FLOAT}).items()
    ]
    initializers = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "old", inputs, results, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (imports or {}).items())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))


def upgrade(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Normalised]:
    """The normalised model and what the stage returned."""
    result = normalise(ir.from_proto(proto))
    return ir.to_proto(result.model), result


def assert_valid(proto: onnx.ModelProto, results: Sequence[Any]) -> None:
    """The checker accepts the model, once it states the ranks of its outputs, which the checker wants to see."""
    stated = onnx.ModelProto()
    stated.CopyFrom(proto)
    for output, result in zip(stated.graph.output, results, strict=True):
        if not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
            for _ in range(np.ndim(result)):
                output.type.tensor_type.shape.dim.add()
    if all(i.type.tensor_type.HasField("shape") for i in stated.graph.input):
        onnx.checker.check_model(stated, full_check=True)
    else:
        onnx.shape_inference.infer_shapes(stated, strict_mode=True)


def run(proto: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    """The outputs in ONNX Runtime, without its optimiser."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def operators(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def assert_same(got: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype
        assert g.shape == e.shape
        if g.dtype.kind in "fc":
            np.testing.assert_allclose(g, e, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(g, e)


def labelled(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model as one of another version, for operators whose newest kernel in ONNX Runtime is of that version."""
    new = onnx.ModelProto()
    new.CopyFrom(proto)
    for entry in new.opset_import:
        if entry.domain == "":
            entry.version = opset
    return new


def check(
    proto: onnx.ModelProto,
    feeds: Feeds,
    expected: Sequence[Any] | None = None,
    *,
    label: int | None = None,
    **tolerances: float,
) -> onnx.ModelProto:
    """Normalise, run, and compare with ``expected``, or with ONNX Runtime's result for the old model."""
    new, _ = upgrade(proto)
    assert [o.name for o in new.graph.output] == [o.name for o in proto.graph.output]
    results = run(new if label is None else labelled(new, label), feeds)
    assert_valid(new, results)
    assert_same(results, run(proto, feeds) if expected is None else expected, **tolerances)
    return new


def floats(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype=np.float32)
