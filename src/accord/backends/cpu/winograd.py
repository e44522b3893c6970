"""Winograd's convolution: 3x3 kernels of stride 1 with a third of the multiplications.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016): tiles of 2 x 4 outputs are computed from
4 x 6 inputs that were transformed, multiplied in 24 matrix products (one for each element of a tile, over the
channels), and transformed back.

The error grows with the tile, and with points of evaluation that lie far apart (Barabasz et al., "Error Analysis and
Improving the Accuracy of Winograd Convolution", 2020). With points 0, 1, -1 down and 0, 5/8, -5/8, 3/2, -3/2 across,
and sums of at most 32 products in a register, it is at most 1.75 times that of a direct convolution that sums 144
products in a register, on random normal data with 16 to 512 channels. For 4 x 4 outputs it is at least 2.5 times as
large whatever the points, for 2 x 2 it is 0.9 times as large at the price of a third more multiplications.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from accord.backends.cpu.contraction import Left, RightMatrix, add_heights, describe, functions_of, packed_size
from accord.backends.cpu.conv import Convolution, Image
from accord.backends.cpu.gemm import GemmCode
from accord.backends.cpu.jit import machine
from accord.backends.cpu.panels import aligned, pack_matrix
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.tile import vectors_for
from accord.backends.cpu.winograd_transforms import (
    ACROSS,
    DOWN,
    PRODUCTS,
    TransformCode,
    weights_transform,
)
from accord.backends.protocol import Array, Launch, Phase
from accord.cores import on_all_cores
from accord.expr.lang import Expr
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["WinogradCode", "reason_against", "reason_not_to", "transformed_weights", "winograd_phase"]

#: Products that are summed in a register.
_RUN: Final = 32
#: Bytes of scratch memory for a block, unless one line of tiles needs more.
_ROOM: Final = 2 << 20
#: Tasks that are wanted: by smaller blocks of lines, else by splitting columns, for which inputs are transformed again.
_TASKS: Final = 16
_TASKS_BY_COLUMNS: Final = 4
#: Tiles of a block that make it worth to bring the weights from the third-level cache, and from memory.
_FROM_CACHE: Final = 28
_FROM_MEMORY: Final = 56
#: Sums over fewer channels are so short that the direct way errs two to three times less.
_LEAST_CHANNELS: Final = 16
#: It rarely pays for fewer tiles than this: the weights are 2.7 times as large.
_LEAST_TILES: Final = 24


def reason_against(c: Convolution) -> str | None:
    """Why a convolution cannot be computed this way, or not within the declared accuracy; None if it can."""
    if c.window.taps != (3, 3) or c.window.steps != (1, 1) or c.window.dilations != (1, 1):
        return "the kernel is not 3x3 with stride 1"
    if c.halves:
        return "transformed operands would have to be rounded again"
    if not c.constant or c.dtype != "f32":
        return "the weights are not constant, or not summed in f32"
    if min(c.channels, c.columns) < _LEAST_CHANNELS:
        return f"fewer than {_LEAST_CHANNELS} channels in a group"
    return None


def reason_not_to(c: Convolution) -> str | None:
    """Why a convolution that can be computed this way had better not be; None if it is likely to pay."""
    tiles = [D.ceildiv(n, m) for n, (m, _) in zip(c.out_sizes, (DOWN, ACROSS), strict=True)]
    total = D.product((c.images, *tiles))
    if isinstance(total, int) and total < _LEAST_TILES:
        return f"fewer than {_LEAST_TILES} tiles of 2x4 outputs"
    return None


def transformed_weights(w: Array, groups: int) -> Array:
    """Weights [M, C / groups, 3, 3] as panels of 24 matrices [C / groups, M / groups], one group after the other."""
    both = weights_transform()
    m, c = w.shape[0] // groups, w.shape[1]
    vectors = vectors_for("f32", m)
    width = machine().width(32)
    whole = -(-m // width) * width
    packed = aligned((groups, PRODUCTS, c * whole), np.float32)
    starts = [(g, first) for g in range(groups) for first in range(0, m, vectors * width)]

    def panel(number: int) -> None:
        g, first = starts[number]
        count = min(vectors * width, m - first)
        own = w[g * m + first : g * m + first + count].reshape(count * c, 9).astype(np.float64)
        matrices = (both @ own.T).reshape(PRODUCTS, count, c).swapaxes(1, 2)
        made = pack_matrix(matrices, "f32", vectors)
        packed[g, :, c * first : c * first + made.shape[1]] = made

    on_all_cores(panel, len(starts))
    return packed.reshape(-1)


@record
class WinogradCode(GemmCode):
    """As :class:`GemmCode` with an image that is staged; rows are the pixels of one image, a block is whole lines.

    Further parameters: bytes of a row of transformed inputs and from one product's rows to the next one's; elements of
    one product's weights; pixels of a staged line; the most tiles of a block; the offset of the area of outputs; the
    functions of the transforms.
    """

    @property
    def symbol(self) -> str:
        """Name by content."""
        return "winograd" + super().symbol

    @property
    def names(self) -> tuple[str, ...]:
        """What the parameters mean, in order."""
        return (*super().names, "v.row", "v.product", "u.product", "x.padded", "tiles", "y_at", "inputs", "outputs")

    @property
    def needs(self) -> tuple[KernelCode, ...]:
        """The transforms too."""
        return (*super().needs, TransformCode("inputs"), TransformCode("outputs"))

    def module(self, name: str) -> str:
        """LLVM text."""
        from accord.backends.cpu.winograd_writer import WinogradWriter  # what starts a stored kernel writes none

        return WinogradWriter(self, name).write()


# sizes


@record
class _Sizes:
    """How a convolution is laid out in scratch memory, for sizes that may be symbolic."""

    channels: int
    columns: int
    wide: int
    apart: int
    tables: int

    @property
    def row(self) -> int:
        """Bytes of a row of transformed inputs: an odd number of lines of the cache, so rows lie in different sets."""
        width = machine().width(32)
        return (-(-self.channels // width) | 1) * width * 4

    def padded(self, line: DimLike) -> DimLike:
        """Pixels of a line in whole tiles."""
        return D.ceildiv(line, ACROSS[0]) * ACROSS[0]

    def pitch(self, line: DimLike) -> DimLike:
        """Bytes of a staged line."""
        taken = (self.padded(line) + ACROSS[1] - ACROSS[0]) * self.channels * 4
        return (D.floordiv(taken + 63, 64) + 1) * 64

    def areas(self, line: DimLike, down: int, panels: int) -> list[DimLike]:
        """Bytes of each area for ``down`` lines of tiles: sums, stage, inputs, outputs, C's stage, tables."""
        width = machine().width(32)
        tiles = self.padded(line) * down // ACROSS[0] if isinstance(line, int) else D.ceildiv(line, ACROSS[0]) * down
        rows = line * (down * DOWN[0])
        return [
            tiles * (panels * PRODUCTS * self.wide * 4) + width * 64,
            self.pitch(line) * (down * DOWN[0] + 2) + (width + 1) * max(self.channels * 4, 64),
            tiles * (PRODUCTS * self.row),
            self.padded(line) * (down * DOWN[0] * self.wide * 4),
            (rows + width) * (self.wide * self.apart),
            rows * (8 * self.tables),
        ]


def winograd_phase(
    c: Convolution, extras: Sequence[Image], out: Image, expr: Expr, operands: tuple[int, ...]
) -> tuple[Phase, DimLike]:
    """A phase, and the scratch bytes that a thread needs.

    Args:
        c: What :func:`reason_against` has nothing against.
        extras: Operands 1, 2 ... of the expression, over the output's axes.
        out: The output.
        expr: What is stored; operand 0 is the sum.
        operands: Image, weights (of :func:`transformed_weights`), extras, output, scratch.
    """
    k, m = c.channels, c.columns
    size = packed_size(c.dtype, k, m)
    right = RightMatrix(c.dtype, (0, size * PRODUCTS), packed=True)
    walks = [o.walk(m, images=False) for o in (out, *extras)]
    left: Left = c.stage(c.x.walk(k, images=False))
    groups = (c.images, c.groups)
    code, values = describe(WinogradCode, groups, c.out_sizes, m, k, left, right, walks[1:], walks[0], expr)
    sizes = _Sizes(k, m, code.vectors * machine().width(32), code.apart, len(code.tables))
    phase = Phase(code, operands, tuple(values.values()), functools.partial(_launch, code, tuple(values), sizes))
    panels = -(-m // sizes.wide)
    if D.is_known(c.out_sizes) and isinstance(c.images, int):
        cut = _cut(sizes, c.out_sizes[0], c.out_sizes[1], c.images * c.groups)
        return phase, cut.starts[-1] or 64
    least = sum((_round(a) for a in sizes.areas(c.out_sizes[1], 1, panels)), 0)
    return phase, D.maximum(least, _ROOM) + 1024  # areas are rounded up


def _round(size: DimLike) -> DimLike:
    return D.ceildiv(size, 64) * 64


@record
class _Cut:
    """Lines of tiles of a block, panels, tasks, and where the areas of scratch memory start and end."""

    block: int
    panels: int
    task_panels: int
    row_tasks: int
    column_tasks: int
    starts: tuple[int, ...]


def _weights_bytes(sizes: _Sizes) -> int:
    """Bytes of the transformed weights of a group."""
    return PRODUCTS * sizes.channels * sizes.columns * 4


def _cut(sizes: _Sizes, lines: int, line: int, groups: int) -> _Cut:
    """Blocks of lines of tiles for which there is room, some for each thread; columns are split where lines are few."""
    down = -(-lines // DOWN[0])
    panels = -(-sizes.columns // sizes.wide)
    if not (down and line and groups):
        return _Cut(1, panels, panels, 0, 1, (0,) * 7)

    def areas(count: int, panels: int) -> list[int]:
        return [D.evaluate(_round(a), {}) for a in sizes.areas(line, count, panels)]

    one, two = sum(areas(1, panels)), sum(areas(2, panels))
    most = max(1, min(down, 1 + (_ROOM - one) // (two - one)))
    tiles = down * -(-line // ACROSS[0])
    least = _FROM_CACHE if _weights_bytes(sizes) <= machine().l3 // 2 else _FROM_MEMORY
    block = -(-down // max(-(-down // most), min(down, tiles // least, -(-_TASKS // groups))))
    row_tasks = -(-down // block)
    column_tasks = max(1, min(-(-_TASKS_BY_COLUMNS // (groups * row_tasks)), panels))
    task_panels = -(-panels // column_tasks)
    starts = tuple(itertools.accumulate(areas(block, task_panels), initial=0))
    return _Cut(block, panels, task_panels, row_tasks, -(-panels // task_panels), starts)


def _launch(code: WinogradCode, names: tuple[str, ...], sizes: _Sizes, evaluated: Sequence[int]) -> Launch:
    v = dict(zip(names, evaluated, strict=True))
    groups = math.prod(v[f"group{i}.size"] for i in range(code.group_axes))
    if not (groups and v["m"]):
        return Launch((), 0)
    line = v["x.line"]
    cut = _cut(sizes, v["m"] // line, line, groups)
    width = machine().width(32)
    rows = cut.block * DOWN[0] * line
    tiles = cut.block * -(-line // ACROSS[0])
    panels = cut.panels
    v.update(
        groups=groups,
        task_groups=1,
        task_rows=rows,
        task_panels=cut.task_panels,
        row_tasks=cut.row_tasks,
        column_tasks=cut.column_tasks,
        block=rows,
        panels=panels,
        chunks=0,
        run=_RUN,
        parts=0,
        direct=0,
        pack_b=0,
        shared=0,
        rows_at=0,
        pitch=D.evaluate(sizes.pitch(line), {}),
        tiles=tiles,
        **dict(zip(("a_at", "b_at", "y_at", "stage_at", "tables_at", "scratch"), cut.starts[1:], strict=True)),
    )
    v.update({"v.row": sizes.row, "v.product": sizes.row * tiles, "x.padded": D.evaluate(sizes.padded(line), {})})
    v["u.product"] = packed_size(code.dtype, sizes.channels, sizes.columns)
    last = -(-(sizes.columns - (panels - 1) * sizes.wide) // width)
    heights = add_heights(code, v, last)
    transforms = {kind: TransformCode(kind) for kind in ("inputs", "outputs")}
    params = v | functions_of(code, v["m"], last) | transforms
    return Launch((*(params[name] for name in code.names), *heights), groups * cut.row_tasks * cut.column_tasks)
