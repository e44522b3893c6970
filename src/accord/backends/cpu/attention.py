"""Attention in blocks: softmax(scale * Q Kᵀ + mask) V without the matrix of scores.

A task has one image, one key head and some of the rows that use it (queries of all query heads of the group). It
walks blocks of keys: scores of a block of rows come from the register tile, the rows' maxima so far are raised,
what was summed before is scaled down accordingly, and the probabilities of the block meet the values in another tile
(Dao et al., "FlashAttention" (2022); Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018)).
Blocks that no row sees (causal, windows) are left out.

A block's keys are transposed into panels for the tile; for few rows the tile with vectors along the head size reads
them as they are. Values are read in place where their rows are whole vectors of the accumulator's type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accord.backends.cpu.attention_rows import SoftmaxRows
from accord.backends.cpu.dot import MOST_COLUMNS
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.panels import clear, copy, gather, transpose
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.tile import MOST_HEIGHT, most_rows
from accord.expr.lang import Expr, bits, cast, operand
from accord.expr.math import expand
from accord.expr.primitives import eq, select
from accord.record import record

__all__ = [
    "AREAS",
    "BLOCK_PANELS",
    "FEW",
    "KEY_VECTORS",
    "TILES",
    "AttentionCode",
    "AttentionWriter",
    "Mask",
    "block_rows",
]

#: Vectors of keys in a panel.
KEY_VECTORS = 2
#: Panels of a block of keys.
BLOCK_PANELS = 8
#: Most rows for which keys are read as they are.
FEW = MOST_COLUMNS
#: Scores, values, scores of few rows.
TILES = ("k", "v", "few")
#: Parts of a thread's scratch memory.
AREAS = 9


def block_rows(dtype: str) -> int:
    """Rows for which a block of scores is made at a time: whole tiles, so that the scores stay in the first cache."""
    return 3 * most_rows(dtype, KEY_VECTORS)


@record
class Mask:
    """The mask.

    Attributes:
        dtype: "bool": whether a key is seen; a float is added to the scores.
        step: Its stride along keys: "1" or "s".
    """

    dtype: str
    step: str


@record
class AttentionCode(KernelCode):
    """Code for these types and features.

    Attributes:
        sums: "f32" or "f64".
        query: Element type of the queries.
        key: Of the keys.
        value: Of the values.
        out: Of the result.
        units: Whether elements of a head follow each other in queries, keys, values and results.
        mask: The mask, if there is one.
        softcap: Scores go through ``softcap * tanh(score / softcap)``.
        causal: A query sees no keys after its own place.
        left: There is a window before it.
        right: There is a window after it.
        valid: The number of keys is given for each image.
        score: What becomes of a score (operand 0), given the places of query and key, the number of the head and how
            many there are (operands 1 to 4), all in the sums' type; None for nothing.
        value_vectors: Vectors of values in a panel.
    """

    sums: str
    query: str
    key: str
    value: str
    out: str
    units: tuple[bool, bool, bool, bool]
    mask: Mask | None
    softcap: bool
    causal: bool
    left: bool
    right: bool
    valid: bool
    value_vectors: int
    score: Expr | None = None

    @property
    def symbol(self) -> str:
        """Name by content."""
        types = f"{self.sums};{self.query};{self.key};{self.value};{self.out};{self.units};{self.mask}"
        flags = f"{self.softcap};{self.causal};{self.left};{self.right};{self.valid};{self.value_vectors}"
        flags += "" if self.score is None else f";{self.score.key}"
        return "attention_" + hashlib.sha256(f"{types};{flags}".encode()).hexdigest()[:24]

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters in order.

        ``q.b`` ... are strides along images, heads, positions and head size; ``rows`` are the queries of a group,
        ``chunk`` those of a task; ``offset`` is the place of the first query among the keys. Scale and cap are bits of
        the sums' type. ``tile.k``, ``tile.v`` and ``tile.few`` are addresses of tiles; ``few`` says that keys are read
        as they are, ``direct`` that values are; ``turn`` is the address of what transposes keys. ``high.k`` ... are the
        tiles' greatest heights; behind the parameters named here there is, for each of these tiles, the height of the
        next one for each number of rows that are left.
        """
        strides = [f"{t}.{a}" for t in ("q", "k", "v", "y") for a in ("o", "b", "h", "l", "d")]
        strides += [f"m.{a}" for a in ("o", "b", "h", "l", "d", "n")] if self.mask is not None else []
        sizes = ["length", "keys", "group", "heads", "rows", "size", "value.size", "chunk", "chunks"]
        rest = ["scale", "cap", "offset", "left", "right", "valid.step", "few", "turn"]
        rest += [f"{what}.{t}" for what in ("tile", "high") for t in TILES]
        areas = [f"area{i}" for i in range(AREAS - 1)]
        return (*strides, *sizes, *rest, "direct", "shared", "scratch", *areas)

    def module(self, name: str) -> str:
        """LLVM text."""
        return AttentionWriter(self, name).write()


class _Parameters:
    """Parameters by name, loaded where they are used: so many would not stay in registers anyhow."""

    def __init__(self, b: Builder, names: Sequence[str]) -> None:
        self._b = b
        self._index = {n: i for i, n in enumerate(names)}

    def __getitem__(self, name: str) -> str:
        return self._b.param(self._index[name])


#: Attributes of the writer that are addresses; the others that functions get are integers.
_ADDRESSES = frozenset(
    {"factor", "key_rows", "keys", "mask", "peak", "q", "queries", "row_queries", "row_values", "scores", "source"}
    | {"sums", "total", "turned", "values", "y"}
)


class AttentionWriter:
    """Operands: queries, keys, values, the mask and the numbers of keys if there are, results, scratch memory."""

    def __init__(self, code: AttentionCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.width = machine().width(bits(code.sums))
        self.size = bits(code.sums) // 8
        self.panel = KEY_VECTORS * self.width
        self.block = BLOCK_PANELS * self.panel
        self.rows = block_rows(code.sums)
        self.value_panel = code.value_vectors * self.width

    def write(self) -> str:
        """LLVM text."""
        b, code = self.b, self.code
        p = self.p = _Parameters(b, code.names)
        self.functions: list[Builder] = []
        operands = [b.operand(i) for i in range(5 + (code.mask is not None) + code.valid)]
        self.q = b.address(operands[0], code.query, p["q.o"])
        self.k = b.address(operands[1], code.key, p["k.o"])
        self.v = b.address(operands[2], code.value, p["v.o"])
        self.mask = b.address(operands[3], code.mask.dtype, p["m.o"]) if code.mask is not None else ""
        self.valid = operands[3 + (code.mask is not None)] if code.valid else ""
        self.y = b.address(operands[-2], code.out, p["y.o"])
        self.few = b.compare("ne", p["few"], 0)
        self.height = b.op(f"select i1 {self.few}, i64 {p['rows']}, i64 {self.rows}")
        self._scratch(operands[-1])
        with b.loop("%first", "%last") as task:
            rest, self.chunk = b.divmod(task, p["chunks"])
            self.image, self.head = b.divmod(rest, p["heads"])
            self._task()
        return b.module(*self.functions)

    @contextmanager
    def _apart(self, name: str, *carried: str) -> Iterator[None]:
        """Write a function of its own, to which attributes of the writer are handed, and a call of it.

        LLVM spends more than linear time on address arithmetic in deep nests of loops.
        """
        outer, parameters = self.b, self.p
        saved = {n: getattr(self, n) for n in carried}
        types = ["ptr" if n in _ADDRESSES else "i64" for n in carried]
        arguments = "".join(f", {t} %in.{n}" for t, n in zip(types, carried, strict=True))
        self.b = Builder(name, f"ptr %params{arguments}", internal=True)
        self.p = _Parameters(self.b, self.code.names)
        for n in carried:
            setattr(self, n, f"%in.{n}")
        yield
        self.functions.append(self.b)
        self.b, self.p = outer, parameters
        for n, value in saved.items():
            setattr(self, n, value)
        given = "".join(f", {t} {v}" for t, v in zip(types, saved.values(), strict=True))
        outer.emit(f"call void @{name}(ptr %params{given})")

    def _ceildiv(self, a: str, n: int) -> str:
        return self.b.op(f"udiv i64 {self.b.add(a, n - 1)}, {n}")

    def _scratch(self, base: str) -> None:
        """Addresses of the thread's own memory; their sizes are parameters."""
        b, p = self.b, self.p
        at = b.address(base, "u8", b.add(p["shared"], b.mul("%thread", b.add(p["shared"], p["scratch"]))))
        places: list[str] = []
        for area in range(AREAS):
            places.append(at)
            if area < AREAS - 1:
                at = b.address(at, "u8", p[f"area{area}"])
        self.queries, self.sums, self.peak, self.total, self.factor, self.scores = places[:6]
        self.turned, self.keys, self.values = places[6:]

    @property
    def pitch(self) -> str:
        """Elements from query to query."""
        return self.b.mul(self._ceildiv(self.p["size"], self.width), self.width)

    @property
    def value_panels(self) -> str:
        """Panels of a row of values."""
        return self._ceildiv(self.p["value.size"], self.value_panel)

    @property
    def value_pitch(self) -> str:
        """Elements of these."""
        return self.b.mul(self.value_panels, self.value_panel)

    # a task

    def _task(self) -> None:
        b, p = self.b, self.p
        self.first = b.mul(self.chunk, p["chunk"])
        self.count = b.min(p["chunk"], b.sub(p["rows"], self.first))
        self.here = p["offset"]
        self.limit = p["keys"]
        if self.code.valid:
            at = b.address(self.valid, "i64", b.mul(self.image, p["valid.step"]))
            given = b.op(f"load i64, ptr {at}")
            self.here = b.sub(given, p["length"])
            self.limit = b.max(b.min(self.limit, given), 0)
        if self.code.mask is not None:
            self.limit = b.min(self.limit, p["m.n"])
        with self._apart("start", "q", "queries", "sums", "peak", "total", "first", "count", "image", "head"):
            self._start()
        low, high = self._seen(self.first, self.count)
        begin = b.mul(b.op(f"udiv i64 {b.max(low, 0)}, {self.block}"), self.block)
        with b.loop(begin, high, self.block) as self.key:
            self.n = b.min(b.sub(p["keys"], self.key), self.block)
            self._pack_keys()
            self._pack_values()
            with b.loop(0, self.count, self.rows) as self.r:
                self.block_rows = b.min(b.sub(self.count, self.r), self.rows)
                low, self.high = self._seen(b.add(self.first, self.r), self.block_rows)
                reached = b.compare("sgt", b.add(self.key, self.n), low)
                b.branch(b.op(f"and i1 {b.compare('slt', self.key, self.high)}, {reached}"), self._block)
        with self._apart("finish", "y", "sums", "total", "height", "first", "count", "image", "head"):
            self._finish()

    def _start(self) -> None:
        """Queries times the scale, without gaps; sums of nothing."""
        b, p, code = self.b, self.p, self.code
        head = b.address(self.q, code.query, b.mul(self.image, p["q.b"]))
        with b.loop(0, self.count) as r:
            source = self._row(head, code.query, "q", b.add(self.first, r))
            target = b.address(self.queries, code.sums, b.mul(r, self.pitch))
            self._scaled(source, target)
        padded = b.mul(self._ceildiv(self.count, self.rows), self.rows)
        clear(b, code.sums, self.sums, b.mul(padded, self.value_pitch))
        many = Printer(b, self.width)
        low = "0xFFF0000000000000"
        with b.loop(0, self.count, self.width) as r:
            for address, number in zip((self.peak, self.total), (low, "0.0"), strict=True):
                many.store(code.sums, many.splat(code.sums, number, self.width), b.address(address, code.sums, r))

    def place(self, row: str) -> tuple[str, str]:
        """Query head within the group, and position, of a row."""
        return self.b.divmod(row, self.p["length"])

    def _row(self, base: str, dtype: str, name: str, row: str) -> str:
        """Address of a row of queries or results."""
        b, p = self.b, self.p
        member, position = self.place(row)
        head = b.add(b.mul(self.head, p["group"]), member)
        return b.address(base, dtype, b.add(b.mul(head, p[f"{name}.h"]), b.mul(position, p[f"{name}.l"])))

    def _scaled(self, source: str, target: str) -> None:
        b, p, code = self.b, self.p, self.code
        scale = self.real("scale")
        expr = expand(cast(operand(0, code.query), code.sums) * operand(1, code.sums))
        one, w = Printer(b, 1), self.width
        if not code.units[0]:
            with b.loop(0, p["size"]) as d:
                x = one.load(code.query, b.address(source, code.query, b.mul(d, p["q.d"])))
                one.store(code.sums, Printer(b, 1).value(expr, [x, scale]), b.address(target, code.sums, d))
            return
        many = Printer(b, w)
        spread = many.splat(code.sums, scale, w)
        with b.loop(0, p["size"], w) as d:
            x = many.load_masked(code.query, b.address(source, code.query, d), b.min(b.sub(p["size"], d), w))
            many.store(code.sums, Printer(b, w).value(expr, [x, spread]), b.address(target, code.sums, d))

    def real(self, name: str) -> str:
        """A parameter that is the bits of a number."""
        b = self.b
        if self.code.sums == "f64":
            return b.op(f"bitcast i64 {self.p[name]} to double")
        return b.op(f"bitcast i32 {b.op(f'trunc i64 {self.p[name]} to i32')} to float")

    # what a row sees

    def range(self, position: str) -> tuple[str, str]:
        """The first key that a query sees, and the one after the last."""
        b, p, code = self.b, self.p, self.code
        place = b.add(position, self.here)
        low, high = "0", self.limit
        if code.left:
            low = b.max(b.sub(place, p["left"]), 0)
        if code.causal:
            high = b.min(high, b.add(place, 1))
        if code.right:
            high = b.min(high, b.add(b.add(place, p["right"]), 1))
        return low, high

    def _seen(self, first: str, count: str) -> tuple[str, str]:
        """Keys that some of ``count`` rows from ``first`` on see."""
        b = self.b
        if not (self.code.left or self.code.causal or self.code.right):
            return self.range("0")
        one, lowest = self.place(first)
        other, highest = self.place(b.sub(b.add(first, count), 1))
        same = b.compare("eq", one, other)
        lowest = b.op(f"select i1 {same}, i64 {lowest}, i64 0")
        highest = b.op(f"select i1 {same}, i64 {highest}, i64 {b.sub(self.p['length'], 1)}")
        return self.range(lowest)[0], self.range(highest)[1]

    # keys and values

    def _pack_keys(self) -> None:
        """Panels of keys; for few rows, rows of keys where they are no rows of the sums' type."""
        b, p, code = self.b, self.p, self.code
        base = b.add(b.mul(self.image, p["k.b"]), b.mul(self.head, p["k.h"]))
        self.source = b.address(self.k, code.key, b.add(base, b.mul(self.key, p["k.l"])))
        as_they_are = code.key == code.sums and code.units[1]
        self.key_rows = self.source if as_they_are else self.keys
        self.key_row = p["k.l"] if as_they_are else self.pitch

        def rows() -> None:
            if not as_they_are:
                with self._apart("key_rows", "source", "keys", "n"):
                    self._copied(code.key, "k", code.units[1], "size", self.keys, self.pitch)

        def panels() -> None:
            with self._apart("key_panels", "source", "keys", "n"):
                self._panels()

        b.branch(self.few, rows, panels)

    def _copied(self, dtype: str, name: str, unit: bool, size: str, target: str, pitch: str) -> None:
        """Rows of keys or values in the sums' type, without gaps."""
        b, p = self.b, self.p
        with b.loop(0, self.n) as j:
            line = b.address(self.source, dtype, b.mul(j, p[f"{name}.l"]))
            place = b.address(target, self.code.sums, b.mul(j, pitch))
            if unit:
                copy(b, self.code.sums, dtype, line, p[size], place)
            else:
                gather(b, self.code.sums, dtype, line, p[f"{name}.d"], p[size], place)

    def _panels(self) -> None:
        """Transposed panels of keys."""
        b, p, code = self.b, self.p, self.code
        with b.loop(0, self.n, self.panel) as j:
            line = b.address(self.source, code.key, b.mul(j, p["k.l"]))
            target = b.address(self.keys, code.sums, b.mul(j, self.pitch))
            lines = b.min(b.sub(self.n, j), self.panel)
            if code.units[1]:
                pitch, turn = str(self.panel * self.size), p["turn"]
                transpose(b, turn, code.sums, code.key, line, p["k.l"], lines, p["size"], target, pitch)
            else:
                self._single_elements(line, lines, target)

    def _single_elements(self, line: str, lines: str, target: str) -> None:
        b, p, code = self.b, self.p, self.code
        with b.loop(0, lines) as i, b.loop(0, p["size"]) as d:
            at = b.add(b.mul(i, p["k.l"]), b.mul(d, p["k.d"]))
            value = self._converted(code.key, b.address(line, code.key, at))
            place = b.address(target, code.sums, b.add(b.mul(d, self.panel), i))
            Printer(b, 1).store(code.sums, value, place)

    def _converted(self, dtype: str, address: str) -> str:
        one = Printer(self.b, 1)
        return one.value(expand(cast(operand(0, dtype), self.code.sums)), [one.load(dtype, address)])

    def _pack_values(self) -> None:
        """Find the values of a block of keys: where they are, or rows of the sums' type."""
        b, p, code = self.b, self.p, self.code
        base = b.add(b.mul(self.image, p["v.b"]), b.mul(self.head, p["v.h"]))
        self.source = b.address(self.v, code.value, b.add(base, b.mul(self.key, p["v.l"])))
        direct = b.compare("ne", p["direct"], 0)

        def pack() -> None:
            with self._apart("value_rows", "source", "values", "n"):
                self._copied(code.value, "v", code.units[2], "value.size", self.values, self.value_pitch)

        b.branch(direct, lambda: None, pack)
        packed, own = b.mul(self.value_pitch, self.size), b.mul(p["v.l"], self.size)
        self.value_row = b.op(f"select i1 {direct}, i64 {own}, i64 {packed}")
        self.row_values = b.op(f"select i1 {direct}, ptr {self.source}, ptr {self.values}")

    # a block of rows against a block of keys

    def _block(self) -> None:
        b, real = self.b, self.code.sums
        self.panels = self._ceildiv(b.min(self.n, b.sub(self.high, self.key)), self.panel)
        self.row_queries = b.address(self.queries, real, b.mul(self.r, self.pitch))

        def few() -> None:
            with self._apart("few_scores", "row_queries", "key_rows", "key_row", "scores", "turned", "n"):
                self._few_scores()

        def many() -> None:
            with self._apart("scores", "row_queries", "keys", "scores", "block_rows", "panels", "height"):
                self._scores()

        b.branch(self.few, few, many)
        rows = SoftmaxRows(self)
        if self.code.mask is None:
            self.mask = "null"
        state = ("scores", "peak", "total", "factor", "sums", "block_rows", "panels", "height", "r", "first", "key")
        with self._apart("softmax", *state, "mask", "image", "head", "here", "limit"):
            rows.write()
        self.lines = b.min(self.n, b.mul(self.panels, self.panel))
        carried = ("scores", "sums", "row_values", "value_row", "block_rows", "lines", "height", "r")
        with self._apart("add_values", *carried):
            self._add_values()

    def _scores(self) -> None:
        b, p, real = self.b, self.p, self.code.sums
        tile = b.op(f"inttoptr i64 {p['tile.k']} to ptr")
        pitch, size = self.pitch, p["size"]
        row, step = b.mul(pitch, self.size), str(self.panel * self.size)
        with b.loop(0, self.panels) as panel:
            line = b.address(self.keys, real, b.mul(panel, b.mul(pitch, self.panel)))
            sums = b.address(self.scores, real, b.mul(panel, b.mul(self.height, self.panel)))
            with self._tiles(self.block_rows, "k") as (i, height):
                a = b.address(self.row_queries, real, b.mul(i, pitch))
                c = b.address(sums, real, b.mul(i, self.panel))
                self._call(tile, (a, row), (line, step), (size, "1", "0"), c, height, "0")

    def _few_scores(self) -> None:
        """Keys are the tile's rows and queries its columns; then the result is turned around."""
        b, p, real = self.b, self.p, self.code.sums
        tile = b.op(f"inttoptr i64 {p['tile.few']} to ptr")
        rows, size = p["rows"], p["size"]
        single = b.compare("eq", rows, 1)
        target = b.op(f"select i1 {single}, ptr {self.scores}, ptr {self.turned}")
        line, column = b.mul(self.key_row, self.size), b.mul(self.pitch, self.size)
        with self._tiles(self.n, "few") as (j, height):
            a = b.address(self.key_rows, real, b.mul(j, self.key_row))
            c = b.address(target, real, b.mul(j, rows))
            self._call(tile, (a, line), (self.row_queries, column), (size, "1", "0"), c, height, "0")

        def turn() -> None:
            one = Printer(b, 1)
            with b.loop(0, self.n) as j:
                panel, lane = b.divmod(j, self.panel)
                start = b.add(b.mul(panel, b.mul(rows, self.panel)), lane)
                with b.loop(0, rows) as i:
                    value = one.load(real, b.address(self.turned, real, b.add(b.mul(j, rows), i)))
                    one.store(real, value, b.address(self.scores, real, b.add(start, b.mul(i, self.panel))))

        b.branch(single, lambda: None, turn)

    def _add_values(self) -> None:
        """Probabilities times values, added to the sums."""
        b, p, real = self.b, self.p, self.code.sums
        tile = b.op(f"inttoptr i64 {p['tile.v']} to ptr")
        row, segment = str(self.panel * self.size), b.mul(self.height, self.panel * self.size)
        whole = b.op(f"udiv i64 {self.lines}, {self.panel}")
        rest = b.sub(self.lines, b.mul(whole, self.panel))
        sums = b.address(self.sums, real, b.mul(self.r, self.value_pitch))
        value_row = self.value_row
        with b.loop(0, self.value_panels) as panel:
            right = b.address(self.row_values, real, b.mul(panel, self.value_panel))
            target = b.address(sums, real, b.mul(panel, b.mul(self.height, self.value_panel)))
            with self._tiles(self.block_rows, "v") as (i, height):
                a = b.address(self.scores, real, b.mul(i, self.panel))
                c = b.address(target, real, b.mul(i, self.value_panel))

                def main(a: str = a, c: str = c, right: str = right, height: str = height) -> None:
                    self._call(tile, (a, row), (right, value_row), (str(self.panel), whole, segment), c, height, "1")

                def tail(a: str = a, c: str = c, right: str = right, height: str = height) -> None:
                    last = b.op(f"getelementptr i8, ptr {a}, i64 {b.mul(whole, segment)}")
                    below = b.mul(b.mul(whole, self.panel), value_row)
                    at = b.op(f"getelementptr i8, ptr {right}, i64 {below}")
                    self._call(tile, (last, row), (at, value_row), (rest, "1", "0"), c, height, "1")

                b.branch(b.compare("sgt", whole, 0), main)
                b.branch(b.compare("sgt", rest, 0), tail)

    def _call(
        self,
        tile: str,
        left: tuple[str, str],
        right: tuple[str, str],
        walk: tuple[str, str, str],
        sums: str,
        rows: str,
        add: str,
    ) -> None:
        """Call a tile; ``walk`` is the length of a segment, their number, and bytes from one to the next."""
        k, segments, segment = walk
        self.b.emit(
            f"call void {tile}(ptr {left[0]}, i64 {left[1]}, ptr {right[0]}, i64 {right[1]}, i64 {k}, i64 {k}, "
            f"i64 {segments}, i64 {segment}, ptr {sums}, i64 {rows}, i64 {add})"
        )

    @contextmanager
    def _tiles(self, rows: str, tile: str) -> Iterator[tuple[str, str]]:
        """``for each tile``: its first row and its height, for which a tile exists."""
        b = self.b
        high = self.p[f"high.{tile}"]
        table = b.address("%params", "i64", len(self.code.names) + TILES.index(tile) * MOST_HEIGHT)
        height = b.fresh("height")
        with b.loop(0, rows, height) as r:
            left = b.sub(rows, r)
            smaller = b.min(left, b.sub(high, 1))
            next_ = b.op(f"load i64, ptr {b.address(table, 'i64', smaller)}")
            b.emit(f"{height} = select i1 {b.compare('sge', left, high)}, i64 {high}, i64 {next_}")
            yield r, height

    # the end

    def _finish(self) -> None:
        """Sums divided by the totals; a row that saw nothing gives zeros."""
        b, code = self.b, self.code
        one = Printer(b, 1)
        head = b.address(self.y, code.out, b.mul(self.image, self.p["y.b"]))
        expr = expand(cast(operand(0, code.sums) * operand(1, code.sums), code.out))
        inverse = expand(1.0 / select(eq(operand(0, code.sums), 0.0), 1.0, operand(0, code.sums)))
        with b.loop(0, self.count) as r:
            total = one.load(code.sums, b.address(self.total, code.sums, r))
            factor = Printer(b, 1).value(inverse, [total])
            block, inside = b.divmod(r, self.rows)
            start = b.mul(b.mul(block, self.rows), self.value_pitch)
            source = b.address(self.sums, code.sums, b.add(start, b.mul(inside, self.value_panel)))
            target = self._row(head, code.out, "y", b.add(self.first, r))
            with b.loop(0, self.value_panels) as panel:
                at = b.address(source, code.sums, b.mul(panel, b.mul(self.height, self.value_panel)))
                first = b.mul(panel, self.value_panel)
                count = b.min(b.sub(self.p["value.size"], first), self.value_panel)
                self._store(expr, at, factor, target, first, count)

    def _store(self, expr: Expr, source: str, factor: str, target: str, first: str, count: str) -> None:
        """``count`` elements of a result from number ``first`` on."""
        b, code, w = self.b, self.code, self.width
        one, many = Printer(b, 1), Printer(b, w)
        if not code.units[3]:
            with b.loop(0, count) as d:
                x = one.load(code.sums, b.address(source, code.sums, d))
                place = b.address(target, code.out, b.mul(b.add(first, d), self.p["y.d"]))
                one.store(code.out, Printer(b, 1).value(expr, [x, factor]), place)
            return
        spread = many.splat(code.sums, factor, w)
        with b.loop(0, count, w) as d:
            x = many.load(code.sums, b.address(source, code.sums, d))
            place = b.address(target, code.out, b.add(first, d))
            many.store_masked(code.out, Printer(b, w).value(expr, [x, spread]), place, b.min(b.sub(count, d), w))
