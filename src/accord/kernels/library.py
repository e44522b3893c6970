"""C functions in shared libraries."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.contract.code import LibraryCode
from accord.errors import ContractError
from accord.kernels.bound import Array, KernelError, WriteKernel, named_sizes
from accord.kernels.signature import REFUSED, Slot, signature, symbol_of, values_of

if TYPE_CHECKING:
    from accord.contract.contract import Contract, KernelDeclaration

__all__ = ["LibraryKernel", "function_address", "status_message"]


@functools.lru_cache(maxsize=256)
def _opened(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def function_address(code: LibraryCode, types: Mapping[str, str], op: str) -> int:
    """Address of a declared function in this process; its library is opened once and stays.

    Raises:
        ContractError: the library cannot be opened, or has no such function.
    """
    symbol = symbol_of(code.symbol, types)
    try:
        library = _opened(code.path)
    except OSError as error:
        raise ContractError(
            f"the library {code.path} cannot be opened: {error}",
            op=op,
            remedy="Build it, or correct the path in the declaration.",
        ) from error
    try:
        found = getattr(library, symbol)
    except AttributeError as error:
        raise ContractError(
            f"the library {code.path} has no function '{symbol}'",
            op=op,
            remedy='Declare it `extern "C"`, and see `accord op header` for its prototype.',
        ) from error
    return int(ctypes.cast(found, ctypes.c_void_p).value or 0)


def status_message(status: int) -> str:
    """What a status other than 0 means, for people."""
    if status == REFUSED:
        return "the kernel does not accept this call (status 1)"
    return f"the kernel failed with status {status}"


class LibraryKernel(WriteKernel):
    """A C function, called through ctypes."""

    def __init__(self, contract: Contract, kernel: KernelDeclaration, types: Mapping[str, str]) -> None:
        super().__init__(contract, kernel, types)
        self._slots = signature(contract, kernel)
        address = function_address(kernel.code, types, contract.semantic.qualified_name)
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, *map(_ctype, self._slots))(address)

    def prepared(
        self,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        attributes: Mapping[str, Any],
        workspace: Array | None = None,
        stream: Any = None,
    ) -> Callable[[], None]:
        """See :class:`~accord.kernels.bound.WriteKernel`."""
        arguments = self.arguments(inputs, outputs, attributes, workspace, stream)

        def call() -> None:
            status = self._function(*arguments)
            if status:
                raise KernelError(status_message(status), status, op=self.contract.semantic.qualified_name)

        return call

    def arguments(
        self,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        attributes: Mapping[str, Any],
        workspace: Array | None,
        stream: Any,
    ) -> list[Any]:
        """What :meth:`prepared` gives to the function."""
        s = self.contract.semantic
        ports = [*zip(s.inputs, inputs, strict=False), *zip(s.outputs, outputs, strict=False)]
        lead = next(
            (
                math.prod(a.shape[: a.ndim - len(p.sizes) + 1])
                for p, a in ports
                if a is not None and p.sizes is not None and "..." in p.sizes
            ),
            1,
        )
        values = values_of(
            self._slots,
            {
                "input": [_pointer(a) for a in _padded(inputs, len(s.inputs))],
                "output": [_pointer(a) for a in _padded(outputs, len(s.outputs))],
                "size": named_sizes(self.contract, inputs, attributes, outputs),
                "lead": lead,
                "shape": {p.name: () if a is None else a.shape for p, a in ports},
                "stride": {p.name: _strides(a, len(p.sizes or ())) for p, a in ports},
                "attribute": attributes,
                "workspace": _pointer(workspace),
                "bytes": 0 if workspace is None else workspace.nbytes,
                "stream": stream,
            },
        )
        return [_converted(slot, value) for slot, value in zip(self._slots, values, strict=True)]


def _padded(arrays: Sequence[Array | None], count: int) -> list[Array | None]:
    return [*arrays, *([None] * (count - len(arrays)))]


def _pointer(array: Array | None) -> int | None:
    return None if array is None else array.__array_interface__["data"][0]


def _strides(array: Array | None, rank: int) -> tuple[int, ...]:
    return (0,) * rank if array is None else tuple(s // array.itemsize for s in array.strides)


def _ctype(slot: Slot) -> Any:
    match slot.kind:
        case "float":
            return ctypes.c_double
        case "text":
            return ctypes.c_char_p
        case "input" | "output" | "shape" | "strides" | "ints" | "floats" | "workspace" | "stream":
            return ctypes.c_void_p
    return ctypes.c_int64


def _converted(slot: Slot, value: Any) -> Any:
    match slot.kind:
        case "shape" | "strides" | "ints":
            return ctypes.cast((ctypes.c_int64 * max(1, len(value)))(*map(int, value)), ctypes.c_void_p)
        case "floats":
            return ctypes.cast((ctypes.c_double * max(1, len(value)))(*map(float, value)), ctypes.c_void_p)
        case "text":
            return value if isinstance(value, bytes) else str(value).encode()
        case "float":
            return float(np.float32(value))
        case "input" | "output" | "workspace" | "stream":
            return value
    return int(value)
