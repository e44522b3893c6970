"""Reductions along axes, cumulative sums and products, and the stable exponentials built on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import (
    accumulator,
    highest,
    integers,
    lowest,
    normal_axes,
    normal_axis,
    require,
    require_room,
    scalar,
    widen,
)

__all__ = ["log_softmax_of", "softmax_of"]

Axes = tuple[int, ...]


def softmax_of(x: Array, axis: int) -> Array:
    """Softmax of a float array along an axis, shifted by the maximum; a row of only -inf becomes NaN."""
    if not x.size:
        return x
    weights = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(weights / weights.sum(axis=axis, keepdims=True))


def log_softmax_of(x: Array, axis: int) -> Array:
    """Logarithm of the softmax along an axis, without taking the logarithm of a small number."""
    if not x.size:
        return x
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _log_sum_exp(x: Array, axes: Axes) -> Array:
    peak = x.max(axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(peak), peak, 0)
    return np.asarray(np.log(np.exp(x - shift).sum(axis=axes, keepdims=True)) + shift)


def _mean(x: Array, axes: Axes) -> Array:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return np.asarray(x.astype(np.float64).sum(axis=axes, keepdims=True) / np.float64(count))


def _float_sum(function: Callable[[Any], Any]) -> Callable[[Array, Axes], Array]:
    return lambda x, axes: function(x).sum(axis=axes, keepdims=True, dtype=x.dtype)


def _max(x: Array, axes: Axes) -> Array:
    return np.asarray(x.max(axis=axes, keepdims=True, initial=lowest(x.dtype)))


def _min(x: Array, axes: Axes) -> Array:
    return np.asarray(x.min(axis=axes, keepdims=True, initial=highest(x.dtype)))


#: Name → the reduction, of values already in the accumulation type, with the reduced axes kept.
_REDUCTIONS: dict[str, Callable[[Array, Axes], Any]] = {
    "ReduceL1": _float_sum(np.abs),
    "ReduceL2": lambda x, axes: np.sqrt(np.square(x.astype(np.float64)).sum(axis=axes, keepdims=True)),
    "ReduceLogSum": lambda x, axes: np.log(x.sum(axis=axes, keepdims=True)),
    "ReduceLogSumExp": lambda x, axes: _log_sum_exp(x.astype(np.float64), axes),
    "ReduceMax": _max,
    "ReduceMean": _mean,
    "ReduceMin": _min,
    "ReduceProd": lambda x, axes: x.prod(axis=axes, keepdims=True, dtype=x.dtype),
    "ReduceSum": _float_sum(np.asarray),
    "ReduceSumSquare": _float_sum(np.square),
}


@implements(*_REDUCTIONS)
def reduce_axes(op: OpNode, x: Array, axes: Array | None = None) -> Array:
    """Reduce over axes given as input (newer versions) or attribute (older ones); all axes if none are given.

    Floats are reduced in float64, integers in their own type. With ``noop_with_empty_axes`` and no axes, nothing
    is summed, but the squares, logarithms and the like are still taken.
    """
    chosen = op["axes"] if axes is None else integers(axes)
    if not chosen and not op["noop_with_empty_axes"]:
        chosen = range(x.ndim)
    reduced = normal_axes(chosen or [], x.ndim)
    wide = widen(x)
    result = np.asarray(_REDUCTIONS[op.op_type](wide.astype(accumulator(x.dtype)), reduced)).astype(x.dtype)
    keep = op["keepdims"] is None or op["keepdims"]
    return result if keep else result.reshape([n for axis, n in enumerate(x.shape) if axis not in reduced])


@implements("ArgMax", "ArgMin")
def arg_extreme(op: OpNode, x: Array) -> Array:
    """Index of the first (or last) extreme element along an axis; NaN counts as extreme."""
    axis = normal_axis(op["axis"], x.ndim)
    function = np.argmax if op.op_type == "ArgMax" else np.argmin
    wide = widen(x)
    if op["select_last_index"]:
        found = x.shape[axis] - 1 - function(np.flip(wide, axis), axis=axis)
    else:
        found = function(wide, axis=axis)
    result = np.expand_dims(np.asarray(found, dtype=np.int64), axis)
    return result if op["keepdims"] else result.reshape(x.shape[:axis] + x.shape[axis + 1 :])


@implements("CumSum", "CumProd")
def cumulative(op: OpNode, x: Array, axis: Array) -> Array:
    """Running sums or products along an axis, forwards or backwards, with or without the element itself."""
    along = normal_axis(int(scalar(axis)), x.ndim)
    function, start = (np.cumsum, 0) if op.op_type == "CumSum" else (np.cumprod, 1)
    values = x.astype(accumulator(x.dtype))
    if op["reverse"]:
        values = np.flip(values, along)
    if op["exclusive"]:
        first = np.full_like(np.take(values, [0][: x.shape[along]], axis=along), start)
        values = np.concatenate([first, np.take(values, range(x.shape[along] - 1), axis=along)], axis=along)
    result = np.asarray(function(values, axis=along, dtype=values.dtype))
    return (np.flip(result, along) if op["reverse"] else result).astype(x.dtype)


@implements("TopK")
def top_k(op: OpNode, x: Array, k: Array | None = None) -> tuple[Array, Array]:
    """The k largest or smallest elements along an axis in order; equal ones by rising index. NaN is largest."""
    count = int(scalar(k)) if k is not None else int(op["k"])
    axis = normal_axis(op["axis"], x.ndim)
    require(0 <= count <= x.shape[axis], f"k = {count} exceeds the {x.shape[axis]} elements of axis {axis}")
    values = np.moveaxis(widen(x), axis, -1)
    largest = op["largest"] is None or op["largest"]
    if largest:
        # A stable sort of the reversed row, read backwards, is descending with ties by rising index.
        order = x.shape[axis] - 1 - np.argsort(values[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(values, axis=-1, kind="stable")
    indices = np.moveaxis(order[..., :count], -1, axis).astype(np.int64)
    return np.take_along_axis(x, indices, axis), indices


@implements("Det")
def determinant(_op: OpNode, x: Array) -> Array:
    """Determinant of the matrices in the last two axes, computed in float64."""
    return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)


@implements("Range")
def arange(op: OpNode, start: Array, limit: Array, delta: Array) -> Array:
    """Numbers from ``start`` by ``delta`` up to but not including ``limit``; the type is the inputs'.

    The number of elements is ``max(ceil((limit - start) / delta), 0)`` and element i is ``start + i * delta``.
    """
    require(scalar(delta) != 0, "delta is zero")
    first, stop, step = (scalar(widen(v)) for v in (start, limit, delta))
    # In fractions, so that the number of elements is exact for large integers and close floats alike.
    count = max(math.ceil((Fraction(stop) - Fraction(first)) / Fraction(step)), 0)
    require_room((count,))
    wide = widen(start)
    steps = np.arange(count, dtype=wide.dtype if start.dtype.kind != "i" else np.int64)
    values = np.asarray(first, dtype=steps.dtype) + steps * np.asarray(step, dtype=steps.dtype)
    return np.asarray(values).astype(start.dtype)
