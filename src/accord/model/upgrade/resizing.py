"""Upsample, and Resize before 13."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import FLOATS, Outputs, as_dtype, constant, has_attribute, rebuild, unsupported

__all__: list[str] = []

_CROP = "tf_crop_and_resize"
_FOR_NN = "tf_half_pixel_for_nn"


@expands("Upsample")
def upsample(b: Builder, n: Inference) -> Outputs:
    """Resize by factors of at least 1 from the top left corner; the factors were attributes before 9."""
    x, scales = required(n, 0), given(n, 1)
    if scales is None:
        factors = n.attr("scales")
        if factors is None:
            n.require(has_attribute(n, "height_scale"), "attribute scales is missing")
            factors = (1.0, 1.0, n.attr("height_scale"), n.attr("width_scale"))
        scales = b.const(np.array(factors, dtype=np.float32))
    return [_corner(b, x, scales, n.attr("mode", "nearest"), "floor")]


@expands("Resize", before=11)
def resize_corner(b: Builder, n: Inference) -> Outputs:
    """Resize-10 says nothing about coordinates; its cases count from the top left corner.

    Nearest takes the element before where it enlarges and the element after where it shrinks. One node has one way
    to round, so a mixture of both becomes two nodes; the axes are independent and a factor of 1 changes nothing.
    """
    x, scales = required(n, 0), required(n, 1)
    mode = n.attr("mode", "nearest")
    factors = constant(b, scales)
    if mode != "nearest" or (factors is not None and (factors >= 1).all()):
        return [_corner(b, x, scales, mode, "floor")]
    if factors is not None and (factors <= 1).all():
        return [_corner(b, x, scales, mode, "ceil")]
    one = b.const(np.array(1, dtype=np.float32))
    y = _corner(b, x, b("Min", scales, one), mode, "ceil")
    return [_corner(b, y, b("Max", scales, one), mode, "floor")]


def _corner(b: Builder, x: ir.Value, scales: ir.Value, mode: str, rounding: str) -> ir.Value:
    kernel = "nearest" if mode == "nearest" else "linear"
    return b(
        "Resize",
        x,
        None,
        scales,
        mode=kernel,
        coordinate_transformation_mode="asymmetric",
        nearest_mode=rounding if kernel == "nearest" else None,
    )


@expands("Resize", before=13)
def resize_positions(b: Builder, n: Inference) -> Outputs:
    """Absent inputs were empty tensors; ``tf_half_pixel_for_nn`` went away.

    Where that mode rounds down, half a pixel less that is rounded to the nearest names the same element.
    """
    x, scales, sizes = required(n, 0), _filled(b, given(n, 2)), _filled(b, given(n, 3))
    if sizes is not None:
        scales = None
    if n.attr("coordinate_transformation_mode") != _FOR_NN:
        return _trimmed(b, n, scales, sizes)
    mode, rounding = n.attr("mode", "nearest"), n.attr("nearest_mode", "round_prefer_floor")
    if mode == "nearest" and rounding == "floor" and _untouched(b, x, scales, sizes) is not None:
        changes = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
        return rebuild(b, n, x, None, scales, sizes, **changes)
    return [_sampled(b, n, x, scales, sizes)]


@expands("Resize")
def resize_inputs(b: Builder, n: Inference) -> Outputs:
    """An empty tensor in place of an absent input, as many exporters still write it, becomes an absent input."""
    return _trimmed(b, n, _filled(b, given(n, 2)), _filled(b, given(n, 3)))


def _filled(b: Builder, value: ir.Value | None) -> ir.Value | None:
    """``value``, None where it is known to have no element."""
    return None if value is None or b.fact(value).shape == (0,) else value


def _trimmed(b: Builder, n: Inference, scales: ir.Value | None, sizes: ir.Value | None) -> Outputs:
    roi = given(n, 1) if n.attr("coordinate_transformation_mode") == _CROP else None
    if (roi, scales, sizes) == (given(n, 1), given(n, 2), given(n, 3)):
        return None
    return rebuild(b, n, required(n, 0), roi, scales, sizes)


# tf_half_pixel_for_nn as gathers ------------------------------------------------------------------------------------


def _untouched(b: Builder, x: ir.Value, scales: ir.Value | None, sizes: ir.Value | None) -> list[bool] | None:
    """Which axes keep their size, None if a run decides it."""
    factors = constant(b, scales)
    if factors is not None:
        return [bool(f == 1) for f in factors.tolist()]
    shape, targets = b.fact(x).shape, b.fact(sizes).elements() if sizes is not None else None
    if shape is None or targets is None:
        return None
    return [s == t for s, t in zip(shape, targets, strict=True)]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Positions along one axis: ``(i + 0.5) / scale`` for each ``i`` of the result."""

    index: int
    size: ir.Value
    position: ir.Value


def _sampled(b: Builder, n: Inference, x: ir.Value, scales: ir.Value | None, sizes: ir.Value | None) -> ir.Value:
    """The positions written out, and each axis gathered and weighed by itself; a factor of 1 changes nothing."""
    rank = b.fact(x).rank
    if rank is None:
        shape = b.fact(scales if scales is not None else sizes).shape
        rank = shape[0] if shape is not None and isinstance(shape[0], int) else None
    if rank is None:
        raise unsupported(n, "the rank is not known, and this coordinate mode needs it", "Declare the input's shape.")
    untouched = _untouched(b, x, scales, sizes) or [False] * rank
    dtype = b.fact(x).dtype
    mode = n.attr("mode", "nearest")
    y = x if mode == "nearest" or dtype in FLOATS else as_dtype(b, x, ir.DataType.FLOAT)
    for index in range(rank):
        if untouched[index]:
            continue
        axis = _axis(b, x, index, scales, sizes)
        if mode == "nearest":
            y = _nearest(b, y, axis, n.attr("nearest_mode", "round_prefer_floor"))
        else:
            y = _weighed(b, n, y, axis, rank)
    return y if mode == "nearest" or dtype is None else as_dtype(b, y, dtype)


def _number(b: Builder, value: float) -> ir.Value:
    return b.const(np.array(value, dtype=np.float32))


def _axis(b: Builder, x: ir.Value, index: int, scales: ir.Value | None, sizes: ir.Value | None) -> _Axis:
    at = b.const(np.array(index, dtype=np.int64))
    size = as_dtype(b, b("Squeeze", b("Shape", x, start=index, end=index + 1), b.ints(0)), ir.DataType.FLOAT)
    if scales is not None:
        scale = b("Gather", scales, at)
        length = b("Floor", b("Mul", size, scale))
    else:
        length = as_dtype(b, b("Gather", sizes, at), ir.DataType.FLOAT)
        scale = b("Div", length, size)
    steps = b("Range", _number(b, 0), length, _number(b, 1))
    position = b("Div", b("Add", steps, _number(b, 0.5)), scale)
    return _Axis(index, size, b("Where", b("Equal", scale, _number(b, 1)), steps, position))


def _gather(b: Builder, x: ir.Value, axis: _Axis, index: ir.Value) -> ir.Value:
    """Elements at ``index``; the first and the last stand for what lies outside."""
    inside = b("Clip", index, _number(b, 0), b("Sub", axis.size, _number(b, 1)))
    return b("Gather", x, as_dtype(b, inside, ir.DataType.INT64), axis=axis.index)


def _nearest(b: Builder, x: ir.Value, axis: _Axis, rounding: str) -> ir.Value:
    half = _number(b, 0.5)
    index = {
        "floor": lambda: b("Floor", axis.position),
        "ceil": lambda: b("Ceil", axis.position),
        "round_prefer_floor": lambda: b("Ceil", b("Sub", axis.position, half)),
        "round_prefer_ceil": lambda: b("Floor", b("Add", axis.position, half)),
    }[rounding]()
    return _gather(b, x, axis, index)


def _weighed(b: Builder, n: Inference, x: ir.Value, axis: _Axis, rank: int) -> ir.Value:
    first = b("Floor", axis.position)
    fraction = b("Sub", axis.position, first)
    offsets, weigh = (range(2), _linear) if n.attr("mode") == "linear" else (range(-1, 3), _cubic)
    weights = weigh(b, fraction, n)
    places = [b("Add", first, _number(b, o)) for o in offsets]
    if n.attr("exclude_outside", 0):
        weights = _inside_only(b, weights, places, axis)
    column = b.ints(-1, *([1] * (rank - 1 - axis.index)))
    total: ir.Value | None = None
    for place, weight in zip(places, weights, strict=True):
        factor = b("CastLike", b("Reshape", weight, column), x)
        term = b("Mul", _gather(b, x, axis, place), factor)
        total = term if total is None else b("Add", total, term)
    assert total is not None
    return total


def _linear(b: Builder, t: ir.Value, n: Inference) -> list[ir.Value]:
    return [b("Sub", _number(b, 1), t), t]


def _cubic(b: Builder, t: ir.Value, n: Inference) -> list[ir.Value]:
    """Keys' kernel at distances 1+t, t, 1-t and 2-t."""
    a = float(n.attr("cubic_coeff_a", -0.75))

    def polynomial(x: ir.Value, *coefficients: float) -> ir.Value:
        y = _number(b, coefficients[0])
        for c in coefficients[1:]:
            y = b("Add", b("Mul", y, x), _number(b, c))
        return y

    rest = b("Sub", _number(b, 1), t)
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    return [
        polynomial(b("Add", t, _number(b, 1)), *far),
        polynomial(t, *near),
        polynomial(rest, *near),
        polynomial(b("Add", rest, _number(b, 1)), *far),
    ]


def _inside_only(b: Builder, weights: list[ir.Value], places: list[ir.Value], axis: _Axis) -> list[ir.Value]:
    """Weights of elements outside the tensor set to zero, the others scaled so that they add up to 1."""
    zero = _number(b, 0)
    kept = []
    for weight, place in zip(weights, places, strict=True):
        outside = b("Or", b("Less", place, zero), b("GreaterOrEqual", place, axis.size))
        kept.append(b("Where", outside, zero, weight))
    total = b("Sum", *kept)
    return [b("Div", w, total) for w in kept]
