"""The part of a graph between a value and what is computed from it alone.

A meaning such as a normalisation or an activation is a function of one value: whatever else its operators read is
constant. So the candidates for "the input" of a result are the values through which everything that is not constant
must pass, its *dominators*. :func:`regions` lists them with the nodes between, whatever the exporter wrote there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import RuleContext

__all__ = ["Region", "allows", "known", "regions", "same_shape", "tolerance"]

#: More nodes than the longest spelling of a normalisation that exporters write.
_LIMIT = 40


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that compute ``root`` from ``variable`` and constants.

    Attributes:
        variable: The only input that is not constant.
        root: The result.
        nodes: In order of execution; the last one makes ``root``.
    """

    variable: ir.Value
    root: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def ops(self) -> frozenset[str]:
        """Names of the operators in it."""
        return frozenset(n.op_type for n in self.nodes)

    def blocked(self) -> Reason | None:
        """The reason why the nodes cannot be replaced: somebody else reads a value between; None if nobody does."""
        inside = set(self.nodes)
        for node in self.nodes[:-1]:
            for value in node.outputs:
                if value.is_graph_output():
                    return Reason(f"'{value.name}' between is also a graph output")
                other = next((u.node for u in value.uses() if u.node not in inside), None)
                if other is not None:
                    return Reason(f"'{value.name}' between is also read by {label(other)}")
        return None


def regions(
    root: ir.Value, context: RuleContext, through: Mapping[str, Sequence[int] | None], limit: int = _LIMIT
) -> list[Region]:
    """Regions that end in ``root``, the smallest first.

    Args:
        root: The result.
        context: For facts.
        through: Operators of the ONNX domain that may lie in a region → indices of the inputs that carry data
            (the others state shapes and the like); None: all inputs do.
        limit: Nodes of a region at most.
    """
    # The rules that look at one node follow each other, and no patch comes between.
    key = (root, id(through), limit)
    last = context.scratch.get("regions")
    if last is None or last[0] != key:
        last = context.scratch["regions"] = (key, _regions(root, context, through, limit))
    found: list[Region] = last[1]
    return found


def _regions(
    root: ir.Value, context: RuleContext, through: Mapping[str, Sequence[int] | None], limit: int
) -> list[Region]:
    taken: list[ir.Node] = []
    found: list[Region] = []
    frontier: dict[ir.Value, None] = {root: None}
    for node in _backwards(root, context, through, limit):
        for output in node.outputs:
            frontier.pop(output, None)
        frontier.update(dict.fromkeys(_data(node, context, through)))
        taken.append(node)
        if len(frontier) == 1:
            found.append(Region(next(iter(frontier)), root, tuple(reversed(taken))))
    return found


def _backwards(
    root: ir.Value, context: RuleContext, through: Mapping[str, Sequence[int] | None], limit: int
) -> list[ir.Node]:
    """The nodes behind ``root``, each before those that feed it."""
    first = _inner(root, root, through)
    if first is None:
        return []
    # The nearest nodes are chosen first, breadth first: depth first, one long branch would use up the limit.
    feeding: dict[ir.Node, list[ir.Node]] = {}
    chosen = {first: None}
    queue = deque([first])
    while queue:
        node = queue.popleft()
        producers = [_inner(v, root, through) for v in _data(node, context, through)]
        feeding[node] = [p for p in producers if p is not None]
        for p in feeding[node]:
            if p not in chosen and len(chosen) < limit:
                chosen[p] = None
                queue.append(p)
    order: list[ir.Node] = []
    seen = {first}
    stack = [(first, iter(feeding[first]))]
    while stack:
        node, producers_left = stack[-1]
        step = next((p for p in producers_left if p in chosen and p not in seen), None)
        if step is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(step)
            stack.append((step, iter(feeding[step])))
    return order[::-1]


def _inner(value: ir.Value, root: ir.Value, through: Mapping[str, Sequence[int] | None]) -> ir.Node | None:
    """The producer of ``value`` if it may lie in a region."""
    node = value.producer()
    if node is None or node.domain != "" or node.op_type not in through or len(node.outputs) != 1:
        return None
    return node if node.graph is value.graph and value.graph is root.graph else None


def _data(node: ir.Node, context: RuleContext, through: Mapping[str, Sequence[int] | None]) -> list[ir.Value]:
    """The inputs of ``node`` that carry data and are not constant."""
    chosen = through[node.op_type]
    inputs = node.inputs if chosen is None else [node.inputs[i] for i in chosen if i < len(node.inputs)]
    return [v for v in inputs if v is not None and not known(context.tensor(v))]


def known(fact: TensorFact) -> bool:
    """True if the content is constant, or sizes of the inputs alone."""
    return fact.is_const or fact.data is not None


def allows(op: str, dtype: ir.DataType | None, context: RuleContext) -> bool:
    """True if operator ``op`` of the ONNX domain takes ``dtype`` as its first input in the model's opset."""
    from accord.contract.registry import contract_for

    if dtype is None:
        return False
    semantic = contract_for("", op, context.opset).semantic
    return f"tensor({dtype.name.lower()})" in semantic.types.get(semantic.inputs[0].type, ())


#: Units in the last place by which constants of one meaning may differ: each was rounded, and so was their product.
_ULPS = 8.0
_EPS = {
    ir.DataType.FLOAT: 2.0**-23,
    ir.DataType.DOUBLE: 2.0**-52,
    ir.DataType.FLOAT16: 2.0**-10,
    ir.DataType.BFLOAT16: 2.0**-7,
}


def tolerance(dtype: ir.DataType) -> float:
    """Relative difference up to which constants of a formula in ``dtype`` are taken for equal."""
    return _ULPS * _EPS.get(dtype, 2.0**-23)


def same_shape(context: RuleContext, x: ir.Value, y: ir.Value) -> bool:
    """True if ``y``, which ``x`` was broadcast into, has the shape of ``x`` in every run that is valid."""
    a, b = context.tensor(x).shape, context.tensor(y).shape
    if a is None or b is None or len(a) != len(b):
        return False
    return all(map(_same_size, a, b))


def _same_size(small: D.DimLike, large: D.DimLike) -> bool:
    if small == large:
        return True
    # min(c, n) is n or a size that cannot be broadcast to n
    bound = D.upper_bound(small)
    return bound is not None and bound >= 2 and D.minimum(bound, large) == small
