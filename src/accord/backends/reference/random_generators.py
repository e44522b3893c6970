"""Random operators: reproducible with a ``seed``, fresh on every run without one."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from accord.backends.reference.quantization import cast_values
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import DType, numpy_dtype, require, require_room, scalar, widen


def _generator(op: OpNode) -> np.random.RandomState:
    # NumPy's older generator, because ``onnx.reference`` uses it: a seed then gives the same numbers in both.
    seed = op["seed"]
    return np.random.RandomState(None if seed is None else int(seed) & 0xFFFFFFFF)


def _draw(op: OpNode, shape: Any) -> Array:
    """Float64 samples of the distribution that the operator's name and attributes say."""
    require_room(shape)
    generator = _generator(op)
    if op.op_type.startswith("RandomNormal"):
        return np.asarray(generator.normal(op["mean"], abs(op["scale"]), shape))
    require(op["low"] <= op["high"], f"low {op['low']} exceeds high {op['high']}")
    return np.asarray(generator.uniform(op["low"], op["high"], shape))


@implements("RandomNormal", "RandomUniform")
def random_tensor(op: OpNode) -> Array:
    """Independent samples in the shape of an attribute."""
    return _draw(op, op["shape"]).astype(numpy_dtype(op["dtype"]))


@implements("RandomNormalLike", "RandomUniformLike")
def random_like(op: OpNode, x: Array) -> Array:
    """Independent samples in the shape, and by default the type, of a tensor."""
    return _draw(op, x.shape).astype(_dtype(op, x))


def _dtype(op: OpNode, x: Array) -> DType:
    return x.dtype if op["dtype"] is None else numpy_dtype(op["dtype"])


@implements("Bernoulli")
def bernoulli(op: OpNode, x: Array) -> Array:
    """One with the probability that the input names, else zero."""
    draws = _generator(op).random_sample(x.shape) < widen(x)
    return cast_values(np.asarray(draws), _dtype(op, x))


@implements("Multinomial")
def multinomial(op: OpNode, x: Array) -> Array:
    """Class indices drawn with the probabilities whose logarithms, up to a constant, the rows hold."""
    require(x.ndim == 2, f"a tensor of rank {x.ndim} is not a batch of rows")
    require_room((*x.shape, op["sample_size"]))
    logits = x.astype(np.float64)
    # Gumbel's trick: the largest of the logits plus Gumbel noise has the wanted distribution.
    noise = _generator(op).gumbel(size=(len(x), op["sample_size"], x.shape[1]))
    chosen = np.argmax(logits[:, np.newaxis] + noise, axis=-1)
    return np.asarray(chosen).astype(numpy_dtype(TensorProto.INT32 if op["dtype"] is None else op["dtype"]))


@implements("Dropout")
def dropout(op: OpNode, x: Array, ratio: Array | None = None, training: Array | None = None) -> tuple[Array, ...]:
    """Zero elements at random and scale the others up; outside training, return the input."""
    if op.version >= 12:
        rate = 0.5 if ratio is None else float(scalar(ratio))
        active = training is not None and bool(scalar(training))
    else:
        rate = op["ratio"]
        active = op["is_test"] == 0 if op.version < 7 else False
    require(0 <= rate < 1 or not active, f"ratio {rate} is outside [0, 1)")
    mask_type = np.dtype(bool) if op.version >= 10 else x.dtype
    if not active or rate == 0:
        return x, np.ones(x.shape, dtype=mask_type)
    kept = _generator(op).random_sample(x.shape) >= rate
    y = np.where(kept, widen(x) / (1 - rate), 0).astype(x.dtype)
    return y, np.asarray(kept).astype(mask_type)
