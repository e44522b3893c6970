"""Convolution of groups of few channels: each output channel sees one or a few input channels.

Lanes run along output channels. Several neighbouring pixels are computed at once: a column of the input is loaded once
for all windows that it lies in, and the weights of a row of taps stay in registers.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from accord.backends.cpu.images import (
    Cut,
    Image,
    Lanes,
    Outside,
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
from accord.backends.cpu.launches import launch_windows
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.windows import Axis, Row, WindowWriter, inside_taps, over_taps, window_dims
from accord.backends.epilogue import Epilogue
from accord.backends.protocol import Phase
from accord.expr.lang import bits, const
from accord.ir.dims import DimLike
from accord.ir.strides import Access
from accord.record import record

__all__ = ["DepthwiseCode", "depthwise_phase"]


@record
class DepthwiseCode(KernelCode):
    """Operands: image, weights, bias if there is one, the epilogue's extras, output.

    Attributes:
        rank: Number of spatial axes.
        inner: Taps, stride and dilation of the innermost axis where blocks of pixels are written for them, else None.
        pixels: Outputs of a block.
        group: Input and output channels of a group.
        cut: How the output channels are cut into vectors.
        image: The input.
        weights: Axes: taps, input channel of the group, output channel (which counts as the pattern's channel).
        bias: One element for each output channel; None: there is none.
        extras: Of the epilogue.
        result: The root's own dtype.
        output: The output.
        epilogue: What is stored.
    """

    rank: int
    inner: tuple[int, int, int] | None
    pixels: int
    group: tuple[int, int]
    cut: Cut
    image: Pattern
    weights: Pattern
    bias: Pattern | None
    extras: tuple[Pattern, ...]
    output: Pattern
    epilogue: Epilogue

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.rank};{self.inner};{self.pixels};{self.group};{self.cut};{self.image};{self.weights};{self.bias};"
            f"{self.extras};{self.output};{self.epilogue.expr.key}"
        )
        return "depthwise_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        writer = _Writer(self)
        row = f"{name}_row"
        return writer.main_function(name, row).module(writer.row_function(row))

    def producer(self, name: str) -> list[Builder]:
        """Functions for a module whose kernel reads the output as rows of a panel; see
        :meth:`~accord.backends.cpu.windows.WindowWriter.fill_function` for how ``name`` is called.

        The output's channels must be consecutive. ``params`` and ``operands`` are those of this kernel; the output's
        own are not looked at.
        """
        writer = _Writer(self)
        row = f"{name}_row"
        return [writer.fill_function(name, row), writer.row_function(row)]


class _Writer(WindowWriter):
    def __init__(self, code: DepthwiseCode) -> None:
        self.code = code
        self.acc = accumulator(code.image.dtype)
        width = machine().width(bits(self.acc))
        pixels = code.pixels if code.inner is not None else 0
        final = final_expr(code.epilogue, self.acc)
        super().__init__(code.rank, width, pixels, code.image, code.extras, code.output, final)
        self.shuffles = _shuffles(code.group, code.image, width)

    def further(self, b: Builder, params: Params, index: int) -> int:
        # taps, then the input channel of the group, then the output channel
        self.weights = Image(b, self.code.weights, b.operand(index), params, self.rank + 2)
        self.bias: Image | None = None
        if self.code.bias is None:
            return index + 1
        self.bias = Image(b, self.code.bias, b.operand(index + 1), params, 2)
        return index + 2

    def pixel(self, b: Builder, row: Row, at: str) -> None:
        inner = row.axes[-1]
        shift = b.mul(at, inner.stride)
        source = self.input.at([(1 + self.rank, shift)], row.source)
        ranges = [*row.taps, inside_taps(b, inner, b.sub(shift, inner.pad))]
        for group in channel_blocks(b, self.width, row.channels, self.code.cut, groups=(4, 1)):
            initial = [(self._vector(lanes), self._start(lanes)) for lanes in group]

            def body(taps: list[str], values: list[str], group: list[Lanes] = group) -> list[str]:
                moves = [(2 + a, b.mul(t, x.dilation)) for a, (t, x) in enumerate(zip(taps, row.axes, strict=True))]
                column = self.input.at(moves, source)
                line = self.weights.at(list(enumerate(taps)))
                for g, lanes in enumerate(group):
                    for i, x in enumerate(self._columns(lanes, column)):
                        values[g] = self._fma(lanes, x, self._weight(lanes, line, i), values[g])
                return values

            sums = over_taps(b, ranges, initial, body)
            for lanes, total in zip(group, sums, strict=True):
                self.store(b, row, lanes, at, [total])

    def block(self, b: Builder, row: Row, at: str, *, edge: bool) -> None:
        assert self.code.inner is not None
        kernel, stride, dilation = self.code.inner
        inner = 1 + self.rank
        shift = b.mul(at, stride)
        source = self.input.at([(inner, shift)], row.source)
        users: dict[int, list[tuple[int, int]]] = {}
        for p in range(self.pixels):
            for k in range(kernel):
                users.setdefault(p * stride + k * dilation, []).append((p, k))
        outside: dict[int, Outside] = {}
        if edge:
            start = b.sub(shift, row.axes[-1].pad)
            neutral = const(0.0, self.input.dtype)
            for column in users:
                inside = b.compare("ult", b.add(start, column), row.axes[-1].size)
                outside[column] = Outside(inside, neutral)
        for (lanes,) in channel_blocks(b, self.width, row.channels, self.code.cut):

            def body(taps: list[str], values: list[str], lanes: Lanes = lanes) -> list[str]:
                moves = [(2 + a, b.mul(t, row.axes[a].dilation)) for a, t in enumerate(taps)]
                line = self.input.at(moves, source)
                weights_line = self.weights.at(list(enumerate(taps)))
                weights = []
                for k in range(kernel):
                    tap = self.weights.at([(self.rank - 1, str(k))], weights_line) if k else weights_line
                    weights.append([self._weight(lanes, tap, i) for i in range(self.code.group[0])])
                for column, pairs in sorted(users.items()):
                    address = self.input.at([(inner, str(column))], line) if column else line
                    for i, x in enumerate(self._columns(lanes, address, outside.get(column))):
                        for p, k in pairs:
                            values[p] = self._fma(lanes, x, weights[k][i], values[p])
                return values

            initial = [(self._vector(lanes), self._start(lanes))] * self.pixels
            sums = over_taps(b, row.taps, initial, body)
            for p, total in enumerate(sums):
                position = b.add(at, p)
                with b.when(b.compare("slt", position, row.last) if edge else None):
                    self.store(b, row, lanes, position, [total])

    # pieces

    def _vector(self, lanes: Lanes) -> str:
        return vector(self.acc, lanes.width)

    def _start(self, lanes: Lanes) -> str:
        if self.bias is None:
            return "zeroinitializer" if lanes.width > 1 else "0.0"
        return lanes.read(self.bias, self.bias.base, self.acc)

    def _weight(self, lanes: Lanes, tap: str, i: int) -> str:
        address = self.weights.at([(self.rank, str(i))], tap) if i else tap
        if self.weights.channel == "1":  # packed: there is something after the last one
            lanes = Lanes(lanes.b, lanes.width, lanes.start, None)
        return lanes.read(self.weights, address, self.acc, axis=self.rank + 1)

    def _columns(self, lanes: Lanes, pixel: str, outside: Outside | None = None) -> list[str]:
        """For each input channel of a group: that channel of the groups that the lanes belong to."""
        b, (inputs, outputs) = lanes.b, self.code.group
        image = self.input
        if inputs == outputs == 1:
            return [lanes.read(image, pixel, self.acc, outside=outside)]
        if self.shuffles and lanes.width > 1:
            return self._shuffled(lanes, pixel, outside)
        ints = vector("i64", lanes.width)
        groups = b.op(f"udiv {ints} {lanes.numbers()}, {lanes.spread(str(outputs))}")
        found = []
        for i in range(inputs):
            number = b.op(f"mul {ints} {groups}, {lanes.spread(str(inputs))}")
            number = b.op(f"add {ints} {number}, {lanes.spread(str(i))}")
            if image.channel != "1":
                number = b.op(f"mul {ints} {number}, {lanes.spread(image.strides[1])}")
            found.append(lanes.cast(image.dtype, self.acc, lanes.gather(image.dtype, pixel, number, outside)))
        return found

    def _shuffled(self, lanes: Lanes, pixel: str, outside: Outside | None) -> list[str]:
        """The groups of a vector lie side by side: load them once, and pick each channel with a fixed shuffle."""
        b, (inputs, outputs), width = lanes.b, self.code.group, lanes.width
        dtype, count = self.input.dtype, width // outputs * inputs
        first = b.mul(b.op(f"udiv i64 {lanes.start}, {outputs}"), inputs)
        address = b.address(pixel, dtype, first)
        if outside is not None:
            address = outside.instead(b, address)
        padded = 1 << (count - 1).bit_length()
        printer = Printer(b, padded)
        if lanes.count is None and padded == count:
            x = printer.load(dtype, address)
        else:
            here = str(count) if lanes.count is None else b.mul(b.op(f"udiv i64 {lanes.count}, {outputs}"), inputs)
            x = printer.load_masked(dtype, address, here)
        if padded == 1:  # one input for the whole vector
            return [lanes.cast(dtype, self.acc, printer.splat(dtype, x, width))]
        type_ = f"<{padded} x {scalar(dtype)}>"
        found = []
        for i in range(inputs):
            order = ", ".join(f"i32 {lane // outputs * inputs + i}" for lane in range(width))
            picked = b.op(f"shufflevector {type_} {x}, {type_} poison, <{width} x i32> <{order}>")
            found.append(lanes.cast(dtype, self.acc, picked))
        return found

    def _fma(self, lanes: Lanes, x: str, w: str, total: str) -> str:
        b, type_ = lanes.b, self._vector(lanes)
        suffix = self.acc if lanes.width == 1 else f"v{lanes.width}{self.acc}"
        b.declare(f"declare {type_} @llvm.fmuladd.{suffix}({type_}, {type_}, {type_})")
        return b.op(f"call {type_} @llvm.fmuladd.{suffix}({type_} {x}, {type_} {w}, {type_} {total})")


def depthwise_phase(
    images: DimLike,
    channels: DimLike,
    axes: Sequence[Axis],
    group: tuple[int, int],
    image: tuple[str, Access],
    weights: tuple[str, Access, bool],
    bias: tuple[str, Access] | None,
    output: Access,
    epilogue: Epilogue,
    operands: tuple[int, ...],
) -> Phase:
    """A phase for a convolution of groups of few channels.

    Args:
        images: Batch size.
        channels: Output channels.
        axes: One to three spatial axes.
        group: Input and output channels of a group.
        image: dtype and access of the input (N, C, spatial axes).
        weights: dtype and access over (taps, input channel of the group, output channel), and whether they are packed:
            output channels are consecutive, padded to whole vectors, and of the type in which sums are computed.
        bias: dtype and access over (1, output channels).
        output: How the output lies (N, C, spatial axes).
        epilogue: What is stored.
        operands: Image, weights, bias if given, extras, output.
    """
    rank = len(axes)
    inner = axes[-1]
    own = pattern_of(*image)
    weight = Pattern(weights[0], "1" if weights[2] else "s")
    biases = None if bias is None else pattern_of(*bias)
    extras = tuple(pattern_of(e.dtype, e.access) for e in epilogue.extras)
    target = pattern_of(epilogue.expr.dtype, output)
    width = machine().width(bits(accumulator(own.dtype)))
    patterns = [own, weight, target, *extras, *(() if biases is None else (biases,))]
    if group != (1, 1) and not _shuffles(group, own, width):
        patterns.append(Pattern(own.dtype, "s"))  # lanes of the input are gathered
    code = DepthwiseCode(
        rank,
        (inner.kernel, inner.stride, inner.dilation) if _in_blocks(inner) else None,
        _block_pixels(inner),
        group,
        cut_of(channels, width, patterns),
        own,
        weight,
        biases,
        extras,
        target,
        epilogue,
    )
    dims = [*window_dims(images, channels, axes), *dims_of(image[1]), *dims_of(weights[1])]
    if bias is not None:
        dims += dims_of(bias[1])
    for e in epilogue.extras:
        dims += dims_of(e.access)
    dims += [output.strides[1], *dims_of(output)]
    return Phase(code, operands, tuple(dims), functools.partial(launch_windows, rank, group[0]))


def _shuffles(group: tuple[int, int], image: Pattern, width: int) -> bool:
    """Whether the groups of a vector of output channels lie side by side in the input, so that shuffles pick them."""
    return group != (1, 1) and image.channel == "1" and width % group[1] == 0


def _in_blocks(inner: Axis) -> bool:
    """Whether neighbouring windows share columns, and a row of taps fits the registers."""
    return inner.kernel <= 9 and inner.stride <= 4 and inner.dilation <= 4


def _block_pixels(inner: Axis) -> int:
    """Outputs of a block: what the registers hold beside a row of taps, if it can so that blocks fill the row."""
    most = 10 if machine().vector_bits == 512 else 4
    if not isinstance(inner.out, int):
        return min(8, most)
    return min(range(max(1, most // 2), most + 1), key=lambda p: (-(-inner.out // p) * p, -p))
