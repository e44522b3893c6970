"""Consecutive phases on a GPU: started one by one the first time, then captured as a graph and replayed.

Addresses of operands are read from the caller's tables; there is one graph for each set of addresses that the device
sees. A large copy to the device divides the phases in two parts: what is in front of it runs while it is staged.
A run ends when what it copied to the host is there, for which it waits once.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from accord.backends.cuda.code import Binary, CudaLaunch, KernelText, TensorMap, Variant, binary_of
from accord.backends.cuda.driver import MAP_BYTES, Device, argument_array
from accord.backends.cuda.lanes import Events, Lanes, borrowed
from accord.backends.cuda.parts import Copy, Entry, Item, Kernel, Part, TransferCode
from accord.backends.protocol import Array, Caller, Launch, Launches, Pending, Program, Turn, Turns
from accord.errors import CompileError, ExecutionError
from accord.expr.lang import bits

__all__ = ["CudaProgram", "TransferCode", "item_of"]

#: Pointers that Triton adds to a kernel at most: to memory for descriptors, and one that is null.
_SCRATCH: Final = 2
#: Bytes from one refusal to the next.
_REFUSAL: Final = 16
_NOTHING: Final = range(0)


class _Kernel(Kernel):
    """A launch whose arguments have fixed places in memory, into which addresses are written."""

    def __init__(self, gpu: Device, code: KernelText, launch: CudaLaunch, table: Array, refusal: int) -> None:
        self._gpu = gpu
        self._code = code
        self._launch = launch
        self._table = table
        self._pointers = len(table)
        given = [n for n, hint in zip(launch.params, launch.hints, strict=True) if hint != "1"]
        self._shifts = np.array(launch.shifts or [0] * self._pointers, np.int64)
        self._functions: dict[bool, tuple[Any, bool]] = {}
        walks = [n for m in launch.maps for n in (0, *m.shape, *m.strides)]
        #: Words that are 0 between launches, of this launch alone.
        self._counters = _zeros(gpu, launch.counters) if code.counts else 0
        rest = [*([refusal] if code.refuses else []), *([self._counters] if code.counts else []), *walks, *given]
        self._count = self._pointers + len(rest)
        order = (*(launch.order or range(self._count)), *range(self._count, self._count + _SCRATCH))
        #: Memory of Triton's own, for this launch alone: several may run at once.
        self._scratch = 0
        self._values, addresses = argument_array(self._count + _SCRATCH, order)
        for k, n in enumerate(rest):
            self._values[self._pointers + k] = int(n)  # type: ignore[call-overload]
        self._maps = _Maps(gpu, launch.maps, addresses, self._pointers + code.refuses + code.counts)
        self._addresses = addresses
        self._parameters = ctypes.addressof(addresses)
        self._cells = np.ctypeslib.as_array(self._values)[: self._pointers]

    def start(self, stream: int, *, early: bool = False) -> None:
        """See :class:`~accord.backends.cuda.parts.Kernel`; it is started on the operands that the table has now."""
        np.add(self._table, self._shifts, out=self._cells)
        aligned = not int(np.bitwise_or.reduce(self._cells, initial=0)) & 15
        found = self._functions.get(aligned)
        if found is None:
            binary = binary_of(Variant.of(self._code, self._launch, aligned=aligned), self._gpu.architecture)
            waits = binary.waits and not self._code.foreign  # what a user's kernel does before it waits, nobody knows
            found = self._functions[aligned] = self._loaded(binary), waits
            self._maps.boxes = binary.maps
        function, waits = found
        if self._launch.maps:
            self._maps.write(self._cells)
        self._gpu.launch(function, self._launch.grid, self._parameters, stream, early=early and waits)

    def __del__(self) -> None:
        for address in (self._scratch, self._counters):
            if address:
                self._gpu.free(address)

    def _loaded(self, binary: Binary) -> Any:
        if binary.scratch > _SCRATCH:
            raise CompileError(f"kernel '{binary.name}' has {binary.scratch} parameters of Triton's own")
        if binary.scratch_bytes and not self._scratch:
            self._scratch = self._gpu.allocate(binary.scratch_bytes * self._launch.tasks * binary.cluster)
            self._values[self._count] = self._scratch
        block = self._launch.block if self._launch.block[0] else (binary.threads, 1, 1)
        shared = binary.shared + self._launch.dynamic
        return self._gpu.function(binary.cubin, binary.name, block, shared, binary.cluster)


def _zeros(gpu: Device, count: int) -> int:
    """The address of new words that are 0."""
    words = np.zeros(max(count, 1), np.int32)
    address = gpu.allocate(words.nbytes)
    with borrowed(gpu) as lanes:
        gpu.to_device(address, words.ctypes.data, words.nbytes, lanes.origin)
        gpu.wait(lanes.origin)
    return address


def item_of(gpu: Device, code: KernelText | None, launch: Launch, table: Array, refusal: int) -> Item:
    """What a launch starts.

    Args:
        gpu: The device.
        code: The phase's text; None if a library has the kernel.
        launch: How it is started.
        table: Addresses of its operands.
        refusal: Where it writes that it refuses its data.

    Raises:
        ExecutionError: it is a library's, which cannot be used.
    """
    if isinstance(launch, CudaLaunch):
        text = launch.text or code  # a way that was measured may have another text
        assert text is not None
        return _Kernel(gpu, text, launch, table, refusal)
    from accord.backends.cuda.cublas import ProductCall
    from accord.backends.cuda.library_product import ProductLaunch

    assert isinstance(launch, ProductLaunch)
    return ProductCall(gpu, launch, table)


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
                self._gpu.write_map(self._places[i], address, m.dtype, m.shape, strides, box, swizzle, m.steps)
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


class _Unfinished(Pending):
    """What is on a stream now.

    Attributes:
        event: Happens when it is over.
    """

    def __init__(self, gpu: Device, stream: int) -> None:
        self._gpu = gpu
        self._own = Events(gpu)
        self.event = self._own.new()
        gpu.record(self.event, stream)

    def wait(self) -> None:
        """See :class:`~accord.backends.protocol.Pending`."""
        self._gpu.enter()
        self._gpu.wait_event(self.event)


class _Stage:
    """A part of a program, or a large copy to the device, among the others; they are started in order.

    Attributes:
        part: What it starts.
        stream: Where: parts begin and end on stream 0.
        after: Stages on other streams that it waits for; -1: what came before the run.
        event: What others wait for, if any do.
    """

    def __init__(self, part: Part | Copy, stream: int) -> None:
        self.part = part
        self.stream = stream
        self.after: list[int] = []
        self.event = 0


class CudaProgram(Program):
    """See the module's text.

    Args:
        gpu: The device.
        launches: Phases and how they start.
        operands: Tables of addresses.
        turns: Streams and what waits for what; empty: all on one stream.

    Attributes:
        gpu: Where it runs.
        all: Numbers of the phases.
        started: Those that may be running.
    """

    def __init__(self, gpu: Device, launches: Launches, operands: Sequence[Array], turns: Turns = ()) -> None:
        self.gpu = gpu
        self.started = _NOTHING
        self.all = range(len(launches))
        self._codes = [phase.code for phase, _ in launches]
        gpu.enter()
        gpu.watch(self)
        turns = turns or [Turn()] * len(launches)
        self._checked = [k for k, (p, _) in enumerate(launches) if isinstance(p.code, KernelText) and p.code.refuses]
        self._refusals = Words(gpu, len(launches) if self._checked else 0)
        self._entries: list[Entry] = []
        for number, ((phase, launch), table) in enumerate(zip(launches, operands, strict=True)):
            item: Item
            if isinstance(phase.code, TransferCode):
                item = Copy(gpu, phase.code, launch, table)
            else:
                assert isinstance(phase.code, KernelText)
                item = item_of(gpu, phase.code, launch, table, self._refusals.address + number * _REFUSAL)
            self._entries.append(Entry(number, item, table, turns[number]))
        self._copies = [e.item for e in self._entries if isinstance(e.item, Copy)]
        self._events = Events(gpu)
        self._large = [c for c in self._copies if c.is_large]
        self._stages = self._in_stages(self._large)
        #: For callers whose memory leaves no large copy to do.
        self._light: list[_Stage] = []
        #: Parts that the last run has started.
        self._parts: list[Part] = []
        self._begin = self._events.new() if any(-1 in s.after for s in self._stages) else 0

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
        gate = self.gpu.gate
        return self._run() if gate is None else gate.run(self._run)

    def _run(self) -> int:
        self.started = self.all
        try:
            with borrowed(self.gpu) as lanes:
                self._start(lanes.origin, lanes)
                self.gpu.wait(lanes.origin)
        finally:
            self.started = _NOTHING
        return self._finished()

    def run_for(self, caller: Caller) -> int:
        """As :meth:`run`; it returns at once where the caller's stream is given and the host needs nothing of it."""
        gate = self.gpu.gate
        return self._run_for(caller) if gate is None else gate.run(functools.partial(self._run_for, caller))

    def _run_for(self, caller: Caller) -> int:
        gpu = self.gpu
        self.started = self.all
        with borrowed(gpu) as lanes:
            origin = lanes.origin if caller.stream is None else caller.stream
            for stream in caller.arrivals:
                lanes.arrive(origin, stream)
            self._take_over(caller.before, origin)
            caller.before = None
            self._start(origin, lanes)
            if caller.stream is None:
                gpu.wait(origin)
            else:
                pending = caller.pending = _Unfinished(gpu, origin)
                if not self._checked and all(c.inwards or c.is_idle for c in self._copies):
                    return -1
                pending.wait()
                caller.pending = None
        self.started = _NOTHING
        return self._finished()

    def _take_over(self, before: Pending | None, origin: int) -> None:
        """See that what used the same memory before is over when this program's phases, or the host, use it."""
        if before is None:
            return
        if isinstance(before, _Unfinished) and all(c.is_idle for c in self._copies if c.inwards):
            self.gpu.follow(origin, before.event)
        else:
            before.wait()

    def _start(self, origin: int, lanes: Lanes) -> None:
        gpu, stages = self.gpu, self._stages
        if self._large and all(c.is_idle for c in self._large):
            self._light = stages = self._light or self._in_stages(())
        elif self._begin:
            gpu.record(self._begin, origin)
        self._parts = [s.part for s in stages if isinstance(s.part, Part)]
        for stage in stages:
            stream = lanes.side(stage.stream) if stage.stream else origin
            for a in stage.after:
                gpu.follow(stream, self._begin if a < 0 else stages[a].event)
            if isinstance(stage.part, Copy):
                stage.part.start_in_pieces(stream)
            else:
                stage.part.start(stream, lanes)
            if stage.event:
                gpu.record(stage.event, stream)

    def _finished(self) -> int:
        """Bring what was copied to the host to where it belongs, and see whether data was refused."""
        for part in self._parts:
            part.finish()
        return self._refused()

    def _refused(self) -> int:
        if not self._checked:
            return -1
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
        self.started = self.all
        try:
            with borrowed(gpu) as lanes:
                events = [gpu.event(timed=True) for _ in range(len(self._entries) + 1)]
                gpu.record(events[0], lanes.origin)
                for entry, event in zip(self._entries, events[1:], strict=True):
                    if isinstance(entry.item, Copy) and entry.item.inwards:
                        entry.item.stage()
                    entry.item.start(lanes.origin)
                    gpu.record(event, lanes.origin)
                gpu.wait(lanes.origin)
        finally:
            self.started = _NOTHING
        seconds[:] = [gpu.seconds(a, b) for a, b in itertools.pairwise(events)]
        for event in events:
            gpu.forget_event(event)
        for copy in self._copies:
            if not copy.inwards:
                copy.finish()
        return self._refused()

    def _in_stages(self, large: Sequence[Copy]) -> list[_Stage]:
        """Entries in parts, ``large`` copies and what cannot be captured apart; and what waits for what among them."""
        groups: list[list[Entry]] = []
        apart = True
        for e in self._entries:
            before, apart = apart, e.item in large or not self._is_capturable(e)
            if apart or before:
                groups.append([])
            groups[-1].append(e)
        stages = []
        for group in groups:
            item = group[0].item
            if isinstance(item, Copy) and item in large:
                stages.append(_Stage(item, group[0].turn.stream))
            else:
                stages.append(_Stage(Part(self, group, capturable=self._is_capturable(group[0])), 0))
        place = {e.number: k for k, group in enumerate(groups) for e in group}
        used: dict[int, set[int]] = {}  # stages by stream of their entries
        met: set[int] = set()  # stages on other streams that stream 0 has waited for
        for k, (stage, group) in enumerate(zip(stages, groups, strict=True)):
            needed = {place[a] for e in group for a in e.turn.after}
            needed = needed.union(*(used.get(e.turn.stream, ()) for e in group)) - {k}
            if stage.stream:
                stage.after = [max((n for n in needed if not stages[n].stream), default=-1)]
                stage.after += sorted(n for n in needed if stages[n].stream not in (0, stage.stream))
            else:
                stage.after = sorted(n for n in needed if stages[n].stream and n not in met)
                met.update(stage.after)
            for e in group:
                used.setdefault(e.turn.stream, set()).add(k)
        for k in {a for s in stages for a in s.after if a >= 0}:
            stages[k].event = self._events.new()
        return stages

    def _is_capturable(self, entry: Entry) -> bool:
        code = self._codes[entry.number]
        return not isinstance(code, KernelText) or code.capturable
