"""Kernels that are not affine movements: gather by index, and integers known before the run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from accord.backends.cpu.llvm import Builder, scalar
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape

__all__ = ["gather_phase", "integers_phase"]


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class GatherCode(KernelCode):
    """``out[o, i, :] = x[o, index[i], :]`` in bytes; an index outside the axis is refused and gives zeros.

    Parameters: rows of the axis, number of indices, bytes of a row. A task is one (o, i).
    """

    index: str
    checks = True

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"gather_{self.index}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        b.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        b.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        rows, indices, size = (b.param(i) for i in range(3))
        source, index, out = (b.operand(i) for i in range(3))
        with b.loop("%first", "%last") as task:
            outer, i = b.divmod(task, indices)
            at = b.address(index, self.index, i)
            row = b.op(f"load {scalar(self.index)}, ptr {at}")
            if self.index != "i64":
                row = b.op(f"sext {scalar(self.index)} {row} to i64")
            negative = b.compare("slt", row, 0)
            wrapped = b.op(f"select i1 {negative}, i64 {b.add(row, rows)}, i64 {row}")
            inside = b.compare("ult", wrapped, rows)
            target = b.op(f"getelementptr i8, ptr {out}, i64 {b.mul(task, size)}")
            place = b.mul(b.add(b.mul(outer, rows), wrapped), size)
            origin = b.op(f"getelementptr i8, ptr {source}, i64 {place}")
            b.branch(
                inside,
                functools.partial(
                    b.emit, f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {origin}, i64 {size}, i1 false)"
                ),
                functools.partial(_refuse, b, target, size),
            )
        return b.module()


def _refuse(b: Builder, target: str, size: str) -> None:
    """Fill a row with zeros and set the refusal word, which follows the three parameters."""
    b.emit(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {size}, i1 false)")
    b.emit(f"store i64 1, ptr {b.op('getelementptr i64, ptr %params, i64 3')}")


def gather_phase(
    shape: Shape, axis: int, count: DimLike, itemsize: int, index: str, operands: tuple[int, int, int]
) -> Phase:
    """A phase for Gather along ``axis`` of a contiguous tensor.

    Args:
        shape: Of the data.
        axis: Not negative.
        count: Number of indices.
        itemsize: Bytes of an element.
        index: "i32" or "i64".
        operands: Data, indices, output.
    """
    outer = D.product(shape[:axis])
    row = D.product(shape[axis + 1 :]) * itemsize
    return Phase(GatherCode(index), operands, (shape[axis], count, row, outer), _launch_gather)


def _launch_gather(sizes: Sequence[int]) -> Launch:
    rows, count, row, outer = sizes
    return Launch((rows, count, row), outer * count)
