"""Reductions of few long rows, cut into programs that work side by side.

A program whose reduced axes are long and whose kept ones are short keeps few processors busy. Cut, it is several
programs that run one after the other, with buffers between them: for each level of reductions one that reduces a part
of every row, and one that reduces the parts; then one for what is stored along the rows. A sum of parts is the sum of
all elements in another order; other reductions come to the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from accord.backends.loops.group import substituted
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output
from accord.backends.loops.values import Reduction, Result, form_of
from accord.expr.lang import Expr, operand, topological
from accord.ir.dims import DimLike
from accord.ir.strides import Access, contiguous
from accord.record import record

__all__ = ["Buffer", "Stage", "can_split", "parts_of", "split"]


@record
class Buffer:
    """Memory between stages.

    Attributes:
        dtype: Of its elements.
        count: Of elements.
    """

    dtype: str
    count: int


@record
class Stage:
    """One of the programs.

    Attributes:
        program: What it computes.
        sources: For each operand with memory: the number of the original's (of those with memory), or ~k for buffer k.
        targets: For each output: the number of the original's, or ~k for buffer k.
    """

    program: LoopProgram
    sources: tuple[int, ...]
    targets: tuple[int, ...]


def can_split(p: LoopProgram) -> bool:
    """Whether a program has reductions to cut, and all its sizes are known."""
    if not p.reductions or any(r.running for r in p.reductions):
        return False
    return all(isinstance(n, int) for n in p.extents) and not any(o.combine for o in p.outputs)


def parts_of(p: LoopProgram, most: int, least: int) -> tuple[int, int] | None:
    """The reduced axis to cut and into how many parts, at most ``most`` of at least ``least`` elements a row.

    Parts are whole: their number divides the axis. None where there is no such number above 1.
    """
    sizes = _sizes(p.extents)
    length = math.prod(sizes[a] for a in p.reduced)
    wanted = min(most, length // least)
    found: tuple[int, int] | None = None
    for a in sorted(p.reduced):
        n = sizes[a]
        count = next((d for d in range(min(wanted, n), 1, -1) if n % d == 0), 1)
        if count > (1 if found is None else found[1]):
            found = (a, count)
    return found


def split(p: LoopProgram, axis: int, parts: int) -> tuple[list[Stage], list[Buffer]]:
    """``p`` in stages, with reduced axis ``axis`` cut into ``parts``, which divides its size."""
    return _Splitter(p, axis, parts).stages()


class _Splitter:
    def __init__(self, p: LoopProgram, axis: int, parts: int) -> None:
        self.p = p
        self.axis, self.parts = axis, parts
        sizes = _sizes(p.extents)
        self.kept = [a for a in range(len(sizes)) if a not in p.reduced]
        self.rows = math.prod(sizes[a] for a in self.kept)
        steps = dict(zip(self.kept, contiguous(tuple(sizes[a] for a in self.kept)), strict=True))
        #: Over all axes of the program, where a row's element of a buffer is.
        self.row = tuple(steps.get(a, 0) for a in range(len(sizes)))
        memory = [i for i, v in enumerate(p.values) if isinstance(v, Operand) and v.memory]
        self.source = {i: k for k, i in enumerate(memory)}
        self.buffers: list[Buffer] = []
        #: Of each reduction the buffers of its results, for all rows.
        self.finished: dict[int, list[int]] = {}

    def stages(self) -> tuple[list[Stage], list[Buffer]]:
        p = self.p
        levels = [max(map(self._level, r.args)) for r in p.reductions]
        along = [j for j, o in enumerate(p.outputs) if self._is_along(o)]
        beside = [j for j in range(len(p.outputs)) if j not in along]
        stages: list[Stage] = []
        for level in range(max(levels) + 1):
            chosen = [i for i, at in enumerate(levels) if at == level]
            halves = self._partial(stages, chosen)
            last = level == max(levels)
            if not last or along:
                self._join(stages, chosen, halves, ())
            if last and not along:
                self._join(stages, chosen, halves, beside)
        if along:
            self._rest(stages, range(len(p.outputs)))
        return stages, self.buffers

    def _partial(self, stages: list[Stage], chosen: Sequence[int]) -> dict[int, list[int]]:
        """A stage that reduces parts of rows; the buffers of their results."""
        p = self.p
        sizes = _sizes(p.extents)
        extents = (*sizes[: self.axis], self.parts, sizes[self.axis] // self.parts, *sizes[self.axis + 1 :])
        reduced = {a + (a >= self.axis) for a in p.reduced if a != self.axis} | {self.axis + 1}
        builder = _Values(self, self._cut)
        reductions = [replace(p.reductions[i], args=builder.exprs(p.reductions[i].args)) for i in chosen]
        own = self._cut(Access(self.row))
        strides = list(own.strides)
        strides[self.axis] = self.rows
        halves: dict[int, list[int]] = {}
        outputs: list[Output] = []
        targets: list[int] = []
        for number, i in enumerate(chosen):
            halves[i] = []
            for part, dtype in enumerate(_results(p.reductions[i])):
                k = self._buffer(dtype, self.rows * self.parts)
                halves[i].append(k)
                outputs.append(Output(builder.result(number, part, dtype), Access(tuple(strides))))
                targets.append(~k)
        made = LoopProgram(extents, frozenset(reduced), tuple(builder.values), tuple(reductions), tuple(outputs))
        stages.append(Stage(made, tuple(builder.sources), tuple(targets)))
        return halves

    def _join(
        self, stages: list[Stage], chosen: Sequence[int], halves: Mapping[int, Sequence[int]], stored: Sequence[int]
    ) -> None:
        """A stage that reduces the parts, and stores results of rows, or outputs that need no more than these."""
        p = self.p
        sizes = _sizes(p.extents)
        extents = (*(sizes[a] for a in self.kept), self.parts)

        def kept_only(access: Access) -> Access:
            return Access((*(access.strides[a] for a in self.kept), 0), access.offset)

        builder = _Values(self, kept_only)
        rows = kept_only(Access(self.row)).strides
        reductions: list[Reduction] = []
        for number, i in enumerate(chosen):
            args = [
                builder.buffer(k, dtype, Access((*rows[:-1], self.rows)))
                for k, dtype in zip(halves[i], _results(p.reductions[i]), strict=True)
            ]
            reductions.append(replace(p.reductions[i], args=tuple(args)))
            builder.reduced[i] = number
        outputs: list[Output] = []
        targets: list[int] = []
        if stored:
            for j in stored:
                outputs.append(builder.output(p.outputs[j]))
                targets.append(j)
        else:
            for number, i in enumerate(chosen):
                self.finished[i] = []
                for part, dtype in enumerate(_results(p.reductions[i])):
                    k = self._buffer(dtype, self.rows)
                    self.finished[i].append(k)
                    outputs.append(Output(builder.result(number, part, dtype), Access(rows)))
                    targets.append(~k)
        reduced = frozenset({len(extents) - 1})
        made = LoopProgram(extents, reduced, tuple(builder.values), tuple(reductions), tuple(outputs))
        stages.append(Stage(made, tuple(builder.sources), tuple(targets)))

    def _rest(self, stages: list[Stage], stored: Iterable[int]) -> None:
        """Stages without reductions: outputs along rows in one, those of one element a row in another."""
        p = self.p
        for along in (True, False):
            chosen = [j for j in stored if self._is_along(p.outputs[j]) == along]
            if not chosen:
                continue
            axes = range(len(p.extents)) if along else self.kept

            def over(access: Access, axes: Iterable[int] = tuple(axes)) -> Access:
                return Access(tuple(access.strides[a] for a in axes), access.offset)

            builder = _Values(self, over)
            outputs = tuple(builder.output(p.outputs[j]) for j in chosen)
            extents = tuple(p.extents[a] for a in axes)
            made = LoopProgram(extents, frozenset(), tuple(builder.values), (), outputs)
            stages.append(Stage(made, tuple(builder.sources), tuple(chosen)))

    def _buffer(self, dtype: str, count: int) -> int:
        self.buffers.append(Buffer(dtype, count))
        return len(self.buffers) - 1

    def _cut(self, access: Access) -> Access:
        """An access over the axes of the partial stage."""
        step = access.strides[self.axis]
        size = _sizes(self.p.extents)[self.axis] // self.parts
        before, after = access.strides[: self.axis], access.strides[self.axis + 1 :]
        return Access((*before, step * size, step, *after), access.offset)

    # what depends on what

    def _level(self, expr: Expr) -> int:
        """How many levels of reductions come before an expression."""
        return max((self._value_level(n) for n in _numbers((expr,))), default=0)

    def _value_level(self, number: int) -> int:
        v = self.p.values[number]
        if isinstance(v, Operand):
            return max((self._level(k.index) for k in v.lookups), default=0)
        return 1 + max(map(self._level, self.p.reductions[v.reduction].args))

    def _is_along(self, o: Output) -> bool:
        """Whether an output has an element for each element of a row."""
        if any(o.access.strides[a] != 0 for a in self.p.reduced):
            return True
        waiting = [o.expr, *(k.index for k in o.lookups)]
        return any(self._changes(n) for n in _numbers(waiting))

    def _changes(self, number: int) -> bool:
        """Whether a value changes along a row."""
        v = self.p.values[number]
        if isinstance(v, Result):
            return False
        if any(v.access.strides[a] != 0 for a in self.p.reduced):
            return True
        return any(self._changes(n) for k in v.lookups for n in _numbers((k.index,)))


class _Values:
    """The values of a stage: those of the original that its expressions need, renumbered.

    Args:
        splitter: The original, and buffers of what is computed already.
        over: From an access over the original's axes to one over the stage's.
    """

    def __init__(self, splitter: _Splitter, over: Callable[[Access], Access]) -> None:
        self.splitter = splitter
        self.over = over
        self.values: list[Operand | Result] = []
        self.sources: list[int] = []
        #: Reductions of the original that are this stage's own, with their number here.
        self.reduced: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def exprs(self, exprs: Sequence[Expr]) -> tuple[Expr, ...]:
        """The same of the stage's values."""
        found = {n: int(n.value or 0) for n in topological(tuple(exprs)) if n.op == "operand"}
        for number in sorted(set(found.values())):
            self._number(number)
        renamed = {n: operand(self._numbers[number], n.dtype) for n, number in found.items()}
        return tuple(substituted(e, renamed) for e in exprs)

    def output(self, o: Output) -> Output:
        """The same over the stage's axes."""
        (expr,) = self.exprs((o.expr,))
        return Output(expr, self.over(o.access), self._lookups(o.lookups), o.combine)

    def result(self, reduction: int, part: int, dtype: str) -> Expr:
        """A result of one of the stage's reductions."""
        self.values.append(Result(reduction, part))
        return operand(len(self.values) - 1, dtype)

    def buffer(self, number: int, dtype: str, access: Access) -> Expr:
        """An element of a buffer."""
        self.values.append(Operand(dtype, access))
        self.sources.append(~number)
        return operand(len(self.values) - 1, dtype)

    def _lookups(self, lookups: Sequence[Lookup]) -> tuple[Lookup, ...]:
        return tuple(replace(k, index=self.exprs((k.index,))[0]) for k in lookups)

    def _number(self, old: int) -> None:
        if old in self._numbers:
            return
        v = self.splitter.p.values[old]
        if isinstance(v, Operand):
            lookups = self._lookups(v.lookups)
            self.values.append(replace(v, access=self.over(v.access), lookups=lookups))
            if v.memory:
                self.sources.append(self.splitter.source[old])
        elif v.reduction in self.reduced:
            self.values.append(Result(self.reduced[v.reduction], v.part))
        else:
            k = self.splitter.finished[v.reduction][v.part]
            self.buffer(k, self.splitter.buffers[k].dtype, self.over(Access(self.splitter.row)))
        self._numbers[old] = len(self.values) - 1


def _results(r: Reduction) -> list[str]:
    """Element types of a reduction's results."""
    return [e.dtype for e in form_of(r).final]


def _numbers(exprs: Iterable[Expr]) -> set[int]:
    return {int(n.value or 0) for n in topological(tuple(exprs)) if n.op == "operand"}


def _sizes(extents: Sequence[DimLike]) -> list[int]:
    return [n for n in extents if isinstance(n, int)]
