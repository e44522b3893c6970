"""PRelu: a slope by channel below zero.

``relu(x) - slope * relu(-x)``, ``max(x, 0) + slope * min(x, 0)``, ``where(x > 0, x, slope * x)``, ... are compared as
functions of one number for each channel (see :mod:`.scalar`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.activations import STEPS
from accord.passes.rules.recognise.region import allows, regions, same_shape, tolerance
from accord.passes.rules.recognise.scalar import THROUGH, Sampled, sample

__all__ = ["RecognisePRelu"]

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Neg", "Div", "Sum", "Cast"})


class RecognisePRelu(Rule):
    """x above zero and a constant slope by channel below → PRelu."""

    name: ClassVar[str] = "recognise-prelu"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Add", "Sub", "Sum", "Where", "Max", "Min")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with PRelu."""
        for region in regions(node.outputs[0], context, THROUGH, limit=12):
            if len(region.nodes) < 2 or not region.ops & STEPS or not region.ops <= STEPS | _ARITHMETIC:
                continue
            sampled = sample(region, context, channels=True)
            if sampled is None or sampled.y.ndim == 1:
                continue
            slope = _slope(sampled, tolerance(context.tensor(region.root).dtype or ir.DataType.FLOAT))
            if slope is None:
                continue
            if not same_shape(context, region.variable, region.root):
                return Reason("the slope broadcasts the input")
            dtype = context.tensor(region.root).dtype
            if dtype is None or not allows("PRelu", dtype, context):
                return None
            blocked = region.blocked()
            if blocked is not None:
                return blocked
            b = context.builder()
            y = b("PRelu", region.variable, b.const(slope.astype(dtype.numpy())))
            return patch_from(b, node, [y], f"{len(region.nodes)} nodes from '{region.variable.name}'")
        return None


def _slope(s: Sampled, rtol: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    slope = np.asarray(-s.at(-1.0))
    if not np.isfinite(slope).all():
        return None
    x = s.x.reshape(-1, *[1] * slope.ndim)
    want = np.where(x < 0, slope * x, x)
    agrees = bool((np.abs(s.y - want) <= rtol * np.abs(want)).all()) and bool(np.isnan(s.special[0]).all())
    return np.ascontiguousarray(slope) if agrees else None
