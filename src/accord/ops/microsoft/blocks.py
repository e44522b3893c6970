"""Expansions: weights of few bits, quantized in blocks.

A constant 4-bit weight stays packed: its bytes are those of ONNX's ``uint4``, low bits first, so it becomes the input
of a blocked DequantizeLinear as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, activate, constant_array, like_cast, reshape, size, wants
from accord.ops.microsoft.normalization import rms_normalize
from accord.ops.microsoft.schemas import DOMAIN

__all__ = ["codes", "unpack_array"]

FLOAT, INT64, UINT4, UINT8 = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.UINT4, ir.DataType.UINT8

_Array = np.ndarray[Any, Any]


def unpack_array(packed: _Array, bits: int) -> _Array:
    """Codes of ``bits`` bits from bytes, along the last axis, low bits first; a rest of fewer bits is dropped."""
    stream = np.unpackbits(packed, axis=-1, bitorder="little")
    count = stream.shape[-1] // bits
    grouped = stream[..., : count * bits].reshape(*packed.shape[:-1], count, bits)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    return np.asarray((grouped * weights).sum(axis=-1, dtype=np.uint8))


def codes(b: Builder, packed: ir.Value, bits: int, *, high_first: bool = False) -> ir.Value | None:
    """As :func:`unpack_array`, of a value, as uint8; None where codes straddle bytes of a value that is not constant.

    ``high_first`` takes the upper bits of a byte first.
    """
    if bits == 8:
        return packed
    if 8 % bits:
        array = constant_array(b, packed)
        return None if array is None else b.const(unpack_array(array, bits))
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = b(
        "BitShift",
        b("Unsqueeze", packed, b.ints(-1)),
        b.const(shifts[::-1] if high_first else shifts),
        direction="RIGHT",
    )
    single = b("BitwiseAnd", spread, b.const(np.array((1 << bits) - 1, np.uint8)))
    return b("Reshape", single, b("Concat", b("Shape", packed, end=-1), b.ints(-1), axis=0))


def _as_uint4(b: Builder, packed: _Array, shape: tuple[int, ...]) -> ir.Value:
    """Bytes as a constant of packed 4-bit integers."""
    return b.const(ir.PackedTensor(np.ascontiguousarray(packed).reshape(-1), UINT4, shape=ir.Shape(shape)))


def _packed_rows(array: _Array) -> _Array:
    """4-bit codes, one a byte, as bytes of two."""
    flat = array.reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return np.asarray(flat[0::2] | (flat[1::2] << 4), dtype=np.uint8)


# MatMulNBits ------------------------------------------------------------------------------------------------------


class _Weight:
    """A weight (N, K) of MatMulNBits and its like.

    Args:
        b: The builder.
        packed: uint8 (N, blocks, bytes of a block), or as many bytes in another shape.
        scales: (N, blocks), or flat.
        zeros: Packed uint8 (N, bytes), or floats (N, blocks), or None for half of the range.
        sizes: N, K, bits, block size.
    """

    def __init__(
        self, b: Builder, packed: ir.Value, scales: ir.Value, zeros: ir.Value | None, sizes: tuple[int, int, int, int]
    ) -> None:
        self.b = b
        self.packed = packed
        self.n, self.k, self.bits, self.block = sizes
        self.blocks = -(-self.k // self.block)
        self.scales = reshape(b, scales, self.n, self.blocks)
        self.zeros = zeros

    def dequantized(self, groups: ir.Value | None = None) -> ir.Value | None:
        """(N, K) in the dtype of the scales; ``groups`` names the block of each of the K columns."""
        b = self.b
        plain = self.zeros is None or b.fact(self.zeros).dtype == UINT8
        width = self.blocks * self.block
        if plain and groups is None and self.bits in (2, 4, 8):
            weight = self._blocked(width)
        else:
            weight = self._spelled_out(groups, width)
        if weight is None or width == self.k:
            return weight
        return b("Slice", weight, b.ints(0), b.ints(self.k), b.ints(1))

    def _blocked(self, width: int) -> ir.Value | None:
        """By DequantizeLinear; 2-bit codes become those of 4 bits, since opset 24 has no shorter ones."""
        b, half = self.b, 1 << (self.bits - 1)
        typed = self._typed((self.n, width))
        zeros = None if self.zeros is None else constant_array(b, self.zeros)
        if self.bits == 8:
            data = reshape(b, self.packed, self.n, width)
            zero = (
                b.const(np.full((self.n, self.blocks), half, np.uint8))
                if self.zeros is None
                else reshape(b, self.zeros, self.n, self.blocks)
            )
        elif typed is not None and (self.zeros is None or zeros is not None):
            data = typed
            if zeros is None:
                flat = np.full((self.n, self.blocks), half, np.uint8)
            else:
                flat = unpack_array(zeros.reshape(self.n, -1), self.bits)[:, : self.blocks]
            zero = _as_uint4(b, _packed_rows(flat), (self.n, self.blocks))
        else:
            return self._spelled_out(None, width)
        return b("DequantizeLinear", data, self.scales, zero, axis=1, block_size=self.block)

    def _typed(self, shape: tuple[int, ...]) -> ir.Value | None:
        """Codes as a constant of 4 or 8 bits; None where they are not constant, or of other sizes."""
        b, packed = self.b, constant_array(self.b, self.packed)
        if packed is None or self.bits not in (2, 4, 8):
            return None
        if self.bits == 8:
            return b.const(packed.reshape(shape))
        return _as_uint4(b, packed if self.bits == 4 else _packed_rows(unpack_array(packed, 2)), shape)

    def _of_blocks(self, x: ir.Value) -> ir.Value:
        """Scales or float zero points as (N, blocks, 1)."""
        array = constant_array(self.b, x)
        shape = (self.n, self.blocks, 1)
        return reshape(self.b, x, *shape) if array is None else self.b.const(array.reshape(shape))

    def _spelled_out(self, groups: ir.Value | None, width: int) -> ir.Value | None:
        """``(code - zero) * scale`` by arithmetic."""
        b = self.b
        plain = self.zeros is None or b.fact(self.zeros).dtype == UINT8
        typed = None if plain or groups is not None else self._typed((self.n, self.blocks, self.block))
        if typed is not None and self.zeros is not None:
            points, factors = (self._of_blocks(v) for v in (self.zeros, self.scales))
            centred = b("Sub", like_cast(b, typed, self.scales), points)
            return reshape(b, b("Mul", centred, factors), self.n, width)
        data = self._rows(self.packed)
        zero = self._zero_points()
        if data is None or zero is None:
            return None
        data = like_cast(b, data, self.scales)
        if groups is not None:
            data = b("Slice", data, b.ints(0), b.ints(self.k), b.ints(1))
            zero, scale = (b("Gather", v, groups, axis=1) for v in (zero, self.scales))
            padding = b.ints(0, 0, 0, width - self.k)
            weight = b("Mul", b("Sub", data, zero), scale)
            return weight if width == self.k else b("Pad", weight, padding)
        data = reshape(b, data, self.n, self.blocks, self.block)
        centred = b("Sub", data, b("Unsqueeze", zero, b.ints(2)))
        return reshape(b, b("Mul", centred, b("Unsqueeze", self.scales, b.ints(2))), self.n, width)

    def _rows(self, packed: ir.Value) -> ir.Value | None:
        """Codes in N rows; None where they straddle bytes that are not constant."""
        b = self.b
        array = constant_array(b, packed)
        if 8 % self.bits and array is not None:
            return b.const(unpack_array(array.reshape(self.n, -1), self.bits))
        return codes(b, reshape(b, packed, self.n, -1), self.bits)

    def _zero_points(self) -> ir.Value | None:
        """(N, blocks) in the dtype of the scales."""
        b = self.b
        if self.zeros is None:
            return b("Expand", b.scalar(1 << (self.bits - 1), self.scales), b.ints(self.n, self.blocks))
        if b.fact(self.zeros).dtype != UINT8:
            return reshape(b, self.zeros, self.n, self.blocks)
        found = self._rows(self.zeros)
        if found is None:
            return None
        return like_cast(b, b("Slice", found, b.ints(0), b.ints(self.blocks), b.ints(1)), self.scales)


def _product(b: Builder, a: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    y = b("MatMul", a, b("Transpose", weight, perm=(1, 0)))
    return y if bias is None else b("Add", y, bias)


def _is_empty(b: Builder, x: ir.Value) -> bool:
    shape = b.shape(x)
    return shape is not None and any(d == 0 for d in shape)


@expands("MatMulNBits", domain=DOMAIN)
def mat_mul_n_bits(b: Builder, n: Inference) -> Outputs:
    """The accuracy level is a permission to round the activations, of which no use is made."""
    if n.attr("weight_prepacked", 0):
        return None
    a, packed, scales = (required(n, i) for i in range(3))
    columns, bias = n.attr("N"), given(n, 5)
    if _is_empty(b, packed):
        shape = b("Concat", b("Shape", a, end=-1), b.ints(columns), axis=0)
        return [b("Expand", b.scalar(0.0, a) if bias is None else bias, shape)]
    sizes = (columns, n.attr("K"), n.attr("bits", 4), n.attr("block_size"))
    weight = _Weight(b, packed, scales, given(n, 3), sizes).dequantized(given(n, 4))
    return None if weight is None else [_product(b, a, weight, bias)]


def _projection(b: Builder, n: Inference, a: ir.Value, first: int, columns: int) -> ir.Value | None:
    """A MatMulNBits whose weight, scales and bias are inputs ``first`` on."""
    sizes = (columns, n.attr("K"), n.attr("bits", 4), n.attr("block_size"))
    weight = _Weight(b, required(n, first), required(n, first + 1), None, sizes).dequantized()
    return None if weight is None else _product(b, a, weight, given(n, first + 2))


def _normalized(b: Builder, n: Inference) -> tuple[ir.Value, ir.Value]:
    """Inputs 0 to 2 (data, skip, scale): the normalised sum, and the sum."""
    total, skip, scale = required(n, 0), given(n, 1), given(n, 2)
    if skip is not None:
        total = b("Add", total, skip)
    return (total if scale is None else rms_normalize(b, total, scale, n.attr("epsilon", 1e-6))), total


@expands("MatMulNBitsMlp", domain=DOMAIN)
def mat_mul_n_bits_mlp(b: Builder, n: Inference) -> Outputs:
    """Gate and up projection of one input."""
    a, total = _normalized(b, n)
    gate, up = (_projection(b, n, a, first, n.attr("N")) for first in (3, 6))
    activated = None if gate is None else activate(b, gate, n.attr("activation"))
    if activated is None or up is None:
        return None
    return [b("Mul", activated, up), total]


@expands("MatMulNBitsQkv", domain=DOMAIN)
def mat_mul_n_bits_qkv(b: Builder, n: Inference) -> Outputs:
    """Query, key and value projection of one normalised input."""
    a, total = _normalized(b, n)
    widths = (n.attr("Nq"), n.attr("Nkv"), n.attr("Nkv"))
    results = [_projection(b, n, a, 3 + 3 * i, width) for i, width in enumerate(widths)]
    return None if any(r is None for r in results) else [*results, total if wants(n, 3) else None]


@expands("MatMulNBitsQLoRA", domain=DOMAIN)
def mat_mul_n_bits_q_lora(b: Builder, n: Inference) -> Outputs:
    """A base projection and a low-rank detour."""
    x, columns, inner = required(n, 0), n.attr("N"), n.attr("K")
    base = _Weight(
        b, required(n, 1), required(n, 2), None, (columns, inner, n.attr("bits", 4), n.attr("block_size", 32))
    )
    weight = base.dequantized()
    if weight is None:
        return None
    y = _product(b, x, weight, None)
    if _is_empty(b, required(n, 5)):
        return [y]
    rank = (b.shape(required(n, 3)) or (None,))[0]
    if not isinstance(rank, int) or _is_empty(b, required(n, 3)):
        return None
    bits, block = n.attr("lora_bits", 8), n.attr("lora_block_size", 32)
    down = _Weight(b, required(n, 3), required(n, 4), None, (rank, inner, bits, block)).dequantized()
    up = _Weight(b, required(n, 5), required(n, 6), None, (columns, rank, bits, block)).dequantized()
    if down is None or up is None:
        return None
    return [b("Add", y, _product(b, _product(b, x, down, None), up, None))]


# Tables -----------------------------------------------------------------------------------------------------------


@expands("GatherBlockQuantized", domain=DOMAIN)
def gather_block_quantized(b: Builder, n: Inference) -> Outputs:
    """Packed bytes are gathered before they are unpacked; typed data is dequantized first, for Gather has no 4 bits."""
    data, indices, scales, zeros = required(n, 0), required(n, 1), required(n, 2), given(n, 3)
    shape, scale_shape = n.tensor(0).shape, n.tensor(2).shape
    if shape is None or scale_shape is None:
        return None
    gather_axis = n.axis(n.attr("gather_axis", 0), len(shape))
    axis = n.axis(n.attr("quantize_axis", 1), len(shape))
    block = n.attr("block_size", 128)
    if n.tensor(0).dtype != UINT8:
        if not block:
            width = shape[axis]
            if not isinstance(width, int):
                return None
            block = width
        leading = b.ints(*(d if i != axis and isinstance(d, int) else 1 for i, d in enumerate(shape)))
        # A size of 1 in the scales repeats over the data.
        scales = b("Expand", scales, leading)
        table = b("DequantizeLinear", data, scales, zeros, axis=axis, block_size=block)
        return [b("Gather", table, indices, axis=gather_axis)]
    bits = n.attr("bits", 4)
    if gather_axis == axis:
        return None
    rows = codes(b, b("Gather", data, indices, axis=gather_axis), bits)
    factors = b("Gather", scales, indices, axis=gather_axis)
    rank = n.tensor(1).rank
    if rows is None or rank is None:
        return None
    moved = axis + rank - 1 if axis > gather_axis else axis
    if zeros is None:
        zero = b.scalar(1 << (bits - 1), factors)
    else:
        packed = codes(b, b("Gather", zeros, indices, axis=gather_axis), bits)
        if packed is None:
            return None
        limit = size(b, factors, -1)
        zero = like_cast(b, b("Slice", packed, b.ints(0), limit, b.ints(-1)), factors)
        zero = _spread(b, zero, moved, block, rows)
    weight = b("Sub", like_cast(b, rows, factors), zero)
    return [b("Mul", weight, _spread(b, factors, moved, block, rows))]


def _spread(b: Builder, x: ir.Value, axis: int, block: int, like: ir.Value) -> ir.Value:
    """One value for each element of a block along ``axis``, as many as ``like`` has."""
    steps = b(
        "Range",
        b.const(np.array(0, np.int64)),
        b("Squeeze", size(b, like, axis), b.ints(0)),
        b.const(np.array(1, np.int64)),
    )
    return b("Gather", x, b("Div", steps, b.const(np.array(block, np.int64))), axis=axis)


#: Values of the 4-bit codes, by ``quant_type``. 0: a float with three exponent codes, over its greatest value, 12.
#: 1: quantiles of the normal distribution. Dettmers et al., "QLoRA" (2023), appendix E.
_BNB4_VALUES = (
    np.array([s * v / 12 for s in (1, -1) for v in (0, 0.0625, 8, 12, 4, 6, 2, 3)], np.float32),
    np.array(
        [
            *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
            *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
            *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
            *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
        ],
        np.float32,
    ),
)


@expands("MatMulBnb4", domain=DOMAIN)
def mat_mul_bnb4(b: Builder, n: Inference) -> Outputs:
    """Codes index a table of 16 values; blocks run over the flattened weight."""
    a, absmax = required(n, 0), required(n, 2)
    columns, inner, block = n.attr("N"), n.attr("K"), n.attr("block_size")
    count = columns * inner
    found = codes(b, reshape(b, required(n, 1), -1), 4, high_first=True)
    assert found is not None
    index = b("Cast", b("Slice", found, b.ints(0), b.ints(count), b.ints(0)), to=int(ir.DataType.INT32))
    table = like_cast(b, b.const(_BNB4_VALUES[n.attr("quant_type")]), absmax)
    values = b("Gather", table, index, axis=0)
    blocks = -(-count // block)
    padded = b("Pad", values, b.ints(0, blocks * block - count)) if blocks * block != count else values
    scaled = b("Mul", reshape(b, padded, blocks, block), reshape(b, absmax, blocks, 1))
    weight = reshape(b, b("Slice", reshape(b, scaled, -1), b.ints(0), b.ints(count), b.ints(0)), columns, inner)
    if n.attr("transB", 1):
        weight = b("Transpose", weight, perm=(1, 0))
    return [b("MatMul", a, weight)]
