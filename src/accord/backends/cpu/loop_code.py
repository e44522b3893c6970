"""The machine code's view of a loop program: patterns of strides, passes, and what is kept between them."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from accord.backends.cpu.jit import machine
from accord.backends.cpu.program import KernelCode
from accord.backends.loops.values import Reduction, Result
from accord.expr.cost import cost_of
from accord.expr.lang import Expr, bits, operand, rebuild, topological
from accord.expr.simplify import simplify
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["LoopCode", "Pass", "Stream", "copies_of", "hoisted", "lanes_of", "operands_of", "row_bytes"]

#: Operations from which on a value is kept in memory rather than computed again in the next pass.
_KEEP_COST = 8.0
#: A load of elements that do not follow each other, and slow instructions, in operations.
_GATHER_COST = 16.0
#: Bytes of one kept element, whatever its type, so that rows stay aligned.
_KEPT_BYTES = 8


@record
class Stream:
    """An operand or output: for each axis "0" (repeats), "1" (next element) or "s" (a stride in the parameters).

    Without memory it is its own position.
    """

    dtype: str
    kinds: str
    memory: bool = True

    def varies(self, first: int, last: int | None = None) -> bool:
        """Whether it changes along an axis out of ``first`` to ``last``."""
        return any(k != "0" for k in self.kinds[first:last])


@dataclass
class Pass:
    """One walk over the reduced axes.

    Attributes:
        reductions: Which ones it computes, with their arguments.
        stores: Outputs of full space that it stores, with their expressions.
        keeps: Row buffers that it fills.
    """

    reductions: list[tuple[int, tuple[Expr, ...]]] = field(default_factory=list)
    stores: list[tuple[int, Expr]] = field(default_factory=list)
    keeps: list[tuple[int, Expr]] = field(default_factory=list)

    @property
    def exprs(self) -> list[Expr]:
        """All expressions."""
        arguments = [a for _, args in self.reductions for a in args]
        return [*arguments, *(e for _, e in self.stores), *(e for _, e in self.keeps)]


@record
class LoopCode(KernelCode):
    """Code for one pattern of a loop program.

    Attributes:
        kept: Number of kept axes, at least 1.
        reduced: Number of reduced axes, which follow them.
        across: Vectors lie along the last reduced axis, not along the last kept one.
        staged: Operands are transposed that have unit stride along the last reduced axis (without one, along the last
            but one kept axis) and another along that of the vectors.
        values: What operands of expressions stand for.
        reductions: In order.
        outputs: Where results go.
        results: One expression for each output.
        long: There may be more than 64 elements a row.
        line: Size of the last reduced axis where it is known, short, not the only one, and has the vectors; else 0.
        woven: Size of the last but one kept axis, if some operands or outputs have unit stride along it and this
            stride along the last one: so many vectors of theirs are those of the others, woven; else 0.
    """

    kept: int
    reduced: int
    across: bool
    staged: bool
    values: tuple[Stream | Result, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Stream, ...]
    results: tuple[Expr, ...]
    long: bool
    line: int = 0
    woven: int = 0

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.kept};{self.reduced};{self.across};{self.staged};{self.values};{self.outputs};{self.long};{self.line};{self.woven};"
            f"{[r.key for r in self.reductions]};{[e.key for e in self.results]}"
        )
        kind = "loops" if self.reduced else "pointwise"
        return f"{kind}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def module(self, name: str) -> str:
        """LLVM text."""
        from accord.backends.cpu.loop_writer import LoopWriter

        return LoopWriter(self, name).write()

    # what expressions depend on

    def is_full(self, expr: Expr) -> bool:
        """Whether ``expr`` changes along a reduced axis."""
        return any(self._full[number] for number in operands_of(expr))

    @cached_property
    def _full(self) -> list[bool]:
        return [
            v.varies(self.kept) if isinstance(v, Stream) else bool(self.reductions[v.reduction].running)
            for v in self.values
        ]

    @cached_property
    def _levels(self) -> list[int]:
        """The pass in which each reduction is computed."""
        levels: list[int] = []
        for r in self.reductions:
            levels.append(max((self._value_level(n, levels) for a in r.args for n in operands_of(a)), default=0))
        return levels

    def _value_level(self, number: int, levels: Sequence[int]) -> int:
        v = self.values[number]
        if isinstance(v, Stream):
            return 0
        return levels[v.reduction] + (not self.reductions[v.reduction].running)

    def _level(self, expr: Expr) -> int:
        """The first pass in which ``expr`` can be computed."""
        return max((self._value_level(n, self._levels) for n in operands_of(expr)), default=0)

    @property
    def tile_axis(self) -> int:
        """The axis that :attr:`staged` means."""
        return self.kept + self.reduced - 1 if self.reduced else self.kept - 2

    @cached_property
    def turned(self) -> frozenset[int]:
        """Numbers of the values that are transposed."""
        if not self.staged:
            return frozenset()
        found = (i for i, v in enumerate(self.values) if isinstance(v, Stream) and v.memory and self._is_turned(v))
        return frozenset(found)

    def _is_turned(self, stream: Stream) -> bool:
        return stream.kinds[self.tile_axis] == "1" and stream.kinds[self.kept - 1] == "s"

    def is_woven(self, stream: Stream) -> bool:
        """Whether a stream has its elements along the last two kept axes in turn."""
        return bool(self.woven) and stream.memory and stream.kinds[-2:] == "1s"

    # passes

    @cached_property
    def plan(self) -> tuple[list[Pass], list[tuple[int, int, Expr]], list[str]]:
        """Passes; outputs of row space (number, passes that must be done before, expression); types of row buffers."""
        passes: list[Pass] = []
        rows: list[tuple[int, int, Expr]] = []

        def at(level: int) -> Pass:
            while len(passes) <= level:
                passes.append(Pass())
            return passes[level]

        for i, r in enumerate(self.reductions):
            at(self._levels[i]).reductions.append((i, tuple(simplify(a) for a in r.args)))
        for j, result in enumerate(self.results):
            expr = simplify(result)
            if self.outputs[j].varies(self.kept):
                at(self._level(expr)).stores.append((j, expr))
            else:
                rows.append((j, self._level(expr), expr))
        return passes, rows, self._keep(passes)

    def _keep(self, passes: Sequence[Pass]) -> list[str]:
        """Let later passes read what an earlier one has computed at some expense."""
        first: dict[Expr, int] = {}
        written: list[dict[Expr, Expr]] = []
        kept: dict[Expr, Expr] = {}
        for k, p in enumerate(passes):
            costs = self._costs(p.exprs)
            done: dict[Expr, Expr] = {}

            def read(node: Expr, costs: dict[Expr, float] = costs) -> Expr | None:
                if node not in first or costs[node] < _KEEP_COST:
                    return None
                if node not in kept:
                    number = len(kept)
                    kept[node] = operand(len(self.values) + number, node.dtype)
                    passes[first[node]].keeps.append((number, written[first[node]][node]))
                return kept[node]

            p.reductions = [(i, tuple(_replaced(a, read, done) for a in args)) for i, args in p.reductions]
            p.stores = [(j, _replaced(e, read, done)) for j, e in p.stores]
            running = {i for i, _ in p.reductions if self.reductions[i].running}
            for number, v in enumerate(self.values):
                if isinstance(v, Result) and v.reduction in running:  # later passes cannot compute it again
                    node = operand(number, self.reductions[v.reduction].args[v.part].dtype)
                    done.setdefault(node, node)
            for node in done:
                first.setdefault(node, k)
            written.append(done)
        return [e.dtype for e in kept]

    @cached_property
    def homes(self) -> dict[int, int]:
        """Row buffers that need no memory of their own: an output that is stored later holds them meanwhile."""
        passes, _, buffers = self.plan
        lane = -1 if self.across else self.kept - 1
        stored = {j: k for k, p in enumerate(passes) for j, _ in p.stores if self.outputs[j].kinds[lane] == "1"}
        homes: dict[int, int] = {}
        for k, p in enumerate(passes):
            for number, _ in p.keeps:
                for j, later in stored.items():
                    if later > k and self.outputs[j].dtype == buffers[number] and j not in homes.values():
                        homes[number] = j
                        break
        return homes

    def may_overwrite(self, output: int, number: int) -> bool:
        """Whether an output may take the memory of an operand with the same strides: it is read for the last time
        before, or in the very step in which, an element is written.
        """
        passes, _, _ = self.plan
        read = [k for k, p in enumerate(passes) if any(number in operands_of(e) for e in p.exprs)]
        written = [k for k, p in enumerate(passes) for j, _ in p.stores if j == output]
        kept = {k for k, j in self.homes.items() if j == output}
        written += [k for k, p in enumerate(passes) for i, _ in p.keeps if i in kept]
        if not self._full[number]:
            return True  # it is loaded before the first pass
        return bool(written) and max(read, default=-1) <= min(written)

    def _costs(self, exprs: Iterable[Expr]) -> dict[Expr, float]:
        """Operations of each subexpression of full space; parts that two of its operands share count twice."""
        costs: dict[Expr, float] = {}
        full: dict[Expr, bool] = {}
        for node in topological(exprs):
            number = int(node.value or 0) if node.op == "operand" else -1
            full[node] = self._full[number] if number >= 0 else any(full[a] for a in node.args)
            if not full[node]:
                costs[node] = 0.0
            elif number >= 0:
                costs[node] = self._load_cost(number)
            else:
                costs[node] = sum(costs[a] for a in node.args) + _own_cost(node)
        return costs

    def _load_cost(self, number: int) -> float:
        v = self.values[number]
        if isinstance(v, Result):
            return math.inf  # of a running reduction: it is known only while that runs
        if not v.memory or number in self.turned:
            return 1.0
        return _GATHER_COST if v.kinds[-1 if self.across else self.kept - 1] == "s" else 1.0


@functools.lru_cache(maxsize=512)
def _own_cost(node: Expr) -> float:
    """Operations of ``node`` itself, in primitives."""
    arguments = tuple(operand(i, a.dtype) for i, a in enumerate(node.args))
    return cost_of(rebuild(node, arguments))


def operands_of(expr: Expr) -> list[int]:
    """Numbers of the operands that ``expr`` reads."""
    return [int(n.value or 0) for n in topological((expr,)) if n.op == "operand"]


def _replaced(root: Expr, read: Callable[[Expr], Expr | None], done: dict[Expr, Expr]) -> Expr:
    """``root`` with the largest subexpressions for which ``read`` gives another expression replaced by it.

    ``done`` collects what each subexpression that was met has become.
    """
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        other = read(node)
        waiting = [a for a in node.args if a not in done] if other is None else []
        if waiting:
            stack.extend(waiting)
            continue
        done[node] = rebuild(node, tuple(done[a] for a in node.args)) if other is None else other
        stack.pop()
    return done[root]


def hoisted(exprs: Sequence[Expr], outside: Container[int], number: int) -> tuple[list[Expr], list[tuple[int, Expr]]]:
    """Take out what only depends on operands ``outside``.

    Returns:
        The expressions, in which the largest such subexpressions are operands from ``number`` on; and those numbers
        with what they stand for.
    """
    inner: dict[Expr, bool] = {}
    for node in topological(exprs):
        if node.op == "operand":
            inner[node] = int(node.value or 0) not in outside
        else:
            inner[node] = any(inner[a] for a in node.args)
    taken: dict[Expr, Expr] = {}

    def read(node: Expr) -> Expr | None:
        if inner[node] or node.op == "operand" or not operands_of(node):
            return None
        if node not in taken:
            taken[node] = operand(number + len(taken), node.dtype)
        return taken[node]

    done: dict[Expr, Expr] = {}
    left = [_replaced(e, read, done) for e in exprs]
    return left, [(int(o.value or 0), e) for e, o in taken.items()]


def lanes_of(code: LoopCode) -> int:
    """Elements of a vector: of the widest type in memory; arithmetic on narrow types is done in wider registers."""
    streams = [v for v in code.values if isinstance(v, Stream) and v.memory]
    full = [s for s in streams if s.varies(code.kept)] if code.across else streams
    outputs = [s for s in code.outputs if not code.across or s.varies(code.kept)]
    widest = max((bits(s.dtype) for s in (*full, *outputs)), default=32)
    moves = not code.reduced and not code.staged and all(e.op == "operand" for e in code.results)
    return machine().width(widest if moves else max(widest, 32))


def row_bytes(code: LoopCode, elements: DimLike) -> DimLike:
    """Bytes of the row buffers of one thread for rows of ``elements`` elements."""
    if not code.reductions:
        return 0
    buffers = len(code.plan[2]) - len(code.homes)
    lanes = 1 if code.across else lanes_of(code) * copies_of(code)
    return (elements + _PADDING) * (buffers * lanes * _KEPT_BYTES) if buffers else 0


#: Elements by which a row buffer is longer than its row.
_PADDING = 8


def copies_of(code: LoopCode) -> int:
    """Vectors side by side in a block of neighbouring rows: more while there is little to do for each."""
    if not code.reduced:
        return 1
    cost = sum(cost_of(a) for r in code.reductions for a in r.args) + sum(cost_of(e) for e in code.results)
    if cost > 64:
        return 1
    return 2 if cost > 12 and (code.long or code.staged) else 4
