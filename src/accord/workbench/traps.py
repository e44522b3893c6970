"""Where a process was when it touched memory that is not its own.

A handler in machine code writes the address to a page that the parent shares, and lets the process die as it would
have: nothing that is still needed then runs in the process itself.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import struct
from dataclasses import dataclass

__all__ = ["ARENA", "Fault", "Trap", "fault_in"]

#: Where the page holds the address, what kind of access it was, and the start of the arena; then comes the reason.
_ADDRESS, _ACCESS, ARENA = 0, 8, 16
_SIGINFO, _RESET, _BY_KERNEL = 4, 0x80000000, 128

#: si_addr and si_code in siginfo_t; the page fault's error code in the x86-64 ucontext (bit 1: it was a write).
_HANDLER = """
@page = global ptr null
define void @handler(i32 %signal, ptr %info, ptr %context) {{
  %page = load volatile ptr, ptr @page
  %where = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %where
  store volatile i64 %address, ptr %page
  %reason = getelementptr i8, ptr %info, i64 8
  %number = load i32, ptr %reason
  %wide = zext i32 %number to i64
  %third = getelementptr i8, ptr %page, i64 24
  store volatile i64 %wide, ptr %third
  {access}
  ret void
}}
"""
_X86_ACCESS = """
  %code = getelementptr i8, ptr %context, i64 192
  %bits = load i64, ptr %code
  %shifted = lshr i64 %bits, 1
  %write = and i64 %shifted, 1
  %kind = add i64 %write, 1
  %slot = getelementptr i8, ptr %page, i64 8
  store volatile i64 %kind, ptr %slot
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """An access that ended a process.

    Attributes:
        address: What was accessed.
        access: "read", "write", or "access" where the machine does not say.
        by_kernel: The machine gave no address: an instruction that is not allowed this one.
    """

    address: int
    access: str
    by_kernel: bool = False


class _SigAction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Trap:
    """The handler; made once, set in each process."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        text = _HANDLER.format(access=_X86_ACCESS if platform.machine() == "x86_64" else "")
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
        self._engine.finalize_object()
        self._slot = self._engine.get_global_value_address("page")
        self._handler = self._engine.get_function_address("handler")

    def set(self, page: int) -> None:
        """Write what happens in this process to the file ``page``."""
        memory = mmap.mmap(page, mmap.PAGESIZE)
        self._memory = memory
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.c_void_p.from_address(self._slot).value = address
        from accord.workbench.buffers import arena

        struct.pack_into("<Q", memory, ARENA, arena())
        action = _SigAction(handler=self._handler, flags=_SIGINFO | ctypes.c_int(_RESET).value)
        for number in (signal.SIGSEGV, signal.SIGBUS):
            ctypes.CDLL(None).sigaction(int(number), ctypes.byref(action), None)


def fault_in(page: bytes) -> tuple[Fault | None, int]:
    """What a page tells: the access, and the start of the arena."""
    address, access, base, reason = struct.unpack_from("<QQQQ", page)
    if not reason:
        return None, base
    return Fault(address, ("access", "read", "write")[access], reason == _BY_KERNEL), base
