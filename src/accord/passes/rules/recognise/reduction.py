"""Means: of means, from sums and sizes, and over all axes of an image.

GlobalAveragePool is written only for images and volumes (rank 4 and more): a mean over the last axis of a sequence
is no pool, though it would compute the same.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.algebra import Layout, Reduced, UnfitError
from accord.passes.rules.recognise.formula import THROUGH, read
from accord.passes.rules.recognise.region import Region, allows, regions, tolerance

__all__ = ["RecogniseMean"]

_REDUCES = frozenset({"ReduceMean", "ReduceSum", "GlobalAveragePool"})


class RecogniseMean(Rule):
    """A mean in any spelling → GlobalAveragePool over the axes of an image, else one ReduceMean."""

    name: ClassVar[str] = "recognise-mean"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("ReduceMean", "Mul", "Div")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with one operator."""
        reason: Reason | None = None
        for region in reversed(regions(node.outputs[0], context, THROUGH)):
            if not region.ops & _REDUCES:
                continue
            outcome = self._region(node, region, context)
            if isinstance(outcome, Patch):
                return outcome
            reason = reason or outcome
        return reason

    def _region(self, node: ir.Node, region: Region, context: RuleContext) -> Patch | Reason | None:
        x = region.variable
        dtype = context.tensor(region.root).dtype
        if dtype is None or context.tensor(x).dtype != dtype:
            return None
        try:
            algebra, term = read(region, context)
            if len(term.poly) != 1:
                return None
            ((monomial, c),) = term.poly.items()
            sums = [a for n, _ in monomial if isinstance(a := algebra.atom(n), Reduced)]
            if len(sums) != 1 or sums[0].of != ((algebra.variable, 1.0),) or c.size != 1:
                return None
            axes = sums[0].axes
            ((key, unit),) = algebra.mean(algebra.x().poly, axes).items()
        except UnfitError:
            return None
        if monomial != key or not np.allclose(c, unit, rtol=tolerance(dtype)):
            return None
        rank = algebra.rank
        kept = _kept(term.layout, axes, rank)
        if kept is None:
            return None
        image = rank >= 4 and axes == frozenset(range(2, rank)) and allows("GlobalAveragePool", dtype, context)
        if len(region.nodes) == 1 and not image:
            return None
        blocked = region.blocked()
        if blocked is not None:
            return blocked
        b = context.builder()
        over = sorted(axes)
        if image:
            y = b("GlobalAveragePool", x)
            y = y if kept else b("Squeeze", y, b.ints(*over))
        else:
            y = b("ReduceMean", x, b.ints(*over), keepdims=int(kept))
        return patch_from(b, node, [y], f"{len(region.nodes)} nodes from '{x.name}'")


def _kept(layout: Layout, axes: frozenset[int], rank: int) -> bool | None:
    """Whether the reduced axes are there with size 1; None if the axes lie otherwise."""
    if len(layout) == rank and all(e == i or (e is None and i in axes) for i, e in enumerate(layout)):
        return True
    return False if layout == tuple(i for i in range(rank) if i not in axes) else None
