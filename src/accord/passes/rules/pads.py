"""Padding by an operator of its own in front of a convolution."""

from __future__ import annotations

from typing import Any, ClassVar

import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["FoldPadIntoConvolution"]


class FoldPadIntoConvolution(Rule):
    """Pad with zeros → Conv: the convolution pads itself, and the image is not copied."""

    name: ClassVar[str] = "fold-pad-into-convolution"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Conv")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with a convolution that has larger pads."""
        x = node.inputs[0]
        pad = x.producer() if x is not None else None
        if x is None or pad is None or pad.domain != "" or pad.op_type != "Pad":
            return None
        amounts = _amounts(pad, context)
        if isinstance(amounts, Reason):
            return amounts
        auto = context.attr(node, "auto_pad", "NOTSET")
        if auto not in ("NOTSET", "VALID"):
            return Reason(f"auto_pad {auto} pads by the size of what was padded")
        count = len(amounts) - 4
        own = [0] * count if auto == "VALID" else list(context.attr(node, "pads") or [0] * count)
        before, after = amounts[: count // 2 + 2], amounts[count // 2 + 2 :]
        if any(before[:2]) or any(after[:2]):
            return Reason("images or channels are padded too")
        pads = [p + o for p, o in zip((*before[2:], *after[2:]), own, strict=True)]
        attributes: dict[str, Any] = {a.name: a for a in node.attributes.values() if a.name not in ("pads", "auto_pad")}
        b = context.builder()
        out = b("Conv", pad.inputs[0], *node.inputs[1:], pads=pads, **attributes)
        return patch_from(b, node, [out], f"pads {pads}")


def _amounts(pad: ir.Node, context: RuleContext) -> list[int] | Reason:
    """Of each axis what is added in front, then of each what is added behind."""
    rank = context.tensor(pad.inputs[0]).rank
    given = context.constant(pad.inputs[1])
    if rank is None or given is None:
        return Reason("the amounts are not constant")
    if context.attr(pad, "mode", "constant") != "constant":
        return Reason("it does not pad with a constant")
    value = pad.inputs[2] if len(pad.inputs) > 2 else None
    if value is not None and context.number(value) != 0:
        return Reason("it does not pad with zeros")
    if given.size and given.min() < 0:
        return Reason("it cuts off elements")
    axes = pad.inputs[3] if len(pad.inputs) > 3 else None
    where = range(rank) if axes is None else context.constant(axes)
    if where is None:
        return Reason("the axes are not constant")
    amounts = [0] * (2 * rank)
    for k, axis in enumerate(where):
        amounts[int(axis) % rank] = int(given[k])
        amounts[rank + int(axis) % rank] = int(given[len(given) // 2 + k])
    return amounts
