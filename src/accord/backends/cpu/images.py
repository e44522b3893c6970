"""Operands of image kernels: tensors over (batch, channels, spatial axes) with any strides, lanes along channels.

A vector holds neighbouring channels of one pixel. Where those follow each other in memory it is one load or store,
where they are apart a gather or scatter, and where the operand is broadcast along channels one element in all lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.epilogue import Epilogue
from accord.expr.lang import Expr, bits, cast, operand, rebuild, topological
from accord.ir.dims import DimLike
from accord.ir.strides import Access
from accord.record import record

__all__ = [
    "Cut",
    "Image",
    "Lanes",
    "Outside",
    "Params",
    "Pattern",
    "accumulator",
    "channel_blocks",
    "cut_of",
    "dims_of",
    "final_expr",
    "following",
    "pattern_of",
]


#: What a load may take of one pixel at once, so that it can be taken from neutral elements instead.
OUTSIDE_ELEMENTS = 64


def accumulator(dtype: str) -> str:
    """The type in which values of ``dtype`` are computed."""
    return "f32" if dtype in ("f16", "bf16") else dtype


@record
class Pattern:
    """What machine code knows of an operand.

    Attributes:
        dtype: Element type in memory.
        channel: Along channels: "0" (repeats), "1" (next element) or "s" (a stride).
    """

    dtype: str
    channel: str


def pattern_of(dtype: str, access: Access, axis: int = 1) -> Pattern:
    """The pattern of an operand that is walked as ``access`` says; ``axis`` is that of the channels."""
    stride = access.strides[axis]
    return Pattern(dtype, str(stride) if stride in (0, 1) else "s")


def dims_of(access: Access) -> tuple[DimLike, ...]:
    """The parameters that :class:`Image` reads."""
    return (access.offset, *access.strides)


class Params:
    """Hands out a function's parameters in order."""

    def __init__(self, b: Builder, start: int = 0) -> None:
        self._b = b
        self.index = start

    def next(self) -> str:
        """The next parameter, an i64."""
        self.index += 1
        return self._b.param(self.index - 1)

    def take(self, count: int) -> list[str]:
        """The next ``count`` parameters."""
        return [self.next() for _ in range(count)]


class Image:
    """An operand while code is written.

    Args:
        b: Where to write.
        pattern: What is known of it.
        base: Address of its memory.
        params: Gives its offset and the stride of each axis (batch, channels, spatial axes).
        axes: Number of axes.
    """

    def __init__(self, b: Builder, pattern: Pattern, base: str, params: Params, axes: int) -> None:
        self._b = b
        self.dtype = pattern.dtype
        self.channel = pattern.channel
        self.base = b.address(base, pattern.dtype, params.next())
        self.strides: list[str] = params.take(axes)

    def at(self, index: Sequence[tuple[int, str]], address: str | None = None) -> str:
        """Address after moving from ``address`` (default: the start) by ``(axis, index)`` each."""
        place = self.base if address is None else address
        for axis, i in index:
            place = self._b.address(place, self.dtype, self._b.mul(i, self.strides[axis]))
        return place


@record
class Outside:
    """A pixel that may lie outside the image.

    Attributes:
        valid: Whether it is inside, an i1.
        neutral: What stands for its elements if not: of the type of the image.
    """

    valid: str
    neutral: Expr

    def literal(self, width: int) -> str:
        """The neutral element in LLVM's syntax, in ``width`` lanes."""
        return Printer(Builder(""), width).value(self.neutral, [])

    def instead(self, b: Builder, address: str) -> str:
        """``address``, or if that is outside, that of some neutral elements."""
        type_ = scalar(self.neutral.dtype)
        name = f"@outside.{self.neutral.dtype}"
        element = f"{type_} {self.literal(1)}"
        values = ", ".join([element] * OUTSIDE_ELEMENTS)
        b.declare(f"{name} = private unnamed_addr constant [{OUTSIDE_ELEMENTS} x {type_}] [{values}]")
        return b.op(f"select i1 {self.valid}, ptr {address}, ptr {name}")


class Lanes:
    """A vector's worth of channels.

    Args:
        b: Where to write.
        width: Elements of a vector.
        start: First channel.
        count: How many channels there are, where that may be fewer than ``width``; None: all. Only for operands whose
            channels are consecutive or repeat.
    """

    def __init__(self, b: Builder, width: int, start: str, count: str | None) -> None:
        self.b = b
        self.width = width
        self.start = start
        self.count = count
        self.printer = Printer(b, width)

    def load(self, dtype: str, channel: str, pixel: str, stride: str | int, outside: Outside | None = None) -> str:
        """Channels of the pixel at address ``pixel``, for a pattern's ``channel``.

        With ``outside`` the address may lie outside the image; its neutral element is then the result.
        """
        b = self.b
        if channel == "0" or self.width == 1:
            address = pixel if channel == "0" else b.address(pixel, dtype, b.mul(self.start, stride))
            x = Printer(b, 1).load(dtype, address if outside is None else outside.instead(b, address))
            return self.printer.splat(dtype, x, self.width)
        if channel == "s":
            return self.gather(dtype, pixel, self._vector_op("mul", self.numbers(), stride), outside)
        address = b.address(pixel, dtype, self.start)
        if outside is not None:
            address = outside.instead(b, address)
        if self.count is None:
            return self.printer.load(dtype, address)
        return self.printer.load_masked(dtype, address, self.count)

    def read(
        self, image: Image, pixel: str, to: str | None = None, *, axis: int = 1, outside: Outside | None = None
    ) -> str:
        """Channels of the pixel of ``image`` at address ``pixel``, as type ``to`` if that is given.

        ``axis`` is that of the channels; for ``outside`` see :meth:`load`.
        """
        x = self.load(image.dtype, image.channel, pixel, image.strides[axis], outside)
        return x if to is None else self.cast(image.dtype, to, x)

    def cast(self, source: str, target: str, x: str) -> str:
        """A vector in another type."""
        return x if source == target else Printer(self.b, self.width).value(cast(operand(0, source), target), [x])

    def gather(self, dtype: str, address: str, index: str, outside: Outside | None = None) -> str:
        """Elements at ``index``, an i64 in each lane."""
        b, w = self.b, self.width
        memory = "i8" if dtype == "bool" else scalar(dtype)
        if w == 1:
            address = b.address(address, dtype, index)
            return self.printer.load(dtype, address if outside is None else outside.instead(b, address))
        type_, flags = f"<{w} x {memory}>", f"<{w} x i1>"
        pointers = b.op(f"getelementptr {memory}, ptr {address}, <{w} x i64> {index}")
        mask, otherwise = "splat (i1 true)", "poison"
        if outside is not None:
            mask, otherwise = self.printer.splat("bool", outside.valid, w), outside.literal(w)
        suffix = {"float": "f32", "double": "f64", "half": "f16"}.get(memory, memory)
        name = f"@llvm.masked.gather.v{w}{suffix}.v{w}p0"
        b.declare(f"declare {type_} {name}(<{w} x ptr>, i32, {flags}, {type_})")
        x = b.op(
            f"call {type_} {name}(<{w} x ptr> {pointers}, i32 {bits(dtype) // 8}, {flags} {mask}, {type_} {otherwise})"
        )
        return b.op(f"icmp ne {type_} {x}, zeroinitializer") if dtype == "bool" else x

    def store(self, dtype: str, channel: str, value: str, pixel: str, stride: str | int) -> None:
        """Write channels of the pixel at address ``pixel``."""
        b = self.b
        if channel == "1":
            address = b.address(pixel, dtype, self.start)
            if self.count is None:
                self.printer.store(dtype, value, address)
            else:
                self.printer.store_masked(dtype, value, address, self.count)
            return
        self.printer.scatter(dtype, value, b.address(pixel, dtype, b.mul(self.start, stride)), stride)

    def numbers(self) -> str:
        """The channel of each lane, an i64 vector."""
        if self.width == 1:
            return self.start
        index = ", ".join(f"i64 {k}" for k in range(self.width))
        return self._vector_op("add", f"<{index}>", self.start)

    def spread(self, value: str) -> str:
        """An i64 in each lane."""
        return self.printer.splat("i64", value, self.width)

    def _vector_op(self, op: str, a: str, b: str | int) -> str:
        return self.b.op(f"{op} {vector('i64', self.width)} {a}, {self.spread(str(b))}")


@record
class Cut:
    """How channels are cut into vectors.

    Attributes:
        whole: There may be whole vectors.
        rest: What is left over: "none", "mask" (a vector that is not whole) or "single" (elements one by one).
    """

    whole: bool
    rest: str


def cut_of(channels: DimLike, width: int, patterns: Iterable[Pattern]) -> Cut:
    """How ``channels`` are cut for operands of ``patterns``; only consecutive lanes can be masked."""
    rest = "single" if any(p.channel == "s" for p in patterns) else "mask"
    if width == 1 or (isinstance(channels, int) and channels % width == 0):
        rest = "none"
    return Cut(rest == "none" or not isinstance(channels, int) or channels >= width, rest)


def channel_blocks(
    b: Builder, width: int, channels: str, cut: Cut, *, groups: Sequence[int] = (1,)
) -> Iterator[list[Lanes]]:
    """Iterate over the bodies that take ``channels``: what is written in one is run for all of its vectors.

    Args:
        b: Where to write.
        width: Elements of a vector.
        channels: Number of channels.
        cut: How they are cut.
        groups: Numbers of whole vectors that a body takes at once, greatest first; the last is 1.

    Yields:
        The vectors of one body: for each of ``groups``, then for what is left over.
    """
    done = "0"
    for group in groups if cut.whole else ():
        step = group * width
        stop = b.add(done, b.mul(b.op(f"sdiv i64 {b.sub(channels, done)}, {step}"), step))
        with b.loop(done, stop, step) as c:
            yield [Lanes(b, width, b.add(c, g * width), None) for g in range(group)]
        done = stop
    if cut.rest == "mask":
        rest = b.sub(channels, done)
        with b.when(b.compare("sgt", rest, 0)):
            yield [Lanes(b, width, done, rest)]
    elif cut.rest == "single":
        with b.loop(done, channels) as c:
            yield [Lanes(b, 1, c, None)]


def final_expr(epilogue: Epilogue, dtype: str) -> Expr:
    """The epilogue as an expression whose operand 0 has type ``dtype``, in which the result is computed."""
    from accord.expr.math import expand  # what starts a stored kernel expands nothing

    root = epilogue.expr
    own = next((n for n in topological((root,)) if n.op == "operand" and n.value == 0), None)
    return expand(root if own is None else following(root, cast(operand(0, dtype), own.dtype)))


def following(epilogue: Expr, value: Expr, shift: int = 0) -> Expr:
    """``epilogue`` of ``value`` instead of operand 0; its other operands are numbered ``shift`` higher."""
    done: dict[Expr, Expr] = {}
    for node in topological((epilogue,)):
        if node.op == "operand":
            done[node] = value if node.value == 0 else operand(int(node.value or 0) + shift, node.dtype)
        else:
            done[node] = rebuild(node, tuple(done[a] for a in node.args))
    return done[epilogue]
