"""Winograd's convolution: 3x3 kernels of stride 1 with a third of the multiplications.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016): tiles of 2 x 4 outputs are computed from
4 x 6 inputs that were transformed, multiplied in 24 matrix products (one for each element of a tile, over the
channels), and transformed back.

The error grows with the tile, and with points of evaluation that lie far apart (Barabasz et al., "Error Analysis and
Improving the Accuracy of Winograd Convolution", 2020). With points 0, 1, -1 down and 0, 5/8, -5/8, 3/2, -3/2 across,
and sums of at most 32 products in a register, it is at most 1.75 times that of a direct convolution that sums 144
products in a register, on random normal data with 16 to 512 channels. For 4 x 4 outputs it is at least 2.5 times as
large whatever the points, for 2 x 2 it is 0.9 times as large at the price of a third more multiplications.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from accord.backends.cpu.contraction import Left, RightMatrix, add_functions, describe, pack, packed_size
from accord.backends.cpu.conv import Convolution, Image
from accord.backends.cpu.gemm import GemmCode, Writer
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.panels import Chunk
from accord.backends.cpu.printer import Printer
from accord.backends.protocol import Array, Launch, Phase
from accord.expr.lang import Expr, const
from accord.ir import dims as D
from accord.ir.dims import DimLike

__all__ = ["WinogradCode", "reason_against", "transformed_weights", "winograd_phase"]

#: Points of evaluation across, beside 0 and infinity: +-A and +-B.
_A: Final = 0.625
_B: Final = 1.5
#: Outputs of a tile and inputs that they need, down and across.
_DOWN: Final = (2, 4)
_ACROSS: Final = (4, 6)
_PRODUCTS: Final = _DOWN[1] * _ACROSS[1]
#: Products that are summed in a register.
_RUN: Final = 32
#: Bytes of scratch memory for a block, unless one line of tiles needs more.
_ROOM: Final = 2 << 20
#: Tasks that are wanted by splitting columns.
_TASKS: Final = 4
#: It does not pay for fewer channels, nor for fewer tiles than this: the weights are 2.7 times as large.
_LEAST_CHANNELS: Final = 16
_LEAST_TILES: Final = 12


def reason_against(c: Convolution) -> str | None:
    """Why a convolution is not computed this way; None if it is."""
    if c.window.taps != (3, 3) or c.window.steps != (1, 1) or c.window.dilations != (1, 1):
        return "the kernel is not 3x3 with stride 1"
    if not c.constant or c.dtype != "f32":
        return "the weights are not constant, or not summed in f32"
    if min(c.channels, c.columns) < _LEAST_CHANNELS:
        return f"fewer than {_LEAST_CHANNELS} channels in a group"
    tiles = [D.ceildiv(n, m) for n, (m, _) in zip(c.out_sizes, (_DOWN, _ACROSS), strict=True)]
    total = D.product((c.images, *tiles))
    if isinstance(total, int) and total < _LEAST_TILES:
        return f"fewer than {_LEAST_TILES} tiles of 2x4 outputs"
    return None


def _evaluation(*points: float) -> Array:
    """The transform of a kernel of three taps: its value at each point over the factors (p - q), and at infinity."""
    factors = [math.prod(p - q for q in points if q != p) for p in points]
    rows = [[p**t / f for t in range(3)] for p, f in zip(points, factors, strict=True)]
    return np.array([*rows, [0.0, 0.0, 1.0]])


def transformed_weights(w: Array, groups: int) -> Array:
    """Weights [M, C / groups, 3, 3] as panels of 24 matrices [C / groups, M / groups], one group after the other."""
    down = _evaluation(0.0, 1.0, -1.0)
    across = _evaluation(0.0, _A, -_A, _B, -_B)
    both = np.kron(down, across)  # [24, 9]
    m, c = w.shape[0] // groups, w.shape[1]
    matrices = np.empty((groups, _PRODUCTS, c, m), np.float32)
    for g in range(groups):
        own = w[g * m : (g + 1) * m].reshape(m * c, 9).astype(np.float64)
        matrices[g] = (both @ own.T).reshape(_PRODUCTS, m, c).swapaxes(1, 2)
    return pack(matrices.reshape(groups * _PRODUCTS, c, m), "f32").reshape(-1)


@dataclass(frozen=True)
class WinogradCode(GemmCode):
    """As :class:`GemmCode` with an image that is staged; rows are the pixels of one image, a block is whole lines.

    Further parameters: bytes of a row of transformed inputs and from one product's rows to the next one's; elements of
    one product's weights; pixels of a staged line; the most tiles of a block; the offset of the area of outputs.
    """

    @property
    def symbol(self) -> str:
        """Name by content."""
        return "winograd" + super().symbol

    @property
    def names(self) -> tuple[str, ...]:
        """What the parameters mean, in order."""
        return (*super().names, "v.row", "v.product", "u.product", "x.padded", "tiles", "y_at")

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Writer(Writer):
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
        count = b.mul(b.mul(down, _DOWN[0]), padded)
        whole = Chunk("0", p["k"], "0", "0")
        pixels = {**p, "x.line": padded}
        code.left.fill(b, code.dtype, pixels, here["a"], self.rows, first, count, whole, self.panel_a, p["pitch"])
        with self._each_tile(down, across) as (i, j, t):
            self._transform_inputs(i, j, t)
        with b.loop(0, _PRODUCTS) as product, b.loop(*panels) as panel:
            column = b.mul(panel, self.wide)
            columns = b.min(b.sub(p["n"], column), self.wide)
            line = self.line(columns)
            tile, high, heights = self.tile_of(panel)
            right = b.address(here["b"], code.dtype, b.add(b.mul(product, p["u.product"]), b.mul(column, p["k"])))
            left = b.op(f"getelementptr i8, ptr {self.panel_b}, i64 {b.mul(product, p['v.product'])}")
            sums = b.address(self._sums(b.sub(panel, panels[0])), code.dtype, b.mul(product, self._product_sums()))
            with self.tiles(tiles, high, heights) as (r, height):
                a_row = p["v.row"]
                at = b.op(f"getelementptr i8, ptr {left}, i64 {b.mul(r, a_row)}")
                to = b.address(sums, code.dtype, b.mul(r, line))
                b.emit(
                    f"call void {tile}(ptr {at}, i64 {a_row}, ptr {right}, i64 {b.mul(line, self.size)}, "
                    f"i64 {p['k']}, i64 {p['run']}, i64 1, i64 0, ptr {to}, i64 {height}, i64 0)"
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
        return b.address(self.sums, self.code.dtype, b.mul(b.mul(number, _PRODUCTS), self._product_sums()))

    def _transform_inputs(self, i: str, j: str, t: str) -> None:
        """From 4 x 6 pixels to 24 rows."""
        b, p, dtype = self.b, self.p, self.code.dtype
        down = b.mul(b.mul(i, _DOWN[0]), p["pitch"])
        pixel = b.mul(p["k"], self.size)
        start = b.op(f"getelementptr i8, ptr {self.panel_a}, i64 {b.add(down, b.mul(b.mul(j, _ACROSS[0]), pixel))}")
        places = [
            b.op(f"getelementptr i8, ptr {start}, i64 {b.add(b.mul(p['pitch'], y), b.mul(pixel, x))}")
            for y in range(_DOWN[1])
            for x in range(_ACROSS[1])
        ]
        target = b.op(f"getelementptr i8, ptr {self.panel_b}, i64 {b.mul(t, p['v.row'])}")
        rows = [b.op(f"getelementptr i8, ptr {target}, i64 {b.mul(p['v.product'], k)}") for k in range(_PRODUCTS)]
        with b.loop(0, p["k"], self.width) as c:
            printer = Printer(b, self.width)
            math_ = _Arithmetic(b, dtype, self.width)
            loaded = [printer.load(dtype, b.address(place, dtype, c)) for place in places]
            lines = [math_.inputs_across(loaded[y * _ACROSS[1] : (y + 1) * _ACROSS[1]]) for y in range(_DOWN[1])]
            for x in range(_ACROSS[1]):
                for y, value in enumerate(math_.inputs_down([line[x] for line in lines])):
                    printer.store(dtype, value, b.address(rows[y * _ACROSS[1] + x], dtype, c))

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
            places = [b.address(source, code.dtype, b.mul(each, k)) for k in range(_PRODUCTS)]
            corner = b.add(b.mul(b.mul(i, _DOWN[0]), stage_line), b.mul(b.mul(j, _ACROSS[0]), line))
            start = b.address(pixels, code.dtype, corner)
            targets = [
                b.address(start, code.dtype, b.add(b.mul(stage_line, y), b.mul(line, x)))
                for y in range(_DOWN[0])
                for x in range(_ACROSS[0])
            ]
            with b.loop(0, line, self.width) as v:
                printer = Printer(b, self.width)
                math_ = _Arithmetic(b, code.dtype, self.width)
                loaded = [printer.load(code.dtype, b.address(place, code.dtype, v)) for place in places]
                halves = [math_.outputs_down(loaded[x :: _ACROSS[1]]) for x in range(_ACROSS[1])]
                for y in range(_DOWN[0]):
                    for x, value in enumerate(math_.outputs_across([half[y] for half in halves])):
                        printer.store(code.dtype, value, b.address(targets[y * _ACROSS[0] + x], code.dtype, v))
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


class _Arithmetic:
    """The transforms, on vectors of channels."""

    def __init__(self, b: Builder, dtype: str, width: int) -> None:
        self.b, self.type = b, vector(dtype, width)
        self.printer = Printer(b, width)
        self.dtype, self.width = dtype, width
        self.fma = f"{self.type} @llvm.fmuladd.v{width}{dtype}"
        b.declare(f"declare {self.fma}({', '.join([self.type] * 3)})")

    def _plus(self, x: str, y: str) -> str:
        return self.b.op(f"fadd {self.type} {x}, {y}")

    def _minus(self, x: str, y: str) -> str:
        return self.b.op(f"fsub {self.type} {x}, {y}")

    def _times(self, x: str, factor: float) -> str:
        return self.b.op(f"fmul {self.type} {x}, {self._constant(factor)}")

    def _add(self, x: str, factor: float, y: str) -> str:
        """``x * factor + y``."""
        arguments = ", ".join(f"{self.type} {v}" for v in (x, self._constant(factor), y))
        return self.b.op(f"call {self.fma}({arguments})")

    def _constant(self, value: float) -> str:
        return self.printer.value(const(value, self.dtype), [])

    def inputs_down(self, d: Sequence[str]) -> list[str]:
        """Points 0, 1, -1 and infinity."""
        return [self._minus(d[2], d[0]), self._plus(d[2], d[1]), self._minus(d[2], d[1]), self._minus(d[3], d[1])]

    def outputs_down(self, m: Sequence[str]) -> list[str]:
        """Two outputs of four sums."""
        return [self._plus(self._plus(m[1], m[2]), m[0]), self._plus(self._minus(m[1], m[2]), m[3])]

    def inputs_across(self, d: Sequence[str]) -> list[str]:
        """Points 0, A, -A, B, -B and infinity: products of the factors (x - p) of all other points."""
        a, b = _A * _A, _B * _B
        found = [self._add(d[2], -(a + b), self._add(d[0], a * b, d[4]))]
        for point, other in ((_A, b), (_B, a)):
            even, odd = self._add(d[2], -other, d[4]), self._add(d[1], -other, d[3])
            found += [self._add(odd, point, even), self._add(odd, -point, even)]
        return [*found, self._add(d[3], -(a + b), self._add(d[1], a * b, d[5]))]

    def outputs_across(self, m: Sequence[str]) -> list[str]:
        """Four outputs of six sums: powers of the points."""
        even = self._plus(m[1], m[2]), self._plus(m[3], m[4])
        odd = self._minus(m[1], m[2]), self._minus(m[3], m[4])
        found = [self._plus(self._plus(even[0], even[1]), m[0])]
        for power, pair in ((1, odd), (2, even)):
            found.append(self._add(pair[0], _A**power, self._times(pair[1], _B**power)))
        return [*found, self._add(odd[0], _A**3, self._add(odd[1], _B**3, m[5]))]


# sizes


@dataclass(frozen=True)
class _Sizes:
    """How a convolution is laid out in scratch memory, for sizes that may be symbolic."""

    channels: int
    columns: int
    wide: int
    apart: int
    tables: int

    @property
    def row(self) -> int:
        """Bytes of a row of transformed inputs: an odd number of lines of the cache, so rows lie in different sets."""
        width = machine().width(32)
        return (-(-self.channels // width) | 1) * width * 4

    def padded(self, line: DimLike) -> DimLike:
        """Pixels of a line in whole tiles."""
        return D.ceildiv(line, _ACROSS[0]) * _ACROSS[0]

    def pitch(self, line: DimLike) -> DimLike:
        """Bytes of a staged line."""
        taken = (self.padded(line) + _ACROSS[1] - _ACROSS[0]) * self.channels * 4
        return (D.floordiv(taken + 63, 64) + 1) * 64

    def areas(self, line: DimLike, down: int, panels: int) -> list[DimLike]:
        """Bytes of each area for ``down`` lines of tiles: sums, stage, inputs, outputs, C's stage, tables."""
        width = machine().width(32)
        tiles = self.padded(line) * down // _ACROSS[0] if isinstance(line, int) else D.ceildiv(line, _ACROSS[0]) * down
        rows = line * (down * _DOWN[0])
        return [
            tiles * (panels * _PRODUCTS * self.wide * 4) + width * 64,
            self.pitch(line) * (down * _DOWN[0] + 2) + (width + 1) * max(self.channels * 4, 64),
            tiles * (_PRODUCTS * self.row),
            self.padded(line) * (down * _DOWN[0] * self.wide * 4),
            (rows + width) * (self.wide * self.apart),
            rows * (8 * self.tables),
        ]


def winograd_phase(
    c: Convolution, extras: Sequence[Image], out: Image, expr: Expr, operands: tuple[int, ...]
) -> tuple[Phase, DimLike]:
    """A phase, and the scratch bytes that a thread needs.

    Args:
        c: What :func:`reason_against` has nothing against.
        extras: Operands 1, 2 ... of the expression, over the output's axes.
        out: The output.
        expr: What is stored; operand 0 is the sum.
        operands: Image, weights (of :func:`transformed_weights`), extras, output, scratch.
    """
    k, m = c.channels, c.columns
    size = packed_size(c.dtype, k, m)
    right = RightMatrix(c.dtype, (0, size * _PRODUCTS), packed=True)
    walks = [o.walk(m, images=False) for o in (out, *extras)]
    left: Left = c.stage(c.x.walk(k, images=False))
    groups = (c.images, c.groups)
    code, values = describe(WinogradCode, groups, c.out_sizes, m, k, left, right, walks[1:], walks[0], expr)
    sizes = _Sizes(k, m, code.vectors * machine().width(32), code.apart, len(code.tables))
    phase = Phase(code, operands, tuple(values.values()), functools.partial(_launch, code, tuple(values), sizes))
    panels = -(-m // sizes.wide)
    least = sum((_round(a) for a in sizes.areas(c.out_sizes[1], 1, panels)), 0)
    return phase, D.maximum(least, _ROOM)


def _round(size: DimLike) -> DimLike:
    return D.ceildiv(size, 64) * 64


def _launch(code: WinogradCode, names: tuple[str, ...], sizes: _Sizes, evaluated: Sequence[int]) -> Launch:
    v = dict(zip(names, evaluated, strict=True))
    groups = math.prod(v[f"group{i}.size"] for i in range(code.group_axes))
    if not (groups and v["m"]):
        return Launch((), 0)
    line = v["x.line"]
    lines = v["m"] // line
    down = -(-lines // _DOWN[0])
    panels = -(-sizes.columns // sizes.wide)

    def areas(count: int, panels: int) -> list[int]:
        return [D.evaluate(_round(a), {}) for a in sizes.areas(line, count, panels)]

    most = max(1, next((n for n in range(down, 0, -1) if sum(areas(n, panels)) <= _ROOM), 1))
    block = -(-down // -(-down // most))
    row_tasks = -(-down // block)
    column_tasks = max(1, min(_TASKS // (groups * row_tasks), panels))
    task_panels = -(-panels // column_tasks)
    starts = [0]
    for area in areas(block, task_panels):
        starts.append(starts[-1] + area)
    width = machine().width(32)
    rows = block * _DOWN[0] * line
    tiles = block * -(-line // _ACROSS[0])
    v.update(
        groups=groups,
        task_groups=1,
        task_rows=rows,
        task_panels=task_panels,
        row_tasks=row_tasks,
        column_tasks=-(-panels // task_panels),
        block=rows,
        panels=panels,
        chunks=0,
        run=_RUN,
        parts=0,
        direct=0,
        pack_b=0,
        pitch=D.evaluate(sizes.pitch(line), {}),
        tiles=tiles,
        **dict(zip(("a_at", "b_at", "y_at", "stage_at", "tables_at", "scratch"), starts[1:], strict=True)),
    )
    v.update({"v.row": sizes.row, "v.product": sizes.row * tiles, "x.padded": D.evaluate(sizes.padded(line), {})})
    v["u.product"] = packed_size(code.dtype, sizes.channels, sizes.columns)
    last = -(-(sizes.columns - (panels - 1) * sizes.wide) // width)
    heights = add_functions(code, v, last)
    return Launch((*(v[name] for name in code.names), *heights), groups * row_tasks * v["column_tasks"])
