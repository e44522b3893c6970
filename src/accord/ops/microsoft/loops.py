"""Scan, written as a Python function of one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.facts import TensorFact

__all__ = ["Step", "scan"]

#: From a builder, the states and one slice of each scanned input to the new states and one slice of each output.
Step: TypeAlias = Callable[
    [Builder, Sequence[ir.Value], Sequence[ir.Value]], tuple[Sequence[ir.Value], Sequence[ir.Value]]
]


def scan(
    b: Builder,
    label: str,
    step: Step,
    states: Sequence[ir.Value],
    scanned: Sequence[ir.Value],
    *,
    axis: int = 0,
    reverse: bool = False,
) -> Sequence[ir.Value]:
    """Run ``step`` over slices of ``scanned`` along ``axis``.

    Args:
        b: The builder.
        label: Begins the names in the body; unlike any other in the model.
        step: Builds one round. It may read values from outside.
        states: Initial states.
        scanned: Inputs that are cut into slices.
        axis: The axis, of inputs and outputs.
        reverse: From the last slice to the first; the outputs are in the order of the inputs all the same.

    Returns:
        The final states, then the outputs.
    """
    inner = Builder(b.analyzer)
    inputs = [_body_input(b, v, f"{label}.state{i}", None) for i, v in enumerate(states)]
    inputs += [_body_input(b, v, f"{label}.slice{i}", axis) for i, v in enumerate(scanned)]
    new_states, outputs = step(inner, inputs[: len(states)], inputs[len(states) :])
    results: list[ir.Value] = []
    for value in (*new_states, *outputs):
        # What a body gives must be made in it, and given once.
        own = value.producer() in inner.nodes and value not in results
        results.append(value if own else inner("Identity", value))
    for i, node in enumerate(inner.nodes):
        node.name = f"{label}.node{i}"
        for j, value in enumerate(node.outputs):
            value.name = f"{label}.value{i}.{j}"
    # Inference that does not follow captured values needs the outputs' types.
    b.facts.write_back(results)
    for i, constant in enumerate(inner.constants):
        constant.name = f"{label}.constant{i}"
    body = ir.Graph(inputs, results, nodes=inner.nodes, initializers=inner.constants, name=label)
    direction = int(reverse)
    return b.multi(
        "Scan",
        len(results),
        *states,
        *scanned,
        body=body,
        num_scan_inputs=len(scanned),
        scan_input_axes=[axis] * len(scanned),
        scan_output_axes=[axis] * len(outputs) if outputs else None,
        scan_input_directions=[direction] * len(scanned),
        scan_output_directions=[direction] * len(outputs) if outputs else None,
    )


def _body_input(b: Builder, outer: ir.Value, name: str, axis: int | None) -> ir.Value:
    fact = b.fact(outer)
    shape = fact.shape
    if shape is not None and axis is not None:
        shape = shape[:axis] + shape[axis + 1 :]
    type_ = None if fact.dtype is None else ir.TensorType(fact.dtype)
    known = None if shape is None else ir.Shape([d if isinstance(d, int) else None for d in shape])
    value = ir.Value(name=name, type=type_, shape=known)
    b.facts[value] = TensorFact(fact.dtype, shape)
    return value
