"""Products of 8-bit integers: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv.

Zero points are read when the model runs; where they are constant, what they add to a column is computed at load, with
the bias and the factor of requantisation. See :mod:`accord.backends.cpu.lanes` for the arithmetic.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from accord.backends.cpu.contraction import RightMatrix
from accord.backends.cpu.conv import Convolution, Image
from accord.backends.cpu.depthwise import depthwise_phase
from accord.backends.cpu.families.contractions import convolution_of, walk_of
from accord.backends.cpu.families.table import selects
from accord.backends.cpu.families.windows import is_depthwise, packed_taps
from accord.backends.cpu.jit import machine
from accord.backends.cpu.lane_packing import Bytes, lane_packing_phase
from accord.backends.cpu.lanes import INTEGERS, lanes, pack_lanes, packed_length
from accord.backends.cpu.matmul import matmul_phase
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.cpu.tile import vectors_for
from accord.backends.cpu.transpose import moved_by
from accord.backends.epilogue import Epilogue, Extra, substitute
from accord.backends.images import window_axes
from accord.backends.loops.table import known
from accord.backends.products import after, matrices
from accord.backends.protocol import Array, Constant, Kernel, NativeKernel, Phase
from accord.backends.root import epilogue_of
from accord.backends.view import NodeView
from accord.expr.lang import Expr, cast, const, operand
from accord.expr.onnx_ops import dtype_name
from accord.expr.onnx_quantize import quantized, quantized_product
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason
from accord.ir.strides import Access, broadcast_access, contiguous

__all__ = ["conv", "matmul"]

#: Stands for packed B among the numbers of inputs.
_PACKED = -1
#: Stands for the sum of A's row among the expression's operands, until it is known how many there are.
_ROW = -1


@dataclass(frozen=True, slots=True)
class _Names:
    """Which inputs of a node are what; -1 for what it does not have.

    Attributes:
        left: A, or the image.
        left_zero: Its zero point.
        right: B, or the filters.
        right_zero: Its zero points.
        scales: Scales of A, B and the result, if that is quantised again.
        out_zero: Zero point of the result.
        bias: i32, one for each column.
    """

    left: int
    left_zero: int
    right: int
    right_zero: int
    scales: tuple[int, ...] = ()
    out_zero: int = -1
    bias: int = -1


_MATRICES = {"MatMulInteger": _Names(0, 2, 1, 3), "QLinearMatMul": _Names(0, 2, 3, 5, (1, 4, 6), 7)}
_IMAGES = {"ConvInteger": _Names(0, 2, 1, 3), "QLinearConv": _Names(0, 2, 3, 5, (1, 4, 6), 7, 8)}


@dataclass(frozen=True)
class _Columns:
    """What is computed for each column when a constant B is packed, see :func:`pack_lanes`; what is constant.

    Attributes:
        zero: Zero points of B.
        left_zero: Zero point of A, moved as A is.
        bias: The bias.
        scales: Scales of A, B and the result, or none.
        real: Type of the factors.
    """

    zero: TensorFact | None
    left_zero: int | None
    bias: TensorFact | None
    scales: tuple[TensorFact, ...]
    real: str

    def factors(self) -> Array:
        """By what sums are multiplied to be quantised again."""
        a, b, y = (f.numpy().astype(np.float32) for f in self.scales)
        factors: Array = a.reshape(()) * b / y.reshape(())
        return factors

    def pack(self, panels: Array, spread: Callable[[Array], Array]) -> Array:
        """The packed form of [groups, k, n]; ``spread`` makes a parameter [groups, 1, n]."""
        zero = None if self.zero is None else spread(self.zero.numpy())
        bias = None if self.bias is None else spread(self.bias.numpy())[:, 0]
        real = np.float32 if self.real == "f32" else np.float64
        factors = spread(self.factors().astype(real))[:, 0] if self.scales else None
        return pack_lanes(panels, vectors_for("i32", panels.shape[2]), zero, self.left_zero, bias, factors)


def _packed_matrices(fact: TensorFact, columns: _Columns) -> Array:
    b = fact.numpy()
    b = b[:, None] if b.ndim == 1 else b
    line = (*b.shape[:-2], 1, b.shape[-1])
    return columns.pack(b.reshape(-1, *b.shape[-2:]), lambda x: np.broadcast_to(x, line).reshape(-1, 1, line[-1]))


def _packed_filters(fact: TensorFact, columns: _Columns, c: Convolution) -> Array:
    line = (c.groups, 1, c.columns)
    each = (c.groups, 1, -1)
    return columns.pack(
        c.matrices(fact.numpy()), lambda x: np.broadcast_to(x.reshape(each) if x.size > 1 else x.ravel(), line)
    )


@dataclass(frozen=True)
class _Right:
    """B as a kernel finds it.

    Attributes:
        groups: Sizes of B's own groups.
        k: Lines.
        n: Columns.
        data: How it lies, if it is packed when the model runs.
        zero: How its zero points lie, along the groups and the columns.
        summed: Axes of a constant one that are summed over.
        pack: Packs a constant one.
        walk: From strides along ``groups`` and the columns, and an offset, to an access over the product's axes.
    """

    groups: Shape
    k: DimLike
    n: DimLike
    data: Bytes
    zero: Bytes
    summed: tuple[int, ...]
    pack: Callable[[TensorFact, _Columns], Array]
    walk: Callable[[tuple[DimLike, ...], DimLike, DimLike], Access]


class _Product:
    """Collects what a kernel reads, and writes the expression that it stores.

    Args:
        view: The node.
        names: Its inputs.
        dtypes: Element types of A and B.
        right: B.
        access: How an input is walked along the product's axes.
    """

    def __init__(
        self, view: NodeView, names: _Names, dtypes: tuple[str, str], right: _Right, access: Callable[[int], Access]
    ) -> None:
        self.view, self.names, self.dtypes, self.right, self.access = view, names, dtypes, right, access
        self.reads = [names.left, names.right]
        self.extras: list[Extra] = []
        self._sources: list[int] = []
        self.constants: dict[int, Constant] = {}
        self.phases: tuple[Phase, ...] = ()
        self.shared: DimLike = 0
        joined = lanes()
        self._moved = tuple(moved_by(d, to) for d, to in zip(dtypes, (joined.left, joined.right), strict=True))
        # what is known of each column at load
        constant = self._constant(names.right, names.right_zero) and 0 not in (right.k, right.n, *right.groups)
        self.packed = constant and D.is_known((*right.groups, right.k, right.n))
        zero = self._fact(names.left_zero)
        known_zero = zero is None or (zero.is_const and zero.numpy().size == 1)
        self._left_zero = None
        if self.packed and known_zero and self._constant(names.bias):
            self._left_zero = self._moved[0] + (0 if zero is None else int(zero.numpy().reshape(())))
        scales = [self._fact(i) for i in names.scales]
        singles = [f is not None and f.is_const and f.numpy().size == 1 for f in scales[::2]]
        known_factor = self.packed and all(singles) and self._constant(*names.scales)
        self._columns = _Columns(
            self._fact(names.right_zero),
            self._left_zero,
            self._fact(names.bias) if self._left_zero is not None else None,
            tuple(f for f in scales if f is not None) if known_factor else (),
            "f64",
        )
        if self._is_short():
            self._columns = replace(self._columns, real="f32")

    def _is_short(self) -> bool:
        """Whether no sum, whatever A is, leaves what :func:`quantized_product` can multiply."""
        columns, names = self._columns, self.names
        if not columns.scales or self._left_zero is None or "fma" not in machine().has:
            return False
        b = np.abs(self.view.tensor(names.right).numpy().astype(np.int16))
        sums = b.sum(axis=self.right.summed, dtype=np.int64)
        parameters = (columns.zero, columns.bias)
        zero, bias = (0 if f is None else int(np.abs(f.numpy().astype(np.int64)).max(initial=0)) for f in parameters)
        left = self._left_zero - self._moved[0]
        least = -128 if self.dtypes[0] == "i8" else 0
        longest = max(abs(least - left), abs(least + 255 - left))
        most = longest * (int(sums.max(initial=0)) + D.evaluate(self.right.k, {}) * zero) + bias
        return most < 1 << 24 and bool((most * np.abs(columns.factors().astype(np.float64)) < 1 << 21).all())

    def _has(self, index: int) -> bool:
        return index >= 0 and self.view.has(index)

    def _constant(self, *indices: int) -> bool:
        """Whether these inputs are constant or not there."""
        return all(not self._has(i) or self.view.tensor(i).is_const for i in indices)

    def _fact(self, index: int) -> TensorFact | None:
        return self.view.tensor(index) if self._has(index) else None

    # operands

    def read(self, index: int, access: Access | None = None) -> Expr:
        """An element of an input of the node."""
        dtype = self.view.tensor(index).dtype
        name = None if dtype is None else dtype_name(dtype)
        assert name is not None
        self._index(index)
        return self._extra(index, name, self.access(index) if access is None else access)

    def _index(self, index: int) -> int:
        if index not in self.reads:
            self.reads.append(index)
        return self.reads.index(index)

    def _extra(self, source: int, dtype: str, access: Access) -> Expr:
        self.extras.append(Extra(dtype, access))
        self._sources.append(source)
        return operand(len(self.extras), dtype)

    def _column(self, dtype: str, offset: DimLike) -> Expr:
        """What was computed for a column, in packed B from ``offset`` on."""
        steps: list[DimLike] = [self.right.n]
        for size in reversed(self.right.groups[1:]):
            steps.insert(0, steps[0] * size)
        return self._extra(_PACKED, dtype, self.right.walk(tuple(steps[: len(self.right.groups)]), 1, offset))

    # the expression

    def result(self, columns_at: DimLike, factors_at: DimLike) -> Expr:
        """The node's own result: the sum less what zero points add, requantised if that is what the node does.

        Args:
            columns_at: Where packed B has what is computed for each column, in elements of 32 bits.
            factors_at: Where it has the factors.
        """
        names = self.names
        total: Expr = operand(0, "i32")
        if self._left_zero is not None:
            if self._left_zero or self._has(names.bias):
                total = total + self._column("i32", columns_at)
        else:
            if self._has(names.left_zero) or self._moved[0]:
                total = total - self._zero(names.left_zero, 0) * self._column("i32", columns_at)
            if self._has(names.bias):
                total = total + self.read(names.bias)
        if not self._is_centred():
            total = total - self._zero(names.right_zero, 1) * operand(_ROW, "i32")
        return self.requantised(total, factors_at)

    def requantised(self, total: Expr, factors_at: DimLike | None) -> Expr:
        """An exact sum, quantised again if that is what the node does; ``factors_at`` as for :meth:`result`."""
        names = self.names
        if not names.scales:
            return total
        real = self._columns.real if factors_at is not None else "f64"
        if self._columns.scales and factors_at is not None:
            factor = self._column(real, factors_at if real == "f32" else D.floordiv(factors_at, 2))
        else:
            a, b, y = (cast(self.read(i), "f32") for i in names.scales)
            factor = cast(a * b / y, "f64")
        zero = self.read(names.out_zero)
        if real == "f32":
            return quantized_product(total, factor, zero, zero.dtype)
        return quantized(cast(total, "f64") * factor, zero, zero.dtype)

    def _zero(self, index: int, side: int) -> Expr:
        """A zero point as i32, moved as the elements are."""
        if not self._has(index):
            return const(self._moved[side], "i32")
        return cast(self.read(index), "i32") + self._moved[side]

    def _is_centred(self) -> bool:
        """Whether B's zero points, moved as B is, are known to be 0."""
        zero = self._fact(self.names.right_zero)
        if zero is None:
            return not self._moved[1]
        return zero.is_const and not (zero.numpy().astype(np.int32) + self._moved[1]).any()

    # the kernel

    def prepare(self) -> tuple[DimLike, DimLike]:
        """Have B packed, at load or by a phase; where columns and factors are then, in elements of 32 bits."""
        names, right = self.names, self.right
        if self.packed:
            self.constants[names.right] = functools.partial(right.pack, self.view.tensor(names.right), self._columns)
            k, n = D.evaluate(right.k, {}), D.evaluate(right.n, {})
            return packed_length(D.evaluate(D.product(right.groups), {}), k, n)[:2]
        zero = right.zero if self._has(names.right_zero) else None
        vectors = vectors_for("i32", right.n) if isinstance(right.n, int) else 2
        numbers = (self._index(names.right), self._index(names.right if zero is None else names.right_zero), _PACKED)
        phase, columns_at, self.shared = lane_packing_phase(
            right.groups, right.n, right.k, vectors, right.data, zero, numbers
        )
        self.phases = (phase,)
        return columns_at, 0

    def matrix(self, batch: Callable[[tuple[DimLike, ...]], tuple[DimLike, ...]]) -> RightMatrix:
        """Packed B, whose own groups' strides ``batch`` makes those of the product."""
        width = machine().width(32)
        size = D.ceildiv(self.right.k, lanes().count) * (D.ceildiv(self.right.n, width) * width)
        steps: list[DimLike] = [size]
        for extent in reversed(self.right.groups[1:]):
            steps.insert(0, steps[0] * extent)
        return RightMatrix("i32", batch(tuple(steps[: len(self.right.groups)])), packed=True)

    def centred_taps(self) -> Array:
        """Constant filters less their zero points, which may be constant only."""
        w = self.view.tensor(self.names.right).numpy().astype(np.int16)
        if self._columns.zero is not None:
            w = w - self._columns.zero.numpy().astype(np.int16).reshape(-1, *[1] * (w.ndim - 1))
        return packed_taps(w, "f32")

    def finish(self, epilogue: Epilogue) -> tuple[Epilogue, tuple[int, ...]]:
        """The whole epilogue, and the operands of the contraction; :attr:`phases` get theirs too."""
        rows = len(epilogue.extras) + 1
        expr = substitute(epilogue.expr, lambda i, dtype: operand(rows if i == _ROW else i, dtype))
        first = len(self.reads)
        others = range(first, first + len(epilogue.extras) - len(self.extras))
        workspace = first + len(others) + 1
        packed = self.reads.index(self.names.right) if self.packed else workspace
        own = [packed if s == _PACKED else self.reads.index(s) for s in self._sources]
        self.phases = tuple(
            replace(p, operands=tuple(workspace if o == _PACKED else o for o in p.operands)) for p in self.phases
        )
        operands = (self.reads.index(self.names.left), packed, *own, *others, workspace - 1, workspace)
        return Epilogue(expr, epilogue.extras), operands

    def kernel(self, name: str, phase: Phase, scratch: DimLike, flops: DimLike) -> NativeKernel:
        """The kernel whose last phase is the contraction."""
        phases = (*self.phases, phase)
        return NativeKernel(
            name, phases, tuple(self.reads), self.constants, workspace=self.shared + scratch, flops=flops
        )


def _operands(view: NodeView, names: _Names) -> tuple[Shape, Shape, tuple[str, str]] | Reason:
    """Shapes and element types of A and B, if they are 8-bit integers, and so is what is quantised again."""
    found = []
    for index in (names.left, names.right):
        one = known(view.tensor(index), f"input {index}")
        if isinstance(one, Reason):
            return one
        found.append(one)
    (a, left), (b, right) = found
    if not {left, right} <= INTEGERS:
        return Reason(f"integer products are generated for 8 bits, not for {left} and {right}")
    others = (names.left_zero, names.right_zero, names.out_zero, names.bias, *names.scales)
    for index in others:
        refused = known(view.tensor(index), f"input {index}") if index >= 0 and view.has(index) else None
        if isinstance(refused, Reason):
            return refused
    if names.scales and known(view.tensor(names.out_zero), "")[1] not in INTEGERS:  # type: ignore[index]
        return Reason("the result is not quantised to 8 bits")
    return a, b, (left, right)


# matrices


@selects(*_MATRICES, epilogue=True)
def matmul(view: NodeView) -> Kernel | Reason:
    """A batch of products with NumPy's rules, summed in 32 bits; QLinearMatMul quantises them again."""
    names = _MATRICES[view.node.op_type]
    found = _operands(view, names)
    if isinstance(found, Reason):
        return found
    a, b, dtypes = found
    if not a or not b:
        return Reason("a scalar operand")
    p = matrices(view, (a, view.access(names.left)), (b, view.access(names.right)))
    m, n, k = p.sizes
    whole = (*p.batch, m, n)
    lead: Shape = b[:-2]
    rows = (names.left_zero, *names.scales[:1])
    for index in (*rows, names.right_zero, *names.scales[1:2]):
        shape = view.tensor(index).shape if index >= 0 and view.has(index) else ()
        if shape and shape != (1,) and p.lacking:
            return Reason("a vector with several zero points or scales")

    def access(index: int) -> Access:
        """A parameter of A, of B or of the result along the product's axes."""
        shape, own = view.tensor(index).shape or (), view.access(index)
        if index in rows and len(shape) == 1:
            shape, own = (*shape, 1), Access((*own.strides, 0), own.offset)
        return broadcast_access(shape, whole, own)

    def walk(groups: tuple[DimLike, ...], column: DimLike, offset: DimLike) -> Access:
        return Access((*broadcast_access(lead, p.batch, Access(groups)).strides, 0, column), offset)

    *groups, step, column = view.access(names.right).strides if len(b) > 1 else (*view.access(names.right).strides, 0)
    data = Bytes(dtypes[1], tuple(groups), column, view.access(names.right).offset, step)
    zero = data
    if names.right_zero >= 0 and view.has(names.right_zero):
        shape, own = view.tensor(names.right_zero).shape or (), view.access(names.right_zero)
        *groups, _, column = broadcast_access(shape, (*lead, 1, n), own).strides
        zero = Bytes(dtypes[1], tuple(groups), column, own.offset)
    right = _Right(lead, k, n, data, zero, (max(len(b) - 2, 0),), _packed_matrices, walk)
    product = _Product(view, names, dtypes, right, access)
    result = product.result(*product.prepare())
    epilogue, operands = product.finish(after(result, product.extras, p.epilogue))
    phase, scratch = matmul_phase(
        p.batch,
        m,
        n,
        k,
        walk_of(dtypes[0], p.accesses[0]),
        product.matrix(lambda steps: broadcast_access(lead, p.batch, Access(steps)).strides),
        [walk_of(e.dtype, e.access) for e in epilogue.extras],
        walk_of(epilogue.expr.dtype, p.accesses[2]),
        epilogue.expr,
        operands,
        product.shared,
    )
    return product.kernel(f"matmul {' '.join(dtypes)}", phase, scratch, 2 * D.product((*whole, k)))


# images


@selects(*_IMAGES, epilogue=True)
def conv(view: NodeView) -> Kernel | Reason:
    """Convolution over one to three spatial axes, summed in 32 bits; QLinearConv quantises it again."""
    names = _IMAGES[view.node.op_type]
    found = _operands(view, names)
    if isinstance(found, Reason):
        return found
    x, w, dtypes = found
    c = convolution_of(view, x, w, Image(dtypes[0], view.access(names.left)), constant=True)
    out = view.output().shape
    if isinstance(c, Reason) or out is None:
        return c if isinstance(c, Reason) else Reason("the output's rank is not known")
    axes = len(x) - 2

    def access(index: int) -> Access:
        """A parameter that is one number, or one for each output channel."""
        own, shape = view.access(index), view.tensor(index).shape or (1,)
        over = Access((own.strides[0] if own.strides else 0, *(0,) * axes), own.offset)
        return broadcast_access((shape[0], *(1,) * axes), out, over)

    def walk(groups: tuple[DimLike, ...], column: DimLike, offset: DimLike) -> Access:
        del groups  # those of all groups follow each other
        return Access((0, column, *(0,) * axes), offset)

    zero = Bytes(dtypes[1], (0,), 0)
    if names.right_zero >= 0 and view.has(names.right_zero):
        own = access(names.right_zero)
        zero = Bytes(dtypes[1], (own.strides[1] * c.columns,), own.strides[1], own.offset)
    own = view.access(names.right)
    inner, taps = c.channels_inner, math.prod(c.window.taps)
    data = Bytes(dtypes[1], (c.columns * c.length,), c.length, own.offset, taps if inner else 1, taps if inner else 1)
    pack = functools.partial(_packed_filters, c=c)
    right = _Right((c.groups,), c.length, c.columns, data, zero, tuple(range(1, len(w))), pack, walk)
    product = _Product(view, names, dtypes, right, access)
    longest = c.length * 255 * 255
    if product.packed and is_depthwise(view, names.right) and longest < 1 << 24:
        return _depthwise(view, product, x, dtypes[0])
    if not product.packed and own.strides != contiguous(w):
        return Reason("filters that are not constant must be row-major")
    result = product.result(*product.prepare())
    padding = None
    if not c.inside and names.left_zero >= 0 and view.has(names.left_zero):
        padding = len(product.extras)
        product.read(names.left_zero)
    epilogue, operands = product.finish(after(result, product.extras, epilogue_of(view)))
    phase, scratch = replace(c, padding=padding).phase(
        [Image(e.dtype, e.access) for e in epilogue.extras],
        Image(epilogue.expr.dtype, view.output_access()),
        epilogue.expr,
        operands,
        shared=product.shared,
    )
    return product.kernel(f"conv {' '.join(dtypes)}", phase, scratch, 2 * D.product((*out, *w[1:])))


def _depthwise(view: NodeView, product: _Product, x: Shape, dtype: str) -> NativeKernel:
    """Groups of few channels: the image less its zero point is written as f32, in which such short sums are exact."""
    names, out = product.names, view.output().shape or ()
    filters = tuple(int(d) for d in view.tensor(names.right).shape or () if isinstance(d, int))
    last = (0, *range(2, len(x)), 1)
    sizes = tuple(x[a] for a in last)
    reads, count = product.reads, int(view.attr("group", 1))
    image = view.access(names.left)
    value = cast(operand(0, dtype), "i32")
    sources = [(dtype, Access(tuple(image.strides[a] for a in last), image.offset))]
    if names.left_zero >= 0 and view.has(names.left_zero):
        sources.append((dtype, Access((0,) * len(x), view.access(names.left_zero).offset)))
        value = value - cast(operand(1, dtype), "i32")
        reads.append(names.left_zero)
    total = cast(operand(0, "f32"), "i32")
    if names.bias >= 0 and view.has(names.bias):
        total = total + product.read(names.bias)
    epilogue, (_, _, *operands, workspace) = product.finish(
        after(product.requantised(total, None), product.extras, epilogue_of(view))
    )
    steps = contiguous(sizes)
    numbers = [reads.index(i) for i in (names.left, names.left_zero)[: len(sources)]]
    whole = [("f32", Access(steps))]
    widened = pointwise_phase(sizes, sources, whole, [cast(value, "f32")], (*numbers, workspace))
    taps = product.centred_taps()
    product.constants[names.right] = taps
    phase = depthwise_phase(
        x[0],
        filters[0],
        window_axes(view, x[2:], out[2:], filters[2:]),
        (filters[1], filters[0] // count),
        ("f32", Access((steps[0], steps[-1], *steps[1:-1]))),
        ("f32", Access(contiguous(taps.shape)), True),
        None,
        view.output_access(),
        epilogue,
        (workspace, 1, *operands),
    )
    product.phases = (widened,)
    return product.kernel(
        "depthwise conv of integers", phase, D.product(sizes) * 4, 2 * D.product((*out, *filters[1:]))
    )
