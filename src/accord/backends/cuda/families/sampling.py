"""Resampling of images: Resize, and padding by copies of the border."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence

from accord.backends.cpu.families.sampling import (
    ResampledAxis,
    Resampling,
    center_crop_of,
    element_of,
    filling,
    grid_of,
    resize_of,
    sampled_pad_of,
    stored_sum,
)
from accord.backends.cpu.images import accumulator
from accord.backends.cpu.taptables import tap_count, tap_words
from accord.backends.cuda.code import CudaLaunch, hints_of
from accord.backends.cuda.families.table import arranges, looped, selects
from accord.backends.cuda.families.windows import window_phase
from accord.backends.cuda.taptables import TableKernel
from accord.backends.cuda.windows import resample_kernel
from accord.backends.epilogue import substitute
from accord.backends.images import channels_last_arrangement
from accord.backends.loops.group import Group
from accord.backends.loops.members import movements
from accord.backends.loops.program import Lookup
from accord.backends.loops.table import known
from accord.backends.positions import spread
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.root import epilogue_of
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.expr.lang import FLOATS, Expr, bits, cast
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.ir.strides import Access

__all__ = ["affine_grid", "center_crop_pad", "grid_sample", "pad", "resize"]

#: Positions of a table that a program makes.
_BLOCK = 128


@arranges("Resize")
def arrange_resize(view: NodeView) -> Arrangement:
    """Channels-last."""
    return channels_last_arrangement(view)


@selects("Resize", epilogue=True)
def resize(view: NodeView) -> Kernel | Reason:
    """Resize by known scales or to sizes, along any axes; nearest, linear or cubic, with tables of taps."""
    return _resampled(view, resize_of(view))


@selects("CenterCropPad")
def center_crop_pad(view: NodeView) -> Kernel | Reason:
    """Each axis is cut, or padded with zeros, on both sides."""
    return _resampled(view, center_crop_of(view))


@selects("Pad")
def pad(view: NodeView) -> Kernel | Reason:
    """Constant padding is a movement; others look elements up."""
    if view.attr("mode", "constant") == "constant":
        return movements.pad(view)
    return _resampled(view, sampled_pad_of(view))


def _resampled(view: NodeView, found: Resampling | Reason) -> Kernel | Reason:
    """The kernel: a table for each axis, then the sums; the tables are in the workspace."""
    out = view.output().shape
    if isinstance(found, Reason) or out is None:
        return found if isinstance(found, Reason) else Reason("the rank is not known")
    taps = found.taps
    dtype = element_of(view, taps, found.fill)
    if isinstance(dtype, Reason):
        return dtype
    acc = dtype
    if taps.weighted:
        acc = accumulator(dtype) if dtype in FLOATS else "f64"
    weights = acc if taps.weighted else "f32"
    counts = [tap_count(taps, a.positions, a.source, a.target) for a in found.axes]
    epilogue = epilogue_of(view)
    try:
        kernel, dims = resample_kernel(
            out,
            [a.axis for a in found.axes],
            counts,
            (dtype, found.source),
            view.output_access(),
            taps,
            acc,
            stored_sum(acc, dtype),
            epilogue,
            filling(found.fill, acc),
        )
    except CompileError as error:
        return Reason(error.message)
    extras = len(epilogue.extras)
    scratch = 2 + extras
    table = TableKernel(taps, weights)
    places: list[DimLike] = []
    room: DimLike = 0
    phases = []
    for axis, count in zip(found.axes, counts, strict=True):
        own = [room]
        room = room + D.ceildiv(axis.target * count * 8, 256) * 256
        if taps.weighted:
            own.append(room)
            room = room + D.ceildiv(axis.target * count * (bits(weights) // 8), 256) * 256
        places += own
        numbers = (axis.target, count, axis.source, axis.shift, *own)
        phases.append(Phase(table, (scratch,) * len(own), numbers, functools.partial(_start_table, table, axis)))
    reach = D.product(view.tensor(0).shape or ())
    operands = (0, *(scratch,) * len(places), *range(1, 1 + extras), 1 + extras)
    main = window_phase(kernel, dims, operands, reach, places=places)
    return NativeKernel(
        f"{view.node.op_type} {taps.kind} {dtype}",
        (*phases, main),
        (0,),
        workspace=room,
        flops=2 * D.product((*out, *counts)) if taps.weighted else 0,
    )


def _start_table(kernel: TableKernel, axis: ResampledAxis, sizes: Sequence[int]) -> CudaLaunch:
    target, count, source, shift, *places = sizes
    programs = -(-target // _BLOCK) if count else 0
    words = tap_words(kernel.taps, axis.positions, source, target, shift)
    numbers = (target, count, *words)
    grid = (programs, 1, 1)
    hints = hints_of((target, count)) + ("",) * len(words)
    return CudaLaunch(numbers, programs, grid, (("BLOCK", _BLOCK),), hints, wide=True, shifts=tuple(places))


@looped("GridSample")
def grid_sample(group: Group, view: NodeView) -> Reason | None:
    """Each element is a sum over taps that are found from its position, in float64, and looked up."""
    asked, out = grid_of(view), view.output().shape
    v = view.node.inputs[1]
    if isinstance(asked, Reason):
        return asked
    assert out is not None and v is not None
    grid, (x, dtype), positions = asked
    axes = [group.axis(d) for d in out]
    own, places = view.access(0), view.access(1)
    pixel = (axes[0], *axes[2:])
    acc = "f64"
    if grid.weighted and dtype in FLOATS:
        acc = accumulator(dtype)
    pairs = []
    for k, size in enumerate(x[2:]):  # the innermost axis comes first in the grid
        coordinate = places.offset + (len(x) - 3 - k) * places.strides[-1]
        unit = group.read(v, positions, pixel, Access(places.strides[:-1], coordinate)).expr
        pairs.append(grid.pairs(cast(unit, "f64"), cast(group.size(size), "f64")))
    base = Access(own.strides[:2], own.offset)
    total: Expr | None = None
    for taps in itertools.product(*pairs):
        lookups = [
            Lookup(cast(index, "i64"), own.strides[2 + k], x[2 + k], "skip") for k, (index, _) in enumerate(taps)
        ]
        value = group.look_up(view, 0, axes[:2], base, lookups)
        if grid.weighted:
            weight = functools.reduce(operator.mul, (w for _, w in taps if w is not None))
            value = cast(value, acc) * cast(weight, acc)
        total = value if total is None else total + value
    assert total is not None
    result = substitute(stored_sum(acc, dtype), lambda i, t: total) if grid.weighted else total
    return group.define(view, 0, result, axes)


@looped("AffineGrid")
def affine_grid(group: Group, view: NodeView) -> Reason | None:
    """Positions of a regular grid under an affine map for each batch entry."""
    found, out = known(view.tensor(0), "the matrices"), view.output().shape
    v = view.node.inputs[0]
    if isinstance(found, Reason):
        return found
    if out is None or view.tensor(1).elements() is None or v is None:
        return Reason("the size is only known at run time")
    if found[1] not in FLOATS:
        return Reason("only floats")
    axes = [group.axis(d) for d in out]
    own, rank, aligned = view.access(0), len(out) - 2, bool(view.attr("align_corners", 0))
    total: Expr | None = None
    for j in range(rank + 1):  # the innermost axis comes first, 1 comes last
        row = (axes[0], axes[-1])
        factor = group.read(v, found[1], row, Access(own.strides[:2], own.offset + j * own.strides[2])).expr
        term = cast(factor, "f64")
        if j < rank:
            place = cast(group.index(axes[rank - j]), "f64")
            term = term * spread(place, cast(group.size(out[rank - j]), "f64"), aligned=aligned)
        total = term if total is None else total + term
    assert total is not None
    return group.define(view, 0, total, axes)
