"""RNN, GRU and LSTM before 7."""

from __future__ import annotations

from accord.ir.build import Builder
from accord.ir.expand import expands
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, has_attribute, rebuild

__all__: list[str] = []


@expands("RNN", "GRU", "LSTM", before=7)
def output_sequence(b: Builder, n: Inference) -> Outputs:
    """``output_sequence`` said whether Y is wanted; naming the output says it today.

    GRU-1 writes the default direction as "foward".
    """
    misspelt = n.attr("direction") == "foward"
    if not (misspelt or has_attribute(n, "output_sequence")):
        return None
    return rebuild(b, n, drop=("output_sequence", "direction") if misspelt else ("output_sequence",))
