"""Linear maps of a value's last axis: which elements of the input go where, and by what they are multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.ir import dims as D
from accord.passes.rule import RuleContext

__all__ = ["WIDEST", "Ints", "Map", "Mapper", "Part", "candidates"]

Ints: TypeAlias = npt.NDArray[np.int64]

_OPS = frozenset("Add Sub Mul Neg Concat Slice Split Gather Unsqueeze Squeeze Reshape Transpose Identity Cast".split())
_LIMIT = 40
#: Size of the last axis at most.
WIDEST = 1 << 14


@dataclass(frozen=True, slots=True)
class Part:
    """One summand.

    Attributes:
        table: What the input's elements are multiplied by; None for nothing.
        column: For each element of the result the column of the table.
        source: For each element of the result which element of the input it has: its number counted from 1, negative
            where the sign changes, 0 where there is none.
    """

    table: ir.Value | None
    column: Ints
    source: Ints


@dataclass(frozen=True, slots=True)
class Map:
    """A linear map: the sum of its parts, whose arrays have the shape of the axes behind the leading ones."""

    terms: tuple[Part, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes behind the leading ones."""
        return self.terms[0].source.shape


def candidates(root: ir.Value, context: RuleContext) -> list[ir.Value]:
    """Values behind ``root`` that it may be a map of, the nearest first; none where nothing is put together."""
    found: dict[ir.Value, None] = {}
    queue = [root]
    visited: set[ir.Node] = set()
    while queue and len(visited) < _LIMIT:
        node = queue.pop(0).producer()
        if node is None or node in visited or node.domain != "" or node.op_type not in _OPS:
            continue
        if node.graph is not root.graph:
            continue
        visited.add(node)
        for v in node.inputs if node.op_type in ("Add", "Sub", "Mul", "Concat") else node.inputs[:1]:
            if v is not None and not context.tensor(v).is_const:
                found[v] = None
                queue.append(v)
    return list(found) if {"Mul", "Concat"} <= {n.op_type for n in visited} else []


class Mapper:
    """Reads values as linear maps of ``x``.

    Args:
        x: The input; its last axis has a known size.
        context: For constants and facts.

    Attributes:
        nodes: Nodes that depend on ``x`` and were read.
    """

    def __init__(self, x: ir.Value, context: RuleContext) -> None:
        self.x = x
        self.context = context
        shape = context.tensor(x).shape
        assert shape is not None and isinstance(shape[-1], int)
        self.lead = tuple(shape[:-1])
        size = shape[-1]
        identity = Part(None, np.zeros(size, np.int64), np.arange(1, size + 1))
        self._maps: dict[ir.Value, Map | None] = {x: Map((identity,))}
        self._depends: dict[ir.Value, bool] = {x: True}
        self.nodes: list[ir.Node] = []

    def depends(self, value: ir.Value | None) -> bool:
        """True if ``value`` is computed from the input, through operators that a map may consist of."""
        if value is None:
            return False
        if value not in self._depends:
            self._depends[value] = False
            node = value.producer()
            if node is not None and node.domain == "" and node.op_type in _OPS and node.graph is self.x.graph:
                self._depends[value] = len(self._depends) < 4 * _LIMIT and any(map(self.depends, node.inputs))
        return self._depends[value]

    def read(self, value: ir.Value) -> Map | None:
        """``value`` as a map; None if it is none."""
        if value not in self._maps:
            node = value.producer()
            self._maps[value] = None
            if node is not None and self.depends(value) and len(self.nodes) < _LIMIT:
                if node not in self.nodes:
                    self.nodes.append(node)
                self._maps[value] = self._node(node, value)
        return self._maps[value]

    def _node(self, node: ir.Node, value: ir.Value) -> Map | None:
        match node.op_type:
            case "Add" | "Sub":
                return self._sum(node)
            case "Mul":
                return self._product(node)
            case "Concat":
                return self._concat(node)
            case "Split":
                return self._split(node, value)
        inner = None if node.inputs[0] is None else self.read(node.inputs[0])
        if inner is None:
            return None
        match node.op_type:
            case "Neg":
                return Map(tuple(Part(t.table, t.column, -t.source) for t in inner.terms))
            case "Identity" | "Cast":
                dtype = self.context.tensor(value).dtype
                return inner if dtype is not None and dtype.is_floating_point() else None
            case "Slice":
                return self._slice(node, inner)
            case "Gather":
                return self._gather(node, inner)
            case "Transpose":
                return self._transpose(node, inner)
        return self._regroup(value, inner)

    def _each(self, inner: Map, move: object) -> Map:
        assert callable(move)
        return Map(tuple(Part(t.table, move(t.column), move(t.source)) for t in inner.terms))

    def _axis(self, axis: int, inner: Map) -> int | None:
        """An axis of a value as an axis of its map's arrays; None for a leading one."""
        rank = len(self.lead) + len(inner.shape)
        own = axis % rank - len(self.lead)
        return own if own >= 0 else None

    def _ints(self, node: ir.Node, index: int) -> list[int] | None:
        content = self.context.constant(node.inputs[index]) if index < len(node.inputs) else None
        return None if content is None else [int(i) for i in content.reshape(-1)]

    def _sum(self, node: ir.Node) -> Map | None:
        a, b = (None if v is None else self.read(v) for v in node.inputs)
        if a is None or b is None or a.shape != b.shape:
            return None
        if node.op_type == "Sub":
            b = Map(tuple(Part(t.table, t.column, -t.source) for t in b.terms))
        return Map((*a.terms, *b.terms))

    def _product(self, node: ir.Node) -> Map | None:
        for side in (0, 1):
            value, table = node.inputs[side], node.inputs[1 - side]
            if value is None or table is None or not self.depends(value) or self.depends(table):
                continue
            inner = self.read(value)
            number = self.context.number(table)
            if inner is None:
                return None
            if number is not None and abs(float(number)) == 1:
                sign = int(number)
                return Map(tuple(Part(t.table, t.column, sign * t.source) for t in inner.terms))
            shape = self.context.tensor(table).shape
            if not shape or len(inner.shape) != 1 or shape[-1] != inner.shape[0]:
                return None
            if any(t.table is not None for t in inner.terms):
                return None
            columns = np.arange(inner.shape[0])
            return Map(tuple(Part(table, columns, t.source) for t in inner.terms))
        return None

    def _concat(self, node: ir.Node) -> Map | None:
        parts = [None if v is None else self.read(v) for v in node.inputs]
        first = parts[0]
        if first is None:
            return None
        axis = self._axis(int(self.context.attr(node, "axis", 0)), first)
        if axis is None:
            return None
        tables: list[ir.Value | None] = []
        for p in parts:
            if p is None or len(p.shape) != len(first.shape):
                return None
            tables.extend(t.table for t in p.terms if t.table not in tables)
        # Summands that belong together are those with one table, the straight and the turned ones apart.
        return self._join([p for p in parts if p is not None], tables, axis)

    @staticmethod
    def _join(parts: Sequence[Map], tables: Sequence[ir.Value | None], axis: int) -> Map | None:
        out: list[Part] = []
        for table in tables:
            columns: list[Ints] = []
            sources: list[Ints] = []
            for p in parts:
                own = [t for t in p.terms if t.table is table]
                if len(own) > 1:
                    return None
                columns.append(own[0].column if own else np.zeros(p.shape, np.int64))
                sources.append(own[0].source if own else np.zeros(p.shape, np.int64))
            out.append(Part(table, np.concatenate(columns, axis), np.concatenate(sources, axis)))
        return Map(tuple(out))

    def _split(self, node: ir.Node, value: ir.Value) -> Map | None:
        inner = None if node.inputs[0] is None else self.read(node.inputs[0])
        if inner is None:
            return None
        axis = self._axis(int(self.context.attr(node, "axis", 0)), inner)
        if axis is None:
            return None
        sizes: list[int] = []
        for output in node.outputs:
            shape = self.context.tensor(output).shape
            size = None if shape is None else shape[axis + len(self.lead)]
            if not isinstance(size, int):
                return None
            sizes.append(size)
        index = list(node.outputs).index(value)
        start = sum(sizes[:index])
        cut = (slice(None),) * axis + (slice(start, start + sizes[index]),)
        return self._each(inner, lambda a: a[cut])

    def _slice(self, node: ir.Node, inner: Map) -> Map | None:
        starts, ends = self._ints(node, 1), self._ints(node, 2)
        axes = self._ints(node, 3)
        steps = self._ints(node, 4)
        if starts is None or ends is None or axes is None:
            return None
        cut = [slice(None)] * len(inner.shape)
        for i, axis in enumerate(axes):
            own = self._axis(axis, inner)
            step = 1 if steps is None else steps[i]
            if own is None or step <= 0:
                return None
            cut[own] = slice(starts[i], ends[i], step)
        return self._each(inner, lambda a: a[tuple(cut)])

    def _gather(self, node: ir.Node, inner: Map) -> Map | None:
        axis = self._axis(int(self.context.attr(node, "axis", 0)), inner)
        indices = self.context.constant(node.inputs[1])
        if axis is None or indices is None:
            return None
        return self._each(inner, lambda a: np.take(a, indices, axis))

    def _transpose(self, node: ir.Node, inner: Map) -> Map | None:
        perm = list(self.context.attr(node, "perm", ()))
        lead = len(self.lead)
        if perm[:lead] != list(range(lead)) or len(perm) != lead + len(inner.shape):
            return None
        return self._each(inner, lambda a: a.transpose([p - lead for p in perm[lead:]]))

    def _regroup(self, value: ir.Value, inner: Map) -> Map | None:
        shape = self.context.tensor(value).shape
        lead = len(self.lead)
        if shape is None or tuple(shape[:lead]) != self.lead or not D.is_known(shape[lead:]):
            return None
        own = [d for d in shape[lead:] if isinstance(d, int)]
        if not own or int(np.prod(own)) != int(np.prod(inner.shape)):
            return None
        return self._each(inner, lambda a: a.reshape(own))
