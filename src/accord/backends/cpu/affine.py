"""Grids of positions under an affine map, computed in float64."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from accord.backends.cpu.images import Cut, Params, channel_blocks
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.positions import spread
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import cast, operand
from accord.expr.math import expand
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["AffineCode", "affine_phase"]


@record
class AffineCode(KernelCode):
    """``out[n, p, i] = sum over j of theta[n, i, j] * (p, 1)[j]``, where p[0] is along the innermost axis.

    Parameters: spatial sizes; offset and strides of theta and of the output. A task is one row. Lanes run along it.
    """

    dtype: str
    rank: int
    aligned: bool

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"affine_{self.dtype}_{self.rank}_{self.aligned}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b, dtype, rank = Builder(name), self.dtype, self.rank
        params = Params(b)
        sizes = params.take(rank)
        offset, *strides = params.take(4)
        theta = b.address(b.operand(0), dtype, offset)
        offset, *steps = params.take(3 + rank)
        output = b.address(b.operand(1), dtype, offset)
        place, narrow = (
            expand(spread(operand(0, "f64"), operand(1, "f64"), aligned=self.aligned)),
            expand(cast(operand(0, "f64"), dtype)),
        )
        one = Printer(b, 1)

        def real(number: str) -> str:
            return b.op(f"sitofp i64 {number} to double")

        with b.loop("%first", "%last") as task:
            rest, coordinates = task, []
            for size in reversed(sizes[:-1]):
                rest, at = b.divmod(rest, size)
                coordinates.append(at)
            row = b.address(output, dtype, b.mul(rest, steps[0]))
            matrix = b.address(theta, dtype, b.mul(rest, strides[0]))
            for at, step in zip(reversed(coordinates), steps[1:], strict=False):
                row = b.address(row, dtype, b.mul(at, step))
            outer = [
                Printer(b, 1).value(place, [real(at), real(size)])
                for at, size in zip(coordinates, reversed(sizes[:-1]), strict=True)
            ]
            lines = []
            for i in range(rank):
                line = []
                for j in range(rank + 1):
                    address = b.address(matrix, dtype, b.add(b.mul(i, strides[1]), b.mul(j, strides[2])))
                    x = one.load(dtype, address)
                    line.append(Printer(b, 1).value(expand(cast(operand(0, dtype), "f64")), [x]))
                # what does not change along the row
                fixed = line[rank]
                for j, value in enumerate(outer):
                    fixed = b.op(f"fadd double {fixed}, {b.op(f'fmul double {line[j + 1]}, {value}')}")
                lines.append((line[0], fixed))
            for (lanes,) in channel_blocks(b, machine().width(64), sizes[-1], Cut(True, "single")):
                type_ = vector("f64", lanes.width)
                number = b.op(f"sitofp {vector('i64', lanes.width)} {lanes.numbers()} to {type_}")
                length = lanes.printer.splat("f64", real(sizes[-1]), lanes.width)
                x = Printer(b, lanes.width).value(place, [number, length])
                for i, (slope, fixed) in enumerate(lines):
                    a, c = (lanes.printer.splat("f64", v, lanes.width) for v in (slope, fixed))
                    value = b.op(f"fadd {type_} {b.op(f'fmul {type_} {a}, {x}')}, {c}")
                    target = b.address(row, dtype, b.mul(i, steps[-1]))
                    lanes.store(dtype, "s", Printer(b, lanes.width).value(narrow, [value]), target, steps[-2])
        return b.module()


def affine_phase(dtype: str, out: Shape, theta: Access, output: Access, *, aligned: bool) -> Phase:
    """A phase for AffineGrid.

    Args:
        dtype: A float.
        out: Shape of the output [N, spatial axes, coordinates].
        theta: How the matrices lie.
        output: How the output lies.
        aligned: -1 and 1 are the centres of the outer elements.
    """
    dims: list[DimLike] = [*out[1:-1], theta.offset, *theta.strides, output.offset, *output.strides, out[0]]
    rank = len(out) - 2
    return Phase(AffineCode(dtype, rank, aligned), (0, 1), tuple(dims), functools.partial(_launch, rank))


def _launch(rank: int, sizes: Sequence[int]) -> Launch:
    rows = sizes[-1]
    for n in sizes[: rank - 1]:
        rows *= n
    return Launch(tuple(sizes[:-1]), rows if sizes[rank - 1] else 0)
