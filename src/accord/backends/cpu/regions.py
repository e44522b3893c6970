"""Regions of interest: a bin is a mean of interpolated samples, or a maximum. Lanes run along channels."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence

from accord.backends.cpu.images import (
    Cut,
    Image,
    Lanes,
    Params,
    Pattern,
    accumulator,
    channel_blocks,
    cut_of,
    dims_of,
    final_expr,
    pattern_of,
)
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.epilogue import Epilogue
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import Expr, bits, call, cast, const, operand
from accord.expr.math import expand
from accord.expr.primitives import abs_, gt, lt, max_, min_, select
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["RegionCode", "Regions", "region_phase"]

#: Samples of a bin from which on a region is refused: no image has that many pixels.
_MOST = 2.0**24
_TASK_WORK = 1 << 16
_X, _Y, _Z, _W, _V = (operand(i, "f64") for i in range(5))


@record
class Regions:
    """What is computed.

    Attributes:
        kind: "avg" or "max" of samples, or "pool": the maximum of the pixels.
        scale: From coordinates of regions to pixels.
        shifted: Coordinates are of edges, half a pixel before centres.
        samples: Along each axis of a bin; 0: one a pixel.
    """

    kind: str
    scale: float
    shifted: bool = False
    samples: int = 0


@record
class RegionCode(KernelCode):
    """Operands: image, regions, for samples the image number of each region, extras, output.

    A region that names an image that there is not is refused, and one without a finite size.
    """

    regions: Regions
    cut: Cut
    image: Pattern
    coordinates: str
    extras: tuple[Pattern, ...]
    output: Pattern
    epilogue: Epilogue
    checks = True

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.regions};{self.cut};{self.image};{self.coordinates};{self.extras};{self.output};"
            f"{self.epilogue.expr.key}"
        )
        return "regions_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self).write(name)


class _Writer:
    """Parameters: bins, bins of a task, channels, bins down and across, images, height, width; strides of the regions
    and of the image numbers; image, extras, output.
    """

    def __init__(self, code: RegionCode) -> None:
        self.code = code
        self.acc = accumulator(code.image.dtype)
        self.width = machine().width(bits(self.acc))
        self.final = final_expr(code.epilogue, self.acc)

    def write(self, name: str) -> str:
        code, b = self.code, Builder(name)
        self.b = b
        params = Params(b)
        bins, size, self.channels, self.down, self.across, self.images, self.height, self.length = params.take(8)
        pooled = code.regions.kind == "pool"
        places, axis_stride, offset = params.take(3)
        self.boxes = b.address(b.operand(1), code.coordinates, offset)
        self.box_strides = (places, axis_stride)
        index = 2
        if not pooled:
            number_stride, number_offset = params.take(2)
            self.numbers = (b.address(b.operand(2), "i64", number_offset), number_stride)
            index = 3
        self.image = Image(b, code.image, b.operand(0), params, 4)
        self.extras = []
        for pattern in code.extras:
            self.extras.append(Image(b, pattern, b.operand(index), params, 4))
            index += 1
        self.output = Image(b, code.output, b.operand(index), params, 4)
        self.refusal = b.op(f"getelementptr i64, ptr %params, i64 {params.index}")
        with b.loop("%first", "%last") as task:
            begin = b.mul(task, size)
            with b.loop(begin, b.min(b.add(begin, size), bins)) as number:
                rest, column = b.divmod(number, self.across)
                region, row = b.divmod(rest, self.down)
                (self._pooled if pooled else self._sampled)(region, row, column)
        return b.module()

    # scalars in float64

    def _value(self, expr: Expr, *operands: str) -> str:
        return Printer(self.b, 1).value(expand(expr), operands)

    def _real(self, number: str) -> str:
        return self.b.op(f"sitofp i64 {number} to double")

    def _coordinate(self, region: str, index: int) -> str:
        b, dtype = self.b, self.code.coordinates
        place = b.add(b.mul(region, self.box_strides[0]), b.mul(index, self.box_strides[1]) if index else 0)
        x = Printer(b, 1).load(dtype, b.address(self.boxes, dtype, place))
        return self._value(cast(operand(0, dtype), "f64"), x)

    def _refuse(self) -> None:
        self.b.emit(f"store i64 1, ptr {self.refusal}")

    # samples

    def _sampled(self, region: str, row: str, column: str) -> None:
        b, regions = self.b, self.code.regions
        number = b.op(f"load i64, ptr {b.address(self.numbers[0], 'i64', b.mul(region, self.numbers[1]))}")
        place = _X * regions.scale - (0.5 if regions.shifted else 0.0)
        x1, y1, x2, y2 = [self._value(place, self._coordinate(region, i)) for i in range(4)]
        extent = _Y - _X if regions.shifted else max_(_Y - _X, 1.0)
        sides = []
        for low, high, count in ((y1, y2, self.down), (x1, x2, self.across)):
            size = self._value(extent / _Z, low, high, self._real(count))
            points = const(regions.samples, "f64") if regions.samples else max_(call("ceil", _X), 0.0)
            sides.append((low, size, self._value(points, size)))
        valid = b.compare("ult", number, self.images)
        for length in (self.height, self.length):  # an empty image has nothing to sample
            valid = b.op(f"and i1 {valid}, {b.compare('sgt', length, 0)}")
        (_, height, rows), (_, width, columns) = sides
        few = lt(_X * _Y, const(_MOST, "f64"))  # not true of NaN
        finite = lt(abs_(_Z) + abs_(_W), const(_MOST * _MOST, "f64"))
        good = self._value(few & finite, rows, columns, height, width)
        valid = b.op(f"and i1 {valid}, {good}")
        b.branch(valid, functools.partial(self._bin, number, sides, (region, row, column)), self._refuse)

    def _bin(self, number: str, sides: Sequence[tuple[str, str, str]], place: tuple[str, str, str]) -> None:
        b = self.b
        picture = self.image.at([(0, number)])
        counts = [b.op(f"fptosi double {points} to i64") for _, _, points in sides]
        many = b.mul(counts[0], counts[1])
        share = self._value(cast(select(gt(_X, 0.0), const(1.0, "f64") / _X, 0.0), self.acc), self._real(many))
        highest = self.code.regions.kind == "max"

        def samples(group: Sequence[Lanes]) -> list[str]:
            lanes = group[0]
            type_ = vector(self.acc, lanes.width)
            # a bin without samples is zero
            start = self._splat(lanes, const(float("-inf"), self.acc)) if highest else self._zero(lanes)
            initial = tuple((type_, start) for _ in group)
            with b.loop_carrying(0, counts[0], 1, initial) as (i, outer, after):
                rows = self._neighbours(sides[0], place[1], i, self.height)
                with b.loop_carrying(0, counts[1], 1, tuple((type_, v) for v in outer)) as (j, inner, following):
                    columns = self._neighbours(sides[1], place[2], j, self.length)
                    following.extend(self._corners(picture, group, rows, columns, inner))
                after.extend(following)
            if not highest:
                spread = lanes.printer.splat(self.acc, share, lanes.width)
                return [b.op(f"fmul {type_} {v}, {spread}") for v in after]
            some = b.compare("sgt", many, 0)
            return [b.op(f"select i1 {some}, {type_} {v}, {type_} {self._zero(lanes)}") for v in after]

        self._store(place, samples)

    def _neighbours(self, side: tuple[str, str, str], index: str, sample: str, length: str) -> list[tuple[str, str]]:
        """The two elements around a sample along one axis, and their weights."""
        start, size, points = side
        at = _X + (_Y + (_Z + 0.5) / _W) * _V
        position = self._value(at, start, self._real(index), self._real(sample), points, size)
        end = self._real(length)
        last = _Y - 1.0
        clipped = max_(min_(_X, last), 0.0)
        low = min_(call("floor", clipped), max_(_Y - 2.0, 0.0))
        counts = lt(_X, -1.0) | gt(_X, _Y)
        part = clipped - low
        found = []
        for place, weight in ((low, const(1.0, "f64") - part), (min_(low + 1.0, last), part)):
            number = self._value(cast(place, "i64"), position, end)
            share = self._value(cast(select(counts, 0.0, weight), self.acc), position, end)
            found.append((number, share))
        return found

    def _corners(
        self,
        picture: str,
        group: Sequence[Lanes],
        rows: Sequence[tuple[str, str]],
        columns: Sequence[tuple[str, str]],
        values: Sequence[str],
    ) -> list[str]:
        b, acc = self.b, self.acc
        found = list(values)
        type_ = vector(acc, group[0].width)
        for y, wy in rows:
            for x, wx in columns:
                address = self.image.at([(2, y), (3, x)], picture)
                weight = b.op(f"fmul {scalar(acc)} {wy}, {wx}")
                spread = group[0].printer.splat(acc, weight, group[0].width)
                for g, lanes in enumerate(group):
                    product = b.op(f"fmul {type_} {lanes.read(self.image, address, acc)}, {spread}")
                    found[g] = self._joined(
                        lanes, "max" if self.code.regions.kind == "max" else "add", product, found[g]
                    )
        return found

    # maxima of pixels

    def _pooled(self, region: str, row: str, column: str) -> None:
        b, scale = self.b, self.code.regions.scale
        number = self._value(cast(_X, "i64"), self._coordinate(region, 0))
        # halves are rounded away from zero
        size = call("floor", abs_(_X * scale) + 0.5)
        rounded = select(lt(_X, 0.0), size * -1.0, size)
        x1, y1, x2, y2 = (self._value(rounded, self._coordinate(region, i + 1)) for i in range(4))
        ranges = []
        for low, high, index, count, length in (
            (y1, y2, row, self.down, self.height),
            (x1, x2, column, self.across, self.length),
        ):
            step = max_(_Y - _X + 1.0, 1.0) / _Z
            size_of = self._value(step, low, high, self._real(count))
            first, last = [
                self._value(
                    cast(max_(min_(edge + _Z, _W), 0.0), "i64"), self._real(index), size_of, low, self._real(length)
                )
                for edge in (call("floor", _X * _Y), call("ceil", (_X + 1.0) * _Y))
            ]
            ranges.append((first, last))
        valid = b.compare("ult", number, self.images)
        b.branch(valid, functools.partial(self._maximum, number, ranges, (region, row, column)), self._refuse)

    def _maximum(self, number: str, ranges: Sequence[tuple[str, str]], place: tuple[str, str, str]) -> None:
        b = self.b
        picture = self.image.at([(0, number)])
        (top, bottom), (left, right) = ranges
        some = b.op(f"and i1 {b.compare('slt', top, bottom)}, {b.compare('slt', left, right)}")

        def pixels(group: Sequence[Lanes]) -> list[str]:
            lanes = group[0]
            type_ = vector(self.acc, lanes.width)
            initial = tuple((type_, self._splat(lanes, const(float("-inf"), self.acc))) for _ in group)
            with b.loop_carrying(top, bottom, 1, initial) as (y, outer, after):
                with b.loop_carrying(left, right, 1, tuple((type_, v) for v in outer)) as (x, inner, following):
                    address = self.image.at([(2, y), (3, x)], picture)
                    for one, value in zip(group, inner, strict=True):
                        following.append(self._joined(one, "max", one.read(self.image, address, self.acc), value))
                after.extend(following)
            return [b.op(f"select i1 {some}, {type_} {v}, {type_} {self._zero(lanes)}") for v in after]

        self._store(place, pixels)

    # pieces

    def _store(self, place: tuple[str, str, str], values: Callable[[Sequence[Lanes]], list[str]]) -> None:
        region, row, column = place
        moves = [(0, region), (2, row), (3, column)]
        target = self.output.at(moves)
        extras = [(e, e.at(moves)) for e in self.extras]
        output = self.output
        for group in channel_blocks(self.b, self.width, self.channels, self.code.cut, groups=(4, 1)):
            for lanes, value in zip(group, values(group), strict=True):
                found = [value, *(lanes.read(image, at) for image, at in extras)]
                result = Printer(self.b, lanes.width).value(self.final, found)
                lanes.store(output.dtype, output.channel, result, target, output.strides[1])

    def _splat(self, lanes: Lanes, value: Expr) -> str:
        return Printer(self.b, lanes.width).value(value, [])

    def _zero(self, lanes: Lanes) -> str:
        return self._splat(lanes, const(0.0, self.acc))

    def _joined(self, lanes: Lanes, op: str, x: str, total: str) -> str:
        join = call(op, operand(0, self.acc), operand(1, self.acc))
        return Printer(self.b, lanes.width).value(join, [x, total])


def region_phase(
    regions: Regions,
    x: Shape,
    bins: Shape,
    image: tuple[str, Access],
    boxes: tuple[str, Access],
    numbers: Access | None,
    output: Access,
    epilogue: Epilogue,
    operands: tuple[int, ...],
) -> Phase:
    """A phase for bins of regions.

    Args:
        regions: What is computed.
        x: Shape of the image (N, C, H, W).
        bins: Regions, bins down, bins across.
        image: dtype and access of the image.
        boxes: dtype and access of the regions' coordinates, one row each.
        numbers: Access of the image number of each region; None where the coordinates begin with it.
        output: How the output lies (regions, C, bins down, bins across).
        epilogue: What is stored.
        operands: Image, regions, image numbers if given, extras, output.
    """
    own, target = pattern_of(*image), pattern_of(epilogue.expr.dtype, output)
    extras = tuple(pattern_of(e.dtype, e.access) for e in epilogue.extras)
    width = machine().width(bits(accumulator(own.dtype)))
    code = RegionCode(regions, cut_of(x[1], width, [own, target, *extras]), own, boxes[0], extras, target, epilogue)
    dims: list[DimLike] = [*bins, x[1], x[0], x[2], x[3], *boxes[1].strides, boxes[1].offset]
    if numbers is not None:
        dims += [*numbers.strides, numbers.offset]
    for access in (image[1], *(e.access for e in epilogue.extras), output):
        dims += dims_of(access)
    return Phase(code, operands, tuple(dims), _launch)


def _launch(sizes: Sequence[int]) -> Launch:
    count, down, across, channels, *rest = sizes
    bins = count * down * across
    size = max(1, min(bins, _TASK_WORK // max(1, 16 * channels)))
    return Launch((bins, size, channels, down, across, *rest), -(-bins // size) if channels else 0)
