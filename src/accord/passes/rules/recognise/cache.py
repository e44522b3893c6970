"""Keys and values that are appended to those of earlier steps: the operator's past and present.

``present = Concat(past, new)`` along the length, for keys and values, is done by the operator itself, which can then
append in place. Only where nobody else reads what was appended before the attention does.
"""

from __future__ import annotations

from typing import Any, ClassVar

import onnx_ir as ir

from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["RecogniseCache"]


class RecogniseCache(Rule):
    """Attention over Concat(past, new) of keys and of values → Attention with past and present."""

    name: ClassVar[str] = "recognise-cache"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Attention")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the cache inside."""
        if any(v is not None for v in node.inputs[4:]) or len(node.outputs) > 1:
            return None
        key, value = node.inputs[1:3]
        if key is None or value is None or context.tensor(key).rank != 4:
            return None
        keys, values = _append(key, context), _append(value, context)
        if keys is None or values is None:
            return None
        for v in (key, value):
            other = next((u.node for u in v.uses() if u.node is not node), None)
            if other is not None:
                return Reason(f"'{v.name}', which the cache is appended to, is also read by {label(other)}")
        if key is value or int(context.attr(node, "is_causal", 0)):
            return Reason("the frontier would move with the cache")
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        b = context.builder()
        attributes: dict[str, Any] = dict(node.attributes)
        outputs = b.multi("Attention", 3, node.inputs[0], keys[1], values[1], mask, keys[0], values[0], **attributes)
        replace = {node.outputs[0]: outputs[0], key: outputs[1], value: outputs[2]}
        return Patch(replace, tuple(b.nodes), note=f"'{key.name}' and '{value.name}'")


def _append(value: ir.Value, context: RuleContext) -> tuple[ir.Value, ir.Value] | None:
    """Past and new of a Concat along the length."""
    node = value.producer()
    if node is None or node.op_type != "Concat" or node.domain != "" or len(node.inputs) != 2:
        return None
    past, new = node.inputs
    if int(context.attr(node, "axis", 0)) % 4 != 2 or past is None or new is None or past is new:
        return None
    return past, new
