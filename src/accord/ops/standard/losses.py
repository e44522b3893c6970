"""Losses over classes: the log-probabilities of the targets, weighted and reduced."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, cast, half, wants

__all__ = ["negative_log_likelihood_loss", "softmax_cross_entropy_loss"]


def _single(b: Builder, x: ir.Value) -> ir.Value:
    """``x`` in the type that sums are taken in."""
    return cast(b, x, ir.DataType.FLOAT) if half(b.fact(x).dtype) else x


def _loss(b: Builder, n: Inference, log_probability: ir.Value) -> ir.Value | None:
    """Negative log-probabilities of the targets; None where ranks or dtypes are not known."""
    scores, target, weight = n.tensor(0), required(n, 1), given(n, 2)
    dtype = b.fact(target).dtype
    if scores.dtype is None or scores.shape is None or dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    reduction = str(n.attr("reduction", "mean"))
    ignored, safe = None, target
    if "ignore_index" in n.node.attributes:
        limits = np.iinfo(dtype.numpy())
        index = int(n.attr("ignore_index"))
        if limits.min <= index <= limits.max:
            ignored = b("Equal", target, b.scalar(index, target))
            safe = b("Where", ignored, b.scalar(0, target), target)
    # a gather would count a negative class from the end; here it has to be refused
    none = b.scalar(int(np.iinfo(dtype.numpy()).max), target)
    safe = b("Where", b("Less", safe, b.scalar(0, target)), none, safe)
    picked = b("GatherElements", log_probability, b("Unsqueeze", safe, b.ints(1)), axis=1)
    loss = b("Neg", b("Squeeze", picked, b.ints(1)))
    factors = None if weight is None else b("Gather", _single(b, weight), safe)
    if factors is not None:
        loss = b("Mul", loss, factors)
    if ignored is not None:
        loss = b("Where", ignored, b.scalar(0, loss), loss)
    if reduction == "mean" and weight is None and ignored is None:
        loss = b("ReduceMean", loss, keepdims=0)
    elif reduction != "none":
        total = b("ReduceSum", loss, keepdims=0)
        if reduction == "mean":
            one = b.scalar(1, loss) if factors is None else factors
            if ignored is not None:
                one = b("Where", ignored, b.scalar(0, loss), one)
            total = b("Div", total, b("ReduceSum", one, keepdims=0))
        loss = total
    return cast(b, loss, scores.dtype)


@expands("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(b: Builder, n: Inference) -> Outputs:
    """The mean is over the weights that take part: without a weight, over the targets that are not ignored."""
    loss = _loss(b, n, _single(b, required(n, 0)))
    return None if loss is None else [loss]


@expands("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(b: Builder, n: Inference) -> Outputs:
    """The loss of the logarithm of the softmax, which is returned too."""
    scores = required(n, 0)
    log_probability = b("LogSoftmax", _single(b, scores), axis=1)
    loss = _loss(b, n, log_probability)
    dtype = b.fact(scores).dtype
    if loss is None or dtype is None:
        return None
    return [loss, cast(b, log_probability, dtype) if wants(n, 1) else None]
