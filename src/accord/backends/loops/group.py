"""A group of connected operators while it is put together to one loop program.

Every operator says how it becomes part of a group (:data:`MEMBERS`): it asks for its inputs as *terms*, expressions
with the axes that they are walked along, and gives its outputs as terms. What is read from outside becomes an operand,
what is reduced a reduction. A single node is a group of one.

Between the operators of a group f16 and bf16 are kept in f32, which is more exact than the rounding of each result
that separate operators do; a Cast, which asks for it, rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import onnx_ir as ir

from accord.backends.loops.nest import magnitude
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, program_phase
from accord.backends.loops.space import Axis, Run, is_scaled, leaves, strides_of, unify
from accord.backends.loops.table import known
from accord.backends.loops.values import Reduction, Result
from accord.backends.protocol import Array, NativeKernel
from accord.backends.view import NodeView
from accord.expr.cost import cost_of
from accord.expr.declared import expression_of
from accord.expr.lang import Expr, cast, const, operand, rebuild, topological
from accord.expr.onnx_ops import dtype_name
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, Order
from accord.record import record

__all__ = ["DECLARED", "EXACT", "MEMBERS", "VIEWS", "Group", "Member", "Store", "Term", "wide"]

Member: TypeAlias = "Callable[[Group, NodeView], Reason | None]"
MEMBERS: dict[tuple[str, str], Member] = {}
#: Members that only say which element is meant.
VIEWS: set[tuple[str, str]] = set()
#: Stands for all operators that users declare by an expression.
DECLARED = ("", "declared")

#: Operations from which on it matters how often a value is computed.
_EXPENSIVE = 8.0
#: Elements of a row from which on it is better to share its parts between threads than to read it once.
_LONG_ROW = 65536


#: Operators that look at the very type of what they are given, not only at its value.
EXACT = frozenset({"BitCast", "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})


def wide(dtype: str) -> str:
    """The type in which values of ``dtype`` are computed."""
    return "f32" if dtype in ("f16", "bf16") else dtype


@record
class Term:
    """A value inside a group.

    Attributes:
        expr: Of the group's values; f32 for f16 and bf16.
        axes: For each axis of the value the axes of the iteration space; () for one of size 1.
        dtype: The value's element type.
    """

    expr: Expr
    axes: tuple[Run, ...]
    dtype: str

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return tuple(D.product(a.extent for a in run) for run in self.axes)


@record
class _Read:
    """A value that is read from ``source``; None: it is positions. ``lookups`` and ``other`` as of an Operand."""

    dtype: str
    axes: tuple[Run, ...]
    access: Access
    source: ir.Value | None
    lookups: tuple[Lookup, ...] = ()
    other: float | int = 0


@record
class Store:
    """What is stored, along the axes of a term."""

    expr: Expr
    axes: tuple[Run, ...]
    access: Access


class Group:
    """A group while it is put together.

    Args:
        access_of: How a value from outside lies; by default as the nodes' views say.

    Attributes:
        terms: What is known of each value.
    """

    def __init__(self, access_of: Callable[[ir.Value], Access] | None = None) -> None:
        self.terms: dict[ir.Value, Term] = {}
        self._access_of = access_of
        self._substitutes: dict[ir.Value, Array] = {}
        self._values: list[_Read | Result] = []
        self._reductions: list[Reduction] = []
        self._reduced: list[list[Axis]] = []
        self._made: list[Term] = []

    # what operators ask for

    def term(self, view: NodeView, index: int) -> Term | Reason:
        """Input ``index`` of a node."""
        v = view.node.inputs[index]
        if v is None:
            return Reason(f"input {index} is absent")
        if v in self.terms:
            return self.terms[v]
        if v in self._substitutes:
            return Reason(f"'{v.name}' is read in two forms")
        fact = view.tensor(index)
        found = known(fact, f"input {index}")
        if isinstance(found, Reason):
            return found
        shape, dtype = found
        if fact.const is not None and fact.const.size == 1:
            value = fact.numpy().reshape(-1)[0].item()
            term = Term(const(value, wide(dtype)), ((),) * len(shape), dtype)
        else:
            term = self.read(v, dtype, tuple(self.axis(d) for d in shape), self.access(view, index))
        self.terms[v] = term
        return term

    def inputs(self, view: NodeView, count: int | None = None) -> list[Term | None] | Reason:
        """All inputs of a node, or the first ``count``; None for those that are absent."""
        found: list[Term | None] = []
        for i in range(len(view.node.inputs) if count is None else count):
            term = self.term(view, i) if view.has(i) else None
            if isinstance(term, Reason):
                return term
            found.append(term)
        return found

    def substitute(self, view: NodeView, index: int, array: Array) -> Term | Reason:
        """A constant of one axis that is read in place of input ``index``, which is constant too."""
        v = view.node.inputs[index]
        fact = view.tensor(index)
        if v is None or v in self.terms or v in self._substitutes or not fact.is_const:
            return Reason(f"input {index} cannot be replaced")
        self._substitutes[v] = array
        dtype = dtype_name(ir.DataType.from_numpy(array.dtype)) or ""
        return self.read(v, dtype, (self.axis(array.size),), Access((1,)))

    def element(self, view: NodeView, index: int, position: int) -> Term | Reason:
        """One element of an input of one axis, as a scalar."""
        v = view.node.inputs[index]
        found = known(view.tensor(index), f"input {index}")
        if isinstance(found, Reason) or v is None:
            return found if isinstance(found, Reason) else Reason(f"input {index} is absent")
        own = self.access(view, index)
        return self.read(v, found[1], (), Access((), own.offset + own.strides[0] * position))

    def access(self, view: NodeView, index: int) -> Access:
        """How input ``index`` of a node lies."""
        v = view.node.inputs[index]
        return view.access(index) if self._access_of is None or v is None else self._access_of(v)

    def read(self, source: ir.Value, dtype: str, axes: tuple[Run, ...], access: Access) -> Term:
        """A value from outside that is walked along ``axes``."""
        number = len(self._values)
        self._values.append(_Read(dtype, axes, access, source))
        return Term(cast(operand(number, dtype), wide(dtype)), axes, dtype)

    def look_up(
        self,
        view: NodeView,
        index: int,
        axes: Sequence[Run],
        access: Access,
        lookups: Sequence[Lookup],
        *,
        other: float | int = 0,
        word: str = "",
    ) -> Expr:
        """Elements of input ``index`` at computed places. Not every device's loops have them.

        Args:
            view: The node.
            index: Of the input, a tensor whose shape and element type are known.
            axes: What the rest of the place is walked along.
            access: How, by ``axes``.
            lookups: Computed parts of the place; indices are of values that were read before.
            other: What an element is where a lookup skips it.
            word: A type to read elements as, of the same size; "": their own, f32 for f16 and bf16.
        """
        v = view.node.inputs[index]
        dtype = view.tensor(index).dtype
        own = word or (None if dtype is None else dtype_name(dtype))
        assert own is not None
        number = len(self._values)
        self._values.append(_Read(own, tuple(axes), access, v, tuple(lookups), other))
        return cast(operand(number, own), own if word else wide(own))

    @staticmethod
    def axis(extent: DimLike) -> Run:
        """A new axis."""
        return () if extent == 1 else (Axis(extent),)

    def index(self, run: Run) -> Expr:
        """The index along an axis, i64."""
        number = len(self._values)
        self._values.append(_Read("i64", (run,), Access((1,)), None))
        return operand(number, "i64")

    def size(self, extent: DimLike) -> Expr:
        """A size, i64."""
        if isinstance(extent, int):
            return const(extent, "i64")
        number = len(self._values)
        self._values.append(_Read("i64", (), Access((), extent), None))
        return operand(number, "i64")

    def reduce(self, kind: str, args: Sequence[Expr], axes: Iterable[Run], running: str = "") -> tuple[Expr, ...]:
        """The results of a reduction over ``axes``, which must be those of every other reduction of the group.

        ``running`` is that of :class:`Reduction`, with "_back" behind it to start from the axis's end.
        """
        number = len(self._reductions)
        self._reductions.append(Reduction(kind, tuple(args), running))
        self._reduced.append([a for run in axes for a in run])
        results = []
        for part, a in enumerate(args):
            results.append(operand(len(self._values), a.dtype))
            self._values.append(Result(number, part))
        return tuple(results)

    def broadcast(self, shape: Shape, terms: Sequence[Term]) -> tuple[Run, ...] | Reason:
        """The axes of ``shape``, to which ``terms`` are broadcast by NumPy's rules."""
        axes: list[Run] = []
        for back in range(len(shape), 0, -1):
            size = shape[-back]
            runs = [t.axes[-back] for t in terms if len(t.axes) >= back and t.axes[-back]]
            whole = [r for r in runs if D.product(a.extent for a in r) == size]
            run = whole[0] if whole else self.axis(size)
            for other in runs:
                if any(other is r for r in whole):
                    agree = unify(run, other)
                else:
                    agree = not isinstance(D.product(a.extent for a in other), int) and _scale(other, run)
                if not agree:
                    return Reason(f"it is not known how axis {-back} is broadcast")
            axes.append(run)
        return tuple(axes)

    def define(self, view: NodeView, index: int, expr: Expr, axes: Sequence[Run]) -> Reason | None:
        """Output ``index`` of a node."""
        found = known(view.output(index), f"output {index}")
        if isinstance(found, Reason):
            return found
        term = Term(cast(expr, wide(found[1])), tuple(axes), found[1])
        self.terms[view.node.outputs[index]] = term
        self._made.append(term)
        return None

    def define_coded(self, view: NodeView, index: int, code: Expr, axes: Sequence[Run]) -> Reason | None:
        """Output ``index`` of a node, whose type is not computed in: ``code``, a u8, is what its elements are."""
        term = Term(code, tuple(axes), "u8")
        self.terms[view.node.outputs[index]] = term
        self._made.append(term)
        return None

    # the program

    def add(self, view: NodeView) -> Reason | None:
        """Take in a node, all of whose inputs are from outside or taken in before."""
        rule = MEMBERS.get((view.node.domain, view.node.op_type))
        if view.node.domain and expression_of(view) is not None:
            rule = MEMBERS[DECLARED]
        if rule is None:
            return Reason(f"{view.node.op_type} has no loops of its own")
        return rule(self, view)

    def store(self, v: ir.Value, access: Access) -> Store:
        """Value ``v``, stored as ``access`` says."""
        term = self.terms[v]
        return Store(cast(term.expr, term.dtype), term.axes, access)

    def kernel(self, name: str, inputs: Sequence[ir.Value | None], stores: Sequence[Store]) -> NativeKernel | Reason:
        """The kernel; its operands are those of ``inputs`` that it reads, then the outputs."""
        space = self._space(stores)
        if isinstance(space, Reason):
            return space
        axes, reduced = space
        place = {id(a): i for i, a in enumerate(axes)}
        used = self._used([*(s.expr for s in stores), *(a for r in self._reductions for a in r.args)])
        numbers: dict[Expr, Expr] = {}
        values: list[Operand | Result] = []
        sources: list[ir.Value] = []
        for number, v in enumerate(self._values):
            if number not in used:
                continue
            numbers[operand(number, self._dtype(v))] = operand(len(values), self._dtype(v))
            if isinstance(v, Result):
                values.append(v)
                continue
            if any(id(leaf) not in place for run in v.axes for leaf in leaves(run)):
                return Reason("an operand has an axis that is neither in an output nor reduced")
            lookups = tuple(replace(k, index=substituted(k.index, numbers)) for k in v.lookups)
            access = _over(v.axes, v.access, place)
            values.append(Operand(v.dtype, access, v.source is not None, lookups, v.other))
            if v.source is not None:
                sources.append(v.source)
        reductions = [
            Reduction(r.kind, tuple(substituted(a, numbers) for a in r.args), r.running) for r in self._reductions
        ]
        program = LoopProgram(
            tuple(a.extent for a in axes),
            frozenset(range(len(axes) - reduced, len(axes))),
            tuple(values),
            tuple(reductions),
            tuple(Output(substituted(s.expr, numbers), _over(s.axes, s.access, place)) for s in stores),
        )
        return self._compiled(name, _forwards(program), inputs, sources)

    def _dtype(self, v: _Read | Result) -> str:
        return self._reductions[v.reduction].args[v.part].dtype if isinstance(v, Result) else v.dtype

    def _compiled(
        self,
        name: str,
        program: LoopProgram,
        inputs: Sequence[ir.Value | None],
        sources: Sequence[ir.Value],
    ) -> NativeKernel:
        place = {v: i for i, v in reversed(list(enumerate(inputs)))}
        reads = list(dict.fromkeys(place[v] for v in sources))
        numbers = [reads.index(place[v]) for v in sources]
        first = len(reads)
        targets = range(first, first + len(program.outputs))
        return NativeKernel(
            name,
            (program_phase(program, numbers, targets, first + len(program.outputs)),),
            tuple(reads),
            constants={place[v]: array for v, array in self._substitutes.items() if v in sources},
            in_place=tuple(self._in_place(program, place, sources)),
            flops=D.product(program.extents) * max(1, len(self._made)),
        )

    def order(self, v: ir.Value) -> Order | None:
        """The order in which the axes of a result should lie: that of the largest operand; None: any."""
        axes = self.terms[v].axes
        own = {id(a) for run in axes for a in leaves(run)}
        best: dict[int, DimLike] = {}
        for r in self._values:
            if isinstance(r, Result) or r.source is None:
                continue
            walked = {
                id(leaf): stride
                for run, step in zip(r.axes, r.access.strides, strict=True)
                for leaf, stride in strides_of(run, step)
                if stride != 0
            }
            if own <= walked.keys() and len(walked) > len(best):
                best = walked
        if not best:
            return None
        order: list[int] = []
        long = [a for a, run in enumerate(axes) if leaves(run)]
        order = sorted(long, key=lambda a: -magnitude(best[id(leaves(axes[a])[-1])]))
        for a in range(len(axes)):  # an axis of size 1 follows the axis before it
            if a not in order:
                order.insert(order.index(a - 1) + 1 if a else 0, a)
        return tuple(order)

    def _space(self, stores: Sequence[Store]) -> tuple[list[Axis], int] | Reason:
        """Kept axes, then reduced ones, and the number of these."""
        reduced: list[Axis] = leaves(self._reduced[0]) if self._reduced else []
        for other in self._reduced[1:]:
            if {id(a) for a in leaves(other)} != {id(a) for a in reduced}:
                return Reason("its reductions are over different axes")
        if len(reduced) > 1 and any(r.running for r in self._reductions):
            return Reason("a running reduction is over an axis in parts")
        if len({r.running.endswith("_back") for r in self._reductions if r.running}) > 1:
            return Reason("its running reductions start at both ends of the axis")
        if any(is_scaled(r) for r in self._reduced) or any(is_scaled(run) for s in stores for run in s.axes):
            return Reason("it is not known whether an axis is broadcast")
        read = [v.axes for v in self._values if isinstance(v, _Read) and v.source is not None]
        for axes in [*read, *(t.axes for t in self._made), *(s.axes for s in stores)]:
            own = [a for run in axes for a in leaves(run)]
            if len({id(a) for a in own}) != len(own):  # as of a vector and itself turned around
                return Reason("a value is walked along an axis twice")
        inside = {id(a) for a in reduced}
        kept: list[Axis] = []
        for s in stores:
            own = [a for run in s.axes for a in leaves(run)]
            kept.extend(a for a in own if id(a) not in inside and not any(a is k for k in kept))
        for s in stores:
            own = [a for run in s.axes for a in leaves(run)]
            missing = len(kept) - sum(id(a) not in inside for a in own)
            partly = 0 < sum(id(a) in inside for a in own) < len(reduced)
            if missing or partly:
                return Reason("its outputs have different axes")
        return [*kept, *reduced], len(reduced)

    def _used(self, exprs: Sequence[Expr]) -> set[int]:
        """Numbers of the values that the expressions need."""
        used = {i for i, v in enumerate(self._values) if isinstance(v, Result)}
        waiting = list(exprs)
        while waiting:
            found = {int(n.value or 0) for n in topological(waiting) if n.op == "operand"} - used
            used |= found
            reads = [v for v in map(self._values.__getitem__, found) if isinstance(v, _Read)]
            waiting = [k.index for v in reads for k in v.lookups]
        return used

    def _in_place(
        self, program: LoopProgram, place: dict[ir.Value | None, int], sources: Sequence[ir.Value]
    ) -> list[tuple[int, int]]:
        """Outputs that may overwrite an input, if the device's loops read it in time."""
        memory = [v for v in program.values if isinstance(v, Operand) and v.memory]
        pairs = []
        for j, out in enumerate(program.outputs):
            for v, o in zip(sources, memory, strict=True):
                if v in self._substitutes or sum(v is s for s in sources) > 1:
                    continue
                if o.dtype == out.expr.dtype and o.access == out.access and not o.lookups:
                    pairs.append((j, place[v]))
        return pairs

    def refusal(self, stores: Sequence[Store]) -> Reason | None:
        """Why these outputs are not of one iteration space."""
        space = self._space(stores)
        return space if isinstance(space, Reason) else None

    def wasteful(self, stores: Sequence[Store]) -> Reason | None:
        """Why the group would compute something again and again that separate operators compute once."""
        space = self._space(stores)
        if isinstance(space, Reason):
            return space
        axes, reduced = space
        rows, row = (D.known_product([a.extent for a in part]) for part in _parts(axes, reduced))
        if reduced and rows == 1 and (row is None or row > _LONG_ROW) and any(map(self._is_full, stores)):
            return Reason("a single row leaves nothing to share between threads")
        kept = {id(a) for a in _parts(axes, reduced)[0]}
        for r in self._reductions:
            if not kept <= {id(a) for arg in r.args for a in self._walked(arg)}:
                return Reason("what is reduced would be reduced several times")
        for t in self._made:
            walked = {id(a) for a in self._walked(t.expr)}
            if walked and not kept <= walked and cost_of(t.expr) >= _EXPENSIVE:
                return Reason("an expensive value would be computed several times")
        return None

    def _is_full(self, store: Store) -> bool:
        """Whether an output has an element for each one that is reduced."""
        inside = {id(a) for r in self._reduced for a in leaves(r)}
        return any(id(a) in inside for run in store.axes for a in leaves(run))

    def _walked(self, expr: Expr) -> list[Axis]:
        """The axes along which ``expr`` changes, through reductions too."""
        found: list[Axis] = []
        for n in topological((expr,)):
            if n.op == "operand":
                v = self._values[int(n.value or 0)]
                if isinstance(v, Result):
                    found.extend(a for arg in self._reductions[v.reduction].args for a in self._walked(arg))
                else:
                    found.extend(leaf for run in v.axes for leaf in leaves(run))
        return found


def _parts(axes: list[Axis], reduced: int) -> tuple[list[Axis], list[Axis]]:
    """Kept and reduced axes."""
    kept = len(axes) - reduced
    return axes[:kept], axes[kept:]


def _scale(run: Run, target: Run) -> bool:
    """Let ``run``, whose one axis may turn out to be of size 1, be broadcast along ``target``."""
    if len(run) != 1 or run[0].parts is not None:
        return False
    run[0].parts = target
    run[0].factor = D.minimum(run[0].extent - 1, 1) if _may_be_one(run[0].extent) else 1
    return True


def _may_be_one(d: DimLike) -> bool:
    """Whether a size can be 1: one that is a multiple of something larger cannot."""
    if isinstance(d, int):
        return d == 1
    return math.gcd(*(c for _, c in d.terms)) == 1


def _over(axes: Sequence[Run], access: Access, place: dict[int, int]) -> Access:
    """``access`` of a value along ``axes`` as one over the iteration space."""
    strides: list[DimLike] = [0] * len(place)
    for run, stride in zip(axes, access.strides, strict=True):
        for leaf, step in strides_of(run, stride):
            strides[place[id(leaf)]] = strides[place[id(leaf)]] + step
    return Access(tuple(strides), access.offset)


def _forwards(program: LoopProgram) -> LoopProgram:
    """The program with its reduced axis turned around if a running reduction goes backwards."""
    if not any(r.running.endswith("_back") for r in program.reductions):
        return program
    (axis,) = program.reduced

    def turned(a: Access) -> Access:
        strides = tuple(s * -1 if i == axis else s for i, s in enumerate(a.strides))
        return Access(strides, a.offset + a.strides[axis] * (program.extents[axis] - 1))

    return replace(
        program,
        values=tuple(replace(v, access=turned(v.access)) if isinstance(v, Operand) else v for v in program.values),
        reductions=tuple(replace(r, running=r.running.removesuffix("_back")) for r in program.reductions),
        outputs=tuple(replace(o, access=turned(o.access)) for o in program.outputs),
    )


def substituted(expr: Expr, replacements: dict[Expr, Expr]) -> Expr:
    """``expr`` with subexpressions replaced."""
    done: dict[Expr, Expr] = {}
    for node in topological((expr,)):
        done[node] = replacements.get(node) or rebuild(node, tuple(done[a] for a in node.args))
    return done[expr]
