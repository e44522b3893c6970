"""Local response normalisation: lanes along channels, whose neighbours are loads beside each other."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from accord.backends.cpu.images import Cut, Image, Lanes, Params, Pattern, accumulator, channel_blocks, cut_of, dims_of
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import Expr, bits, call, cast, const, operand
from accord.expr.math import expand
from accord.expr.primitives import fma, sqrt
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["LrnCode", "lrn_phase"]

_TASK_WORK = 1 << 17


@record
class LrnCode(KernelCode):
    """Parameters: pixels, pixels of a task, channels, channels before and after that count, spatial sizes, tensors.

    Attributes:
        rank: Number of spatial axes.
        cut: How channels are cut.
        dtype: Of input and output.
        patterns: Along channels, of input and output.
        factor: alpha / size.
        beta: Exponent.
        bias: Added to the scaled sum.
    """

    rank: int
    cut: Cut
    dtype: str
    patterns: tuple[str, str]
    factor: float
    beta: float
    bias: float

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.rank};{self.cut};{self.dtype};{self.patterns};{self.factor!r};{self.beta!r};{self.bias!r}"
        return "lrn_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        acc = accumulator(self.dtype)
        params = Params(b)
        pixels, size, channels, before, after = params.take(5)
        sizes = params.take(self.rank)
        source, target = (
            Image(b, Pattern(self.dtype, p), b.operand(k), params, 2 + self.rank) for k, p in enumerate(self.patterns)
        )
        final = expand(self._final(acc))
        with b.loop("%first", "%last") as task:
            begin = b.mul(task, size)
            with b.loop(begin, b.min(b.add(begin, size), pixels)) as pixel:
                rest, places = pixel, []
                for a in reversed(range(self.rank)):
                    rest, at = b.divmod(rest, sizes[a])
                    places.append((2 + a, at))
                places.append((0, rest))
                row, out = source.at(places), target.at(places)
                for (lanes,) in channel_blocks(b, machine().width(bits(acc)), channels, self.cut):
                    zero = Printer(b, lanes.width).value(const(0.0, acc), [])
                    initial = ((vector(acc, lanes.width), zero),)
                    with b.loop_carrying(b.sub(0, before), b.add(after, 1), 1, initial) as (j, sums, following):
                        x = lanes.cast(self.dtype, acc, self._neighbour(b, lanes, source, row, j, channels))
                        square = fma(operand(0, acc), operand(0, acc), operand(1, acc))
                        following.append(Printer(b, lanes.width).value(square, [x, sums[0]]))
                    x = lanes.read(source, row, acc)
                    value = Printer(b, lanes.width).value(final, [x, following[0]])
                    lanes.store(self.dtype, target.channel, value, out, target.strides[1])
        return b.module()

    def _final(self, acc: str) -> Expr:
        x, total = operand(0, acc), operand(1, acc)
        base = fma(total, self.factor, self.bias)
        powers = {0.5: sqrt(base), 0.75: sqrt(base) * sqrt(sqrt(base)), 1.0: base}
        return cast(x / powers.get(self.beta, call("pow", base, const(self.beta, acc))), self.dtype)

    def _neighbour(self, b: Builder, lanes: Lanes, source: Image, row: str, shift: str, channels: str) -> str:
        """The channels ``shift`` further on; zero where there are none."""
        first = b.add(lanes.start, shift)
        memory = scalar(self.dtype)
        if lanes.width == 1:
            inside = b.compare("ult", first, channels)
            # an address that is inside whatever the shift, and a factor that leaves nothing of what is there
            place = b.op(f"select i1 {inside}, i64 {first}, i64 {lanes.start}")
            x = lanes.printer.load(self.dtype, b.address(row, self.dtype, b.mul(place, source.strides[1])))
            zero = Printer(b, 1).value(const(0.0, self.dtype), [])
            return b.op(f"select i1 {inside}, {memory} {x}, {memory} {zero}")
        w = lanes.width
        type_, flags, ints = f"<{w} x {memory}>", f"<{w} x i1>", f"<{w} x i64>"
        number = b.op(f"add {ints} {lanes.numbers()}, {lanes.spread(shift)}")
        mask = b.op(f"icmp ult {ints} {number}, {lanes.spread(channels)}")
        if source.channel == "1":
            suffix = {"float": "f32", "double": "f64", "half": "f16"}.get(memory, memory)
            name = f"@llvm.masked.load.v{w}{suffix}.p0"
            b.declare(f"declare {type_} {name}(ptr, {flags}, {type_})")
            address = b.address(row, self.dtype, first)
            align = bits(self.dtype) // 8
            return b.op(f"call {type_} {name}(ptr align {align} {address}, {flags} {mask}, {type_} zeroinitializer)")
        inside = b.op(f"select {flags} {mask}, {ints} {number}, {ints} {lanes.numbers()}")
        number = b.op(f"mul {ints} {inside}, {lanes.spread(source.strides[1])}")
        x = lanes.gather(self.dtype, row, number)
        return b.op(f"select {flags} {mask}, {type_} {x}, {type_} zeroinitializer")


def lrn_phase(
    shape: Shape, size: int, weights: tuple[float, float, float], dtype: str, source: Access, output: Access
) -> Phase:
    """A phase for LRN.

    Args:
        shape: Of the tensor (N, C, spatial axes).
        size: Channels that are summed.
        weights: alpha, beta, bias.
        dtype: Of both tensors.
        source: How the input lies.
        output: How the output lies.
    """
    alpha, beta, bias = weights
    kinds = tuple(str(a.strides[1]) if a.strides[1] in (0, 1) else "s" for a in (source, output))
    width = machine().width(bits(accumulator(dtype)))
    cut = cut_of(shape[1], width, [Pattern(dtype, k) for k in kinds])
    code = LrnCode(len(shape) - 2, cut, dtype, (kinds[0], kinds[1]), alpha / size, beta, bias)
    dims: list[DimLike] = [shape[0], shape[1], (size - 1) // 2, size // 2, *shape[2:]]
    return Phase(
        code, (0, 1), (*dims, *dims_of(source), *dims_of(output)), functools.partial(_launch, len(shape) - 2, size)
    )


def _launch(rank: int, window: int, sizes: Sequence[int]) -> Launch:
    images, channels, *rest = sizes
    pixels = images
    for n in rest[2 : 2 + rank]:
        pixels *= n
    block = max(1, min(pixels, _TASK_WORK // max(1, channels * min(window, channels))))
    before, after = (min(n, channels) for n in rest[:2])  # there are no others to look at
    return Launch((pixels, block, channels, before, after, *rest[2:]), -(-pixels // block) if channels else 0)
