"""Heads of an attention: where they are split off, and the operator's packed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.views import Axes, Chain, Factor, Point, Views

__all__ = ["Heads", "PackAttentionHeads", "PackRotaryHeads"]


@dataclass(frozen=True, slots=True)
class Heads:
    """Axes of queries, keys or values: ``(batch) (heads) (length) (size)``.

    Attributes:
        chain: Where they come from.
        batch: Factors of the batch.
        heads: Factors of the heads.
        length: Factors of the length.
        size: Factors of one head.
    """

    chain: Chain
    batch: tuple[Factor, ...]
    heads: tuple[Factor, ...]
    length: tuple[Factor, ...]
    size: tuple[Factor, ...]

    @property
    def split(self) -> Axes:
        """With the heads as an axis."""
        return (self.batch, self.heads, self.length, self.size)

    @property
    def packed(self) -> Axes:
        """With the heads on the last axis."""
        return (self.batch, self.length, (*self.heads, *self.size))

    @property
    def count(self) -> D.DimLike:
        """Number of heads."""
        return D.product(f.size for f in self.heads)

    def grouped(self) -> Heads | None:
        """The same without repeated heads; None if the repeats are not those of grouped queries."""
        own = tuple(f for f in self.heads if not f.repeated)
        if self.heads[: len(own)] != own:
            return None
        return Heads(self.chain, self.batch, own, self.length, self.size)


class PackAttentionHeads(Rule):
    """Reshape and Transpose before and after an Attention → the operator's form ``(batch, length, heads * size)``."""

    name: ClassVar[str] = "pack-attention-heads"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Attention")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the packed form, if queries, keys, values and the result all have it."""
        if context.tensor(node.inputs[0]).rank != 4 or node.outputs[3:]:
            return None
        views = Views(context)
        parts: list[Heads] = []
        packed: list[Point] = []
        scale = 1.0
        for i, value in enumerate(node.inputs[:3]):
            chain = None if value is None else views.back(value, scaled=i < 2)
            if chain is None:
                return None
            batch, heads, length, size = views.axes(chain.last)
            part = Heads(chain, batch, heads, length, size)
            point = _operand(views, chain, views.axes(part.packed))
            if point is None:
                return Reason(
                    f"'{value.name if value is not None else '?'}' is no view with the heads on its last axis"
                )
            parts.append(part)
            packed.append(point)
            scale *= chain.last.scale / point.scale
        q, k, v = parts
        if not isinstance(q.count, int) or not isinstance(k.count, int):
            return Reason("the number of heads is only known at run time")
        out = views.ahead(Point(node.outputs[0], views.axes((q.batch, q.heads, q.length, v.size)), 1.0))
        joined = views.axes((q.batch, q.length, (*q.heads, *v.size)))
        exact = views.find(out, joined)
        order = [f for axis in joined for f in axis]  # a Reshape brings to any axes what has its elements in order
        result = exact or next((p for p in out.points if [f for a in views.axes(p) for f in a] == order), None)
        if result is None or (len(node.outputs) > 1 and result is not exact):
            return Reason("the result is not brought to (batch, length, heads * size)")
        attributes: dict[str, Any] = dict(node.attributes)
        attributes.update(q_num_heads=q.count, kv_num_heads=k.count)
        if scale != 1:
            own = _scale(node, q, context)
            if own is None or scale < 0:
                return Reason("the scale is not known or not positive")
            attributes["scale"] = own * scale
        ways = [views.steps(p, views.axes(part.packed)) for p, part in zip(packed, parts, strict=True)]
        ways.append(views.steps(Point(node.outputs[0], joined, 1.0), views.axes(result)))
        if None in ways:
            return Reason("a shape cannot be stated as a constant")
        b = context.builder()
        operands = [views.build(b, p, views.axes(part.packed)) for p, part in zip(packed, parts, strict=True)]
        values = [None if p is None else p.value for p in operands]
        outputs = b.multi("Attention", len(node.outputs), *values, *node.inputs[3:], **attributes)
        moved = views.build(b, Point(outputs[0], joined, 1.0), views.axes(result))
        assert moved is not None
        replace = {result.value: moved.value, **dict(zip(node.outputs[1:], outputs[1:], strict=True))}
        anchor = _anchor(node, result, replace)
        return Patch(replace, tuple(b.nodes), tuple(b.constants), anchor=anchor, note=f"{q.count} heads")


def _operand(views: Views, chain: Chain, want: Axes) -> Point | None:
    """The first point with the axes ``want``, or else the first that is brought to them where it lies.

    That is so if no axis has to be joined of several, and the last, whose elements are read together, stays the last.
    """
    exact = views.find(chain, want)
    return exact if exact is not None else next((p for p in chain.points if _lies(views.axes(p), want)), None)


def _lies(axes: Axes, want: Axes) -> bool:
    def within(wanted: tuple[Factor, ...], axis: tuple[Factor, ...]) -> bool:
        return any(axis[i : i + len(wanted)] == wanted for i in range(len(axis)))

    if not axes or axes[-1][-len(want[-1]) :] != want[-1]:
        return False
    return {f for a in axes for f in a} == {f for a in want for f in a} and all(
        len(w) < 2 or any(within(w, a) for a in axes) for w in want
    )


def _scale(node: ir.Node, q: Heads, context: RuleContext) -> float | None:
    """The scale of an Attention: stated, or one over the root of the head size."""
    stated = context.attr(node, "scale")
    size = D.product(f.size for f in q.size)
    if stated is not None:
        return float(stated)
    return 1 / math.sqrt(size) if isinstance(size, int) and size > 0 else None


def _anchor(node: ir.Node, result: Point, replace: dict[ir.Value, ir.Value]) -> ir.Node | None:
    """Where the operator goes: before the last view of its result, unless other results are read earlier."""
    return node if len(replace) > 1 else result.value.producer()


class PackRotaryHeads(Rule):
    """Reshape and Transpose before a RotaryEmbedding → behind it, so that its input has the heads on the last axis."""

    name: ClassVar[str] = "pack-rotary-heads"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("RotaryEmbedding")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the packed form and the views after it."""
        x = node.inputs[0]
        if x is None or context.tensor(x).rank != 4:
            return None
        views = Views(context)
        chain = views.back(x)
        if chain is None:
            return None
        batch, heads, length, size = views.axes(chain.last)
        part = Heads(chain, batch, heads, length, size)
        point = views.find(chain, views.axes(part.packed))
        if point is None or not isinstance(part.count, int):
            return None
        b = context.builder()
        attributes: dict[str, Any] = dict(node.attributes)
        attributes["num_heads"] = part.count
        y = b.multi("RotaryEmbedding", 1, point.value, *node.inputs[1:], **attributes)[0]
        moved = views.build(b, Point(y, views.axes(part.packed), 1.0), views.axes(part.split))
        if moved is None:
            return Reason("the heads cannot be split off with a constant shape")
        return Patch({node.outputs[0]: moved.value}, tuple(b.nodes), tuple(b.constants), note=f"{part.count} heads")
