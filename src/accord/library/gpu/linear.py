"""Linear on a GPU, with its epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import CLAUSES, ITEM, ceildiv, power_of_two

__all__ = ["CLAUSES", "TRITON", "tiles"]


def tiles(k: Mapping[str, Any], m: int, n: int, depth: int) -> dict[str, Any]:
    """The tile for a product [m, depth] by [depth, n]; float32 is multiplied as such, not in TF32."""
    roomy = k["architecture"] in (80, 87, 90, 100)  # shared memory
    if ITEM[k["T"]] == 4:
        high, wide, deep, warps, stages = 64, 64, 16, 4, 2
    elif m <= 64:  # few rows: narrow tiles, so that all multiprocessors read weights
        high, wide, deep, warps, stages = max(16, power_of_two(m)), 32, 128, 4, 3
        stages = 6 if roomy else 3  # as many as shared memory holds
    elif k["architecture"] in (90, 100) and ceildiv(m, 128) * ceildiv(n, 128) >= 128:
        high, wide, deep, warps, stages = 128, 128, 64, 8, 3
    elif ceildiv(m, 128) * ceildiv(n, 64) < 128:  # few tiles: smaller ones, and most of their depth on its way at once
        high, wide, warps = 64, 64, 4
        deep, stages = 64, 6 if roomy else 4  # short blocks are there sooner
        if roomy and depth > 1024:
            deep, stages = 128, 6 if k["architecture"] >= 90 else 4
    else:
        high, wide, deep, warps, stages = 128, 64, 32, 4, 3
    return {
        "BLOCK_M": high,
        "BLOCK_N": wide,
        "BLOCK_K": deep,
        "EVEN_K": depth % deep == 0,
        "PRECISION": "ieee" if ITEM[k["T"]] == 4 else "tf32",
        "GROUP": 8,
        "num_warps": warps,
        "num_stages": stages,
    }


TRITON = (
    TritonCode(
        "accord.library.gpu.jit.products:linear",
        lambda k: (ceildiv(k["lead"], k["BLOCK_M"]) * ceildiv(k["N"], k["BLOCK_N"]),),
        lambda k: {**tiles(k, k["lead"], k["N"], k["K"]), "ACTIVATION": k["activation"]},
        samples=({"N": 3072, "K": 768, "activation": "gelu"}, {"N": 1000, "K": 500}),
    ),
)
