"""What the inputs of a body are, told from the node's inputs before the body is normalised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from accord.ir.facts import UNKNOWN, Fact, SequenceFact, TensorFact
from accord.ir.infer import Inference

__all__ = ["BODY_FACTS", "without_content"]


def without_content(fact: Fact) -> Fact:
    """The fact of a value that has the dtype and the shape, but another content on each run or iteration."""
    return TensorFact(fact.dtype, fact.shape) if isinstance(fact, TensorFact) else fact


def _without_axes(fact: Fact, *axes: int) -> Fact:
    if not isinstance(fact, TensorFact) or fact.shape is None:
        return without_content(fact)
    rank = len(fact.shape)
    gone = {a + rank if a < 0 else a for a in axes}
    return TensorFact(fact.dtype, tuple(d for i, d in enumerate(fact.shape) if i not in gone))


def _loop_inputs(n: Inference, body: ir.Graph, version: int) -> Sequence[Fact]:
    """A value that the body hands on unchanged stays what it is; of another only the dtype stays."""
    facts: list[Fact] = [TensorFact(ir.DataType.INT64, ()), TensorFact(ir.DataType.BOOL, ())]
    for i, fact in enumerate(n.inputs[2:]):
        fixed = i + 1 < len(body.outputs) and i + 2 < len(body.inputs) and body.outputs[i + 1] is body.inputs[i + 2]
        known = without_content(fact)
        facts.append(TensorFact(known.dtype, None) if isinstance(known, TensorFact) and not fixed else known)
    return facts


def _scan_inputs(n: Inference, body: ir.Graph, version: int) -> Sequence[Fact]:
    count = n.attr("num_scan_inputs", 0)
    if version < 9:
        given = n.inputs[1:]
        states = len(given) - count
        return [_without_axes(f, 0) if i < states else _without_axes(f, 0, 1) for i, f in enumerate(given)]
    states = len(n.inputs) - count
    axes = n.attr("scan_input_axes") or (0,) * count
    facts = [without_content(f) for f in n.inputs[:states]]
    return facts + [_without_axes(f, a) for f, a in zip(n.inputs[states:], axes, strict=False)]


def _map_inputs(n: Inference, body: ir.Graph, version: int) -> Sequence[Fact]:
    """An element of each sequence; of a sequence's elements only the dtype is the same."""
    facts: list[Fact] = []
    for fact in n.inputs:
        element = (fact.element or UNKNOWN) if isinstance(fact, SequenceFact) else fact
        if isinstance(fact, SequenceFact) and isinstance(element, TensorFact):
            element = TensorFact(element.dtype, None)
        facts.append(without_content(element))
    return facts


BodyFacts: TypeAlias = Callable[[Inference, ir.Graph, int], Sequence[Fact]]
BODY_FACTS: dict[str, BodyFacts] = {"Loop": _loop_inputs, "Scan": _scan_inputs, "SequenceMap": _map_inputs}
