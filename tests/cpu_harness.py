"""Small machine-code kernels for tests of the CPU backend's machinery."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from accord.backends.cpu import jit
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.program import CpuProgram, KernelCode
from accord.backends.protocol import Launch, Phase


@dataclass(frozen=True)
class Number(KernelCode):
    """A kernel that stores a number."""

    value: int
    broken: bool = False

    @property
    def symbol(self) -> str:
        return f"number_{self.value}_{self.broken}"

    def module(self, name: str) -> str:
        b = Builder(name)
        b.emit(f"store i64 {self.value}, ptr {b.operand(0)}")
        return b.module() if not self.broken else "nonsense"

    def run(self) -> int:
        out = ctypes.c_int64(0)
        operands = (ctypes.c_void_p * 1)(ctypes.addressof(out))
        jit.KERNEL_TYPE(self.address)(None, ctypes.addressof(operands), 0, 1, 0)
        return out.value


@dataclass(frozen=True)
class Count(KernelCode):
    """A kernel that adds 1 to an element for each task, and notes the thread that did it last.

    Meanwhile it holds its thread's scratch memory; finding another's mark there, it sets its refusal word.
    Parameters: turns of a loop that only takes time. Operands: counts, threads, one scratch word for each thread.
    """

    checks = True

    @property
    def symbol(self) -> str:
        return "count_tasks"

    def module(self, name: str) -> str:
        b = Builder(name)
        turns, counts, threads = b.param(0), b.operand(0), b.operand(1)
        scratch = b.address(b.operand(2), "i64", b.mul("%thread", 8))
        with b.loop("%first", "%last") as i:
            mark = b.add(i, 1)
            b.emit(f"store volatile i64 {mark}, ptr {scratch}")
            with b.loop(0, turns):
                b.emit("call void @llvm.x86.sse2.pause()")
            found = b.op(f"load volatile i64, ptr {scratch}")

            def refuse() -> None:
                b.emit(f"store i64 1, ptr {b.address('%params', 'i64', 1)}")

            b.branch(b.compare("ne", found, mark), refuse)
            at = b.address(counts, "i64", i)
            b.emit(f"store i64 {b.add(b.op(f'load i64, ptr {at}'), 1)}, ptr {at}")
            b.emit(f"store i64 %thread, ptr {b.address(threads, 'i64', i)}")
        b.declare("declare void @llvm.x86.sse2.pause()")
        return b.module()


class Counting:
    """A program of :class:`Count` phases with the given numbers of tasks."""

    def __init__(self, tasks: list[int], turns: int, threads: int) -> None:
        self.counts = [np.zeros(n, np.int64) for n in tasks]
        self.threads = [np.zeros(n, np.int64) for n in tasks]
        self.scratch = np.zeros(8 * threads, np.int64)
        tables = [
            np.array([a.ctypes.data, t.ctypes.data, self.scratch.ctypes.data], np.int64)
            for a, t in zip(self.counts, self.threads, strict=True)
        ]
        launches = [(Phase(Count(), (0, 1, 2), ()), Launch((turns,), n)) for n in tasks]
        self.program = CpuProgram(launches, tables, threads)
        self.runs = 0

    def run(self) -> None:
        """Run it and check that every task was done once, by nobody else at the same time."""
        self.runs += 1
        assert self.program.run() == -1, "two threads had one number"
        for c in self.counts:
            assert (c == self.runs).all()

    def used(self) -> set[int]:
        """Numbers of the threads that did something in the last run."""
        return {int(t) for a in self.threads for t in a}
