"""Running consecutive phases with one call from Python."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from accord.backends.cpu.jit import compile_function
from accord.backends.cpu.llvm import Builder
from accord.backends.protocol import Array, Launch, Phase, Program

__all__ = ["CpuProgram"]

_FIELDS = 4  #: function, parameters, operands, tasks


@functools.cache
def _walker() -> Callable[[int, int], None]:
    """Machine code that runs the rows of a program one after the other."""
    b = Builder("accord_walk", "ptr %rows, i64 %count")
    with b.loop(0, "%count") as i:
        row = b.op(f"getelementptr [{_FIELDS} x i64], ptr %rows, i64 {i}")
        fields = []
        for k, kind in enumerate(("ptr", "ptr", "ptr", "i64")):
            at = b.op(f"getelementptr i64, ptr {row}, i64 {k}")
            fields.append(b.op(f"load {kind}, ptr {at}"))
        function, params, operands, tasks = fields
        b.emit(f"call void {function}(ptr {params}, ptr {operands}, i64 0, i64 {tasks}, i64 0)")
    address = compile_function(b.name, b.module())
    # CFUNCTYPE lets go of the interpreter's lock during the call
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)


class CpuProgram(Program):
    """Rows of (function, parameters, operands, tasks) for the walker."""

    def __init__(self, launches: Sequence[tuple[Phase, Launch]], operands: Sequence[Array]) -> None:
        params = [np.array((*launch.params, 0), np.int64) for _, launch in launches]
        self._keep = (params, list(operands))
        rows = np.zeros((len(launches), _FIELDS), np.int64)
        for k, (phase, launch) in enumerate(launches):
            rows[k] = (address_of(phase), params[k].ctypes.data, operands[k].ctypes.data, launch.tasks)
        self._rows = rows
        self._address = rows.ctypes.data
        self._count = len(launches)
        self._walk = _walker()
        self._checked = [k for k, (phase, _) in enumerate(launches) if getattr(phase.code, "checks", False)]

    def run(self) -> int:
        """Run all phases; the number of the first that set its refusal word, else -1."""
        self._walk(self._address, self._count)
        for k in self._checked:
            params = self._keep[0][k]
            if params[-1]:
                params[-1] = 0
                return k
        return -1


def address_of(phase: Phase) -> int:
    """Machine code of a phase, compiled when it is first needed."""
    code = phase.code
    if not isinstance(code, KernelCode):
        raise TypeError(f"the CPU backend cannot compile {type(code).__name__}")
    return _address(code)


@functools.cache
def _address(code: KernelCode) -> int:
    name = code.symbol
    return compile_function(name, code.module(name))


class KernelCode:
    """What a phase's ``code`` is: hashable, and able to write its module.

    Attributes:
        checks: The kernel may refuse its data. It then sets the word after its last parameter to something other
            than zero, and goes on without reading or writing outside its operands.
    """

    checks: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("machine code lives in its process")

    @property
    def symbol(self) -> str:
        """A name that is unique to this code."""
        raise TypeError(f"{type(self).__name__} has no symbol")

    def module(self, name: str) -> str:
        """LLVM text of a module that defines kernel ``name``."""
        raise TypeError(f"{type(self).__name__} has no module")
