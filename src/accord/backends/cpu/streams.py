"""Between tensors and planes: transforms that run side by side, one a lane.

A *stream* is what a transform reads or writes along its axis: real numbers, or real and imaginary parts in turn. In a
plane, an element of all lanes is one line. A pair of stream elements, if they come in pairs, goes to the same line of
two planes.

Three ways lead from memory to lines. If the elements of a stream follow each other, a few of all lanes are brought into
vectors and transposed there. If the lanes follow each other, a line is a vector. Anything else, and what is left over,
is copied element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.expr.lang import bits, cast, operand
from accord.record import record

__all__ = ["Kind", "Planes", "Stream"]

#: Bits of the parts of a vector register within which shuffles are cheapest.
_PART_BITS = 128


@record
class Kind:
    """What machine code knows of a stream.

    Attributes:
        stored: Element type in memory.
        paired: Elements are real and imaginary parts in turn; if not, and ``halves`` is set, even and odd elements
            are treated so.
        halves: See ``paired``.
        way: "stream" if the elements follow each other, "lanes" if the lanes do, else "any".
    """

    stored: str
    paired: bool
    halves: bool
    way: str

    @property
    def in_pairs(self) -> bool:
        """Two elements of the stream are one line of two planes."""
        return self.paired or self.halves


@record
class Planes:
    """Addresses of the planes of real and imaginary parts, and the elements of a line: the lanes."""

    real: str
    imaginary: str
    line: str


@record
class Stream:
    """A stream of each lane of a block while code is written.

    Attributes:
        b: Where to write.
        kind: What is known.
        dtype: Element type of the planes.
        width: Elements of a vector of it.
        base: Address of the first lane's first element.
        lane: Elements of memory from lane to lane.
        step: Elements of memory from one number to the next along the transform's axis.
        part: Elements of memory from the real to the imaginary part.
        lanes: Number of lanes, at most ``width``.
    """

    b: Builder
    kind: Kind
    dtype: str
    width: int
    base: str
    lane: str
    step: str
    part: str
    lanes: str

    def _place(self, element: str) -> str:
        """Elements of memory from a lane's first element to another of its stream."""
        b = self.b
        if self.kind.way == "stream":
            return element
        if not self.kind.paired:
            return b.mul(element, self.step)
        row, part = b.divmod(element, 2)
        return b.add(b.mul(row, self.step), b.mul(part, self.part))

    def _line(self, planes: Planes, element: str) -> str:
        """Address of the line of a stream element whose plane is only known when code runs."""
        b = self.b
        if not self.kind.in_pairs:
            return b.address(planes.real, self.dtype, b.mul(element, planes.line))
        row, part = b.divmod(element, 2)
        odd = b.compare("ne", part, 0)
        plane = b.op(f"select i1 {odd}, ptr {planes.imaginary}, ptr {planes.real}")
        return b.address(plane, self.dtype, b.mul(row, planes.line))

    def _number(self, first: str, offset: int, planes: Planes) -> str:
        """Address of the line of element ``first + offset``; ``first`` is even."""
        b = self.b
        if not self.kind.in_pairs:
            return b.address(planes.real, self.dtype, b.mul(b.add(first, offset), planes.line))
        plane = planes.imaginary if offset % 2 else planes.real
        row = b.add(b.op(f"lshr i64 {first}, 1"), offset // 2)
        return b.address(plane, self.dtype, b.mul(row, planes.line))

    def load(self, planes: Planes, count: str, factor: Callable[[str], str] | None) -> None:
        """Write ``count`` elements of each lane's stream to lines.

        Args:
            planes: Where to.
            count: Number of elements.
            factor: From an element's number to the SSA name of a scalar that it is multiplied with.
        """
        self._walk(count, lambda e: self._load_block(planes, e, factor), lambda e: self._load_line(planes, e, factor))

    def store(self, planes: Planes, count: str, scale: str | None) -> None:
        """Write ``count`` elements of each lane's stream to memory, multiplied with the scalar ``scale``."""
        self._walk(count, lambda e: self._store_block(planes, e, scale), lambda e: self._store_line(planes, e, scale))

    def _walk(self, count: str, block: Callable[[str], None], line: Callable[[str], None]) -> None:
        """Whole blocks of a full set of lanes, then single lines."""
        b, w = self.b, self.width
        if self.kind.way == "any" or w < 2:
            with b.loop(0, count) as e:
                line(e)
            return
        size = self._size
        full = b.compare("eq", self.lanes, w)
        blocks = b.mul(b.op(f"sdiv i64 {count}, {size}"), size) if size > 1 else count
        stop = b.op(f"select i1 {full}, i64 {blocks}, i64 0")
        with b.loop(0, stop, size) as e:
            block(e)
        with b.loop(stop, count) as e:
            line(e)

    # one line, lane by lane

    def _load_line(self, planes: Planes, e: str, factor: Callable[[str], str] | None) -> None:
        b, stored = self.b, self.kind.stored
        source = b.address(self.base, stored, self._place(e))
        target = self._line(planes, e)
        scale = None if factor is None else factor(e)
        with b.loop(0, self.lanes) as lane:
            one = Printer(b, 1)
            loaded = one.load(stored, b.address(source, stored, b.mul(lane, self.lane)))
            value = self._multiplied(one, one.value(cast(operand(0, stored), self.dtype), [loaded]), scale)
            one.store(self.dtype, value, b.address(target, self.dtype, lane))

    def _store_line(self, planes: Planes, e: str, scale: str | None) -> None:
        b, stored = self.b, self.kind.stored
        target = b.address(self.base, stored, self._place(e))
        source = self._line(planes, e)
        with b.loop(0, self.lanes) as lane:
            one = Printer(b, 1)
            loaded = self._multiplied(one, one.load(self.dtype, b.address(source, self.dtype, lane)), scale)
            value = one.value(cast(operand(0, self.dtype), stored), [loaded])
            one.store(stored, value, b.address(target, stored, b.mul(lane, self.lane)))

    def _multiplied(self, printer: Printer, value: str, scale: str | None) -> str:
        if scale is None:
            return value
        return printer.value(operand(0, self.dtype) * operand(1, self.dtype), [value, scale])

    def _scaled(self, printer: Printer, value: str, scale: str | None) -> str:
        spread = None if scale is None else printer.splat(self.dtype, scale, self.width)
        return self._multiplied(printer, value, spread)

    # blocks of all lanes

    @property
    def _size(self) -> int:
        """Elements of a stream that make a block."""
        if self.kind.way == "lanes":
            return 2 if self.kind.paired else 1
        return max(1, _PART_BITS // bits(self.dtype))

    def _load_block(self, planes: Planes, e: str, factor: Callable[[str], str] | None) -> None:
        b, stored, w = self.b, self.kind.stored, self.width
        if self.kind.way == "stream":
            lines = self._columns(e)
        else:
            row = b.op(f"lshr i64 {e}, 1") if self.kind.paired else e
            at = b.address(self.base, stored, b.mul(row, self.step))
            lines = [self._widened(Printer(b, w).load(stored, b.address(at, stored, k * w))) for k in range(self._size)]
            if self.kind.paired:
                lines = [_shuffled(b, self.dtype, w, lines, range(part, 2 * w, 2)) for part in range(2)]
        for k, value in enumerate(lines):
            many = Printer(b, w)
            scale = None if factor is None else factor(b.add(e, k))
            many.store(self.dtype, self._scaled(many, value, scale), self._target(planes, e, k))

    def _store_block(self, planes: Planes, e: str, scale: str | None) -> None:
        b, stored, w = self.b, self.kind.stored, self.width
        lines = []
        for k in range(self._size):
            many = Printer(b, w)
            value = self._scaled(many, many.load(self.dtype, self._target(planes, e, k)), scale)
            lines.append(value)
        if self.kind.way == "stream":
            self._put_columns(e, lines)
            return
        row = b.op(f"lshr i64 {e}, 1") if self.kind.paired else e
        at = b.address(self.base, stored, b.mul(row, self.step))
        if self.kind.paired:
            mixed = [[k // 2 + w * (k % 2) for k in range(first, first + w)] for first in (0, w)]
            lines = [_shuffled(b, self.dtype, w, lines, order) for order in mixed]
        for k, value in enumerate(lines):
            Printer(b, w).store(stored, self._narrowed(value), b.address(at, stored, k * w))

    def _target(self, planes: Planes, e: str, offset: int) -> str:
        """Address of the line of element ``e + offset`` of a block."""
        if self.kind.in_pairs and self._size == 1:
            return self._line(planes, e)
        return self._number(e, offset, planes)

    def _lane_address(self, lane: int, e: str) -> str:
        """Address of a lane's element, where elements follow each other."""
        return self.b.address(self.base, self.kind.stored, self.b.add(self.b.mul(lane, self.lane) if lane else 0, e))

    def _columns(self, e: str) -> list[str]:
        """Lines of a block whose lanes' elements follow each other.

        Part q of vector i holds the elements of lane ``size * q + i``, so the block is transposed within the parts.
        """
        b, stored, size = self.b, self.kind.stored, self._size
        rows = []
        for i in range(size):
            parts = [Printer(b, size).load(stored, self._lane_address(q + i, e)) for q in range(0, self.width, size)]
            while len(parts) > 1:
                count = self.width // len(parts)
                parts = [
                    _shuffled(b, stored, count, parts[k : k + 2], range(2 * count)) for k in range(0, len(parts), 2)
                ]
            rows.append(self._widened(parts[0]))
        return _transposed(b, self.dtype, self.width, rows)

    def _put_columns(self, e: str, lines: Sequence[str]) -> None:
        """The way back from :meth:`_columns`."""
        b, stored, size = self.b, self.kind.stored, self._size
        for i, row in enumerate(_transposed(b, self.dtype, self.width, lines)):
            value = self._narrowed(row)
            for q in range(0, self.width, size):
                part = _shuffled(b, stored, self.width, (value, value), range(q, q + size))
                Printer(b, size).store(stored, part, self._lane_address(q + i, e))

    def _widened(self, value: str) -> str:
        return Printer(self.b, self.width).value(cast(operand(0, self.kind.stored), self.dtype), [value])

    def _narrowed(self, value: str) -> str:
        return Printer(self.b, self.width).value(cast(operand(0, self.dtype), self.kind.stored), [value])


def _shuffled(b: Builder, dtype: str, width: int, pair: Sequence[str], order: Sequence[int]) -> str:
    """Elements of two vectors in a new order; those of the second are numbered on."""
    type_ = vector(dtype, width)
    index = ", ".join(f"i32 {k}" for k in order)
    return b.op(f"shufflevector {type_} {pair[0]}, {type_} {pair[1]}, <{len(order)} x i32> <{index}>")


def _transposed(b: Builder, dtype: str, width: int, rows: Sequence[str]) -> list[str]:
    """The columns of square blocks: the parts of vectors, of as many elements as there are vectors."""
    size = len(rows)
    block = list(rows)
    distance = 1
    while distance < size:
        upper = [k if not k & distance else width + k - distance for k in range(width)]
        lower = [k + distance if not k & distance else width + k for k in range(width)]
        for i in range(size):
            if not i & distance:
                pair = block[i], block[i + distance]
                block[i] = _shuffled(b, dtype, width, pair, upper)
                block[i + distance] = _shuffled(b, dtype, width, pair, lower)
        distance *= 2
    return block
