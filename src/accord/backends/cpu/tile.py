"""The register tile in which every contraction ends: ``sums[r, :] (+)= sum over k of A[r, k] * B[k, :]``.

A tile has up to :func:`most_rows` rows and ``vectors`` vectors of columns, whose sums stay in registers; an element of
A is broadcast against each vector of a line of B (Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008, section 4). It knows nothing of what A and B are and of what becomes of the sums: those go to a
buffer that stays in the first-level cache, from which whoever called applies an epilogue. The processor overlaps that
with the next tile, so it costs almost nothing, and one module of tiles serves every contraction of a process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from accord.backends.cpu.jit import machine
from accord.backends.cpu.lanes import lanes, multiply
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.expr.lang import bits
from accord.record import record

__all__ = [
    "CACHE_LINE",
    "IN_FLIGHT",
    "MOST_HEIGHT",
    "TILE_ARGUMENTS",
    "TileCode",
    "by_height",
    "fma",
    "most_rows",
    "next_heights",
    "tile_heights",
    "vectors_for",
]

#: A: address, bytes from row to row; B: address, bytes from line to line; length of the sums; how many products are
#: summed in registers before they are added to memory; segments, and bytes of A from one to the next; the sums, row
#: after row without gaps; rows; whether the first sums are added to what is there; what will be read soon and is to be
#: brought to the second-level cache, a line of the cache for each product, and another one so many bytes on.
#:
#: The lines of B follow each other through all segments. Where there are several, each is as long as the sums, and all
#: of them are summed in registers.
TILE_ARGUMENTS: Final = (
    "ptr %a, i64 %a_row, ptr %b, i64 %b_row, i64 %k, i64 %run, i64 %segments, i64 %segment, "
    "ptr %sums, i64 %rows, i64 %add, ptr %next, i64 %apart"
)

#: Additions that must be under way to keep two units of latency four busy.
IN_FLIGHT: Final = 8
#: Every number of rows up to this is a tile of its own.
_SMALL: Final = 8
#: Greatest height of any tile.
MOST_HEIGHT: Final = 24
#: Rows that share one address register: they are reached as base + {0, 1, 2, 3, 4} times the distance of rows.
_SHARED: Final = 5
#: How many lines of B ahead a tile of few rows asks for: they come from beyond the first cache.
_AHEAD: Final = 16
CACHE_LINE: Final = 64

_Key: TypeAlias = tuple[int, int, int]


def most_rows(dtype: str, vectors: int) -> int:
    """Rows of the highest tile: its sums, a line of B and an element of A fill the registers."""
    wide = machine().vector_bits == 512
    left = (32 if wide else 16) - 1 - vectors
    if lanes().count == 2 if dtype == "i32" else not wide and "fma" not in machine().has:
        left -= 1  # a product needs a register before it is added
    return max(1, min(MOST_HEIGHT if wide else MOST_HEIGHT // 2, left // vectors))


@functools.cache
def tile_heights(dtype: str, vectors: int) -> tuple[int, ...]:
    """Numbers of rows for which there is a tile, highest first."""
    most = most_rows(dtype, vectors)
    return tuple(sorted({most, *([most // 2] if most > 2 * _SMALL else []), *range(1, min(_SMALL, most) + 1)})[::-1])


@functools.cache
def next_heights(heights: tuple[int, ...]) -> tuple[int, ...]:
    """The height of the next tile for each number of rows that are left, below the highest.

    Args:
        heights: Of the tiles that exist, highest first, down to 1.

    Returns:
        :data:`MOST_HEIGHT` numbers: as few tiles as possible, and of those as even ones as possible.
    """
    best: list[tuple[int, ...]] = [()]
    for rows in range(1, heights[0]):
        ways = [(h, *best[rows - h]) for h in heights if h <= rows]
        best.append(min(ways, key=lambda way: (len(way), -min(way), -way[0])))
    return (*(way[0] if way else 0 for way in best), *[0] * (MOST_HEIGHT - len(best)))


def vectors_for(dtype: str, columns: int) -> int:
    """Vectors of a tile for matrices of ``columns`` columns."""
    count = -(-columns // machine().width(bits(dtype)))
    return 1 if count == 1 else 3 if count % 2 and count % 3 != 1 else 2


@record
class TileCode(KernelCode):
    """A module with one function of :data:`TILE_ARGUMENTS` for every height.

    Attributes:
        dtype: "f32" or "f64"; "i32" where an element is a lane of :mod:`accord.backends.cpu.lanes`.
        vectors: Vectors of a row.
        pairs: Elements of A and B are pairs of bf16, neighbours along k; a step adds both products.
    """

    dtype: str
    vectors: int
    pairs: bool = False

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"tile_{self.dtype}_{self.vectors}{'_pairs' if self.pairs else ''}"

    def module(self, name: str) -> str:
        """LLVM text."""
        heights = tile_heights(self.dtype, self.vectors)
        tiles = [_Tile(self, f"{name}_{rows}", rows).write() for rows in heights]
        return by_height(name, heights, tiles) + '\n!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}\n'


def by_height(name: str, heights: Sequence[int], tiles: Sequence[Builder]) -> str:
    """The text of a module of ``tiles``, called ``name`` and a height, and a function that calls the one wanted."""
    b = Builder(name, TILE_ARGUMENTS)
    cases = " ".join(f"i64 {rows}, label %rows{rows}" for rows in heights)
    b.emit(f"switch i64 %rows, label %done [ {cases} ]")
    for rows in heights:
        b.label(f"rows{rows}")
        b.emit(f"musttail call void @{name}_{rows}({TILE_ARGUMENTS})")
        b.emit("ret void")
    b.label("done")
    return b.module(*tiles)


def fma(b: Builder, dtype: str, width: int, x: str, y: str, z: str) -> str:
    """``x * y + z`` of vectors, in one instruction where there is one."""
    return b.op(fma_text(b, dtype, width, x, y, z))


def fma_text(b: Builder, dtype: str, width: int, x: str, y: str, z: str) -> str:
    """The instruction of :func:`fma`."""
    type_ = vector(dtype, width)
    name = f"{type_} @llvm.fmuladd.{dtype if width == 1 else f'v{width}{dtype}'}"
    b.declare(f"declare {name}({type_}, {type_}, {type_})")
    return f"call {name}({type_} {x}, {type_} {y}, {type_} {z})"


class _Tile:
    """Writes the function for one height.

    A low tile has too few sums to hide the latency of an addition; it sums several steps along k apart.
    """

    def __init__(self, code: TileCode, name: str, rows: int) -> None:
        self.dtype, self.vectors, self.rows = code.dtype, code.vectors, rows
        self.b = Builder(name, TILE_ARGUMENTS, internal=True)
        self.width = machine().width(bits(code.dtype))
        self.size = bits(code.dtype) // 8
        self.type = vector(code.dtype, self.width)
        self.zero = "zeroinitializer" if self.width > 1 else "0.0"
        self.add = "add" if code.dtype == "i32" else "fadd"
        self.sets = 1
        while self.sets < 4 and self.sets * rows * self.vectors < IN_FLIGHT:
            self.sets *= 2
        # the loads of a tile of one vector take all the time that its products do
        self.looks_ahead = rows > 2 and self.vectors > 1
        self.keys = [(r, v) for r in range(rows) for v in range(self.vectors)]
        self.pairs = code.pairs

    def _multiply(self, name: str, total: str, left: str, right: str) -> None:
        """``name = total + left * right``."""
        if self.dtype == "i32":
            multiply(self.b, self.width, total, left, right, name)
        else:
            self.b.emit(f"{name} = {self._product(left, right, total)}")

    def write(self) -> Builder:
        b = self.b
        self.row_steps = {0: "0", 1: "%a_row", **{n: b.mul("%a_row", n) for n in range(2, min(_SHARED, self.rows))}}
        self.line_steps = {0: "0", 1: "%b_row", **{n: b.mul("%b_row", n) for n in range(2, self.sets + 1)}}
        self.ahead = b.mul("%b_row", _AHEAD)
        shared = {r: b.mul("%a_row", r) for r in range(_SHARED, self.rows, _SHARED)}
        line = b.mul("%run", "%b_row")
        carried = (("ptr", "%a"), ("ptr", "%b"), ("i64", "%add"), ("ptr", "%next"))
        with b.loop_carrying(0, b.max("%k", 1), "%run", carried) as (i, (left, right, add, soon), following):
            k = b.min(b.sub("%k", i), "%run")
            lines = b.mul(k, "%b_row")
            nothing = tuple((self.type, self.zero) for _ in self.keys)
            inner = (("ptr", left), ("ptr", right), ("ptr", soon), *nothing)
            with b.loop_carrying(0, "%segments", 1, inner) as (_, (a, at, near, *sums), later):
                bases = {0: a, **{r: b.op(f"getelementptr i8, ptr {a}, i64 {step}") for r, step in shared.items()}}
                total = self._sums(k, bases, (at, near), dict(zip(self.keys, sums, strict=True)))
                later.append(b.op(f"getelementptr i8, ptr {a}, i64 %segment"))
                later.append(b.op(f"getelementptr i8, ptr {at}, i64 {lines}"))
                later.append(b.op(f"getelementptr i8, ptr {near}, i64 {b.mul(k, CACHE_LINE)}"))
                later += [total[key] for key in self.keys]
            self._finish(dict(zip(self.keys, later[3:], strict=True)), add)
            following.append(b.op(f"getelementptr i8, ptr {left}, i64 {b.mul('%run', self.size)}"))
            following.append(b.op(f"getelementptr i8, ptr {right}, i64 {line}"))
            following.append("1")
            following.append(b.op(f"getelementptr i8, ptr {soon}, i64 {b.mul('%run', CACHE_LINE)}"))
        return b

    def _sums(
        self, k: str, bases: Mapping[int, str], lines: tuple[str, str], start: Mapping[tuple[int, int], str]
    ) -> dict[tuple[int, int], str]:
        """``start`` and the sums of ``k`` products; ``lines`` are addresses of B and of what is read soon."""
        b, before = self.b, self.b.block
        right, _ = lines
        first = {(u, r, v): start[r, v] if u == 0 else self.zero for u in range(self.sets) for r, v in self.keys}
        if self.sets == 1:
            b.emit(f"br i1 {b.compare('sgt', k, 0)}, label %whole, label %ready")
            sums, _, _, end = self._loop("whole", before, 1, ("0", k), first, bases, lines)
            return self._joined(start, before, sums, end)
        whole = b.op(f"and i64 {k}, {-self.sets}")
        some = b.compare("sgt", whole, 0)
        b.emit(f"br i1 {some}, label %whole, label %rest")
        sums, at, line, end = self._loop("whole", before, self.sets, ("0", whole), first, bases, lines)
        total = {(r, v): self._tree([sums[u, r, v] for u in range(self.sets)]) for r, v in self.keys}
        b.emit("br label %rest")
        b.label("rest")

        def joined(type_: str, early: str, late: str) -> str:
            return b.op(f"phi {type_} [ {early}, %{before} ], [ {late}, %{end} ]")

        middle = {key: joined(self.type, start[key], value) for key, value in total.items()}
        at = {r: joined("ptr", bases[r], later) for r, later in at.items()}
        line = joined("ptr", right, line)
        more = b.compare("slt", whole, k)
        b.emit(f"br i1 {more}, label %single, label %ready")
        first = {(0, r, v): value for (r, v), value in middle.items()}
        sums, _, _, end = self._loop("single", "rest", 1, (whole, k), first, at, (line, lines[1]))
        return self._joined(middle, "rest", sums, end)

    def _joined(
        self, early: Mapping[tuple[int, int], str], before: str, sums: Mapping[_Key, str], end: str
    ) -> dict[tuple[int, int], str]:
        """The sums where the block before the loop and the end of the loop meet."""
        b = self.b
        b.emit("br label %ready")
        b.label("ready")
        return {
            (r, v): b.op(f"phi {self.type} [ {early[r, v]}, %{before} ], [ {sums[0, r, v]}, %{end} ]")
            for r, v in self.keys
        }

    def _loop(
        self,
        name: str,
        before: str,
        sets: int,
        span: tuple[str, str],
        start: Mapping[_Key, str],
        bases: Mapping[int, str],
        lines: tuple[str, str],
    ) -> tuple[dict[_Key, str], dict[int, str], str, str]:
        """``sets`` steps along k at a time, at least once.

        Returns:
            The sums by (set, row, vector); the addresses of A and B where it stopped; the last block.
        """
        b = self.b

        def carried(hint: str, type_: str, first: str) -> tuple[str, str]:
            now, later = b.fresh(hint), b.fresh(hint)
            b.emit(f"{now} = phi {type_} [ {first}, %{before} ], [ {later}, %{name} ]")
            return now, later

        b.label(name)
        i, i_next = carried("i", "i64", span[0])
        at = {r: carried("a", "ptr", base) for r, base in bases.items()}
        b_at, b_next = carried("b", "ptr", lines[0])
        soon = carried("n", "ptr", lines[1]) if self.looks_ahead else None
        sums = {key: carried("s", self.type, value) for key, value in start.items()}
        for u in range(sets):
            here = b_at if u == 0 else b.op(f"getelementptr i8, ptr {b_at}, i64 {self.line_steps[u]}")
            columns = [self._load(here, v) for v in range(self.vectors)]
            if self.rows <= 2:
                self._prefetch(here)
            for r in range(self.rows):
                spread = self._element(at[r // _SHARED * _SHARED][0], r % _SHARED, u)
                for v in range(self.vectors):
                    now, later = sums[u, r, v]
                    self._multiply(later, now, spread, columns[v])
        for now, later in at.values():
            self._advance(later, now, sets * self.size)
        self._advance(b_next, b_at, self.line_steps[sets])
        if soon is not None:
            b.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
            for place in (soon[0], b.op(f"getelementptr i8, ptr {soon[0]}, i64 %apart")):
                b.emit(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 2, i32 1)")
            self._advance(soon[1], soon[0], CACHE_LINE)
        b.emit(f"{i_next} = add nsw i64 {i}, {sets}")
        again = b.compare("slt", i_next, span[1])
        end = f"{name}.end"
        b.emit(f"br i1 {again}, label %{name}, label %{end}, !llvm.loop !0")
        b.label(end)
        return {k: later for k, (_, later) in sums.items()}, {r: later for r, (_, later) in at.items()}, b_next, end

    def _product(self, x: str, y: str, total: str) -> str:
        """What adds the product of two vectors, or of two vectors of pairs, to ``total``."""
        b = self.b
        if not self.pairs:
            return fma_text(b, self.dtype, self.width, x, y, total)
        halves, name = f"<{2 * self.width} x bfloat>", "@llvm.x86.avx512bf16.dpbf16ps.512"
        b.declare(f"declare {self.type} {name}({self.type}, {halves}, {halves})")
        x, y = (b.op(f"bitcast {self.type} {value} to {halves}") for value in (x, y))
        return f"call {self.type} {name}({self.type} {total}, {halves} {x}, {halves} {y})"

    def _advance(self, later: str, now: str, step: str | int) -> None:
        """``later = now + step`` in a way that LLVM does not look through.

        It would else trade the addresses of rows, which share a register by scaled offsets, for a chain of additions.
        """
        moved = self.b.op(f"getelementptr i8, ptr {now}, i64 {step}")
        self.b.emit(f'{later} = call ptr asm "", "=r,0"(ptr {moved})')

    def _load(self, line: str, v: int) -> str:
        at = self.b.address(line, self.dtype, v * self.width)
        return Printer(self.b, self.width).load(self.dtype, at)

    def _prefetch(self, line: str) -> None:
        b = self.b
        far = b.op(f"getelementptr i8, ptr {line}, i64 {self.ahead}")
        b.prefetch(far, self.vectors * self.width * self.size)

    def _element(self, base: str, row: int, step: int) -> str:
        b = self.b
        at = base if row == 0 else b.op(f"getelementptr i8, ptr {base}, i64 {self.row_steps[row]}")
        if step:
            at = b.op(f"getelementptr i8, ptr {at}, i64 {step * self.size}")
        element = b.op(f"load {scalar(self.dtype)}, ptr {at}")
        return Printer(b, self.width).splat(self.dtype, element, self.width)

    def _tree(self, values: Sequence[str]) -> str:
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [self.b.op(f"{self.add} {self.type} {x}, {y}") for x, y in pairs]
        return values[0]

    def _finish(self, sums: Mapping[tuple[int, int], str], adds: str) -> None:
        b, printer = self.b, Printer(self.b, self.width)
        places = {(r, v): b.address("%sums", self.dtype, (r * self.vectors + v) * self.width) for r, v in self.keys}

        def add() -> None:
            for key in self.keys:
                old = printer.load(self.dtype, places[key])
                printer.store(self.dtype, b.op(f"{self.add} {self.type} {old}, {sums[key]}"), places[key])

        def put() -> None:
            for key in self.keys:
                printer.store(self.dtype, sums[key], places[key])

        b.branch(b.compare("ne", adds, 0), add, put)
