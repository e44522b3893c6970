"""Tiles that are transposed, and rows that are woven, in registers."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.expr.lang import bits

__all__ = ["call_tile", "tile_function", "unweave", "weave"]


def _name(size: int, width: int) -> str:
    return f"tile_{size}x{width}"


def tile_function(dtype: str, width: int) -> Builder:
    """A function that copies a tile of at most ``width`` rows of ``width`` elements so that rows become columns.

    Rows lie %step elements apart at %source; at %target they follow each other without gaps. Only the first %columns
    elements of the first %rows rows are read, at least one; all of the target is written. Log2(width) rounds exchange
    elements of pairs of rows whose numbers differ in one bit (Eklundh, "A fast computer method for matrix
    transposing", 1972).
    """
    size = bits(dtype)
    word, type_ = f"u{size}", vector(f"u{size}", width)
    b = Builder(
        _name(size, width),
        "ptr noalias readonly %source, i64 %step, ptr noalias %target, i64 %rows, i64 %columns",
        internal=True,
    )
    p = Printer(b, width)
    rows = []
    last = b.sub("%rows", 1)
    for k in range(width):
        # the last row stands for those after it: a masked load of a page that does not exist takes very long
        row = b.mul(b.min(k, last), "%step") if k else 0
        rows.append(p.load_masked(word, b.address("%source", word, row), "%columns"))
    distance = 1
    while distance < width:
        for k in range(width):
            if k & distance:
                continue
            upper, lower = rows[k], rows[k + distance]
            first = [i if not i & distance else width + i - distance for i in range(width)]
            second = [i + distance if not i & distance else width + i for i in range(width)]
            for target, order in ((k, first), (k + distance, second)):
                index = ", ".join(f"i32 {i}" for i in order)
                rows[target] = b.op(f"shufflevector {type_} {upper}, {type_} {lower}, <{width} x i32> <{index}>")
        distance *= 2
    for k, row in enumerate(rows):
        p.store(word, row, b.address("%target", word, k * width))
    return b


def call_tile(
    b: Builder, dtype: str, width: int, source: str, step: str | int, target: str, rows: str, columns: str
) -> None:
    """Write a call of what :func:`tile_function` makes."""
    b.emit(f"call void @{_name(bits(dtype), width)}(ptr {source}, i64 {step}, ptr {target}, i64 {rows}, i64 {columns})")


def weave(b: Builder, dtype: str, width: int, rows: Sequence[str]) -> list[str]:
    """Vectors of the elements of several rows in turn: all first elements, then all second ones ..."""
    places = [divmod(i, len(rows))[::-1] for i in range(len(rows) * width)]
    return [_picked(b, dtype, width, rows, places[k : k + width]) for k in range(0, len(places), width)]


def unweave(b: Builder, dtype: str, width: int, line: Sequence[str]) -> list[str]:
    """The rows of which :func:`weave` has made ``line``."""
    places = [[divmod(i * len(line) + r, width) for i in range(width)] for r in range(len(line))]
    return [_picked(b, dtype, width, line, row) for row in places]


def _picked(b: Builder, dtype: str, width: int, sources: Sequence[str], places: Sequence[tuple[int, int]]) -> str:
    """A vector of element ``place[1]`` of vector ``place[0]`` for each place."""
    used = sorted({source for source, _ in places})
    type_ = vector(dtype, width)
    value = sources[used[0]]
    held: Sequence[int] = [element for _, element in places]  # where in `value` each element is by now
    for source in used[1:] or used:
        order = [width + element if own == source else at for at, (own, element) in zip(held, places, strict=True)]
        index = ", ".join(f"i32 {i}" for i in order)
        value = b.op(f"shufflevector {type_} {value}, {type_} {sources[source]}, <{width} x i32> <{index}>")
        held = range(width)
    return value
