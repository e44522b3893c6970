"""What GPUs of this process did, and when: the activity records of CUPTI, NVIDIA's library for profilers.

Kernels of a replayed graph have records of their own, with stream, start and end. The library comes with Triton, with
PyTorch's packages and with the toolkit; one that the process has already is taken before any other, because two do not
go together.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from accord.errors import BackendError

__all__ = ["Activity", "Call", "Copy", "Fill", "Kernel", "Record", "Wait", "read_record", "recording"]

# kinds of records
_COPY, _FILL, _DRIVER, _RUNTIME, _KERNEL, _WAIT = 1, 2, 4, 5, 10, 38
_KINDS: Final = (_COPY, _FILL, _DRIVER, _RUNTIME, _KERNEL, _WAIT)
#: Bytes of a buffer that CUPTI fills; some hundred thousand records.
_BUFFER: Final = 8 << 20
_DIRECTIONS: Final = {
    1: "host to device", 2: "device to host", 3: "host to device", 4: "device to host", 8: "within the device",
    9: "within the host", 10: "between devices",
}  # fmt: skip
_MEMORIES: Final = {1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "device", 7: "managed"}
_WAITS: Final = {1: "event", 2: "stream for event", 3: "stream", 4: "device"}
#: Versions that the driver's names end in.
_SUFFIX: Final = re.compile(r"(_v\d+|_ptsz|_ptds)+$")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that ran. All times are nanoseconds of CUPTI's clock.

    Attributes:
        name: As in the machine code.
        start: When its first block began.
        end: When its last one ended.
        stream: Number of the stream, by context.
        context: Number of the context.
        correlation: The call that started it has the same; all kernels of a graph have that of its launch.
        node: Number of its node, if a graph started it, which grows in the order of capture; else 0.
        grid: Blocks, three axes.
        block: Threads of a block, three axes.
        registers: Of a thread.
        shared: Bytes of shared memory of a block.
        local: Bytes of local memory of a thread.
    """

    name: str
    start: int
    end: int
    stream: int
    context: int
    correlation: int
    node: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared: int
    local: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy.

    Attributes:
        direction: "host to device", "device to host", "within the device", "between devices", "within the host".
        source: "pageable", "pinned", "device" ...
        target: Likewise.
        nbytes: How many.
        start: See :class:`Kernel`.
        end: See :class:`Kernel`.
        stream: See :class:`Kernel`.
        context: See :class:`Kernel`.
        correlation: See :class:`Kernel`.
        node: See :class:`Kernel`.
    """

    direction: str
    source: str
    target: str
    nbytes: int
    start: int
    end: int
    stream: int
    context: int
    correlation: int
    node: int

    @property
    def pageable(self) -> bool:
        """Whether one end is memory of the host that the system may move: the driver copies it twice, and waits."""
        return "pageable" in (self.source, self.target)


@dataclass(frozen=True, slots=True)
class Fill:
    """Memory that was set to a value; the attributes are those of :class:`Copy`."""

    nbytes: int
    start: int
    end: int
    stream: int
    context: int
    correlation: int
    node: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that waits.

    Attributes:
        what: The host for an "event", a "stream" or the whole "device"; or a "stream for event".
        start: See :class:`Kernel`; for a stream when it was asked to.
        end: Likewise.
        stream: The stream that waits, or is waited for.
        correlation: See :class:`Kernel`.
    """

    what: str
    start: int
    end: int
    stream: int
    correlation: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the driver or of the runtime.

    Attributes:
        name: Without the version that it ends in.
        runtime: Of the runtime's interface, which calls the driver's.
        start: See :class:`Kernel`.
        end: See :class:`Kernel`.
        thread: Number of the thread that called.
        correlation: See :class:`Kernel`.
    """

    name: str
    runtime: bool
    start: int
    end: int
    thread: int
    correlation: int


Record: TypeAlias = Kernel | Copy | Fill | Wait | Call


@dataclass(slots=True)
class Activity:
    """What was recorded.

    Attributes:
        records: All, in no order.
        default_streams: Numbers of the streams that work goes to where none is named, as (context, stream).
        lost: Records that found no room.
    """

    records: list[Record] = field(default_factory=list)
    default_streams: set[tuple[int, int]] = field(default_factory=set)
    lost: int = 0
    _now: Callable[[], int] = time.perf_counter_ns

    def now(self) -> int:
        """The time on the clock of the records."""
        return self._now()

    def kernels(self) -> list[Kernel]:
        """Those that ran, in order of their start."""
        return sorted((r for r in self.records if isinstance(r, Kernel)), key=lambda k: k.start)


def read_record(data: bytes, text: Callable[[int], str], call_name: Callable[[bool, int], str]) -> Record | None:
    """A record; None for kinds that are not asked for.

    Newer versions of CUPTI add fields at the end of its structures: those that are read here have had their places
    since version 12.0.

    Args:
        data: Its bytes.
        text: The text at an address.
        call_name: The name of a call, from whether it is the runtime's, and its number.
    """

    def at(layout: str, place: int) -> tuple[Any, ...]:
        return struct.unpack_from(f"<{layout}", data, place)

    (kind,) = at("I", 0)
    if kind == _KERNEL:
        start, end = at("QQ", 16)
        context, stream, *sizes = at("8I", 44)
        static, dynamic, local = at("3I", 76)
        return Kernel(
            name=text(at("Q", 104)[0]),
            start=start,
            end=end,
            stream=stream,
            context=context,
            correlation=at("I", 92)[0],
            node=at("Q", 144)[0],
            grid=(sizes[0], sizes[1], sizes[2]),
            block=(sizes[3], sizes[4], sizes[5]),
            registers=at("H", 6)[0],
            shared=static + dynamic,
            local=local,
        )
    if kind in (_COPY, _FILL):
        nbytes, start, end = at("QQQ", 8)
        context, stream, correlation = at("III", 36)
        node = at("Q", 64)[0]
        if kind == _FILL:
            return Fill(nbytes, start, end, stream, context, correlation, node)
        direction, source, target = at("BBB", 4)
        return Copy(
            direction=_DIRECTIONS.get(direction, "elsewhere"),
            source=_MEMORIES.get(source, "unknown"),
            target=_MEMORIES.get(target, "unknown"),
            nbytes=nbytes,
            start=start,
            end=end,
            stream=stream,
            context=context,
            correlation=correlation,
            node=node,
        )
    if kind == _WAIT:
        (what,), (start, end), (correlation, _, stream) = at("I", 4), at("QQ", 8), at("III", 24)
        return Wait(_WAITS.get(what, "unknown"), start, end, stream, correlation)
    if kind in (_DRIVER, _RUNTIME):
        (number,), (start, end), (_, thread, correlation) = at("I", 4), at("QQ", 8), at("III", 24)
        runtime = kind == _RUNTIME
        return Call(_SUFFIX.sub("", call_name(runtime, number)), runtime, start, end, thread, correlation)
    return None


@contextmanager
def recording() -> Iterator[Activity]:
    """Record what all threads of the process have their GPUs do within; records are there afterwards.

    Raises:
        BackendError: CUPTI is not there, or refuses: another profiler uses it, or a user may not.
    """
    library = _library()
    activity = Activity(_now=library.now)
    with _TURN:
        try:
            library.start(activity)
            yield activity
        finally:
            library.stop()


#: CUPTI has one set of buffers for the process.
_TURN: Final = threading.Lock()


class _Cupti:
    """The library, with its buffers."""

    _REQUESTED: ClassVar = ctypes.CFUNCTYPE(
        None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
    )
    _COMPLETED: ClassVar = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
    )

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._buffers: dict[int, Any] = {}
        self._activity: Activity | None = None
        self._names: dict[tuple[bool, int], str] = {}
        # CUPTI keeps these for good
        self._requested = self._REQUESTED(self._request)
        self._completed = self._COMPLETED(self._complete)

    def start(self, activity: Activity) -> None:
        """Record from now on."""
        self._activity = activity
        self._call("cuptiActivityRegisterCallbacks", self._requested, self._completed)
        for kind in _KINDS:
            self._call("cuptiActivityEnable", kind)

    def stop(self) -> None:
        """No longer; everything is in the activity when it returns."""
        self._note_default_stream()
        for kind in _KINDS:
            self._library.cuptiActivityDisable(kind)
        self._library.cuptiActivityFlushAll(1)
        self._activity = None

    def now(self) -> int:
        """The time on its clock."""
        found = ctypes.c_uint64()
        self._call("cuptiGetTimestamp", ctypes.byref(found))
        return found.value

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            words = ctypes.c_char_p()
            self._library.cuptiGetResultString(status, ctypes.byref(words))
            raise BackendError(
                f"{name} failed: {(words.value or b'').decode() or status}",
                remedy="End other profilers of this process; where the driver keeps profiling to the administrator "
                "(NVreg_RestrictProfilingToAdminUsers), run as root. `accord doctor` says more.",
            )

    def _note_default_stream(self) -> None:
        """The number of the stream that work goes to where none is named, in the context of this thread."""
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:  # no driver: nothing was recorded either
            return
        context, number, stream = ctypes.c_void_p(), ctypes.c_uint32(), ctypes.c_uint32()
        if driver.cuCtxGetCurrent(ctypes.byref(context)) or not context.value or self._activity is None:
            return
        found = self._library.cuptiGetStreamIdEx(context, None, ctypes.c_uint8(0), ctypes.byref(stream))
        if not found and not self._library.cuptiGetContextId(context, ctypes.byref(number)):
            self._activity.default_streams.add((number.value, stream.value))

    # called by CUPTI, from any thread

    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        made = ctypes.create_string_buffer(_BUFFER + 8)
        address = ctypes.addressof(made) + -ctypes.addressof(made) % 8
        self._buffers[address] = made
        buffer[0], size[0], most[0] = address, _BUFFER, 0

    def _complete(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        del size
        if self._activity is not None and valid:
            record = ctypes.c_void_p()
            while not self._library.cuptiActivityGetNextRecord(
                ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
            ):
                assert record.value is not None
                most = min(_LONGEST, buffer + valid - record.value)
                data = ctypes.string_at(record.value, most).ljust(_LONGEST, b"\0")
                found = read_record(data, _text, self._call_name)
                if found is not None:
                    self._activity.records.append(found)
            dropped = ctypes.c_size_t()
            where = ctypes.c_void_p(context)
            if not self._library.cuptiActivityGetNumDroppedRecords(where, stream, ctypes.byref(dropped)):
                self._activity.lost += dropped.value
        self._buffers.pop(buffer, None)

    def _call_name(self, runtime: bool, number: int) -> str:
        key = (runtime, number)
        if key not in self._names:
            words = ctypes.c_char_p()
            self._library.cuptiGetCallbackName(2 if runtime else 1, number, ctypes.byref(words))
            self._names[key] = (words.value or f"call {number}".encode()).decode()
        return self._names[key]


#: No field that is read lies beyond.
_LONGEST: Final = 160


def _text(address: int) -> str:
    return ctypes.string_at(address).decode(errors="replace") if address else ""


@functools.cache
def _library() -> _Cupti:
    for path in _places():
        try:
            return _Cupti(path)
        except OSError:
            continue
    raise BackendError(
        "CUPTI, with which GPUs are profiled, is not there",
        expected="libcupti.so of Triton, of the package nvidia-cuda-cupti, or of the CUDA toolkit",
        remedy="pip install 'accord[cuda]'",
    )


def _places() -> Iterator[str]:
    """Files that may be the library, the best first."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        loaded = (line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines() if "libcupti.so" in line)
        yield from dict.fromkeys(loaded)
    for package, folders in (("nvidia", ("cu13/lib", "cuda_cupti/lib")), ("triton", ("backends/nvidia/lib/cupti",))):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for folder in folders:
                yield from map(str, sorted(Path(place, folder).glob("libcupti.so.*"), reverse=True))
    yield from ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
    yield from map(str, sorted(Path("/usr/local").glob("cuda*/**/libcupti.so.1?"), reverse=True))
