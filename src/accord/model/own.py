"""Ownership: the loaded graph keeps nothing of the caller's, nor the file's message alive.

Tensors of the message are taken out of it, external ones become views of the mapped file, and a caller's graph is
copied with the content of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir

from accord.errors import GraphError, ModelFormatError
from accord.model.external import ExternalFiles
from accord.model.limits import Limits
from accord.model.scopes import check_scopes, needs
from accord.model.tensors import check_dims, check_tensor, owned, string_tensor, tensor_of, tensor_of_bytes
from accord.model.versions import check_ir_version, check_opsets

__all__ = ["TYPE_KEY", "Own"]

#: Where a value's ``meta`` has the text of a type that the graph cannot hold: "seq(map(int64, float))".
TYPE_KEY = "accord.type"

_Change: TypeAlias = "Callable[[ir.TensorProtocol, str], ir.TensorProtocol]"


class Own:
    """See the module's text.

    Args:
        files: The files with external data.
        limits: What is accepted.
    """

    def __init__(self, files: ExternalFiles, limits: Limits) -> None:
        self.files = files
        self.limits = limits
        self._others: dict[str, ExternalFiles] = {}

    def take(self, model: ir.Model, types: Mapping[str, str]) -> None:
        """Detach a graph from the surveyed message that it was made from.

        Args:
            model: The graph; changed in place.
            types: Types that it cannot hold, by name of the value.
        """
        self._replace(model, self._detached)
        if types:
            for graph in model.graphs():
                for value in (*graph.inputs, *graph.outputs, *(o for n in graph for o in n.outputs)):
                    if value.name and value.name in types:
                        value.meta[TYPE_KEY] = types[value.name]

    def copy(self, source: ir.Model) -> ir.Model:
        """A copy of a caller's graph, in topological order, with tensors of its own.

        Raises:
            ModelError: it cannot be copied.
        """
        check_ir_version(source.ir_version)
        for function in source.functions.values():
            check_opsets(function.opset_imports.items(), f"function {function.domain}::{function.name}")
        check_opsets(source.opset_imports.items())
        unsorted = check_scopes(source, self.limits)
        if any(graph is not source.graph for graph in unsorted):
            raise GraphError(
                "a body or function whose nodes are not in order", remedy="Sort it first: model.graph.sort()."
            )
        try:
            model = _clone(source, reorder=bool(unsorted))
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise ModelFormatError(f"the graph cannot be copied: {error}") from error
        for graph in model.graphs():
            for value in (*graph.inputs, *(o for n in graph for o in n.outputs)):
                if value.const_value is not None and not value.is_initializer():
                    value.const_value = None  # an annotation that nothing keeps true
            for name, value in graph.initializers.items():
                if value.const_value is None:
                    raise ModelFormatError("an initializer without content", value=name)
        self._replace(model, self._copied)
        return model

    def _replace(self, model: ir.Model, change: _Change) -> None:
        for graph in (model.graph, *(f.graph for f in model.functions.values())):
            self._replace_in(graph, change)
        for function in model.functions.values():
            for attribute in list(function.attributes.values()):
                changed = _changed_attribute(attribute, change)
                if changed is not None:
                    function.attributes[attribute.name] = changed

    def _replace_in(self, graph: ir.Graph, change: _Change) -> None:
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                value.const_value = change(value.const_value, name)
        for node in graph:
            for attribute in list(node.attributes.values()):
                if attribute.is_ref():
                    continue
                changed = _changed_attribute(attribute, change)
                if changed is not None:
                    node.attributes[attribute.name] = changed
                elif attribute.type == ir.AttributeType.GRAPH:
                    self._replace_in(attribute.value, change)
                elif attribute.type == ir.AttributeType.GRAPHS:
                    for inner in attribute.value:
                        self._replace_in(inner, change)

    def _detached(self, tensor: ir.TensorProtocol, where: str) -> ir.TensorProtocol:
        if isinstance(tensor, ir.serde.TensorProtoTensor):
            try:
                return tensor_of(tensor.raw)
            except ValueError as error:
                raise ModelFormatError(f"its content is malformed: {error}", value=where) from error
        if isinstance(tensor, ir.StringTensor):
            return string_tensor(list(tensor.string_data()), tuple(tensor.shape.numpy()), _facts(tensor))
        if isinstance(tensor, ir.ExternalTensor):
            return self._external(tensor, self.files, where)
        return tensor

    def _copied(self, tensor: ir.TensorProtocol, where: str) -> ir.TensorProtocol:
        if isinstance(tensor, ir.serde.TensorProtoTensor):
            check_tensor(tensor.raw, where, self.limits)
            return self._detached(tensor, where)
        bits = 8 if tensor.dtype == ir.DataType.STRING else tensor.dtype.bitwidth
        check_dims(tuple(tensor.shape.numpy()), bits, where, self.limits)
        if isinstance(tensor, ir.ExternalTensor):
            files = self.files
            if files.folder is None and str(tensor.base_dir):
                folder = str(Path(tensor.base_dir))
                files = self._others.setdefault(folder, ExternalFiles(folder))
            return self._external(tensor, files, where)
        return owned(tensor)

    def _external(self, tensor: ir.ExternalTensor, files: ExternalFiles, where: str) -> ir.TensorProtocol:
        shape = tuple(tensor.shape.numpy())
        needed = (check_dims(shape, tensor.dtype.bitwidth, where, self.limits) * tensor.dtype.bitwidth + 7) // 8
        data = files.read(str(tensor.location), tensor.offset, tensor.length, needed, where)
        return tensor_of_bytes(data, tensor.dtype, shape, _facts(tensor))


def _facts(tensor: ir.TensorProtocol) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "doc_string": tensor.doc_string,
        "metadata_props": dict(tensor.metadata_props) if tensor.metadata_props else None,
    }


def _changed_attribute(attribute: ir.Attr, change: _Change) -> ir.Attr | None:
    """The attribute with its tensors changed; None where it has none."""
    if attribute.value is None:
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        return ir.AttrTensor(attribute.name, change(attribute.value, attribute.name), attribute.doc_string)
    if attribute.type == ir.AttributeType.TENSORS:
        tensors = [change(t, attribute.name) for t in attribute.value]
        return ir.AttrTensors(attribute.name, tensors, attribute.doc_string)
    return None


def _clone(source: ir.Model, *, reorder: bool) -> ir.Model:
    """A copy whose tensors are shared; ``reorder`` puts the nodes of the main graph in order."""
    if not reorder:
        return source.clone()
    graph = source.graph
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=_in_order(graph),
        initializers=list(graph.initializers.values()),
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )
    return ir.Model(
        view.clone(),
        ir_version=source.ir_version,
        producer_name=source.producer_name,
        producer_version=source.producer_version,
        domain=source.domain,
        model_version=source.model_version,
        doc_string=source.doc_string,
        functions=[f.clone() for f in source.functions.values()],
        metadata_props=dict(source.metadata_props),
    )


def _in_order(graph: ir.Graph) -> Iterable[ir.Node]:
    """The nodes of an acyclic graph in topological order, otherwise as they are."""
    done: dict[ir.Node, None] = {}
    for root in graph:
        path = [(root, iter(needs(root, graph)))] if root not in done else []
        while path:
            node, needed = path[-1]
            following = next(needed, None)
            if following is None:
                path.pop()
                done.setdefault(node)
            elif following not in done:
                path.append((following, iter(needs(following, graph))))
    return done
