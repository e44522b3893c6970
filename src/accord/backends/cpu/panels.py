"""Panels: the two operands of a product as the register tile wants them.

B's panels have the columns of one tile and lines that follow each other. A's panel has rows of one length; a *source*
fills it: "rows [first, first + rows) for k in [k0, k0 + kc)", from a matrix, from the patches of an image, or from
whatever else computes A.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.transpose import block_width, call_transpose, converted
from accord.cores import on_all_cores
from accord.expr.lang import INTS, bits
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.protocol import Array

__all__ = [
    "Chunk",
    "Filling",
    "MatrixSource",
    "PanelSource",
    "Rows",
    "Source",
    "aligned",
    "clear",
    "copy",
    "gather",
    "pack_matrix",
    "pack_panel",
    "pack_taps",
    "transpose",
]


#: Bytes of panels that are worth starting threads for.
_SHARED = 1 << 21


def aligned(shape: Sequence[int], dtype: Any) -> Array:
    """A new array that starts at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    array: Array = raw[start : start + size].view(dtype).reshape(shape)
    return array


def pack_matrix(matrices: Array, dtype: str, vectors: int) -> Array:
    """Constant matrices B as panels.

    Args:
        matrices: [groups, k, n], any strides.
        dtype: "f32" or "f64", in which the product is computed.
        vectors: Vectors of a panel's line; the last panel is as narrow as it can be.

    Returns:
        [groups, elements of all panels]. Columns after the last are zero.
    """
    width = machine().width(bits(dtype))
    groups, k, n = matrices.shape
    real = np.float32 if dtype == "f32" else np.float64
    whole = -(-n // width) * width
    packed = aligned((groups, k * whole), real)
    wide = vectors * width

    def pack(number: int) -> None:
        first = number * wide
        count, line = min(wide, n - first), min(wide, whole - first)
        panel = packed[:, k * first : k * (first + line)].reshape(groups, k, line)
        panel[:, :, :count] = matrices[:, :, first : first + count]
        panel[:, :, count:] = 0

    panels = -(-n // wide)
    if packed.nbytes < _SHARED:
        for number in range(panels):
            pack(number)
    else:
        on_all_cores(pack, panels)
    return packed


@record
class Chunk:
    """A part of k, while code is written: names of integers.

    Attributes:
        start: First k.
        length: How many.
        first: Number of the first of the source's pieces.
        last: Number after the last.
    """

    start: str
    length: str
    first: str
    last: str


class Rows:
    """The rows of A and C while code is written: one axis, or several that are counted together.

    Args:
        b: Where to write.
        extents: Of the axes, outermost first.
    """

    def __init__(self, b: Builder, extents: Sequence[str]) -> None:
        self._b = b
        self._extents = extents

    @contextmanager
    def walk(self, first: str, count: str) -> Iterator[tuple[str, list[str]]]:
        """``for r in range(count)``; yields ``r`` and the coordinates of row ``first + r``."""
        b = self._b
        start: list[str] = []
        rest = first
        for extent in reversed(self._extents[1:]):
            rest, index = b.divmod(rest, extent)
            start.insert(0, index)
        start.insert(0, rest)
        with b.loop_carrying(0, count, 1, tuple(("i64", s) for s in start)) as (r, at, following):
            yield r, at
            carry = "1"
            later: list[str] = []
            for axis in reversed(range(len(at))):
                next_ = b.add(at[axis], carry)
                if axis:
                    full = b.compare("eq", next_, self._extents[axis])
                    carry = b.op(f"zext i1 {full} to i64")
                    next_ = b.op(f"select i1 {full}, i64 0, i64 {next_}")
                later.insert(0, next_)
            following.extend(later)


@record
class Filling:
    """Rows of a panel that a source is to fill with a chunk of k, while code is written.

    Attributes:
        dtype: Of the panel.
        parameters: Names to values; "pieces" is the address of the table of pieces, "padding" what an image has around
            it, if that is not zero.
        base: Address of A.
        rows: The rows' axes.
        first: First row.
        count: How many.
        chunk: Part of k.
        panel: Address.
        pitch: Bytes from row to row.
    """

    dtype: str
    parameters: Mapping[str, str]
    base: str
    rows: Rows
    first: str
    count: str
    chunk: Chunk
    panel: str
    pitch: str

    @contextmanager
    def walk(self, b: Builder) -> Iterator[tuple[str, list[str], str]]:
        """``for r in range(count)``; yields ``r``, the row's coordinates, and its address in the panel."""
        with self.rows.walk(self.first, self.count) as (r, at):
            yield r, at, b.op(f"getelementptr i8, ptr {self.panel}, i64 {b.mul(r, self.pitch)}")


class Source(Protocol):
    """Where the rows of A come from. Hashable: it is part of the code's key."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters."""

    @property
    def direct(self) -> bool:
        """Whether a tile may read it in place: rows at one distance, elements along k next to each other.

        It then has the parameter "a.row", the distance of rows in elements.
        """

    @property
    def staged(self) -> bool:
        """Whether the panel is no matrix: :meth:`lines` tells where rows lie, and calls of a tile which part of k.

        It then has the parameter "a.segment", bytes from one segment of a call to the next.
        """

    @property
    def transposes(self) -> bool:
        """Whether it needs the parameter "a.transpose", the function of :mod:`accord.backends.cpu.transpose`."""

    @property
    def dtype(self) -> str:
        """Element type in memory."""

    def fill(self, b: Builder, want: Filling) -> None:
        """Write code that fills a panel; up to two vectors after a row's last element may be overwritten."""

    def lines(
        self, b: Builder, dtype: str, parameters: Mapping[str, str], row: str, rows: str, panel: str, pitch: str
    ) -> AbstractContextManager[tuple[str, str, str, str]]:
        """``for each run of rows at one distance``: first row in the block, rows, address, bytes from row to row."""


class PanelSource:
    """What sources have in common whose panel is a matrix."""

    @property
    def direct(self) -> bool:
        """Not to be read in place."""
        return False

    @property
    def staged(self) -> bool:
        """A matrix."""
        return False

    @property
    def transposes(self) -> bool:
        """Its rows are copied."""
        return False

    @contextmanager
    def lines(
        self, b: Builder, dtype: str, parameters: Mapping[str, str], row: str, rows: str, panel: str, pitch: str
    ) -> Iterator[tuple[str, str, str, str]]:
        """All rows are one run."""
        del b, dtype, parameters, row
        yield "0", rows, panel, pitch


@record
class MatrixSource(PanelSource):
    """A matrix with any strides.

    Attributes:
        dtype: Element type in memory.
        step: Along k: "1" (next element), "s" (a stride).
        row: From row to row: "1", "u" (one stride), "s" (one for each axis of the rows).
        row_axes: Number of axes of the rows.
    """

    dtype: str
    step: str
    row: str
    row_axes: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters."""
        step = ("a.k",) if self.step == "s" else ()
        return (*step, "a.row") if self.row != "s" else (*step, *(f"a.row{i}" for i in range(self.row_axes)))

    @property
    def direct(self) -> bool:
        """See :class:`Source`."""
        return self.step == "1" and self.row != "s"

    @property
    def transposes(self) -> bool:
        """Elements follow each other from row to row only."""
        return self.step == "s" and self.row == "1"

    def fill(self, b: Builder, want: Filling) -> None:
        """See :class:`Source`."""
        dtype, p, length = want.dtype, want.parameters, want.chunk.length
        step = p.get("a.k", "1")
        start = b.address(want.base, self.dtype, b.mul(want.chunk.start, step))
        if self.transposes:
            source, function = b.address(start, self.dtype, want.first), p["a.transpose"]
            transpose(b, function, dtype, self.dtype, source, step, length, want.count, want.panel, want.pitch)
            return
        with want.walk(b) as (r, at, target):
            if self.row == "s":
                place = start
                for i, index in enumerate(at):
                    place = b.address(place, self.dtype, b.mul(index, p[f"a.row{i}"]))
            else:
                place = b.address(start, self.dtype, b.mul(b.add(want.first, r), p["a.row"]))
            if self.step == "1":
                copy(b, dtype, self.dtype, place, length, target)
            else:
                gather(b, dtype, self.dtype, place, step, length, target)


def copy(b: Builder, dtype: str, source: str, place: str, length: str, target: str) -> None:
    """Copy elements of type ``source`` to ``dtype``, whole vectors: up to one vector after the last is overwritten."""
    width = machine().width(bits(dtype))
    printer = Printer(b, width)
    whole = b.op(f"and i64 {length}, {-width}")
    with b.loop(0, whole, width) as i:
        value = converted(b, width, printer.load(source, b.address(place, source, i)), source, dtype)
        printer.store(dtype, value, b.address(target, dtype, i))

    def rest() -> None:
        inner = Printer(b, width)
        value = inner.load_masked(source, b.address(place, source, whole), b.sub(length, whole))
        inner.store(dtype, converted(b, width, value, source, dtype), b.address(target, dtype, whole))

    b.branch(b.compare("ne", whole, length), rest)


def clear(b: Builder, dtype: str, target: str, length: str, padding: str | None = None) -> None:
    """Zeros, or the scalar ``padding``, in whole vectors: up to one after the last element is overwritten."""
    width = machine().width(bits(dtype))
    zero = "zeroinitializer" if width > 1 else "0" if dtype in INTS else "0.0"
    value = zero if padding is None else Printer(b, width).splat(dtype, padding, width)
    with b.loop(0, length, width) as i:
        Printer(b, width).store(dtype, value, b.address(target, dtype, i))


def gather(b: Builder, dtype: str, source: str, place: str, step: str, length: str, target: str) -> None:
    """Copy elements that lie ``step`` apart."""
    one = Printer(b, 1)
    with b.loop(0, length) as i:
        value = one.load(source, b.address(place, source, b.mul(i, step)))
        one.store(dtype, converted(b, 1, value, source, dtype), b.address(target, dtype, i))


def transpose(
    b: Builder,
    function: str,
    dtype: str,
    source: str,
    place: str,
    step: str,
    lines: str,
    columns: str,
    target: str,
    pitch: str,
    *,
    exact: bool = False,
) -> None:
    """``target[j, i] = place[i, j]`` for all ``i < lines`` and ``j < columns``, in square blocks of vectors.

    Args:
        b: Where to write.
        function: Address of :class:`accord.backends.cpu.transpose.TransposeCode`, an i64.
        dtype: Of the target.
        source: Element type of what is read.
        place: Address of what is read; elements of a line follow each other.
        step: Elements from line to line.
        lines: How many lines are read, at least one.
        columns: Elements of a line.
        target: Address of what is written; up to a vector after the last element of each line is overwritten.
        pitch: Bytes from line to line of the target.
        exact: Lines of the target may follow each other without gaps; only after the last one something is overwritten.
    """
    width = block_width(dtype)

    def blocks() -> None:
        # the last block of a line overlaps the one before it
        edge = b.sub(columns, width)
        end = b.max(b.sub(lines, width), 0) if exact else None
        step_bytes = b.mul(step, bits(source) // 8)
        with b.loop(0, columns, width) as start, b.loop(0, lines, width) as top:
            j = b.min(start, edge)
            i = b.min(top, end) if end is not None else top
            at = b.address(place, source, b.add(b.mul(i, step), j))
            to = b.address(b.op(f"getelementptr i8, ptr {target}, i64 {b.mul(j, pitch)}"), dtype, i)
            call_transpose(b, function, (at, step_bytes, b.sub(lines, i)), (to, pitch, width))

    def elements() -> None:
        with b.loop(0, columns) as j:
            to = b.op(f"getelementptr i8, ptr {target}, i64 {b.mul(j, pitch)}")
            gather(b, dtype, source, b.address(place, source, j), step, lines, to)

    b.branch(b.compare("sge", columns, width), blocks, elements)


def pack_panel(
    b: Builder,
    dtype: str,
    source: str,
    place: str,
    strides: tuple[str, str],
    length: str,
    columns: str,
    panel: str,
    line: str,
    function: str = "",
) -> None:
    """Copy ``length`` lines of ``columns`` elements of B to a panel; just one line where columns follow each other.

    Args:
        b: Where to write.
        dtype: Of the panel.
        source: Element type of B.
        place: Address of B's part.
        strides: Along k and along columns, as names of integers or "1".
        length: Lines, at least one.
        columns: Elements of a line; whole vectors are written.
        panel: Address.
        line: Bytes of a line.
        function: Where elements follow each other along k: see :func:`transpose`.
    """
    step, column = strides
    if column == "1" and length == "1":
        copy(b, dtype, source, place, columns, panel)
    elif step == "1":
        transpose(b, function, dtype, source, place, column, columns, length, panel, line)
    else:
        with b.loop(0, length) as i:
            target = b.op(f"getelementptr i8, ptr {panel}, i64 {b.mul(i, line)}")
            gather(b, dtype, source, b.address(place, source, b.mul(i, step)), column, columns, target)


def pack_taps(
    b: Builder,
    dtype: str,
    source: str,
    place: str,
    strides: tuple[str, str],
    length: str,
    columns: str,
    panel: str,
    line: str,
    function: str,
    taps: str,
    buffer: str,
) -> None:
    """As :func:`pack_panel` for all lines of a B whose k counts channels and then taps in memory, here the reverse.

    Blocks of whole vectors are transposed into a buffer, from where each line goes to its place.

    Args:
        b: Where to write.
        dtype: Of the panel.
        source: Element type of B.
        place: Address of B's part.
        strides: From channel to channel, which is the number of taps, and along columns.
        length: Lines.
        columns: Elements of a line; whole vectors are written.
        panel: Address.
        line: Bytes of a line.
        function: See :func:`transpose`.
        taps: How many.
        buffer: Address of scratch memory for as many vectors as a vector has elements.
    """
    width, size = machine().width(bits(dtype)), bits(dtype) // 8
    channels = b.op(f"udiv i64 {length}, {taps}")
    down = b.mul(channels, line)

    def blocks() -> None:
        step = b.mul(strides[1], bits(source) // 8)
        # the last blocks overlap those before them
        with b.loop(0, columns, width) as across, b.loop(0, length, width) as start:
            j, k = b.min(across, b.sub(columns, width)), b.min(start, b.sub(length, width))
            at = b.address(place, source, b.add(b.mul(j, strides[1]), k))
            call_transpose(b, function, (at, step, width), (buffer, width * size, width))
            target = b.address(panel, dtype, j)
            channel, tap = b.divmod(k, taps)
            with b.loop_carrying(0, width, 1, (("i64", channel), ("i64", tap))) as (i, (c, t), later):
                to = b.op(f"getelementptr i8, ptr {target}, i64 {b.add(b.mul(t, down), b.mul(c, line))}")
                copied = Printer(b, width).load(dtype, b.address(buffer, dtype, b.mul(i, width)))
                Printer(b, width).store(dtype, copied, to)
                after = b.add(t, 1)
                full = b.compare("eq", after, taps)
                later.append(b.add(c, b.op(f"zext i1 {full} to i64")))
                later.append(b.op(f"select i1 {full}, i64 0, i64 {after}"))

    def elements() -> None:
        with b.loop(0, channels) as c, b.loop(0, taps) as t:
            to = b.op(f"getelementptr i8, ptr {panel}, i64 {b.add(b.mul(t, down), b.mul(c, line))}")
            at = b.address(place, source, b.add(b.mul(c, taps), t))
            gather(b, dtype, source, at, strides[1], columns, to)

    wide = b.op(f"and i1 {b.compare('sge', columns, width)}, {b.compare('sge', length, width)}")
    b.branch(wide, blocks, elements)
