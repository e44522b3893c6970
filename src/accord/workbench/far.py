"""Tensors whose elements lie further apart than 32 bits count, in little memory.

The same pages of a file are mapped many times one after the other, so that a tensor of more than 2³¹ elements repeats a
few of its rows; the rows behind the 2³¹st element have pages of their own. Where a kernel takes strides, a few rows
that lie 2³⁰ elements apart do. Around them nothing is mapped: an offset that wraps ends the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from accord.workbench.buffers import FILLS, PAGE, dtype_named

__all__ = ["LIMIT", "FarTensor", "Pages", "rows_of_window"]

Array: TypeAlias = "np.ndarray[Any, Any]"

#: What 32 bits with a sign count.
LIMIT = 1 << 31
_WINDOW = 4 << 20


def rows_of_window(row: int) -> int:
    """How many rows of ``row`` bytes are repeated: whole pages, a few MiB."""
    least = PAGE // math.gcd(row, PAGE)
    return least * max(1, _WINDOW // (row * least))


class Pages:
    """A file of pages."""

    def __init__(self) -> None:
        self.file = os.memfd_create("far")
        self._size = 0

    def add(self, data: Array | None, nbytes: int, fill: str = "nan") -> tuple[int, int]:
        """Pages with ``data``, or with a pattern; where they begin, and their bytes."""
        start, size = self._size, max(1, math.ceil(nbytes / PAGE)) * PAGE
        content = np.full(size, FILLS[fill], np.uint8)
        if data is not None:
            content[: data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        os.pwrite(self.file, content.data, start)
        self._size += size
        return start, size

    def read(self, start: int, shape: Sequence[int], dtype: str) -> Array:
        """What is there now."""
        kind = dtype_named(dtype)
        data = os.pread(self.file, math.prod(shape) * kind.itemsize, start)
        return np.frombuffer(data, np.uint8).view(kind).reshape(shape)

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.file)


@dataclass(slots=True)
class FarTensor:
    """One tensor.

    Attributes:
        shape: As the kernel sees it.
        strides: In bytes.
        dtype: Name.
        pieces: Address from the tensor's first element, start in the file, bytes.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    pieces: list[tuple[int, int, int]]
