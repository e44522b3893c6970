"""Rotary position embedding, with rows of the caches looked up by a loop program."""

from __future__ import annotations

import functools

from accord.backends.cuda.families.table import any_strides, arranges, selects
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, program_phase
from accord.backends.loops.table import known
from accord.backends.protocol import Phase
from accord.backends.rotary import rotary_embedding
from accord.backends.view import NodeView
from accord.expr.lang import bits, cast, const, operand
from accord.expr.primitives import lt, select
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous


def _looked_up(
    view: NodeView, index: int, extents: Shape, offset: DimLike, operands: tuple[int, int, int]
) -> Phase | Reason:
    """See :data:`accord.backends.rotary.RowCopy`."""
    positions, caches = known(view.tensor(3), "the positions"), known(view.tensor(index), "the cache")
    if isinstance(positions, Reason) or isinstance(caches, Reason):
        return Reason("positions or caches are not known")
    cache, place, word = view.access(index), view.access(3), f"u{bits(caches[1])}"
    position = cast(operand(0, positions[1]), "i64")
    nowhere = const((1 << 63) - 1, "i64")  # no position counts from the end
    row = Lookup(select(lt(position, 0), nowhere, position), cache.strides[0], caches[0][0])
    values = (
        Operand(positions[1], Access((*place.strides, 0), place.offset)),
        Operand(word, Access((0, 0, cache.strides[1]), cache.offset), lookups=(row,)),
    )
    out = Output(operand(1, word), Access(contiguous(extents), offset))
    program = LoopProgram(extents, frozenset(), values, (), (out,))
    target, *sources = operands
    return program_phase(program, sources, (target,))


arranges("RotaryEmbedding")(any_strides)
selects("RotaryEmbedding")(functools.partial(rotary_embedding, looked_up=_looked_up))
