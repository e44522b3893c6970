"""Counting of n-grams of integers: each one in a row is looked up among the sorted ones of a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from accord.backends.cpu.host import start
from accord.backends.cpu.llvm import Builder, scalar
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Array
from accord.record import record

__all__ = ["NgramCode", "Pool", "count_ngrams", "pool_of"]

#: Words that describe the grams of one size: size, first element, their number, first column, steps of a search.
_FIELDS: Final = 5


@record
class Pool:
    """N-grams to look for.

    Attributes:
        sizes: For each size that occurs :data:`_FIELDS` words.
        elements: Of all grams, sorted within a size.
        columns: The column of each gram.
    """

    sizes: Array
    elements: Array
    columns: Array


def pool_of(grams: Mapping[tuple[int, ...], int]) -> Pool:
    """The pool of n-grams with their columns."""
    sizes: list[int] = []
    elements: list[int] = []
    columns: list[int] = []
    for size in sorted({len(g) for g in grams}):
        chosen = sorted(g for g in grams if len(g) == size)
        sizes += [size, len(elements), len(chosen), len(columns), (len(chosen) - 1).bit_length()]
        elements += [e for g in chosen for e in g]
        columns += [grams[g] for g in chosen]
    return Pool(*(np.array(x, np.int64) for x in (sizes, elements, columns)))


@record
class NgramCode(KernelCode):
    """A task is a row. Parameters: elements of a row, columns, sizes, most elements left out between two neighbours.

    Operands: rows, descriptions of sizes, elements, columns of the pool, counts (f32, zero before).

    Attributes:
        dtype: "i32" or "i64".
    """

    dtype: str

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"ngrams_{self.dtype}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        length, columns, sizes, skip = (b.param(i) for i in range(4))
        rows, table, elements, places, counts = (b.operand(i) for i in range(5))
        with b.loop("%first", "%last") as task:
            row = b.address(rows, self.dtype, b.mul(task, length))
            own = b.address(counts, "f32", b.mul(task, columns))
            with b.loop(0, sizes) as s:
                words = [
                    b.op(f"load i64, ptr {b.address(table, 'i64', b.add(b.mul(s, _FIELDS), k))}")
                    for k in range(_FIELDS)
                ]
                size, first, number, place, steps = words
                grams = b.address(elements, "i64", first)
                single = b.compare("eq", size, 1)
                most = b.op(f"select i1 {single}, i64 1, i64 {b.add(skip, 1)}")
                with b.loop(1, b.add(most, 1)) as distance:
                    stop = b.sub(length, b.mul(distance, b.sub(size, 1)))
                    with b.loop(0, stop) as at:
                        gram = (b.address(row, self.dtype, at), distance, size)
                        found = self._search(b, gram, grams, number, steps)
                        order = self._order(b, gram, b.address(grams, "i64", b.mul(found, size)))
                        column = b.address(places, "i64", b.add(place, found))

                        def count(column: str = column, own: str = own) -> None:
                            target = b.address(own, "f32", b.op(f"load i64, ptr {column}"))
                            before = b.op(f"load float, ptr {target}")
                            b.emit(f"store float {b.op(f'fadd float {before}, 1.0')}, ptr {target}")

                        b.branch(b.compare("eq", order, 0), count)
        return b.module()

    def _search(self, b: Builder, gram: tuple[str, str, str], grams: str, number: str, steps: str) -> str:
        """The last gram of the pool that is not greater, or the first one."""
        start_ = (("i64", "0"), ("i64", number))
        with b.loop_carrying(0, steps, 1, start_) as (_, (base, left), following):
            half = b.op(f"lshr i64 {left}, 1")
            middle = b.add(base, half)
            order = self._order(b, gram, b.address(grams, "i64", b.mul(middle, gram[2])))
            after = b.op(f"select i1 {b.compare('sge', order, 0)}, i64 {middle}, i64 {base}")
            following += [after, b.sub(left, half)]
        return following[0]

    def _order(self, b: Builder, gram: tuple[str, str, str], other: str) -> str:
        """-1, 0 or 1: how the elements of a row compare with those of a gram, first difference first."""
        source, distance, size = gram
        with b.loop_carrying(0, size, 1, (("i64", "0"),)) as (i, (order,), following):
            mine = b.op(f"load {scalar(self.dtype)}, ptr {b.address(source, self.dtype, b.mul(i, distance))}")
            if self.dtype != "i64":
                mine = b.op(f"sext {scalar(self.dtype)} {mine} to i64")
            theirs = b.op(f"load i64, ptr {b.address(other, 'i64', i)}")
            more, less = (b.op(f"zext i1 {b.compare(p, mine, theirs)} to i64") for p in ("sgt", "slt"))
            here = b.sub(more, less)
            following.append(b.op(f"select i1 {b.compare('eq', order, 0)}, i64 {here}, i64 {order}"))
        return following[0]


def count_ngrams(rows: Array, dtype: str, pool: Pool, columns: int, skip: int) -> Array:
    """How often each column's n-grams occur in each row.

    Args:
        rows: Integers without gaps, ``[rows, length]``.
        dtype: "i32" or "i64".
        pool: What to look for.
        columns: Number of columns.
        skip: Most elements left out between two neighbours of a gram.

    Returns:
        f32 ``[rows, columns]``.
    """
    counts = np.zeros((len(rows), columns), np.float32)
    length = rows.shape[1]
    params: Sequence[int] = (length, columns, len(pool.sizes) // _FIELDS, min(skip, length))
    start(NgramCode(dtype), params, (rows, pool.sizes, pool.elements, pool.columns, counts), len(rows))
    return counts
