"""Reductions before 13 (ReduceSum) and 18 (the others): ``axes`` was an attribute."""

from __future__ import annotations

from accord.ir.build import Builder
from accord.ir.expand import expands, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, has_attribute, rebuild

__all__: list[str] = []


@expands("ReduceSum", before=13)
@expands(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    "ReduceSumSquare",
    before=18,
)
def axes_attribute(b: Builder, n: Inference) -> Outputs:
    """No axes meant all axes, as today."""
    if not has_attribute(n, "axes"):
        return None
    axes = n.attr("axes")
    return rebuild(b, n, required(n, 0), b.ints(*axes) if axes else None, drop=("axes",))
