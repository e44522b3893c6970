"""LLVM code of a loop program: tasks, rows, passes, and vectors of elements.

Parameters are the extents, (size, number) of the blocks of the last but one and of the last kept axis, then for each
operand and output its offset and the strides that are not in the code, then the bytes of a thread's row buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.loop_code import LoopCode, Pass, Stream, copies_of, hoisted, lanes_of, operands_of
from accord.backends.cpu.loop_memory import Function, Place, Slot, load_slot, store_slot
from accord.backends.cpu.loop_state import State
from accord.backends.cpu.transposing import call_tile, tile_function, unweave, weave
from accord.backends.loops.values import Result
from accord.expr.cost import cost_of
from accord.expr.lang import Expr, bits

__all__ = ["LoopWriter"]

#: Elements that an accumulator takes before what it holds is put aside.
_CHUNK = 64

_Addresses = dict[int, str]


@dataclass
class _Walk:
    """A pass as it is written.

    Attributes:
        body: Its expressions, without what is computed before it.
        before: Values that are computed once a row, and their numbers.
        reads: Numbers of all values that are needed at an element.
    """

    body: Pass
    before: list[tuple[int, Expr]]
    reads: frozenset[int]


class LoopWriter:
    """Writes one kernel."""

    def __init__(self, code: LoopCode, name: str) -> None:
        self.code = code
        self.b = Function(name)
        self.width = lanes_of(code)
        self.copies = copies_of(code)
        passes, self.rows, self.buffers = code.plan
        self.first_buffer = len(code.values)
        self.lane = code.kept - 1  # the axis along which lanes lie if they are rows
        self.last = code.kept + code.reduced - 1
        self.helpers: dict[str, Builder] = {}
        self._hoist(passes)

    # what is computed where

    def _hoist(self, passes: Sequence[Pass]) -> None:
        """Move what does not change out of the loops."""
        code = self.code
        self.streams = {i: v for i, v in enumerate(code.values) if isinstance(v, Stream)}
        self.row_reads = {i for i, s in self.streams.items() if not s.varies(code.kept)}
        self.outer_reads = {i for i in self.row_reads if code.across or self.streams[i].kinds[self.lane] == "0"}
        self.count = self.first_buffer + len(self.buffers)
        self.outer: list[tuple[int, Expr]] = []
        groups = [*(p.exprs for p in passes), [e for _, _, e in self.rows]]
        if not code.across:  # what is the same in all lanes is computed once, in a scalar register
            left, self.outer = hoisted([e for g in groups for e in g], self.outer_reads, self.count)
            self.count += len(self.outer)
            rest = iter(left)
            groups = [[next(rest) for _ in g] for g in groups]
        self.rows = [(j, level, e) for (j, level, _), e in zip(self.rows, groups.pop(), strict=True)]
        outside = self.row_reads | {n for n, _ in self.outer}
        for i, v in enumerate(code.values):
            if isinstance(v, Result) and not code.reductions[v.reduction].running:
                outside.add(i)
        self.walks = [self._walk(p, exprs, outside) for p, exprs in zip(passes, groups, strict=True)]

    def _walk(self, p: Pass, exprs: Sequence[Expr], outside: set[int]) -> _Walk:
        left, before = hoisted(exprs, outside, self.count)
        self.count += len(before)
        rest = iter(left)
        body = Pass(
            [(i, tuple(next(rest) for _ in args)) for i, args in p.reductions],
            [(j, next(rest)) for j, _ in p.stores],
            [(k, next(rest)) for k, _ in p.keeps],
        )
        return _Walk(body, before, frozenset(n for e in left for n in operands_of(e)))

    # the function

    def write(self) -> str:
        """Text of the module."""
        b = self.b
        self._parameters()
        self.loaded = dict(self.slots)
        self.rooms: dict[int, list[str]] = {}
        self._prepare_tiles()
        self.ahead = self._ahead()
        with b.loop("%first", "%last") as task:
            self._task(task)
        return b.module(*self.helpers.values())

    def _parameters(self) -> None:
        b, code = self.b, self.code
        n = code.kept + code.reduced
        self.extents = [b.param(i) for i in range(n)]
        self.mid_block, self.mid_blocks, self.inner_block, self.inner_blocks = (b.param(n + i) for i in range(4))
        at, operand = n + 4, 0
        self.slots: dict[int, Slot] = {}
        for number, stream in [*self.streams.items(), *((-1 - j, s) for j, s in enumerate(code.outputs))]:
            base = b.param(at)
            at += 1
            if stream.memory:
                base = b.address(b.operand(operand), stream.dtype, base)
                operand += 1
            strides: list[str | int] = []
            for kind in stream.kinds:
                strides.append(b.param(at) if kind == "s" else int(kind))
                at += kind == "s"
            self.slots[number] = Slot(stream.dtype, tuple(strides), base, stream.memory)
        for k, j in code.homes.items():
            self.slots[self.first_buffer + k] = self.slots[-1 - j]
        if len(self.buffers) > len(code.homes):
            self._row_buffers(b.operand(operand), b.param(at))

    def _row_buffers(self, scratch: str, size: str) -> None:
        b, code = self.b, self.code
        start = b.op(f"getelementptr i8, ptr {scratch}, i64 {b.mul(size, '%thread')}")
        own = [k for k in range(len(self.buffers)) if k not in code.homes]
        each = b.op(f"sdiv i64 {size}, {len(own)}")
        strides: list[str | int] = []
        step: str | int = 1 if code.across else self.width * self.copies
        for extent in reversed(self.extents[code.kept :]):
            strides.append(step)
            step = b.mul(extent, step)
        kept = [0] * (code.kept - 1) + [0 if code.across else 1]
        for i, k in enumerate(own):
            at = b.op(f"getelementptr i8, ptr {start}, i64 {b.mul(i, each)}") if i else start
            self.slots[self.first_buffer + k] = Slot(self.buffers[k], (*kept, *reversed(strides)), at, True)

    def _ahead(self) -> dict[int, str]:
        """For operands that are fetched before their turn, how many bytes before.

        While a row is walked for the second time, nothing asks for the next one.
        """
        code, length = self.code, self.extents[self.last]
        if not (code.across and code.reduced == 1 and len(self.walks) > 1):
            return {}
        rows = [n for n, s in self.streams.items() if s.memory and s.kinds[self.lane :] == "s1"]
        return {n: self.slots[n].ahead(self.b, self.lane, length) for n in rows}

    def _is_buffer(self, number: int) -> bool:
        """Whether a value is kept in memory of its own."""
        k = number - self.first_buffer
        return 0 <= k < len(self.buffers) and k not in self.code.homes

    def advance(self, at: _Addresses, axis: int, index: str | int) -> _Addresses:
        """``at`` after ``index`` steps along ``axis``."""
        return {n: self.slots[n].advance(self.b, a, axis, index) for n, a in at.items()}

    # tasks

    def _task(self, task: str) -> None:
        b, code = self.b, self.code
        at = {n: s.base for n, s in self.slots.items() if not self._is_buffer(n)}
        mid = self.lane if code.across else self.lane - 1 - bool(code.woven)
        rest, inner_index = task, "0"
        if not code.across:
            rest, inner_index = b.divmod(task, self.inner_blocks) if mid >= 0 else ("0", task)
        mid_index = rest
        if mid > 0:
            rest, mid_index = b.divmod(rest, self.mid_blocks)
        for axis in range(mid - 1, -1, -1):
            position = rest
            if axis:
                rest, position = b.divmod(rest, self.extents[axis])
            at = self.advance(at, axis, position)
        inner = self._block(inner_index, self.inner_block, self.extents[self.lane])
        row = self._woven_rows if code.woven else self._row
        if mid < 0:
            row(at, *inner)
            return
        start, stop = self._block(mid_index, self.mid_block, self.extents[mid])
        if self.rooms and not code.reduced:
            self._tiles(at, start, stop, *inner)
            return
        with b.loop(start, stop) as m:
            here = self.advance(at, mid, m)
            if code.across:
                self._cell([self._scalars(here)], [here], None)
            else:
                row(here, *inner)

    def _block(self, index: str, size: str, extent: str) -> tuple[str, str]:
        start = self.b.mul(index, size)
        return start, self.b.min(self.b.add(start, size), extent)

    def _scalars(self, at: _Addresses) -> Place:
        """What is the same in all lanes."""
        place = Place(self.b, 1, self.count)
        for n in sorted(self.outer_reads):
            place.put(n, self.slots[n].dtype, load_slot(place, self.slots[n], at[n], None))
        for n, expr in self.outer:
            place.compute(n, expr)
        return place

    def _spread(self, scalars: Place, numbers: Iterable[int]) -> Place:
        """A place of vectors that knows the scalars ``numbers``."""
        place = Place(self.b, self.width, self.count)
        for n in sorted(numbers):
            if n in scalars.names:
                dtype = scalars.dtypes[n]
                place.put(n, dtype, place.printer.splat(dtype, scalars.names[n], self.width))
        return place

    def _row(self, at: _Addresses, start: str, stop: str) -> None:
        """The last kept axis from ``start`` to ``stop``, in vectors of neighbouring rows."""
        b, w, lane = self.b, self.width, self.lane
        scalars = self._scalars(at)
        common = self._spread(scalars, scalars.names)
        if self.copies > 1:
            step = w * self.copies
            whole = b.add(start, b.mul(b.op(f"sdiv i64 {b.sub(stop, start)}, {step}"), step))
            with b.loop(start, whole, step) as j:
                here = [self.advance(at, lane, b.add(j, u * w)) for u in range(self.copies)]
                self._cell([common.copy() for _ in here], here, None)
            start = whole
        full = b.add(start, b.mul(b.op(f"sdiv i64 {b.sub(stop, start)}, {w}"), w))
        with b.loop(start, full, w) as j:
            self._cell([common.copy()], [self.advance(at, lane, j)], None)
        left = b.sub(stop, full)
        b.branch(
            b.compare("sgt", left, 0),
            lambda: self._cell([common.copy()], [self.advance(at, lane, full)], left),
        )

    # tiles

    def _prepare_tiles(self) -> None:
        """Make room for a tile of each operand that is transposed."""
        for n in sorted(self.code.turned):
            slot, word = self.slots[n], f"u{bits(self.slots[n].dtype)}"
            rooms = [self.b.variable(vector(word, self.width), self.width) for _ in range(self.copies)]
            strides = tuple(1 if axis == self.lane else s for axis, s in enumerate(slot.strides))
            self.rooms[n] = rooms
            self.loaded[n] = replace(slot, strides=strides)
            self.helpers.setdefault(word, tile_function(word, self.width))

    def fill_tile(self, n: int, copy: int, source: str, rows: str, columns: str) -> None:
        """Transpose ``rows`` lanes of ``columns`` elements of operand ``n`` from address ``source`` on."""
        slot = self.slots[n]
        call_tile(self.b, slot.dtype, self.width, source, slot.strides[self.lane], self.rooms[n][copy], rows, columns)

    def tile_row(self, n: int, copy: int, row: str) -> str:
        """Address of what is column ``row`` of the operand in memory."""
        return self.b.address(self.rooms[n][copy], self.slots[n].dtype, self.b.mul(row, self.width))

    def _tiles(self, at: _Addresses, start: str, stop: str, inner_start: str, inner_stop: str) -> None:
        """The last two kept axes in tiles as wide and high as a vector."""
        b, w, mid, lane = self.b, self.width, self.lane - 1, self.lane
        with b.loop(start, stop, w) as m, b.loop(inner_start, inner_stop, w) as j:
            height, lanes = b.min(b.sub(stop, m), w), b.min(b.sub(inner_stop, j), w)
            here = self.advance(self.advance(at, mid, m), lane, j)
            for n in self.rooms:
                self.fill_tile(n, 0, here[n], lanes, height)

            def cells(count: str | None) -> None:
                with b.loop(0, height) as t:
                    now = self.advance(here, mid, t) | {n: self.tile_row(n, 0, t) for n in self.rooms}
                    scalars = self._scalars(now)
                    self._cell([self._spread(scalars, scalars.names)], [now], count)

            b.branch(b.compare("eq", lanes, w), lambda: cells(None), lambda: cells(lanes))

    # woven rows

    def _woven_rows(self, at: _Addresses, start: str, stop: str) -> None:
        """The last kept axis from ``start`` to ``stop``, in vectors of all rows of the axis before it."""
        b, w, lane = self.b, self.width, self.lane
        full = b.add(start, b.mul(b.op(f"sdiv i64 {b.sub(stop, start)}, {w}"), w))
        with b.loop(start, full, w) as j:
            self._woven_block(self.advance(at, lane, j), None)
        left = b.sub(stop, full)
        b.branch(b.compare("sgt", left, 0), lambda: self._woven_block(self.advance(at, lane, full), left))

    def _woven_block(self, at: _Addresses, count: str | None) -> None:
        """One vector of each row."""
        b, lane, rows = self.b, self.lane, range(self.code.woven)
        whole = Place(b, self.width, self.count)
        read = {n: self._unwoven(whole, n, at[n], count) for n, s in self.streams.items() if self.code.is_woven(s)}
        made: dict[int, list[str]] = {}
        for r in rows:
            here = self.advance(at, lane - 1, r)
            scalars = self._scalars(here)
            place = self._spread(scalars, scalars.names)
            for n in sorted(self.row_reads - self.outer_reads):
                slot = self.slots[n]
                place.put(n, slot.dtype, read[n][r] if n in read else load_slot(place, slot, here[n], lane, count))
            for j, _, expr in self.rows:
                if self.code.is_woven(self.code.outputs[j]):
                    made.setdefault(j, []).append(place.value(expr))
                else:
                    store_slot(place, self.slots[-1 - j], here[-1 - j], lane, place.value(expr), count)
        for j, values in made.items():
            slot = self.slots[-1 - j]
            for value, (address, left) in zip(
                weave(b, slot.dtype, self.width, values), self._line(slot, at[-1 - j], count), strict=True
            ):
                store_slot(whole, replace(slot, strides=(1,)), address, 0, value, left)

    def _unwoven(self, place: Place, n: int, at: str, count: str | None) -> list[str]:
        """A vector of each row of woven operand ``n``."""
        slot = replace(self.slots[n], strides=(1,))
        line = [load_slot(place, slot, address, 0, left) for address, left in self._line(slot, at, count)]
        return unweave(self.b, slot.dtype, self.width, line)

    def _line(self, slot: Slot, at: str, count: str | None) -> list[tuple[str, str | None]]:
        """Addresses and lanes of the vectors that ``count`` elements of each row are in, woven, from ``at`` on."""
        b, w, rows = self.b, self.width, self.code.woven
        if count is None:
            return [(b.address(at, slot.dtype, r * w) if r else at, None) for r in range(rows)]
        total = b.mul(count, rows)
        last = b.sub(total, 1)  # a masked load of a page that does not exist takes very long
        return [
            (b.address(at, slot.dtype, b.min(r * w, last)), b.max(0, b.min(b.sub(total, r * w), w)))
            for r in range(rows)
        ]

    # rows

    def _cell(self, rows: list[Place], at: list[_Addresses], count: str | None) -> None:
        """One row, or a vector, or several side by side, of neighbouring rows.

        Args:
            rows: For each vector the place where its expressions of row space are computed.
            at: For each vector the addresses of its first elements.
            count: How many lanes there are; None: all.
        """
        for place, here in zip(rows, at, strict=True):
            for n in sorted(self.row_reads - self.outer_reads):
                place.put(n, self.slots[n].dtype, load_slot(place, self.loaded[n], here[n], self.lane, count))
        self._store_rows(rows, at, 0, count)
        for k, walk in enumerate(self.walks):
            for place in rows:
                for n, expr in walk.before:
                    place.compute(n, expr)
            self._pass(walk, rows, at, count)
            self._store_rows(rows, at, k + 1, count)

    def _store_rows(self, rows: list[Place], at: list[_Addresses], done: int, count: str | None) -> None:
        """Outputs of row space that ``done`` passes suffice for."""
        lane = None if self.code.across else self.lane
        for j, level, expr in self.rows:
            if level == done:
                for place, here in zip(rows, at, strict=True):
                    store_slot(place, self.slots[-1 - j], here[-1 - j], lane, place.value(expr), count)

    def _pass(self, walk: _Walk, rows: list[Place], at: list[_Addresses], count: str | None) -> None:
        """Walk over the reduced axes."""
        code = self.code
        serial = code.across and any(code.reductions[i].running for i, _ in walk.body.reductions)
        if serial:
            inner, sets = rows, 1
        elif code.across:
            inner, sets = [self._spread(rows[0], walk.reads)], _accumulators(walk)
        else:
            inner, sets = rows, len(rows)
        states = {
            i: State(self.b, code.reductions[i], inner[0].width, sets, pieces=code.long)
            for i, _ in walk.body.reductions
        }
        wanted = {n for n in walk.reads if n in self.slots and n not in self.row_reads}
        wanted |= {-1 - j for j, _ in walk.body.stores} | {self.first_buffer + k for k, _ in walk.body.keeps}
        here = []
        for u, start in enumerate(at):
            buffers = {n: self.slots[n].base for n in wanted if self._is_buffer(n)}
            here.append({n: start[n] for n in sorted(wanted - buffers.keys())})
            here[u] |= self.advance(buffers, self.lane, u * self.width)
        _Line(self, walk, states, inner, count, sets).nest(code.kept, here)
        for i, state in states.items():
            if not state.reduction.running:
                self._put_results(i, rows, state.finish(across=code.across))

    def _put_results(self, reduction: int, rows: list[Place], parts: list[list[str]]) -> None:
        for n, v in enumerate(self.code.values):
            if isinstance(v, Result) and v.reduction == reduction:
                dtype = self.code.reductions[reduction].args[v.part].dtype
                for place, values in zip(rows, parts, strict=True):
                    place.put(n, dtype, values[v.part])


class _Line:
    """The loops over the reduced axes in one pass of a cell.

    Args:
        writer: Of the kernel.
        walk: The pass.
        states: Accumulators by reduction.
        places: What is known at every element: for each vector of rows, or once.
        count: How many rows there are in the vector; None: as many as lanes.
        sets: Number of accumulators.
    """

    def __init__(
        self,
        writer: LoopWriter,
        walk: _Walk,
        states: dict[int, State],
        places: list[Place],
        count: str | None,
        sets: int,
    ) -> None:
        self.w = writer
        self.b = writer.b
        self.walk = walk
        self.states = states
        self.places = places
        self.count = count
        self.sets = sets
        self.width = places[0].width
        self.pieces = [s for s in states.values() if s.pieces]
        self.turned = sorted(writer.rooms.keys() & walk.reads)
        self.nested = writer.code.reduced > 1
        if self.pieces and (self.nested or self.turned):
            self.pending = self.b.variable("i64")
            self.b.emit(f"store i64 0, ptr {self.pending}")

    def nest(self, axis: int, at: list[_Addresses]) -> None:
        """All axes from ``axis`` on."""
        w = self.w
        if axis == w.last - 1 and w.code.line:
            self._short_lines(axis, at[0])
        elif axis < w.last:
            with self.b.loop(0, w.extents[axis]) as i:
                self.nest(axis + 1, [w.advance(a, axis, i) for a in at])
        elif w.code.across:
            self._along(at[0])
        elif self.turned:
            self._tiles(at)
        else:
            self._chunks(w.extents[axis], 1, lambda i: self._beside(i, at, {}))

    def _beside(self, i: str, at: list[_Addresses], tiles: dict[int, str]) -> None:
        """One element of each row; ``tiles`` gives the place in its tile of what is transposed."""
        for u, (place, here) in enumerate(zip(self.places, at, strict=True)):
            now = self.w.advance({n: a for n, a in here.items() if n not in self.turned}, self.w.last, i)
            now |= {n: self.w.tile_row(n, u, row) for n, row in tiles.items()}
            self._element(place.copy(), now, self.w.lane, u, self.count, None)

    def _tiles(self, at: list[_Addresses]) -> None:
        """The elements of rows in tiles as long as a vector is wide."""
        b, w, width = self.b, self.w, self.width
        length = w.extents[w.last]
        with b.loop(0, length, width) as start:
            columns = b.min(b.sub(length, start), width)
            for n in self.turned:
                for u, here in enumerate(at):
                    source = w.slots[n].advance(b, here[n], w.last, start)
                    w.fill_tile(n, u, source, self.count or str(width), columns)
            with b.loop(0, columns) as i:
                self._beside(b.add(start, i), at, dict.fromkeys(self.turned, i))
            if self.pieces:
                self._flush_after(columns, _CHUNK)

    def _short_lines(self, axis: int, at: _Addresses) -> None:
        """Pieces of a row that are of one known length and few vectors, several side by side."""
        b, w = self.b, self.w
        vectors = -(-w.code.line // self.width)
        length = w.extents[axis]
        main = b.mul(b.op(f"sdiv i64 {length}, {self.sets}"), self.sets)

        def lines(i: str, count: int) -> None:
            for u in range(count):
                self._short_line(w.advance(at, axis, b.add(i, u)), u, vectors)

        self._chunks(main, self.sets, lambda i: lines(i, self.sets), vectors)
        with b.loop(main, length) as i:
            lines(i, 1)
        if self.pieces:
            self._flush_after(str(self.sets), self._piece(self.sets, vectors))

    def _short_line(self, at: _Addresses, number: int, vectors: int) -> None:
        w, width, axis = self.w, self.width, self.w.last
        place = self._line_place(at)
        for v in range(vectors):
            left = w.code.line - v * width
            count = None if left >= width else str(left)
            self._element(place.copy(), w.advance(at, axis, v * width), axis, number, count, count)

    def _line_place(self, at: _Addresses) -> Place:
        """A place that knows what is the same all along the last reduced axis."""
        w = self.w
        place = self.places[0].copy()
        for n in [n for n in at if n >= 0 and w.slots[n].strides[w.last] == 0]:
            place.put(n, w.slots[n].dtype, load_slot(place, w.slots[n], at[n], None))
        return place

    def _along(self, at: _Addresses) -> None:
        """A row, or what follows each other in one, in vectors."""
        b, w, width, axis = self.b, self.w, self.width, self.w.last
        place = self._line_place(at)
        length, step = w.extents[axis], width * self.sets
        main = b.mul(b.op(f"sdiv i64 {length}, {step}"), step) if step > 1 else length

        def whole(i: str) -> None:
            for u in range(self.sets):
                here = w.advance(at, axis, b.add(i, u * width))
                if self.walk is w.walks[0]:
                    for n in [n for n in w.ahead if n in here]:
                        w.slots[n].prefetch(b, here[n], w.ahead[n], width)
                self._element(place.copy(), here, axis, u, None, None)

        self._chunks(main, step, whole)
        if step == 1:
            return
        with b.loop(main, length, width) as i:
            left = b.min(b.sub(length, i), width)
            self._element(place.copy(), w.advance(at, axis, i), axis, 0, left, left)
        if self.pieces and self.nested:
            self._flush_after(str(step), self._piece(step))

    @staticmethod
    def _piece(step: int, adds: int = 1) -> int:
        """Elements after which sums are put aside, if a step adds ``adds`` of them to each accumulator."""
        return step * max(1, _CHUNK // adds)

    def _chunks(self, stop: str, step: int, body: Callable[[str], None], adds: int = 1) -> None:
        """``body`` at every ``step`` elements up to ``stop``; sums are put aside from time to time."""
        b, piece = self.b, self._piece(step, adds)
        if not self.pieces:
            with b.loop(0, stop, step) as i:
                body(i)
            return
        with b.loop(0, stop, piece) as start:
            end = b.min(b.add(start, piece), stop)
            with b.loop(start, end, step) as i:
                body(i)
            if self.nested:
                self._flush_after(b.sub(end, start), piece)
            else:
                self._flush()

    def _flush(self) -> None:
        for state in self.pieces:
            state.flush()

    def _flush_after(self, elements: str, piece: int) -> None:
        """Count ``elements`` more, and put sums aside if there were ``piece`` since the last time."""
        b = self.b
        pending = b.add(b.op(f"load i64, ptr {self.pending}"), elements)
        b.emit(f"store i64 {pending}, ptr {self.pending}")

        def flush() -> None:
            self._flush()
            b.emit(f"store i64 0, ptr {self.pending}")

        b.branch(b.compare("sge", pending, piece), flush)

    def _element(
        self, place: Place, at: _Addresses, axis: int, number: int, count: str | None, valid: str | None
    ) -> None:
        """What a pass does with one vector of elements.

        Args:
            place: Where it is computed.
            at: Addresses.
            axis: Along which the lanes lie.
            number: Of the accumulators.
            count: How many lanes there are in memory; None: all.
            valid: How many lanes take part in reductions; None: all.
        """
        w, code = self.w, self.w.code
        for n, address in at.items():
            if n >= 0 and n in self.walk.reads and n not in place.names:
                place.put(n, w.slots[n].dtype, load_slot(place, w.loaded[n], address, axis, count))
        for i, args in self.walk.body.reductions:
            reduction = code.reductions[i]
            before, after = self.states[i].add(number, [place.value(a) for a in args], valid)
            if reduction.running:
                now = after if reduction.running == "inclusive" else before
                w._put_results(i, [place], [now])
        for k, expr in self.walk.body.keeps:
            n = w.first_buffer + k
            store_slot(place, w.slots[n], at[n], axis, place.value(expr), count)
        for j, expr in self.walk.body.stores:
            store_slot(place, w.slots[-1 - j], at[-1 - j], axis, place.value(expr), count)


def _accumulators(walk: _Walk) -> int:
    """Vectors that a step along a row takes: more while there is little to do for each."""
    cost = sum(cost_of(e) for e in walk.body.exprs)
    return 4 if cost <= 8 else 2 if cost <= 20 else 1
