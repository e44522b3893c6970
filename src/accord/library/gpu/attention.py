"""Attention on a GPU, with the score functions of its variants, and behind a projection."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import CLAUSES, ITEM, ceildiv, power_of_two
from accord.library.gpu.linear import tiles

__all__ = ["ALIBI", "ATTENTION", "CLAUSES", "PREFIX", "QKV", "QKV_CLAUSES", "SLIDING_WINDOW", "SOFT_CAP", "scored"]

_JIT = "accord.library.gpu.jit.attention"


def _blocks(k: Mapping[str, Any], d: int, e: int) -> dict[str, Any]:
    """Tiles that fit the registers and shared memory of the architecture."""
    bd, be = max(16, power_of_two(d)), max(16, power_of_two(e))
    if ITEM[k["T"]] == 4:
        queries, keys, warps, stages = (64, 32, 8, 2) if max(bd, be) <= 64 else (32, 32, 8, 1)
    elif k["architecture"] in (90, 100):
        # measured on an H200 at 4 heads of 16 by 4096 by 128
        few = (128, 64, 8, 3) if bd == be == 128 else (128, 128, 8, 2)
        queries, keys, warps, stages = few if max(bd, be) <= 128 else (64, 64, 4, 2)
    else:
        queries, keys, warps, stages = (128, 64, 4, 2) if max(bd, be) <= 64 else (64, 32, 4, 2)
    return {
        "BD": bd,
        "BE": be,
        "BLOCK_Q": queries,
        "BLOCK_K": keys,
        "PRECISION": "ieee" if ITEM[k["T"]] == 4 else "tf32",
        "num_warps": warps,
        "num_stages": stages,
    }


def _heads(k: Mapping[str, Any]) -> tuple[int, ...]:
    return (ceildiv(k["Q"], k["BLOCK_Q"]) * k["B"] * k["H"],)


def _meta(
    k: Mapping[str, Any], *, causal: bool, window: int = -1, score: str = "", parameter: float = 0.0
) -> dict[str, Any]:
    return {
        **_blocks(k, k["D"], k["E"]),
        "factor": float(k.get("scale") or 1 / math.sqrt(max(1, k["D"]))),
        "reach": min(window, (1 << 31) - 1),
        "parameter": float(parameter),
        "CAUSAL": causal,
        "POSITIVE": k.get("scale", 0.0) >= 0,
        "WINDOW": window >= 0,
        "SCORE": getattr(importlib.import_module(_JIT), score) if score else None,
    }


def scored(score: str = "", *, causal: bool = False, window: str = "", parameter: str = "") -> tuple[TritonCode, ...]:
    """The launches of a kind of attention.

    Args:
        score: Name of a function in ``jit/attention.py``.
        causal: Queries see no keys behind their own place, whatever the function says.
        window: Name of the attribute that says how far a query sees.
        parameter: Name of the attribute that the function is given.
    """

    def meta(k: Mapping[str, Any]) -> dict[str, Any]:
        reach = k[window] if window else -1
        return _meta(k, causal=causal, window=reach, score=score, parameter=k[parameter] if parameter else 0.0)

    return (TritonCode(f"{_JIT}:scored_attention", _heads, meta, samples=_SAMPLES),)


_SAMPLES = ({"B": 2, "H": 16, "G": 4, "Q": 1024, "K": 1024, "D": 128, "E": 128},)

ATTENTION = (
    TritonCode(
        f"{_JIT}:attention",
        _heads,
        lambda k: _meta(k, causal=bool(k["causal"]), window=k["window"]),
        samples=(*_SAMPLES, {**_SAMPLES[0], "causal": 1}, {**_SAMPLES[0], "D": 64, "E": 64, "window": 256}),
    ),
)
ALIBI = scored("alibi", causal=True)
SOFT_CAP = scored("soft_cap", parameter="cap")
SLIDING_WINDOW = scored(causal=True, window="window")
PREFIX = scored("prefix", parameter="prefix")


def _row_programs(k: Mapping[str, Any], queries: int) -> int:
    return int(ceildiv(k["S"], queries) * k["B"] * k["heads"])


def _of_rows(k: Mapping[str, Any]) -> dict[str, Any]:
    d = k["P"] // (k["heads"] + 2 * k["groups"])
    blocks = _blocks(k, d, d)
    del blocks["BE"]
    if ITEM[k["T"]] == 2:  # on more multiprocessors
        if _row_programs(k, 16) <= 132:
            blocks |= {"BLOCK_Q": 16, "num_warps": 4}
        elif _row_programs(k, blocks["BLOCK_Q"]) < 66:
            blocks |= {"BLOCK_Q": 64, "num_warps": 4}
    factor = float(k.get("scale") or 1 / math.sqrt(max(1, d)))
    return {**blocks, "D": d, "factor": factor, "CAUSAL": bool(k["causal"]), "POSITIVE": k["scale"] >= 0}


def _projection(k: Mapping[str, Any]) -> dict[str, Any]:
    return {"ROWS": k["B"] * k["S"], **tiles(k, k["B"] * k["S"], k["P"], k["M"]), "ACTIVATION": "none"}


#: Scratch memory: the projected rows, four bytes an element at most.
QKV_CLAUSES: Mapping[str, Any] = {**CLAUSES, "execution": {"layouts": ("contiguous",), "workspace": "4 * B * S * P"}}
QKV = (
    TritonCode(
        "accord.library.gpu.jit.products:projection",
        lambda k: (ceildiv(k["ROWS"], k["BLOCK_M"]) * ceildiv(k["P"], k["BLOCK_N"]),),
        _projection,
        samples=tuple(
            {"B": b, "S": s, "M": 768, "P": 2304, "heads": 12, "groups": 12} for b, s in ((1, 128), (2, 512))
        ),
    ),
    TritonCode(
        f"{_JIT}:attention_of_rows",
        lambda k: (_row_programs(k, k["BLOCK_Q"]),),
        _of_rows,
    ),
)
