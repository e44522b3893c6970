"""Products of rows with packed panels, and the projection of a recurrent layer's inputs, which is one for all steps.

The register tile here has one panel's line as columns: all gates of the panel's units. Low tiles, down to a single row,
sum the even and the odd steps (or every fourth, ...) along the summed axis apart, for one row alone would wait for its
own additions.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.lanes import multiply
from accord.backends.cpu.launches import launch_projection
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.tile import fma
from accord.backends.protocol import Phase
from accord.expr.lang import bits, cast, operand
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["Panel", "Rows", "emit_product", "heights_of", "product_functions", "projection_phase"]

#: Sums that must be under way at a time to hide the latency of an addition: four cycles, two a cycle.
_IN_FLIGHT = 8
#: How far ahead a single row asks for its weights, which it reads once: that hides the latency of the outer caches.
_AHEAD_BYTES = 2048
#: Greatest height of a tile.
_MOST_ROWS = 8


@record
class Panel:
    """The line of a packed panel.

    Attributes:
        dtype: "f32" or "f64"; "i32" where an element is a lane of :mod:`accord.backends.cpu.lanes`.
        gates: Gates of each unit.
        units: Units, a multiple of the vector's width.
    """

    dtype: str
    gates: int
    units: int

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return machine().width(bits(self.dtype))

    @property
    def line(self) -> int:
        """Elements of a line."""
        return self.gates * self.units

    @property
    def vectors(self) -> int:
        """Vectors of a line."""
        return self.line // self.width


def heights_of(panel: Panel, rows: DimLike) -> tuple[int, ...]:
    """Heights of the tiles for ``rows`` rows, highest first; sums and a line's vectors fill the registers."""
    registers = 24 if machine().vector_bits == 512 else 12
    most = max(1, min(_MOST_ROWS, registers // panel.vectors))
    if isinstance(rows, int):
        most = max(1, min(most, rows))
    return tuple(sorted({most, *(h for h in (2, 1) if h < most)}, reverse=True))


def _name(panel: Panel, rows: int) -> str:
    return f"product_{rows}x{panel.gates}x{panel.units}"


def product_functions(
    panel: Panel, heights: Sequence[int], source: str, *, unit: bool, start: bool = False
) -> list[Builder]:
    """One function for each height: ``out[row, :] = start + sum over k of a[row, k] * panel[k, :]``.

    Args:
        panel: The columns.
        heights: Numbers of rows.
        source: Element type of ``a``.
        unit: Elements of ``a`` follow each other along k.
        start: There is a line to start from.
    """
    return [_product(panel, h, source, unit, start) for h in heights]


def _product(panel: Panel, rows: int, source: str, unit: bool, start: bool) -> Builder:
    arguments = (
        "ptr noalias readonly %a, i64 %a_row, i64 %a_col, ptr noalias readonly %panel, i64 %k, "
        "ptr noalias readonly %start, ptr noalias %out, i64 %out_row"
    )
    b = Builder(_name(panel, rows), arguments, internal=True)
    dtype, width, vectors = panel.dtype, panel.width, panel.vectors
    type_ = vector(dtype, width)
    printer = Printer(b, width)
    zero = "zeroinitializer" if width > 1 else "0.0"
    first = [printer.load(dtype, b.address("%start", dtype, v * width)) for v in range(vectors)] if start else []
    sets = 1
    while sets * rows * vectors < _IN_FLIGHT:
        sets *= 2
    sums = [(type_, first[v] if start else zero) for _ in range(rows) for v in range(vectors)]
    others = [(type_, zero)] * (len(sums) * (sets - 1))
    lines = [b.address("%a", source, b.mul(r, "%a_row") if r else 0) for r in range(rows)]

    def accumulate(step: str, sums: Sequence[str]) -> list[str]:
        at = b.address("%panel", dtype, b.mul(step, panel.line))
        if rows == 1:
            b.prefetch(b.op(f"getelementptr i8, ptr {at}, i64 {_AHEAD_BYTES}"), panel.line * bits(dtype) // 8)
        columns = [printer.load(dtype, b.address(at, dtype, v * width)) for v in range(vectors)]
        place = step if unit else b.mul(step, "%a_col")
        following = []
        for r in range(rows):
            one = Printer(b, 1)
            loaded = one.load(source, b.address(lines[r], source, place))
            element = printer.splat(dtype, one.value(cast(operand(0, source), dtype), [loaded]), width)
            for v in range(vectors):
                total = sums[r * vectors + v]
                if dtype == "i32":
                    following.append(multiply(b, width, total, element, columns[v]))
                else:
                    following.append(fma(b, dtype, width, element, columns[v], total))
        return following

    whole = b.op(f"and i64 %k, {-sets}")
    with b.loop_carrying(0, whole, sets, (*sums, *others)) as (i, carried, following):
        for k in range(sets):
            following.extend(accumulate(b.add(i, k), carried[k * len(sums) : (k + 1) * len(sums)]))
    totals = following[: len(sums)]
    if sets > 1:
        with b.loop_carrying(whole, "%k", 1, tuple((type_, t) for t in totals)) as (i, carried, rest):
            rest.extend(accumulate(i, carried))
        parts = [rest] + [following[k * len(sums) : (k + 1) * len(sums)] for k in range(1, sets)]
        add = "add" if dtype == "i32" else "fadd"
        while len(parts) > 1:
            parts = [
                [b.op(f"{add} {type_} {x}, {y}") for x, y in zip(one, other, strict=True)]
                for one, other in zip(parts[::2], parts[1::2], strict=True)
            ]
        totals = parts[0]
    for r in range(rows):
        target = b.address("%out", dtype, b.mul(r, "%out_row") if r else 0)
        for v in range(vectors):
            printer.store(dtype, totals[r * vectors + v], b.address(target, dtype, v * width))
    return b


@record
class Rows:
    """Rows of a product while code is written.

    Attributes:
        count: Number of rows.
        a: Address of the first.
        a_row: Elements from row to row.
        a_col: Elements along the summed axis; not looked at where functions are made for 1.
        out: Address of the first row's result.
        out_row: Elements from row to row.
    """

    count: str
    a: str
    a_row: str | int
    a_col: str | int
    out: str
    out_row: str | int


def emit_product(
    b: Builder, panel: Panel, heights: Sequence[int], source: str, rows: Rows, weights: str, k: str, start: str = "null"
) -> None:
    """Cut rows into tiles and call the functions of :func:`product_functions`.

    Args:
        b: Where to write.
        panel: The columns.
        heights: As given to :func:`product_functions`.
        source: Element type of the rows.
        rows: The rows and where results go.
        weights: Address of the panel.
        k: Length of the sum.
        start: Address of the line to start from.
    """
    done: str = "0"
    for height in heights:
        count = b.op(f"sdiv i64 {b.sub(rows.count, done)}, {height}")
        stop = b.add(done, b.mul(count, height))
        with b.loop(done, stop, height) as m:
            a = b.address(rows.a, source, b.mul(m, rows.a_row))
            out = b.address(rows.out, panel.dtype, b.mul(m, rows.out_row))
            b.emit(
                f"call void @{_name(panel, height)}(ptr {a}, i64 {rows.a_row}, i64 {rows.a_col}, ptr {weights}, "
                f"i64 {k}, ptr {start}, ptr {out}, i64 {rows.out_row})"
            )
        done = stop


_PARAMS = (
    "rows",
    "outer",
    "k",
    "panels",
    "block",
    "blocks",
    "group",
    "groups",
    "a_at",
    "a_row",
    "a_outer",
    "a_col",
    "weights_at",
    "start_at",
    "out_at",
    "out_row",
    "out_outer",
    "out_direction",
)


@record
class ProjectionCode(KernelCode):
    """``out[direction, outer, row, panel] = start[direction, panel] + x[outer, row] W[direction, panel]``.

    Operands: x, weights, start if there is one, out. A task is a group of panels and a block of rows of one direction.
    """

    panel: Panel
    source: str
    unit: bool
    start: bool
    heights: tuple[int, ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.panel};{self.source};{self.unit};{self.start};{self.heights}"
        return "projection_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        panel, dtype = self.panel, self.panel.dtype
        p = {n: b.param(i) for i, n in enumerate(_PARAMS)}
        a = b.address(b.operand(0), self.source, p["a_at"])
        weights = b.address(b.operand(1), dtype, p["weights_at"])
        out = b.address(b.operand(3 if self.start else 2), dtype, p["out_at"])
        start = b.address(b.operand(2), dtype, p["start_at"]) if self.start else "null"
        panel_size = b.mul(p["k"], panel.line)
        with b.loop("%first", "%last") as task:
            rest, block = b.divmod(task, p["blocks"])
            rest, outer = b.divmod(rest, p["outer"])
            direction, group = b.divmod(rest, p["groups"])
            row = b.mul(block, p["block"])
            count = b.min(b.sub(p["rows"], row), p["block"])
            a_at = b.add(b.mul(outer, p["a_outer"]), b.mul(row, p["a_row"]))
            out_at = b.add(b.mul(outer, p["out_outer"]), b.mul(row, p["out_row"]))
            out_at = b.add(out_at, b.mul(direction, p["out_direction"]))
            first = b.mul(group, p["group"])
            last = b.min(b.add(first, p["group"]), p["panels"])
            with b.loop(first, last) as index:
                number = b.add(b.mul(direction, p["panels"]), index)
                column = b.mul(index, panel.line)
                rows = Rows(
                    count,
                    b.address(a, self.source, a_at),
                    p["a_row"],
                    p["a_col"],
                    b.address(out, dtype, b.add(out_at, column)),
                    p["out_row"],
                )
                line = b.address(start, dtype, b.mul(number, panel.line)) if self.start else start
                at = b.address(weights, dtype, b.mul(number, panel_size))
                emit_product(b, panel, self.heights, self.source, rows, at, p["k"], line)
        functions = product_functions(panel, self.heights, self.source, unit=self.unit, start=self.start)
        return b.module(*functions)


def projection_phase(
    panel: Panel,
    source: str,
    sizes: tuple[DimLike, DimLike, DimLike, DimLike, DimLike],
    x: tuple[DimLike, DimLike, DimLike, DimLike],
    packed: tuple[DimLike, DimLike | None],
    out: tuple[DimLike, DimLike, DimLike, DimLike],
    operands: tuple[int, ...],
) -> Phase:
    """A phase that multiplies all rows with the panels of all directions.

    Args:
        panel: The columns.
        source: Element type of the rows.
        sizes: Rows, outer axis, summed axis, panels, directions.
        x: Where the rows begin, and strides from row to row, along the outer axis and along the summed axis.
        packed: Where the weights begin, and the lines to start from (None: from zero).
        out: Where results begin, and strides from row to row, along the outer axis and from direction to direction.
        operands: Rows, weights, lines to start from, results.
    """
    rows, outer, k, panels, directions = sizes
    at, row, step, column = x
    start = packed[1]
    code = ProjectionCode(panel, source, column == 1, start is not None, heights_of(panel, rows))
    dims = (rows, outer, k, panels, directions, at, row, step, column, packed[0], 0 if start is None else start, *out)
    return Phase(code, operands, dims, functools.partial(launch_projection, panel.line))
