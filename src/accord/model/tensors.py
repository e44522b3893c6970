"""Stored tensors: checked against their dtype and shape before anything is allocated, then taken out of the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.errors import LimitError, ModelFormatError, ModelTypeError
from accord.model.limits import Limits, physical_memory

__all__ = ["check_dims", "check_tensor", "densify", "owned", "tensor_of"]

_DAMAGED = "The file is damaged or was written wrongly: export the model again."

_INT32_DATA = (
    "INT32 INT16 INT8 INT4 INT2 UINT16 UINT8 UINT4 UINT2 BOOL FLOAT16 BFLOAT16 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 "
    "FLOAT8E5M2FNUZ FLOAT8E8M0 FLOAT4E2M1 FLOAT6E2M3 FLOAT6E3M2"
).split()

#: dtype → (field of its elements, entries, elements in so many entries), as TensorProto's text says.
_FIELD: dict[int, tuple[str, int, int]] = {
    **{ir.DataType[name].value: ("int32_data", 1, 1) for name in _INT32_DATA},
    **{ir.DataType[name].value: ("int32_data", 1, 2) for name in ("INT4", "UINT4", "FLOAT4E2M1")},
    **{ir.DataType[name].value: ("int32_data", 1, 4) for name in ("INT2", "UINT2")},
    ir.DataType.FLOAT.value: ("float_data", 1, 1),
    ir.DataType.COMPLEX64.value: ("float_data", 2, 1),
    ir.DataType.DOUBLE.value: ("double_data", 1, 1),
    ir.DataType.COMPLEX128.value: ("double_data", 2, 1),
    ir.DataType.INT64.value: ("int64_data", 1, 1),
    ir.DataType.UINT64.value: ("uint64_data", 1, 1),
    ir.DataType.UINT32.value: ("uint64_data", 1, 1),
    ir.DataType.STRING.value: ("string_data", 1, 1),
}
_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_STRING = ir.DataType.STRING.value
_BITS = {d.value: (8 if d == ir.DataType.STRING else d.bitwidth) for d in ir.DataType if d != ir.DataType.UNDEFINED}


def check_dtype(dtype: int, where: str) -> int:
    """The width of ``dtype`` in bits.

    Raises:
        ModelTypeError: there is no such dtype.
    """
    bits = _BITS.get(dtype)
    if bits is None:
        found = "none" if dtype == 0 else f"the number {dtype}"
        raise ModelTypeError(
            "there is no such element type",
            value=where,
            expected="an element type of ONNX",
            found=found,
            remedy=_DAMAGED,
        )
    return bits


def check_dims(dims: Sequence[int], bits: int, where: str, limits: Limits) -> int:
    """The number of elements of a tensor.

    Raises:
        ModelFormatError: a size is negative.
        LimitError: too many axes or too many bytes.
    """
    if len(dims) > limits.max_rank:
        raise LimitError("too many axes", value=where, expected=f"at most {limits.max_rank}", found=len(dims))
    count = extent = 1
    for d in dims:
        if d < 0:
            raise ModelFormatError("a negative size", value=where, found=list(dims), remedy=_DAMAGED)
        count *= d
        extent *= d or 1  # NumPy refuses a huge size even where another one is 0
    if extent * bits > limits.max_tensor_bytes * 8:
        raise LimitError(
            "the tensor is too large",
            value=where,
            expected=f"at most {limits.max_tensor_bytes:,} bytes",
            found=f"shape {list(dims)} of {bits}-bit elements",
            remedy="Raise Limits.max_tensor_bytes if this is meant.",
        )
    return count


def check_tensor(proto: Any, where: str, limits: Limits) -> int | None:
    """Check a ``TensorProto`` before it is read.

    Args:
        proto: The tensor.
        where: Its name for messages.
        limits: What is accepted.

    Returns:
        For external data the bytes that it needs, else None.

    Raises:
        ModelTypeError: an unknown dtype.
        ModelFormatError: its content does not fit its dtype and shape.
        LimitError: its size.
    """
    dtype = proto.data_type
    bits = check_dtype(dtype, where)
    dims = proto.dims
    count = check_dims(dims, bits, where, limits)

    def wrong(message: str, expected: Any, found: Any) -> ModelFormatError:
        return ModelFormatError(
            message,
            value=where,
            expected=f"{expected} for {ir.DataType(dtype).name.lower()}{list(dims)}",
            found=found,
            remedy=_DAMAGED,
        )

    if proto.HasField("segment"):
        raise ModelFormatError("a tensor in segments", value=where, remedy="Store it whole, or as external data.")
    external = proto.data_location == 1
    if external and dtype == _STRING:
        raise ModelFormatError("strings cannot be external data", value=where, remedy="Store them in the model file.")
    field, entries, elements = _FIELD[dtype]
    held = [name for name in _DATA_FIELDS if len(getattr(proto, name))]
    raw = len(proto.raw_data)
    if raw:
        held.append("raw_data")
    if external:
        if held:
            raise wrong("external data and data in the file", "one of them", ", ".join(held))
        return (count * bits + 7) // 8
    if len(held) > 1:
        raise wrong("its content is stored more than once", "one data field", ", ".join(held))
    if raw:
        if dtype == _STRING:
            raise wrong("strings stored as raw_data", "string_data", f"{raw} bytes")
        if raw != (count * bits + 7) // 8:
            raise wrong("its content does not fit its shape", f"{(count * bits + 7) // 8} bytes", f"{raw} bytes")
        return None
    if held and held[0] != field:
        raise wrong("its content is in the wrong field", field, held[0])
    needed = -(-count // elements) * entries
    stored = len(getattr(proto, field))
    if stored != needed:
        raise wrong("its content does not fit its shape", f"{needed} entries of {field}", f"{stored}")
    return None


def tensor_of(proto: Any) -> ir.TensorProtocol:
    """A checked ``TensorProto`` without external data as a tensor that keeps nothing of the file alive."""
    dtype = ir.DataType(proto.data_type)
    shape = tuple(proto.dims)
    facts: dict[str, Any] = {"name": proto.name, "doc_string": proto.doc_string or None}
    if proto.metadata_props:
        facts["metadata_props"] = {e.key: e.value for e in proto.metadata_props}
    if dtype == ir.DataType.STRING:
        return string_tensor(list(proto.string_data), shape, facts)
    raw = proto.raw_data
    if raw:
        return tensor_of_bytes(raw, dtype, shape, facts)
    return ir.Tensor(ir.serde.TensorProtoTensor(proto).numpy(), dtype, **facts)


def tensor_of_bytes(raw: Any, dtype: ir.DataType, shape: Sequence[int], facts: dict[str, Any]) -> ir.TensorProtocol:
    """A tensor over ``raw``, a buffer of just its bytes in ONNX's encoding, without a copy where that is possible."""
    data = np.frombuffer(raw, np.uint8)
    if dtype.bitwidth < 8:
        return ir.PackedTensor(data, dtype, shape=ir.Shape(shape), **facts)
    if dtype == ir.DataType.BOOL:
        array = data.view(np.bool_) if data.max(initial=0) <= 1 else data != 0  # kernels rely on 0 and 1
    else:
        stored = np.dtype(dtype.numpy()).newbyteorder("<")
        array = data.view(stored).astype(dtype.numpy(), copy=False)
    if not array.flags.aligned:
        array = array.copy()
    return ir.Tensor(array.reshape(tuple(shape)), dtype, **facts)


def string_tensor(items: Sequence[bytes], shape: Sequence[int], facts: dict[str, Any]) -> ir.StringTensor:
    """A tensor of strings, held as objects: NumPy's own strings would pad each to the longest.

    Raises:
        ModelFormatError: one is not UTF-8.
    """
    held = np.empty(len(items), dtype=object)
    held[:] = items
    for item in items:
        try:
            item.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFormatError(
                "a string that is not UTF-8", value=facts.get("name"), found=repr(item[:40]), remedy=_DAMAGED
            ) from error
    return ir.StringTensor(held.reshape(tuple(shape)), shape=ir.Shape(shape), **facts)


def owned(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A caller's tensor with content of its own, so that what the caller writes later does not matter.

    Raises:
        ModelFormatError: its content does not fit its dtype and shape.
    """
    facts: dict[str, Any] = {"name": tensor.name, "doc_string": tensor.doc_string}
    if tensor.metadata_props:
        facts["metadata_props"] = dict(tensor.metadata_props)
    try:
        array = tensor.numpy()
        if array.shape != tuple(tensor.shape.numpy()):
            raise ValueError(f"its array has shape {list(array.shape)}, not {list(tensor.shape.numpy())}")
        if tensor.dtype == ir.DataType.STRING:
            return string_tensor([_bytes(x) for x in array.reshape(-1).tolist()], array.shape, facts)
        if _is_writeable(array):
            array = array.copy()
        return ir.Tensor(array, tensor.dtype, **facts)
    except (TypeError, ValueError, AttributeError, OSError) as error:
        raise ModelFormatError(f"its content cannot be read: {error}", value=tensor.name) from error


def _bytes(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8")


def _is_writeable(array: np.ndarray[Any, Any]) -> bool:
    """True if anybody may write into the memory of ``array``, through it or through what it is a view of."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    return not (base is None or isinstance(base, bytes) or (isinstance(base, memoryview) and base.readonly))


def densify(sparse: Any, where: str, limits: Limits, read: Callable[[Any], ir.TensorProtocol]) -> Any:
    """A ``SparseTensorProto`` as a ``TensorProto`` with all its elements.

    Args:
        sparse: The sparse tensor: values [NNZ]; indices int64 [NNZ] or [NNZ, rank]; dims.
        where: Its name for messages.
        limits: What is accepted.
        read: Checks and reads a stored tensor.

    Raises:
        ModelFormatError: values, indices and shape do not fit each other.
        LimitError: the dense tensor is too large.
    """
    import onnx

    dtype = ir.DataType(sparse.values.data_type) if sparse.values.data_type in _BITS else None
    bits = check_dtype(sparse.values.data_type, where)
    dims = tuple(sparse.dims)
    count = check_dims(dims, bits, where, limits)
    room = physical_memory() // 2
    if count * max(bits, 8) > room * 8:
        raise LimitError(
            "the sparse tensor does not fit into memory",
            value=where,
            expected=f"at most {room:,} bytes",
            found=list(dims),
        )

    def wrong(message: str, **facts: Any) -> ModelFormatError:
        return ModelFormatError(message, value=where, remedy=_DAMAGED, **facts)

    if dtype is None or (bits < 8):
        raise wrong("a sparse tensor of packed elements", expected="elements of whole bytes", found=dtype)
    values = read(sparse.values).numpy()
    indices = read(sparse.indices).numpy() if sparse.HasField("indices") else np.zeros((0,), np.int64)
    if values.ndim != 1 or indices.shape not in ((len(values),), (len(values), len(dims))):
        raise wrong(
            "values and indices of the sparse tensor do not fit",
            expected=f"values [NNZ] and indices [NNZ] or [NNZ, {len(dims)}]",
            found=f"{list(values.shape)} and {list(indices.shape)}",
        )
    if indices.dtype != np.int64:
        raise wrong("indices of the sparse tensor", expected="int64", found=indices.dtype)
    if indices.ndim == 2:
        if bool((indices < 0).any()) or bool((indices >= np.array(dims, np.int64)).any()):
            raise wrong("an index of the sparse tensor is outside its shape", expected=f"within {list(dims)}")
        flat = np.ravel_multi_index(tuple(indices.T), dims) if len(values) else np.zeros(0, np.int64)
    else:
        flat = indices
    if len(flat) and (int(flat.min()) < 0 or int(flat.max()) >= count):
        raise wrong("an index of the sparse tensor is outside its shape", expected=f"within {list(dims)}")
    dense = onnx.TensorProto(name=sparse.values.name, data_type=int(dtype), dims=dims)
    if dtype == ir.DataType.STRING:
        items = np.full(count, b"", dtype=object)
        items[flat] = values
        dense.string_data.extend(items.tolist())
    else:
        filled = np.zeros(count, values.dtype)
        filled[flat] = values
        dense.raw_data = filled.astype(filled.dtype.newbyteorder("<"), copy=False).tobytes()
    return dense
