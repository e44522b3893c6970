"""Accumulators of one reduction while its code is written."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.loop_memory import Function
from accord.backends.cpu.printer import Printer
from accord.backends.loops.values import Reduction, form_of
from accord.expr.lang import Expr, operand
from accord.expr.primitives import eq, select

__all__ = ["State"]


class State:
    """The state of a reduction in one pass: several *sets* of vectors.

    A sum in pieces has three vectors a set: the piece that is being added up, the sum of the pieces before it, and
    what that sum has lost.

    Args:
        b: Receives the code.
        reduction: What is computed.
        width: Elements of a vector.
        sets: Number of sets.
        pieces: The row is so long that a sum is taken in pieces.
    """

    def __init__(self, b: Function, reduction: Reduction, width: int, sets: int, *, pieces: bool) -> None:
        self.reduction = reduction
        self.pieces = pieces and reduction.compensated
        self._b = b
        self._width = width
        self._form = form_of(reduction)
        start = list(self._form.start) * (3 if self.pieces else 1)
        self._dtypes = [e.dtype for e in start]
        values = _written(b, width, start, ())
        self._sets: list[list[str]] = []
        for _ in range(sets):
            variables = [b.variable(vector(t, width)) for t in self._dtypes]
            self._put(variables, values)
            self._sets.append(variables)

    def _put(self, variables: Sequence[str], values: Sequence[str]) -> None:
        for variable, dtype, value in zip(variables, self._dtypes, values, strict=False):
            self._b.emit(f"store {vector(dtype, self._width)} {value}, ptr {variable}")

    def _get(self, variables: Sequence[str]) -> list[str]:
        types = [vector(t, self._width) for t in self._dtypes]
        return [self._b.op(f"load {t}, ptr {v}") for t, v in zip(types, variables, strict=False)]

    def add(self, number: int, values: Sequence[str], count: str | None = None) -> tuple[list[str], list[str]]:
        """Add ``values`` to set ``number``; only the first ``count`` lanes if given.

        Returns:
            The state before and after.
        """
        variables = self._sets[number][: len(self._form.start)]
        before = self._get(variables)
        after = _written(self._b, self._width, self._form.add, [*before, *values])
        if count is not None:
            p = Printer(self._b, self._width)
            after = [p.keep_first(t, new, old, count) for t, new, old in zip(self._dtypes, after, before, strict=False)]
        self._put(variables, after)
        return before, after

    def flush(self) -> None:
        """Put the piece of each set aside (two-sum: the sum and exactly what it loses)."""
        dtype = self._dtypes[0]
        piece, total, lost = (operand(i, dtype) for i in range(3))
        new = total + piece
        part = new - total
        error = (total - (new - part)) + (piece - part)
        for variables in self._sets:
            results = (*self._form.start, new, lost + error)
            self._put(variables, _written(self._b, self._width, results, self._get(variables)))

    def finish(self, *, across: bool) -> list[list[str]]:
        """The results: for each set its parts, or, ``across``, for all sets and lanes together, as scalars."""
        merge, final = self._form.merge, self._form.final
        if self.pieces:
            self.flush()
            total, lost, more, also = (operand(i, self._dtypes[0]) for i in range(4))
            merge = (total + more, lost + also)
            # what an infinite sum has lost is no number
            final = (select(eq(total - total, 0.0), total + lost, total),)
        groups = [self._get(variables)[1 if self.pieces else 0 :] for variables in self._sets]
        width = self._width
        if across:
            groups, width = [self._merged(groups, merge)], 1
        return [_written(self._b, width, final, g) for g in groups]

    def _merged(self, groups: list[list[str]], merge: Sequence[Expr]) -> list[str]:
        """All sets and lanes as one state of scalars."""
        b, width = self._b, self._width
        while len(groups) > 1:
            half = len(groups) // 2
            pairs = list(zip(groups[:half], groups[half:], strict=True))
            groups = [_written(b, width, merge, [*x, *y]) for x, y in pairs]
        parts = groups[0]
        dtypes = [e.dtype for e in merge]
        while width > 1:
            half = width // 2
            low = [self._lanes(t, v, width, 0) for t, v in zip(dtypes, parts, strict=True)]
            high = [self._lanes(t, v, width, half) for t, v in zip(dtypes, parts, strict=True)]
            parts = _written(b, half, merge, [*low, *high])
            width = half
        return parts

    def _lanes(self, dtype: str, value: str, width: int, first: int) -> str:
        """The half of ``value`` from lane ``first`` on."""
        type_, half = vector(dtype, width), width // 2
        if half == 1:
            return self._b.op(f"extractelement {type_} {value}, i32 {first}")
        order = ", ".join(f"i32 {first + k}" for k in range(half))
        return self._b.op(f"shufflevector {type_} {value}, {type_} poison, <{half} x i32> <{order}>")


def _written(b: Builder, width: int, exprs: Sequence[Expr], values: Sequence[str]) -> list[str]:
    printer = Printer(b, width)
    return [printer.value(e, values) for e in exprs]
