"""Generated kernels that do nothing but what is to be measured: multiply-adds from registers, reads, copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.machine import Machine, machine
from accord.backends.cpu.program import KernelCode

__all__ = ["CopyProbe", "MultiplyProbe", "ReadProbe", "block_bytes", "multiply_dtypes"]

#: Independent sums: more than the latency of a multiply-add times the number that start in a cycle, and few enough for
#: 16 registers.
_SUMS: Final = 12
#: Vectors that one turn of a loop reads or copies.
_UNROLL: Final = 8


def multiply_dtypes(at: Machine) -> tuple[str, ...]:
    """What :class:`MultiplyProbe` can measure; "i8" needs instructions for it."""
    has_dot = "avx512vnni" in at.has and at.vector_bits == 512
    return ("f32", "f64", "i8") if has_dot else ("f32", "f64")


@dataclass(frozen=True)
class MultiplyProbe(KernelCode):
    """Multiply-adds on registers.

    A parameter: turns of the loop. An operand: where each thread leaves its sums, 64 bytes a thread.

    Attributes:
        dtype: "f32", "f64", or "i8" (products of bytes, summed four at a time in 32 bits).
    """

    dtype: str

    @property
    def symbol(self) -> str:
        """By dtype."""
        return f"accord_probe_multiply_{self.dtype}"

    @property
    def operations(self) -> int:
        """Arithmetic operations of one turn."""
        return _SUMS * 2 * machine().width({"f32": 32, "f64": 64, "i8": 8}[self.dtype])

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        dtype, bits = {"f32": ("f32", 32), "f64": ("f64", 64), "i8": ("i32", 32)}[self.dtype]
        width = machine().width(bits)
        type_ = vector(dtype, width)
        if self.dtype == "i8":
            function, add = f"{type_} @llvm.x86.avx512.vpdpbusd.{machine().vector_bits}", "add"
        else:
            function, add = f"{type_} @llvm.fmuladd.v{width}{dtype}", "fadd"
        b.declare(f"declare {function}({type_}, {type_}, {type_})")
        turns, out = b.param(0), b.operand(0)
        x = b.op(f"load {type_}, ptr {out}, align 4")
        with b.loop("%first", "%last"):
            with b.loop_carrying(0, turns, 1, ((type_, "zeroinitializer"),) * _SUMS) as (_, sums, following):
                for s in sums:
                    operands = (s, x, x) if self.dtype == "i8" else (x, x, s)
                    following.append(b.op(f"call {function}({', '.join(f'{type_} {v}' for v in operands)})"))
            total = following[0]
            for s in following[1:]:
                total = b.op(f"{add} {type_} {total}, {s}")
            b.emit(f"store {type_} {total}, ptr {b.address(out, 'i8', b.mul('%thread', 64))}, align 4")
        return b.module()


class _Walk(KernelCode):
    """Each task goes over a region, several times.

    Parameters: blocks of a region, passes, regions. Task i takes region i modulo the number of regions; if that is 0,
    the region that belongs to its thread.
    """

    @staticmethod
    def _type() -> str:
        return vector("i32", machine().width(32))

    @staticmethod
    def _start(b: Builder, task: str, blocks: str) -> str:
        """Bytes before the task's region."""
        regions = b.param(2)
        by_thread = b.compare("eq", regions, 0)
        _, turn = b.divmod(task, b.max(regions, 1))
        region = b.op(f"select i1 {by_thread}, i64 %thread, i64 {turn}")
        return b.mul(b.mul(region, blocks), block_bytes())


def block_bytes() -> int:
    """Bytes of one turn of a loop."""
    return _UNROLL * machine().vector_bits // 8


@dataclass(frozen=True)
class ReadProbe(_Walk):
    """Reads; the operands are what is read, and 64 bytes for the sum of each thread."""

    @property
    def symbol(self) -> str:
        """A constant."""
        return "accord_probe_read"

    def module(self, name: str) -> str:
        """LLVM text."""
        b, type_, step = Builder(name), self._type(), machine().vector_bits // 8
        blocks, passes = b.param(0), b.param(1)
        data, out = b.operand(0), b.operand(1)
        none = ((type_, "zeroinitializer"),) * _UNROLL
        with b.loop("%first", "%last") as task:
            start = b.address(data, "i8", self._start(b, task, blocks))
            with b.loop_carrying(0, passes, 1, none) as (_, before, after):
                carried = tuple((type_, v) for v in before)
                with b.loop_carrying(0, blocks, 1, carried) as (i, sums, following):
                    at = b.address(start, "i8", b.mul(i, block_bytes()))
                    for k, s in enumerate(sums):
                        v = b.op(f"load {type_}, ptr {b.address(at, 'i8', k * step)}, align 64")
                        following.append(b.op(f"add {type_} {s}, {v}"))
                after.extend(following)
            total = after[0]
            for s in after[1:]:
                total = b.op(f"add {type_} {total}, {s}")
            b.emit(f"store {type_} {total}, ptr {b.address(out, 'i8', b.mul('%thread', 64))}, align 4")
        return b.module()


@dataclass(frozen=True)
class CopyProbe(_Walk):
    """Copies; the operands are from where, and to where."""

    @property
    def symbol(self) -> str:
        """A constant."""
        return "accord_probe_copy"

    def module(self, name: str) -> str:
        """LLVM text."""
        b, type_, step = Builder(name), self._type(), machine().vector_bits // 8
        blocks, passes = b.param(0), b.param(1)
        source, target = b.operand(0), b.operand(1)
        with b.loop("%first", "%last") as task:
            start = self._start(b, task, blocks)
            read, written = b.address(source, "i8", start), b.address(target, "i8", start)
            with b.loop(0, passes), b.loop(0, blocks) as i:
                offset = b.mul(i, block_bytes())
                a, c = b.address(read, "i8", offset), b.address(written, "i8", offset)
                for k in range(_UNROLL):
                    v = b.op(f"load {type_}, ptr {b.address(a, 'i8', k * step)}, align 64")
                    b.emit(f"store {type_} {v}, ptr {b.address(c, 'i8', k * step)}, align 64")
        return b.module()
