"""Kernels that read or write where an index tensor says: gather and scatter of every kind.

Both walk the *line* (the gathered output, or the updates of a scatter) in an affine way. The other operand is walked
along the same axes and moved further by coordinates that come from the index tensor: ``at[affine + sum of index[c] *
stride[c]]``. An index that is negative counts from the end; one that is outside its axis is refused: a gather puts
zeros there, a scatter leaves the element out.

Axes are walked as in pointwise kernels: outer axes, a middle one, an inner one, and before the inner one those that a
task walks in order because several of their elements may meet in one place.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.launches import launch_copy, launch_indexed
from accord.backends.cpu.llvm import Builder, scalar
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.loops.nest import merge_axes
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import Expr, bits
from accord.expr.math import expand
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Coordinate", "IndexedCode", "copy_phase", "indexed_phase", "positions_phase"]


_LINE, _INDEX, _AT = range(3)


@record
class Coordinate:
    """One coordinate that the index tensor gives.

    Attributes:
        size: Of the axis that it counts along.
        stride: Of that axis.
    """

    size: DimLike
    stride: DimLike


@record
class IndexedCode(KernelCode):
    """Code for these patterns of strides.

    Attributes:
        kinds: For the line, the index and the other operand: for each axis "0" (repeats), "1" (next element) or "s".
        sequential: Number of axes before the inner one that one task walks in order.
        depth: Number of coordinates.
        index: Element type of the index tensor.
        dtype: Of the other operand's elements.
        line: Of the line's elements; another one only where a scatter joins.
        scatter: The line is written to the other operand; if not, read from it.
        join: Of a scatter: expression of the element in place (operand 0) and the line's (operand 1); None replaces.
        wraps: Negative indices count from the end. If not, they are refused.
    """

    kinds: tuple[str, str, str]
    sequential: int
    depth: int
    index: str
    dtype: str
    line: str
    scatter: bool
    join: Expr | None = None
    wraps: bool = True
    checks = True

    @property
    def symbol(self) -> str:
        """Name by content."""
        join = "" if self.join is None else self.join.key
        types = f"{self.index};{self.dtype};{self.line}"
        text = f"{self.kinds};{self.sequential};{self.depth};{types};{self.scatter};{self.wraps};{join}"
        return "indexed_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def axes(self) -> int:
        """Number of axes."""
        return len(self.kinds[0])

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Operand:
    """An operand while code is written."""

    def __init__(self, b: Builder, dtype: str, kinds: str, number: int, param: int) -> None:
        self.dtype = dtype
        self.kinds = kinds
        self.base = b.address(b.operand(number), dtype, b.param(param))
        self.params = 1 + kinds.count("s")
        at = param + 1
        self.strides: list[str | int] = []
        for kind in kinds:
            self.strides.append(b.param(at) if kind == "s" else int(kind))
            at += kind == "s"

    def advance(self, b: Builder, address: str, axis: int, index: str) -> str:
        """Address after moving ``index`` steps along ``axis``."""
        if self.kinds[axis] == "0":
            return address
        return b.address(address, self.dtype, b.mul(index, self.strides[axis]))


class _Writer:
    """Parameters: extents, blocks and their numbers, a refusal, operands, step of the index, coordinates."""

    def __init__(self, code: IndexedCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.join = None if code.join is None else expand(code.join)

    def write(self) -> str:
        b, code, k = self.b, self.code, self.code.axes
        extents = [b.param(i) for i in range(k)]
        mid_block, inner_block, mid_blocks, inner_blocks, refused = (b.param(k + i) for i in range(5))
        at = k + 5
        self.operands: list[_Operand] = []
        for number, dtype in enumerate((code.line, code.index, code.dtype)):
            self.operands.append(_Operand(b, dtype, code.kinds[number], number, at))
            at += self.operands[-1].params
        self.step = b.param(at)
        self.coordinates = [(b.param(at + 1 + 2 * c), b.param(at + 2 + 2 * c)) for c in range(code.depth)]
        word = b.op(f"getelementptr i64, ptr %params, i64 {at + 1 + 2 * code.depth}")
        self._refuse = functools.partial(b.emit, f"store i64 1, ptr {word}")
        all_refused = b.compare("ne", refused, 0)
        b.branch(all_refused, self._refuse)
        last = b.op(f"select i1 {all_refused}, i64 %first, i64 %last")
        mid = k - 2 - code.sequential
        with b.loop("%first", last) as task:
            rest, inner_index = b.divmod(task, inner_blocks)
            outer, mid_index = b.divmod(rest, mid_blocks)
            addresses = [o.base for o in self.operands]
            for axis in range(mid - 1, -1, -1):
                position = outer
                if axis:
                    outer, position = b.divmod(outer, extents[axis])
                addresses = self._advance(addresses, axis, position)
            first = b.mul(mid_index, mid_block)
            stop = b.min(b.add(first, mid_block), extents[mid])
            inner_start = b.mul(inner_index, inner_block)
            inner_stop = b.min(b.add(inner_start, inner_block), extents[-1])
            with b.loop(first, stop) as m:
                rows = self._advance(addresses, mid, m)
                self._sequential(mid + 1, extents, rows, inner_start, inner_stop)
        return b.module()

    def _advance(self, addresses: Sequence[str], axis: int, index: str) -> list[str]:
        return [o.advance(self.b, a, axis, index) for o, a in zip(self.operands, addresses, strict=True)]

    def _sequential(self, axis: int, extents: Sequence[str], rows: list[str], start: str, stop: str) -> None:
        """Nested loops over the axes that are walked in order, then the inner one."""
        if axis == self.code.axes - 1:
            self._row(rows, start, stop)
            return
        with self.b.loop(0, extents[axis]) as i:
            self._sequential(axis + 1, extents, self._advance(rows, axis, i), start, stop)

    def _row(self, rows: list[str], start: str, stop: str) -> None:
        b, inner = self.b, self.code.axes - 1
        if self.code.kinds[_INDEX][inner] != "0":
            with b.loop(start, stop) as j:
                line, index, at = self._advance(rows, inner, j)
                self._placed(index, at, lambda place: self._element(line, place, 1, None), lambda: self._skip(line))
            return
        line, index, at = rows
        self._placed(
            index,
            at,
            lambda place: self._copy(line, place, start, stop),
            lambda: self._over(start, stop, lambda j, w, n: self._zero(line, j, w, n), (_LINE,)),
        )

    def _placed(self, index: str, at: str, then: Callable[[str], None], otherwise: Callable[[], None]) -> None:
        """Run ``then`` with the address that the index leads to, or ``otherwise`` and refuse."""
        b = self.b
        inside = "true"
        place = at
        for c, (size, stride) in enumerate(self.coordinates):
            address = b.address(index, self.code.index, b.mul(c, self.step) if c else 0)
            i = b.op(f"load {scalar(self.code.index)}, ptr {address}")
            if self.code.index != "i64":
                i = b.op(f"sext {scalar(self.code.index)} {i} to i64")
            wrapped = i
            if self.code.wraps:
                wrapped = b.op(f"select i1 {b.compare('slt', i, 0)}, i64 {b.add(i, size)}, i64 {i}")
            inside = b.op(f"and i1 {inside}, {b.compare('ult', wrapped, size)}")
            place = b.op(
                f"getelementptr {_unit(self.code.dtype)}, ptr {place}, i64 {b.op(f'mul i64 {wrapped}, {stride}')}"
            )

        def refuse() -> None:
            self._refuse()
            otherwise()

        b.branch(inside, lambda: then(place), refuse)

    # elements

    def _copy(self, line: str, place: str, start: str, stop: str) -> None:
        inner = self.code.axes - 1

        def move(j: str, width: int, count: str | None) -> None:
            source = self.operands[_LINE].advance(self.b, line, inner, j)
            target = self.operands[_AT].advance(self.b, place, inner, j)
            self._element(source, target, width, count)

        self._over(start, stop, move, (_LINE, _AT))

    def _over(
        self, start: str, stop: str, body: Callable[[str, int, str | None], None], operands: Sequence[int]
    ) -> None:
        """Walk the inner axis in vectors where the operands allow it."""
        b, inner = self.b, self.code.axes - 1
        if any(self.code.kinds[o][inner] != "1" for o in operands):
            with b.loop(start, stop) as j:
                body(j, 1, None)
            return
        size = bits(self.code.dtype)
        w = machine().width(size if self.join is None else max(32, size))
        main = b.add(start, b.mul(b.op(f"sdiv i64 {b.sub(stop, start)}, {w}"), w))
        with b.loop(start, main, w) as j:
            body(j, w, None)
        rest = b.sub(stop, main)
        b.branch(b.compare("sgt", rest, 0), lambda: body(main, w, rest))

    def _element(self, line: str, place: str, width: int, count: str | None) -> None:
        """Move ``width`` elements between the line and its place; only the first ``count`` where it is given."""
        printer, dtype = Printer(self.b, width), self.code.dtype
        source, target = (line, place) if self.code.scatter else (place, line)

        def load(dtype: str, address: str) -> str:
            return printer.load(dtype, address) if count is None else printer.load_masked(dtype, address, count)

        value = load(self.code.line, source)
        if self.join is not None:
            value = printer.value(self.join, [load(dtype, target), value])
        if count is None:
            printer.store(dtype, value, target)
        else:
            printer.store_masked(dtype, value, target, count)

    def _skip(self, line: str) -> None:
        if not self.code.scatter:
            self._put_zero(line, 1, None)

    def _zero(self, line: str, j: str, width: int, count: str | None) -> None:
        if not self.code.scatter:
            address = self.operands[_LINE].advance(self.b, line, self.code.axes - 1, j)
            self._put_zero(address, width, count)

    def _put_zero(self, address: str, width: int, count: str | None) -> None:
        printer, dtype = Printer(self.b, width), self.code.dtype
        zero = "zeroinitializer" if width > 1 else "0"
        if count is None:
            printer.store(dtype, zero, address)
        else:
            printer.store_masked(dtype, zero, address, count)


def _unit(dtype: str) -> str:
    return "i8" if dtype == "bool" else scalar(dtype)


def _kind(stride: DimLike) -> str:
    return str(stride) if stride in (0, 1) else "s"


def indexed_phase(
    extents: Shape,
    line: Access,
    at: Access,
    index: Access,
    coordinates: Sequence[Coordinate],
    *,
    step: DimLike = 1,
    dtype: str,
    line_dtype: str | None = None,
    index_dtype: str,
    scatter: bool = False,
    join: Expr | None = None,
    wraps: bool = True,
    sequential: Collection[int] = (),
    limits: Sequence[tuple[DimLike, DimLike]] = (),
    operands: tuple[int, int, int],
) -> Phase:
    """A phase that gathers a line from, or scatters it to, the places that an index tensor names.

    Args:
        extents: The line's axes.
        line: How the line lies.
        at: How the other operand is walked along the line's axes, coordinates aside.
        index: How the index tensor is walked along the line's axes.
        coordinates: What each coordinate counts.
        step: Elements between the coordinates of one place in the index tensor.
        dtype: Of the elements; one of the expressions' names. Where nothing is joined, any of the same size will do.
        line_dtype: Of the line's elements, if it differs.
        index_dtype: "i32" or "i64".
        scatter: Write the line to its places; if not, read it from there.
        join: See :class:`IndexedCode`.
        wraps: See :class:`IndexedCode`.
        sequential: Axes along which several elements may meet in one place.
        limits: Pairs (size, bound): where a size is greater than its bound the data is refused as a whole.
        operands: Which of the kernel's operands are line, index and the other one.
    """
    labels = [int(a in sequential) for a in range(len(extents))]
    sizes, accesses, labels = merge_axes(extents, (line, index, at), labels)
    order = [a for a in range(len(sizes) - 1) if not labels[a]]
    ordered = [a for a in range(len(sizes) - 1) if labels[a]]
    missing = [None] * (1 - min(1, len(order)))  # the middle axis
    axes: list[int | None] = [*missing, *order, *ordered, len(sizes) - 1 if sizes else None]
    extents = tuple(1 if a is None else sizes[a] for a in axes)
    strides = [tuple(0 if a is None else x.strides[a] for a in axes) for x in accesses]
    kinds = ["".join(map(_kind, s)) for s in strides]
    dims: list[DimLike] = [*extents]
    for access, own, kind in zip(accesses, strides, kinds, strict=True):
        dims += [access.offset, *(s for s, k in zip(own, kind, strict=True) if k == "s")]
    dims.append(step)
    for c in coordinates:
        dims += [c.size, c.stride]
    in_order = bool(labels) and bool(labels[-1])
    code = IndexedCode(
        (kinds[0], kinds[1], kinds[2]),
        len(ordered),
        len(coordinates),
        index_dtype,
        dtype,
        line_dtype or dtype,
        scatter,
        join,
        wraps,
    )
    launch = functools.partial(launch_indexed, len(extents), len(ordered), in_order, len(limits))
    return Phase(code, operands, (*dims, *(d for pair in limits for d in pair)), launch)


@record
class CopyCode(KernelCode):
    """Copies bytes, unless source and target are the same memory. Parameters: bytes, bytes of a task."""

    @property
    def symbol(self) -> str:
        """Name by content."""
        return "copy_bytes"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        size, block = b.param(0), b.param(1)
        source, target = b.operand(0), b.operand(1)
        same = b.op(f"icmp eq ptr {source}, {target}")
        last = b.op(f"select i1 {same}, i64 %first, i64 %last")
        with b.loop("%first", last) as task:
            start = b.mul(task, block)
            count = b.min(block, b.sub(size, start))
            origin, place = b.address(source, "u8", start), b.address(target, "u8", start)
            printer = Printer(b, machine().width(8))
            whole = b.mul(b.op(f"sdiv i64 {count}, {printer.width}"), printer.width)
            with b.loop(0, whole, printer.width) as i:
                printer.store("u8", printer.load("u8", b.address(origin, "u8", i)), b.address(place, "u8", i))
            with b.loop(whole, count) as i:
                one = Printer(b, 1)
                one.store("u8", one.load("u8", b.address(origin, "u8", i)), b.address(place, "u8", i))
        return b.module()


def copy_phase(nbytes: DimLike, operands: tuple[int, int]) -> Phase:
    """A phase that copies ``nbytes`` bytes; nothing where the output took the input's memory."""
    return Phase(CopyCode(), operands, (nbytes,), launch_copy)


@record
class PositionsCode(KernelCode):
    """``out[b, l] = start[b] + l``, an i64; where the start is refused, a number that no axis contains.

    Parameters: rows, length, size of the axis, step of the starts. One task does all rows, which are few.

    Attributes:
        starts: Element type of the starts; "" for starts of 0.
        circular: Positions past the end continue at 0. If not, they are refused.
    """

    starts: str
    circular: bool

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"positions_{self.starts}_{'circular' if self.circular else 'linear'}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        rows, length, room, step = (b.param(i) for i in range(4))
        out = b.operand(1 if self.starts else 0)
        with b.loop(0, rows) as row:
            start = "0"
            if self.starts:
                at = b.address(b.operand(0), self.starts, b.mul(row, step))
                start = b.op(f"load {scalar(self.starts)}, ptr {at}")
                if self.starts != "i64":
                    start = b.op(f"sext {scalar(self.starts)} {start} to i64")
            last = b.sub(room, length)
            refused = b.compare("slt", start, 0)
            if self.circular:
                start = b.op(f"srem i64 {start}, {b.max(room, 1)}")
            else:
                refused = b.op(f"or i1 {refused}, {b.compare('sgt', start, last)}")
            line = b.address(out, "i64", b.mul(row, length))
            with b.loop(0, length) as i:
                position = b.add(start, i)
                if self.circular:
                    beyond = b.compare("sge", position, room)
                    position = b.op(f"select i1 {beyond}, i64 {b.sub(position, room)}, i64 {position}")
                position = b.op(f"select i1 {refused}, i64 {-(1 << 62)}, i64 {position}")
                b.emit(f"store i64 {position}, ptr {b.address(line, 'i64', i)}")
        return b.module()


def positions_phase(
    rows: DimLike,
    length: DimLike,
    room: DimLike,
    *,
    starts: str,
    step: DimLike,
    circular: bool,
    operands: tuple[int, ...],
) -> Phase:
    """A phase that writes the positions ``[rows, length]`` at which rows of a given length begin to be written.

    Args:
        rows: Number of starts.
        length: Positions for each.
        room: Size of the axis.
        starts: Their element type, "" if all are 0.
        step: Elements between starts.
        circular: See :class:`PositionsCode`.
        operands: Starts (unless ``starts`` is ""), positions.
    """
    return Phase(PositionsCode(starts, circular), operands, (rows, length, room, step), _launch_once)


def _launch_once(sizes: Sequence[int]) -> Launch:
    return Launch(tuple(sizes), 1)
