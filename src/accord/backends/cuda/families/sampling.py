"""Resampling of images: Resize, and padding by copies of the border."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from accord.backends.cpu.families.sampling import (
    ResampledAxis,
    Resampling,
    center_crop_of,
    element_of,
    filling,
    resize_of,
    sampled_pad_of,
    stored_sum,
)
from accord.backends.cpu.images import accumulator
from accord.backends.cpu.taptables import tap_count, tap_words
from accord.backends.cuda.code import CudaLaunch, hints_of
from accord.backends.cuda.families.table import arranges, selects
from accord.backends.cuda.families.windows import window_phase
from accord.backends.cuda.taptables import TableKernel
from accord.backends.cuda.windows import resample_kernel
from accord.backends.images import channels_last_arrangement
from accord.backends.loops.members import movements
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.root import epilogue_of
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.expr.lang import FLOATS, bits
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason

__all__ = ["center_crop_pad", "pad", "resize"]

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
