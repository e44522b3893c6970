"""One GPU through the driver's interface (``cuda.bindings``): memory, streams, machine code, graphs.

Nothing of CUDA is imported before a device is asked for. The context is the device's primary one, so that memory of
other libraries in the process can be read. Calls come from any thread: each enters the context first.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import ReferenceType, WeakMethod, WeakValueDictionary

from accord.backends.cuda.handles import Function, Graph
from accord.backends.cuda.loss import Losable
from accord.backends.memory import MemoryFullError
from accord.errors import BackendError, ExecutionError

if TYPE_CHECKING:
    from accord.backends.cuda.tuner import Gate

__all__ = ["Device", "Function", "Graph", "chosen", "count", "device", "ordinal_of"]

#: The oldest driver whose interface is used, as the driver tells it: CUDA 12.4.
OLDEST_DRIVER: Final = 12040
#: Kernels in all graphs of a device: each takes 3.3 KB there (measured on one H200).
_GRAPH_KERNELS: Final = 16384
#: The oldest compute capability that kernels are generated for.
OLDEST: Final = (7, 5)
#: Of a description of a tensor for the bulk copy engine, whose address has to be whole 64 bytes.
MAP_BYTES: Final = 128
_MAPPED: Final = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32"}


@functools.cache
def bindings() -> Any:
    """The module ``cuda.bindings.driver``.

    Raises:
        BackendError: it is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BackendError(
            "device 'cuda' needs the package cuda-bindings", remedy="pip install 'accord[cuda]'"
        ) from error


class _Value(ctypes.Union):
    """``CUlaunchAttributeValue``, of which only these are used."""

    _fields_ = (("flag", ctypes.c_int), ("sizes", ctypes.c_uint * 3), ("room", ctypes.c_uint64 * 8))


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_uint), ("value", _Value))


class _Configuration(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class Device(Losable):
    """A GPU.

    Attributes:
        ordinal: Its number among those that the process sees.
        name: As the driver says.
        architecture: 90 for compute capability 9.0.
        processors: Multiprocessors.
        shared: Bytes of shared memory that a block may use.
        space: The name of its memory.
        driver_version: The driver's, as it tells it: 13000 for CUDA 13.0.
        cache: Bytes of the second-level cache.
        gate: What keeps runs from measurements while there are any.
    """

    gate: Gate | None = None

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        driver = bindings()
        self.space = f"cuda:{ordinal}"
        self._driver = driver
        _start(driver)
        self.driver_version = version = int(self.call("cuDriverGetVersion"))
        if version < OLDEST_DRIVER:
            raise BackendError(
                "the NVIDIA driver is too old",
                expected=f"one for CUDA {_version(OLDEST_DRIVER)} or newer",
                found=f"CUDA {_version(version)}",
                remedy="Update the driver.",
            )
        if ordinal >= count():
            raise no_such_device(ordinal, count())
        handle = self.call("cuDeviceGet", ordinal)
        self.name = self.call("cuDeviceGetName", 96, handle).split(b"\0")[0].decode()
        attribute = driver.CUdevice_attribute

        def of(name: str) -> int:
            return int(self.call("cuDeviceGetAttribute", getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle))

        capability = of("COMPUTE_CAPABILITY_MAJOR"), of("COMPUTE_CAPABILITY_MINOR")
        if capability < OLDEST:
            raise BackendError(
                f"GPU {ordinal} ({self.name}) is too old",
                expected=f"compute capability {OLDEST[0]}.{OLDEST[1]} or newer",
                found=f"{capability[0]}.{capability[1]}",
                remedy="Ask for another GPU (device='cuda:1'), or for device='cpu'.",
            )
        self.architecture = 10 * capability[0] + capability[1]
        self.processors = of("MULTIPROCESSOR_COUNT")
        self.shared = of("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.cache = of("L2_CACHE_SIZE")
        self._context = int(self.call("cuDevicePrimaryCtxRetain", handle))
        # what each run calls goes straight to the driver: the bindings take longer than some of these functions
        self._set_current = self._entry("cuCtxSetCurrent", ctypes.c_void_p)
        self._synchronize = self._entry("cuStreamSynchronize", ctypes.c_void_p)
        self._record_event = self._entry("cuEventRecord", ctypes.c_void_p, ctypes.c_void_p)
        self._wait_for_event = self._entry("cuStreamWaitEvent", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        self._launch_graph = self._entry("cuGraphLaunch", ctypes.c_void_p, ctypes.c_void_p)
        self._launch = self._entry("cuLaunchKernel", ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
        self._launch_with = self._entry("cuLaunchKernelEx", *[ctypes.c_void_p] * 4)
        kinds = driver.CUlaunchAttributeID
        self._cluster = int(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        self._dependent = int(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        self._loading = threading.Lock()
        self._functions: WeakValueDictionary[tuple[bytes, str, tuple[int, int, int], int], Function] = (
            WeakValueDictionary()
        )
        #: Streams that no run uses now.
        self.idle: list[Any] = []
        #: The graphs that there are, and who to tell that one has to go.
        self._graphs: list[tuple[ReferenceType[Graph], WeakMethod[Callable[[bytes], None]], bytes]] = []

    def call(self, name: str, *arguments: Any) -> Any:
        """A function of the driver; its results.

        Raises:
            MemoryError: there is not enough memory on the device.
            ExecutionError: the driver refuses, or what was started before failed.
        """
        status, *results = getattr(self._driver, name)(*arguments)
        if int(status):
            self._raise(status, name)
        return results[0] if len(results) == 1 else results or None

    def _entry(self, name: str, *arguments: Any) -> Callable[..., int]:
        """A function of the driver for :meth:`_checked`."""
        address, _ = self.call("cuGetProcAddress", name.encode(), OLDEST_DRIVER, 0)
        entry: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(int(address))
        return entry

    def _checked(self, status: int, name: str) -> None:
        """See that a function of :meth:`_entry` returned no error; errors as of :meth:`call`."""
        if status:
            self._raise(self._driver.CUresult(status), name)

    def _raise(self, status: Any, name: str) -> None:
        kind = str(getattr(status, "name", status)).removeprefix("CUDA_ERROR_")
        if kind == "OUT_OF_MEMORY":
            raise MemoryError(f"the memory of GPU {self.ordinal} is full")
        self.note_loss(kind)
        self.refuse_lost()
        raise ExecutionError(f"{name} failed: {_text(status)}")

    def release(self, name: str, *arguments: Any) -> None:
        """Give something back from a destructor: never raises, and leaves the thread's current device as it is."""
        if self.lost is not None:
            return
        driver = self._driver
        try:
            if int(driver.cuCtxPushCurrent(self._context)[0]):
                return
            (status, *_) = getattr(driver, name)(*arguments)
            driver.cuCtxPopCurrent()
            if int(status):
                self.note_loss(_text(status))
        except Exception:  # noqa: BLE001  while the interpreter ends, what this needs may be gone, and memory goes anyway
            return

    def enter(self) -> None:
        """Make the device current in this thread.

        Raises:
            ExecutionError: the device was lost before.
        """
        self.refuse_lost()
        self._checked(self._set_current(self._context), "cuCtxSetCurrent")

    # memory

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, aligned to 256 bytes.

        Raises:
            MemoryError: there is not enough.
        """
        self.enter()
        try:
            return int(self.call("cuMemAlloc", max(nbytes, 1)))
        except MemoryError as error:
            free, total = self.call("cuMemGetInfo")
            raise MemoryFullError(self.space, nbytes, int(free), int(total)) from error

    def free(self, address: int) -> None:
        """Give memory back; nothing may run on it any more."""
        self.release("cuMemFree", address)

    def pinned(self, nbytes: int) -> int:
        """The address of new memory of the host that the device copies from and to without the driver's help."""
        self.enter()
        return int(self.call("cuMemHostAlloc", max(nbytes, 1), 0))

    def free_pinned(self, address: int) -> None:
        """Give memory of :meth:`pinned` back."""
        self.release("cuMemFreeHost", address)

    def to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy from the host. Memory of the host that is not pinned is read before the call returns."""
        self.call("cuMemcpyHtoDAsync", target, source, nbytes, stream)

    def to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy to the host; done when the stream is."""
        self.call("cuMemcpyDtoHAsync", target, source, nbytes, stream)

    def move(self, target: int, source: int, width: int, rows: int, steps: tuple[int, int], stream: int) -> None:
        """Copy rows within the device; see :meth:`accord.backends.memory.Memory.move`."""
        if rows == 1 or steps == (width, width):
            self.call("cuMemcpyDtoDAsync", target, source, width * rows, stream)
        else:
            asked = self._driver.CUDA_MEMCPY2D()
            asked.srcMemoryType = asked.dstMemoryType = self._driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
            asked.dstDevice, asked.srcDevice = target, source
            asked.dstPitch, asked.srcPitch = steps
            asked.WidthInBytes, asked.Height = width, rows
            self.call("cuMemcpy2DAsync", asked, stream)

    # streams

    def stream(self, *, first: bool = False) -> int:
        """A new stream that does not wait for the default one.

        Args:
            first: Its kernels come before those of other streams where both wait for room.
        """
        self.enter()
        lowest, highest = self.call("cuCtxGetStreamPriorityRange")
        flags = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        return int(self.call("cuStreamCreateWithPriority", flags, highest if first else lowest))

    def wait(self, stream: int) -> None:
        """Until everything on the stream is done."""
        self._checked(self._synchronize(stream), "cuStreamSynchronize")

    @contextmanager
    def capturing(self, stream: int) -> Iterator[list[int]]:
        """What is started on the stream inside becomes a graph, which is put into the list."""
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        made: list[int] = []
        self.call("cuStreamBeginCapture", stream, mode)
        try:
            yield made
        except BaseException:
            self._driver.cuStreamEndCapture(stream)
            raise
        graph = self.call("cuStreamEndCapture", stream)
        made.append(int(self.call("cuGraphInstantiate", graph, 0)))
        self.call("cuGraphDestroy", graph)

    def keep(self, graph: Graph, drop: WeakMethod[Callable[[bytes], None]], key: bytes) -> None:
        """Take a graph among those of the device; where they are too many, those used longest ago go.

        Args:
            graph: The new one.
            drop: Called with ``key`` when it has to go.
            key: What its owner knows it by.
        """
        with self._lock:
            kept = [(g, entry) for entry in self._graphs if (g := entry[0]()) is not None]
            kept.sort(key=lambda pair: pair[0].used)
            excess = len(graph.kernels) + sum(len(g.kernels) for g, _ in kept) - _GRAPH_KERNELS
            gone = []
            while excess > 0 and kept:
                old, entry = kept.pop(0)
                excess -= len(old.kernels)
                gone.append(entry)
            self._graphs = [*(entry for _, entry in kept), (ReferenceType(graph), drop, key)]
        for _, forget, known in gone:
            owner = forget()
            if owner is not None:
                owner(known)

    def replay(self, graph: int, stream: int) -> None:
        """Start a graph."""
        self._checked(self._launch_graph(graph, stream), "cuGraphLaunch")

    def forget(self, graph: int) -> None:
        """Give a graph back."""
        self.release("cuGraphExecDestroy", graph)

    # events

    def event(self, *, timed: bool = False) -> int:
        """A new event.

        Args:
            timed: It notes the time.
        """
        self.enter()
        kind = self._driver.CUevent_flags
        flags = kind.CU_EVENT_DEFAULT if timed else kind.CU_EVENT_DISABLE_TIMING
        return int(self.call("cuEventCreate", flags.value))

    def forget_event(self, event: int) -> None:
        """Give an event back."""
        self.release("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        """Put an event on a stream."""
        self._checked(self._record_event(event, stream), "cuEventRecord")

    def follow(self, stream: int, event: int) -> None:
        """Have what is put on a stream from now on wait for an event, as it was recorded last."""
        self._checked(self._wait_for_event(stream, event, 0), "cuStreamWaitEvent")

    def wait_event(self, event: int) -> None:
        """Until an event has happened."""
        self.call("cuEventSynchronize", event)

    def seconds(self, start: Any, stop: Any) -> float:
        """Time between two events that have happened."""
        return float(self.call("cuEventElapsedTime", start, stop)) * 1e-3

    # kernels

    def function(self, cubin: bytes, name: str, block: tuple[int, int, int], shared: int, cluster: int = 1) -> Function:
        """A kernel of a cubin, loaded once for all who have it at the same time."""
        key = (cubin, name, block, shared)
        with self._loading:
            found = self._functions.get(key)
            if found is None:
                self.enter()
                library = self.call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
                kernel = self.call("cuLibraryGetKernel", library, name.encode())
                handle = int(self.call("cuKernelGetFunction", kernel))
                if shared > 48 << 10:  # more than every architecture gives unasked
                    most = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    self.call("cuFuncSetAttribute", handle, most, shared)
                unload = functools.partial(self.release, "cuLibraryUnload", library)
                found = self._functions[key] = Function(handle, block, shared, cluster, unload)
            return found

    def write_map(
        self,
        target: int,
        address: int,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
        steps: Sequence[int] = (),
    ) -> None:
        """Write the 128 bytes with which the bulk copy engine walks a tensor.

        Args:
            target: Where, in the host's memory.
            address: Of the tensor, whole 16 bytes.
            dtype: Of elements: f16, bf16 or f32.
            shape: From the outermost axis.
            strides: In bytes, of all axes but the last.
            box: What is copied at once.
            swizzle: How it lies in shared memory, as the driver numbers it.
            steps: From one element of the box to the next, along each axis; empty: they are neighbours.
        """
        cu, steps = bindings(), steps or (1,) * len(shape)
        spans = [n * s for n, s in zip(box, steps, strict=True)]
        kinds = {cu.cuuint64_t: (shape, strides), cu.cuuint32_t: (spans, steps)}
        numbers = [[kind(n) for n in reversed(of)] for kind, both in kinds.items() for of in both]
        made = self.call(
            "cuTensorMapEncodeTiled",
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_MAPPED[dtype]}"),
            len(shape),
            address,
            *numbers,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cu.CUtensorMapSwizzle(swizzle),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        ctypes.memmove(target, int(made.getPtr()), MAP_BYTES)

    def launch(
        self, function: Function, grid: tuple[int, int, int], parameters: int, stream: int, *, early: bool = False
    ) -> None:
        """Start a kernel.

        Args:
            function: The kernel.
            grid: Programs, three axes.
            parameters: The address of an array of the addresses of its arguments.
            stream: Where.
            early: As soon as the kernel in front of it on the stream lets it; it waits for that one by itself.
        """
        if early or function.cluster > 1:
            self._launch_otherwise(function, grid, parameters, stream, early=early)
            return
        status = self._launch(function.handle, *grid, *function.block, function.shared, stream, parameters, None)
        self._checked(status, "cuLaunchKernel")

    def _launch_otherwise(
        self, function: Function, grid: tuple[int, int, int], parameters: int, stream: int, *, early: bool
    ) -> None:
        """Start a kernel that is a cluster of blocks a program, or may start early."""
        attributes = []
        if function.cluster > 1:
            attributes.append(_Attribute(self._cluster, _Value(sizes=(function.cluster, 1, 1))))
        if early:
            attributes.append(_Attribute(self._dependent, _Value(flag=1)))
        count = len(attributes)
        blocks = grid[0] * function.cluster, grid[1], grid[2]
        configuration = _Configuration(
            blocks, function.block, function.shared, stream, (_Attribute * count)(*attributes), count
        )
        status = self._launch_with(ctypes.addressof(configuration), function.handle, parameters, None)
        self._checked(status, "cuLaunchKernelEx")


def _start(driver: Any) -> None:
    """Have the driver ready.

    Raises:
        BackendError: there is none, or it cannot be used.
    """
    try:
        (status, *_) = driver.cuInit(0)
    except Exception as error:  # the bindings raise their own error where there is no libcuda
        raise BackendError(
            f"there is no NVIDIA driver on this machine: {error}",
            remedy="Install the driver, or run a container with --gpus all; `accord doctor` says more.",
        ) from error
    if int(status):
        raise BackendError(
            f"the NVIDIA driver cannot be used: {_text(status)}",
            remedy="`nvidia-smi` must list a GPU here; `accord doctor` says more.",
        )


def no_such_device(ordinal: int, there: int) -> BackendError:
    """The error for a number where there are ``there`` GPUs."""
    if not there:
        return BackendError(
            "there is no GPU here",
            found="CUDA_VISIBLE_DEVICES may hide it",
            remedy="Run it where `nvidia-smi` shows a GPU.",
        )
    return BackendError(
        f"there is no GPU number {ordinal}",
        expected="0" if there == 1 else f"0 to {there - 1}",
        found=f"{there} GPU{'' if there == 1 else 's'} (CUDA_VISIBLE_DEVICES may hide others)",
        remedy="Ask for device='cuda'." if there == 1 else f"Ask for device='cuda:0' to 'cuda:{there - 1}'.",
    )


def _text(status: Any) -> str:
    return str(getattr(status, "name", status))


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


_CHOSEN = threading.local()


@contextmanager
def chosen(ordinal: int) -> Iterator[None]:
    """What this thread compiles and lays out inside is for the GPU of this number."""
    before = getattr(_CHOSEN, "ordinal", 0)
    _CHOSEN.ordinal = ordinal
    try:
        yield
    finally:
        _CHOSEN.ordinal = before


def device(ordinal: int | None = None) -> Device:
    """The GPU of a number; without one, that which was :func:`chosen`, else the first.

    Raises:
        BackendError: there is none, no driver, or one that is too old.
    """
    return _device(getattr(_CHOSEN, "ordinal", 0) if ordinal is None else ordinal)


@functools.cache
def _device(ordinal: int) -> Device:
    return Device(ordinal)


@functools.cache
def count() -> int:
    """GPUs that the process sees.

    Raises:
        BackendError: there is no driver.
    """
    driver = bindings()
    _start(driver)
    status, found = driver.cuDeviceGetCount()
    return 0 if int(status) else int(found)


def ordinal_of(address: int) -> int:
    """The number of the GPU in whose memory an address is; 0 where the driver does not know it.

    Raises:
        BackendError: there is no driver.
    """
    if count() < 2:
        return 0
    driver = bindings()
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, number = driver.cuPointerGetAttribute(attribute, address)
    return 0 if int(status) else int(number)


def argument_array(
    count: int, order: Sequence[int] | None = None
) -> tuple[ctypes.Array[ctypes.c_int64], ctypes.Array[ctypes.c_void_p]]:
    """Room for ``count`` arguments of up to 8 bytes each, and the array of their addresses.

    Args:
        count: Arguments.
        order: Numbers of the arguments in the order of the kernel's parameters; None: as they are.
    """
    values = (ctypes.c_int64 * max(count, 1))()
    base = ctypes.addressof(values)
    chosen_order = range(max(count, 1)) if order is None else order
    return values, (ctypes.c_void_p * max(len(chosen_order), 1))(*(base + 8 * i for i in chosen_order))
