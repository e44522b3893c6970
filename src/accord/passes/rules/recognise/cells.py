"""Recurrent cells that were unrolled: one step of an LSTM or a GRU.

Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997), with the forget gate of Gers et al. (2000)::

    c' = sigmoid(f) * c + sigmoid(i) * tanh(g)      h' = sigmoid(o) * tanh(c')

Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder" (2014)::

    n = tanh(W x + r * (R h + b))  or  tanh(W x + R (r * h) + b)      h' = (1 - z) * n + z * h

What goes into a gate is read by :mod:`.gates`: one product and a Split, a product for each gate, inputs joined or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.gates import Floats, Gates, Linear
from accord.passes.rules.recognise.region import allows

__all__ = ["RecogniseGRUCell", "RecogniseLSTMCell"]


#: Sums and products that a mixture is made of lie in one another at most so deep.
_DEEPEST = 4


def _made_by(value: ir.Value | None, op: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.domain == "" and node.op_type == op else None


def _factors(value: ir.Value | None, op: str) -> tuple[ir.Node, ir.Node, ir.Value] | None:
    """For a product of which one factor is made by ``op``: the product, that node, and the other factor."""
    product = _made_by(value, "Mul")
    if product is None:
        return None
    for side in (0, 1):
        gate, other = _made_by(product.inputs[side], op), product.inputs[1 - side]
        if gate is not None and other is not None:
            return product, gate, other
    return None


def _blocked(nodes: Iterable[ir.Node], results: Sequence[ir.Value]) -> Reason | None:
    """The reason if somebody else reads what is between."""
    inside = set(nodes)
    for node in inside:
        for value in node.outputs:
            if value in results:
                continue
            other = next((u.node for u in value.uses() if u.node not in inside), None)
            if other is not None or value.is_graph_output():
                by = label(other) if other is not None else "the caller"
                return Reason(f"'{value.name}' between is also read by {by}")
    return None


class RecogniseLSTMCell(Rule):
    """Four gates, a cell state and an output → LSTM over one step."""

    name: ClassVar[str] = "recognise-lstm-cell"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Mul")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with LSTM."""
        output = _factors(node.outputs[0], "Sigmoid")
        squashed = None if output is None else _made_by(output[2], "Tanh")
        total = None if squashed is None else _made_by(squashed.inputs[0], "Add")
        if output is None or squashed is None or total is None:
            return None
        for kept, new in (total.inputs, total.inputs[::-1]):
            forget, enter = _factors(kept, "Sigmoid"), _factors(new, "Sigmoid")
            proposal = None if enter is None else _made_by(enter[2], "Tanh")
            if forget is None or enter is None or proposal is None:
                continue
            gates = [enter[1], output[1], forget[1], proposal]  # in the operator's order: i, o, f, c
            inner = [node, squashed, total, forget[0], enter[0], *gates]
            return self._patch(node, total, forget[2], gates, inner, context)
        return None

    @staticmethod
    def _patch(
        node: ir.Node,
        total: ir.Node,
        cell: ir.Value,
        gates: Sequence[ir.Node],
        inner: Sequence[ir.Node],
        context: RuleContext,
    ) -> Patch | Reason | None:
        reader = Gates(context)
        parts = [reader.read(g.inputs[0]) for g in gates]
        found = [p for p in parts if p is not None]
        if len(found) != 4:
            return Reason("a gate is no sum of products with constant matrices")
        shape, dtype = context.tensor(total.outputs[0]).shape, context.tensor(total.outputs[0]).dtype
        if shape is None or context.tensor(cell).shape != shape or not allows("LSTM", dtype, context) or dtype is None:
            return Reason("the cell state has another shape or type than the gates")
        size = found[0].bias.size
        inputs = _input_and_state(found, size, shape[0], context)
        if isinstance(inputs, Reason):
            return inputs
        blocked = _blocked((*inner, *reader.nodes), (node.outputs[0], total.outputs[0]))
        if blocked is not None:
            return blocked
        b = context.builder()
        w, r = _weights(b, found, inputs, dtype)
        biases = _biases(b, [*(p.bias for p in found), np.zeros(4 * size)], dtype)
        x, state, cells = (None if v is None else b("Unsqueeze", v, b.ints(0)) for v in (*inputs, cell))
        _, h, c = b.multi("LSTM", 3, x, w, r, biases, None, state, cells, hidden_size=size)
        h, c = (b("Squeeze", v, b.ints(0)) for v in (h, c))
        replace = {node.outputs[0]: h, total.outputs[0]: c}
        return Patch(replace, tuple(b.nodes), tuple(b.constants), anchor=total, note=f"{size} units")


def _input_and_state(
    gates: Sequence[Linear], size: int, batch: D.DimLike, context: RuleContext, state: ir.Value | None = None
) -> tuple[ir.Value, ir.Value | None] | Reason:
    """The two values that the gates are made of: the input and the state of ``size`` features."""
    values = list(dict.fromkeys(v for g in gates for v in g.terms))
    if state is None:
        fits = [v for v in values if (context.tensor(v).shape or (0,))[-1] == size]
        state = fits[-1] if len(values) == 2 and fits else None
    if not all(np.isfinite(a).all() for g in gates for a in (g.bias, *g.terms.values())):
        return Reason("a matrix or a bias is not finite")
    rest = [v for v in values if v is not state]
    if len(rest) != 1:
        return Reason(f"the gates are made of {len(values)} values, not of an input and a state")
    if any((context.tensor(v).shape or (None,))[0] != batch for v in values):
        return Reason("the input or the state is one for the whole batch")
    return rest[0], state


def _weights(
    b: Builder, gates: Sequence[Linear], inputs: tuple[ir.Value, ir.Value | None], dtype: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """W and R of the operator: ``[1, gates * size, features]``."""
    size = gates[0].bias.size

    def stacked(value: ir.Value | None, features: int) -> ir.Value:
        blank: Floats = np.zeros((features, size))
        rows = [g.terms.get(value, blank).T if value is not None else blank.T for g in gates]
        return b.const(np.ascontiguousarray(np.concatenate(rows)[np.newaxis].astype(dtype.numpy())))

    features = next(m.shape[0] for g in gates for v, m in g.terms.items() if v is inputs[0])
    return stacked(inputs[0], features), stacked(inputs[1], size)


def _biases(b: Builder, parts: Sequence[Floats], dtype: ir.DataType) -> ir.Value:
    """B of the operator: ``[1, 2 * gates * size]``, the input's side first."""
    return b.const(np.concatenate(parts)[np.newaxis].astype(dtype.numpy()))


class RecogniseGRUCell(Rule):
    """Two gates, a proposal and their mixture → GRU over one step."""

    name: ClassVar[str] = "recognise-gru-cell"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Add", "Sub")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with GRU."""
        mixture = _Mixture(context)
        terms = mixture.expand(node.outputs[0])
        if terms is None:
            return None
        found = _mixed(terms)
        if found is None:
            return None
        update, proposal, state, inverse = found
        reader = Gates(context)
        z = reader.read(update.inputs[0])
        if z is None:
            return Reason("the update gate is no sum of products with constant matrices")
        if inverse:  # 1 - sigmoid(a) is sigmoid(-a)
            z = Linear({v: -m for v, m in z.terms.items()}, -z.bias)
        inner = [node, update, proposal, *mixture.nodes]
        candidate = _candidate(proposal, state, reader, inner, context)
        if candidate is None:
            return Reason("the proposal is no sum of the input's and the reset state's products")
        reset, own, recurrent, after = candidate
        r = reader.read(reset.inputs[0])
        if r is None:
            return Reason("the reset gate is no sum of products with constant matrices")
        return self._patch(node, state, (z, r, own, recurrent), after, (*inner, reset, *reader.nodes), context)

    @staticmethod
    def _patch(
        node: ir.Node,
        state: ir.Value,
        gates: tuple[Linear, Linear, Linear, Linear],
        after: bool,
        inner: Sequence[ir.Node],
        context: RuleContext,
    ) -> Patch | Reason:
        z, r, own, recurrent = gates
        size = z.bias.size
        dtype = context.tensor(node.outputs[0]).dtype
        if dtype is None or not allows("GRU", dtype, context):
            return Reason("the operator does not take this type")
        shape = context.tensor(node.outputs[0]).shape
        if shape is None or context.tensor(state).shape != shape:
            return Reason("the state has another shape than the gates")
        blocked = _blocked(inner, (node.outputs[0],))
        if blocked is not None:
            return blocked
        # The proposal's recurrent part has a bias of its own, inside the reset where that comes after the product.
        parts = (z, r, Linear({**own.terms, **recurrent.terms}, own.bias))
        inputs = _input_and_state(parts, size, shape[0], context, state)
        if isinstance(inputs, Reason):
            return inputs
        b = context.builder()
        w, recurrence = _weights(b, parts, inputs, dtype)
        biases = _biases(b, [z.bias, r.bias, own.bias, np.zeros(2 * size), recurrent.bias], dtype)
        x, h = (b("Unsqueeze", v, b.ints(0)) for v in (inputs[0], state))
        attributes: dict[str, Any] = {"hidden_size": size, "linear_before_reset": int(after)}
        _, last = b.multi("GRU", 2, x, w, recurrence, biases, None, h, **attributes)
        y = b("Squeeze", last, b.ints(0))
        return Patch({node.outputs[0]: y}, tuple(b.nodes), tuple(b.constants), note=f"{size} units")


class _Mixture:
    """Expands sums and products of few values."""

    def __init__(self, context: RuleContext) -> None:
        self.context = context
        self.nodes: list[ir.Node] = []

    def expand(self, value: ir.Value | None, depth: int = _DEEPEST) -> dict[frozenset[ir.Value], float] | None:
        """``value`` as a sum of products of values, each at most once in a product."""
        if value is None:
            return None
        number = self.context.number(value)
        if number is not None:
            return {frozenset(): float(number)}
        node = value.producer()
        # What is read several times is the state, the gate or the proposal itself.
        shared = depth < _DEEPEST and self.context.only_use(value) is None
        if node is None or node.domain != "" or node.op_type not in ("Add", "Sub", "Mul") or depth == 0 or shared:
            return {frozenset({value}): 1.0}
        a, b = (self.expand(v, depth - 1) for v in node.inputs)
        if a is None or b is None:
            return None
        self.nodes.append(node)
        out: dict[frozenset[ir.Value], float] = {}
        if node.op_type == "Mul":
            for p, c in a.items():
                for q, d in b.items():
                    if p & q:
                        return None
                    out[p | q] = out.get(p | q, 0.0) + c * d
        else:
            out = dict(a)
            for q, d in b.items():
                out[q] = out.get(q, 0.0) + (d if node.op_type == "Add" else -d)
        return {p: c for p, c in out.items() if c}


def _mixed(terms: dict[frozenset[ir.Value], float]) -> tuple[ir.Node, ir.Node, ir.Value, bool] | None:
    """Read ``(1 - z) n + z h``: the update gate, the proposal, the state, and whether z and 1 - z are exchanged."""
    if sorted(terms.values()) != [-1.0, 1.0, 1.0] or sorted(map(len, terms)) != [1, 2, 2]:
        return None
    alone = next(iter(next(p for p in terms if len(p) == 1)))
    negative = next((p for p, c in terms.items() if c < 0 and len(p) == 2 and alone in p), None)
    positive = next((p for p, c in terms.items() if c > 0 and len(p) == 2 and alone not in p), None)
    if negative is None or positive is None:
        return None
    (gate,) = negative - {alone}
    if gate not in positive:
        return None
    (other,) = positive - {gate}
    update = _made_by(gate, "Sigmoid")
    for proposal, state, inverse in ((alone, other, False), (other, alone, True)):
        squashed = _made_by(proposal, "Tanh")
        if update is not None and squashed is not None:
            return update, squashed, state, inverse
    return None


def _candidate(
    proposal: ir.Node, state: ir.Value, reader: Gates, inner: list[ir.Node], context: RuleContext
) -> tuple[ir.Node, Linear, Linear, bool] | None:
    """The reset gate, the input's part, the state's part, and whether the reset comes after the product."""
    summands = _summands(proposal.inputs[0], inner)
    for term in summands:
        found = _factors(term, "Sigmoid")
        recurrent = None if found is None else reader.read(found[2])
        if found is None or recurrent is None or set(recurrent.terms) != {state}:
            continue
        rest = [t for t in summands if t is not term]
        own = _total(rest, recurrent.bias.size, reader, context)
        if own is not None and state not in own.terms:
            inner.append(found[0])
            return found[1], own, recurrent, True
    whole = reader.read(proposal.inputs[0])
    for value in () if whole is None else whole.terms:
        found = _factors(value, "Sigmoid")
        if whole is not None and found is not None and found[2] is state and state not in whole.terms:
            inner.append(found[0])
            size = whole.bias.size
            own = Linear({v: m for v, m in whole.terms.items() if v is not value}, whole.bias)
            return found[1], own, Linear({state: whole.terms[value]}, np.zeros(size)), False
    return None


def _summands(value: ir.Value | None, inner: list[ir.Node]) -> list[ir.Value]:
    """The terms of a sum; the Adds are noted as read where a product with a gate is among them."""
    node = _made_by(value, "Add")
    if value is None or node is None:
        return [] if value is None else [value]
    out: list[ir.Value] = []
    for v in node.inputs:
        out.extend(_summands(v, inner))
    if any(_factors(v, "Sigmoid") is not None for v in out):
        inner.append(node)
    return out


def _total(values: Sequence[ir.Value], size: int, reader: Gates, context: RuleContext) -> Linear | None:
    """The sum of linear values and biases."""
    total = Linear({}, np.zeros(size))
    for value in values:
        content = context.constant(value)
        if content is not None and content.size in (1, size):
            total = total.plus(Linear({}, np.broadcast_to(content.astype(np.float64).reshape(-1), (size,))))
            continue
        part = reader.read(value)
        if part is None:
            return None
        total = total.plus(part)
    return total
