"""Resize and Upsample: every axis by itself, as a weighted sum of source elements."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from accord.backends.reference.quantization import quantize_values
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.sampling import cubic_weights
from accord.backends.reference.tensors import integers, is_integer, normal_axes, require, require_room, to_double, widen


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized: lengths, exact scale, and the part of the input that is looked at."""

    axis: int
    source: int
    target: int
    scale: Fraction
    start: float = 0.0
    end: float = 1.0


def _coordinates(op: OpNode, axis: _Axis) -> Array:
    """Position in the source of every target element, by ``coordinate_transformation_mode``.

    Computed in fractions, so that a position that lies exactly on or between elements is found there.
    """
    mode = op["coordinate_transformation_mode"] or "asymmetric"
    steps = [Fraction(i) for i in range(axis.target)]
    half = Fraction(1, 2)
    span = Fraction(axis.source - 1)
    # ``target`` is rounded down from this length, which the equations are about unless they say otherwise.
    length = axis.scale * axis.source
    if mode == "asymmetric":
        points = [x / axis.scale for x in steps]
    elif mode == "tf_half_pixel_for_nn":  # versions 11 and 12
        points = [(x + half) / axis.scale for x in steps]
    elif mode == "align_corners":
        points = [x * span / (length - 1) if axis.target > 1 else Fraction(0) for x in steps]
    elif mode == "tf_crop_and_resize":
        start, end = Fraction(axis.start), Fraction(axis.end)
        if axis.target > 1:
            points = [start * span + x * (end - start) * span / (axis.target - 1) for x in steps]
        else:
            points = [half * (start + end) * span for _ in steps]
    elif mode == "pytorch_half_pixel" and axis.target == 1:
        points = [Fraction(0)]
    else:
        known = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
        require(mode in known, f"coordinate_transformation_mode '{mode}' is unknown")
        shift = Fraction(0)
        if mode == "half_pixel_symmetric":
            shift = Fraction(axis.source, 2) * (1 - axis.target / length)
        points = [shift + (x + half) / axis.scale - half for x in steps]
    return np.array([float(point) for point in points])


_NEAREST: dict[str, Any] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _cubic_kernel(distance: Array, a: float) -> Array:
    t = np.abs(distance)
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, inner, np.where(t < 2, outer, 0.0))


def _antialiased(op: OpNode, position: Array, scale: float) -> tuple[Array, Array]:
    """Neighbours and weights with the kernel stretched by 1/scale, normalised to a sum of one."""
    cubic = op["mode"] == "cubic"
    radius = (2 if cubic else 1) / scale
    first = np.floor(position - radius).astype(np.int64) + 1
    count = math.ceil(2 * radius) + 1
    index = first[:, np.newaxis] + np.arange(count)
    distance = (index - position[:, np.newaxis]) * scale
    kernel = _cubic_kernel(distance, op["cubic_coeff_a"]) if cubic else np.maximum(1 - np.abs(distance), 0)
    return index, kernel / kernel.sum(axis=1, keepdims=True)


def _neighbours(op: OpNode, position: Array, axis: _Axis) -> tuple[Array, Array]:
    """Source indices (may lie outside) and their weights for every target element."""
    mode = op["mode"]
    if mode == "nearest":
        rounding = op["nearest_mode"] or "floor"
        require(rounding in _NEAREST, f"nearest_mode '{rounding}' is unknown")
        return _NEAREST[rounding](position).astype(np.int64)[:, np.newaxis], np.ones((axis.target, 1))
    require(mode in ("linear", "cubic"), f"mode '{mode}' is unknown")
    if op["antialias"] and axis.scale < 1:
        return _antialiased(op, position, float(axis.scale))
    base = np.floor(position)
    ratio = position - base
    if mode == "linear":
        return base.astype(np.int64)[:, np.newaxis] + np.arange(2), np.stack([1 - ratio, ratio], axis=1)
    a = -0.75 if op["cubic_coeff_a"] is None else op["cubic_coeff_a"]
    return base.astype(np.int64)[:, np.newaxis] + np.arange(-1, 3), cubic_weights(ratio, a)


def _resize_axis(op: OpNode, x: Array, axis: _Axis) -> Array:
    shape = (*x.shape[: axis.axis], axis.target, *x.shape[axis.axis + 1 :])
    require_room(shape)
    require_room((axis.target,), 512)  # a position is a fraction for a while
    position = _coordinates(op, axis)
    index, weight = _neighbours(op, position, axis)
    if op["exclude_outside"] and op["mode"] != "nearest":
        weight = np.where((index >= 0) & (index < axis.source), weight, 0.0)
        weight = weight / weight.sum(axis=1, keepdims=True)
    inside = np.clip(index, 0, axis.source - 1)
    trailing = (1,) * (x.ndim - axis.axis - 1)
    if op["mode"] == "nearest":
        result = np.take(x, inside[:, 0], axis=axis.axis)
    else:
        result = np.zeros(shape, dtype=x.dtype)
        for tap in range(index.shape[1]):
            factor = weight[:, tap].reshape(-1, *trailing)
            # A neighbour of weight zero must not turn the sum into NaN by being infinite.
            result += np.where(factor != 0, np.take(x, inside[:, tap], axis=axis.axis) * factor, 0)
    if op["coordinate_transformation_mode"] == "tf_crop_and_resize":
        outside = (position < 0) | (position > axis.source - 1)
        value = np.asarray(op["extrapolation_value"], dtype=result.dtype)
        result = np.where(outside.reshape(-1, *trailing), value, result)
    return result


def _resize(op: OpNode, x: Array, axes: list[_Axis]) -> Array:
    require(all(a.scale > 0 or a.target == 0 for a in axes), "a scale is not positive")
    crops = op["coordinate_transformation_mode"] == "tf_crop_and_resize"
    result = x if op["mode"] == "nearest" else to_double(x)
    for axis in axes:
        if axis.target == 0 or axis.source == 0:
            require(axis.target == 0, "an empty axis cannot be enlarged")
            result = np.take(result, [], axis=axis.axis)
        elif crops or axis.target != axis.source or axis.scale != 1:
            result = _resize_axis(op, result, axis)
    if result.dtype == x.dtype:
        return result
    # Integers are rounded and limited to their range; a cubic kernel overshoots.
    return quantize_values(result, None, x.dtype) if is_integer(x.dtype) else result.astype(x.dtype)


def _from_scales(x: Array, axes: tuple[int, ...], scales: Array, regions: list[tuple[float, float]]) -> list[_Axis]:
    require(scales.size == len(axes), f"{scales.size} scales for {len(axes)} axes")
    result = []
    for axis, scale, (start, end) in zip(axes, scales.reshape(-1).tolist(), regions, strict=True):
        length = x.shape[axis]
        # In float32 like shape inference: 10 × 0.7 is 7 there, though the nearest float32 to 0.7 is below it.
        target = math.floor(np.float32(length) * np.float32(end - start) * np.float32(scale))
        result.append(_Axis(axis, length, target, Fraction(scale), start, end))
    return result


def _from_sizes(
    op: OpNode, x: Array, axes: tuple[int, ...], sizes: list[int], regions: list[tuple[float, float]]
) -> list[_Axis]:
    require(len(sizes) == len(axes), f"{len(sizes)} sizes for {len(axes)} axes")
    scales = [Fraction(size, max(x.shape[axis], 1)) for size, axis in zip(sizes, axes, strict=True)]
    policy = op["keep_aspect_ratio_policy"] or "stretch"
    require(policy in ("stretch", "not_larger", "not_smaller"), f"keep_aspect_ratio_policy '{policy}' is unknown")
    if policy != "stretch":
        common = min(scales) if policy == "not_larger" else max(scales)
        scales = [common] * len(axes)
        sizes = [math.floor(common * x.shape[axis] + Fraction(1, 2)) for axis in axes]
    return [
        _Axis(axis, x.shape[axis], size, scale, *region)
        for axis, size, scale, region in zip(axes, sizes, scales, regions, strict=True)
    ]


@implements("Resize", since=11)
def resize(
    op: OpNode, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Array:
    """Resize by scales or to sizes, nearest, linear or cubic."""
    axes = normal_axes(range(x.ndim) if op["axes"] is None else op["axes"], x.ndim)
    crops = op["coordinate_transformation_mode"] == "tf_crop_and_resize"
    regions = [(0.0, 1.0)] * len(axes)
    if crops:
        require(roi is not None and roi.size == 2 * len(axes), f"a region of {2 * len(axes)} numbers is needed")
        assert roi is not None
        bounds = widen(roi).reshape(2, -1).T.tolist()
        regions = [(float(start), float(end)) for start, end in bounds]
    if op["antialias"]:
        require(op["mode"] != "nearest", "antialias needs the mode linear or cubic")
    if scales is not None and scales.size:
        require(sizes is None or not sizes.size, "both scales and sizes are given")
        return _resize(op, x, _from_scales(x, axes, scales, regions))
    require(sizes is not None and sizes.size > 0, "neither scales nor sizes are given")
    assert sizes is not None
    return _resize(op, x, _from_sizes(op, x, axes, integers(sizes), regions))


@implements("Upsample")
@implements("Resize", since=10)
def upsample(op: OpNode, x: Array, scales: Array | None = None) -> Array:
    """Resize as Upsample and version 10 of Resize do: target positions divided by the scale, nearest downwards."""
    given = op["scales"] if op["scales"] is not None else [1.0, 1.0, op["height_scale"], op["width_scale"]]
    factors = widen(scales) if scales is not None else np.array(given, dtype=np.float32)
    if op["mode"] == "bilinear":  # what version 1 calls it
        op = replace(op, attributes={**op.attributes, "mode": "linear"})
    return _resize(op, x, _from_scales(x, tuple(range(x.ndim)), factors, [(0.0, 1.0)] * x.ndim))
