"""DLPack: arrays of a device from other libraries and for them, without a copy and in the order of streams.

What is exchanged is a capsule with a C structure. Its consumer names a stream, and the producer sees that what is put
on it from then on comes after the making of the array.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import Any, Final

import numpy as np

from accord.errors import InputError

__all__ = ["CUDA", "Taken", "capsule_of", "taken"]

#: The number of CUDA's kind of device.
CUDA: Final = 2
_NAME: Final = b"dltensor"
#: Kinds of elements by their number.
_KINDS: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("rank", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """``DLManagedTensor``: ``free`` is called with its address by whoever takes it."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("free", ctypes.c_void_p))


_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
#: What structures that were given away refer to, by their address.
_kept: dict[int, tuple[Any, ...]] = {}


def _forget(address: int) -> None:
    _kept.pop(address, None)


def _drop(capsule: int) -> None:
    """Free the structure in a capsule that nobody has taken; who takes one gives its capsule another name."""
    valid, pointer = _capsules()[1:3]
    if valid(capsule, _NAME):
        _forget(pointer(capsule, _NAME))


#: The two as functions of C.
_forgotten = _Free(_forget)
_dropped = _Destructor(_drop)


@functools.cache
def _capsules() -> tuple[Any, Any, Any]:
    """To make a capsule, to ask for its name, and for its content."""
    make, valid, pointer = (
        ctypes.PYFUNCTYPE(kind, *arguments)((name, ctypes.pythonapi))
        for name, kind, arguments in (
            ("PyCapsule_New", ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _Destructor)),
            ("PyCapsule_IsValid", ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)),
            ("PyCapsule_GetPointer", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)),
        )
    )
    return make, valid, pointer


def capsule_of(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any, device: tuple[int, int] = (CUDA, 0)
) -> Any:
    """A capsule for a row-major array.

    Args:
        address: Of the first element.
        shape: Sizes.
        dtype: Element type.
        owner: Kept alive as long as the array is used.
        device: Kind and number.

    Raises:
        InputError: DLPack has no such element type.
    """
    text = dtype.name.rstrip("0123456789")
    kind = next((k for k, name in _KINDS.items() if name == text), None)
    if kind is None:
        raise InputError("DLPack has no such element type", found=str(dtype))
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = [*itertools.accumulate(shape[:0:-1], lambda a, n: a * n, initial=1)][::-1] if shape else []
    strides = (ctypes.c_int64 * max(len(shape), 1))(*steps)
    made = _Managed()
    tensor = made.tensor
    tensor.data, tensor.device, tensor.rank = address, device, len(shape)
    tensor.kind, tensor.bits, tensor.lanes = kind, 8 * dtype.itemsize, 1
    tensor.shape, tensor.strides = sizes, strides
    made.free = ctypes.cast(_forgotten, ctypes.c_void_p)
    place = ctypes.addressof(made)
    _kept[place] = made, sizes, strides, owner
    return _capsules()[0](place, _NAME, _dropped)


class Taken:
    """An array of another library.

    Attributes:
        address: Of its first element.
        shape: Sizes.
        dtype: Element type.
        strides: In bytes; None for row-major.
        owner: Keeps it alive.
    """

    def __init__(self, tensor: _Tensor, owner: Any) -> None:
        rank = tensor.rank
        kind = _KINDS.get(tensor.kind)
        if kind is None or tensor.lanes != 1:
            raise InputError(
                "an array has elements of a kind that is not supported", found=f"DLPack kind {tensor.kind}"
            )
        self.dtype = np.dtype(kind if kind == "bool" else f"{kind}{tensor.bits}")
        self.address = (tensor.data or 0) + tensor.offset
        self.shape = tuple(tensor.shape[:rank])
        strides = tensor.strides[:rank] if tensor.strides else None
        self.strides = None if strides is None else tuple(s * self.dtype.itemsize for s in strides)
        self.owner = owner


def taken(value: Any, stream: int | None) -> Taken:
    """An array that another library has on a device.

    Args:
        value: What has ``__dlpack__``.
        stream: The device's stream that waits for it; None: it is on the host.

    Raises:
        InputError: elements of a kind that is not supported.
    """
    capsule = value.__dlpack__() if stream is None else value.__dlpack__(stream=stream)
    # its name stays as it is: so the producer frees it when the capsule goes
    place = _capsules()[2](id(capsule), _NAME)
    return Taken(_Managed.from_address(place).tensor, capsule)
