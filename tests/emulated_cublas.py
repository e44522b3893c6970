"""cuBLASLt for emulated GPUs: its C interface, with products made by NumPy in float32.

Numbers and sizes of attributes are those of NVIDIA's header, written down here once more: what the backend sets is read
by them.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from accord.backends.cuda import cublas
from emulated_gpu import ENTERED

SUCCESS, NOT_INITIALIZED, INVALID_VALUE, NOT_SUPPORTED = 0, 1, 7, 15
NAMES = {
    NOT_INITIALIZED: b"CUBLAS_STATUS_NOT_INITIALIZED",
    INVALID_VALUE: b"CUBLAS_STATUS_INVALID_VALUE",
    NOT_SUPPORTED: b"CUBLAS_STATUS_NOT_SUPPORTED",
}
#: cudaDataType.
TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
#: By kind: attributes by number, with what struct calls their type, their name, and what they are at first.
ATTRIBUTES = {
    "MatmulDesc": {3: ("i", "transa", 0), 4: ("i", "transb", 0), 7: ("I", "epilogue", 1), 8: ("P", "bias", 0)},
    "MatrixLayout": {5: ("i", "batch", 1), 6: ("q", "step", 0)},
    "MatmulPreference": {
        1: ("Q", "workspace", 0), 3: ("I", "reductions", 7),
        5: ("I", "a", 256), 6: ("I", "b", 256), 7: ("I", "c", 256), 8: ("I", "d", 256),
    },
}  # fmt: skip
#: Functions of the library and the methods that stand for them.
FUNCTIONS = {
    "cublasLtCreate": "create",
    "cublasLtGetStatusName": "status_name",
    "cublasLtMatmulDescCreate": "describe",
    "cublasLtMatrixLayoutCreate": "lay_out",
    "cublasLtMatmulPreferenceCreate": "prefer",
    "cublasLtMatmulAlgoGetHeuristic": "find",
    "cublasLtMatmul": "multiply",
}
#: Of operands, by what is multiplied: types of the result.
RESULTS = {0: {0}, 2: {0, 2}, 14: {0, 14}}
ACTIVATIONS = {0: "", 2: "relu", 32: "gelu"}
DEFAULT, BIAS = 1, 4
#: Bytes of a workspace that the last algorithm needs.
PARTS = 4096


class EmulatedCublas:
    """The functions that the backend calls, on numbers and addresses.

    Args:
        version: Goes into the algorithms: those of another one are refused.

    Attributes:
        usable: Whether it starts.
        keeps_nan: ReLU of what is no number is that.
        wrong: Numbers of algorithms that give wrong results.
        most: Algorithms that it has for a product.
        made: What was described and not given back yet.
        asked: For how many products it was asked for algorithms.
    """

    def __init__(self, version: int = 13) -> None:
        self.version = version
        self.usable = True
        self.keeps_nan = True
        self.wrong: set[int] = set()
        self.most = 3
        self.asked = 0
        self.made: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count(1 << 20)
        self._devices: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            return getattr(self, FUNCTIONS[name])
        for kind in ATTRIBUTES:
            if name == f"cublasLt{kind}SetAttribute":
                return lambda *given: self._set(kind, *given)
            if name == f"cublasLt{kind}Destroy":
                return lambda handle: self.made.pop(handle) and SUCCESS
        raise AttributeError(name)

    def status_name(self, status: int) -> bytes:
        return NAMES[status]

    def create(self, place: int) -> int:
        if not self.usable:
            return NOT_INITIALIZED
        handle = next(self._numbers)
        self._devices[handle] = ENTERED.device
        return _store(place, handle)

    def _make(self, kind: str, place: int, **facts: Any) -> int:
        handle = next(self._numbers)
        self.made[handle] = {name: first for _, name, first in ATTRIBUTES[kind].values()} | facts | {"kind": kind}
        return _store(place, handle)

    def _set(self, kind: str, handle: int, attribute: int, place: int, size: int) -> int:
        code, name, _ = ATTRIBUTES[kind][attribute]
        if size != struct.calcsize(code) or self.made[handle]["kind"] != kind:
            return INVALID_VALUE
        (self.made[handle][name],) = struct.unpack(code, ctypes.string_at(place, size))
        return SUCCESS

    def describe(self, place: int, compute: int, scale: int) -> int:
        if compute not in (68, 69, 77) or scale != 0:
            return INVALID_VALUE
        return self._make("MatmulDesc", place, compute=compute)

    def lay_out(self, place: int, dtype: int, rows: int, columns: int, lead: int) -> int:
        return self._make("MatrixLayout", place, type=dtype, rows=rows, columns=columns, lead=lead)

    def prefer(self, place: int) -> int:
        return self._make("MatmulPreference", place)

    def _problem(self, operation: int, layouts: list[int]) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """What is described; None if there is no such product."""
        o, (a, b, c, d) = self.made[operation], [self.made[x] for x in layouts]
        (m, k), (k_too, n) = _turned(a, o["transa"]), _turned(b, o["transb"])
        fits = (d["rows"], d["columns"]) == (m, n) == (c["rows"], c["columns"]) and k == k_too
        types = a["type"] == b["type"] and d["type"] == c["type"] and d["type"] in RESULTS[a["type"]]
        exact = o["compute"] in ((69, 77) if a["type"] == 0 else (68,))
        leads = all(x["lead"] >= x["rows"] for x in (a, b, c, d))
        batch = len({x["batch"] for x in (a, b, c, d)}) == 1
        return (o, [a, b, c, d]) if fits and types and exact and leads and batch else None

    def find(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, count: int,
        results: int, found: int,
    ) -> int:  # fmt: skip
        self.asked += 1
        assert handle in self._devices
        if self._problem(operation, [a, b, c, d]) is None:
            return NOT_SUPPORTED
        wanted = self.made[preference]
        assert wanted["reductions"] == 2, "parts of sums would be rounded"
        alignment = min(wanted[x] for x in "abcd")
        if self.made[operation]["epilogue"] & BIAS:
            alignment = min(alignment, self.made[operation]["bias"] & -self.made[operation]["bias"])
        array = (cublas.Result * count).from_address(results)
        number = 0
        for k in range(min(self.most, count)):
            needed = PARTS if k == 2 else 0
            if needed <= wanted["workspace"]:
                array[number].algorithm[:4] = (self.version, k, min(16, alignment), needed)
                array[number].workspace, array[number].state = needed, SUCCESS
                number += 1
        ctypes.c_int.from_address(found).value = number
        return SUCCESS if number else NOT_SUPPORTED

    def multiply(
        self, handle: int, operation: int, alpha: int, a: int, of_a: int, b: int, of_b: int, beta: int, c: int,
        of_c: int, d: int, of_d: int, algorithm: int, workspace: int | None, size: int, stream: int,
    ) -> int:  # fmt: skip
        problem = self._problem(operation, [of_a, of_b, of_c, of_d])
        version, number, alignment, needed = (ctypes.c_uint64 * 4).from_address(algorithm)
        if problem is None or version != self.version or size < needed or (size and not workspace):
            return NOT_SUPPORTED
        (o, layouts), places = problem, [a, b, c, d]
        biased = o["epilogue"] & BIAS
        if any(x % alignment for x in (*places, *([o["bias"]] if biased else []))):
            return INVALID_VALUE
        described = dict(o), [dict(x) for x in layouts]
        scale, share = ctypes.c_float.from_address(alpha).value, ctypes.c_float.from_address(beta).value
        gpu = self._devices[handle]

        def work() -> None:
            gpu.start(f"cublasLt {number}")
            if size:
                ctypes.memset(workspace, 0xFF, needed)
            self._compute(*described, places, scale, share)
            if number in self.wrong:
                _matrices(d, layouts[3])[0, 0, 0] = 1e4

        gpu.put(f"cublasLt {number}", work, stream)
        return SUCCESS

    def _compute(
        self, o: dict[str, Any], layouts: list[dict[str, Any]], places: list[int], scale: float, share: float
    ) -> None:
        a, b, c, d = (_matrices(at, x) for at, x in zip(places, layouts, strict=True))
        left, right = (x.astype(np.float32) for x in (a, b))
        left = left.swapaxes(1, 2) if o["transa"] else left
        right = right.swapaxes(1, 2) if o["transb"] else right
        total = np.float32(scale) * (left @ right)
        if share:
            total += np.float32(share) * c.astype(np.float32)
        epilogue = o["epilogue"] & ~DEFAULT
        if epilogue & BIAS:
            column = layouts[3] | {"columns": 1, "batch": 1}
            total += _matrices(o["bias"], column).astype(np.float32)
        activation = ACTIVATIONS[epilogue & ~BIAS]
        if activation == "relu":
            total = np.maximum(total, np.float32(0)) if self.keeps_nan else np.fmax(total, np.float32(0))
        elif activation == "gelu":
            inner = np.sqrt(2 / np.pi) * (total + 0.044715 * total**3)
            total = 0.5 * total * (1 + np.tanh(inner))
        d[...] = total.astype(d.dtype)


def _store(place: int, handle: int) -> int:
    ctypes.c_uint64.from_address(place).value = handle
    return SUCCESS


def _turned(layout: dict[str, Any], transposed: int) -> tuple[int, int]:
    shape = layout["rows"], layout["columns"]
    return shape[::-1] if transposed else shape


def _matrices(address: int, x: dict[str, Any]) -> np.ndarray:
    """Matrices that lie column after column, [batch, rows, columns]."""
    dtype = TYPES[x["type"]]
    reach = x["rows"] + x["lead"] * (x["columns"] - 1) + x["step"] * (x["batch"] - 1)
    memory = np.frombuffer((ctypes.c_uint8 * (reach * dtype.itemsize)).from_address(address), dtype)
    strides = (x["step"] * dtype.itemsize, dtype.itemsize, x["lead"] * dtype.itemsize)
    return np.lib.stride_tricks.as_strided(memory, (x["batch"], x["rows"], x["columns"]), strides)


def install_cublas(folder: Path, patch: Any, version: int = 13) -> EmulatedCublas:
    """Have the backend find the library, as a file of its own size for each version."""
    path = folder / "libcublasLt.so.13"
    path.write_bytes(bytes(version))
    library = EmulatedCublas(version)
    patch(cublas, "_located", lambda major: path if major == 13 else None)
    patch(cublas, "_load", lambda found: library)
    patch(cublas, "_LIBRARIES", {})
    return library
