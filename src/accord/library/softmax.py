"""Softmax: Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs", 1990."""

from __future__ import annotations

from typing import Any

from accord.contract.operator import Tensor, operator
from accord.library.composing import floats
from accord.library.reference import narrow, wide
from accord.library.reference import softmax as softmax_of

__all__ = ["softmax"]


@operator("accord::Softmax")
def softmax(x: Tensor["T", ..., "D"]) -> Tensor["T", ..., "D"]:
    """``exp(x) / sum(exp(x))`` along the last axis, with the row's maximum taken out first."""
    return narrow(softmax_of(wide(x)), x)


floats(softmax).constraint("D >= 1").scheduling(fuses="reduction")


@softmax.composition
def rows(b: Any, x: Any) -> Any:
    """One loop nest."""
    return b("Softmax", x, axis=-1)
