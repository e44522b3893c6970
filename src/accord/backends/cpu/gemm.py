"""The contraction kernel: ``C[m, n] = epilogue(sum over k of A[m, k] * B[k, n])`` for each of several groups.

Rows of A come from a :class:`Source` (a matrix, the patches of an image), read in place or through a packed panel; B is
packed at load where it is constant, else as it is needed. Blocks follow the caches (Goto and van de Geijn; Van Zee and
van de Geijn, "BLIS", 2015): a block of rows of A stays in the second level while panels of B pass through the first.
The sums go in and out of registers every so many steps along k, which is also what keeps them accurate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.panels import Chunk, Rows, Source, pack_panel, transposed
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.tile import SMALL
from accord.expr.lang import Expr, bits

__all__ = ["CHUNK_FIELDS", "GemmCode", "Pattern", "Right"]

#: Words of a chunk of k in the parameters: first k, length, first piece, end of pieces.
CHUNK_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Pattern:
    """What machine code knows of C or of an operand of the epilogue.

    Attributes:
        dtype: Element type in memory.
        column: From column to column: "0" (repeats), "1" (next element), "s" (a stride).
        row: From row to row: "0", "1", "u" (one stride), "t" (looked up in a table, made from a stride for each axis
            of the rows).
    """

    dtype: str
    column: str
    row: str


@dataclass(frozen=True, slots=True)
class Right:
    """B.

    Attributes:
        dtype: Element type in memory.
        step: Along k: "1", "s", or "packed" for panels that were made at load.
        column: From column to column: "1" or "s".
    """

    dtype: str
    step: str
    column: str = "1"


@dataclass(frozen=True)
class GemmCode(KernelCode):
    """Code of a contraction. Operands: A, B, the extras, C, scratch. For the parameters see :attr:`names`.

    Attributes:
        dtype: In which sums are made: "f32" or "f64".
        vectors: Vectors of a tile's row.
        left: A.
        right: B.
        group_axes: Number of axes of the groups, each with strides of all operands.
        row_axes: Number of axes of the rows.
        extras: Operands 1, 2 ... of the expression.
        out: C.
        expr: What is stored: operand 0 is the sum.
    """

    dtype: str
    vectors: int
    left: Source
    right: Right
    group_axes: int
    row_axes: int
    extras: tuple[Pattern, ...]
    out: Pattern
    expr: Expr

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.dtype};{self.vectors};{self.left};{self.right};{self.group_axes};{self.row_axes};"
            f"{self.extras};{self.out};{self.expr.key}"
        )
        return "gemm_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def names(self) -> tuple[str, ...]:
        """What the parameters mean, in order; chunks of k follow, then the source's pieces.

        ``block`` rows share a packed panel of A, ``task_rows`` and ``task_panels`` are a task, ``run`` is the greatest
        length of a sum in registers, ``parts`` is 1 where sums of several chunks are kept apart, ``*_at`` are offsets
        of areas of a thread's scratch memory of ``scratch`` bytes. ``tile``, ``high`` and ``mid`` describe the tile
        for a whole panel, ``tile.last`` ... that of the last one.
        """
        operands: list[str] = []
        for name, p in self.operands.items():
            operands += [f"{name}.offset", *([f"{name}.column"] if p.column == "s" else [])]
            operands += {"u": [f"{name}.row"], "t": [f"{name}.row{i}" for i in range(self.row_axes)]}.get(p.row, [])
        groups = [f"group{i}.{what}" for i in range(self.group_axes) for what in ("size", "a", "b", *self.operands)]
        right = {"packed": (), "1": ("b.column",), "s": ("b.k", *(("b.column",) if self.right.column == "s" else ()))}
        return (
            *("m", "n", "k", "block", "task_rows", "task_panels", "row_tasks", "column_tasks", "panels", "chunks"),
            *("run", "parts", "direct", "pack_b", "pitch", "scratch", "a_at", "b_at", "stage_at", "tables_at"),
            *("tile", "high", "mid", "tile.last", "high.last", "mid.last", "a.offset", "b.offset"),
            *self.left.names,
            *right[self.right.step],
            *operands,
            *groups,
            *(f"rows{i}" for i in range(1, self.row_axes)),
        )

    @property
    def operands(self) -> dict[str, Pattern]:
        """C and the extras by name."""
        return {"c": self.out, **{f"e{i}": e for i, e in enumerate(self.extras)}}

    @property
    def tables(self) -> tuple[str, ...]:
        """Operands whose rows are looked up."""
        return tuple(name for name, p in self.operands.items() if p.row == "t")

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Writer:
    """Writes the kernel."""

    def __init__(self, code: GemmCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.width = machine().width(bits(code.dtype))
        self.size = bits(code.dtype) // 8
        self.p: dict[str, str] = {}
        self.tables: dict[str, str] = {}

    def write(self) -> str:
        b, code = self.b, self.code
        self.p = {name: b.param(i) for i, name in enumerate(code.names)}
        self.chunks = b.op(f"getelementptr i64, ptr %params, i64 {len(code.names)}")
        pieces = b.op(f"getelementptr i64, ptr {self.chunks}, i64 {b.mul(self.p['chunks'], CHUNK_FIELDS)}")
        self.p["pieces"] = pieces
        p = self.p
        bases = {
            "a": b.address(b.operand(0), code.left.dtype, p["a.offset"]),
            "b": b.address(b.operand(1), code.right.dtype, p["b.offset"]),
        }
        for i, e in enumerate(code.extras):
            bases[f"e{i}"] = b.address(b.operand(2 + i), e.dtype, p[f"e{i}.offset"])
        last = 2 + len(code.extras)
        bases["c"] = b.address(b.operand(last), code.out.dtype, p["c.offset"])
        scratch = b.op(f"getelementptr i8, ptr {b.operand(last + 1)}, i64 {b.mul('%thread', p['scratch'])}")
        self.sums = scratch
        self.panel_a, self.panel_b, self.stage, tables = (
            b.op(f"getelementptr i8, ptr {scratch}, i64 {p[area]}")
            for area in ("a_at", "b_at", "stage_at", "tables_at")
        )
        for number, name in enumerate(code.tables):
            self.tables[name] = b.address(tables, "i64", b.mul(p["block"], number))
        self.rows = Rows(b, [p["m"], *(p[f"rows{i}"] for i in range(1, code.row_axes))])
        with b.loop("%first", "%last") as task:
            rest, j = b.divmod(task, p["column_tasks"])
            group, i_row = b.divmod(rest, p["row_tasks"])
            here = self._group(group, bases)
            first = b.mul(j, p["task_panels"])
            panels = (first, b.min(b.add(first, p["task_panels"]), p["panels"]))
            if code.right.step != "packed":
                self._pack(here["b"], panels)
            start = b.mul(i_row, p["task_rows"])
            stop = b.min(b.add(start, p["task_rows"]), p["m"])
            with b.loop(start, stop, p["block"]) as row:
                self._block(here, row, b.min(b.sub(stop, row), p["block"]), panels)
        return b.module()

    def _dtype(self, name: str) -> str:
        return {"a": self.code.left.dtype, "b": self.code.right.dtype}.get(name) or self.code.operands[name].dtype

    def _group(self, group: str, bases: dict[str, str]) -> dict[str, str]:
        """Addresses of all operands for one group."""
        b, here = self.b, dict(bases)
        for axis in reversed(range(self.code.group_axes)):
            group, index = b.divmod(group, self.p[f"group{axis}.size"])
            for name, at in here.items():
                here[name] = b.address(at, self._dtype(name), b.mul(index, self.p[f"group{axis}.{name}"]))
        return here

    def _block(self, here: dict[str, str], row: str, rows: str, panels: tuple[str, str]) -> None:
        """A block of rows: all chunks of k, for each a panel of A, for each all panels of B."""
        b, p, code = self.b, self.p, self.code
        for name in code.tables:
            self._table(name, row, rows)
        with b.loop(0, p["chunks"]) as c:
            entry = b.op(f"getelementptr i64, ptr {self.chunks}, i64 {b.mul(c, CHUNK_FIELDS)}")
            fields = [b.op(f"load i64, ptr {b.address(entry, 'i64', i)}") for i in range(CHUNK_FIELDS)]
            chunk = Chunk(*fields)
            final = b.compare("eq", b.add(c, 1), p["chunks"])

            def fill(chunk: Chunk = chunk) -> None:
                code.left.fill(b, code.dtype, p, here["a"], self.rows, row, rows, chunk, self.panel_a, p["pitch"])

            if code.left.direct and code.left.dtype == code.dtype:
                in_place = b.compare("ne", p["direct"], 0)
                b.branch(in_place, lambda: None, fill)
                origin = b.address(here["a"], code.dtype, b.add(b.mul(row, p["a.row"]), chunk.start))
                a = b.op(f"select i1 {in_place}, ptr {origin}, ptr {self.panel_a}")
                a_row = b.op(f"select i1 {in_place}, i64 {b.mul(p['a.row'], self.size)}, i64 {p['pitch']}")
            else:
                fill()
                a, a_row = self.panel_a, p["pitch"]
            with b.loop(*panels) as panel:
                self._panel(here, row, rows, (a, a_row), c, chunk, final, panel, b.sub(panel, panels[0]))

    def _table(self, name: str, row: str, rows: str) -> None:
        b = self.b
        with self.rows.walk(row, rows) as (r, at):
            place = "0"
            for i, index in enumerate(at):
                place = b.add(place, b.mul(index, self.p[f"{name}.row{i}"]))
            b.emit(f"store i64 {place}, ptr {b.address(self.tables[name], 'i64', r)}")

    def _panel(
        self,
        here: dict[str, str],
        row: str,
        rows: str,
        left: tuple[str, str],
        c: str,
        chunk: Chunk,
        final: str,
        panel: str,
        number: str,
    ) -> None:
        """One panel of B: every tile of the block of rows."""
        b, p, code = self.b, self.p, self.code
        wide = code.vectors * self.width
        column = b.mul(panel, wide)
        columns = b.min(b.sub(p["n"], column), wide)
        is_last = b.compare("eq", b.add(panel, 1), p["panels"])
        tile, high, mid = (
            b.op(f"select i1 {is_last}, i64 {p[f'{what}.last']}, i64 {p[what]}") for what in ("tile", "high", "mid")
        )
        tile = b.op(f"inttoptr i64 {tile} to ptr")
        line = self._line(columns)
        line_bytes = b.mul(line, self.size)
        right, right_row = self._right(here["b"], number, column, columns, chunk, line, line_bytes)
        part = b.mul(b.mul(number, p["parts"]), b.mul(p["block"], wide))
        sums = b.address(self.sums, code.dtype, part)
        step = b.mul(p["parts"], line)
        full = b.compare("eq", columns, wide)
        here = {name: self._at_column(name, here[name], column) for name in code.operands}
        with self._tiles(rows, high, mid) as (r, height):
            a = b.op(f"getelementptr i8, ptr {left[0]}, i64 {b.mul(r, left[1])}")
            buffer = b.address(sums, code.dtype, b.mul(r, step))
            arguments = (
                f"ptr {a}, i64 {left[1]}, ptr {right}, i64 {right_row}, i64 {chunk.length}, i64 {p['run']}, "
                f"ptr {buffer}, i64 {height}, i64 {c}"
            )
            b.emit(f"call void {tile}({arguments})")

            def store() -> None:
                b.branch(
                    full,
                    lambda: self._epilogue(here, row, r, height, buffer, None, line),
                    lambda: self._epilogue(here, row, r, height, buffer, columns, line),
                )

            b.branch(final, store)
        if code.out.column == "s":
            b.branch(final, lambda: self._spread(here["c"], row, rows, columns))

    @contextmanager
    def _tiles(self, rows: str, high: str, mid: str) -> Iterator[tuple[str, str]]:
        """``for each tile``: its first row and its height, for which a tile exists."""
        b = self.b
        height = b.fresh("height")
        with b.loop(0, rows, height) as r:
            left = b.sub(rows, r)
            half = b.op(f"lshr i64 {b.add(left, 1)}, 1")
            small = b.op(f"select i1 {b.compare('sgt', left, SMALL)}, i64 {half}, i64 {left}")
            middle = b.op(f"select i1 {b.compare('sge', left, mid)}, i64 {mid}, i64 {small}")
            b.emit(f"{height} = select i1 {b.compare('sge', left, high)}, i64 {high}, i64 {middle}")
            yield r, height

    def _strides(self) -> tuple[str, str]:
        """B's strides along k and columns."""
        step, unit = self.code.right.step, self.code.right.column == "1"
        return "1" if step == "1" else self.p["b.k"], "1" if unit else self.p["b.column"]

    def _is_packed(self, columns: str, line: str) -> str:
        """Whether a panel of a B that is not constant is packed: if that pays, or if its lines are no whole vectors."""
        b = self.b
        if self._strides()[1] != "1" or self.code.right.dtype != self.code.dtype:
            return "true"
        return b.op(f"or i1 {b.compare('ne', self.p['pack_b'], 0)}, {b.compare('ne', columns, line)}")

    def _pack(self, base: str, panels: tuple[str, str]) -> None:
        """Pack a task's panels of B, with all of k."""
        b, p, code = self.b, self.p, self.code
        wide = code.vectors * self.width
        strides = self._strides()
        with b.loop(*panels) as panel:
            column = b.mul(panel, wide)
            columns = b.min(b.sub(p["n"], column), wide)
            line = self._line(columns)
            source = b.address(base, code.right.dtype, b.mul(column, strides[1]))
            target = b.address(self.panel_b, code.dtype, b.mul(b.mul(b.sub(panel, panels[0]), wide), p["k"]))
            line_bytes = b.mul(line, self.size)

            def pack() -> None:
                pack_panel(b, code.dtype, code.right.dtype, source, strides, p["k"], columns, target, line_bytes)

            b.branch(self._is_packed(columns, line), pack)

    def _line(self, columns: str) -> str:
        """Elements of a panel's line."""
        b = self.b
        return b.op(f"and i64 {b.add(columns, self.width - 1)}, {-self.width}")

    def _right(
        self, base: str, number: str, column: str, columns: str, chunk: Chunk, line: str, line_bytes: str
    ) -> tuple[str, str]:
        """Address of B's lines for a chunk and their distance in bytes."""
        b, p, code = self.b, self.p, self.code
        inside = b.mul(chunk.start, line)
        if code.right.step == "packed":
            return b.address(base, code.right.dtype, b.add(b.mul(column, p["k"]), inside)), line_bytes
        wide = code.vectors * self.width
        panel = b.address(self.panel_b, code.dtype, b.add(b.mul(b.mul(number, wide), p["k"]), inside))
        packed = self._is_packed(columns, line)
        if packed == "true":
            return panel, line_bytes
        step = self._strides()[0]
        source = b.address(base, code.dtype, b.add(b.mul(chunk.start, step), column))
        return (
            b.op(f"select i1 {packed}, ptr {panel}, ptr {source}"),
            b.op(f"select i1 {packed}, i64 {line_bytes}, i64 {b.mul(step, self.size)}"),
        )

    # epilogue

    def _at_column(self, name: str, base: str, column: str) -> str:
        pattern = self.code.operands[name]
        if pattern.column == "0":
            return base
        step = "1" if pattern.column == "1" else self.p[f"{name}.column"]
        return self.b.address(base, pattern.dtype, self.b.mul(column, step))

    def _at_row(self, name: str, base: str, row: str, r: str) -> str:
        """Address of an operand in row ``r`` of the block that starts at ``row``."""
        b, pattern = self.b, self.code.operands[name]
        if pattern.row == "0":
            return base
        if pattern.row == "t":
            place = b.op(f"load i64, ptr {b.address(self.tables[name], 'i64', r)}")
        else:
            place = b.mul(b.add(row, r), "1" if pattern.row == "1" else self.p[f"{name}.row"])
        return b.address(base, pattern.dtype, place)

    def _epilogue(
        self, here: dict[str, str], row: str, first: str, height: str, buffer: str, columns: str | None, line: str
    ) -> None:
        """Store one tile; ``columns`` is their number where it is fewer than those of a whole panel."""
        b, code, width = self.b, self.code, self.width
        staged = code.out.column == "s"
        fixed = {
            (i, v): self._load(f"e{i}", here[f"e{i}"], v * width, None)
            for i, e in enumerate(code.extras)
            if e.row == "0" and columns is None
            for v in range(code.vectors)
        }
        with b.loop(0, height) as r:
            at_row = b.add(first, r)
            lines = {name: self._at_row(name, here[name], row, at_row) for name in code.operands if name != "c"}
            target = (
                b.address(self.stage, code.out.dtype, b.mul(at_row, code.vectors * width))
                if staged
                else self._at_row("c", here["c"], row, at_row)
            )
            sums = b.address(buffer, code.dtype, b.mul(r, line))
            for v in range(code.vectors if columns is None else 0):
                values = [Printer(b, width).load(code.dtype, b.address(sums, code.dtype, v * width))]
                for i in range(len(code.extras)):
                    values.append(fixed.get((i, v)) or self._load(f"e{i}", lines[f"e{i}"], v * width, None))
                printer = Printer(b, width)
                result = printer.value(code.expr, values)
                printer.store(code.out.dtype, result, b.address(target, code.out.dtype, v * width))
            if columns is not None:
                with b.loop(0, columns, width) as j:
                    count = b.min(b.sub(columns, j), width)
                    values = [Printer(b, width).load(code.dtype, b.address(sums, code.dtype, j))]
                    values += [self._load(f"e{i}", lines[f"e{i}"], j, count) for i in range(len(code.extras))]
                    printer = Printer(b, width)
                    result = printer.value(code.expr, values)
                    printer.store_masked(code.out.dtype, result, b.address(target, code.out.dtype, j), count)

    def _load(self, name: str, line: str, column: int | str, count: str | None) -> str:
        """A vector of an extra's columns, counted from the panel's first."""
        b, pattern, width = self.b, self.code.operands[name], self.width
        printer = Printer(b, width)
        if pattern.column == "0":
            one = Printer(b, 1).load(pattern.dtype, line)
            return printer.splat("bool" if pattern.dtype == "bool" else pattern.dtype, one, width)
        step = "1" if pattern.column == "1" else self.p[f"{name}.column"]
        at = b.address(line, pattern.dtype, b.mul(str(column), step))
        if pattern.column == "1":
            return printer.load(pattern.dtype, at) if count is None else printer.load_masked(pattern.dtype, at, count)
        if count is None:
            return printer.gather(pattern.dtype, at, step)
        last = b.sub(count, 1)
        value = "poison"
        for k in range(width):
            element = Printer(b, 1).load(pattern.dtype, b.address(at, pattern.dtype, b.mul(b.min(last, k), step)))
            type_, kind = vector(pattern.dtype, width), scalar(pattern.dtype)
            value = element if width == 1 else b.op(f"insertelement {type_} {value}, {kind} {element}, i64 {k}")
        return value

    def _spread(self, base: str, row: str, rows: str, columns: str) -> None:
        """Write a panel's block to C, whose columns are apart, from where the epilogue has put it."""
        b, code = self.b, self.code
        pattern, step = code.out, self.p["c.column"]
        memory = "u8" if pattern.dtype == "bool" else pattern.dtype
        wide = code.vectors * self.width
        if pattern.row == "1":
            target = b.address(base, pattern.dtype, row)
            self._transposed(memory, target, step, rows, columns, wide)
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
        with b.loop(0, columns, width) as j, b.loop(0, rows, width) as i:
            printer = Printer(b, width)
            start = b.address(self.stage, dtype, b.add(b.mul(i, wide), j))
            lines = [printer.load(dtype, b.address(start, dtype, r * wide)) for r in range(width)]
            count = b.min(b.sub(rows, i), width)
            left = b.sub(columns, j)
            for k, value in enumerate(transposed(b, dtype, lines)):

                def store(k: int = k, value: str = value) -> None:
                    place = b.address(target, dtype, b.add(b.mul(b.add(j, k), step), i))
                    Printer(b, width).store_masked(dtype, value, place, count)

                b.branch(b.compare("sgt", left, k), store)
