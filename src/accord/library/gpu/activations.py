"""The GELU family on a GPU, for where nothing takes them up as an epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accord.contract.code import TritonCode
from accord.library.gpu.launching import CLAUSES, ITEM, ceildiv

__all__ = ["CLAUSES", "GELU", "HARD_SIGMOID", "HARD_SWISH", "MISH", "SILU"]

#: Bytes that a program moves one way.
_PROGRAM = 8 << 10


def _launch(activation: str) -> tuple[TritonCode, ...]:
    def meta(k: Mapping[str, Any]) -> dict[str, Any]:
        name = {"none": "gelu", "tanh": "gelu_tanh"}[k["approximate"]] if activation == "gelu" else activation
        return {"ACTIVATION": name, "BLOCK": _PROGRAM // ITEM[k["T"]]}

    kernel = "accord.library.gpu.jit.activations:elementwise"
    return (TritonCode(kernel, lambda k: (ceildiv(k["lead"], k["BLOCK"]),), meta),)


GELU, SILU, MISH = _launch("gelu"), _launch("silu"), _launch("mish")
HARD_SIGMOID, HARD_SWISH = _launch("hard_sigmoid"), _launch("hard_swish")
