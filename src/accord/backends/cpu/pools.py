"""Pools: a combination of the elements in a sliding window, lanes along channels.

Where blocks of pixels are written, each column of the window's rows is combined once, and then the columns for each
pixel. Positions of maxima are found one pixel at a time.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from accord.backends.cpu.images import (
    Cut,
    Image,
    Lanes,
    Outside,
    Params,
    Pattern,
    accumulator,
    channel_blocks,
    cut_of,
    dims_of,
    final_expr,
    following,
    pattern_of,
)
from accord.backends.cpu.jit import machine
from accord.backends.cpu.launches import launch_windows
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.windows import (
    Axis,
    Row,
    WindowWriter,
    inside_taps,
    over_taps,
    taps_before,
    window_dims,
)
from accord.backends.epilogue import Epilogue
from accord.backends.protocol import Phase
from accord.expr.lang import FLOATS, Expr, bits, call, const, operand
from accord.expr.math import expand
from accord.expr.primitives import gt, isnan
from accord.ir.dims import DimLike
from accord.ir.strides import Access
from accord.record import record

__all__ = ["PoolCode", "Pooling", "pool_phase"]


#: Taps along the innermost axis up to which code is written for each.
_MOST_TAPS = 32


@record
class Pooling:
    """What a pool computes, in the type of its sums.

    Attributes:
        before: Expression of an element.
        join: Primitive that combines two: "max" or "add".
        neutral: What is read outside of the image.
        after: Expression of the combined value (operand 0), and where ``counts`` is set of 1 / the number of elements
            (operand 1).
        counts: Whether the elements are counted.
    """

    before: Expr
    join: str
    neutral: float | int
    after: Expr
    counts: bool

    @property
    def key(self) -> str:
        """A text for the code's name."""
        return f"{self.before.key};{self.join};{self.neutral!r};{self.after.key};{self.counts}"


@record
class PoolCode(KernelCode):
    """Operands: image, the epilogue's extras, output, and the indices if they are wanted.

    Attributes:
        rank: Number of spatial axes.
        inner: Taps, stride and dilation of the innermost axis where blocks of pixels are written for them, else None.
        pixels: Outputs of a block.
        cut: How the channels are cut into vectors.
        image: The input.
        extras: Of the epilogue.
        output: The output.
        pooling: What is computed.
        epilogue: What is stored.
        indices: Channel pattern of the indices of maxima; None: they are not wanted.
        column_major: Whether those count the first spatial axis fastest.
    """

    rank: int
    inner: tuple[int, int, int] | None
    pixels: int
    cut: Cut
    image: Pattern
    extras: tuple[Pattern, ...]
    output: Pattern
    pooling: Pooling
    epilogue: Epilogue
    indices: str | None
    column_major: bool

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.rank};{self.inner};{self.pixels};{self.cut};{self.image};{self.extras};{self.output};"
            f"{self.pooling.key};{self.epilogue.expr.key};{self.indices};{self.column_major}"
        )
        return "pool_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        writer = _Writer(self)
        row = f"{name}_row"
        return writer.main_function(name, row).module(writer.row_function(row))


class _Writer(WindowWriter):
    """After the image come, for pools that count, the first and last position that counts along each axis."""

    def __init__(self, code: PoolCode) -> None:
        self.code = code
        self.acc = accumulator(code.image.dtype)
        pixels = code.pixels if code.inner is not None else 0
        after = code.pooling.after
        # the epilogue's extras follow what the pool itself gives
        shift = 1 if code.pooling.counts else 0
        final = following(final_expr(code.epilogue, self.acc), expand(after), shift)
        super().__init__(code.rank, _width(code), pixels, code.image, code.extras, code.output, final)
        self.join = call(code.pooling.join, operand(0, self.acc), operand(1, self.acc))
        self.before = expand(code.pooling.before)

    def further(self, b: Builder, params: Params, index: int) -> int:
        self.bounds: list[list[str]] = []
        if self.code.pooling.counts:
            self.bounds = [params.take(2) for _ in range(self.rank)]
        self.indices: Image | None = None
        if self.code.indices is not None:
            number = index + len(self.code.extras) + 1
            pattern = Pattern("i64", self.code.indices)
            self.indices = Image(b, pattern, b.operand(number), params, 2 + self.rank)
        return index

    # pixels

    def pixel(self, b: Builder, row: Row, at: str) -> None:
        inner = row.axes[-1]
        shift = b.mul(at, inner.stride)
        start = b.sub(shift, inner.pad)
        source = self.input.at([(1 + self.rank, shift)], row.source)
        ranges = [*row.taps, inside_taps(b, inner, start)]
        count = self._count(b, row, start) if self.code.pooling.counts else None
        for (lanes,) in channel_blocks(b, self.width, row.channels, self.code.cut):
            initial = [(self._vector(lanes), self._neutral(lanes))]
            if self.indices is not None:
                first = self._flat(b, row, at, [low for low, _ in ranges])
                for low, high in ranges:  # a window in the padding alone has no index
                    first = b.op(f"select i1 {b.compare('slt', low, high)}, i64 {first}, i64 -1")
                initial.append((vector("i64", lanes.width), lanes.spread(first)))

            def body(taps: list[str], values: list[str], lanes: Lanes = lanes) -> list[str]:
                moves = [(2 + a, b.mul(t, x.dilation)) for a, (t, x) in enumerate(zip(taps, row.axes, strict=True))]
                x = self._element(lanes, self.input.at(moves, source))
                if self.indices is None:
                    return [self._joined(lanes, x, values[0])]
                return self._better(lanes, x, lanes.spread(self._flat(b, row, at, taps)), values)

            found = over_taps(b, ranges, initial, body)
            self.store(b, row, lanes, at, [found[0], *self._counted(lanes, count)])
            if self.indices is not None:
                self._store_index(b, row, lanes, at, found[1])

    def block(self, b: Builder, row: Row, at: str, *, edge: bool) -> None:
        assert self.code.inner is not None
        kernel, stride, dilation = self.code.inner
        inner = 1 + self.rank
        shift = b.mul(at, stride)
        start = b.sub(shift, row.axes[-1].pad)
        source = self.input.at([(inner, shift)], row.source)
        columns = sorted({p * stride + k * dilation for p in range(self.pixels) for k in range(kernel)})
        outside: dict[int, Outside] = {}
        if edge:
            neutral = const(self.code.pooling.neutral, self.input.dtype)
            for column in columns:
                inside = b.compare("ult", b.add(start, column), row.axes[-1].size)
                outside[column] = Outside(inside, neutral)
        counts: list[str | None] = [None] * self.pixels
        if self.code.pooling.counts:
            if edge:
                counts = [self._count(b, row, b.add(start, p * stride)) for p in range(self.pixels)]
            else:  # all windows have the same number of elements
                counts = [self._count(b, row, start)] * self.pixels
        for (lanes,) in channel_blocks(b, self.width, row.channels, self.code.cut):

            def body(taps: list[str], values: list[str], lanes: Lanes = lanes) -> list[str]:
                line = self.input.at([(2 + a, b.mul(t, row.axes[a].dilation)) for a, t in enumerate(taps)], source)
                loaded = []
                for column in columns:
                    address = self.input.at([(inner, str(column))], line) if column else line
                    loaded.append(self._element(lanes, address, outside.get(column)))
                return [self._joined(lanes, x, v) for x, v in zip(loaded, values, strict=True)]

            neutral_vectors = [(self._vector(lanes), self._neutral(lanes))] * len(columns)
            totals = dict(zip(columns, over_taps(b, row.taps, neutral_vectors, body), strict=True))
            spans = {(column, 1): total for column, total in totals.items()}
            for p in range(self.pixels):
                total = self._span(lanes, spans, p * stride, kernel, dilation)
                position = b.add(at, p)
                with b.when(b.compare("slt", position, row.last) if edge else None):
                    self.store(b, row, lanes, position, [total, *self._counted(lanes, counts[p])])

    def _span(self, lanes: Lanes, spans: dict[tuple[int, int], str], first: int, count: int, step: int) -> str:
        """``count`` columns joined, ``step`` apart from ``first`` on; neighbouring windows share parts of them."""
        found = spans.get((first, count))
        if found is None:
            half = 1 << ((count - 1).bit_length() - 1)
            left = self._span(lanes, spans, first, half, step)
            right = self._span(lanes, spans, first + half * step, count - half, step)
            found = spans[first, count] = self._joined(lanes, right, left)
        return found

    # pieces

    def _vector(self, lanes: Lanes) -> str:
        return vector(self.acc, lanes.width)

    def _neutral(self, lanes: Lanes) -> str:
        return Printer(lanes.b, lanes.width).value(const(self.code.pooling.neutral, self.acc), [])

    def _element(self, lanes: Lanes, address: str, outside: Outside | None = None) -> str:
        x = lanes.read(self.input, address, self.acc, outside=outside)
        return Printer(lanes.b, lanes.width).value(self.before, [x])

    def _joined(self, lanes: Lanes, x: str, total: str) -> str:
        return Printer(lanes.b, lanes.width).value(self.join, [x, total])

    def _count(self, b: Builder, row: Row, start: str) -> str:
        """1 / number of elements that count in the window that begins at ``start`` of the row."""
        starts = [
            b.sub(b.mul(o, axis.stride), axis.pad) for o, axis in zip(row.position[1:], row.axes[:-1], strict=True)
        ]
        total = "1"
        for axis, begin, (first, last) in zip(row.axes, [*starts, start], self.bounds, strict=True):
            number = b.sub(taps_before(b, axis, begin, last), taps_before(b, axis, begin, first))
            total = b.mul(total, number)
        type_ = scalar(self.acc)
        return b.op(f"fdiv {type_} 1.0, {b.op(f'sitofp i64 {total} to {type_}')}")

    def _counted(self, lanes: Lanes, count: str | None) -> list[str]:
        return [] if count is None else [lanes.printer.splat(self.acc, count, lanes.width)]

    # indices of maxima

    def _flat(self, b: Builder, row: Row, at: str, taps: Sequence[str]) -> str:
        """Where in the image, counted over the spatial axes, the window at ``at`` has its tap ``taps``."""
        places = []
        for axis, o, tap in zip(row.axes, [*row.position[1:], at], taps, strict=True):
            start = b.sub(b.mul(o, axis.stride), axis.pad)
            places.append((b.add(start, b.mul(tap, axis.dilation)), axis.size))
        number: str = "0"
        for place, size in reversed(places) if self.code.column_major else places:
            number = b.add(b.mul(number, size), place)
        return number

    def _better(self, lanes: Lanes, x: str, index: str, values: list[str]) -> list[str]:
        """Value and index of the larger element, the earlier one if they are equal, and NaN before all others."""
        new, old = operand(0, self.acc), operand(1, self.acc)
        wins = gt(new, old)
        if self.acc in FLOATS:
            wins = wins | (isnan(new) & ~isnan(old))
        printer = Printer(lanes.b, lanes.width)
        mask = printer.value(wins, [x, values[0]])
        flags = vector("bool", lanes.width)
        chosen = []
        for dtype, a, b in ((self.acc, x, values[0]), ("i64", index, values[1])):
            type_ = vector(dtype, lanes.width)
            chosen.append(lanes.b.op(f"select {flags} {mask}, {type_} {a}, {type_} {b}"))
        return chosen

    def _store_index(self, b: Builder, row: Row, lanes: Lanes, at: str, index: str) -> None:
        """Count from the start of the whole input: planes before this one come first."""
        assert self.indices is not None
        plane = functools.reduce(b.mul, (axis.size for axis in row.axes))
        channels = lanes.numbers()
        type_ = vector("i64", lanes.width)
        number = b.op(f"add {type_} {channels}, {lanes.spread(b.mul(row.position[0], row.channels))}")
        number = b.op(f"mul {type_} {number}, {lanes.spread(plane)}")
        number = b.op(f"add {type_} {number}, {index}")
        target = self.indices.at([*self._places(row.position), (1 + self.rank, at)])
        lanes.store("i64", self.indices.channel, number, target, self.indices.strides[1])


def _width(code: PoolCode) -> int:
    """Elements of a vector."""
    return machine().width(64 if code.indices is not None else bits(accumulator(code.image.dtype)))


def pool_phase(
    images: DimLike,
    channels: DimLike,
    axes: Sequence[Axis],
    image: tuple[str, Access],
    output: Access,
    pooling: Pooling,
    epilogue: Epilogue,
    operands: tuple[int, ...],
    *,
    counted: Sequence[tuple[DimLike, DimLike]] = (),
    indices: Access | None = None,
    column_major: bool = False,
) -> Phase:
    """A phase for a pool.

    Args:
        images: Batch size.
        channels: Number of channels.
        axes: One to three spatial axes.
        image: dtype and access of the input (N, C, spatial axes).
        output: How the output lies.
        pooling: What is computed.
        epilogue: What is stored.
        operands: Image, extras, output, indices if wanted.
        counted: For each axis, where elements that count begin and end; for a pool that counts.
        indices: How the indices of maxima lie, if wanted.
        column_major: Whether they count the first spatial axis fastest.
    """
    rank = len(axes)
    inner = axes[-1]
    own, target = pattern_of(*image), pattern_of(epilogue.expr.dtype, output)
    extras = tuple(pattern_of(e.dtype, e.access) for e in epilogue.extras)
    index = None if indices is None else pattern_of("i64", indices)
    width = machine().width(64 if index is not None else bits(accumulator(own.dtype)))
    pixels = 0 if index is not None else _block_pixels(inner)
    code = PoolCode(
        rank,
        (inner.kernel, inner.stride, inner.dilation) if pixels else None,
        pixels,
        cut_of(channels, width, [own, target, *extras, *(() if index is None else (index,))]),
        own,
        extras,
        target,
        pooling,
        epilogue,
        None if index is None else index.channel,
        column_major,
    )
    dims = [*window_dims(images, channels, axes), *dims_of(image[1])]
    if pooling.counts:
        dims += [bound for pair in counted for bound in pair]
    if indices is not None:
        dims += dims_of(indices)
    for e in epilogue.extras:
        dims += dims_of(e.access)
    dims += [output.strides[1], *dims_of(output)]
    return Phase(code, operands, tuple(dims), functools.partial(launch_windows, rank, 1))


def _block_pixels(inner: Axis) -> int:
    """Outputs of a block: as many as leave the columns of their windows in registers; 0: pixels one by one."""
    if inner.kernel > _MOST_TAPS:
        return 0
    most = 24 if machine().vector_bits == 512 else 10
    fitting = [p for p in range(2, 9) if len(_columns(inner, p)) <= most]
    if not fitting:  # a row of a large window is worth some stores to the stack
        return 4 if len(_columns(inner, 4)) <= 32 else 0
    if isinstance(inner.out, int):
        out = inner.out
        return min(fitting[len(fitting) // 2 :], key=lambda p: (-(-out // p) * p, -p))
    return fitting[-1]


def _columns(inner: Axis, pixels: int) -> set[int]:
    return {p * inner.stride + k * inner.dilation for p in range(pixels) for k in range(inner.kernel)}
