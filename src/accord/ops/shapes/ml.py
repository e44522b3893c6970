"""Shape rules of the tensor operators of ai.onnx.ml, and of the training operators in preview."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import int_attr, operator, rank_of, same_dtype, same_size, tensor_attr

ML = "ai.onnx.ml"
TRAINING = "ai.onnx.preview.training"
FLOAT = ir.DataType.FLOAT
INT64 = ir.DataType.INT64
STRING = ir.DataType.STRING


def _list(n: Inference, name: str) -> Sequence[Any]:
    """A list attribute, empty if absent."""
    value = n.attr(name)
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise n.error(f"attribute {name} has the wrong type", expected="a list", found=type(value).__name__)
    return value


def _rows(n: Inference, index: int = 0) -> DimLike:
    """Number of examples: a vector is one."""
    shape = rank_of(n, index, 1, 2)
    if shape is None:
        return n.fresh()
    return shape[0] if len(shape) == 2 else 1


@operator("Binarizer", "Imputer", domain=ML)
def same(n: Inference) -> list[Fact]:
    """The input's fact."""
    x = n.tensor(0)
    return [x.with_shape(x.shape)]


@operator("Normalizer", "Scaler", domain=ML)
def to_float(n: Inference) -> list[Fact]:
    """float, same shape."""
    return [TensorFact(FLOAT, n.tensor(0).shape)]


@operator("ArrayFeatureExtractor", inputs=2, domain=ML)
def array_feature_extractor(n: Inference) -> list[Fact]:
    """The last axis has one entry per index; a vector becomes one row."""
    x = n.tensor(0)
    shape = rank_of(n, 0, least=1)
    indices = n.tensor(1).shape
    if shape is None or indices is None:
        return [TensorFact(x.dtype, None)]
    n.require(len(indices) >= 1, "indices have the wrong rank", expected="at least 1", found=0, value=1)
    return [TensorFact(x.dtype, (*(shape[:-1] or (1,)), indices[-1]))]


@operator("CategoryMapper", domain=ML)
def category_mapper(n: Inference) -> list[Fact]:
    """Strings to int64 and the reverse."""
    x = n.tensor(0)
    dtype = None if x.dtype is None else INT64 if x.dtype is STRING else STRING
    return [TensorFact(dtype, x.shape)]


@operator("LabelEncoder", domain=ML)
def label_encoder(n: Inference) -> list[Fact]:
    """The dtype of the values, same shape."""
    x = n.tensor(0)
    by_name = {"values_int64s": INT64, "values_floats": FLOAT, "values_strings": STRING}
    dtype = next((d for k, d in by_name.items() if k in n.node.attributes), None)
    values = tensor_attr(n, "values_tensor")
    if values is not None:
        dtype = values.dtype
    if dtype is None and n.opset < 2 and x.dtype is not None:
        dtype = INT64 if x.dtype is STRING else STRING
    return [TensorFact(dtype, x.shape)]


@operator("DictVectorizer", domain=ML, tensors=False)
def dict_vectorizer(n: Inference) -> list[Fact]:
    """One entry per word of the vocabulary; the dtype is that of the map's values."""
    size = max(len(_list(n, "string_vocabulary")), len(_list(n, "int64_vocabulary")))
    return [TensorFact(None, (1, size))]


@operator("FeatureVectorizer", domain=ML)
def feature_vectorizer(n: Inference) -> list[Fact]:
    """Columns of all inputs side by side, float ``[N, all columns]``; a vector is one row."""
    rows: DimLike | None = None
    columns: DimLike = 0
    for i in range(len(n.inputs)):
        shape = rank_of(n, i, 1, 2)
        columns = columns + (n.fresh() if shape is None else shape[-1])
        if shape is not None:
            row = _rows(n, i)
            rows = row if rows is None else same_size(n, rows, row, "numbers of rows", value=i)
    return [TensorFact(FLOAT, (n.fresh() if rows is None else rows, columns))]


@operator("OneHotEncoder", domain=ML)
def one_hot_encoder(n: Inference) -> list[Fact]:
    """float, one axis more: the categories."""
    shape = n.tensor(0).shape
    size = max(len(_list(n, "cats_int64s")), len(_list(n, "cats_strings")))
    n.require(size > 0, "no categories", expected="cats_int64s or cats_strings", found="none")
    return [TensorFact(FLOAT, None if shape is None else (*shape, size))]


# models ----------------------------------------------------------------------------------------------------------


def _labels(n: Inference, *names: str) -> tuple[ir.DataType, int]:
    """Number and dtype of the class labels."""
    for name in names:
        labels = _list(n, name)
        if labels:
            return (STRING if "string" in name else INT64), len(labels)
    return INT64, 0


def _classified(n: Inference, dtype: ir.DataType, classes: int) -> list[Fact]:
    rows = _rows(n)
    return [TensorFact(dtype, (rows,)), TensorFact(FLOAT, (rows, classes if classes else n.fresh()))]


@operator("LinearClassifier", domain=ML, required=("coefficients",))
def linear_classifier(n: Inference) -> list[Fact]:
    """One label and a row of scores per example; a binary model of one score writes two."""
    dtype, classes = _labels(n, "classlabels_strings", "classlabels_ints")
    return _classified(n, dtype, classes)


@operator("TreeEnsembleClassifier", domain=ML)
def tree_classifier(n: Inference) -> list[Fact]:
    """One label and a row of scores per example."""
    dtype, classes = _labels(n, "classlabels_strings", "classlabels_int64s")
    return _classified(n, dtype, classes)


@operator("SVMClassifier", domain=ML)
def svm_classifier(n: Inference) -> list[Fact]:
    """One label per example; raw scores are per class or per pair of classes, which is left open."""
    dtype, classes = _labels(n, "classlabels_strings", "classlabels_ints")
    calibrated = bool(_list(n, "prob_a"))
    return _classified(n, dtype, classes if calibrated or classes == 2 else 0)


@operator("LinearRegressor", domain=ML)
def linear_regressor(n: Inference) -> list[Fact]:
    """One row per example, float ``[N, targets]``."""
    return [TensorFact(FLOAT, (_rows(n), int_attr(n, "targets", 1, low=1)))]


@operator("SVMRegressor", domain=ML)
def svm_regressor(n: Inference) -> list[Fact]:
    """One row per example, float ``[N, 1]``."""
    return [TensorFact(FLOAT, (_rows(n), 1))]


@operator("TreeEnsembleRegressor", domain=ML)
def tree_regressor(n: Inference) -> list[Fact]:
    """One row per example, float ``[N, n_targets]``."""
    return [TensorFact(FLOAT, (_rows(n), int_attr(n, "n_targets", 1, low=1)))]


@operator(
    "TreeEnsemble",
    domain=ML,
    required=("tree_roots", "nodes_modes", "nodes_splits", "nodes_featureids", "leaf_weights", "leaf_targetids"),
)
def tree_ensemble(n: Inference) -> list[Fact]:
    """``[N, n_targets]`` in the input's dtype."""
    return [TensorFact(n.tensor(0).dtype, (_rows(n), int_attr(n, "n_targets", 1, low=1)))]


# training --------------------------------------------------------------------------------------------------------


def _updated(n: Inference, states: int) -> list[Fact]:
    """After rate and step: tensors, their gradients, and ``states`` kinds of optimiser state for each."""
    groups = states + 2
    count, rest = divmod(len(n.inputs) - 2, groups)
    n.require(rest == 0 and count > 0, "inputs come in groups", expected=f"2 + {groups} k", found=len(n.inputs))
    out: list[Fact] = []
    for group in (0, *range(2, groups)):
        for i in range(count):
            at = 2 + group * count + i
            same_dtype(n, 2 + i, at)
            x: Shape | None = n.tensor(at).shape
            out.append(TensorFact(n.tensor(at).dtype, x if x is not None else n.tensor(2 + i).shape))
    return out


@operator("Adagrad", "Momentum", inputs=5, domain=TRAINING)
def one_state(n: Inference) -> list[Fact]:
    """Updated tensors and their state."""
    return _updated(n, 1)


@operator("Adam", inputs=6, domain=TRAINING)
def two_states(n: Inference) -> list[Fact]:
    """Updated tensors and their two states."""
    return _updated(n, 2)
