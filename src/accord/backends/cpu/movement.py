"""Integers that are known before the run."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.llvm import Builder, scalar
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["integers_phase"]


@record
class IntegersCode(KernelCode):
    """Writes its parameters, after the first, as integers of ``dtype``."""

    dtype: str

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"integers_{self.dtype}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        out = b.operand(0)
        memory = "i8" if self.dtype == "bool" else scalar(self.dtype)
        with b.loop("%first", "%last") as i:
            at = b.op(f"getelementptr i64, ptr %params, i64 {i}")
            value = b.op(f"load i64, ptr {at}")
            if memory != "i64":
                value = b.op(f"trunc i64 {value} to {memory}")
            b.emit(f"store {memory} {value}, ptr {b.address(out, self.dtype, i)}")
        return b.module()


def integers_phase(elements: Sequence[DimLike], dtype: str, operand: int) -> Phase:
    """A phase that writes ``elements``, sizes that are known when shapes are."""
    return Phase(IntegersCode(dtype), (operand,), tuple(elements), _launch_all)


def _launch_all(sizes: Sequence[int]) -> Launch:
    return Launch(tuple(sizes), len(sizes))
