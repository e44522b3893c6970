"""How a contraction is cut: blocks for the caches, tasks for the threads, areas of scratch memory.

All of it depends on sizes and on the machine, nothing of it on machine code: it is decided when sizes are known.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from accord.backends.cpu.jit import machine
from accord.backends.cpu.tile import tile_heights
from accord.expr.lang import bits
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["Areas", "Blocks", "Chunk", "Problem", "Stage", "chunks_of", "cut", "run_length", "scratch_bound"]

#: Greatest part of k that is packed at a time.
MOST_CHUNK: Final = 512
#: The same where B is read in place by few rows: all columns of so many lines, which lie in few pages of memory.
MOST_LINES: Final = 64
#: Products that are summed in a register before they are added to memory, at most, for short and for long sums: the
#: error of a sum of k products in runs of r grows like sqrt(k r / 2 + k^2 / 2 r).
_SHORT_RUN: Final = 64
_LONG_RUN: Final = 128
_SHORT: Final = 192
#: The same for tiles of few rows, which sum several steps apart.
_LOW_RUN: Final = 512
_LOW_ROWS: Final = 2
#: Integers are summed without errors: all that there are.
_EXACT_RUN: Final = 1 << 30
#: A B that is not constant is packed from this many rows on, if it may be read in place.
PACK_ROWS: Final = 8
#: Rows of a block at most; of an image that is staged, unless a line has more.
_MOST_BLOCK: Final = 128
_MOST_STAGED: Final = 512
#: Work of a task, in arithmetic operations: 5 microseconds and more. A byte of B from memory counts like 16.
_TASK: Final = 1_000_000
_BYTE: Final = 16
#: Tasks that are wanted where there is work for them: by smaller blocks of rows, which leaves the rows of one kernel's
#: output in the caches of the core that reads them in the next one, or by splitting columns.
_TASKS: Final = 8
#: Columns of a task for which A may be packed again.
_LEAST_COLUMNS: Final = 64
#: Bytes of sums of several chunks that are kept apart.
_PARTS: Final = 256 << 10


@record
class Chunk:
    """A part of k: first k, length, and the range of the source's pieces."""

    start: int
    length: int
    first: int
    last: int


@record
class Stage:
    """An image that is staged line by line (of one axis: pixel by pixel).

    Attributes:
        rows: Rows of A that a line of output has.
        step: Lines of input from one line of output to the next.
        span: Lines of input that one line of output reaches over.
        line: Bytes of a staged line.
        slack: Bytes that may be overwritten after the last.
        segment: Bytes from one line of the kernel to the next.
    """

    rows: int
    step: int
    span: int
    line: int
    slack: int
    segment: int

    def size(self, lines: int) -> int:
        """Bytes for ``lines`` of output."""
        return ((lines - 1) * self.step + self.span) * self.line + self.slack

    def lines(self, count: int) -> int:
        """How many of ``count`` lines of output are a block."""
        room = (machine().l2 // 4 - self.slack) // self.line
        most = max(1, min(count, (room - self.span) // self.step + 1, _MOST_STAGED // self.rows))
        return -(-count // -(-count // most))


@record
class Problem:
    """A contraction whose sizes are known.

    Attributes:
        dtype: In which sums are made; lengths are counted in lanes of it.
        vectors: Vectors of a panel's line.
        heights: Of the tiles for a whole panel.
        wide: Columns of a panel.
        groups: Number of products.
        m: Rows of each.
        n: Columns.
        chunks: Parts of k.
        row_bytes: Distance of A's rows if it can be read in place; else 0.
        right: B: "packed" at load (or read as it is, for few columns), "ready" to be read in place by few rows, or to
            be "made" before it is read.
        apart: Bytes of an element of C if its columns are apart; else 0.
        tables: Number of operands whose rows are looked up.
        stage: How A is staged, if it is.
        sums_rows: Sums of A's rows are kept for a block.
    """

    dtype: str
    vectors: int
    heights: tuple[int, ...]
    wide: int
    groups: int
    m: int
    n: int
    chunks: tuple[Chunk, ...]
    row_bytes: int
    right: str
    apart: int
    tables: int
    stage: Stage | None = None
    sums_rows: bool = False

    @property
    def packs(self) -> bool:
        """Whether tasks pack B."""
        return self.right == "made" or (self.right == "ready" and self.m >= PACK_ROWS)

    @property
    def k(self) -> int:
        """Length of the sums."""
        return self.chunks[-1].start + self.chunks[-1].length


@record
class Areas:
    """Scratch memory of a thread: offsets of its areas after the sums, and its size, in bytes."""

    a_at: int
    b_at: int
    stage_at: int
    tables_at: int
    rows_at: int
    scratch: int


@record
class Blocks:
    """See the parameters of :class:`accord.backends.cpu.gemm.GemmCode`."""

    task_groups: int
    block: int
    task_rows: int
    task_panels: int
    row_tasks: int
    column_tasks: int
    panels: int
    run: int
    parts: int
    direct: int
    pack_b: int
    pitch: int
    last_vectors: int
    areas: Areas

    tasks: int


def chunks_of(k: int, pieces: Sequence[int] | None = None, most: int = MOST_CHUNK, unit: int = 1) -> tuple[Chunk, ...]:
    """Cut ``k`` into parts of equal length; those of a source with pieces end where a piece ends.

    Args:
        k: Length of the sums.
        pieces: Lengths of the pieces, none above ``most``; they add up to ``k``.
        most: Greatest length of a part.
        unit: All parts but the last are multiples of it, if need be longer than ``most``.
    """
    count = max(1, -(-k // most))
    if pieces is None:
        size = -(-k // (count * unit)) * unit
        starts = range(0, max(k, 1), max(size, 1))
        return tuple(Chunk(s, min(size, k - s), 0, 0) for s in starts)
    target = k / count
    chunks: list[Chunk] = []
    start = length = first = 0
    for i, piece in enumerate(pieces):
        if length and length % unit == 0 and (length + piece > most or length + piece / 2 > target):
            chunks.append(Chunk(start, length, first, i))
            start, length, first = start + length, 0, i
        length += piece
    return (*chunks, Chunk(start, length, first, len(pieces)))


def _pitch(length: int, dtype: str) -> int:
    """Bytes from row to row of A's panel: an odd number of lines, so that rows lie in different cache sets."""
    width = machine().width(bits(dtype))
    line = width * bits(dtype) // 8
    return (-(-length // width) + 1 | 1) * line


def _areas(tile: int, sums: int, left: int, right: int, stage: int, tables: int, rows: int) -> Areas:
    """Lay out a thread's scratch memory: bytes of sums, A's and B's panels, stage, tables, sums of A's rows."""
    return Areas(*itertools.accumulate(map(_round, (max(tile, sums), left, right, stage, tables, rows))))


def _tile_bytes(dtype: str, vectors: int) -> int:
    """Bytes of the sums of the largest tile of up to ``vectors`` vectors, and a vector."""
    width, size = machine().width(bits(dtype)), bits(dtype) // 8
    return max(tile_heights(dtype, v)[0] * v + 1 for v in range(1, vectors + 1)) * width * size


def _round(size: int) -> int:
    return -(-size // 64) * 64


def _most_block(dtype: str, high: int, chunk: int) -> int:
    """Rows whose packed panel takes a quarter of the second-level cache, in whole tiles."""
    rows = min(_MOST_BLOCK, machine().l2 // 4 // _pitch(chunk, dtype))
    return max(1, rows // high) * high


def run_length(dtype: str, k: int, rows: int) -> int:
    """How many products are summed in a register at most, for sums of ``k`` in ``rows`` rows."""
    if dtype == "i32":
        return _EXACT_RUN
    return _LOW_RUN if rows <= _LOW_ROWS else _SHORT_RUN if k <= _SHORT else _LONG_RUN


def cut(p: Problem) -> Blocks:
    """Blocks, tasks and scratch memory for a problem of at least one group, row and column."""
    width, size = machine().width(bits(p.dtype)), bits(p.dtype) // 8
    high = p.heights[0]
    chunk = max(c.length for c in p.chunks)
    pitch = _pitch(chunk, p.dtype) if p.stage is None else p.stage.line
    panels = -(-p.n // p.wide)
    right = p.k * p.n * size
    wanted = 1
    if not p.packs:
        wanted = min(-(-_TASKS // p.groups), 2 * p.m * p.n * p.k // _TASK)
        if right > machine().l2 // 2:  # every block brings B from afar
            wanted = 1 if p.n >= 4 * _LEAST_COLUMNS else min(wanted, p.m // (2 * high))
    if p.stage is None:
        least = max(1, wanted, -(-p.m // _most_block(p.dtype, high, chunk)))
        block = min(p.m, -(-p.m // (least * high)) * high)
    else:
        lines = p.m // p.stage.rows
        block = min(p.stage.lines(lines), -(-lines // max(1, wanted))) * p.stage.rows
    blocks = -(-p.m // block)
    work = 2 * block * p.n * p.k + _BYTE * right // max(1, blocks)
    several = len(p.chunks) > 1
    line = p.wide * size
    most_panels = max(1, _PARTS // (block * line)) if several else panels
    if p.packs:
        most_panels = max(1, min(most_panels, machine().l2 // 2 // max(1, p.k * line)))
    task_blocks = max(1, min(blocks, _TASK // max(1, work)))
    if p.packs:  # each task packs B again: as few tasks along the rows as will do
        wanted = -(-_TASKS // (p.groups * -(-panels // most_panels)))
        task_blocks = max(task_blocks, blocks // wanted)
    row_tasks = -(-blocks // task_blocks)
    direct = bool(p.row_bytes) and (p.row_bytes % 4096 != 0 or p.m < high // 2)
    column_tasks = max(1, min(_TASKS // max(1, p.groups * row_tasks), task_blocks * work // _TASK, panels))
    if not direct:  # each of them packs A again
        column_tasks = max(1, min(column_tasks, p.n // _LEAST_COLUMNS))
    task_panels = min(-(-panels // column_tasks), most_panels)
    column_tasks = -(-panels // task_panels)
    task_panels = -(-panels // column_tasks)
    each = row_tasks * column_tasks
    # several small products are one task
    task_groups = max(1, min(p.groups, _TASK // max(1, work * blocks))) if each == 1 else 1
    most_run = run_length(p.dtype, p.k, p.m)
    left = 0 if direct else (block + width) * pitch if p.stage is None else p.stage.size(block // p.stage.rows)
    return Blocks(
        task_groups=task_groups,
        block=block,
        task_rows=task_blocks * block,
        task_panels=task_panels,
        row_tasks=row_tasks,
        column_tasks=column_tasks,
        panels=panels,
        run=most_run if p.stage is not None else max(1, -(-chunk // max(1, -(-chunk // most_run)))),
        parts=int(several),
        direct=int(direct),
        pack_b=int(p.packs),
        pitch=pitch,
        last_vectors=-(-(p.n - (panels - 1) * p.wide) // width),
        areas=_areas(
            _tile_bytes(p.dtype, p.vectors),
            (task_panels * block * line + width * size) * several,
            left,
            0 if p.right == "packed" else (task_panels if p.packs else 1) * p.k * line,
            (block + width) * p.vectors * width * p.apart,
            block * 8 * p.tables,
            block * 4 * p.sums_rows,
        ),
        tasks=-(-p.groups // task_groups) * each,
    )


def scratch_bound(
    dtype: str,
    vectors: int,
    k: DimLike,
    packed: bool,
    apart: int,
    tables: int,
    stage: tuple[DimLike, DimLike] | None,
    few: int,
    step: int,
) -> DimLike:
    """Bytes of scratch memory that no cut of a problem exceeds, whatever the sizes that are not known.

    Args:
        dtype: In which sums are made.
        vectors: Vectors of a panel's line.
        k: Length of the sums, in lanes.
        packed: B was packed at load.
        apart: Bytes of an element of C if its columns are apart.
        tables: Operands whose rows are looked up.
        stage: Where A is staged, bytes for a single line of output, and its rows.
        few: So many rows at most are copied with all of k.
        step: See :func:`chunks_of`.
    """
    width, size = machine().width(bits(dtype)), bits(dtype) // 8
    wide = vectors * width
    high = tile_heights(dtype, vectors)[0]
    most = MOST_CHUNK * step
    chunk = min(k, most) if isinstance(k, int) else most
    if dtype == "i32" and isinstance(k, int):
        chunk = k  # pieces of an odd number of elements are not parted
    pitch = _pitch(chunk, dtype)
    sums = max(_PARTS, _MOST_BLOCK * wide * size) + width * size if not isinstance(k, int) or k > MOST_CHUNK else 0
    room = machine().l2 // 4
    left: DimLike = max(min(_MOST_BLOCK * pitch, room), high * pitch) + width * pitch
    if few:
        assert isinstance(k, int)
        left = D.maximum(left, (few + width) * _pitch(k, dtype))
    block: DimLike = max(_MOST_BLOCK, high)
    if stage is not None:
        left, block = D.maximum(stage[0], room), D.maximum(stage[1], _MOST_STAGED)
    right: DimLike = 0 if packed else D.maximum(machine().l2 // 2, k * wide * size)
    rest = left + right + (block + width) * (wide * apart) + block * (8 * tables + 4 * (dtype == "i32"))
    return max(_tile_bytes(dtype, vectors), sums) + rest + 64 * 7
