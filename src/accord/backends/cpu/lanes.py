"""Products of 8-bit integers: lanes of 32 bits hold several elements along k, whose products one instruction adds up.

Where the processor multiplies four unsigned by four signed bytes of a lane (VNNI), A's panels are unsigned and B's
signed: what has the other sign is moved by 128, and its zero point with it. Elsewhere a lane has two elements of 16
bits, whose products and their sum are exact (PMADDWD). Sums wrap around at 32 bits and are never saturated.

With zero points ``za`` and ``zb``, both moved like the elements::

    sum((a - za) * (b - zb)) = sum(a * b) - za * sum(b - zb) - zb * sum(a)

The first sum is what tiles compute. The second is one number for each column, made when B is packed. The third is one
for each row; it is only taken where ``zb`` is not zero after moving.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.machine import machine
from accord.backends.cpu.panels import aligned
from accord.backends.cpu.transpose import moved_by
from accord.backends.protocol import Array
from accord.expr.lang import bits
from accord.record import record

__all__ = ["INTEGERS", "Lanes", "lanes", "lanes_for", "multiply", "pack_lanes", "packed_length", "padded_columns"]

#: Element types of the operands of integer products.
INTEGERS: Final = frozenset({"u8", "i8"})


@record
class Lanes:
    """How elements along k are joined.

    Attributes:
        count: Elements of a lane.
        left: Element type of A's panels.
        right: Element type of B's panels.
    """

    count: int
    left: str
    right: str


def _has_bytes() -> bool:
    m = machine()
    return "avx512vnni" in m.has if m.vector_bits == 512 else "avxvnni" in m.has and m.vector_bits == 256


@functools.cache
def lanes() -> Lanes:
    """Lanes of this machine."""
    return Lanes(4, "u8", "i8") if _has_bytes() else Lanes(2, "i16", "i16")


def lanes_for(dtype: str) -> Lanes:
    """Lanes of a product that is summed in ``dtype``: of single elements for floats."""
    return lanes() if dtype == "i32" else Lanes(1, dtype, dtype)


def multiply(b: Builder, width: int, total: str, left: str, right: str, name: str = "") -> str:
    """``total`` plus the products of the elements of each lane, as ``name``; all are vectors of ``width`` i32."""
    name = name or b.fresh()
    joined = lanes()
    sums, elements = f"<{width} x i32>", f"<{width * joined.count} x i{bits(joined.left)}>"
    left, right = (b.op(f"bitcast {sums} {x} to {elements}") for x in (left, right))
    if joined.count == 4:
        function = f"@llvm.x86.avx512.vpdpbusd.{width * 32}"
        b.declare(f"declare {sums} {function}({sums}, {elements}, {elements})")
        b.emit(f"{name} = call {sums} {function}({sums} {total}, {elements} {left}, {elements} {right})")
        return name
    half = f"<{width} x i16>"
    products = []
    for part in range(2):
        index = ", ".join(f"i32 {2 * k + part}" for k in range(width))
        wide = []
        for x in (left, right):
            own = b.op(f"shufflevector {elements} {x}, {elements} poison, <{width} x i32> <{index}>")
            wide.append(b.op(f"sext {half} {own} to {sums}"))
        products.append(b.op(f"mul {sums} {wide[0]}, {wide[1]}"))
    pair = b.op(f"add {sums} {products[0]}, {products[1]}")  # LLVM sees PMADDWD in this
    b.emit(f"{name} = add {sums} {total}, {pair}")
    return name


def padded_columns(n: int) -> int:
    """Columns of all panels of B, whose lines are whole vectors."""
    width = machine().width(32)
    return -(-n // width) * width


def packed_length(groups: int, k: int, n: int) -> tuple[int, int, int]:
    """Where a packed B has its panels' end and its factors, and where it ends, counted in elements of 32 bits."""
    columns = groups * -(-k // lanes().count) * padded_columns(n)
    factors = columns + -(-groups * n // 2) * 2
    return columns, factors, factors + 2 * groups * n


def pack_lanes(
    matrices: Array,
    vectors: int,
    zero: Array | None,
    left_zero: int | None = None,
    bias: Array | None = None,
    factors: Array | None = None,
) -> Array:
    """Constant 8-bit matrices as panels of lanes, and what the epilogue needs for each column.

    Args:
        matrices: [groups, k, n], u8 or i8, any strides.
        vectors: Vectors of a panel's line; the last panel is as narrow as it can be.
        zero: Zero points that broadcast to [groups, 1, n]; None for 0.
        left_zero: A's zero point, moved as A is, if it is constant.
        bias: i32 that broadcasts to [groups, n], for a constant ``left_zero``.
        factors: f32 or f64 that broadcast to [groups, n].

    Returns:
        i32, see :func:`packed_length`: the panels, one after the other, then for each column the sum of B less its zero
        point, or, with ``left_zero``, ``bias - left_zero * sum``; then the factors.
    """
    joined = lanes()
    groups, k, n = matrices.shape
    wide = vectors * machine().width(32)
    columns_at, factors_at, end = packed_length(groups, k, n)
    packed = aligned((end,), np.int32)
    packed[columns_at:] = 0
    number = "u1" if matrices.dtype == np.uint8 else "i1"
    moved = matrices.astype(np.int16) + np.int16(moved_by("u8" if number == "u1" else "i8", joined.right))
    depth = -(-k // joined.count)
    whole = padded_columns(n)
    padded = np.zeros((groups, depth * joined.count, whole), np.int8 if joined.count == 4 else np.int16)
    padded[:, :k, :n] = moved
    lines = padded.reshape(groups, depth, joined.count, whole).transpose(0, 1, 3, 2)
    target = packed[:columns_at].reshape(groups, -1)
    for first in range(0, n, wide):
        line = min(wide, whole - first)
        panel = target[:, depth * first : depth * (first + line)].reshape(groups, depth, line)
        panel[...] = np.ascontiguousarray(lines[:, :, first : first + line]).view(np.int32)[..., 0]
    sums = matrices.sum(axis=1, dtype=np.int64)
    if zero is not None:
        sums = sums - k * np.broadcast_to(zero.astype(np.int64), (groups, 1, n))[:, 0]
    if left_zero is not None:
        sums = -left_zero * sums
        if bias is not None:
            sums = sums + np.broadcast_to(bias.astype(np.int64), sums.shape)
    packed[columns_at : columns_at + groups * n] = sums.reshape(-1).astype(np.int32)  # modulo 2**32
    if factors is not None:
        packed[factors_at:].view(factors.dtype)[: groups * n] = np.broadcast_to(factors, (groups, n)).reshape(-1)
    return packed
