"""What launches share: arithmetic on sizes, and the clauses of kernels for GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

__all__ = [
    "CLAUSES",
    "ITEM",
    "MANY",
    "MOVES",
    "WITH_EPILOGUE",
    "ceildiv",
    "power_of_two",
    "row_block",
    "turn",
    "turned",
    "unit_bytes",
]

#: Bytes of an element.
ITEM: Final = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    **{f"{s}int{n}": n // 8 for s in ("", "u") for n in (8, 16, 32, 64)},
    "bool": 1,
}

#: Places of which a block may not end within 32 bits.
MANY: Final = (1 << 31) - (1 << 16)

#: Of kernels that compute: short floats and float32, in row-major memory.
CLAUSES: Final[Mapping[str, Any]] = {
    "types": {"T": ("float32", "float16", "bfloat16")},
    "execution": {"layouts": ("contiguous",)},
}
#: Of those that call what follows on the blocks of their result.
WITH_EPILOGUE: Final[Mapping[str, Any]] = {**CLAUSES, "scheduling": {"epilogue": True}}
#: Of kernels that only move bytes.
MOVES: Final[Mapping[str, Any]] = {"execution": {"layouts": ("contiguous",)}}


def ceildiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


def unit_bytes(length: int, most: int = 8) -> int:
    """The largest power of two, up to ``most``, that divides ``length`` bytes."""
    return math.gcd(length, most) if length else most


def row_block(length: int, most: int) -> tuple[int, int]:
    """For rows of ``length``: the block that holds one, no more than ``most``, and the warps that share it."""
    block = min(power_of_two(length), most)
    return block, 1 if block <= 1024 else 4 if block <= 4096 else 8 if block <= 8192 else 16


def turned(k: Mapping[str, Any]) -> tuple[int, ...]:
    """Programs that bring the channels of images [N, C, H, W] to the end, and a pixel of zeros behind them."""
    return ceildiv(k["N"] * k["H"] * k["W"] + 1, k["BLOCK"]), ceildiv(k["C"], k["BLOCK"])


def turn(k: Mapping[str, Any]) -> dict[str, Any]:
    """Their parameters."""
    return {"PLANE": max(1, k["H"] * k["W"]), "BLOCK": 64, "WIDE": k["N"] * k["H"] * k["W"] >= MANY}
