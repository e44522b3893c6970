"""Operators that this package does not write out: ``onnx.reference``, then the function body of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from accord.backends.reference.registry import Implementation, OpNode, schema_of

if TYPE_CHECKING:
    from accord.backends.reference.evaluator import Context

__all__ = ["fallback"]


def fallback(node: onnx.NodeProto, op: OpNode, context: Context) -> Implementation | None:
    """Find a way to compute an operator that has no implementation here.

    Args:
        node: The node.
        op: Its resolved attributes.
        context: Opsets and functions in force around it.

    Returns:
        A function with the signature of an implementation, or None if there is no way.
    """
    return _from_onnx_reference(node, op) or _from_schema(node, op, context)


def _load_class(op: OpNode) -> Any:
    from onnx.reference.ops import aionnx_preview, aionnx_preview_training, aionnxml, load_op

    loaders = {
        "": load_op,
        "ai.onnx.ml": aionnxml.load_op,
        "ai.onnx.preview": aionnx_preview.load_op,
        "ai.onnx.preview.training": aionnx_preview_training.load_op,
    }
    loader = loaders.get(op.domain)
    if loader is None:
        return None
    try:
        loaded = loader(op.domain, op.op_type, op.version)
    except (NotImplementedError, RuntimeError, AssertionError, ValueError, KeyError):
        return None  # no class for this operator and version
    return loaded if isinstance(loaded, type) else None


def _from_onnx_reference(node: onnx.NodeProto, op: OpNode) -> Implementation | None:
    operator_class = _load_class(op)
    if operator_class is None:
        return None
    instance = operator_class(
        node, {"log": lambda *_: None, "opsets": {op.domain: op.version}, "verbose": 0, "new_ops": None}
    )
    return lambda _op, *inputs: tuple(instance.run(*inputs))


def _from_schema(node: onnx.NodeProto, op: OpNode, context: Context) -> Implementation | None:
    from accord.backends.reference.evaluator import FunctionEvaluator

    schema: Any = schema_of(op.domain, op.op_type, op.version)
    if schema is None:
        return None
    if schema.has_function:
        evaluator = FunctionEvaluator(schema.function_body, node, context, op.attributes)
        return lambda _op, *inputs: tuple(evaluator.run(inputs))
    if not schema.has_context_dependent_function:
        return None

    def instantiate(_op: OpNode, *inputs: Any) -> tuple[Any, ...]:
        types = [_type_of(value).SerializeToString() for value in inputs]
        body = onnx.FunctionProto.FromString(schema.get_context_dependent_function(node.SerializeToString(), types))
        return tuple(FunctionEvaluator(body, node, context, op.attributes).run(inputs))

    return instantiate


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, np.ndarray):
        return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
    if isinstance(value, list) and value:
        return helper.make_sequence_type_proto(_type_of(value[0]))
    return onnx.TypeProto()
