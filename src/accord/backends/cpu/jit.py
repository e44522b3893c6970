"""Machine code: LLVM IR text → object code → address of a function.

Equal texts are compiled once in a process.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path
from typing import Any

from accord.errors import CompileError

__all__ = ["Machine", "compile_function", "machine"]


class Machine:
    """The processor that code is generated for.

    Attributes:
        cpu: LLVM's name of it.
        features: LLVM's feature string.
        vector_bits: Width of the widest vector register that is worth using.
        l1d: Bytes of the first-level data cache of a core.
        l2: Bytes of the second-level cache.
    """

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.cpu: str = llvm.get_host_cpu_name()
        found = llvm.get_host_cpu_features()
        self.features: str = found.flatten()
        self.has: frozenset[str] = frozenset(k for k, on in found.items() if on)
        self.vector_bits = 512 if "avx512f" in self.has else 256 if "avx2" in self.has else 128
        self.l1d, self.l2 = (_cache_size(index, assumed) for index, assumed in ((0, 32 << 10), (2, 512 << 10)))
        self._llvm = llvm
        target = llvm.Target.from_default_triple()
        self._target = target.create_target_machine(
            cpu=self.cpu, features=self.features, opt=3, codemodel="jitdefault", jit=True
        )
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target)
        self._lock = threading.Lock()
        self._addresses: dict[str, int] = {}
        self._keep: list[Any] = []

    def width(self, dtype_bits: int) -> int:
        """Elements of ``dtype_bits`` bits in one vector register."""
        return max(1, self.vector_bits // dtype_bits)

    def object_code(self, text: str) -> bytes:
        """Optimised object code of a module.

        Raises:
            CompileError: LLVM refuses the text.
        """
        try:
            module = self._llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM refuses the generated code: {error}") from error
        module.triple = self._target.triple
        module.data_layout = str(self._target.target_data)
        options = self._llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = False  # kernels are written with vectors
        options.slp_vectorization = False
        builder = self._llvm.create_pass_builder(self._target, options)
        builder.getModulePassManager().run(module, builder)
        return bytes(self._target.emit_object(module))

    def load(self, name: str, text: str) -> int:
        """Address of function ``name`` of the module ``text``.

        Raises:
            CompileError: LLVM refuses the text.
        """
        with self._lock:
            address = self._addresses.get(name)
            if address is None:
                code = self._llvm.object_file.ObjectFileRef.from_data(self.object_code(text))
                self._engine.add_object_file(code)
                self._engine.finalize_object()
                address = int(self._engine.get_function_address(name))
                if not address:
                    raise CompileError(f"function {name} is missing from its module")
                self._keep.append(code)
                self._addresses[name] = address
            return address


def _cache_size(index: int, assumed: int) -> int:
    """Bytes of a cache as Linux numbers them: 0 is the first level for data, 2 the second level."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").read_text().strip()
        return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return assumed


@functools.cache
def machine() -> Machine:
    """The machine at hand."""
    return Machine()


def compile_function(name: str, text: str) -> int:
    """Address of the kernel ``name`` defined by the module ``text``."""
    return machine().load(name, text)


KERNEL_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
