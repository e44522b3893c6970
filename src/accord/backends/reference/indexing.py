"""Gather, scatter, one-hot and the other operators that index by values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import integers, normal_axis, require, require_room, scalar, widen


def _within(indices: Array, length: int) -> Array:
    """Non-negative indices; raises if one lies outside ``[-length, length - 1]``."""
    wrong = (indices < -length) | (indices >= length)
    if wrong.any():
        raise IndexError(f"index {int(indices[wrong][0])} is outside [-{length}, {length - 1}]")
    return np.where(indices < 0, indices + length, indices)


@implements("Gather")
def gather(op: OpNode, x: Array, indices: Array) -> Array:
    """Take slices along an axis."""
    axis = normal_axis(op["axis"], x.ndim)
    return np.take(x, _within(indices, x.shape[axis]), axis=axis)


def _grid(indices: Array, axis: int, length: int) -> tuple[Array, ...]:
    """Full coordinates of the elements that an index tensor addresses along one axis."""
    positions: tuple[Array, ...] = np.indices(indices.shape, sparse=True)
    return (*positions[:axis], _within(indices, length), *positions[axis + 1 :])


@implements("GatherElements")
def gather_elements(op: OpNode, x: Array, indices: Array) -> Array:
    """Take elements along an axis at the positions that a tensor of the same rank names."""
    axis = normal_axis(op["axis"], x.ndim)
    require(indices.ndim == x.ndim, f"indices have rank {indices.ndim}, data {x.ndim}")
    return np.asarray(x[_grid(indices, axis, x.shape[axis])])


@implements("GatherND")
def gather_nd(op: OpNode, x: Array, indices: Array) -> Array:
    """Take slices at the coordinates in the last axis of the indices; leading axes may be shared as batch."""
    batch = op["batch_dims"] or 0
    depth = indices.shape[-1]
    require(batch < min(x.ndim, indices.ndim), f"batch_dims {batch} leaves no axis to index")
    require(depth <= x.ndim - batch, f"{depth} coordinates for {x.ndim - batch} axes")
    require(x.shape[:batch] == indices.shape[:batch], "the batch axes differ")
    coordinates = [
        np.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(indices.ndim - 1)])
        for axis in range(batch)
    ]
    coordinates += [_within(indices[..., i], x.shape[batch + i]) for i in range(depth)]
    return np.asarray(x[tuple(coordinates)])


_SCATTERS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _scatter(op: OpNode, x: Array, where: tuple[Array, ...], updates: Array) -> Array:
    reduction = op["reduction"] or "none"
    if reduction == "none":
        replaced = x.copy()
        replaced[where] = updates
        return replaced
    require(reduction in _SCATTERS, f"reduction '{reduction}' is unknown")
    wide = widen(x).copy()
    _SCATTERS[reduction].at(wide, where, widen(updates))  # type: ignore[attr-defined]
    result: Array = wide.astype(x.dtype)
    return result


@implements("Scatter", "ScatterElements")
def scatter_elements(op: OpNode, x: Array, indices: Array, updates: Array) -> Array:
    """Write or reduce elements along an axis at the positions that a tensor of the same rank names."""
    axis = normal_axis(op["axis"], x.ndim)
    require(indices.shape == updates.shape, f"shapes {indices.shape} and {updates.shape} differ")
    require(indices.ndim == x.ndim, f"indices have rank {indices.ndim}, data {x.ndim}")
    return _scatter(op, x, _grid(indices, axis, x.shape[axis]), updates)


@implements("ScatterND")
def scatter_nd(op: OpNode, x: Array, indices: Array, updates: Array) -> Array:
    """Write or reduce slices at the coordinates in the last axis of the indices."""
    depth = indices.shape[-1]
    require(depth <= x.ndim, f"{depth} coordinates for {x.ndim} axes")
    expected = indices.shape[:-1] + x.shape[depth:]
    require(updates.shape == expected, f"updates have shape {updates.shape}, expected {expected}")
    where = tuple(_within(indices[..., i], x.shape[i]) for i in range(depth))
    if not depth:  # every update replaces the whole tensor
        where = (np.zeros(indices.shape[:-1], dtype=np.int64),)
        return np.asarray(_scatter(op, x[np.newaxis], where, updates)[0])
    return _scatter(op, x, where, updates)


@implements("TensorScatter")
def tensor_scatter(op: OpNode, cache: Array, update: Array, write_indices: Array | None = None) -> Array:
    """Write an update into a cache along the sequence axis, from a position given for each batch entry."""
    axis = normal_axis(op["axis"], cache.ndim)
    require(axis != 0, "the axis cannot be the batch axis")
    room, length = cache.shape[axis], update.shape[axis]
    expected = (*cache.shape[:axis], length, *cache.shape[axis + 1 :])
    require(update.shape == expected and length <= room, f"an update {update.shape} does not fit {cache.shape}")
    starts = [0] * len(cache) if write_indices is None else integers(write_indices)
    require(len(starts) == len(cache), f"{len(starts)} write indices for {len(cache)} batch entries")
    result = cache.copy()
    for entry, start in enumerate(starts):
        positions = np.arange(start, start + length)
        if op["mode"] == "circular":
            positions %= room
        require(start >= 0 and bool((positions < room).all()), f"write index {start} leaves the cache")
        result[entry][(slice(None),) * (axis - 1) + (positions,)] = update[entry]
    return result


@implements("OneHot")
def one_hot(op: OpNode, indices: Array, depth: Array, values: Array) -> Array:
    """Insert an axis that is on at each index and off elsewhere; an index out of range is off everywhere."""
    axis = normal_axis(op["axis"], indices.ndim + 1)
    classes = int(scalar(depth))
    require_room((indices.size, classes))
    off, on = values[0], values[1]
    # Wide enough for the depth; indices too large for int64 are out of range as well.
    chosen = np.minimum(indices, np.iinfo(np.int64).max) if indices.dtype == np.uint64 else indices
    chosen = chosen.astype(np.int64)
    chosen = np.expand_dims(np.where(chosen < 0, chosen + classes, chosen), axis)
    places = np.arange(classes).reshape([-1 if a == axis else 1 for a in range(indices.ndim + 1)])
    result = np.full(np.broadcast_shapes(chosen.shape, places.shape), off, dtype=values.dtype)
    result[chosen == places] = on
    return result


@implements("Compress")
def compress(op: OpNode, x: Array, condition: Array) -> Array:
    """Keep the slices along an axis, or elements of the flattened tensor, where the condition holds."""
    flat = condition.reshape(-1)
    if op["axis"] is None:
        require(flat.size <= x.size, f"{flat.size} conditions for {x.size} elements")
        return x.reshape(-1)[np.flatnonzero(flat)]
    axis = normal_axis(op["axis"], x.ndim)
    require(flat.size <= x.shape[axis], f"{flat.size} conditions for {x.shape[axis]} slices")
    return np.take(x, np.flatnonzero(flat), axis=axis)


@implements("NonZero")
def non_zero(_op: OpNode, x: Array) -> Array:
    """Coordinates of the elements that are not zero, one row an axis."""
    if x.ndim == 0:
        return np.zeros((0, int(scalar(widen(x)) != 0)), dtype=np.int64)
    return np.array(np.nonzero(widen(x)), dtype=np.int64)


@implements("Unique")
def unique(op: OpNode, x: Array) -> tuple[Array, Array, Array, Array]:
    """Distinct elements, or slices along an axis, in ascending order or in order of first appearance."""
    keys = x.astype(np.str_) if x.dtype == object else widen(x)
    axis = None if op["axis"] is None else normal_axis(op["axis"], x.ndim)
    if axis is None:
        keys, source = keys.reshape(-1), x.reshape(-1)
    else:
        source = x
    _, first, inverse, counts = np.unique(keys, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not op["sorted"]:
        order = np.argsort(first, kind="stable")
        rank = np.argsort(order, kind="stable")
        first, counts, inverse = first[order], counts[order], rank[inverse]
    values = np.take(source, first, axis=axis or 0)
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@implements("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(_op: OpNode, x: Array, indices: Array) -> Array:
    """Select elements along the last axis; a vector counts as a matrix of one row."""
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    return np.take(rows, _within(indices.reshape(-1), rows.shape[-1]), axis=-1)
