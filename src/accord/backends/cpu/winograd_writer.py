"""Writes the kernels of :mod:`accord.backends.cpu.winograd`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accord.backends.cpu.gemm_writer import GemmWriter
from accord.backends.cpu.panels import Chunk, Filling
from accord.backends.cpu.winograd_transforms import ACROSS, DOWN, PRODUCTS

__all__ = ["WinogradWriter"]


class WinogradWriter(GemmWriter):
    """The kernel of a :class:`~accord.backends.cpu.winograd.WinogradCode`."""

    def block(self, here: dict[str, str], row: str, rows: str, panels: tuple[str, str]) -> None:
        """Stage the image's lines, transform them, multiply, and for each panel transform back and store."""
        b, p, code = self.b, self.p, self.code
        self.store.fill_tables(self.rows, row, rows)
        padded = p["x.padded"]
        lines = b.op(f"udiv i64 {rows}, {p['x.line']}")
        down = b.op(f"lshr i64 {b.add(lines, 1)}, 1")
        across = b.op(f"lshr i64 {padded}, 2")
        tiles = b.mul(down, across)
        first = b.mul(b.op(f"udiv i64 {row}, {p['x.line']}"), padded)
        count = b.mul(b.mul(down, DOWN[0]), padded)
        whole = Chunk("0", p["k"], "0", "0")
        pixels = {**p, "x.line": padded}
        want = Filling(code.dtype, pixels, here["a"], self.rows, first, count, whole, self.panel_a, p["pitch"])
        code.left.fill(b, want)
        with self._each_tile(down, across) as (i, j, t):
            self._transform_inputs(i, j, t)
        with b.loop(0, PRODUCTS) as product, b.loop(*panels) as panel:
            column = b.mul(panel, self.wide)
            columns = b.min(b.sub(p["n"], column), self.wide)
            line = self.line(columns)
            tile, high, heights = self.tile_of(panel)
            right = b.address(here["b"], code.dtype, b.add(b.mul(product, p["u.product"]), b.mul(column, p["k"])))
            ahead = b.address(right, code.dtype, b.mul(p["k"], line))
            left = b.op(f"getelementptr i8, ptr {self.panel_b}, i64 {b.mul(product, p['v.product'])}")
            sums = b.address(self._sums(b.sub(panel, panels[0])), code.dtype, b.mul(product, self._product_sums()))
            with self.tiles(tiles, high, heights) as (r, height):
                a_row = p["v.row"]
                at = b.op(f"getelementptr i8, ptr {left}, i64 {b.mul(r, a_row)}")
                to = b.address(sums, code.dtype, b.mul(r, line))
                b.emit(
                    f"call void {tile}(ptr {at}, i64 {a_row}, ptr {right}, i64 {b.mul(line, self.size)}, "
                    f"i64 {p['k']}, i64 {p['run']}, i64 1, i64 0, ptr {to}, i64 {height}, i64 0, "
                    f"{self.soon(right, ahead, r, tiles, p['k'], high)})"
                )
        with b.loop(*panels) as panel:
            self._outputs(here, row, rows, (down, across, lines), panel, b.sub(panel, panels[0]))

    @contextmanager
    def _each_tile(self, down: str, across: str) -> Iterator[tuple[str, str, str]]:
        """Line and column of a tile, and its number."""
        b = self.b
        with b.loop(0, down) as i, b.loop(0, across) as j:
            yield i, j, b.add(b.mul(i, across), j)

    def _product_sums(self) -> str:
        """Elements of the sums of one product and panel."""
        return self.b.mul(self.p["tiles"], self.wide)

    def _sums(self, number: str) -> str:
        """Address of the sums of the task's ``number``-th panel."""
        b = self.b
        return b.address(self.sums, self.code.dtype, b.mul(b.mul(number, PRODUCTS), self._product_sums()))

    def _transform_inputs(self, i: str, j: str, t: str) -> None:
        """From 4 x 6 pixels to 24 rows."""
        b, p = self.b, self.p
        down = b.mul(b.mul(i, DOWN[0]), p["pitch"])
        pixel = b.mul(p["k"], self.size)
        start = b.op(f"getelementptr i8, ptr {self.panel_a}, i64 {b.add(down, b.mul(b.mul(j, ACROSS[0]), pixel))}")
        target = b.op(f"getelementptr i8, ptr {self.panel_b}, i64 {b.mul(t, p['v.row'])}")
        self._call("inputs", (start, p["pitch"], pixel), (target, p["v.product"]), p["k"])

    def _call(self, function: str, source: tuple[str, ...], target: tuple[str, ...], count: str) -> None:
        """Call a transform: address and distances of what is read and of what is written, elements."""
        b = self.b
        address = b.op(f"inttoptr i64 {self.p[function]} to ptr")
        arguments = [f"ptr {source[0]}", *(f"i64 {x}" for x in source[1:])]
        arguments += [f"ptr {target[0]}", *(f"i64 {x}" for x in target[1:]), f"i64 {count}"]
        b.emit(f"call void {address}({', '.join(arguments)})")

    def _outputs(
        self, here: dict[str, str], row: str, rows: str, sizes: tuple[str, str, str], panel: str, number: str
    ) -> None:
        """Transform a panel's sums back and store them, line by line."""
        b, p, code = self.b, self.p, self.code
        down, across, lines = sizes
        column = b.mul(panel, self.wide)
        columns = b.min(b.sub(p["n"], column), self.wide)
        line = self.line(columns)
        sums, each = self._sums(number), self._product_sums()
        pixels = b.op(f"getelementptr i8, ptr {self.sums}, i64 {p['y_at']}")
        stage_line = b.mul(p["x.padded"], line)
        with self._each_tile(down, across) as (i, j, t):
            source = b.address(sums, code.dtype, b.mul(t, line))
            corner = b.add(b.mul(b.mul(i, DOWN[0]), stage_line), b.mul(b.mul(j, ACROSS[0]), line))
            target = (b.address(pixels, code.dtype, corner), b.mul(stage_line, self.size), b.mul(line, self.size))
            self._call("outputs", (source, b.mul(each, self.size)), target, line)
        places_ = self.store.at_column(here, column)
        full = b.compare("eq", columns, self.wide)
        with b.loop(0, lines) as down_line:
            first = b.mul(down_line, p["x.line"])
            buffer = b.address(pixels, code.dtype, b.mul(down_line, stage_line))
            b.branch(
                full,
                lambda: self.store.whole(places_, row, first, p["x.line"], buffer),
                lambda: self.store.part(places_, row, first, p["x.line"], buffer, columns, line),
            )
        if code.out.column == "s":
            self.store.spread(places_["c"], row, rows, columns)
