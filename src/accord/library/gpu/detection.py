"""Resizing, sampling, regions of interest and their suppression on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import CLAUSES, ceildiv, power_of_two

__all__ = ["CLAUSES", "GRID_SAMPLE", "NMS", "NMS_CLAUSES", "RESIZE", "ROI_ALIGN", "ROI_CLAUSES"]

_SAMPLING = "accord.library.gpu.jit.sampling"
_SUPPRESSION = "accord.library.gpu.jit.suppression"


def _resize(k: Mapping[str, Any]) -> dict[str, Any]:
    block = min(256, max(32, power_of_two(k["width"])))
    most = max(k["H"], k["W"], 1) * 2 * max(k["height"], k["width"]) + 2 * max(k["H"], k["W"])
    return {"ALIGNED": bool(k["align_corners"]), "WIDE": most >= 1 << 31, "ROWS": max(1, 1024 // block), "BLOCK": block}


RESIZE = (
    TritonCode(
        f"{_SAMPLING}:resize_bilinear",
        lambda k: (k["N"] * k["C"] * ceildiv(k["height"], k["ROWS"]), ceildiv(k["width"], k["BLOCK"])),
        _resize,
        samples=({"N": 1, "C": 64, "H": 128, "W": 128, "height": 256, "width": 256},),
    ),
)

GRID_SAMPLE = (
    TritonCode(
        f"{_SAMPLING}:grid_sample",
        lambda k: (k["N"] * ceildiv(k["OH"] * k["OW"], k["BLOCK"]), ceildiv(k["C"], k["BLOCK_C"])),
        lambda k: {
            "ALIGNED": bool(k["align_corners"]),
            "BLOCK_C": min(8, power_of_two(k["C"])),
            "BLOCK": min(256, max(32, power_of_two(k["OH"] * k["OW"]))),
        },
        samples=({"N": 1, "C": 64, "H": 128, "W": 128, "OH": 128, "OW": 128},),
    ),
)

ROI_CLAUSES: Mapping[str, Any] = {**CLAUSES, "types": {"T": ("float32", "float16")}}
ROI_ALIGN = (
    TritonCode(
        f"{_SAMPLING}:roi_align",
        lambda k: (k["R"] * ceildiv(k["height"] * k["width"], k["BLOCK"]), ceildiv(k["C"], k["BLOCK_C"])),
        lambda k: {
            "SAMPLES": k["samples"],
            "BLOCK_C": min(16, power_of_two(k["C"])),
            "BLOCK": min(64, max(16, power_of_two(k["height"] * k["width"]))),
        },
        samples=({"N": 1, "C": 256, "H": 64, "W": 64, "R": 512, "height": 7, "width": 7},),
    ),
)

#: Scratch memory: the order of the boxes, and a bit for each pair.
_BYTES = "4 * B + 4 * B * ceildiv(B, 32)"
NMS_CLAUSES: Mapping[str, Any] = {
    "execution": {"layouts": ("contiguous",), "workspace": _BYTES},
    "constraints": ("B <= 32768",),
}
NMS = (
    TritonCode(
        f"{_SUPPRESSION}:ranks",
        lambda k: (ceildiv(k["B"], k["BLOCK"]),),
        {"BLOCK": 128, "OTHERS": 32},
        samples=({"B": 1000, "kept": 100},),
    ),
    TritonCode(f"{_SUPPRESSION}:overlaps", lambda k: (ceildiv(k["B"], 128), ceildiv(k["B"], 32)), {"BLOCK": 128}),
    TritonCode(
        f"{_SUPPRESSION}:keep",
        lambda k: (1 if k["B"] else 0,),
        lambda k: {"WORDS": max(32, power_of_two(ceildiv(k["B"], 32))), "num_warps": 1},
    ),
)
