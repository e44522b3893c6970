"""Connected elementwise, reducing and moving operators joined into one loop nest.

A group grows from its first operator by readers of its results and by producers that nothing else needs, as long as the
device makes one kernel of it. The call stands where the group's last operator stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import onnx_ir as ir

from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext
from accord.passes.rules.fuse import escaping, function_patch, graph_order

__all__ = ["FuseLoops"]

#: More than this and a kernel needs more registers and takes longer to compile than it saves.
MAX_NODES = 48
MAX_INPUTS = 24


class FuseLoops(Rule):
    """Elementwise operators, reductions and movements of data that are connected → one loop nest."""

    name: ClassVar[str] = "fuse-loops"
    level: ClassVar[int] = 2

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with one call of a function."""
        if not isinstance(node.graph, ir.Graph) or not node.outputs or context.joins([node]) is not None:
            return None
        group = [node]
        why: Reason | None = None
        while len(group) < MAX_NODES:
            found = None
            for larger in _larger(node.graph, group, context):
                refused = context.joins(larger)
                if refused is None:
                    found = larger
                    break
                why = why or refused
            if found is None:
                break
            group = found
        if sum(not is_view(n) for n in group) < 2 and not _would_copy(group):
            return why
        return function_patch(group, context, ", ".join(label(n) for n in group))


def is_view(node: ir.Node) -> bool:
    """Whether a node only says which elements of its input are meant: alone it costs nothing."""
    return node.domain == "" and node.op_type in _VIEWS


def _would_copy(group: Sequence[ir.Node]) -> bool:
    """Whether views alone cannot express what the group reads: a reshape of axes that were moved or cut before."""
    moved: set[ir.Value] = set()
    for n in group:
        if not is_view(n):
            continue
        if n.op_type == "Reshape" and n.inputs[0] in moved:
            return True
        if n.op_type in _MOVING or n.inputs[0] in moved:
            moved.update(n.outputs)
    return False


_MOVING = frozenset({"Transpose", "Expand", "Slice"})
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose", "Expand", "Slice"})


def _larger(graph: ir.Graph, group: Sequence[ir.Node], context: RuleContext) -> Iterator[list[ir.Node]]:
    """The groups with one operator more, in graph order."""
    members = set(group)
    leaving = escaping(group)
    readers = {u.node for v in leaving for u in v.uses()} - members
    readers = {n for n in readers if n.graph is graph}
    feeding = {p for n in group for v in n.inputs if v is not None and (p := v.producer()) is not None} - members
    feeding = {p for p in feeding if p.graph is graph}
    place = graph_order(graph, (*readers, *feeding, *group), context)
    for reader in sorted(readers, key=place.__getitem__):
        made = [v for v in leaving if any(u.node is not reader for u in v.uses() if u.node not in members)]
        # what stays visible would be made where the reader stands: nobody may need it before
        early = any(
            _place_of(u.node, graph, place, context) < place[reader]
            for v in made
            for u in v.uses()
            if u.node not in members and u.node is not reader
        )
        if not early and not _depends(reader, group, place, context, graph):
            yield sorted((*group, reader), key=place.__getitem__)
    last = max(place[n] for n in group)
    for producer in sorted(feeding, key=place.__getitem__, reverse=True):
        private = not any(o.is_graph_output() for o in producer.outputs)
        if private and place[producer] < last and all(u.node in members for o in producer.outputs for u in o.uses()):
            yield sorted((*group, producer), key=place.__getitem__)


def _place_of(node: ir.Node, graph: ir.Graph, place: dict[ir.Node, int], context: RuleContext) -> int:
    """Where a reader stands; before everything if it is in a body graph, whose owner may stand anywhere."""
    if node.graph is not graph:
        return -1
    return place[node] if node in place else graph_order(graph, (node,), context)[node]


def _depends(
    reader: ir.Node, group: Sequence[ir.Node], place: dict[ir.Node, int], context: RuleContext, graph: ir.Graph
) -> bool:
    """Whether ``reader`` needs something from outside that the group's results go into: then it cannot join."""
    members = set(group)
    first = min(place[n] for n in group)
    todo = [p for p in _producers(reader) if p not in members]
    seen: set[ir.Node] = set()
    while todo:
        node = todo.pop()
        if node in seen or node.graph is not graph:
            continue
        seen.add(node)
        if graph_order(graph, (node,), context)[node] < first:
            continue
        before = _producers(node)
        if members.intersection(before):
            return True
        todo.extend(before)
    return False


def _producers(node: ir.Node) -> list[ir.Node]:
    values: Iterable[ir.Value | None] = node.inputs
    bodies = [a.value for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    inner = (v for body in bodies for n in body.all_nodes() for v in n.inputs)
    return [p for v in (*values, *inner) if v is not None and (p := v.producer()) is not None]
