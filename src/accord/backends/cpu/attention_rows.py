"""The part of attention between its two products: one block of scores becomes probabilities, row by row.

Scores are kept in units of log(2): a power of 2 costs less than one of e, and the factor goes into the queries' scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.epilogue import substitute
from accord.expr.functions import tables
from accord.expr.functions.common import horner, ldexp, rint
from accord.expr.lang import Expr, call, cast, operand
from accord.expr.math import expand
from accord.expr.primitives import eq, fma, max_, min_, select

if TYPE_CHECKING:
    from accord.backends.cpu.attention import AttentionWriter

__all__ = ["SoftmaxRows"]

_LOWEST = "0xFFF0000000000000"  # minus infinity


class SoftmaxRows:
    """Writes the code; ``owner`` has the operands and the scratch memory."""

    def __init__(self, owner: AttentionWriter) -> None:
        self.o = owner
        self.code = owner.code
        self.real = owner.code.sums
        self.width = owner.width
        self.type = vector(self.real, self.width)
        self.mask_type = vector("bool", self.width)

    @property
    def b(self) -> Builder:
        """Where to write."""
        return self.o.b

    def write(self) -> None:
        """From the scores of a block of rows to their probabilities."""
        b, o = self.b, self.o
        peak, total, factor = (b.address(s, self.real, o.r) for s in (o.peak, o.total, o.factor))
        self._prepare()
        with b.loop(0, o.block_rows) as i:
            self._raise_peak(i, b.add(o.first, b.add(o.r, i)), b.address(factor, self.real, i))
        self._factors(o.block_rows, peak, total, factor)
        sums = b.address(o.sums, self.real, b.mul(o.r, o.value_pitch))
        with b.loop(0, o.block_rows) as i:
            self._exponentials(i, *(b.address(s, self.real, i) for s in (peak, total)))
            self._scale_sums(i, sums, b.address(factor, self.real, i))

    def _value(self, expr: Expr, *values: str, width: int = 0) -> str:
        return Printer(self.b, width or self.width).value(expand(expr), list(values))

    def _over_panels(
        self, i: str, first: str, last: str, start: tuple[tuple[str, str], ...], body: Callable[..., list[str]]
    ) -> list[str]:
        """Run ``body`` with address, number of the key in the block, and carried values, for each vector of a row.

        Only panels from ``first`` to ``last`` are walked.
        """
        b, o = self.b, self.o
        row = b.address(o.scores, self.real, b.mul(i, o.panel))
        step = b.mul(o.height, o.panel)
        with b.loop_carrying(first, last, 1, start) as (panel, carried, following):
            line = b.address(row, self.real, b.mul(panel, step))
            number = b.mul(panel, o.panel)
            values = list(carried)
            for part in range(0, o.panel, self.width):
                values = body(b.address(line, self.real, part), b.add(number, part), values)
            following.extend(values)
        return following

    # maxima

    def _prepare(self) -> None:
        """What is the same for all rows."""
        b, o, code = self.b, self.o, self.code
        many = Printer(b, self.width)
        self.lowest = many.splat(self.real, _LOWEST, self.width)
        if code.softcap:
            self.cap = many.splat(self.real, o.real("cap"), self.width)
        if code.mask is not None:
            names = ("group", "m.b", "m.h", "m.l", "m.d", "m.n")
            self.group, image, self.mask_head, self.mask_row, self.mask_step, self.mask_keys = (o.p[n] for n in names)
            start = b.add(b.mul(o.image, image), b.mul(o.key, self.mask_step))
            self.mask = b.address(o.mask, code.mask.dtype, start)
        if code.score is not None:
            score = substitute(code.score, self._natural)
            self.score = self._finite(score * math.log2(math.e), score)
            self.group = o.p["group"]
            self.lanes = ", ".join(f"{vector(self.real, 1)} {k}.0" for k in range(self.width))
            self.lanes = f"<{self.lanes}>" if self.width > 1 else "0.0"
            self.heads = self._spread(b.mul(self.group, o.p["heads"]))

    def _raise_peak(self, i: str, row: str, target: str) -> None:
        """Scores with cap and mask, minus infinity where a key is not seen; their maximum goes to ``target``."""
        b, o, code = self.b, self.o, self.code
        member, position = o.place(row)
        head = "" if code.mask is None and code.score is None else b.add(b.mul(o.head, self.group), member)
        if code.score is not None:
            self.query_place, self.head = self._spread(b.add(position, o.here)), self._spread(head)
        low, high = (b.sub(bound, o.key) for bound in o.range(position))
        mask = ""
        if code.mask is not None:
            at = b.add(b.mul(head, self.mask_head), b.mul(position, self.mask_row))
            mask = b.address(self.mask, code.mask.dtype, at)

        def seen(at: str, j: str, carried: list[str]) -> list[str]:
            """Of a panel that is seen as a whole, but for the mask."""
            x = Printer(b, self.width).load(self.real, at)
            if code.softcap or code.mask is not None or code.score is not None:
                x = self._scored(x, mask, j, None)
                Printer(b, self.width).store(self.real, x, at)
            return [self._larger(carried[0], x)]

        def edge(at: str, j: str, carried: list[str]) -> list[str]:
            x = Printer(b, self.width).load(self.real, at)
            x = self._scored(x, mask, j, b.sub(high, j))
            inside = self._lanes_below(b.sub(high, j))
            if code.left:
                below = self._lanes_below(b.sub(low, j))
                inside = b.op(f"and {self.mask_type} {inside}, {b.op(f'xor {self.mask_type} {below}, {self._all}')}")
            x = b.op(f"select {self.mask_type} {inside}, {self.type} {x}, {self.type} {self.lowest}")
            Printer(b, self.width).store(self.real, x, at)
            return [self._larger(carried[0], x)]

        best, whole = self.lowest, "0"
        if not code.left:
            whole = b.min(o.panels, b.op(f"sdiv i64 {b.max(high, 0)}, {o.panel}"))
            (best,) = self._over_panels(i, "0", whole, ((self.type, best),), seen)
        (best,) = self._over_panels(i, whole, o.panels, ((self.type, best),), edge)
        Printer(b, 1).store(self.real, self._largest(best), target)

    def _scored(self, x: str, mask: str, j: str, count: str | None) -> str:
        """Scores with cap and mask; of ``count`` elements where that is given, what is after them is no matter."""
        if self.code.softcap:
            s, c = operand(0, self.real), operand(1, self.real)
            x = self._value(call("tanh", s * math.log(2) / c) * (c * math.log2(math.e)), x, self.cap)
        if self.code.score is not None:
            b = self.b
            key = b.op(f"fadd {self.type} {self._spread(b.add(self.o.key, j))}, {self.lanes}")
            x = self._value(self.score, x, self.query_place, key, self.head, self.heads)
        return x if self.code.mask is None else self._masked(x, mask, j, count)

    def _natural(self, index: int, dtype: str) -> Expr:
        """Operands of a function of scores: the score is kept in units of log(2)."""
        return operand(index, dtype) * math.log(2) if index == 0 else operand(index, dtype)

    def _finite(self, scaled: Expr, natural: Expr) -> Expr:
        """Scores in units of log(2) that are finite if they were: a row that sees only the least is no empty one."""
        least = float(np.finfo(np.float32 if self.real == "f32" else np.float64).min)
        return select(eq(natural, float("-inf")), float("-inf"), max_(least, scaled))

    def _spread(self, number: str) -> str:
        """An i64 as a number in all lanes."""
        one = self.b.op(f"sitofp i64 {number} to {vector(self.real, 1)}")
        return Printer(self.b, self.width).splat(self.real, one, self.width)

    @property
    def _all(self) -> str:
        return "true" if self.width == 1 else "splat (i1 true)"

    def _larger(self, a: str, x: str) -> str:
        """The larger of two vectors, element by element."""
        larger = self.b.op(f"fcmp ogt {self.type} {a}, {x}")
        return self.b.op(f"select {self.mask_type} {larger}, {self.type} {a}, {self.type} {x}")

    def _lanes_below(self, count: str) -> str:
        """Lanes whose number is less than ``count``, an i64 of any sign."""
        b, w = self.b, self.width
        bounded = b.op(f"trunc i64 {b.max(b.min(count, w), 0)} to i32")
        lanes = ", ".join(f"i32 {k}" for k in range(w))
        spread = Printer(b, w).splat("i32", bounded, w)
        return b.op(f"icmp slt {vector('i32', w)} <{lanes}>, {spread}")

    def _masked(self, x: str, mask: str, j: str, count: str | None) -> str:
        b, w, kind = self.b, self.width, self.code.mask
        assert kind is not None
        printer = Printer(b, w)
        if kind.step != "1":
            m = self._gathered(kind.dtype, mask, j, count)
        elif count is None:
            m = printer.load(kind.dtype, b.address(mask, kind.dtype, j))
        else:
            m = printer.load_masked(kind.dtype, b.address(mask, kind.dtype, j), b.max(b.min(count, w), 0))
        score = operand(0, self.real)
        if kind.dtype == "bool":
            return self._value(select(operand(1, "bool"), score, float("-inf")), x, m)
        added = cast(operand(1, kind.dtype), self.real)
        total = self._finite(fma(added, math.log2(math.e), score), min_(added, score))
        return self._value(total, x, m)

    def _gathered(self, dtype: str, mask: str, j: str, count: str | None) -> str:
        """Elements of a mask that lie apart; the row's first one in the place of those after the ``count``-th."""
        b, w = self.b, self.width
        memory = "u8" if dtype == "bool" else dtype
        type_ = vector(memory, w)
        x = "poison"
        for k in range(w):
            at = b.mul(b.add(j, k), self.mask_step)
            if count is not None:
                at = b.op(f"select i1 {b.compare('sgt', count, k)}, i64 {at}, i64 0")
            element = Printer(b, 1).load(memory, b.address(mask, memory, at))
            x = b.op(f"insertelement {type_} {x}, {vector(memory, 1)} {element}, i64 {k}") if w > 1 else element
        return b.op(f"icmp ne {type_} {x}, {'zeroinitializer' if w > 1 else '0'}") if dtype == "bool" else x

    def _largest(self, x: str) -> str:
        """The largest element."""
        b = self.b
        lanes = self.width
        while lanes > 1:
            half = lanes // 2
            order = ", ".join(f"i32 {k}" for k in range(half))
            upper = ", ".join(f"i32 {half + k}" for k in range(half))
            whole, part = vector(self.real, lanes), vector(self.real, half)
            if half == 1:
                left, right = (b.op(f"extractelement {whole} {x}, i64 {k}") for k in (0, 1))
            else:
                left, right = (
                    b.op(f"shufflevector {whole} {x}, {whole} poison, <{half} x i32> <{o}>") for o in (order, upper)
                )
            larger = b.op(f"fcmp ogt {part} {left}, {right}")
            x = b.op(f"select {vector('bool', half)} {larger}, {part} {left}, {part} {right}")
            lanes = half
        return x

    # scaling

    def _factors(self, rows: str, peak: str, total: str, factor: str) -> None:
        """Raise the peaks by the block's maxima, and find what everything summed so far is multiplied by."""
        b, w, real = self.b, self.width, self.real
        raised = call("max", operand(0, real), operand(1, real))
        shift = select(eq(operand(1, real), float("-inf")), 0.0, operand(1, real))
        with b.loop(0, rows, w) as i:
            many = Printer(b, w)
            before = many.load(real, b.address(peak, real, i))
            block = many.load(real, b.address(factor, real, i))
            now = self._value(raised, before, block)
            scale = self._value(_power(operand(0, real) - shift), before, now)
            left = b.sub(rows, i)
            sums = many.load(real, b.address(total, real, i))
            scaled = self._value(operand(0, real) * operand(1, real), sums, scale)
            for value, address in ((now, peak), (scale, factor), (scaled, total)):
                many.store_masked(real, value, b.address(address, real, i), b.min(left, w))

    def _exponentials(self, i: str, peak: str, total: str) -> None:
        b, w, real = self.b, self.width, self.real
        many, one = Printer(b, w), Printer(b, 1)
        x = operand(0, real)
        top = self._value(select(eq(x, float("-inf")), 0.0, x), one.load(real, peak), width=1)
        spread = many.splat(real, top, w)
        shifted = expand(_power(operand(0, real) - operand(1, real)))

        def element(at: str, j: str, carried: list[str]) -> list[str]:
            del j
            p = Printer(b, w).value(shifted, [Printer(b, w).load(real, at), spread])
            Printer(b, w).store(real, p, at)
            return [b.op(f"fadd {self.type} {carried[0]}, {p}")]

        (sums,) = self._over_panels(
            i, "0", self.o.panels, ((self.type, "zeroinitializer" if w > 1 else "0.0"),), element
        )
        name = f"@llvm.vector.reduce.fadd.v{w}{real}"
        scalar = vector(real, 1)
        b.declare(f"declare {scalar} {name}({scalar}, {self.type})")
        before = one.load(real, total)
        added = b.op(f"call reassoc {scalar} {name}({scalar} {before}, {self.type} {sums})") if w > 1 else sums
        one.store(real, added, total)

    def _scale_sums(self, i: str, sums: str, factor: str) -> None:
        b, o, w, real = self.b, self.o, self.width, self.real
        scale = Printer(b, 1).load(real, factor)
        changed = b.op(f"fcmp une {vector(real, 1)} {scale}, 1.0")

        def apply() -> None:
            many = Printer(b, w)
            spread = many.splat(real, scale, w)
            with b.loop(0, o.value_panels) as panel:
                start = b.mul(panel, b.mul(o.height, o.value_panel))
                line = b.address(sums, real, b.add(start, b.mul(i, o.value_panel)))
                for part in range(0, o.value_panel, w):
                    at = b.address(line, real, part)
                    many.store(real, b.op(f"fmul {self.type} {many.load(real, at)}, {spread}"), at)

        b.branch(changed, apply)


def _power(x: Expr) -> Expr:
    """2**x for x that is not positive."""
    limited = max_(-151.0 if x.dtype == "f32" else -1076.0, x)
    n = rint(limited)
    return ldexp(horner(limited - n, (1.0, *tables.EXP2[x.dtype])), n)
