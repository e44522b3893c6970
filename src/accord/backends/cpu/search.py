"""The k first elements of lines in some order (TopK).

A line's elements become keys (see :mod:`accord.backends.cpu.sorting`). Where the line is not much longer than k, all
are sorted. Otherwise the best so far are kept in a buffer: an element enters if it is better than the worst that is
sure to be wanted; whenever the buffer is full it is sorted and cut to k. So most vectors cost one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.sorting import COUNTS, SLACK, call_sort, scratch_bytes, sort_function
from accord.backends.ordering import key_dtype, order_key
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import bits
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["any_lane", "append_vector", "each_lane", "top_k_phase", "top_k_workspace"]

#: Elements that the buffer holds beside twice k.
_ROOM = 128
TASK_ELEMENTS = 16384


@record
class TopKCode(KernelCode):
    """Code for lines of one element type; a k that is longer than a line is refused.

    Parameters: length, k, room of the buffer, rows of a task, rows, bytes of a thread's scratch memory, for input,
    values and indices the stride along the line, then the row axes' extents, and for each operand offset and strides.

    Attributes:
        dtype: Of the elements.
        axes: Number of row axes.
        unit: Elements of a line follow each other.
        largest: The greatest come first.
        outputs: Whether values and indices are wanted.
    """

    dtype: str
    axes: int
    unit: bool
    largest: bool
    outputs: tuple[bool, bool]
    checks = True

    @property
    def symbol(self) -> str:
        """Name by content."""
        flags = "".join("01"[x] for x in (self.unit, self.largest, *self.outputs))
        return f"top_k_{self.dtype}_{self.axes}_{flags}"

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Writer:
    def __init__(self, code: TopKCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.key = key_dtype(code.dtype)
        self.width = machine().width(bits(self.key))
        self.order = order_key(code.dtype, descending=code.largest)

    def write(self) -> str:
        b, code = self.b, self.code
        self.length, self.k, self.room, block, rows, scratch = (b.param(i) for i in range(6))
        self.step, *steps = (b.param(6 + i) for i in range(3))
        extents = [b.param(9 + i) for i in range(code.axes)]
        at = 9 + code.axes
        self._scratch(b.operand(1 + sum(code.outputs)), scratch)
        self.filled, self.lanes = b.op("alloca i64"), b.op("alloca i64")
        self.best = b.op(f"alloca {vector(self.key, self.width)}"), b.op(f"alloca {vector('i32', self.width)}")
        self.offered = b.op(f"alloca {vector(self.key, self.width)}")
        self.limit = b.op(f"alloca i{bits(self.key)}")
        wanted = [True, *code.outputs]
        dtypes = (code.dtype, code.dtype, "i64")
        number = 0
        bases: list[str | None] = []
        for operand, used in enumerate(wanted):
            if used:
                bases.append(b.address(b.operand(number), dtypes[operand], b.param(at)))
                number += 1
            else:
                bases.append(None)
            at += 1 + code.axes
        beyond = b.compare("sgt", self.k, self.length)
        word = b.op(f"getelementptr i64, ptr %params, i64 {at}")
        b.branch(beyond, lambda: b.emit(f"store i64 1, ptr {word}"))
        last = b.op(f"select i1 {beyond}, i64 %first, i64 %last")
        with b.loop("%first", last) as task:
            start = b.mul(task, block)
            with b.loop(start, b.min(b.add(start, block), rows)) as row:
                rest = row
                lines = list(bases)
                for axis in range(code.axes - 1, -1, -1):
                    position = rest
                    if axis:
                        rest, position = b.divmod(rest, extents[axis])
                    for operand, address in enumerate(lines):
                        if address is not None:
                            stride = b.param(9 + code.axes + operand * (1 + code.axes) + 1 + axis)
                            lines[operand] = b.address(address, dtypes[operand], b.mul(position, stride))
                self._line(lines, steps)
        return b.module(sort_function(code.dtype))

    def _scratch(self, base: str, size: str) -> None:
        """Addresses within the thread's scratch memory: counts, keys and indices, and both again."""
        b = self.b
        self.counts = b.address(base, "u8", b.mul("%thread", size))
        entries = b.add(self.room, SLACK)
        at = b.address(self.counts, "u8", COUNTS)
        places = []
        for dtype in (self.key, "i32", self.key, "i32"):
            at = b.address(at, dtype, SLACK)
            places.append(at)
            at = b.address(at, dtype, entries)
        self.keys, self.index, self.keys2, self.index2 = places

    def _line(self, lines: Sequence[str | None], steps: Sequence[str]) -> None:
        b = self.b
        source = lines[0]
        assert source is not None
        few = b.compare("sle", self.k, self.width)
        room = b.op(f"select i1 {few}, i64 {self.width}, i64 {self.room}")
        first = b.min(self.length, room)
        with b.loop(0, first, self.width) as j:
            keys, numbers = self._vector(source, j, first)
            Printer(b, self.width).store(self.key, keys, b.address(self.keys, self.key, j))
            Printer(b, self.width).store("i32", numbers, b.address(self.index, "i32", j))
        self._sort(first)
        more = b.compare("sgt", self.length, first)
        some = b.op(f"and i1 {more}, {few}")
        many = b.op(f"and i1 {more}, {b.op(f'xor i1 {few}, true')}")
        b.branch(some, lambda: self._few(source, first))
        b.branch(many, lambda: self._rest(source, first))
        self._store(lines, steps)

    def _vector(self, source: str, j: str, stop: str) -> tuple[str, str]:
        """Keys of the elements from ``j`` on, greatest past ``stop``, and their numbers."""
        b, w = self.b, self.width
        printer = Printer(b, w)
        dtype = self.code.dtype
        address = b.address(source, dtype, j if self.code.unit else b.mul(j, self.step))
        count = b.min(b.sub(stop, j), w)
        if self.code.unit:
            loaded = printer.load_masked(dtype, address, count)
        else:
            loaded = _gather_some(b, printer, dtype, address, self.step, count)
        keys = printer.value(self.order, [loaded])
        keys = printer.keep_first(self.key, keys, Printer(b, w).splat(self.key, "-1", w), count)
        first = b.op(f"trunc i64 {j} to i32")
        lanes = ", ".join(f"i32 {k}" for k in range(w))
        type_ = f"<{w} x i32>" if w > 1 else "i32"
        numbers = b.op(f"add {type_} {printer.splat('i32', first, w)}, {f'<{lanes}>' if w > 1 else '0'}")
        return keys, numbers

    def _sort(self, count: str) -> None:
        call_sort(self.b, self.code.dtype, (self.keys, self.index, self.keys2, self.index2), count, self.counts)

    def _rest(self, source: str, first: str) -> None:
        """Elements after the first ones; the buffer is sorted and at least k long."""
        b, w, key = self.b, self.width, self.key
        size = bits(key)
        kind = f"i{size}"

        def worst() -> str:
            at = b.address(self.keys, key, b.sub(self.k, 1))
            return b.op(f"load {kind}, ptr {at}")

        filled, limit = self.filled, self.limit
        b.emit(f"store i64 {self.k}, ptr {filled}")
        b.emit(f"store {kind} {worst()}, ptr {limit}")
        with b.loop(first, self.length, w) as j:
            keys, numbers = self._vector(source, j, self.length)
            least = Printer(b, w).splat(key, b.op(f"load {kind}, ptr {limit}"), w)
            type_ = f"<{w} x {kind}>" if w > 1 else kind
            better = b.op(f"icmp ult {type_} {keys}, {least}")

            def enter(keys: str = keys, numbers: str = numbers, better: str = better) -> None:
                count = b.op(f"load i64, ptr {filled}")
                full = b.compare("sgt", b.add(count, w), self.room)

                def cut() -> None:
                    self._sort(count)
                    b.emit(f"store i64 {self.k}, ptr {filled}")
                    b.emit(f"store {kind} {worst()}, ptr {limit}")

                b.branch(full, cut)
                count = b.op(f"load i64, ptr {filled}")
                grown = append_vector(b, w, better, [(key, keys, self.keys), ("i32", numbers, self.index)], count)
                b.emit(f"store i64 {grown}, ptr {filled}")

            b.branch(any_lane(b, better, w), enter)
        self._sort(b.op(f"load i64, ptr {filled}"))

    def _few(self, source: str, first: str) -> None:
        """As :meth:`_rest` where k fits one register: the best lie in its last lanes, in order.

        A better one takes its lane and moves those after it by one.
        """
        b, w, key = self.b, self.width, self.key
        lead = b.sub(w, self.k)
        columns = [(d, b.address(at, d, b.sub(0, lead))) for d, at in ((key, self.keys), ("i32", self.index))]
        printer, one = Printer(b, w), Printer(b, 1)
        type_ = vector(key, w)
        with b.loop(0, lead) as i:  # lanes before them must never move
            one.store(key, "0", b.address(columns[0][1], key, i))
        for (dtype, at), slot in zip(columns, self.best, strict=True):
            b.emit(f"store {vector(dtype, w)} {printer.load(dtype, at)}, ptr {slot}")
        with b.loop(first, self.length, w) as j:
            keys, _ = self._vector(source, j, self.length)
            worst = _lane(b, key, w, b.op(f"load {type_}, ptr {self.best[0]}"), [w - 1] * w)
            better = b.op(f"icmp ult {type_} {keys}, {worst}")

            def offer(keys: str = keys, j: str = j, better: str = better) -> None:
                b.emit(f"store {type_} {keys}, ptr {self.offered}")
                each_lane(b, w, better, self.lanes, lambda lane: self._insert(lane, b.add(j, lane)))

            b.branch(any_lane(b, better, w), offer)
        for (dtype, at), slot in zip(columns, self.best, strict=True):
            printer.store(dtype, b.op(f"load {vector(dtype, w)}, ptr {slot}"), at)

    def _insert(self, lane: str, number: str) -> None:
        b, w, key = self.b, self.width, self.key
        one, printer = Printer(b, 1), Printer(b, w)
        types = [vector(d, w) for d in (key, "i32")]
        offered = printer.splat(key, one.load(key, b.address(self.offered, key, lane)), w)
        numbers = printer.splat("i32", b.op(f"trunc i64 {number} to i32"), w)
        keys, index = (b.op(f"load {t}, ptr {slot}") for t, slot in zip(types, self.best, strict=True))
        order = [w, *range(w - 1)]
        moved, moved_index = _lane(b, key, w, keys, order), _lane(b, "i32", w, index, order)
        mask = vector("bool", w)
        worse = b.op(f"icmp ugt {types[0]} {keys}, {offered}")
        pushed = b.op(f"icmp ugt {types[0]} {moved}, {offered}")
        for type_, slot, old, shifted, new in (
            (types[0], self.best[0], keys, moved, offered),
            (types[1], self.best[1], index, moved_index, numbers),
        ):
            entered = b.op(f"select {mask} {pushed}, {type_} {shifted}, {type_} {new}")
            chosen = b.op(f"select {mask} {worse}, {type_} {entered}, {type_} {old}")
            b.emit(f"store {type_} {chosen}, ptr {slot}")

    def _store(self, lines: Sequence[str | None], steps: Sequence[str]) -> None:
        b, dtype = self.b, self.code.dtype
        one = Printer(b, 1)
        source, values, indices = lines
        assert source is not None
        with b.loop(0, self.k) as i:
            number = b.op(f"load i32, ptr {b.address(self.index, 'i32', i)}")
            number = b.op(f"zext i32 {number} to i64")
            if values is not None:
                element = one.load(dtype, b.address(source, dtype, b.mul(number, self.step)))
                one.store(dtype, element, b.address(values, dtype, b.mul(i, steps[0])))
            if indices is not None:
                one.store("i64", number, b.address(indices, "i64", b.mul(i, steps[1])))


def _gather_some(b: Builder, printer: Printer, dtype: str, address: str, step: str, count: str) -> str:
    """``count`` elements ``step`` apart; the last of them in the lanes that are left, so that nothing else is read."""
    w = printer.width
    if w == 1:
        return printer.load(dtype, address)
    memory = "u8" if dtype == "bool" else dtype
    last = b.sub(count, 1)
    x = "poison"
    for k in range(w):
        at = b.address(address, memory, b.mul(b.min(last, k), step))
        element = Printer(b, 1).load(memory, at)
        x = b.op(f"insertelement {vector(memory, w)} {x}, {scalar(memory)} {element}, i64 {k}")
    return b.op(f"icmp ne {vector(memory, w)} {x}, zeroinitializer") if dtype == "bool" else x


def _lane(b: Builder, dtype: str, width: int, value: str, order: Sequence[int]) -> str:
    """Lanes of ``value`` in another order; number ``width`` is a zero."""
    type_ = vector(dtype, width)
    index = ", ".join(f"i32 {k}" for k in order)
    return b.op(f"shufflevector {type_} {value}, {type_} zeroinitializer, <{len(order)} x i32> <{index}>")


def each_lane(b: Builder, width: int, mask: str, slot: str, body: Callable[[str], None]) -> None:
    """Run ``body`` with the number of each lane that ``mask`` has set, in order; ``slot`` is room for an i64."""
    bits_ = b.op(f"bitcast <{width} x i1> {mask} to i{width}")
    b.emit(f"store i64 {b.op(f'zext i{width} {bits_} to i64')}, ptr {slot}")
    head, inside, end = (b.fresh("lanes").lstrip("%") for _ in range(3))
    b.declare("declare i64 @llvm.cttz.i64(i64, i1)")
    b.emit(f"br label %{head}")
    b.label(head)
    left = b.op(f"load i64, ptr {slot}")
    b.emit(f"br i1 {b.compare('ne', left, 0)}, label %{inside}, label %{end}")
    b.label(inside)
    lane = b.op(f"call i64 @llvm.cttz.i64(i64 {left}, i1 true)")
    b.emit(f"store i64 {b.op(f'and i64 {left}, {b.sub(left, 1)}')}, ptr {slot}")
    body(lane)
    b.emit(f"br label %{head}")
    b.label(end)


def any_lane(b: Builder, mask: str, width: int) -> str:
    """Whether a lane of a bool vector is set, an i1."""
    if width == 1:
        return mask
    b.declare(f"declare i1 @llvm.vector.reduce.or.v{width}i1(<{width} x i1>)")
    return b.op(f"call i1 @llvm.vector.reduce.or.v{width}i1(<{width} x i1> {mask})")


def append_vector(b: Builder, width: int, mask: str, columns: Sequence[tuple[str, str, str]], count: str) -> str:
    """Append the lanes that ``mask`` chooses to arrays.

    Args:
        b: Where to write.
        width: Lanes.
        mask: bool vector.
        columns: For each array element type (of 32 or 64 bits), vector, and address. ``width`` elements from ``count``
            on are written whatever the mask says.
        count: How many the arrays hold.

    Returns:
        How many they hold afterwards, an i64.
    """
    for dtype, given, base in columns:
        type_, value = vector(dtype, width), given
        if width > 1:
            suffix = f"v{width}{'' if dtype.startswith('f') else 'i'}{dtype if dtype.startswith('f') else bits(dtype)}"
            name = f"@llvm.experimental.vector.compress.{suffix}"
            b.declare(f"declare {type_} {name}({type_}, <{width} x i1>, {type_})")
            value = b.op(f"call {type_} {name}({type_} {value}, <{width} x i1> {mask}, {type_} poison)")
        Printer(b, width).store(dtype, value, b.address(base, dtype, count))
    if width == 1:
        return b.add(count, b.op(f"zext i1 {mask} to i64"))
    number = b.op(f"bitcast <{width} x i1> {mask} to i{width}")
    b.declare(f"declare i{width} @llvm.ctpop.i{width}(i{width})")
    number = b.op(f"call i{width} @llvm.ctpop.i{width}(i{width} {number})")
    return b.add(count, b.op(f"zext i{width} {number} to i64"))


def _room(length: DimLike, k: DimLike) -> DimLike:
    return D.minimum(length, k * 2 + _ROOM)


def top_k_workspace(dtype: str, length: DimLike, k: DimLike) -> DimLike:
    """Bytes of scratch memory for each thread."""
    return (_room(length, k) + 2 * SLACK) * scratch_bytes(dtype) + COUNTS


def top_k_phase(
    dtype: str,
    shape: Shape,
    axis: int,
    k: DimLike,
    accesses: tuple[Access, Access | None, Access | None],
    *,
    largest: bool,
    operands: tuple[int, ...],
) -> Phase:
    """A phase that writes the k first elements of each line along ``axis``, in order; equal ones by rising index.

    Args:
        dtype: Of the elements.
        shape: Of the input.
        axis: Not negative; below 2**32 elements.
        k: At most the axis's size.
        accesses: How input, values and indices lie; None for an output that is not wanted.
        largest: Greatest first; if not, smallest. NaN is greater than all others.
        operands: Input, wanted outputs, workspace of :func:`top_k_workspace` bytes a thread.
    """
    rows = [d for a, d in enumerate(shape) if a != axis] or [1]
    dims: list[DimLike] = [shape[axis], k, _room(shape[axis], k), D.product(rows)]
    dims.append(top_k_workspace(dtype, shape[axis], k))
    dims += [0 if a is None else a.strides[axis] for a in accesses]
    dims += rows
    for a in accesses:
        strides = () if a is None else (*a.strides[:axis], *a.strides[axis + 1 :])
        dims += [0 if a is None else a.offset, *strides, *(0,) * (len(rows) - len(strides))]
    wanted = (accesses[1] is not None, accesses[2] is not None)
    code = TopKCode(dtype, len(rows), accesses[0].strides[axis] == 1, largest, wanted)
    return Phase(code, operands, tuple(dims), _launch)


def _launch(sizes: Sequence[int]) -> Launch:
    length, k, room, rows, scratch = sizes[:5]
    block = max(1, min(rows, TASK_ELEMENTS // max(1, length)))
    params = (length, k, room, block, rows, scratch, *sizes[5:])
    return Launch(params, -(-rows // block) if k > 0 else 0)
