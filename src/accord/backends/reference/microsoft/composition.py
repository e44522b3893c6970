"""Operators that are compositions: their expansion, evaluated node by node.

At run time every input is known, so an expansion that had to give up while sizes or contents were open succeeds here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import accord.ops.microsoft
import accord.ops.shapes  # noqa: F401  expansions ask for the facts of what they build
from accord.backends.reference.registry import OpNode, implements
from accord.errors import UnsupportedError
from accord.ir.build import Builder
from accord.ir.expand import CANONICAL_OPSET, expansion_for
from accord.ir.facts import FactTable, constant_fact, to_numpy, to_tensor
from accord.ir.infer import Analyzer, Inference
from accord.ops.microsoft.schemas import schemas

__all__ = ["compose"]


def compose(op: OpNode, *inputs: Any) -> tuple[Any, ...]:
    """Expand the node with its inputs as constants, and evaluate what was built.

    Raises:
        UnsupportedError: the operator is not a composition in the form that the attributes ask for.
    """
    expansion = expansion_for(op.domain, op.op_type, op.version)
    assert expansion is not None
    analyzer = Analyzer(FactTable(), {"": CANONICAL_OPSET, op.domain: op.version})
    env: dict[str, Any] = {}
    values = [_constant(analyzer, f"input{i}", x, env) for i, x in enumerate(inputs)]
    attributes = [_attribute(name, value) for name, value in op.attributes.items() if value is not None]
    outputs = [ir.Value(name=name) for name in op.outputs]
    node = ir.Node(op.domain, op.op_type, values, attributes, outputs=outputs)
    builder = Builder(analyzer)
    results = expansion(builder, Inference(node, analyzer))
    if results is None:
        raise UnsupportedError(
            "this form of the operator is not supported",
            op=f"{op.domain}::{op.op_type}",
            found=", ".join(f"{k}={v}" for k, v in op.attributes.items()) or None,
        )
    _evaluate(builder, env)
    return tuple(None if v is None else env[v.name or ""] for v in results)


def _constant(analyzer: Analyzer, name: str, array: Any, env: dict[str, Any]) -> ir.Value | None:
    if array is None:
        return None
    tensor = to_tensor(array)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    analyzer.facts[value] = constant_fact(tensor)
    env[name] = array
    return value


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, to_tensor(value))
    return ir.convenience.convert_attribute(name, value)


def _evaluate(builder: Builder, env: dict[str, Any]) -> None:
    """Run the nodes; ``env`` holds arrays by name and is extended."""
    from accord.backends.reference.kernels import ReferenceKernel

    for i, constant in enumerate(builder.constants):
        constant.name = f"constant{i}"
        assert constant.const_value is not None
        env[constant.name] = to_numpy(constant.const_value)
    for i, node in enumerate(builder.nodes):
        for j, value in enumerate(node.outputs):
            value.name = f"value{i}.{j}"
    for node in builder.nodes:
        proto: onnx.NodeProto = ir.serde.serialize_node(node)
        kernel = ReferenceKernel(proto, CANONICAL_OPSET)
        results = kernel.run([None if v is None else env[v.name or ""] for v in node.inputs], env)
        env.update((v.name or "", r) for v, r in zip(node.outputs, results, strict=True))


def _register() -> None:
    for domain, name in schemas():
        if domain and expansion_for(domain, name, 1) is not None:
            implements(name, domain=domain)(compose)
    implements("SimplifiedLayerNormalization")(compose)


_register()
