"""Memory from the system that is never given back: for machine code, and for what threads share.

Threads may still be inside it when the interpreter ends and takes its own objects apart.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable
from typing import Final

from accord.errors import CompileError

__all__ = ["executable", "zeroed"]

_FAILED: Final = ctypes.c_void_p(-1).value


@functools.cache
def _calls() -> tuple[Callable[..., int], Callable[..., int]]:
    """The C library's mmap and mprotect."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mmap.restype = ctypes.c_void_p
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library.mmap, library.mprotect


def zeroed(size: int) -> int:
    """Address of ``size`` bytes of zeros, at a multiple of the page size.

    Raises:
        MemoryError: the system has none left.
    """
    get, _ = _calls()
    address = get(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address == _FAILED:
        raise MemoryError(f"{size} bytes for machine code: {os.strerror(ctypes.get_errno())}")
    return address


def executable(code: bytes) -> int:
    """Address of a copy of ``code`` that can be executed, at a multiple of the page size.

    It was writable before it became executable, and never is again.

    Raises:
        CompileError: the system does not allow it.
        MemoryError: the system has none left.
    """
    _, protect = _calls()
    address = zeroed(len(code))
    ctypes.memmove(address, code, len(code))
    if protect(address, len(code), mmap.PROT_READ | mmap.PROT_EXEC):
        raise CompileError(
            "the system does not let new machine code be executed",
            found=os.strerror(ctypes.get_errno()),
            remedy="Allow it (SELinux: execmem), or load the model with the reference backend.",
        )
    return address
