"""Views: which factor of which axis each axis of a reshaped, transposed or repeated value is.

A Reshape that splits or joins axes, a Transpose, an Expand move no content about; they only regroup it. A
:class:`Views` follows a value back to its *base* and writes each axis as the base's factors in order: heads that were
split off the last axis and moved to the front are ``(batch) (heads) (length) (size)`` of a base ``(batch) (length)
(heads, size)``, whatever order of Reshape, Transpose, Squeeze and Unsqueeze made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.passes.rule import RuleContext
from accord.passes.rules.simplify import reshape_target

__all__ = ["Axes", "Chain", "Factor", "Point", "Views"]


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A factor of an axis; two are the same only if they are one object.

    Attributes:
        size: Its size.
        repeated: True if the content is the same along it.
    """

    size: D.DimLike
    repeated: bool = False


#: For each axis its factors in order, the outermost first; none for an axis of size 1.
Axes: TypeAlias = tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A value on the way from the base.

    Attributes:
        value: The value.
        axes: Its axes when it was reached; :meth:`Views.axes` knows what was split since.
        scale: What the base has been multiplied by.
    """

    value: ir.Value
    axes: Axes
    scale: float


@dataclass(frozen=True, slots=True)
class Chain:
    """The way from a base to a value: the base is the first point, the value the last."""

    points: tuple[Point, ...]

    @property
    def last(self) -> Point:
        """The value that was asked for."""
        return self.points[-1]


_REGROUPS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"})
_MOVES = _REGROUPS | {"Expand", "Tile", "Concat"}
#: Steps of a way; longer ones are cut, their start is the base.
_LONGEST = 16


class Views:
    """Follows values; remembers which factors turned out to be products of others.

    Args:
        context: For facts and constants.
    """

    def __init__(self, context: RuleContext) -> None:
        self.context = context
        self._parts: dict[Factor, tuple[Factor, ...]] = {}

    # factors

    def axes(self, point: Point | Axes) -> Axes:
        """Axes with every factor that was split since replaced by its parts."""
        axes = point.axes if isinstance(point, Point) else point
        return tuple(self._resolve(a) for a in axes)

    def _resolve(self, factors: Sequence[Factor]) -> tuple[Factor, ...]:
        out: list[Factor] = []
        for f in factors:
            out.extend(self._resolve(self._parts[f]) if f in self._parts else (f,))
        return tuple(out)

    def split(self, factor: Factor, first: D.DimLike, rest: D.DimLike) -> tuple[Factor, Factor]:
        """State that ``factor`` is two factors."""
        parts = (Factor(first, factor.repeated), Factor(rest, factor.repeated))
        self._parts[factor] = parts
        return parts

    def fresh(self, shape: D.Shape) -> Axes:
        """One factor for each axis that is not 1."""
        return tuple(() if d == 1 else (Factor(d),) for d in shape)

    # ways

    def back(self, value: ir.Value, *, scaled: bool = False) -> Chain | None:
        """The way to ``value`` from the value that it is a view of.

        Args:
            value: The value.
            scaled: Products with one constant number may lie on the way.

        Returns:
            None if the rank of ``value`` is not known.
        """
        nodes: list[ir.Node] = []
        base = value
        while len(nodes) < _LONGEST:
            node = base.producer()
            if node is None or node.graph is not value.graph or not self._follows(node, scaled):
                break
            source = self._source(node)
            if source is None or self.context.tensor(source).shape is None:
                break
            nodes.append(node)
            base = source
        shape = self.context.tensor(base).shape
        if shape is None:
            return None
        points = [Point(base, self.fresh(shape), 1.0)]
        for node in reversed(nodes):
            step = self.forward(node, points[-1])
            if step is None:  # axes were mixed: what follows is a view of this node's result
                output = node.outputs[0]
                known = self.context.tensor(output).shape
                if known is None:
                    return None
                points = [Point(output, self.fresh(known), 1.0)]
            else:
                points.append(step)
        return Chain(tuple(points))

    def ahead(self, start: Point) -> Chain:
        """The way from ``start`` through views that each have one reader."""
        points = [start]
        while len(points) < _LONGEST:
            reader = self.context.only_use(points[-1].value)
            if reader is None or reader.graph is not start.value.graph or not self._follows(reader, scaled=False):
                break
            step = self.forward(reader, points[-1]) if reader.op_type in _REGROUPS else None
            if step is None:
                break
            points.append(step)
        return Chain(tuple(points))

    def _follows(self, node: ir.Node, scaled: bool) -> bool:
        if node.domain != "" or len(node.outputs) != 1:
            return False
        return node.op_type in _MOVES or (scaled and node.op_type in ("Mul", "Div"))

    def _source(self, node: ir.Node) -> ir.Value | None:
        """The input that a node is a view of."""
        if node.op_type in ("Mul", "Div"):
            side = self.factor_side(node)
            return None if side is None else node.inputs[side[0]]
        if node.op_type == "Concat" and any(v is not node.inputs[0] for v in node.inputs):
            return None
        return node.inputs[0]

    def factor_side(self, node: ir.Node) -> tuple[int, float] | None:
        """For a Mul or Div by one constant number: the index of the other input, and the factor."""
        for side in (0, 1) if node.op_type == "Mul" else (0,):
            content = self.context.constant(node.inputs[1 - side], 4096)
            if content is None or content.size == 0 or content.dtype.kind in "biuO":
                continue
            number = float(content.reshape(-1)[0])
            if not bool((content == content.reshape(-1)[0]).all()) or number == 0 or not np.isfinite(number):
                continue
            before, after = (self.context.tensor(v).rank for v in (node.inputs[side], node.outputs[0]))
            if before is not None and before == after and content.size == 1:
                return side, number if node.op_type == "Mul" else 1 / number
        return None

    def forward(self, node: ir.Node, point: Point) -> Point | None:
        """The point behind ``node``, whose input is ``point``; None if its axes are no regrouping of these."""
        output = node.outputs[0]
        if node.op_type in ("Mul", "Div"):
            side = self.factor_side(node)
            return None if side is None else Point(output, point.axes, point.scale * side[1])
        axes = self._forward(node, self.axes(point))
        return None if axes is None else Point(output, axes, point.scale)

    def _forward(self, node: ir.Node, axes: Axes) -> Axes | None:
        context = self.context
        after = context.tensor(node.outputs[0]).shape
        match node.op_type:
            case "Identity":
                return axes
            case "Transpose":
                perm = context.attr(node, "perm", range(len(axes))[::-1])
                return tuple(axes[p] for p in perm)
            case "Expand" if after is not None:
                return self._expand(axes, after)
            case "Tile":
                content = context.constant(node.inputs[1])
                return None if content is None else self._tile(axes, [int(r) for r in content])
            case "Concat":
                repeats = [1] * len(axes)
                repeats[int(context.attr(node, "axis", 0))] = len(node.inputs)
                return self._tile(axes, repeats)
            case "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" if after is not None:
                return self._regroup(axes, after)
        return None

    @staticmethod
    def _expand(axes: Axes, after: D.Shape) -> Axes | None:
        padded = ((),) * (len(after) - len(axes)) + axes
        out: list[tuple[Factor, ...]] = []
        for factors, size in zip(padded, after, strict=True):
            if D.product(f.size for f in factors) == size:
                out.append(factors)
            elif not factors:
                out.append((Factor(size, repeated=True),))
            else:
                return None
        return tuple(out)

    @staticmethod
    def _tile(axes: Axes, repeats: Sequence[int]) -> Axes | None:
        if len(repeats) != len(axes):
            return None
        return tuple(a if r == 1 else (Factor(r, repeated=True), *a) for a, r in zip(axes, repeats, strict=True))

    def _regroup(self, axes: Axes, after: D.Shape) -> Axes | None:
        """Deal the factors out to the axes of a Reshape, splitting one where an axis ends inside it."""
        left = [f for a in axes for f in a]
        out: list[tuple[Factor, ...]] = []
        for size in after:
            taken: list[Factor] = []
            have: D.DimLike = 1
            while have != size:
                if not left or size == 0:
                    return None
                factor = left.pop(0)
                more = have * factor.size
                if _divides(more, size):
                    taken.append(factor)
                    have = more
                elif _divides(size, more) and _divides(have, size):
                    first, rest = self.split(factor, D.floordiv(size, have), D.floordiv(more, size))
                    taken.append(first)
                    left.insert(0, rest)
                    have = size
                else:
                    return None
            out.append(tuple(taken))
        return None if left else tuple(out)

    # building

    def find(self, chain: Chain, want: Axes) -> Point | None:
        """The first point with these axes."""
        return next((p for p in chain.points if self.axes(p) == want), None)

    def arrange(self, b: Builder, chain: Chain, want: Axes) -> Point | None:
        """A value with the axes ``want``: one on the way, or one built from the base.

        Returns:
            None if a shape that it takes cannot be stated.
        """
        found = self.find(chain, want)
        return found if found is not None else self.build(b, chain.points[0], want)

    def build(self, b: Builder, start: Point, want: Axes) -> Point | None:
        """A value with the axes ``want``, regrouped from ``start``; None if a shape cannot be stated."""
        steps = self.steps(start, want)
        if steps is None:
            return None
        value = start.value
        for op, numbers in steps:
            value = b("Transpose", value, perm=numbers) if op == "Transpose" else b("Reshape", value, b.ints(*numbers))
        return Point(value, want, start.scale)

    def steps(self, start: Point, want: Axes) -> list[tuple[str, list[int]]] | None:
        """The Reshapes (with their targets) and Transposes (with their permutations) from ``start`` to ``want``.

        Returns:
            None if a shape on the way cannot be stated.
        """
        axes = self.axes(start)
        factors = [f for a in axes for f in a]
        wanted = [f for a in want for f in a]
        if sorted(map(id, factors)) != sorted(map(id, wanted)):
            return None
        # Where the order changes, there is one axis for each factor in between.
        apart, moved = tuple((f,) for f in factors), tuple((f,) for f in wanted)
        found: list[tuple[str, list[int]]] = []
        for i, (before, after) in enumerate([(axes, want)] if factors == wanted else [(axes, apart), (moved, want)]):
            if i == 1:
                found.append(("Transpose", [factors.index(f) for f in wanted]))
            if before != after:
                target = _target(before, after)
                if target is None:
                    return None
                found.append(("Reshape", target))
        return found


def _target(axes: Axes, want: Axes) -> list[int] | None:
    """The target of a Reshape from ``axes`` to ``want``; None if it cannot be stated."""
    before, after = (tuple(D.product(f.size for f in a) for a in x) for x in (axes, want))
    return reshape_target(after, before)


def _divides(a: D.DimLike, b: D.DimLike) -> bool:
    """True if ``b`` is a multiple of ``a``, whatever the sizes are."""
    if isinstance(a, int) and a == 0:
        return False
    return D.floordiv(b, a) * a == b
