"""cuBLASLt, called from Python: looked for when a product could use it, and loaded when it does.

Nothing needs it. Where it is not installed, is of a newer CUDA than the driver, or cannot be used, its ways of a
contraction are not there; :func:`lacking` says why. ``ACCORD_CUBLASLT=0`` does without it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from accord.backends.cuda.driver import Device
from accord.backends.cuda.library_product import LibraryProduct, Matrix, MatrixProduct, ProductLaunch
from accord.backends.protocol import Array
from accord.errors import ExecutionError

__all__ = ["ProductCall", "algorithms", "identity", "installed", "lacking"]

#: The library by CUDA's major version, and where NVIDIA's packages for Python have it.
_FILES: Final = {13: ("libcublasLt.so.13", "nvidia/cu13/lib"), 12: ("libcublasLt.so.12", "nvidia/cublas/lib")}
_CACHE: Final = Path("/etc/ld.so.cache")

# numbers of its interface (cublasLt.h, cublas_api.h, library_types.h), which are those of all versions

_TYPES: Final = {"f32": 0, "f16": 2, "bf16": 14}
#: CUBLAS_COMPUTE_32F, and for float32 that of which nothing is rounded, or CUBLAS_COMPUTE_32F_FAST_TF32.
_COMPUTE: Final = {"half": 68, "ieee": 69, "tf32": 77}
_EPILOGUES: Final = {"": 0, "relu": 2, "gelu": 32}
_WITH_BIAS, _NOTHING_MORE = 4, 1
_TRANSPOSED, _EPILOGUE, _BIAS = (3, 4), 7, 8
_BATCH, _STEP = 5, 6
_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
#: Parts of a sum are kept as float32 in the workspace, and not in the type of the result.
_PARTS_AS_FLOATS: Final = 2
_ALGORITHM_BYTES: Final = 64

_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
#: Types of arguments; all return a status.
_ENTRIES: Final[Mapping[str, tuple[Any, ...]]] = {
    "cublasLtCreate": (_ADDRESS,),
    "cublasLtMatmulDescCreate": (_ADDRESS, _INT, _INT),
    "cublasLtMatmulDescDestroy": (_ADDRESS,),
    "cublasLtMatmulDescSetAttribute": (_ADDRESS, _INT, _ADDRESS, _SIZE),
    "cublasLtMatrixLayoutCreate": (_ADDRESS, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_ADDRESS,),
    "cublasLtMatrixLayoutSetAttribute": (_ADDRESS, _INT, _ADDRESS, _SIZE),
    "cublasLtMatmulPreferenceCreate": (_ADDRESS,),
    "cublasLtMatmulPreferenceDestroy": (_ADDRESS,),
    "cublasLtMatmulPreferenceSetAttribute": (_ADDRESS, _INT, _ADDRESS, _SIZE),
    "cublasLtMatmulAlgoGetHeuristic": (*[_ADDRESS] * 7, _INT, _ADDRESS, _ADDRESS),
    "cublasLtMatmul": (*[_ADDRESS] * 14, _SIZE, _ADDRESS),
}


class Result(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * (_ALGORITHM_BYTES // 8)),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


# where it is


def installed(driver: int) -> Path | None:
    """The library's file: the newest whose CUDA the driver knows; None if there is none, or it is not wanted.

    Args:
        driver: The driver's version, as the driver tells it.
    """
    if os.environ.get("ACCORD_CUBLASLT", "1") == "0":
        return None
    return next((path for major in _FILES if major <= driver // 1000 and (path := _located(major))), None)


@functools.cache
def _located(major: int) -> Path | None:
    """In NVIDIA's package, or where the system's loader finds it; looking for it loads nothing."""
    name, folder = _FILES[major]
    folders = [Path(p) / folder for p in sys.path]
    folders += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    found = next((f / name for f in folders if (f / name).is_file()), None)
    if found is None and _CACHE.is_file():
        said = re.search(rb"/[^\0]*/" + re.escape(name.encode()) + rb"(?=\0)", _CACHE.read_bytes())
        found = Path(os.fsdecode(said[0])) if said else None
    return found


def identity(driver: int) -> str:
    """What tells versions of the library apart, without loading it; "" where there is none."""
    path = installed(driver)
    try:
        return "" if path is None else f"{path.name} {path.stat().st_size}"
    except OSError:
        return ""


def lacking(gpu: Device) -> str:
    """Why the library has no ways here, and what to do; "" if it has."""
    if os.environ.get("ACCORD_CUBLASLT", "1") == "0":
        return "cuBLASLt is not used: ACCORD_CUBLASLT=0"
    if not identity(gpu.driver_version):
        return _missing(gpu.driver_version)
    try:
        _library(gpu)
    except ExecutionError as error:
        return error.message
    return ""


# the library


class _Library:
    """The library on one device.

    Attributes:
        entries: Its functions.
        handle: What it calls the device's own state.
    """

    def __init__(self, gpu: Device, path: Path) -> None:
        self.gpu = gpu
        self.entries = _load(path)
        gpu.enter()
        self.handle = self.made("cublasLtCreate")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            ExecutionError: it does not succeed.
        """
        status = getattr(self.entries, name)(*arguments)
        if status:
            # it does not say whether what was started before has broken the device; the driver does, at any call
            self.gpu.forget_event(self.gpu.event())
            raise ExecutionError(
                f"{name} of cuBLASLt failed: {self.entries.cublasLtGetStatusName(status).decode()}",
                remedy="ACCORD_CUBLASLT=0 does without the library.",
            )

    def made(self, name: str, *arguments: Any) -> int:
        """Call a function that makes something, and stores where it is."""
        place = ctypes.c_void_p()
        self.call(name, ctypes.addressof(place), *arguments)
        return place.value or 0


def _load(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    for name, types in _ENTRIES.items():
        entry = getattr(library, name)
        entry.argtypes, entry.restype = types, ctypes.c_int
    library.cublasLtGetStatusName.argtypes = (ctypes.c_int,)
    library.cublasLtGetStatusName.restype = ctypes.c_char_p
    return library


_LOCK = threading.Lock()
#: By number of the device: the library, or why it cannot be used.
_LIBRARIES: dict[int, _Library | str] = {}


def _library(gpu: Device) -> _Library:
    """The library on a device.

    Raises:
        ExecutionError: it cannot be used.
    """
    with _LOCK:
        found = _LIBRARIES.get(gpu.ordinal)
        if found is None:
            path = installed(gpu.driver_version)
            try:
                found = _missing(gpu.driver_version) if path is None else _Library(gpu, path)
            except (OSError, AttributeError) as error:
                found = f"{path} cannot be loaded: {error}"
            except ExecutionError as error:
                found = error.message
            _LIBRARIES[gpu.ordinal] = found
    if isinstance(found, str):
        raise ExecutionError(found)
    return found


def _missing(driver: int) -> str:
    package = "nvidia-cublas" if driver // 1000 >= max(_FILES) else "nvidia-cublas-cu12"
    return f"cuBLASLt is not installed: pip install {package}"


class _Owned:
    """Something of the library's that goes with its owner."""

    def __init__(self, library: _Library, kind: str, *arguments: Any) -> None:
        self._library, self._kind = library, kind
        self.handle = library.made(f"cublasLt{kind}Create", *arguments)

    def set(self, attribute: int, value: Any) -> None:
        """Set an attribute to a number of C."""
        size = ctypes.sizeof(value)
        self._library.call(f"cublasLt{self._kind}SetAttribute", self.handle, attribute, ctypes.addressof(value), size)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            getattr(self._library.entries, f"cublasLt{self._kind}Destroy")(self.handle)


class _Description:
    """A product as the library has it described."""

    def __init__(self, library: _Library, product: MatrixProduct) -> None:
        self.product = product
        self._bias = 0
        self.operation = _Owned(library, "MatmulDesc", _COMPUTE[product.compute], _TYPES["f32"])
        for attribute, turned in zip(_TRANSPOSED, product.transposed, strict=True):
            self.operation.set(attribute, ctypes.c_int32(turned))
        epilogue = _EPILOGUES[product.activation] + (_WITH_BIAS if product.bias else 0)
        self.operation.set(_EPILOGUE, ctypes.c_uint32(epilogue or _NOTHING_MORE))
        self._layouts = [self._layout(library, m) for m in product.matrices]
        #: Handles of the layouts of A, B, C and D.
        self.layouts = [layout.handle for layout in self._layouts]

    def _layout(self, library: _Library, m: Matrix) -> _Owned:
        made = _Owned(library, "MatrixLayout", _TYPES[m.dtype], m.rows, m.columns, m.lead)
        made.set(_BATCH, ctypes.c_int32(self.product.batch))
        made.set(_STEP, ctypes.c_int64(m.step))
        return made

    def put_bias(self, address: int) -> None:
        """Say where the bias is."""
        if address != self._bias:
            self.operation.set(_BIAS, ctypes.c_void_p(address))
            self._bias = address


def algorithms(gpu: Device, product: MatrixProduct, room: int, count: int) -> tuple[LibraryProduct, ...]:
    """The library's algorithms for a product whose operands are aligned, the best by its own estimate first.

    Args:
        gpu: The device.
        product: The product.
        room: Bytes of the workspace.
        count: How many at most.
    """
    try:
        library = _library(gpu)
        gpu.enter()
        aligned = [m.alignment for m in (*product.matrices, *([product.bias] if product.bias else []))]
        return _asked(library, _Description(library, product), aligned, room, count)
    except ExecutionError:
        return ()


def _asked(
    library: _Library, description: _Description, alignments: Sequence[int], room: int, count: int
) -> tuple[LibraryProduct, ...]:
    """As :func:`algorithms`; ``alignments`` are those of A, B, C, D and, if there is one, the bias."""
    wanted = _Owned(library, "MatmulPreference")
    wanted.set(_WORKSPACE, ctypes.c_uint64(room))
    wanted.set(_REDUCTIONS, ctypes.c_uint32(_PARTS_AS_FLOATS))
    for attribute, alignment in zip(_ALIGNMENTS, alignments, strict=False):
        wanted.set(attribute, ctypes.c_uint32(alignment))
    if description.product.bias:
        description.put_bias(alignments[-1])  # it is looked at only for what divides it
    results = (Result * count)()
    found = ctypes.c_int(0)
    status = library.entries.cublasLtMatmulAlgoGetHeuristic(
        library.handle,
        description.operation.handle,
        *description.layouts,
        wanted.handle,
        count,
        ctypes.addressof(results),
        ctypes.addressof(found),
    )
    if status:  # there is none
        return ()
    good = [r for r in results[: found.value] if not r.state and r.workspace <= room]
    return tuple(LibraryProduct(k, bytes(r.algorithm).hex(), int(r.workspace)) for k, r in enumerate(good))


class ProductCall:
    """A product that is started like a kernel; see :class:`~accord.backends.cuda.parts.Item`.

    Args:
        gpu: The device.
        launch: What is started.
        table: Addresses of the contraction's operands; the last is that of the workspace.

    Raises:
        ExecutionError: the library cannot be used.
    """

    def __init__(self, gpu: Device, launch: ProductLaunch, table: Array) -> None:
        self._gpu, self._launch, self._table = gpu, launch, table
        self._library = _library(gpu)
        product = launch.product
        self._description = _Description(self._library, product)
        self._operands = (*product.matrices, *([product.bias] if product.bias else []))
        self._numbers = np.array([m.operand for m in self._operands])
        shifts = np.array(launch.shifts or [0] * len(table), np.int64)
        self._shifts = shifts[self._numbers] + np.array([m.offset * m.item for m in self._operands], np.int64)
        self._workspace_shift = int(shifts[-1])
        self._aligned = np.array([m.alignment for m in self._operands], np.int64)
        self._factors = (ctypes.c_float * 2)(product.scale, product.share)
        #: The algorithm for operands that are aligned to these bytes.
        self._algorithms = {tuple(self._aligned.tolist()): _bytes_of(launch.algorithm)}

    def start(self, stream: int) -> None:
        """Start it on the operands that the table has now.

        Raises:
            ExecutionError: it has no algorithm for operands that are aligned so little, or the library fails.
        """
        library, description = self._library, self._description
        places = self._table[self._numbers] + self._shifts
        algorithm = self._algorithm(tuple(np.gcd(places, self._aligned).tolist()))
        a, b, c, d, *bias = places.tolist()
        if bias:
            description.put_bias(bias[0])
        of_a, of_b, of_c, of_d = description.layouts
        scale = ctypes.addressof(self._factors)
        size = self._launch.workspace
        workspace = int(self._table[-1]) + self._workspace_shift if size else None
        library.call(
            "cublasLtMatmul",
            *(library.handle, description.operation.handle, scale, a, of_a, b, of_b, scale + 4, c, of_c, d, of_d),
            *(ctypes.addressof(algorithm), workspace, size, stream),
        )

    def _algorithm(self, alignments: tuple[int, ...]) -> Any:
        found = self._algorithms.get(alignments)
        if found is None:
            asked = _asked(self._library, self._description, alignments, self._launch.workspace, 1)
            if not asked:
                raise ExecutionError(
                    "cuBLASLt has no algorithm for operands of a matrix product that lie where they do",
                    expected="addresses that are multiples of 16 bytes",
                    found=f"multiples of {', '.join(map(str, alignments))}",
                    remedy="Bind memory that was allocated whole, or a part that begins at a multiple of 16 bytes.",
                )
            found = self._algorithms[alignments] = _bytes_of(asked[0].algorithm)
        return found


def _bytes_of(algorithm: str) -> Any:
    return (ctypes.c_uint64 * (_ALGORITHM_BYTES // 8)).from_buffer_copy(bytes.fromhex(algorithm))
