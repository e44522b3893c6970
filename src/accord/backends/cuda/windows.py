"""Pools, convolutions of few channels and resampling as Triton kernels.

A program computes a tile of output elements: columns along the axis on which neighbours lie, rows along all others. So
neighbours are read and written together, and what depends on one of the sides only (with channels last all of a window)
is computed once for it; each element walks its own window. Axes are image, channel and spatial axes, in this order,
whatever the order in memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

from accord.backends.cpu.images import accumulator
from accord.backends.cpu.pools import Pooling
from accord.backends.cpu.taptables import Taps
from accord.backends.cuda.code import KernelText
from accord.backends.cuda.lines import HEAD, NEXT, WAIT, Code, ceildiv, power_of_two
from accord.backends.cuda.loops import Stream
from accord.backends.cuda.printer import TYPES, TritonPrinter, short_of
from accord.backends.epilogue import Epilogue
from accord.backends.images import Axis
from accord.backends.loops.nest import magnitude
from accord.errors import CompileError
from accord.expr.lang import FLOATS, Expr, call, operand, topological
from accord.expr.primitives import gt, isnan
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = [
    "Depthwise",
    "Resampled",
    "WindowKernel",
    "depthwise_kernel",
    "pool_kernel",
    "resample_kernel",
    "window_geometry",
]

#: Output elements of a program: a row of a tile has one window, or each element has its own.
_CHANNELS, _SINGLE = 1024, 256
#: Taps of a window up to which code is written for each.
_MOST_TAPS = 64
#: Types of which the hardware takes the larger one with one instruction.
_EXTREMES = ("f16", "f32")


@record
class Depthwise:
    """A convolution of few channels.

    Attributes:
        group: Input and output channels of a group.
        weights: Axes: output channel, input channel of the group, spatial axes.
        bias: Of the output channels; None: there is none.
    """

    group: tuple[int, int]
    weights: Stream
    bias: Stream | None


@record
class Resampled:
    """Weighted sums by tables of taps.

    Attributes:
        axes: Which axes are resampled.
        counts: Taps along each of them; 0 where only a run can tell.
        acc: Type of the sums and weights.
        weighted: Whether there are weights.
        fill: What stands in positions that are marked as outside; None: there are none.
        after: Expression of the sum.
    """

    axes: tuple[int, ...]
    counts: tuple[int, ...]
    acc: str
    weighted: bool
    fill: float | int | None
    after: Expr


@record
class WindowKernel(KernelText):
    """The Triton text of a window over images.

    Parameters: pointers of the image, of what the kind reads (weights and bias; or indices and weights of each table),
    of the epilogue's extras, of the output and of the indices of maxima; then the integers in ``names``. Compile-time
    ones: ROWS, COLUMNS, and WIDE (numbers of elements need 64 bits).

    Attributes:
        kind: What is computed.
        taps: Along each spatial axis; empty for resampling.
        order: Axes of the output as they are numbered, the innermost last.
        image: The input.
        extras: Of the epilogue.
        output: The output.
        epilogue: What is stored, of the result (operand 0) and the extras.
        indices: How the indices of maxima lie; None: they are not wanted.
        column_major: Whether those count the first spatial axis fastest.
    """

    kind: Pooling | Depthwise | Resampled
    taps: tuple[int, ...]
    order: tuple[int, ...]
    image: Stream
    extras: tuple[Stream, ...]
    output: Stream
    epilogue: Expr
    indices: Stream | None = None
    column_major: bool = False

    @property
    def symbol(self) -> str:
        """Name by content."""
        kind = self.kind.key if isinstance(self.kind, Pooling) else f"{self.kind}"
        if isinstance(self.kind, Resampled):
            kind = f"{kind};{self.kind.after.key}"
        text = (
            f"{kind};{self.taps};{self.order};{self.image};{self.extras};{self.output};{self.epilogue.key};"
            f"{self.indices};{self.column_major}"
        )
        return f"window_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def rank(self) -> int:
        """Number of all axes."""
        return len(self.order)

    @property
    def streams(self) -> dict[str, Stream]:
        """What lies along axes, by the name of its pointer."""
        found = {"x": self.image}
        if isinstance(self.kind, Depthwise):
            found |= {"w": self.kind.weights} | ({} if self.kind.bias is None else {"b": self.kind.bias})
        found |= {f"e{i}": e for i, e in enumerate(self.extras)}
        found["y"] = self.output
        return found if self.indices is None else found | {"i": self.indices}

    @property
    def memory(self) -> tuple[str, ...]:
        """Parameters that are memory, in order."""
        return tuple(self._types)

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of these."""
        return tuple(self._types.values())

    @property
    def _types(self) -> dict[str, str]:
        tables: dict[str, str] = {}
        if isinstance(self.kind, Resampled):
            kinds = [("t", "i64"), ("h", self.kind.acc)][: 1 + self.kind.weighted]
            tables = {f"{name}{a}": dtype for a in self.kind.axes for name, dtype in kinds}
        found = {n: s.dtype for n, s in self.streams.items()}
        return {"x": found.pop("x"), **tables, **found}

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters that are integers, in order.

        Sizes of the output ``n0`` ...; for windows of each spatial axis the image's size, stride, padding and
        dilation, and for pools that count where the elements begin and end that do; for resampling the taps of each
        axis; of each stream its offset and the strides that are not 0 or 1.
        """
        found = [f"n{a}" for a in range(self.rank)]
        if isinstance(self.kind, Resampled):
            found += [f"k{a}" for a in self.kind.axes]
        else:
            for a in range(2, self.rank):
                found += [f"{p}{a}" for p in ("size", "step", "pad", "apart")]
                found += [f"{p}{a}" for p in ("from", "to") if isinstance(self.kind, Pooling) and self.kind.counts]
        for name, stream in self.streams.items():
            found += [f"o_{name}", *(f"s_{name}{a}" for a, k in enumerate(stream.kinds) if k == "s")]
        return tuple(found)

    def text(self) -> str:
        """The module."""
        return HEAD + _Writer(self).function()


def window_geometry(kernel: WindowKernel, sizes: Sequence[int], reach: int) -> tuple[int, dict[str, int | bool]]:
    """Programs, and the compile-time parameters.

    Args:
        kernel: What is started.
        sizes: Values of its integer parameters.
        reach: The largest number of elements of any of its operands.
    """
    total, inner = math.prod(sizes[: kernel.rank]), sizes[kernel.order[-1]]
    block = _CHANNELS if kernel.order[-1] == 1 else _SINGLE
    columns = min(block, power_of_two(inner))
    rows = block // columns
    programs = ceildiv(total // inner, rows) * ceildiv(inner, columns) if total else 0
    return programs, {"ROWS": rows, "COLUMNS": columns, "WIDE": max(total + block, reach) >= 1 << 31}


# from strides and sizes


def _stream(dtype: str, access: Access) -> Stream:
    return Stream(dtype, "".join("0" if s == 0 else "1" if s == 1 else "s" for s in access.strides))


def _finished(
    kind: Pooling | Depthwise | Resampled,
    taps: tuple[int, ...],
    shape: Shape,
    image: tuple[str, Access],
    operands: Sequence[tuple[str, Access]],
    output: Access,
    epilogue: Epilogue,
    middle: Sequence[DimLike],
    indices: Access | None = None,
    *,
    column_major: bool = False,
) -> tuple[WindowKernel, tuple[DimLike, ...]]:
    """The kernel; ``operands`` are those of the kind, ``middle`` its own parameters."""
    order = tuple(sorted(range(len(shape)), key=lambda a: -magnitude(output.strides[a])))
    kernel = WindowKernel(
        kind,
        taps,
        order,
        _stream(*image),
        tuple(_stream(e.dtype, e.access) for e in epilogue.extras),
        _stream(epilogue.expr.dtype, output),
        epilogue.expr,
        None if indices is None else _stream("i64", indices),
        column_major,
    )
    dims: list[DimLike] = [*shape, *middle]
    accesses = [image[1], *(a for _, a in operands), *(e.access for e in epilogue.extras), output]
    accesses += [] if indices is None else [indices]
    for access, stream in zip(accesses, kernel.streams.values(), strict=True):
        dims.append(access.offset)
        dims += [s for s, k in zip(access.strides, stream.kinds, strict=True) if k == "s"]
    return kernel, tuple(dims)


def _axis_dims(axes: Sequence[Axis], counted: Sequence[tuple[DimLike, DimLike]] = ()) -> list[DimLike]:
    dims: list[DimLike] = []
    for k, a in enumerate(axes):
        dims += [a.size, a.stride, a.pad, a.dilation, *(counted[k] if counted else ())]
    return dims


def pool_kernel(
    images: DimLike,
    channels: DimLike,
    axes: Sequence[Axis],
    image: tuple[str, Access],
    output: Access,
    pooling: Pooling,
    epilogue: Epilogue,
    *,
    counted: Sequence[tuple[DimLike, DimLike]] = (),
    indices: Access | None = None,
    column_major: bool = False,
) -> tuple[WindowKernel, tuple[DimLike, ...]]:
    """The kernel of a pool, and its integer parameters; arguments as of :func:`accord.backends.cpu.pools.pool_phase`.

    Args:
        images: Batch size.
        channels: Number of channels.
        axes: Spatial axes.
        image: dtype and access of the input (images, channels, spatial axes).
        output: How the output lies.
        pooling: What is computed.
        epilogue: What is stored.
        counted: For each axis, where elements that count begin and end; for a pool that counts.
        indices: How the indices of maxima lie, if wanted.
        column_major: Whether they count the first spatial axis fastest.
    """
    shape = (images, channels, *(a.out for a in axes))
    return _finished(
        pooling, tuple(a.kernel for a in axes), shape, image, (), output, epilogue,
        _axis_dims(axes, counted if pooling.counts else ()), indices, column_major=column_major,
    )  # fmt: skip


def depthwise_kernel(
    images: DimLike,
    channels: DimLike,
    axes: Sequence[Axis],
    group: tuple[int, int],
    image: tuple[str, Access],
    weights: tuple[str, Access],
    bias: tuple[str, Access] | None,
    output: Access,
    epilogue: Epilogue,
) -> tuple[WindowKernel, tuple[DimLike, ...]]:
    """The kernel of a convolution of few channels, and its integer parameters.

    Args:
        images: Batch size.
        channels: Output channels.
        axes: Spatial axes.
        group: Input and output channels of a group.
        image: dtype and access of the input (images, channels, spatial axes).
        weights: Likewise (output channels, input channels of a group, spatial axes).
        bias: Likewise (output channels); None: there is none.
        output: How the output lies.
        epilogue: What is stored.

    Raises:
        CompileError: the elements are no floats.
    """
    if image[0] not in FLOATS:
        raise CompileError(f"convolutions of few channels on a GPU are of floats, not of {image[0]}")
    shape = (images, channels, *(a.out for a in axes))
    kind = Depthwise(group, _stream(*weights), None if bias is None else _stream(*bias))
    operands = [weights, *([] if bias is None else [bias])]
    return _finished(
        kind, tuple(a.kernel for a in axes), shape, image, operands, output, epilogue, _axis_dims(axes)
    )  # fmt: skip


def resample_kernel(
    shape: Shape,
    axes: Sequence[int],
    counts: Sequence[DimLike],
    image: tuple[str, Access],
    output: Access,
    taps: Taps,
    acc: str,
    after: Expr,
    epilogue: Epilogue,
    fill: float | int | None = None,
) -> tuple[WindowKernel, tuple[DimLike, ...]]:
    """The kernel of a resampling by tables (:mod:`accord.backends.cuda.taptables`), and its integer parameters.

    Args:
        shape: Of the output.
        axes: Those that are resampled.
        counts: Taps along each of them.
        image: dtype and access of the source, over the same axes.
        output: How the output lies.
        taps: What the tables have.
        acc: Type of the sums and weights.
        after: Expression of the sum, of the type that the epilogue expects.
        epilogue: What is stored.
        fill: What stands in positions that the tables mark as outside; None: there are none.
    """
    fixed = tuple(taps.count for _ in axes)
    kind = Resampled(tuple(axes), fixed, acc, taps.weighted, fill, after)
    return _finished(kind, (), shape, image, (), output, epilogue, counts)


class _Writer:
    """Writes the function of a kernel."""

    def __init__(self, kernel: WindowKernel) -> None:
        self.k = kernel
        self.code = Code()
        self.count = 0
        self.inner = kernel.order[-1]
        self.acc = accumulator(kernel.image.dtype)
        if isinstance(kernel.kind, Resampled):
            self.acc = kernel.kind.acc
        elif isinstance(kernel.kind, Pooling):
            self.acc = kernel.kind.before.dtype

    def function(self) -> str:
        k, code = self.k, self.code
        code(f"across = tl.cdiv(n{self.inner}, COLUMNS)", "down = tl.program_id(0) // across")
        code(f"c{self.inner} = (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]")
        with code.indented("if WIDE:"):
            code("down = down.to(tl.int64)")
        code("rest = (down * ROWS + tl.arange(0, ROWS))[:, None]")
        outer = k.order[:-1]
        code(f"some_rows = rest < {' * '.join(f'n{a}' for a in outer) or 1}")
        code(f"some_columns = c{self.inner} < n{self.inner}")
        code("some = some_rows & some_columns", "z = tl.zeros([ROWS, COLUMNS], tl.int32)")
        for a in reversed(outer[1:]):
            code(f"c{a} = rest % n{a}", f"rest = rest // n{a}")
        if outer:
            code(f"c{outer[0]} = rest")
        if isinstance(k.kind, Resampled):
            code(WAIT)
            value = self._resampled(k.kind)
        else:
            for a in range(2, k.rank):
                code(f"f{a} = c{a} * step{a} - pad{a}")
            code(WAIT)
            value = self._pooled(k.kind) if isinstance(k.kind, Pooling) else self._convolved(k.kind)
        code(NEXT)
        self._store(value)
        constants = (f"{n}: tl.constexpr" for n in ("ROWS", "COLUMNS", "WIDE"))
        return code.function(k.symbol, [*k.memory, *k.names, *constants])

    # pieces

    def _at(self, name: str, coordinates: Sequence[str]) -> str:
        """Where an element of a stream is: first what the rows add, of which there are few."""
        stream = self.k.streams[name]
        terms = {"1": "{c}", "s": "{c} * s_{name}{a}"}
        found = [
            (terms[kind].format(c=c, name=name, a=a), a == self.inner)
            for a, (kind, c) in enumerate(zip(stream.kinds, coordinates, strict=True))
            if kind != "0"
        ]
        rows, columns = ([term for term, inner in found if inner == wanted] for wanted in (False, True))
        return f"{name} + ({' + '.join([f'o_{name}', *rows, *columns, 'z'])})"

    def _loaded(self, name: str, coordinates: Sequence[str], mask: str, other: str = "") -> str:
        """A new value."""
        text = f"tl.load({self._at(name, coordinates)}, mask={mask}{other})"
        return self._new(f"{text} != 0" if self.k.streams[name].dtype == "bool" else text)

    def _some(self, axis: int) -> str:
        """Which of the coordinates along an axis are of elements."""
        return "some_columns" if axis == self.inner else "some_rows"

    def _new(self, text: str) -> str:
        self.count += 1
        self.code(f"q{self.count} = {text}")
        return f"q{self.count}"

    def _value(self, expr: Expr, operands: Sequence[str]) -> str:
        self.count += 1
        return TritonPrinter(self.code, f"x{self.count}_", short=short_of([self.k.output.dtype])).value(expr, operands)

    def _converted(self, value: str, source: str, target: str) -> str:
        self.count += 1
        return TritonPrinter(self.code, f"x{self.count}_").convert(value, source, target)

    @property
    def _own(self) -> list[str]:
        return [f"c{a}" for a in range(self.k.rank)]

    def _window(self, stack: ExitStack) -> list[str]:
        """Open the loops over the taps; coordinates along the spatial axes, ``inside`` says whether they are."""
        unrolled = math.prod(self.k.taps) <= _MOST_TAPS
        places = []
        for a, taps in enumerate(self.k.taps, 2):
            head = f"for t{a} in {'tl.static_range' if unrolled else 'range'}({taps}):"
            stack.enter_context(self._indented(head))
            self.code(f"p{a} = f{a} + t{a} * apart{a}", f"in{a} = (p{a} >= 0) & (p{a} < size{a})")
            places.append(f"p{a}")
        sides = sorted(range(2, self.k.rank), key=lambda a: a == self.inner)
        self.code(f"inside = {' & '.join(['some_rows', *(f'in{a}' for a in sides), 'some_columns'])}")
        return places

    def _indented(self, head: str) -> AbstractContextManager[None]:
        return self.code.indented(head)

    # kinds

    def _pooled(self, kind: Pooling) -> str:
        code, k, acc = self.code, self.k, self.acc
        neutral = _number(kind.neutral)
        code(f"total = tl.full([ROWS, COLUMNS], {neutral}, {TYPES[acc]})")
        if k.indices is not None:
            code("found = tl.full([ROWS, COLUMNS], -1, tl.int64)")
        with ExitStack() as stack:
            places = self._window(stack)
            x = self._loaded("x", ["c0", "c1", *places], "inside", f", other={neutral}")
            x = self._value(kind.before, [self._converted(x, k.image.dtype, acc)])
            new, old = operand(0, acc), operand(1, acc)
            if k.indices is None:
                # what is outside of the image is neutral, also as the expression of it
                if kind.join == "max" and acc in _EXTREMES:
                    code(f"total = tl.maximum({x}, total, propagate_nan=tl.PropagateNan.ALL)")
                else:
                    code(f"total = {self._value(call(kind.join, new, old), [x, 'total'])}")
            else:
                wins = gt(new, old) | (isnan(new) & ~isnan(old)) if acc in FLOATS else gt(new, old)
                better = self._value(wins, [x, "total"])
                code(f"wins = inside & ({better} | (found < 0))")
                code(f"total = tl.where(wins, {x}, total)", f"found = tl.where(wins, {self._flat()}, found)")
        if k.indices is not None:
            sizes = " * ".join(f"size{a}" for a in range(2, k.rank))
            index = f"found + (c0.to(tl.int64) * n1 + c1) * ({sizes})"
            code(f"tl.store({self._at('i', self._own)}, {index}, mask=some)")
        operands = ["total"]
        if kind.counts:
            counts = []
            for a, taps in enumerate(k.taps, 2):
                # taps before the first position that counts, and before the end
                low, high = (
                    f"tl.minimum(tl.maximum(tl.cdiv({e}{a} - f{a}, apart{a}), 0), {taps})" for e in ("from", "to")
                )
                counts.append(self._new(f"{high} - {low}"))
            operands.append(self._new(f"1.0 / ({' * '.join(counts)}).to({TYPES[acc]})"))
        return self._value(kind.after, operands)

    def _flat(self) -> str:
        """Where in the plane a tap is."""
        axes = list(range(2, self.k.rank))
        number = "z.to(tl.int64)"
        for a in reversed(axes) if self.k.column_major else axes:
            number = f"({number} * size{a} + p{a})"
        return number

    def _convolved(self, kind: Depthwise) -> str:
        code, acc = self.code, self.acc
        inputs, outputs = kind.group
        start = f"tl.zeros([ROWS, COLUMNS], {TYPES[acc]})"
        if kind.bias is not None:
            start = self._converted(self._loaded("b", ["c1"], "some"), kind.bias.dtype, acc)
        code(f"total = {start}")
        with ExitStack() as stack:
            places = self._window(stack)
            for i in range(inputs):
                channel = self._new(f"c1 // {outputs} * {inputs} + {i}" if (inputs, outputs) != (1, 1) else "c1")
                x = self._loaded("x", ["c0", channel, *places], "inside", ", other=0")
                w = self._loaded("w", ["c1", str(i), *(f"t{p[1:]}" for p in places)], "some")
                x = self._converted(x, self.k.image.dtype, acc)
                code(f"total = tl.fma({x}, {self._converted(w, kind.weights.dtype, acc)}, total)")
        return "total"

    def _resampled(self, kind: Resampled) -> str:
        code, k, acc = self.code, self.k, self.acc
        places = self._own
        code("valid = some")
        if not kind.weighted:
            for a in kind.axes:
                code(f"p{a} = tl.load(t{a} + c{a}, mask={self._some(a)})")
                if kind.fill is not None:
                    code(f"valid &= p{a} >= 0", f"p{a} = tl.maximum(p{a}, 0)")
                places[a] = f"p{a}"
            total = self._converted(self._loaded("x", places, "some"), k.image.dtype, acc)
        else:
            code(f"total = tl.zeros([ROWS, COLUMNS], {TYPES[acc]})")
            with ExitStack() as stack:
                weight = ""
                for a, count in zip(kind.axes, kind.counts, strict=True):
                    head = (
                        f"tl.static_range({count})"
                        if count and math.prod(kind.counts) <= _MOST_TAPS
                        else f"range(k{a})"
                    )
                    stack.enter_context(self._indented(f"for u{a} in {head}:"))
                    code(f"p{a} = tl.load(t{a} + c{a} * k{a} + u{a}, mask={self._some(a)})")
                    loaded = f"tl.load(h{a} + c{a} * k{a} + u{a}, mask={self._some(a)})"
                    code(f"h_{a} = {weight} * {loaded}" if weight else f"h_{a} = {loaded}")
                    weight = f"h_{a}"
                    if kind.fill is not None:
                        code(f"valid &= p{a} >= 0", f"p{a} = tl.maximum(p{a}, 0)")
                    places[a] = f"p{a}"
                x = self._converted(self._loaded("x", places, "some"), k.image.dtype, acc)
                code(f"total = tl.fma({x}, {weight}, total)")
            total = "total"
        if kind.fill is not None:
            total = self._new(f"tl.where(valid, {total}, {_number(kind.fill)})")
        return self._value(kind.after, [total])

    def _store(self, value: str) -> None:
        """The epilogue of a result in the type of the sums, or for resampling in its own."""
        k = self.k
        kind = k.kind
        computed = kind.after.dtype if isinstance(kind, (Pooling, Resampled)) else self.acc
        own = next((n.dtype for n in _operands(k.epilogue) if n.value == 0), computed)
        operands = [self._converted(value, computed, own)]
        operands += [self._loaded(f"e{i}", self._own, "some") for i in range(len(k.extras))]
        stored = self._value(k.epilogue, operands)
        if k.epilogue.dtype == "bool":
            stored = f"{stored}.to(tl.int8)"
        self.code(f"tl.store({self._at('y', self._own)}, {stored}, mask=some)")


def _operands(expr: Expr) -> list[Expr]:
    return [n for n in topological((expr,)) if n.op == "operand"]


def _number(value: float | int) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'
