"""The text of contraction kernels: see :mod:`accord.backends.cpu.gemm`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accord.backends.cpu.codes import expand_panel
from accord.backends.cpu.gemm import CALL_FIELDS, CHUNK_FIELDS, GemmCode
from accord.backends.cpu.halves import PAIRS, round_lines, round_rows
from accord.backends.cpu.jit import machine
from accord.backends.cpu.lanes import multiply
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.panels import Chunk, Filling, Rows, pack_panel, pack_taps
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.store import Pattern, Store
from accord.backends.cpu.tile import CACHE_LINE, MOST_HEIGHT
from accord.backends.cpu.transpose import converted, moved_by
from accord.expr.lang import bits
from accord.record import record

__all__ = ["GemmWriter"]


@record
class _Part:
    """A part of k for which tiles are computed: a chunk, and whether it is the first and the last."""

    chunk: Chunk
    again: str
    final: str


class GemmWriter:
    """Writes the kernel.

    Args:
        code: What to write.
        name: Of the function.
    """

    def __init__(self, code: GemmCode, name: str) -> None:
        self.code = code
        self.b = b = Builder(name)
        self.width = machine().width(bits(code.dtype))
        self.size = bits(code.dtype) // 8
        self.wide = code.few or code.vectors * self.width
        self.p = p = {name: b.param(i) for i, name in enumerate(code.names)}
        self.heights = b.op(f"getelementptr i64, ptr %params, i64 {len(code.names)}")
        self.words = b.op(f"getelementptr i64, ptr {self.heights}, i64 {2 * MOST_HEIGHT}")
        p["pieces"] = b.op(f"getelementptr i64, ptr {self.words}, i64 {b.mul(p['chunks'], CHUNK_FIELDS)}")
        self.bases = {
            "a": b.address(b.operand(0), code.left.dtype, p["a.offset"]),
            "b": b.address(b.operand(1), code.right.dtype, p["b.offset"]),
        }
        for i, e in enumerate(code.extras):
            self.bases[f"e{i}"] = b.address(b.operand(2 + i), e.dtype, p[f"e{i}.offset"])
        last = 2 + len(code.extras)
        self.bases["c"] = b.address(b.operand(last), code.out.dtype, p["c.offset"])
        start = b.add(p["shared"], b.mul("%thread", p["scratch"]))
        self.sums = b.op(f"getelementptr i8, ptr {b.operand(last + 1)}, i64 {start}")
        areas = ("a_at", "b_at", "stage_at", "tables_at", "rows_at")
        self.panel_a, self.panel_b, stage, table, self.row_sums = (
            b.op(f"getelementptr i8, ptr {self.sums}, i64 {p[area]}") for area in areas
        )
        if code.padding is not None:
            kind = code.extras[code.padding].dtype
            zero = Printer(b, 1).load(kind, self.bases[f"e{code.padding}"])
            p["padding"] = converted(b, 1, zero, kind, code.lanes.left)
        elif moved_by(code.left.dtype, code.lanes.left):
            p["padding"] = str(moved_by(code.left.dtype, code.lanes.left) - 256)
        operands = code.operands
        if code.sums_rows:
            operands["rows"] = Pattern("i32", "0", "b")
        tables = {name: b.address(table, "i64", b.mul(p["block"], i)) for i, name in enumerate(code.tables)}
        self.rows = Rows(b, [p["m"], *(p[f"rows{i}"] for i in range(1, code.row_axes))])
        self.store = Store(b, code.dtype, self.width, code.vectors, operands, code.expr, p, stage=stage, tables=tables)

    def write(self) -> str:
        """The text of the module: tasks, each of several groups, each of several blocks of rows."""
        b, p = self.b, self.p
        with b.loop("%first", "%last") as task:
            rest, j = b.divmod(task, p["column_tasks"])
            part, i = b.divmod(rest, p["row_tasks"])
            first = b.mul(j, p["task_panels"])
            panels = (first, b.min(b.add(first, p["task_panels"]), p["panels"]))
            start = b.mul(i, p["task_rows"])
            stop = b.min(b.add(start, p["task_rows"]), p["m"])
            group = b.mul(part, p["task_groups"])
            with b.loop(group, b.min(b.add(group, p["task_groups"]), p["groups"])) as g:
                here = self._group(g)
                if self.code.right.step != "packed" and not self.code.few:
                    self._pack(here["b"], panels)
                with b.loop(start, stop, p["block"]) as row:
                    self.block(here, row, b.min(b.sub(stop, row), p["block"]), panels)
        return b.module()

    def _dtype(self, name: str) -> str:
        return {"a": self.code.left.dtype, "b": self.code.right.dtype}.get(name) or self.code.operands[name].dtype

    def _group(self, group: str) -> dict[str, str]:
        """Addresses of all operands for one group."""
        b, here = self.b, dict(self.bases)
        for axis in reversed(range(self.code.group_axes)):
            group, index = b.divmod(group, self.p[f"group{axis}.size"])
            for name, at in here.items():
                here[name] = b.address(at, self._dtype(name), b.mul(index, self.p[f"group{axis}.{name}"]))
        return here

    # A

    def block(self, here: dict[str, str], row: str, rows: str, panels: tuple[str, str]) -> None:
        """A block of rows: all chunks of k, for each a panel of A, for each all panels of B."""
        b, p, code = self.b, self.p, self.code
        self.store.fill_tables(self.rows, row, rows)
        if code.left.staged:
            whole = Chunk("0", p["k"], "0", "0")
            self.fill(here["a"], row, rows, whole)
            everything = _Part(whole, "0", "true")
            self._sum_rows(row, rows, (self.panel_a, ""), everything)
            with b.loop(*panels) as panel:
                self._panel(here, row, rows, (self.panel_a, ""), everything, panel, panels)
            return
        with b.loop(0, p["chunks"]) as c:
            entry = b.op(f"getelementptr i64, ptr {self.words}, i64 {b.mul(c, CHUNK_FIELDS)}")
            chunk = Chunk(*(self.word(entry, i) for i in range(CHUNK_FIELDS)))
            part = _Part(chunk, c, b.compare("eq", b.add(c, 1), p["chunks"]))
            left = self._left(here["a"], row, rows, chunk)
            self._sum_rows(row, rows, left, part)
            part = _Part(self._in_lanes(chunk), part.again, part.final)
            with b.loop(*panels) as panel:
                self._panel(here, row, rows, left, part, panel, panels)

    def steps(self, k: str) -> str:
        """Steps of a tile along ``k``."""
        return self.b.op(f"lshr i64 {self.b.add(k, 1)}, 1") if self.code.right.halves == PAIRS else k

    def _in_lanes(self, chunk: Chunk) -> Chunk:
        """A chunk counted in elements of tiles."""
        b, count = self.b, self.code.lanes.count
        if count == 1:
            return chunk
        length = b.op(f"udiv i64 {b.add(chunk.length, count - 1)}, {count}")
        return Chunk(b.op(f"udiv i64 {chunk.start}, {count}"), length, chunk.first, chunk.last)

    def word(self, entry: str, index: int) -> str:
        """An integer of a table."""
        return self.b.op(f"load i64, ptr {self.b.address(entry, 'i64', index)}")

    def fill(self, base: str, row: str, rows: str, chunk: Chunk) -> None:
        """Have the source fill A's panel."""
        self.code.left.fill(
            self.b,
            Filling(self.code.lanes.left, self.p, base, self.rows, row, rows, chunk, self.panel_a, self.p["pitch"]),
        )

    def _left(self, base: str, row: str, rows: str, chunk: Chunk) -> tuple[str, str]:
        """Address of a block of A for a chunk, and bytes from row to row."""
        b, p, code = self.b, self.p, self.code
        if code.right.halves or not code.left.direct or code.left.dtype != code.lanes.left:
            self.fill(base, row, rows, chunk)
            if code.right.halves:
                round_rows(b, code.right.halves, self.panel_a, p["pitch"], rows, chunk.length)
            return self.panel_a, p["pitch"]
        in_place = b.compare("ne", p["direct"], 0)
        b.branch(in_place, lambda: None, lambda: self.fill(base, row, rows, chunk))
        origin = b.address(base, code.left.dtype, b.add(b.mul(row, p["a.row"]), chunk.start))
        return (
            b.op(f"select i1 {in_place}, ptr {origin}, ptr {self.panel_a}"),
            b.op(f"select i1 {in_place}, i64 {b.mul(p['a.row'], bits(code.left.dtype) // 8)}, i64 {p['pitch']}"),
        )

    def _sum_rows(self, row: str, rows: str, left: tuple[str, str], part: _Part) -> None:
        """Sums of the rows of a block of A, added to those of the chunks before, if the expression has them."""
        b, p, code = self.b, self.p, self.code
        if not code.sums_rows:
            return
        type_ = f"<{self.width} x i32>"
        reduce = f"i32 @llvm.vector.reduce.add.v{self.width}i32"
        b.declare(f"declare {reduce}({type_})")
        nothing = ((type_, "zeroinitializer"),)
        with self._runs(row, rows, left) as (start, count, a, a_row), b.loop(0, count) as r:
            line = b.op(f"getelementptr i8, ptr {a}, i64 {b.mul(r, a_row)}")
            if code.left.staged:
                with b.loop_carrying(0, p["chunks"], 1, nothing) as (c, (total,), later):
                    entry = b.op(f"getelementptr i64, ptr {self.words}, i64 {b.mul(c, CALL_FIELDS)}")
                    offset, _, length, segments = (self.word(entry, i) for i in range(CALL_FIELDS))
                    at = b.op(f"getelementptr i8, ptr {line}, i64 {offset}")
                    elements = b.mul(length, code.lanes.count)
                    with b.loop_carrying(0, segments, 1, ((type_, total),)) as (s, (inside,), following):
                        place = b.op(f"getelementptr i8, ptr {at}, i64 {b.mul(s, p['a.segment'])}")
                        following.append(self._row_sum(place, elements, inside))
                    later.append(following[0])
                lanes_ = later[0]
            else:
                lanes_ = self._row_sum(line, part.chunk.length, "zeroinitializer")
            total = b.op(f"call {reduce}({type_} {lanes_})")
            place = b.address(self.row_sums, "i32", b.add(start, r))
            old = b.op(f"load i32, ptr {place}")
            before = b.op(f"select i1 {b.compare('eq', part.again, 0)}, i32 0, i32 {old}")
            b.emit(f"store i32 {b.op(f'add i32 {total}, {before}')}, ptr {place}")

    def _row_sum(self, line: str, length: str, total: str) -> str:
        """``total``, a vector, plus the ``length`` elements of a panel from ``line`` on."""
        b, joined, width = self.b, self.code.lanes, self.width
        type_ = f"<{width} x i32>"
        one = sum(1 << k * bits(joined.left) for k in range(joined.count))
        ones = Printer(b, width).splat("i32", str(one), width)
        step = width * joined.count
        whole = b.op(f"and i64 {length}, {-step}")
        with b.loop_carrying(0, whole, step, ((type_, total),)) as (i, (inside,), later):
            later.append(
                multiply(b, width, inside, Printer(b, width).load("i32", b.address(line, joined.left, i)), ones)
            )
        rest = b.sub(length, whole)
        count = b.op(f"udiv i64 {b.add(rest, joined.count - 1)}, {joined.count}")
        last = Printer(b, width).load_masked("i32", b.address(line, joined.left, whole), count)
        elements = f"<{step} x i{bits(joined.left)}>"
        own = b.op(f"bitcast {type_} {last} to {elements}")
        kept = Printer(b, step).keep_first(joined.left, own, "zeroinitializer", rest)
        return multiply(b, width, later[0], b.op(f"bitcast {elements} {kept} to {type_}"), ones)

    # tiles

    def _panel(
        self,
        here: dict[str, str],
        row: str,
        rows: str,
        left: tuple[str, str],
        part: _Part,
        panel: str,
        panels: tuple[str, str],
    ) -> None:
        """One of a task's ``panels`` of B: every tile of the block of rows."""
        b, p, code = self.b, self.p, self.code
        number = b.sub(panel, panels[0])
        column = b.mul(panel, self.wide)
        columns = b.min(b.sub(p["n"], column), self.wide)
        tile, high, heights = self.tile_of(panel)
        line = str(code.few) if code.few else self.line(columns)
        right = self._right(here["b"], number, panel, columns, part.chunk, line)
        ahead = self._ahead(right[0], panels, panel, part.chunk)
        apart = b.mul(b.mul(number, p["parts"]), b.mul(p["block"], self.wide))
        sums = b.address(self.sums, code.dtype, apart)
        step = b.mul(p["parts"], line)
        full = b.compare("eq", columns, self.wide)
        places = self.store.at_column({**here, "rows": self.row_sums}, column)
        fixed = self.store.fixed(places, code.few) if code.flat else {}
        with (
            self._runs(row, rows, left) as (start, count, a, a_row),
            self.tiles(count, high, heights) as (r, height),
        ):
            first = b.add(start, r)
            buffer = b.address(sums, code.dtype, b.mul(first, step))
            at = b.op(f"getelementptr i8, ptr {a}, i64 {b.mul(r, a_row)}")
            soon = self.soon(right[0], ahead, first, rows, self.steps(part.chunk.length), high)
            self._tile(tile, at, a_row, (*right, soon), part, buffer, height)

            def store() -> None:
                if code.flat:
                    self.store.flat(places, row, first, height, buffer, code.few, fixed)
                elif code.few:
                    self.store.part(places, row, first, height, buffer, columns, line)
                else:
                    b.branch(
                        full,
                        lambda: self.store.whole(places, row, first, height, buffer),
                        lambda: self.store.part(places, row, first, height, buffer, columns, line),
                    )

            b.branch(part.final, store)
        if code.out.column == "s":
            b.branch(part.final, lambda: self.store.spread(places["c"], row, rows, columns))

    def tile_of(self, panel: str) -> tuple[str, str, str]:
        """The tiles for a panel: their function, greatest height, and the table of heights."""
        b, p = self.b, self.p
        is_last = b.compare("eq", b.add(panel, 1), p["panels"])
        tile, high = (b.op(f"select i1 {is_last}, i64 {p[f'{what}.last']}, i64 {p[what]}") for what in ("tile", "high"))
        skip = b.op(f"select i1 {is_last}, i64 {MOST_HEIGHT}, i64 0")
        heights = b.op(f"getelementptr i64, ptr {self.heights}, i64 {skip}")
        return b.op(f"inttoptr i64 {tile} to ptr"), high, heights

    @contextmanager
    def _runs(self, row: str, rows: str, left: tuple[str, str]) -> Iterator[tuple[str, str, str, str]]:
        """``for each run of rows at one distance``: first row in the block, rows, address, bytes from row to row."""
        if not self.code.left.staged:
            yield "0", rows, *left
            return
        with self.code.left.lines(self.b, self.code.lanes.left, self.p, row, rows, left[0], self.p["pitch"]) as run:
            yield run

    def _ahead(self, right: str, panels: tuple[str, str], panel: str, chunk: Chunk) -> str:
        """Address of the lines of packed B that are wanted after these: of the next panel, or of the next chunk."""
        b, p, code = self.b, self.p, self.code
        if code.right.step != "packed" or code.few:
            return right
        whole = b.mul(self.steps(p["k"]), self.wide)
        back = b.sub(b.mul(self.steps(chunk.length), self.wide), b.mul(b.sub(panel, panels[0]), whole))
        last = b.compare("eq", b.add(panel, 1), panels[1])
        return b.address(right, code.right.dtype, b.op(f"select i1 {last}, i64 {back}, i64 {whole}"))

    def soon(self, right: str, ahead: str, first: str, rows: str, length: str, high: str) -> str:
        """What the tile that starts in row ``first`` of the block brings to the cache: a share of what lies ``ahead``.

        Two tiles share in it, or a single one does it all; others ask for what is there already.

        Returns:
            The last two arguments of a tile.
        """
        b = self.b
        if right == ahead:
            return f"ptr {right}, i64 0"
        half = b.mul(length, CACHE_LINE)
        second = b.compare("sge", first, high)
        place = b.op(f"getelementptr i8, ptr {ahead}, i64 {b.op(f'select i1 {second}, i64 {half}, i64 0')}")
        wanted = b.compare("slt", first, b.mul(high, 2))
        single = b.compare("slt", rows, b.mul(high, 2))
        return (
            f"ptr {b.op(f'select i1 {wanted}, ptr {place}, ptr {right}')}, "
            f"i64 {b.op(f'select i1 {single}, i64 {half}, i64 0')}"
        )

    def _tile(
        self, tile: str, a: str, a_row: str, right: tuple[str, str, str], part: _Part, sums: str, height: str
    ) -> None:
        """Compute one tile; ``right`` are the address of B's lines, their distance, and what is read soon."""
        b, p = self.b, self.p

        def call(a: str, line: str, k: str, run: str, segments: str, again: str) -> None:
            b.emit(
                f"call void {tile}(ptr {a}, i64 {a_row}, ptr {line}, i64 {right[1]}, i64 {k}, i64 {run}, "
                f"i64 {segments}, i64 {p.get('a.segment', '0')}, ptr {sums}, i64 {height}, i64 {again}, "
                f"{right[2]})"
            )

        if not self.code.left.staged:
            call(a, right[0], self.steps(part.chunk.length), p["run"], "1", part.again)
            return
        step = str(self.size) if self.code.few else right[1]
        with b.loop(0, p["chunks"]) as c:
            entry = b.op(f"getelementptr i64, ptr {self.words}, i64 {b.mul(c, CALL_FIELDS)}")
            offset, k, length, segments = (self.word(entry, i) for i in range(CALL_FIELDS))
            at = b.op(f"getelementptr i8, ptr {a}, i64 {offset}")
            line = b.op(f"getelementptr i8, ptr {right[0]}, i64 {b.mul(k, step)}")
            call(at, line, length, b.min(length, p["run"]), segments, c)

    @contextmanager
    def tiles(self, rows: str, high: str, heights: str) -> Iterator[tuple[str, str]]:
        """``for each tile``: its first row and its height, for which a tile exists."""
        b = self.b
        height = b.fresh("height")
        with b.loop(0, rows, height) as r:
            left = b.sub(rows, r)
            smaller = b.min(left, b.sub(high, 1))
            next_ = self.word(b.op(f"getelementptr i64, ptr {heights}, i64 {smaller}"), 0)
            b.emit(f"{height} = select i1 {b.compare('sge', left, high)}, i64 {high}, i64 {next_}")
            yield r, height

    # B

    def _strides(self) -> tuple[str, str]:
        """B's strides along k and columns."""
        step, unit = self.code.right.step, self.code.right.column == "1"
        return "1" if step == "1" else self.p["b.k"], "1" if unit else self.p["b.column"]

    def _is_packed(self, columns: str, line: str) -> str:
        """Whether a panel of a B that is not constant is packed: if that pays, or if its lines are no whole vectors."""
        b = self.b
        if self._strides()[1] != "1" or self.code.right.dtype != self.code.dtype or self.code.right.halves:
            return "true"
        return b.op(f"or i1 {b.compare('ne', self.p['pack_b'], 0)}, {b.compare('ne', columns, line)}")

    def _pack(self, base: str, panels: tuple[str, str]) -> None:
        """Pack a task's panels of B, with all of k: where columns follow each other, line by line for all panels."""
        b, p, code = self.b, self.p, self.code
        if code.right.codes is not None:
            with b.loop(
                panels[0], b.op(f"select i1 {b.compare('ne', p['pack_b'], 0)}, i64 {panels[1]}, i64 0")
            ) as panel:
                line = self.line(b.min(b.sub(p["n"], b.mul(panel, self.wide)), self.wide))
                groups = b.address(base, "u8", b.mul(panel, p["b.panel"]))
                expand_panel(b, code.right.codes, groups, p["k"], line, self._packed(b.sub(panel, panels[0]), "0"))
            return
        strides = self._strides()
        by_line = code.right.column == "1"

        def part(first: str, length: str, place: str) -> None:
            """Lines from ``first`` on, whose first element lies at ``place``."""
            with b.loop(*panels) as panel:
                column = b.mul(panel, self.wide)
                columns = b.min(b.sub(p["n"], column), self.wide)
                line = self.line(columns)
                source = b.address(base, code.right.dtype, b.add(place, b.mul(column, strides[1])))
                target = self._packed(b.sub(panel, panels[0]), b.mul(first, line))
                arguments = (source, strides, length, columns, target, b.mul(line, self.size))
                function = p.get("b.transpose", "")

                def pack() -> None:
                    if code.right.step == "taps":
                        taps = (p["b.taps"], self.sums)
                        pack_taps(b, code.dtype, code.right.dtype, *arguments, function, *taps)
                    else:
                        pack_panel(b, code.dtype, code.right.dtype, *arguments, function)

                b.branch(self._is_packed(columns, line), pack)

        if by_line:
            with b.loop(0, p["k"]) as k:
                part(k, "1", b.mul(k, strides[0]))
        else:
            part("0", p["k"], "0")
        if code.right.halves:
            with b.loop(*panels) as panel:
                line = self.line(b.min(b.sub(p["n"], b.mul(panel, self.wide)), self.wide))
                round_lines(b, code.right.halves, self._packed(b.sub(panel, panels[0]), "0"), p["k"], line)

    def _packed(self, number: str, inside: str) -> str:
        """Address of a task's ``number``-th packed panel, ``inside`` elements from its start; or of the only one."""
        b, p = self.b, self.p
        start = b.mul(b.mul(b.mul(number, p["pack_b"]), self.wide), p["k"])
        return b.address(self.panel_b, self.code.dtype, b.add(start, inside))

    def line(self, columns: str) -> str:
        """Elements of a panel's line."""
        b = self.b
        return b.op(f"and i64 {b.add(columns, self.width - 1)}, {-self.width}")

    def _right(self, base: str, number: str, index: str, columns: str, chunk: Chunk, line: str) -> tuple[str, str]:
        """Address of the lines of B's panel ``index`` for a chunk and their distance in bytes.

        ``number`` is which of the task's panels it is. For few columns the address and the distance of columns; for a
        weight of a few bits that few rows meet, the address of its groups.
        """
        b, p, code = self.b, self.p, self.code
        if code.few:
            distance = p["k"] if code.right.step == "packed" else p["b.column"]
            return b.address(base, code.right.dtype, chunk.start), b.mul(distance, self.size)
        column = b.mul(index, self.wide)
        inside = b.mul(self.steps(chunk.start), line)
        line_bytes = b.mul(line, self.size)
        if code.right.codes is not None:
            groups = b.address(base, "u8", b.mul(index, p["b.panel"]))
            made = b.compare("ne", p["pack_b"], 0)
            return b.op(f"select i1 {made}, ptr {self._packed(number, inside)}, ptr {groups}"), line_bytes
        if code.right.step == "packed":
            return b.address(base, code.right.dtype, b.add(b.mul(column, self.steps(p["k"])), inside)), line_bytes
        panel = self._packed(number, inside)
        packed = self._is_packed(columns, line)
        if packed == "true":
            return panel, line_bytes
        step = self._strides()[0]
        source = b.address(base, code.dtype, b.add(b.mul(chunk.start, step), column))
        return (
            b.op(f"select i1 {packed}, ptr {panel}, ptr {source}"),
            b.op(f"select i1 {packed}, i64 {line_bytes}, i64 {b.mul(step, self.size)}"),
        )
