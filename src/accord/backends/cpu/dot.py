"""The tile for few columns: its vectors lie along k, and each sum is the total of a vector.

Where C has one column, or three, a tile of whole vectors of columns would compute sixteen. Here each row of A meets
each column of B elementwise, and the vectors of a tile's sums are added up together at the end, so that this costs two
or three instructions a sum.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.tile import TILE_ARGUMENTS, by_height, fma
from accord.expr.lang import bits
from accord.record import record

__all__ = ["MOST_COLUMNS", "DotCode", "dot_heights", "pays"]

#: Most columns for which there are such tiles.
MOST_COLUMNS: Final = 8
#: Sums of a tile at most, each a register.
_SUMS: Final = 16


def pays(dtype: str, columns: int, k: int) -> bool:
    """Whether so few columns are better computed this way: instructions for a row, counted."""
    if dtype == "i32":
        return False  # its lanes lie along k already
    width = machine().width(bits(dtype))
    return 1 <= columns <= min(MOST_COLUMNS, width // 2) and columns * (-(-k // width) + 3) < k


@functools.cache
def dot_heights(dtype: str, columns: int) -> tuple[int, ...]:
    """Numbers of rows for which there is a tile, highest first."""
    sums = min(_SUMS if machine().vector_bits == 512 else _SUMS // 2, machine().width(bits(dtype)))
    most = max(1, sums // columns)
    return tuple(h for h in range(most, 0, -1) if h == most or h & (h - 1) == 0)


@record
class DotCode(KernelCode):
    """A module with one function of :data:`accord.backends.cpu.tile.TILE_ARGUMENTS` for every height.

    ``b_row`` is here the distance of B's columns, whose elements follow each other along k.

    Attributes:
        dtype: "f32" or "f64".
        columns: Columns of B and C.
    """

    dtype: str
    columns: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"dot_{self.dtype}_{self.columns}"

    def module(self, name: str) -> str:
        """LLVM text."""
        heights = dot_heights(self.dtype, self.columns)
        return by_height(name, heights, [self._tile(f"{name}_{rows}", rows) for rows in heights])

    def _tile(self, name: str, rows: int) -> Builder:
        b = Builder(name, TILE_ARGUMENTS, internal=True)
        dtype, width = self.dtype, machine().width(bits(self.dtype))
        type_ = vector(dtype, width)
        keys = [(r, c) for r in range(rows) for c in range(self.columns)]
        steps = {"%a": [b.mul("%a_row", r) if r else "0" for r in range(rows)]}
        steps["%b"] = [b.mul("%b_row", c) if c else "0" for c in range(self.columns)]

        def products(a: str, at: str, i: str, sums: Sequence[str], count: str | None) -> list[str]:
            """The sums and the products of a vector of k, or of its first ``count`` elements."""
            printer = Printer(b, width)

            def load(base: str, step: str) -> str:
                line = base if step == "0" else b.op(f"getelementptr i8, ptr {base}, i64 {step}")
                place = b.address(line, dtype, i)
                return printer.load(dtype, place) if count is None else printer.load_masked(dtype, place, count)

            right = [load(at, step) for step in steps["%b"]]
            left = [load(a, step) for step in steps["%a"]]
            arguments = [(left[r], right[c], s) for (r, c), s in zip(keys, sums, strict=True)]
            return [fma(b, dtype, width, *xs) for xs in arguments]

        # one pass over all of k: each lane sums a sixteenth of the products
        start = (("ptr", "%a"), ("ptr", "%b"), *((type_, "zeroinitializer") for _ in keys))
        whole = b.op(f"and i64 %k, {-width}")
        rest = b.sub("%k", whole)
        with b.loop_carrying(0, "%segments", 1, start) as (_, (a, at, *sums), following):
            with b.loop_carrying(0, whole, width, tuple((type_, s) for s in sums)) as (i, inside, later):
                later.extend(products(a, at, i, inside, None))
            following.append(b.op(f"getelementptr i8, ptr {a}, i64 %segment"))
            following.append(b.address(at, dtype, "%k"))
            # once if k is no multiple of the vector's width
            with b.loop_carrying(whole, "%k", width, tuple((type_, s) for s in later)) as (i, inside, final):
                final.extend(products(a, at, i, inside, rest))
            following.extend(final)
        total = _totals(b, dtype, width, following[2:])

        def add() -> None:
            printer, count = Printer(b, width), str(len(keys))
            old = printer.load_masked(dtype, "%sums", count)
            printer.store_masked(dtype, b.op(f"fadd {type_} {total}, {old}"), "%sums", count)

        # a whole vector is read again sooner than a masked one; what follows the sums is not yet written, or nobody's
        b.branch(b.compare("ne", "%add", 0), add, lambda: Printer(b, width).store(dtype, total, "%sums"))
        return b


def _totals(b: Builder, dtype: str, width: int, values: Sequence[str]) -> str:
    """The total of each of up to ``width`` vectors, in the first elements of one.

    Two vectors of parts become one of parts half as long: the lower half of each part is added to its upper half.
    """
    type_ = vector(dtype, width)
    left = list(values)
    while len(left) & (len(left) - 1):
        left.append("zeroinitializer")
    parts, size = 1, width
    while size > 1:
        half = size // 2
        pairs = list(zip(left[::2], left[1::2], strict=True)) if len(left) > 1 else [(left[0], "poison")]
        parts *= 2 if len(left) > 1 else 1
        left = []
        for pair in pairs:
            sums = []
            for start in (0, half):
                order = [p * size + start + k for p in range(parts) for k in range(half)]
                order += [order[-1]] * (width - len(order))
                index = ", ".join(f"i32 {k}" for k in order)
                sums.append(f"shufflevector {type_} {pair[0]}, {type_} {pair[1]}, <{width} x i32> <{index}>")
            left.append(b.op(f"fadd {type_} {b.op(sums[0])}, {b.op(sums[1])}"))
        size = half
    return left[0]
