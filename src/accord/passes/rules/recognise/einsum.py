"""Einsum of two operands that is a matrix product → MatMul between views.

Each index of the equation is one of: *batch* (in both operands and the result), *left* (first operand and result),
*right* (second operand and result), *inner* (both operands, summed). The operands are brought to ``(batch, left,
inner)`` and ``(batch, inner, right)``, which are strides and cost nothing where no axes are joined.
"""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.region import allows
from accord.passes.rules.recognise.views import Factor, Point, Views

__all__ = ["EinsumToMatMul"]


class EinsumToMatMul(Rule):
    """An Einsum over two operands, each index once in each → Transpose, MatMul, Transpose."""

    name: ClassVar[str] = "einsum-to-matmul"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Einsum")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the product."""
        if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
            return None
        equation = str(context.attr(node, "equation", "")).replace(" ", "")
        if "..." in equation or "->" not in equation:
            return Reason("the equation has an ellipsis or no result")
        inputs, result = equation.split("->")
        first, second = inputs.split(",")
        for operand in (first, second, result):
            if len(set(operand)) != len(operand):
                return Reason("an operand has an index twice")
        if not set(result) <= set(first) | set(second):
            return None
        shapes = [context.tensor(v).shape for v in node.inputs]
        if (
            shapes[0] is None
            or shapes[1] is None
            or not allows("MatMul", context.tensor(node.inputs[0]).dtype, context)
        ):
            return Reason("the operands' ranks are not known")
        alone = (set(first) ^ set(second)) - set(result)
        inner = [i for i in first if i in second and i not in result]
        if alone or not inner:
            return Reason(f"{''.join(sorted(alone)) or 'nothing'} is summed, which is no product of matrices")
        sizes = dict(zip(first, shapes[0], strict=True))
        for index, size in zip(second, shapes[1], strict=True):
            if sizes.setdefault(index, size) != size:
                return Reason(f"the sizes of index {index} are not known to agree")
        # The operand whose own indices come first in the result is the left one, so that the result needs no Transpose.
        own = [
            next((result.index(i) for i in result if i in s and i not in t), 99)
            for s, t in ((first, second), (second, first))
        ]
        swap = own[0] > own[1]
        b = context.builder()
        y = self._product(b, node, (second, first) if swap else (first, second), result, sizes, swap, context)
        if isinstance(y, Reason):
            return y
        return patch_from(b, node, [y], equation)

    @staticmethod
    def _product(
        b: Builder,
        node: ir.Node,
        operands: tuple[str, str],
        result: str,
        sizes: dict[str, D.DimLike],
        swap: bool,
        context: RuleContext,
    ) -> ir.Value | Reason:
        views = Views(context)
        factor = {i: () if d == 1 else (Factor(d),) for i, d in sizes.items()}
        left, right = operands
        batch = [i for i in result if i in left and i in right]
        inner = [i for i in left if i in right and i not in result]
        lefts = [i for i in result if i in left and i not in right]
        rights = [i for i in result if i in right and i not in left]

        def joined(indices: list[str]) -> tuple[Factor, ...]:
            return tuple(f for i in indices for f in factor[i])

        # Without a batch, the matrix on the right is the same for all rows, which need not be joined to one axis.
        rows = [joined([i]) for i in lefts] if not batch and lefts else [joined(lefts)]
        head = [joined([i]) for i in batch]
        wanted = ((*head, *rows, joined(inner)), (*head, joined(inner), joined(rights)))
        values: list[ir.Value] = []
        for operand, want, index in zip((left, right), wanted, (1, 0) if swap else (0, 1), strict=True):
            value = node.inputs[index]
            assert value is not None
            point = views.build(b, Point(value, tuple(factor[i] for i in operand), 1.0), want)
            if point is None:
                return Reason("axes that would be joined have sizes only known at run time")
            values.append(point.value)
        y = b("MatMul", *values)
        moved = views.build(b, Point(y, (*head, *rows, joined(rights)), 1.0), tuple(factor[i] for i in result))
        return Reason("the result's axes have sizes only known at run time") if moved is None else moved.value
