"""State of a loop that never changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.model.graphs import inner_graphs
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["CaptureUnchangedState"]


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
        copy = body.clone(allow_outer_scope_values=True)
        for old, new in zip(_values(body), _values(copy), strict=True):
            context.facts[new] = context.facts.get(old)
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
