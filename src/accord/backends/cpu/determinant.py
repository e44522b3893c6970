"""Determinants of matrices by elimination with pivots, in f64."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import cast, operand
from accord.expr.math import expand
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["DeterminantCode", "determinant_phase"]


@record
class DeterminantCode(KernelCode):
    """A task is one matrix.

    Parameters: rows, strides of rows and columns, offset, then extent, input stride and output stride of each axis
    before the matrices. Operands: matrices, determinants, scratch memory for one matrix of f64 a thread.

    Attributes:
        dtype: Of the elements.
        axes: Number of axes before the matrices.
    """

    dtype: str
    axes: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"determinant_{self.dtype}_{self.axes}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        n, down, right, offset = (b.param(i) for i in range(4))
        source = b.address(b.operand(0), self.dtype, offset)
        target = b.operand(1)
        scratch = b.address(b.operand(2), "f64", b.mul("%thread", b.mul(n, n)))
        result = b.op("alloca double")
        with b.loop("%first", "%last") as task:
            rest, origin, place = task, source, target
            for axis in range(self.axes - 1, -1, -1):
                extent, stride, out_stride = (b.param(4 + 3 * axis + k) for k in range(3))
                rest, index = b.divmod(rest, extent)
                origin = b.address(origin, self.dtype, b.mul(index, stride))
                place = b.address(place, self.dtype, b.mul(index, out_stride))
            self._load(b, origin, scratch, n, down, right)
            b.emit(f"store double 1.0, ptr {result}")
            with b.loop(0, n) as k:
                _eliminate(b, scratch, n, k, result)
            found = b.op(f"load double, ptr {result}")
            narrow = Printer(b, 1).value(expand(cast(operand(0, "f64"), self.dtype)), [found])
            Printer(b, 1).store(self.dtype, narrow, place)
        return b.module()

    def _load(self, b: Builder, origin: str, scratch: str, n: str, down: str, right: str) -> None:
        one = Printer(b, 1)
        with b.loop(0, n) as i, b.loop(0, n) as j:
            at = b.address(origin, self.dtype, b.add(b.mul(i, down), b.mul(j, right)))
            wide = Printer(b, 1).value(expand(cast(operand(0, self.dtype), "f64")), [one.load(self.dtype, at)])
            one.store("f64", wide, b.address(scratch, "f64", b.add(b.mul(i, n), j)))


def _eliminate(b: Builder, a: str, n: str, k: str, result: str) -> None:
    """Bring the largest element of column ``k`` to the diagonal and make those below it 0."""
    one = Printer(b, 1)
    b.declare("declare double @llvm.fabs.f64(double)")

    def at(i: str, j: str) -> str:
        return b.address(a, "f64", b.add(b.mul(i, n), j))

    with b.loop_carrying(k, n, 1, (("double", "-1.0"), ("i64", k))) as (i, best, following):
        size = b.op(f"call double @llvm.fabs.f64(double {one.load('f64', at(i, k))})")
        larger = b.op(f"fcmp ogt double {size}, {best[0]}")
        following.append(b.op(f"select i1 {larger}, double {size}, double {best[0]}"))
        following.append(b.op(f"select i1 {larger}, i64 {i}, i64 {best[1]}"))
    pivot_row = following[1]

    def swap() -> None:
        with b.loop(k, n) as j:
            upper, lower = one.load("f64", at(k, j)), one.load("f64", at(pivot_row, j))
            one.store("f64", lower, at(k, j))
            one.store("f64", upper, at(pivot_row, j))
        one.store("f64", b.op(f"fneg double {one.load('f64', result)}"), result)

    b.branch(b.compare("ne", pivot_row, k), swap)
    pivot = one.load("f64", at(k, k))
    one.store("f64", b.op(f"fmul double {one.load('f64', result)}, {pivot}"), result)
    regular = b.op(f"fcmp une double {pivot}, 0.0")

    def below() -> None:
        with b.loop(b.add(k, 1), n) as i:
            factor = b.op(f"fdiv double {one.load('f64', at(i, k))}, {pivot}")
            with b.loop(b.add(k, 1), n) as j:
                part = b.op(f"fmul double {factor}, {one.load('f64', at(k, j))}")
                one.store("f64", b.op(f"fsub double {one.load('f64', at(i, j))}, {part}"), at(i, j))

    b.branch(regular, below)


def determinant_phase(
    dtype: str, shape: Shape, source: Access, target: Access, operands: tuple[int, int, int]
) -> Phase:
    """A phase that writes the determinant of each matrix in the last two axes.

    Args:
        dtype: Of the elements.
        shape: Of the matrices.
        source: How they lie.
        target: How the determinants lie.
        operands: Matrices, determinants, workspace of 8 bytes an element of one matrix.
    """
    dims: list[DimLike] = [shape[-1], source.strides[-2], source.strides[-1], source.offset]
    for extent, stride, out in zip(shape[:-2], source.strides, target.strides, strict=False):
        dims += [extent, stride, out]
    return Phase(DeterminantCode(dtype, len(shape) - 2), operands, tuple(dims), functools.partial(_launch, len(shape)))


def _launch(rank: int, sizes: Sequence[int]) -> Launch:
    return Launch(tuple(sizes), math.prod(sizes[4 + 3 * a] for a in range(rank - 2)))
