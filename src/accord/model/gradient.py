"""Gradient refers to the graph around it by name; here it gets that part of the graph as a body of its own.

ONNX's training operator Gradient names values (``xs``, ``zs``, ``y``) of the surrounding graph, which rewrites rename
and remove. The expansion copies the nodes between them into the attribute ``body``, so that nothing outside matters any
more.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from accord.errors import GraphError
from accord.ir.build import Builder
from accord.ir.expand import expands
from accord.ir.facts import Fact
from accord.ir.infer import Inference, rule

__all__ = ["DOMAIN", "TRAINING"]

TRAINING = "ai.onnx.preview.training"
#: Domain of the operator with a body; ONNX's own has no such attribute.
DOMAIN = "accord"


@rule("Gradient", domain=DOMAIN)
def gradient_shapes(n: Inference) -> Sequence[Fact]:
    """Each derivative is like the value by which it is taken."""
    return [fact.with_shape(fact.shape) for fact in map(n.tensor, range(len(n.node.outputs)))]


@expands("Gradient", domain=TRAINING)
def gradient_with_body(b: Builder, n: Inference) -> Sequence[ir.Value | None] | None:
    """The same node with the graph from ``xs`` and ``zs`` to ``y`` as attribute ``body``."""
    node = n.node
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        return None
    target = str(n.attr("y"))
    names = [*n.attr("xs", ()), *(n.attr("zs") or ())]
    inputs = list(node.inputs)
    if len(names) != len(inputs) or any(v is None for v in inputs):
        raise GraphError(
            "Gradient takes one input for each name in xs and zs",
            node=node.name or node.op_type,
            op=f"{TRAINING}::Gradient",
            expected=names,
            found=[v.name if v is not None else None for v in inputs],
        )
    stops = {v for v in inputs if v is not None}
    needed = {o for other in graph for o in other.outputs if o.name == target} - stops
    chosen: list[ir.Node] = []
    for other in reversed(graph):
        if needed.intersection(other.outputs):
            chosen.append(other)
            needed |= {v for v in other.inputs if v is not None} - stops
    inside = {o for c in chosen for o in c.outputs}
    leaves = [v for v in needed if v not in inside and v.const_value is None]
    renamed = {v: name for v, name in zip(inputs, names, strict=True) if v is not None}
    body = _body(chosen[::-1], [*renamed.items(), *((v, v.name or "leaf") for v in leaves)], target)
    zs = [*(n.attr("zs") or ()), *(v.name for v in leaves)]
    attributes = {"xs": list(n.attr("xs", ())), "y": target, "body": ir.AttrGraph("body", body)}
    if zs:
        attributes["zs"] = zs
    return b.multi("Gradient", len(node.outputs), *inputs, *leaves, domain=DOMAIN, **attributes)


def _body(nodes: Sequence[ir.Node], inputs: Sequence[tuple[ir.Value, str]], target: str) -> ir.Graph:
    import onnx

    names = dict(inputs)
    proto = onnx.GraphProto(name="differentiated")
    for v, name in inputs:
        info = ir.serde.serialize_value(v)
        info.name = name
        proto.input.append(info)
    constants: dict[str, ir.Value] = {}
    for node in nodes:
        copy = ir.serde.serialize_node(node)
        for i, read in enumerate(node.inputs):
            if read is not None:
                copy.input[i] = names.get(read, read.name or "")
                if read.const_value is not None and read not in names:
                    constants[read.name or ""] = read
        proto.node.append(copy)
    for name, value in constants.items():
        if value.const_value is not None:
            tensor = ir.serde.serialize_tensor(value.const_value)
            tensor.name = name
            proto.initializer.append(tensor)
    proto.output.append(onnx.ValueInfoProto(name=target))
    return ir.serde.deserialize_graph(proto)
