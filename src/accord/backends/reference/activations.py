"""Activation functions, computed in float64 so that neither overflow nor cancellation shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from accord.backends.reference.elementwise import erfc
from accord.backends.reference.reduction import log_softmax_of, softmax_of
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import normal_axis, require, widen

__all__ = ["sigmoid"]


def sigmoid(x: Array) -> Array:
    """Logistic function of a float array, without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


def _gelu(op: OpNode, x: Array) -> Array:
    # Of a negative argument, 1 + tanh and 1 + erf cancel; these are equal to them and do not.
    if op["approximate"] == "tanh":
        return np.asarray(x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return np.asarray(0.5 * x * erfc(-x / np.sqrt(2)))


def _selu(op: OpNode, x: Array) -> Array:
    return np.asarray(op["gamma"] * np.where(x > 0, x, op["alpha"] * np.expm1(np.minimum(x, 0))))


def _celu(op: OpNode, x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.minimum(0, op["alpha"] * np.expm1(x / op["alpha"])))


def _shrink(op: OpNode, x: Array) -> Array:
    return np.where(x < -op["lambd"], x + op["bias"], np.where(x > op["lambd"], x - op["bias"], 0))


#: An attribute, so a float32, in the body that the schema gives for HardSwish.
_SIXTH = float(np.float32(1 / 6))

#: Name → the function's values at float64 points.
_ACTIVATIONS: dict[str, Callable[[OpNode, Any], Any]] = {
    "Celu": _celu,
    "Elu": lambda op, x: np.where(x > 0, x, op["alpha"] * np.expm1(np.minimum(x, 0))),
    "Gelu": _gelu,
    "HardSigmoid": lambda op, x: np.clip(op["alpha"] * x + op["beta"], 0, 1),
    "HardSwish": lambda _, x: x * np.clip(x * _SIXTH + 0.5, 0, 1),
    "LeakyRelu": lambda op, x: np.where(x >= 0, x, op["alpha"] * x),
    "Mish": lambda _, x: x * np.tanh(_softplus(x)),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": lambda _, x: sigmoid(x),
    "Softplus": lambda _, x: _softplus(x),
    "Softsign": lambda _, x: x / (1 + np.abs(x)),
    "Swish": lambda op, x: x * sigmoid(op["alpha"] * x),
    "ThresholdedRelu": lambda op, x: np.where(x > op["alpha"], x, 0),
}


@implements(*_ACTIVATIONS)
def activation(op: OpNode, x: Array) -> Array:
    """Apply an activation function; the result has the input's type."""
    return np.asarray(_ACTIVATIONS[op.op_type](op, x.astype(np.float64))).astype(x.dtype)


@implements("Relu")
def relu(_op: OpNode, x: Array) -> Array:
    """Replace negative elements by zero; NaN stays NaN."""
    return np.asarray(np.maximum(widen(x), 0)).astype(x.dtype)


@implements("PRelu")
def prelu(op: OpNode, x: Array, slope: Array) -> Array:
    """Multiply negative elements by a slope that broadcasts to the input's shape, but not beyond it."""
    factor = widen(slope)
    if op.version < 7 and slope.ndim == 1 and slope.size > 1 and x.ndim > 1:
        factor = factor.reshape((-1,) + (1,) * (x.ndim - 2))  # one slope a channel
    factor = np.broadcast_to(factor, x.shape)
    wide = widen(x)
    return np.where(wide < 0, wide * factor, wide).astype(x.dtype)


@implements("SwiGLU")
def swiglu(op: OpNode, a: Array, b: Array) -> Array:
    """Multiply the Swish of the gate ``a`` by ``b``, which has the same shape."""
    require(a.shape == b.shape, f"the shapes {list(a.shape)} and {list(b.shape)} differ")
    gate = a.astype(np.float64)
    return np.asarray(gate * sigmoid(op["alpha"] * gate) * b.astype(np.float64)).astype(a.dtype)


def _rows(op: OpNode, x: Array) -> tuple[Array, int]:
    """The tensor and the axis to normalise: before version 13, the axes from ``axis`` on count as one."""
    if op.version >= 13:
        return x, normal_axis(op["axis"], x.ndim)
    axis = op["axis"] + (x.ndim if op["axis"] < 0 else 0)
    require(0 <= axis <= x.ndim, f"axis {op['axis']} does not split a tensor of rank {x.ndim}")
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), 1


@implements("Softmax", "LogSoftmax")
def softmax(op: OpNode, x: Array) -> Array:
    """Softmax or its logarithm along an axis, shifted by the maximum; the sum is taken in float64."""
    rows, axis = _rows(op, x)
    function = softmax_of if op.op_type == "Softmax" else log_softmax_of
    return function(rows.astype(np.float64), axis).astype(x.dtype).reshape(x.shape)


@implements("Hardmax")
def hardmax(op: OpNode, x: Array) -> Array:
    """One at the first maximum along an axis, zero elsewhere."""
    rows, axis = _rows(op, x)
    result = np.zeros(rows.shape, dtype=x.dtype)
    if x.size:
        first = np.expand_dims(np.argmax(widen(rows), axis=axis), axis)
        np.put_along_axis(result, first, np.ones((), dtype=x.dtype), axis)
    return result.reshape(x.shape)
