"""Contractions as Triton kernels: products of matrices, batched, broadcast, of any strides, and convolutions.

A contraction has four groups of axes: *batch*, *rows* (of A and of the result), *columns* (of B and of the result) and
*depth*, which is summed over::

    out[batch, rows, columns] = epilogue(sum over depth of f(A[batch, rows, depth]) * g(B[batch, depth, columns]))

Each operand is walked over its axes by strides, so a matrix may be transposed, broadcast, or the heads of an attention,
and the result may be stored in another order of axes. A convolution is a contraction whose rows are images and pixels,
and whose depth is taps and channels: an element of A then counts only where its pixel lies within the image, which is
what a :class:`Window` says of a pair of a row axis and a depth axis.

A program of the grid makes a tile of the result. Few tiles with long sums are *split*: each program sums a part of the
depth into a workspace, and a second kernel adds the parts, always in the same order, and applies the epilogue.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Final

from accord.backends.cpu.epilogue import Extra
from accord.backends.cpu.nest import merge_axes
from accord.errors import CompileError
from accord.expr.lang import Expr, bits, operand
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = [
    "ContractionKernel",
    "Factor",
    "FactorPattern",
    "Pattern",
    "Window",
    "WindowPattern",
    "accumulator",
    "contraction_kernel",
]

#: Types that are multiplied, and those in which products are summed.
_SUMS: Final = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64", "i8": "i32"}
#: How float32 is multiplied: as such, rounded to TF32, or as three products of TF32.
_PRECISIONS: Final = ("ieee", "tf32", "tf32x3")


def accumulator(dtype: str) -> str:
    """The type in which products of values of ``dtype`` are summed.

    Raises:
        CompileError: such values are not multiplied.
    """
    if dtype not in _SUMS:
        raise CompileError(f"no contraction multiplies {dtype}", expected=", ".join(_SUMS))
    return _SUMS[dtype]


# what is asked for


@record
class Factor:
    """A or B.

    Attributes:
        dtype: Element type in memory.
        access: A's over batch, row and depth axes; B's over batch, depth and column axes.
        expr: What is multiplied, of the element (operand 0) and ``extras`` (1, 2 ...); None: the element.
        extras: Further operands, over the same axes.
    """

    dtype: str
    access: Access
    expr: Expr | None = None
    extras: tuple[Extra, ...] = ()


@record
class Window:
    """A's element counts only where ``0 <= row * step + depth * dilation - pad < size``; else its value is 0.

    Attributes:
        row: Number of the row axis.
        depth: Number of the depth axis.
        step: From row to row.
        dilation: From tap to tap.
        pad: In front.
        size: Of the image.
    """

    row: int
    depth: int
    step: DimLike
    dilation: DimLike
    pad: DimLike
    size: DimLike


# what a kernel knows


@record
class Pattern:
    """How a tensor is walked over three groups of axes.

    Attributes:
        dtype: Element type in memory.
        kinds: For each group the kinds of its axes: "0" (repeats), "1" (next element), "s" (a stride in the
            parameters). One kind for a group of several axes: they are walked as one.
    """

    dtype: str
    kinds: tuple[str, str, str]

    @property
    def strides(self) -> int:
        """Number of its strides in the parameters."""
        return "".join(self.kinds).count("s")


@record
class FactorPattern:
    """A or B; ``expr`` is of its element and of ``extras``."""

    own: Pattern
    extras: tuple[Pattern, ...]
    expr: Expr


@record
class WindowPattern:
    """Numbers of a row axis and of a depth axis; -1: an axis of size 1."""

    row: int
    depth: int


@record
class ContractionKernel:
    """The Triton text of one pattern of contractions.

    Attributes:
        axes: Numbers of batch, row, column and depth axes.
        a: A, over batch, rows and depth.
        b: B, over batch, depth and columns.
        extras: Operands 1, 2 ... of ``expr``, over batch, rows and columns.
        out: What is stored, over the same.
        expr: Of the sum (operand 0, in its type) and the extras.
        windows: See :class:`Window`.
        precision: Of products of float32: "ieee", "tf32", "tf32x3".
    """

    axes: tuple[int, int, int, int]
    a: FactorPattern
    b: FactorPattern
    extras: tuple[Pattern, ...]
    out: Pattern
    expr: Expr
    windows: tuple[WindowPattern, ...]
    precision: str

    @property
    def symbol(self) -> str:
        """Name by content."""
        exprs = [e.key for e in (self.a.expr, self.b.expr, self.expr)]
        text = f"{self.axes};{self.patterns};{len(self.a.extras)};{exprs};{self.windows};{self.precision}"
        return f"contraction_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """In the order of pointers: A, B, A's extras, B's extras, extras, output."""
        return (self.a.own, self.b.own, *self.a.extras, *self.b.extras, *self.extras, self.out)

    @property
    def product(self) -> str:
        """The type that is multiplied."""
        return self.a.expr.dtype

    @property
    def pointers(self) -> tuple[str, ...]:
        """Names of the pointers; the last is the workspace."""
        return (*(f"p{i}" for i in range(len(self.patterns))), "work")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the integers, in the order of what :func:`contraction_kernel` returns."""
        names = [f"e{a}" for a in range(sum(self.axes))]
        for w in range(len(self.windows)):
            names += [f"w{w}_{part}" for part in ("step", "dilation", "pad", "size")]
        for i, pattern in enumerate(self.patterns):
            names += [f"o{i}", *(f"s{i}_{j}" for j in range(pattern.strides))]
        return tuple(names)

    @property
    def sized(self) -> tuple[str, ...]:
        """Names of the integers that are compiled in: sizes of depth axes by which positions are divided."""
        first, last = sum(self.axes[:3]) + 1, sum(self.axes)
        return tuple(f"e{a}" for a in range(first, last))

    @property
    def entries(self) -> tuple[str, str]:
        """Names of the functions: the one that multiplies, and the one that adds parts."""
        return self.symbol, f"{self.symbol}_sum"

    def text(self) -> str:
        """The module."""
        from accord.backends.cuda.contraction_writer import module_of

        return module_of(self)

    def problem(self, sizes: Sequence[int]) -> Problem:
        """What ``sizes`` amount to, in the order of :attr:`names`."""
        batch, rows, columns, depth = self.axes
        inner_axis = batch + rows + columns + depth - 1
        before = (0, batch, batch + rows, batch + rows + columns, inner_axis)
        totals = [math.prod(sizes[first:last]) for first, last in itertools.pairwise(before)]
        values = dict(zip(self.names, sizes, strict=True))
        widths = []
        for i, p in enumerate(self.patterns):
            strides = (values[f"s{i}_{j}"] for j in range(p.strides))
            widths.append(math.gcd(128 // bits(p.dtype), values[f"o{i}"], *strides))
        return Problem(totals[0], totals[1], totals[2], totals[3], sizes[inner_axis], tuple(widths))


@record
class Problem:
    """Sizes of a contraction.

    Attributes:
        batch: Number of products.
        m: Rows.
        n: Columns.
        outer: Product of the depth axes but the last.
        inner: The last depth axis.
        widths: For each pattern, how many elements up to 16 bytes divide its offset and its strides.
    """

    batch: int
    m: int
    n: int
    outer: int
    inner: int
    widths: tuple[int, ...]

    @property
    def k(self) -> int:
        """Length of the sums."""
        return self.outer * self.inner


# from strides to a kernel


@record
class _Walked:
    """A tensor's strides by group of axes."""

    dtype: str
    strides: tuple[Shape, Shape, Shape]
    offset: DimLike


def contraction_kernel(
    batch: Shape,
    rows: Shape,
    columns: Shape,
    depth: Shape,
    a: Factor,
    b: Factor,
    out: Access,
    expr: Expr,
    extras: Sequence[Extra] = (),
    windows: Sequence[Window] = (),
    precision: str = "ieee",
) -> tuple[ContractionKernel, tuple[DimLike, ...]]:
    """The kernel for a contraction, and the integers that its launch needs, in the order of its ``names``.

    Args:
        batch: Sizes of the batch axes.
        rows: Of the row axes.
        columns: Of the column axes.
        depth: Of the axes that are summed over; the last one should be the one along which memory is read.
        a: A.
        b: B.
        out: How the result lies, over batch, row and column axes.
        expr: What is stored, of the sum (operand 0, of type :func:`accumulator`) and ``extras`` (1, 2 ...).
        extras: Further operands, over the axes of the result.
        windows: Where A's elements count; at most one for each axis.
        precision: How float32 is multiplied: "ieee", "tf32" or "tf32x3".

    Raises:
        CompileError: types are not multiplied, or do not agree.
    """
    left, right = (f.expr or operand(0, f.dtype) for f in (a, b))
    if left.dtype != right.dtype:
        raise CompileError("A and B are multiplied in one type", expected=left.dtype, found=right.dtype)
    accumulator(left.dtype)
    if precision not in _PRECISIONS:
        raise CompileError("this is no way to multiply", expected=", ".join(_PRECISIONS), found=precision)
    groups = {"batch": batch, "rows": rows, "columns": columns, "depth": depth}
    of_a, of_b, of_c = ("batch", "rows", "depth"), ("batch", "depth", "columns"), ("batch", "rows", "columns")
    walked = [_split(a.dtype, a.access, of_a, groups), _split(b.dtype, b.access, of_b, groups)]
    walked += [_split(x.dtype, x.access, of_a, groups) for x in a.extras]
    walked += [_split(x.dtype, x.access, of_b, groups) for x in b.extras]
    walked += [_split(x.dtype, x.access, of_c, groups) for x in extras]
    walked.append(_split(expr.dtype, out, of_c, groups))
    shares = [of_a, of_b, *[of_a] * len(a.extras), *[of_b] * len(b.extras), *[of_c] * (len(extras) + 1)]
    places = {"rows": [w.row for w in windows], "depth": [w.depth for w in windows]}
    sizes: dict[str, Shape] = {}
    found: dict[str, dict[int, Shape]] = {}
    moved: dict[str, list[int]] = {}
    for name, own in groups.items():
        users = [i for i, share in enumerate(shares) if name in share]
        strides = [walked[i].strides[shares[i].index(name)] for i in users]
        sizes[name], merged, moved[name] = _merged(own, strides, places.get(name, []), least=int(name != "batch"))
        found[name] = dict(zip(users, merged, strict=True))
    patterns: list[Pattern] = []
    numbers: list[DimLike] = []
    for i, (w, share) in enumerate(zip(walked, shares, strict=True)):
        kinds, steps = zip(*(_kinds(sizes[name], found[name][i]) for name in share), strict=True)
        patterns.append(Pattern(w.dtype, (kinds[0], kinds[1], kinds[2])))
        numbers += [w.offset, *itertools.chain(*steps)]
    first, second = 2 + len(a.extras), 2 + len(a.extras) + len(b.extras)
    kernel = ContractionKernel(
        (len(sizes["batch"]), len(sizes["rows"]), len(sizes["columns"]), len(sizes["depth"])),
        FactorPattern(patterns[0], tuple(patterns[2:first]), left),
        FactorPattern(patterns[1], tuple(patterns[first:second]), right),
        tuple(patterns[second:-1]),
        patterns[-1],
        expr,
        tuple(WindowPattern(r, d) for r, d in zip(moved["rows"], moved["depth"], strict=True)),
        precision,
    )
    limits = [x for w in windows for x in (w.step, w.dilation, w.pad, w.size)]
    return kernel, (*(s for name in groups for s in sizes[name]), *limits, *numbers)


def _split(dtype: str, access: Access, share: Sequence[str], groups: dict[str, Shape]) -> _Walked:
    parts, at = [], 0
    for name in share:
        parts.append(access.strides[at : at + len(groups[name])])
        at += len(groups[name])
    if at != len(access.strides):
        raise CompileError("a tensor's strides are not those of its axes", expected=at, found=len(access.strides))
    return _Walked(dtype, (parts[0], parts[1], parts[2]), access.offset)


def _merged(
    sizes: Shape, strides: Sequence[Shape], windowed: Sequence[int], least: int
) -> tuple[Shape, list[Shape], list[int]]:
    """The axes of a group, merged where all tensors allow it; for each of ``windowed`` its new number, or -1."""
    labels = [axis if axis in windowed else -1 for axis in range(len(sizes))]
    extents, merged, kept = merge_axes(sizes, [Access(s) for s in strides], labels)
    if len(extents) < least:
        return (1,), [(0,) for _ in strides], [-1] * len(windowed)
    return extents, [m.strides for m in merged], [kept.index(axis) if axis in kept else -1 for axis in windowed]


def _kinds(sizes: Shape, strides: Shape) -> tuple[str, list[DimLike]]:
    """The kinds of a group's axes, and the strides that are parameters."""
    if len(sizes) > 1 and all(
        outer == inner * size for outer, inner, size in zip(strides[:-1], strides[1:], sizes[1:], strict=True)
    ):
        strides = strides[-1:]
    return "".join("0" if s == 0 else "1" if s == 1 else "s" for s in strides), [
        s for s in strides if s != 0 and s != 1
    ]
