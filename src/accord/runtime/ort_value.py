"""OrtValue: a value outside a session, under the interface of ONNX Runtime's class of that name."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.backends.discovery import backend_named
from accord.backends.memory import DeviceArray, Memory
from accord.errors import BackendError, InputError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["OrtValue", "element_type", "memory_of", "memory_view"]


def memory_of(device_type: str, device_id: int = 0) -> Memory | None:
    """The memory of a device in which arrays can be; None for the host's.

    Raises:
        BackendError: there is no such device.
    """
    device = device_type.lower()
    if (device, device_id) == ("cpu", 0):
        return None
    if device == "cuda" and device_id >= 0:
        backend = backend_named(f"cuda:{device_id}")
        backend.require()
        return backend.memory
    raise BackendError(
        f"values on device '{device_type}:{device_id}' are not supported",
        expected="cpu:0, or cuda with the number of a GPU",
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


def memory_view(
    pointer: int, shape: Sequence[int], dtype: Any, memory: Memory | None = None
) -> np.ndarray[Any, Any] | DeviceArray:
    """The caller's memory as an array; the caller keeps it alive.

    Args:
        pointer: Address of the first element.
        shape: Sizes of a row-major array.
        dtype: NumPy dtype or number of an ONNX type.
        memory: Where it is; None: in the host's memory.

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
    if memory is not None:
        return DeviceArray(memory, pointer, sizes, element)
    block = (ctypes.c_uint8 * (count * element.itemsize)).from_address(pointer)
    return np.ndarray(sizes, element, buffer=memoryview(block))


class OrtValue:
    """A tensor, a sequence, a map or an absent optional in host memory; or a tensor in that of a GPU.

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
        """A tensor that shares memory with ``array`` if that is row-major and stays there, else holds a copy.

        Raises:
            InputError: no array.
            BackendError: no such device.
        """
        memory = memory_of(device_type, device_id)
        if not isinstance(array, np.ndarray):
            raise InputError("an array is needed", expected="numpy.ndarray", found=type(array).__name__)
        element_type(array.dtype)
        if memory is not None:
            return cls(_uploaded(memory, array))
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
            device_type: "cpu" or "cuda".
            device_id: Number of the GPU; 0 for the CPU.

        Raises:
            InputError: no such type.
            BackendError: no such device.
        """
        memory = memory_of(device_type, device_id)
        kind = element_type(element_type_)
        array = np.zeros(tuple(shape), kind.numpy())
        return cls(array if memory is None else _uploaded(memory, array), kind)

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

    def _tensor(self) -> np.ndarray[Any, Any] | DeviceArray:
        if not isinstance(self._value, (np.ndarray, DeviceArray)):
            raise InputError("only tensors have this", found=self.data_type())
        return self._value

    def _near(self) -> np.ndarray[Any, Any]:
        """A tensor in the host's memory."""
        value = self._tensor()
        return value.numpy() if isinstance(value, DeviceArray) else value

    def has_value(self) -> bool:
        """False for an absent optional."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """True for a tensor."""
        return isinstance(self._value, (np.ndarray, DeviceArray))

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
        """Where it is: "cpu" or "cuda"."""
        return self._value.space.split(":")[0] if isinstance(self._value, DeviceArray) else "cpu"

    def data_ptr(self) -> int:
        """Address of a tensor's first element.

        Raises:
            InputError: no tensor.
        """
        value = self._tensor()
        return value.address if isinstance(value, DeviceArray) else int(value.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Size of a tensor's memory.

        Raises:
            InputError: no tensor.
        """
        return self._tensor().nbytes

    # content

    def numpy(self) -> Any:
        """The array, sharing memory if it is in the host's; for a sequence a list of arrays.

        Raises:
            InputError: an absent optional.
        """
        if self._value is None:
            raise InputError("an absent optional has no array")
        return self._value.numpy() if isinstance(self._value, DeviceArray) else self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._near(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._near().__dlpack__(**options)

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
        if isinstance(source, DeviceArray):
            source = source.numpy()
        if not isinstance(source, np.ndarray) or source.shape != target.shape or source.dtype != target.dtype:
            raise InputError("cannot be copied into this value", expected=_describe(target), found=_describe(source))
        if isinstance(target, DeviceArray):
            target.assign(np.ascontiguousarray(source))
        else:
            np.copyto(target, source)

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}{self.shape() if self.is_tensor() else ''})"


def _uploaded(memory: Memory, array: np.ndarray[Any, Any]) -> DeviceArray:
    made = DeviceArray.empty(memory, array.shape, array.dtype)
    made.assign(np.ascontiguousarray(array))
    return made


def _describe(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__


def _type_of(value: Any, kind: ir.DataType | None = None) -> str:
    if isinstance(value, (np.ndarray, DeviceArray)):
        return f"tensor({(kind if kind is not None else element_type(value.dtype)).name.lower()})"
    if isinstance(value, list):
        return f"seq({_type_of(value[0])})" if value else "seq(unknown)"
    if isinstance(value, dict):
        key, item = next(iter(value.items()), (0, 0.0))
        return f"map({'string' if isinstance(key, str) else 'int64'},{_type_of(np.asarray(item))})"
    return "optional(unknown)"
