"""Memory of returned arrays, used again once the caller has dropped them.

A C library gives a large block back to the system when it is freed, so the next run would wait for as many pages to
be mapped and cleared, which can take longer than its result. Blocks that are kept are mapped, and aligned for vectors.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

__all__ = ["ReturnedMemory"]

#: Bytes from which on memory is kept; what is smaller the C library keeps itself.
_LEAST: Final = 1 << 20
#: Bytes from which on large pages are worth asking for.
_HUGE: Final = 1 << 22


class ReturnedMemory:
    """Blocks that arrays were returned in, free again.

    Memory comes back when the last array in it goes, in whichever thread that happens, even inside of a method of
    this class. So there is no lock: each step on the list of free blocks is atomic.

    Attributes:
        limit: Bytes that are kept at most.
    """

    def __init__(self) -> None:
        self.limit = 0
        self._free: list[mmap.mmap] = []

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An uninitialised row-major array.

        Raises:
            MemoryError: there is not enough memory.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < _LEAST:
            return np.empty(shape, dtype)
        block = self._taken(nbytes) or _mapped(nbytes)
        loan = _Loan(nbytes, np.uint8, block)
        loan.lender, loan.block = self, block
        return np.ndarray(shape, dtype, loan)

    def held(self) -> int:
        """Bytes of all free blocks."""
        return sum(map(len, self._free))

    def trim(self) -> int:
        """Give all free blocks back to the system; returns their bytes."""
        freed = self.held()
        self._free.clear()
        self.limit = 0
        return freed

    def give_back(self, block: mmap.mmap) -> None:
        """Keep a block; the oldest ones make room for it."""
        self._free.append(block)
        with contextlib.suppress(IndexError):  # another thread has taken the last one
            while self.held() > self.limit:
                del self._free[0]

    def _taken(self, nbytes: int) -> mmap.mmap | None:
        """A free block in which ``nbytes`` leave little unused, the latest one: caches may still have some of it."""
        for block in self._free[::-1]:
            if nbytes <= len(block) <= nbytes + nbytes // 4:
                with contextlib.suppress(ValueError):  # another thread has taken it
                    self._free.remove(block)
                    return block
        return None


class _Loan(np.ndarray[Any, Any]):
    """All bytes of a block: what arrays in it refer to, so that it ends with the last of them."""

    lender: ReturnedMemory | None = None
    block: mmap.mmap

    def __del__(self) -> None:
        if self.lender is not None:
            self.lender.give_back(self.block)


def _mapped(nbytes: int) -> mmap.mmap:
    try:
        block = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes:,} bytes for an output: {error.strerror}") from error
    if nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            block.madvise(mmap.MADV_HUGEPAGE)
    return block
