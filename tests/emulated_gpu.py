"""A GPU that is this machine: its memory is the host's, kernels run in Triton's interpreter, streams in any order.

The process has to be started with ``TRITON_INTERPRET=1``. Everything but the driver's own calls is the backend's code.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import numpy as np

from accord.backends.cuda import cublas, driver, program
from accord.backends.cuda.choices import BoundLaunch, Choice
from accord.backends.cuda.code import CudaLaunch, KernelText, function_of
from accord.backends.cuda.declared import DeclaredCode
from accord.backends.cuda.loss import Losable
from accord.backends.cuda.parts import Kernel
from accord.backends.memory import MemoryFullError
from accord.kernels.interpreter import interpret
from accord.kernels.launch import Memory
from dependence import waits

NAMES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "bool": "int8",
    **{f"{s[0]}{n}": f"{s}{n}" for s in ("int", "uint") for n in (8, 16, 32, 64)},
}  # fmt: skip


#: The interpreter changes Triton's language for the time of a kernel.
_INTERPRETER = threading.Lock()


#: The device that was made current in this thread.
ENTERED = threading.local()


class Operation:
    """Something on a stream.

    Attributes:
        number: How many were issued before it.
        name: For people.
        work: What it does.
        after: Operations that must have ended before it starts: by the order on its stream, and by events.
        nbytes: Of a copy; 0 for others.
        done: It has ended.
    """

    def __init__(
        self, number: int, name: str, work: Callable[[], None], after: frozenset[Operation], nbytes: int = 0
    ) -> None:
        self.number, self.name, self.work, self.after, self.nbytes = number, name, work, after, nbytes
        self.done = False


class _Capture:
    """What is being captured: operations without a device, and the last ones on each stream that takes part."""

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.operations: list[Operation] = []
        self.tails: dict[int, frozenset[Operation]] = {origin: frozenset()}


class EmulatedDevice(Losable):
    """See the module's text.

    Nothing that is put on a stream happens at once. While the host waits, one operation after the other is done, in any
    order that streams and events allow: what lacks an event comes too early in one of them.

    Attributes:
        choose: Which of the operations that may start does; the one issued first by default.
        issued: Operations that were put on streams so far, those of replayed graphs too.
        pending: Those that have not been done.
        started: Names of the kernels that have run.
        replayed: Graphs that were started.
        blocks: Memory that is in use, by address.
        events: Those that exist: what each waits for.
    """

    name, architecture, processors, shared = "emulated", 80, 4, 100 << 10
    cache, gate = 4096, None
    driver_version = 13000

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__(ordinal)
        self.space = f"cuda:{ordinal}"
        self.blocks: dict[int, np.ndarray] = {}
        self.started: list[str] = []
        self.replayed = 0
        self.issued = 0
        self.idle: list[Any] = []
        self.choose: Callable[[list[Operation]], Operation] = lambda ready: min(ready, key=lambda o: o.number)
        self._pinned: set[int] = set()
        #: By address, which allocation it is; and memory that was freed, by size: addresses are used again.
        self._allocated: dict[int, int] = {}
        self._freed: dict[int, list[np.ndarray]] = {}
        self.pending: list[Operation] = []
        self._tails: dict[int, frozenset[Operation]] = {0: frozenset(), 1: frozenset()}
        self.events: dict[int, tuple[frozenset[Operation], _Capture | None]] = {}
        self._captures: dict[int, _Capture] = {}  # by stream
        self._handles = itertools.count(1000)
        self._queue = threading.RLock()
        #: Streams on which a kernel came last, with no event or other stream beside it.
        self._behind: set[int] = set()
        #: Names of the kernels that may start early.
        self.early: list[str] = []
        #: Kernels, by name, that read where there is no memory; it is noticed when somebody waits.
        self.failing: set[str] = set()
        self._failed = False
        #: Bytes of its memory.
        self.total = 1 << 40

    def enter(self) -> None:
        self.refuse_lost()
        ENTERED.device = self

    # memory

    def allocate(self, nbytes: int) -> int:
        used = sum(b.nbytes - 512 for a, b in self.blocks.items() if a not in self._pinned)
        if used + nbytes > self.total:
            raise MemoryFullError(self.space, nbytes, self.total - used, self.total)
        return self._new(nbytes)

    def _new(self, nbytes: int) -> int:
        spare = self._freed.get(nbytes)
        owner = spare.pop() if spare else np.empty(nbytes + 512, np.uint8)
        owner.fill(0x5A)  # what is in it means nothing
        address = owner.ctypes.data + -owner.ctypes.data % 256
        self.blocks[address] = owner
        self._allocated[address] = next(self._handles)
        return address

    def free(self, address: int) -> None:
        with self._queue:
            if self.lost is None:
                self._until(self.pending)
            owner = self.blocks.pop(address)
            self._freed.setdefault(len(owner) - 512, []).append(owner)
            del self._allocated[address]
            self._pinned.discard(address)

    def pinned(self, nbytes: int) -> int:
        address = self._new(nbytes)
        self._pinned.add(address)
        return address

    free_pinned = free

    def _is_pinned(self, address: int) -> bool:
        return any(p <= address < p + self.blocks[p].nbytes for p in self._pinned)

    def to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        if not self._is_pinned(source):
            assert stream not in self._captures, "memory that is not pinned cannot be captured"
            held = ctypes.string_at(source, nbytes)  # it is read before the call returns
            self.put("to_device", lambda: ctypes.memmove(target, held, nbytes), stream, nbytes)
            return
        self.put("to_device", self._copy(target, source, nbytes), stream, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> Callable[[], None]:
        """A copy that may be captured: it is of the memory that is allocated now, as the driver has it."""
        held = {
            a: n for a, n in self._allocated.items() if any(a <= x < a + len(self.blocks[a]) for x in (target, source))
        }

        def copied() -> None:
            assert held.items() <= self._allocated.items(), "a captured copy is of memory that was freed"
            ctypes.memmove(target, source, nbytes)

        return copied

    def move(self, target: int, source: int, width: int, rows: int, steps: tuple[int, int], stream: int) -> None:
        def copied() -> None:
            for k in range(rows):
                ctypes.memmove(target + k * steps[0], source + k * steps[1], width)

        self.put("move", copied, stream, width * rows)

    def to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.put("to_host", self._copy(target, source, nbytes), stream, nbytes)
        if not self._is_pinned(target):
            assert stream not in self._captures, "memory that is not pinned cannot be captured"
            self.wait(stream)  # the call returns when it is there

    # streams and events

    def stream(self, *, first: bool = False) -> int:
        handle = next(self._handles)
        self.add_stream(handle)
        return handle

    def add_stream(self, handle: int) -> None:
        """Have a stream of this number."""
        self._tails[handle] = frozenset()

    def put(self, name: str, work: Callable[[], None], stream: int, nbytes: int = 0) -> None:
        """Put something on a stream, or into the graph that is being captured from it."""
        with self._queue:
            self._behind.discard(stream)
            capture = self._captures.get(stream)
            if capture is not None:
                made = Operation(len(capture.operations), name, work, capture.tails[stream], nbytes)
                capture.operations.append(made)
                capture.tails[stream] = frozenset([made])
            else:
                self._tails[stream] = frozenset([self.issue(name, work, self._tails[stream], nbytes)])

    def issue(
        self, name: str, work: Callable[[], None], after: frozenset[Operation], nbytes: int, node: int = 0
    ) -> Operation:
        """Put something behind others.

        Args:
            name: For people.
            work: What it does.
            after: The others.
            nbytes: Of a copy.
            node: Its number in a graph, from 1 on.
        """
        made = Operation(self.issued, name, work, after, nbytes)
        self.issued += 1
        self.pending.append(made)
        return made

    def put_kernel(self, name: str, work: Callable[[], None], stream: int, *, early: bool) -> None:
        """Put a kernel on a stream; ``early``: it may start before the kernel in front of it is done."""
        with self._queue:
            if early:
                capture = self._captures.get(stream)
                tails = (self._tails if capture is None else capture.tails)[stream]
                assert stream in self._behind and len(tails) == 1, f"{name} starts early behind what is no kernel"
                self.early.append(name)
            self.put(name, work, stream)
            self._behind.add(stream)

    def event(self, *, timed: bool = False) -> int:
        handle = next(self._handles)
        self.events[handle] = frozenset(), None
        return handle

    def forget_event(self, event: int) -> None:
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        with self._queue:
            capture = self._captures.get(stream)
            tails = self._tails if capture is None else capture.tails
            assert event in self.events
            self._behind.discard(stream)
            self.events[event] = tails[stream], capture

    def follow(self, stream: int, event: int) -> None:
        with self._queue:
            self._behind.discard(stream)
            operations, capture = self.events[event]
            own = self._captures.get(stream)
            if capture is None:
                assert own is None, "a stream that is being captured waits for what is not"
                self._tails[stream] |= operations
                return
            assert own is None or own is capture, "two captures meet"
            assert capture in self._captures.values(), "an event of a capture that has ended"
            self._captures[stream] = capture
            capture.tails[stream] = capture.tails.get(stream, frozenset()) | operations

    def wait(self, stream: int) -> None:
        with self._queue:
            assert stream not in self._captures
            self._until(self._tails[stream])
        self._notice()

    def wait_event(self, event: int) -> None:
        with self._queue:
            operations, capture = self.events[event]
            assert capture is None
            self._until(operations)
        self._notice()

    def _notice(self) -> None:
        if self._failed:
            self.note_loss("ILLEGAL_ADDRESS")
        self.refuse_lost()

    def start(self, name: str) -> None:
        """Note that a kernel is started."""
        self.started.append(name)
        self._failed |= name in self.failing

    def _until(self, operations: Iterable[Operation]) -> None:
        """Do what may be done until all of ``operations`` are."""
        wanted = list(operations)
        while not all(o.done for o in wanted):
            ready = [o for o in self.pending if all(a.done for a in o.after)]
            chosen = self.choose(ready)
            self.pending.remove(chosen)
            chosen.done = True
            chosen.work()
            chosen.after = frozenset()

    def seconds(self, start: int, stop: int) -> float:
        return 1e-6

    # graphs

    @contextmanager
    def capturing(self, stream: int):
        made: list[Any] = []
        capture = self._captures[stream] = _Capture(stream)
        self._behind.discard(stream)
        try:
            yield made
        finally:
            for s in capture.tails:
                del self._captures[s]
        joined: set[Operation] = set()
        rest = list(capture.tails[stream])
        while rest:
            found = rest.pop()
            if found not in joined:
                joined.add(found)
                rest += found.after
        assert joined == set(capture.operations), "a stream has not come back to the one that is captured"
        made.append(capture.operations)

    def replay(self, graph: list[Operation], stream: int) -> None:
        with self._queue:
            self.replayed += 1
            self._behind.discard(stream)
            start = self._tails[stream]
            made: dict[Operation, Operation] = {}
            for node, o in enumerate(graph, 1):
                made[o] = self.issue(o.name, o.work, frozenset(made[a] for a in o.after) or start, o.nbytes, node)
            self._tails[stream] = frozenset(made.values()) or start

    def keep(self, graph: Any, drop: Any, key: bytes) -> None:
        pass

    def forget(self, graph: Any) -> None:
        graph.clear()


class EmulatedKernel(Kernel):
    """Stands for :class:`accord.backends.cuda.program._Kernel`."""

    def __init__(
        self, gpu: EmulatedDevice, code: KernelText, launch: CudaLaunch, table: np.ndarray, refusal: int
    ) -> None:
        self.gpu, self.code, self.launch, self.table, self.refusal = gpu, code, launch, table, refusal
        self.waits = not code.foreign and _waits(code)

    def start(self, stream: int, *, early: bool = False) -> None:
        shifts = self.launch.shifts or [0] * len(self.table)
        addresses = [
            *(a + b for a, b in zip(self.table.tolist(), shifts, strict=True)),
            *([self.refusal] if self.code.refuses else []),
        ]
        self.gpu.put_kernel(self.code.symbol, lambda: self._interpreted(addresses), stream, early=early and self.waits)

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


@functools.cache
def _waits(code: KernelText) -> bool:
    return waits(code.text(), code.symbol)


def _no_processes(**options: Any) -> Any:
    raise OSError("nothing is compiled for an emulated GPU")


def install(patch: Any = setattr, count: int = 1) -> EmulatedDevice:
    """Have the backend meet emulated GPUs; the first of them is returned, :data:`DEVICES` has all."""
    DEVICES[:] = [EmulatedDevice(k) for k in range(count)]
    patch(driver, "_device", _numbered)
    patch(driver, "ordinal_of", _owner)
    patch(program, "_Kernel", EmulatedKernel)
    patch(cublas, "_located", lambda major: None)
    patch(cublas, "_LIBRARIES", {})
    from accord.backends.cuda import CudaBackend, tuner

    patch(CudaBackend, "_compile", lambda self, launches: None)
    patch(CudaBackend, "lacking", lambda self: None)
    patch(tuner, "Compilers", _no_processes)
    patch(tuner, "serve_all", lambda *given, **options: None)
    os.environ.setdefault("ACCORD_TUNING", "off")
    patch(CudaBackend, "require", lambda self: driver.device(self.ordinal) and None)
    return DEVICES[0]


DEVICES: list[EmulatedDevice] = []


def choice_of(model: Any) -> Choice:
    """The choice of a model that has one."""
    (found,) = {
        p.launch.choice.key: p.launch.choice
        for s in model.plan.steps
        for p in getattr(s.kernel, "phases", ())
        if isinstance(p.launch, BoundLaunch)
    }.values()
    return found


def _owner(address: int) -> int:
    for gpu in DEVICES:
        if any(b.ctypes.data <= address < b.ctypes.data + b.nbytes for b in gpu.blocks.values()):
            return gpu.ordinal
    return 0


def _numbered(ordinal: int) -> EmulatedDevice:
    if ordinal >= len(DEVICES):
        raise driver.no_such_device(ordinal, len(DEVICES))
    return DEVICES[ordinal]
