"""Tensors as NumPy arrays: element types, conversions from protobuf, helpers shared by all implementations."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = npt.NDArray[Any]
DType: TypeAlias = np.dtype[Any]

BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)
#: 4-bit and 2-bit integers; ml_dtypes stores one element a byte and NumPy's kind is "V" for them.
LOW_BIT_INTEGERS: frozenset[DType] = frozenset(
    np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)
)
#: Floating-point types that ml_dtypes adds to NumPy's.
EXTENSION_FLOATS: frozenset[DType] = frozenset(
    helper.tensor_dtype_to_np_dtype(t)
    for t in (
        TensorProto.BFLOAT16,
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
        TensorProto.FLOAT8E8M0,
        TensorProto.FLOAT6E2M3,
        TensorProto.FLOAT6E3M2,
        TensorProto.FLOAT4E2M1,
    )
)


def numpy_dtype(data_type: int) -> DType:
    """Return the NumPy dtype of an ONNX element type; ``object`` for strings.

    Args:
        data_type: A value of ``TensorProto.DataType``.

    Raises:
        ValueError: The value is not an element type.
    """
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(data_type))
    except KeyError:
        raise ValueError(f"{data_type} is not an element type") from None


def is_float(dtype: DType) -> bool:
    """Tell whether a dtype is floating-point, including the types of ml_dtypes."""
    return dtype.kind == "f" or dtype in EXTENSION_FLOATS


def is_integer(dtype: DType) -> bool:
    """Tell whether a dtype is an integer, including 2-bit and 4-bit ones."""
    return dtype.kind in "iu" or dtype in LOW_BIT_INTEGERS


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the lowest and the highest value of an integer dtype."""
    info = ml_dtypes.iinfo(dtype) if dtype in LOW_BIT_INTEGERS else np.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def lowest(dtype: DType) -> Any:
    """Return the identity of max: minus infinity, the lowest integer, or False."""
    if dtype.kind == "b":
        return False
    return -np.inf if is_float(dtype) else integer_range(dtype)[0]


def highest(dtype: DType) -> Any:
    """Return the identity of min: infinity, the highest integer, or True."""
    if dtype.kind == "b":
        return True
    return np.inf if is_float(dtype) else integer_range(dtype)[1]


def widen(x: Array) -> Array:
    """Return the array in a type that NumPy computes well in.

    Floats below 32 bits become float32, 2-bit and 4-bit integers become int32; other types stay as they are.
    Every value is represented exactly.
    """
    if x.dtype == np.float16 or x.dtype in EXTENSION_FLOATS:
        return x.astype(np.float32)
    if x.dtype in LOW_BIT_INTEGERS:
        return x.astype(np.int32)
    return x


def accumulator(dtype: DType) -> DType:
    """Return the type in which sums over elements of ``dtype`` are taken.

    float64 for all floats: sums then carry no error that matters beside one rounding of the result, whatever
    order another implementation adds in. Integers accumulate in their own type, wrapping around.
    """
    return np.dtype(np.float64) if is_float(dtype) else dtype


def to_accumulator(x: Array) -> Array:
    """Return the array in the type in which sums over its elements are taken."""
    return x.astype(accumulator(x.dtype)) if x.dtype not in LOW_BIT_INTEGERS else x.astype(np.int32)


def to_double(x: Array) -> Array:
    """Return the array in double precision: complex128 for complex numbers, float64 for all others."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def narrow(x: Array, dtype: DType) -> Array:
    """Convert numbers to a floating-point type with one rounding, to nearest and of ties to even.

    ml_dtypes converts float64 and integers by way of float32, which rounds twice: a number just above the middle of
    two bfloat16 becomes the middle itself, then the lower of the two. Rounded to odd on the way instead, it is on
    the right side of every middle (Boldo and Melquiond, "When double rounding is odd", 2005).

    Args:
        x: Array of integers or floats.
        dtype: A floating-point dtype.

    Returns:
        An array of that dtype.
    """
    if dtype not in EXTENSION_FLOATS or x.dtype.itemsize < 4 or x.dtype == np.float32:
        return x.astype(dtype)
    wide = x.astype(np.float64)
    near = wide.astype(np.float32)
    even = (near.view(np.uint32) & 1) == 0
    inexact = np.isfinite(wide) & (near != wide)
    other = np.nextafter(near, np.where(near < wide, np.float32(np.inf), np.float32(-np.inf)))
    return np.where(inexact & even, other, near).astype(dtype)


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


@lru_cache(maxsize=1)
def _room() -> int:
    """Bytes that one tensor may take: a quarter of the machine's memory, since an operator needs some for itself."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def require_room(shape: Iterable[int], itemsize: int = 8) -> None:
    """Raise ValueError if a tensor is too large to be made, before memory is taken for it.

    Sizes that come from the contents of a tensor or from an attribute may be anything.

    Args:
        shape: Its dimensions.
        itemsize: Bytes by element.
    """
    sizes = [int(n) for n in shape]
    require(min(sizes, default=0) >= 0, f"the shape {sizes} has a negative dimension")
    require(
        math.prod(sizes) * itemsize <= _room(),
        f"a tensor of shape {sizes} needs more than the {_room() >> 20} MiB that are allowed for one",
    )


def normal_axis(axis: int, rank: int) -> int:
    """Return a non-negative axis.

    Raises:
        ValueError: ``axis`` is outside ``[-rank, rank - 1]``.
    """
    require(-rank <= axis < rank, f"axis {axis} is outside [{-rank}, {rank - 1}]")
    return axis + rank if axis < 0 else axis


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return non-negative axes.

    Raises:
        ValueError: An axis is outside ``[-rank, rank - 1]`` or appears twice.
    """
    result = tuple(normal_axis(int(axis), rank) for axis in axes)
    require(len(set(result)) == len(result), f"axes {list(axes)} name an axis twice")
    return result


def scalar(x: Array) -> Any:
    """Return the only element of a tensor as a Python value.

    Raises:
        ValueError: The tensor does not hold exactly one element.
    """
    require(x.size == 1, f"expected a tensor of one element, got shape {list(x.shape)}")
    return x.reshape(()).item() if x.dtype.kind != "V" else widen(x).reshape(()).item()


def integers(x: Array) -> list[int]:
    """Return the elements of an integer tensor, flattened, as Python ints."""
    return [int(v) for v in x.reshape(-1).tolist()]


def to_array(tensor: TensorProto) -> Array:
    """Convert a tensor message that holds its own data to an array.

    Args:
        tensor: A tensor; data in an external file must have been loaded before.

    Returns:
        An array of the tensor's shape; ``object`` dtype for strings.

    Raises:
        ValueError: The data is missing, external, or does not fit the shape.
    """
    require(
        not onnx.external_data_helper.uses_external_data(tensor),
        f"the data of tensor '{tensor.name}' is in an external file that was not loaded",
    )
    require(min(tensor.dims, default=0) >= 0, f"tensor '{tensor.name}' has a negative dimension")
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (TypeError, KeyError) as error:
        raise ValueError(f"tensor '{tensor.name}' cannot be read: {error}") from error


def to_dense(sparse: onnx.SparseTensorProto) -> Array:
    """Expand a sparse tensor message to a dense array.

    Args:
        sparse: Values and their indices, linear (``[NNZ]``) or by coordinate (``[NNZ, rank]``).

    Returns:
        An array of shape ``sparse.dims``, zero where no value is given.

    Raises:
        ValueError: An index lies outside the shape, or the parts do not fit together.
    """
    values = to_array(sparse.values)
    indices = to_array(sparse.indices)
    shape = tuple(sparse.dims)
    require_room(shape, values.dtype.itemsize)
    dense = np.zeros(shape, dtype=values.dtype)
    require(bool((indices >= 0).all()), "a sparse tensor has a negative index")
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except IndexError as error:
        raise ValueError(f"a sparse tensor has an index outside its shape {list(shape)}") from error
    return dense


def strings(values: Any, shape: tuple[int, ...] | None = None) -> Array:
    """Return an ``object`` array of str from nested lists or from one flat list and a shape."""
    result = np.array(values, dtype=object)
    return result if shape is None else result.reshape(shape)


def canonical(value: Any) -> Any:
    """Bring a value to the form in which the evaluator passes it around.

    NumPy scalars become 0-d arrays, fixed-width and bytes string arrays become ``object`` arrays of str, tuples
    become lists; the elements of sequences are treated in the same way. None and maps stay as they are.
    """
    if isinstance(value, (list, tuple)):
        return [canonical(v) for v in value]
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, str):
        return np.array(value, dtype=object)
    array = np.asarray(value)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8").astype(object)
    if array.dtype.kind in "UT":
        return array.astype(object)
    return array
