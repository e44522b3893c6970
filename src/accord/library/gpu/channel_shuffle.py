"""ChannelShuffle on a GPU: one pass at the speed of a copy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accord.contract.code import CudaCode, TritonCode
from accord.library.gpu.launching import ITEM, MOVES, ceildiv, unit_bytes

__all__ = ["CLAUSES", "CUDA", "TRITON"]

CLAUSES = MOVES
#: Bytes that a program of Triton, and a thread of CUDA C++, moves.
_PROGRAM, _THREAD = 8 << 10, 64


def _meta(k: Mapping[str, Any]) -> dict[str, Any]:
    plane = k["H"] * k["W"] * ITEM[k["T"]]
    unit = unit_bytes(plane)
    total = max(1, k["C"] * plane // unit)
    block = min(_PROGRAM // unit, max(128, 1 << (total - 1).bit_length()))
    return {
        "GROUPS": k["groups"],
        "CHANNELS": k["C"],
        "PLANE": max(1, plane // unit),
        "UNIT": _type(unit),
        "WIDE": total + block >= 1 << 31,
        "BLOCKS": ceildiv(total, block),
        "BLOCK": block,
        "num_warps": 8 if block >= 1024 else 4,
    }


def _type(unit: int) -> Any:
    import triton.language as tl

    return {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}[unit]


def _grid(k: Mapping[str, Any]) -> tuple[int, ...]:
    return (k["N"] * k["BLOCKS"] if k["C"] * k["H"] * k["W"] else 0,)


_SAMPLES = ({"N": 8, "C": 256, "H": 56, "W": 56, "groups": 4}, {"N": 8, "C": 240, "H": 7, "W": 7, "groups": 3})

TRITON = (TritonCode("accord.library.gpu.jit.movement:channel_shuffle", _grid, _meta, samples=_SAMPLES),)


def _constants(k: Mapping[str, Any]) -> dict[str, Any]:
    plane = k["H"] * k["W"] * ITEM[k["T"]]
    unit = unit_bytes(plane, 16)
    per = _THREAD // unit
    total = max(1, k["C"] * plane // unit)
    return {
        "UNIT": {1: "char", 2: "short", 4: "int", 8: "int2", 16: "int4"}[unit],
        "GROUPS": k["groups"],
        "CHANNELS": f"{k['C']}u",
        "PLANE": f"{max(1, plane // unit)}u",
        "PER": per,
        "THREADS": 256,
        "INDEX": "unsigned" if total + 256 * per < 1 << 32 else "unsigned long long",
        "BLOCKS": ceildiv(total, 256 * per),
    }


CUDA = (
    CudaCode(
        Path(__file__).with_name("channel_shuffle.cu"),
        "channel_shuffle",
        ("x", "output"),
        _grid,
        lambda k: (k["THREADS"],),
        meta=_constants,
        samples=_SAMPLES,
    ),
)
