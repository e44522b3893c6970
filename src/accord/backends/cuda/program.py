"""Consecutive phases on a GPU: started one by one the first time, then captured as a graph and replayed.

Addresses of operands are read from the caller's tables. Copies between the memories are started where they stand; what
is between two of them is one graph for each set of addresses. A run ends when what it copied to the host is there.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from accord.backends.cuda.code import Binary, CudaLaunch, KernelText, TensorMap, Variant, binary_of
from accord.backends.cuda.driver import MAP_BYTES, Device, argument_array
from accord.backends.protocol import Array, Launch, Phase, Program
from accord.errors import CompileError, ExecutionError
from accord.expr.lang import bits
from accord.record import record

__all__ = ["CudaProgram", "TransferCode"]

#: Graphs that one part of a program keeps, by addresses of its operands.
_GRAPHS: Final = 4
#: Pointers that Triton adds to a kernel at most: to memory for descriptors, and one that is null.
_SCRATCH: Final = 2
#: Bytes from one refusal to the next.
_REFUSAL: Final = 16
#: Runs with the same addresses before they become a graph.
_REPEATS: Final = 2
_NOTHING: Final = range(0)


@record
class TransferCode:
    """Copies its first parameter's number of bytes from its first operand to its second.

    Attributes:
        inwards: From the host to the device.
    """

    inwards: bool


class _Kernel:
    """A launch whose arguments have fixed places in memory, into which addresses are written."""

    def __init__(self, gpu: Device, code: KernelText, launch: CudaLaunch, table: Array, refusal: int) -> None:
        self._gpu = gpu
        self._code = code
        self._launch = launch
        self._table = table
        self._pointers = len(table)
        given = [n for n, hint in zip(launch.params, launch.hints, strict=True) if hint != "1"]
        self._shifts = np.array(launch.shifts or [0] * self._pointers, np.int64)
        self._functions: dict[bool, Any] = {}
        walks = [n for m in launch.maps for n in (0, *m.shape, *m.strides)]
        rest = [*([refusal] if code.refuses else []), *walks, *given]
        self._count = self._pointers + len(rest)
        order = (*(launch.order or range(self._count)), *range(self._count, self._count + _SCRATCH))
        #: Memory of Triton's own, for this launch alone: several may run at once.
        self._scratch = 0
        self._values, addresses = argument_array(self._count + _SCRATCH, order)
        for k, n in enumerate(rest):
            self._values[self._pointers + k] = int(n)  # type: ignore[call-overload]
        self._maps = _Maps(gpu, launch.maps, addresses, self._pointers + code.refuses)
        self._addresses = addresses
        self._parameters = ctypes.addressof(addresses)
        self._cells = np.ctypeslib.as_array(self._values)[: self._pointers]

    def start(self, stream: Any) -> None:
        """Start it on the operands that the table has now."""
        np.add(self._table, self._shifts, out=self._cells)
        aligned = not int(np.bitwise_or.reduce(self._cells, initial=0)) & 15
        function = self._functions.get(aligned)
        if function is None:
            binary = binary_of(Variant.of(self._code, self._launch, aligned=aligned), self._gpu.architecture)
            function = self._functions[aligned] = self._loaded(binary)
            self._maps.boxes = binary.maps
        if self._launch.maps:
            self._maps.write(self._cells)
        self._gpu.launch(function, self._launch.grid, self._parameters, stream)

    def __del__(self) -> None:
        if self._scratch:
            self._gpu.free(self._scratch)

    def _loaded(self, binary: Binary) -> Any:
        if binary.scratch > _SCRATCH:
            raise CompileError(f"kernel '{binary.name}' has {binary.scratch} parameters of Triton's own")
        if binary.scratch_bytes and not self._scratch:
            self._scratch = self._gpu.allocate(binary.scratch_bytes * self._launch.tasks * binary.cluster)
            self._values[self._count] = self._scratch
        block = self._launch.block if self._launch.block[0] else (binary.threads, 1, 1)
        shared = binary.shared + self._launch.dynamic
        return self._gpu.function(binary.cubin, binary.name, block, shared, binary.cluster)


class _Maps:
    """Descriptions of operands for the bulk copy engine, in the host's memory; a launch copies them.

    Args:
        gpu: The device.
        maps: What is described.
        addresses: Of a launch's arguments; those of the descriptions are written.
        first: Number of the argument that is the first description; shape and strides follow each.
    """

    def __init__(self, gpu: Device, maps: Sequence[TensorMap], addresses: Any, first: int) -> None:
        self._gpu, self._maps = gpu, maps
        self._memory = (ctypes.c_byte * (MAP_BYTES * (len(maps) + 1)))()
        start = -(-ctypes.addressof(self._memory) // MAP_BYTES) * MAP_BYTES
        self._places = [start + MAP_BYTES * i for i in range(len(maps))]
        #: What each was written for.
        self._written = [0] * len(maps)
        self.boxes: tuple[tuple[int, tuple[int, ...]], ...] = ()
        for m, place in zip(maps, self._places, strict=True):
            addresses[first] = place
            first += 1 + 2 * len(m.shape)

    def write(self, operands: Array) -> None:
        """Describe the operands at these addresses.

        Raises:
            ExecutionError: one of them is no multiple of 16.
        """
        for i, (m, (swizzle, box)) in enumerate(zip(self._maps, self.boxes, strict=True)):
            item = bits(m.dtype) // 8
            address = int(operands[m.operand]) + m.offset * item
            if address % 16:
                raise ExecutionError(
                    f"operand {m.operand} of a matrix product lies at address {address:#x}",
                    expected="a multiple of 16 bytes",
                    remedy="Bind memory that was allocated whole, or a part that begins at a multiple of 16 bytes.",
                )
            if address != self._written[i]:
                strides = [s * item for s in m.strides[:-1]]
                self._gpu.write_map(self._places[i], address, m.dtype, m.shape, strides, box, swizzle)
                self._written[i] = address


class Words:
    """Words of the host's memory that kernels write.

    Attributes:
        address: Of the first.
        values: All of them.
    """

    def __init__(self, gpu: Device, count: int) -> None:
        self._gpu = gpu
        self.address = gpu.pinned(count * _REFUSAL) if count else 0
        memory = (
            (ctypes.c_int32 * (count * _REFUSAL // 4)).from_address(self.address) if count else (ctypes.c_int32 * 0)()
        )
        self.values = np.ctypeslib.as_array(memory)[:: _REFUSAL // 4]
        self.values[:] = 0

    def __del__(self) -> None:
        if self.address:
            self._gpu.free_pinned(self.address)


class _Copy:
    """A copy between the memories."""

    def __init__(self, gpu: Device, code: TransferCode, launch: Launch, table: Array) -> None:
        self._copy = gpu.to_device if code.inwards else gpu.to_host
        self.inwards = code.inwards
        self._nbytes = int(launch.params[0])  # type: ignore[call-overload]
        self._table = table

    def start(self, stream: Any) -> None:
        """Start it."""
        source, target = self._table.tolist()
        if source == target:  # the caller's memory
            return
        self._copy(target, source, self._nbytes, stream)


class _Part:
    """Kernels without a copy among them.

    A user's kernel is waited for when it first starts, so that one that fails for these sizes is known by name.
    """

    def __init__(self, program: CudaProgram, first: int, kernels: Sequence[_Kernel], tables: Sequence[Array]) -> None:
        self._program = weakref.proxy(program)
        self._gpu = program.gpu
        self._first = first
        self._kernels = kernels
        #: The addresses of all operands.
        self._table = _joined(tables)
        self._capturable = len(kernels) > 1 and not _blocking()
        #: Kernels that are waited for.
        self._watched = {k for k in range(len(kernels)) if _blocking() or program.is_foreign(first + k)}
        #: The addresses of the last run, the runs with them, and their graph.
        self._seen = b""
        self._times = 0
        self._graph: Any = None
        self._graphs: OrderedDict[bytes, Any] = OrderedDict()

    def start(self, stream: Any) -> None:
        """Start all, as a graph if they were started with these addresses before."""
        key = self._table.tobytes()
        if key != self._seen:  # comparing takes less than hashing
            self._seen = key
            self._times = 0
            self._graph = self._graphs.get(key)
        if self._graph is None:
            self._times += 1
            if self._times <= _REPEATS or not self._capturable:
                self._start_each(stream)
                return
            self._graph = self._captured(key, stream)
        self._gpu.replay(self._graph, stream)

    def _start_each(self, stream: Any) -> None:
        if self._watched:
            self._start_watched(stream)
            return
        for kernel in self._kernels:
            kernel.start(stream)

    def _start_watched(self, stream: Any) -> None:
        for k, kernel in enumerate(self._kernels):
            if k in self._watched:
                self._gpu.wait(stream)
                self._program.started = self._program.all[self._first + k : self._first + k + 1]
            kernel.start(stream)
            if k in self._watched:
                self._gpu.wait(stream)
                self._program.started = self._program.all[self._first + k + 1 :]
        if not _blocking():
            self._watched.clear()

    def _captured(self, key: bytes, stream: Any) -> Any:
        with self._gpu.capturing(stream) as made:
            self._start_each(stream)
        self._graphs[key] = made[0]
        if len(self._graphs) > _GRAPHS:
            self._gpu.forget(self._graphs.popitem(last=False)[1])
        return made[0]

    def __del__(self) -> None:
        for graph in self._graphs.values():
            self._gpu.forget(graph)


@functools.cache
def _blocking() -> bool:
    """Whether each kernel is waited for, so that one that fails is known by name."""
    return os.environ.get("ACCORD_CUDA_BLOCKING", "0") not in ("", "0")


def _joined(tables: Sequence[Array]) -> Array:
    """The addresses of several phases, which lie one after the other, as one array on the same memory."""
    sizes = [len(t) for t in tables]
    starts = [t.ctypes.data for t in tables]
    assert starts == list(itertools.accumulate((8 * n for n in sizes[:-1]), initial=starts[0]))
    joined: Array = np.lib.stride_tricks.as_strided(tables[0], (sum(sizes),), (8,))
    return joined


class CudaProgram(Program):
    """See the module's text.

    Attributes:
        gpu: Where it runs.
        all: Numbers of the phases.
        started: Those that may be running; none between runs.
    """

    def __init__(self, gpu: Device, launches: Sequence[tuple[Phase, Launch]], operands: Sequence[Array]) -> None:
        self.gpu = gpu
        self.started = _NOTHING
        self.all = range(len(launches))
        self._codes = [phase.code for phase, _ in launches]
        gpu.enter()
        gpu.watch(self)
        self._stream = gpu.stream()
        self._singles: list[_Kernel | _Copy] = []
        self._parts: list[_Part | _Copy] = []
        waiting: list[tuple[_Kernel, Array]] = []
        self._checked = [k for k, (p, _) in enumerate(launches) if isinstance(p.code, KernelText) and p.code.refuses]
        self._refusals = Words(gpu, len(launches) if self._checked else 0)
        for number, ((phase, launch), table) in enumerate(zip(launches, operands, strict=True)):
            if isinstance(phase.code, TransferCode):
                self._close(waiting)
                copy = _Copy(gpu, phase.code, launch, table)
                self._singles.append(copy)
                self._parts.append(copy)
                continue
            assert isinstance(phase.code, KernelText)
            assert isinstance(launch, CudaLaunch)
            kernel = _Kernel(gpu, phase.code, launch, table, self._refusals.address + number * _REFUSAL)
            if not phase.code.capturable:
                self._close(waiting)
            self._singles.append(kernel)
            waiting.append((kernel, table))
            if not phase.code.capturable:
                self._close(waiting)
        self._close(waiting)

    def _close(self, waiting: list[tuple[_Kernel, Array]]) -> None:
        if waiting:
            first = len(self._singles) - len(waiting)
            self._parts.append(_Part(self, first, [k for k, _ in waiting], [t for _, t in waiting]))
            waiting.clear()

    def is_foreign(self, number: int) -> bool:
        """Whether a phase is a user's kernel."""
        code = self._codes[number]
        return isinstance(code, KernelText) and code.foreign

    def suspects(self) -> tuple[list[str], list[str]]:
        """What may be running: users' kernels, then others."""
        kernels = [k for k in self.started if isinstance(self._codes[k], KernelText)]
        own = [self.name_of(k) for k in kernels if self.is_foreign(k)]
        return own, [self.name_of(k) for k in kernels if not self.is_foreign(k)]

    def run(self) -> int:
        """Start all phases; the number of the first that refused its data, else -1.

        What is copied to the host is there when it returns.
        """
        self.gpu.enter()
        self.started = self.all
        try:
            for part in self._parts:
                part.start(self._stream)
            self.gpu.wait(self._stream)
        finally:
            self.started = _NOTHING
        return self._refused() if self._checked else -1

    def _refused(self) -> int:
        words = self._refusals.values
        for k in self._checked:
            if words[k]:
                words[:] = 0
                self.refusal = 1
                return k
        return -1

    def run_timed(self, seconds: Array) -> int:
        """As :meth:`run`, one by one, with an event between any two.

        Args:
            seconds: Receives one float64 for each phase.
        """
        gpu = self.gpu
        gpu.enter()
        events = [gpu.event() for _ in range(len(self._singles) + 1)]
        self.started = self.all
        try:
            gpu.record(events[0], self._stream)
            for single, event in zip(self._singles, events[1:], strict=True):
                single.start(self._stream)
                gpu.record(event, self._stream)
            gpu.wait(self._stream)
        finally:
            self.started = _NOTHING
        seconds[:] = [gpu.seconds(a, b) for a, b in itertools.pairwise(events)]
        return self._refused() if self._checked else -1
