"""Vectors whose elements are expressions of their index: windows, tables of angles."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import Expr, cast, operand
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["tabulated_phase"]

#: Elements of one task.
_TASK_ELEMENTS = 1024


@record
class TabulatedCode(KernelCode):
    """``out[i] = expr(i, sizes..., scalars...)``, computed in f64.

    Parameters: count, offset of the output, the sizes. Operands: the scalars, the output.

    Attributes:
        expr: Operand 0 is the index, then come the sizes and the scalars, all f64. Its own type is the output's.
        sizes: Number of sizes.
        scalars: Element types of the scalars.
    """

    expr: Expr
    sizes: int
    scalars: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.expr.key};{self.sizes};{self.scalars}"
        return "tabulated_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        dtype, width = self.expr.dtype, machine().width(64)
        count, offset = b.param(0), b.param(1)
        out = b.address(b.operand(len(self.scalars)), dtype, offset)
        one, many = Printer(b, 1), Printer(b, width)
        given = [b.op(f"sitofp i64 {b.param(2 + i)} to double") for i in range(self.sizes)]
        for number, source in enumerate(self.scalars):
            loaded = one.load(source, b.operand(number))
            given.append(one.value(cast(operand(0, source), "f64"), [loaded]))
        spread = [many.splat("f64", x, width) for x in given]
        ints, reals = vector("i64", width), vector("f64", width)
        lanes = "<" + ", ".join(f"i64 {k}" for k in range(width)) + ">" if width > 1 else "0"
        with b.loop("%first", "%last") as task:
            first = b.mul(task, _TASK_ELEMENTS)
            last = b.min(b.add(first, _TASK_ELEMENTS), count)
            with b.loop(first, last, width) as i:
                index = b.op(f"add {ints} {many.splat('i64', i, width)}, {lanes}")
                operands = [b.op(f"sitofp {ints} {index} to {reals}"), *spread]
                value = Printer(b, width).value(self.expr, operands)
                at = b.address(out, dtype, i)
                many.store_masked(dtype, value, at, b.min(b.sub(last, i), width))
        return b.module()


def tabulated_phase(
    expr: Expr,
    count: DimLike,
    sizes: Sequence[DimLike],
    scalars: Sequence[str],
    offset: DimLike,
    operands: tuple[int, ...],
) -> Phase:
    """A phase that writes ``count`` elements one behind the other.

    Args:
        expr: As :class:`TabulatedCode` has it.
        count: Number of elements.
        sizes: Sizes that the expression reads.
        scalars: Element types of the scalars in memory that it reads.
        offset: First element of the output.
        operands: The scalars, the output.
    """
    code = TabulatedCode(expr, len(sizes), tuple(scalars))
    return Phase(code, operands, (count, offset, *sizes), _launch)


def _launch(sizes: Sequence[int]) -> Launch:
    return Launch(tuple(sizes), -(-sizes[0] // _TASK_ELEMENTS))
