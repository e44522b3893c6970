"""The last step of a contraction: sums from a buffer through an expression to C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.panels import Rows
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.transpose import call_transpose
from accord.expr.lang import Expr, bits
from accord.record import record

__all__ = ["Pattern", "Store"]


@record
class Pattern:
    """What machine code knows of C or of an operand of the epilogue.

    Attributes:
        dtype: Element type in memory.
        column: From column to column: "0" (repeats), "1" (next element), "s" (a stride). Where a tile's elements are
            stored as one line: "0", "f" (the operand is such a line too), "p" (one row of it repeats).
        row: From row to row: "0", "1", "u" (one stride), "t" (looked up in a table, made from a stride for each axis
            of the rows), "b" (the next element, counted from the block's first row).
    """

    dtype: str
    column: str
    row: str


class Store:
    """Writes the code that stores tiles.

    Args:
        b: Where to write.
        dtype: Of the sums.
        width: Elements of a vector.
        vectors: Vectors of a whole panel's line.
        operands: C ("c") and the expression's operands 1, 2 ... ("e0", "e1" ...).
        expr: What is stored.
        parameters: Names to values: "c.column", "c.row", "c.row0" ... where patterns need them.
        stage: Address of scratch memory for a block, where C's columns are apart.
        tables: Addresses of the tables of rows.
    """

    def __init__(
        self,
        b: Builder,
        dtype: str,
        width: int,
        vectors: int,
        operands: Mapping[str, Pattern],
        expr: Expr,
        parameters: Mapping[str, str],
        stage: str,
        tables: Mapping[str, str],
    ) -> None:
        self.b, self.dtype, self.width, self.vectors = b, dtype, width, vectors
        self.operands, self.expr, self.p = operands, expr, parameters
        self.extras = [name for name in operands if name != "c"]
        self.stage, self.tables = stage, tables

    def fill_tables(self, rows: Rows, row: str, count: str) -> None:
        """Look up where ``count`` rows of a block lie, from ``row`` on."""
        b = self.b
        for name, table in self.tables.items():
            with rows.walk(row, count) as (r, at):
                place = "0"
                for i, index in enumerate(at):
                    place = b.add(place, b.mul(index, self.p[f"{name}.row{i}"]))
                b.emit(f"store i64 {place}, ptr {b.address(table, 'i64', r)}")

    def at_column(self, bases: Mapping[str, str], column: str) -> dict[str, str]:
        """Addresses of all operands at a panel's first column."""
        places = {}
        for name, pattern in self.operands.items():
            step = {"0": "0", "1": "1", "s": self.p.get(f"{name}.column", "")}.get(pattern.column, "0")
            moved = "0" if step == "0" else self.b.mul(column, step)
            places[name] = self.b.address(bases[name], pattern.dtype, 0 if moved == "0" else moved)
        return places

    def _at_row(self, name: str, base: str, row: str, r: str) -> str:
        """Address of an operand in row ``r`` of the block that starts at ``row``."""
        b, pattern = self.b, self.operands[name]
        if pattern.row == "0":
            return base
        if pattern.row == "b":
            place = r
        elif pattern.row == "t":
            place = b.op(f"load i64, ptr {b.address(self.tables[name], 'i64', r)}")
        else:
            place = b.mul(b.add(row, r), "1" if pattern.row == "1" else self.p[f"{name}.row"])
        return b.address(base, pattern.dtype, place)

    def whole(self, here: Mapping[str, str], row: str, first: str, height: str, buffer: str) -> None:
        """Store a tile of all vectors of a panel's line.

        Args:
            here: Addresses of the operands at the panel's first column.
            row: First row of the block.
            first: First row of the tile, in the block.
            height: Rows of the tile.
            buffer: Address of the sums.
        """
        b, width = self.b, self.width
        columns = [v * width for v in range(self.vectors)]
        fixed = {
            (name, j): self._load(name, here[name], j, None)
            for name in self.extras
            if self.operands[name].row == "0"
            for j in columns
        }
        with b.loop(0, height) as r:
            lines, target = self._rows(here, row, b.add(first, r))
            sums = b.address(buffer, self.dtype, b.mul(r, self.vectors * width))
            for j in columns:
                values = [Printer(b, width).load(self.dtype, b.address(sums, self.dtype, j))]
                values += [fixed.get((name, j)) or self._load(name, lines[name], j, None) for name in self.extras]
                self._put(values, target, j, None)

    def part(
        self, here: Mapping[str, str], row: str, first: str, height: str, buffer: str, columns: str, line: str
    ) -> None:
        """Store a tile of any number of ``columns``; ``line`` is elements from row to row of the sums."""
        b, width = self.b, self.width
        with b.loop(0, height) as r:
            lines, target = self._rows(here, row, b.add(first, r))
            sums = b.address(buffer, self.dtype, b.mul(r, line))
            with b.loop(0, columns, width) as j:
                count = b.min(b.sub(columns, j), width)
                values = [Printer(b, width).load(self.dtype, b.address(sums, self.dtype, j))]
                values += [self._load(name, lines[name], j, count) for name in self.extras]
                self._put(values, target, j, count)

    def fixed(self, here: Mapping[str, str], columns: int) -> dict[str, str]:
        """Vectors of the extras that are the same in all rows, for :meth:`flat`."""
        found = {}
        for name in self.extras:
            if self.operands[name].column == "0":
                found[name] = self._load(name, here[name], 0, None)
            elif self.operands[name].column == "p":
                found[name] = self._repeated(name, here[name], columns)
        return found

    def flat(
        self,
        here: Mapping[str, str],
        row: str,
        first: str,
        height: str,
        buffer: str,
        columns: int,
        fixed: Mapping[str, str],
    ) -> None:
        """Store a tile whose elements are one line in C too, ``columns`` to a row."""
        b, width = self.b, self.width
        start = b.mul(b.add(row, first), columns)
        lines = {
            name: b.address(here[name], p.dtype, start) if p.column == "f" else here[name]
            for name, p in self.operands.items()
        }
        total = b.mul(height, columns)
        with b.loop(0, total, width) as j:
            count = b.min(b.sub(total, j), width)
            values = [Printer(b, width).load(self.dtype, b.address(buffer, self.dtype, j))]
            values += [fixed.get(name) or self._load(name, lines[name], j, count) for name in self.extras]
            self._put(values, lines["c"], j, count)

    def _rows(self, here: Mapping[str, str], row: str, r: str) -> tuple[dict[str, str], str]:
        """Addresses of the extras in a row, and of where the result goes."""
        lines = {name: self._at_row(name, here[name], row, r) for name in self.extras}
        if self.operands["c"].column == "s":
            place = self.b.mul(r, self.vectors * self.width)
            return lines, self.b.address(self.stage, self.operands["c"].dtype, place)
        return lines, self._at_row("c", here["c"], row, r)

    def _put(self, values: Sequence[str], target: str, column: int | str, count: str | None) -> None:
        printer = Printer(self.b, self.width)
        dtype = self.operands["c"].dtype
        result = printer.value(self.expr, values)
        place = self.b.address(target, dtype, column)
        if count is None:
            printer.store(dtype, result, place)
        else:
            printer.store_masked(dtype, result, place, count)

    def _load(self, name: str, line: str, column: int | str, count: str | None) -> str:
        """A vector of an extra's columns, counted from the panel's first."""
        b, pattern, width = self.b, self.operands[name], self.width
        printer = Printer(b, width)
        if pattern.column == "0":
            return printer.splat(pattern.dtype, Printer(b, 1).load(pattern.dtype, line), width)
        if pattern.column in ("1", "f"):
            at = b.address(line, pattern.dtype, column)
            return printer.load(pattern.dtype, at) if count is None else printer.load_masked(pattern.dtype, at, count)
        step = self.p[f"{name}.column"]
        at = b.address(line, pattern.dtype, b.mul(str(column), step))
        if count is None:
            return printer.gather(pattern.dtype, at, step)
        last = b.sub(count, 1)
        places = [b.address(at, pattern.dtype, b.mul(b.min(last, k), step)) for k in range(width)]
        return self._collect(pattern.dtype, places)

    def _repeated(self, name: str, line: str, columns: int) -> str:
        """A vector in which the ``columns`` elements of a row repeat."""
        dtype = self.operands[name].dtype
        return self._collect(dtype, [self.b.address(line, dtype, k % columns) for k in range(self.width)])

    def _collect(self, dtype: str, places: Sequence[str]) -> str:
        """A vector of the elements at ``places``."""
        b, value = self.b, "poison"
        for k, place in enumerate(places):
            element = Printer(b, 1).load(dtype, place)
            if self.width == 1:
                return element
            type_ = vector(dtype, self.width)
            value = b.op(f"insertelement {type_} {value}, {scalar(dtype)} {element}, i64 {k}")
        return value

    # C whose columns are apart

    def spread(self, base: str, row: str, rows: str, columns: str) -> None:
        """Write a panel's block to C, whose columns are apart, from where the tiles were stored.

        Args:
            base: Address of C at the panel's first column.
            row: First row of the block.
            rows: How many.
            columns: Columns of the panel.
        """
        b = self.b
        pattern, step = self.operands["c"], self.p["c.column"]
        memory = "u8" if pattern.dtype == "bool" else pattern.dtype
        wide = self.vectors * self.width
        if pattern.row == "1":
            self._transposed(memory, b.address(base, pattern.dtype, row), step, rows, columns, wide)
            return
        one = Printer(b, 1)
        with b.loop(0, rows) as r:
            line = self._at_row("c", base, row, r)
            source = b.address(self.stage, memory, b.mul(r, wide))
            with b.loop(0, columns) as j:
                value = one.load(memory, b.address(source, memory, j))
                one.store(memory, value, b.address(line, memory, b.mul(j, step)))

    def _transposed(self, dtype: str, target: str, step: str, rows: str, columns: str, wide: int) -> None:
        """Columns of the stage become lines of C, ``step`` elements apart, in square blocks."""
        b, width = self.b, self.width
        size = bits(dtype) // 8
        whole = b.op(f"and i64 {rows}, {-width}")
        with b.loop(0, columns, width) as j, b.loop(0, whole, width) as i:
            start = b.address(self.stage, dtype, b.add(b.mul(i, wide), j))
            place = b.address(target, dtype, b.add(b.mul(j, step), i))
            to = (place, b.mul(step, size), b.min(b.sub(columns, j), width))
            call_transpose(b, self.p["c.transpose"], (start, wide * size, width), to)
        one = Printer(b, 1)
        with b.loop(0, columns) as j:
            line = b.address(target, dtype, b.mul(j, step))
            with b.loop(whole, rows) as i:
                value = one.load(dtype, b.address(self.stage, dtype, b.add(b.mul(i, wide), j)))
                one.store(dtype, value, b.address(line, dtype, i))
