"""What a session says of a model's inputs, outputs and origin: as the file declares it, completed by inference."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from accord.plan.types import TensorType, ValueType
from accord.runtime.model import Model
from accord.runtime.ort_value import onnx_type

__all__ = ["ModelMetadata", "NodeArg", "Signature"]

#: From this version of the format on, an input with an initializer is optional; before, it was a constant.
_OPTIONAL_INPUTS_SINCE = 4


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output.

    Attributes:
        name: Its name.
        type: "tensor(float)", "seq(tensor(int64))" and so on.
        shape: One entry an axis: an integer, the name of a symbolic size, or None. Empty also where the rank is not
            known.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What the model file says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class Signature:
    """The model's interface as its file declares it, completed by what the compiler inferred."""

    def __init__(self) -> None:
        self.inputs: list[NodeArg] = []
        self.optional: list[NodeArg] = []
        self.outputs: list[NodeArg] = []
        self._no_rank: set[str] = set()

    def read(self, model: ir.Model) -> None:
        """Take the declared types, shapes and texts of the loaded model."""
        graph = model.graph
        for value in graph.inputs:
            if value.name not in graph.initializers:
                self.inputs.append(self._argument(value))
            elif model.ir_version is None or model.ir_version >= _OPTIONAL_INPUTS_SINCE:
                self.optional.append(self._argument(value))
        self.outputs = [self._argument(value) for value in graph.outputs]
        self.metadata = ModelMetadata(
            producer_name=model.producer_name or "",
            graph_name=graph.name or "",
            domain=model.domain or "",
            description=model.doc_string or "",
            graph_description=graph.doc_string or "",
            version=model.model_version or 0,
            custom_metadata_map=dict(model.metadata_props),
        )

    def complete(self, model: Model) -> None:
        """Fill what the file leaves open about the outputs with facts."""
        plan = model.compiled.plan
        symbols = {d for a in (*self.inputs, *self.optional) for d in a.shape if isinstance(d, str)}
        self.outputs = [
            _completed(a, plan.slots[i].type, symbols, rank_known=a.name not in self._no_rank)
            for a, i in zip(self.outputs, plan.outputs, strict=True)
        ]

    def _argument(self, value: ir.Value) -> NodeArg:
        name, shape = value.name or "", value.shape
        if isinstance(value.type, ir.SequenceType):  # its elements may differ in shape
            return NodeArg(name, onnx_type(value.type), [])
        if shape is None:
            self._no_rank.add(name)
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
