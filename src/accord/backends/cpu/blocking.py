"""How a contraction is cut: blocks for the caches, tasks for the threads, areas of scratch memory.

All of it depends on sizes and on the machine, nothing of it on machine code: it is decided when sizes are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from accord.backends.cpu.jit import machine
from accord.backends.cpu.tile import tile_heights
from accord.expr.lang import bits
from accord.ir import dims as D
from accord.ir.dims import DimLike

__all__ = ["Areas", "Blocks", "Chunk", "Problem", "chunks_of", "cut", "scratch_bound"]

#: Greatest part of k that is packed at a time.
MOST_CHUNK: Final = 512
#: Products that are summed in a register before they are added to memory, at most, for short and for long sums: the
#: error of a sum of k products in runs of r grows like sqrt(k r / 2 + k^2 / 2 r).
_SHORT_RUN: Final = 64
_LONG_RUN: Final = 128
_SHORT: Final = 192
#: The same for tiles of few rows, which sum several steps apart.
_LOW_RUN: Final = 512
_LOW_ROWS: Final = 2
#: A panel of a B that is not constant is packed from this many rows on.
_PACK_ROWS: Final = 8
#: Blocks of rows for which it is packed, if there are so many.
_PACKED_BLOCKS: Final = 4
#: Rows of a block at most.
_MOST_BLOCK: Final = 128
#: Work of a task, in arithmetic operations: 30 microseconds and more. A byte of B from memory counts like 16.
_TASK: Final = 6_000_000
_BYTE: Final = 16
#: Tasks that are wanted where there is work for them, by splitting columns.
_TASKS: Final = 8
#: Bytes of sums of several chunks that are kept apart.
_PARTS: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of k: first k, length, and the range of the source's pieces."""

    start: int
    length: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A contraction whose sizes are known.

    Attributes:
        dtype: In which sums are made.
        vectors: Vectors of a panel's line.
        groups: Number of products.
        m: Rows of each.
        n: Columns.
        chunks: Parts of k.
        row_bytes: Distance of A's rows if it can be read in place; else 0.
        packed: B was packed at load.
        stage: Bytes of an element of C if its columns are apart; else 0.
        tables: Number of operands whose rows are looked up.
    """

    dtype: str
    vectors: int
    groups: int
    m: int
    n: int
    chunks: tuple[Chunk, ...]
    row_bytes: int
    packed: bool
    stage: int
    tables: int

    @property
    def k(self) -> int:
        """Length of the sums."""
        return self.chunks[-1].start + self.chunks[-1].length


@dataclass(frozen=True, slots=True)
class Areas:
    """Scratch memory of a thread: offsets of its areas after the sums, and its size, in bytes."""

    a_at: int
    b_at: int
    stage_at: int
    tables_at: int
    scratch: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """See the parameters of :class:`accord.backends.cpu.gemm.GemmCode`."""

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

    @property
    def tasks(self) -> int:
        """Tasks of one product."""
        return self.row_tasks * self.column_tasks


def chunks_of(k: int, pieces: Sequence[int] | None = None) -> tuple[Chunk, ...]:
    """Cut ``k`` into parts of equal length; those of a source with pieces end where a piece ends.

    Args:
        k: Length of the sums.
        pieces: Lengths of the pieces, none above :data:`MOST_CHUNK`; they add up to ``k``.
    """
    count = max(1, -(-k // MOST_CHUNK))
    if pieces is None:
        size = -(-k // count)
        starts = range(0, max(k, 1), max(size, 1))
        return tuple(Chunk(s, min(size, k - s), 0, 0) for s in starts)
    target = k / count
    chunks: list[Chunk] = []
    start = length = first = 0
    for i, piece in enumerate(pieces):
        if length and (length + piece > MOST_CHUNK or length + piece / 2 > target):
            chunks.append(Chunk(start, length, first, i))
            start, length, first = start + length, 0, i
        length += piece
    return (*chunks, Chunk(start, length, first, len(pieces)))


def _pitch(length: int, dtype: str) -> int:
    """Bytes from row to row of A's panel: an odd number of lines, so that rows lie in different cache sets."""
    width = machine().width(bits(dtype))
    line = width * bits(dtype) // 8
    return (-(-length // width) + 1 | 1) * line


def _areas(dtype: str, vectors: int, sums: int, left: int, right: int, stage: int, tables: int) -> Areas:
    """Lay out a thread's scratch memory from the bytes of its areas: sums, A's and B's panels, stage, tables."""
    width, size = machine().width(bits(dtype)), bits(dtype) // 8
    tile = max(tile_heights(dtype, v)[0] * v for v in range(1, vectors + 1)) * width * size
    at = [_round(max(tile, sums))]
    at.append(at[-1] + _round(left))
    at.append(at[-1] + _round(right))
    at.append(at[-1] + _round(stage))
    return Areas(at[0], at[1], at[2], at[3], at[3] + _round(tables))


def _round(size: int) -> int:
    return -(-size // 64) * 64


def _most_block(dtype: str, high: int, chunk: int) -> int:
    """Rows whose packed panel takes a quarter of the second-level cache, in whole tiles."""
    rows = min(_MOST_BLOCK, machine().l2 // 4 // _pitch(chunk, dtype))
    return max(1, rows // high) * high


def cut(p: Problem) -> Blocks:
    """Blocks, tasks and scratch memory for a problem of at least one row and column."""
    width, size = machine().width(bits(p.dtype)), bits(p.dtype) // 8
    wide = p.vectors * width
    high = tile_heights(p.dtype, p.vectors)[0]
    chunk = max(c.length for c in p.chunks)
    panels = -(-p.n // wide)
    most = _most_block(p.dtype, high, chunk)
    count = -(-p.m // most)
    block = min(p.m, -(-p.m // (count * high)) * high)
    blocks = -(-p.m // block)
    work = 2 * block * p.n * p.k + _BYTE * size * p.n * p.k // max(1, blocks)
    task_blocks = max(1, min(blocks, _TASK // max(1, work)))
    pack_b = not p.packed and p.m >= _PACK_ROWS
    if pack_b:  # each task packs B again
        task_blocks = min(blocks, max(task_blocks, _PACKED_BLOCKS))
    row_tasks = -(-blocks // task_blocks)
    direct = bool(p.row_bytes) and (p.row_bytes % 4096 != 0 or p.m < high // 2)
    column_tasks = max(1, min(_TASKS // max(1, p.groups * row_tasks), task_blocks * work // _TASK, panels))
    if not direct:  # each of them packs A again
        column_tasks = max(1, min(column_tasks, p.n // 128))
    several = len(p.chunks) > 1
    line = wide * size
    most_panels = max(1, _PARTS // (block * line)) if several else panels
    if not p.packed:
        most_panels = max(1, min(most_panels, machine().l2 // 2 // max(1, p.k * line)))
    task_panels = min(-(-panels // column_tasks), most_panels)
    column_tasks = -(-panels // task_panels)
    task_panels = -(-panels // column_tasks)
    low = p.m <= _LOW_ROWS
    most_run = _LOW_RUN if low else _SHORT_RUN if p.k <= _SHORT else _LONG_RUN
    run = -(-chunk // max(1, -(-chunk // most_run)))
    return Blocks(
        block=block,
        task_rows=task_blocks * block,
        task_panels=task_panels,
        row_tasks=row_tasks,
        column_tasks=-(-panels // task_panels),
        panels=panels,
        run=max(1, run),
        parts=int(several),
        direct=int(direct),
        pack_b=int(pack_b),
        pitch=_pitch(chunk, p.dtype),
        last_vectors=-(-(p.n - (panels - 1) * wide) // width),
        areas=_areas(
            p.dtype,
            p.vectors,
            task_panels * block * line * several,
            0 if direct else (block + width) * _pitch(chunk, p.dtype),
            0 if p.packed else (task_panels * p.k + width) * line,
            (block + width) * wide * p.stage,
            block * 8 * p.tables,
        ),
    )


def scratch_bound(dtype: str, vectors: int, k: DimLike, packed: bool, stage: int, tables: int) -> DimLike:
    """Bytes of scratch memory that no cut of a problem exceeds, whatever the sizes that are not known.

    Args:
        dtype: In which sums are made.
        vectors: Vectors of a panel's line.
        k: Length of the sums.
        packed: B was packed at load.
        stage: Bytes of an element of C if its columns are apart.
        tables: Operands whose rows are looked up.
    """
    width = machine().width(bits(dtype))
    line = vectors * width * bits(dtype) // 8
    high = tile_heights(dtype, vectors)[0]
    chunk = min(k, MOST_CHUNK) if isinstance(k, int) else MOST_CHUNK
    pitch = _pitch(chunk, dtype)
    block = max(_MOST_BLOCK, high)
    sums = max(_PARTS, block * line) if not isinstance(k, int) or k > MOST_CHUNK else 0
    left = max(min(block * pitch, machine().l2 // 4), high * pitch) + width * pitch
    staged = (block + width) * vectors * width * stage
    fixed = _areas(dtype, vectors, sums, left, width * line, staged, block * 8 * tables)
    return fixed.scratch if packed else D.maximum(machine().l2 // 2, k * line) + fixed.scratch + 64
