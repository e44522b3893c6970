"""Losses, and one step of the optimisers of ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from accord.backends.reference.reduction import log_softmax_of
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, scalar, widen


def _nll(op: OpNode, log_probability: Array, target: Array, weight: Array | None) -> Array:
    """Negative log likelihood in float64, reduced as the attribute says."""
    n, classes = log_probability.shape[:2]
    require(
        target.shape == (n, *log_probability.shape[2:]), f"target {target.shape} does not fit {log_probability.shape}"
    )
    ignored = np.zeros(target.shape, dtype=bool) if op["ignore_index"] is None else target == op["ignore_index"]
    wrong = ~ignored & ((target < 0) | (target >= classes))
    require(not wrong.any(), f"a target lies outside the {classes} classes")
    safe = np.where(ignored, 0, target)
    picked = np.take_along_axis(log_probability, np.expand_dims(safe, 1), axis=1)[:, 0]
    if weight is not None:
        require(weight.shape == (classes,), f"{weight.size} weights for {classes} classes")
    factors = np.where(ignored, 0.0, 1.0 if weight is None else widen(weight).astype(np.float64)[safe])
    loss = np.where(ignored, 0.0, -picked * factors)
    reduction = op["reduction"]
    require(reduction in ("none", "sum", "mean"), f"reduction '{reduction}' is unknown")
    if reduction == "none":
        return loss
    # The mean is over the weights that took part: without a weight, over the samples not ignored.
    return np.asarray(loss.sum() if reduction == "sum" else loss.sum() / factors.sum())


@implements("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(op: OpNode, x: Array, target: Array, weight: Array | None = None) -> Array:
    """Weighted mean, sum or list of the negative log-probabilities of the targets."""
    return _nll(op, widen(x).astype(np.float64), target, weight).astype(x.dtype)


@implements("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    op: OpNode, scores: Array, target: Array, weight: Array | None = None
) -> tuple[Array, Array]:
    """Negative log likelihood of the softmax of scores, and its logarithm."""
    log_probability = log_softmax_of(widen(scores).astype(np.float64), 1)
    loss = _nll(op, log_probability, target, weight)
    return loss.astype(scores.dtype), log_probability.astype(scores.dtype)


def _adagrad(op: OpNode, rate: float, count: int, x: Array, gradient: Array, h: Array) -> tuple[Array, ...]:
    regular = op["norm_coefficient"] * x + gradient
    squares = h + regular * regular
    step = rate / (1 + count * op["decay_factor"])
    return x - step * regular / (np.sqrt(squares) + op["epsilon"]), squares


def _adam(op: OpNode, rate: float, count: int, x: Array, gradient: Array, v: Array, h: Array) -> tuple[Array, ...]:
    regular = op["norm_coefficient"] * x + gradient
    mean = op["alpha"] * v + (1 - op["alpha"]) * regular
    squares = op["beta"] * h + (1 - op["beta"]) * regular * regular
    step = rate
    if count > 0:
        step = rate * np.sqrt(1 - op["beta"] ** count) / (1 - op["alpha"] ** count)
    moved = x - step * mean / (np.sqrt(squares) + op["epsilon"])
    return (1 - op["norm_coefficient_post"]) * moved, mean, squares


def _momentum(op: OpNode, rate: float, count: int, x: Array, gradient: Array, v: Array) -> tuple[Array, ...]:
    require(op["mode"] in ("standard", "nesterov"), f"mode '{op['mode']}' is unknown")
    regular = op["norm_coefficient"] * x + gradient
    speed = op["alpha"] * v + (op["beta"] if count > 0 else 1) * regular
    direction = regular + op["alpha"] * speed if op["mode"] == "nesterov" else speed
    return x - rate * direction, speed


#: Name → (one step for one tensor, number of inputs by tensor).
_OPTIMIZERS: dict[str, tuple[Callable[..., tuple[Array, ...]], int]] = {
    "Adagrad": (_adagrad, 3),
    "Adam": (_adam, 4),
    "Momentum": (_momentum, 3),
}


@implements(*_OPTIMIZERS, domain="ai.onnx.preview.training")
def optimizer(op: OpNode, rate: Array, count: Array, *inputs: Any) -> tuple[Array, ...]:
    """Update any number of tensors: inputs and outputs are grouped by kind, then by tensor."""
    step, kinds = _OPTIMIZERS[op.op_type]
    require(len(inputs) % kinds == 0, f"{len(inputs)} inputs are not a multiple of {kinds}")
    tensors = len(inputs) // kinds
    results = []
    for index in range(tensors):
        own = [inputs[kind * tensors + index] for kind in range(kinds)]
        new = step(op, float(scalar(rate)), int(scalar(count)), *(value.astype(np.float64) for value in own))
        results.append([value.astype(own[0].dtype) for value in new])
    return tuple(results[index][kind] for kind in range(kinds - 1) for index in range(tensors))
