"""Inverse deviations of the rows of a result, as nodes say it: what a kernel may make beside the rows.

The nodes are, of rows of f16 or bf16, in this order: Cast to f32, then, if rows are centred, ReduceMean and Sub; Mul by
itself, ReduceMean, Add of a constant, Sqrt, Reciprocal; all over the last axis. Others may read the mean, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from accord.backends.epilogue import RowDeviation
from accord.backends.view import NodeView
from accord.ir.reason import Reason

__all__ = ["deviation_of"]

_SQUARES = ["Mul", "ReduceMean", "Add", "Sqrt", "Reciprocal"]
_CENTRED = ["Cast", "ReduceMean", "Sub", *_SQUARES]


def deviation_of(nodes: Sequence[NodeView]) -> tuple[RowDeviation, int] | Reason:
    """What the last of these nodes make of the result of those before them, and how many they are; or why that is none.

    Args:
        nodes: In topological order.
    """
    names = [n.node.op_type if not n.node.domain else "" for n in nodes]
    centred = names[-8:] == _CENTRED
    count = 8 if centred else 6
    if names[-count:] != (_CENTRED if centred else ["Cast", *_SQUARES]) or len(nodes) <= count:
        return Reason("the last nodes do not make deviations of rows")
    tail = nodes[-count:]
    first = tail[0]
    rows = first.node.inputs[0]
    if rows is not nodes[-count - 1].node.outputs[0] or first.output().dtype != ir.DataType.FLOAT:
        return Reason("deviations are made of other rows")
    value = first.node.outputs[0]
    if centred:
        mean, minus = tail[1], tail[2]
        if not _is_mean(mean, value) or list(minus.node.inputs) != [value, mean.node.outputs[0]]:
            return Reason("what is taken from the rows is not their mean")
        value = minus.node.outputs[0]
    square, mean, plus, root, inverse = tail[-5:]
    epsilon = plus.tensor(1).const
    chained = (
        list(square.node.inputs) == [value, value]
        and _is_mean(mean, square.node.outputs[0])
        and plus.node.inputs[0] is mean.node.outputs[0]
        and root.node.inputs[0] is plus.node.outputs[0]
        and inverse.node.inputs[0] is root.node.outputs[0]
    )
    if not chained or epsilon is None or epsilon.size != 1:
        return Reason("the last nodes do not make inverse deviations")
    inside = {n.node for n in nodes}
    average = tail[1].node.outputs[0]
    read = centred and (average.is_graph_output() or any(u.node not in inside for u in average.uses()))
    return RowDeviation(centred, float(plus.tensor(1).numpy().reshape(-1)[0]), read), count


def _is_mean(view: NodeView, value: ir.Value) -> bool:
    """Whether a ReduceMean is of ``value`` over the last axis, which stays."""
    axes = view.tensor(1).const
    if view.node.inputs[0] is not value or axes is None or not int(view.attr("keepdims", 1)):
        return False
    rank = view.tensor(0).rank
    return rank is not None and view.tensor(1).numpy().reshape(-1).tolist() in ([-1], [rank - 1])
