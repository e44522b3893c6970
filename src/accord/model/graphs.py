"""Work on graphs that :mod:`accord.model.normalise` needs: order, names, copies of bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from accord.errors import GraphError
from accord.ir.build import Builder

__all__ = ["BodyCopy", "Names", "detach", "inner_graphs", "sort"]


def inner_graphs(node: ir.Node) -> Iterable[ir.Graph]:
    """The graphs that a node holds as attributes."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def sort(graph: ir.Graph) -> None:
    """Bring the nodes into the order of execution where they are not.

    Raises:
        GraphError: there is a cycle.
    """
    seen: set[ir.Node] = set()
    for node in graph:
        if not all(p in seen or p.graph is not graph for p in _producers(node)):
            break
        seen.add(node)
    else:
        return
    try:
        graph.sort()
    except ValueError as error:
        raise GraphError("the graph has a cycle", value=graph.name, remedy="Check the exporter.") from error


def _producers(node: ir.Node) -> Iterable[ir.Node]:
    """Nodes whose outputs ``node`` reads, also from within its bodies."""
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if producer is not None:
            yield producer
    for graph in inner_graphs(node):
        for inner in graph:
            yield from _producers(inner)


def detach(graph: ir.Graph) -> None:
    """Take the nodes of a graph that is dropped off the lists of users of the values that they read."""
    for node in graph.all_nodes():
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)


class Names:
    """Names of values and of nodes, each unique in the whole model."""

    def __init__(self, graph: ir.Graph) -> None:
        self.values: set[str] = set()
        self.nodes: set[str] = set()
        self.graphs: set[ir.Graph] = set()
        self._register(graph)

    def _register(self, graph: ir.Graph) -> None:
        self.graphs.add(graph)
        self.values.update(v.name for v in graph.inputs if v.name)
        self.values.update(graph.initializers)
        for node in graph:
            self.values.update(o.name for o in node.outputs if o.name)
            if node.name:
                self.nodes.add(node.name)
            for inner in inner_graphs(node):
                self._register(inner)

    def _value(self, value: ir.Value, base: str, kind: str) -> None:
        value.name = _unique(f"{base}/{value.name or kind}", self.values)

    def complete(self, builder: Builder, base: str, unnamed: set[ir.Value]) -> None:
        """Name what was built in place of the node ``base``; values of ``unnamed`` have no name to keep."""
        single = len(builder.nodes) == 1
        for constant in builder.constants:
            if constant in unnamed:
                self._value(constant, base, "const")
        for node in builder.nodes:
            self._node(node, base, unnamed)
            node.name = base if single else self._node_name(node, base)

    def _node(self, node: ir.Node, base: str, unnamed: set[ir.Value] | None) -> None:
        for value in node.outputs:
            # A value with an empty name is an output that the node leaves out.
            if (unnamed is None or value in unnamed) and value.name != "":
                self._value(value, base, node.op_type)
        for inner in inner_graphs(node):
            if inner not in self.graphs:
                self._new_graph(inner, base)

    def _new_graph(self, graph: ir.Graph, base: str) -> None:
        self.graphs.add(graph)
        for value in (*graph.inputs, *tuple(graph.initializers.values())):
            self._value(value, base, "value")
        for node in graph:
            self._node(node, base, None)
            node.name = self._node_name(node, base)

    def _node_name(self, node: ir.Node, base: str) -> str:
        return _unique(f"{base}/{node.name or node.op_type}", self.nodes)


def _unique(name: str, used: set[str]) -> str:
    """``name``, or with a number where it is taken; ``used`` learns it."""
    candidate, count = name, 1
    while candidate in used:
        count += 1
        candidate = f"{name}_{count}"
    used.add(candidate)
    return candidate


class BodyCopy:
    """A copy of a function's body for one call.

    Attributes:
        attributes: Attributes of the call, with the function's defaults for those that it leaves out.
        values: Values of the body to values of the copy; None for an input that the call leaves out.
        made: Nodes of the copy.
    """

    def __init__(self, attributes: Mapping[str, ir.Attr], values: dict[ir.Value, ir.Value | None]) -> None:
        self.attributes = attributes
        self.values = values
        self.made: set[ir.Node] = set()

    def value(self, value: ir.Value | None) -> ir.Value | None:
        """The copy of a value; values of graphs around the body stay what they are."""
        return self.values.get(value, value) if value is not None else None

    def constant(self, value: ir.Value) -> ir.Value:
        """The copy of an initializer, which shares the content."""
        copied = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
        self.values[value] = copied
        return copied

    def node(self, node: ir.Node) -> ir.Node:
        """The copy of a node, with the values of attributes that the function's caller gives."""
        attributes = [a for a in map(self._attribute, node.attributes.values()) if a is not None]
        copied = ir.Node(
            node.domain,
            node.op_type,
            [self.value(v) for v in node.inputs],
            attributes,
            overload=node.overload,
            num_outputs=len(node.outputs),
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
        )
        for old, new in zip(node.outputs, copied.outputs, strict=True):
            new.name = old.name
            self.values[old] = new
        self.made.add(copied)
        return copied

    def _attribute(self, attribute: ir.Attr) -> ir.Attr | None:
        if attribute.is_ref():
            given = self.attributes.get(attribute.ref_attr_name or "")
            # An optional attribute that the call leaves out is left out in the body too.
            return None if given is None else ir.Attr(attribute.name, given.type, given.value)
        if attribute.type == ir.AttributeType.GRAPH:
            return ir.Attr(attribute.name, attribute.type, self._graph(attribute.as_graph()))
        if attribute.type == ir.AttributeType.GRAPHS:
            return ir.Attr(attribute.name, attribute.type, tuple(self._graph(g) for g in attribute.as_graphs()))
        return attribute

    def _graph(self, graph: ir.Graph) -> ir.Graph:
        inputs = []
        for value in graph.inputs:
            copied = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
            self.values[value] = copied
            inputs.append(copied)
        initializers = [self.value(v) if v in self.values else self.constant(v) for v in graph.initializers.values()]
        nodes = [self.node(n) for n in graph]
        inside = {o for n in nodes for o in n.outputs} | set(inputs) | set(initializers)
        outputs: list[ir.Value] = []
        for value in graph.outputs:
            output = self.value(value)
            if output not in inside or output in outputs:
                # A body's output is a value of its own.
                identity = ir.Node("", "Identity", [output], name=value.name)
                self.made.add(identity)
                nodes.append(identity)
                output = identity.outputs[0]
            assert output is not None
            outputs.append(output)
        kept: list[ir.Value] = [v for v in initializers if v is not None]
        return ir.Graph(inputs, outputs, nodes=nodes, initializers=kept, name=graph.name)
