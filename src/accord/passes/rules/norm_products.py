"""Normalisations of rows that only products read, as a factor of each row of the products.

LayerNormalization gives ``(x - mean) / deviation * scale + bias`` for each row. A product of it with a constant matrix
W is ``x W' / deviation + bias W``, where W' is W with its rows scaled and the mean of each column taken away: ``x W'``
is then the same for ``x`` and ``x - mean``. What is left of the normalisation is one number for each row, which the
product reads beside its sums; the normalised rows are neither written nor read. Where they are a residual too, added
to what another product makes, that one makes them again. New weights are computed in float64, and rounded such that
their columns still add up to nothing: the mean, even a large one, stays out of the result.

RMSNormalization is the same without mean and bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["FoldNormalisation"]

Array = npt.NDArray[Any]
#: What is multiplied with sums of another type, so that sums are not rounded before the factor.
_SHORT = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


#: Other forms of the same rows.
_VIEWS = onnx_ops("Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, slots=True)
class _Reader:
    """A product of the normalised rows: ``rows @ weight + bias``; ``result`` is the last of its values.

    Attributes:
        node: The product.
        weight: Its matrix.
        bias: What is added; None: nothing.
        result: See above.
        shape: Of the rows, -1 for an axis whose size is not known, where it is not that of what is normalised.
    """

    node: ir.Node
    weight: Array
    bias: Array | None
    result: ir.Value
    shape: tuple[int, ...] | None


class FoldNormalisation(Rule):
    """LayerNormalization or RMSNormalization before products → a factor of each row of the products."""

    name: ClassVar[str] = "fold-normalisation"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("LayerNormalization", "RMSNormalization")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the products of what was to be normalised, and the factor."""
        if not context.scales_rows:
            return None
        x, fact = node.inputs[0], context.tensor(node.inputs[0])
        if x is None or fact.rank is None or fact.dtype not in _SHORT:
            return Reason("sums of this type would be rounded before the factor")
        if int(context.attr(node, "axis", -1)) not in (-1, fact.rank - 1):
            return Reason("it goes over more than the last axis")
        if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
            return Reason("its mean or deviation is read")
        scale = context.constant(node.inputs[1])
        bias = context.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
        if scale is None or (bias is None and len(node.inputs) > 2 and node.inputs[2] is not None):
            return Reason("its scale or bias is not constant")
        readers = _readers(node, context)
        if isinstance(readers, Reason):
            return readers
        b = context.builder()
        centred = node.op_type == "LayerNormalization"
        factor, mean = _factor(b, x, float(context.attr(node, "epsilon", 1e-5)), centred=centred)
        replace = {}
        if any(_is_residual(u.node, node.outputs[0], context) for u in node.outputs[0].uses()):
            value = b("Cast", x, to=int(ir.DataType.FLOAT))
            value = b("Mul", value if mean is None else b("Sub", value, mean), factor)
            value = b("Mul", value, b.const(scale.astype(np.float32)))
            value = value if bias is None else b("Add", value, b.const(bias.astype(np.float32)))
            replace[node.outputs[0]] = b("Cast", value, to=int(fact.dtype))
        for r in readers:
            weight = scale.reshape(-1, 1).astype(np.float64) * r.weight.astype(np.float64)
            shift = np.zeros(r.weight.shape[1])
            if bias is not None:
                shift = shift + bias.reshape(-1).astype(np.float64) @ r.weight.astype(np.float64)
            if r.bias is not None:
                shift = shift + r.bias.astype(np.float64)
            rounded = _balanced(weight, r.weight.dtype) if centred else weight.astype(r.weight.dtype)
            if not np.isfinite(rounded.astype(np.float64)).all():
                return Reason("the new weights would not be finite")
            rows, own = x, factor
            if r.shape is not None:
                rows, own = (b("Reshape", v, b.ints(*r.shape[:-1], n)) for v, n in ((x, r.shape[-1]), (factor, 1)))
            y = b("MatMul", rows, b.const(rounded, f"{label(r.node)}.scaled"))
            y = b("Mul", b("Cast", y, to=int(ir.DataType.FLOAT)), own)
            if shift.any():
                y = b("Add", y, b.const(shift.astype(np.float32), f"{label(r.node)}.shift"))
            replace[r.result] = b("Cast", y, to=int(fact.dtype))
        note = ", ".join(label(r.node) for r in readers)
        return Patch(replace, tuple(b.nodes), tuple(b.constants), note=note)


def _balanced(weight: Array, dtype: Any) -> Array:
    """A matrix without the mean of each column, rounded, with columns whose sums are less than half a unit."""
    exact = weight - weight.mean(axis=0)
    rounded: Array = exact.astype(dtype)
    left = rounded.astype(np.float64).sum(axis=0)
    at = 0
    for count in (len(exact) // 24, len(exact) // 192, 1):  # some hundredths of a unit to many, then what is left
        if count and at + count <= len(exact):
            before = rounded[at : at + count].astype(np.float64)
            rounded[at : at + count] = (before - left / count).astype(dtype)
            left += (rounded[at : at + count].astype(np.float64) - before).sum(axis=0)
            at += count
    return rounded


def _factor(b: Builder, x: ir.Value, epsilon: float, *, centred: bool) -> tuple[ir.Value, ir.Value | None]:
    """The inverse deviation of each row, in f32, and the mean if it is taken away."""
    last, mean = b.ints(-1), None
    value = b("Cast", x, to=int(ir.DataType.FLOAT))
    if centred:
        mean = b("ReduceMean", value, last, keepdims=1)
        value = b("Sub", value, mean)
    variance = b("ReduceMean", b("Mul", value, value), last, keepdims=1)
    return b("Reciprocal", b("Sqrt", b("Add", variance, b.const(np.array(epsilon, np.float32))))), mean


def _readers(node: ir.Node, context: RuleContext) -> list[_Reader] | Reason:
    """All that reads the normalised rows, if those are products with constant matrices that take the factor."""
    todo: list[tuple[ir.Value, tuple[int, ...] | None]] = [(node.outputs[0], None)]
    found = []
    residuals = 0
    while todo:
        rows, shape = todo.pop()
        if rows.is_graph_output():
            return Reason("the normalised rows are an output of the graph")
        for use in rows.uses():
            reader = use.node
            if reader.op_identifier()[:2] in _VIEWS and not use.idx and reader.graph is node.graph:
                other = _same_rows(node, reader, context)
                if other is None:
                    return Reason(f"{label(reader)} makes other rows, or of a shape that is not known")
                todo.append((reader.outputs[0], other))
                continue
            if shape is None and _is_residual(reader, rows, context):
                residuals += 1
                continue
            refused = _refusal(node, reader, use.idx, context)
            if refused is not None:
                return refused
            found.append(_with_bias(reader, shape, context))
    if residuals > 1:
        return Reason("several operators add the normalised rows to others")
    return found or Reason("no product reads it")


def _is_residual(reader: ir.Node, rows: ir.Value, context: RuleContext) -> bool:
    """Whether a reader adds the normalised rows to what a product makes: there they can be made again."""
    if reader.op_identifier()[:2] != ("", "Add") or reader.graph is not (rows.producer() or reader).graph:
        return False
    (other,) = [v for v in reader.inputs if v is not rows] or [None]
    maker = None if other is None else other.producer()
    if maker is not None and maker.op_identifier()[:2] == ("", "Add"):  # the product's bias
        makers = [p for v in maker.inputs if v is not None and (p := v.producer()) is not None]
        maker = makers[0] if len(makers) == 1 else None
    product = maker is not None and maker.op_identifier()[:2] in (("", "MatMul"), ("", "Gemm"))
    return product and maker is not None and context.fuses(maker) is None


def _same_rows(node: ir.Node, view: ir.Node, context: RuleContext) -> tuple[int, ...] | None:
    """The shape of a view of the normalised rows, -1 for a size that is not known; None if it has other rows."""
    before, after = context.tensor(node.outputs[0]).shape, context.tensor(view.outputs[0]).shape
    if before is None or after is None or before[-1:] != after[-1:] or not isinstance(before[-1], int):
        return None
    shape = tuple(d if isinstance(d, int) else -1 for d in after)
    return shape if shape.count(-1) <= 1 and 0 not in shape else None


def _refusal(node: ir.Node, reader: ir.Node, index: int, context: RuleContext) -> Reason | None:
    """Why a reader is no product of the rows with a constant matrix that takes the factor; None: it is."""
    weight = context.tensor(reader.inputs[1]) if reader.op_identifier()[:2] == ("", "MatMul") else None
    if weight is None or weight.const is None or weight.rank != 2 or index or reader.graph is not node.graph:
        return Reason(f"{label(reader)} is no product of the rows with a constant matrix")
    if weight.dtype != context.tensor(node.inputs[0]).dtype:
        return Reason(f"the matrix of {label(reader)} has another type")
    return context.fuses(reader)


def _with_bias(product: ir.Node, shape: tuple[int, ...] | None, context: RuleContext) -> _Reader:
    weight, y = context.constant(product.inputs[1]), product.outputs[0]
    assert weight is not None
    after = context.only_use(y)
    if after is not None and after.op_identifier()[:2] == ("", "Add") and after.graph is product.graph:
        bias = context.constant(after.inputs[1 if after.inputs[0] is y else 0])
        if bias is not None and bias.shape == (weight.shape[1],):
            return _Reader(product, weight, bias, after.outputs[0], shape)
    return _Reader(product, weight, None, y, shape)
