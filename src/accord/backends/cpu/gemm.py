"""The contraction kernel: ``C[m, n] = epilogue(sum over k of A[m, k] * B[k, n])`` for each of several groups.

Rows of A come from a :class:`Source` (a matrix, the patches of an image, the image itself), read in place or through a
panel that the source fills; B is packed at load where it is constant, else as it is needed. Blocks follow the caches
(Goto and van de Geijn; Van Zee and van de Geijn, "BLIS", 2015): a block of rows of A stays in the second level while
panels of B pass through the first. The sums go in and out of registers every so many steps along k, which is also what
keeps them accurate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from accord.backends.cpu.dot import DotCode
from accord.backends.cpu.jit import machine
from accord.backends.cpu.lanes import Lanes, lanes_for, multiply
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.panels import Chunk, Rows, Source, pack_panel, pack_taps
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.store import Pattern, Store
from accord.backends.cpu.tile import CACHE_LINE, MOST_HEIGHT, TileCode
from accord.backends.cpu.transpose import TransposeCode, block_width, converted, moved_by
from accord.expr.lang import Expr, bits, topological

__all__ = ["CALL_FIELDS", "CHUNK_FIELDS", "GemmCode", "Right", "Writer"]

#: Words of a chunk of k in the parameters: first k, length, first piece, end of pieces.
CHUNK_FIELDS = 4
#: Words of a call of a tile on a staged image: bytes from a row's start, first k, length, segments.
CALL_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Right:
    """B.

    Attributes:
        dtype: Element type in memory.
        step: Along k: "1", "s", "taps" where k counts taps and then channels but taps are next to each other, or
            "packed" for panels that were made at load.
        column: From column to column: "1" or "s".
    """

    dtype: str
    step: str
    column: str = "1"


@dataclass(frozen=True)
class GemmCode(KernelCode):
    """Code of a contraction. Operands: A, B, the extras, C, scratch. For the parameters see :attr:`names`.

    Attributes:
        dtype: In which sums are made: "f32" or "f64"; or "i32", where elements of panels and tiles are the lanes of
            :mod:`accord.backends.cpu.lanes`, while chunks of k are counted in elements of A.
        vectors: Vectors of a tile's row.
        few: Columns, where they are so few that tiles have vectors along k (:mod:`accord.backends.cpu.dot`); else 0.
        flat: A tile of few columns is stored as one line.
        left: A.
        right: B.
        group_axes: Number of axes of the groups, each with strides of all operands.
        row_axes: Number of axes of the rows.
        extras: Operands 1, 2 ... of the expression.
        out: C.
        expr: What is stored: operand 0 is the sum. The operand after the extras, where integers are multiplied, is the
            sum of A's row.
        padding: Which of the extras is what an image of integers has around it, a single element.
    """

    dtype: str
    vectors: int
    few: int
    flat: bool
    left: Source
    right: Right
    group_axes: int
    row_axes: int
    extras: tuple[Pattern, ...]
    out: Pattern
    expr: Expr
    padding: int | None = None

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.dtype};{self.vectors};{self.few};{self.flat};{self.left};{self.right};{self.group_axes};"
            f"{self.row_axes};{self.extras};{self.out};{self.expr.key};{self.padding}"
        )
        return "gemm_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def names(self) -> tuple[str, ...]:
        """What the parameters mean, in order.

        After them, for a whole panel and for the last one, the height of the next tile for each number of rows that
        are left, below that of the highest; then chunks of k (or calls), then the source's pieces.

        ``block`` rows share a panel of A; ``task_groups``, ``task_rows`` and ``task_panels`` are a task; ``run`` is the
        greatest length of a sum in registers; ``parts`` is 1 where sums of several chunks are kept apart; ``*_at`` are
        offsets of areas of a thread's scratch memory of ``scratch`` bytes, which begins after ``shared`` bytes.
        ``tile`` and ``high`` are the tiles for a whole panel and their greatest height, ``tile.last`` and ``high.last``
        those of the last one.
        """
        operands: list[str] = []
        for name, p in self.operands.items():
            operands += [f"{name}.offset", *([f"{name}.column"] if p.column == "s" else [])]
            operands += {"u": [f"{name}.row"], "t": [f"{name}.row{i}" for i in range(self.row_axes)]}.get(p.row, [])
        groups = [f"group{i}.{what}" for i in range(self.group_axes) for what in ("size", "a", "b", *self.operands)]
        column = ("b.column",) if self.right.column == "s" else ()
        right = {"packed": (), "1": column, "s": ("b.k", *column), "taps": ("b.k", "b.taps", *column)}
        return (
            *"groups m n k task_groups task_rows task_panels row_tasks column_tasks block panels chunks".split(),
            *"run parts direct pack_b pitch shared scratch a_at b_at stage_at tables_at rows_at".split(),
            *"tile high tile.last high.last a.offset b.offset".split(),
            *self.left.names,
            *right[self.right.step],
            *self.transposes,
            *operands,
            *groups,
            *(f"rows{i}" for i in range(1, self.row_axes)),
        )

    @property
    def operands(self) -> dict[str, Pattern]:
        """C and the extras by name."""
        return {"c": self.out, **{f"e{i}": e for i, e in enumerate(self.extras)}}

    @property
    def transposes(self) -> dict[str, tuple[str, str, int]]:
        """Functions of :mod:`accord.backends.cpu.transpose` that it calls: element types and width by name."""
        memory = "u8" if self.out.dtype == "bool" else self.out.dtype
        panel = self.lanes.left
        found = {"a.transpose": (self.left.dtype, panel, block_width(panel))} if self.left.transposes else {}
        if self.right.step in ("1", "taps") and not self.few:
            found["b.transpose"] = (self.right.dtype, self.dtype, block_width(self.dtype))
        if self.out.column == "s" and self.out.row == "1":
            found["c.transpose"] = (memory, memory, machine().width(bits(self.dtype)))
        return found

    @property
    def needs(self) -> tuple[KernelCode, ...]:
        """The tiles for a whole panel, and transpositions."""
        tile = DotCode(self.dtype, self.few) if self.few else TileCode(self.dtype, self.vectors)
        return (tile, *(TransposeCode(*block) for block in self.transposes.values()))

    @property
    def lanes(self) -> Lanes:
        """What an element of a tile is."""
        return lanes_for(self.dtype)

    @property
    def sums_rows(self) -> bool:
        """Whether the expression has sums of A's rows."""
        return any(e.op == "operand" and e.value == 1 + len(self.extras) for e in topological((self.expr,)))

    @property
    def apart(self) -> int:
        """Bytes of an element of C if its columns are apart; else 0."""
        return max(1, bits(self.out.dtype) // 8) if self.out.column == "s" else 0

    @property
    def tables(self) -> tuple[str, ...]:
        """Operands whose rows are looked up."""
        return tuple(name for name, p in self.operands.items() if p.row == "t")

    def module(self, name: str) -> str:
        """LLVM text."""
        return Writer(self, name).write()


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of k for which tiles are computed: a chunk, and whether it is the first and the last."""

    chunk: Chunk
    again: str
    final: str


class Writer:
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
            self.b, self.code.lanes.left, self.p, base, self.rows, row, rows, chunk, self.panel_a, self.p["pitch"]
        )

    def _left(self, base: str, row: str, rows: str, chunk: Chunk) -> tuple[str, str]:
        """Address of a block of A for a chunk, and bytes from row to row."""
        b, p, code = self.b, self.p, self.code
        if not code.left.direct or code.left.dtype != code.lanes.left:
            self.fill(base, row, rows, chunk)
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
        right = self._right(here["b"], number, column, columns, part.chunk, line)
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
            soon = self.soon(right[0], ahead, first, rows, part.chunk.length, high)
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
        whole = b.mul(p["k"], self.wide)
        back = b.sub(b.mul(chunk.length, self.wide), b.mul(b.sub(panel, panels[0]), whole))
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
            call(a, right[0], part.chunk.length, p["run"], "1", part.again)
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
        if self._strides()[1] != "1" or self.code.right.dtype != self.code.dtype:
            return "true"
        return b.op(f"or i1 {b.compare('ne', self.p['pack_b'], 0)}, {b.compare('ne', columns, line)}")

    def _pack(self, base: str, panels: tuple[str, str]) -> None:
        """Pack a task's panels of B, with all of k: where columns follow each other, line by line for all panels."""
        b, p, code = self.b, self.p, self.code
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

    def _packed(self, number: str, inside: str) -> str:
        """Address of a task's ``number``-th packed panel, ``inside`` elements from its start; or of the only one."""
        b, p = self.b, self.p
        start = b.mul(b.mul(b.mul(number, p["pack_b"]), self.wide), p["k"])
        return b.address(self.panel_b, self.code.dtype, b.add(start, inside))

    def line(self, columns: str) -> str:
        """Elements of a panel's line."""
        b = self.b
        return b.op(f"and i64 {b.add(columns, self.width - 1)}, {-self.width}")

    def _right(self, base: str, number: str, column: str, columns: str, chunk: Chunk, line: str) -> tuple[str, str]:
        """Address of B's lines for a chunk and their distance in bytes; for few columns, of its columns."""
        b, p, code = self.b, self.p, self.code
        if code.few:
            distance = p["k"] if code.right.step == "packed" else p["b.column"]
            return b.address(base, code.right.dtype, chunk.start), b.mul(distance, self.size)
        inside = b.mul(chunk.start, line)
        line_bytes = b.mul(line, self.size)
        if code.right.step == "packed":
            return b.address(base, code.right.dtype, b.add(b.mul(column, p["k"]), inside)), line_bytes
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
