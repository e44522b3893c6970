"""Resizing, sampling, regions of interest and their suppression on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import CLAUSES, ITEM, ceildiv, power_of_two, turn, turned

__all__ = ["CLAUSES", "GRID_CLAUSES", "GRID_SAMPLE", "NMS", "NMS_CLAUSES", "RESIZE", "ROI_ALIGN", "ROI_CLAUSES"]

_SAMPLING = "accord.library.gpu.jit.sampling"
_SUPPRESSION = "accord.library.gpu.jit.suppression"


def _resize(k: Mapping[str, Any]) -> dict[str, Any]:
    block = min(256, max(32, power_of_two(k["width"])))
    most = max(k["H"], k["W"], 1) * 2 * max(k["height"], k["width"]) + 2 * max(k["H"], k["W"])
    rows = max(1, 1024 // block)
    strips = k["N"] * k["C"] * ceildiv(k["height"], rows) * ceildiv(k["width"], block)
    return {
        "ALIGNED": bool(k["align_corners"]),
        "WIDE": most >= 1 << 31,
        "TIMES": max(1, min(8, strips // 1024)),
        "ROWS": rows,
        "BLOCK": block,
    }


RESIZE = (
    TritonCode(
        f"{_SAMPLING}:resize_bilinear",
        lambda k: (k["N"] * k["C"] * ceildiv(k["height"], k["TIMES"] * k["ROWS"]), ceildiv(k["width"], k["BLOCK"])),
        _resize,
        samples=({"N": 1, "C": 64, "H": 128, "W": 128, "height": 256, "width": 256},),
    ),
)

#: Scratch memory: images with their channels last and a pixel of zeros, four bytes an element at most.
_LAST: Mapping[str, Any] = {"layouts": ("contiguous",), "workspace": "4 * (N * H * W + 1) * C"}


def _is_last(k: Mapping[str, Any]) -> bool:
    """Whether channels are enough to be read at once."""
    return bool(k["C"] >= 16)


def _turned(places: str) -> TritonCode:
    """Brings channels to the end, if there is something to do at any ``places``."""
    return TritonCode(
        "accord.library.gpu.jit.movement:channels_last",
        lambda k: turned(k) if _is_last(k) and k[places] else (0,),
        turn,
        samples=({"N": 1, "C": 64, "H": 128, "W": 128},),
    )


def _channels(k: Mapping[str, Any]) -> dict[str, Any]:
    """Eight elements for each thread of a row of places."""
    return {"BLOCK_C": min(128 // ITEM[k["T"]], max(16, power_of_two(k["C"]))), "BLOCK": 64}


GRID_CLAUSES: Mapping[str, Any] = {**CLAUSES, "execution": _LAST}
GRID_SAMPLE = (
    _turned("N"),
    TritonCode(
        f"{_SAMPLING}:grid_sample_last",
        lambda k: (k["N"] * ceildiv(k["AREA"], k["BLOCK"]) if _is_last(k) else 0,),
        lambda k: {"ALIGNED": bool(k["align_corners"]), "AREA": k["OH"] * k["OW"], **_channels(k)},
        samples=({"N": 1, "C": 64, "H": 128, "W": 128, "OH": 128, "OW": 128},),
    ),
    TritonCode(
        f"{_SAMPLING}:grid_sample",
        lambda k: (
            (0,) if _is_last(k) else (k["N"] * ceildiv(k["OH"] * k["OW"], k["BLOCK"]), ceildiv(k["C"], k["BLOCK_C"]))
        ),
        lambda k: {
            "ALIGNED": bool(k["align_corners"]),
            "BLOCK_C": min(8, power_of_two(k["C"])),
            "BLOCK": min(256, max(32, power_of_two(k["OH"] * k["OW"]))),
        },
        samples=({"N": 1, "C": 3, "H": 128, "W": 128, "OH": 128, "OW": 128},),
    ),
)


def _bins(k: Mapping[str, Any]) -> tuple[int, ...]:
    return k["R"] * ceildiv(k["height"] * k["width"], k["BLOCK"]), ceildiv(k["C"], k["BLOCK_C"])


ROI_CLAUSES: Mapping[str, Any] = {**CLAUSES, "types": {"T": ("float32", "float16")}, "execution": _LAST}
ROI_ALIGN = (
    _turned("R"),
    TritonCode(
        f"{_SAMPLING}:roi_align_last",
        lambda k: _bins(k) if _is_last(k) else (0,),
        lambda k: {"SAMPLES": k["samples"], **_channels(k)},
        samples=({"N": 1, "C": 256, "H": 64, "W": 64, "R": 512, "height": 7, "width": 7},),
    ),
    TritonCode(
        f"{_SAMPLING}:roi_align",
        lambda k: (0,) if _is_last(k) else _bins(k),
        lambda k: {
            "SAMPLES": k["samples"],
            "BLOCK_C": min(16, power_of_two(k["C"])),
            "BLOCK": min(64, max(16, power_of_two(k["height"] * k["width"]))),
        },
        samples=({"N": 1, "C": 3, "H": 64, "W": 64, "R": 512, "height": 7, "width": 7},),
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
