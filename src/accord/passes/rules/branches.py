"""Branches that cost less than to choose between them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.expr.onnx_ops import ELEMENTWISE
from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["SelectBranch"]

#: Elements that both branches may compute in all: as long as starting one of them takes.
_MOST = 8192
#: What must not meet data that the other branch keeps from it: integers are divided by zero.
_GUARDED = frozenset({"Div", "Mod"})


class SelectBranch(Rule):
    """If with branches of a few elementwise operators on little data → both, and Where.

    A branch is a plan of its own, which Python starts; and a device has to tell the host the condition. Elementwise
    operators refuse no data, so that it does no harm to compute what is not asked for.
    """

    name: ClassVar[str] = "select-branch"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("If")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the nodes of both branches."""
        truth = context.tensor(node.inputs[0])
        if truth.shape not in ((), (1,)) or node.inputs[0] is None:
            return Reason("the condition is not known to have one element")
        branches = [context.attr(node, name) for name in ("then_branch", "else_branch")]
        for branch in branches:
            refusal = _refusal(branch, context)
            if refusal is not None:
                return refusal
        for pair in zip(*(branch.outputs for branch in branches), strict=True):
            first, second = (context.tensor(v) for v in pair)
            if first.shape != second.shape or first.dtype is None or first.dtype != second.dtype:
                return Reason("the branches give values of different kinds")
        b = context.builder()
        condition = node.inputs[0]
        if truth.shape == (1,):
            condition = b("Reshape", condition, b.const(np.empty(0, np.int64)))
        yes, no = (_inlined(branch, b) for branch in branches)
        chosen = [b("Where", condition, a, c) for a, c in zip(yes, no, strict=True)]
        return patch_from(b, node, chosen, f"{sum(len(list(g)) for g in branches)} operators")


def _refusal(branch: ir.Graph, context: RuleContext) -> Reason | None:
    total = 0
    for node in branch:
        if node.domain != "" or node.op_type not in ELEMENTWISE | {"Identity"}:
            return Reason(f"a branch has {node.op_type}, which is not elementwise")
        for value in node.outputs:
            fact = context.tensor(value)
            if fact.shape is None or fact.dtype is None or not D.is_known(fact.shape):
                return Reason("the size of what a branch computes is not known")
            if node.op_type in _GUARDED and not fact.dtype.is_floating_point():
                return Reason("a branch divides integers")
            total += math.prod(int(d) for d in fact.shape if isinstance(d, int))
    for value in branch.outputs:
        fact = context.tensor(value)
        if fact.shape is None or not D.is_known(fact.shape):
            return Reason("the size of what a branch gives is not known")
    return Reason(f"a branch computes {total:,} elements") if total > _MOST // 2 else None


def _inlined(branch: ir.Graph, b: Builder) -> list[ir.Value]:
    """The outputs of a branch, computed by nodes of ``b``."""
    made: dict[ir.Value, ir.Value] = {}
    for value in branch.initializers.values():
        assert value.const_value is not None
        made[value] = b.const(value.const_value)
    for node in branch:
        given = [None if v is None else made.get(v, v) for v in node.inputs]
        attributes: dict[str, Any] = dict(node.attributes)
        outputs = b.multi(node.op_type, len(node.outputs), *given, **attributes)
        made.update(zip(node.outputs, outputs, strict=True))
    return [made.get(v, v) for v in branch.outputs]
