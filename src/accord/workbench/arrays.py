"""Arrays that processes hand to each other in files: bytes as they are, beside a description in JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from accord.contract.dtypes import ONNX_TYPES, numpy_name
from accord.errors import AccordError

__all__ = ["Array", "aligned", "dtype_name", "read_arrays", "write_arrays"]

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Arrays begin at a multiple of this, as those of the runtime do.
ALIGNMENT = 64


def aligned(shape: Sequence[int], dtype: Any) -> Array:
    """An array whose memory begins at a multiple of :data:`ALIGNMENT`; what it holds is not defined."""
    kind = np.dtype(dtype)
    nbytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    found: Array = raw[start : start + nbytes].view(kind).reshape(shape)
    return found


def dtype_name(dtype: Any) -> str:
    """NumPy's name, as declarations write it.

    Raises:
        AccordError: elements of this type have no bytes that could be handed on.
    """
    name = str(np.dtype(dtype))
    if name not in ONNX_TYPES or name == "string":
        raise AccordError(f"arrays of {name} cannot be measured", expected="numbers or bool")
    return name


def write_arrays(path: Path, arrays: Sequence[Array | None]) -> None:
    """Write arrays to ``path``, and what they are to ``path`` with ``.json`` appended."""
    described = [None if a is None else {"dtype": dtype_name(a.dtype), "shape": list(a.shape)} for a in arrays]
    with path.open("wb") as file:
        for a in arrays:
            if a is not None:
                file.write(np.ascontiguousarray(a).tobytes())
    path.with_name(f"{path.name}.json").write_text(json.dumps(described), encoding="utf-8")


def read_arrays(path: Path) -> list[Array | None]:
    """The arrays that :func:`write_arrays` wrote, each in aligned memory of its own."""
    found: list[Array | None] = []
    with path.open("rb") as file:
        for d in json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8")):
            if d is None:
                found.append(None)
                continue
            array = aligned(d["shape"], numpy_name(ONNX_TYPES[d["dtype"]]))
            data = np.frombuffer(file.read(array.nbytes), np.uint8)
            array.reshape(-1).view(np.uint8)[:] = data
            found.append(array)
    return found
