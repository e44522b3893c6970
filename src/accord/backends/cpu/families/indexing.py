"""Operators that index by values: gather and scatter of every kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.indexing import Coordinate, copy_phase, indexed_phase, positions_phase
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.loops.members.movements import known_bits
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.expr.lang import Expr, bits, call, cast, operand
from accord.expr.onnx_ops import dtype_name
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = ["gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "tensor_scatter"]

_OPERATORS = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "TensorScatter")


@arranges(*_OPERATORS)
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


class _Words:
    """Elements that only move: an unsigned integer of their size, or two of 64 bits for complex128."""

    def __init__(self, size: int) -> None:
        self.pair = size == 128
        self.dtype = "u64" if self.pair else f"u{size}"

    def extents(self, shape: Shape) -> Shape:
        """``shape`` with an axis for the two halves."""
        return (*shape, 2) if self.pair else shape

    def access(self, access: Access, *, repeats: bool = False) -> Access:
        """How the halves lie; the index tensor ``repeats`` for both."""
        if not self.pair:
            return access
        if repeats:
            return Access((*access.strides, 0), access.offset)
        return Access((*(s * 2 for s in access.strides), 1), access.offset * 2)

    def coordinate(self, size: DimLike, stride: DimLike) -> Coordinate:
        """A coordinate along an axis of the tensor."""
        return Coordinate(size, stride * 2 if self.pair else stride)


def words(fact: TensorFact) -> _Words | Reason:
    """How the elements of a tensor can be moved."""
    size = known_bits(fact)
    if size not in (8, 16, 32, 64, 128):
        return Reason("the elements have no size that can be moved")
    return _Words(size)


def _operands(view: NodeView, *, data: int = 0, index: int = 1) -> tuple[Shape, Shape, str, _Words] | Reason:
    """Shapes of data and indices, the indices' dtype, how elements move."""
    shape = view.tensor(data).shape
    found = known(view.tensor(index), "the indices")
    if isinstance(found, Reason):
        return found
    moved = words(view.tensor(data))
    if isinstance(moved, Reason):
        return moved
    if shape is None:
        return Reason("the rank of the data is not known")
    if found[1] not in ("i32", "i64"):
        return Reason("indices are int32 or int64")
    return shape, found[0], found[1], moved


# gather


@selects("Gather")
def gather(view: NodeView) -> Kernel | Reason:
    """Slices along an axis."""
    found = _operands(view)
    if isinstance(found, Reason):
        return found
    shape, index_shape, index_dtype, moved = found
    if not shape:
        return Reason("a scalar has no axis")
    axis = view.axis(view.attr("axis", 0), len(shape))
    data, index, out = view.access(0), view.access(1), view.output_access()
    before, after = axis, len(shape) - axis - 1
    phase = indexed_phase(
        moved.extents((*shape[:axis], *index_shape, *shape[axis + 1 :])),
        moved.access(out),
        moved.access(Access((*data.strides[:axis], *(0 for _ in index_shape), *data.strides[axis + 1 :]), data.offset)),
        moved.access(Access((*(0,) * before, *index.strides, *(0,) * after), index.offset), repeats=True),
        [moved.coordinate(shape[axis], data.strides[axis])],
        dtype=moved.dtype,
        index_dtype=index_dtype,
        operands=(2, 1, 0),
    )
    return NativeKernel(f"gather {moved.dtype}", (phase,), (0, 1))


@selects("GatherElements")
def gather_elements(view: NodeView) -> Kernel | Reason:
    """Elements along an axis, one for each index."""
    found = _operands(view)
    if isinstance(found, Reason):
        return found
    shape, index_shape, index_dtype, moved = found
    if len(index_shape) != len(shape) or not shape:
        return Reason("data and indices differ in rank, or are scalars")
    axis = view.axis(view.attr("axis", 0), len(shape))
    data = view.access(0)
    phase = indexed_phase(
        moved.extents(index_shape),
        moved.access(view.output_access()),
        moved.access(_without(data, axis)),
        moved.access(view.access(1), repeats=True),
        [moved.coordinate(shape[axis], data.strides[axis])],
        dtype=moved.dtype,
        index_dtype=index_dtype,
        limits=_limits(index_shape, shape, axis),
        operands=(2, 1, 0),
    )
    return NativeKernel(f"gather elements {moved.dtype}", (phase,), (0, 1))


def _without(access: Access, axis: int) -> Access:
    """The same walk without moving along ``axis``."""
    return Access((*access.strides[:axis], 0, *access.strides[axis + 1 :]), access.offset)


def _limits(index: Shape, data: Shape, axis: int) -> list[tuple[DimLike, DimLike]]:
    """Sizes of the indices that must not exceed the data's; a kernel for indices of too many rows would leave it."""
    pairs = [(i, d) for a, (i, d) in enumerate(zip(index, data, strict=True)) if a != axis]
    return [(i, d) for i, d in pairs if i != d]


@selects("GatherND")
def gather_nd(view: NodeView) -> Kernel | Reason:
    """Slices at coordinates."""
    found = _operands(view)
    if isinstance(found, Reason):
        return found
    shape, index_shape, index_dtype, moved = found
    batch = int(view.attr("batch_dims", 0))
    depth = index_shape[-1] if index_shape else 0
    if not isinstance(depth, int) or not 1 <= depth <= len(shape) - batch:
        return Reason("the number of coordinates is not known")
    data, index = view.access(0), view.access(1)
    places, rows = len(index_shape) - 1, len(shape) - batch - depth
    phase = indexed_phase(
        moved.extents((*index_shape[:-1], *shape[batch + depth :])),
        moved.access(view.output_access()),
        moved.access(
            Access((*data.strides[:batch], *(0,) * (places - batch), *data.strides[batch + depth :]), data.offset)
        ),
        moved.access(Access((*index.strides[:-1], *(0,) * rows), index.offset), repeats=True),
        [moved.coordinate(shape[batch + c], data.strides[batch + c]) for c in range(depth)],
        step=index.strides[-1],
        dtype=moved.dtype,
        index_dtype=index_dtype,
        operands=(2, 1, 0),
    )
    return NativeKernel(f"gather nd {moved.dtype}", (phase,), (0, 1))


@selects("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(view: NodeView) -> Kernel | Reason:
    """Elements along the last axis; a vector counts as a matrix of one row."""
    found = _operands(view)
    if isinstance(found, Reason):
        return found
    shape, index_shape, index_dtype, moved = found
    if not shape:
        return Reason("a scalar has no axis")
    rows: Shape = shape[:-1] or (1,)
    data, count = contiguous((*rows, shape[-1])), D.product(index_shape)
    phase = indexed_phase(
        moved.extents((*rows, count)),
        moved.access(Access(contiguous((*rows, count)))),
        moved.access(Access((*data[:-1], 0))),
        moved.access(Access((*(0,) * len(rows), 1)), repeats=True),
        [moved.coordinate(shape[-1], 1)],
        dtype=moved.dtype,
        index_dtype=index_dtype,
        operands=(2, 1, 0),
    )
    return NativeKernel(f"gather features {moved.dtype}", (phase,), (0, 1))


# scatter


_JOINS = {"add": "add", "mul": "mul", "max": "max", "min": "min"}
_BOOL_JOINS = {"add": "or", "max": "or", "mul": "and", "min": "and"}


class _Scatter:
    """The parts that all scatters share: the copy of the data, and how an element joins the one in place.

    Sums of f16 and bf16 are taken in f32: in a copy of that type, rounded at the end.

    Attributes:
        reduction: "none" or how elements are joined.
        dtype: Element type of the tensor that is written to.
        wide: That is a copy in a wider type.
    """

    def __init__(self, view: NodeView, moved: _Words, reduction: str, element: str | None) -> None:
        self.view = view
        self.moved = moved
        self.reduction = reduction
        self.shape = view.output().shape or ()
        self.line = moved.dtype if element is None else element
        self.dtype = self.line
        self.join: Expr | None = None
        if element is not None:
            self.dtype = "f32" if element in ("f16", "bf16") else element
            op = (_BOOL_JOINS if element == "bool" else _JOINS)[reduction]
            self.join = call(op, operand(0, self.dtype), cast(operand(1, element), self.dtype))
        self.wide = self.dtype != self.line

    def access(self) -> Access:
        """How the tensor lies that is written to."""
        if self.wide:
            return Access(contiguous(self.shape))
        return self.moved.access(self.view.output_access()) if self.join is None else self.view.output_access()

    def kernel(self, name: str, reads: Sequence[int], phases: Sequence[Phase]) -> NativeKernel:
        """The kernel: copy, ``phases`` that write to operand :attr:`target`, and what follows."""
        view = self.view
        out = len(reads)
        source, stored, count = view.access(0), view.output_access(), D.product(self.shape)
        if self.wide:
            own = Access(contiguous(self.shape))
            narrow, x = self.line, operand(0, self.line)
            first = pointwise_phase(self.shape, [(narrow, source)], [("f32", own)], [cast(x, "f32")], (0, out + 1))
            back = cast(operand(0, "f32"), narrow)
            last = pointwise_phase(self.shape, [("f32", own)], [(narrow, stored)], [back], (out + 1, out))
            return NativeKernel(name, (first, *phases, last), tuple(reads), workspace=D.maximum(count, 1) * 4)
        if source == stored == Access(contiguous(self.shape)):
            size = bits(self.line) // 8 * (2 if self.moved.pair else 1)
            first = copy_phase(count * size, (0, out))
            return NativeKernel(name, (first, *phases), tuple(reads), in_place=((0, 0),))
        word, extents = self.moved.dtype, self.moved.extents(self.shape)
        places = [(word, self.moved.access(source))], [(word, self.moved.access(stored))]
        first = pointwise_phase(extents, *places, [operand(0, word)], (0, out))
        return NativeKernel(name, (first, *phases), tuple(reads))

    def target(self, reads: int) -> int:
        """Operand number of the tensor that is written to."""
        return reads + 1 if self.wide else reads


def _scatter(view: NodeView, moved: _Words) -> _Scatter | Reason:
    reduction = str(view.attr("reduction", "none"))
    if reduction == "none":
        return _Scatter(view, moved, reduction, None)
    if reduction not in _JOINS:
        return Reason(f"reduction '{reduction}' is unknown")
    dtype = view.tensor(0).dtype
    element = None if dtype is None else dtype_name(dtype)
    if element is None:
        return Reason("elements of this dtype have no arithmetic")
    return _Scatter(view, moved, reduction, element)


def _phase(
    scatter: _Scatter,
    extents: Shape,
    line: Access,
    at: Access,
    index: Access,
    coordinates: Sequence[tuple[DimLike, DimLike]],
    index_dtype: str,
    sequential: Collection[int],
    *,
    step: DimLike = 1,
    limits: Sequence[tuple[DimLike, DimLike]] = (),
    operands: tuple[int, int, int],
) -> Phase:
    """The phase that writes the updates; ``at`` and coordinates are those of :meth:`_Scatter.access` already."""
    moved = scatter.moved
    plain = scatter.join is None
    return indexed_phase(
        moved.extents(extents) if plain else extents,
        moved.access(line) if plain else line,
        at,
        moved.access(index, repeats=True) if plain else index,
        [Coordinate(size, stride) for size, stride in coordinates],
        step=step,
        dtype=scatter.dtype,
        line_dtype=scatter.line,
        index_dtype=index_dtype,
        scatter=True,
        join=scatter.join,
        sequential=sequential,
        limits=limits,
        operands=operands,
    )


@selects("ScatterElements", "Scatter")
def scatter_elements(view: NodeView) -> Kernel | Reason:
    """Elements along an axis, one for each index. Only those of one line along the axis may meet."""
    found = _operands(view)
    if isinstance(found, Reason):
        return found
    shape, index_shape, index_dtype, moved = found
    if len(index_shape) != len(shape) or not shape:
        return Reason("data and indices differ in rank, or are scalars")
    scatter = _scatter(view, moved)
    if isinstance(scatter, Reason):
        return scatter
    axis = view.axis(view.attr("axis", 0), len(shape))
    at = scatter.access()
    phase = _phase(
        scatter,
        index_shape,
        view.access(2),
        _without(at, axis),
        view.access(1),
        [(shape[axis], at.strides[axis])],
        index_dtype,
        (axis,),
        limits=_limits(index_shape, shape, axis),
        operands=(2, 1, scatter.target(3)),
    )
    return scatter.kernel(f"scatter elements {scatter.reduction} {scatter.line}", (0, 1, 2), (phase,))


@selects("ScatterND")
def scatter_nd(view: NodeView) -> Kernel | Reason:
    """Slices at coordinates. Elements of one slice never meet."""
    found = _operands(view)
    if isinstance(found, Reason):
        return found
    shape, index_shape, index_dtype, moved = found
    depth = index_shape[-1] if index_shape else 0
    if not isinstance(depth, int) or not 1 <= depth <= len(shape):
        return Reason("the number of coordinates is not known")
    if view.tensor(2).shape is None:
        return Reason("the rank of the updates is not known")
    scatter = _scatter(view, moved)
    if isinstance(scatter, Reason):
        return scatter
    at, index = scatter.access(), view.access(1)
    places, rows = len(index_shape) - 1, len(shape) - depth
    phase = _phase(
        scatter,
        (*index_shape[:-1], *shape[depth:]),
        view.access(2),
        Access((*(0,) * places, *at.strides[depth:]), at.offset),
        Access((*index.strides[:-1], *(0,) * rows), index.offset),
        [(shape[c], at.strides[c]) for c in range(depth)],
        index_dtype,
        range(places),
        step=index.strides[-1],
        operands=(2, 1, scatter.target(3)),
    )
    return scatter.kernel(f"scatter nd {scatter.reduction} {scatter.line}", (0, 1, 2), (phase,))


@selects("TensorScatter")
def tensor_scatter(view: NodeView) -> Kernel | Reason:
    """A block of rows into each entry of a cache: positions first, then a scatter that nothing meets in."""
    shape, update = view.tensor(0).shape, view.tensor(1).shape
    moved = words(view.tensor(0))
    if shape is None or update is None or isinstance(moved, Reason):
        return Reason("the elements cannot be moved" if isinstance(moved, Reason) else "a rank is not known")
    axis = view.axis(int(view.attr("axis", -2)), len(shape))
    starts = ""
    step: DimLike = 0
    if view.has(2):
        found = known(view.tensor(2), "the write indices")
        if isinstance(found, Reason) or found[1] not in ("i32", "i64"):
            return Reason("write indices are int32 or int64")
        starts, step = found[1], view.access(2).strides[0]
    reads = (0, 1, 2) if starts else (0, 1)
    out = len(reads)
    length = update[axis]
    scatter = _Scatter(view, moved, "none", None)
    positions = positions_phase(
        shape[0],
        length,
        shape[axis],
        starts=starts,
        step=step,
        circular=view.attr("mode", "linear") == "circular",
        operands=(2, out + 1) if starts else (out + 1,),
    )
    index: list[DimLike] = [0] * len(shape)
    index[0], index[axis] = length, 1
    at = scatter.access()
    phase = _phase(
        scatter,
        update,
        view.access(1),
        _without(at, axis),
        Access(tuple(index)),
        [(shape[axis], at.strides[axis])],
        "i64",
        (),
        operands=(1, out + 1, out),
    )
    kernel = scatter.kernel(f"tensor scatter {moved.dtype}", reads, (positions, phase))
    return NativeKernel(
        kernel.name, kernel.phases, reads, in_place=kernel.in_place, workspace=D.maximum(shape[0] * length * 8, 8)
    )
