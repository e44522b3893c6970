"""From a graph to placed nodes: kernels, layouts, and which sizes are known when.

A forward walk asks for each node how its operands should lie and takes a kernel for that. Where an input lies
otherwise, a reorder is put in front. Nodes whose outputs are their input's memory under other strides need no kernel.
Then nodes that nothing needs are dropped, and inputs of joins are let written to their place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.backends.late import LateCopy
from accord.backends.memory import HOST
from accord.backends.protocol import Alias, HostKernel, Kernel, NativeKernel, ViewKernel
from accord.ir import dims as D
from accord.ir.agreement import Agreement
from accord.ir.compute import content_symbol
from accord.ir.dims import DimLike
from accord.ir.facts import Fact, TensorFact
from accord.ir.reason import Reason
from accord.ir.strides import Access, Order, channels_last, contiguous, in_order, order_of
from accord.placement.placement import Placement
from accord.placement.placer import CONTROL, Placed, Placer

#: Inputs of control flow that the runtime itself looks at.
_DECIDING = {"If": (0,), "Loop": (0, 1)}

__all__ = ["PlacedGraph", "PlacedNode", "captured_values", "numpy_dtype"]


@dataclass(slots=True)
class PlacedNode:
    """A node on its way to a step.

    Attributes:
        node: The node.
        placed: Kernel and layouts.
        inputs: What it reads: the node's inputs, or the reordered values in their place.
        reads: Numbers of the inputs that the kernel looks at.
        late: Sizes are known only when it runs.
        agreements: What must hold of sizes before machine code may start.
        needed: Something returned depends on it.
        captured: By attribute, the outer values that a body graph reads.
        space: The memory that its operands are in.
    """

    node: ir.Node
    placed: Placed
    inputs: list[ir.Value | None]
    reads: tuple[int, ...]
    late: bool
    agreements: tuple[Agreement, ...] = ()
    needed: bool = False
    captured: dict[str, list[ir.Value]] = field(default_factory=dict)
    space: str = HOST

    @property
    def placement(self) -> Placement:
        """Where it runs."""
        return self.placed.placement

    def space_of(self, index: int) -> str:
        """The memory in which it finds an input."""
        kernel = self.placement.kernel
        return kernel.finds(index) if isinstance(kernel, HostKernel) else self.space


class PlacedGraph:
    """A graph whose nodes have kernels and whose values have layouts.

    Args:
        placer: Chooses kernels.
        graph: In topological order.
        captures: Outer values that the graph reads; they become further inputs.
        outer: Symbols that an outer plan knows when it starts the graph.

    Attributes:
        nodes: The nodes that are needed, with reorders in between, in order.
        inputs: The graph's inputs, then the captured values.
        outputs: What is returned, all row-major.
        early: Symbols that are known when a run starts.
        views: Values that share the memory of another one.
        homes: Values that are written to their place in the value that joins them: that value, and where in it.
        spaces: The memories of values that are not in the host's; constants are wherever they are read.
    """

    def __init__(
        self, placer: Placer, graph: ir.Graph, captures: Sequence[ir.Value] = (), outer: Iterable[str] = ()
    ) -> None:
        self.placer = placer
        self.analyzer = placer.analyzer
        self.facts = placer.analyzer.facts
        self.graph = graph
        inputs = [*graph.inputs, *captures]
        early = dict.fromkeys(outer)
        for v in inputs:
            fact = self.facts.get(v)
            if isinstance(fact, TensorFact) and fact.shape is not None:
                for d in fact.shape:
                    names = D.symbols_of(d)
                    if len(names) == 1 and str(d) in names:
                        early[str(d)] = None
            if isinstance(fact, TensorFact) and fact.data is not None and len(fact.data) == 1:
                name = content_symbol(v.name or "")
                if D.symbols_of(fact.data[0]) == {name}:
                    early[name] = None
        self.inputs = inputs
        self.early = tuple(early)
        self.known: set[str] = set(early)
        self.binder: dict[str, ir.Value] = {}
        self.nodes: list[PlacedNode] = []
        self.views: dict[ir.Value, tuple[ir.Value, Alias]] = {}
        self.homes: dict[ir.Value, tuple[ir.Value, Access]] = {}
        self.spaces: dict[ir.Value, str] = {}
        self._moved: dict[tuple[ir.Value, str], ir.Value] = {}
        #: What body graphs get in place of values that they capture.
        self._handed: dict[ir.Value, ir.Value] = {}
        #: How values lie that are not row-major.
        self._layouts: dict[ir.Value, Access] = {}
        self._reordered: dict[tuple[ir.Value, Order, str], ir.Value] = {}
        for node in graph:
            self._place(node)
        self.outputs = [self._moved_to(self._row_major(v, "the caller"), HOST, "the caller") for v in graph.outputs]
        self._mark_needed(self.nodes)
        self.nodes = [n for n in self.nodes if n.needed]
        self._join_in_place(self.nodes)

    def strides(self, v: ir.Value) -> tuple[DimLike, ...] | None:
        """Strides of a value in elements; None for row-major."""
        known = self._layouts.get(v)
        return None if known is None else known.strides

    def is_static(self, fact: Fact) -> bool:
        """True if it is a tensor whose size in bytes is known when a run starts."""
        if not isinstance(fact, TensorFact) or fact.shape is None or numpy_dtype(fact) is None:
            return False
        return all(D.symbols_of(d) <= set(self.early) for d in fact.shape)

    # placement, and which sizes are known when

    def _place(self, node: ir.Node) -> None:
        may_alias = functools.partial(self._may_alias, node)
        placed = self.placer.place(node, self._layouts, may_alias=may_alias)
        agreements = self._agreements(node, placed)
        excluded: list[str] = []  # each backend is asked for a late kernel once its own needs what a run tells
        while unknown := self._unknown_symbols(node, placed, agreements):
            if placed.placement.backend in excluded:
                break
            excluded.append(placed.placement.backend)
            why = Reason(f"sizes depend on data: {', '.join(sorted(unknown))}")
            placed = self.placer.place(node, self._layouts, exclude=excluded, why=why)
            agreements = self._agreements(node, placed)
        placed, inputs, space = self._brought_together(node, placed)
        self._layouts.update(placed.layouts)
        for j, alias in placed.aliases.items():
            source, out = inputs[alias.input], node.outputs[j]
            assert source is not None
            self.views[out] = (source, alias)
            if alias.access.strides != contiguous(self.facts.tensor(out).shape or ()):
                self._layouts[out] = Access(alias.access.strides)
        for o in node.outputs:
            self._note_symbols(o)
            own = self._result_space(node, placed, o) if placed.placement.kernel is None else space
            if own != HOST:
                self.spaces[o] = own
        late = self._is_late(node, placed.placement.kernel, agreements)
        self.nodes.append(PlacedNode(node, placed, inputs, _reads_of(node, placed), late, agreements, space=space))

    def _brought_together(self, node: ir.Node, placed: Placed) -> tuple[Placed, list[ir.Value | None], str]:
        """What a node reads, in one memory and in the orders that its kernel wants; and which memory that is.

        The kernel is chosen again where a value lies otherwise once it was moved.
        """
        inputs, reads = list(node.inputs), _reads_of(node, placed)
        reader = f"{placed.placement.node} ({placed.placement.op})"
        space, kernel = self._space_of(placed), placed.placement.kernel
        if not placed.aliases and not isinstance(kernel, ViewKernel):
            for i in reads:
                moved = inputs[i]
                where = kernel.finds(i) if isinstance(kernel, HostKernel) else space
                if isinstance(kernel, HostKernel) and i in kernel.untouched:
                    continue
                if moved is not None and (kernel is not None or i in _DECIDING.get(node.op_type, ())):
                    inputs[i] = self._moved_to(moved, where, reader)
                elif moved is not None:
                    inputs[i] = self._captured_as(moved, reader)
            for captured in self._captured(node):
                self._captured_as(captured, reader)
            lies_otherwise = any(self._lies_otherwise(a, b) for a, b in zip(node.inputs, inputs, strict=True))
            if lies_otherwise and not isinstance(kernel, HostKernel):
                placed = self.placer.place(node, self._seen_by(node, inputs), space=space)
        else:
            viewed = inputs[reads[0]]
            if placed.reorders and viewed is not None and self._is_data(viewed):  # where kernels are preferred
                viewed = inputs[reads[0]] = self._moved_to(viewed, self.placer.backends[0].space, reader)
            space = HOST if viewed is None else self.space(viewed)
        # by value, as layouts are: a node that reads one twice (a convolution whose epilogue adds its input) reads it
        # in one order
        orders = {node.inputs[i]: order for i, order in placed.reorders.items()}
        for i, old in enumerate(node.inputs):
            given = inputs[i]
            if given is not None and old in orders and self._order_of(given) != orders[old]:
                inputs[i] = self._in_order(given, orders[old], reader, space)
        return placed, inputs, space

    # memories

    def space(self, v: ir.Value) -> str:
        """The memory that a value is in."""
        return self.spaces.get(v, HOST)

    def _space_of(self, placed: Placed) -> str:
        """The memory in which a kernel leaves its results."""
        kernel = placed.placement.kernel
        if isinstance(kernel, NativeKernel):
            return self.placer.backend(placed.placement.backend).space
        return kernel.returns or kernel.space if isinstance(kernel, HostKernel) else HOST

    def handed(self, v: ir.Value) -> ir.Value:
        """What control flow hands to a body graph for ``v``: a row-major value, in whatever memory it is."""
        return self._handed.get(v, v)

    def _captured_as(self, v: ir.Value, reader: str) -> ir.Value:
        """``v`` row-major; the runtime hands what is in another memory on as it is."""
        if v not in self._handed:
            self._handed[v] = self._row_major(v, reader) if self.space(v) != HOST else v
        return self._handed[v]

    def _result_space(self, node: ir.Node, placed: Placed, o: ir.Value) -> str:
        """The memory of an output; results of control flow are where they are computed in all likelihood.

        Integers of at most one axis are taken for sizes there.
        """
        if (node.domain, node.op_type) not in CONTROL:
            return self._space_of(placed)
        fact = self.facts.get(o)
        if not isinstance(fact, TensorFact) or fact.dtype is None or numpy_dtype(fact) is None:
            return HOST
        if not fact.dtype.is_floating_point() and fact.rank in (0, 1):
            return HOST
        return self.placer.backends[0].space

    @staticmethod
    def _captured(node: ir.Node) -> list[ir.Value]:
        """What the body graphs of a node read from outside."""
        graphs = [a.value for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
        return [v for g in graphs for v in captured_values(g)]

    def _is_data(self, v: ir.Value) -> bool:
        """Whether a value is a tensor, and none of sizes, which the host has already."""
        fact = self.facts.get(v)
        return isinstance(fact, TensorFact) and numpy_dtype(fact) is not None and fact.elements() is None

    def _lies_otherwise(self, old: ir.Value | None, new: ir.Value | None) -> bool:
        """Whether a value that was moved lies otherwise than before: it had gaps."""
        return old is not None and new is not None and old is not new and self._strides(old) != self._strides(new)

    def _seen_by(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> dict[ir.Value, Access]:
        """All layouts, with those of a node's inputs as of what it reads in their place."""
        layouts = dict(self._layouts)
        for old, new in zip(node.inputs, inputs, strict=True):
            if old is not None and new is not None and new is not old:
                layouts[old] = Access(self._strides(new))
        return layouts

    def _moved_to(self, v: ir.Value, space: str, reader: str) -> ir.Value:
        """``v`` in another memory, where ``reader`` wants it: a new value and the node that copies it."""
        if self.space(v) == space or (v.const_value is not None and not v.is_graph_input()):
            return v
        made = self._moved.get((v, space))
        if made is not None:
            return made
        fact = self.facts.tensor(v)
        dtype = numpy_dtype(fact)
        view = self._moved_view(v, space, reader)
        if view is not None:
            return view
        static = self.is_static(fact)
        gaps = fact.shape is not None and self._order_of(v) is None
        if gaps or (v in self._layouts and not static):  # what only a run sizes is an array, which is row-major
            v = self._in_order(v, tuple(range(fact.rank or 0)), reader, self.space(v))
            return self._moved_to(v, space, reader)
        owner = self.placer.owner_of(space if space != HOST else self.space(v))
        made = ir.Value(name=f"{v.name}.{space}")
        self.facts[made] = fact
        node = ir.Node("", "Identity", [v], outputs=[made], name=f"{v.name}.to.{space}")
        why = f"{reader} reads '{v.name}' in the memory {space}, it is in {self.space(v)}"
        kernel: Kernel
        if static:
            nbytes = D.product(fact.shape or ()) * (0 if dtype is None else dtype.itemsize)
            kernel = owner.transfer(nbytes, self.space(v), space)
        else:
            assert owner.memory is not None
            kernel = LateCopy(owner.memory, inwards=space != HOST)
        placement = Placement(str(node.name), "Copy", owner.name, kernel, copies=why)
        if v in self._layouts:
            self._layouts[made] = Access(self._strides(v))
        if space != HOST:
            self.spaces[made] = space
        self.nodes.append(PlacedNode(node, Placed(placement), [v], (0,), late=not static, space=space))
        self._moved[v, space] = made
        return made

    def _moved_view(self, v: ir.Value, space: str, reader: str) -> ir.Value | None:
        """A view of another value, as a view of that one's copy; None for what is no such view.

        For the host no more is fetched than is wanted.
        """
        source, alias = self.views.get(v, (None, None))
        if source is None or alias is None or not (alias.whole or space != HOST) or self._order_of(source) is None:
            return None
        moved = self._moved_to(source, space, reader)
        if self._strides(moved) != self._strides(source) or moved is source:
            return None
        made = ir.Value(name=f"{v.name}.{space}")
        self.facts[made] = self.facts.tensor(v)
        node = ir.Node("", "Identity", [moved], outputs=[made], name=f"{v.name}.in.{space}")
        placed = Placed(Placement(str(node.name), "View", "plan", ViewKernel()), aliases={0: alias})
        self.views[made] = (moved, alias)
        if v in self._layouts:
            self._layouts[made] = self._layouts[v]
        if space != HOST:
            self.spaces[made] = space
        self.nodes.append(PlacedNode(node, placed, [moved], (0,), late=False, space=space))
        self._moved[v, space] = made
        return made

    def _is_late(self, node: ir.Node, kernel: Kernel | None, agreements: Iterable[Agreement]) -> bool:
        late = any(not self.is_static(self.facts.get(o)) for o in node.outputs if o.name)
        if isinstance(kernel, NativeKernel):
            used = set().union(*(D.symbols_of(d) for d in (*kernel.dims, *_sizes(agreements))))
            late = late or not used <= set(self.early)
        return late

    def _note_symbols(self, o: ir.Value) -> None:
        fact = self.facts.get(o)
        if isinstance(fact, TensorFact) and fact.shape is not None:
            for d in fact.shape:
                names = D.symbols_of(d)
                if len(names) == 1 and str(d) in names and str(d) not in self.known:
                    self.known.add(str(d))
                    self.binder[str(d)] = o

    def _may_alias(self, node: ir.Node, output: int, alias: Alias) -> bool:
        """Memory can be shared where both sizes are known early, and where what is returned stays row-major."""
        out, source = node.outputs[output], node.inputs[alias.input]
        if source is None or not out.name:
            return False
        fact = self.facts.get(out)
        if not self.is_static(fact) or not self.is_static(self.facts.get(source)):
            return False
        if not out.is_graph_output():
            return True
        assert isinstance(fact, TensorFact)
        return alias.whole and alias.access == Access(contiguous(fact.shape or ()))

    # reorders

    def _in_order(self, v: ir.Value, order: Order, reader: str, space: str) -> ir.Value:
        """``v`` in another order of axes, which ``reader`` wants: a new value and the node that makes it.

        It is made in ``space``, which is that of ``v`` unless it is a constant.
        """
        made = self._reordered.get((v, order, space))
        if made is not None:
            return made
        fact = self.facts.tensor(v)
        made = ir.Value(name=f"{v.name}.{''.join(map(str, order))}")
        # a node that is in no graph; it goes when the plan is built
        node = ir.Node("", "Identity", [v], outputs=[made], name=f"{v.name}.reorder")
        self.facts[made] = fact
        layouts = dict(self._layouts)
        layouts[made] = Access(in_order(fact.shape or (), order))
        placed = self.placer.place(node, layouts, space=space)
        why = f"{reader} reads '{v.name}' {_order_text(order)}, it lies {_order_text(self._order_of(v))}"
        placed = replace(placed, placement=replace(placed.placement, copies=why))
        if layouts[made].strides != contiguous(fact.shape or ()):
            self._layouts[made] = layouts[made]
        late = self._is_late(node, placed.placement.kernel, ())
        self.nodes.append(PlacedNode(node, placed, [v], (0,), late, space=space))
        self._reordered[v, order, space] = made
        if space != HOST:
            self.spaces[made] = space
        return made

    def _row_major(self, v: ir.Value, reader: str) -> ir.Value:
        fact = self.facts.get(v)
        if v not in self._layouts or not isinstance(fact, TensorFact):
            return v
        order = tuple(range(fact.rank or 0))
        if v not in self.views and self._order_of(v) == order:  # only the strides of axes of size 1 are others
            del self._layouts[v]
            return v
        return self._in_order(v, order, reader, self.space(v))

    # joins

    def _join_in_place(self, nodes: list[PlacedNode]) -> None:
        """Let inputs of joins (Concat) be written to their part of the output, last join first.

        An input qualifies if a native step makes it that can leave gaps, it lies in the output's order of axes, and
        nobody needs it without gaps.
        """
        maker = {o: n for n in nodes for o in n.node.outputs if o.name}
        readers: dict[ir.Value, list[PlacedNode]] = {}
        for n in nodes:
            for v in {v for i in n.reads if (v := n.inputs[i]) is not None}:
                readers.setdefault(v, []).append(n)
        fixed = {source for source, _ in self.views.values()} | set(self.views) | set(self.outputs)
        fixed.update(self.handed(v) for n in nodes for values in n.captured.values() for v in values)
        inside: dict[int, set[int]] = {}
        stale: dict[int, PlacedNode] = {}
        orders = {id(n): self._order_of(n.node.outputs[0]) for n in nodes if n.placed.joins is not None}
        for join in reversed(nodes):
            order = orders.get(id(join))
            if order is None or join.placed.joins is None or join.late:
                continue
            out = join.node.outputs[0]
            strides = self._strides(out)
            start: DimLike = 0
            for i in join.reads:
                v = join.inputs[i]
                if v is None:
                    continue
                shape = self.facts.tensor(v).shape or ()
                first, start = start, start + shape[join.placed.joins]
                made_by = maker.get(v)
                if made_by is None or v in fixed or v in self.homes or join.inputs.count(v) > 1:
                    continue
                if not made_by.placed.strided or made_by.late or not isinstance(made_by.placement.kernel, NativeKernel):
                    continue
                if self._strides(v) != in_order(shape, order) or not self._bears_gaps(v, readers[v]):
                    continue
                self.homes[v] = (out, Access(strides, first * strides[join.placed.joins]))
                self._layouts[v] = Access(strides)
                inside.setdefault(id(join), set()).add(i)
                stale.update({id(n): n for n in (made_by, *readers[v])})
        for n in stale.values():
            self._place_again(n, frozenset(inside.get(id(n), ())))

    def _strides(self, v: ir.Value) -> tuple[DimLike, ...]:
        known = self._layouts.get(v)
        return contiguous(self.facts.tensor(v).shape or ()) if known is None else known.strides

    def _order_of(self, v: ir.Value) -> Order | None:
        shape = self.facts.tensor(v).shape
        return None if shape is None else order_of(shape, Access(self._strides(v)))

    @staticmethod
    def _bears_gaps(v: ir.Value, readers: Iterable[PlacedNode]) -> bool:
        return all(n.placed.strided and not any(n.inputs[i] is v for i in n.placed.ordered) for n in readers)

    def _place_again(self, n: PlacedNode, inside: frozenset[int]) -> None:
        """Choose the kernel of ``n`` for the layouts that were settled on since."""
        node = n.node
        if n.placed.aliases:
            return
        if inside and inside == frozenset(n.reads):
            n.placed = replace(n.placed, placement=replace(n.placement, backend="plan", kernel=ViewKernel()))
            return
        layouts = self._seen_by(node, n.inputs)
        for o in node.outputs:
            if o.name and self.facts.tensor(o).shape is not None:
                layouts[o] = Access(self._strides(o))
        anywhere = isinstance(n.placement.kernel, ViewKernel)
        n.placed = self.placer.place(node, layouts, placed_inputs=inside, space=None if anywhere else n.space)
        kernel = n.placement.kernel
        if kernel is not None and kernel.reads is not None:
            n.reads = kernel.reads

    def _agreements(self, node: ir.Node, placed: Placed) -> tuple[Agreement, ...]:
        """What must hold for machine code to stay inside its operands, and what users' contracts ask for.

        Other kernels look for themselves.
        """
        kernel = placed.placement.kernel
        if not isinstance(kernel, NativeKernel) and not placed.aliases and not getattr(kernel, "declared", False):
            return ()
        return tuple(dict.fromkeys(self.analyzer.agreements(node)))

    def _unknown_symbols(self, node: ir.Node, placed: Placed, agreements: Iterable[Agreement]) -> set[str]:
        """Symbols that a kernel needs and that are not known when it starts."""
        kernel = placed.placement.kernel
        if not isinstance(kernel, (NativeKernel, ViewKernel)):
            return set()
        sizes: list[DimLike] = list(_sizes(agreements))
        for o in node.outputs:
            fact = self.facts.get(o)
            if o.name and isinstance(fact, TensorFact):
                sizes.extend(fact.shape or ())
        if isinstance(kernel, NativeKernel):
            sizes += kernel.dims
        return set().union(*(D.symbols_of(d) for d in sizes)) - self.known

    # liveness

    def _mark_needed(self, nodes: list[PlacedNode]) -> None:
        needed: set[ir.Value] = set(self.outputs)
        symbols: set[str] = set()
        for v in self.outputs:
            symbols |= self._late_symbols(v)
        for n in reversed(nodes):
            binds = any(self.binder.get(s) in n.node.outputs for s in symbols if s in self.binder)
            if not binds and not any(o in needed for o in n.node.outputs):
                continue
            n.needed = True
            for i in n.reads:
                read = n.inputs[i]
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
                    needed.update(map(self.handed, captured))
                    for v in captured:
                        symbols |= self._late_symbols(v)

    def _late_symbols(self, v: ir.Value) -> set[str]:
        fact = self.facts.get(v)
        if not isinstance(fact, TensorFact) or fact.shape is None:
            return set()
        return set().union(*(D.symbols_of(d) for d in fact.shape)) - set(self.early)


def _reads_of(node: ir.Node, placed: Placed) -> tuple[int, ...]:
    """Numbers of the inputs that a kernel looks at."""
    if placed.aliases:
        return tuple(sorted({a.input for a in placed.aliases.values()}))
    kernel = placed.placement.kernel
    return tuple(range(len(node.inputs))) if kernel is None or kernel.reads is None else kernel.reads


def _order_text(order: Order | None) -> str:
    """How elements lie, for people."""
    if order is None:
        return "with gaps"
    if order == tuple(range(len(order))):
        return "row by row"
    if order == channels_last(len(order)):
        return "channels last"
    return f"in the order of axes {', '.join(map(str, order))}"


def _sizes(agreements: Iterable[Agreement]) -> Iterable[DimLike]:
    for a in agreements:
        yield a.size
        yield a.other


def numpy_dtype(fact: TensorFact) -> np.dtype[Any] | None:
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
