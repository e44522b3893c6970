"""Encoders, scalers and map operators of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, strings

_DOMAIN = "ai.onnx.ml"


@implements("Binarizer", domain=_DOMAIN)
def binarizer(op: OpNode, x: Array) -> Array:
    """One where the element exceeds the threshold, else zero."""
    return np.asarray(x > op["threshold"]).astype(x.dtype)


@implements("Scaler", domain=_DOMAIN)
def scaler(op: OpNode, x: Array) -> Array:
    """Subtract the offset, then multiply by the scale."""
    offset = np.array(op["offset"] or [0.0])
    scale = np.array(op["scale"] or [1.0])
    return np.asarray((x.astype(np.float64) - offset) * scale).astype(np.float32)


@implements("Normalizer", domain=_DOMAIN)
def normalizer(op: OpNode, x: Array) -> Array:
    """Divide each row by its largest element, its 1-norm or its 2-norm; a divisor of zero leaves it as it is."""
    rows = x.astype(np.float64)
    norms: dict[str, Callable[[], Any]] = {
        "MAX": lambda: rows.max(axis=-1, keepdims=True),
        "L1": lambda: np.abs(rows).sum(axis=-1, keepdims=True),
        "L2": lambda: np.sqrt(np.square(rows).sum(axis=-1, keepdims=True)),
    }
    require(op["norm"] in norms, f"norm '{op['norm']}' is unknown")
    norm = norms[op["norm"]]()
    return np.asarray(rows / np.where(norm == 0, 1, norm)).astype(np.float32)


@implements("Imputer", domain=_DOMAIN)
def imputer(op: OpNode, x: Array) -> Array:
    """Replace one value, which may be NaN, by another, the same for all columns or one for each."""
    floating = x.dtype.kind == "f"
    values = op["imputed_value_floats"] if floating else op["imputed_value_int64s"]
    old = op["replaced_value_float"] if floating else op["replaced_value_int64"]
    require(bool(values), "no imputed values of the input's kind are given")
    new = np.array(values).astype(x.dtype)
    require(new.size in (1, x.shape[-1]), f"{new.size} imputed values for {x.shape[-1]} columns")
    missing = np.isnan(x) if floating and np.isnan(old) else x == np.asarray(old).astype(x.dtype)
    return np.where(missing, new, x)


@implements("FeatureVectorizer", domain=_DOMAIN)
def feature_vectorizer(op: OpNode, *inputs: Array) -> Array:
    """Join matrices by columns, each cut or filled with zeros to the width given for it."""
    widths = op["inputdimensions"]
    columns = []
    for number, x in enumerate(inputs):
        require(x.ndim in (1, 2), f"input {number} has rank {x.ndim}")
        rows = x.reshape(-1, 1) if x.ndim == 1 else x
        width = widths[number] if widths else rows.shape[1]
        part = np.zeros((len(rows), width), dtype=np.float32)
        part[:, : rows.shape[1]] = rows[:, :width]
        columns.append(part)
    return np.concatenate(columns, axis=1)


@implements("OneHotEncoder", domain=_DOMAIN)
def one_hot_encoder(op: OpNode, x: Array) -> Array:
    """Add an axis that is one at the element's category."""
    categories: Sequence[Any] = op["cats_strings"] if x.dtype == object else op["cats_int64s"]
    require(bool(categories), "no categories of the input's kind are given")
    places = {category: index for index, category in enumerate(categories)}
    result = np.zeros((x.size, len(places)), dtype=np.float32)
    for row, value in enumerate(x.reshape(-1).tolist()):
        key = value if x.dtype == object else int(value)
        if key in places:
            result[row, places[key]] = 1
        else:
            require(bool(op["zeros"]), f"'{value}' is not one of the categories")
    return result.reshape(*x.shape, len(places))


def _given(op: OpNode, prefix: str, kinds: Sequence[str]) -> tuple[str, Any]:
    found = [(kind, op[prefix + kind]) for kind in kinds if op[prefix + kind] is not None]
    require(len(found) == 1, f"exactly one of the attributes {prefix}* is needed, found {len(found)}")
    return found[0]


#: Kind of an attribute list → element type.
_KINDS: dict[str, Any] = {"strings": object, "int64s": np.int64, "floats": np.float32}


@implements("LabelEncoder", domain=_DOMAIN, since=2)
def label_encoder(op: OpNode, x: Array) -> Array:
    """Map elements by a table; NaN is a key like any other, and of equal keys the last one counts."""
    kinds = (*_KINDS, "tensor")
    _, keys = _given(op, "keys_", kinds)
    kind, values = _given(op, "values_", kinds)
    keys = keys.reshape(-1).tolist() if isinstance(keys, np.ndarray) else keys
    dtype = values.dtype if kind == "tensor" else np.dtype(_KINDS[kind])
    items = values.reshape(-1).tolist() if kind == "tensor" else values
    require(len(keys) == len(items), f"{len(keys)} keys and {len(items)} values")
    default = _label_default(op, dtype)
    table = {_key(k): v for k, v in zip(keys, items, strict=True)}
    found = [table.get(_key(v), default) for v in x.reshape(-1).tolist()]
    return np.array(found, dtype=dtype).reshape(x.shape)


def _label_default(op: OpNode, dtype: np.dtype[Any]) -> Any:
    if op["default_tensor"] is not None:
        return op["default_tensor"].reshape(-1).tolist()[0]
    kind = {"O": "default_string", "i": "default_int64", "f": "default_float"}[dtype.kind]
    return op[kind]


def _key(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and np.isnan(value) else value


@implements("LabelEncoder", domain=_DOMAIN)
def label_encoder_1(op: OpNode, x: Array) -> Array:
    """Map strings to their indices in a list, or indices to strings."""
    classes = op["classes_strings"] or []
    if x.dtype == object:
        table = {word: index for index, word in enumerate(classes)}
        found = [table.get(word, op["default_int64"]) for word in x.reshape(-1)]
        return np.array(found, dtype=np.int64).reshape(x.shape)
    words = [classes[i] if 0 <= i < len(classes) else op["default_string"] for i in x.reshape(-1).tolist()]
    return strings(words, x.shape)


@implements("CategoryMapper", domain=_DOMAIN)
def category_mapper(op: OpNode, x: Array) -> Array:
    """Map strings to integers or integers to strings by two parallel lists."""
    words, numbers = op["cats_strings"] or [], op["cats_int64s"] or []
    require(len(words) == len(numbers), f"{len(words)} strings and {len(numbers)} integers")
    if x.dtype == object:
        to_number = dict(zip(words, numbers, strict=True))
        found = [to_number.get(word, op["default_int64"]) for word in x.reshape(-1)]
        return np.array(found, dtype=np.int64).reshape(x.shape)
    to_word = dict(zip(numbers, words, strict=True))
    return strings([to_word.get(v, op["default_string"]) for v in x.reshape(-1).tolist()], x.shape)


def _element(value: Any) -> Any:
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value


@implements("DictVectorizer", domain=_DOMAIN)
def dict_vectorizer(op: OpNode, x: Mapping[Any, Any] | Sequence[Mapping[Any, Any]]) -> Array:
    """Values of a map in the order of a vocabulary, zero or empty where a key is absent."""
    vocabulary = op["int64_vocabulary"] or op["string_vocabulary"]
    require(bool(vocabulary), "no vocabulary is given")
    if not isinstance(x, Mapping):
        return np.stack([dict_vectorizer(op, entry) for entry in x])
    unknown = [key for key in x if key not in vocabulary]
    require(not unknown, f"key {unknown[:1]} is not in the vocabulary")
    sample = next(iter(x.values()), 0)
    words = isinstance(_element(sample), str)
    values = [_element(x.get(key, "" if words else 0)) for key in vocabulary]
    kind: Any = object if words else getattr(sample, "dtype", np.float32 if isinstance(sample, float) else np.int64)
    return np.array(values, dtype=kind)


@implements("CastMap", domain=_DOMAIN)
def cast_map(op: OpNode, x: Mapping[Any, Any]) -> Array:
    """Values of a map by rising key, packed, or at the positions that the keys name."""
    types: dict[str, Any] = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}
    require(op["cast_to"] in types, f"cast_to '{op['cast_to']}' is unknown")
    dtype = types[op["cast_to"]]
    converters: dict[str, Callable[[Any], Any]] = {
        "TO_FLOAT": float,
        "TO_INT64": lambda value: int(float(value)),
        "TO_STRING": str,
    }
    convert = converters[op["cast_to"]]
    if op["map_form"] == "SPARSE":
        cells: list[Any] = ["" if dtype is object else 0] * op["max_map"]
        for key, value in x.items():
            require(0 <= key < op["max_map"], f"key {key} is outside [0, {op['max_map'] - 1}]")
            cells[key] = convert(_element(value))
    else:
        cells = [convert(_element(x[key])) for key in sorted(x)]
    return np.array(cells, dtype=dtype).reshape(1, -1)


@implements("ZipMap", domain=_DOMAIN)
def zip_map(op: OpNode, x: Array) -> list[dict[Any, Any]]:
    """One map for each row, from labels to the row's values."""
    keys = op["classlabels_strings"] or op["classlabels_int64s"]
    require(bool(keys), "no class labels are given")
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    require(rows.shape[1] == len(keys), f"{rows.shape[1]} columns for {len(keys)} labels")
    return [dict(zip(keys, row, strict=True)) for row in rows]
