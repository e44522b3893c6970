"""Distinct elements or rows: sorted by keys, then told apart from their left neighbours."""

from __future__ import annotations

import numpy as np

from accord.backends.cpu.host import start
from accord.backends.cpu.llvm import Builder, scalar
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.sorting import COUNTS, SLACK, call_sort, scratch_bytes, sort_function
from accord.backends.ordering import key_dtype, order_key
from accord.backends.protocol import Array
from accord.record import record

__all__ = ["UniqueCode", "unique_rows"]


@record
class UniqueCode(KernelCode):
    """One task does all. Parameters: rows, elements of a row.

    Operands: rows without gaps, scratch memory, first row of each group, group of each row, size of each group (all
    int64, with room for as many as there are rows), number of groups (one int64).

    Attributes:
        dtype: Of the elements.
        ordered: Groups are numbered in ascending order; if not, by first appearance.
    """

    dtype: str
    ordered: bool

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"unique_{self.dtype}_{'ascending' if self.ordered else 'appearance'}"

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Writer:
    def __init__(self, code: UniqueCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.key = key_dtype(code.dtype)
        self.order = order_key(code.dtype, descending=False)

    def write(self) -> str:
        b = self.b
        self.rows, self.size = b.param(0), b.param(1)
        self.x, scratch, *self.outputs = (b.operand(i) for i in range(6))
        entries = b.add(self.rows, SLACK)
        at = b.address(scratch, "u8", COUNTS)
        places = []
        for dtype in (self.key, "i32", self.key, "i32"):
            places.append(at)
            at = b.address(at, dtype, entries)
        self.keys, self.index = places[0], places[1]
        with b.loop(0, self.rows) as i:
            b.emit(f"store i32 {b.op(f'trunc i64 {i} to i32')}, ptr {b.address(self.index, 'i32', i)}")
        # stable sorts by one column after the other, last column first, order rows by all of them
        with b.loop(0, self.size) as c:
            column = b.sub(b.sub(self.size, 1), c)
            with b.loop(0, self.rows) as i:
                key = self._key(self._row(i), column)
                b.emit(f"store {scalar(self.key)} {key}, ptr {b.address(self.keys, self.key, i)}")
            call_sort(b, self.code.dtype, places, self.rows, scratch)
        self._groups()
        if not self.code.ordered:
            self._by_appearance(places[2])
        return b.module(sort_function(self.code.dtype))

    def _row(self, i: str) -> str:
        b = self.b
        at = b.address(self.index, "i32", i)
        return b.op(f"zext i32 {b.op(f'load i32, ptr {at}')} to i64")

    def _key(self, row: str, column: str) -> str:
        b, dtype = self.b, self.code.dtype
        printer = Printer(b, 1)
        at = b.address(self.x, dtype, b.add(b.mul(row, self.size), column))
        return printer.value(self.order, [printer.load(dtype, at)])

    def _groups(self) -> None:
        b = self.b
        first, group, count, number = self.outputs
        with b.loop_carrying(0, self.rows, 1, (("i64", "0"), ("i64", "-1"))) as (i, carried, following):
            before, current = carried
            row = self._row(i)
            with b.loop_carrying(0, self.size, 1, (("i1", "false"),)) as (c, differs, later):
                mine, other = self._key(row, c), self._key(before, c)
                unequal = b.op(f"icmp ne {scalar(self.key)} {mine}, {other}")
                later.append(b.op(f"or i1 {differs[0]}, {unequal}"))
            fresh = b.op(f"or i1 {later[0]}, {b.compare('eq', i, 0)}")
            now = b.add(current, b.op(f"zext i1 {fresh} to i64"))
            place = b.address(count, "i64", now)

            def begin(row: str = row, now: str = now, place: str = place) -> None:
                b.emit(f"store i64 {row}, ptr {b.address(first, 'i64', now)}")
                b.emit(f"store i64 0, ptr {place}")

            b.branch(fresh, begin)
            b.emit(f"store i64 {b.add(b.op(f'load i64, ptr {place}'), 1)}, ptr {place}")
            b.emit(f"store i64 {now}, ptr {b.address(group, 'i64', row)}")
            following += [row, now]
        b.emit(f"store i64 {b.add(following[1], 1)}, ptr {number}")

    def _by_appearance(self, renamed: str) -> None:
        """Number groups as rows name them for the first time; ``renamed`` is room for an i32 a group."""
        b = self.b
        first, group, count, number = self.outputs
        groups = b.op(f"load i64, ptr {number}")
        with b.loop(0, groups) as g:
            b.emit(f"store i32 -1, ptr {b.address(renamed, 'i32', g)}")
        with b.loop_carrying(0, self.rows, 1, (("i64", "0"),)) as (i, used, following):
            own = b.address(group, "i64", i)
            name = b.address(renamed, "i32", b.op(f"load i64, ptr {own}"))
            fresh = b.op(f"icmp slt i32 {b.op(f'load i32, ptr {name}')}, 0")

            def begin(i: str = i, name: str = name, next_: str = used[0]) -> None:
                b.emit(f"store i32 {b.op(f'trunc i64 {next_} to i32')}, ptr {name}")
                b.emit(f"store i64 {i}, ptr {b.address(first, 'i64', next_)}")
                b.emit(f"store i64 0, ptr {b.address(count, 'i64', next_)}")

            b.branch(fresh, begin)
            now = b.op(f"zext i32 {b.op(f'load i32, ptr {name}')} to i64")
            place = b.address(count, "i64", now)
            b.emit(f"store i64 {b.add(b.op(f'load i64, ptr {place}'), 1)}, ptr {place}")
            b.emit(f"store i64 {now}, ptr {own}")
            following.append(b.add(used[0], b.op(f"zext i1 {fresh} to i64")))


def unique_rows(x: Array, dtype: str, *, ordered: bool) -> tuple[Array, Array, Array]:
    """Groups of equal rows.

    Args:
        x: Rows without gaps; fewer than 2**31 of them.
        dtype: Element type, as expressions name it.
        ordered: See :class:`UniqueCode`.

    Returns:
        First row of each group, group of each row, size of each group (all int64).
    """
    rows, size = x.shape
    first, group, count = (np.empty(max(1, rows), np.int64) for _ in range(3))
    number = np.zeros(1, np.int64)
    scratch = np.empty(COUNTS + (rows + SLACK) * scratch_bytes(dtype), np.uint8)
    start(UniqueCode(dtype, ordered), (rows, size), (x, scratch, first, group, count, number))
    groups = int(number[0])
    return first[:groups].copy(), group[:rows], count[:groups].copy()
