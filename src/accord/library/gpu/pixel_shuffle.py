"""PixelShuffle and its inverse on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import ITEM, MOVES, ceildiv, power_of_two

__all__ = ["CLAUSES", "SHUFFLE", "UNSHUFFLE"]

CLAUSES = MOVES
_JIT = "accord.library.gpu.jit.movement"


def _type(k: Mapping[str, Any]) -> Any:
    import triton.language as tl

    return {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}[ITEM[k["T"]]]


def _shuffle(k: Mapping[str, Any]) -> dict[str, Any]:
    width = k["W"] * k["factor"]
    return {
        "FACTOR": k["factor"],
        "WIDTH": max(1, k["W"]),
        "UNIT": _type(k),
        "ROWS": k["factor"],
        "BLOCK": min(1024, max(32, power_of_two(width))),
    }


def _rows(k: Mapping[str, Any]) -> tuple[int, ...]:
    f = k["factor"]
    rows = k["N"] * (k["C"] // (f * f)) * k["H"] * f
    return rows // k["ROWS"], ceildiv(k["W"] * f, k["BLOCK"])


SHUFFLE = (
    TritonCode(f"{_JIT}:pixel_shuffle", _rows, _shuffle, samples=({"N": 1, "C": 64, "H": 64, "W": 64, "factor": 2},)),
)


def _unshuffle(k: Mapping[str, Any]) -> dict[str, Any]:
    block = min(1024, max(32, power_of_two(k["W"])))
    return {"FACTOR": k["factor"], "WIDTH": max(1, k["W"]), "UNIT": _type(k), "BLOCK": block}


UNSHUFFLE = (
    TritonCode(
        f"{_JIT}:pixel_unshuffle",
        lambda k: (k["N"] * k["C"] * k["H"], ceildiv(k["W"], k["BLOCK"])),
        _unshuffle,
        samples=({"N": 1, "C": 16, "H": 128, "W": 128, "factor": 2},),
    ),
)
