"""The way from the product of queries and keys to the probabilities of an attention.

Read backwards from what the values are multiplied by: a guard against NaN, casts, the softmax, masks that are added
or chosen by a condition, the soft cap, the scale, changes between three and four axes, and the product itself. What is
met is kept as a linear form: the softmax's input is ``scale * cap(...) + sum of c * mask``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import RuleContext
from accord.passes.rules.recognise.formula import PRECISION

__all__ = ["Mask", "Scores", "hides", "read_scores"]

#: Nodes between the product and the probabilities at most.
_LONGEST = 24


@dataclass(frozen=True, slots=True)
class Mask:
    """What is done to some scores.

    Attributes:
        value: A float that is added, or a bool.
        factor: What a float is multiplied by.
        keep: For a bool, True if it names the scores that stay, False for those that are replaced; None for a float.
        fill: What a bool's other scores are replaced by.
        shape: Shape of the scores there.
    """

    value: ir.Value
    factor: float
    keep: bool | None
    fill: float
    shape: D.Shape


@dataclass(slots=True)
class Scores:
    """How probabilities come from a product.

    Attributes:
        product: The MatMul of queries and transposed keys.
        scale: Factor of the product.
        cap: ``cap * tanh(scores / cap)`` limits the scores; 0: nothing does.
        masks: In the order of execution.
        nodes: The nodes between, without the product.
        softmax: The softmax among them.
    """

    product: ir.Node
    scale: float
    cap: float
    masks: list[Mask]
    nodes: list[ir.Node]
    softmax: ir.Node


@dataclass(slots=True)
class _Walk:
    context: RuleContext
    graph: object
    factor: float = 1.0
    cap: float = 0.0
    masks: list[Mask] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    guarded: list[ir.Value] = field(default_factory=list)

    def number(self, value: ir.Value | None, *, bools: bool = False) -> float | None:
        content = self.context.constant(value, 4096)
        if content is None or content.size == 0 or content.dtype.kind == "O" or (content.dtype.kind == "b") != bools:
            return None
        first = content.reshape(-1)[0]
        return float(first) if bool((content == first).all()) else None

    def producer(self, value: ir.Value | None) -> ir.Node | None:
        node = value.producer() if value is not None else None
        return node if node is not None and node.graph is self.graph and node.domain == "" else None


def read_scores(probabilities: ir.Value, context: RuleContext) -> Scores | Reason | None:
    """Read the way to ``probabilities``; None if they are none, the reason if something on the way does not fit."""
    walk = _Walk(context, probabilities.graph)
    softmax = _to_softmax(walk, probabilities)
    if softmax is None:
        return None
    rank = context.tensor(softmax.outputs[0]).rank
    if rank is None or int(context.attr(softmax, "axis", -1)) % rank != rank - 1:
        return None
    product = _to_product(walk, softmax.inputs[0])
    if not isinstance(product, ir.Node):
        return product
    if any(v not in [m.value for m in walk.masks] for v in walk.guarded):
        return Reason("the guard for queries that see no key looks at another mask")
    blocked = _blocked(walk, product)
    if blocked is not None:
        return blocked
    return Scores(product, walk.factor, walk.cap, walk.masks[::-1], walk.nodes, softmax)


def _to_softmax(walk: _Walk, value: ir.Value | None) -> ir.Node | None:
    for _ in range(6):
        node = walk.producer(value)
        if node is None:
            return None
        walk.nodes.append(node)
        if node.op_type == "Softmax":
            return node
        if node.op_type in ("Identity", "Reshape", "Cast"):
            if node.op_type == "Cast" and not _is_float(walk.context, node.inputs[0]):
                return None
            value = node.inputs[0]
        elif node.op_type == "Where":
            kept = node.inputs[2]
            if walk.number(node.inputs[1]) != 0 or not _guards(walk, node.inputs[0], kept):
                return None
            value = kept
        else:
            return None
    return None


def _guards(walk: _Walk, condition: ir.Value | None, kept: ir.Value | None) -> bool:
    """True if ``condition`` is that a query sees no key: that gives NaN, which becomes 0, as with the operator."""
    if walk.number(condition, bools=True) == 0:
        return True  # never
    test = walk.producer(condition)
    if test is None:
        return False
    walk.nodes.append(test)
    if test.op_type == "IsNaN":
        return test.inputs[0] is kept
    if test.op_type != "Equal" or walk.number(test.inputs[1]) != -np.inf:
        return False
    greatest = walk.producer(test.inputs[0])
    if greatest is None or greatest.op_type != "ReduceMax" or greatest.inputs[0] is None:
        return False
    rank = walk.context.tensor(greatest.inputs[0]).rank
    axes = walk.context.constant(greatest.inputs[1]) if len(greatest.inputs) > 1 else None
    if rank is None or axes is None or [int(a) % rank for a in axes.reshape(-1)] != [rank - 1]:
        return False
    walk.nodes.append(greatest)
    walk.guarded.append(greatest.inputs[0])
    return True


def _is_float(context: RuleContext, value: ir.Value | None) -> bool:
    return context.tensor(value).dtype in PRECISION


def _to_product(walk: _Walk, value: ir.Value | None) -> ir.Node | Reason | None:
    for _ in range(_LONGEST):
        node = walk.producer(value)
        if node is None:
            return None
        if node.op_type == "MatMul":
            return node
        walk.nodes.append(node)
        following = _STEPS[node.op_type](walk, node) if node.op_type in _STEPS else None
        if not isinstance(following, ir.Value):
            return following
        value = following
    return None


def _passed(walk: _Walk, node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if _is_float(walk.context, node.inputs[0]) else None


def _scaled(walk: _Walk, node: ir.Node) -> ir.Value | Reason | None:
    for side in (0, 1) if node.op_type == "Mul" else (0,):
        number = walk.number(node.inputs[1 - side])
        if number is not None and number != 0:
            walk.factor *= number if node.op_type == "Mul" else 1 / number
            return node.inputs[side]
    if _leads_to_product(walk, node.inputs[0]):
        return Reason(f"the scores are scaled by '{_name(node.inputs[1])}', which is not a constant number")
    return None


def _capped(walk: _Walk, node: ir.Node) -> ir.Value | Reason | None:
    if walk.cap:
        return Reason("the scores are capped twice")
    if walk.factor <= 0:
        return Reason("the soft cap is not positive")
    walk.cap = walk.factor
    return node.inputs[0]


def _added(walk: _Walk, node: ir.Node) -> ir.Value | Reason | None:
    sides = [s for s in ((0, 1) if node.op_type == "Add" else (0,)) if _leads_to_product(walk, node.inputs[s])]
    if not sides:
        return None
    if walk.cap:
        return Reason(f"{label(node)} adds a mask before the soft cap")
    scores, mask = node.inputs[sides[0]], node.inputs[1 - sides[0]]
    shape = walk.context.tensor(scores).shape
    if scores is None or mask is None or shape is None or not _keeps(shape, walk.context.tensor(node.outputs[0]).shape):
        return Reason(f"the mask that {label(node)} adds broadcasts the scores")
    factor = walk.factor if node.op_type == "Add" else -walk.factor
    walk.masks.append(Mask(mask, factor, None, 0.0, shape))
    return scores


def _keeps(shape: D.Shape, after: D.Shape | None) -> bool:
    """True if a mask leaves the scores' shape; along the keys it must, or the product with the values would fail."""
    return after is not None and len(shape) == len(after) and shape[:-1] == after[:-1]


def _chosen(walk: _Walk, node: ir.Node) -> ir.Value | Reason | None:
    sides = [s for s in (1, 2) if _leads_to_product(walk, node.inputs[s])]
    condition = node.inputs[0]
    if len(sides) != 1 or condition is None:
        return None
    scores, other = node.inputs[sides[0]], node.inputs[3 - sides[0]]
    fill = walk.number(other)
    if fill is None:
        return Reason(f"masked scores are replaced by '{_name(other)}', which is not a constant number")
    if walk.cap:
        return Reason(f"{label(node)} masks before the soft cap")
    shape = walk.context.tensor(scores).shape
    if scores is None or shape is None or not _keeps(shape, walk.context.tensor(node.outputs[0]).shape):
        return Reason(f"the condition of {label(node)} broadcasts the scores")
    fill *= walk.factor
    if not hides(fill, walk.context.tensor(scores).dtype):
        return Reason(
            f"masked scores are set to {fill:g}, which other scores may be as low as", "Mask with minus infinity."
        )
    walk.masks.append(Mask(condition, 1.0, sides[0] == 1, fill, shape))
    return scores


def hides(fill: float, dtype: ir.DataType | None) -> bool:
    """True if a score plus ``fill`` is ``fill``: only then is replacing a score the same as adding to it."""
    if fill == -np.inf:
        return True
    lowest = {ir.DataType.FLOAT16: -60000.0}.get(dtype or ir.DataType.UNDEFINED, -1e30)
    return fill <= lowest


_STEPS = {
    **dict.fromkeys(("Identity", "Cast", "Reshape"), _passed),
    **dict.fromkeys(("Mul", "Div"), _scaled),
    "Tanh": _capped,
    **dict.fromkeys(("Add", "Sub"), _added),
    "Where": _chosen,
}


def _leads_to_product(walk: _Walk, value: ir.Value | None) -> bool:
    """True if scores may come from ``value``: a product of two computed tensors is behind it."""
    for _ in range(_LONGEST):
        node = walk.producer(value)
        if node is None:
            return False
        if node.op_type == "MatMul":
            return all(not walk.context.tensor(v).is_const for v in node.inputs)
        if node.op_type not in _STEPS:
            return False
        ahead = [v for v in node.inputs if v is not None and not walk.context.tensor(v).is_const]
        if node.op_type == "Where":
            ahead = [v for v in ahead if v is not node.inputs[0]]
        if node.op_type in ("Identity", "Cast", "Reshape", "Tanh"):
            ahead = ahead[:1]
        if len(ahead) != 1:
            return any(_leads_to_product(walk, v) for v in ahead[:2])
        value = ahead[0]
    return False


def _blocked(walk: _Walk, product: ir.Node) -> Reason | None:
    inside = set(walk.nodes)
    for node in (product, *walk.nodes):
        output = node.outputs[0]
        if node is walk.nodes[0]:
            continue  # its reader is the product with the values; see the rule
        if output.is_graph_output():
            return Reason(f"'{output.name}' between is also a graph output")
        other = next((u.node for u in output.uses() if u.node not in inside), None)
        if other is not None:
            return Reason(f"'{output.name}' between is also read by {label(other)}")
    return None


def _name(value: ir.Value | None) -> str:
    return "?" if value is None else value.name or "?"
