"""Reading a model's interface from its graph and its plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_ir as ir

from accord.plan.plan import Plan
from accord.plan.types import TensorType, ValueType
from accord.runtime.interface import Interface, ModelMetadata, NodeArg

__all__ = ["complete", "declared_interface", "onnx_type"]

#: From this version of the format on, an input with an initializer is optional; before, it was a constant.
_OPTIONAL_INPUTS_SINCE = 4


def onnx_type(type_: ir.TypeProtocol | None) -> str:
    """An ONNX type as ONNX Runtime writes it: "tensor(float)", "seq(tensor(int64))", "optional(seq(tensor(float)))"."""
    if isinstance(type_, ir.SparseTensorType):
        return f"sparse_tensor({type_.dtype.name.lower()})"
    if isinstance(type_, ir.SequenceType):
        return f"seq({onnx_type(type_.elem_type)})"
    if isinstance(type_, ir.OptionalType):
        return f"optional({onnx_type(type_.elem_type)})"
    if type_ is None:
        return "unknown"
    return f"tensor({type_.dtype.name.lower()})"


def declared_interface(model: ir.Model) -> Interface:
    """The declared types, shapes and texts of the loaded model."""
    graph = model.graph
    inputs, optional = [], []
    for value in graph.inputs:
        if value.name not in graph.initializers:
            inputs.append(_argument(value))
        elif model.ir_version is None or model.ir_version >= _OPTIONAL_INPUTS_SINCE:
            optional.append(_argument(value))
    metadata = ModelMetadata(
        producer_name=model.producer_name or "",
        graph_name=graph.name or "",
        domain=model.domain or "",
        description=model.doc_string or "",
        graph_description=graph.doc_string or "",
        version=model.model_version or 0,
        custom_metadata_map=dict(model.metadata_props),
    )
    rankless = {v.name or "" for v in graph.outputs if v.shape is None and not isinstance(v.type, ir.SequenceType)}
    outputs = tuple(_argument(value) for value in graph.outputs)
    return Interface(tuple(inputs), tuple(optional), outputs, metadata, frozenset(rankless))


def complete(interface: Interface, plan: Plan) -> Interface:
    """Fill what the file leaves open about the outputs with what was inferred."""
    symbols = {d for a in (*interface.inputs, *interface.optional) for d in a.shape if isinstance(d, str)}
    outputs = tuple(
        _completed(a, plan.slots[i].type, symbols, rank_known=a.name not in interface.rankless)
        for a, i in zip(interface.outputs, plan.outputs, strict=True)
    )
    return replace(interface, outputs=outputs)


def _argument(value: ir.Value) -> NodeArg:
    name, shape = value.name or "", value.shape
    if shape is None or isinstance(value.type, ir.SequenceType):  # a sequence's elements may differ in shape
        return NodeArg(name, onnx_type(value.type), [])
    return NodeArg(name, onnx_type(value.type), [_size(d if isinstance(d, int) else d.value) for d in shape.dims])


def _size(d: int | str | None) -> int | str | None:
    """A declared size; some exporters write -1 where they mean that nothing is known."""
    return (d if d >= 0 else None) if isinstance(d, int) else d or None


def _completed(argument: NodeArg, kind: ValueType, symbols: Collection[str], *, rank_known: bool) -> NodeArg:
    if not isinstance(kind, TensorType) or kind.name is None or kind.shape is None:
        return argument
    inferred = [d if isinstance(d, int) else str(d) if str(d) in symbols else None for d in kind.shape]
    shape = argument.shape
    if not rank_known:
        shape = inferred
    elif len(shape) == len(inferred):
        shape = [new if isinstance(new, int) or old is None else old for old, new in zip(shape, inferred, strict=True)]
    return NodeArg(argument.name, f"tensor({kind.name})", shape)
