"""LLVM: the text of a module → object code, on as many threads as wanted.

llvmlite lets one thread at a time into LLVM. LLVM itself only asks that threads have contexts and target machines of
their own, so the two steps that take nearly all the time are called without llvmlite's lock.

Kernels are written as straight vector code, so few passes are run: constants and arguments that are always the same
are propagated, instructions combined, loops rotated. Nothing is inlined unless it says ``alwaysinline``; nothing is
unrolled, vectorised or hoisted.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from accord.backends.cpu.machine import Machine
from accord.errors import CompileError

__all__ = ["Compiler", "initialise"]

_START = threading.Lock()


@functools.cache
def initialise() -> Any:
    """``llvmlite.binding``, with all targets that this copy of LLVM knows ready for use."""
    import llvmlite.binding as llvm

    with _START:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm


class _Unlocked:
    """The functions of llvmlite's library that may run in several threads at once."""

    def __init__(self) -> None:
        library = ctypes.CDLL(initialise().ffi.lib._name)
        try:
            self.run = library.LLVMPY_RunNewModulePassManager
            self.emit = library.LLVMPY_TargetMachineEmitToMemory
            self.start = library.LLVMPY_GetBufferStart
            self.size = library.LLVMPY_GetBufferSize
            self.dispose = library.LLVMPY_DisposeMemoryBuffer
        except AttributeError as error:
            raise CompileError(
                "this llvmlite lacks a function that Accord calls",
                found=str(error),
                remedy="Install a version of llvmlite that Accord was tested with (0.50).",
            ) from error
        pointer = ctypes.c_void_p
        self.run.argtypes, self.run.restype = [pointer] * 3, None
        self.emit.argtypes = [pointer, pointer, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        self.emit.restype = pointer
        self.start.argtypes, self.start.restype = [pointer], pointer
        self.size.argtypes, self.size.restype = [pointer], ctypes.c_size_t
        self.dispose.argtypes, self.dispose.restype = [pointer], None


_unlocked = functools.cache(_Unlocked)


class Compiler:
    """Makes object code for one machine; for use by one thread.

    Args:
        machine: The target.
    """

    def __init__(self, machine: Machine) -> None:
        llvm = initialise()
        self._llvm = llvm
        self._machine = machine
        self._context = llvm.create_context()
        target = llvm.Target.from_triple(machine.triple)
        self._target = target.create_target_machine(
            cpu=machine.cpu, features=machine.features, opt=3, reloc="pic", codemodel="small"
        )
        self._layout = str(self._target.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        self._builder = llvm.create_pass_builder(self._target, options)
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_sroa_pass()
        passes.add_ipsccp_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_loop_rotate_pass()
        passes.add_simplify_cfg_pass()
        self._passes = passes

    def object_code(self, text: str) -> bytes:
        """Optimised, position-independent object code of a module.

        Raises:
            CompileError: LLVM refuses the text.
        """
        unlocked = _unlocked()
        with self._parsed(text) as module:
            unlocked.run(self._passes, module, self._builder)
            error = ctypes.c_char_p()
            buffer = unlocked.emit(self._target, module, 1, ctypes.byref(error))
            if not buffer:
                raise CompileError("LLVM gives no object code", found=(error.value or b"").decode(errors="replace"))
            try:
                return ctypes.string_at(unlocked.start(buffer), unlocked.size(buffer))
            finally:
                unlocked.dispose(buffer)

    def assembly(self, text: str) -> str:
        """The instructions that :meth:`object_code` holds, for people.

        Raises:
            CompileError: LLVM refuses the text.
        """
        with self._parsed(text) as module:
            self._passes.run(module, self._builder)
            return str(self._target.emit_assembly(module))

    def _parsed(self, text: str) -> Any:
        try:
            module = self._llvm.parse_assembly(text, self._context)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM refuses the generated code: {error}") from error
        module.triple = self._machine.triple
        module.data_layout = self._layout
        return module
