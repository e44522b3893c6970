"""Pointwise kernels: every output element is an expression of one element of each operand.

This covers elementwise operators, broadcasting, and (with the expression "x") every movement of data that is affine:
transpose, slice, expand, tile, depth-to-space, the parts of concat and split.

The iteration space has three levels: outer axes (flattened), a middle axis, and an inner axis that is walked in
vectors. A task is a block of the middle and inner axes at one outer index.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.nest import merge_axes
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import Expr, bits
from accord.expr.math import expand
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access

__all__ = ["PointwiseCode", "pointwise_phase"]

#: Elements that one task should have at least: work enough to be worth handing to a thread.
TASK_ELEMENTS = 16384


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What the machine code knows of one operand: for each axis "0" (repeats), "1" (next element) or "s" (a stride)."""

    dtype: str
    kinds: str

    @property
    def params(self) -> int:
        """Number of parameters: the offset and each stride that is not known."""
        return 1 + self.kinds.count("s")


@dataclass(frozen=True)
class PointwiseCode(KernelCode):
    """Code for inputs and outputs of these patterns; ``exprs`` gives one expression for each output."""

    axes: int
    inputs: tuple[_Pattern, ...]
    outputs: tuple[_Pattern, ...]
    exprs: tuple[Expr, ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.axes};{self.inputs};{self.outputs};{[e.key for e in self.exprs]}"
        return "pointwise_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Operand:
    """An operand while code is written: base address and strides."""

    def __init__(self, b: Builder, pattern: _Pattern, index: int, param: int) -> None:
        self.dtype = pattern.dtype
        self.kinds = pattern.kinds
        base = b.operand(index)
        self.base = b.address(base, self.dtype, b.param(param))
        self.strides: list[str | int] = []
        at = param + 1
        for kind in pattern.kinds:
            if kind == "s":
                self.strides.append(b.param(at))
                at += 1
            else:
                self.strides.append(int(kind))

    def advance(self, b: Builder, address: str, axis: int, index: str) -> str:
        """Address after moving ``index`` steps along ``axis``."""
        if self.kinds[axis] == "0":
            return address
        return b.address(address, self.dtype, b.mul(index, self.strides[axis]))


class _Writer:
    def __init__(self, code: PointwiseCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        widest = max(bits(p.dtype) for p in (*code.inputs, *code.outputs))
        moves = all(e.op == "operand" for e in code.exprs)
        # arithmetic on narrow types is done in wider registers, so vectors of them gain nothing from more elements
        self.width = machine().width(widest if moves else max(widest, 32))
        self.exprs = [expand(e) for e in code.exprs]

    def write(self) -> str:
        b, code = self.b, self.code
        k = code.axes
        extents = [b.param(i) for i in range(k)]
        mid_block, inner_block, mid_blocks, inner_blocks = (b.param(k + i) for i in range(4))
        at = k + 4
        operands: list[_Operand] = []
        for index, pattern in enumerate((*code.inputs, *code.outputs)):
            operands.append(_Operand(b, pattern, index, at))
            at += pattern.params
        with b.loop("%first", "%last") as task:
            rest, inner_index = b.divmod(task, inner_blocks)
            outer, mid_index = b.divmod(rest, mid_blocks)
            addresses = [o.base for o in operands]
            for axis in range(k - 3, -1, -1):
                if axis:
                    outer, position = b.divmod(outer, extents[axis])
                else:
                    position = outer
                addresses = [o.advance(b, a, axis, position) for o, a in zip(operands, addresses, strict=True)]
            mid_start = b.mul(mid_index, mid_block)
            mid_stop = b.min(b.add(mid_start, mid_block), extents[k - 2])
            inner_start = b.mul(inner_index, inner_block)
            inner_stop = b.min(b.add(inner_start, inner_block), extents[k - 1])
            with b.loop(mid_start, mid_stop) as m:
                rows = [o.advance(b, a, k - 2, m) for o, a in zip(operands, addresses, strict=True)]
                self._row(operands, rows, inner_start, inner_stop)
        return b.module()

    def _row(self, operands: Sequence[_Operand], rows: Sequence[str], start: str, stop: str) -> None:
        b, w = self.b, self.width
        inner = self.code.axes - 1
        vectors = b.op(f"sdiv i64 {b.sub(stop, start)}, {w}")
        main_stop = b.add(start, b.mul(vectors, w))
        splats = self._splats(operands, rows)
        with b.loop(start, main_stop, w) as j:
            self._element(operands, rows, j, w, splats, None)
        left = b.sub(stop, main_stop)
        some = b.compare("sgt", left, 0)
        if all(o.kinds[inner] in "01" for o in operands):
            b.branch(some, lambda: self._element(operands, rows, main_stop, w, splats, left))
        else:
            with b.loop(main_stop, stop) as j:
                self._element(operands, rows, j, 1, {}, None)

    def _splats(self, operands: Sequence[_Operand], rows: Sequence[str]) -> dict[int, str]:
        """Operands that do not change along the inner axis, loaded once."""
        inner = self.code.axes - 1
        printer = Printer(self.b, 1)
        found = {}
        for i, o in enumerate(operands[: len(self.code.inputs)]):
            if o.kinds[inner] == "0":
                found[i] = printer.splat(o.dtype, printer.load(o.dtype, rows[i]), self.width)
        return found

    def _element(
        self,
        operands: Sequence[_Operand],
        rows: Sequence[str],
        j: str,
        width: int,
        splats: dict[int, str],
        count: str | None,
    ) -> None:
        """Compute and store ``width`` elements at ``j``; only the first ``count`` where it is given."""
        b = self.b
        inner = self.code.axes - 1
        printer = Printer(b, width)
        n = len(self.code.inputs)
        loaded: list[str] = []
        for i in range(n):
            o = operands[i]
            if i in splats:
                loaded.append(splats[i])
                continue
            address = o.advance(b, rows[i], inner, j)
            if width > 1 and o.kinds[inner] == "s":
                loaded.append(printer.gather(o.dtype, address, o.strides[inner]))
            elif count is not None:
                loaded.append(printer.load_masked(o.dtype, address, count))
            else:
                loaded.append(printer.load(o.dtype, address))
        for k, expr in enumerate(self.exprs):
            o = operands[n + k]
            address = o.advance(b, rows[n + k], inner, j)
            value = printer.value(expr, loaded)
            if width > 1 and o.kinds[inner] == "s":
                printer.scatter(o.dtype, value, address, o.strides[inner])
            elif count is not None:
                printer.store_masked(o.dtype, value, address, count)
            else:
                printer.store(o.dtype, value, address)


def _kind(stride: DimLike) -> str:
    return str(stride) if stride in (0, 1) else "s"


def pointwise_phase(
    extents: Shape,
    inputs: Sequence[tuple[str, Access]],
    outputs: Sequence[tuple[str, Access]],
    exprs: Sequence[Expr],
    operands: tuple[int, ...],
) -> Phase:
    """A phase that computes ``exprs`` over ``extents``.

    Args:
        extents: The iteration space.
        inputs: dtype and access of each input, in the order of the expressions' operands.
        outputs: dtype and access of each output.
        exprs: One for each output.
        operands: Which of the kernel's operands they are: inputs, then outputs.
    """
    sizes, accesses, _ = merge_axes(extents, [a for _, a in (*inputs, *outputs)])
    lead = max(0, 2 - len(sizes))
    sizes = (1,) * lead + sizes
    accesses = [Access((0,) * lead + a.strides, a.offset) for a in accesses]
    patterns = [
        _Pattern(dtype, "".join(_kind(s) for s in a.strides))
        for (dtype, _), a in zip((*inputs, *outputs), accesses, strict=True)
    ]
    dims: list[DimLike] = list(sizes)
    for a, p in zip(accesses, patterns, strict=True):
        dims.append(a.offset)
        dims.extend(s for s, kind in zip(a.strides, p.kinds, strict=True) if kind == "s")
    n = len(inputs)
    code = PointwiseCode(len(sizes), tuple(patterns[:n]), tuple(patterns[n:]), tuple(exprs))
    return Phase(code, operands, tuple(dims), functools.partial(_launch, len(sizes)))


def _launch(axes: int, sizes: Sequence[int]) -> Launch:
    extents = sizes[:axes]
    mid, inner = extents[-2:]
    outer = 1
    for e in extents[:-2]:
        outer *= e
    inner_block = min(inner, TASK_ELEMENTS) or 1
    inner_block = -(-inner_block // 64) * 64 if inner > inner_block else inner_block
    mid_block = min(mid, max(1, TASK_ELEMENTS // max(1, inner))) or 1
    mid_blocks, inner_blocks = -(-mid // mid_block), -(-inner // inner_block)
    params = (*extents, mid_block, inner_block, mid_blocks, inner_blocks, *sizes[axes:])
    return Launch(params, outer * mid_blocks * inner_blocks)
