"""A GPU that is this machine: its memory is the host's, kernels run in Triton's interpreter.

The process has to be started with ``TRITON_INTERPRET=1``. Everything but the driver's own calls is the backend's code.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from accord.backends.cuda import driver, program
from accord.backends.cuda.code import CudaLaunch, KernelText, function_of
from accord.backends.cuda.declared import DeclaredCode
from accord.backends.cuda.loss import Losable
from accord.backends.memory import MemoryFullError
from accord.kernels.interpreter import interpret
from accord.kernels.launch import Memory

NAMES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "bool": "int8",
    **{f"{s[0]}{n}": f"{s}{n}" for s in ("int", "uint") for n in (8, 16, 32, 64)},
}  # fmt: skip


#: The interpreter changes Triton's language for the time of a kernel.
_INTERPRETER = threading.Lock()


class EmulatedDevice(Losable):
    """See the module's text; what it starts is done when the call returns."""

    name, architecture, processors, shared = "emulated", 80, 4, 100 << 10

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__(ordinal)
        self.space = f"cuda:{ordinal}"
        self.blocks: dict[int, np.ndarray] = {}
        self.started: list[str] = []
        self.replayed = 0
        #: Kernels, by name, that read where there is no memory; it is noticed when somebody waits.
        self.failing: set[str] = set()
        self._failed = False
        #: Bytes of its memory.
        self.total = 1 << 40
        self._local = threading.local()

    def enter(self) -> None:
        self.refuse_lost()

    def allocate(self, nbytes: int) -> int:
        used = sum(b.nbytes - 512 for b in self.blocks.values())
        if used + nbytes > self.total:
            raise MemoryFullError(self.space, nbytes, self.total - used, self.total)
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
        if self._failed:
            self.note_loss("ILLEGAL_ADDRESS")
        self.refuse_lost()

    def start(self, name: str) -> None:
        """Note that a kernel is started."""
        self.started.append(name)
        self._failed |= name in self.failing

    @contextmanager
    def capturing(self, stream: Any):
        made: list[Any] = []
        self._local.recorded = []
        yield made
        made.append(self.recorded)
        self._local.recorded = None

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

    @property
    def recorded(self) -> list | None:
        """What this thread has captured so far; None: it does not."""
        return getattr(self._local, "recorded", None)

    def do(self, work: Any) -> None:
        """Do something now, or when the graph that is being captured is replayed."""
        if self.recorded is None:
            work()
        else:
            self.recorded.append(work)


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
        if isinstance(self.code, DeclaredCode):
            self._run(self.code.function, self._declared(self.code, addresses))
            return
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
        self._run(function, arguments)

    def _declared(self, code: DeclaredCode, addresses: list[int]) -> dict[str, Any]:
        """The arguments of a user's kernel, as its machine code would find them."""
        launch, elements = self.launch, dict(code.elements)
        constants = {n: v for n, (_, v) in launch.constants}
        cells = [*addresses, *zip(launch.params, launch.hints, strict=True)]
        order = iter(launch.order)

        def given(element: str | None) -> Any:
            cell = cells[next(order)]
            if not isinstance(cell, tuple):
                assert element is not None
                return Memory(cell, (1,), (1,), element)
            number, hint = cell
            assert not hint.endswith(":16") or number % 16 == 0, "a hint is wrong"
            if hint.startswith("*"):
                return Memory(number, (1,), (1,), "uint8")
            return struct.unpack("<f", struct.pack("<i", number))[0] if hint == "fp32" else number

        finish = code.finish
        arguments: dict[str, Any] = {}
        for name in code.function.arg_names:
            if finish is not None and name == "epilogue":
                arguments[name] = function_of(finish)
            elif finish is not None and name == "extras" and finish.elements:
                parts = [*finish.elements, *[None] * finish.numbers]
                arguments[name] = tuple(given(e) for e in parts)
            else:
                arguments[name] = constants[name] if name in constants else given(elements.get(name))
        assert next(order, None) is None, "an argument is left over"
        return arguments

    def _run(self, function: Any, arguments: dict[str, Any]) -> None:
        self.gpu.start(self.code.symbol)
        with _INTERPRETER:
            interpret(function, arguments, self.launch.grid, self.code.symbol)


def install(patch: Any = setattr, count: int = 1) -> EmulatedDevice:
    """Have the backend meet emulated GPUs; the first of them is returned, :data:`DEVICES` has all."""
    DEVICES[:] = [EmulatedDevice(k) for k in range(count)]
    patch(driver, "_device", _numbered)
    patch(driver, "ordinal_of", _owner)
    patch(program, "_Kernel", EmulatedKernel)
    from accord.backends.cuda import CudaBackend

    patch(CudaBackend, "prepare", lambda self, kernels: None)
    patch(CudaBackend, "lacking", lambda self: None)
    patch(CudaBackend, "require", lambda self: driver.device(self.ordinal) and None)
    return DEVICES[0]


DEVICES: list[EmulatedDevice] = []


def _owner(address: int) -> int:
    for gpu in DEVICES:
        if any(b.ctypes.data <= address < b.ctypes.data + b.nbytes for b in gpu.blocks.values()):
            return gpu.ordinal
    return 0


def _numbered(ordinal: int) -> EmulatedDevice:
    if ordinal >= len(DEVICES):
        raise driver.no_such_device(ordinal, len(DEVICES))
    return DEVICES[ordinal]
