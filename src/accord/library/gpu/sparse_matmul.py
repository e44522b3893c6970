"""Sparse times dense on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import ITEM, ceildiv, power_of_two

__all__ = ["BLOCKS", "CLAUSES", "ROWS"]

#: Sparse operators are for float32 and float64; the latter stays on the CPU.
CLAUSES: Mapping[str, Any] = {"types": {"T": ("float32",)}, "execution": {"layouts": ("contiguous",)}}
_JIT = "accord.library.gpu.jit.sparse"

ROWS = (
    TritonCode(
        f"{_JIT}:sparse_matmul",
        lambda k: (k["R"] - 1, ceildiv(k["N"], k["BLOCK_N"])),
        lambda k: {"BLOCK_N": min(128, max(16, power_of_two(k["N"]))), "BLOCK_E": 16, "num_warps": 4},
        samples=({"R": 1025, "E": 65536, "K": 1024, "N": 512},),
    ),
)


def _blocks(k: Mapping[str, Any]) -> dict[str, Any]:
    short = ITEM[k["T"]] == 2
    return {
        "BR": k["BR"],
        "BC": k["BC"],
        "BLOCK_R": max(16, power_of_two(k["BR"])),
        "BLOCK_C": min(32 if not short else 64, max(16, power_of_two(k["BC"]))),
        "BLOCK_N": min(64 if not short else 128, max(16, power_of_two(k["N"]))),
        "PRECISION": "tf32" if short else "ieee",
        "num_warps": 4 if k["BR"] <= 64 else 8,
    }


BLOCKS = (
    TritonCode(
        f"{_JIT}:block_sparse_matmul",
        lambda k: (k["R"] - 1, ceildiv(k["N"], k["BLOCK_N"])),
        _blocks,
        samples=({"R": 33, "E": 256, "BR": 64, "BC": 64, "K": 2048, "N": 1024, "rows": 2048},),
    ),
)
