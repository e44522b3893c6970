"""Softmax and LogSoftmax from exponentials, a sum, a quotient or a difference, with or without the maximum taken off.

``exp(x - m) / sum(exp(x - m))`` is the same for every ``m`` that does not vary along the axis, so in the normal form
of :mod:`.algebra` the maximum cancels. Where it was not taken off, the exponentials could overflow; the operator's
cannot.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.algebra import Algebra, Exp, Log, Monomial, Poly, Reduced, UnfitError
from accord.passes.rules.recognise.formula import THROUGH, read
from accord.passes.rules.recognise.region import Region, allows, regions, same_shape, tolerance

__all__ = ["RecogniseSoftmax"]

_EXPONENTIALS = frozenset({"Exp", "ReduceLogSumExp", "Softmax", "LogSoftmax"})


class RecogniseSoftmax(Rule):
    """exp(x) over its sum → Softmax; its logarithm → LogSoftmax."""

    name: ClassVar[str] = "recognise-softmax"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Div", "Mul", "Sub", "Add", "Log", "Exp", "Cast", "Transpose")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the operator in place of the whole formula."""
        reason: Reason | None = None
        for region in reversed(regions(node.outputs[0], context, THROUGH)):
            if len(region.nodes) < 2 or not region.ops & _EXPONENTIALS:
                continue
            outcome = self._region(node, region, context)
            if isinstance(outcome, Patch):
                return outcome
            reason = reason or outcome
        return reason

    def _region(self, node: ir.Node, region: Region, context: RuleContext) -> Patch | Reason | None:
        dtype = context.tensor(region.root).dtype
        if dtype is None or context.tensor(region.variable).dtype != dtype:
            return None
        try:
            algebra, term = read(region, context)
        except UnfitError:
            return None
        if term.layout != tuple(range(algebra.rank)):
            return None
        found = _match(algebra, term.poly, tolerance(dtype))
        if found is None:
            return None
        op, axes = found
        if not same_shape(context, region.variable, region.root):
            return Reason("the result has another shape than the input")
        if len(axes) != 1:
            return Reason(f"the sum is over the axes {sorted(axes)}, {op} has one")
        if not allows(op, dtype, context):
            return Reason(f"{op} does not take {dtype.name.lower()}")
        blocked = region.blocked()
        if blocked is not None:
            return blocked
        b = context.builder()
        y = b(op, region.variable, axis=next(iter(axes)))
        return patch_from(b, node, [y], f"{len(region.nodes)} nodes from '{region.variable.name}'")


def _match(algebra: Algebra, y: Poly, rtol: float) -> tuple[str, frozenset[int]] | None:
    """The operator that ``y`` is, and the axes of its sum."""
    x = ((algebra.variable, 1.0),)
    e = algebra.number(Exp(x))
    want: dict[Monomial, float]
    for monomial, c in y.items():
        for number, _ in monomial:
            atom = algebra.atom(number)
            inner = algebra.atom(atom.of) if isinstance(atom, Log) else atom
            if not isinstance(inner, Reduced) or inner.kind != "sum" or inner.of != ((e, 1.0),):
                continue
            if isinstance(atom, Log):
                want, op = {x: 1.0, ((number, 1.0),): -1.0}, "LogSoftmax"
            else:
                want, op = {tuple(sorted(((e, 1.0), (number, -1.0)))): 1.0}, "Softmax"
            same = y.keys() == want.keys() and all(np.allclose(y[m], k, rtol=rtol) for m, k in want.items())
            return (op, inner.axes) if same and c.size == 1 else None
    return None
