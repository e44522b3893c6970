"""Operands of a product rounded to bf16, when that was asked for; sums stay f32.

Where the machine multiplies pairs of bf16 that are neighbours along k, panels hold such pairs: a step of a tile then
adds two products, and subnormal operands count as zero. Elsewhere panels hold rounded f32.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.protocol import Array
from accord.expr.lang import cast, operand

__all__ = ["PAIRS", "ROUNDED", "halves", "round_lines", "round_matrices", "round_rows", "steps_of"]

#: How panels hold numbers that are rounded to bf16.
PAIRS: Final = "pairs"
ROUNDED: Final = "rounded"


def halves() -> str:
    """How this machine's panels hold numbers that are rounded to bf16."""
    return PAIRS if machine().vector_bits == 512 and "avx512bf16" in machine().has else ROUNDED


def steps_of(k: int, kind: str) -> int:
    """Steps of a tile along ``k``."""
    return -(-k // 2) if kind == PAIRS else k


def round_matrices(matrices: Array, kind: str) -> Array:
    """Matrices [groups, k, n] as f32 [groups, steps, n], each element a rounded number or a pair of them."""
    import ml_dtypes  # what starts a stored kernel rounds nothing

    short = matrices.astype(ml_dtypes.bfloat16)
    if kind == ROUNDED:
        return short.astype(np.float32)
    groups, k, n = matrices.shape
    paired = np.zeros((groups, steps_of(k, kind), n, 2), np.uint16)
    for parity in (0, 1):
        part = short[:, parity::2].view(np.uint16)
        paired[:, : part.shape[1], :, parity] = part
    return paired.view(np.float32)[..., 0]


def _short(b: Builder, width: int, at: str) -> str:
    """The bits of a vector of f32 in memory, rounded as the machine does for its products."""
    floats, shorts, name = f"<{width} x float>", f"<{width} x bfloat>", "@llvm.x86.avx512bf16.cvtneps2bf16.512"
    b.declare(f"declare {shorts} {name}({floats})")
    value = b.op(f"call {shorts} {name}({floats} {Printer(b, width).load('f32', at)})")
    return b.op(f"bitcast {shorts} {value} to <{width} x i16>")


def _rounded(b: Builder, width: int, at: str) -> None:
    """Round a vector of f32 in place."""
    value = cast(cast(operand(0, "f32"), "bf16"), "f32")
    Printer(b, width).store("f32", Printer(b, width).value(value, [Printer(b, width).load("f32", at)]), at)


def round_rows(b: Builder, kind: str, panel: str, pitch: str, rows: str, length: str) -> None:
    """Write code that rounds the rows of A's panel in place; each has room for two vectors more.

    Args:
        b: Where to write.
        kind: How the panel shall hold them.
        panel: Address.
        pitch: Bytes from row to row.
        rows: How many.
        length: Of a row.
    """
    width = machine().width(32)
    type_, order = f"<{width} x i16>", ", ".join(f"i32 {k}" for k in range(2 * width))
    with b.loop(0, rows) as r:
        row = b.op(f"getelementptr i8, ptr {panel}, i64 {b.mul(r, pitch)}")
        # the last pair may lack its second
        b.emit(f"store float 0.0, ptr {b.address(row, 'f32', length)}")
        with b.loop(0, length, 2 * width) as i:
            places = (b.address(row, "f32", i), b.address(row, "f32", b.add(i, width)))
            if kind == ROUNDED:
                for place in places:
                    _rounded(b, width, place)
            else:
                low, high = (_short(b, width, place) for place in places)
                both = b.op(f"shufflevector {type_} {low}, {type_} {high}, <{2 * width} x i32> <{order}>")
                Printer(b, 2 * width).store("bf16", both, b.address(row, "bf16", i))


def round_lines(b: Builder, kind: str, panel: str, lines: str, line: str) -> None:
    """Write code that rounds the lines of B's panel in place; pairs are made of neighbouring lines.

    Args:
        b: Where to write.
        kind: How the panel shall hold them.
        panel: Address.
        lines: How many, the length of the sums.
        line: Elements of a line, whole vectors.
    """
    width = machine().width(32)
    if kind == ROUNDED:
        with b.loop(0, b.mul(lines, line), width) as i:
            _rounded(b, width, b.address(panel, "f32", i))
        return
    words, shorts = f"<{width} x i32>", f"<{width} x i16>"
    with b.loop(0, lines, 2) as k:
        first, target = (b.address(panel, "f32", b.mul(at, line)) for at in (k, b.op(f"lshr i64 {k}, 1")))
        alone = b.compare("eq", b.add(k, 1), lines)
        second = b.address(first, "f32", b.op(f"select i1 {alone}, i64 0, i64 {line}"))
        keep = b.op(f"select i1 {alone}, i32 0, i32 -1")
        mask = Printer(b, width).splat("i32", keep, width)
        with b.loop(0, line, width) as i:
            low, high = (
                b.op(f"zext {shorts} {_short(b, width, b.address(at, 'f32', i))} to {words}") for at in (first, second)
            )
            upper = b.op(f"and {words} {b.op(f'shl {words} {high}, splat (i32 16)')}, {mask}")
            Printer(b, width).store("i32", b.op(f"or {words} {low}, {upper}"), b.address(target, "f32", i))
