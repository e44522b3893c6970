"""Rotary embedding: pairs of features are turned by an angle that grows with the position.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021). Written as ``x * cos + rotate(x) *
sin`` with a rotation that is made of slices, negation and Concat, or by halves, or by pairs that are stacked, for all
features or the first ones. Each is a linear map of the last axis whose coefficients are columns of two tables. So it
is followed as one: for every element of the result, which element of the input is multiplied by which column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.columns import same_columns
from accord.passes.rules.recognise.linear_map import Ints, Map, Mapper, candidates
from accord.passes.rules.recognise.region import allows

__all__ = ["RecogniseRotary"]


@dataclass(frozen=True, slots=True)
class _Found:
    """A rotation.

    Attributes:
        cos: The table of cosines, as it meets the input.
        sin: The table of sines.
        size: Number of features that are turned, the first ones.
        interleaved: Neighbours are pairs; else halves are.
        cos_columns: For each pair its column in ``cos``.
        sin_columns: For each pair its column in ``sin``.
    """

    cos: ir.Value
    sin: ir.Value
    size: int
    interleaved: bool
    cos_columns: Ints
    sin_columns: Ints


class RecogniseRotary(Rule):
    """A rotation of pairs of features by tables of cosines and sines → RotaryEmbedding."""

    name: ClassVar[str] = "recognise-rotary"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Add", "Concat", "Reshape", "Cast")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the operator."""
        root = node.outputs[0]
        found = _find(root, context)
        if found is None or isinstance(found, Reason):
            return found
        # The features that are not turned, or the order of the pairs, may be put back behind it.
        reader = context.only_use(root)
        while reader is not None and reader.op_type in ("Concat", "Reshape", "Cast", "Unsqueeze"):
            if isinstance(_find(reader.outputs[0], context), tuple):
                return None
            reader = context.only_use(reader.outputs[0])
        x, mapper, rotation = found
        return self._patch(node, x, mapper, rotation, context)

    @staticmethod
    def _patch(node: ir.Node, x: ir.Value, mapper: Mapper, found: _Found, context: RuleContext) -> Patch | Reason:
        inside = set(mapper.nodes)
        for inner in mapper.nodes:
            for value in inner.outputs:
                if value is node.outputs[0]:
                    continue
                other = next((u.node for u in value.uses() if u.node not in inside), None)
                if value.is_graph_output() or other is not None:
                    by = label(other) if other is not None else "the caller"
                    return Reason(f"'{value.name}' between is also read by {by}")
        if not allows("RotaryEmbedding", context.tensor(x).dtype, context):
            return Reason("the operator does not take this dtype")
        b = context.builder()
        y = _emit(b, x, found, context)
        if isinstance(y, Reason):
            return y
        return patch_from(b, node, [y], f"{len(mapper.nodes)} nodes from '{x.name}'")


def _find(root: ir.Value, context: RuleContext) -> tuple[ir.Value, Mapper, _Found] | Reason | None:
    """The rotation that ``root`` is, and of what."""
    shape, dtype = context.tensor(root).shape, context.tensor(root).dtype
    if shape is None or not 3 <= len(shape) <= 4 or not isinstance(shape[-1], int) or shape[-1] < 2:
        return None
    for x in candidates(root, context):
        if context.tensor(x).shape != shape or context.tensor(x).dtype != dtype:
            continue
        mapper = Mapper(x, context)
        found = mapper.read(root)
        if found is None or len(found.shape) != 1:
            continue
        rotation = _rotation(found, context)
        if rotation is not None:
            return rotation if isinstance(rotation, Reason) else (x, mapper, rotation)
    return None


def _rotation(found: Map, context: RuleContext) -> _Found | Reason | None:
    """Read a linear map as a rotation."""
    width = len(found.terms[0].source)
    place = np.arange(1, width + 1)
    straight = [t for t in found.terms if t.table is not None and _is(t.source, place)]
    turned = [t for t in found.terms if t.table is not None and not _is(t.source, place)]
    passed = [t for t in found.terms if t.table is None]
    if len(straight) != 1 or len(turned) != 1 or len(passed) > 1:
        return None
    cos, sin = straight[0], turned[0]
    assert cos.table is not None and sin.table is not None
    size = int((cos.source != 0).sum())
    rest = np.zeros(width, dtype=np.int64)
    rest[size:] = place[size:]
    if size < 2 or size % 2 or not _is_prefix(cos.source, size) or not _is_prefix(sin.source, size):
        return None
    if not np.array_equal(passed[0].source if passed else np.zeros(width), rest):
        return None
    half = size // 2
    j = np.arange(size)
    for interleaved in (False, True):
        partner = j ^ 1 if interleaved else (j + half) % size
        first = j % 2 == 0 if interleaved else j < half
        want = np.where(first, -1, 1) * (partner + 1)
        if not np.array_equal(np.abs(sin.source[:size]), partner + 1):
            continue
        if not np.array_equal(sin.source[:size], want):
            return Reason("the pairs are turned the other way")
        lead = j[first]
        for table, columns in ((cos.table, cos.column), (sin.table, sin.column)):
            if not same_columns(table, columns[lead], columns[partner[lead]], context):
                return Reason(f"'{table.name}' is not known to be the same for both features of a pair")
        return _Found(cos.table, sin.table, size, interleaved, cos.column[lead], sin.column[lead])
    return None


def _is(source: Ints, place: Ints) -> bool:
    """True if every element that is there is where it was, unchanged."""
    return bool(((source == place) | (source == 0)).all())


def _is_prefix(source: Ints, size: int) -> bool:
    return bool((source[:size] != 0).all() and (source[size:] == 0).all())


# the operator


def _emit(b: Builder, x: ir.Value, found: _Found, context: RuleContext) -> ir.Value | Reason:
    shape = context.tensor(x).shape
    assert shape is not None
    length = _length_axis(shape, found, context)
    if length is None:
        return Reason("cosines and sines are not by position")
    tables: list[ir.Value] = []
    for table, columns in ((found.cos, found.cos_columns), (found.sin, found.sin_columns)):
        made = _table(b, table, columns, x, length, context)
        if isinstance(made, Reason):
            return made
        tables.append(made)
    attributes: dict[str, Any] = {}
    if found.interleaved:
        attributes["interleaved"] = 1
    width = shape[-1]
    if found.size != width:
        attributes["rotary_embedding_dim"] = found.size
    if len(shape) == 4 and length == 2:
        return b.multi("RotaryEmbedding", 1, x, *tables, **attributes)[0]
    # (batch, length, heads, size) is the packed form with its last axis split
    heads = shape[2] if len(shape) == 4 else 1
    if not isinstance(heads, int) or not isinstance(width, int):
        return Reason("the number of heads is only known at run time")
    attributes["num_heads"] = heads
    packed = b("Reshape", x, b.ints(0, 0, heads * width)) if len(shape) == 4 else x
    y = b.multi("RotaryEmbedding", 1, packed, *tables, **attributes)[0]
    return b("Reshape", y, b.ints(0, 0, heads, width)) if len(shape) == 4 else y


def _length_axis(shape: D.Shape, found: _Found, context: RuleContext) -> int | None:
    """The axis of the input that the tables vary along: 2 before the size, or 1 before the heads."""
    if len(shape) == 3:
        return 1
    sizes = []
    for table in (found.cos, found.sin):
        own = context.tensor(table).shape
        if own is None or len(own) > 4:
            return None
        sizes.append((1,) * (4 - len(own)) + tuple(own))
    for axis, other in ((2, 1), (1, 2)):
        if all(s[other] == 1 and s[axis] == shape[axis] and s[0] in (1, shape[0]) for s in sizes):
            return axis
    return None


def _table(
    b: Builder, table: ir.Value, columns: Ints, x: ir.Value, length: int, context: RuleContext
) -> ir.Value | Reason:
    """``(batch, length, pairs)`` of a table as it meets the input."""
    shape, own = context.tensor(x).shape, context.tensor(table).shape
    assert shape is not None and own is not None
    value = _select(b, table, columns, own)
    rank = len(own)
    if len(shape) == 4:
        # The axis of the heads, counted in the table, goes; without one of its own, the batch is 1.
        head = (3 - length) - (4 - rank)
        if head >= 0:
            value = b("Squeeze", value, b.ints(head))
            rank -= 1
    if rank == 2:
        value = b("Unsqueeze", value, b.ints(0))
    if rank > 3 or rank < 2:
        return Reason(f"'{table.name}' has {len(own)} axes")
    if b.fact(value).dtype != context.tensor(x).dtype:
        value = b("Cast", value, to=int(context.tensor(x).dtype or ir.DataType.FLOAT))
    made = b.shape(value)
    if made is None or made[0] == shape[0]:
        return value
    batch = b.ints(shape[0]) if isinstance(shape[0], int) else b("Shape", x, start=0, end=1)
    return b("Expand", value, b("Concat", batch, b.ints(1, 1), axis=0))


def _select(b: Builder, table: ir.Value, columns: Ints, own: D.Shape) -> ir.Value:
    """The columns of a table, as a slice where they are evenly spaced."""
    width = own[-1]
    if isinstance(width, int) and np.array_equal(columns, np.arange(width)):
        return table
    step = int(columns[1] - columns[0]) if len(columns) > 1 else 1
    start = int(columns[0])
    if step > 0 and np.array_equal(columns, np.arange(start, start + step * len(columns), step)):
        stop = start + step * (len(columns) - 1) + 1
        return b("Slice", table, b.ints(start), b.ints(stop), b.ints(-1), b.ints(step))
    return b("Gather", table, b.const(columns.astype(np.int64)), axis=-1)
