"""The caller's arrays: matched to the model's inputs, checked, and passed on without a copy where that is possible."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from accord.backends import dlpack
from accord.backends.discovery import backend_named
from accord.backends.memory import DeviceArray, Memory
from accord.backends.protocol import Backend
from accord.errors import InputError
from accord.plan.plan import Plan
from accord.plan.types import OptionalType, SequenceType, TensorType, ValueType

#: The default stream in ``__cuda_array_interface__``.
_DEFAULT_STREAM = 1

__all__ = ["Matcher", "as_array", "device_array", "match_inputs", "place_of"]


class Matcher:
    """Matches and checks a model's inputs; what is already as it should be takes a short way.

    Args:
        plan: The plan.
        count: Number of the model's inputs.
    """

    def __init__(self, plan: Plan, count: int) -> None:
        self._plan = plan
        self._count = count
        self._expected: list[tuple[str, np.dtype[Any], int]] | None = []
        for i in plan.inputs[:count]:
            slot = plan.slots[i]
            if slot.dtype is None or slot.shape is None:
                self._expected = None
                break
            self._expected.append((slot.name, slot.dtype, len(slot.shape)))

    def __call__(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """As :func:`match_inputs`."""
        if self._expected is not None and not args and len(named) == self._count:
            values = []
            for name, dtype, rank in self._expected:
                value = named.get(name)
                if type(value) is np.ndarray:
                    if value.dtype != dtype or not (rank or value.ndim == 0):
                        break
                    if not (value.flags.c_contiguous and value.flags.aligned):
                        break
                else:
                    value = device_array(name, value)
                    if value is None or value.dtype != dtype or len(value.shape) != rank:
                        break
                values.append(value)
            else:
                return values
        return match_inputs(self._plan, self._count, args, named)


def match_inputs(plan: Plan, count: int, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The arrays in the plan's order.

    Args:
        plan: The plan.
        count: Number of the model's inputs.
        args: By position.
        named: By name.

    Raises:
        InputError: missing, extra or doubled inputs, or one that does not fit.
    """
    names = [plan.slots[i].name for i in plan.inputs[:count]]
    if len(args) > count:
        raise InputError("too many inputs", expected=f"{count}: {', '.join(names)}", found=len(args))
    unknown = [n for n in named if n not in names]
    if unknown:
        raise InputError(
            f"the model has no input {', '.join(map(repr, unknown))}",
            expected=", ".join(names) or "no inputs",
            remedy="Use the names of Model.inputs.",
        )
    doubled = [n for n in names[: len(args)] if n in named]
    if doubled:
        raise InputError("given by position and by name", value=doubled[0])
    given = dict(zip(names, args, strict=False)) | dict(named)
    values: list[Any] = []
    for i, name in zip(plan.inputs[:count], names, strict=True):
        kind = plan.slots[i].type
        if name not in given:
            if i in plan.defaults:
                values.append(_convert(name, kind, plan.defaults[i]))
                continue
            if isinstance(kind, OptionalType):
                values.append(None)
                continue
            missing = [n for n, s in zip(names, plan.inputs, strict=False) if n not in given and s not in plan.defaults]
            raise InputError(
                f"missing input {', '.join(map(repr, missing))}",
                expected=", ".join(names),
                found=", ".join(given) or "no inputs",
            )
        values.append(_convert(name, kind, given[name]))
    return values


def _convert(name: str, kind: ValueType, value: Any) -> Any:
    if isinstance(kind, TensorType):
        return _tensor(name, kind, value)
    if isinstance(kind, SequenceType):
        if not isinstance(value, (list, tuple)):
            raise InputError(
                "a sequence is needed", value=name, expected="a list of arrays", found=type(value).__name__
            )
        element = kind.element
        return [_convert(f"{name}[{i}]", element, v) if element is not None else v for i, v in enumerate(value)]
    if isinstance(kind, OptionalType):
        return None if value is None else value if kind.element is None else _convert(name, kind.element, value)
    return value


def _tensor(name: str, kind: TensorType, value: Any) -> Any:
    wanted = kind.dtype
    far = device_array(name, value)
    if far is not None:
        if far.dtype == wanted and (kind.shape is None or len(kind.shape) == len(far.shape)):
            return far
        value = far.numpy()
    array = as_array(name, value, wanted)
    if kind.is_text:
        return _strings(name, array)
    if wanted is not None and array.dtype != wanted:
        if array.dtype.newbyteorder("=") == wanted:
            array = array.astype(wanted)  # the same numbers in the other byte order
        else:
            raise InputError(
                "wrong dtype",
                value=name,
                expected=str(wanted),
                found=str(array.dtype),
                remedy=f"Convert it: array.astype('{wanted}').",
            )
    if kind.shape == () and array.size == 1:
        array = array.reshape(())  # a scalar may come as a tensor of one element
    return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")


def device_array(name: str, value: Any) -> DeviceArray | None:
    """What has ``__cuda_array_interface__``, or DLPack and is on a GPU, without a copy; None for anything else.

    Raises:
        InputError: it is not row-major.
        BackendError: device 'cuda' cannot be used here.
    """
    if isinstance(value, DeviceArray):
        return value
    if isinstance(value, np.ndarray):
        return None
    facts = getattr(value, "__cuda_array_interface__", None)
    if facts is not None:
        address, shape, dtype = int(facts["data"][0] or 0), tuple(facts["shape"]), np.dtype(facts["typestr"])
        _check_row_major(name, shape, facts.get("strides"), dtype)
        return DeviceArray(_cuda_memory(address), address, shape, dtype, value, _stream_of(facts))
    kind, number = value.__dlpack_device__() if hasattr(value, "__dlpack_device__") else (None, 0)
    if kind != dlpack.CUDA:
        return None
    memory = _cuda(number).memory
    assert memory is not None
    stream = memory.incoming()
    found = dlpack.taken(value, stream)
    _check_row_major(name, found.shape, found.strides, found.dtype)
    return DeviceArray(memory, found.address, found.shape, found.dtype, found.owner, stream)


def _check_row_major(name: str, shape: tuple[int, ...], strides: Sequence[int] | None, dtype: np.dtype[Any]) -> None:
    if strides is not None and tuple(strides) != contiguous_strides(shape, dtype.itemsize):
        raise InputError(
            "an array on the device has to be row-major",
            value=name,
            found=f"shape {shape} with strides {tuple(strides)}",
            remedy="Make it contiguous (`x.contiguous()` in PyTorch).",
        )


def _stream_of(facts: Mapping[str, Any]) -> int | None:
    """The stream on which an array with this interface is made; None: it is there.

    Before its version 3 the interface says nothing of streams; PyTorch's tensors are made on the default one.
    """
    return facts.get("stream") if facts.get("version", 0) >= 3 else _DEFAULT_STREAM


def place_of(value: Any) -> Hashable:
    """Where an array on a device is, how it lies there, on which stream: equal where a run cannot tell two apart.

    None for what may be no such array, or is not row-major.
    """
    if type(value) is DeviceArray:
        return value.address, value.shape, value.dtype, value.stream
    if type(value).__module__ == "torch":  # several times as fast as what it has for others
        try:
            return (value.data_ptr(), value.shape, value.dtype) if value.is_contiguous() else None
        except (AttributeError, RuntimeError):  # a tensor without memory, or no tensor
            return None
    facts = getattr(value, "__cuda_array_interface__", None)
    if facts is None or facts.get("strides") is not None:
        return None
    return facts["data"][0], facts["shape"], facts["typestr"], _stream_of(facts)


def _cuda_memory(address: int) -> Memory:
    memory = _cuda(0).memory_at(address)
    assert memory is not None
    return memory


@functools.cache
def _cuda(number: int) -> Backend:
    backend = backend_named("cuda" if number == 0 else f"cuda:{number}")
    backend.require()
    return backend


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Of a row-major array, in bytes."""
    steps = [itemsize]
    for n in reversed(shape[1:]):
        steps.append(steps[-1] * n)
    return tuple(reversed(steps)) if shape else ()


def as_array(name: str, value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """``value`` as an array: as it is, through DLPack, through the buffer protocol, or from Python numbers.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(value, np.ndarray):
        return value
    if value is None:
        raise InputError("None was given for a tensor", value=name, expected="an array")
    try:
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if hasattr(value, "__array__") or isinstance(value, (memoryview, bytearray, bytes)):
            return np.asarray(value)
        return np.asarray(value, dtype=dtype)
    except (TypeError, ValueError, BufferError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"cannot be read as an array: {error}",
            value=name,
            expected="a NumPy array, or anything with DLPack or the buffer protocol, on the host",
            found=type(value).__name__,
        ) from error


def _strings(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype != object:
        raise InputError("wrong dtype", value=name, expected="strings", found=str(array.dtype))
    out = np.empty(array.shape, object)
    for i, item in enumerate(array.reshape(-1)):
        if not isinstance(item, (str, bytes)):
            raise InputError("wrong dtype", value=name, expected="strings", found=type(item).__name__)
        out.reshape(-1)[i] = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
    return out
