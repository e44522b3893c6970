"""Rotary position embedding: pairs of features are rotated, two outputs of one expression each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from accord.backends.loops.program import pointwise
from accord.backends.loops.table import known
from accord.backends.protocol import Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, bits, cast, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous
from accord.record import record

__all__ = ["RowCopy", "rotary_embedding"]


@record
class _Table:
    """Cosines or sines over images, positions and pairs."""

    operand: int
    access: Access


def _by_heads(shape: Shape, access: Access, heads: int) -> tuple[Shape, Access]:
    """Images, heads, positions, features."""
    if len(shape) == 4:
        return shape, access
    size = D.floordiv(shape[2], heads)
    image, position, step = access.strides
    return (shape[0], heads, shape[1], size), Access((image, size * step, position, step), access.offset)


def _features(access: Access, first: DimLike, step: int) -> Access:
    """Every ``step``-th feature from number ``first`` on."""
    stride = access.strides[3]
    return Access((*access.strides[:3], stride * step), access.offset + first * stride)


#: Makes the phase that copies rows of a cache at the positions, without gaps, to the workspace: from the node, the
#: number of the cache, images × positions × pairs, where in the workspace it begins in elements, and the operands
#: (workspace, positions, cache).
RowCopy: TypeAlias = "Callable[[NodeView, int, Shape, DimLike, tuple[int, int, int]], Phase | Reason]"


def rotary_embedding(view: NodeView, looked_up: RowCopy) -> Kernel | Reason:
    """Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

    Args:
        view: The node.
        looked_up: What a device copies rows with.
    """
    found, cache = known(view.tensor(0), "the input"), known(view.tensor(1), "the cosines")
    if isinstance(found, Reason):
        return found
    if isinstance(cache, Reason):
        return cache
    given, dtype = found
    heads = int(view.attr("num_heads", 0) or 0)
    if dtype not in FLOATS or cache[1] != dtype or len(given) not in (3, 4) or (len(given) == 3 and heads <= 0):
        return Reason("only floats of rank 3 with a number of heads, or of rank 4")
    shape, x = _by_heads(given, view.access(0), heads)
    _, y = _by_heads(given, view.output_access(), heads)
    width = int(view.attr("rotary_embedding_dim", 0) or 0)
    rotated: DimLike = width or shape[3]
    half = D.floordiv(rotated, 2)
    reads = [0, 1, 2, *([3] if view.has(3) else [])]
    out, scratch = len(reads), len(reads) + 1
    phases: list[Phase] = []
    workspace: DimLike = 0
    tables: list[_Table] = []
    for i in (1, 2):
        if not view.has(3):
            tables.append(_Table(i, view.access(i)))
            continue
        phase = looked_up(view, i, (shape[0], shape[2], half), workspace, (scratch, 3, i))
        if isinstance(phase, Reason):
            return phase
        phases.append(phase)
        tables.append(_Table(scratch, Access(contiguous((shape[0], shape[2], half)), workspace)))
        workspace = workspace + shape[0] * shape[2] * half
    paired = bool(view.attr("interleaved", 0))
    step = 2 if paired else 1
    places: tuple[DimLike, DimLike] = (0, 1 if paired else half)
    extents = (*shape[:3], half)
    inputs = [(dtype, _features(x, p, step)) for p in places]
    for t in tables:
        image, position, pair = t.access.strides
        inputs.append((dtype, Access((image, 0, position, pair), t.access.offset)))
    real = "f64" if dtype == "f64" else "f32"
    first, second, cosine, sine = (cast(operand(i, dtype), real) for i in range(4))
    exprs = [cosine * first - sine * second, sine * first + cosine * second]
    outputs = [(dtype, _features(y, p, step)) for p in places]
    operands = (0, 0, *(t.operand for t in tables), out, out)
    phases.append(pointwise(extents, inputs, outputs, [cast(e, dtype) for e in exprs], operands))
    if width:
        word, rest = f"u{bits(dtype)}", (*shape[:3], shape[3] - width)
        source, target = (_features(a, width, 1) for a in (x, y))
        phases.append(pointwise(rest, [(word, source)], [(word, target)], [operand(0, word)], (0, out)))
    whole = x == y and not width
    return NativeKernel(
        f"rotary embedding {dtype}",
        tuple(phases),
        tuple(reads),
        in_place=((0, 0),) if whole else (),
        workspace=D.maximum(workspace, 1) * (bits(dtype) // 8) if view.has(3) else 0,
        flops=6 * D.product(extents),
    )
