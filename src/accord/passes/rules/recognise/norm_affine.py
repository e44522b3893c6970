"""Scale and shift of a normalisation that are computed, or that the caller may replace.

Constants are read with the formula (:mod:`.normalisation`). Any other value that has the shape of the normalised axes
can be the operator's scale or shift as well, as long as the operator has none yet.
"""

from __future__ import annotations

from typing import Any, ClassVar

import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["AbsorbNormAffine"]


class AbsorbNormAffine(Rule):
    """LayerNormalization or RMSNormalization without scale, or without shift, times or plus a value → with it."""

    name: ClassVar[str] = "absorb-norm-affine"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Mul", "Add")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the value as the operator's scale or shift."""
        for side in (0, 1):
            y, value = node.inputs[side], node.inputs[1 - side]
            norm = y.producer() if y is not None else None
            if norm is None or norm.domain != "" or norm.graph is not node.graph or value is None:
                continue
            if norm.op_type not in ("LayerNormalization", "RMSNormalization") or context.tensor(value).is_const:
                continue
            return self._absorb(node, norm, value, context)
        return None

    @staticmethod
    def _absorb(node: ir.Node, norm: ir.Node, value: ir.Value, context: RuleContext) -> Patch | Reason | None:
        shape, own = context.tensor(norm.inputs[0]).shape, context.tensor(value).shape
        if shape is None or own is None or context.tensor(value).dtype != context.tensor(norm.inputs[0]).dtype:
            return None
        axis = int(context.attr(norm, "axis", -1)) % len(shape)
        wanted = shape[axis:]
        lead = len(own) - len(wanted)
        if lead < 0 or own[lead:] != wanted or any(d != 1 for d in own[:lead]) or len(own) > len(shape):
            return Reason(f"'{value.name}' has not the shape of the normalised axes")
        if context.only_use(norm.outputs[0]) is None or any(o.uses() for o in norm.outputs[1:]):
            return Reason(f"{label(norm)} is read by others as well")
        bias = norm.inputs[2] if len(norm.inputs) > 2 else None
        b = context.builder()
        if node.op_type == "Mul":
            scale = context.constant(norm.inputs[1])
            if scale is None or not bool((scale == 1).all()) or bias is not None:
                return Reason(f"{label(norm)} has a scale already")
        elif norm.op_type == "RMSNormalization" or bias is not None:
            return Reason(f"{label(norm)} has a shift already, or none")
        if lead:
            if not all(isinstance(d, int) for d in wanted):
                return Reason("the size of a normalised axis is only known at run time")
            value = b("Reshape", value, b.ints(*(d for d in wanted if isinstance(d, int))))
        scaled = node.op_type == "Mul"
        inputs = [norm.inputs[0], value if scaled else norm.inputs[1], None if scaled else value]
        attributes: dict[str, Any] = dict(norm.attributes)
        y = b.multi(norm.op_type, 1, *inputs, **attributes)[0]
        return patch_from(b, node, [y], f"{'scale' if scaled else 'shift'} of {label(norm)}")
