"""Small models for the tests of loading."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def value(name: str, shape: Sequence[int | str | None] | None = (2, 3), dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[onnx.ValueInfoProto] = (),
    initializers: Sequence[onnx.TensorProto] = (),
    name: str = "g",
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    functions: Sequence[onnx.FunctionProto] = (),
    opsets: dict[str, int] | None = None,
    ir_version: int = 10,
) -> onnx.ModelProto:
    """A model of ``nodes`` from input x [2, 3] to output y, unless told otherwise."""
    return helper.make_model(
        graph(
            nodes,
            [value("x")] if inputs is None else inputs,
            [value("y")] if outputs is None else outputs,
            initializers,
        ),
        opset_imports=[helper.make_opsetid(d, v) for d, v in (opsets or {"": 20}).items()],
        functions=list(functions),
        ir_version=ir_version,
    )


def linear() -> onnx.ModelProto:
    """y = relu(x @ w + b), with three named nodes."""
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="matmul"),
            helper.make_node("Add", ["h", "b"], ["s"], name="add"),
            helper.make_node("Relu", ["s"], ["y"], name="relu"),
        ],
        outputs=[value("y", (2, 4))],
        initializers=[
            tensor("w", np.arange(12, dtype=np.float32).reshape(3, 4)),
            tensor("b", np.ones(4, np.float32)),
        ],
    )


def branches(then_nodes: Sequence[onnx.NodeProto], else_nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """An If on input c whose branches return t and e."""
    return model(
        [
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                name="choose",
                then_branch=graph(then_nodes, outputs=[value("t")], name="then"),
                else_branch=graph(else_nodes, outputs=[value("e")], name="else"),
            )
        ],
        inputs=[value("c", (), TensorProto.BOOL), value("x")],
    )


def nested(depth: int) -> onnx.ModelProto:
    """If within If, ``depth`` graphs in all; the innermost returns x."""
    inner = graph([helper.make_node("Identity", ["x"], ["out"])], outputs=[value("out")])
    for _ in range(depth - 2):
        node = helper.make_node("If", ["c"], ["out"], then_branch=inner, else_branch=inner)
        inner = graph([node], outputs=[value("out")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    return model([node], inputs=[value("c", (), TensorProto.BOOL), value("x")])


def chain(depth: int) -> onnx.ModelProto:
    """As :func:`nested`, with one graph on each level, so that its size grows with the depth only."""
    built = model([], inputs=[value("c", (), TensorProto.BOOL), value("x")])
    current = built.graph
    for _ in range(depth):
        node = current.node.add(op_type="If", input=["c"], output=["y"])
        attribute = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        current = attribute.g
    return built


def external(name: str, shape: Sequence[int], dtype: int = FLOAT, **entries: str) -> onnx.TensorProto:
    """A tensor whose data is external, with these entries."""
    proto = onnx.TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        proto.external_data.add(key=key, value=text)
    return proto


def add_w(w: onnx.TensorProto) -> onnx.ModelProto:
    """y = x + w."""
    return model([helper.make_node("Add", ["x", "w"], ["y"], name="add")], initializers=[w])
