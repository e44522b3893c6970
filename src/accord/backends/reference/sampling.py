"""Sampling an image at arbitrary positions: GridSample and AffineGrid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import integers, is_integer, require, require_room, to_double, widen

__all__ = ["cubic_weights", "linear_sample"]

#: The coefficient that GridSample uses, as PyTorch does.
_CUBIC_A = -0.75


def cubic_weights(ratio: Array, a: float) -> Array:
    """Weights of the four neighbours of a point at a fraction of the way between the middle two.

    Keys, "Cubic Convolution Interpolation for Digital Image Processing" (1981), equation 4.

    Args:
        ratio: Distances from the second neighbour, in [0, 1].
        a: The free coefficient.

    Returns:
        An array with a new last axis of length 4.
    """
    outer = [((a * t - 5 * a) * t + 8 * a) * t - 4 * a for t in (ratio + 1, 2 - ratio)]
    inner = [((a + 2) * t - (a + 3)) * t * t + 1 for t in (ratio, 1 - ratio)]
    return np.stack([outer[0], inner[0], inner[1], outer[1]], axis=-1)


def _taps(points: Array, mode: str) -> tuple[Array, Array]:
    """Neighbour indices and weights of positions along one axis; both have a new last axis."""
    if mode == "nearest":
        index = np.rint(points)
        return index[..., np.newaxis], np.ones((*points.shape, 1))
    base = np.floor(points)
    ratio = points - base
    if mode == "linear":
        return np.stack([base, base + 1], axis=-1), np.stack([1 - ratio, ratio], axis=-1)
    return base[..., np.newaxis] + np.arange(-1, 3), cubic_weights(ratio, _CUBIC_A)


def _reflect(index: Array, length: int, align_corners: bool) -> Array:
    """Mirror indices at the outer pixels' centres (aligned corners) or at their outer edges."""
    if align_corners:
        if length == 1:
            return np.zeros_like(index)
        period = 2 * (length - 1)
        folded = index % period
        return np.asarray(np.minimum(folded, period - folded))
    period = 2 * length
    folded = index % period
    return np.where(folded < length, folded, period - 1 - folded)


def _sample(
    images: Array, points: Array, mode: str, place: Callable[[Array, int], tuple[Array, Array | None]]
) -> Array:
    """Weighted sums of neighbours.

    Args:
        images: (N, C, *spatial).
        points: (N, P, rank) positions in pixels.
        mode: nearest, linear or cubic.
        place: Maps neighbour indices on an axis of a given length to valid ones, and to a mask of those that
            count (None: all).

    Returns:
        (N, C, P).
    """
    rank = images.ndim - 2
    batch = np.arange(len(images))[:, np.newaxis]
    axes = []
    for axis in range(rank):
        # A position that is not a number, or is out of any image, would not convert to an integer.
        position = np.clip(np.nan_to_num(points[..., axis].astype(np.float64)), -(2.0**40), 2.0**40)
        index, weight = _taps(position, mode)
        valid, counts = place(index.astype(np.int64), images.shape[2 + axis])
        axes.append((valid, weight if counts is None else weight * counts))
    channels_last = to_double(np.moveaxis(images, 1, -1))
    total = np.zeros((*points.shape[:2], images.shape[1]), dtype=channels_last.dtype)
    for taps in itertools.product(*(range(index.shape[-1]) for index, _ in axes)):
        weight = np.ones(points.shape[:2])
        where = []
        for tap, (index, share) in zip(taps, axes, strict=True):
            weight = weight * share[..., tap]
            where.append(index[..., tap])
        factor = weight[..., np.newaxis]
        # A neighbour of weight zero must not turn the sum into NaN by being infinite.
        total += np.where(factor != 0, factor * channels_last[(batch, *where)], 0)
    return np.moveaxis(total, -1, 1)


def _zeros_outside(index: Array, length: int) -> tuple[Array, Array | None]:
    return np.clip(index, 0, length - 1), (index >= 0) & (index < length)


def linear_sample(images: Array, points: Array) -> Array:
    """Interpolate linearly; neighbours outside the image count as zero.

    Args:
        images: (N, C, *spatial).
        points: (N, P, rank) positions in pixels, outermost axis first.

    Returns:
        (N, C, P), of the type of ``images``.
    """
    return _sample(images, points, "linear", _zeros_outside).astype(images.dtype)


_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic", "cubic": "cubic"}


@implements("GridSample")
def grid_sample(op: OpNode, x: Array, grid: Array) -> Array:
    """Sample at normalised positions, innermost axis first; padding applies to every neighbour by itself."""
    require(op["mode"] in _MODES, f"mode '{op['mode']}' is unknown")
    rank = x.ndim - 2
    require(grid.ndim == x.ndim and grid.shape[-1] == rank, f"a grid {grid.shape} does not fit {x.shape}")
    require(len(grid) == len(x), f"the batch sizes {len(x)} and {len(grid)} differ")
    aligned = bool(op["align_corners"])
    lengths = np.array(x.shape[2:], dtype=np.float64)
    unit = widen(grid).astype(np.float64)[..., ::-1]
    points = (unit + 1) / 2 * (lengths - 1) if aligned else ((unit + 1) * lengths - 1) / 2
    places: dict[str, Callable[[Array, int], tuple[Array, Array | None]]] = {
        "zeros": _zeros_outside,
        "border": lambda index, length: (np.clip(index, 0, length - 1), None),
        "reflection": lambda index, length: (_reflect(index, length, aligned), None),
    }
    require(op["padding_mode"] in places, f"padding_mode '{op['padding_mode']}' is unknown")
    output = (*x.shape[:2], *grid.shape[1:-1])
    if not x.size or not grid.size:
        return np.zeros(output, dtype=x.dtype)
    points = points.reshape(len(x), math.prod(output[2:]), rank)
    sampled = _sample(x, points, _MODES[op["mode"]], places[op["padding_mode"]])
    values = np.trunc(sampled) if is_integer(x.dtype) else sampled
    return values.reshape(output).astype(x.dtype)


def _positions(length: int, align_corners: bool) -> Array:
    """Evenly spaced positions from -1 to 1: at pixel centres, the outer ones on or inside the ends.

    With aligned corners, a single position is -1, where the spacing begins.
    """
    if align_corners:
        return np.linspace(-1, 1, length)
    return (2 * np.arange(length) + 1) / length - 1


@implements("AffineGrid")
def affine_grid(op: OpNode, theta: Array, size: Array) -> Array:
    """Apply a matrix for each batch entry to a regular grid of positions."""
    shape: Sequence[int] = integers(size)
    spatial = list(shape[2:])
    rank = len(spatial)
    require(theta.shape == (shape[0], rank, rank + 1), f"theta has the shape {theta.shape} for the size {shape}")
    require_room((*shape, rank + 1))
    axes = [_positions(length, bool(op["align_corners"])) for length in spatial]
    mesh = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*mesh[::-1], np.ones(spatial)], axis=-1).reshape(math.prod(spatial), rank + 1)
    result: Array = np.matmul(points, widen(theta).astype(np.float64).transpose(0, 2, 1))
    return np.asarray(result.reshape(shape[0], *spatial, rank)).astype(theta.dtype)
