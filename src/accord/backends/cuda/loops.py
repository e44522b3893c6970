"""Loop programs as Triton kernels.

A program of the grid has a tile: ``BM`` elements of the kept axes by ``BR`` of the reduced ones. Where a row fits the
tile it is read once and everything is computed on it; longer rows are walked in pieces, once for each level of
reductions. Without reductions a tile is ``BM`` elements, or, where an operand has unit stride along another axis than
the output, a rectangle of both axes, so that both sides are read and written in whole sectors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from accord.backends.cuda.code import KernelText
from accord.backends.cuda.lines import ceildiv, power_of_two
from accord.backends.loops.nest import magnitude, merge_axes
from accord.backends.loops.program import LoopProgram, Operand, Output
from accord.backends.loops.values import Reduction, Result
from accord.errors import CompileError
from accord.expr.lang import Expr, topological
from accord.ir.dims import DimLike
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Geometry", "LoopKernel", "LoopTile", "Stream", "geometry", "is_wide", "loop_kernel", "reach", "tiles"]

#: Elements of a tile of rows, and the longest row that is held as a whole.
_TILE, _LONGEST = 4096, 16384
#: Elements of a short row, and those of a longer one for each warp; rows that are few, and warps that are not.
_NARROW, _A_WARP, _FEW, _BUSY = 256, 1024, 264, 132 * 16
_WARP, _MOST_WARPS = 32, 16
#: Elements of a tile without reductions; sides of one that is turned.
_FLAT, _SIDE = 1024, 64


@record
class Place:
    """A computed part of a stream's place; its stride and the size of its axis are parameters.

    Attributes:
        index: Of values before the stream.
        skip: Elements outside are left out; if not, they are refused.
    """

    index: Expr
    skip: bool


@record
class Stream:
    """An operand or output: for each axis "0" (repeats), "1" (next element) or "s" (a stride in the parameters).

    Without memory it is its own position. ``other`` is what an operand is where a place is skipped; ``combine`` is how
    an output joins what is there.
    """

    dtype: str
    kinds: str
    memory: bool = True
    places: tuple[Place, ...] = ()
    other: float | int = 0
    combine: str = ""


@record
class LoopKernel(KernelText):
    """The Triton text of one pattern of a loop program.

    Parameters of the kernel: pointers of operands with memory and of outputs, sizes of all axes, then of each stream
    its offset and the strides that are "s". Compile-time ones: BM, BR, WHOLE (a row fits BR), WIDE (places need 64
    bits).

    Attributes:
        kept: Number of kept axes.
        reduced: Number of the axes that follow them: reduced ones, or the turned one.
        values: What operands of expressions stand for.
        reductions: In order.
        outputs: Where results go.
        results: One expression for each output.
    """

    kept: int
    reduced: int
    values: tuple[Stream | Result, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Stream, ...]
    results: tuple[Expr, ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.kept};{self.reduced};{self.values};{self.outputs};"
            f"{[r.key for r in self.reductions]};{[e.key for e in self.results]}"
        )
        return f"loops_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def streams(self) -> list[Stream]:
        """Operands, then outputs."""
        return [*(v for v in self.values if isinstance(v, Stream)), *self.outputs]

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of operands with memory, then of outputs; then of the word that says what is refused."""
        return (*(s.dtype for s in self.streams if s.memory), *(("i32",) if self.refuses else ()))

    @property
    def refuses(self) -> bool:
        """Whether an index can be one that it refuses."""
        return any(not p.skip for s in self.streams for p in s.places)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its integer parameters, in order."""
        found = [f"e{a}" for a in range(self.kept + self.reduced)]
        for i, s in enumerate(self.streams):
            found += [f"o{i}", *(f"s{i}_{a}" for a, kind in enumerate(s.kinds) if kind == "s")]
            found += [f"{what}{i}_{j}" for j in range(len(s.places)) for what in ("g", "n")]
        return tuple(found)

    def text(self) -> str:
        """The module."""
        from accord.backends.cuda.loop_writer import LoopWriter  # what starts a stored kernel writes none

        return LoopWriter(self).module()

    # what expressions depend on

    def is_full(self, expr: Expr) -> bool:
        """Whether an expression changes along the second side of the tile."""
        return any(self._full(n) for n in _operands(expr))

    def stores_full(self, output: int) -> bool:
        """Whether an output has elements along the second side of the tile."""
        return self.is_stream_full(self.outputs[output])

    def _full(self, number: int) -> bool:
        v = self.values[number]
        return self.is_stream_full(v) if isinstance(v, Stream) else self.is_running(v.reduction)

    def is_running(self, index: int) -> bool:
        """Whether a reduction's results are what it has come to at each element."""
        return bool(self.reductions[index].running)

    def is_stream_full(self, s: Stream) -> bool:
        """Whether a stream's place changes along the second side of the tile."""
        return any(k != "0" for k in s.kinds[self.kept :]) or any(self.is_full(p.index) for p in s.places)

    def level(self, expr: Expr) -> int:
        """The pass in which an expression can be computed: after that many levels of reductions."""
        return max((self._value_level(n) for n in _operands(expr)), default=0)

    def waits(self, expr: Expr) -> bool:
        """Whether an expression is of results of reductions."""
        return any(isinstance(self.values[n], Result) for n in _operands(expr))

    def _value_level(self, number: int) -> int:
        v = self.values[number]
        if isinstance(v, Stream):
            return 0
        return self.reduction_level(v.reduction) + (not self.is_running(v.reduction))

    def reduction_level(self, index: int) -> int:
        """The pass in which a reduction is computed."""
        return max(map(self.level, self.reductions[index].args))


def _operands(expr: Expr) -> set[int]:
    return {int(n.value or 0) for n in topological((expr,)) if n.op == "operand"}


def loop_kernel(program: LoopProgram) -> tuple[LoopKernel, tuple[DimLike, ...]]:
    """The kernel for a program, and the sizes that its launch needs: extents, then offsets and strides of all streams.

    Raises:
        CompileError: a place waits for a reduction.
    """
    order = _order(program)
    labels = [int(a in program.reduced) for a in order]
    accesses = [Access(tuple(a.strides[i] for i in order), a.offset) for a in program.accesses]
    extents, merged, groups = merge_axes(tuple(program.extents[i] for i in order), accesses, labels)
    kept = groups.count(0)
    if not kept:
        extents, kept = (1, *extents), 1
        merged = [Access((0, *a.strides), a.offset) for a in merged]
    if program.reductions and kept == len(extents):  # all reduced axes have size 1
        extents = (*extents, 1)
        merged = [Access((*a.strides, 0), a.offset) for a in merged]
    if not program.reductions and kept > 1:
        turned = _turned(merged, kept)
        if turned is not None:
            places = [i for i in range(kept) if i != turned] + [turned]
            extents = tuple(extents[i] for i in places)
            merged = [Access(tuple(a.strides[i] for i in places), a.offset) for a in merged]
            kept -= 1
    items: list[Operand | Output] = [*program.operands, *program.outputs]
    streams = [_stream(item, a) for item, a in zip(items, merged, strict=True)]
    found = iter(streams)
    values = tuple(next(found) if isinstance(v, Operand) else v for v in program.values)
    kernel = LoopKernel(
        kept,
        len(extents) - kept,
        values,
        program.reductions,
        tuple(streams[len(program.operands) :]),
        tuple(o.expr for o in program.outputs),
    )
    dims: list[DimLike] = list(extents)
    for item, stream, access in zip(items, streams, merged, strict=True):
        dims.append(access.offset)
        dims += [s for s, kind in zip(access.strides, stream.kinds, strict=True) if kind == "s"]
        dims += [d for p in item.lookups for d in (p.stride, p.size)]
    read = streams[: len(program.operands)]
    if any(kernel.waits(p.index) for s in read for p in s.places):
        raise CompileError("a place waits for a reduction")
    return kernel, tuple(dims)


def _stream(item: Operand | Output, access: Access) -> Stream:
    kinds = "".join("0" if s == 0 else "1" if s == 1 else "s" for s in access.strides)
    places = tuple(Place(p.index, p.outside == "skip") for p in item.lookups)
    if isinstance(item, Operand):
        return Stream(item.dtype, kinds, item.memory, places, item.other)
    return Stream(item.expr.dtype, kinds, places=places, combine=item.combine)


def _order(p: LoopProgram) -> list[int]:
    """Kept axes, then reduced ones, each from the outermost to the innermost in the memory that matters most."""
    outputs = [o.access for o in p.outputs]
    operands = [o.access for o in p.operands if o.memory]
    reference = max([*operands, *outputs] if p.reduced else outputs, key=lambda a: sum(s != 0 for s in a.strides))
    size = [magnitude(s) for s in reference.strides]
    for a in reversed(range(len(size))):  # an axis that the reference repeats stays outside the one after it
        if size[a] == 0:
            size[a] = size[a + 1] if a + 1 < len(size) else 0
    return sorted(range(len(p.extents)), key=lambda a: (a in p.reduced, -size[a]))


def _turned(accesses: Sequence[Access], kept: int) -> int | None:
    """An axis other than the innermost along which something has unit stride that has none along that."""
    for a in accesses:
        if a.strides[kept - 1] not in (0, 1) and 1 in a.strides[: kept - 1]:
            return a.strides.index(1)
    return None


def is_wide(kernel: LoopKernel, sizes: Sequence[int]) -> bool:
    """Whether a place in a stream, or a number of elements, needs more than 31 bits."""
    elements = math.prod(sizes[: kernel.kept + kernel.reduced])
    return max(elements, *_ends(kernel, sizes)) + 2 * _LONGEST >= 1 << 31


def reach(kernel: LoopKernel, sizes: Sequence[int]) -> tuple[int, ...]:
    """For each pointer, elements of its memory up to the last one that may be touched."""
    return tuple(end + 1 for s, end in zip(kernel.streams, _ends(kernel, sizes), strict=True) if s.memory)


def _ends(kernel: LoopKernel, sizes: Sequence[int]) -> list[int]:
    """For each stream, the place of its last element."""
    axes = kernel.kept + kernel.reduced
    extents, rest, found = sizes[:axes], iter(sizes[axes:]), []
    for s in kernel.streams:
        place = abs(next(rest))
        for n, kind in zip(extents, s.kinds, strict=True):
            place += abs(n - 1) * (0 if kind == "0" else 1 if kind == "1" else abs(next(rest)))
        for _ in s.places:
            place += abs(next(rest)) * next(rest)
        found.append(place)
    return found


@record
class LoopTile:
    """How rows that are held as a whole are spread.

    Attributes:
        rows: Of a program.
        warps: Likewise.
    """

    rows: int
    warps: int


@record
class Geometry:
    """How a kernel is started.

    Attributes:
        grid: Programs.
        rows: BM.
        columns: BR.
        whole: WHOLE.
        warps: Of a program.
    """

    grid: tuple[int, int]
    rows: int
    columns: int
    whole: bool
    warps: int


def geometry(kernel: LoopKernel, sizes: Sequence[int], tile: LoopTile | None = None) -> Geometry:
    """The launch for given sizes of all axes.

    Args:
        kernel: What is computed.
        sizes: Values of its dims.
        tile: How rows are spread, see :func:`tiles`; None: by rule.
    """
    kept, length = _rows(kernel, sizes)
    if not kernel.reduced:
        return Geometry((ceildiv(kept, _FLAT), 1), _FLAT, 1, True, 4)
    if not kernel.reductions:
        return Geometry((ceildiv(kept, _SIDE), ceildiv(length, _SIDE)), _SIDE, _SIDE, False, 4)
    if _columns_first(kernel):
        columns = min(power_of_two(length), _TILE // _SIDE)
        return Geometry((ceildiv(kept, _SIDE), 1), _SIDE, columns, length <= columns, 4)
    if length > _LONGEST:
        return Geometry((kept, 1), 1, _TILE, False, 4)
    tile = tile or tiles(kernel, sizes)[0]
    return Geometry((ceildiv(kept, tile.rows), 1), tile.rows, power_of_two(length), True, tile.warps)


def tiles(kernel: LoopKernel, sizes: Sequence[int]) -> tuple[LoopTile, ...]:
    """How rows may be spread, the likely best first; empty where there is one way only.

    A row in one warp is reduced without a barrier; where rows are few, more warps for each keep the device busy. (Seen
    on one H200 with rows of 768: 26 us for 32,768 of them in a warp each, 33 in four warps each.)
    """
    kept, length = _rows(kernel, sizes)
    if not kernel.reductions or _columns_first(kernel) or length > _LONGEST:
        return ()
    columns = power_of_two(length)
    if columns <= _NARROW:
        most = min(_TILE // columns, power_of_two(max(1, kept // _FEW)))
        shapes = [(most, 4), (min(most, _NARROW // columns * 2), 1), (max(1, most // 4), 4), (max(1, most // 4), 1)]
    else:
        warps = max(1, columns // _A_WARP)
        more = warps
        while more * kept < _BUSY and columns > 16 * _WARP * more:
            more *= 2
        shapes = [(1, more), (1, warps), (1, 2 * warps), (1, 4 * warps), (2, 2 * warps), (max(1, _TILE // columns), 4)]
    return tuple(dict.fromkeys(LoopTile(rows, min(_MOST_WARPS, warps)) for rows, warps in shapes))


def _rows(kernel: LoopKernel, sizes: Sequence[int]) -> tuple[int, int]:
    """How many there are, and their length."""
    return math.prod(sizes[: kernel.kept]), math.prod(sizes[kernel.kept : kernel.kept + kernel.reduced])


def _columns_first(kernel: LoopKernel) -> bool:
    """Whether neighbours in memory are neighbours along a kept axis."""
    return any(s.memory and "1" in s.kinds[: kernel.kept] for s in kernel.streams[: -len(kernel.outputs)])
