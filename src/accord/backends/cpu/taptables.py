"""Tables of taps: for each position along a resized axis, which source elements it is made of and with what weights.

A table is made by machine code at the start of a run, in float64 with exact numerators, so that a position that lies on
an element, or half-way between two, is found there. It lies in the first thread's workspace: for each position the
indices of its taps, and elsewhere their weights. An index of -1 says that the position is outside.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from accord.backends.cpu.launches import table_places
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.errors import InputError
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.record import record

__all__ = [
    "BLOCK",
    "MODES",
    "ROUNDINGS",
    "Positions",
    "TableCode",
    "Taps",
    "table_phase",
    "tap_count",
    "tap_words",
]

#: The ``coordinate_transformation_mode`` of Resize.
MODES = frozenset(
    {
        "align_corners",
        "asymmetric",
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "tf_crop_and_resize",
        "tf_half_pixel_for_nn",
    }
)
#: Its ``nearest_mode``.
ROUNDINGS = frozenset({"floor", "ceil", "round_prefer_floor", "round_prefer_ceil"})
#: Positions of a task.
BLOCK: Final = 4096


@record
class Taps:
    """How an index and weight follow from a position.

    Attributes:
        kind: "nearest", "reflect" or "wrap" (one tap without a weight), "linear" or "cubic".
        rounding: Of "nearest": "floor", "ceil", "round_prefer_floor" or "round_prefer_ceil".
        coefficient: Of "cubic".
        antialias: The kernel is stretched where the axis shrinks, and weights are normalised.
        exclude: Taps outside of the axis get no weight, and weights are normalised.
        outside: Positions outside of the axis are marked.
    """

    kind: str
    rounding: str = "floor"
    coefficient: float = -0.75
    antialias: bool = False
    exclude: bool = False
    outside: bool = False

    @property
    def weighted(self) -> bool:
        """Whether there are weights."""
        return self.kind in ("linear", "cubic")

    @property
    def normal(self) -> bool:
        """Whether the weights of a position are made to sum to 1."""
        return self.weighted and (self.antialias or self.exclude)

    @property
    def radius(self) -> int:
        """Reach of the kernel in source elements."""
        return 2 if self.kind == "cubic" else 1

    @property
    def count(self) -> int:
        """Taps of a position; 0 where that is only known at run time."""
        if self.antialias:
            return 0
        return 2 * self.radius if self.weighted else 1


@record
class Positions:
    """Where the elements of a resized axis lie in the source.

    Attributes:
        mode: A ``coordinate_transformation_mode`` of Resize, or "shift": ``start`` elements in front.
        scale: Target length / source length; None: exactly that quotient of the lengths.
        start: Where the region begins, as a part of the axis.
        end: Where it ends.
    """

    mode: str
    scale: Fraction | None = None
    start: Fraction = Fraction(0)
    end: Fraction = Fraction(1)

    def affine(self, source: int, target: int, shift: int) -> tuple[int, int, int]:
        """``(a, b, d)`` such that element x lies at ``(a x + b) / d``."""
        scale = self.scale if self.scale is not None else Fraction(target, max(source, 1))
        p, q = scale.numerator, scale.denominator
        if self.mode == "shift":
            return 1, -shift, 1
        if self.mode == "asymmetric":
            return q, 0, p
        if self.mode == "tf_half_pixel_for_nn":
            return 2 * q, q, 2 * p
        if self.mode == "align_corners":
            return ((source - 1) * q, 0, p * source - q) if target > 1 and p * source != q else (0, 0, 1)
        if self.mode == "tf_crop_and_resize":
            if target > 1:
                step = (self.end - self.start) / (target - 1)
                return _integers(step * (source - 1), self.start * (source - 1))
            return _integers(Fraction(0), (self.start + self.end) / 2 * (source - 1))
        if self.mode == "pytorch_half_pixel" and target == 1:
            return 0, 0, 1
        b = q - p
        if self.mode == "half_pixel_symmetric":
            b += source * p - target * q
        return 2 * q, b, 2 * p


def _integers(a: Fraction, b: Fraction) -> tuple[int, int, int]:
    d = math.lcm(a.denominator, b.denominator)
    return int(a * d), int(b * d), d


@record
class TableCode(KernelCode):
    """Parameters: positions, taps of one, byte offsets of indices and weights, then the bits of the expressions'
    operands 1 to 6. A task is a block of positions. Operand: the table.
    """

    taps: Taps
    dtype: str

    @property
    def symbol(self) -> str:
        """Name by content."""
        return "taps_" + hashlib.sha256(f"{self.taps};{self.dtype}".encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        from accord.backends.cpu.taptables_writer import TableWriter  # what starts a stored kernel writes none

        return TableWriter(self.taps, self.dtype).module(name)


def tap_count(taps: Taps, positions: Positions, source: DimLike, target: DimLike) -> DimLike:
    """Taps of one position."""
    if taps.count:
        return taps.count
    least = 2 * taps.radius
    if positions.scale is not None:
        return least if positions.scale >= 1 else math.ceil(2 * taps.radius / positions.scale) + 1
    return D.maximum(D.ceildiv(source * least, D.maximum(target, 1)) + 1, least)


def table_phase(
    taps: Taps,
    positions: Positions,
    dtype: str,
    axis: int,
    sizes: Sequence[DimLike],
    source: DimLike,
    workspace: int,
    shift: DimLike = 0,
) -> Phase:
    """A phase that makes the table of one axis.

    Args:
        taps: What is written.
        positions: Where the elements lie.
        dtype: Of the weights.
        axis: Which of the axes in ``sizes``.
        sizes: Target length and taps of a position for each axis, one after the other.
        source: Length of the axis in the source.
        workspace: Operand that holds the tables.
        shift: Elements in front, for "shift".
    """
    launch = functools.partial(_launch, taps, positions, dtype, axis)
    return Phase(TableCode(taps, dtype), (workspace,), (source, shift, *sizes), launch)


def _launch(taps: Taps, positions: Positions, dtype: str, axis: int, values: Sequence[int]) -> Launch:
    source, shift, *sizes = values
    target, count = sizes[2 * axis : 2 * axis + 2]
    if target and source <= 0 and not taps.outside:
        raise InputError("an empty axis cannot be enlarged", expected="at least 1 element", found=source)
    place = table_places(sizes, dtype)[axis]
    return Launch((target, count, *place, *tap_words(taps, positions, source, target, shift)), -(-target // BLOCK))


def tap_words(taps: Taps, positions: Positions, source: int, target: int, shift: int) -> list[int]:
    """The bits of the expressions' operands 1 to 6."""
    a, b, d = positions.affine(source, target, shift)
    stretch = 1.0
    if taps.antialias:
        stretch = min(1.0, float(positions.scale) if positions.scale is not None else target / max(source, 1))
    numbers = (a, b, d, source, stretch, taps.radius / stretch if stretch else 1.0)
    return [struct.unpack("<q", struct.pack("<d", float(n)))[0] for n in numbers]
