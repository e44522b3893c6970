"""Classical models of ai.onnx.ml: scores as products, kernels and trees, then what turns scores into probabilities and
labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, required
from accord.ir.facts import to_numpy
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, cast, copy_attributes

__all__ = [
    "imputer",
    "linear_classifier",
    "linear_regressor",
    "normalizer",
    "scaler",
    "svm_classifier",
    "svm_regressor",
    "tree_ensemble",
    "tree_ensemble_classifier",
    "tree_ensemble_regressor",
]

_ML = "ai.onnx.ml"
_NODES = tuple(
    f"nodes_{part}"
    for part in (
        "treeids nodeids featureids values values_as_tensor hitrates hitrates_as_tensor modes truenodeids falsenodeids"
        " missing_value_tracks_true"
    ).split()
)
_VOTES = ("treeids", "nodeids", "ids", "weights", "weights_as_tensor")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
#: Winitzki's approximation of the inverse error function (2008), which implementations of PROBIT share.
_WINITZKI = 0.147


def _real(b: Builder, x: ir.Value) -> ir.Value:
    """``x`` as float, or double where it is that already."""
    return x if b.fact(x).dtype == ir.DataType.DOUBLE else cast(b, x, ir.DataType.FLOAT)


def _like(b: Builder, values: Any, x: ir.Value) -> ir.Value:
    """A constant of the dtype of ``x``."""
    dtype = b.fact(x).dtype
    assert dtype is not None
    return b.const(np.array(values).astype(dtype.numpy()))


def _rows(b: Builder, n: Inference) -> ir.Value | None:
    """The input as rows of floats; a vector is one. None where rank or dtype are not known."""
    x = required(n, 0)
    fact = b.fact(x)
    if fact.rank not in (1, 2) or fact.dtype is None:
        return None
    return _real(b, x if fact.rank == 2 else b("Unsqueeze", x, b.ints(0)))


def _transformed(b: Builder, scores: ir.Value, name: str) -> ir.Value | None:
    """A ``post_transform`` of scores [rows, classes]; None for one that is unknown."""
    axis = b.ints(-1)
    if name == "SOFTMAX":
        return b("Softmax", scores, axis=-1)
    if name == "LOGISTIC":
        return b("Sigmoid", scores)
    if name == "SOFTMAX_ZERO":  # a score of zero stays zero; a row of zeros becomes one half everywhere
        largest = b("ReduceMax", scores, axis)
        near = b("Mul", scores, b("Exp", b("Neg", largest)))
        far = b("Exp", b("Sub", scores, largest))
        weights = b("Where", b("Greater", b("Abs", scores), b.scalar(1e-7, scores)), far, near)
        total = b("ReduceSum", weights, axis)
        empty = b("Equal", total, b.scalar(0, total))
        share = b("Div", weights, b("Where", empty, b.scalar(1, total), total))
        return b("Where", empty, b.scalar(0.5, total), share)
    if name == "PROBIT":
        x = b("Sub", b("Add", scores, scores), b.scalar(1, scores))
        log = b("Log", b("Mul", b("Sub", b.scalar(1, x), x), b("Add", b.scalar(1, x), x)))
        half = b("Add", b("Mul", log, b.scalar(0.5, x)), b.scalar(2 / (math.pi * _WINITZKI), x))
        inner = b("Sub", b("Mul", half, half), b("Div", log, b.scalar(_WINITZKI, x)))
        root = b("Sqrt", b("Sub", b("Sqrt", inner), half))
        return b("Mul", b("Mul", b("Sign", x), root), b.scalar(math.sqrt(2), x))
    return scores if name == "NONE" else None


def _labels(n: Inference) -> np.ndarray[Any, Any] | None:
    """Class labels, strings or int64."""
    words = n.attr("classlabels_strings")
    if words:
        return np.array([w.decode() if isinstance(w, bytes) else str(w) for w in words], object)
    numbers = n.attr("classlabels_ints") or n.attr("classlabels_int64s")
    return np.array(numbers, np.int64) if numbers else None


def _best(b: Builder, scores: ir.Value, raw: ir.Value, transform: str, labels: np.ndarray[Any, Any]) -> ir.Value:
    """The label of the greatest score: of the raw one where the transform keeps the order, for it saturates."""
    judged = raw if transform in ("NONE", "SOFTMAX", "LOGISTIC") else scores
    return b("Gather", b.const(labels), b("ArgMax", judged, axis=1, keepdims=0))


# trees ------------------------------------------------------------------------------------------------------------


def _added_base(b: Builder, n: Inference, scores: ir.Value) -> ir.Value:
    tensor = n.attr("base_values_as_tensor")
    base = n.attr("base_values") if tensor is None else to_numpy(tensor).reshape(-1).tolist()
    return b("Add", scores, _like(b, base, scores)) if base else scores


@expands("TreeEnsemble", domain=_ML)
def tree_ensemble(b: Builder, n: Inference) -> Outputs:
    """The scores, then the transform."""
    transform = int(n.attr("post_transform", 0))
    if not transform or not transform < len(_TRANSFORMS):
        return None
    attributes = {name: a for name, a in n.node.attributes.items() if name != "post_transform"}
    scores = b("TreeEnsemble", required(n, 0), domain=_ML, **attributes)
    dtype = b.fact(scores).dtype
    result = None if dtype is None else _transformed(b, _real(b, scores), _TRANSFORMS[transform])
    return None if result is None or dtype is None else [cast(b, result, dtype)]


@expands("TreeEnsembleRegressor", domain=_ML)
def tree_ensemble_regressor(b: Builder, n: Inference) -> Outputs:
    """The scores of the trees, base values, and the transform."""
    transform, x = str(n.attr("post_transform", "NONE")), required(n, 0)
    base = any(n.attr(f"base_values{kind}") is not None for kind in ("", "_as_tensor"))
    if b.fact(x).dtype is None or (transform == "NONE" and not base and _real(b, x) is x):
        return None
    votes = [f"target_{part}" for part in _VOTES]
    kept = copy_attributes(n, *_NODES, *votes, "n_targets", "aggregate_function")
    scores = b("TreeEnsembleRegressor", _real(b, x), domain=_ML, **kept)
    result = _transformed(b, _added_base(b, n, scores), transform)
    return None if result is None else [result]


@expands("TreeEnsembleClassifier", domain=_ML)
def tree_ensemble_classifier(b: Builder, n: Inference) -> Outputs:
    """The votes of the trees for each class; votes for one class alone are those for the positive of two."""
    labels, transform, x = _labels(n), str(n.attr("post_transform", "NONE")), required(n, 0)
    ids = n.attr("class_ids")
    if labels is None or not ids or b.fact(x).dtype is None:
        return None
    renamed = {f"target_{p}": a for p in _VOTES if (a := n.node.attributes.get(f"class_{p}")) is not None}
    kept = copy_attributes(n, *_NODES)
    scores = b("TreeEnsembleRegressor", _real(b, x), domain=_ML, n_targets=len(labels), **kept, **renamed)
    scores = _added_base(b, n, scores)
    if set(ids) == {0} and len(labels) <= 2:
        tensor = n.attr("class_weights_as_tensor")
        weights = n.attr("class_weights") or [] if tensor is None else to_numpy(tensor).reshape(-1)
        positive = b("Slice", scores, b.ints(0), b.ints(1), b.ints(1))
        # weights without a sign are probabilities, whose complement is meant; others are margins
        probable = transform in ("NONE", "PROBIT") and all(w >= 0 for w in weights)
        negative = b("Sub", b.scalar(1, scores), positive) if probable else b("Neg", positive)
        scores = b("Concat", negative, positive, axis=1)
    if len(labels) == 1:  # the only label stands for the positive class
        labels = np.concatenate([np.array([0 if labels.dtype == np.int64 else ""], labels.dtype), labels])
    result = _transformed(b, scores, transform)
    return None if result is None else [_best(b, result, scores, transform, labels), result]


# linear models and support vectors --------------------------------------------------------------------------------


def _linear(b: Builder, n: Inference, x: ir.Value, count: int | None) -> ir.Value | None:
    """Weighted sums of the features, ``count`` for each row; None where it is not known how many there are."""
    weights, shifts = n.attr("coefficients") or (), n.attr("intercepts") or ()
    columns = (b.shape(x) or (None,))[-1]
    if count is None:
        count = len(weights) // columns if isinstance(columns, int) and columns else len(shifts)
    if not count or not weights or len(weights) % count:
        return None
    scores = b("MatMul", x, _like(b, np.array(weights).reshape(count, -1).T, x))
    return b("Add", scores, _like(b, shifts, x)) if shifts else scores


@expands("LinearRegressor", domain=_ML)
def linear_regressor(b: Builder, n: Inference) -> Outputs:
    """Weighted sums of the features for each target."""
    x = _rows(b, n)
    scores = None if x is None else _linear(b, n, x, int(n.attr("targets", 1)))
    result = None if scores is None else _transformed(b, scores, str(n.attr("post_transform", "NONE")))
    return None if result is None else [cast(b, result, ir.DataType.FLOAT)]


@expands("LinearClassifier", domain=_ML)
def linear_classifier(b: Builder, n: Inference) -> Outputs:
    """Scores of each class, and the class with the best; one set of coefficients may stand for two classes."""
    x, labels, transform = _rows(b, n), _labels(n), str(n.attr("post_transform", "NONE"))
    raw = None if x is None or labels is None else _linear(b, n, x, None)
    if raw is None or labels is None:
        return None
    count = (b.shape(raw) or (0,))[-1]
    if count == 1 and len(labels) == 2:
        raw = b("Concat", b("Neg", raw), raw, axis=1)
        count = 2
    scores = _transformed(b, raw, transform)
    if scores is None or not isinstance(count, int) or (count > 1 and count != len(labels)):
        return None
    if count > 1:
        label = _best(b, scores, raw, transform, labels)
    else:
        positive = b("GreaterOrEqual", scores, b.scalar(0 if transform == "NONE" else 0.5, scores))
        pair = np.array([0 if labels.dtype == np.int64 else "", labels[0]], labels.dtype)
        index = b("Squeeze", b("Cast", positive, to=int(ir.DataType.INT64)), b.ints(1))
        label = b("Gather", b.const(pair), index)
    return [label, cast(b, scores, ir.DataType.FLOAT)]


@expands("SVMRegressor", domain=_ML)
def svm_regressor(b: Builder, n: Inference) -> Outputs:
    """Weighted kernels with the support vectors; the sign alone if the model detects anomalies."""
    x, weights = _rows(b, n), n.attr("coefficients")
    supports, shifts = int(n.attr("n_supports", 0)), n.attr("rho")
    if x is None or not weights or not shifts:
        return None
    kernels: ir.Value | None = x
    if supports > 0:
        kernels = _kernels(b, n, x, np.array(n.attr("support_vectors")).reshape(supports, -1))
    if kernels is None:
        return None
    scores = b("MatMul", kernels, _like(b, np.array(weights)[:, np.newaxis], x))
    scores = b("Add", scores, b.scalar(shifts[0], x))
    if n.attr("one_class", 0):
        above = b("Greater", scores, b.scalar(0, x))
        return [cast(b, b("Where", above, b.scalar(1, x), b.scalar(-1, x)), ir.DataType.FLOAT)]
    result = _transformed(b, scores, str(n.attr("post_transform", "NONE")))
    return None if result is None else [cast(b, result, ir.DataType.FLOAT)]


def _kernels(b: Builder, n: Inference, x: ir.Value, vectors: np.ndarray[Any, Any]) -> ir.Value | None:
    """Kernel of every row with every vector; None for one that is unknown."""
    gamma, offset, degree = [*(n.attr("kernel_params") or ()), 0.0, 0.0, 0.0][:3]
    kind = str(n.attr("kernel_type", "LINEAR"))
    if kind == "RBF":
        difference = b("Sub", b("Unsqueeze", x, b.ints(1)), _like(b, vectors, x))
        distance = b("ReduceSum", b("Mul", difference, difference), b.ints(2), keepdims=0)
        return b("Exp", b("Mul", distance, b.scalar(-gamma, x)))
    products = b("MatMul", x, _like(b, vectors.T, x))
    if kind == "LINEAR":
        return products
    shifted = b("Add", b("Mul", products, b.scalar(gamma, x)), b.scalar(offset, x))
    if kind == "POLY":
        return b("Pow", shifted, b.scalar(degree, x))
    return b("Tanh", shifted) if kind == "SIGMOID" else None


@expands("SVMClassifier", domain=_ML)
def svm_classifier(b: Builder, n: Inference) -> Outputs:
    """Labels that are strings are looked up after the numbers of classes are known."""
    labels = _labels(n)
    if labels is None or labels.dtype == np.int64 or len(labels) < 2:
        return None
    attributes = {name: a for name, a in n.node.attributes.items() if name != "classlabels_strings"}
    numbers: Sequence[int] = range(len(labels))
    index, scores = b.multi(
        "SVMClassifier", 2, required(n, 0), domain=_ML, classlabels_ints=list(numbers), **attributes
    )
    return [b("Gather", b.const(labels), index), scores]


# features ---------------------------------------------------------------------------------------------------------


@expands("Scaler", domain=_ML)
def scaler(b: Builder, n: Inference) -> Outputs:
    """Subtract the offset, then multiply by the scale."""
    x = required(n, 0)
    if b.fact(x).dtype is None:
        return None
    x = _real(b, x)
    moved = b("Sub", x, _like(b, n.attr("offset") or [0.0], x))
    return [cast(b, b("Mul", moved, _like(b, n.attr("scale") or [1.0], x)), ir.DataType.FLOAT)]


@expands("Normalizer", domain=_ML)
def normalizer(b: Builder, n: Inference) -> Outputs:
    """Divide each row by its largest element, its 1-norm or its 2-norm; a divisor of zero leaves it as it is."""
    operators = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    x, operator = required(n, 0), operators.get(str(n.attr("norm", "MAX")))
    if b.fact(x).dtype is None or operator is None:
        return None
    x = _real(b, x)
    norm = b(operator, x, b.ints(-1))
    safe = b("Where", b("Equal", norm, b.scalar(0, norm)), b.scalar(1, norm), norm)
    return [cast(b, b("Div", x, safe), ir.DataType.FLOAT)]


@expands("Imputer", domain=_ML)
def imputer(b: Builder, n: Inference) -> Outputs:
    """Replace one value, which may be NaN, by another, the same for all columns or one for each."""
    x = required(n, 0)
    dtype, shape = b.fact(x).dtype, b.shape(x)
    if dtype is None or shape is None or not shape:
        return None
    floating = dtype.is_floating_point()
    values = n.attr("imputed_value_floats" if floating else "imputed_value_int64s")
    old = n.attr("replaced_value_float", 0.0) if floating else n.attr("replaced_value_int64", 0)
    if not values or len(values) not in (1, shape[-1]):
        return None
    missing = b("IsNaN", x) if floating and math.isnan(old) else b("Equal", x, _like(b, old, x))
    return [b("Where", missing, _like(b, values, x), x)]
