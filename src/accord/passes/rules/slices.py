"""Slices whose places only a run tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["GatherRowOfSlice"]


class GatherRowOfSlice(Rule):
    """Slice from i to i + 1 → Squeeze of that axis: Gather at i, whose size is known before a run.

    Loops take what they look at in a round so. For i = -1 such a slice is empty, which Squeeze refuses; Gather gives
    the last row.
    """

    name: ClassVar[str] = "gather-row-of-slice"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Squeeze")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with Gather, and with the place as a scalar."""
        x = node.inputs[0]
        cut = x.producer() if x is not None else None
        if x is None or cut is None or cut.domain != "" or cut.op_type != "Slice" or len(cut.inputs) < 3:
            return None
        data, start, end = cut.inputs[:3]
        if start is None or end is None or context.tensor(start).elements() is not None:
            return None  # a slice at known places is a view
        if context.only_use(x) is not node:
            return Reason("the slice is read by others, too")
        rank = context.tensor(data).rank
        if rank is None or context.tensor(start).shape != (1,):
            return Reason("it is not a slice along one axis of a tensor of known rank")
        axis = _only(context, cut.inputs[3:4], 0)
        squeezed = _only(context, node.inputs[1:2], None)
        if axis is None or squeezed is None or axis % rank != squeezed % rank:
            return Reason("Squeeze removes other axes than the one that is sliced")
        if len(cut.inputs) > 4 and cut.inputs[4] is not None and context.number(cut.inputs[4]) != 1:
            return Reason("the slice has steps")
        if not _follows(end, start, context):
            return Reason("the slice does not end one after its start")
        b = context.builder()
        place = b("Reshape", start, b.const(np.empty(0, np.int64)))
        return patch_from(b, node, [b("Gather", data, place, axis=axis % rank)], f"a row along axis {axis % rank}")


def _only(context: RuleContext, given: Sequence[ir.Value | None], default: int | None) -> int | None:
    """The one axis that an input names; ``default`` where there is no such input."""
    if not given or given[0] is None:
        return default
    number = context.number(given[0])
    return None if number is None else int(number)


def _follows(end: ir.Value, start: ir.Value, context: RuleContext) -> bool:
    """Whether ``end`` is ``start`` and one."""
    total = _same_content(end, context).producer()
    if total is None or total.domain != "" or total.op_type != "Add":
        return False
    found = _same_content(start, context)
    return any(
        given is not None and _same_content(given, context) is found and context.number(one) == 1
        for given, one in (total.inputs, total.inputs[::-1])
    )


def _same_content(value: ir.Value, context: RuleContext) -> ir.Value:
    """What a value of one element is another shape of."""
    while (node := value.producer()) is not None and node.domain == "":
        source = node.inputs[0] if node.inputs else None
        if node.op_type not in ("Identity", "Reshape", "Squeeze", "Unsqueeze") or source is None:
            break
        if context.tensor(source).shape not in ((), (1,)):
            break
        value = source
    return value
