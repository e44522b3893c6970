"""Pooling over sliding windows and over whole images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from accord.backends.reference.conv import Window, pad_spatial, same_padding, unfold_windows
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import integers, is_float, lowest, require, require_room, widen


def _geometry(op: OpNode, spatial: Sequence[int]) -> tuple[tuple[int, ...], Window]:
    """Output lengths, and the window with enough padding behind for its last position.

    With ``ceil_mode`` the last window may reach beyond the padded input, but never starts in the padding behind.
    """
    kernel = tuple(op["kernel_shape"])
    window = Window.of(op, kernel, spatial)
    mode = op["auto_pad"] or "NOTSET"
    before, after, lengths = list(window.before), list(window.after), []
    for axis, length in enumerate(spatial):
        extent, stride = window.extents[axis], window.strides[axis]
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            count = -(-length // stride)
            before[axis], after[axis] = same_padding((count - 1) * stride + extent - length, mode)
        else:
            # A window longer than the padded input leaves nothing, or with a long stride less than nothing.
            room = before[axis] + length + after[axis] - extent
            count = room // stride + 1
            if op["ceil_mode"] and mode == "NOTSET":
                count = -(-room // stride) + 1
                if (count - 1) * stride >= length + before[axis]:
                    count -= 1
            require(count >= 0, f"a window of {extent} does not fit a padded input of {room + extent}")
        lengths.append(count)
    reach = [max(n - 1, 0) * s + e for n, s, e in zip(lengths, window.strides, window.extents, strict=True)]
    behind = [max(a, r - b - n) for a, r, b, n in zip(after, reach, before, spatial, strict=True)]
    return tuple(lengths), Window(kernel, window.strides, window.dilations, tuple(before), tuple(behind))


def _windows(x: Array, window: Window, lengths: Sequence[int], value: object) -> Array:
    """Windows of the padded input: (N, C, *lengths, *kernel)."""
    view = unfold_windows(pad_spatial(x, window.before, window.after, value), window)
    return view[(slice(None), slice(None), *(slice(n) for n in lengths))]


def _kernel_axes(rank: int) -> tuple[int, ...]:
    return tuple(range(2 + rank, 2 + 2 * rank))


@implements("MaxPool")
def max_pool(op: OpNode, x: Array) -> Array | tuple[Array, Array]:
    """Largest element of each window, without the padding, and on request its index in the flattened input."""
    spatial = x.shape[2:]
    lengths, window = _geometry(op, spatial)
    values = _windows(widen(x), window, lengths, lowest(x.dtype))
    rank = len(spatial)
    y: Array = values.max(axis=_kernel_axes(rank)).astype(x.dtype)
    if not op.wants(1):
        return y
    # Where each element of a window comes from; padding has no index and never wins against an element.
    column_major = bool(op["storage_order"])
    numbers = np.arange(math.prod(spatial)).reshape(spatial, order="F" if column_major else "C")
    places = _windows(numbers[np.newaxis, np.newaxis], window, lengths, -1)
    taps = math.prod(window.kernel)
    flat_places = places.reshape(*lengths, taps)
    candidates = values.reshape(*x.shape[:2], *lengths, taps)
    best = candidates == candidates.max(axis=-1, keepdims=True)
    if is_float(x.dtype):
        best |= np.isnan(candidates)
    first = np.argmax(best & (flat_places >= 0), axis=-1)
    chosen = np.take_along_axis(np.broadcast_to(flat_places, best.shape), first[..., np.newaxis], axis=-1)[..., 0]
    planes = np.arange(math.prod(x.shape[:2])).reshape(x.shape[:2] + (1,) * rank)
    return y, (planes * math.prod(spatial) + chosen).astype(np.int64)


@implements("AveragePool")
def average_pool(op: OpNode, x: Array) -> Array:
    """Mean of each window: over the input's elements only, or over the explicit padding as well."""
    spatial = x.shape[2:]
    lengths, window = _geometry(op, spatial)
    rank = len(spatial)
    total = _windows(widen(x), window, lengths, 0).sum(axis=_kernel_axes(rank), dtype=np.float64)
    count: Array = np.ones((1,) * rank)
    explicit = Window.of(op, op["kernel_shape"], spatial)
    for axis, length in enumerate(spatial):
        # Elements beyond the declared padding, which only ceil_mode reaches, never count.
        first, last = -window.before[axis], length
        if op["count_include_pad"]:
            last = length + (explicit.after[axis] if op["auto_pad"] == "NOTSET" else window.after[axis])
        else:
            first = 0
        starts = np.arange(lengths[axis]) * window.strides[axis] - window.before[axis]
        taps = np.arange(window.kernel[axis]) * window.dilations[axis]
        places = starts[:, np.newaxis] + taps
        inside = ((places >= first) & (places < last)).sum(axis=1)
        count = count * inside.reshape([-1 if a == axis else 1 for a in range(rank)])
    return np.asarray(total / count).astype(x.dtype)


def _p_norm(x: Array, p: int, axes: tuple[int, ...], keepdims: bool) -> Array:
    powers = np.abs(x.astype(np.float64)) ** p
    return np.asarray(powers.sum(axis=axes, keepdims=keepdims) ** (1.0 / p))


@implements("LpPool")
def lp_pool(op: OpNode, x: Array) -> Array:
    """p-norm of each window; padding counts as zero."""
    lengths, window = _geometry(op, x.shape[2:])
    values = _windows(widen(x), window, lengths, 0)
    return _p_norm(values, op["p"], _kernel_axes(x.ndim - 2), keepdims=False).astype(x.dtype)


@implements("GlobalLpPool")
def global_lp_pool(op: OpNode, x: Array) -> Array:
    """p-norm of each channel."""
    return _p_norm(x, op["p"], tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype)


@implements("GlobalAveragePool")
def global_average_pool(_op: OpNode, x: Array) -> Array:
    """Mean of each channel, taken in float64."""
    axes = tuple(range(2, x.ndim))
    total = widen(x).sum(axis=axes, keepdims=True, dtype=np.float64)
    return np.asarray(total / np.float64(math.prod(x.shape[2:]))).astype(x.dtype)


@implements("GlobalMaxPool")
def global_max_pool(_op: OpNode, x: Array) -> Array:
    """Largest element of each channel."""
    axes = tuple(range(2, x.ndim))
    return np.asarray(widen(x).max(axis=axes, keepdims=True, initial=lowest(x.dtype))).astype(x.dtype)


@implements("MaxUnpool")
def max_unpool(op: OpNode, x: Array, indices: Array, output_shape: Array | None = None) -> Array:
    """Put elements back where MaxPool took them from; all others are zero.

    The indices refer to the shape that inverts the pooling. A larger ``output_shape`` keeps that image in its
    first corner.
    """
    rank = x.ndim - 2
    kernel = op["kernel_shape"]
    strides = op["strides"] or [1] * rank
    pads = op["pads"] or [0] * (2 * rank)
    require(x.shape == indices.shape, f"shapes {x.shape} and {indices.shape} differ")
    inverse = [
        (n - 1) * s - before - after + k
        for n, s, before, after, k in zip(x.shape[2:], strides, pads[:rank], pads[rank:], kernel, strict=True)
    ]
    shape = (*x.shape[:2], *inverse)
    require_room(shape)
    image = np.zeros(math.prod(shape), dtype=x.dtype)
    image[indices.reshape(-1)] = x.reshape(-1)
    if output_shape is None:
        return image.reshape(shape)
    target = tuple(integers(output_shape))
    require(len(target) == x.ndim, f"output_shape {target} for a tensor of rank {x.ndim}")
    require_room(target)
    result = np.zeros(target, dtype=x.dtype)
    corner = tuple(slice(min(a, b)) for a, b in zip(shape, target, strict=True))
    result[corner] = image.reshape(shape)[corner]
    return result
