"""The GPU of this process, through ``cuda.core``: loading machine code, launching, and arrays of the host lent to it.

Nothing of CUDA is imported before it is needed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.errors import BackendError, ExecutionError
from accord.kernels.bound import KernelError, WriteKernel
from accord.kernels.launch import Launch, Memory, is_contiguous, launches, memory_of, on_device
from accord.kernels.signature import REFUSED

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DeviceKernel", "architecture", "core", "launch", "visible"]

_SCALARS = {"f": ctypes.c_float, "i": ctypes.c_int32, "l": ctypes.c_int64, "b": ctypes.c_bool}


def core() -> Any:
    """The package ``cuda.core``.

    Raises:
        BackendError: it is not installed.
    """
    try:
        return importlib.import_module("cuda.core")
    except ImportError as error:
        raise BackendError("CUDA needs the package cuda-core", remedy="pip install 'accord[cuda]'") from error


@functools.cache
def visible() -> bool:
    """True if this process can use a GPU."""
    try:
        _current().compute_capability  # noqa: B018
    except Exception:  # noqa: BLE001 — no package, no driver, no device: each has an exception of its own
        return False
    return True


def _current() -> Any:
    device = core().Device()
    device.set_current()
    return device


def architecture() -> int:
    """Of the current GPU: 90 for sm_90.

    Raises:
        BackendError: there is none.
    """
    if not visible():
        raise BackendError(
            "there is no GPU that this process can use",
            remedy="Run it where `nvidia-smi` shows a GPU; kernels compile and Triton kernels run without one.",
        )
    major, minor = _current().compute_capability
    return int(10 * major + minor)


class _Stream:
    """A stream that somebody else made."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@functools.lru_cache(maxsize=1024)
def _loaded(device: int, cubin: bytes, name: str, shared: int) -> Any:
    """A kernel of a cubin on a device, allowed to use ``shared`` bytes of dynamic shared memory."""
    del device
    kernel = core().ObjectCode.from_cubin(cubin, name=name).get_kernel(name)
    if shared > 48 << 10:  # more than every architecture gives unasked
        driver = importlib.import_module("cuda.bindings.driver")
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(attribute, shared, int(kernel.handle), _current().device_id)
        if int(status):
            raise ExecutionError(f"the GPU refuses {shared} bytes of shared memory for kernel '{name}': {status.name}")
    return kernel


def launch(
    cubin: bytes,
    name: str,
    stream: Any,
    grid: tuple[int, int, int],
    block: tuple[int, ...],
    shared: int,
    arguments: Iterable[tuple[str, Any]],
    cluster: int = 1,
) -> None:
    """Start a kernel.

    Args:
        cubin: Machine code for the current GPU.
        name: Of the kernel in it.
        stream: Its ``__cuda_stream__`` or handle.
        grid: Blocks.
        block: Threads of a block.
        shared: Bytes of dynamic shared memory.
        arguments: Kind and value: "p" a pointer, "l" and "i" integers of 64 and 32 bits, "f" a float,
            "b" a truth value.
        cluster: Blocks of a cluster.

    Raises:
        ExecutionError: the driver refuses.
    """
    cuda = core()
    device = _current()
    kernel = _loaded(device.device_id, cubin, name, shared)
    values = [int(v) if kind == "p" else _SCALARS[kind](v) for kind, v in arguments]
    clusters = {"cluster": (cluster, 1, 1)} if cluster > 1 else {}
    config = cuda.LaunchConfig(grid=grid, block=block, shmem_size=shared, **clusters)
    given = _Stream(stream) if isinstance(stream, int) else stream
    try:
        cuda.launch(given, config, kernel, *values)
    except Exception as error:  # cuda.core has an exception for each library
        raise ExecutionError(f"kernel '{name}' could not be started: {error}") from error


class DeviceKernel(WriteKernel):
    """A kernel for a GPU: on memory there, it is started on the given stream; on NumPy arrays, on copies there."""

    def prepared(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attributes: Mapping[str, Any],
        workspace: Any = None,
        stream: Any = None,
    ) -> Callable[[], None]:
        """See :class:`~accord.kernels.bound.WriteKernel`.

        Memory of a GPU is whatever has ``__cuda_array_interface__``, or :class:`~accord.kernels.launch.Memory`;
        there nothing is waited for.
        """
        arrays = [*inputs, *outputs, workspace]
        self._refuse([memory_of(a) for a in (*inputs, *outputs)])
        if any(on_device(a) or isinstance(a, Memory) for a in arrays):
            if stream is None:
                raise KernelError("a launch needs a stream", op=self.contract.semantic.qualified_name)
            memories = [memory_of(a) for a in arrays]
            count = len(inputs)
            return functools.partial(self.start, memories[:count], memories[count:-1], attributes, memories[-1], stream)
        if self.on_gpu():
            return functools.partial(_on_copies, self.start, inputs, outputs, attributes, workspace)
        return functools.partial(self.emulate, inputs, outputs, attributes, workspace)

    def on_gpu(self) -> bool:
        """Whether NumPy arrays are taken to a GPU: if there is one."""
        return visible()

    def _refuse(self, memories: Sequence[Memory | None]) -> None:
        """Raise for memory that the kernel's contract does not accept: a kernel for a GPU has no status to say so."""
        e = self.kernel.execution or self.contract.execution
        for m in memories:
            if m is None or not math.prod(m.shape):
                continue
            if "strided" not in e.layouts and not is_contiguous(m):
                raise KernelError(
                    "the kernel accepts contiguous memory only",
                    REFUSED,
                    op=self.contract.semantic.qualified_name,
                    found=f"shape {m.shape} with strides {m.strides}",
                )
            if m.address % e.alignment:
                raise KernelError(
                    f"the kernel accepts memory that is aligned to {e.alignment} bytes only",
                    REFUSED,
                    op=self.contract.semantic.qualified_name,
                    found=f"address {m.address:#x}",
                )

    def start(
        self,
        inputs: Sequence[Memory | None],
        outputs: Sequence[Memory | None],
        attributes: Mapping[str, Any],
        workspace: Memory | None,
        stream: Any,
    ) -> None:
        """Start what it declares, one after the other, on the current GPU and memory there; nothing is waited for.

        Raises:
            BackendError: there is no GPU.
            ContractError: the declaration fails for these arguments.
            CompileError: it does not compile.
            ExecutionError: the driver refuses.
        """
        target = architecture()
        for call in self.launches(target, inputs, outputs, attributes, workspace):
            self.begin(call, target, stream)

    def launches(
        self,
        target: int,
        inputs: Sequence[Memory | None],
        outputs: Sequence[Memory | None],
        attributes: Mapping[str, Any],
        workspace: Memory | None,
    ) -> list[Launch]:
        """What a call starts; arguments as of :func:`accord.kernels.launch.launches`."""
        return launches(self.contract, self.kernel.code, self.types, target, inputs, outputs, attributes, workspace)

    @abstractmethod
    def begin(self, call: Launch, target: int, stream: Any) -> None:
        """Compile and start one launch for the current GPU, whose architecture is ``target``."""

    def emulate(
        self,
        inputs: Sequence[np.ndarray[Any, Any] | None],
        outputs: Sequence[np.ndarray[Any, Any] | None],
        attributes: Mapping[str, Any],
        workspace: np.ndarray[Any, Any] | None,
    ) -> None:
        """Run it without a GPU.

        Raises:
            BackendError: that is not possible for this kind.
        """
        del inputs, outputs, attributes, workspace
        architecture()
        raise BackendError("kernels of this kind run on a GPU only", op=self.contract.semantic.qualified_name)


def _span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """First byte and the one past the last that an array reaches."""
    start = int(array.__array_interface__["data"][0])
    if not array.size:
        return start, start
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return start + sum(min(0, s) for s in steps), start + sum(max(0, s) for s in steps) + array.itemsize


def spans(arrays: Iterable[np.ndarray[Any, Any] | None]) -> list[tuple[int, int]]:
    """The memory that arrays reach, as ranges of addresses that do not overlap, in order."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(_span(a) for a in arrays if a is not None):
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        elif high > low:
            found.append((low, high))
    return found


def bytes_at(low: int, high: int) -> np.ndarray[Any, Any]:
    """The memory of this process from ``low`` to ``high``, as bytes."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))


def _on_copies(
    start: Callable[..., None],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    attributes: Mapping[str, Any],
    workspace: Any,
) -> None:
    """Start a kernel on copies of arrays on the GPU, wait, and copy back what it changed."""
    driver = importlib.import_module("cuda.bindings.driver")
    device = _current()
    stream = device.create_stream()
    ranges = spans([*inputs, *outputs, workspace])
    # a copy lies as its original does modulo 256, so that a misaligned array stays one
    buffers = [(low, high, device.allocate(high - low + 256, stream=stream)) for low, high in ranges]
    places = [(low, high, int(b.handle) + (low - int(b.handle)) % 256) for low, high, b in buffers]

    def moved(array: Any) -> Memory | None:
        m = memory_of(array)
        if m is None:
            return None
        address = next((place + m.address - low for low, high, place in places if low <= m.address < high), 0)
        return Memory(address, m.shape, m.strides, m.dtype)

    def check(status: Any) -> None:
        if int(status):
            raise KernelError(f"the GPU reports {status.name} after the kernel")

    handle = int(stream.handle)
    try:
        for low, high, place in places:
            check(driver.cuMemcpyHtoDAsync(place, low, high - low, handle)[0])
        start([moved(a) for a in inputs], [moved(a) for a in outputs], attributes, moved(workspace), stream)
        for low, high, place in places:
            before = bytes_at(low, high)
            after = np.empty(high - low, np.uint8)
            check(driver.cuMemcpyDtoHAsync(after.ctypes.data, place, high - low, handle)[0])
            check(driver.cuStreamSynchronize(handle)[0])
            changed = np.flatnonzero(before != after)  # memory that it only read may be read-only here
            before[changed] = after[changed]
    finally:
        for _, _, buffer in buffers:
            buffer.close(stream)
