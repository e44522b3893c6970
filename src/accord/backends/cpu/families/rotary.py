"""Rotary position embedding, with rows of the caches looked up by an indexed copy."""

from __future__ import annotations

import functools

from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.indexing import Coordinate, indexed_phase
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Phase
from accord.backends.rotary import rotary_embedding
from accord.backends.view import NodeView
from accord.expr.lang import bits
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous


@arranges("RotaryEmbedding")
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


def _looked_up(
    view: NodeView, index: int, extents: Shape, offset: DimLike, operands: tuple[int, int, int]
) -> Phase | Reason:
    """Rows of a cache at the positions, without gaps from element ``offset`` of the workspace on."""
    positions, caches = known(view.tensor(3), "the positions"), known(view.tensor(index), "the cache")
    if isinstance(positions, Reason) or isinstance(caches, Reason):
        return Reason("positions or caches are not known")
    shape, dtype = caches
    cache, place = view.access(index), view.access(3)
    return indexed_phase(
        extents,
        Access(contiguous(extents), offset),
        Access((0, 0, cache.strides[1]), cache.offset),
        Access((*place.strides, 0), place.offset),
        [Coordinate(shape[0], cache.strides[0])],
        dtype=f"u{bits(dtype)}",
        index_dtype=positions[1],
        wraps=False,
        operands=operands,
    )


selects("RotaryEmbedding")(functools.partial(rotary_embedding, looked_up=_looked_up))
