"""Operators that belong to no family."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.loops.group import Group
from accord.backends.loops.groups import member
from accord.backends.loops.table import known
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, cast, const
from accord.expr.primitives import gt, select
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.ir.strides import Access
from accord.ops.standard.contraction import labels_of

__all__ = ["binarizer", "diagonal_sums"]


@member("Einsum")
def diagonal_sums(group: Group, view: NodeView) -> Reason | None:
    """Of one operand: a label that it has twice walks a diagonal, one that the result has not is summed."""
    labels = labels_of(view)
    v, x = view.node.inputs[0], known(view.tensor(0), "the input")
    if isinstance(x, Reason):
        return x
    if labels is None or len(labels[0]) != 1 or v is None:
        return Reason("several operands, or a rank that is not known")
    if v in group.terms:
        return Reason("its input is made inside the group")
    (term,), out = labels
    own = group.access(view, 0)
    runs = {k: group.axis(x[0][term.index(k)]) for k in term}
    strides = tuple(_stride(own, term, k) for k in runs)
    value = group.read(v, x[1], tuple(runs.values()), Access(strides, own.offset))
    summed = [run for k, run in runs.items() if k not in out]
    total = group.reduce("add", (value.expr,), summed)[0] if any(summed) else value.expr
    return group.define(view, 0, total, [runs[k] for k in out])


def _stride(access: Access, labels: Sequence[str], label: str) -> DimLike:
    """From element to element along all axes of a label at once."""
    step: DimLike = 0
    for s, own in zip(access.strides, labels, strict=True):
        step = step + s if own == label else step
    return step


@member("Binarizer", domain="ai.onnx.ml")
def binarizer(group: Group, view: NodeView) -> Reason | None:
    """1 where an element exceeds the threshold, else 0."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    dtype = x.expr.dtype
    real = x.expr if dtype in FLOATS else cast(x.expr, "f64")
    above = gt(real, const(float(view.attr("threshold", 0.0)), real.dtype))
    return group.define(view, 0, select(above, const(1, dtype), const(0, dtype)), x.axes)
