"""Where elements are not zero: counted by blocks, then written to places that the counts tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accord.backends.cpu.host import start
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.search import any_lane, append_vector
from accord.backends.protocol import Array
from accord.expr.lang import bits, cast, operand
from accord.expr.math import expand
from accord.record import record

__all__ = ["CountCode", "FlatPositionsCode", "NonZeroCode", "UnravelCode", "coordinates_of"]

#: Elements of a block.
BLOCK = 1 << 16
#: Elements after the positions that a vector store may touch.
SLACK = 16


@record
class _BlockCode(KernelCode):
    """Walks blocks of an array without gaps. Parameters: elements, elements of a block."""

    dtype: str

    def _masks(self, b: Builder, task: str, width: int) -> tuple[Printer, str, str, str, str]:
        printer = Printer(b, width)
        first = b.mul(task, b.param(1))
        stop = b.min(b.add(first, b.param(1)), b.param(0))
        whole = b.add(first, b.mul(b.op(f"sdiv i64 {b.sub(stop, first)}, {width}"), width))
        return printer, b.operand(0), first, whole, stop

    def _mask(self, b: Builder, printer: Printer, base: str, j: str, count: str | None) -> str:
        """Which of the elements from ``j`` on are not zero; -0 is zero, NaN is not."""
        at = b.address(base, self.dtype, j)
        x = printer.load(self.dtype, at) if count is None else printer.load_masked(self.dtype, at, count)
        return printer.value(expand(cast(operand(0, self.dtype), "bool")), [x])

    def _positions(self, b: Builder, task: str, place: str, target: str) -> None:
        """Append the positions of a block's elements that are not zero; ``place`` holds how many are in ``target``."""
        width = machine().width(64)
        numbers = vector("i64", width)
        lanes = ", ".join(f"i64 {k}" for k in range(width))
        printer, base, first, whole, stop = self._masks(b, task, width)

        def some(j: str, count: str | None) -> None:
            mask = self._mask(b, printer, base, j, count)

            def append() -> None:
                positions = b.op(f"add {numbers} {printer.splat('i64', j, width)}, <{lanes}>")
                held = b.op(f"load i64, ptr {place}")
                columns = [("i64", positions, target)]
                b.emit(f"store i64 {append_vector(b, width, mask, columns, held)}, ptr {place}")

            b.branch(any_lane(b, mask, width), append)

        with b.loop(first, whole, width) as j:
            some(j, None)
        some(whole, b.sub(stop, whole))


@record
class CountCode(_BlockCode):
    """Writes the number of elements that are not zero in each block."""

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"count_{self.dtype}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        width = machine().width(max(32, bits(self.dtype)))
        lanes, kind = vector("i32", width), vector("bool", width)
        b.declare(f"declare i32 @llvm.vector.reduce.add.v{width}i32({lanes})")
        with b.loop("%first", "%last") as task:
            printer, base, first, whole, stop = self._masks(b, task, width)
            with b.loop_carrying(first, whole, width, ((lanes, "zeroinitializer"),)) as (j, total, following):
                mask = self._mask(b, printer, base, j, None)
                following.append(b.op(f"add {lanes} {total[0]}, {b.op(f'zext {kind} {mask} to {lanes}')}"))
            mask = self._mask(b, printer, base, whole, b.sub(stop, whole))
            total_ = b.op(f"add {lanes} {following[0]}, {b.op(f'zext {kind} {mask} to {lanes}')}")
            count = b.op(f"call i32 @llvm.vector.reduce.add.v{width}i32({lanes} {total_})")
            target = b.address(b.operand(1), "i64", task)
            b.emit(f"store i64 {b.op(f'zext i32 {count} to i64')}, ptr {target}")
        return b.module()


@record
class FlatPositionsCode(_BlockCode):
    """Writes the positions of elements that are not zero, those of a block from a place on that is given for it.

    The place is replaced by where the block's positions end.
    """

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"positions_of_{self.dtype}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        place = b.op("alloca i64")
        with b.loop("%first", "%last") as task:
            begin = b.op(f"load i64, ptr {b.address(b.operand(1), 'i64', task)}")
            b.emit(f"store i64 {begin}, ptr {place}")
            self._positions(b, task, place, b.operand(2))
            ended = b.op(f"load i64, ptr {place}")
            b.emit(f"store i64 {ended}, ptr {b.address(b.operand(1), 'i64', task)}")
        return b.module()


@record
class NonZeroCode(_BlockCode):
    """Coordinates ``[rank, count]`` of elements that are not zero, of an array that is one block.

    Operands: the elements; 64-bit integers: their count, then positions, with :data:`SLACK` of them to spare; the
    coordinates, with room for all elements. Parameters: elements, twice, then extents.

    Attributes:
        rank: Of the array.
    """

    rank: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"coordinates_of_{self.dtype}_{self.rank}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        extents = [b.param(2 + a) for a in range(self.rank)]
        place = b.op("alloca i64")
        with b.loop("%first", "%last") as task:
            b.emit(f"store i64 0, ptr {place}")
            positions = b.address(b.operand(1), "i64", "1")
            self._positions(b, task, place, positions)
            count = b.op(f"load i64, ptr {place}")
            b.emit(f"store i64 {count}, ptr {b.operand(1)}")
            with b.loop("0", count) as i:
                _unravel(b, i, positions, b.operand(2), count, extents)
        return b.module()


@record
class UnravelCode(KernelCode):
    """From positions in a row-major tensor to coordinates ``[rank, count]``.

    Parameters: count, elements of a task, elements between rows of the coordinates, extents.
    """

    rank: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"unravel_{self.rank}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        count, block, row = (b.param(i) for i in range(3))
        extents = [b.param(3 + a) for a in range(self.rank)]
        with b.loop("%first", "%last") as task:
            start_ = b.mul(task, block)
            with b.loop(start_, b.min(b.add(start_, block), count)) as i:
                _unravel(b, i, b.operand(0), b.operand(1), row, extents)
        return b.module()


def _unravel(b: Builder, i: str, positions: str, target: str, row: str, extents: Sequence[str]) -> None:
    """The coordinates of position ``i`` of several; ``row`` elements are between those of two axes."""
    rest = b.op(f"load i64, ptr {b.address(positions, 'i64', i)}")
    for axis in range(len(extents) - 1, -1, -1):
        position = rest
        if axis:
            rest, position = b.divmod(rest, extents[axis])
        at = b.address(target, "i64", b.add(b.mul(str(axis), row), i))
        b.emit(f"store i64 {position}, ptr {at}")


def coordinates_of(x: Array, dtype: str) -> Array:
    """Coordinates (int64 ``[rank, count]``, in row-major order) of elements that are not zero.

    Args:
        x: An array without gaps, row-major.
        dtype: Its element type, as expressions name it.
    """
    if x.size > BLOCK:
        positions = _positions_of(x, dtype)
        if x.ndim == 1:
            return positions[np.newaxis]
        unravelled = np.empty((x.ndim, len(positions)), np.int64)
        block = 1 << 14
        params = (len(positions), block, len(positions), *x.shape)
        start(UnravelCode(x.ndim), params, (positions, unravelled), -(-len(positions) // block))
        return unravelled
    found = np.empty(1 + x.size + SLACK, np.int64)
    result = np.empty(x.ndim * x.size, np.int64)
    start(NonZeroCode(dtype, x.ndim), (x.size, x.size, *x.shape), (x, found, result))
    count = int(found[0])
    return result[: x.ndim * count].reshape(x.ndim, count)


def _positions_of(x: Array, dtype: str) -> Array:
    """Positions (int64, rising) in a flattened array of the elements that are not zero.

    Args:
        x: An array without gaps, row-major.
        dtype: Its element type, as expressions name it.
    """
    blocks = -(-x.size // BLOCK)
    counts = np.empty(blocks, np.int64)
    start(CountCode(dtype), (x.size, BLOCK), (x, counts), blocks)
    ends = np.cumsum(counts)
    positions = np.empty(int(ends[-1]) + SLACK, np.int64)
    # a block may write past its end, into what the next one writes afterwards: the blocks run in order
    start(FlatPositionsCode(dtype), (x.size, BLOCK), (x, ends - counts, positions), blocks)
    return positions[:-SLACK]
