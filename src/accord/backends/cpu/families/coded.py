"""Constant weights of a few bits in blocks, which a product reads as they are.

They reach a kernel as the nodes that would expand them: DequantizeLinear, perhaps a Slice that drops the padding of the
last block, perhaps a Transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.backends.cpu.codes import Codes
from accord.backends.cpu.contraction import RightMatrix, accumulator, pack_coded
from accord.backends.protocol import Array
from accord.backends.view import NodeView
from accord.expr.onnx_ops import dtype_name
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason

__all__ = ["PREPARES", "CodedWeight", "coded_weight"]

#: Operators that may stand between a weight and its product.
PREPARES = frozenset({"DequantizeLinear", "Slice", "Transpose"})
#: Bytes of the weight in f32 from which on it stays as it is: a smaller one is read from a cache in no time.
LEAST_BYTES = 1 << 20
#: Bits of a code, and what is added to it to make it unsigned.
_TYPES = {
    ir.DataType.UINT2: (2, 0),
    ir.DataType.INT2: (2, 2),
    ir.DataType.UINT4: (4, 0),
    ir.DataType.INT4: (4, 8),
    ir.DataType.UINT8: (8, 0),
    ir.DataType.INT8: (8, 128),
}


@dataclass(frozen=True)
class CodedWeight:
    """A weight [k, n] that stays packed.

    Attributes:
        codes: How it is coded.
        k: Length of the sums.
        n: Columns.
        data: Codes as in the model, [n, k] or [k, n].
        scales: Likewise.
        zeros: Likewise, if there are any.
        turned: Those are [n, k].
    """

    codes: Codes
    k: int
    n: int
    data: TensorFact
    scales: TensorFact
    zeros: TensorFact | None
    turned: bool

    @property
    def right(self) -> RightMatrix:
        """As B of a contraction."""
        return RightMatrix("u8", (), packed=True, codes=self.codes)

    def packed(self) -> Array:
        """The bytes that the kernel reads."""
        zeros = None if self.zeros is None or self.codes.zero is not None else self._unsigned(self.zeros)
        scales = self.scales.numpy()
        weight = self._unsigned(self.data)[: self.n] if self.turned else self._unsigned(self.data)[:, : self.n].T
        scales = scales if self.turned else scales.T
        return pack_coded(self.codes, weight[:, : self.k], scales, zeros if self.turned or zeros is None else zeros.T)

    @staticmethod
    def _unsigned(fact: TensorFact) -> Array:
        assert fact.dtype is not None
        shift = _TYPES[fact.dtype][1]
        array = fact.numpy()
        return array.astype(np.uint8) if not shift else (array.astype(np.int8) + np.int16(shift)).astype(np.uint8)


def coded_weight(nodes: Sequence[NodeView], product: NodeView) -> CodedWeight | Reason:
    """The weight that ``nodes``, of :data:`PREPARES` and in graph order, expand for ``product``; or why not.

    Args:
        nodes: The first is DequantizeLinear; each other one reads the one before.
        product: MatMul or Gemm, whose input 1 is the last one's result.
    """
    first = nodes[0]
    if first.node.op_type != "DequantizeLinear" or product.node.op_type not in ("MatMul", "Gemm"):
        return Reason("only products read weights of a few bits")
    data, scales = first.tensor(0), first.tensor(1)
    zeros = first.tensor(2) if first.has(2) else None
    if not data.is_const or not scales.is_const or (zeros is not None and not zeros.is_const):
        return Reason("the weight, its scales or its zero points are not constant")
    dtype = None if scales.dtype is None else dtype_name(scales.dtype)
    if data.dtype not in _TYPES or dtype not in ("f32", "f16", "bf16"):
        return Reason(f"codes are 2, 4 or 8 bits and scales f32, f16 or bf16, not {data.dtype} and {scales.dtype}")
    expected = product.tensor(0).dtype
    if first.output().dtype != scales.dtype or expected != scales.dtype or accumulator(dtype) != "f32":
        return Reason("the product is of another type than the scales")
    width, shift = _TYPES[data.dtype]
    block, axis = int(first.attr("block_size", 0)), int(first.attr("axis", 1)) % 2
    shape = tuple(data.const.shape.numpy()) if data.const is not None else ()
    if len(shape) != 2 or not block:
        return Reason("it is no matrix with scales in blocks")
    turned = bool(product.attr("transB", 0)) if product.node.op_type == "Gemm" else False
    turned ^= sum(n.node.op_type == "Transpose" for n in nodes) % 2 == 1
    if axis != (1 if turned else 0):
        return Reason("its blocks do not lie along the sums")
    if block % (32 // width):
        return Reason(f"blocks of {block} codes of {width} bits are no whole words")
    final = nodes[-1].output().shape
    size = tuple(d for d in final or () if isinstance(d, int))
    if len(size) != 2:
        return Reason("its size is not known")
    if product.node.op_type == "Gemm" and product.attr("transB", 0):
        size = size[::-1]
    if size[0] * size[1] * 4 < LEAST_BYTES:
        return Reason(f"expanded to {size[0] * size[1] * 4 >> 10} KiB it is read faster")
    if not all(_drops_the_end(n) for n in nodes if n.node.op_type == "Slice"):
        return Reason("a part of it is cut out")
    own = shift
    if zeros is not None:
        points = CodedWeight._unsigned(zeros)
        own = int(points.flat[0]) if points.size and bool((points == points.flat[0]).all()) else -1
    codes = Codes(width, block, dtype, None if own < 0 else own)
    return CodedWeight(codes, size[0], size[1], data, scales, zeros, turned)


def _drops_the_end(view: NodeView) -> bool:
    """Whether a Slice leaves out nothing but what comes last."""
    steps = view.tensor(4).elements() if view.has(4) else None
    return set(view.tensor(1).elements() or (1,)) == {0} and set(steps or (1,)) == {1}
