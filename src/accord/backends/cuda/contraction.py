"""Contractions as Triton kernels: products of matrices, batched, broadcast, of any strides, and convolutions.

A contraction has four groups of axes: *batch*, *rows* (of A and of the result), *columns* (of B and of the result) and
*depth*, which is summed over::

    out[batch, rows, columns] = epilogue(sum over depth of f(A[batch, rows, depth]) * g(B[batch, depth, columns]))

Each operand is walked over its axes by strides, so a matrix may be transposed, broadcast, or the heads of an attention,
and the result may be stored in another order of axes. A convolution is a contraction whose rows are images and pixels,
and whose depth is taps and channels: an element of A then counts only where its pixel lies within the image, which is
what a :class:`Window` says of a pair of a row axis and a depth axis.

Where products are too small for matrix units (a group of few channels), they are made *across*: batch axes lie along
the columns of a tile with those of B, and elements are multiplied one by one.

A program of the grid makes a tile of the result. Few tiles with long sums are *split*: each program sums a part of the
depth into a workspace, and a second kernel adds the parts, always in the same order, and applies the epilogue.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Final

from accord.backends.cuda.code import KernelText
from accord.backends.epilogue import Extra
from accord.backends.loops.nest import merge_axes
from accord.errors import CompileError
from accord.expr.lang import Expr, bits, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = [
    "BATCH",
    "COLUMNS",
    "DEPTH",
    "MOST_BITS",
    "ROWS",
    "ContractionKernel",
    "Factor",
    "FactorPattern",
    "PartsKernel",
    "Pattern",
    "Problem",
    "Window",
    "WindowPattern",
    "accumulator",
    "contraction_kernel",
]

#: Taps that have bits in a word.
MOST_BITS: Final = 30
#: Groups of axes.
BATCH, ROWS, COLUMNS, DEPTH = range(4)
_Share = tuple[int, int, int]
#: Groups that A, B and the result have; and those that A has where products are made across.
_OF_A: Final = (BATCH, ROWS, DEPTH)
_OF_B: Final = (BATCH, DEPTH, COLUMNS)
_OF_C: Final = (BATCH, ROWS, COLUMNS)
_A_ACROSS: Final = (COLUMNS, ROWS, DEPTH)
#: Types that are multiplied, and those in which products are summed.
_SUMS: Final = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64", "i8": "i32"}
#: How float32 is multiplied: as such, rounded to TF32, or as three products of TF32; how float16 is: summed in float32,
#: or, where all values are whole numbers of at most 255 in size, exactly, modulo 2**32 (see :attr:`sums`).
_PRECISIONS: Final = ("ieee", "tf32", "tf32x3", "whole")
#: Terms of a step that float32 adds exactly if they are products of such whole numbers.
WHOLE_TERMS: Final = (1 << 24) // 255**2


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
    """A window as a kernel knows it.

    Attributes:
        row: Number of the row axis; -1: an axis of size 1.
        depth: Likewise of the depth axis.
        few: Its taps have bits in a word.
    """

    row: int
    depth: int
    few: bool


@record
class ContractionKernel(KernelText):
    """The Triton text of one pattern of contractions; its last pointer is to the workspace.

    Attributes:
        axes: Numbers of batch, row, column and depth axes.
        a: A, over batch, rows and depth.
        b: B, over batch, depth and columns.
        extras: Operands 1, 2 ... of ``expr``, over batch, rows and columns.
        out: What is stored, over the same.
        expr: Of the sum (operand 0, in its type) and the extras.
        windows: See :class:`Window`.
        precision: Of products of float32: "ieee", "tf32", "tf32x3"; of float16: "ieee", "whole".
        across: Batch axes are among the column axes, A has columns too, and elements are multiplied one by one.
        tail: Last elements of the last depth axis that do not count: they can be read, but may be anything in A.
    """

    axes: tuple[int, int, int, int]
    a: FactorPattern
    b: FactorPattern
    extras: tuple[Pattern, ...]
    out: Pattern
    expr: Expr
    windows: tuple[WindowPattern, ...]
    precision: str
    across: bool = False
    tail: int = 0

    @property
    def symbol(self) -> str:
        """Name by content."""
        exprs = [e.key for e in (self.a.expr, self.b.expr, self.expr)]
        text = f"{self.axes};{self.patterns};{len(self.a.extras)};{exprs};{self.windows};{self.precision};{self.across}"
        text += f";{self.tail}" if self.tail else ""
        return f"contraction_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """In the order of pointers: A, B, A's extras, B's extras, extras, output."""
        return (self.a.own, self.b.own, *self.a.extras, *self.b.extras, *self.extras, self.out)

    @property
    def shares(self) -> tuple[tuple[int, int, int], ...]:
        """For each pattern its three groups of axes."""
        return _shares(len(self.a.extras), len(self.b.extras), len(self.extras), across=self.across)

    @property
    def product(self) -> str:
        """The type that is multiplied."""
        return self.a.expr.dtype

    @property
    def pointers(self) -> tuple[str, ...]:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        return (*(p.dtype for p in self.patterns), self.sums)

    @property
    def sums(self) -> str:
        """The type of sums. Of whole numbers, float32 adds those of one step, which are below 2**24, and i32 these."""
        return "i32" if self.precision == "whole" else accumulator(self.product)

    @property
    def integers(self) -> tuple[str, ...]:
        """Those of ``names`` that are given at run time."""
        return tuple(n for n in self.names if n not in self.sized)

    @property
    def parts(self) -> PartsKernel:
        """What adds the parts of sums."""
        return PartsKernel(self)

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
        """Names of the integers that are compiled in: sizes of depth axes by which positions are divided.

        Across it is those of all of them.
        """
        first, last = sum(self.axes[:3]) + (not self.across), sum(self.axes)
        return tuple(f"e{a}" for a in range(first, last))

    @property
    def describable(self) -> bool:
        """Whether A and B may be read through tensor descriptors: matrices with neighbours along one of their axes."""
        plain = not self.across and not self.windows and not self.tail and self.axes[3] == 1
        return plain and all({f.own.kinds[1], f.own.kinds[2]} == {"1", "s"} for f in (self.a, self.b))

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

    def walk(self, i: int, sizes: Sequence[int]) -> tuple[int, dict[int, tuple[int, ...]]]:
        """Offset of a pattern's tensor, and for each of its groups the strides along all axes of the group.

        Args:
            i: Number of the pattern.
            sizes: Values of :attr:`names`.
        """
        pattern, values = self.patterns[i], dict(zip(self.names, sizes, strict=True))
        names = (f"s{i}_{j}" for j in range(pattern.strides))
        first, found = list(itertools.accumulate(self.axes, initial=0)), {}
        for kinds, group in zip(pattern.kinds, self.shares[i], strict=True):
            extents = sizes[first[group] : first[group + 1]]
            strides = [0 if k == "0" else 1 if k == "1" else values[next(names)] for k in kinds]
            while strides and len(strides) < len(extents):  # they are walked as one
                strides.insert(0, strides[0] * extents[len(extents) - len(strides)])
            found[group] = tuple(strides)
        return values[f"o{i}"], found

    def reach(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """For each pattern, elements of its memory up to the last one that may be touched."""
        first, found = list(itertools.accumulate(self.axes, initial=0)), []
        for i in range(len(self.patterns)):
            last, strides = self.walk(i, sizes)
            for group, steps in strides.items():
                extents = sizes[first[group] : first[group + 1]]
                last += sum(abs(s) * (n - 1) for s, n in zip(steps, extents, strict=True))
            found.append(max(last, 0) + 1)
        return tuple(found)


@record
class PartsKernel(KernelText):
    """Adds the parts of split sums, from the workspace, and finishes them; its parameters are those of the other."""

    of: ContractionKernel

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"{self.of.symbol}_parts"

    @property
    def pointers(self) -> tuple[str, ...]:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        return self.of.pointers

    def text(self) -> str:
        """The module, which is that of the other."""
        return self.of.text()


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
    *,
    across: bool = False,
    tail: int = 0,
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
        expr: What is stored, of the sum (operand 0, of type :func:`accumulator`, or i32 of whole numbers) and
            ``extras`` (1, 2 ...).
        extras: Further operands, over the axes of the result.
        windows: Where A's elements count; at most one for each axis.
        precision: How float32 is multiplied: "ieee", "tf32" or "tf32x3"; "whole" of float16: both factors are whole
            numbers of at most 255 in size.
        across: For small products of a large batch: elements are multiplied one by one, not matrices.
        tail: Last elements of the last depth axis that do not count; see :class:`ContractionKernel`.

    Raises:
        CompileError: types are not multiplied, or do not agree.
    """
    left, right = (f.expr or operand(0, f.dtype) for f in (a, b))
    if left.dtype != right.dtype:
        raise CompileError("A and B are multiplied in one type", expected=left.dtype, found=right.dtype)
    accumulator(left.dtype)
    if precision not in _PRECISIONS:
        raise CompileError("this is no way to multiply", expected=", ".join(_PRECISIONS), found=precision)
    if precision == "whole" and left.dtype != "f16":
        raise CompileError("whole numbers are multiplied as float16", expected="f16", found=left.dtype)
    groups = (batch, rows, columns, depth)
    tensors = [(a.dtype, a.access, _OF_A), (b.dtype, b.access, _OF_B)]
    tensors += [(x.dtype, x.access, _OF_A) for x in a.extras]
    tensors += [(x.dtype, x.access, _OF_B) for x in b.extras]
    tensors += [(x.dtype, x.access, _OF_C) for x in (*extras, Extra(expr.dtype, out))]
    strides = [_split(access, share, groups) for _, access, share in tensors]
    if across:
        nothing = (0,) * len(columns)
        strides = [_moved(own, own.get(COLUMNS, nothing)) for own in strides]
        groups = ((), rows, (*batch, *columns), depth)
    shares = _shares(len(a.extras), len(b.extras), len(extras), across=across)
    windowed = {ROWS: [w.row for w in windows], DEPTH: [w.depth for w in windows]}
    if tail:  # the last axis stays one
        windowed[DEPTH].append(len(depth) - 1)
    sizes: list[Shape] = []
    places: dict[int, list[int]] = {}
    for group, own in enumerate(groups):
        users = [i for i, share in enumerate(shares) if group in share]
        extents, merged, places[group] = _merged(own, [strides[i][group] for i in users], windowed.get(group, []))
        if not extents and group != BATCH:
            extents, merged = (1,), [(0,) for _ in users]
        sizes.append(extents)
        for i, found in zip(users, merged, strict=True):
            strides[i][group] = found
    patterns: list[Pattern] = []
    numbers: list[DimLike] = []
    for (dtype, access, _), walk, share in zip(tensors, strides, shares, strict=True):
        kinds, steps = zip(*(_kinds(sizes[group], walk[group]) for group in share), strict=True)
        patterns.append(Pattern(dtype, (kinds[0], kinds[1], kinds[2])))
        numbers += [access.offset, *itertools.chain(*steps)]
    first, second = 2 + len(a.extras), 2 + len(a.extras) + len(b.extras)
    kernel = ContractionKernel(
        (len(sizes[BATCH]), len(sizes[ROWS]), len(sizes[COLUMNS]), len(sizes[DEPTH])),
        FactorPattern(patterns[0], tuple(patterns[2:first]), left),
        FactorPattern(patterns[1], tuple(patterns[first:second]), right),
        tuple(patterns[second:-1]),
        patterns[-1],
        expr,
        tuple(
            WindowPattern(row, at, D.proves_le(depth[w.depth], MOST_BITS))
            for w, row, at in zip(windows, places[ROWS], places[DEPTH], strict=not tail)
        ),
        precision,
        across,
        tail,
    )
    limits = [x for w in windows for x in (w.step, w.dilation, w.pad, w.size)]
    return kernel, (*itertools.chain(*sizes), *limits, *numbers)


def _shares(of_a: int, of_b: int, of_c: int, *, across: bool) -> tuple[_Share, ...]:
    """Groups of axes of A, B, ``of_a`` extras of A, ``of_b`` of B, ``of_c`` of the result, and the result."""
    left = _A_ACROSS if across else _OF_A
    return (left, _OF_B, *[left] * of_a, *[_OF_B] * of_b, *[_OF_C] * (of_c + 1))


def _split(access: Access, share: _Share, groups: Sequence[Shape]) -> dict[int, Shape]:
    """Strides by group."""
    parts, at = {}, 0
    for group in share:
        parts[group] = access.strides[at : at + len(groups[group])]
        at += len(groups[group])
    if at != len(access.strides):
        raise CompileError("a tensor's strides are not those of its axes", expected=at, found=len(access.strides))
    return parts


def _moved(strides: dict[int, Shape], columns: Shape) -> dict[int, Shape]:
    """Batch axes put before ``columns``."""
    return strides | {BATCH: (), COLUMNS: (*strides[BATCH], *columns)}


def _merged(
    sizes: Shape, strides: Sequence[Shape], windowed: Sequence[int]
) -> tuple[Shape, Sequence[Shape], list[int]]:
    """The axes of a group, merged where all tensors allow it; for each of ``windowed`` its new number, or -1."""
    labels = [axis if axis in windowed else -1 for axis in range(len(sizes))]
    extents, merged, kept = merge_axes(sizes, [Access(s) for s in strides], labels)
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
