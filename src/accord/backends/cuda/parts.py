"""Parts of a program: what is started in one go, on several streams, and captured as a graph when it recurs.

Copies between the memories go through pinned memory of the host, which belongs to the run: its processor copies between
that and the arrays of Python, the device between that and its own memory, while it computes. So the addresses that
the device sees are the same for all arrays of the host, and a copy is part of a graph like a kernel.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakMethod

import numpy as np

from accord.backends.cuda.driver import Device, Graph
from accord.backends.cuda.lanes import Events, Lanes
from accord.backends.protocol import Array, Launch, Turn
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.cuda.program import CudaProgram

__all__ = ["PIECE", "Copy", "Entry", "Item", "Kernel", "Part", "TransferCode"]

#: Graphs that one part of a program keeps, by addresses of its operands.
_GRAPHS: Final = 4
#: Runs with the same addresses before they become a graph.
_REPEATS: Final = 2
#: Bytes from which on a copy to the device is started apart, piece by piece: what is in front of it runs meanwhile.
_LARGE: Final = 1 << 18
#: Bytes of such a piece.
PIECE: Final = 1 << 20

_move = ctypes.CDLL(None).memcpy  # other threads of Python run meanwhile
_move.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_move.restype = ctypes.c_void_p


@record
class TransferCode:
    """Copies its first parameter's number of bytes from its first operand to its second, through its third.

    Attributes:
        inwards: From the host to the device.
    """

    inwards: bool


class Item(Protocol):
    """A kernel, a call of a library, or a copy."""

    def start(self, stream: int) -> None:
        """Start it."""


class Kernel(ABC):
    """A kernel, behind which another one may be started early."""

    @abstractmethod
    def start(self, stream: int, *, early: bool = False) -> None:
        """Start it.

        Args:
            stream: Where.
            early: What is in front of it on the stream is a kernel, and has nothing beside it; so this one may start
                before that is done, if it waits for that by itself.
        """


@record
class Entry:
    """An item of a part.

    Attributes:
        number: Of its phase.
        item: What is started.
        table: Addresses of its operands.
        turn: On which stream, and after what.
    """

    number: int
    item: Item
    table: Array
    turn: Turn


class Copy:
    """A copy between the memories.

    Attributes:
        inwards: To the device.
        is_large: It is started apart, unless it is idle.
    """

    def __init__(self, gpu: Device, code: TransferCode, launch: Launch, table: Array) -> None:
        self._gpu = gpu
        self.inwards = code.inwards
        self._nbytes = int(launch.params[0])  # type: ignore[call-overload]
        self._table = table
        self.is_large = code.inwards and self._nbytes >= _LARGE

    @property
    def is_idle(self) -> bool:
        """Both ends are the same memory, which is the caller's."""
        return int(self._table[0]) == int(self._table[1])

    def stage(self) -> None:
        """Bring the array to the memory from which the device copies it."""
        source, target, staging = self._table.tolist()
        if source != target:
            _move(staging, source, self._nbytes)

    def start(self, stream: int) -> None:
        """Have the device copy."""
        source, target, staging = self._table.tolist()
        if source == target:
            return
        if self.inwards:
            self._gpu.to_device(target, staging, self._nbytes, stream)
        else:
            self._gpu.to_host(staging, source, self._nbytes, stream)

    def start_in_pieces(self, stream: int) -> None:
        """:meth:`stage` and :meth:`start`, where the device copies one piece while the next one is staged."""
        source, target, staging = self._table.tolist()
        if source == target:
            return
        for at in range(0, self._nbytes, PIECE):
            size = min(PIECE, self._nbytes - at)
            _move(staging + at, source + at, size)
            self._gpu.to_device(target + at, staging + at, size, stream)

    def finish(self) -> None:
        """Bring to the array what the device has copied."""
        source, target, staging = self._table.tolist()
        if source != target:
            _move(target, staging, self._nbytes)


class Part:
    """Kernels and copies that are started together.

    It begins with what is on stream 0 and ends there: other streams take part in between. A user's kernel is waited for
    when it first starts, so that one that fails for these sizes is known by name.

    Args:
        program: Whose part it is.
        entries: In order.
        capturable: They can become a graph.
    """

    def __init__(self, program: CudaProgram, entries: Sequence[Entry], *, capturable: bool) -> None:
        self._graphs: OrderedDict[bytes, Graph] = OrderedDict()
        self._program = weakref.proxy(program)
        self._gpu = gpu = program.gpu
        self._entries = entries
        self._capturable = capturable and len(entries) > 1 and not _blocking()
        kernels = [e.number for e in entries if not isinstance(e.item, Copy)]
        #: Numbers of kernels that are waited for.
        self._watched = {k for k in kernels if _blocking() or program.is_foreign(k)}
        inside, own = {e.number for e in entries}, Events(gpu)
        self._own = own
        #: By number of a phase for which others on other streams wait.
        self._events = {a: own.new() for a in sorted({a for e in entries for a in e.turn.after if a in inside})}
        self._ends = {s: own.new() for s in sorted({e.turn.stream for e in entries} - {0})}
        self._begin = own.new() if self._ends else 0
        self._copies = [e.item for e in entries if isinstance(e.item, Copy)]
        #: The addresses of all operands; where those are that are the caller's, and what they are copied from or to.
        self._table = _joined([e.table for e in entries])
        starts = np.cumsum([0, *(len(e.table) for e in entries)])
        ways = [(int(at), e.item.inwards) for at, e in zip(starts, entries, strict=False) if isinstance(e.item, Copy)]
        self._callers = np.array([at + (not inwards) for at, inwards in ways], np.int64)
        self._copied = np.array([at + inwards for at, inwards in ways], np.int64)
        #: All addresses of the last run, in which memory, and the copies that were to be done.
        self._last = b""
        self._memory = 0
        self._inwards: list[Copy] = []
        self._outwards: list[Copy] = []
        #: Addresses that the device saw, the runs with them, and their graph.
        self._seen = b""
        self._times = 0
        self._graph: Graph | None = None

    def start(self, origin: int, lanes: Lanes) -> None:
        """Start all, as a graph if they were started with these addresses before.

        Args:
            origin: The stream on which it begins and ends.
            lanes: Streams for the rest; what is captured is on these alone.
        """
        addresses = self._table.tobytes()
        memory = self._program.memory
        if addresses != self._last or memory != self._memory:  # comparing takes less than hashing
            self._last, self._memory = addresses, memory
            self._look_at(addresses)
        for copy in self._inwards:
            copy.stage()
        graph = self._graph
        if graph is None:
            self._times += 1
            if self._times <= _REPEATS or not self._capturable:
                self._start_each(origin, lanes)
                return
            graph = self._graph = self._captured(lanes)
        graph.used = time.monotonic()
        self._gpu.replay(graph.handle, origin)

    def finish(self) -> None:
        """Bring to the host's arrays what the device has copied."""
        for copy in self._outwards:
            copy.finish()

    def _look_at(self, addresses: bytes) -> None:
        """Find out what there is to do for other addresses than before."""
        key = addresses
        if self._copies:
            todo = [c for c in self._copies if not c.is_idle]
            self._inwards = [c for c in todo if c.inwards]
            self._outwards = [c for c in todo if not c.inwards]
            # of an array in the host's memory the device sees only that it is one
            seen = self._table.copy()
            seen[self._callers] = seen[self._callers] == seen[self._copied]
            # a captured copy is of memory as it was allocated: the driver has more of it than its address
            key = seen.tobytes() + self._memory.to_bytes(8)
        if key != self._seen:
            self._seen = key
            self._times = 0
            self._graph = self._graphs.get(key)

    def _start_each(self, origin: int, lanes: Lanes) -> None:
        gpu = self._gpu
        streams = {0: origin, **{s: lanes.side(s) for s in self._ends}}
        if self._ends:
            gpu.record(self._begin, origin)
        for s in self._ends:
            gpu.follow(streams[s], self._begin)
        behind: set[int] = set()  # streams on which a kernel comes last, with no event between it and what follows
        for e in self._entries:
            stream = streams[e.turn.stream]
            for a in e.turn.after:
                if a in self._events:
                    gpu.follow(stream, self._events[a])
                    behind.discard(stream)
            if e.number in self._watched:
                self._start_watched(e, stream, streams.values())
            elif isinstance(e.item, Kernel):
                e.item.start(stream, early=stream in behind)
                behind.add(stream)
            else:
                e.item.start(stream)
                behind.discard(stream)
            if e.number in self._events:
                gpu.record(self._events[e.number], stream)
                behind.discard(stream)
        if not _blocking():
            self._watched.clear()
        for s, event in self._ends.items():
            gpu.record(event, streams[s])
            gpu.follow(origin, event)

    def _start_watched(self, entry: Entry, stream: int, streams: Iterable[int]) -> None:
        """Start a kernel while nothing else runs, and wait for it."""
        number, program = entry.number, self._program
        for s in streams:
            self._gpu.wait(s)
        program.started = program.all[number : number + 1]
        entry.item.start(stream)
        self._gpu.wait(stream)
        program.started = program.all[number + 1 :]

    def _captured(self, lanes: Lanes) -> Graph:
        with self._gpu.capturing(lanes.origin) as made:
            self._start_each(lanes.origin, lanes)
        key = self._seen
        graph = self._graphs[key] = Graph(self._gpu, made[0], [e.item for e in self._entries])
        if len(self._graphs) > _GRAPHS:
            self._graphs.popitem(last=False)
        self._gpu.keep(graph, WeakMethod(self._drop), key)
        return graph

    def _drop(self, key: bytes) -> None:
        """Do without the graph for these addresses."""
        self._graphs.pop(key, None)
        self._last = self._seen = b""
        self._graph = None


@functools.cache
def _blocking() -> bool:
    """Whether each kernel is waited for, so that one that fails is known by name."""
    return os.environ.get("ACCORD_CUDA_BLOCKING", "0") not in ("", "0")


def _joined(tables: Sequence[Array]) -> Array:
    """The addresses of several phases, which lie one after the other, as one array on the same memory."""
    sizes = [len(t) for t in tables]
    starts = [t.ctypes.data for t in tables]
    assert starts == np.cumsum([starts[0], *(8 * n for n in sizes[:-1])]).tolist()
    joined: Array = np.lib.stride_tricks.as_strided(tables[0], (sum(sizes),), (8,))
    return joined
