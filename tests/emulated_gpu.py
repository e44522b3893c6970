"""A GPU that is this machine: its memory is the host's, kernels run in Triton's interpreter.

The process has to be started with ``TRITON_INTERPRET=1``. Everything but the driver's own calls is the backend's code.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from accord.backends.cuda import driver, program
from accord.backends.cuda.code import CudaLaunch, KernelText, function_of
from accord.kernels.interpreter import interpret
from accord.kernels.launch import Memory

NAMES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "bool": "int8",
    **{f"{s[0]}{n}": f"{s}{n}" for s in ("int", "uint") for n in (8, 16, 32, 64)},
}  # fmt: skip


#: The interpreter changes Triton's language for the time of a kernel.
_INTERPRETER = threading.Lock()


class EmulatedDevice:
    """See the module's text; what it starts is done when the call returns."""

    ordinal, name, architecture, processors, shared, lost = 0, "emulated", 80, 4, 100 << 10, None

    def __init__(self) -> None:
        self.blocks: dict[int, np.ndarray] = {}
        self.started: list[str] = []
        self.replayed = 0
        self._recorded: list | None = None

    def enter(self) -> None:
        pass

    def allocate(self, nbytes: int) -> int:
        owner = np.full(nbytes + 512, 0x5A, np.uint8)  # what is in it means nothing
        address = owner.ctypes.data + -owner.ctypes.data % 256
        self.blocks[address] = owner
        return address

    def free(self, address: int) -> None:
        del self.blocks[address]

    pinned, free_pinned = allocate, free

    def to_device(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        ctypes.memmove(target, source, nbytes)

    to_host = to_device

    def call(self, name: str, target: int, source: int, nbytes: int) -> None:
        assert name in ("cuMemcpyHtoD", "cuMemcpyDtoH")
        ctypes.memmove(target, source, nbytes)

    def move(self, target: int, source: int, width: int, rows: int, steps: tuple[int, int]) -> None:
        for k in range(rows):
            ctypes.memmove(target + k * steps[0], source + k * steps[1], width)

    def stream(self) -> Any:
        return SimpleNamespace()

    def wait(self, stream: Any) -> None:
        pass

    @contextmanager
    def capturing(self, stream: Any):
        made: list[Any] = []
        self._recorded = []
        yield made
        made.append(self._recorded)
        self._recorded = None

    def replay(self, graph: Any, stream: Any) -> None:
        self.replayed += 1
        for work in graph:
            work()

    def forget(self, graph: Any) -> None:
        graph.clear()

    def event(self) -> Any:
        return SimpleNamespace()

    def record(self, event: Any, stream: Any) -> None:
        pass

    def seconds(self, start: Any, stop: Any) -> float:
        return 1e-6

    def do(self, work: Any) -> None:
        """Do something now, or when the graph that is being captured is replayed."""
        if self._recorded is None:
            work()
        else:
            self._recorded.append(work)


class EmulatedKernel:
    """Stands for :class:`accord.backends.cuda.program._Kernel`."""

    def __init__(
        self, gpu: EmulatedDevice, code: KernelText, launch: CudaLaunch, table: np.ndarray, refusal: int
    ) -> None:
        self.gpu, self.code, self.launch, self.table, self.refusal = gpu, code, launch, table, refusal

    def start(self, stream: Any) -> None:
        shifts = self.launch.shifts or [0] * len(self.table)
        addresses = [
            *(a + b for a, b in zip(self.table.tolist(), shifts, strict=True)),
            *([self.refusal] if self.code.refuses else []),
        ]
        self.gpu.do(lambda: self._interpreted(addresses))

    def _interpreted(self, addresses: list[int]) -> None:
        function = function_of(self.code)
        constants = dict(self.launch.constants)
        pointers = iter(zip(addresses, self.code.pointers, strict=True))
        numbers = iter(zip(self.launch.params, self.launch.hints, strict=True))
        arguments: dict[str, Any] = {}
        for name in function.arg_names:
            if name in constants:
                arguments[name] = constants[name]
                continue
            pointer = next(pointers, None)
            if pointer is not None:
                arguments[name] = Memory(pointer[0], (1,), (1,), NAMES[pointer[1]])
                continue
            number, hint = next(numbers)
            assert hint != "16" or number % 16 == 0, "a hint is wrong"
            assert hint != "1" or number == 1, "a hint is wrong"
            assert self.launch.wide or abs(number) < 2**31
            arguments[name] = number
        self.gpu.started.append(self.code.symbol)
        with _INTERPRETER:
            interpret(function, arguments, self.launch.grid, self.code.symbol)


def install(patch: Any = setattr) -> EmulatedDevice:
    """Have the backend meet the emulated GPU."""
    gpu = EmulatedDevice()
    patch(driver, "device", lambda ordinal=0: gpu)
    patch(program, "_Kernel", EmulatedKernel)
    from accord.backends.cuda import CudaBackend

    patch(CudaBackend, "prepare", lambda self, kernels: None)
    patch(CudaBackend, "lacking", lambda self: None)
    return gpu
