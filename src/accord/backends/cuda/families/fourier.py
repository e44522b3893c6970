"""Fourier transforms, window functions and the mel scale, as loop programs.

A transform of known length has a pass for each radix, one of unknown length is a sum for each result. Angles are looked
up in a table that is exact at quarters of a turn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from accord.backends.butterflies import RADICES, butterfly, factors, times
from accord.backends.cuda.families.table import any_strides, arranges, looped, selects
from accord.backends.epilogue import substitute
from accord.backends.loops.group import Group
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, program_phase
from accord.backends.loops.table import known
from accord.backends.loops.values import Reduction, Result
from accord.backends.protocol import Kernel, NativeKernel, Phase
from accord.backends.spectral import (
    WINDOWS,
    Transform,
    dft_of,
    mel_edge,
    mel_weight,
    size_in,
    stft_of,
    window_value,
)
from accord.backends.view import NodeView
from accord.backends.waves import cos_turns, sin_turns
from accord.expr.lang import FLOATS, Expr, bits, cast, const, operand
from accord.expr.primitives import eq, irem, select
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = ["dft", "mel_weight_matrix", "stft", "window"]


@looped(*WINDOWS)
def window(group: Group, view: NodeView) -> Reason | None:
    """A sum of cosines over one period, with or without its end point."""
    out, count = known(view.output(), "the output"), size_in(view, 0)
    if isinstance(out, Reason):
        return out
    if count is None:
        return Reason("the size is only known at run time")
    run = group.axis(count)
    value = window_value(view, cast(group.index(run), "f64"), cast(group.size(count), "f64"))
    return group.define(view, 0, value, [run])


@looped("MelWeightMatrix")
def mel_weight_matrix(group: Group, view: NodeView) -> Reason | None:
    """Triangular filters at equal distances on the mel scale: each element from three of their edges."""
    out, bins, length = known(view.output(), "the output"), size_in(view, 0), size_in(view, 1)
    if isinstance(out, Reason):
        return out
    if bins is None or length is None:
        return Reason("the sizes are only known at run time")
    scalars = []
    for i in (2, 3, 4):
        term = group.term(view, i)
        if isinstance(term, Reason) or any(term.axes):
            return Reason(f"input {i} is no single number")
        scalars.append(cast(term.expr, "f64"))
    row, column = group.axis(D.floordiv(length, 2) + 1), group.axis(bins)
    first = cast(group.index(column), "f64")
    sizes = [cast(group.size(d), "f64") for d in (bins, length)]
    edges = [mel_edge(first + float(k), *sizes, *scalars) for k in range(3)]
    return group.define(view, 0, mel_weight(cast(group.index(row), "f64"), *edges), [row, column])


# transforms


arranges("DFT", "STFT")(any_strides)


@selects("DFT")
def dft(view: NodeView) -> Kernel | Reason:
    """Along one axis, forward or inverse, one- or two-sided."""
    t = dft_of(view)
    return t if isinstance(t, Reason) else _kernel(t)


@selects("STFT")
def stft(view: NodeView) -> Kernel | Reason:
    """Transforms of windowed frames."""
    t = stft_of(view)
    return t if isinstance(t, Reason) else _kernel(t)


def _kernel(t: Transform) -> Kernel | Reason:
    found = known(t.view.tensor(0), "the input")
    if isinstance(found, Reason):
        return found
    if found[1] not in FLOATS:
        return Reason("only floating-point signals")
    if isinstance(t.length, int) and t.length < 1:
        return Reason(f"a transform of length {t.length}")
    return _Builder(t, found[1]).kernel()


class _Builder:
    """Puts the phases together. Operands: the signal, the window, the result, the workspace.

    In the workspace are cosines and negative sines of the fractions of a turn, then two halves that passes read and
    write by turns, real parts before imaginary ones. An inverse transform is a forward one whose parts are exchanged,
    before and after. Real numbers, if they are even in number, are taken for complex ones of half the number.
    """

    def __init__(self, t: Transform, stored: str) -> None:
        self.t = t
        self.stored = stored
        self.dtype = "f64" if stored == "f64" else "f32"
        onesided = bool(t.view.attr("onesided", 0 if t.view.node.op_type == "DFT" else 1))
        self.inverse = bool(t.view.attr("inverse", 0))
        self.hermitian = onesided and self.inverse
        self.halved = t.parts == 1 and not self.inverse and isinstance(t.length, int) and t.length % 2 == 0
        #: Length of the transform that passes compute, and entries of the table for one of its parts of a turn.
        self.points = D.floordiv(t.length, 2) if self.halved else t.length
        self.unit = 2 if self.halved else 1
        self.reads = (0, 2) if t.window is not None else (0,)
        self.out, self.scratch = len(self.reads), len(self.reads) + 1

    def kernel(self) -> NativeKernel:
        t = self.t
        phases = [self._table(0, cos_turns), self._table(1, lambda turns: -sin_turns(turns))]
        radices: list[DimLike] = [self.points]
        if isinstance(self.points, int):
            radices = [*factors(self.points)] or [1]
        line: DimLike = 1
        count = self.points
        for number, radix in enumerate(radices):
            count = D.floordiv(count, radix)
            ends = (not number, number == len(radices) - 1 and not self.halved)
            made = _Pass(self, radix, count, line, number % 2, ends)
            phases.append(made.butterfly() if radix in RADICES else made.sums())
            line = line * radix
        if self.halved:
            phases.append(_Pass(self, 1, 1, 1, len(radices) % 2, (False, True)).split())
        return NativeKernel(
            f"fourier {t.view.node.op_type} {self.stored}",
            tuple(phases),
            self.reads,
            workspace=(2 * t.length + 4 * D.product(t.batch) * self.points) * (bits(self.dtype) // 8),
            flops=8 * D.product(t.batch) * self.points * functools.reduce(lambda a, b: a + b, radices),
        )

    def _table(self, number: int, wave: Callable[[Expr], Expr]) -> Phase:
        """Cosines or negative sines of all fractions of a turn."""
        length = self.t.length
        values = (_index((1,)), _index((0,), length))
        turns = cast(operand(0, "i64"), "f64") / cast(operand(1, "i64"), "f64")
        out = Output(cast(wave(turns), self.dtype), Access((1,), length * number))
        return program_phase(LoopProgram((length,), frozenset(), values, (), (out,)), (), (self.scratch,))

    def half(self, number: int, part: int) -> DimLike:
        """Where real or imaginary parts begin in a half of the workspace."""
        t = self.t
        return 2 * t.length + (2 * number + part) * D.product(t.batch) * self.points


def _index(strides: Shape, offset: DimLike = 0) -> Operand:
    return Operand("i64", Access(strides, offset), memory=False)


class _Pass:
    """One pass; see :mod:`accord.backends.butterflies`.

    Args:
        builder: What it is a part of.
        radix: r.
        count: m; p is below it.
        line: Elements that have the same angle.
        half: The half of the workspace that it reads.
        ends: Whether it is the first, and the last.
    """

    def __init__(
        self, builder: _Builder, radix: DimLike, count: DimLike, line: DimLike, half: int, ends: tuple[bool, bool]
    ) -> None:
        self.b, self.t = builder, builder.t
        self.radix, self.count, self.line, self.half = radix, count, line, half
        self.first, self.last = ends
        self.values: list[Operand | Result] = []
        self.sources: list[int] = []
        self.outputs: list[Output] = []
        self.batch = (0,) * len(self.t.batch)
        self.rows = tuple(s * builder.points for s in contiguous(self.t.batch))
        #: Axes behind the batch.
        self.behind = 0

    def butterfly(self) -> Phase:
        """All results of a radix at once. Axes: batch, p, element of a line."""
        b, m, line, radix = self.b, self.count, self.line, self.radix
        assert isinstance(radix, int)
        self.behind = 2
        given: list[Expr] = []
        for k in range(radix):
            given += self._element((line, 1), m * line * k)
        for j in range(1, radix):
            if m == 1:
                given += [const(1.0, b.dtype), const(0.0, b.dtype)]
                continue
            access = [Access((*self.batch, j * self._step(radix * m), 0), self.t.length * k) for k in range(2)]
            given += [self._read(b.dtype, a) for a in access]
        for j, pair in enumerate(butterfly(radix, b.dtype)):
            values = [substitute(e, lambda i, _: given[i]) for e in pair]
            self._store(values, (radix * line, 1), line * j, line)
        return self._phase((*self.t.batch, m, line), ())

    def sums(self) -> Phase:
        """One result after the other, from all elements. Axes: batch, p, element of a line, j; k is summed over."""
        b, m, line, radix = self.b, self.count, self.line, self.radix
        self.behind = 4
        real, imaginary = self._element((line, 1, 0, m * line), 0)
        j, k = self._index((0, 0, 1, 0)), self._index((0, 0, 0, 1))
        turns = irem(j * k, self._number(radix)) * self._number(self._step(radix))
        turned = times((real, imaginary), self._angle(turns))
        twiddle = None
        if m != 1:
            twiddle = self._angle(self._index((1, 0, 0, 0)) * j * self._number(self._step(radix * m)))
        totals = [operand(len(self.values) + part, b.dtype) for part in range(2)]
        self.values += [Result(0), Result(1)]
        values = list(totals if twiddle is None else times((totals[0], totals[1]), twiddle))
        self._store(values, (radix * line, 1, line, 0), 0, radix * line)
        return self._phase((*self.t.batch, m, line, radix, radix), turned)

    def split(self) -> Phase:
        """The results for real numbers from those for pairs of them. Axes: batch, number of the result."""
        b, points = self.b, self.b.points
        self.behind = 1
        place, size = self._index((1,)), self._number(points)
        found = []
        for at in (irem(place, size), irem(size - irem(place, size), size)):
            lookup = (Lookup(at, 1, points, "skip"),)
            found.append([self._read(b.dtype, Access((*self.rows, 0), b.half(self.half, k)), lookup) for k in range(2)])
        (real, imaginary), (other, conjugate) = found
        even = ((real + other) * 0.5, (imaginary - conjugate) * 0.5)
        odd = ((imaginary + conjugate) * 0.5, (other - real) * 0.5)
        turned = times(odd, self._angle(place))
        self._store([even[0] + turned[0], even[1] + turned[1]], (1,), 0, self.t.bins)
        return self._phase((*self.t.batch, self.t.bins), ())

    def _step(self, size: DimLike) -> DimLike:
        """Entries of the table from one part of a turn in ``size`` to the next."""
        return D.floordiv(self.b.points, size) * self.b.unit

    # values

    def _index(self, strides: Sequence[DimLike], offset: DimLike = 0) -> Expr:
        """An index over the axes behind the batch."""
        self.values.append(_index((*self.batch, *strides), offset))
        return operand(len(self.values) - 1, "i64")

    def _read(self, dtype: str, access: Access, lookups: tuple[Lookup, ...] = (), source: int | None = None) -> Expr:
        """An element of one of the kernel's operands, by default the workspace, in the type of the sums."""
        self.values.append(Operand(dtype, access, lookups=lookups))
        self.sources.append(self.b.scratch if source is None else source)
        return cast(operand(len(self.values) - 1, dtype), self.b.dtype)

    def _number(self, value: DimLike) -> Expr:
        """A number of the launch."""
        self.values.append(Operand("i64", Access((*self.batch, *(0,) * self.behind), value), memory=False))
        return operand(len(self.values) - 1, "i64")

    def _angle(self, turns: Expr) -> tuple[Expr, Expr]:
        """``exp(-2 pi i turns / length)`` for 0 <= turns < length."""
        t, at = self.t, (Lookup(turns, 1, self.t.length, "skip"),)
        places = [Access((*self.batch, *(0,) * self.behind), t.length * k) for k in range(2)]
        real, imaginary = (self._read(self.b.dtype, a, at) for a in places)
        return real, imaginary

    def _element(self, strides: tuple[DimLike, ...], offset: DimLike) -> list[Expr]:
        """Real and imaginary part of an element that the pass reads."""
        b = self.b
        if self.first:
            return self._signal(strides, offset)
        places = [Access((*self.rows, *strides), b.half(self.half, k) + offset) for k in range(2)]
        return [self._read(b.dtype, a) for a in places]

    def _signal(self, strides: tuple[DimLike, ...], offset: DimLike) -> list[Expr]:
        """An element of the input, times the window; 0 where the input is shorter than the transform."""
        b, t = self.b, self.t
        # there is one line of one element, so the axis behind p does not count
        k = self._index((strides[0], 0, *strides[2:]), offset)
        if b.halved:
            return [self._number_at(k * 2, 0), self._number_at(k * 2 + 1, 0)]
        parts = [self._number_at(k, part) for part in range(t.parts)] + [const(0.0, b.dtype)] * (2 - t.parts)
        return parts[::-1] if b.inverse else parts

    def _number_at(self, k: Expr, part: int) -> Expr:
        """A part of the input's element ``k``, times the window."""
        b, t = self.b, self.t
        limit = D.minimum(t.along, D.floordiv(t.length, 2) + 1 if b.hermitian else t.length)
        still = (0,) * self.behind
        access = Access((*t.x.strides[:-2], *still), t.x.offset + part * t.x.strides[-1])
        value = self._read(b.stored, access, (Lookup(k, t.x.strides[-2], limit, "skip"),), 0)
        if t.window is not None:
            found = known(t.view.tensor(2), "the window")
            stored = b.stored if isinstance(found, Reason) else found[1]
            at = (Lookup(k, t.window.strides[0], t.length, "skip"),)
            value = value * self._read(stored, Access((*self.batch, *still), t.window.offset), at, 1)
        if b.hermitian:  # the other half is the conjugate
            alone = eq(k, 0) | eq(k * 2, self._number(t.length))
            value = value * select(alone, const(1.0, b.dtype), const(2.0, b.dtype))
        return value

    # results

    def _store(self, values: list[Expr], strides: tuple[DimLike, ...], offset: DimLike, count: DimLike) -> None:
        """Real and imaginary part of ``count`` elements from ``offset`` on, or of p times as many."""
        b, t = self.b, self.t
        if not self.last:
            for k, value in enumerate(values):
                access = Access((*self.rows, *strides), b.half(1 - self.half, k) + offset)
                self.outputs.append(Output(value, access))
            return
        if isinstance(t.bins, int) and isinstance(offset, int) and offset >= t.bins:
            return
        along = t.out.strides[-2]
        lookups: tuple[Lookup, ...] = ()
        own: tuple[DimLike, ...] = tuple(s * along for s in strides)
        place = offset * along
        left = t.bins - offset - count
        if not isinstance(left, int) or left < 0:
            lookups = (Lookup(self._index(strides, offset), along, t.bins, "skip"),)
            own, place = (0,) * len(strides), 0
        for k, value in enumerate(values[::-1] if b.inverse else values):
            if k and b.hermitian:
                break
            scaled = value / cast(self._number(t.length), b.dtype) if b.inverse else value
            access = Access((*t.out.strides[:-2], *own), t.out.offset + k * t.out.strides[-1] + place)
            self.outputs.append(Output(cast(scaled, b.stored), access, lookups))

    def _phase(self, extents: Shape, summed: Sequence[Expr]) -> Phase:
        """The phase: a program that sums over its last axis, or over none."""
        reduced = frozenset({len(extents) - 1} if summed else ())
        reductions = tuple(Reduction("add", (e,)) for e in summed)
        program = LoopProgram(extents, reduced, tuple(self.values), reductions, tuple(self.outputs))
        target = self.b.out if self.last else self.b.scratch
        return program_phase(program, self.sources, (target,) * len(self.outputs))
