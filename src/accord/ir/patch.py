"""Patch: what a rewrite rule returns.

A rule never changes the graph. It looks at one node and returns a :class:`Patch` (new nodes and which old values they
replace), a :class:`~accord.ir.reason.Reason` (it looked, and why it did not fire), or None (the node is none of its
business). The pass manager applies, verifies, labels and counts patches; reasons are kept as data for ``explain``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from accord.ir.build import Builder

__all__ = ["Patch", "patch_from"]


@dataclass(frozen=True, slots=True)
class Patch:
    """A replacement of part of a graph.

    Attributes:
        replace: Old value → the new or existing value that takes its place in all uses and in graph outputs.
        nodes: New nodes in topological order; inserted at the anchor.
        constants: New initializers.
        functions: New model-local functions that the new nodes call.
        anchor: Insert before this node; None means the node that the rule was given. It must come after the
            producers of everything that the new nodes read.
        note: What was done, for a reader: "scale folded into weights of Conv_3".
    """

    replace: Mapping[ir.Value, ir.Value]
    nodes: Sequence[ir.Node] = ()
    constants: Sequence[ir.Value] = ()
    functions: Sequence[ir.Function] = ()
    anchor: ir.Node | None = None
    note: str = ""


def patch_from(builder: Builder, node: ir.Node, outputs: Sequence[ir.Value | None], note: str = "") -> Patch:
    """The patch that replaces the outputs of ``node`` by ``outputs`` (in order) with what ``builder`` made."""
    replace = {old: new for old, new in zip(node.outputs, outputs, strict=False) if new is not None}
    return Patch(replace, tuple(builder.nodes), tuple(builder.constants), note=note)
