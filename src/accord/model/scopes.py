"""Scopes and order: every value that is read is defined, visible and, after sorting, defined first.

A graph sees what it defines and what the graphs around it define; a function sees only what is its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from accord.errors import GraphError, LimitError
from accord.model.limits import Limits

__all__ = ["check_scopes", "label_of", "near", "needs", "op_of", "subgraphs"]

_GRAPH = ir.AttributeType.GRAPH
_GRAPHS = ir.AttributeType.GRAPHS
#: Names that are compared with a wrong one to find the nearest.
_MAX_NAMES = 20_000


def subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs in the attributes of ``node``, each with its attribute's name."""
    for name, attribute in node.attributes.items():
        if attribute.value is None:
            continue
        if attribute.type == _GRAPH:
            yield name, attribute.value
        elif attribute.type == _GRAPHS:
            for graph in attribute.value:
                yield name, graph


def label_of(node: ir.Node) -> str:
    """How messages name a node: by its name where that is unique in its graph, else with its first output."""
    output = next((o.name for o in node.outputs if o.name), None)
    if not node.name:
        return output or f"#{list(node.graph).index(node) if node.graph is not None else '?'}"
    twins = 0 if node.graph is None else sum(1 for other in node.graph if other.name == node.name)
    return f"{node.name} → {output}" if twins > 1 and output else node.name


def op_of(node: ir.Node) -> str:
    """``Conv``, or ``domain::Name`` for other domains than ONNX's own."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def near(name: str | None, names: Iterable[str | None]) -> str | None:
    """A question that offers the name nearest to ``name``, or None."""
    known = [n for _, n in zip(range(_MAX_NAMES), names, strict=False) if n]
    found = difflib.get_close_matches(name or "", known, n=1, cutoff=0.7)
    return f"Did you mean '{found[0]}'?" if found else None


def check_scopes(model: ir.Model, limits: Limits) -> list[ir.Graph]:
    """The graphs of ``model`` whose nodes are not in topological order; nothing is changed.

    Raises:
        GraphError: a value that nothing defines, or that is defined where it is not visible; a cycle.
        LimitError: graphs are nested too deeply, or there are too many nodes.
    """
    scopes = _Scopes(model, limits)
    scopes.graph(model.graph, set(), (), "")
    for function in model.functions.values():
        scopes.graph(function.graph, set(), (), f"function {function.domain}::{function.name}")
    for graph in scopes.unsorted:
        _check_cycles(graph)
    return list(scopes.unsorted)


class _Scopes:
    def __init__(self, model: ir.Model, limits: Limits) -> None:
        self.model = model
        self.limits = limits
        self.unsorted: dict[ir.Graph, None] = {}
        self.nodes = 0

    def graph(self, graph: ir.Graph, ready: set[ir.Value], around: tuple[ir.Graph, ...], where: str) -> None:
        if len(around) >= self.limits.max_nesting:
            raise LimitError(
                "graphs are nested too deeply", value=where, expected=f"at most {self.limits.max_nesting} levels"
            )
        own: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
        ready |= own
        for node in graph:
            self.nodes += 1
            for value in node.inputs:
                if value is not None and value not in ready:
                    self._not_ready(node, value, ready, (*around, graph), where)
            for name, inner in subgraphs(node):
                self.graph(inner, ready, (*around, graph), f"{where} → {label_of(node)}.{name}".removeprefix(" → "))
            own.update(node.outputs)
            ready.update(node.outputs)
        if self.nodes > self.limits.max_nodes:
            raise LimitError("too many nodes", expected=f"at most {self.limits.max_nodes}", found=self.nodes)
        for value in graph.outputs:
            if value not in own:
                raise self._no_output(value, ready, own, where)
        ready -= own

    def _not_ready(
        self, node: ir.Node, value: ir.Value, ready: set[ir.Value], chain: Sequence[ir.Graph], where: str
    ) -> None:
        producer = value.producer()
        home = producer.graph if producer is not None else None
        if home is not None and any(home is g for g in chain):
            self.unsorted[home] = None
            return
        names = [*(v.name for v in ready), *(o.name for g in chain for n in g for o in n.outputs)]
        elsewhere = self._elsewhere(value, chain)
        raise GraphError(
            "the value is defined inside another graph, where it cannot be seen from here"
            if elsewhere
            else "the value is read, but nothing produces it",
            node=label_of(node),
            op=op_of(node),
            value=value.name or "(unnamed)",
            found=f"in {elsewhere}" if elsewhere else None,
            expected=f"a value of {where} or of the graphs around it"
            if where
            else "an input, initializer or output of a node",
            remedy="Make it an output of the node that holds that graph." if elsewhere else near(value.name, names),
        )

    def _elsewhere(self, value: ir.Value, chain: Sequence[ir.Graph]) -> str | None:
        """The place of another graph of the model that defines the value or one of its name."""
        for graph in self.model.graphs():
            if any(graph is g for g in chain):
                continue
            defined = [*graph.inputs, *graph.initializers.values(), *(o for n in graph for o in n.outputs)]
            if any(v is value or (v.name and v.name == value.name) for v in defined):
                return f"graph '{graph.name}'" if graph.name else "another graph"
        return None

    def _no_output(self, value: ir.Value, ready: set[ir.Value], own: set[ir.Value], where: str) -> GraphError:
        outer = value in ready or any(v.name == value.name and v not in own for v in ready)
        return GraphError(
            "the graph's output is a value of an outer graph" if outer else "the graph's output is produced by nothing",
            value=f"{where} → {value.name}" if where else value.name,
            expected="an output of one of its nodes, an input or an initializer",
            remedy="Put an Identity node between the two." if outer else near(value.name, (v.name for v in own)),
        )


def needs(node: ir.Node, graph: ir.Graph) -> list[ir.Node]:
    """Nodes of ``graph`` that have to run before ``node``, for its inputs and for what its bodies capture."""
    needed: dict[ir.Node, None] = {}
    todo = [node]
    while todo:
        current = todo.pop()
        for value in current.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph:
                needed[producer] = None
        for _, inner in subgraphs(current):
            todo.extend(inner)
    return list(needed)


def _check_cycles(graph: ir.Graph) -> None:
    """Raise a GraphError that names the nodes on a cycle, if there is one."""
    state: dict[ir.Node, bool] = {}  # False while on the path, True when done
    for root in graph:
        if root in state:
            continue
        state[root] = False
        path = [(root, iter(needs(root, graph)))]
        while path:
            node, needed = path[-1]
            following = next(needed, None)
            if following is None:
                state[node] = True
                path.pop()
            elif following not in state:
                state[following] = False
                path.append((following, iter(needs(following, graph))))
            elif not state[following]:
                nodes = [n for n, _ in path]
                raise _cycle(nodes[nodes.index(following) :])


def _cycle(nodes: list[ir.Node]) -> GraphError:
    """The error for ``nodes``, each of which needs the next, and the last the first."""
    ring = [label_of(n) for n in reversed(nodes)]
    shown = ring if len(ring) <= 10 else [*ring[:5], "...", *ring[-4:]]
    return GraphError(
        f"a cycle of {len(ring)} node{'s' if len(ring) > 1 else ''}: {' → '.join([*shown, ring[0]])}",
        node=ring[0],
        op=op_of(nodes[-1]),
        expected="a graph without cycles",
        remedy="State across runs is an output that is given as an input to the next run.",
    )
