"""One GPU through the driver's interface (``cuda.bindings``): memory, streams, machine code, graphs.

Nothing of CUDA is imported before a device is asked for. The context is the device's primary one, so that memory of
other libraries in the process can be read. Calls come from any thread: each enters the context first.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from accord.backends.memory import HOST, Block, Memory
from accord.errors import BackendError, ExecutionError

__all__ = ["Device", "DeviceMemory", "Function", "device"]

#: The oldest driver whose interface is used, as the driver tells it: CUDA 12.4.
OLDEST_DRIVER: Final = 12040
#: The oldest compute capability that kernels are generated for.
OLDEST: Final = (7, 5)
#: After these the context is lost: every later call fails too.
_LOST: Final = frozenset(
    {"ILLEGAL_ADDRESS", "LAUNCH_FAILED", "HARDWARE_STACK_ERROR", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS"}
    | {"INVALID_ADDRESS_SPACE", "INVALID_PC", "ASSERT", "LAUNCH_TIMEOUT", "ECC_UNCORRECTABLE"}
)


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


class Function:
    """A kernel on a device.

    Attributes:
        handle: The driver's.
        threads: Of a block.
        shared: Bytes of dynamic shared memory.
    """

    def __init__(self, handle: Any, threads: int, shared: int) -> None:
        self.handle = handle
        self.threads = threads
        self.shared = shared


class Device:
    """A GPU.

    Attributes:
        ordinal: Its number among those that the process sees.
        name: As the driver says.
        architecture: 90 for compute capability 9.0.
        processors: Multiprocessors.
        shared: Bytes of shared memory that a block may use.
    """

    def __init__(self, ordinal: int) -> None:
        driver = bindings()
        self.ordinal = ordinal
        self._driver = driver
        try:
            (status,) = driver.cuInit(0)
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
        version = self.call("cuDriverGetVersion")
        if version < OLDEST_DRIVER:
            raise BackendError(
                "the NVIDIA driver is too old",
                expected=f"one for CUDA {_version(OLDEST_DRIVER)} or newer",
                found=f"CUDA {_version(version)}",
                remedy="Update the driver.",
            )
        count = self.call("cuDeviceGetCount")
        if ordinal >= count:
            raise BackendError(
                f"there is no GPU number {ordinal}",
                found=f"{count} GPUs (CUDA_VISIBLE_DEVICES hides others)",
                remedy="Ask for device='cuda'." if count else "Run it where `nvidia-smi` shows a GPU.",
            )
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
            )
        self.architecture = 10 * capability[0] + capability[1]
        self.processors = of("MULTIPROCESSOR_COUNT")
        self.shared = of("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self._context = self.call("cuDevicePrimaryCtxRetain", handle)
        self._lock = threading.Lock()
        self._functions: dict[tuple[bytes, str, int], Function] = {}
        #: Why nothing can be run any more.
        self.lost: str | None = None

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

    def _raise(self, status: Any, name: str) -> None:
        kind = str(getattr(status, "name", status)).removeprefix("CUDA_ERROR_")
        if kind == "OUT_OF_MEMORY":
            raise MemoryError(f"the memory of GPU {self.ordinal} is full")
        if kind in _LOST and self.lost is None:
            self.lost = kind
        if kind in _LOST or self.lost is not None:
            raise ExecutionError(
                f"GPU {self.ordinal} is lost to this process: {self.lost or kind} in a kernel",
                remedy="A kernel read or wrote outside its memory, or ran for too long. Start the process again; "
                "`compute-sanitizer` names the access, `accord op check` proves a user's kernel.",
            )
        raise ExecutionError(f"{name} failed: {_text(status)}")

    def enter(self) -> None:
        """Make the device current in this thread.

        Raises:
            ExecutionError: the device was lost before.
        """
        if self.lost is not None:
            raise ExecutionError(
                f"GPU {self.ordinal} is lost to this process since a kernel failed ({self.lost})",
                remedy="Start the process again.",
            )
        self.call("cuCtxSetCurrent", self._context)

    # memory

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, aligned to 256 bytes.

        Raises:
            MemoryError: there is not enough.
        """
        self.enter()
        return int(self.call("cuMemAlloc", max(nbytes, 1)))

    def free(self, address: int) -> None:
        """Give memory back; nothing may run on it any more."""
        if self.lost is None:
            self.enter()
            self.call("cuMemFree", address)

    def pinned(self, nbytes: int) -> int:
        """The address of new memory of the host that the device copies from and to without the driver's help."""
        self.enter()
        return int(self.call("cuMemHostAlloc", max(nbytes, 1), 0))

    def free_pinned(self, address: int) -> None:
        """Give memory of :meth:`pinned` back."""
        if self.lost is None:
            self.enter()
            self.call("cuMemFreeHost", address)

    def to_device(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy from the host. Memory of the host that is not pinned is read before the call returns."""
        self.call("cuMemcpyHtoDAsync", target, source, nbytes, stream)

    def to_host(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy to the host; done when the stream is."""
        self.call("cuMemcpyDtoHAsync", target, source, nbytes, stream)

    def move(self, target: int, source: int, width: int, rows: int, steps: tuple[int, int]) -> None:
        """Copy rows within the device; see :meth:`accord.backends.memory.Memory.move`."""
        if rows == 1 or steps == (width, width):
            self.call("cuMemcpyDtoD", target, source, width * rows)
        else:
            asked = self._driver.CUDA_MEMCPY2D()
            asked.srcMemoryType = asked.dstMemoryType = self._driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
            asked.dstDevice, asked.srcDevice = target, source
            asked.dstPitch, asked.srcPitch = steps
            asked.WidthInBytes, asked.Height = width, rows
            self.call("cuMemcpy2D", asked)
        self.wait(0)  # copies within the device do not wait by themselves

    # streams

    def stream(self) -> Any:
        """A new stream that does not wait for the default one."""
        self.enter()
        return self.call("cuStreamCreate", self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)

    def wait(self, stream: Any) -> None:
        """Until everything on the stream is done."""
        self.call("cuStreamSynchronize", stream)

    @contextmanager
    def capturing(self, stream: Any) -> Iterator[list[Any]]:
        """What is started on the stream inside becomes a graph, which is put into the list."""
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        made: list[Any] = []
        self.call("cuStreamBeginCapture", stream, mode)
        try:
            yield made
        except BaseException:
            self._driver.cuStreamEndCapture(stream)
            raise
        graph = self.call("cuStreamEndCapture", stream)
        made.append(self.call("cuGraphInstantiate", graph, 0))
        self.call("cuGraphDestroy", graph)

    def replay(self, graph: Any, stream: Any) -> None:
        """Start a graph."""
        self.call("cuGraphLaunch", graph, stream)

    def forget(self, graph: Any) -> None:
        """Give a graph back."""
        if self.lost is None:
            self.enter()
            self.call("cuGraphExecDestroy", graph)

    # events

    def event(self) -> Any:
        """A new event that notes the time."""
        self.enter()
        return self.call("cuEventCreate", 0)

    def record(self, event: Any, stream: Any) -> None:
        """Put an event on a stream."""
        self.call("cuEventRecord", event, stream)

    def seconds(self, start: Any, stop: Any) -> float:
        """Time between two events that have happened."""
        return float(self.call("cuEventElapsedTime", start, stop)) * 1e-3

    # kernels

    def function(self, cubin: bytes, name: str, threads: int, shared: int) -> Function:
        """A kernel of a cubin, loaded once."""
        key = (cubin, name, shared)
        with self._lock:
            found = self._functions.get(key)
            if found is None:
                self.enter()
                library = self.call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
                kernel = self.call("cuLibraryGetKernel", library, name.encode())
                handle = self.call("cuKernelGetFunction", kernel)
                if shared > 48 << 10:  # more than every architecture gives unasked
                    most = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    self.call("cuFuncSetAttribute", handle, most, shared)
                found = self._functions[key] = Function(handle, threads, shared)
            return found

    def launch(self, function: Function, grid: Sequence[int], parameters: int, stream: Any) -> None:
        """Start a kernel.

        Args:
            function: The kernel.
            grid: Programs, three axes.
            parameters: The address of an array of the addresses of its arguments.
            stream: Where.
        """
        self.call(
            "cuLaunchKernel", function.handle, *grid, function.threads, 1, 1, function.shared, stream, parameters, 0
        )


def _text(status: Any) -> str:
    return str(getattr(status, "name", status))


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def device(ordinal: int = 0) -> Device:
    """The GPU of this number.

    Raises:
        BackendError: there is none, no driver, or one that is too old.
    """
    return Device(ordinal)


class DeviceMemory(Memory):
    """The memory of a GPU."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.space = f"cuda:{ordinal}"
        assert self.space != HOST

    def allocate(self, nbytes: int) -> Block:
        """See :class:`~accord.backends.memory.Memory`."""
        gpu = device(self.ordinal)
        return _DeviceBlock(gpu, gpu.allocate(nbytes), nbytes)

    def upload(self, array: Any) -> Block:
        """See :class:`~accord.backends.memory.Memory`."""
        block = self.allocate(array.nbytes)
        if array.nbytes:
            self.write(block.address, array)
        return block

    def read(self, address: int, array: Any) -> None:
        """See :class:`~accord.backends.memory.Memory`."""
        gpu = device(self.ordinal)
        gpu.enter()
        gpu.call("cuMemcpyDtoH", array.ctypes.data, address, array.nbytes)

    def write(self, address: int, array: Any) -> None:
        """See :class:`~accord.backends.memory.Memory`."""
        gpu = device(self.ordinal)
        gpu.enter()
        gpu.call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)

    def move(self, target: int, source: int, width: int, rows: int = 1, steps: tuple[int, int] = (0, 0)) -> None:
        """See :class:`~accord.backends.memory.Memory`."""
        gpu = device(self.ordinal)
        gpu.enter()
        gpu.move(target, source, width, rows, steps)

    def settle(self) -> None:
        """Wait for the default stream."""
        gpu = device(self.ordinal)
        gpu.enter()
        gpu.wait(0)


class _DeviceBlock(Block):
    """Freed with its last reference."""

    def __init__(self, gpu: Device, address: int, nbytes: int) -> None:
        super().__init__(address, nbytes)
        self._gpu = gpu

    def __del__(self) -> None:
        self._gpu.free(self.address)


def argument_array(count: int) -> tuple[ctypes.Array[ctypes.c_int64], ctypes.Array[ctypes.c_void_p]]:
    """Room for ``count`` arguments of up to 8 bytes each, and the array of their addresses."""
    values = (ctypes.c_int64 * max(count, 1))()
    base = ctypes.addressof(values)
    return values, (ctypes.c_void_p * max(count, 1))(*(base + 8 * i for i in range(max(count, 1))))
