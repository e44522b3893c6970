"""Normalisations; statistics are taken in float64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import normal_axes, normal_axis, numpy_dtype, require, widen


def _per_channel(x: Array, values: Array, name: str) -> Array:
    """Make one value a channel broadcast with a tensor (N, C, ...)."""
    require(x.ndim >= 2, f"a tensor of rank {x.ndim} has no channels")
    require(values.shape == (x.shape[1],), f"{name} has the shape {values.shape} for {x.shape[1]} channels")
    return widen(values).astype(np.float64).reshape((-1,) + (1,) * (x.ndim - 2))


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean, and mean of the squared deviations from it: no cancellation however large the mean is."""
    count = np.float64(math.prod(x.shape[axis] for axis in axes))
    mean = x.sum(axis=axes, keepdims=True) / count
    return mean, np.square(x - mean).sum(axis=axes, keepdims=True) / count


def _is_training(op: OpNode) -> bool:
    if op.version >= 14:
        return bool(op["training_mode"])
    # Versions 7 to 13 train if the node names the statistics that only training yields.
    return op.wants(1) if op.version >= 7 else not op["is_test"]


@implements("BatchNormalization")
def batch_normalization(
    op: OpNode, x: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> Array | tuple[Array, ...]:
    """Normalise each channel by given statistics, or in training by the batch's, which then update the given."""
    values = widen(x).astype(np.float64)
    training = _is_training(op)
    if op["spatial"] == 0:  # versions before 9 may keep statistics for every element
        shape = (1, *x.shape[1:])
        gain, shift, mean_in, variance_in = (
            widen(v).astype(np.float64).reshape(shape) for v in (scale, bias, mean, variance)
        )
        axes: tuple[int, ...] = (0,)
    else:
        flat = values.reshape(-1, 1) if x.ndim == 1 else values
        names = ("scale", "B", "mean", "var")
        gain, shift, mean_in, variance_in = (
            _per_channel(flat, v, name) for v, name in zip((scale, bias, mean, variance), names, strict=True)
        )
        axes = (0, *range(2, flat.ndim))
        values = flat
    if not training:
        y = (values - mean_in) / np.sqrt(variance_in + op["epsilon"]) * gain + shift
        return np.asarray(y.reshape(x.shape)).astype(x.dtype)
    now_mean, now_variance = _moments(values, axes)
    y = (values - now_mean) / np.sqrt(now_variance + op["epsilon"]) * gain + shift
    momentum = op["momentum"]
    new_mean = mean_in.reshape(-1) * momentum + now_mean.reshape(-1) * (1 - momentum)
    new_variance = variance_in.reshape(-1) * momentum + now_variance.reshape(-1) * (1 - momentum)
    outputs = (
        y.reshape(x.shape).astype(x.dtype),
        new_mean.reshape(mean.shape).astype(mean.dtype),
        new_variance.reshape(variance.shape).astype(variance.dtype),
    )
    if op.version >= 14:
        return outputs
    saved = (now_mean.reshape(mean.shape), now_variance.reshape(variance.shape))
    return (*outputs, saved[0].astype(mean.dtype), saved[1].astype(variance.dtype))


@implements("InstanceNormalization")
def instance_normalization(op: OpNode, x: Array, scale: Array, bias: Array) -> Array:
    """Normalise each channel of each instance by its own statistics."""
    values = widen(x).astype(np.float64)
    mean, variance = _moments(values, tuple(range(2, x.ndim)))
    normal = (values - mean) / np.sqrt(variance + op["epsilon"])
    return np.asarray(normal * _per_channel(x, scale, "scale") + _per_channel(x, bias, "B")).astype(x.dtype)


@implements("GroupNormalization")
def group_normalization(op: OpNode, x: Array, scale: Array, bias: Array) -> Array:
    """Normalise groups of channels of each instance; version 18 scales by group, later ones by channel."""
    groups = op["num_groups"]
    require(groups > 0 and x.shape[1] % groups == 0, f"{x.shape[1]} channels in {groups} groups")
    size = math.prod(x.shape[1:]) // groups
    values = widen(x).astype(np.float64).reshape(x.shape[0], groups, size)
    mean, variance = _moments(values, (2,))
    normal = ((values - mean) / np.sqrt(variance + op["epsilon"])).reshape(x.shape)
    if op.version < 21:
        scale, bias = (np.repeat(v, x.shape[1] // groups) for v in (scale, bias))
    return np.asarray(normal * _per_channel(x, scale, "scale") + _per_channel(x, bias, "bias")).astype(x.dtype)


@implements("LayerNormalization")
def layer_normalization(op: OpNode, x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, Array, Array]:
    """Normalise over the axes from ``axis`` on; also the mean and the inverse standard deviation."""
    axes = tuple(range(normal_axis(op["axis"], x.ndim), x.ndim))
    values = widen(x).astype(np.float64)
    mean, variance = _moments(values, axes)
    inverse = 1 / np.sqrt(variance + op["epsilon"])
    y = (values - mean) * inverse * np.broadcast_to(widen(scale), x.shape)
    if bias is not None:
        y = y + np.broadcast_to(widen(bias), x.shape)
    stash = numpy_dtype(op["stash_type"])
    return y.astype(x.dtype), mean.astype(stash), inverse.astype(stash)


@implements("RMSNormalization")
def rms_normalization(op: OpNode, x: Array, scale: Array) -> Array:
    """Divide by the root mean square over the axes from ``axis`` on; the result has the scale's type."""
    axes = tuple(range(normal_axis(op["axis"], x.ndim), x.ndim))
    values = widen(x).astype(np.float64)
    count = np.float64(math.prod(x.shape[axis] for axis in axes))
    square = np.square(values).sum(axis=axes, keepdims=True) / count
    y = values / np.sqrt(square + op["epsilon"]) * np.broadcast_to(widen(scale), x.shape)
    return np.asarray(y).astype(scale.dtype)


@implements("MeanVarianceNormalization")
def mean_variance_normalization(op: OpNode, x: Array) -> Array:
    """Subtract the mean and divide by the standard deviation plus 1e-9, as the operator's function body does."""
    chosen: Sequence[int] = op["axes"] or (0, 2, 3)
    values = widen(x).astype(np.float64)
    mean, variance = _moments(values, normal_axes(chosen, x.ndim))
    return np.asarray((values - mean) / (np.sqrt(variance) + 1e-9)).astype(x.dtype)


@implements("LpNormalization")
def lp_normalization(op: OpNode, x: Array) -> Array:
    """Divide by the 1-norm or 2-norm along an axis; a zero vector stays zero."""
    require(op["p"] in (1, 2), f"the norm must be 1 or 2, not {op['p']}")
    axis = normal_axis(op["axis"], x.ndim)
    values = widen(x).astype(np.float64)
    if op["p"] == 1:
        norm = np.abs(values).sum(axis=axis, keepdims=True)
    else:
        norm = np.sqrt(np.square(values).sum(axis=axis, keepdims=True))
    return np.where(norm == 0, 0, values / norm).astype(x.dtype)


@implements("LRN")
def local_response_normalization(op: OpNode, x: Array) -> Array:
    """Divide by a power of the mean square over neighbouring channels."""
    size = op["size"]
    values = widen(x).astype(np.float64)
    before, after = (size - 1) // 2, -(-(size - 1) // 2)
    squares = np.square(values)
    total = np.zeros_like(values)
    for channel in range(x.shape[1]):
        total[:, channel] = squares[:, max(0, channel - before) : channel + after + 1].sum(axis=1)
    return np.asarray(values / (op["bias"] + op["alpha"] / size * total) ** op["beta"]).astype(x.dtype)
