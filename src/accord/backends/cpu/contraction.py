"""From strides to a phase: the symbolic side of :mod:`accord.backends.cpu.gemm`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import numpy as np

from accord.backends.cpu.blocking import (
    MOST_CHUNK,
    MOST_LINES,
    PACK_ROWS,
    Chunk,
    Problem,
    Stage,
    chunks_of,
    cut,
    scratch_bound,
)
from accord.backends.cpu.codes import Codes, CodesTileCode, codes_heights, most_rows, pack_codes
from accord.backends.cpu.dot import DotCode, dot_heights, pays
from accord.backends.cpu.gemm import GemmCode, Right
from accord.backends.cpu.halves import PAIRS, round_matrices, steps_of
from accord.backends.cpu.jit import machine
from accord.backends.cpu.lanes import lanes_for
from accord.backends.cpu.panels import MatrixSource, Source, aligned, pack_matrix
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.store import Pattern
from accord.backends.cpu.tile import TileCode, next_heights, tile_heights, vectors_for
from accord.backends.cpu.transpose import TransposeCode
from accord.backends.epilogue import accumulator
from accord.backends.loops.nest import merge_axes
from accord.backends.protocol import Array, Launch, Phase
from accord.expr.lang import Expr, bits
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = [
    "Left",
    "Pieces",
    "RightMatrix",
    "Walk",
    "contraction_phase",
    "matrix_left",
]

#: From the values of a source's parameters to the length and the words of each of its pieces.
Pieces: TypeAlias = Callable[[Mapping[str, int]], Sequence[tuple[int, tuple[int, ...]]]]
#: From these values to how a source is staged, and the calls of a tile.
Stages: TypeAlias = Callable[[Mapping[str, int]], tuple[Stage, Sequence[tuple[int, ...]]]]


@record
class Walk:
    """How an operand is walked: strides along the groups, the axes of the rows, and the columns, in elements."""

    dtype: str
    groups: tuple[DimLike, ...]
    rows: tuple[DimLike, ...]
    column: DimLike
    offset: DimLike = 0


@record
class Left:
    """A: where its rows come from.

    Attributes:
        source: What the machine code knows.
        values: The source's parameters by name.
        groups: Strides along the groups.
        offset: First element.
        pieces: Makes the source's pieces, if it has them.
        stage: How the source is staged, and the calls of a tile, if it is.
        bound: For one that is staged: bytes for a single line of output, and the line's rows.
        padding: Which of the extras is what there is around an image of integers; None for zeros.
    """

    source: Source
    values: Mapping[str, DimLike]
    groups: tuple[DimLike, ...]
    offset: DimLike = 0
    pieces: Pieces | None = None
    stage: Stages | None = None
    bound: tuple[DimLike, DimLike] | None = None
    padding: int | None = None


@record
class RightMatrix:
    """B: strides along the groups, k and columns; or panels, one after the other along the groups' strides.

    With several ``taps``, k counts taps and then channels; ``step`` is from channel to channel, and taps are next to
    each other. ``halves`` says how panels hold numbers that are rounded to bf16, if they are, of A as well
    (:mod:`accord.backends.cpu.halves`). With ``codes`` it is one matrix, packed by
    :func:`~accord.backends.cpu.codes.pack_codes`.
    """

    dtype: str
    groups: tuple[DimLike, ...]
    step: DimLike = 0
    column: DimLike = 1
    offset: DimLike = 0
    packed: bool = False
    taps: int = 1
    codes: Codes | None = None
    halves: str = ""


@record
class _Plan:
    """What a launch needs beside the sizes, whose names are ``names``."""

    code: GemmCode
    names: tuple[str, ...]
    pieces: Pieces | None
    stage: Stages | None
    apart: int


def matrix_left(a: Walk) -> Left:
    """A matrix; ``a.column`` is its stride along k."""
    axes = len(a.rows)
    values: dict[str, DimLike] = {}
    step = "1" if a.column == 1 else "s"
    if step == "s":
        values["a.k"] = a.column
    if axes == 1:
        row = "1" if a.rows[0] == 1 and step == "s" else "u"
        values["a.row"] = a.rows[0]
    else:
        row = "s"
        values.update({f"a.row{i}": s for i, s in enumerate(a.rows)})
    return Left(MatrixSource(a.dtype, step, row, axes), values, a.groups, a.offset)


def contraction_phase(
    groups: Shape,
    rows: Shape,
    n: DimLike,
    k: DimLike,
    left: Left,
    right: RightMatrix,
    extras: Sequence[Walk],
    out: Walk,
    expr: Expr,
    operands: tuple[int, ...],
    *,
    shared: DimLike = 0,
) -> tuple[Phase, DimLike]:
    """A phase, and the bytes of scratch memory that a thread needs.

    Args:
        groups: Sizes of the groups' axes.
        rows: Sizes of the rows' axes.
        n: Columns.
        k: Length of the sums.
        left: A.
        right: B.
        extras: Operands 1, 2 ... of the expression.
        out: C.
        expr: What is stored; operand 0 is the sum, of type :func:`accumulator` of A's type. Where that is i32, the
            operand after the extras is the sum of A's row.
        operands: A, B, the extras, C, scratch.
        shared: Bytes at the start of the scratch memory that are not this phase's.
    """
    code, values = describe(GemmCode, groups, rows, n, k, left, right, extras, out, expr)
    values["shared"] = shared
    dtype, vectors = code.dtype, code.vectors
    apart = code.apart
    plan = _Plan(code, tuple(values), left.pieces, left.stage, apart)
    sizes = tuple(values.values())
    phase = Phase(code, operands, sizes, functools.partial(_launch, plan))
    if D.is_known(sizes):
        problem, _ = _problem(plan, dict(zip(plan.names, sizes, strict=True)))
        return phase, cut(problem).areas.scratch if problem.groups and problem.m and problem.n else 64
    packed = (right.packed and right.codes is None) or code.few > 0
    coded = 0 if right.codes is None else most_rows(right.codes, vectors)
    step = 2 if right.halves == PAIRS else 1
    bound = scratch_bound(dtype, vectors, values["k"], packed, apart, len(code.tables), left.bound, coded, step)
    return phase, bound


_Code = TypeVar("_Code", bound=GemmCode)


def describe(
    make: type[_Code],
    groups: Shape,
    rows: Shape,
    n: DimLike,
    k: DimLike,
    left: Left,
    right: RightMatrix,
    extras: Sequence[Walk],
    out: Walk,
    expr: Expr,
) -> tuple[_Code, dict[str, DimLike]]:
    """The code of a contraction, and the values of those of its parameters that follow from sizes and strides.

    Args:
        make: Class of the code.
        groups: See :func:`contraction_phase`, also for the other arguments.
        rows: See there.
        n: See there.
        k: See there.
        left: See there.
        right: See there.
        extras: See there.
        out: See there.
        expr: See there.
    """
    dtype = accumulator(left.source.dtype)
    few = 0 if right.codes is not None or right.halves else few_columns(dtype, n, k, right)
    vectors = 1 if few else vectors_for(dtype, n) if isinstance(n, int) else 2
    keep = [i for i, size in enumerate(groups) if size != 1]
    walks = {"c": out, **{f"e{i}": e for i, e in enumerate(extras)}}
    count = lanes_for(dtype).count
    values: dict[str, DimLike] = {"m": D.product(rows), "n": n, "k": D.ceildiv(k, count), "elements": k}
    values["a.offset"], values["b.offset"], values["shared"] = left.offset, right.offset, 0
    values.update(left.values)
    kinds = (
        ("packed" if right.codes is None else "codes", "1")
        if right.packed
        else (_kind(right.step, "1"), _kind(right.column, "1"))
    )
    if (few and not right.packed) or kinds == ("1", "1"):
        kinds = ("1", "s")
    if right.codes is not None:
        values["b.panel"] = D.ceildiv(k, right.codes.block) * right.codes.group(vectors * machine().width(32))
    if right.taps > 1:
        kinds = ("taps", "s")
        values["b.taps"] = right.taps
    if kinds[0] in ("s", "taps"):
        values["b.k"] = right.step
    if kinds[1] == "s":
        values["b.column"] = right.column
    flat = _flat(walks, rows, few, machine().width(bits(dtype))) if few else None
    patterns: dict[str, Pattern] = {}
    for name, w in walks.items():
        patterns[name], own = _pattern(name, w, rows) if flat is None else (flat[name], {f"{name}.offset": w.offset})
        values.update(own)
    for i, axis in enumerate(keep):
        values[f"group{i}.size"] = groups[axis]
        values[f"group{i}.a"], values[f"group{i}.b"] = left.groups[axis], right.groups[axis]
        for name, w in walks.items():
            values[f"group{i}.{name}"] = w.groups[axis]
    values.update({f"rows{i}": size for i, size in enumerate(rows) if i})
    code = make(
        dtype,
        vectors,
        few,
        flat is not None,
        left.source,
        Right(right.dtype, *kinds, right.codes, right.halves),
        len(keep),
        len(rows),
        tuple(patterns[f"e{i}"] for i in range(len(extras))),
        patterns["c"],
        expr,
        left.padding,
    )
    return code, values


def few_columns(dtype: str, n: DimLike, k: DimLike, right: RightMatrix | None = None) -> int:
    """``n`` if it is known and so small that tiles should have their vectors along k; else 0.

    Args:
        dtype: In which sums are made.
        n: Columns.
        k: Length of the sums.
        right: B, if it is not packed.
    """
    if not isinstance(n, int) or not pays(dtype, n, k if isinstance(k, int) else 1 << 30):
        return 0
    ready = right is None or right.packed or (right.dtype == dtype and right.taps == 1 and right.step == 1)
    return n if ready else 0


def pack(matrices: Array, dtype: str, halves: str = "") -> Array:
    """Constant matrices [groups, k, n] as B, packed for a product that is summed in ``dtype``: [groups, elements]."""
    groups, k, n = matrices.shape
    if halves:
        return pack_matrix(round_matrices(matrices, halves), dtype, vectors_for(dtype, n))
    if not few_columns(dtype, n, k):
        return pack_matrix(matrices, dtype, vectors_for(dtype, n))
    packed = aligned((groups, n, k), np.float32 if dtype == "f32" else np.float64)
    packed[:] = matrices.swapaxes(1, 2)
    return packed.reshape(groups, n * k)


def pack_coded(codes: Codes, weight: Array, scales: Array, zeros: Array | None) -> Array:
    """A weight of a few bits as B: see :func:`~accord.backends.cpu.codes.pack_codes`."""
    return pack_codes(codes, weight, scales, zeros, vectors_for("f32", scales.shape[0]))


def packed_size(dtype: str, k: int, n: int, halves: str = "") -> int:
    """Elements of a matrix that :func:`pack` has packed."""
    width = machine().width(bits(dtype))
    if halves:
        return steps_of(k, halves) * -(-n // width) * width
    depth = -(-k // lanes_for(dtype).count)
    return depth * (n if few_columns(dtype, n, k) else -(-n // width) * width)


def _flat(walks: Mapping[str, Walk], rows: Shape, few: int, width: int) -> dict[str, Pattern] | None:
    """Patterns of operands of ``few`` columns if C's rows follow each other without gaps, and all others fit to it."""
    patterns: dict[str, Pattern] = {}
    for name, w in walks.items():
        _, (merged,), _ = merge_axes(rows, [Access(w.rows)])
        step = merged.strides[0] if len(merged.strides) == 1 else None
        if step is None and merged.strides:
            return None
        if step == few and (few == 1 or w.column == 1):
            column = "f"
        elif step == 0 and (few == 1 or w.column == 0):
            column = "0"
        elif step == 0 and w.column == 1 and width % few == 0:
            column = "p"
        else:
            return None
        patterns[name] = Pattern(w.dtype, column, "0")
    return patterns if patterns["c"].column == "f" else None


def _kind(stride: DimLike, *known: str) -> str:
    return str(stride) if str(stride) in known else "s"


def _pattern(name: str, w: Walk, rows: Shape) -> tuple[Pattern, dict[str, DimLike]]:
    """What the code knows of an operand, and its parameters."""
    values: dict[str, DimLike] = {f"{name}.offset": w.offset}
    column = _kind(w.column, "0", "1")
    if name == "c" and column == "0":
        column = "1"  # one column
    if column == "s":
        values[f"{name}.column"] = w.column
    _, (merged,), _ = merge_axes(rows, [Access(w.rows)])
    steps = merged.strides
    if len(steps) > 1:
        values.update({f"{name}.row{i}": s for i, s in enumerate(w.rows)})
        return Pattern(w.dtype, column, "t"), values
    row = _kind(steps[0] if steps else 0, "0", "1")
    if name == "c" and row == "0":
        row = "1"  # one row
    if row == "s":
        row = "u"
        values[f"{name}.row"] = steps[0]
    return Pattern(w.dtype, column, row), values


def _problem(plan: _Plan, v: Mapping[str, int]) -> tuple[Problem, list[int]]:
    """The problem for these sizes, and the words of its chunks (or calls) and pieces."""
    code = plan.code
    stage: Stage | None = None
    words: list[int] = []
    halves, joined = code.right.halves, code.lanes
    ready = "made" if code.right.column == "s" or code.right.dtype != code.dtype or halves else "ready"
    if code.right.step == "packed" or code.few:
        ready = "packed"
    by_codes = _meets_codes(code, v["m"])
    if code.right.codes is not None:
        ready = "packed" if by_codes else "made"
    if plan.stage is not None:
        stage, calls = plan.stage(v)
        chunks = chunks_of(0) if not v["k"] else (Chunk(0, v["k"], 0, len(calls)),)
        words = [word for c in calls for word in c]
    else:
        pieces = None if plan.pieces is None else plan.pieces(v)
        in_place = ready == "ready" and v["m"] < PACK_ROWS
        lengths = None if pieces is None else [length for length, _ in pieces]
        most = v["k"] if by_codes else MOST_LINES if in_place and pieces is None else MOST_CHUNK
        unit = 2 if halves == PAIRS else joined.count
        chunks = chunks_of(v["elements"], lengths, max(most, 1) * joined.count, unit)
        words = [word for c in chunks for word in (c.start, c.length, c.first, c.last)]
        words += [word for _, piece in pieces or () for word in piece]
        chunks = tuple(Chunk(c.start // joined.count, -(-c.length // joined.count), c.first, c.last) for c in chunks)
    # the last lane of the last row may be read whole
    direct = code.left.direct and code.left.dtype == joined.left and v["elements"] % joined.count == 0
    row = v["a.row"] if direct and not halves else 0
    heights = _heights(code, v["m"], code.vectors)
    problem = Problem(
        code.dtype,
        code.vectors,
        heights,
        code.few or code.vectors * machine().width(bits(code.dtype)),
        math.prod(v[f"group{i}.size"] for i in range(code.group_axes)),
        v["m"],
        v["n"],
        chunks,
        row * bits(code.left.dtype) // 8,
        ready,
        plan.apart,
        len(code.tables),
        stage,
        code.sums_rows,
    )
    return problem, words


def _launch(plan: _Plan, sizes: Sequence[int]) -> Launch:
    v = dict(zip(plan.names, sizes, strict=True))
    code = plan.code
    p, words = _problem(plan, v)
    if not (p.groups and p.m and p.n):
        return Launch((), 0)
    blocks = cut(p)
    areas = blocks.areas
    v.update(
        {name: getattr(blocks, name) for name in ("task_groups", "block", "task_rows", "task_panels")},
        **{name: getattr(blocks, name) for name in ("row_tasks", "column_tasks")},
        **{name: getattr(blocks, name) for name in ("panels", "run", "parts", "direct", "pack_b", "pitch")},
        **{name: getattr(areas, name) for name in ("a_at", "b_at", "stage_at", "tables_at", "rows_at", "scratch")},
        groups=p.groups,
        chunks=p.chunks[0].last if p.stage is not None else len(p.chunks),
    )
    v["run"] = steps_of(blocks.run, code.right.halves)
    functions = functions_of(code, p.m, blocks.last_vectors)
    heights = add_heights(code, v, blocks.last_vectors)
    if p.stage is not None:
        v["a.segment"] = p.stage.segment
    params = v | functions
    return Launch((*(params[name] for name in code.names), *heights, *words), blocks.tasks)


def _meets_codes(code: GemmCode, rows: int) -> bool:
    """Whether so few rows meet a weight of a few bits as it is."""
    return code.right.codes is not None and rows <= most_rows(code.right.codes, code.vectors)


def _heights(code: GemmCode, rows: int, vectors: int) -> tuple[int, ...]:
    """Heights of the tiles of so many vectors for a product of ``rows`` rows."""
    if code.few:
        return dot_heights(code.dtype, code.few)
    if code.right.codes is not None and _meets_codes(code, rows):
        return codes_heights(code.right.codes, vectors)
    return tile_heights(code.dtype, vectors)


def _tile(code: GemmCode, rows: int, vectors: int) -> KernelCode:
    """Those tiles."""
    if code.few:
        return DotCode(code.dtype, code.few)
    if code.right.codes is not None and _meets_codes(code, rows):
        return CodesTileCode(code.right.codes, vectors)
    return TileCode(code.dtype, vectors, code.right.halves == PAIRS)


def functions_of(code: GemmCode, rows: int, last_vectors: int) -> dict[str, KernelCode]:
    """The functions that a kernel calls for ``rows`` rows, by name of the parameter; see :func:`add_heights`."""
    return {
        "tile": _tile(code, rows, code.vectors),
        "tile.last": _tile(code, rows, last_vectors),
        **{name: TransposeCode(*block) for name, block in code.transposes.items()},
    }


def add_heights(code: GemmCode, values: dict[str, int], last_vectors: int) -> tuple[int, ...]:
    """Add the heights of tiles to ``values``; returns the tables of them.

    Args:
        code: The kernel.
        values: Parameters by name.
        last_vectors: Vectors of the last panel's lines.
    """
    rows = values["m"]
    heights, last = _heights(code, rows, code.vectors), _heights(code, rows, last_vectors)
    values["high"], values["high.last"] = heights[0], last[0]
    return (*next_heights(heights), *next_heights(last))
