"""PixelShuffle and its inverse on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import ITEM, MOVES, ceildiv, power_of_two

__all__ = ["CLAUSES", "SHUFFLE", "UNSHUFFLE"]

CLAUSES = MOVES
_JIT = "accord.library.gpu.jit.movement"
#: Bytes that a program moves.
_PROGRAM = 8 << 10


def _type(k: Mapping[str, Any]) -> Any:
    import triton.language as tl

    return {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}[ITEM[k["T"]]]


def _pieces(k: Mapping[str, Any], planes: int, low: int, wide: int) -> dict[str, Any]:
    """For so many planes on the side of large ones, and the sizes of small ones."""
    f = k["factor"]
    ways, rows = power_of_two(f), planes * low * f
    block = min(max(16, 1024 // ways), max(16, power_of_two(wide)))
    high = max(1, _PROGRAM // (ITEM[k["T"]] * ways * block))
    return {
        "FACTOR": f,
        "H": low,
        "WIDTH": max(1, wide),
        "ROWS": rows,
        "WIDE": rows + high >= 1 << 31,
        "UNIT": _type(k),
        "WAYS": ways,
        "BLOCK": block,
        "HIGH": high,
    }


def _rows(k: Mapping[str, Any]) -> tuple[int, ...]:
    return ceildiv(k["ROWS"], k["HIGH"]), ceildiv(k["WIDTH"], k["BLOCK"])


SHUFFLE = (
    TritonCode(
        f"{_JIT}:pixel_shuffle",
        _rows,
        lambda k: _pieces(k, k["N"] * k["C"] // k["factor"] ** 2, k["H"], k["W"]),
        samples=({"N": 1, "C": 64, "H": 64, "W": 64, "factor": 2},),
    ),
)
UNSHUFFLE = (
    TritonCode(
        f"{_JIT}:pixel_unshuffle",
        _rows,
        lambda k: _pieces(k, k["N"] * k["C"], k["H"] // k["factor"], k["W"] // k["factor"]),
        samples=({"N": 1, "C": 16, "H": 128, "W": 128, "factor": 2},),
    ),
)
