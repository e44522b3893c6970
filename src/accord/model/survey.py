"""Survey: one pass over a ``ModelProto`` before it becomes a graph.

It finds what the graph could no longer tell (two definitions of one name, which would overwrite each other), what would
exhaust memory or the stack, and what is no model at all. The message is this loader's own copy, so that old or rare
forms are put into the usual one on the way: attributes without a type, sparse tensors, types that only maps need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from accord.errors import GraphError, LimitError, ModelFormatError, ModelTypeError, UnsupportedError
from accord.model.external import ExternalFiles
from accord.model.limits import Limits
from accord.model.tensors import check_dims, check_dtype, check_tensor, densify, tensor_of, tensor_of_bytes
from accord.model.versions import check_ir_version, check_opsets

__all__ = ["Survey"]

_DAMAGED = "The file is damaged or was written wrongly: export the model again."

#: Attribute type → the field of AttributeProto that holds it.
_ATTRIBUTE_FIELD = {
    "FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "SPARSE_TENSOR": "sparse_tensor",
    "TYPE_PROTO": "tp", "FLOATS": "floats", "INTS": "ints", "STRINGS": "strings", "TENSORS": "tensors",
    "GRAPHS": "graphs", "SPARSE_TENSORS": "sparse_tensors", "TYPE_PROTOS": "type_protos",
}  # fmt: skip


@dataclass(slots=True)
class _Pending:
    """A graph that is still to be surveyed."""

    graph: Any
    where: str
    outer: tuple[Mapping[str, str], ...]
    depth: int
    is_function: bool = False


@dataclass(slots=True)
class Survey:
    """See the module's text.

    Attributes:
        limits: What is accepted.
        files: The files with external data.
        types: Types that the graph cannot hold, as text, by name of the value.
        nodes: Nodes seen.
    """

    limits: Limits
    files: ExternalFiles
    types: dict[str, str] = field(default_factory=dict)
    nodes: int = 0
    _todo: list[_Pending] = field(default_factory=list)

    def run(self, model: Any) -> None:
        """Check ``model``, a ``ModelProto`` that may be changed.

        Raises:
            ModelError: what is wrong.
            UnsupportedError: it needs a newer ``onnx``.
        """
        self._versions(model)
        self._todo = [_Pending(model.graph, "", (), 1)]
        seen: set[tuple[str, str, str]] = set()
        for function in model.functions:
            self._function(function, seen)
        while self._todo:
            self._graph(self._todo.pop())

    # the model's head

    def _versions(self, model: Any) -> None:
        check_ir_version(model.ir_version if model.HasField("ir_version") else None)
        if not model.opset_import and model.ir_version < 3:  # before the field there was one operator set
            model.opset_import.add(domain="", version=1)
        self._opsets(model.opset_import, None)

    def _opsets(self, imports: Any, where: str | None) -> None:
        for entry in imports:
            self._name(entry.domain, "opset_import", where or "")
            if entry.domain == "ai.onnx":  # the other spelling of ""
                entry.domain = ""
        check_opsets(((e.domain, e.version) for e in imports), where)

    # functions

    def _function(self, function: Any, seen: set[tuple[str, str, str]]) -> None:
        for text in (function.name, function.domain, function.overload):
            self._name(text, "function", "")
        if function.domain == "ai.onnx":
            function.domain = ""
        key = (function.domain, function.name, function.overload)
        where = f"function {function.domain}::{function.name}"
        if not function.name:
            raise GraphError("a model-local function without a name", value=where)
        if key in seen:
            raise GraphError(
                "two model-local functions have the same name",
                value=where,
                remedy="Rename one, or give it an overload.",
            )
        seen.add(key)
        self._opsets(function.opset_import, where)
        declared = [*function.attribute, *(a.name for a in function.attribute_proto)]
        for name in declared:
            self._name(name, "attribute", where)
        if len(set(declared)) != len(declared):
            raise GraphError("an attribute is declared twice", value=where, found=", ".join(sorted(declared)))
        for attribute in function.attribute_proto:
            self._attribute(attribute, "", where, (), 1)
        self._todo.append(_Pending(function, where, (), 1, is_function=True))

    # graphs

    def _graph(self, at: _Pending) -> None:
        graph, where = at.graph, at.where
        if at.depth > self.limits.max_nesting:
            raise LimitError(
                "graphs are nested too deeply", value=where, expected=f"at most {self.limits.max_nesting} levels"
            )
        self.nodes += len(graph.node)
        if self.nodes > self.limits.max_nodes:
            raise LimitError("too many nodes", expected=f"at most {self.limits.max_nodes}", found=self.nodes)
        if not at.is_function:
            self._name(graph.name, "graph", where)
        defined: dict[str, str] = {}
        if at.is_function:
            for name in graph.input:
                self._define(defined, name, "input", where)
        else:
            self._inputs_and_initializers(at, defined)
        known = set(defined)
        for index, node in enumerate(graph.node):
            label = _label(node, index)
            for name in node.output:
                if name != "":
                    self._define(defined, name, label, where, node)
        self._read_before_shadowed(at, defined, known)
        for info in graph.value_info:
            self._value_info(info, where)
        if at.is_function:
            missing = [name for name in graph.output if name not in defined]
            if missing:
                raise GraphError("a function's output is produced by none of its nodes", value=f"{where}: {missing[0]}")
        else:
            for info in graph.output:
                self._value_info(info, where)
        scopes = (*at.outer, defined)
        for index, node in enumerate(graph.node):
            self._node(node, index, where, scopes, at.depth)

    def _inputs_and_initializers(self, at: _Pending, defined: dict[str, str]) -> None:
        graph, where = at.graph, at.where
        for info in graph.input:
            self._define(defined, info.name, "input", where)
            self._value_info(info, where, is_input=at.depth == 1)
        if graph.sparse_initializer:
            for sparse in graph.sparse_initializer:
                graph.initializer.append(self._dense(sparse, _join(where, sparse.values.name)))
            graph.ClearField("sparse_initializer")
        stored: dict[str, str] = {}
        for tensor in graph.initializer:
            self._define(stored, tensor.name, "initializer", where)
            if defined.get(tensor.name) != "input":  # an initializer of an input's name is its default
                self._define(defined, tensor.name, "initializer", where)
            self.tensor(tensor, _join(where, tensor.name))

    def _define(self, defined: dict[str, str], name: Any, by: str, where: str, node: Any = None) -> None:
        self._name(name, by, where)
        if name == "":
            raise GraphError(f"an {by} without a name", value=where or None, remedy=_DAMAGED)
        if name in defined:
            raise GraphError(
                "the value is defined twice",
                node=by if node is not None else None,
                op=_op(node) if node is not None else None,
                value=_join(where, name),
                expected="one definition of each name",
                found=f"{defined[name]} and {by}",
                remedy="Rename one of them.",
            )
        defined[name] = by

    def _read_before_shadowed(self, at: _Pending, defined: Mapping[str, str], known: set[str]) -> None:
        """A name of an outer graph that is also defined here is ambiguous if it is read before that."""
        shadowing = {n for n in defined if n not in known and any(n in scope for scope in at.outer)}
        if not shadowing:
            return
        for index, node in enumerate(at.graph.node):
            for name in node.input:
                if name in shadowing:
                    raise GraphError(
                        f"the value is read here and defined later by {defined[name]}; an outer graph has the name too",
                        node=_label(node, index),
                        op=_op(node),
                        value=_join(at.where, name),
                        remedy="Rename the inner value.",
                    )
            shadowing.difference_update(node.output)

    def _node(self, node: Any, index: int, where: str, scopes: tuple[Mapping[str, str], ...], depth: int) -> None:
        for text in (node.op_type, node.name, node.domain, node.overload):
            if text.__class__ is not str or len(text) > self.limits.max_name_bytes:
                self._name(text, "node", where)
        for text in node.input:
            if text.__class__ is not str or len(text) > self.limits.max_name_bytes:
                self._name(text, "input of a node", where)
        if not node.op_type:
            raise GraphError(
                "the node names no operator", node=_label(node, index), value=where or None, remedy=_DAMAGED
            )
        if not node.attribute:
            return
        label = _label(node, index)
        seen: set[str] = set()
        for attribute in node.attribute:
            self._name(attribute.name, "attribute", where)
            if not attribute.name or attribute.name in seen:
                raise GraphError(
                    f"attribute '{attribute.name}' is given twice" if attribute.name else "an attribute without a name",
                    node=label,
                    op=_op(node),
                )
            seen.add(attribute.name)
            self._attribute(attribute, label, where, scopes, depth, node)

    # attributes and what they hold

    def _attribute(
        self,
        attribute: Any,
        label: str,
        where: str,
        scopes: tuple[Mapping[str, str], ...],
        depth: int,
        node: Any = None,
    ) -> None:
        import onnx

        kind = attribute.type
        at = _join(_join(where, label), attribute.name)
        if attribute.ref_attr_name:
            self._name(attribute.ref_attr_name, "attribute", where)
            if kind in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                raise UnsupportedError("a function that takes a graph as an attribute", value=at)
            return
        if kind == onnx.AttributeProto.UNDEFINED:
            kind = attribute.type = self._kind(attribute, at)
        if kind == onnx.AttributeProto.TENSOR:
            self.tensor(attribute.t, at)
        elif kind == onnx.AttributeProto.TENSORS:
            for i, tensor in enumerate(attribute.tensors):
                self.tensor(tensor, f"{at}[{i}]")
        elif kind == onnx.AttributeProto.GRAPH:
            self._todo.append(_Pending(attribute.g, at, scopes, depth + 1))
        elif kind == onnx.AttributeProto.GRAPHS:
            self._todo += [_Pending(g, f"{at}[{i}]", scopes, depth + 1) for i, g in enumerate(attribute.graphs)]
        elif kind == onnx.AttributeProto.STRINGS:
            for item in attribute.strings:
                try:
                    item.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ModelFormatError("a string that is not UTF-8", value=at, found=repr(item[:40])) from error
        elif kind in (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS):
            self._sparse_attribute(attribute, at, node)
        elif kind == onnx.AttributeProto.TYPE_PROTO:
            self._attribute_type(attribute.tp, at)
        elif kind == onnx.AttributeProto.TYPE_PROTOS:
            for tp in attribute.type_protos:
                self._attribute_type(tp, at)

    @staticmethod
    def _kind(attribute: Any, at: str) -> int:
        """The type of an attribute that states none, as files of IR version 1 do: the one field that is set."""
        import onnx

        held = [
            kind
            for kind, name in _ATTRIBUTE_FIELD.items()
            if (len(getattr(attribute, name)) if kind.endswith("S") else attribute.HasField(name))
        ]
        if len(held) != 1:
            raise ModelFormatError(
                "the attribute states no type",
                value=at,
                found=f"fields {held}" if held else "no content",
                remedy=_DAMAGED,
            )
        return int(onnx.AttributeProto.AttributeType.Value(held[0]))

    def _sparse_attribute(self, attribute: Any, at: str, node: Any) -> None:
        import onnx

        if node is None or node.op_type != "Constant" or attribute.name != "sparse_value":
            raise UnsupportedError("a sparse tensor as an attribute", value=at, remedy="Use dense tensors.")
        dense = self._dense(attribute.sparse_tensor, at)
        attribute.Clear()
        attribute.name = "value"
        attribute.type = onnx.AttributeProto.TENSOR
        attribute.t.CopyFrom(dense)

    def _attribute_type(self, proto: Any, at: str) -> None:
        unfit = self._type(proto, at)
        if unfit is not None:
            raise UnsupportedError(f"the type {unfit} as an attribute", value=at)

    def tensor(self, proto: Any, where: str) -> None:
        """Check a stored tensor, and that its external data is there.

        Raises:
            ModelError: what is wrong with it.
        """
        self._name(proto.name, "tensor", where)
        needed = check_tensor(proto, where, self.limits)
        if needed is not None:
            self.files.entries(proto, needed, where)
            kept = [e for e in proto.external_data if e.key in ("location", "offset", "length")]
            if len(kept) != len(proto.external_data):  # onnx refuses keys that it does not know
                kept = [type(e).FromString(e.SerializeToString()) for e in kept]
                del proto.external_data[:]
                proto.external_data.extend(kept)

    def _dense(self, sparse: Any, where: str) -> Any:
        def read(proto: Any) -> ir.TensorProtocol:
            needed = check_tensor(proto, where, self.limits)
            if needed is None:
                return tensor_of(proto)
            data = self.files.entries(proto, needed, where)
            return tensor_of_bytes(data, ir.DataType(proto.data_type), tuple(proto.dims), {})

        return densify(sparse, where, self.limits, read)

    # names and types

    def _name(self, text: Any, what: str, where: str) -> None:
        if not isinstance(text, str):  # protobuf hands out bytes where a string is not UTF-8
            raise ModelFormatError(
                f"a name that is not UTF-8 ({what})", value=where or None, found=repr(text[:40]), remedy=_DAMAGED
            )
        if len(text) > self.limits.max_name_bytes:
            raise LimitError(
                f"a name is too long ({what})",
                value=where or None,
                expected=f"at most {self.limits.max_name_bytes} characters",
                found=f"{len(text)}: {text[:40]}...",
            )

    def _value_info(self, info: Any, where: str, *, is_input: bool = False) -> None:
        self._name(info.name, "value", where)
        at = _join(where, info.name)
        kind = info.type.WhichOneof("value")
        if kind is None:
            if is_input:
                raise ModelTypeError("the model's input has no type", value=at, remedy="Declare its element type.")
            if info.HasField("type"):
                info.ClearField("type")
            return
        unfit = self._type(info.type, at)
        if unfit is None:
            return
        if unfit == "undefined" and is_input:
            raise ModelTypeError(
                "the element type of the model's input is undefined", value=at, remedy="Declare its element type."
            )
        if unfit != "undefined":
            self.types[info.name] = unfit
        info.ClearField("type")

    def _type(self, proto: Any, at: str) -> str | None:
        """None for a type that the graph can hold; else what it is."""
        kind = proto.WhichOneof("value")
        if kind in ("tensor_type", "sparse_tensor_type"):
            tensor = getattr(proto, kind)
            bits = 8 if tensor.elem_type == 0 else check_dtype(tensor.elem_type, at)
            dims = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
            for d in tensor.shape.dim:
                self._name(d.dim_param, "size", at)
            if any(d < -1 for d in dims):  # exporters write -1 where they mean any size
                raise ModelTypeError("a negative size", value=at, found=dims, remedy="Correct the declared shape.")
            if len(tensor.shape.dim) > self.limits.max_rank:
                check_dims([1] * len(tensor.shape.dim), bits, at, self.limits)
            check_dims([d for d in dims if d >= 0], bits, at, self.limits)
            return "undefined" if tensor.elem_type == 0 else None
        if kind in ("sequence_type", "optional_type"):
            inner = self._type(getattr(proto, kind).elem_type, at)
            return inner if inner in (None, "undefined") else f"{'seq' if kind[0] == 's' else 'optional'}({inner})"
        if kind == "map_type":
            key = ir.DataType(proto.map_type.key_type).name.lower() if check_dtype(proto.map_type.key_type, at) else ""
            return f"map({key}, {self._type(proto.map_type.value_type, at) or _text(proto.map_type.value_type)})"
        return "undefined" if kind is None else kind.removesuffix("_type")


def _text(proto: Any) -> str:
    return str(ir.serde.deserialize_type_proto_for_type(proto))


def _label(node: Any, index: int) -> str:
    """How messages name a node: by its name, or by its first output."""
    name = node.name or next((o for o in node.output if o), "") or f"#{index}"
    return name if isinstance(name, str) else repr(name)


def _op(node: Any) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)


def _join(where: str, name: str) -> str:
    return f"{where} → {name}" if where else name
