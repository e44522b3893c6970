"""Gather and scatter: loop programs that look places up."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cuda.families.table import arranges, selects
from accord.backends.loops.group import wide
from accord.backends.loops.members.movements import known_bits
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, pointwise, program_phase
from accord.backends.loops.table import known
from accord.backends.loops.values import Reduction, Result, form_of
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.expr.lang import Expr, call, cast, const, operand
from accord.expr.primitives import eq, lt, select
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason
from accord.ir.strides import Access

__all__ = ["gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd"]

#: Element types that the device adds, or takes the lesser or greater of, in one step.
_ATOMIC = {
    "add": frozenset({"f16", "bf16", "f32", "f64", "i32", "u32", "u64"}),
    "min": frozenset({"f32", "i32", "u32", "i64", "u64"}),
    "max": frozenset({"f32", "i32", "u32", "i64", "u64"}),
}


@arranges("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


class _Indexed:
    """Data and indices of a node.

    Attributes:
        shape: Of the data.
        strides: Of the data.
        word: An unsigned integer of the elements' size.
        indices: Shape of the indices.
        index_strides: Of the indices.
        index_type: Their element type.
    """

    def __init__(self, view: NodeView, word: str, shape: Shape, indices: tuple[Shape, str]) -> None:
        self.shape = shape
        self.strides = view.access(0).strides
        self.word = word
        self.indices, self.index_type = indices
        self.index_strides = view.access(1).strides

    @staticmethod
    def of(view: NodeView) -> _Indexed | Reason:
        """What is known of them, or what is not."""
        shape, word = view.tensor(0).shape, _word(view.tensor(0))
        indices = known(view.tensor(1), "the indices")
        if isinstance(indices, Reason):
            return indices
        if shape is None or word is None:
            return Reason("the rank is not known" if shape is None else "the elements have no size that can be moved")
        return _Indexed(view, word, shape, indices)

    def index(self, number: int) -> Expr:
        """Value ``number``, an index."""
        return cast(operand(number, self.index_type), "i64")


def _word(fact: TensorFact) -> str | None:
    n = known_bits(fact)
    return f"u{n}" if n in (8, 16, 32, 64) else None


def _found(
    view: NodeView, extents: Shape, x: _Indexed, indices: Sequence[Access], access: Access, axes: Sequence[int]
) -> NativeKernel:
    """A kernel that reads each element where the indices say.

    Args:
        view: The node.
        extents: Of the output.
        x: Data and indices.
        indices: How each index is walked over the output.
        access: How the data is walked, without what is looked up.
        axes: Of the data, which are looked up by the indices.
    """
    lookups = tuple(Lookup(x.index(k), x.strides[a], x.shape[a]) for k, a in enumerate(axes))
    values = (*(Operand(x.index_type, a) for a in indices), Operand(x.word, access, lookups=lookups))
    out = Output(operand(len(indices), x.word), view.output_access())
    program = LoopProgram(extents, frozenset(), values, (), (out,))
    phase = program_phase(program, (*((1,) * len(indices)), 0), (2,))
    return NativeKernel(f"{view.node.op_type} {x.word}", (phase,), (0, 1))


@selects("Gather")
def gather(view: NodeView) -> Kernel | Reason:
    """Slices along an axis, in the order of the indices."""
    x = _Indexed.of(view)
    if isinstance(x, Reason):
        return x
    axis = view.axis(view.attr("axis", 0), len(x.shape))
    before, after, inside = axis, len(x.shape) - axis - 1, len(x.indices)
    extents = (*x.shape[:axis], *x.indices, *x.shape[axis + 1 :])
    index = Access((*(0,) * before, *x.index_strides, *(0,) * after), view.access(1).offset)
    access = Access((*x.strides[:axis], *(0,) * inside, *x.strides[axis + 1 :]), view.access(0).offset)
    return _found(view, extents, x, [index], access, [axis])


@selects("GatherElements")
def gather_elements(view: NodeView) -> Kernel | Reason:
    """Each element by an index of its own along one axis."""
    x = _Indexed.of(view)
    if isinstance(x, Reason):
        return x
    axis = view.axis(view.attr("axis", 0), len(x.shape))
    access = Access(_without(x.strides, axis), view.access(0).offset)
    return _found(view, x.indices, x, [view.access(1)], access, [axis])


@selects("GatherND")
def gather_nd(view: NodeView) -> Kernel | Reason:
    """Slices by tuples of indices."""
    x = _Indexed.of(view)
    if isinstance(x, Reason):
        return x
    count, batch = x.indices[-1], int(view.attr("batch_dims", 0))
    if not isinstance(count, int):
        return Reason("the number of indices of a place is only known at run time")
    lead, rest = x.indices[:-1], x.shape[batch + count :]
    tuples = _tuples(view, x, count, len(rest))
    own = (*x.strides[:batch], *(0,) * (len(lead) - batch), *x.strides[batch + count :])
    axes = range(batch, batch + count)
    return _found(view, (*lead, *rest), x, tuples, Access(own, view.access(0).offset), axes)


def _tuples(view: NodeView, x: _Indexed, count: int, rest: int) -> list[Access]:
    """How each index of a tuple is walked, over the leading axes of the indices and ``rest`` further ones."""
    own = view.access(1)
    walked = (*x.index_strides[:-1], *(0,) * rest)
    return [Access(walked, own.offset + k * x.index_strides[-1]) for k in range(count)]


def _without(strides: Sequence[DimLike], axis: int) -> tuple[DimLike, ...]:
    return (*strides[:axis], 0, *strides[axis + 1 :])


@selects("ScatterElements")
def scatter_elements(view: NodeView) -> Kernel | Reason:
    """A copy of the data in which elements are replaced, or joined with others, at an index along one axis."""
    x = _Indexed.of(view)
    if isinstance(x, Reason):
        return x
    axis = view.axis(view.attr("axis", 0), len(x.shape))
    target = view.output_access()
    access = Access(_without(target.strides, axis), target.offset)
    made = _placed(view, x, x.indices, [view.access(1)], access, [axis])
    if not isinstance(made, Reason):
        return made
    # an element meets the updates of its line, if there are any in the line's other coordinates
    fewer = [a for a, (n, d) in enumerate(zip(x.indices, x.shape, strict=True)) if a != axis and n != d]

    def over(own: Access) -> tuple[Access, list[tuple[int, DimLike]]]:
        strides = (0 if a == axis or a in fewer else s for a, s in enumerate(own.strides))
        return Access((*strides, own.strides[axis]), own.offset), [(a, own.strides[a]) for a in fewer]

    return _folded(view, x, (x.indices[axis],), [over(view.access(1))], over(view.access(2)), [axis], made)


@selects("ScatterND")
def scatter_nd(view: NodeView) -> Kernel | Reason:
    """A copy of the data in which slices are replaced, or joined with others, at tuples of indices."""
    x = _Indexed.of(view)
    if isinstance(x, Reason):
        return x
    count = x.indices[-1]
    if not isinstance(count, int):
        return Reason("the number of indices of a place is only known at run time")
    lead, rest = x.indices[:-1], x.shape[count:]
    target = view.output_access()
    access = Access((*(0,) * len(lead), *target.strides[count:]), target.offset)
    made = _placed(view, x, (*lead, *rest), _tuples(view, x, count, len(rest)), access, range(count))
    if not isinstance(made, Reason):
        return made
    tuples: list[tuple[Access, list[tuple[int, DimLike]]]] = [
        (Access((*(0,) * len(x.shape), *a.strides[: len(lead)]), a.offset), []) for a in _tuples(view, x, count, 0)
    ]
    own = view.access(2)
    updates = Access((*(0,) * count, *own.strides[len(lead) :], *own.strides[: len(lead)]), own.offset)
    return _folded(view, x, lead, tuples, (updates, []), range(count), made)


def _placed(
    view: NodeView, x: _Indexed, extents: Shape, indices: Sequence[Access], access: Access, axes: Sequence[int]
) -> Kernel | Reason:
    """A copy, then the updates where the indices say; arguments as of :func:`_found`, for the output."""
    reduction = view.attr("reduction", "none")
    combine = "" if reduction == "none" else str(reduction)
    found = known(view.tensor(0), "the data")
    dtype = x.word
    if combine:
        if isinstance(found, Reason):
            return found
        dtype = found[1]
        if combine not in _ATOMIC or dtype not in _ATOMIC[combine]:
            return Reason(f"several {dtype} cannot be joined by '{combine}' in one step")
    shape, target = x.shape, view.output_access()
    copy = pointwise(shape, [(x.word, view.access(0))], [(x.word, target)], [operand(0, x.word)], (0, 3))
    lookups = tuple(Lookup(x.index(k), target.strides[a], shape[a]) for k, a in enumerate(axes))
    values = (*(Operand(x.index_type, a) for a in indices), Operand(dtype, view.access(2)))
    out = Output(operand(len(indices), dtype), access, lookups, combine)
    program = LoopProgram(extents, frozenset(), values, (), (out,))
    update: Phase = program_phase(program, (*((1,) * len(indices)), 2), (3,))
    return NativeKernel(f"{view.node.op_type} {dtype}", (copy, update), (0, 1, 2))


def _folded(
    view: NodeView,
    x: _Indexed,
    lead: Shape,
    indices: Sequence[tuple[Access, list[tuple[int, DimLike]]]],
    updates: tuple[Access, list[tuple[int, DimLike]]],
    axes: Sequence[int],
    why: Reason,
) -> Kernel | Reason:
    """A kernel in which each element of the result looks for the updates that meet it: always in the same order.

    Args:
        view: The node.
        x: Data and indices.
        lead: Sizes of the axes of the updates that are searched.
        indices: For each of ``axes`` how its index is walked over the result and ``lead``, and axes of the result along
            which it has fewer elements, with the stride.
        updates: The same of the updates.
        axes: Of the data, which the indices number.
        why: Updates are not joined where they meet.
    """
    found, combine = known(view.tensor(0), "the data"), str(view.attr("reduction", "none"))
    if isinstance(found, Reason) or combine not in ("add", "mul", "min", "max"):
        return why
    dtype = found[1]
    real = wide(dtype)
    kind = {"add": "or", "max": "or", "mul": "and", "min": "and"}[combine] if dtype == "bool" else combine
    rank = len(x.shape)
    values: list[Operand | Result] = [Operand(dtype, _beyond(view.access(0), len(lead)))]
    sources = [0]

    def place(axis: int) -> Expr:
        values.append(Operand("i64", Access(tuple(int(a == axis) for a in range(rank + len(lead)))), memory=False))
        return operand(len(values) - 1, "i64")

    def element(own: str, at: tuple[Access, list[tuple[int, DimLike]]], more: Sequence[Lookup], other: int) -> Expr:
        access, fewer = at
        inside = [Lookup(place(a), stride, x.indices[a], "skip") for a, stride in fewer]
        values.append(Operand(own, access, True, (*inside, *more), other))
        return operand(len(values) - 1, own)

    meets: Expr = const(True, "bool")
    checks = []
    for axis, at in zip(axes, indices, strict=True):
        # one that is not there names no element
        index = cast(element(x.index_type, at, (), -(1 << 31)), "i64")
        sources.append(1)
        values.append(Operand("i64", Access((0,) * (rank + len(lead)), x.shape[axis]), memory=False))
        size = operand(len(values) - 1, "i64")
        meets = meets & eq(select(lt(index, 0), index + size, index), place(axis))
        checks.append(Lookup(index, 0, x.shape[axis]))
    update = cast(element(dtype, updates, checks, 0), real)
    sources.append(2)
    neutral = form_of(Reduction(kind, (update,))).start[0]
    total = operand(len(values), real)
    values.append(Result(0))
    joined = call(kind, cast(operand(0, dtype), real), total)
    out = Output(cast(joined, dtype), _beyond(view.output_access(), len(lead)))
    reduction = Reduction(kind, (select(meets, update, neutral),))
    searched = frozenset(range(rank, rank + len(lead)))
    program = LoopProgram((*x.shape, *lead), searched, tuple(values), (reduction,), (out,))
    phase = program_phase(program, sources, (3,))
    return NativeKernel(f"{view.node.op_type} {dtype}", (phase,), (0, 1, 2))


def _beyond(access: Access, count: int) -> Access:
    """An access that repeats along further axes."""
    return Access((*access.strides, *(0,) * count), access.offset)
