"""Packing of 8-bit matrices while a model runs, where B or its zero points are not constant.

What is written is laid out as :func:`accord.backends.cpu.lanes.packed_length` says, without factors.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.lanes import lanes
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.transpose import moved_by
from accord.backends.protocol import Launch, Phase
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.record import record

__all__ = ["Bytes", "lane_packing_phase"]


@record
class Bytes:
    """B, or its zero points, as they lie in memory.

    Attributes:
        dtype: "u8" or "i8".
        groups: Strides along the groups' axes.
        column: From column to column.
        offset: First element.
        step: Along k.
        taps: How many elements of k follow each other before the next ``step``; k counts them last.
    """

    dtype: str
    groups: tuple[DimLike, ...]
    column: DimLike
    offset: DimLike = 0
    step: DimLike = 0
    taps: int = 1


@record
class LanePackingCode(KernelCode):
    """Operands: B, zero points (B again if there are none), the panels. A task is a panel of a group.

    Attributes:
        dtype: Of B and its zero points.
        vectors: Vectors of a panel's line.
        unit: B's columns follow each other.
        taps: K counts taps and then channels, in memory the reverse.
        zero: There are zero points.
        group_axes: Axes of the groups.
    """

    dtype: str
    vectors: int
    unit: bool
    taps: bool
    zero: bool
    group_axes: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.dtype};{self.vectors};{self.unit};{self.taps};{self.zero};{self.group_axes}"
        return "lanes_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def names(self) -> tuple[str, ...]:
        """What the parameters mean, in order."""
        groups = [f"group{i}.{what}" for i in range(self.group_axes) for what in ("size", "b", "z")]
        return (
            *"n k panels whole columns_at b.offset b.column b.k b.channels z.offset z.column".split(),
            *groups,
        )

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        p = {what: b.param(i) for i, what in enumerate(self.names)}
        width, joined = machine().width(32), lanes()
        depth = b.op(f"udiv i64 {b.add(p['k'], joined.count - 1)}, {joined.count}")
        target = b.operand(2)
        with b.loop("%first", "%last") as task:
            group, panel = b.divmod(task, p["panels"])
            source = b.address(b.operand(0), self.dtype, p["b.offset"])
            zero = b.address(b.operand(1), self.dtype, p["z.offset"])
            rest = group
            for axis in reversed(range(self.group_axes)):
                rest, index = b.divmod(rest, p[f"group{axis}.size"])
                source = b.address(source, self.dtype, b.mul(index, p[f"group{axis}.b"]))
                zero = b.address(zero, self.dtype, b.mul(index, p[f"group{axis}.z"]))
            first = b.mul(panel, self.vectors * width)
            columns = b.min(b.sub(p["n"], first), self.vectors * width)
            line = b.op(f"and i64 {b.add(columns, width - 1)}, {-width}")
            start = b.mul(depth, b.add(b.mul(group, p["whole"]), first))
            lines = b.address(target, "i32", start)
            sums = b.address(target, "i32", b.add(p["columns_at"], b.add(b.mul(group, p["n"]), first)))
            with b.loop(0, columns, width) as j:
                count = b.min(b.sub(columns, j), width)
                column = b.add(first, j)
                total = self._lines(b, p, source, column, count, depth, b.address(lines, "i32", j), line)
                if self.zero:
                    own = self._load(b, b.address(zero, self.dtype, b.mul(column, p["z.column"])), p["z.column"], count)
                    k = b.op(f"trunc i64 {p['k']} to i32")
                    each = Printer(b, width).splat("i32", k, width)
                    all_ = b.op(f"mul <{width} x i32> {own}, {each}")
                    total = b.op(f"sub <{width} x i32> {total}, {all_}")
                Printer(b, width).store_masked("i32", total, b.address(sums, "i32", j), count)
        return b.module()

    def _lines(
        self, b: Builder, p: dict[str, str], source: str, column: str, count: str, depth: str, target: str, line: str
    ) -> str:
        """Write the lanes of a vector of columns; returns the sums of their elements."""
        width, joined = machine().width(32), lanes()
        type_ = f"<{width} x i32>"
        size = 32 // joined.count
        moved = Printer(b, width).splat("i32", str(moved_by(self.dtype, joined.right)), width)
        low = Printer(b, width).splat("i32", str((1 << size) - 1), width)
        source = b.address(source, self.dtype, b.mul(column, p["b.column"]))
        last = b.sub(p["k"], 1)
        with b.loop_carrying(0, depth, 1, ((type_, "zeroinitializer"),)) as (i, (total,), later):
            lane, added = "zeroinitializer", total
            for e in range(joined.count):
                k = b.add(b.mul(i, joined.count), e)
                within = b.min(k, last)
                if self.taps:  # from the number of tap and channel to where they lie
                    tap, channel = b.divmod(within, p["b.channels"])
                    place = b.add(b.mul(channel, p["b.k"]), tap)
                else:
                    place = b.mul(within, p["b.k"])
                column_step = "1" if self.unit else p["b.column"]
                value = self._load(b, b.address(source, self.dtype, place), column_step, count)
                inside = b.op(f"select i1 {b.compare('sle', k, last)}, i32 -1, i32 0")
                mask = Printer(b, width).splat("i32", inside, width)
                added = b.op(f"add {type_} {added}, {b.op(f'and {type_} {value}, {mask}')}")
                part = b.op(f"and {type_} {b.op(f'add {type_} {value}, {moved}')}, {low}")
                part = b.op(f"and {type_} {part}, {mask}")
                if e:
                    shift = Printer(b, width).splat("i32", str(size * e), width)
                    part = b.op(f"shl {type_} {part}, {shift}")
                lane = b.op(f"or {type_} {lane}, {part}")
            Printer(b, width).store("i32", lane, b.address(target, "i32", b.mul(i, line)))
            later.append(added)
        return later[0]

    def _load(self, b: Builder, at: str, step: str, count: str) -> str:
        """The first ``count`` of a vector of columns, as i32; the rest is anything."""
        width = machine().width(32)
        if step == "1":
            value = Printer(b, width).load_masked(self.dtype, at, count)
        else:
            value, last = "poison", b.sub(count, 1)
            for c in range(width):
                place = b.address(at, self.dtype, b.mul(b.min(last, c), step))
                element = Printer(b, 1).load(self.dtype, place)
                value = b.op(f"insertelement <{width} x i8> {value}, i8 {element}, i64 {c}")
        return b.op(f"{'zext' if self.dtype == 'u8' else 'sext'} <{width} x i8> {value} to <{width} x i32>")


def lane_packing_phase(
    groups: Shape, n: DimLike, k: DimLike, vectors: int, b: Bytes, zero: Bytes | None, operands: tuple[int, int, int]
) -> tuple[Phase, DimLike, DimLike]:
    """A phase that packs B, with the sums of its columns less their zero points.

    Args:
        groups: Sizes of the groups' axes.
        n: Columns.
        k: Lines.
        vectors: Vectors of a panel's line.
        b: B.
        zero: Its zero points, if there are any.
        operands: B, zero points (B if there are none), memory for the panels.

    Returns:
        The phase; where the sums of columns begin, in elements of 32 bits; bytes of memory.
    """
    width = machine().width(32)
    whole = D.ceildiv(n, width) * width
    count = D.product(groups)
    columns_at = count * D.ceildiv(k, lanes().count) * whole
    values: dict[str, DimLike] = {
        "n": n,
        "k": k,
        "panels": D.ceildiv(n, vectors * width),
        "whole": whole,
        "columns_at": columns_at,
        "b.offset": b.offset,
        "b.column": b.column,
        "b.k": b.step,
        "b.channels": D.floordiv(k, b.taps),
        "z.offset": 0 if zero is None else zero.offset,
        "z.column": 0 if zero is None else zero.column,
    }
    for i, size in enumerate(groups):
        values[f"group{i}.size"], values[f"group{i}.b"] = size, b.groups[i]
        values[f"group{i}.z"] = 0 if zero is None else zero.groups[i]
    code = LanePackingCode(b.dtype, vectors, b.column == 1, b.taps > 1, zero is not None, len(groups))
    phase = Phase(code, operands, tuple(values.values()), functools.partial(_launch, tuple(values)))
    return phase, columns_at, D.ceildiv((columns_at + count * n) * 4, 64) * 64


def _launch(names: tuple[str, ...], sizes: Sequence[int]) -> Launch:
    v = dict(zip(names, sizes, strict=True))
    groups = math.prod(size for name, size in v.items() if name.endswith(".size"))
    return Launch(tuple(sizes), groups * v["panels"])
