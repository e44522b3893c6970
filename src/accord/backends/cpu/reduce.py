"""Reductions: a combination of an expression over some axes, then another expression of the result.

If the innermost axis is reduced, a task owns single outputs and runs along the axis with several vector accumulators.
If it is kept, a task owns a block of neighbouring outputs, one vector lane each, and runs over the reduced axes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.nest import merge_axes
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import Expr, bits, call, const, operand
from accord.expr.math import expand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access, contiguous

__all__ = ["ReduceCode", "reduce_phase"]

_UNROLL = 4
_KEPT, _REDUCED = 0, 1


@dataclass(frozen=True)
class ReduceCode(KernelCode):
    """Code for one input and one output.

    Attributes:
        groups: For each axis 0 (kept) or 1 (reduced), outermost first.
        unit: The input's elements follow each other along the innermost axis.
        dtypes: Of input, accumulator and output.
        combine: Primitive that joins two values: "add", "mul", "min", "max", "or", "and".
        start: Its neutral element.
        before: Expression of one input element, of the accumulator's type.
        after: Expression of the combined value (operand 0) and the number of elements (operand 1), both of the
            accumulator's type.
    """

    groups: tuple[int, ...]
    unit: bool
    dtypes: tuple[str, str, str]
    combine: str
    start: float | int | bool
    before: Expr
    after: Expr

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.groups};{self.unit};{self.dtypes};{self.combine};{self.start!r};{self.before.key};{self.after.key}"
        )
        return "reduce_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Writer:
    """Parameters: extents, number of reduced elements, block of the inner axis, input offset and strides, output's."""

    def __init__(self, code: ReduceCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.source, self.acc, self.target = code.dtypes
        self.width = machine().width(max(32, bits(self.source), bits(self.acc)))
        self.join = call(code.combine, operand(0, self.acc), operand(1, self.acc))
        self.before, self.after = expand(code.before), expand(code.after)

    def write(self) -> str:
        b, n = self.b, len(self.code.groups)
        self.extents = [b.param(i) for i in range(n)]
        self.count, self.block = b.param(n), b.param(n + 1)
        self.in_strides: list[str | int] = [b.param(n + 3 + i) for i in range(n)]
        if self.code.unit:
            self.in_strides[-1] = 1
        self.out_strides = [b.param(2 * n + 4 + i) for i in range(n)]
        self.input = b.address(b.operand(0), self.source, b.param(n + 2))
        self.output = b.address(b.operand(1), self.target, b.param(2 * n + 3))
        inner_kept = self.code.groups[-1] == _KEPT
        kept = [a for a in range(n) if self.code.groups[a] == _KEPT and not (inner_kept and a == n - 1)]
        with b.loop("%first", "%last") as task:
            rest, position = task, "0"
            if inner_kept:
                blocks = b.op(f"sdiv i64 {b.sub(b.add(self.extents[-1], self.block), 1)}, {self.block}")
                rest, position = b.divmod(task, blocks)
            source, target = self.input, self.output
            for axis in reversed(kept):
                rest, index = b.divmod(rest, self.extents[axis])
                source = b.address(source, self.source, b.mul(index, self.in_strides[axis]))
                target = b.address(target, self.target, b.mul(index, self.out_strides[axis]))
            if inner_kept:
                self._block(source, target, b.mul(position, self.block))
            else:
                self._single(source, target)
        return b.module()

    # one output: the innermost axis is reduced

    def _single(self, source: str, target: str) -> None:
        b, w = self.b, self.width
        start = self._splat(w)
        reduced = [a for a in range(len(self.code.groups) - 1) if self.code.groups[a] == _REDUCED]
        zero = tuple((vector(self._register(), w), start) for _ in range(_UNROLL))
        total = self._over(reduced, source, list(zero), self._line)
        joined = total[0]
        for other in total[1:]:
            joined = Printer(b, w).value(self.join, [joined, other])
        lanes = w
        while lanes > 1:
            half = lanes // 2
            type_ = vector(self._register(), lanes)
            low, high = (
                b.op(
                    f"shufflevector {type_} {joined}, {type_} poison, <{half} x i32> <"
                    + ", ".join(f"i32 {at + k}" for k in range(half))
                    + ">"
                )
                for at in (0, half)
            )
            if half == 1:
                low, high = (b.op(f"extractelement {type_} {joined}, i32 {k}") for k in (0, 1))
            joined = Printer(b, half).value(self.join, [low, high])
            lanes = half
        printer = Printer(b, 1)
        printer.store(self.target, printer.value(self.after, [joined, self._count(1)]), target)

    def _line(self, source: str, carried: list[str]) -> list[str]:
        """Run along the innermost axis; ``carried`` are the accumulators."""
        b, w = self.b, self.width
        length = self.extents[-1]
        type_ = vector(self._register(), w)
        if self.code.unit:
            step = w * _UNROLL
            stop = b.mul(b.op(f"sdiv i64 {length}, {step}"), step)
            with b.loop_carrying(0, stop, step, tuple((type_, c) for c in carried)) as (i, inside, following):
                for u in range(_UNROLL):
                    address = b.address(source, self.source, b.add(i, u * w))
                    following.append(self._joined(inside[u], Printer(b, w).load(self.source, address), w))
            carried = following
            stop2 = b.mul(b.op(f"sdiv i64 {length}, {w}"), w)
            with b.loop_carrying(stop, stop2, w, ((type_, carried[0]),)) as (i, inside, following):
                address = b.address(source, self.source, i)
                following.append(self._joined(inside[0], Printer(b, w).load(self.source, address), w))
            carried = [following[0], *carried[1:]]
            rest = b.sub(length, stop2)
            printer = Printer(b, w)
            loaded = printer.load_masked(self.source, b.address(source, self.source, stop2), rest)
            last = self._joined(carried[0], loaded, w)
            return [printer.keep_first(self._register(), last, carried[0], rest), *carried[1:]]
        # strided: lane 0 of the first accumulator does the work
        lane = b.op(f"extractelement {type_} {carried[0]}, i32 0") if w > 1 else carried[0]
        scalar = vector(self._register(), 1)
        with b.loop_carrying(0, length, 1, ((scalar, lane),)) as (i, inside, following):
            address = b.address(source, self.source, b.mul(i, self.in_strides[-1]))
            following.append(self._joined(inside[0], Printer(b, 1).load(self.source, address), 1))
        first = b.op(f"insertelement {type_} {carried[0]}, {scalar} {following[0]}, i32 0") if w > 1 else following[0]
        return [first, *carried[1:]]

    # a block of outputs: the innermost axis is kept

    def _block(self, source: str, target: str, start: str) -> None:
        b, w = self.b, self.width
        stop = b.min(b.add(start, self.block), self.extents[-1])
        full = b.add(start, b.mul(b.op(f"sdiv i64 {b.sub(stop, start)}, {w}"), w))
        with b.loop(start, full, w) as j:
            self._lanes(source, target, j, w, None)
        rest = b.sub(stop, full)
        if self.code.unit:
            b.branch(b.compare("sgt", rest, 0), lambda: self._lanes(source, target, full, w, rest))
        else:
            with b.loop(full, stop) as j:
                self._lanes(source, target, j, 1, None)

    def _lanes(self, source: str, target: str, j: str, width: int, count: str | None) -> None:
        b = self.b
        reduced = [a for a in range(len(self.code.groups)) if self.code.groups[a] == _REDUCED]
        at = b.address(source, self.source, b.mul(j, self.in_strides[-1]))

        def element(address: str, carried: list[str]) -> list[str]:
            printer = Printer(b, width)
            if width > 1 and not self.code.unit:
                loaded = printer.gather(self.source, address, self.in_strides[-1])
            elif count is not None:
                loaded = printer.load_masked(self.source, address, count)
            else:
                loaded = printer.load(self.source, address)
            return [self._joined(carried[0], loaded, width)]

        total = self._over(reduced, at, [(vector(self._register(), width), self._splat(width))], element)
        printer = Printer(b, width)
        value = printer.value(self.after, [total[0], self._count(width)])
        out = b.address(target, self.target, b.mul(j, self.out_strides[-1]))
        if count is not None:
            printer.store_masked(self.target, value, out, count)
        else:
            printer.store(self.target, value, out)

    # pieces

    def _over(
        self,
        axes: Sequence[int],
        source: str,
        carried: list[tuple[str, str]],
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """Nested loops over ``axes`` that carry accumulators through ``body``."""
        if not axes:
            return body(source, [c for _, c in carried])
        b = self.b
        with b.loop_carrying(0, self.extents[axes[0]], 1, tuple(carried)) as (i, inside, following):
            address = b.address(source, self.source, b.mul(i, self.in_strides[axes[0]]))
            types = [t for t, _ in carried]
            following.extend(self._over(axes[1:], address, list(zip(types, inside, strict=True)), body))
        return following

    def _joined(self, accumulator: str, loaded: str, width: int) -> str:
        printer = Printer(self.b, width)
        return Printer(self.b, width).value(self.join, [accumulator, printer.value(self.before, [loaded])])

    def _splat(self, width: int) -> str:
        return Printer(self.b, width).value(const(self.code.start, self.acc), [])

    def _count(self, width: int) -> str:
        scalar = Printer(self.b, 1).value(
            expand(call("cast", operand(0, "i64"), dtype=self.acc)) if self.acc != "i64" else operand(0, "i64"),
            [self.count],
        )
        return Printer(self.b, width).splat(self._register(), scalar, width)

    def _register(self) -> str:
        return self.acc


def reduce_phase(
    shape: Shape,
    axes: Sequence[int],
    dtypes: tuple[str, str, str],
    combine: str,
    start: float | int | bool,
    before: Expr,
    after: Expr,
    operands: tuple[int, int],
) -> Phase:
    """A phase that reduces a contiguous input of ``shape`` over ``axes`` to a contiguous output.

    Args:
        shape: Of the input.
        axes: Reduced axes, not negative.
        dtypes: Of input, accumulator, output.
        combine: Primitive that joins two values.
        start: Its neutral element.
        before: See :class:`ReduceCode`.
        after: See :class:`ReduceCode`.
        operands: Which of the kernel's operands are input and output.
    """
    source = Access(contiguous(shape))
    out_strides: list[DimLike] = [0] * len(shape)
    step: DimLike = 1
    for axis in range(len(shape) - 1, -1, -1):
        if axis not in axes:
            out_strides[axis] = step
            step = step * shape[axis]
    groups = [_REDUCED if a in axes else _KEPT for a in range(len(shape))]
    sizes, accesses, labels = merge_axes(shape, [source, Access(tuple(out_strides))], groups)
    if _REDUCED not in labels:  # every reduced axis has size 1
        sizes, labels = (*sizes, 1), [*labels, _REDUCED]
        accesses = [Access((*a.strides, 1), a.offset) for a in accesses]
    count = D.product(shape[a] for a in axes)
    unit = accesses[0].strides[-1] == 1
    dims = (*sizes, count, accesses[0].offset, *accesses[0].strides, accesses[1].offset, *accesses[1].strides)
    code = ReduceCode(tuple(labels), unit, dtypes, combine, start, before, after)
    return Phase(code, operands, dims, functools.partial(_launch, tuple(labels)))


def _launch(labels: tuple[int, ...], sizes: Sequence[int]) -> Launch:
    n = len(labels)
    extents = sizes[:n]
    inner_kept = labels[-1] == _KEPT
    block = max(1, min(extents[-1], 256)) if inner_kept else 1
    tasks = -(-extents[-1] // block) if inner_kept else 1
    for axis, label in enumerate(labels):
        if label == _KEPT and not (inner_kept and axis == n - 1):
            tasks *= extents[axis]
    return Launch((*extents, sizes[n], block, *sizes[n + 1 :]), tasks)
