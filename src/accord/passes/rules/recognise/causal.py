"""Causal masks: a mask that lets each query see the keys up to its own place becomes the attribute ``is_causal``.

Exporters build it from Trilu, from comparisons of Ranges, from Where, as a slice of a large constant. None of them is
looked for: a mask that depends on nothing but sizes is computed for two choices of the sizes and compared.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.facts import TensorFact
from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.masks import Frame, full_mask
from accord.passes.rules.recognise.region import known
from accord.passes.rules.recognise.scores import hides

__all__ = ["RecogniseCausalMask"]

#: Nodes that make a mask at most.
_LONGEST = 80
#: Sizes that a mask is computed for: one for each symbol in turn, from either end.
_SIZES = (5, 7, 4, 9, 6, 8)


class RecogniseCausalMask(Rule):
    """Attention with a mask that is the causal frontier, alone or together with others → is_causal."""

    name: ClassVar[str] = "recognise-causal-mask"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Attention")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch without the frontier in the mask."""
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        if mask is None or int(context.attr(node, "is_causal", 0)) or (len(node.inputs) > 6 and node.inputs[6]):
            return None
        past = context.tensor(node.inputs[4]).shape if len(node.inputs) > 4 and node.inputs[4] is not None else None
        lengths = [_length(node, i, context) for i in (0, 1)]
        if lengths[0] is None or lengths[1] is None:
            return None
        offset: D.DimLike = past[2] if past is not None else 0
        frame = (lengths[0], lengths[1] + offset, offset)
        parts = _parts(mask, context)
        causal = [p for p in parts if _is_frontier(p, frame, context, alone=len(parts) == 1)]
        if not causal:
            return None
        rest = [p for p in parts if p not in causal]
        b = context.builder()
        remaining: ir.Value | None = None
        op = "And" if context.tensor(mask).dtype == ir.DataType.BOOL else "Add"
        for p in rest:
            remaining = p if remaining is None else b(op, remaining, p)
        if remaining is not None:
            query, key = node.inputs[:2]
            rank = context.tensor(query).rank
            last = (context.tensor(remaining).shape or (1,))[-1]
            if query is None or key is None or rank is None or (past is not None and last == 1):
                return Reason("the mask beside the frontier is one for all keys")
            made = full_mask(b, remaining, Frame(query, key, rank - 2, frame[:2]))
            if isinstance(made, Reason):
                return made
            remaining = made
        attributes: dict[str, Any] = {**node.attributes, "is_causal": 1}
        inputs = [*node.inputs[:3], remaining, *node.inputs[4:]]
        outputs = b.multi("Attention", len(node.outputs), *inputs, **attributes)
        replace = dict(zip(node.outputs, outputs, strict=True))
        return Patch(replace, tuple(b.nodes), tuple(b.constants), note=f"{len(rest)} masks remain")


def _length(node: ir.Node, index: int, context: RuleContext) -> D.DimLike | None:
    shape = context.tensor(node.inputs[index]).shape
    return None if shape is None else shape[-2] if len(shape) == 4 else shape[1]


def _parts(mask: ir.Value, context: RuleContext) -> list[ir.Value]:
    """The masks that ``mask`` is the conjunction or the sum of."""
    join = "And" if context.tensor(mask).dtype == ir.DataType.BOOL else "Add"
    node = mask.producer()
    if node is None or node.domain != "" or node.graph is not mask.graph:
        return [mask]
    if node.op_type == join:
        return [p for v in node.inputs if v is not None for p in _parts(v, context)]
    if node.op_type in ("Expand", "Identity") and node.inputs[0] is not None:
        inner = _parts(node.inputs[0], context)
        return inner if len(inner) > 1 else [mask]
    return [mask]


def _is_frontier(
    value: ir.Value, frame: tuple[D.DimLike, D.DimLike, D.DimLike], context: RuleContext, *, alone: bool
) -> bool:
    """True if a mask hides exactly the keys behind each query; remembered, for layers share their mask."""
    key = ("frontier", value, frame, alone)
    if key not in context.scratch:
        context.scratch[key] = _compare(value, frame, context, alone)
    return bool(context.scratch[key])


def _compare(value: ir.Value, frame: tuple[D.DimLike, D.DimLike, D.DimLike], context: RuleContext, alone: bool) -> bool:
    cone = _cone(value, context)
    if cone is None:
        return False
    symbols = sorted({s for d in (*frame, *_dims(cone, context)) for s in D.symbols_of(d)})
    dtype = context.tensor(value).dtype
    for order in (symbols, symbols[::-1]):
        env = {s: _SIZES[i % len(_SIZES)] + i // len(_SIZES) for i, s in enumerate(order)}
        try:
            queries, keys, offset = (D.evaluate(d, env) for d in frame)
        except (KeyError, TypeError, ZeroDivisionError):
            return False
        array = _evaluate(value, cone, env, context)
        if array is None or array.ndim < 2 or array.shape[-2:] != (queries, keys):
            return False
        if array.size != queries * keys:
            return False
        seen = np.arange(keys) <= np.arange(queries)[:, np.newaxis] + offset
        plane = array.reshape(queries, keys)
        if array.dtype == np.bool_:
            if not np.array_equal(plane, seen):
                return False
        else:
            # Together with another mask a finite number does not hide: that one may hide the rest of the row.
            hidden = plane[~seen]
            enough = bool(np.isneginf(hidden).all()) or (alone and all(hides(float(h), dtype) for h in hidden))
            if plane[seen].any() or not enough:
                return False
        if not symbols:
            break
    return True


def _cone(value: ir.Value, context: RuleContext) -> list[ir.Node] | None:
    """The nodes that make ``value`` from constants and sizes, in order of execution; None if it reads data."""
    order: list[ir.Node] = []
    state: dict[ir.Value, bool] = {}

    def visit(v: ir.Value) -> bool:
        if v in state:
            return state[v]
        state[v] = known(context.tensor(v))
        if state[v]:
            return True
        node = v.producer()
        if node is None or node.graph is not value.graph or len(order) > _LONGEST or len(node.outputs) != 1:
            return False
        if not all(visit(i) for i in node.inputs if i is not None):
            return False
        state[v] = True
        order.append(node)
        return True

    return order if visit(value) else None


def _dims(cone: list[ir.Node], context: RuleContext) -> list[D.DimLike]:
    """Sizes that the nodes read."""
    facts: list[TensorFact] = [context.tensor(v) for n in cone for v in n.inputs if v is not None]
    return [d for f in facts if not f.is_const and f.data is not None for d in f.data]


def _evaluate(value: ir.Value, cone: list[ir.Node], env: dict[str, int], context: RuleContext) -> Any:
    """The content of ``value`` for these sizes."""
    evaluator = context.analyzer.evaluator
    values: dict[ir.Value, Any] = {}

    def content(v: ir.Value | None) -> Any:
        if v is None or v in values:
            return None if v is None else values[v]
        fact = context.tensor(v)
        if fact.is_const:
            return fact.numpy()
        if fact.data is None or fact.dtype is None:
            return None
        array = np.array([D.evaluate(d, env) for d in fact.data], dtype=fact.dtype.numpy())
        return array.reshape(()) if fact.rank == 0 else array

    try:
        for node in cone:
            inputs = [content(v) for v in node.inputs]
            if any(i is None and v is not None for i, v in zip(inputs, node.inputs, strict=True)):
                return None
            results = None if evaluator is None else evaluator(node, inputs, context.opset)
            if results is None:
                return None
            values[node.outputs[0]] = results[0]
        return content(value)
    except (KeyError, TypeError, ZeroDivisionError):
        return None
