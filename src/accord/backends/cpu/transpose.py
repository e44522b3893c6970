"""Square blocks of vectors, transposed in registers: one function for each pair of types, shared by all kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.machine import machine
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.expr.lang import bits, cast, operand
from accord.record import record

__all__ = ["TransposeCode", "block_width", "call_transpose", "converted", "moved_by"]

#: What is read: address, bytes from line to line, and how many lines may be read. What is written: the same. Lines
#: beyond those are read as the last one, and not written. Elements of a line, one vector, follow each other. Lines are
#: written one after the other.
_ARGUMENTS: Final = "ptr %from, i64 %from_line, i64 %from_lines, ptr %to, i64 %to_line, i64 %to_lines"


def moved_by(source: str, target: str) -> int:
    """What :func:`converted` adds: between i8 and u8 the order of the numbers is kept, not their values."""
    return {("i8", "u8"): 128, ("u8", "i8"): -128}.get((source, target), 0)


def converted(b: Builder, width: int, value: str, source: str, target: str) -> str:
    """A value of another type; see :func:`moved_by`."""
    expr = cast(operand(0, source), target)
    if moved_by(source, target):
        expr = expr ^ 0x80 if target == "u8" else expr ^ -0x80
    return value if source == target else Printer(b, width).value(expr, [value])


def block_width(dtype: str) -> int:
    """Lines of a block whose elements become ``dtype``: of narrow ones as many as of 32 bits, for want of registers."""
    return machine().width(max(32, bits(dtype)))


@record
class TransposeCode(KernelCode):
    """``to[j, i] = from[i, j]`` for a block of vectors of ``width`` elements, which is as many lines.

    Attributes:
        source: Element type of what is read.
        target: Element type of what is written.
        width: Lines and elements of a line.
    """

    source: str
    target: str
    width: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"transpose_{self.source}_{self.target}_{self.width}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name, _ARGUMENTS)
        width = self.width
        last = b.sub("%from_lines", 1)
        lines = []
        for k in range(width):
            place = b.op(f"getelementptr i8, ptr %from, i64 {b.mul(b.min(last, k), '%from_line')}") if k else "%from"
            lines.append(converted(b, width, Printer(b, width).load(self.source, place), self.source, self.target))
        columns = _transposed(b, self.target, lines)
        # upwards: lines may lie so close that each overwrites the first elements of those after it
        for k in range(width):
            if k:
                b.emit(f"br i1 {b.compare('sgt', '%to_lines', k)}, label %line{k}, label %done")
                b.label(f"line{k}")
            place = b.op(f"getelementptr i8, ptr %to, i64 {b.mul(k, '%to_line')}") if k else "%to"
            Printer(b, width).store(self.target, columns[k], place)
        b.emit("br label %done")
        b.label("done")
        return b.module()


def _transposed(b: Builder, dtype: str, lines: Sequence[str]) -> list[str]:
    """The columns of a square block of vectors: exchanges of halves, quarters ... between lines."""
    width = len(lines)
    type_ = vector(dtype, width)
    values = list(lines)
    half = width // 2
    while half:
        for first in range(width):
            if first & half:
                continue
            pair = values[first], values[first + half]
            for part in (0, 1):
                # element p of the first result: where p's bit is set, from the second line's lower place
                order = [(p & ~half) + half * part + (width if p & half else 0) for p in range(width)]
                index = ", ".join(f"i32 {k}" for k in order)
                values[first + half * part] = b.op(
                    f"shufflevector {type_} {pair[0]}, {type_} {pair[1]}, <{width} x i32> <{index}>"
                )
        half //= 2
    return values


def call_transpose(
    b: Builder, function: str, source: tuple[str, str | int, str | int], target: tuple[str, str | int, str | int]
) -> None:
    """Call the function for one block.

    Args:
        b: Where to write.
        function: Its address, an i64.
        source: Address, bytes from line to line, number of lines, at least one.
        target: The same for what is written.
    """
    address = b.op(f"inttoptr i64 {function} to ptr")
    arguments = ", ".join(f"ptr {at}, i64 {line}, i64 {lines}" for at, line, lines in (source, target))
    b.emit(f"call void {address}({arguments})")
