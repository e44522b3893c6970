"""LayerNorm, RMSNorm, GroupNorm and softmax on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accord.contract.code import CudaCode, TritonCode
from accord.library.gpu.launching import CLAUSES, ITEM, ceildiv, power_of_two

__all__ = ["CLAUSES", "CUDA_CLAUSES", "GROUP_NORM", "LAYER_NORM", "LAYER_NORM_CUDA", "RMS_NORM", "SOFTMAX"]

_ROWS = "accord.library.gpu.jit.rows"
#: Elements of the longest row that stays in registers, and of the pieces of longer ones.
LONGEST, PIECE = 16384, 4096
#: Bytes, read and written, of which no cache keeps enough for whoever is next.
STREAMED = 64 << 20
_SAMPLES = ({"D": 768}, {"D": 4096}, {"D": 16384}, {"D": 20000})


def _short(k: Mapping[str, Any]) -> dict[str, Any]:
    """One row a program; rows of a few elements together, so that a warp has something to do."""
    block = power_of_two(k["D"])
    warps = 1 if block <= 1024 else 4 if block <= 8192 else 16
    return {"ROWS": max(1, 256 // block), "BLOCK": block, "num_warps": warps}


def _norm(k: Mapping[str, Any]) -> dict[str, Any]:
    tile = _short(k)
    return {
        **tile,
        "EVEN": k["D"] == tile["BLOCK"] and k.get("ROWS", tile["ROWS"]) == 1,
        "STREAM": 2 * k["lead"] * k["D"] * ITEM[k["T"]] >= STREAMED,
    }


def _long(k: Mapping[str, Any]) -> dict[str, Any]:
    return {"BLOCK": PIECE, "num_warps": 8}


def _rows(k: Mapping[str, Any]) -> tuple[int, ...]:
    return (ceildiv(k["lead"], k["ROWS"]) if 0 < k["D"] <= LONGEST else 0,)


def _long_rows(k: Mapping[str, Any]) -> tuple[int, ...]:
    return (k["lead"] if k["D"] > LONGEST else 0,)


def _either(name: str, short: Callable[[Mapping[str, Any]], dict[str, Any]], **meta: Any) -> tuple[TritonCode, ...]:
    """Launches for short and for long rows; the one that is not for a call has an empty grid."""
    return (
        TritonCode(f"{_ROWS}:{name}", _rows, lambda k: {**short(k), **meta}, samples=_SAMPLES),
        TritonCode(f"{_ROWS}:{name}_long", _long_rows, lambda k: {**_long(k), **meta}),
    )


LAYER_NORM = _either("layer_norm", _norm, CENTRED=True)
RMS_NORM = _either("layer_norm", _norm, CENTRED=False, bias=None)
SOFTMAX = _either("softmax", _short)


def _group(k: Mapping[str, Any]) -> dict[str, Any]:
    """Groups that are large have few programs, so that what they read the second time is still in the cache."""
    plane = max(1, k["H"] * k["W"])
    length = max(1, k["C"] // k["groups"] * plane)
    large = length * ITEM[k["T"]] >= 64 << 10
    block = min(16384 if large else 4096, power_of_two(length))
    wide = min(block, plane & -plane)
    return {
        "PLANE": plane,
        "LENGTH": length,
        "HIGH": block // wide,
        "WIDE": wide,
        "STREAM": False,
        "num_warps": 16 if large else 4 if length <= 4096 else 8,
    }


GROUP_NORM = (
    TritonCode(
        f"{_ROWS}:group_norm",
        lambda k: (k["N"] * k["groups"] if k["C"] * k["H"] * k["W"] else 0,),
        _group,
        samples=({"N": 2, "C": 512, "H": 64, "W": 64, "groups": 32}, {"N": 2, "C": 12, "H": 7, "W": 5, "groups": 4}),
    ),
)


def _constants(k: Mapping[str, Any]) -> dict[str, Any]:
    per = 16 // ITEM[k["T"]]
    unit = per if k["D"] % per == 0 else 1
    threads = min(1024, max(128, power_of_two(k["D"]) // 16))
    return {"D_": f"{k['D']}", "UNIT": unit, "THREADS": threads, "PER": ceildiv(k["D"], unit * threads)}


#: A thread holds its part of a row.
CUDA_CLAUSES: Mapping[str, Any] = {**CLAUSES, "constraints": ("D <= 16384",)}
LAYER_NORM_CUDA = (
    CudaCode(
        Path(__file__).with_name("layer_norm.cu"),
        "layer_norm",
        ("x", "weight", "bias", "output", "eps"),
        lambda k: (k["lead"] if k["D"] else 0,),
        lambda k: (k["THREADS"],),
        meta=_constants,
        samples=({"D": 768}, {"D": 1000}, {"D": 4096}, {"D": 8192}),
    ),
)
