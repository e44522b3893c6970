"""Weights of a few bits as a product reads them: codes that stay packed in memory and become f32 in registers.

Each block of codes along k has a scale, and perhaps a zero point, for each column. A panel holds the columns of a tile,
as those of :mod:`accord.backends.cpu.panels` do; it is a sequence of *groups*, one for each block of k: the scales of
all columns, their zero points, then words of 32 bits, line after line, each with the codes of one column for several
neighbouring steps along k. So all that a block needs comes from one stream.

Few rows are multiplied by :class:`CodesTileCode`, which reads groups; more rows are worth a panel of f32
(:func:`expand_panel`), which the ordinary tiles read many times.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.panels import aligned
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.tile import IN_FLIGHT, TILE_ARGUMENTS, by_height, fma
from accord.backends.cpu.transpose import converted
from accord.backends.protocol import Array
from accord.expr.lang import bits
from accord.record import record

__all__ = [
    "Codes",
    "CodesTileCode",
    "codes_heights",
    "expand_panel",
    "most_rows",
    "pack_codes",
    "words_of",
]

#: Greatest height of a tile.
_MOST_HEIGHT: Final = 8
#: How many bytes ahead the stream of groups is asked for.
_AHEAD: Final = 2048
_CACHE_LINE: Final = 64
#: Bits of 2**23 in f32: an integer that is put into its low bits is added to it.
_MAGIC: Final = 0x4B000000


@record
class Codes:
    """How a weight is coded: ``(code - zero point) * scale``.

    Attributes:
        bits: Of a code: 2, 4 or 8; codes are unsigned.
        block: Codes along k with one scale, a multiple of those in a word.
        scale: Element type of the scales in memory.
        zero: The zero point of all blocks; None where each has its own.
        points: Element type of those in memory: "u8", or that of the scales.
    """

    bits: int
    block: int
    scale: str
    zero: int | None
    points: str = "u8"

    @property
    def word(self) -> int:
        """Codes of a word."""
        return 32 // self.bits

    @property
    def head(self) -> tuple[int, ...]:
        """Bytes of a scale and, where they are stored, of a zero point."""
        return (bits(self.scale) // 8, *([bits(self.points) // 8] if self.zero is None else []))

    def group(self, line: int) -> int:
        """Bytes of a group of ``line`` columns."""
        return sum(_whole(line * size) for size in self.head) + line * self.block * self.bits // 8


def _whole(size: int) -> int:
    return -(-size // _CACHE_LINE) * _CACHE_LINE


def words_of(codes: Codes, weight: Array) -> Array:
    """Unsigned codes, u8 [n, k], as words [n, ceil(k / codes of a word)]."""
    n, k = weight.shape
    whole = np.zeros((n, -(-k // codes.word) * codes.word), np.uint8)
    whole[:, :k] = weight
    words = np.zeros((n, whole.shape[1] // codes.word), np.uint32)
    for j in range(codes.word):
        words |= whole[:, j :: codes.word].astype(np.uint32) << np.uint32(codes.bits * j)
    return words


def pack_codes(codes: Codes, weight: Array, scales: Array, zeros: Array | None, vectors: int) -> Array:
    """A weight as panels.

    Args:
        codes: How it is coded.
        weight: Words, u32 [n, words]; those after the last block are not looked at.
        scales: [n, blocks].
        zeros: Zero points [n, blocks]; None where all are equal.
        vectors: Vectors of a panel's line; the last panel is as narrow as it can be.

    Returns:
        Bytes.
    """
    n, blocks = scales.shape
    each = codes.block // codes.word
    width = machine().width(32)
    columns, wide = -(-n // width) * width, vectors * width
    # columns after the last have zeros as scales
    whole = np.zeros((columns, blocks * each), np.uint32)
    whole[:n, : weight.shape[1]] = weight[:, : blocks * each]
    words = whole.reshape(columns, blocks, each)
    heads = [np.zeros((columns, blocks), a.dtype) for a in (scales, *([] if zeros is None else [zeros]))]
    for head, given in zip(heads, (scales, zeros), strict=False):
        head[:n] = given
    starts = range(0, columns, wide)
    packed = aligned((sum(blocks * codes.group(min(wide, columns - s)) for s in starts),), np.uint8)
    packed[:] = 0
    place = 0
    for start in starts:
        line = min(wide, columns - start)
        size = blocks * codes.group(line)
        panel = packed[place : place + size].reshape(blocks, codes.group(line))
        place, at = place + size, 0
        for head in heads:
            part = np.ascontiguousarray(head[start : start + line].T).view(np.uint8)
            panel[:, at : at + part.shape[1]] = part
            at += _whole(part.shape[1])
        lines = words[start : start + line].transpose(1, 2, 0)
        panel[:, at:] = np.ascontiguousarray(lines).reshape(blocks, -1).view(np.uint8)
    return packed


class _Decoder:
    """Writes what turns a vector of words into f32, one code of each word at a time."""

    def __init__(self, b: Builder, codes: Codes) -> None:
        self.b, self.codes = b, codes
        self.width = machine().width(32)
        self.words, self.floats = vector("i32", self.width), vector("f32", self.width)
        # one of sixteen numbers costs a shift and a permutation
        self.looks_up = codes.bits == 4 and codes.zero is not None and machine().vector_bits == 512

    def places(self, group: str, line: int | str) -> tuple[str, str, str]:
        """Addresses of a group's scales, zero points and words, for ``line`` columns."""
        b, at = self.b, [group]
        for size in self.codes.head:
            if isinstance(line, int):
                step: int | str = _whole(line * size)
            else:
                step = b.op(f"and i64 {b.add(b.mul(line, size), _CACHE_LINE - 1)}, {-_CACHE_LINE}")
            at.append(b.op(f"getelementptr i8, ptr {at[-1]}, i64 {step}"))
        return group, at[1], at[-1]

    def load(self, at: str) -> str:
        """A vector of words."""
        return Printer(self.b, self.width).load("i32", at)

    def scales(self, at: str) -> str:
        """A vector of scales."""
        value = Printer(self.b, self.width).load(self.codes.scale, at)
        return converted(self.b, self.width, value, self.codes.scale, "f32")

    def zeros(self, at: str) -> str:
        """What :meth:`number` wants: 2**23 and the zero points, of which a vector lies at ``at`` if they are stored.

        Those that are no integers stay as they are.
        """
        b, zero = self.b, self.codes.zero
        if zero is not None:
            return self._lifted(f"splat (i32 {zero})")
        if self.codes.points != "u8":
            value = Printer(b, self.width).load(self.codes.points, at)
            return converted(b, self.width, value, self.codes.points, "f32")
        points = b.op(f"load <{self.width} x i8>, ptr {at}, align 1")
        return self._lifted(b.op(f"zext <{self.width} x i8> {points} to {self.words}"))

    def _lifted(self, integers: str) -> str:
        """2**23 and integers, as f32."""
        b = self.b
        return b.op(
            f"bitcast {self.words} {b.op(f'or {self.words} {integers}, splat (i32 {_MAGIC})')} to {self.floats}"
        )

    def number(self, words: str, shift: int | str, zeros: str) -> str:
        """The codes that begin at bit ``shift`` of ``words``, less the zero points."""
        b, codes = self.b, self.codes
        spread = Printer(b, self.width).splat("i32", shift, self.width) if isinstance(shift, str) else ""
        shifted = b.op(f"lshr {self.words} {words}, {spread or f'splat (i32 {shift})'}") if shift else words
        if self.looks_up:
            assert codes.zero is not None
            table = ", ".join(f"float {float(c - codes.zero)}" for c in range(16))
            function = "@llvm.x86.avx512.permvar.sf.512"
            b.declare(f"declare {self.floats} {function}({self.floats}, {self.words})")
            return b.op(f"call {self.floats} {function}({self.floats} <{table}>, {self.words} {shifted})")
        code = self._lifted(b.op(f"and {self.words} {shifted}, splat (i32 {(1 << codes.bits) - 1})"))
        if codes.points != "u8":
            code = b.op(f"fsub {self.floats} {code}, {self._lifted('zeroinitializer')}")
        return b.op(f"fsub {self.floats} {code}, {zeros}")


def expand_panel(b: Builder, codes: Codes, groups: str, k: str, line: str, panel: str) -> None:
    """Write code that makes a panel of f32.

    Args:
        b: Where to write.
        codes: How the weight is coded.
        groups: Address of the panel's groups.
        k: Lines of the panel.
        line: Columns, whole vectors.
        panel: Address of [k, line] f32.
    """
    d = _Decoder(b, codes)
    printer = Printer(b, d.width)
    with b.loop_carrying(0, k, codes.block, (("ptr", groups),)) as (first, (group,), following):
        scales, zeros, words = d.places(group, line)
        count = b.min(b.sub(k, first), codes.block)
        lines = b.op(f"udiv i64 {count}, {codes.word}")
        rest = b.sub(count, b.mul(lines, codes.word))
        target = b.address(panel, "f32", b.mul(first, line))
        with b.loop(0, line, d.width) as column:
            scale = d.scales(b.address(scales, codes.scale, column))
            zero = d.zeros(b.address(zeros, codes.points, column))

            read, write = (b.address(base, "f32", column) for base in (words, target))
            with b.loop(0, lines) as i:
                word, first_row = d.load(b.address(read, "i32", b.mul(i, line))), b.mul(i, codes.word)
                for j in range(codes.word):
                    value = b.op(f"fmul {d.floats} {d.number(word, j * codes.bits, zero)}, {scale}")
                    printer.store("f32", value, b.address(write, "f32", b.mul(b.add(first_row, j), line)))
            with b.loop(0, rest) as i:
                word, row = d.load(b.address(read, "i32", b.mul(lines, line))), b.add(b.mul(lines, codes.word), i)
                shift = b.op(f"trunc i64 {b.mul(i, codes.bits)} to i32")
                value = b.op(f"fmul {d.floats} {d.number(word, shift, zero)}, {scale}")
                printer.store("f32", value, b.address(write, "f32", b.mul(row, line)))
        size = b.mul(line, codes.block * codes.bits // 8)
        following.append(b.op(f"getelementptr i8, ptr {words}, i64 {size}"))


@functools.cache
def codes_heights(codes: Codes, vectors: int) -> tuple[int, ...]:
    """Numbers of rows for which there is a tile, highest first: totals and a block's sums fill the registers."""
    left = (32 if machine().vector_bits == 512 else 16) - 2 - 2 * vectors
    return tuple(range(max(1, min(_MOST_HEIGHT, left // (2 * vectors))), 0, -1))


def most_rows(codes: Codes, vectors: int) -> int:
    """Rows that are multiplied without a panel of f32, at most.

    A tile of height h turns a code into a number for every h rows; it is measured to be worth it as many times.
    """
    return codes_heights(codes, vectors)[0] ** 2


@record
class CodesTileCode(KernelCode):
    """A module with one function of :data:`accord.backends.cpu.tile.TILE_ARGUMENTS` for every height.

    B is a panel's groups. The sums are whole: they are not added to what is there, and k is not cut.

    Attributes:
        codes: How the weight is coded.
        vectors: Vectors of a row.
    """

    codes: Codes
    vectors: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        c = self.codes
        return f"codes_{c.bits}_{c.block}_{c.scale}_{c.points if c.zero is None else c.zero}_{self.vectors}"

    def module(self, name: str) -> str:
        """LLVM text."""
        heights = codes_heights(self.codes, self.vectors)
        return by_height(name, heights, [self._tile(f"{name}_{rows}", rows) for rows in heights])

    def _tile(self, name: str, rows: int) -> Builder:
        """Sums of a block without their scale, several of them apart where there are few; then the totals."""
        b, codes = Builder(name, TILE_ARGUMENTS, internal=True), self.codes
        d = _Decoder(b, codes)
        line = self.vectors * d.width
        keys = [(r, v) for r in range(rows) for v in range(self.vectors)]
        sets = 1
        while sets * len(keys) < IN_FLIGHT:
            sets *= 2
        steps = ["0", *(b.mul("%a_row", r) if r > 1 else "%a_row" for r in range(1, rows))]
        nothing = tuple((d.floats, "zeroinitializer") for _ in range(sets * len(keys)))

        def products(
            a: str, shifts: Sequence[int | str], words: Sequence[str], zeros: Sequence[str], sums: list[str]
        ) -> None:
            """Add the products of some codes of ``words`` and the elements of A from ``a`` on to ``sums``."""
            lines = [b.op(f"getelementptr i8, ptr {a}, i64 {step}") for step in steps]
            for j, shift in enumerate(shifts):
                numbers = [d.number(word, shift, zero) for word, zero in zip(words, zeros, strict=True)]
                for i, (r, v) in enumerate(keys):
                    if v == 0:
                        element = b.op(f"load float, ptr {b.address(lines[r], 'f32', j)}")
                        spread = Printer(b, d.width).splat("f32", element, d.width)
                    place = j % sets * len(keys) + i
                    sums[place] = fma(b, "f32", d.width, spread, numbers[v], sums[place])

        start = (("ptr", "%a"), ("ptr", "%b"), *((d.floats, "zeroinitializer") for _ in keys))
        with b.loop_carrying(0, "%k", codes.block, start) as (first, (a, group, *totals), following):
            scales, points, at = d.places(group, line)
            zeros = [d.zeros(b.address(points, codes.points, v * d.width)) for v in range(self.vectors)]
            count = b.min(b.sub("%k", first), codes.block)
            lines = b.op(f"udiv i64 {count}, {codes.word}")
            rest = b.sub(count, b.mul(lines, codes.word))
            inner = (("ptr", a), ("ptr", at), *nothing)
            with b.loop_carrying(0, lines, 1, inner) as (_, (left, right, *sums), later):
                b.prefetch(b.op(f"getelementptr i8, ptr {right}, i64 {_AHEAD}"), line * 4)
                words = [d.load(b.address(right, "i32", v * d.width)) for v in range(self.vectors)]
                products(left, [j * codes.bits for j in range(codes.word)], words, zeros, sums)
                later += [b.address(left, "f32", codes.word), b.address(right, "i32", line), *sums]
            left, right, *sums = later
            one = tuple((d.floats, s) for s in sums[: len(keys)])
            with b.loop_carrying(0, rest, 1, (("ptr", left), *one)) as (j, (left, *low), later):
                words = [d.load(b.address(right, "i32", v * d.width)) for v in range(self.vectors)]
                products(left, [b.op(f"trunc i64 {b.mul(j, codes.bits)} to i32")], words, zeros, low)
                later += [b.address(left, "f32", 1), *low]
            sums[: len(keys)] = later[1:]
            factors = [d.scales(b.address(scales, codes.scale, v * d.width)) for v in range(self.vectors)]
            following.append(b.address(a, "f32", codes.block))
            following.append(b.op(f"getelementptr i8, ptr {group}, i64 {codes.group(line)}"))
            for i, (_, v) in enumerate(keys):
                apart = sums[i :: len(keys)]
                while len(apart) > 1:
                    apart = [b.op(f"fadd {d.floats} {x}, {y}") for x, y in zip(apart[::2], apart[1::2], strict=True)]
                following.append(fma(b, "f32", d.width, apart[0], factors[v], totals[i]))
        for i, total in enumerate(following[2:]):
            Printer(b, d.width).store("f32", total, b.address("%sums", "f32", i * d.width))
        return b
