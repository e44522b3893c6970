"""From a placed graph to a frozen plan.

Every value gets a slot; views, parts of joins and in-place outputs share the memory of their root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.backends.memory import HOST
from accord.backends.protocol import Constant, NativeKernel, ViewKernel
from accord.errors import GraphError
from accord.ir import dims as D
from accord.ir.compute import content_symbol
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, OptionalFact, SequenceFact, TensorFact, to_numpy
from accord.ir.infer import Analyzer
from accord.placement.placer import Placer
from accord.plan.placing import PlacedGraph, PlacedNode, numpy_dtype
from accord.plan.plan import Plan, Slot, Step, Storage, SubPlan
from accord.plan.streams import with_streams
from accord.plan.types import OpaqueType, OptionalType, SequenceType, TensorType, ValueType

__all__ = ["PlanBuilder"]


@dataclass(slots=True)
class _Slot:
    name: str
    type: ValueType
    dtype: np.dtype[Any] | None
    storage: Storage
    root: int
    first: int
    last: int
    nbytes: DimLike
    offset: DimLike = 0
    strides: tuple[DimLike, ...] | None = None
    whole: int = -1
    space: str = HOST

    def shape_of(self) -> Shape | None:
        """Its shape, if it is a tensor of known rank."""
        return self.type.shape if isinstance(self.type, TensorType) else None


class PlanBuilder:
    """Builds the plan of one graph; of its body graphs too.

    Args:
        placer: Chooses kernels.
        analyzer: Facts.
        threads: Threads that may work on a step; workspaces are made for this many.
    """

    def __init__(self, placer: Placer, analyzer: Analyzer, *, threads: int = 1) -> None:
        self.placer = placer
        self.analyzer = analyzer
        self.threads = threads

    def build(self, graph: ir.Graph, *, captures: Iterable[ir.Value] = (), outer: Iterable[str] = ()) -> Plan:
        """The plan of ``graph``.

        Args:
            graph: In topological order.
            captures: Outer values that the graph reads; they become further inputs.
            outer: Symbols that an outer plan knows when it starts the graph.

        Raises:
            UnsupportedError: a node that no backend can run.
        """
        return _Assembly(self, PlacedGraph(self.placer, graph, list(captures), outer)).plan()


class _Assembly:
    """The state of building one plan."""

    def __init__(self, parent: PlanBuilder, graph: PlacedGraph) -> None:
        self.parent = parent
        self.placed = graph
        self.facts = graph.facts
        self.slots: list[_Slot] = []
        self.slot_of: dict[ir.Value, int] = {}
        self.members: dict[int, list[ir.Value]] = {}
        self.constants: dict[int, np.ndarray[Any, Any]] = {}
        #: Slots of constants, one for each memory in which they are read.
        self.constant_slots: dict[tuple[ir.Value, str], int] = {}
        self.constant_values: set[ir.Value] = set()
        #: Copies of inputs, which nothing overwrites: a caller may have the input in that memory already.
        self.lendable: set[int] = set()

    # slots and steps

    def plan(self) -> Plan:
        graph, nodes = self.placed.graph, self.placed.nodes
        for v in self.placed.inputs:
            self._new_slot(v, Storage.INPUT, -1)
        defaults = {
            self.slot_of[v]: np.ascontiguousarray(to_numpy(v.const_value))
            for v in graph.inputs
            if v.const_value is not None and v.is_initializer()
        }
        end = len(nodes)
        last_read = self._last_reads(nodes, end)
        steps: list[Step] = []
        for index, n in enumerate(nodes):
            steps.append(self._step(index, n, last_read))
        outputs = tuple(self._slot_for(v) for v in self.placed.outputs)
        self._finish_storage(outputs, end)
        steps = [self._with_frees(i, s) for i, s in enumerate(steps)]
        made = Plan(
            name=graph.name or "graph",
            inputs=tuple(self.slot_of[v] for v in self.placed.inputs),
            outputs=outputs,
            slots=tuple(
                Slot(
                    s.name,
                    s.type,
                    s.dtype,
                    s.storage,
                    s.root,
                    s.first,
                    s.last,
                    s.nbytes,
                    s.offset,
                    s.strides,
                    s.whole,
                    s.space,
                )
                for s in self.slots
            ),
            steps=tuple(steps),
            constants=self.constants,
            symbols=self._needed_symbols(steps),
            defaults=defaults,
            threads=self.parent.threads,
        )
        homes = {self.slot_of[v]: self.slot_of[joined] for v, (joined, _) in self.placed.homes.items()}
        return with_streams(made, {b.name: b for b in self.parent.placer.backends}, homes)

    def _needed_symbols(self, steps: Sequence[Step]) -> tuple[str, ...]:
        """The early symbols; contents of inputs, which change from run to run, only where a size depends on them."""
        contents = {s for s in self.placed.early if s.startswith(content_symbol(""))}
        if not contents:
            return self.placed.early
        sizes = [d for s in self.slots for d in (*(s.shape_of() or ()), *(s.strides or ()), s.offset)]
        for step in steps:
            sizes += [d for a in step.agreements for d in (a.size, a.other)]
            sizes += step.kernel.dims if isinstance(step.kernel, NativeKernel) else ()
            if step.bodies:
                return self.placed.early
        used = set().union(*(D.symbols_of(d) for d in sizes))
        return tuple(s for s in self.placed.early if s not in contents or s in used)

    def _last_reads(self, nodes: list[PlacedNode], end: int) -> dict[ir.Value, int]:
        last: dict[ir.Value, int] = {}
        for index, n in enumerate(nodes):
            read = [v for i in n.reads if (v := n.inputs[i]) is not None]
            for v in [*read, *(self.placed.handed(v) for vs in n.captured.values() for v in vs)]:
                last[v] = index
        for v in self.placed.outputs:
            last[v] = end
        return last

    def _new_slot(self, v: ir.Value, storage: Storage, first: int, root: int | None = None) -> int:
        fact = self.facts.get(v)
        dtype = numpy_dtype(fact) if isinstance(fact, TensorFact) else None
        index = len(self.slots)
        nbytes: DimLike = 0
        if isinstance(fact, TensorFact) and fact.shape is not None and dtype is not None:
            nbytes = D.product(fact.shape) * dtype.itemsize
        self.slots.append(
            _Slot(
                v.name or f"v{index}",
                value_type(fact),
                dtype,
                storage,
                index if root is None else root,
                first,
                first,
                nbytes,
            )
        )
        self.slots[index].strides = self.placed.strides(v)
        self.slots[index].space = self.placed.space(v) if root is None else self.slots[root].space
        self.slot_of[v] = index
        self.members.setdefault(self.slots[index].root, []).append(v)
        return index

    def _slot_for(self, v: ir.Value, space: str = HOST) -> int:
        """The slot of a value that exists already, or of a constant that is met for the first time in ``space``."""
        known = self.constant_slots.get((v, space))
        if known is None and v not in self.constant_values:
            known = self.slot_of.get(v)
        if known is not None:
            return known
        if v.const_value is None:
            raise GraphError("a value is read that nothing produces", value=v.name, remedy="The model file is damaged.")
        index = self._new_slot(v, Storage.CONSTANT, -1)
        self.slots[index].space = space
        self.constant_slots[v, space] = index
        self.constant_values.add(v)
        self.constants[index] = np.asarray(to_numpy(v.const_value), order="C")
        return index

    def _step(self, index: int, n: PlacedNode, last_read: Mapping[ir.Value, int]) -> Step:
        kernel = n.placement.kernel
        placement = n.placement
        if isinstance(kernel, NativeKernel):
            placement = replace(placement, kernel=replace(kernel, phases=tuple(p.fixed() for p in kernel.phases)))
        inputs: list[int] = []
        for i, v in enumerate(n.inputs):
            if v is None or i not in n.reads:
                inputs.append(-1)
            elif isinstance(kernel, NativeKernel) and i in kernel.constants:
                inputs.append(self._packed(v, kernel.constants[i], n.space))
            else:
                inputs.append(self._slot_for(v, n.space_of(i)))
            if inputs[-1] >= 0:
                self._touch(inputs[-1], index)
        bodies = tuple(self._body(n, a, index) for a in n.node.attributes.values() if a.type == ir.AttributeType.GRAPH)
        outputs = [self._output(index, n, j, o, inputs, last_read) for j, o in enumerate(n.node.outputs)]
        if placement.op == "Copy" and self.slots[inputs[0]].storage is Storage.INPUT:
            self.lendable.update(outputs)
        workspace = -1
        if isinstance(kernel, NativeKernel) and kernel.workspace != 0 and not n.late:
            workspace = len(self.slots)
            total = kernel.workspace * self.parent.threads
            bytes_ = np.dtype(np.uint8)
            kind = TensorType("uint8", bytes_, (total,))
            name = f"{n.placement.node}.workspace"
            self.slots.append(_Slot(name, kind, bytes_, Storage.ARENA, workspace, index, index, total, space=n.space))
        attributes = (
            {a.name: a.value for a in n.node.attributes.values() if a.type != ir.AttributeType.GRAPH}
            if bodies
            else None
        )
        return Step(
            placement,
            tuple(inputs),
            tuple(outputs),
            n.late,
            bodies,
            attributes,
            workspace,
            agreements=n.agreements,
        )

    def _packed(self, v: ir.Value, constant: Constant, space: str) -> int:
        array = constant() if callable(constant) else constant
        index = len(self.slots)
        kind = TensorType(None, array.dtype, tuple(array.shape))
        self.slots.append(_Slot(f"{v.name}.packed", kind, array.dtype, Storage.CONSTANT, index, -1, -1, array.nbytes))
        self.slots[index].space = space
        self.constants[index] = array
        return index

    def _touch(self, slot: int, step: int) -> None:
        self.slots[slot].last = max(self.slots[slot].last, step)

    def _body(self, n: PlacedNode, a: ir.Attr, index: int) -> SubPlan:
        captured = n.captured.get(a.name, [])
        plan = self.parent.build(a.value, captures=captured, outer=self.placed.early)
        slots = tuple(self._slot_for(self.placed.handed(v)) for v in captured)
        for s in slots:
            self._touch(s, index)
        return SubPlan(a.name, plan, len(a.value.inputs), slots)

    def _output(
        self,
        index: int,
        n: PlacedNode,
        j: int,
        o: ir.Value,
        inputs: list[int],
        last_read: Mapping[ir.Value, int],
    ) -> int:
        if not o.name:
            return -1
        if o in self.slot_of:  # a join whose first inputs were written to their place
            self.slots[self.slot_of[o]].last = last_read.get(o, index)
            return self.slot_of[o]
        kernel = n.placement.kernel
        storage = Storage.ARENA if self.placed.is_static(self.facts.get(o)) else Storage.LATE
        if o in self.placed.views and storage is Storage.ARENA:
            source, alias = self.placed.views[o]
            slot = self._part(o, self._slot_for(source), alias.access.offset, index)
            self.slots[slot].whole = self.slot_of[source] if alias.whole else -1
        elif isinstance(kernel, ViewKernel) and j == 0 and storage is Storage.ARENA:
            if self.slots[inputs[0]].storage is Storage.LATE:
                slot = self._new_slot(o, storage, index)
            else:
                slot = self._part(o, inputs[0], 0, index)
                self.slots[slot].whole = inputs[0]
        elif o in self.placed.homes:
            slot = self._at_home(o, index)
        else:
            root: int | None = None
            if isinstance(kernel, NativeKernel) and storage is Storage.ARENA and not n.late:
                root = self._in_place_root(index, n, j, o, inputs, last_read)
            slot = self._new_slot(o, storage, index, root)
        self.slots[slot].last = last_read.get(o, index)
        return slot

    def _part(self, v: ir.Value, source: int, offset: DimLike, first: int) -> int:
        """A slot for ``v`` in the memory of slot ``source``, ``offset`` elements after its start."""
        whole = self.slots[source]
        slot = self._new_slot(v, self.slots[whole.root].storage, first, whole.root)
        dtype = self.slots[slot].dtype
        self.slots[slot].offset = whole.offset + (offset * dtype.itemsize if dtype is not None else 0)
        return slot

    def _at_home(self, v: ir.Value, first: int) -> int:
        """A slot for ``v`` in the memory of the value that joins it to others."""
        joined, place = self.placed.homes[v]
        if joined not in self.slot_of:
            if joined in self.placed.homes:
                self._at_home(joined, first)
            else:
                self._new_slot(joined, Storage.ARENA, first)
        return self._part(v, self.slot_of[joined], place.offset, first)

    def _in_place_root(
        self,
        index: int,
        n: PlacedNode,
        j: int,
        o: ir.Value,
        inputs: list[int],
        last_read: Mapping[ir.Value, int],
    ) -> int | None:
        """The root whose memory output ``j`` may take over, or None."""
        kernel = n.placement.kernel
        assert isinstance(kernel, NativeKernel)
        fact = self.facts.tensor(o)
        dtype = numpy_dtype(fact)
        size = D.product(fact.shape or ()) * (dtype.itemsize if dtype is not None else 0)
        for out, inp in kernel.in_place:
            if out != j or inp >= len(inputs) or inputs[inp] < 0:
                continue
            candidate = inputs[inp]
            root = self.slots[candidate].root
            if root in self.lendable:
                continue
            if self.slots[root].storage is not Storage.ARENA or self.slots[candidate].nbytes != size:
                continue
            if self.slots[root].nbytes != size or self.slots[candidate].offset != 0:
                continue
            taken = n.inputs[inp]
            if taken is None or self.placed.strides(o) != self.placed.strides(taken):
                continue
            others = [s for k, s in enumerate(inputs) if k != inp and s >= 0 and self.slots[s].root == root]
            members = self.members[root]
            if others or any(last_read.get(v, -1) > index for v in members):
                continue
            if not any(self.slots[self.slot_of[v]].first == index for v in members):
                return root
        return None

    def _finish_storage(self, outputs: tuple[int, ...], end: int) -> None:
        """Memory classes that hold an output live in the returned array."""
        for slot in outputs:
            s = self.slots[slot]
            s.last = end
            root = self.slots[s.root]
            if root.storage is Storage.ARENA and root.nbytes == s.nbytes and s.offset == 0:
                root.storage = Storage.OUTPUT
        for s in self.slots:
            if s.storage is Storage.ARENA:
                s.storage = self.slots[s.root].storage

    def _with_frees(self, index: int, step: Step) -> Step:
        touched = {s for s in step.touched if self.slots[s].storage is Storage.LATE and self.slots[s].last <= index}
        if not touched:
            return step
        return replace(step, frees=tuple(sorted(touched)))


def value_type(fact: Fact) -> ValueType:
    """What the runtime needs of a fact."""
    if isinstance(fact, TensorFact):
        if fact.dtype is None:
            return TensorType(None, None, fact.shape)
        text = fact.dtype == ir.DataType.STRING
        dtype = np.dtype(object) if text else np.dtype(fact.dtype.numpy())
        return TensorType(fact.dtype.name.lower(), dtype, fact.shape)
    if isinstance(fact, SequenceFact):
        return SequenceType(None if fact.element is None else value_type(fact.element))
    if isinstance(fact, OptionalFact):
        return OptionalType(None if fact.element is None else value_type(fact.element))
    return OpaqueType(str(fact))
