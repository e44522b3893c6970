"""Linear models and support vector machines of ai.onnx.ml, and the transforms of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accord.backends.reference.activations import sigmoid
from accord.backends.reference.reduction import softmax_of
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, strings

__all__ = ["labels_of", "transform_scores"]

_DOMAIN = "ai.onnx.ml"


def _probit(p: Array) -> Array:
    """Quantile of the normal distribution, by Winitzki's approximation of the inverse error function.

    Winitzki, "A handy approximation for the error function and its inverse" (2008), a = 0.147: the formula that
    implementations of the operator share, of about three digits.
    """
    x = 2 * p - 1
    log = np.log((1 - x) * (1 + x))
    half = 2 / (np.pi * 0.147) + 0.5 * log
    return np.asarray(np.sqrt(2) * np.sign(x) * np.sqrt(np.sqrt(half * half - log / 0.147) - half))


def _softmax_zero(scores: Array) -> Array:
    """Softmax in which a score of zero stays zero; a row of zeros becomes one half everywhere."""
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.where(np.abs(scores) > 1e-7, np.exp(scores - largest), scores * np.exp(-largest))
    total = weights.sum(axis=-1, keepdims=True)
    return np.where(total == 0, 0.5, weights / np.where(total == 0, 1, total))


_TRANSFORMS: dict[str, Callable[[Array], Array]] = {
    "NONE": np.asarray,
    "SOFTMAX": lambda scores: softmax_of(scores, -1),
    "LOGISTIC": sigmoid,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def transform_scores(scores: Array, name: str | None) -> Array:
    """Apply a ``post_transform`` to scores (batch, classes) in float64.

    Raises:
        ValueError: The transform is unknown.
    """
    require((name or "NONE") in _TRANSFORMS, f"post_transform '{name}' is unknown")
    return _TRANSFORMS[name or "NONE"](scores)


def labels_of(chosen: Array, numbers: Sequence[int] | None, words: Sequence[str] | None) -> Array:
    """Map class indices to labels: strings, integers, or the indices themselves."""
    if words:
        return strings([words[int(i)] for i in chosen])
    return np.asarray(np.array(numbers, dtype=np.int64)[chosen] if numbers else chosen).astype(np.int64)


def _matrix(x: Array) -> Array:
    require(x.ndim in (1, 2), f"a tensor of rank {x.ndim} is not a batch of rows")
    return x.reshape(1, -1).astype(np.float64) if x.ndim == 1 else x.astype(np.float64)


@implements("LinearRegressor", domain=_DOMAIN)
def linear_regressor(op: OpNode, x: Array) -> Array:
    """Weighted sums of the features for each target."""
    rows = _matrix(x)
    weights = np.array(op["coefficients"] or [], dtype=np.float64).reshape(op["targets"], -1)
    require(weights.shape[1] == rows.shape[1], f"{weights.shape[1]} coefficients for {rows.shape[1]} features")
    scores = rows @ weights.T
    if op["intercepts"]:
        scores = scores + np.array(op["intercepts"])
    return transform_scores(scores, op["post_transform"]).astype(np.float32)


@implements("LinearClassifier", domain=_DOMAIN)
def linear_classifier(op: OpNode, x: Array) -> tuple[Array, Array]:
    """Scores of each class, and the class with the best; one set of coefficients may stand for two classes."""
    rows = _matrix(x)
    numbers, words = op["classlabels_ints"], op["classlabels_strings"]
    weights = np.array(op["coefficients"], dtype=np.float64).reshape(-1, rows.shape[1])
    scores = rows @ weights.T
    if op["intercepts"]:
        scores = scores + np.array(op["intercepts"])
    classes = len(numbers or words or [])
    if scores.shape[1] == 1 and classes == 2:
        scores = np.concatenate([-scores, scores], axis=1)
    scores = transform_scores(scores, op["post_transform"])
    if scores.shape[1] > 1:
        labels = labels_of(np.argmax(scores, axis=1), numbers, words)
    else:
        positive = scores[:, 0] >= (0 if op["post_transform"] == "NONE" else 0.5)
        if words:
            labels = strings([words[0] if yes else "" for yes in positive])
        else:
            labels = np.where(positive, numbers[0] if numbers else 1, 0).astype(np.int64)
    return labels, scores.astype(np.float32)


def _kernel(op: OpNode, rows: Array, vectors: Array) -> Array:
    """Kernel of every row with every vector."""
    gamma, offset, degree = [*(op["kernel_params"] or []), 0.0, 0.0, 0.0][:3]
    kind = op["kernel_type"]
    if kind == "RBF":
        difference = rows[:, np.newaxis] - vectors
        return np.asarray(np.exp(-gamma * np.square(difference).sum(axis=2)))
    products = rows @ vectors.T
    kernels: dict[str, Callable[[], Any]] = {
        "LINEAR": lambda: products,
        "POLY": lambda: (gamma * products + offset) ** degree,
        "SIGMOID": lambda: np.tanh(gamma * products + offset),
    }
    require(kind in kernels, f"kernel_type '{kind}' is unknown")
    return np.asarray(kernels[kind]())


@implements("SVMRegressor", domain=_DOMAIN)
def svm_regressor(op: OpNode, x: Array) -> Array:
    """Weighted kernels with the support vectors; the sign alone if the model detects anomalies."""
    rows = _matrix(x)
    weights = np.array(op["coefficients"], dtype=np.float64)
    if op["n_supports"] > 0:
        vectors = np.array(op["support_vectors"], dtype=np.float64).reshape(op["n_supports"], -1)
        scores = _kernel(op, rows, vectors) @ weights
    else:
        scores = rows @ weights
    scores = (scores + op["rho"][0])[:, np.newaxis]
    if op["one_class"]:
        return np.where(scores > 0, 1, -1).astype(np.float32)
    return transform_scores(scores, op["post_transform"]).astype(np.float32)


def _coupled_probabilities(pairwise: Array) -> Array:
    """Class probabilities from those of every pair of classes.

    Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling" (2004),
    algorithm 2, with the stopping rule of LIBSVM.
    """
    k = len(pairwise)
    squares = np.square(pairwise)
    np.fill_diagonal(squares, 0)
    q = -pairwise.T * pairwise
    np.fill_diagonal(q, squares.sum(axis=0))
    p = np.full(k, 1.0 / k)
    for _ in range(max(100, k)):
        qp = q @ p
        pqp = p @ qp
        if np.abs(qp - pqp).max() < 0.005 / k:
            break
        for t in range(k):
            difference = (pqp - qp[t]) / q[t, t]
            p[t] += difference
            pqp = (pqp + difference * (difference * q[t, t] + 2 * qp[t])) / (1 + difference) ** 2
            qp = (qp + difference * q[t]) / (1 + difference)
            p /= 1 + difference
    return p


def _one_against_one(op: OpNode, kernels: Array, sizes: list[int]) -> tuple[Array, Array]:
    """Decision of every pair of classes, and the votes that each class collects."""
    weights = np.array(op["coefficients"], dtype=np.float64).reshape(len(sizes) - 1, -1)
    ends = np.cumsum(sizes)
    parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    votes = np.zeros((len(kernels), len(sizes)))
    scores: list[Array] = []
    for i in range(len(sizes)):
        for j in range(i + 1, len(sizes)):
            score = kernels[:, parts[i]] @ weights[j - 1, parts[i]] + kernels[:, parts[j]] @ weights[i, parts[j]]
            score = score + op["rho"][len(scores)]
            votes[:, i] += score > 0
            votes[:, j] += score <= 0
            scores.append(score)
    return np.stack(scores, axis=1), votes


def _pair_probabilities(op: OpNode, scores: Array, classes: int) -> Array:
    """Class probabilities of each row by Platt's sigmoid on every pairwise decision."""
    result = np.zeros((len(scores), classes))
    a, b = np.array(op["prob_a"]), np.array(op["prob_b"])
    for number, row in enumerate(np.clip(1 - sigmoid(scores * a + b), 1e-7, 1 - 1e-7)):
        pairwise = np.zeros((classes, classes))
        pairwise[np.triu_indices(classes, 1)] = row
        lower = np.tril_indices(classes, -1)
        pairwise[lower] = 1 - pairwise.T[lower]
        result[number] = _coupled_probabilities(pairwise)
    return result


@implements("SVMClassifier", domain=_DOMAIN)
def svm_classifier(op: OpNode, x: Array) -> tuple[Array, Array]:
    """Support vector machine: pairwise decisions and votes, or one linear function for each class."""
    rows = _matrix(x)
    numbers, words = op["classlabels_ints"], op["classlabels_strings"]
    classes = max(len(numbers or words or []), 1)
    sizes = list(op["vectors_per_class"] or [])
    transform = op["post_transform"]
    probable = bool(op["prob_a"]) and bool(sizes)
    if sizes:
        vectors = np.array(op["support_vectors"], dtype=np.float64).reshape(sum(sizes), -1)
        scores, votes = _one_against_one(op, _kernel(op, rows, vectors), sizes)
        if probable:
            scores = _pair_probabilities(op, scores, classes)
        chosen = np.argmax(votes, axis=1)
    else:
        weights = np.array(op["coefficients"], dtype=np.float64).reshape(classes, -1)
        scores = rows @ weights.T + op["rho"][0]
        chosen = np.argmax(scores, axis=1)
    if len(op["rho"]) == 1 and classes == 1:
        positive = (scores[:, 0] > 0).astype(np.int64)
        return positive, transform_scores(scores, transform).astype(np.float32)
    if len(op["rho"]) == 1 and classes == 2 and not probable:
        best = votes.max(axis=1) if sizes else scores.max(axis=1)
        if min(op["coefficients"]) >= 0:
            chosen = np.where(best >= 0.5, 1, chosen)
    if scores.shape[1] == 1:  # one decision between two classes stands for a pair of opposite scores
        if transform == "PROBIT":
            scores = transform_scores(scores, transform)
        else:
            scores = transform_scores(np.concatenate([-scores, scores], axis=1), transform)
    else:
        scores = transform_scores(scores, transform)
    return labels_of(chosen, numbers, words), scores.astype(np.float32)
