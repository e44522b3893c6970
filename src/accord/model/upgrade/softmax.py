"""Softmax, LogSoftmax and Hardmax before 13: over all axes from ``axis`` on, as one."""

from __future__ import annotations

from accord.ir.build import Builder
from accord.ir.expand import expands, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, reshape

__all__: list[str] = []


@expands("Softmax", "LogSoftmax", "Hardmax", before=13)
def flattened(b: Builder, n: Inference) -> Outputs:
    """Coerced to 2-D; one node where at most one of the axes from ``axis`` on can have a size other than 1."""
    x = required(n, 0)
    axis = n.attr("axis", 1)
    shape = b.fact(x).shape
    if shape is not None:
        axis = n.axis(axis, len(shape))
        wide = [i for i in range(axis, len(shape)) if shape[i] != 1]
        if len(wide) <= 1:
            return [b(n.node.op_type, x, axis=wide[0] if wide else len(shape) - 1)]
    flat = b("Flatten", x, axis=axis)
    return [reshape(b, b(n.node.op_type, flat, axis=-1), b("Shape", x))]
