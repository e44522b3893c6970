"""Recurrent cells and connectionist temporal classification on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import CLAUSES, ITEM, ceildiv, power_of_two

__all__ = [
    "CLAUSES",
    "CTC_FORWARD",
    "CTC_GREEDY",
    "CTC_GREEDY_CLAUSES",
    "CTC_LOSS",
    "GRU_CELL",
    "LSTM",
    "LSTM_CELL",
    "LSTM_CLAUSES",
]

_RECURRENT = "accord.library.gpu.jit.recurrent"
_CTC = "accord.library.gpu.jit.ctc"


def _cell(k: Mapping[str, Any]) -> dict[str, Any]:
    wide = ITEM[k["T"]] == 4
    return {
        "BLOCK_N": min(32, max(16, power_of_two(k["N"]))),
        "BLOCK_H": 16 if wide else 32,
        "BLOCK_K": 32 if wide else 64,
        "PRECISION": "ieee" if wide else "tf32",
        "num_warps": 4,
        "num_stages": 2,
    }


def _lstm_cell(k: Mapping[str, Any]) -> dict[str, Any]:
    """All gates of a unit are one product: so few units that all multiprocessors read weights, at most 32."""
    cell = _cell(k)
    if ITEM[k["T"]] == 4:
        return cell
    if ceildiv(k["N"], 128) * ceildiv(k["H"], 32) >= 96 and k["architecture"] in (90, 100):
        return {**cell, "BLOCK_N": 128, "num_warps": 8, "num_stages": 3}
    rows, units = min(64, max(16, power_of_two(k["N"]))), min(32, max(4, power_of_two(ceildiv(k["H"], 128))))
    deep, stages = (128, 4) if rows + 4 * units <= 96 else (64, 3)
    return {**cell, "BLOCK_N": rows, "BLOCK_H": units, "BLOCK_K": deep, "num_stages": stages}


def _cells(k: Mapping[str, Any]) -> tuple[int, ...]:
    return ceildiv(k["N"], k["BLOCK_N"]), ceildiv(k["H"], k["BLOCK_H"])


_SAMPLES = ({"N": 32, "I": 512, "H": 512},)
LSTM_CELL = (
    TritonCode(f"{_RECURRENT}:lstm_cell", _cells, _lstm_cell, samples=(*_SAMPLES, {"N": 512, "I": 1024, "H": 1024})),
)
GRU_CELL = (TritonCode(f"{_RECURRENT}:gru_cell", _cells, _cell, samples=_SAMPLES),)
LSTM = (
    TritonCode(
        f"{_RECURRENT}:lstm",
        lambda k: (ceildiv(k["N"], k["BLOCK_N"]),),
        lambda k: {**_cell(k), "num_warps": 8, "BLOCK_H": 16 if ITEM[k["T"]] == 4 else 64},
        samples=({**_SAMPLES[0], "L": 100},),
    ),
)
#: Scratch memory: the cell state in float32.
LSTM_CLAUSES: Mapping[str, Any] = {**CLAUSES, "execution": {"layouts": ("contiguous",), "workspace": "4 * N * H"}}


def _states(k: Mapping[str, Any]) -> dict[str, Any]:
    states = power_of_two(2 * k["S"] + 1)
    return {
        "STATES": max(32, states),
        "BLOCK_C": min(1024, max(32, power_of_two(k["C"]))),
        "num_warps": 1 if states <= 128 else 4,
    }


_LABELS = ({"L": 200, "N": 16, "C": 64, "S": 40},)
CTC_FORWARD = (TritonCode(f"{_CTC}:ctc_forward", lambda k: (k["N"],), _states, samples=_LABELS),)
CTC_LOSS = (TritonCode(f"{_CTC}:ctc_loss", lambda k: (k["N"],), _states, samples=_LABELS),)
CTC_GREEDY = (
    TritonCode(
        f"{_CTC}:best_labels",
        lambda k: (k["L"] * k["N"],),
        lambda k: {"BLOCK_C": min(1024, max(32, power_of_two(k["C"]))), "num_warps": 1},
        samples=_LABELS,
    ),
    TritonCode(f"{_CTC}:collapse", lambda k: (k["N"],), {"BLOCK": 256}),
)
#: Scratch memory: the best label of each step.
CTC_GREEDY_CLAUSES: Mapping[str, Any] = {**CLAUSES, "execution": {"layouts": ("contiguous",), "workspace": "4 * L * N"}}
