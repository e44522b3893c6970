"""Products of rows: no need to bring them into a matrix first."""

from __future__ import annotations

from typing import Any, ClassVar

import onnx_ir as ir

from accord.expr.onnx_ops import ELEMENTWISE
from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.dims import Shape
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.simplify import reshape_target

__all__ = ["ProductBeforeTranspose", "UnflattenGemm", "ViewBeforeProduct"]


class UnflattenGemm(Rule):
    """Gemm between Reshapes that join all axes but the last and part them again → MatMul and Add without them.

    Exporters write a linear layer so. What follows (an activation, a residual) then meets the product, and heads that
    are split off meet the axes that they come from. One of the two Reshapes is enough.
    """

    name: ClassVar[str] = "unflatten-gemm"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Gemm")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with MatMul and Add, and a Reshape to the matrix that Gemm made."""
        rows, weights = node.inputs[:2]
        matrix, out = context.tensor(rows).shape, context.tensor(node.outputs[0]).shape
        if rows is None or matrix is None or out is None:
            return None
        joined = _joined(rows)
        leading = _leading(joined, matrix, context) or _leading(_parted(node, context), out, context)
        if leading is None:
            return None
        if context.attr(node, "transA", 0) or any(context.attr(node, n, 1.0) != 1 for n in ("alpha", "beta")):
            return Reason("the rows are transposed, or something is scaled")
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        added = () if bias is None else context.tensor(bias).shape
        if added is None or any(d != 1 for d in added[:-1]):
            return Reason("what is added is not the same for all rows")
        before = reshape_target((*leading, matrix[1]), matrix)
        after = reshape_target(out, (*leading, out[1]))
        if before is None or after is None:
            return Reason("the shape of the rows cannot be stated as a constant")
        b = context.builder()
        x = joined if joined is not None and context.tensor(joined).shape == (*leading, matrix[1]) else None
        if x is None:
            x = b("Reshape", rows, b.ints(*before))
        if context.attr(node, "transB", 0):
            weights = b("Transpose", weights, perm=[1, 0])
        y = b("MatMul", x, weights)
        if bias is not None:
            y = b("Add", y, bias)
        return patch_from(b, node, [b("Reshape", y, b.ints(*after))], f"rows are {' × '.join(map(str, leading))}")


def _joined(rows: ir.Value) -> ir.Value | None:
    """What the Reshape that makes ``rows`` reads."""
    maker = rows.producer()
    return maker.inputs[0] if maker is not None and _is_reshape(maker) else None


def _parted(node: ir.Node, context: RuleContext) -> ir.Value | None:
    """What the Reshape that alone reads the result of ``node`` makes."""
    reader = context.only_use(node.outputs[0])
    return reader.outputs[0] if reader is not None and _is_reshape(reader) else None


def _is_reshape(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def _leading(value: ir.Value | None, matrix: Shape, context: RuleContext) -> Shape | None:
    """All axes but the last of ``value``, if they are the rows of ``matrix``; None where there are fewer than two."""
    shape = None if value is None else context.tensor(value).shape
    if shape is None or len(shape) < 3 or shape[-1] != matrix[1] or 0 in (*shape, *matrix):
        return None
    return shape[:-1] if D.product(shape[:-1]) == matrix[0] else None


class ViewBeforeProduct(Rule):
    """MatMul of rows with one matrix, then rows in another order or between other axes of size 1 → that before it.

    The product (and a bias or what else is done to each row alike) then meets what follows, and the view meets those
    before the product, with which it may come to nothing.
    """

    name: ClassVar[str] = "view-before-product"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Transpose", "Reshape")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the product of the view."""
        found = _product(node.inputs[0], context)
        if found is None:
            return None
        product, after = found
        x, weights = product.inputs
        old, new = (context.tensor(v).shape for v in (node.inputs[0], node.outputs[0]))
        rows = context.tensor(x).shape
        if old is None or new is None or rows is None or len(rows) < 3 or context.tensor(weights).rank != 2:
            return None
        b = context.builder()
        if node.op_type == "Transpose":
            perm = [int(p) for p in context.attr(node, "perm", range(len(old))[::-1])]
            if perm[-1] != len(perm) - 1:
                return Reason("the last axis does not stay the last")
            y = b("Transpose", x, perm=perm)
        else:
            if [d for d in old if d != 1] != [d for d in new if d != 1] or old[-1] != new[-1]:
                return Reason("other axes than those of size 1 come or go")
            if not 2 <= len(new) <= len(old):
                return Reason("it adds axes, such as one of heads")
            target = reshape_target((*new[:-1], rows[-1]), rows)
            if target is None:
                return Reason("the shape of the rows cannot be stated as a constant")
            y = b("Reshape", x, b.ints(*target))
        y = _repeated(b, b("MatMul", y, weights), after, context)
        return patch_from(b, node, [y], f"before {product.name}")


def _product(value: ir.Value | None, context: RuleContext) -> tuple[ir.Node, list[tuple[ir.Node, int]]] | None:
    """The MatMul that ``value`` comes from, and what was done to all of its rows alike since; each is read once.

    Of each elementwise operator the position of the input that is the rows: the others are constants along the last
    axis.
    """
    after: list[tuple[ir.Node, int]] = []
    while value is not None and context.only_use(value) is not None:
        maker = value.producer()
        if maker is None or maker.domain != "":
            return None
        if maker.op_type == "MatMul":
            return maker, after[::-1]
        position = _rows_of(maker, context)
        if position is None:
            return None
        after.append((maker, position))
        value = maker.inputs[position]
    return None


def _rows_of(node: ir.Node, context: RuleContext) -> int | None:
    """The position of the rows, if an elementwise operator does to all of them alike what constants say; else None."""
    if node.domain != "" or node.op_type not in ELEMENTWISE or len(node.outputs) != 1:
        return None
    rows = [i for i, v in enumerate(node.inputs) if v is not None and not context.tensor(v).is_const]
    if len(rows) != 1 or context.tensor(node.inputs[rows[0]]).rank != context.tensor(node.outputs[0]).rank:
        return None
    others = [v for i, v in enumerate(node.inputs) if i != rows[0] and v is not None]
    return rows[0] if all(_is_row(v, context) for v in others) else None


def _repeated(b: Builder, y: ir.Value, after: list[tuple[ir.Node, int]], context: RuleContext) -> ir.Value:
    """What the elementwise operators make of ``y``."""
    for node, position in after:
        operands = [y if i == position else _row(v, context, b) for i, v in enumerate(node.inputs)]
        attributes: dict[str, Any] = dict(node.attributes.items())
        y = b(node.op_type, *operands, **attributes)
    return y


def _is_row(value: ir.Value, context: RuleContext) -> bool:
    shape = context.tensor(value).shape
    return shape is not None and all(d == 1 for d in shape[:-1])


def _row(value: ir.Value | None, context: RuleContext, b: Builder) -> ir.Value | None:
    """A constant along the last axis without axes of size 1 before it, which could outnumber those of the rows."""
    content = context.constant(value)
    if value is None or content is None or content.ndim < 2:
        return value
    return b.const(content.reshape(-1), value.name)


#: Operators that read any strides where they lie.
_VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split"})


class ProductBeforeTranspose(Rule):
    """MatMul of transposed rows for attention → the transpose of the product, which attention reads as it lies.

    The product then has its rows one after the other, as fast kernels want them.
    """

    name: ClassVar[str] = "product-before-transpose"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("MatMul")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the product first."""
        x, weights = node.inputs
        maker = None if x is None else x.producer()
        rank = context.tensor(x).rank
        if x is None or rank is None or maker is None or maker.domain != "" or maker.op_type != "Transpose":
            return None
        perm = [int(p) for p in context.attr(maker, "perm", range(rank)[::-1])]
        if perm[-1] != rank - 1 or context.tensor(weights).rank != 2:
            return None
        last, after = node.outputs[0], list[tuple[ir.Node, int]]()
        while (reader := context.only_use(last)) is not None and (rows := _rows_of(reader, context)) is not None:
            after.append((reader, rows))
            last = reader.outputs[0]
        if not _is_for_attention(last):
            return Reason("it is not for attention alone")
        b = context.builder()
        y = _repeated(b, b("MatMul", maker.inputs[0], weights), after, context)
        anchor = last.producer()
        moved = b("Transpose", y, perm=perm)
        return Patch({last: moved}, tuple(b.nodes), tuple(b.constants), anchor=anchor, note=f"before {maker.name}")


def _is_for_attention(value: ir.Value) -> bool:
    """True if views and attention alone read ``value``."""
    uses = value.uses()
    if not uses or value.is_graph_output():
        return False
    for user, index in uses:
        if user.domain != "" or index > 2:
            return False
        if user.op_type not in _VIEWS and user.op_type != "Attention":
            return False
        if user.op_type in _VIEWS and (index or not all(_is_for_attention(o) for o in user.outputs)):
            return False
    return True
