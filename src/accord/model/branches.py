"""Which inputs decide about branches."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["decisive_inputs"]

#: Operators through which one integer goes on its way to a condition.
_PASSING = frozenset(
    {
        *("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Not", "And", "Or", "Xor", "Cast", "Identity"),
        *("Squeeze", "Unsqueeze", "Reshape", "Add", "Sub", "Mul", "Gather"),
    }
)
_FAR = 8
_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


def decisive_inputs(graph: ir.Graph) -> list[ir.Value]:
    """Inputs of one integer from which, and from constants, the condition of an If is computed."""
    single = {v for v in graph.inputs if _is_single(v)}
    found: dict[ir.Value, None] = {}
    if not single:
        return []
    for node in graph.all_nodes():
        if node.domain == "" and node.op_type == "If" and node.inputs and node.inputs[0] is not None:
            reached = _reached(node.inputs[0], _FAR)
            if reached is not None:
                found.update(dict.fromkeys(v for v in graph.inputs if v in reached and v in single))
    return list(found)


def _is_single(value: ir.Value) -> bool:
    dims = None if value.shape is None else value.shape.dims
    return value.dtype in _INTEGERS and dims is not None and (len(dims) == 0 or tuple(dims) == (1,))


def _reached(value: ir.Value, far: int) -> set[ir.Value] | None:
    """The inputs that ``value`` is computed from; None if anything else has a part in it."""
    maker = value.producer()
    if maker is None:
        return set() if value.const_value is not None and not value.is_graph_input() else {value}
    if maker.domain == "" and maker.op_type == "Constant":
        return set()
    if far == 0 or maker.domain != "" or maker.op_type not in _PASSING:
        return None
    inputs: set[ir.Value] = set()
    for v in maker.inputs:
        if v is not None:
            more = _reached(v, far - 1)
            if more is None:
                return None
            inputs |= more
    return inputs
