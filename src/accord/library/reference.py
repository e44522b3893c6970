"""What references share. They compute in float64, as their definitions are written, and round once at the end."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "ACCUMULATE",
    "FLOATS",
    "Array",
    "bilinear",
    "erf",
    "log_softmax",
    "narrow",
    "sigmoid",
    "softmax",
    "spatial",
    "wide",
]

Array: TypeAlias = "np.ndarray[Any, Any]"

#: The element types of operators on real numbers.
FLOATS = ("float32", "float64", "float16", "bfloat16")
#: Sums of short floats are kept in float32.
ACCUMULATE = {"float16": "float32", "bfloat16": "float32"}


def wide(x: Any) -> Array:
    """``x`` in float64."""
    return np.asarray(x).astype(np.float64)


def narrow(y: Array, like: Any) -> Array:
    """``y`` rounded to the dtype of ``like``; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(np.asarray(y).astype(like.dtype), order="C")


def erf(x: Array) -> Array:
    """The error function."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def log_softmax(x: Array) -> Array:
    """Logarithm of :func:`softmax`."""
    if x.size == 0:
        return x
    with np.errstate(invalid="ignore"):
        return np.asarray(x - np.logaddexp.reduce(x, axis=-1, keepdims=True))


def softmax(x: Array) -> Array:
    """``exp(x) / sum(exp(x))`` along the last axis; zeros where all of a row is minus infinity."""
    if x.size == 0:
        return x
    peak = x.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - np.where(np.isneginf(peak), 0.0, peak))
    total = e.sum(-1, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1.0, total))


def spatial(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Number of places of a window along an axis."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def bilinear(image: Array, y: Array, x: Array) -> Array:
    """Values of ``image`` [C, H, W] at real positions; pixels outside count as zero.

    Returns:
        [C, *shape of y].
    """
    channels, height, width = image.shape
    pixels = np.concatenate([image.reshape(channels, height * width), np.zeros((channels, 1))], axis=1)
    total = np.zeros((channels, *y.shape))
    y0, x0 = np.floor(y), np.floor(x)
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = y0 + dy, x0 + dx
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            weight = np.where(inside, (1 - np.abs(y - row)) * (1 - np.abs(x - column)), 0.0)
            total += weight * pixels.take(np.where(inside, row * width + column, height * width).astype(np.int64), 1)
    return total
