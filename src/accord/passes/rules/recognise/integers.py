"""Contractions of dequantised tensors: the integers are multiplied, and the scales applied to the sum.

``Conv(DequantizeLinear(x), DequantizeLinear(w))`` is ``x_scale * w_scale`` times a sum of integers. That sum has no
rounding errors, so the result is at least as precise as the float graph's. Where it is quantised again at once, the
whole becomes QLinearConv or QLinearMatMul, which rounds to the same grid. It runs before constants are folded, which
would dequantise the weights. What is float in the model is never quantised by this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.dims import DimLike
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["RecogniseIntegerProduct"]

_FLOAT, _INT32 = ir.DataType.FLOAT, ir.DataType.INT32
_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
#: So many products of differences of 8-bit integers fit 32 bits, whatever they are.
_LONGEST = (1 << 31) // (255 * 255)
#: A bias may be in units of the product of scales up to this relative difference, that of two roundings in float32.
_SAME = 2.0**-22


@dataclass(frozen=True, slots=True)
class _Quantised:
    """What a value is the dequantised form of.

    Attributes:
        data: The integers.
        scale: Their scale.
        zero: Their zero point.
        axis: Along which there are several scales; None if there is one.
        turned: The integers are transposed (a matrix) before they are multiplied.
    """

    data: ir.Value
    scale: ir.Value
    zero: ir.Value | None
    axis: int | None
    turned: bool = False


def _quantised(value: ir.Value | None, context: RuleContext, dtypes: tuple[ir.DataType, ...]) -> _Quantised | None:
    """See :class:`_Quantised`; None where the value is not dequantised in float32."""
    node = None if value is None else value.producer()
    turned = False
    if node is not None and node.domain == "" and node.op_type == "Transpose" and node.inputs[0] is not None:
        rank = context.tensor(node.inputs[0]).rank
        turned = rank == 2 and tuple(context.attr(node, "perm", (1, 0))) == (1, 0)
        node = node.inputs[0].producer() if turned else None
    if node is None or node.domain != "" or node.op_type != "DequantizeLinear":
        return None
    data, scale, zero = (*node.inputs, None)[:3]
    if data is None or scale is None:
        return None
    facts = context.tensor(data), context.tensor(scale), context.tensor(node.outputs[0])
    rank, shape = facts[0].rank, facts[1].shape
    if facts[0].dtype not in dtypes or facts[1].dtype != _FLOAT or facts[2].dtype != _FLOAT:
        return None
    if rank is None or shape is None or len(shape) > 1 or context.attr(node, "block_size", 0):
        return None
    axis = None
    if len(shape) == 1 and shape[0] != 1:
        axis = int(context.attr(node, "axis", 1)) % max(rank, 1)
        axis = 1 - axis if turned else axis
    return _Quantised(data, scale, zero, axis, turned)


def _attributes(node: ir.Node) -> dict[str, Any]:
    return dict(node.attributes)


class RecogniseIntegerProduct(Rule):
    """Conv, MatMul and Gemm of dequantised operands → products of integers."""

    name: ClassVar[str] = "recognise-integer-product"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Conv", "MatMul", "Gemm")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with ConvInteger or MatMulInteger and a scale, or with QLinearConv or QLinearMatMul."""
        x, w = (_quantised(v, context, _BYTES) for v in node.inputs[:2])
        if x is None and w is None:
            return None
        if x is None or w is None:
            only = "second" if x is None else "first"
            return Reason(f"only its {only} operand is quantised to 8 bits: it stays float")
        refused = self._refusal(node, x, w, context)
        if refused is not None:
            return refused
        return self._requantised(node, x, w, context) or self._scaled(node, x, w, context)

    @staticmethod
    def _refusal(node: ir.Node, x: _Quantised, w: _Quantised, context: RuleContext) -> Reason | None:
        a, b = context.tensor(x.data).shape, context.tensor(w.data).shape
        if a is None or b is None or len(a) < 2 or len(b) < 2:
            return Reason("the rank of an operand is not known, or it is a vector")
        if x.axis is not None or x.turned:
            return Reason("its first operand has several scales, or is transposed")
        conv = node.op_type == "Conv"
        right = bool(context.attr(node, "transB", 0)) if node.op_type == "Gemm" else False
        if conv and w.turned:
            return Reason("its filters are transposed")
        if w.axis is not None and w.axis != (0 if conv or right else len(b) - 1):
            return Reason("its second operand has scales along an axis that is summed over")
        length = D.known_product(b[1:]) if conv else b[-1 if right != w.turned else -2]
        if not isinstance(length, int) or length > _LONGEST:
            return Reason(f"a sum of {length} products may not fit 32 bits")
        if node.op_type == "Gemm" and (
            context.attr(node, "transA", 0)
            or context.attr(node, "alpha", 1.0) != 1
            or context.attr(node, "beta", 1.0) != 1
        ):
            return Reason("it scales its operands or transposes the first")
        return None

    # quantised again

    def _requantised(self, node: ir.Node, x: _Quantised, w: _Quantised, context: RuleContext) -> Patch | None:
        """Where only QuantizeLinear, perhaps behind Relu, reads the result, and the bias is an integer."""
        if node.op_type == "Gemm":
            return None
        reader, relu = context.only_use(node.outputs[0]), None
        if reader is not None and reader.domain == "" and reader.op_type == "Relu":
            relu = reader
            reader = context.only_use(reader.outputs[0])
        if (
            reader is None
            or reader.domain != ""
            or reader.op_type != "QuantizeLinear"
            or reader.graph is not node.graph
        ):
            return None
        out = context.tensor(reader.outputs[0]).dtype
        scale, zero = (*reader.inputs, None)[1:3]
        asked = (context.attr(reader, "precision", 0), context.attr(reader, "block_size", 0))
        if scale is None or out not in _BYTES or any(asked) or reader.inputs[0] is scale:
            return None
        fact = context.tensor(scale)
        if fact.dtype != _FLOAT or fact.shape not in ((), (1,)):
            return None
        b = context.builder()
        bias = self._bias(node, x, w, context)
        if isinstance(bias, Reason):
            return None
        zero = b.const(np.zeros((), out.numpy())) if zero is None else zero
        operands = [x.data, x.scale, self._zero(b, x), self._turned(b, w), w.scale, self._zero(b, w), scale, zero]
        if node.op_type == "Conv":
            y = b("QLinearConv", *operands, bias, **_attributes(node))
        else:
            y = b("QLinearMatMul", *operands)
        if relu is not None:
            point = context.constant(zero)
            if point is None or point.reshape(()) != np.iinfo(out.numpy()).min:
                y = b("Max", y, zero)
        note = f"{label(node)} between integers"
        return Patch({reader.outputs[0]: y}, tuple(b.nodes), tuple(b.constants), anchor=reader, note=note)

    @staticmethod
    def _bias(node: ir.Node, x: _Quantised, w: _Quantised, context: RuleContext) -> ir.Value | Reason | None:
        """The bias in units of the product of scales; a reason if it is none."""
        if len(node.inputs) < 3 or node.inputs[2] is None:
            return None
        bias = _quantised(node.inputs[2], context, (_INT32,))
        scales = [context.constant(v) for v in (x.scale, w.scale, None if bias is None else bias.scale)]
        if bias is None or any(s is None for s in scales):
            return Reason("the bias is not quantised")
        zero = context.constant(bias.zero)
        if bias.zero is not None and (zero is None or zero.any()):
            return Reason("the bias has a zero point")
        first, second, third = (np.asarray(s, np.float64).reshape(-1) for s in scales)
        product = first * second
        if third.size not in (1, product.size) or (abs(third - product) > _SAME * abs(product)).any():
            return Reason("the bias has another scale than the product")
        return bias.data

    # left in float

    def _scaled(self, node: ir.Node, x: _Quantised, w: _Quantised, context: RuleContext) -> Patch:
        b = context.builder()
        conv = node.op_type == "Conv"
        right = self._turned(b, w)
        if node.op_type == "Gemm" and context.attr(node, "transB", 0):
            right = b("Transpose", right, perm=(1, 0))
        if conv:
            total = b("ConvInteger", x.data, right, x.zero, w.zero, **_attributes(node))
        else:
            total = b("MatMulInteger", x.data, right, x.zero, w.zero)
        rank = context.tensor(w.data).rank or 2
        shape = context.tensor(total).shape
        columns = None if shape is None else shape[1 if conv else -1]
        factor = self._factor(b, x, w, columns, rank - 2 if conv else 0, context)
        y = b("Mul", b("Cast", total, to=int(_FLOAT)), factor)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            bias = node.inputs[2]
            y = b("Add", y, b("Reshape", bias, b.ints(-1, *[1] * (rank - 2))) if conv else bias)
        return patch_from(b, node, [y], "integers, scaled")

    @staticmethod
    def _factor(
        b: Builder, x: _Quantised, w: _Quantised, count: DimLike | None, behind: int, context: RuleContext
    ) -> ir.Value:
        """The product of scales; a constant one for each of ``count`` columns, so that kernels do not differ by it."""
        first, second = context.constant(x.scale), context.constant(w.scale)
        if first is None or second is None:
            several = w.axis is not None
            one = b("Reshape", x.scale, b.ints())
            other = b("Reshape", w.scale, b.ints(-1, *[1] * behind) if several else b.ints())
            return b("Mul", one, other)
        product = np.asarray(first.reshape(()) * second, np.float32).reshape(-1)
        if not isinstance(count, int):
            return b.const(product.reshape(()) if product.size == 1 else product)
        each = np.broadcast_to(product, (count,)).reshape(-1, *[1] * behind)
        return b.const(np.ascontiguousarray(each))

    @staticmethod
    def _turned(b: Builder, w: _Quantised) -> ir.Value:
        return b("Transpose", w.data, perm=(1, 0)) if w.turned else w.data

    @staticmethod
    def _zero(b: Builder, x: _Quantised) -> ir.Value:
        """A zero point, where one has to be written."""
        if x.zero is not None:
            return x.zero
        dtype: Any = b.fact(x.data).dtype
        return b.const(np.zeros(tuple(b.shape(x.scale) or ()), dtype.numpy()))
