"""Attention: softmax(scale * Q Kᵀ + mask) V, wherever heads are split, transposed, repeated, scaled and masked.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2; grouped queries: Ainslie et al., "GQA" (2023).

The way from the product to the probabilities is read by :mod:`.scores`, the layouts of queries, keys, values and the
result by :mod:`.views`. The operator's form with four axes is written; :mod:`.heads` packs it where that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.heads import Heads
from accord.passes.rules.recognise.masks import Frame, mask_input
from accord.passes.rules.recognise.region import allows
from accord.passes.rules.recognise.scores import Scores, read_scores
from accord.passes.rules.recognise.views import Axes, Chain, Factor, Point, Views

__all__ = ["RecogniseAttention"]


class RecogniseAttention(Rule):
    """Two products around a softmax → Attention."""

    name: ClassVar[str] = "recognise-attention"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("MatMul")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with Attention in place of everything between the projections."""
        first, second = node.inputs
        if first is None or second is None:
            return None
        flip = _flipped(second, context)
        probabilities, values = (first, second) if flip is None else (flip.inputs[0], first)
        if probabilities is None or context.tensor(values).is_const:
            return None
        scores = read_scores(probabilities, context)
        if not isinstance(scores, Scores):
            return scores
        for read in (probabilities, *(() if flip is None else flip.outputs)):
            if context.only_use(read) is None:
                return Reason("the probabilities are read by others as well")
        queries, keys = scores.product.inputs
        rank = context.tensor(node.outputs[0]).rank
        if queries is None or keys is None or rank is None or not 3 <= rank <= 4:
            return Reason(f"the products have {rank} axes, not 3 or 4")
        if any(context.tensor(v).rank != rank for v in (queries, keys, values, scores.product.outputs[0])):
            return Reason("queries, keys and values have different ranks")
        dtype = context.tensor(queries).dtype
        if dtype is None or context.tensor(keys).dtype != dtype or not allows("Attention", dtype, context):
            return Reason("queries and keys are not of one float type")
        if context.tensor(node.outputs[0]).dtype != dtype:
            return Reason("the result is of another type than the queries")
        return _Writer(node, scores, flip is not None, context).patch(queries, keys, values)


def _flipped(value: ir.Value, context: RuleContext) -> ir.Node | None:
    """The Transpose that made ``value``, where it swaps the last two axes: V Pᵀ is (P Vᵀ)ᵀ."""
    node = value.producer()
    if node is None or node.domain != "" or node.op_type != "Transpose" or node.graph is not value.graph:
        return None
    rank = context.tensor(value).rank or 0
    perm = list(context.attr(node, "perm", range(rank)[::-1]))
    return node if rank >= 2 and perm == [*range(rank - 2), rank - 1, rank - 2] else None


class _Writer:
    """Writes the operator for one attention.

    Args:
        node: The product with the values.
        scores: How its probabilities are made.
        flipped: The values come first and the probabilities are transposed, and so is the result.
        context: For facts.
    """

    def __init__(self, node: ir.Node, scores: Scores, flipped: bool, context: RuleContext) -> None:
        self.node = node
        self.scores = scores
        self.flipped = flipped
        self.context = context
        self.views = Views(context)
        self.b = context.builder()

    def patch(self, queries: ir.Value, keys: ir.Value, values: ir.Value) -> Patch | Reason:
        """The patch, or what does not fit."""
        parts = self._parts(queries, keys, values)
        if isinstance(parts, Reason):
            return parts
        q, k, v = parts
        if _sizes(k.batch) != _sizes(q.batch) or _sizes(v.batch) != _sizes(q.batch):
            return Reason("queries, keys or values are one for the whole batch")
        fit = _fit_heads(q, k, v)
        if isinstance(fit, Reason):
            return fit
        q, k, v = fit
        views = self.views
        points: list[Point] = []
        for name, part in (("queries", q), ("keys", k), ("values", v)):
            point = views.arrange(self.b, part.chain, views.axes(part.split))
            if point is None:
                return Reason(f"the {name} cannot be brought to (batch, heads, length, size) with a constant shape")
            points.append(point)
        return self._write(points, q, k, v)

    def _parts(self, queries: ir.Value, keys: ir.Value, values: ir.Value) -> tuple[Heads, Heads, Heads] | Reason:
        chains = [self.views.back(x, scaled=i < 2) for i, x in enumerate((queries, keys, values))]
        if any(c is None for c in chains):
            return Reason("the rank of queries, keys or values is not known")
        found: list[Heads] = []
        for i, chain in enumerate(chains):
            assert chain is not None
            axes = self.views.axes(chain.last)
            batch, heads = (axes[0], axes[1]) if len(axes) == 4 else (axes[0], ())
            swapped = i == 1 or (i == 2 and self.flipped)
            length, size = axes[:-3:-1] if swapped else axes[-2:]
            found.append(Heads(chain, batch, heads, length, size))
        q, k, v = found
        if len(self.views.axes(q.chain.last)) == 3:
            q, k, v = self._split_batch(q, k, v)
        return q, k, v

    def _split_batch(self, q: Heads, k: Heads, v: Heads) -> tuple[Heads, Heads, Heads]:
        """Three axes: the first is batch and heads where it is known to be a product, else all of it is batch."""
        split: list[Heads] = []
        for p in (q, k, v):
            at = self._heads_start(p)
            if at is None:
                return q, k, v
            split.append(Heads(p.chain, p.batch[:at], p.batch[at:], p.length, p.size))
        same = all(_sizes(p.batch) == _sizes(split[0].batch) for p in split)
        return (split[0], split[1], split[2]) if same else (q, k, v)

    def _heads_start(self, p: Heads) -> int | None:
        """The index of the first factor that is of the heads, where batch and heads are one axis."""
        for point in p.chain.points:
            axes = self.views.axes(point)
            if len(axes) == 4 and (*axes[0], *axes[1]) == p.batch:
                return len(axes[0])
        return 1 if len([f for f in p.batch if not f.repeated]) == 2 else None

    def _result(self, q: Heads, v: Heads) -> Chain:
        """The result of the second product and the views that only it feeds."""
        last = (v.size, q.length) if self.flipped else (q.length, v.size)
        rank = len(self.views.axes(q.chain.last))
        axes: Axes = (q.batch, q.heads, *last) if rank == 4 else ((*q.batch, *q.heads), *last)
        return self.views.ahead(Point(self.node.outputs[0], axes, 1.0))

    def _write(self, points: list[Point], q: Heads, k: Heads, v: Heads) -> Patch | Reason:
        """The patch with the operator in place of the last point of the result that it can be brought to."""
        scores, context, b = self.scores, self.context, self.b
        query, key, value = (p.value for p in points)
        frame = Frame(
            query,
            key,
            2,
            tuple(D.product(f.size for f in a) for a in self.views.axes((q.batch, q.heads, q.length, k.length))),
        )
        mask = mask_input(b, scores.masks, frame, context)
        if isinstance(mask, Reason):
            return mask
        # What the chosen points are scaled by already is not the operator's to do.
        scale = scores.scale * q.chain.last.scale / points[0].scale * k.chain.last.scale / points[1].scale
        if scale <= 0:
            return Reason(f"the scale {scale:g} is not positive")
        attributes: dict[str, Any] = {"scale": scale}
        if scores.cap:
            attributes["softcap"] = scores.cap
        precision = context.tensor(scores.softmax.outputs[0]).dtype
        if precision is not None and precision != context.tensor(query).dtype:
            attributes["softmax_precision"] = int(precision)
        y = b.multi("Attention", 1, query, key, value, mask, **attributes)[0]
        axes = self.views.axes((q.batch, q.heads, q.length, v.size))
        out = self._result(q, v)
        direct = self.views.find(out, axes)
        for result in (direct,) if direct is not None else reversed(out.points):
            moved = self.views.build(b, Point(y, axes, 1.0), self.views.axes(result))
            if moved is not None:
                note = f"{len(scores.nodes) + 2} nodes, {len(scores.masks)} masks"
                anchor = result.value.producer()
                return Patch({result.value: moved.value}, tuple(b.nodes), tuple(b.constants), anchor=anchor, note=note)
        return Reason("the result cannot be brought to its shape with a constant target")


def _sizes(factors: Sequence[Factor]) -> list[D.DimLike]:
    return [f.size for f in factors]


def _fit_heads(q: Heads, k: Heads, v: Heads) -> tuple[Heads, Heads, Heads] | Reason:
    """Queries, keys and values with the heads as the operator takes them: keys and values without repeats."""
    for name, part in (("keys", k), ("values", v)):
        if part.count != 1 and part.count != q.count:
            return Reason(f"{q.count} heads of queries meet {part.count} of {name}")
    keys, values = k.grouped(), v.grouped()
    if keys is not None and values is not None and keys.count == values.count:
        k, v = keys, values
    if k.count != v.count:
        return Reason(f"{k.count} heads of keys and {v.count} of values")
    return q, k, v
