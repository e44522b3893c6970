"""Shape rules of pools, resampling and regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import (
    FLOATS,
    MAX_ELEMENTS,
    axis_of,
    elements,
    int_attr,
    ints_attr,
    operator,
    product,
    rank_of,
    same_dtype,
    same_size,
    str_attr,
    unknown_shape,
)
from accord.ops.shapes.movement import vector_length
from accord.ops.shapes.spatial import window_of

INT64 = ir.DataType.INT64


# pools -----------------------------------------------------------------------------------------------------------


def _kernel(n: Inference) -> tuple[int, ...]:
    kernel = ints_attr(n, "kernel_shape", low=1)
    if not kernel:
        raise n.error("kernel_shape is empty", expected="one size per spatial axis", found="none")
    return kernel


@operator("AveragePool", "MaxPool", "LpPool", required=("kernel_shape",))
def pool(n: Inference) -> list[Fact]:
    """``[N, C, window positions]``; MaxPool's indices have the same shape."""
    dtype = n.tensor(0).dtype
    kernel = _kernel(n)
    shape = rank_of(n, 0, 2 + len(kernel))
    window = window_of(n, kernel)
    if shape is None:
        out = n.fresh_shape(2 + len(kernel))
    else:
        out = shape[:2] + window.sizes(n, shape[2:], pool=True, ceil=bool(int_attr(n, "ceil_mode", 0)))
    return [TensorFact(dtype, out), TensorFact(INT64, out)]


@operator("MaxUnpool", inputs=2, required=("kernel_shape",))
def max_unpool(n: Inference) -> list[Fact]:
    """The size that a pool of these attributes started from, or the one that the third input holds."""
    dtype = n.tensor(0).dtype
    kernel = _kernel(n)
    rank = 2 + len(kernel)
    shape, indices = rank_of(n, 0, rank), rank_of(n, 1, rank)
    if shape is not None and indices is not None:
        for a, b in zip(shape, indices, strict=True):
            same_size(n, a, b, "sizes of data and indices", value=1)
    window = window_of(n, kernel)
    if n.has(2):
        length = vector_length(n, 2)
        n.require(length in (None, rank), "output_shape has the wrong length", expected=rank, found=length, value=2)
        stated = elements(n.tensor(2))
        return [TensorFact(dtype, n.fresh_shape(rank) if stated is None else tuple(stated))]
    if shape is None:
        return [TensorFact(dtype, n.fresh_shape(rank))]
    out = [(d - 1) * window.strides[i] + kernel[i] - window.begins[i] - window.ends[i] for i, d in enumerate(shape[2:])]
    return [TensorFact(dtype, (*shape[:2], *_positive(n, out)))]


def _positive(n: Inference, sizes: Sequence[DimLike]) -> Sequence[DimLike]:
    for d in sizes:
        n.require(not isinstance(d, int) or d >= 0, "the result would be negative", expected="a size", found=str(d))
    return sizes


@operator("MaxRoiPool", inputs=2, required=("pooled_shape",))
def max_roi_pool(n: Inference) -> list[Fact]:
    """``[regions, C, pooled sizes]``."""
    shape, rois = rank_of(n, 0, 4), rank_of(n, 1, 2)
    pooled = ints_attr(n, "pooled_shape", length=2, low=1) or ()
    if rois is not None:
        same_size(n, 5, rois[1], "numbers of region coordinates", value=1)
    count = n.fresh() if rois is None else rois[0]
    return [TensorFact(same_dtype(n, 0, 1), (count, n.fresh() if shape is None else shape[1], *pooled))]


@operator("RoiAlign", inputs=3)
def roi_align(n: Inference) -> list[Fact]:
    """``[regions, C, output_height, output_width]``."""
    shape, rois, batch = rank_of(n, 0, 4), rank_of(n, 1, 2), rank_of(n, 2, 1)
    height, width = int_attr(n, "output_height", 1, low=1), int_attr(n, "output_width", 1, low=1)
    count: DimLike = n.fresh() if rois is None else rois[0]
    if rois is not None:
        same_size(n, 4, rois[1], "numbers of region coordinates", value=1)
    if batch is not None:
        count = same_size(n, count if rois is not None else batch[0], batch[0], "numbers of regions", value=2)
    return [TensorFact(same_dtype(n, 0, 1), (count, n.fresh() if shape is None else shape[1], height, width))]


# resampling ------------------------------------------------------------------------------------------------------


def scaled(size: DimLike, scale: float, extent: float = 1.0) -> DimLike | None:
    """``floor(size * extent * scale)`` as ONNX computes it, in single precision; None where a symbol leaves it open.

    A symbolic size is followed where the scale is a ratio with a small power of two below, so that single precision
    is exact for every size that occurs.

    Args:
        size: Size of the axis.
        scale: Its scale factor.
        extent: The part of the axis that the region of interest covers.
    """
    if isinstance(size, int):
        return math.floor(np.float32(size) * np.float32(extent) * np.float32(scale))
    numerator, denominator = float(np.float32(scale)).as_integer_ratio()
    if denominator > 256 or numerator > 4096 or extent != 1.0:
        return None
    return D.floordiv(size * numerator, denominator)


def _scales(n: Inference, index: int) -> tuple[float, ...] | None:
    """The scale factors of input ``index`` where they are constant."""
    if not n.has(index):
        return None
    vector_length(n, index)
    fact = n.tensor(index)
    if fact.data is not None and D.is_known(fact.data):
        return tuple(float(x) for x in fact.data)
    if fact.const is None or fact.dtype not in FLOATS or fact.const.size > MAX_ELEMENTS:
        return None
    return tuple(float(x) for x in fact.const.numpy().reshape(-1))


def _by_scales(
    n: Inference, sizes: Sequence[DimLike], scales: Sequence[float], extents: Sequence[float] | None = None
) -> list[DimLike]:
    n.require(len(scales) == len(sizes), "one scale per axis", expected=len(sizes), found=len(scales))
    out: list[DimLike] = []
    for d, s, e in zip(sizes, scales, extents or (1.0,) * len(sizes), strict=True):
        n.require(0 < s < 2**31, "scales must be positive and finite", expected="over 0", found=s)
        size = scaled(d, s, e)
        out.append(n.fresh() if size is None else size)
    return out


@operator("Upsample")
def upsample(n: Inference) -> list[Fact]:
    """Each axis times its scale."""
    x = n.tensor(0)
    scales = _scales(n, 1)
    listed = n.attr("scales")
    if scales is None and isinstance(listed, Sequence) and all(isinstance(s, float) for s in listed):
        scales = tuple(listed)
    if x.shape is None:
        return [TensorFact(x.dtype, None)]
    return [
        TensorFact(x.dtype, n.fresh_shape(len(x.shape)) if scales is None else tuple(_by_scales(n, x.shape, scales)))
    ]


def _input(n: Inference, index: int) -> bool:
    """True if an optional input is given and not the empty tensor that old versions write for "none"."""
    return n.has(index) and n.tensor(index).shape != (0,)


@operator("Resize")
def resize(n: Inference) -> list[Fact]:
    """Each of ``axes`` times its scale, or of the size given; ``keep_aspect_ratio_policy`` adjusts the sizes."""
    x = n.tensor(0)
    # Version 10 has no roi: its scales are the second input.
    at = 2 if n.opset >= 11 else 1
    has_scales, has_sizes = _input(n, at), n.opset >= 11 and _input(n, 3)
    n.require(has_scales != has_sizes, "either scales or sizes", expected="one of them", found=_found(n, at))
    axes = ints_attr(n, "axes")
    policy = str_attr(n, "keep_aspect_ratio_policy", "stretch", among=("stretch", "not_larger", "not_smaller"))
    mode = str_attr(n, "coordinate_transformation_mode", "half_pixel")
    if x.shape is None:
        length = vector_length(n, at if has_scales else 3)
        return [TensorFact(x.dtype, unknown_shape(n, length if axes is None else None))]
    rank = len(x.shape)
    where = range(rank) if axes is None else [axis_of(n, a, rank) for a in axes]
    n.require(len(set(where)) == len(where), "an axis is repeated", expected="distinct axes", found=axes)
    picked = [x.shape[a] for a in where]
    if has_sizes:
        out = _by_sizes(n, picked, policy)
    else:
        scales = _scales(n, at)
        crops = mode == "tf_crop_and_resize"
        extents = _extents(n, len(where)) if crops else None
        if scales is None or (crops and extents is None):
            out = list(n.fresh_shape(len(where)))
        else:
            out = _by_scales(n, picked, scales, extents)
    shape = list(x.shape)
    for a, d in zip(where, out, strict=True):
        shape[a] = d
    return [TensorFact(x.dtype, tuple(shape))]


def _found(n: Inference, at: int) -> str:
    return "both" if _input(n, at) else "none"


def _extents(n: Inference, count: int) -> tuple[float, ...] | None:
    """How much of each axis the region of interest covers, where that is constant."""
    roi = _scales(n, 1)
    if roi is None:
        return None
    n.require(len(roi) == 2 * count, "roi has two values per axis", expected=2 * count, found=len(roi), value=1)
    extents = tuple(roi[i + count] - roi[i] for i in range(count))
    for e in extents:
        n.require(0 <= e < 2**31, "roi ends before it starts", expected="start <= end", found=roi, value=1)
    return extents


def _by_sizes(n: Inference, old: Sequence[DimLike], policy: str) -> list[DimLike]:
    length = vector_length(n, 3)
    n.require(length in (None, len(old)), "one size per axis", expected=len(old), found=length, value=3)
    sizes = elements(n.tensor(3))
    if sizes is None:
        return list(n.fresh_shape(len(old)))
    for s in sizes:
        n.require(not isinstance(s, int) or s >= 0, "negative size", expected="a size", found=str(s), value=3)
    if policy == "stretch":
        return list(sizes)
    if not (D.is_known(sizes) and D.is_known(old)) or 0 in old:
        return list(n.fresh_shape(len(old)))
    pick = min if policy == "not_larger" else max
    scale = pick(Fraction(s, d) for s, d in zip(sizes, old, strict=True))
    # Halves are rounded up: round_int of the specification.
    return [math.floor(scale * d + Fraction(1, 2)) for d in old]


@operator("GridSample", inputs=2)
def grid_sample(n: Inference) -> list[Fact]:
    """``[N, C]`` of the data and the spatial axes of the grid."""
    x, grid = rank_of(n, 0, least=3), rank_of(n, 1, least=3)
    dtype = n.tensor(0).dtype
    if x is not None and grid is not None:
        n.require(len(x) == len(grid), "data and grid differ in rank", expected=len(x), found=len(grid), value=1)
        same_size(n, len(x) - 2, grid[-1], "numbers of coordinates", value=1)
        return [TensorFact(dtype, (same_size(n, x[0], grid[0], "batch sizes", value=1), x[1], *grid[1:-1]))]
    if grid is not None:
        return [TensorFact(dtype, (grid[0], n.fresh(), *grid[1:-1]))]
    return [TensorFact(dtype, None if x is None else (*x[:2], *n.fresh_shape(len(x) - 2)))]


@operator("AffineGrid", inputs=2)
def affine_grid(n: Inference) -> list[Fact]:
    """``[N, H, W, 2]`` or ``[N, D, H, W, 3]`` from the size ``(N, C, H, W)`` or ``(N, C, D, H, W)``."""
    theta = rank_of(n, 0, 3)
    length = vector_length(n, 1)
    dtype = n.tensor(0).dtype
    n.require(length in (None, 4, 5), "size has the wrong length", expected="4 or 5", found=length, value=1)
    if length is None and theta is not None and isinstance(theta[1], int):
        length = theta[1] + 2
    if length is None:
        return [TensorFact(dtype, None)]
    axes = length - 2
    if theta is not None:
        same_size(n, axes, theta[1], "rows of theta", value=0)
        same_size(n, axes + 1, theta[2], "columns of theta", value=0)
    size = elements(n.tensor(1))
    if size is None:
        batch: DimLike = n.fresh() if theta is None else theta[0]
        return [TensorFact(dtype, (batch, *n.fresh_shape(axes), axes))]
    if theta is not None:
        same_size(n, size[0], theta[0], "batch sizes", value=0)
    return [TensorFact(dtype, (size[0], *size[2:], axes))]


@operator("Col2Im", inputs=3)
def col2im(n: Inference) -> list[Fact]:
    """``[N, C * block, L]`` to ``[N, C, image_shape]``."""
    dtype = n.tensor(0).dtype
    shape = rank_of(n, 0, 3)
    image, block = elements(n.tensor(1)), elements(n.tensor(2))
    length = vector_length(n, 1)
    other = vector_length(n, 2)
    n.require(
        length == other or None in (length, other), "image and block differ in rank", expected=length, found=other
    )
    length = length if length is not None else other
    if length is None:
        return [TensorFact(dtype, None)]
    window_of(n, (1,) * length)
    batch: DimLike = n.fresh() if shape is None else shape[0]
    spatial: Shape = n.fresh_shape(length) if image is None else image
    if shape is None or block is None:
        return [TensorFact(dtype, (batch, n.fresh(), *spatial))]
    count = product(n, block)
    n.require(not isinstance(count, int) or count > 0, "block_shape must be positive", expected="sizes", found=block)
    channels = D.floordiv(shape[1], count)
    if isinstance(count, int) and isinstance(shape[1], int) and shape[1] % count:
        raise n.error("columns do not divide into blocks", expected=f"a multiple of {count}", found=shape[1], value=0)
    return [TensorFact(dtype, (batch, channels, *spatial))]
