"""Softmax: Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs", 1990."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.library.composing import floats
from accord.library.reference import narrow, wide

__all__ = ["softmax"]


@operator("accord::Softmax")
def softmax(x: Tensor["T", ..., "D"]) -> Tensor["T", ..., "D"]:
    """``exp(x) / sum(exp(x))`` along the last axis, with the row's maximum taken out first.

    As ONNX's, it is NaN in a row that is minus infinity everywhere.
    """
    z = wide(x)
    with np.errstate(invalid="ignore"):
        e = np.exp(z - z.max(-1, keepdims=True))
        return narrow(e / e.sum(-1, keepdims=True), x)


floats(softmax).constraint("D >= 1").scheduling(fuses="reduction")


@softmax.composition
def rows(b: Any, x: Any) -> Any:
    """One loop nest."""
    return b("Softmax", x, axis=-1)
