"""Resampling of images: Resize, padding by copies of the border, and sampling at given places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from accord.backends.cpu.affine import affine_phase
from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.gridsample import grid_bytes, grid_phase
from accord.backends.cpu.images import accumulator, final_expr, following
from accord.backends.cpu.launches import table_bytes
from accord.backends.cpu.resample import Space, resample_code, resample_phase
from accord.backends.cpu.taptables import MODES, ROUNDINGS, Positions, Taps, table_phase, tap_count
from accord.backends.images import channels_last_arrangement
from accord.backends.loops.table import known
from accord.backends.positions import Grid
from accord.backends.protocol import Arrangement, Kernel, NativeKernel
from accord.backends.root import RootView, epilogue_of
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, INTS, SIGNED, Expr, bits, call, cast, operand
from accord.expr.primitives import max_, min_
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access
from accord.ops.shapes.windows import scaled
from accord.record import record

__all__ = [
    "ResampledAxis",
    "Resampling",
    "center_crop_of",
    "element_of",
    "filling",
    "resample_space",
    "resize",
    "resize_of",
    "sampled_pad",
    "sampled_pad_of",
    "stored_sum",
]


@record
class ResampledAxis:
    """An axis that is resampled.

    Attributes:
        axis: Its number.
        source: Its size in the input.
        target: Its size in the output.
        positions: Where the output's elements lie.
        shift: Elements in front, for positions of mode "shift".
    """

    axis: int
    source: DimLike
    target: DimLike
    positions: Positions
    shift: DimLike = 0


@record
class Resampling:
    """What a node asks for.

    Attributes:
        axes: Those that are resampled, in order.
        taps: In the same way.
        fill: What stands outside of the image; None: nothing is outside.
        source: How the part of the input that counts lies.
    """

    axes: tuple[ResampledAxis, ...]
    taps: Taps
    fill: float | int | None
    source: Access


def resample_space(
    shape: Shape, source: Access, output: Access, resampled: Sequence[int], *, channels: bool = False
) -> Space:
    """Lanes along a kept axis whose elements follow each other in the output, and in the source if one is like that.

    With ``channels`` that can only be axis 1.
    """
    kept = [a for a in range(len(shape)) if a not in resampled and shape[a] != 1]
    lanes = [a for a in kept if output.strides[a] == 1 and (a == 1 or not channels)]
    lane = next((a for a in lanes if source.strides[a] == 1), lanes[0] if lanes else None)
    outer = tuple(a for a in kept if a != lane)
    return Space(lane, outer, tuple(resampled))


@arranges("Resize")
def arrange_resize(view: NodeView) -> Arrangement:
    """Channels-last."""
    return channels_last_arrangement(view)


@selects("Resize", epilogue=True)
def resize(view: NodeView) -> Kernel | Reason:
    """Resize by known scales or to sizes, along any axes; nearest, linear or cubic, with tables of taps."""
    return _resampled(view, resize_of(view))


def resize_of(view: NodeView) -> Resampling | Reason:
    """What a Resize asks for."""
    x, out = view.tensor(0).shape, view.output().shape
    if x is None or out is None:
        return Reason("the rank is not known")
    if view.opset < 11:
        return Reason("an old version")
    axes = _resized_axes(view, x)
    if isinstance(axes, Reason):
        return axes
    mode = str(view.attr("mode", "nearest"))
    crops = view.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    rounding = str(view.attr("nearest_mode", "round_prefer_floor"))
    if mode not in ("nearest", "linear", "cubic") or rounding not in ROUNDINGS:
        return Reason(f"mode {mode} with {rounding} is unknown")
    taps = Taps(
        mode,
        rounding,
        float(view.attr("cubic_coeff_a", -0.75)),
        bool(view.attr("antialias", 0)) and mode != "nearest",
        bool(view.attr("exclude_outside", 0)) and mode != "nearest",
        crops,
    )
    fill = float(view.attr("extrapolation_value", 0.0)) if crops else None
    return Resampling(tuple(axes), taps, fill, view.access(0))


def _resized_axes(view: NodeView, x: Shape) -> list[ResampledAxis] | Reason:
    """The axes along which the size or the scale changes."""
    rank = len(x)
    listed = view.attr("axes")
    where = [view.axis(a, rank) for a in listed] if listed is not None else list(range(rank))
    mode = str(view.attr("coordinate_transformation_mode", "half_pixel"))
    if mode not in MODES:
        return Reason(f"the mode {mode} is unknown")
    crops = mode == "tf_crop_and_resize"
    regions = [(Fraction(0), Fraction(1))] * len(where)
    if crops:
        bounds = _constants(view, 1)
        if bounds is None or len(bounds) != 2 * len(where) or not all(map(math.isfinite, bounds)):
            return Reason("the region of interest is not finite, or only known at run time")
        regions = [(Fraction(a), Fraction(b)) for a, b in zip(bounds[: len(where)], bounds[len(where) :], strict=True)]
    found: list[ResampledAxis] = []
    scales = _constants(view, 2)
    if scales is not None and scales:
        for axis, scale, (start, end) in zip(where, scales, regions, strict=True):
            target = scaled(x[axis], scale, float(end - start))
            if target is None or not 0 < scale < math.inf:
                return Reason(f"axis {axis} of size {x[axis]} times {scale} is only known at run time")
            found.append(ResampledAxis(axis, x[axis], target, Positions(mode, Fraction(scale), start, end)))
    else:
        sizes = view.tensor(3).elements() if view.has(3) else None
        if not sizes or len(sizes) != len(where):
            return Reason("scales and sizes are only known at run time")
        policy = view.attr("keep_aspect_ratio_policy", "stretch")
        common = None
        if policy != "stretch":
            picked = [x[a] for a in where]
            if not (D.is_known(sizes) and D.is_known(picked)) or 0 in picked:
                return Reason("keeping the aspect ratio of sizes that are only known at run time")
            ratios = [Fraction(int(s), int(d)) for s, d in zip(sizes, picked, strict=True)]
            common = min(ratios) if policy == "not_larger" else max(ratios)
            sizes = tuple(math.floor(common * int(d) + Fraction(1, 2)) for d in picked)
        for axis, size, (start, end) in zip(where, sizes, regions, strict=True):
            found.append(ResampledAxis(axis, x[axis], size, Positions(mode, common, start, end)))
    changed = [a for a in found if crops or a.target != a.source or a.positions.scale not in (None, 1)]
    return sorted(changed or found[-1:], key=lambda a: a.axis)


def _constants(view: NodeView, index: int) -> list[float] | None:
    """The elements of a constant vector of floats."""
    fact = view.tensor(index)
    if not view.has(index):
        return None
    if fact.is_const:
        return [float(v) for v in np.asarray(fact.numpy()).reshape(-1).tolist()]
    if fact.data is not None and D.is_known(fact.data):
        return [float(v) for v in fact.data]
    return None


def _resampled(view: NodeView, found: Resampling | Reason) -> Kernel | Reason:
    """The kernel of a node."""
    if isinstance(found, Reason):
        return found
    axes, taps, fill, source = found.axes, found.taps, found.fill, found.source
    out = view.output().shape
    assert out is not None
    dtype = element_of(view, taps, fill)
    if isinstance(dtype, Reason):
        return dtype
    acc, final = dtype, None
    if taps.weighted:
        acc = accumulator(dtype) if dtype in FLOATS else "f64"
    value = stored_sum(acc, dtype)
    epilogue = epilogue_of(view)
    final = following(final_expr(epilogue, dtype), value)
    counts = [tap_count(taps, a.positions, a.source, a.target) for a in axes]
    sizes = [v for a, c in zip(axes, counts, strict=True) for v in (a.target, c)]
    space = resample_space(out, source, view.output_access(), [a.axis for a in axes])
    extras = len(epilogue.extras)
    workspace = 2 + extras
    tables = [
        table_phase(taps, a.positions, acc if taps.weighted else "f32", k, sizes, a.source, workspace, a.shift)
        for k, a in enumerate(axes)
    ]
    main = resample_phase(
        out,
        space,
        [(taps.count, c) for c in counts],
        (dtype, source),
        view.output_access(),
        acc,
        taps.weighted,
        final,
        epilogue,
        tuple(range(extras + 3)),
        filling(fill, acc),
    )
    room: DimLike = 0
    for a, c in zip(axes, counts, strict=True):
        room = room + table_bytes(a.target, c)
    return NativeKernel(
        f"{view.node.op_type} {taps.kind} {dtype}",
        (*tables, main),
        (0,),
        workspace=room,
        flops=2 * D.product((*out, *counts)) if taps.weighted else 0,
    )


def element_of(view: NodeView, taps: Taps, fill: float | int | None) -> str | Reason:
    """The type in which elements are read: the tensor's own, or where they are only copied one of the same size."""
    found = known(view.tensor(0), "the input")
    if not isinstance(found, Reason):
        if taps.weighted and found[1] == "bool":
            return Reason("truth values are not interpolated")
        return found[1]
    dtype = view.tensor(0).dtype
    size = 0 if dtype is None or dtype.name == "STRING" else int(dtype.numpy().itemsize) * 8
    if taps.weighted or fill is not None or size not in (8, 16, 32, 64):
        return found
    return f"u{size}"


def filling(value: float | int | None, acc: str) -> float | int | None:
    """What stands outside, as a value of type ``acc``."""
    if value is None or acc in FLOATS:
        return value
    return bool(value) if acc == "bool" else int(value)


def stored_sum(acc: str, dtype: str) -> Expr:
    """A sum of type ``acc`` as ``dtype``: integers are rounded, halves to even, and limited to their range."""
    total = operand(0, acc)
    if acc == dtype or dtype not in INTS:
        return cast(total, dtype)
    size = bits(dtype)
    low = -(2 ** (size - 1)) if dtype in SIGNED else 0
    high = low + 2**size - 1
    return cast(max_(min_(call("round", total), float(high)), float(low)), dtype)


@arranges("GridSample")
def arrange_grid_sample(view: NodeView) -> Arrangement:
    """The image and the result are channels-last; the grid lies as it will."""
    return channels_last_arrangement(view)


def grid_of(view: NodeView) -> tuple[Grid, tuple[Shape, str], str] | Reason:
    """What a GridSample asks for: how positions become taps, image, element type of the positions; or why not."""
    found, places = known(view.tensor(0), "the input"), known(view.tensor(1), "the grid")
    for f in (found, places):
        if isinstance(f, Reason):
            return f
    assert not isinstance(found, Reason) and not isinstance(places, Reason)
    (x, dtype), (shape, positions) = found, places
    if view.output().shape is None or positions not in FLOATS or dtype == "bool" or not 3 <= len(x) == len(shape):
        return Reason("only images of numbers, and a grid of floats for each")
    mode, padding = str(view.attr("mode", "linear")), str(view.attr("padding_mode", "zeros"))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        return Reason(f"mode {mode} with padding {padding} is unknown")
    return Grid(mode, padding, bool(view.attr("align_corners", 0))), found, positions


@selects("GridSample", epilogue=True)
def grid_sample(view: NodeView) -> Kernel | Reason:
    """Sampling of images with any number of axes at positions of a grid."""
    asked, out = grid_of(view), view.output().shape
    if isinstance(asked, Reason):
        return asked
    assert out is not None
    grid, (x, dtype), positions = asked
    acc = dtype
    if grid.weighted:
        acc = accumulator(dtype) if dtype in FLOATS else "f64"
    rank = len(x) - 2
    epilogue = epilogue_of(view)
    final = following(final_expr(epilogue, dtype), cast(operand(0, acc), dtype))
    source, output = view.access(0), view.output_access()
    space = resample_space(out, source, output, range(2, rank + 2), channels=True)
    fill = None if grid.fill is None else filling(grid.fill, acc)
    taps = [grid.taps] * rank
    body = resample_code(out, space, taps, (dtype, source), output, acc, grid.weighted, final, epilogue, fill)
    own = view.access(1)
    phase = grid_phase(
        out,
        space,
        body,
        grid,
        x[2:],
        source,
        (positions, Access((own.strides[0], 0, *own.strides[1:-1]), own.offset), own.strides[-1]),
        [e.access for e in epilogue.extras],
        output,
        tuple(range(4 + len(epilogue.extras))),
    )
    return NativeKernel(
        f"GridSample {grid.mode} {dtype}",
        (phase,),
        (0, 1),
        workspace=grid_bytes(rank, grid),
        flops=2 * D.product(out) * grid.taps**rank,
    )


@selects("AffineGrid")
def affine_grid(view: NodeView) -> Kernel | Reason:
    """Positions of a regular grid under an affine map for each batch entry."""
    found, out = known(view.tensor(0), "the matrices"), view.output().shape
    if isinstance(found, Reason):
        return found
    if out is None or view.tensor(1).elements() is None:
        return Reason("the size is only known at run time")
    if found[1] not in FLOATS or isinstance(view, RootView):
        return Reason("only floats, and nothing that is computed with them")
    aligned = bool(view.attr("align_corners", 0))
    phase = affine_phase(found[1], out, view.access(0), view.output_access(), aligned=aligned)
    return NativeKernel(f"AffineGrid {found[1]}", (phase,), (0,), flops=2 * D.product((*out, len(out) - 1)))


@selects("CenterCropPad")
def center_crop_pad(view: NodeView) -> Kernel | Reason:
    """Each axis is cut, or padded with zeros, on both sides."""
    return _resampled(view, center_crop_of(view))


def center_crop_of(view: NodeView) -> Resampling | Reason:
    """What a CenterCropPad asks for."""
    x, sizes = view.tensor(0).shape, view.tensor(1).elements()
    if x is None or sizes is None:
        return Reason("the rank or the sizes are only known at run time")
    listed = view.attr("axes")
    where = [view.axis(a, len(x)) for a in listed] if listed is not None else list(range(len(x)))
    axes = []
    for axis, target in zip(where, sizes, strict=True):
        kept = D.minimum(target, x[axis])
        before = D.floordiv(target - kept, 2) - D.floordiv(x[axis] - kept, 2)
        if target != x[axis]:
            axes.append(ResampledAxis(axis, x[axis], target, Positions("shift"), before))
    return _mapped(view, axes, Taps("nearest", outside=True), 0)


def sampled_pad(view: NodeView) -> Kernel | Reason:
    """Pad in a mode other than "constant": elements are looked up. Negative pads cut first."""
    return _resampled(view, sampled_pad_of(view))


def sampled_pad_of(view: NodeView) -> Resampling | Reason:
    """What a Pad of such a mode asks for."""
    x, out, pads = view.tensor(0).shape, view.output().shape, view.tensor(1).elements()
    if x is None or out is None or pads is None:
        return Reason("the pads are only known at run time")
    listed: Sequence[DimLike] | None = view.tensor(3).elements() if view.has(3) else tuple(range(len(x)))
    if listed is None or not D.is_known(listed) or len(pads) != 2 * len(listed):
        return Reason("the axes are only known at run time")
    mode = str(view.attr("mode", "constant"))
    source = view.access(0)
    offset = source.offset
    axes = []
    for k, a in enumerate(listed):
        axis, before, after = view.axis(int(a), len(x)), pads[k], pads[len(listed) + k]
        if before == 0 and after == 0:
            continue
        cut, behind = D.maximum(before * -1, 0), D.maximum(after * -1, 0)
        offset = offset + cut * source.strides[axis]
        kept = x[axis] - cut - behind
        axes.append(ResampledAxis(axis, kept, out[axis], Positions("shift"), D.maximum(before, 0)))
    if mode not in ("edge", "reflect", "wrap"):
        return Reason(f"the mode {mode} is unknown")
    taps = Taps("nearest" if mode == "edge" else mode)
    return _mapped(view, axes, taps, None, Access(source.strides, offset))


def _mapped(
    view: NodeView, axes: Sequence[ResampledAxis], taps: Taps, fill: int | None, source: Access | None = None
) -> Resampling | Reason:
    """What a node asks for whose elements are copies."""
    x = view.tensor(0).shape
    assert x is not None
    if not axes:
        if not x:
            return Reason("a scalar has no axis")
        axes = [ResampledAxis(len(x) - 1, x[-1], x[-1], Positions("shift"))]
    return Resampling(tuple(sorted(axes, key=lambda a: a.axis)), taps, fill, source or view.access(0))
