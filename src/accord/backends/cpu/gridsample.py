"""Sampling an image at given positions: taps are found for a vector of pixels at once, then read pixel by pixel."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from accord.backends.cpu.images import Image, Lanes, Params, Pattern, dims_of
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.resample import ResampleCode, ResampleWriter, Space
from accord.backends.positions import Grid
from accord.backends.protocol import Launch, Phase
from accord.errors import InputError
from accord.expr.lang import cast, operand
from accord.expr.math import expand
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["GridCode", "grid_bytes", "grid_phase"]

_TASK_WORK = 1 << 17
_PIXEL_WORK = 64


def _lanes() -> int:
    """Pixels whose taps are found at once."""
    return machine().width(64)


def grid_bytes(rank: int, grid: Grid) -> int:
    """Scratch memory of a thread."""
    return -(-rank * grid.taps * _lanes() * 16 // 64) * 64


@record
class GridCode(KernelCode):
    """Operands: image, grid, extras, output, scratch.

    Attributes:
        body: How taps are read.
        grid: How they are found.
        dtype: Of the positions.
    """

    body: ResampleCode
    grid: Grid
    dtype: str

    @property
    def symbol(self) -> str:
        """Name by content."""
        return "grid_" + hashlib.sha256(f"{self.body.symbol};{self.grid};{self.dtype}".encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self).write(name)


class _Writer(ResampleWriter):
    """After the resampled extents: the image's sizes and a thread's scratch bytes; after the image the grid, and the
    stride of its last axis.
    """

    def __init__(self, code: GridCode) -> None:
        super().__init__(code.body)
        self.grid = code.grid
        self.positions = Pattern(code.dtype, "0")

    def layout(self, params: Params) -> list[list[str]]:
        b, lanes, taps = self.b, _lanes(), self.grid.taps
        self.sizes = params.take(len(self.code.taps))
        start = b.mul("%thread", params.next())
        block = 8 * lanes * taps
        axes = range(len(self.sizes))
        return [[str(taps), b.add(start, 2 * a * block), b.add(start, (2 * a + 1) * block)] for a in axes]

    def further(self, params: Params, index: int) -> int:
        axes = 1 + self.code.outer + len(self.code.taps)
        self.places = Image(self.b, self.positions, self.b.operand(index), params, axes)
        self.coordinate = params.next()
        return index + 1

    def place(self, axis: int, position: str, tap: str | int = 0) -> str:
        del axis
        return self.b.add(self.b.mul(tap, _lanes()), position) if tap != 0 else position

    def row(self, position: Sequence[str], first: str, last: str) -> None:
        b, outer, rank = self.b, self.code.outer, len(self.code.taps)
        moves = [(1 + a, p) for a, p in enumerate(position)]
        base = self.source.at(moves[:outer])
        output, grid = self.output.at(moves), self.places.at(moves)
        extras = [e.at(moves) for e in self.extras]
        inner = outer + rank
        with b.loop(first, last, _lanes()) as start:
            count = b.min(b.sub(last, start), _lanes())
            self._find(self.places.at([(inner, start)], grid), count)
            with b.loop(0, count) as j:
                x = b.add(start, j)
                known = [(base, "")]
                for a in range(rank - 1) if self.unrolled else ():
                    known = self.taken(known, a, j)
                here = [(e, e.at([(inner, x)], at)) for e, at in zip(self.extras, extras, strict=True)]
                valid = self.inside([(a, j) for a in range(rank)])
                self.pixel(valid, known, [j] * rank, here, self.output.at([(inner, x)], output))

    def _find(self, grid: str, count: str) -> None:
        """Write the taps of ``count`` pixels whose positions begin at ``grid``."""
        b, width, rank = self.b, _lanes(), len(self.code.taps)
        lanes = Lanes(b, width, "0", None)
        ints = vector("i64", width)
        last = lanes.spread(b.sub(count, 1))
        number = lanes.numbers()
        if width > 1:  # pixels that there are not are the last one again
            b.declare(f"declare {ints} @llvm.smin.v{width}i64({ints}, {ints})")
            number = b.op(f"call {ints} @llvm.smin.v{width}i64({ints} {number}, {ints} {last})")
        step = self.places.strides[self.code.outer + rank]
        number = b.op(f"mul {ints} {number}, {lanes.spread(step)}")
        for a, table in enumerate(self.tables):
            # the innermost axis comes first
            address = b.address(grid, self.positions.dtype, b.mul(rank - 1 - a, self.coordinate))
            unit = lanes.cast(self.positions.dtype, "f64", lanes.gather(self.positions.dtype, address, number))
            length = lanes.printer.splat("f64", b.op(f"sitofp i64 {self.sizes[a]} to double"), width)
            printer = Printer(b, width)
            pairs = self.grid.pairs(operand(0, "f64"), operand(1, "f64"))
            for k, (index, weight) in enumerate(pairs):
                at = k * width
                value = printer.value(expand(cast(index, "i64")), [unit, length])
                printer.store("i64", value, b.address(table.indices, "i64", at))
                if weight is not None:
                    share = printer.value(expand(cast(weight, self.code.acc)), [unit, length])
                    printer.store(self.code.acc, share, b.address(table.weights, self.code.acc, at))


def grid_phase(
    out: Shape,
    space: Space,
    body: ResampleCode,
    grid: Grid,
    sizes: Shape,
    source: Access,
    positions: tuple[str, Access, DimLike],
    extras: Sequence[Access],
    output: Access,
    operands: tuple[int, ...],
) -> Phase:
    """A phase for sampling at given positions.

    Args:
        out: The output's shape.
        space: How it is gone through.
        body: How taps are read.
        grid: How they are found.
        sizes: Of the image along the resampled axes.
        source: Access over the output's axes; along resampled ones the strides of the image.
        positions: dtype, access over the output's axes, and stride from coordinate to coordinate.
        extras: Accesses of the epilogue's extras.
        output: How the output lies.
        operands: Image, grid, extras, output, scratch.
    """
    dtype, access, coordinate = positions
    channels = 1 if space.lane is None else out[space.lane]
    rank = len(space.resampled)
    dims: list[DimLike] = [channels, *(out[a] for a in (*space.outer, *space.resampled)), *sizes]
    dims += [grid_bytes(rank, grid), *dims_of(space.access(source)), *dims_of(space.access(access)), coordinate]
    for a in (*extras, output):
        dims += dims_of(space.access(a))
    launch = functools.partial(_launch, len(space.outer) + rank, rank, grid.taps**rank)
    return Phase(GridCode(body, grid, dtype), operands, tuple(dims), launch)


def _launch(axes: int, rank: int, taps: int, sizes: Sequence[int]) -> Launch:
    channels, *rest = sizes
    pixels = 1
    for e in rest[:axes]:
        pixels *= e
    if pixels and not all(rest[axes : axes + rank]):
        raise InputError("an empty image has nothing to sample", found=list(rest[axes : axes + rank]))
    size = max(1, min(pixels, _TASK_WORK // (channels * taps + _PIXEL_WORK)))
    return Launch((pixels, size, channels, *rest), -(-pixels // size) if channels else 0)
