"""OrtValue: a value outside a session, under the interface of ONNX Runtime's class of that name."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.errors import BackendError, InputError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["OrtValue", "check_device", "element_type", "memory_view"]


def check_device(device_type: str, device_id: int = 0) -> None:
    """Raise unless arrays can live on this device.

    Raises:
        BackendError: it is not the host.
    """
    if device_type.lower() != "cpu" or device_id != 0:
        raise BackendError(
            f"values on device '{device_type}:{device_id}' are not supported",
            expected="cpu:0",
            remedy="Give arrays in host memory.",
        )


def element_type(dtype: Any) -> ir.DataType:
    """The ONNX element type of a NumPy dtype, of anything that makes one, or of an ONNX type's number.

    Raises:
        InputError: ONNX has no such type.
    """
    import onnx_ir as ir

    try:
        if isinstance(dtype, int):
            return ir.DataType(dtype)
        dtype = np.dtype(dtype)
        return ir.DataType.STRING if dtype.kind in "OUS" else ir.DataType.from_numpy(dtype)
    except (TypeError, ValueError) as error:
        raise InputError("no ONNX element type", found=repr(dtype)) from error


def memory_view(pointer: int, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """The caller's memory as an array; the caller keeps it alive.

    Args:
        pointer: Address of the first element.
        shape: Sizes of a row-major array.
        dtype: NumPy dtype or number of an ONNX type.

    Raises:
        InputError: no address, a negative size, or elements of no fixed size.
    """
    kind = element_type(dtype)
    if kind.name == "STRING":
        raise InputError("strings have no fixed size and cannot be given by address", remedy="Bind an array.")
    sizes = tuple(int(d) for d in shape)
    if any(d < 0 for d in sizes):
        raise InputError("a size is negative", found=list(sizes))
    element = np.dtype(kind.numpy())
    count = math.prod(sizes)
    if count == 0:
        return np.empty(sizes, element)
    if pointer <= 0:
        raise InputError("no address was given", expected="the address of the first element", found=pointer)
    block = (ctypes.c_uint8 * (count * element.itemsize)).from_address(pointer)
    return np.ndarray(sizes, element, buffer=memoryview(block))


class OrtValue:
    """A tensor, a sequence, a map or an absent optional in host memory.

    Args:
        value: What it holds: an array, a list, a dictionary or None. It is not copied.
        kind: ONNX element type of a tensor where the array's dtype does not say it.
    """

    def __init__(self, value: Any, kind: ir.DataType | None = None) -> None:
        self._value = value
        self._kind = kind

    @property
    def value(self) -> Any:
        """What it holds."""
        return self._value

    # construction

    @classmethod
    def ortvalue_from_numpy(cls, array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A tensor that shares memory with ``array`` if that is row-major, else holds a copy.

        Raises:
            InputError: no array.
            BackendError: another device than the host.
        """
        check_device(device_type, device_id)
        if not isinstance(array, np.ndarray):
            raise InputError("an array is needed", expected="numpy.ndarray", found=type(array).__name__)
        element_type(array.dtype)
        return cls(array if array.flags.c_contiguous else array.copy(order="C"))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> OrtValue:
        """The bits of ``data`` as elements of another type of the same size, such as bfloat16 held in uint16.

        Raises:
            InputError: no array, or elements of another size.
        """
        kind = element_type(int(onnx_element_type))
        value = cls.ortvalue_from_numpy(data).value
        wanted = np.dtype(kind.numpy())
        if value.dtype.itemsize != wanted.itemsize:
            raise InputError("elements differ in size", expected=f"{wanted.itemsize} bytes", found=str(value.dtype))
        return cls(value if value.dtype == wanted else value.view(wanted), kind)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type_: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor with memory of its own, filled with zeros.

        Args:
            shape: Sizes.
            element_type_: NumPy dtype or number of an ONNX type.
            device_type: "cpu".
            device_id: 0.

        Raises:
            InputError: no such type.
            BackendError: another device than the host.
        """
        check_device(device_type, device_id)
        kind = element_type(element_type_)
        return cls(np.zeros(tuple(shape), kind.numpy()), kind)

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """A tensor that shares memory with an object that has ``__dlpack__``.

        Raises:
            InputError: it has not, or is not in host memory.
        """
        try:
            return cls(np.from_dlpack(data))
        except (AttributeError, TypeError, ValueError, BufferError, RuntimeError) as error:
            raise InputError(
                f"cannot be read through DLPack: {error}",
                expected="an object with __dlpack__ in host memory",
                found=type(data).__name__,
            ) from error

    # what it is

    def _tensor(self) -> np.ndarray[Any, Any]:
        if not isinstance(self._value, np.ndarray):
            raise InputError("only tensors have this", found=self.data_type())
        return self._value

    def has_value(self) -> bool:
        """False for an absent optional."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """True for a tensor."""
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """False: sparse tensors are made dense on their way in."""
        return False

    def is_tensor_sequence(self) -> bool:
        """True for a sequence."""
        return isinstance(self._value, list)

    def shape(self) -> list[int]:
        """A tensor's sizes.

        Raises:
            InputError: no tensor.
        """
        return list(self._tensor().shape)

    def element_type(self) -> int:
        """Number of a tensor's ONNX element type.

        Raises:
            InputError: no tensor.
        """
        return int(self._kind if self._kind is not None else element_type(self._tensor().dtype))

    def data_type(self) -> str:
        """Its ONNX type: "tensor(float)", "seq(tensor(int64))" and so on."""
        return _type_of(self._value, self._kind)

    def device_name(self) -> str:
        """Where it is: "cpu"."""
        return "cpu"

    def data_ptr(self) -> int:
        """Address of a tensor's first element.

        Raises:
            InputError: no tensor.
        """
        return int(self._tensor().ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Size of a tensor's memory.

        Raises:
            InputError: no tensor.
        """
        return self._tensor().nbytes

    # content

    def numpy(self) -> Any:
        """The array, sharing memory; for a sequence a list of arrays.

        Raises:
            InputError: an absent optional.
        """
        if self._value is None:
            raise InputError("an absent optional has no array")
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._tensor(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def update_inplace(self, data: Any) -> None:
        """Copy ``data`` into this tensor's memory.

        Args:
            data: An array or another tensor of the same shape and dtype.

        Raises:
            InputError: another shape or dtype.
        """
        target = self._tensor()
        source = data.value if isinstance(data, OrtValue) else data
        if not isinstance(source, np.ndarray) or source.shape != target.shape or source.dtype != target.dtype:
            raise InputError("cannot be copied into this value", expected=_describe(target), found=_describe(source))
        np.copyto(target, source)

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}{self.shape() if self.is_tensor() else ''})"


def _describe(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def _type_of(value: Any, kind: ir.DataType | None = None) -> str:
    if isinstance(value, np.ndarray):
        return f"tensor({(kind if kind is not None else element_type(value.dtype)).name.lower()})"
    if isinstance(value, list):
        return f"seq({_type_of(value[0])})" if value else "seq(unknown)"
    if isinstance(value, dict):
        key, item = next(iter(value.items()), (0, 0.0))
        return f"map({'string' if isinstance(key, str) else 'int64'},{_type_of(np.asarray(item))})"
    return "optional(unknown)"
