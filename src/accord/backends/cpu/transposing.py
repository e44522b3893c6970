"""Tiles that are transposed in registers."""

from __future__ import annotations

from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.expr.lang import bits

__all__ = ["call_tile", "tile_function"]


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
