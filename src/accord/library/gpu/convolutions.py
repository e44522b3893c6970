"""Convolutions on a GPU: plain, depthwise, deformable with offsets as numbers or codes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import CLAUSES, ITEM, MANY, WITH_EPILOGUE, ceildiv, power_of_two, turn, turned

__all__ = ["CONV", "CONV_CLAUSES", "DEFORM", "DEFORM_CLAUSES", "DEFORM_CODES", "QUANTIZED"]

_JIT = "accord.library.gpu.jit.convolutions"
#: Pixels of a program's tile, at most; the last one's samples are there even if its pixels are not.
_STRIP = 128
_PLACES = " * ".join(f"(({n} + 2 * padding - dilation * (K{n} - 1) - 1) // stride + 1)" for n in "HW")
#: Scratch memory: images with their channels last and a pixel of zeros, and weights, four bytes an element at most.
_LAST = "4 * (N * H * W + 1) * C + 4 * M * (C // groups) * KH * KW"
CONV_CLAUSES: Mapping[str, Any] = {
    **WITH_EPILOGUE,
    "execution": {"layouts": ("contiguous",), "workspace": _LAST},
}
#: Behind them samples (jit/convolutions.py).
DEFORM_CLAUSES: Mapping[str, Any] = {
    **CLAUSES,
    "execution": {
        "layouts": ("contiguous",),
        "workspace": f"{_LAST} + 16 + 32 * offset_groups * KH * KW * (N * {_PLACES} + {_STRIP - 1})",
    },
}
#: Offsets of 4 bits have no pointers on a GPU.
QUANTIZED: Mapping[str, Any] = {**DEFORM_CLAUSES, "types": {**CLAUSES["types"], "Q": ("int8",)}}


def _size(k: Mapping[str, Any], axis: str) -> int:
    kernel = k["KH" if axis == "H" else "KW"]
    return int((k[axis] + 2 * k["padding"] - k["dilation"] * (kernel - 1) - 1) // k["stride"] + 1)


def _conv_tile(k: Mapping[str, Any], depth: int) -> dict[str, Any]:
    own = k["M"] // k["groups"]
    wide = ITEM[k["T"]] == 4
    high = min(64 if wide else 128, max(16, power_of_two(own)))
    return {
        "PER": max(1, k["C"] // k["groups"]),
        "KH": k["KH"],
        "KW": k["KW"],
        "BLOCK_M": high,
        "BLOCK_P": 64 if wide or high <= 32 else 128,
        "PRECISION": "ieee" if wide else "tf32",
        "num_warps": 4 if wide or high <= 32 else 8,
        "num_stages": 2 if wide else 3,
        "BLOCK_K": 16 if wide else min(64, max(16, power_of_two(depth))),
    }


def _conv(k: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_conv_tile(k, max(1, k["C"] // k["groups"] * k["KH"] * k["KW"])),
        "AREA": _size(k, "H") * _size(k, "W"),
        "WIDE": _pixels(k) >= MANY,
        "OW": _size(k, "W"),
        "ACTIVATION": k["activation"],
    }


def _depthwise(k: Mapping[str, Any]) -> dict[str, Any]:
    pixels = _size(k, "H") * _size(k, "W")
    return {
        "OH": _size(k, "H"),
        "OW": _size(k, "W"),
        "MULTIPLE": max(1, k["M"] // k["groups"]),
        "KH": k["KH"],
        "KW": k["KW"],
        "ACTIVATION": k["activation"],
        "BLOCK_P": min(512, max(64, power_of_two(pixels))),
    }


def _pixels(k: Mapping[str, Any]) -> int:
    return int(k["N"] * _size(k, "H") * _size(k, "W"))


def _tiles(k: Mapping[str, Any]) -> tuple[int, ...]:
    return ceildiv(_pixels(k), k["BLOCK_P"]), ceildiv(k["M"] // k["groups"], k["BLOCK_M"]) * k["groups"]


def _is_depthwise(k: Mapping[str, Any]) -> bool:
    return bool(k["groups"] == k["C"] and k["groups"] > 1)


def _is_last(k: Mapping[str, Any]) -> bool:
    """Whether channels are enough to be read at once."""
    return bool(k["C"] > 0 and k["C"] // k["groups"] % 16 == 0)


def _turned(k: Mapping[str, Any]) -> tuple[int, ...]:
    """Programs for images and weights: where images are few, so many that none has more than 1024 weights."""
    across, down = turned(k)
    weights = ceildiv(k["M"] * (k["C"] // k["groups"]) * k["KH"] * k["KW"], 1024)
    return max(across, ceildiv(weights, max(1, down))), down


def _turn(k: Mapping[str, Any]) -> dict[str, Any]:
    return {"PER": max(1, k["C"] // k["groups"]), "TAPS": k["KH"] * k["KW"], **turn(k)}


def _conv_last(k: Mapping[str, Any]) -> dict[str, Any]:
    tile = _conv(k)
    del tile["KH"], tile["BLOCK_K"]
    if ceildiv(_pixels(k), tile["BLOCK_P"]) * ceildiv(k["M"] // k["groups"], tile["BLOCK_M"]) * k["groups"] < 128:
        tile |= {"BLOCK_P": 64, "num_warps": 4}  # on more multiprocessors
    channels = math.gcd(max(1, tile["PER"]), 16 if ITEM[k["T"]] == 4 else 64)
    return {**tile, "TAPS": k["KH"] * k["KW"], "BLOCK_C": max(16, channels)}


CONV = (
    TritonCode(f"{_JIT}:images_and_weights", lambda k: _turned(k) if _is_last(k) and k["N"] else (0,), _turn),
    TritonCode(f"{_JIT}:conv2d_last", lambda k: _tiles(k) if _is_last(k) else (0,), _conv_last),
    TritonCode(
        f"{_JIT}:conv2d",
        lambda k: (0,) if _is_depthwise(k) or _is_last(k) else _tiles(k),
        _conv,
        samples=(
            {"N": 8, "C": 64, "H": 56, "W": 56, "M": 128, "KH": 3, "KW": 3, "padding": 1},
            {"N": 1, "C": 3, "H": 224, "W": 224, "M": 64, "KH": 7, "KW": 7, "padding": 3, "stride": 2},
        ),
    ),
    TritonCode(
        f"{_JIT}:depthwise_conv2d",
        lambda k: (k["N"] * k["M"], ceildiv(k["OH"] * k["OW"], k["BLOCK_P"])) if _is_depthwise(k) else (0,),
        _depthwise,
        samples=({"N": 8, "C": 96, "H": 56, "W": 56, "M": 96, "KH": 3, "KW": 3, "padding": 1, "groups": 96},),
    ),
)


def _on_hopper(k: Mapping[str, Any]) -> bool:
    """Whether the text for warp groups takes a call."""
    even = all(k["C"] // k[g] % 64 == 0 for g in ("groups", "offset_groups"))
    return bool(k["architecture"] == 90 and ITEM[k["T"]] == 2 and even)


def _places(k: Mapping[str, Any]) -> int:
    """Pixels of a program: so many that neighbours share what they read, so few that all multiprocessors have some."""
    pixels = _pixels(k)
    return 32 if ITEM[k["T"]] == 4 else 64 if ceildiv(pixels, _STRIP) < 128 else _STRIP


def _product(k: Mapping[str, Any]) -> dict[str, Any]:
    places = _places(k)
    most = 2 * places if ITEM[k["T"]] == 4 or k["architecture"] in (90, 100) else 128
    return {
        "PER": max(1, k["C"] // k["groups"]),
        "AREA": _size(k, "H") * _size(k, "W"),
        "WIDE": _pixels(k) >= MANY,
        "TAPS": k["KH"] * k["KW"],
        "BLOCK_M": min(most, max(16, power_of_two(k["M"] // k["groups"]))),
        "BLOCK_P": places,
    }


def _deform(k: Mapping[str, Any]) -> dict[str, Any]:
    per, share = max(1, k["C"] // k["groups"]), max(1, k["C"] // k["offset_groups"])
    wide = ITEM[k["T"]] == 4
    deep = 16 if wide else 64 if k["architecture"] in (90, 100) else 32
    channels = min(deep, max(16, power_of_two(min(per, share))))
    tile = _product(k)
    return {
        **tile,
        "BLOCK_C": channels,
        "EVEN": per % channels == 0 and share % channels == 0,
        "PRECISION": "ieee" if wide else "tf32",
        "num_warps": 4 if tile["BLOCK_M"] * tile["BLOCK_P"] <= 8192 else 8,
        "num_stages": 2,
    }


def _deform_hopper(k: Mapping[str, Any]) -> dict[str, Any]:
    tile = _product(k)
    own = max(1, k["M"] // k["groups"])
    warps = tile["BLOCK_P"] // 16
    return {
        **tile,
        "SHARE": max(1, k["C"] // k["offset_groups"]),
        "HALVES": False,
        "FULL": own % tile["BLOCK_M"] == 0,
        "WARPS": warps,
        "num_warps": warps,
    }


def _prepare(k: Mapping[str, Any]) -> dict[str, Any]:
    if k["N"] * k["H"] * k["W"] >= (1 << 32) - 1:
        raise ValueError("images have more than 4,294,967,294 pixels, and samples their number in 32 bits")
    own = {"OH": _size(k, "H"), "OW": _size(k, "W"), "KW": k["KW"], "BLOCK_P": _places(k)}
    turning = _turn(k)
    return {**turning, **own, "WIDE": turning["WIDE"] or _pixels(k) >= MANY}


def _deformable(name: str) -> tuple[TritonCode, ...]:
    return (
        TritonCode(
            f"{_JIT}:{name}",
            _turned,
            _prepare,
            samples=({"N": 1, "C": 256, "H": 64, "W": 64, "M": 256, "KH": 3, "KW": 3, "padding": 1},),
        ),
        TritonCode(f"{_JIT}:deform_conv2d", lambda k: (0,) if _on_hopper(k) else _tiles(k), _deform),
        TritonCode(
            "accord.library.gpu.jit.hopper:deform_conv2d",
            lambda k: _tiles(k) if _on_hopper(k) else (0,),
            _deform_hopper,
        ),
    )


DEFORM = _deformable("deform_samples")
DEFORM_CODES = _deformable("deform_samples_of_codes")
