"""Constants: fold what is known before a run, share what is computed twice."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.contract.registry import contract_for
from accord.errors import UnknownOperatorError
from accord.ir import dims as D
from accord.ir.facts import TensorFact, to_numpy
from accord.ir.infer import RANDOM
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.model.limits import physical_memory
from accord.passes.rule import Rule, RuleContext
from accord.passes.rules.fuse_weights import stays_packed

__all__ = ["CommonSubexpressions", "FoldConstants", "ShareConstants"]

#: A folded result may be larger than its inputs by this many bytes; beyond, it is cheaper to compute than to keep.
MAX_GROWTH_BYTES = 1 << 20
#: Weights that a model computes are computed at load unless they take more than this part of the memory.
MEMORY_PART = 16


def _has_graph(node: ir.Node) -> bool:
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def _ends(node: ir.Node, through: frozenset[str]) -> list[Any] | None:
    """The uses of what a node computes, after operators ``through``; None for outputs of the graph, or a long way."""
    todo, seen = [node], {node}
    ends: list[Any] = []
    while todo:
        for out in todo.pop().outputs:
            if out.is_graph_output() or len(seen) > _FAR:
                return None
            for use in out.uses():
                if use.node.op_type not in through:
                    ends.append(use)
                elif use.node not in seen:
                    seen.add(use.node)
                    todo.append(use.node)
    return ends


def only_looked_up(node: ir.Node) -> bool:
    """Whether rows are picked out of what a node computes, and nothing else is done with it."""
    ends = _ends(node, _ROWWISE)
    return ends is not None and all((u.node.domain, u.node.op_type, u.idx) == ("", "Gather", 0) for u in ends)


def only_weights(node: ir.Node) -> bool:
    """Whether what a node computes is nothing but weights, which are kept in a layout of their own anyway."""
    ends = _ends(node, _MOVING | _ROWWISE)
    return bool(ends) and all(u.node.domain == "" and u.node.op_type in _WEIGHED and u.idx > 0 for u in ends or ())


#: Elementwise operators with which weights are restored from fewer bits, views, and how many to look through.
_ROWWISE = frozenset({"Cast", "Mul", "Sub", "Add", "Div", "DequantizeLinear"})
_MOVING = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose"})
_FAR = 8
#: Operators whose inputs after the first are weights.
_WEIGHED = frozenset(
    "BatchNormalization Conv ConvTranspose Gemm GRU InstanceNormalization LayerNormalization LSTM MatMul RNN".split()
)


class FoldConstants(Rule):
    """Compute a node whose inputs are all known, through the reference backend.

    A result that is larger only because its elements are (weights that were stored in fewer bits) is kept as well, but
    for tables of which a run looks up a few rows. Weights are computed whatever their size.
    """

    name: ClassVar[str] = "fold-constants"

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that puts initializers in place of the node's outputs."""
        packed = stays_packed(node, context)
        if packed is True:
            return Reason("a product reads the weight as it is stored")
        facts = [context.fact(o) for o in node.outputs]
        used = [bool(o.uses()) or o.is_graph_output() for o in node.outputs]
        if not any(used):
            return None
        if all(isinstance(f, TensorFact) and f.is_const for f, u in zip(facts, used, strict=True) if u):
            tensors = [f.const if isinstance(f, TensorFact) else None for f in facts]
        else:
            computed = self._compute(node, context, facts)
            if not isinstance(computed, list):
                return computed
            tensors = computed
        builder = context.builder()
        outputs = [
            builder.const(t, o.name) if t is not None and u else None
            for t, o, u in zip(tensors, node.outputs, used, strict=False)
        ]
        note = f"computed at load: {packed}" if isinstance(packed, Reason) else "computed at load"
        return patch_from(builder, node, outputs, note)

    def _compute(self, node: ir.Node, context: RuleContext, facts: list[Any]) -> list[Any] | Reason | None:
        evaluator = context.analyzer.evaluator
        if (
            evaluator is None
            or _has_graph(node)
            or node.op_type in RANDOM
            or node.op_identifier() in context.model.functions
        ):
            return None
        if not node.inputs and node.op_type != "Constant":
            return None
        inputs: list[Any] = []
        size_in = 0
        for v in node.inputs:
            if v is None:
                inputs.append(None)
                continue
            fact = context.tensor(v)
            if fact.const is None:
                return None
            size_in += fact.const.nbytes
            inputs.append(fact.const)
        if any(not isinstance(f, TensorFact) for f in facts):
            return None
        size_out = most = 0
        for f in facts:
            elements = D.known_product(f.shape) if f.shape is not None else None
            if elements is None or f.dtype is None:
                return Reason("the result's shape is not known")
            size_out += int(elements * max(f.dtype.itemsize, 1))
            most = max(most, elements)
        if size_out > size_in + MAX_GROWTH_BYTES and (
            only_looked_up(node)
            or (
                most > max((t.size for t in inputs if t is not None), default=0)
                and not (only_weights(node) and size_out <= physical_memory() // MEMORY_PART)
            )
        ):
            return Reason(f"the result ({size_out} bytes) is much larger than its inputs ({size_in} bytes)")
        arrays = [None if t is None else to_numpy(t) for t in inputs]
        results = evaluator(node, arrays, context.analyzer.opsets.get(node.domain, 1))
        if results is None:
            return Reason("the reference backend could not compute it at load")
        return [r if isinstance(r, np.ndarray) else None for r in results]


class CommonSubexpressions(Rule):
    """Compute equal expressions once: same operator, attributes and inputs, and the operator is deterministic."""

    name: ClassVar[str] = "common-subexpressions"

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that uses the earlier node's outputs, if there is an equal earlier node in this graph."""
        if _has_graph(node) or node.op_type in RANDOM or not node.outputs:
            return None
        if node.op_identifier() not in context.model.functions:
            try:
                contract = contract_for(node.domain, node.op_type, context.analyzer.opsets.get(node.domain, 1))
            except UnknownOperatorError:
                return None
            if not (contract.semantic.deterministic and contract.scheduling.stateless):
                return Reason("the operator is declared stateful or not deterministic")
        key = (
            node.op_identifier(),
            tuple(id(v) if v is not None else None for v in node.inputs),
            tuple(sorted((a.name, _attribute_key(a)) for a in node.attributes.values())),
        )
        earlier = context.scratch.get(key)
        if earlier is None or earlier.graph is not node.graph:
            context.scratch[key] = node
            return None
        if earlier is node:
            return None
        pairs = list(zip(node.outputs, earlier.outputs, strict=False))
        if len(node.outputs) > len(earlier.outputs):
            return None
        if all(a.is_graph_output() and b.is_graph_output() for a, b in pairs):
            return None
        return Patch({a: b for a, b in pairs if a.uses() or a.is_graph_output()}, note=f"same as {earlier.name}")


def _attribute_key(a: ir.Attr) -> Any:
    if a.type == ir.AttributeType.TENSOR:
        return _tensor_key(a.value)
    if a.type == ir.AttributeType.TENSORS:
        return tuple(map(_tensor_key, a.value))
    return repr(a.value)


def _tensor_key(tensor: ir.TensorProtocol) -> Any:
    if tensor.dtype == ir.DataType.STRING:
        return ("STRING", tuple(tensor.shape.numpy()), tuple(to_numpy(tensor).reshape(-1).tolist()))
    return (str(tensor.dtype), tuple(tensor.shape.numpy()), tensor.tobytes())


class ShareConstants(Rule):
    """Use one initializer for equal small constants, so that equal expressions are seen to be equal."""

    name: ClassVar[str] = "share-constants"

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that replaces a small initializer read by ``node`` by an earlier equal one."""
        replace: dict[ir.Value, ir.Value] = {}
        for v in node.inputs:
            if v is None or not v.is_initializer() or v.is_graph_input() or v.is_graph_output():
                continue
            if v.graph is not node.graph or v.const_value is None or v.const_value.nbytes > 256:
                continue
            tensor = v.const_value
            key = _tensor_key(tensor)
            first = context.scratch.setdefault(key, v)
            if first is not v and first.graph is v.graph and first.is_initializer():
                replace[v] = first
        return Patch(replace, note="equal constants shared") if replace else None
