"""Memories: where kernels find their operands.

The host's memory is NumPy's. A device that cannot read it has a memory of its own; the plan puts copies on the edges
between the two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["HOST", "Block", "DeviceArray", "Memory", "MemoryFullError"]

#: The space that Python reads.
HOST = "host"


class MemoryFullError(MemoryError):
    """A memory has not what was asked of it.

    Attributes:
        space: Its name.
        asked: Bytes that were asked for.
        free: Bytes that it has.
        total: Its size.
    """

    def __init__(self, space: str, asked: int, free: int, total: int) -> None:
        super().__init__(space, asked, free, total)
        self.space, self.asked, self.free, self.total = space, asked, free, total

    def __str__(self) -> str:
        return f"{self.asked:,} bytes of {self.space}, of whose {self.total:,} bytes {self.free:,} are free"


class Block:
    """A piece of a memory, given back when nothing refers to it any more.

    Attributes:
        address: Where it begins, for kernels.
        nbytes: Its size.
    """

    def __init__(self, address: int, nbytes: int, owner: Any = None) -> None:
        self.address = address
        self.nbytes = nbytes
        self._owner = owner


class Memory(ABC):
    """A memory other than the host's.

    Attributes:
        space: Its name: "cuda:0".
        dlpack_device: Kind and number under which DLPack knows it.
    """

    space: str
    dlpack_device: tuple[int, int]

    @abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """A new block, aligned for every kernel; what is in it is not defined.

        Raises:
            MemoryError: there is not enough.
        """

    @abstractmethod
    def upload(self, array: np.ndarray[Any, Any]) -> Block:
        """A new block with the bytes of a row-major array: a constant, which is read often.

        Raises:
            MemoryError: there is not enough.
        """

    def upload_all(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[Block]:
        """As :meth:`upload`, of many arrays; they may become parts of one piece of memory.

        Raises:
            MemoryError: there is not enough.
        """
        return [self.upload(array) for array in arrays]

    @abstractmethod
    def read(self, address: int, array: np.ndarray[Any, Any], stream: int | None = None) -> None:
        """Copy from this memory into a row-major array, after what is on ``stream``."""

    @abstractmethod
    def write(self, address: int, array: np.ndarray[Any, Any], stream: int | None = None) -> None:
        """Copy a row-major array into this memory, after what is on ``stream``."""

    @abstractmethod
    def move(self, target: int, source: int, width: int, rows: int = 1, steps: tuple[int, int] = (0, 0)) -> None:
        """Copy within this memory; it is done on return. Nothing that is under way uses what it touches.

        Args:
            target: Where to.
            source: Where from.
            width: Bytes of a row.
            rows: How many.
            steps: Bytes from one row to the next, of the target and of the source.
        """

    def stage(self, nbytes: int) -> Block:
        """A new block of the host's memory that the device of this one reads and writes by itself.

        Raises:
            MemoryError: there is not enough.
        """
        raise TypeError(f"nothing is staged on the way to {self.space}")

    def incoming(self) -> int:
        """A stream that waits for what other libraries hand over."""
        raise TypeError(f"{self.space} has no streams")

    def settle(self, stream: int) -> None:
        """Wait for what is on a stream."""
        del stream

    def order(self, stream: int, other: int) -> None:
        """Have what is put on ``stream`` from now on wait for what is on another one."""
        del stream, other


class DeviceArray:
    """A row-major array in a memory that Python cannot read.

    What has ``__cuda_array_interface__`` (PyTorch, CuPy, Numba ...) is one without a copy, and the other way round.

    Attributes:
        memory: Where it is.
        address: Of its first element.
        shape: Sizes.
        dtype: Element type.
        stream: Where work on it may still be under way, under the numbers of ``__cuda_array_interface__``; None: none
            is.
    """

    def __init__(
        self,
        memory: Memory,
        address: int,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        owner: Any = None,
        stream: int | None = None,
    ) -> None:
        self.memory = memory
        self.address = address
        self.shape = tuple(shape)
        self.dtype = dtype
        self.stream = stream
        self._owner = owner

    @classmethod
    def empty(cls, memory: Memory, shape: Sequence[int], dtype: np.dtype[Any]) -> DeviceArray:
        """A new one; what is in it is not defined.

        Raises:
            MemoryError: there is not enough.
        """
        block = memory.allocate(math.prod(shape) * dtype.itemsize)
        return cls(memory, block.address, shape, dtype, block)

    @classmethod
    def of(cls, memory: Memory, array: np.ndarray[Any, Any]) -> DeviceArray:
        """A new one with the content of an array of the host's.

        Raises:
            MemoryError: there is not enough.
        """
        made = cls.empty(memory, array.shape, array.dtype)
        made.assign(array if array.flags.c_contiguous else array.copy(order="C"))
        return made

    def kept_by(self, owner: Any) -> DeviceArray:
        """The same array, which keeps ``owner`` and nothing else alive."""
        return DeviceArray(self.memory, self.address, self.shape, self.dtype, owner)

    @property
    def space(self) -> str:
        """The name of its memory: "cuda:0"."""
        return self.memory.space

    @property
    def ndim(self) -> int:
        """Its axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Its elements."""
        return math.prod(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "stream": self.stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.dlpack_device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        from accord.backends.dlpack import capsule_of

        if self.stream is not None and stream != -1:  # -1: the consumer wants no order
            self.memory.order(1 if stream is None else stream, self.stream)
        return capsule_of(self.address, self.shape, self.dtype, self, self.memory.dlpack_device)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in the host's memory."""
        import numpy as np

        array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            self.memory.read(self.address, array, self.stream)
        return array

    def assign(self, array: np.ndarray[Any, Any]) -> None:
        """Copy a row-major array of the same shape and dtype into it."""
        if array.nbytes:
            self.memory.write(self.address, array, self.stream)

    def view(self, shape: Sequence[int], offset: int = 0, dtype: np.dtype[Any] | None = None) -> DeviceArray:
        """The same memory from byte ``offset`` on as another array."""
        return DeviceArray(self.memory, self.address + offset, shape, dtype or self.dtype, self)

    def part(self, axis: int, index: int) -> DeviceArray:
        """The elements at ``index`` of an axis, without it: the same memory along the first axis, else a copy."""
        shape, inside = self._cut(axis)
        if not axis:
            return self.view(shape, index * inside)
        made = DeviceArray.empty(self.memory, shape, self.dtype)
        if made.nbytes:
            rows, whole = math.prod(shape[:axis]), self.shape[axis] * inside
            self.memory.move(made.address, self.address + index * inside, inside, rows, (inside, whole))
        return made

    def put(self, axis: int, index: int, part: DeviceArray) -> None:
        """Copy an array to ``index`` of an axis, which it does not have."""
        shape, inside = self._cut(axis)
        if part.nbytes:
            rows, whole = math.prod(shape[:axis]), self.shape[axis] * inside
            self.memory.move(self.address + index * inside, part.address, inside, rows, (whole, inside))

    def _cut(self, axis: int) -> tuple[tuple[int, ...], int]:
        """The shape without an axis, and the bytes of one index of it."""
        rest = self.shape[axis + 1 :]
        return (*self.shape[:axis], *rest), math.prod(rest) * self.dtype.itemsize

    def copy(self) -> DeviceArray:
        """A new array with the same content."""
        made = DeviceArray.empty(self.memory, self.shape, self.dtype)
        made.take(self)
        return made

    def take(self, other: DeviceArray) -> None:
        """Copy an array of the same size and memory into it."""
        if other.nbytes:
            self.memory.move(self.address, other.address, other.nbytes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        del copy
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)} on {self.space})"
