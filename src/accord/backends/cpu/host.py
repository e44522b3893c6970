"""Kernels that Python starts because only their data tells how large their outputs are: machine code on arrays."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from accord.backends.cpu.jit import KERNEL_TYPE, load
from accord.backends.cpu.program import KernelCode, word_of
from accord.backends.protocol import Array, HostKernel

__all__ = ["CpuHostKernel", "start"]


class CpuHostKernel(HostKernel):
    """A host kernel that calls machine code. It is made of plain values, so a stored plan can hold it."""

    portable = True

    def codes(self) -> Sequence[KernelCode]:
        """All machine code that a run may need."""
        return ()

    def prepare(self) -> None:
        """Find it in the cache, or compile it."""
        load(self.codes())


def start(code: KernelCode, params: Sequence[Any], arrays: Sequence[Array], tasks: int = 1) -> None:
    """Run machine code on the memory of ``arrays`` in the calling thread, without the interpreter's lock.

    Args:
        code: What to run.
        params: Its parameters, as of :class:`~accord.backends.protocol.Launch`.
        arrays: Its operands.
        tasks: Number of tasks.

    Raises:
        IndexError: it refused its data.
    """
    words = (ctypes.c_int64 * (len(params) + 1))(*map(word_of, params), 0)
    table = (ctypes.c_int64 * len(arrays))(*(a.__array_interface__["data"][0] for a in arrays))
    _function(code.address)(ctypes.addressof(words), ctypes.addressof(table), 0, tasks, 0)
    if code.checks and words[-1]:
        raise IndexError("an index is outside its axis")


_function = functools.lru_cache(maxsize=1024)(KERNEL_TYPE)
