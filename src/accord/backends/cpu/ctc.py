"""The forward variables of connectionist temporal classification (Graves et al., 2006), in logarithms.

A task has one entry of the batch. Its states (labels with blanks around them) lie behind two that cannot be reached,
in two rows that take turns. Each step finds a vector of states at a time::

    new[s] = logsumexp(old[s], old[s - 1], old[s - 2] if that may be left out) + log_prob[label[s]] - shift

where ``shift`` is the greatest of the row before. So states stay near zero however long the input is; the shifts are
summed in f64.
"""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.transpose import converted
from accord.backends.protocol import Launch
from accord.expr.lang import Expr, call, operand
from accord.expr.math import expand
from accord.expr.primitives import eq, max_, select
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["CtcCode", "ctc_launch", "ctc_workspace"]

_NAMES = ("steps", "batch", "classes", "labels", "blank", "room")
_LOWEST = "0xFFF0000000000000"
#: States that no vector of a row may reach beyond, and those in front of it.
_MARGIN = 16


def _row(labels: DimLike) -> DimLike:
    """Elements of a row of states, with room before and behind."""
    return D.ceildiv(2 * labels + 1, _MARGIN) * _MARGIN + 2 * _MARGIN


def ctc_workspace(labels: DimLike) -> DimLike:
    """Bytes for each thread: two rows of states, what is added where two states back may be reached, and labels."""
    return 4 * 4 * _row(labels)


def ctc_launch(sizes: Sequence[int]) -> Launch:
    """Sizes: steps, batch, classes, labels of a target, blank."""
    steps, batch, classes, labels, blank = sizes
    return Launch((steps, batch, classes, labels, blank, _row(labels)), batch)


@record
class CtcCode(KernelCode):
    """Operands: log-probabilities [steps, batch, classes], targets, lengths, target lengths, losses, scratch memory.

    Attributes:
        dtype: Of the log-probabilities.
    """

    dtype: str

    checks = True

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"ctc_forward_{self.dtype}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        p = {what: b.param(i) for i, what in enumerate(_NAMES)}
        refusal = b.address("%params", "i64", len(_NAMES))
        outside = b.compare("uge", p["blank"], p["classes"])
        with b.when(outside):
            b.emit(f"store i64 1, ptr {refusal}")
        for what in ("blank", "steps"):  # then no class is read
            p[what] = b.op(f"select i1 {outside}, i64 0, i64 {p[what]}")
        rows, targets, lengths, counts, losses, scratch = (b.operand(i) for i in range(6))
        width = machine().width(32)
        own = b.address(scratch, "f32", b.mul("%thread", b.mul(p["room"], 4)))
        areas = [b.address(own, "f32", b.mul(p["room"], i)) for i in range(4)]
        old, new, skips, labels = (b.address(a, "f32", _MARGIN) for a in areas)
        many = Printer(b, width)
        lowest = many.splat("f32", _LOWEST, width)
        with b.loop("%first", "%last") as n:
            given = [b.op(f"load i64, ptr {b.address(a, 'i64', n)}") for a in (lengths, counts)]
            steps, count = (b.max(b.min(x, most), 0) for x, most in zip(given, (p["steps"], p["labels"]), strict=True))
            for x, taken in zip(given, (steps, count), strict=True):
                with b.when(b.compare("ne", x, taken)):
                    b.emit(f"store i64 1, ptr {refusal}")
            states = b.add(b.mul(count, 2), 1)
            with b.loop(0, p["room"], width) as i:
                for area in areas[:3]:
                    many.store("f32", lowest, b.address(area, "f32", i))
            self._labels(b, p, refusal, b.address(targets, "i64", b.mul(n, p["labels"])), count, labels, skips)
            b.emit(f"store float 0.0, ptr {old}")
            column = b.address(rows, self.dtype, b.mul(n, p["classes"]))
            pitch = b.mul(p["batch"], p["classes"])
            start = (("ptr", old), ("ptr", new), ("float", "0.0"), ("double", "0.0"))
            with b.loop_carrying(0, steps, 1, start) as (t, (here, there, shift, total), later):
                line = b.address(column, self.dtype, b.mul(t, pitch))
                peak = self._step(b, (here, there, skips, labels), line, shift, states, width)
                moved = b.op(f"fadd double {total}, {b.op(f'fpext float {shift} to double')}")
                later += [there, here, peak, moved]
            last = b.address(later[0], "f32", b.sub(states, 1))
            ends = [b.op(f"load float, ptr {b.address(last, 'f32', k)}") for k in (0, -1)]
            both = Printer(b, 1).value(expand(_logarithm_of_sum(*(operand(i, "f32") for i in range(2)))), ends)
            found = b.op(f"fadd double {later[3]}, {b.op(f'fpext float {both} to double')}")
            loss = b.op(f"fptrunc double {b.op(f'fneg double {found}')} to float")
            b.emit(f"store float {loss}, ptr {b.address(losses, 'f32', n)}")
        return b.module()

    def _labels(
        self, b: Builder, p: dict[str, str], refusal: str, target: str, count: str, labels: str, skips: str
    ) -> None:
        """The class of each state, and 0 in ``skips`` where the state two before leads to it."""
        blank = b.op(f"trunc i64 {p['blank']} to i32")
        b.emit(f"store i32 {blank}, ptr {labels}")
        with b.loop_carrying(0, count, 1, (("i64", p["blank"]),)) as (i, (before,), later):
            given = b.op(f"load i64, ptr {b.address(target, 'i64', i)}")
            inside = b.compare("ult", given, p["classes"])
            b.branch(inside, lambda: None, lambda: b.emit(f"store i64 1, ptr {refusal}"))
            label = b.op(f"select i1 {inside}, i64 {given}, i64 {p['blank']}")
            state = b.add(b.mul(i, 2), 1)
            b.emit(f"store i32 {b.op(f'trunc i64 {label} to i32')}, ptr {b.address(labels, 'i32', state)}")
            b.emit(f"store i32 {blank}, ptr {b.address(labels, 'i32', b.add(state, 1))}")
            other = b.op(f"and i1 {b.compare('ne', label, before)}, {b.compare('ne', label, p['blank'])}")
            skip = b.op(f"select i1 {other}, float 0.0, float {_LOWEST}")
            b.emit(f"store float {skip}, ptr {b.address(skips, 'f32', state)}")
            later.append(label)

    def _step(self, b: Builder, rows: tuple[str, str, str, str], line: str, shift: str, states: str, width: int) -> str:
        """States after one more step; their greatest, or 0 where none can be reached."""
        here, there, skips, labels = rows
        with b.loop(0, states) as s:
            class_ = b.op(f"load i32, ptr {b.address(labels, 'i32', s)}")
            label = b.op(f"sext i32 {class_} to i64")
            value = Printer(b, 1).load(self.dtype, b.address(line, self.dtype, label))
            wide = converted(b, 1, value, self.dtype, "f32")
            b.emit(f"store float {wide}, ptr {b.address(there, 'f32', s)}")
        type_ = vector("f32", width)
        away = Printer(b, width).splat("f32", shift, width)
        lowest = Printer(b, width).splat("f32", _LOWEST, width)
        stay, one, two, skip, emitted, moved = (operand(i, "f32") for i in range(6))
        rule = expand(_logarithm_of_sum(stay, one, two + skip) + (emitted - moved))
        with b.loop_carrying(0, states, width, ((type_, lowest),)) as (s, (peak,), later):
            at = b.address(here, "f32", s)
            parts = [Printer(b, width).load("f32", b.address(at, "f32", -k)) for k in range(3)]
            parts += [Printer(b, width).load("f32", b.address(a, "f32", s)) for a in (skips, there)]
            new = Printer(b, width).value(rule, [*parts, away])
            # what is behind the last state is no state
            left = b.sub(states, s)
            Printer(b, width).store_masked("f32", new, b.address(there, "f32", s), b.min(left, width))
            kept = Printer(b, width).load("f32", b.address(there, "f32", s))
            larger = b.op(f"fcmp ogt {type_} {peak}, {kept}")
            later.append(b.op(f"select {vector('bool', width)} {larger}, {type_} {peak}, {type_} {kept}"))
        greatest = later[0]
        if width > 1:
            b.declare(f"declare float @llvm.vector.reduce.fmax.v{width}f32({type_})")
            greatest = b.op(f"call float @llvm.vector.reduce.fmax.v{width}f32({type_} {greatest})")
        reached = b.op(f"fcmp ogt float {greatest}, {_LOWEST}")
        return b.op(f"select i1 {reached}, float {greatest}, float 0.0")


def _logarithm_of_sum(*terms: Expr) -> Expr:
    """log(sum(exp(terms))); minus infinity where all of them are."""
    peak = terms[0]
    for t in terms[1:]:
        peak = max_(peak, t)
    # of terms that are all minus infinity, differences are NaN
    base = select(eq(peak, float("-inf")), 0.0, peak)
    total = call("exp", terms[0] - base)
    for t in terms[1:]:
        total = total + call("exp", t - base)
    return peak + call("log", select(eq(total, 0.0), 1.0, total))
