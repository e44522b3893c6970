"""A product and the nodes that expand its weight of a few bits, as one operator.

The weight then stays in memory as it is stored. Where the device would rather have it expanded, constants are folded
as any others.
"""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.fuse import escaping, function_patch, grown

__all__ = ["FuseWeights", "stays_packed"]

_PRODUCTS = onnx_ops("MatMul", "Gemm")
#: What comes first where a weight is expanded, and what may follow.
_FIRST = onnx_ops("DequantizeLinear", "Cast")
_BETWEEN = onnx_ops("Sub", "Mul", "Reshape", "Slice", "Transpose")
#: What a weight of a few bits is stored as.
_CODES = frozenset(getattr(ir.DataType, f"{sign}INT{size}") for sign in ("", "U") for size in (2, 4, 8))


class FuseWeights(Rule):
    """DequantizeLinear of a constant weight, and the product that reads it → one operator, with what follows."""

    name: ClassVar[str] = "fuse-weights"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = _PRODUCTS

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with one call of a function."""
        nodes = _expansion(node)
        if not nodes or not isinstance(node.graph, ir.Graph):
            return None
        refused = context.joins([*nodes, node])
        if refused is not None:
            return refused
        group, _ = grown(node, context)
        notes = f"its weight from {', '.join(label(n) for n in nodes)}"
        return function_patch([*nodes, *group], context, notes, escaping(group))


def _expansion(product: ir.Node) -> list[ir.Node]:
    """The nodes that expand a product's weight from a constant; none if that is not how it is made."""
    nodes: list[ir.Node] = []
    value = product.inputs[1]
    while value is not None and (maker := value.producer()) is not None and maker.graph is product.graph:
        nodes.insert(0, maker)
        if maker.op_identifier()[:2] in _FIRST:
            return nodes
        if maker.op_identifier()[:2] not in _BETWEEN:
            break
        value = maker.inputs[0]
    return []


def stays_packed(node: ir.Node, context: RuleContext) -> bool | Reason:
    """Whether all that is made of a constant's first expansion are products that will read it as it is.

    If they will not, the reason why; False if there is no question of it.
    """
    if node.op_identifier()[:2] not in _FIRST or not context.allows(FuseWeights):
        return False
    if context.tensor(node.inputs[0]).dtype not in _CODES:
        return False
    todo, products = [node.outputs[0]], 0
    while todo:
        value = todo.pop()
        if value.is_graph_output():
            return False
        for use in value.uses():
            reader, key = use.node, use.node.op_identifier()[:2]
            if key in _BETWEEN and use.idx == 0:
                todo.append(reader.outputs[0])
            elif key not in _PRODUCTS or use.idx != 1:
                return False
            else:
                products += 1
                refused = context.joins([*_expansion(reader), reader])
                if refused is not None:
                    return refused
    return products > 0
