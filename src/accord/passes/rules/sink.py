"""Transposes moved behind elementwise operators, towards other transposes and out of the way of fusion."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.expr.onnx_ops import ELEMENTWISE
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["SinkTranspose"]

#: Operators whose further inputs are parameters: a single value has no axes.
_PARAMETERS = frozenset({"Clip", "QuantizeLinear", "DequantizeLinear", "CastLike"})


class SinkTranspose(Rule):
    """An elementwise operator on transposed values → the transpose of its result.

    All operands must be transposed alike, or be constants, or have one element. What is fused or folded across the
    transpose (a convolution and its activation) then meets; the transpose itself costs nothing where it ends up in
    front of another one or of an operator that reads any strides.
    """

    name: ClassVar[str] = "sink-transpose"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops(*sorted(ELEMENTWISE))

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the operator on values as they were, and one Transpose."""
        perms = {p for v in node.inputs if (p := _perm(v, context)) is not None}
        if not perms or len(node.outputs) != 1:
            return None
        if len(perms) > 1:
            return Reason("its operands are transposed in different ways")
        perm = perms.pop()
        rank = len(perm)
        if context.tensor(node.outputs[0]).rank != rank:
            return Reason("the result has other axes")
        b = context.builder()
        operands: list[ir.Value | None] = []
        for i, v in enumerate(node.inputs):
            maker = None if v is None else v.producer()
            content = context.constant(v)
            if v is None or context.tensor(v).shape == () or (i and node.op_type in _PARAMETERS):
                if v is not None and context.tensor(v).shape != ():
                    return Reason(f"input {i} is a parameter of several values")
                operands.append(v)
            elif _perm(v, context) is not None and maker is not None:
                operands.append(maker.inputs[0])
            elif content is not None:
                full = content.reshape((1,) * (rank - content.ndim) + content.shape)
                operands.append(b.const(np.ascontiguousarray(full.transpose(np.argsort(perm))), v.name))
            else:
                return Reason(f"'{v.name}' is not transposed")
        attributes: dict[str, Any] = dict(node.attributes.items())
        result = b(node.op_type, *operands, **attributes)
        return patch_from(b, node, [b("Transpose", result, perm=list(perm))], "the transpose comes after it")


def _perm(value: ir.Value | None, context: RuleContext) -> tuple[int, ...] | None:
    """The permutation of the Transpose that makes ``value``, if one does."""
    maker = None if value is None else value.producer()
    if value is None or maker is None or maker.domain != "" or maker.op_type != "Transpose":
        return None
    rank = context.tensor(value).rank
    perm = context.attr(maker, "perm")
    if perm is None:
        return None if rank is None else tuple(range(rank))[::-1]
    return tuple(int(p) for p in perm)
