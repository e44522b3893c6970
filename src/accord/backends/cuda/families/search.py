"""The first elements of lines in some order: each finds its rank among the others.

Lines that are long for what is wanted of them are cut into blocks, whose best are candidates for the next round.
"""

from __future__ import annotations

from collections.abc import Callable

from accord.backends.cuda.families.table import any_strides, arranges, selects
from accord.backends.epilogue import substitute
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, program_phase
from accord.backends.loops.table import output_operands
from accord.backends.loops.values import Reduction, Result
from accord.backends.ordering import order_key, top_k_of
from accord.backends.protocol import Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.expr.lang import Expr, bits, cast, const, operand
from accord.expr.primitives import eq, ge, lt, select
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous
from accord.record import record

__all__ = ["Elements", "ranked_phase", "top_k"]

#: Elements of a block; the longest line that is not cut.
_BLOCK, _LONGEST = 1024, 4096


@record
class Elements:
    """Lines of elements and, where they are not in their first places any more, those.

    Attributes:
        dtype: Of the elements.
        length: Of a line.
        values: Over the axes of the rows, then along the line.
        numbers: The first places, as ``values``; -1 for no element. None: they are where they were.
        operands: Of the kernel: elements, and places.
    """

    dtype: str
    length: DimLike
    values: Access
    numbers: Access | None
    operands: tuple[int, ...]


def ranked_phase(
    rows: Shape,
    source: Elements,
    block: DimLike,
    count: DimLike,
    targets: tuple[Access | None, Access | None],
    operands: tuple[int, ...],
    *,
    descending: bool,
) -> Phase:
    """A phase that writes the first elements of each block of each line, in order; equal ones as they come.

    Args:
        rows: Sizes of the row axes.
        source: The lines.
        block: Elements of a block, the last one may have fewer.
        count: How many of each block are wanted.
        targets: Elements and their first places, over the rows, the blocks, and the elements of a block; or None.
        operands: The kernel's, of those that are not None.
        descending: The greatest come first.
    """
    whole = block == source.length
    blocks: DimLike = 1 if whole else D.ceildiv(source.length, block)
    cut = not whole and D.modulo(source.length, block) != 0
    none = (0,) * len(rows)
    values: list[Operand | Result] = []
    sources: list[int] = []

    def index(strides: Shape, offset: DimLike = 0) -> Expr:
        values.append(Operand("i64", Access((*none, *strides), offset), memory=False))
        return operand(len(values) - 1, "i64")

    def element(at: Expr, strides: Shape, dtype: str, access: Access, number: int, other: int) -> Expr:
        step = access.strides[-1]
        own = (0, 0, 0) if cut else (step * block, *(step * s for s in strides[1:]))
        lookups = [Lookup(at, step, source.length, "skip")] if cut else []
        if other == 0 and not (isinstance(count, int) and isinstance(source.length, int)):
            last = index((0, 0, 0), D.maximum(count, 1) - 1)  # there are as many elements as are wanted
            lookups.append(Lookup(last, 0, source.length))
        values.append(Operand(dtype, Access((*access.strides[:-1], *own), access.offset), True, tuple(lookups), other))
        sources.append(number)
        return operand(len(values) - 1, dtype)

    key = order_key(source.dtype, descending=descending)
    sides = []
    for strides in ((block, 1, 0), (block, 0, 1)):
        at = index(strides)
        value = element(at, strides, source.dtype, source.values, source.operands[0], 0)
        place, there = at, lt(at, index((0, 0, 0), source.length)) if cut else None
        if source.numbers is not None:
            place = element(at, strides, "i64", source.numbers, source.operands[1], -1)
            there = ge(place, 0)
        sides.append((at, value, substitute(key, _always(value)), place, there))
    (at, value, own, place, there), (other_at, _, other, _, other_there) = sides
    before = lt(other_at, at)
    better = lt(other, own) | (eq(other, own) & before)
    if there is not None and other_there is not None:
        better = select(other_there, ~there | better, ~there & before)
        place = select(there, place, const(-1, "i64"))
    rank = cast(operand(len(values), "i32"), "i64")
    values.append(Result(0))
    outputs = []
    for target, stored in zip(targets, (value, place), strict=True):
        if target is not None:
            *outer, step = target.strides
            outputs.append(Output(stored, Access((*outer, 0, 0), target.offset), (Lookup(rank, step, count, "skip"),)))
    extents = (*rows, blocks, block, block)
    reduction = Reduction("add", (cast(better, "i32"),))
    program = LoopProgram(extents, frozenset({len(rows) + 2}), tuple(values), (reduction,), tuple(outputs))
    return program_phase(program, sources, operands)


def _always(value: Expr) -> Callable[[int, str], Expr]:
    return lambda _number, _dtype: value


arranges("TopK")(any_strides)


@selects("TopK")
def top_k(view: NodeView) -> Kernel | Reason:
    """The k greatest or smallest elements of each line, in order whether that is asked for or not."""
    asked = top_k_of(view)
    if isinstance(asked, Reason):
        return asked
    shape, dtype, axis, count = asked
    length = shape[axis]
    if isinstance(length, int) and isinstance(count, int) and count > length:
        return Reason(f"{count} of {length} elements are wanted")
    rows = tuple(d for a, d in enumerate(shape) if a != axis)
    numbers = output_operands(view.node, 1)
    numbers += [-1] * (2 - len(numbers))
    descending = bool(view.attr("largest", 1))

    def last(access: Access) -> Access:
        return Access((*access.strides[:axis], *access.strides[axis + 1 :], access.strides[axis]), access.offset)

    source = Elements(dtype, length, last(view.access(0)), None, (0,))
    scratch = 1 + sum(n >= 0 for n in numbers)
    room: DimLike = 0
    phases = []
    while isinstance(length, int) and isinstance(count, int) and length > _LONGEST and 4 * count <= _BLOCK:
        blocks = -(-length // _BLOCK)
        whole = (*rows, blocks, count)
        total = D.product(whole)
        places = Access(contiguous(whole), D.ceildiv(room, 8))
        elements = Access(contiguous(whole), D.floordiv(room + total * 8, bits(dtype) // 8))
        room = D.ceildiv(room + total * 16, 64) * 64
        phases.append(
            ranked_phase(rows, source, _BLOCK, count, (elements, places), (scratch, scratch), descending=descending)
        )
        length = blocks * count
        lines = contiguous((*rows, length))
        source = Elements(
            dtype, length, Access(lines, elements.offset), Access(lines, places.offset), (scratch, scratch)
        )
    targets = []
    for k, number in enumerate(numbers):
        own = None if number < 0 else last(view.output_access(k))
        targets.append(None if own is None else Access((*own.strides[:-1], 0, own.strides[-1]), own.offset))
    ends = tuple(n for n in numbers if n >= 0)
    phases.append(ranked_phase(rows, source, length, count, (targets[0], targets[1]), ends, descending=descending))
    return NativeKernel(f"top k {dtype}", tuple(phases), (0,), workspace=room)
