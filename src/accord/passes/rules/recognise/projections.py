"""Projections of one value by several constant matrices → one product and a Split.

Queries, keys and values, or gate and up projections: one product with the matrices side by side reads the input once
and is large enough to be fast. Biases that follow are put side by side too. It runs after the phase that recognises: a
cell or an attention whose gates were shared out to others by then could not be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["MergeProjections"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Projection:
    """``x @ weight + bias``; ``result`` is the last of the nodes' values."""

    weight: Array
    bias: Array | None
    result: ir.Value


class MergeProjections(Rule):
    """MatMuls of one value with constant matrices → one MatMul, its bias, and a Split."""

    name: ClassVar[str] = "merge-projections"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("MatMul")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with one product for all projections of the node's input."""
        x = node.inputs[0]
        if x is None or self._weight(node, context) is None:
            return None
        # Nodes are looked at in the order of the graph, so the first of several speaks for all.
        if context.scratch.setdefault(("projections", x), node) is not node:
            return None
        siblings = [
            u.node
            for u in x.uses()
            if u.idx == 0 and u.node.op_type == "MatMul" and u.node.domain == "" and u.node.graph is node.graph
        ]
        siblings = [n for n in siblings if self._weight(n, context) is not None]
        if len(siblings) < 2:
            return None
        parts = [self._projection(n, context) for n in siblings]
        weights = [p.weight for p in parts]
        if len({w.dtype for w in weights}) != 1:
            return Reason("the matrices have different types")
        with_bias = [p.bias is not None for p in parts]
        if any(with_bias) and not all(with_bias):
            parts = [_Projection(p.weight, None, n.outputs[0]) for p, n in zip(parts, siblings, strict=True)]
        b = context.builder()
        rank = context.tensor(parts[0].result).rank
        if rank is None:
            return Reason("the rank is not known")
        y = b("MatMul", x, b.const(np.concatenate(weights, axis=1), f"{label(node)}.merged"))
        biases = [p.bias for p in parts if p.bias is not None]
        if len(biases) == len(parts):
            y = b("Add", y, b.const(np.concatenate(biases), f"{label(node)}.bias"))
        sizes = b.ints(*(w.shape[1] for w in weights))
        outputs = b.multi("Split", len(parts), y, sizes, axis=rank - 1)
        replace = {p.result: o for p, o in zip(parts, outputs, strict=True)}
        return Patch(replace, tuple(b.nodes), tuple(b.constants), note=", ".join(label(n) for n in siblings))

    @staticmethod
    def _weight(node: ir.Node, context: RuleContext) -> Array | None:
        """The constant matrix that ``node`` multiplies by."""
        weight = context.constant(node.inputs[1])
        return weight if weight is not None and weight.ndim == 2 else None

    def _projection(self, node: ir.Node, context: RuleContext) -> _Projection:
        weight = self._weight(node, context)
        assert weight is not None
        y = node.outputs[0]
        reader = context.only_use(y)
        if reader is not None and reader.op_type == "Add" and reader.domain == "" and reader.graph is node.graph:
            other = reader.inputs[1 if reader.inputs[0] is y else 0]
            bias = context.constant(other)
            if bias is not None and bias.shape == (weight.shape[1],):
                return _Projection(weight, bias, reader.outputs[0])
        return _Projection(weight, None, y)
