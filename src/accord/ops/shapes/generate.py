"""Shape rules of operators that make a tensor from nothing or from a shape: constants, ranges, filled tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact, constant_fact, to_numpy
from accord.ir.infer import Inference
from accord.ops.shapes.common import (
    FLOATS,
    MAX_ELEMENTS,
    dtype_attr,
    elements,
    int_attr,
    operator,
    rank_of,
    same_dtype,
    str_attr,
    tensor_attr,
    unknown_shape,
    with_elements,
)
from accord.ops.shapes.movement import vector_length

INT64 = ir.DataType.INT64
FLOAT = ir.DataType.FLOAT


def _strings(values: Any) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = [v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in values]
    return out


#: How each attribute of Constant becomes a tensor.
_FORMS: dict[str, tuple[ir.AttributeType, Callable[[Any], np.ndarray[Any, Any]]]] = {
    "value_int": (ir.AttributeType.INT, lambda v: np.array(v, dtype=np.int64)),
    "value_ints": (ir.AttributeType.INTS, lambda v: np.array(list(v), dtype=np.int64)),
    "value_float": (ir.AttributeType.FLOAT, lambda v: np.array(v, dtype=np.float32)),
    "value_floats": (ir.AttributeType.FLOATS, lambda v: np.array(list(v), dtype=np.float32)),
    "value_string": (ir.AttributeType.STRING, lambda v: _strings([v]).reshape(())),
    "value_strings": (ir.AttributeType.STRINGS, _strings),
}


@operator("Constant", inputs=0)
def constant(n: Inference) -> list[Fact]:
    """The constant that exactly one attribute holds."""
    names = [k for k in n.node.attributes if k == "value" or k == "sparse_value" or k in _FORMS]
    n.require(len(names) == 1, "a constant has one value", expected="one value attribute", found=names)
    name = names[0]
    if name == "value":
        tensor = tensor_attr(n, "value")
        return [TensorFact(None, None) if tensor is None else constant_fact(tensor)]
    value = n.attr(name)
    if name == "sparse_value" or value is None:
        return [TensorFact(None, None)]
    kind, convert = _FORMS[name]
    attribute = n.node.attributes[name]
    n.require(
        attribute.is_ref() or attribute.type == kind,
        f"attribute {name} has the wrong type",
        expected=kind.name,
        found=attribute.type.name,
    )
    return [constant_fact(convert(value))]


@operator("ConstantOfShape")
def constant_of_shape(n: Inference) -> list[Fact]:
    """The shape that the input holds, filled with ``value`` (float 0 without it)."""
    value = tensor_attr(n, "value")
    if value is not None and value.size != 1:
        raise n.error("attribute value must hold one element", expected="one element", found=value.size)
    dtype = FLOAT if value is None else value.dtype
    length = vector_length(n, 0)
    shape: Shape | None = elements(n.tensor(0))
    if shape is None:
        return [TensorFact(dtype, unknown_shape(n, length))]
    n.require(not any(isinstance(d, int) and d < 0 for d in shape), "negative size", expected="sizes", found=str(shape))
    size = D.known_product(shape)
    if size is not None and size <= MAX_ELEMENTS and dtype != ir.DataType.STRING and _is_small(shape):
        fill = np.zeros((), dtype=np.float32) if value is None else to_numpy(value).reshape(())
        return [constant_fact(np.full(shape, fill, dtype=fill.dtype))]
    return [TensorFact(dtype, shape)]


def _is_small(shape: Shape) -> TypeGuard[tuple[int, ...]]:
    """True if NumPy can make an array of this shape: an empty one may still have huge axes."""
    return len(shape) <= 8 and all(isinstance(d, int) and d <= MAX_ELEMENTS for d in shape)


@operator("EyeLike")
def eye_like(n: Inference) -> list[Fact]:
    """The input's two axes."""
    shape = rank_of(n, 0, 2)
    return [TensorFact(dtype_attr(n, "dtype", n.tensor(0).dtype), n.fresh_shape(2) if shape is None else shape)]


@operator("Range", inputs=3)
def range_(n: Inference) -> list[Fact]:
    """``max(0, ceil((limit - start) / delta))`` elements."""
    dtype = same_dtype(n, 0, 1, 2)
    for i in range(3):
        rank_of(n, i, 0, 1)
    parts: list[DimLike] = []
    for i in range(3):
        items = elements(n.tensor(i))
        if items is None or len(items) != 1:
            return [TensorFact(dtype, (_float_length(n),))]
        parts.append(items[0])
    start, limit, delta = parts
    n.require(delta != 0, "delta is zero", expected="another delta", found=0, value=2)
    if not isinstance(delta, int):
        return [TensorFact(dtype, (n.fresh(),))]
    size = D.maximum(D.ceildiv(limit - start, delta), 0)
    if isinstance(size, int) and size <= MAX_ELEMENTS:
        return [with_elements(dtype, (size,), [start + i * delta for i in range(size)])]
    return [TensorFact(dtype, (size,))]


def _float_length(n: Inference) -> DimLike:
    """Length of a range of constants that are no integers."""
    values: list[float] = []
    for i in range(3):
        fact = n.tensor(i)
        if fact.const is None or fact.dtype not in FLOATS or fact.const.size != 1:
            return n.fresh()
        values.append(float(fact.const.numpy().reshape(())))
    start, limit, delta = values
    n.require(delta != 0, "delta is zero", expected="another delta", found=delta, value=2)
    length = (limit - start) / delta
    if not math.isfinite(length):
        raise n.error("the range is not finite", expected="finite bounds", found=values)
    return max(0, math.ceil(length))


@operator("ImageDecoder")
def image_decoder(n: Inference) -> list[Fact]:
    """uint8 ``[height, width, channels]``."""
    pixels = str_attr(n, "pixel_format", "RGB", among=("RGB", "BGR", "Grayscale"))
    rank_of(n, 0, 1)
    return [TensorFact(ir.DataType.UINT8, (n.fresh(), n.fresh(), 1 if pixels == "Grayscale" else 3))]


@operator("TfIdfVectorizer", required=("mode", "ngram_indexes", "ngram_counts"))
def tf_idf(n: Inference) -> list[Fact]:
    """float; the last axis has one entry per n-gram coordinate."""
    indexes = n.attr("ngram_indexes")
    if isinstance(indexes, str) or not all(isinstance(i, int) for i in indexes) or not indexes:
        raise n.error("attribute ngram_indexes is malformed", expected="a list of integers", found=str(indexes))
    size = max(indexes) + 1
    shape = rank_of(n, 0, 1, 2)
    int_attr(n, "max_skip_count", 0, low=0)
    if shape is None:
        return [TensorFact(FLOAT, None)]
    return [TensorFact(FLOAT, (*shape[:-1], size))]
