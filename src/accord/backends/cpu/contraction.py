"""From strides to a phase: the symbolic side of :mod:`accord.backends.cpu.gemm`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from accord.backends.cpu.blocking import Problem, chunks_of, cut, scratch_bound
from accord.backends.cpu.gemm import GemmCode, Pattern, Right
from accord.backends.cpu.nest import merge_axes
from accord.backends.cpu.panels import MatrixSource, Source
from accord.backends.cpu.tile import tile_address, tile_heights, vectors_for
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import Expr, bits, cast, operand, rebuild, topological
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access

__all__ = [
    "Left",
    "Pieces",
    "RightMatrix",
    "Walk",
    "accumulator",
    "contraction_phase",
    "matrix_left",
    "substitute",
    "with_sum",
]

#: From the values of a source's parameters to the length and the words of each of its pieces.
Pieces: TypeAlias = Callable[[Mapping[str, int]], Sequence[tuple[int, tuple[int, ...]]]]


def accumulator(dtype: str) -> str:
    """The type in which products of values of ``dtype`` are summed."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def with_sum(expr: Expr, dtype: str) -> Expr:
    """``expr`` with an operand 0 of ``dtype``, rounded to the type that the expression expects."""
    return substitute(expr, lambda i, own: cast(operand(0, dtype), own) if i == 0 else operand(i, own))


def substitute(expr: Expr, operand_of: Callable[[int, str], Expr]) -> Expr:
    """``expr`` with each operand replaced by what ``operand_of`` gives for its index and dtype."""
    made: dict[Expr, Expr] = {}
    for node in topological((expr,)):
        if node.op == "operand" and node.value is not None:
            made[node] = operand_of(int(node.value), node.dtype)
        else:
            made[node] = rebuild(node, tuple(made[a] for a in node.args))
    return made[expr]


@dataclass(frozen=True)
class Walk:
    """How an operand is walked: strides along the groups, the axes of the rows, and the columns, in elements."""

    dtype: str
    groups: tuple[DimLike, ...]
    rows: tuple[DimLike, ...]
    column: DimLike
    offset: DimLike = 0


@dataclass(frozen=True)
class Left:
    """A: where its rows come from.

    Attributes:
        source: What the machine code knows.
        values: The source's parameters by name.
        groups: Strides along the groups.
        offset: First element.
        pieces: Makes the source's pieces, if it has them.
    """

    source: Source
    values: Mapping[str, DimLike]
    groups: tuple[DimLike, ...]
    offset: DimLike = 0
    pieces: Pieces | None = None


@dataclass(frozen=True)
class RightMatrix:
    """B: strides along the groups, k and columns; or panels, one after the other along the groups' strides."""

    dtype: str
    groups: tuple[DimLike, ...]
    step: DimLike = 0
    column: DimLike = 1
    offset: DimLike = 0
    packed: bool = False


@dataclass(frozen=True)
class _Plan:
    """What a launch needs beside the sizes, whose names are ``names``."""

    code: GemmCode
    names: tuple[str, ...]
    pieces: Pieces | None
    stage: int


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
        expr: What is stored; operand 0 is the sum, of type :func:`accumulator` of A's type.
        operands: A, B, the extras, C, scratch.
    """
    dtype = accumulator(left.source.dtype)
    vectors = vectors_for(dtype, n) if isinstance(n, int) else 2
    keep = [i for i, size in enumerate(groups) if size != 1]
    walks = {"c": out, **{f"e{i}": e for i, e in enumerate(extras)}}
    values: dict[str, DimLike] = {"m": D.product(rows), "n": n, "k": k, "a.offset": left.offset}
    values["b.offset"] = right.offset
    values.update(left.values)
    kinds = ("packed", "1") if right.packed else (_kind(right.step, "1"), _kind(right.column, "1"))
    if kinds == ("1", "1"):
        kinds = ("1", "s")
    if kinds[0] == "s":
        values["b.k"] = right.step
    if kinds[1] == "s":
        values["b.column"] = right.column
    patterns: dict[str, Pattern] = {}
    for name, w in walks.items():
        patterns[name], own = _pattern(name, w, rows)
        values.update(own)
    for i, axis in enumerate(keep):
        values[f"group{i}.size"] = groups[axis]
        values[f"group{i}.a"], values[f"group{i}.b"] = left.groups[axis], right.groups[axis]
        for name, w in walks.items():
            values[f"group{i}.{name}"] = w.groups[axis]
    values.update({f"rows{i}": size for i, size in enumerate(rows) if i})
    code = GemmCode(
        dtype,
        vectors,
        left.source,
        Right(right.dtype, *kinds),
        len(keep),
        len(rows),
        tuple(patterns[f"e{i}"] for i in range(len(extras))),
        patterns["c"],
        expr,
    )
    stage = max(1, bits(out.dtype) // 8) if patterns["c"].column == "s" else 0
    plan = _Plan(code, tuple(values), left.pieces, stage)
    phase = Phase(code, operands, tuple(values.values()), functools.partial(_launch, plan))
    sizes = tuple(values.values())
    if D.is_known(sizes):
        problem = _problem(plan, dict(zip(plan.names, sizes, strict=True)))
        scratch = cut(problem).areas.scratch if problem.m and problem.n else 64
        return phase, scratch
    return phase, scratch_bound(dtype, vectors, k, right.packed, stage, len(code.tables))


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


def _problem(plan: _Plan, v: Mapping[str, int]) -> Problem:
    code = plan.code
    lengths = None if plan.pieces is None else [length for length, _ in plan.pieces(v)]
    row = v["a.row"] if code.left.direct and code.left.dtype == code.dtype else 0
    return Problem(
        code.dtype,
        code.vectors,
        math.prod(v[f"group{i}.size"] for i in range(code.group_axes)),
        v["m"],
        v["n"],
        chunks_of(v["k"], lengths),
        row * bits(code.dtype) // 8,
        code.right.step == "packed",
        plan.stage,
        len(code.tables),
    )


def _launch(plan: _Plan, sizes: Sequence[int]) -> Launch:
    v = dict(zip(plan.names, sizes, strict=True))
    code = plan.code
    p = _problem(plan, v)
    if not (p.groups and p.m and p.n):
        return Launch((), 0)
    cut_ = cut(p)
    heights = tile_heights(code.dtype, code.vectors)
    last = tile_heights(code.dtype, cut_.last_vectors)
    v.update(
        {name: getattr(cut_, name) for name in ("block", "task_rows", "task_panels", "row_tasks", "column_tasks")},
        panels=cut_.panels,
        chunks=len(p.chunks),
        run=cut_.run,
        parts=cut_.parts,
        direct=cut_.direct,
        pack_b=cut_.pack_b,
        pitch=cut_.pitch,
        scratch=cut_.areas.scratch,
        a_at=cut_.areas.a_at,
        b_at=cut_.areas.b_at,
        stage_at=cut_.areas.stage_at,
        tables_at=cut_.areas.tables_at,
        tile=tile_address(code.dtype, code.vectors),
    )
    v.update({"tile.last": tile_address(code.dtype, cut_.last_vectors)})
    v.update(_high_and_mid("", heights), **_high_and_mid(".last", last))
    words: list[int] = [v[name] for name in code.names]
    for c in p.chunks:
        words += (c.start, c.length, c.first, c.last)
    if plan.pieces is not None:
        for _, piece in plan.pieces(v):
            words += piece
    return Launch(tuple(words), p.groups * cut_.tasks)


def _high_and_mid(suffix: str, heights: Sequence[int]) -> dict[str, int]:
    """The highest tile, and the next one where a gap lies below it."""
    high = heights[0]
    mid = heights[1] if len(heights) > 1 and heights[1] > 8 else high
    return {f"high{suffix}": high, f"mid{suffix}": mid}
