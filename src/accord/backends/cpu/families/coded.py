"""Constant weights of a few bits in blocks, which a product reads as they are.

They reach a kernel as the nodes that would expand them: DequantizeLinear (or its arithmetic, where zero points are no
integers), perhaps a Slice that drops the padding of the last block, perhaps a Transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from accord.backends.cpu.codes import Codes, words_of
from accord.backends.cpu.contraction import RightMatrix, pack_coded
from accord.backends.protocol import Array
from accord.backends.view import NodeView
from accord.expr.onnx_ops import dtype_name
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason

__all__ = ["PREPARES", "CodedWeight", "coded_weight"]

#: Operators that may stand between a weight and its product.
PREPARES = frozenset({"Cast", "DequantizeLinear", "Mul", "Reshape", "Slice", "Sub", "Transpose"})
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
        data: Codes as in the model, [n, k] or [k, n], their last axis perhaps in blocks.
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
        blocks = -(-self.k // self.codes.block)  # a Slice may have dropped whole ones
        zeros = None if self.zeros is None or self.codes.zero is not None else self._matrix(self.zeros)[:, :blocks]
        return pack_coded(self.codes, self._words(), self._matrix(self.scales)[:, :blocks], zeros)

    def _words(self) -> Array:
        """Words of unsigned codes along k; where rows are whole words, those of the model but for signs."""
        stored, codes = self.data.const, self.codes
        assert stored is not None and stored.dtype is not None
        rows = int(stored.shape.numpy()[0])
        if not self.turned or stored.size // rows % codes.word:
            return words_of(codes, self._matrix(self.data))
        flip = sum(_TYPES[stored.dtype][1] << codes.bits * j for j in range(codes.word))
        return np.frombuffer(stored.tobytes(), "<u4").reshape(rows, -1)[: self.n] ^ np.uint32(flip)

    def _matrix(self, fact: TensorFact) -> Array:
        """[n, ...], codes and integer zero points unsigned."""
        array = _unsigned(fact)
        return (array.reshape(array.shape[0], -1) if self.turned else array.T)[: self.n]


def _unsigned(fact: TensorFact) -> Array:
    array = fact.numpy()
    known = None if fact.dtype is None else _TYPES.get(fact.dtype)
    if known is None:
        return array
    return array.astype(np.uint8) if not known[1] else (array.astype(np.int8) + np.int16(known[1])).astype(np.uint8)


def coded_weight(nodes: Sequence[NodeView], product: NodeView) -> CodedWeight | Reason:
    """The weight that ``nodes``, of :data:`PREPARES` and in graph order, expand for ``product``; or why not.

    Args:
        nodes: The first is DequantizeLinear, or a Cast, which Sub and Mul of constants and a Reshape follow. Each other
            one reads the one before.
        product: MatMul or Gemm, whose input 1 is the last one's result.
    """
    if product.tensor(0).shape is None:
        return Reason("the rank of the other operand is not known")
    found = _constants(nodes)
    if isinstance(found, Reason):
        return found
    (data, scales, zeros, block, axis), rest = found
    if not all(f is None or f.is_const for f in (data, scales, zeros)):
        return Reason("the weight, its scales or its zero points are not constant")
    dtype = None if scales.dtype is None else dtype_name(scales.dtype)
    if data.dtype not in _TYPES or dtype not in ("f32", "f16", "bf16"):
        return Reason(f"codes are 2, 4 or 8 bits and scales f32, f16 or bf16, not {data.dtype} and {scales.dtype}")
    if any(f != scales.dtype for f in (nodes[-1].output().dtype, product.tensor(0).dtype)):
        return Reason("the product is of another type than the scales")
    across = product.node.op_type == "Gemm" and bool(product.attr("transB", 0))
    turned = across ^ (sum(n.node.op_type == "Transpose" for n in rest) % 2 == 1)
    if axis != (1 if turned else 0):
        return Reason("its blocks do not lie along the sums")
    width, own = _TYPES[data.dtype]
    if not block or block % (32 // width):
        return Reason(f"blocks of {block} codes of {width} bits are no whole words")
    size = tuple(d for d in nodes[-1].output().shape or () if isinstance(d, int))
    if len(size) != 2:
        return Reason("it is no matrix of known size")
    k, n = size[::-1] if across else size
    if k * n * 4 < LEAST_BYTES:
        return Reason(f"expanded to {k * n * 4 >> 10} KiB it is read faster")
    if not all(_drops_the_end(v) for v in rest if v.node.op_type == "Slice"):
        return Reason("a part of it is cut out")
    points = "u8"
    if zeros is not None and zeros.dtype not in _TYPES:
        own, points = -1, dtype
    elif zeros is not None:
        array = _unsigned(zeros)
        own = int(array.flat[0]) if array.size and bool((array == array.flat[0]).all()) else -1
    codes = Codes(width, block, dtype, None if own < 0 else own, points)
    return CodedWeight(codes, k, n, data, scales, zeros, turned)


#: Codes, scales, zero points, the length of a block, and the axis along which it lies.
_Constants: TypeAlias = tuple[TensorFact, TensorFact, TensorFact | None, int, int]


def _constants(nodes: Sequence[NodeView]) -> tuple[_Constants, Sequence[NodeView]] | Reason:
    """What a weight is made of, and the nodes that move it then."""
    first, names = nodes[0], [n.node.op_type for n in nodes]
    rest = nodes[4:] if names[0] == "Cast" else nodes[1:]
    if any(n.node.op_type not in ("Slice", "Transpose") for n in rest):
        return Reason("it is computed in another way than from codes, scales and zero points")
    if names[0] == "DequantizeLinear":
        zeros = first.tensor(2) if first.has(2) else None
        axis = int(first.attr("axis", 1)) % 2
        return (first.tensor(0), first.tensor(1), zeros, int(first.attr("block_size", 0)), axis), rest
    if names[:4] != ["Cast", "Sub", "Mul", "Reshape"]:
        return Reason("it is computed in another way than from codes, scales and zero points")
    data, zeros, scales = first.tensor(0), nodes[1].tensor(1), nodes[2].tensor(1)
    shape, matrix = data.shape or (), nodes[3].output().shape or ()
    few = (*shape[:2], 1)
    block = shape[-1] if len(shape) == 3 else None
    if not isinstance(block, int) or not few == zeros.shape == scales.shape:
        return Reason("it has no scale and zero point for each block of a row")
    if matrix != (shape[0], shape[1] * shape[2]):
        return Reason("its blocks do not make rows")
    return (data, scales, zeros, block, 1), rest


def _drops_the_end(view: NodeView) -> bool:
    """Whether a Slice leaves out nothing but what comes last."""
    steps = view.tensor(4).elements() if view.has(4) else None
    return set(view.tensor(1).elements() or (1,)) == {0} and set(steps or (1,)) == {1}
