"""Scan-8 (a batch axis and sequence lengths) and LoopIndexTensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.facts import TensorFact
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs

__all__: list[str] = []


@expands("Scan", before=9)
def batched_scan(b: Builder, n: Inference) -> Outputs:
    """A Scan over the batch whose body is the old Scan over one sequence.

    Everything of an element of the batch, its initial states too, is an input that the outer Scan takes apart on axis
    0, and everything that the inner Scan returns is stacked on axis 0 again.
    """
    node = n.node
    count = n.attr("num_scan_inputs")
    lengths = given(n, 0)
    sources = [required(n, i) for i in range(1, len(node.inputs))]
    states = len(sources) - count

    inner = Builder(b.analyzer)
    parameters = [_element(b, source, f"part_{i}") for i, source in enumerate(sources)]
    outer_inputs = list(sources)
    sequences = parameters[states:]
    length: ir.Value | None = None
    if lengths is not None:
        length = _element(b, lengths, "length")
        outer_inputs.insert(0, lengths)
        end = inner("Reshape", inner("Cast", length, to=int(ir.DataType.INT64)), inner.ints(1))
        longest = inner("Shape", sequences[0], start=0, end=1)
        sequences = [inner("Slice", s, inner.ints(0), end, inner.ints(0)) for s in sequences]
        missing = inner("Sub", longest, end)
    results: Sequence[ir.Value] = inner.multi(
        "Scan",
        len(node.outputs),
        *parameters[:states],
        *sequences,
        body=node.attributes["body"],
        num_scan_inputs=count,
        scan_input_directions=n.attr("directions"),
    )
    if length is not None:
        pads = inner("Concat", inner.ints(0), missing, axis=0)
        padded = [inner("Pad", r, pads, None, inner.ints(0)) for r in results[states:]]
        results = [*results[:states], *padded]
    body = ir.Graph(
        ([length] if length is not None else []) + parameters,
        results,
        nodes=inner.nodes,
        initializers=_named(inner.constants),
        name="batch",
    )
    return b.multi("Scan", len(results), *outer_inputs, body=body, num_scan_inputs=len(outer_inputs))


def _element(b: Builder, value: ir.Value, name: str) -> ir.Value:
    """The value of a body's input that receives ``value`` without its first axis."""
    fact = b.fact(value)
    element = TensorFact(fact.dtype, None if fact.shape is None else fact.shape[1:])
    parameter = ir.Value(name=name)
    b.facts[parameter] = element
    b.facts.write_back([parameter])
    return parameter


def _named(constants: Sequence[ir.Value]) -> Sequence[ir.Value]:
    for i, value in enumerate(constants):
        value.name = f"constant_{i}"
    return constants


@expands("LoopIndexTensor", before=9)
def loop_index_tensor(b: Builder, n: Inference) -> Outputs:
    """One element of a tensor along an axis, chosen by the number of the iteration."""
    index = b("Reshape", required(n, 1), b.const(np.empty(0, dtype=np.int64)))
    return [b("Gather", required(n, 0), index, axis=n.attr("axis", 0))]
