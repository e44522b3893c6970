"""From a placed graph to a frozen plan.

Order of work: place every node, find which sizes are known when, drop steps that nothing needs, give every value a
slot, let views and in-place outputs share memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.backends.protocol import Kernel, NativeKernel, ViewKernel
from accord.errors import GraphError
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.facts import Fact, TensorFact, to_numpy
from accord.ir.infer import Agreement, Analyzer
from accord.ir.patch import Reason
from accord.placement.placer import Placement, Placer
from accord.plan.plan import Plan, Slot, Step, Storage, SubPlan

__all__ = ["PlanBuilder", "captured_values"]


@dataclass(slots=True)
class _Node:
    """A node on its way to a step."""

    node: ir.Node
    placement: Placement
    reads: tuple[int, ...]
    late: bool
    agreements: tuple[Agreement, ...] = ()
    needed: bool = False
    captured: dict[str, list[ir.Value]] = field(default_factory=dict)


@dataclass(slots=True)
class _Slot:
    name: str
    fact: Fact
    dtype: np.dtype[Any] | None
    storage: Storage
    root: int
    first: int
    last: int
    nbytes: DimLike


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
        return _GraphPlan(self, graph, list(captures), list(outer)).build()


class _GraphPlan:
    """The state of building one plan."""

    def __init__(self, parent: PlanBuilder, graph: ir.Graph, captures: list[ir.Value], outer: list[str]) -> None:
        self.parent = parent
        self.facts = parent.analyzer.facts
        self.graph = graph
        self.captures = captures
        inputs = list(graph.inputs) + captures
        early = dict.fromkeys(outer)
        for v in inputs:
            fact = self.facts.get(v)
            if isinstance(fact, TensorFact) and fact.shape is not None:
                for d in fact.shape:
                    names = D.symbols_of(d)
                    if len(names) == 1 and str(d) in names:
                        early[str(d)] = None
        self.inputs = inputs
        self.early = tuple(early)
        self.known: set[str] = set(early)
        self.binder: dict[str, ir.Value] = {}
        self.slots: list[_Slot] = []
        self.slot_of: dict[ir.Value, int] = {}
        self.constants: dict[int, np.ndarray[Any, Any]] = {}

    def build(self) -> Plan:
        nodes = [self._place(n) for n in self.graph]
        self._mark_needed(nodes)
        kept = [n for n in nodes if n.needed]
        return self._assemble(kept)

    # placement, and which sizes are known when

    def _place(self, node: ir.Node) -> _Node:
        placer = self.parent.placer
        placement = placer.place(node)
        kernel = placement.kernel
        agreements = self._agreements(node, kernel)
        if isinstance(kernel, (NativeKernel, ViewKernel)):
            unknown = self._unknown_symbols(node, kernel, agreements)
            if unknown:
                placement = placer.place(
                    node,
                    exclude=(placement.backend,),
                    why=Reason(f"sizes depend on data: {', '.join(sorted(unknown))}"),
                )
                kernel = placement.kernel
                agreements = self._agreements(node, kernel)
        late = any(not self._is_static(self.facts.get(o)) for o in node.outputs if o.name)
        if isinstance(kernel, NativeKernel):
            used = set().union(*(D.symbols_of(d) for d in (*kernel.dims, *_sizes(agreements))))
            late = late or not used <= set(self.early)
        for o in node.outputs:
            fact = self.facts.get(o)
            if isinstance(fact, TensorFact) and fact.shape is not None:
                for d in fact.shape:
                    names = D.symbols_of(d)
                    if len(names) == 1 and str(d) in names and str(d) not in self.known:
                        self.known.add(str(d))
                        self.binder[str(d)] = o
        reads = tuple(range(len(node.inputs)))
        if kernel is not None and kernel.reads is not None:
            reads = kernel.reads
        return _Node(node, placement, reads, late, agreements)

    def _agreements(self, node: ir.Node, kernel: Kernel | None) -> tuple[Agreement, ...]:
        """What must hold for machine code to stay inside its operands; other kernels look for themselves."""
        if not isinstance(kernel, NativeKernel):
            return ()
        return tuple(dict.fromkeys(self.parent.analyzer.agreements(node)))

    def _unknown_symbols(
        self, node: ir.Node, kernel: NativeKernel | ViewKernel, agreements: Iterable[Agreement]
    ) -> set[str]:
        sizes: list[DimLike] = list(_sizes(agreements))
        for o in node.outputs:
            fact = self.facts.get(o)
            if o.name and isinstance(fact, TensorFact):
                sizes.extend(fact.shape or ())
        if isinstance(kernel, NativeKernel):
            sizes += kernel.dims
        return set().union(*(D.symbols_of(d) for d in sizes)) - self.known

    def _is_static(self, fact: Fact) -> bool:
        if not isinstance(fact, TensorFact) or fact.shape is None or _numpy_dtype(fact) is None:
            return False
        return all(D.symbols_of(d) <= set(self.early) for d in fact.shape)

    # liveness

    def _mark_needed(self, nodes: list[_Node]) -> None:
        needed: set[ir.Value] = set(self.graph.outputs)
        symbols: set[str] = set()
        for v in self.graph.outputs:
            symbols |= self._late_symbols(v)
        for n in reversed(nodes):
            binds = any(self.binder.get(s) in n.node.outputs for s in symbols if s in self.binder)
            if not binds and not any(o in needed for o in n.node.outputs):
                continue
            n.needed = True
            for i in n.reads:
                read = n.node.inputs[i]
                if read is not None:
                    needed.add(read)
                    symbols |= self._late_symbols(read)
            for o in n.node.outputs:
                symbols |= self._late_symbols(o)
            kernel = n.placement.kernel
            if isinstance(kernel, NativeKernel):
                for d in (*kernel.dims, *_sizes(n.agreements)):
                    symbols |= D.symbols_of(d) - set(self.early)
            for a in n.node.attributes.values():
                if a.type == ir.AttributeType.GRAPH:
                    captured = captured_values(a.value)
                    n.captured[a.name] = captured
                    needed.update(captured)
                    for v in captured:
                        symbols |= self._late_symbols(v)

    def _late_symbols(self, v: ir.Value) -> set[str]:
        fact = self.facts.get(v)
        if not isinstance(fact, TensorFact) or fact.shape is None:
            return set()
        return set().union(*(D.symbols_of(d) for d in fact.shape)) - set(self.early)

    # slots and steps

    def _assemble(self, nodes: list[_Node]) -> Plan:
        for v in self.inputs:
            self._new_slot(v, Storage.INPUT, -1)
        defaults = {
            self.slot_of[v]: np.ascontiguousarray(to_numpy(v.const_value))
            for v in self.graph.inputs
            if v.const_value is not None and v.is_initializer()
        }
        end = len(nodes)
        last_read = self._last_reads(nodes, end)
        steps: list[Step] = []
        for index, n in enumerate(nodes):
            steps.append(self._step(index, n, last_read))
        outputs = tuple(self._slot_for(v) for v in self.graph.outputs)
        self._finish_storage(outputs, end)
        steps = [self._with_frees(i, s) for i, s in enumerate(steps)]
        return Plan(
            name=self.graph.name or "graph",
            inputs=tuple(self.slot_of[v] for v in self.inputs),
            outputs=outputs,
            slots=tuple(
                Slot(s.name, s.fact, s.dtype, s.storage, s.root, s.first, s.last, s.nbytes) for s in self.slots
            ),
            steps=tuple(steps),
            constants=self.constants,
            symbols=self.early,
            defaults=defaults,
            threads=self.parent.threads,
        )

    def _last_reads(self, nodes: list[_Node], end: int) -> dict[ir.Value, int]:
        last: dict[ir.Value, int] = {}
        for index, n in enumerate(nodes):
            read = [v for i in n.reads if (v := n.node.inputs[i]) is not None]
            for v in [*read, *(v for vs in n.captured.values() for v in vs)]:
                last[v] = index
        for v in self.graph.outputs:
            last[v] = end
        return last

    def _new_slot(self, v: ir.Value, storage: Storage, first: int, root: int | None = None) -> int:
        fact = self.facts.get(v)
        dtype = _numpy_dtype(fact) if isinstance(fact, TensorFact) else None
        index = len(self.slots)
        nbytes: DimLike = 0
        if isinstance(fact, TensorFact) and fact.shape is not None and dtype is not None:
            nbytes = D.product(fact.shape) * dtype.itemsize
        self.slots.append(
            _Slot(v.name or f"v{index}", fact, dtype, storage, index if root is None else root, first, first, nbytes)
        )
        self.slot_of[v] = index
        return index

    def _slot_for(self, v: ir.Value) -> int:
        """The slot of a value that exists already, or of a constant that is met for the first time."""
        if v in self.slot_of:
            return self.slot_of[v]
        if v.const_value is None:
            raise GraphError("a value is read that nothing produces", value=v.name, remedy="The model file is damaged.")
        index = self._new_slot(v, Storage.CONSTANT, -1)
        self.constants[index] = np.asarray(to_numpy(v.const_value), order="C")
        return index

    def _step(self, index: int, n: _Node, last_read: Mapping[ir.Value, int]) -> Step:
        kernel = n.placement.kernel
        inputs: list[int] = []
        for i, v in enumerate(n.node.inputs):
            if v is None or i not in n.reads:
                inputs.append(-1)
            elif isinstance(kernel, NativeKernel) and i in kernel.constants:
                inputs.append(self._packed(v, kernel.constants[i]))
            else:
                inputs.append(self._slot_for(v))
            if inputs[-1] >= 0:
                self._touch(inputs[-1], index)
        bodies = tuple(self._body(n, a, index) for a in n.node.attributes.values() if a.type == ir.AttributeType.GRAPH)
        outputs = [self._output(index, n, j, o, inputs, last_read) for j, o in enumerate(n.node.outputs)]
        workspace = -1
        if isinstance(kernel, NativeKernel) and kernel.workspace != 0 and not n.late:
            workspace = len(self.slots)
            total = kernel.workspace * self.parent.threads
            fact = TensorFact(ir.DataType.UINT8, (total,))
            name = f"{n.placement.node}.workspace"
            self.slots.append(_Slot(name, fact, np.dtype(np.uint8), Storage.ARENA, workspace, index, index, total))
        attributes = (
            {a.name: a.value for a in n.node.attributes.values() if a.type != ir.AttributeType.GRAPH}
            if bodies
            else None
        )
        return Step(
            n.placement,
            tuple(inputs),
            tuple(outputs),
            n.late,
            bodies,
            attributes,
            workspace,
            agreements=n.agreements,
        )

    def _packed(self, v: ir.Value, array: np.ndarray[Any, Any]) -> int:
        index = len(self.slots)
        fact = TensorFact(None, tuple(array.shape))
        self.slots.append(_Slot(f"{v.name}.packed", fact, array.dtype, Storage.CONSTANT, index, -1, -1, array.nbytes))
        self.constants[index] = array
        return index

    def _touch(self, slot: int, step: int) -> None:
        self.slots[slot].last = max(self.slots[slot].last, step)

    def _body(self, n: _Node, a: ir.Attr, index: int) -> SubPlan:
        captured = n.captured.get(a.name, [])
        plan = self.parent.build(a.value, captures=captured, outer=self.early)
        slots = tuple(self._slot_for(v) for v in captured)
        for s in slots:
            self._touch(s, index)
        return SubPlan(a.name, plan, len(a.value.inputs), slots)

    def _output(
        self,
        index: int,
        n: _Node,
        j: int,
        o: ir.Value,
        inputs: list[int],
        last_read: Mapping[ir.Value, int],
    ) -> int:
        if not o.name:
            return -1
        kernel = n.placement.kernel
        storage = Storage.ARENA if self._is_static(self.facts.get(o)) else Storage.LATE
        root: int | None = None
        if isinstance(kernel, ViewKernel) and j == 0 and storage is Storage.ARENA:
            source = self.slots[inputs[0]]
            if source.storage is not Storage.LATE:
                root, storage = source.root, self.slots[source.root].storage
        elif isinstance(kernel, NativeKernel) and storage is Storage.ARENA and not n.late:
            root = self._in_place_root(index, n, j, o, inputs, last_read)
        slot = self._new_slot(o, storage, index, root)
        self.slots[slot].last = last_read.get(o, index)
        return slot

    def _in_place_root(
        self,
        index: int,
        n: _Node,
        j: int,
        o: ir.Value,
        inputs: list[int],
        last_read: Mapping[ir.Value, int],
    ) -> int | None:
        """The root whose memory output ``j`` may take over, or None."""
        kernel = n.placement.kernel
        assert isinstance(kernel, NativeKernel)
        fact = self.facts.tensor(o)
        dtype = _numpy_dtype(fact)
        size = D.product(fact.shape or ()) * (dtype.itemsize if dtype is not None else 0)
        for out, inp in kernel.in_place:
            if out != j or inp >= len(inputs) or inputs[inp] < 0:
                continue
            candidate = inputs[inp]
            root = self.slots[candidate].root
            if self.slots[root].storage is not Storage.ARENA or self.slots[candidate].nbytes != size:
                continue
            if self.slots[root].nbytes != size:
                continue
            others = [s for k, s in enumerate(inputs) if k != inp and s >= 0 and self.slots[s].root == root]
            members = [v for v, s in self.slot_of.items() if self.slots[s].root == root]
            if others or any(last_read.get(v, -1) > index for v in members):
                continue
            taken = any(self.slots[s].first == index and self.slots[s].root == root for s in range(len(self.slots)))
            if not taken:
                return root
        return None

    def _finish_storage(self, outputs: tuple[int, ...], end: int) -> None:
        """Memory classes that hold an output live in the returned array."""
        for slot in outputs:
            s = self.slots[slot]
            s.last = end
            root = self.slots[s.root]
            if root.storage is Storage.ARENA and root.nbytes == s.nbytes:
                root.storage = Storage.OUTPUT
        for s in self.slots:
            if s.storage is Storage.ARENA:
                s.storage = self.slots[s.root].storage

    def _with_frees(self, index: int, step: Step) -> Step:
        touched = {
            s
            for s in (*step.inputs, *step.outputs, *(c for b in step.bodies for c in b.captured))
            if s >= 0 and self.slots[s].storage is Storage.LATE and self.slots[s].last <= index
        }
        if not touched:
            return step
        return replace(step, frees=tuple(sorted(touched)))


def _sizes(agreements: Iterable[Agreement]) -> Iterable[DimLike]:
    for a in agreements:
        yield a.size
        yield a.other


def _numpy_dtype(fact: TensorFact) -> np.dtype[Any] | None:
    """Element type in memory; None for strings and unknown dtypes. Types below a byte take one byte an element."""
    if fact.dtype is None or fact.dtype == ir.DataType.STRING:
        return None
    return np.dtype(fact.dtype.numpy())


def captured_values(graph: ir.Graph) -> list[ir.Value]:
    """Values of outer graphs, constants aside, that ``graph`` or a graph inside it reads, in order of first use."""
    inside: set[ir.Value] = set()
    found: dict[ir.Value, None] = {}

    def note(v: ir.Value) -> None:
        constant = v.const_value is not None and not v.is_graph_input()
        if v not in inside and not constant:
            found[v] = None

    def visit(g: ir.Graph) -> None:
        inside.update(g.inputs)
        inside.update(g.initializers.values())
        for node in g:
            for v in node.inputs:
                if v is not None:
                    note(v)
            for a in node.attributes.values():
                if a.type == ir.AttributeType.GRAPH:
                    visit(a.value)
            inside.update(node.outputs)
        for v in g.outputs:
            note(v)

    visit(graph)
    return list(found)
