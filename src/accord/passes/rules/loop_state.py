"""State of a loop that never changes, or that only grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.model.graphs import inner_graphs
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["CaptureUnchangedState", "CollectAppendedState"]


class CaptureUnchangedState(Rule):
    """State that the body of a Loop or Scan hands on as it got it → a value around the loop that the body reads.

    Converters of other frameworks carry weights so. A captured weight is a constant for the body, and nothing is handed
    from one iteration to the next.
    """

    name: ClassVar[str] = "capture-unchanged-state"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Loop", "Scan")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with a node that has a body of its own, without that state."""
        body = context.attr(node, "body")
        # inputs of the node before its states, of the body, and outputs of the body
        first, formal, made = (2, 2, 1) if node.op_type == "Loop" else (0, 0, 0)
        count = len(node.inputs) - first - context.attr(node, "num_scan_inputs", 0)
        fixed = [k for k in range(count) if _origin(body.outputs[made + k]) is body.inputs[formal + k]]
        handed = [o for g in (body, *body.subgraphs()) for o in g.outputs]
        alone = [k for k in fixed if sum(o is body.inputs[formal + k] for o in handed) < 2]
        if not alone:
            return Reason("what is unchanged is another output of a body too") if fixed else None
        copy, _ = _cloned(body, context)
        replace: dict[ir.Value, ir.Value] = {}
        for k in reversed(alone):
            outer = node.inputs[first + k]
            assert outer is not None
            replace[node.outputs[k]] = outer
            copy.outputs.pop(made + k)
            copy.inputs.pop(formal + k).replace_all_uses_with(outer)
        attributes = [ir.AttrGraph("body", copy) if a.name == "body" else a for a in node.attributes.values()]
        left = [v for i, v in enumerate(node.inputs) if i - first not in alone]
        loop = ir.Node("", node.op_type, left, attributes, num_outputs=len(node.outputs) - len(alone))
        context.analyzer.infer(loop)
        changing = [v for k, v in enumerate(node.outputs) if k not in alone]
        replace |= dict(zip(changing, loop.outputs, strict=True))
        return Patch(replace, [loop], note=f"{len(alone)} of {count} states")


class CollectAppendedState(Rule):
    """State to whose end a Loop's body appends a value in each round, and does nothing else → a scan output.

    What grows is copied in each round, or is a sequence, which no kernel makes; scan outputs are written once, in
    place.
    """

    name: ClassVar[str] = "collect-appended-state"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Loop")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with a Loop that collects, and with what puts the rows together."""
        body = context.attr(node, "body")
        outer = frozenset[str]().union(
            *(D.symbols_of(d) for v in node.inputs for d in context.tensor(v).shape or ()),
        )
        count = len(node.inputs) - 2
        found: dict[int, ir.Node] = {}
        reasons = []
        for k in range(count):
            append = _append(body, k)
            if append is None:
                continue
            why = _refusal(node, k, append, outer, context)
            if why is None:
                found[k] = append
            else:
                reasons.append(why)
        if not found:
            return reasons[0] if reasons else None
        copy, copied = _cloned(body, context)
        for append in found.values():
            item = append.inputs[1]
            assert item is not None
            row = ir.Node("", "Identity", [copied.get(item, item)], num_outputs=1)
            context.analyzer.infer(row)
            copy.append(row)
            copy.outputs.append(row.outputs[0])
        for k in reversed(found):
            copy.outputs.pop(1 + k)
            _drop(copy, copy.inputs[2 + k])
            copy.inputs.pop(2 + k)
        attributes = [ir.AttrGraph("body", copy) if a.name == "body" else a for a in node.attributes.values()]
        left = [v for i, v in enumerate(node.inputs) if i - 2 not in found]
        loop = ir.Node("", "Loop", left, attributes, num_outputs=len(node.outputs))
        context.analyzer.infer(loop)
        others = [v for k, v in enumerate(node.outputs) if k not in found]
        replace = dict(zip(others, loop.outputs[: len(others)], strict=True))
        b = context.builder()
        for (k, append), rows in zip(found.items(), loop.outputs[len(others) :], strict=True):
            if append.op_type == "Concat":
                axis = context.attr(append, "axis")
                replace[node.outputs[k]] = b("Concat", node.inputs[2 + k], _joined(b, rows, axis), axis=axis)
                continue
            for use in node.outputs[k].uses():
                axis, new = (context.attr(use.node, n, 0) for n in ("axis", "new_axis"))
                replace[use.node.outputs[0]] = _moved(b, rows, axis) if new else _joined(b, rows, axis)
        return Patch(replace, [loop, *b.nodes], tuple(b.constants), note=f"{len(found)} of {count} states")


def _append(body: ir.Graph, k: int) -> ir.Node | None:
    """The node that makes state ``k`` longer, if nothing else is done with it."""
    outputs = [o for g in (body, *body.subgraphs()) for o in g.outputs]
    value, append = body.inputs[2 + k], None
    while value is not body.outputs[1 + k]:
        uses = value.uses()
        if len(uses) != 1 or any(o is value for o in outputs):
            return None
        (use,) = uses
        node = use.node
        if node.domain != "" or node.graph is not body:
            return None
        appends = node.op_type == "Concat" and len(node.inputs) == 2
        appends |= node.op_type == "SequenceInsert" and (len(node.inputs) == 2 or node.inputs[2] is None)
        if appends and append is None and node.inputs[0] is value:
            append = node
        elif node.op_type != "Identity":
            return None
        value = node.outputs[0]
    return append if not value.uses() and sum(o is value for o in outputs) == 1 else None


def _refusal(node: ir.Node, k: int, append: ir.Node, outer: frozenset[str], context: RuleContext) -> Reason | None:
    """Why a state cannot be collected though it is only appended to."""
    shape = context.tensor(append.inputs[1]).shape
    if shape is None or not frozenset[str]().union(*map(D.symbols_of, shape)) <= outer:
        return Reason("what is appended may have another shape in each round")
    if append.op_type == "Concat":
        axis = context.attr(append, "axis")
        return None if 0 <= axis < len(shape) else Reason("the axis counts from the end")
    first = node.inputs[2 + k]
    made = _origin(first).producer() if first is not None else None
    if made is None or made.op_type != "SequenceEmpty":
        return Reason("the sequence is not empty at first")
    result = node.outputs[k]
    if result.is_graph_output() or any(
        u.node.op_type != "ConcatFromSequence" or u.node.graph is not node.graph for u in result.uses()
    ):
        return Reason("the sequence is used as one")
    ends = [(context.attr(u.node, "axis"), context.attr(u.node, "new_axis", 0)) for u in result.uses()]
    if not all(0 <= axis < len(shape) + new for axis, new in ends):
        return Reason("the axis counts from the end")
    return None


def _moved(b: Builder, rows: ir.Value, axis: int) -> ir.Value:
    """Rows, whose first axis becomes axis ``axis``."""
    rank = len(b.shape(rows) or ())
    order = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    return b("Transpose", rows, perm=order) if axis else b("Identity", rows)


def _joined(b: Builder, rows: ir.Value, axis: int) -> ir.Value:
    """Rows one after the other along an axis that they have."""
    shape = b.shape(rows) or ()
    apart = _moved(b, rows, axis) if axis else rows
    sizes = [*shape[1 : 1 + axis], -1, *shape[2 + axis :]]
    if all(isinstance(d, int) for d in sizes):
        return b("Reshape", apart, b.ints(*(int(d) for d in sizes)))  # type: ignore[arg-type]
    parts = [b("Shape", rows, start=1, end=1 + axis)] if axis else []
    parts += [b.ints(-1), b("Shape", rows, start=2 + axis)]
    return b("Reshape", apart, b("Concat", *parts, axis=0))


def _drop(graph: ir.Graph, value: ir.Value) -> None:
    """Remove what is computed from a value."""
    for use in value.uses():
        for out in use.node.outputs:
            _drop(graph, out)
        graph.remove(use.node, safe=True)


def _cloned(body: ir.Graph, context: RuleContext) -> tuple[ir.Graph, dict[ir.Value, ir.Value]]:
    """A copy of a body, with facts, and which of its values stand for which."""
    copy = body.clone(allow_outer_scope_values=True)
    copied = dict(zip(_values(body), _values(copy), strict=True))
    for old, new in copied.items():
        context.facts[new] = context.facts.get(old)
    return copy, copied


def _origin(value: ir.Value) -> ir.Value:
    """What a value is that was only renamed."""
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """All values of a graph and of its bodies, in an order that a copy has too."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
        for inner in inner_graphs(node):
            yield from _values(inner)
