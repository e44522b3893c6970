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

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.record import record
from accord.backends.protocol import Launch, Phase
from accord.errors import InputError
from accord.expr.lang import Expr, call, cast, const, operand
from accord.expr.math import expand
from accord.expr.primitives import abs_, ge, gt, le, lt, max_, min_, ne, select
from accord.ir import dims as D
from accord.ir.dims import DimLike

__all__ = [
    "MODES",
    "ROUNDINGS",
    "Positions",
    "TableCode",
    "Taps",
    "cubic",
    "fold",
    "table_bytes",
    "table_phase",
    "table_places",
    "tap_count",
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
_BLOCK = 4096


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


def fold(index: Expr, period: Expr) -> Expr:
    """``index`` modulo ``period``, in float64; both are integers."""
    return index - call("floor", index / period) * period


def cubic(t: Expr, a: float) -> Expr:
    """Weight of an element at distance ``t`` >= 0: Keys, "Cubic Convolution Interpolation" (1981), equation 4."""
    inner = ((a + 2) * t - (a + 3)) * t * t + 1.0
    outer = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return select(le(t, 1.0), inner, select(lt(t, 2.0), outer, 0.0))


#: Operands of the expressions: position, a, b, d, source length, stretch of the kernel, its reach, tap.
_X, _A, _B, _D, _LENGTH, _STRETCH, _REACH, _TAP = (operand(i, "f64") for i in range(8))
_NUMERATOR = _X * _A + _B


def _clipped(index: Expr) -> Expr:
    return max_(min_(_LENGTH - 1.0, index), 0.0)


def _nearest(taps: Taps) -> Expr:
    floor, ceil = (functools.partial(call, name) for name in ("floor", "ceil"))
    twice = _NUMERATOR * 2.0
    return {
        "floor": floor(_NUMERATOR / _D),
        "ceil": ceil(_NUMERATOR / _D),
        "round_prefer_floor": ceil((twice - _D) / (_D * 2.0)),
        "round_prefer_ceil": floor((twice + _D) / (_D * 2.0)),
    }[taps.rounding]


def _single(taps: Taps) -> Expr:
    """Index of the only tap."""
    if taps.kind == "reflect":
        period = max_((_LENGTH - 1.0) * 2.0, 1.0)
        inside = fold(_NUMERATOR, period)
        return _clipped(min_(inside, period - inside))
    if taps.kind == "wrap":
        return fold(_NUMERATOR, _LENGTH)
    return _clipped(_nearest(taps))


def _weighted(taps: Taps) -> tuple[Expr, Expr]:
    """Index and weight of a tap."""
    index = call("floor", _NUMERATOR / _D - _REACH) + 1.0 + _TAP
    t = abs_(index * _D - _NUMERATOR) / _D * _STRETCH
    weight = cubic(t, taps.coefficient) if taps.kind == "cubic" else max_(const(1.0, "f64") - t, 0.0)
    if taps.exclude:
        weight = select(ge(index, 0.0) & lt(index, _LENGTH), weight, 0.0)
    # a tap of weight zero must not turn the sum into NaN by being infinite
    near = select(ne(weight, 0.0), index, call("floor", _NUMERATOR / _D))
    return _clipped(near), weight


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
        b, width = Builder(name), machine().width(64)
        positions, count, index_at, weight_at = (b.param(i) for i in range(4))
        numbers = [b.op(f"bitcast i64 {b.param(4 + i)} to double") for i in range(6)]
        constants = [Printer(b, width).splat("f64", n, width) for n in numbers]
        base = b.operand(0)
        indices = b.op(f"getelementptr i8, ptr {base}, i64 {index_at}")
        weights = b.op(f"getelementptr i8, ptr {base}, i64 {weight_at}")
        with b.loop("%first", "%last") as task:
            start = b.mul(task, _BLOCK)
            stop = b.min(b.add(start, _BLOCK), positions)
            with b.loop(start, stop, width) as x:
                here = b.min(b.sub(stop, x), width)
                lanes = [_spread(b, width, x), *constants]
                place = b.mul(x, count)
                self._block(b, width, lanes, here, count, (indices, weights, place))
        return b.module()

    def _block(
        self, b: Builder, width: int, lanes: list[str], here: str, count: str, table: tuple[str, str, str]
    ) -> None:
        """The taps of ``here`` positions."""
        indices, weights, place = table
        taps = self.taps
        outside = expand(lt(_NUMERATOR, 0.0) | gt(_NUMERATOR, (_LENGTH - 1.0) * _D))
        mark = outside if taps.outside else None
        if not taps.weighted:
            number = Printer(b, width).value(self._index(_single(taps), mark), lanes)
            _put(b, "i64", width, number, b.address(indices, "i64", place), 1, here)
            return
        index, weight = _weighted(taps)
        type_ = vector("f64", width)
        zero = "zeroinitializer" if width > 1 else "0.0"
        with b.loop_carrying(0, count, 1, ((type_, zero),)) as (k, sums, following):
            operands = [*lanes, _spread(b, width, k, 0)]
            printer = Printer(b, width)
            number = printer.value(self._index(index, mark), operands)
            share = printer.value(expand(weight), operands)
            following.append(b.op(f"fadd {type_} {sums[0]}, {share}"))
            at = b.add(place, k)
            _put(b, "i64", width, number, b.address(indices, "i64", at), count, here)
            if not self._normal:
                share = Printer(b, width).value(expand(cast(operand(0, "f64"), self.dtype)), [share])
                _put(b, self.dtype, width, share, b.address(weights, self.dtype, at), count, here)
        if not self._normal:
            return
        total = following[0]
        share_of = expand(cast(weight / operand(8, "f64"), self.dtype))
        with b.loop(0, count) as k:
            share = Printer(b, width).value(share_of, [*lanes, _spread(b, width, k, 0), total])
            at = b.add(place, k)
            _put(b, self.dtype, width, share, b.address(weights, self.dtype, at), count, here)

    @property
    def _normal(self) -> bool:
        return self.taps.antialias or self.taps.exclude

    @staticmethod
    def _index(index: Expr, outside: Expr | None) -> Expr:
        return expand(cast(index if outside is None else select(outside, -1.0, index), "i64"))


def _spread(b: Builder, width: int, start: str, step: int = 1) -> str:
    """``start``, ``start + step`` ... as float64."""
    type_ = vector("f64", width)
    first = Printer(b, width).splat("f64", b.op(f"sitofp i64 {start} to double"), width)
    if not step or width == 1:
        return first
    return b.op(f"fadd {type_} {first}, <{', '.join(f'double {k}.0' for k in range(width))}>")


def _put(b: Builder, dtype: str, width: int, value: str, address: str, stride: str | int, count: str) -> None:
    """Store the first ``count`` elements ``stride`` apart."""
    if width == 1:
        Printer(b, 1).store(dtype, value, address)
        return
    element = vector(dtype, 1)
    for k in range(width):

        def one(k: int = k) -> None:
            x = b.op(f"extractelement {vector(dtype, width)} {value}, i64 {k}")
            b.emit(f"store {element} {x}, ptr {b.address(address, dtype, b.mul(k, stride) if k else 0)}")

        b.branch(b.compare("sgt", count, k), one)


def tap_count(taps: Taps, positions: Positions, source: DimLike, target: DimLike) -> DimLike:
    """Taps of one position."""
    if taps.count:
        return taps.count
    least = 2 * taps.radius
    if positions.scale is not None:
        return least if positions.scale >= 1 else math.ceil(2 * taps.radius / positions.scale) + 1
    return D.maximum(D.ceildiv(source * least, D.maximum(target, 1)) + 1, least)


def table_bytes(target: DimLike, count: DimLike) -> DimLike:
    """Room for one axis, with weights of any type."""
    return D.floordiv(target * count * 16 + 127, 64) * 64


def table_places(sizes: Sequence[int], dtype: str) -> list[tuple[int, int]]:
    """Byte offsets of each axis' indices and weights.

    Args:
        sizes: Target length and taps of a position for each axis, one after the other.
        dtype: Of the weights.
    """
    places, at = [], 0
    for target, count in zip(sizes[::2], sizes[1::2], strict=True):
        places.append((at, at + target * count * 8))
        at += table_bytes(target, count)  # type: ignore[assignment]
    return places


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
    a, b, d = positions.affine(source, target, shift)
    stretch = 1.0
    if taps.antialias:
        stretch = min(1.0, float(positions.scale) if positions.scale is not None else target / max(source, 1))
    numbers = (a, b, d, source, stretch, taps.radius / stretch if stretch else 1.0)
    words = [struct.unpack("<q", struct.pack("<d", float(n)))[0] for n in numbers]
    return Launch((target, count, *place, *words), -(-target // _BLOCK))
