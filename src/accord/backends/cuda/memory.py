"""The memory of a GPU, as the runtime sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accord.backends.cuda.driver import Device, device
from accord.backends.cuda.lanes import borrowed
from accord.backends.cuda.spans import spans_of, whole
from accord.backends.dlpack import CUDA
from accord.backends.memory import HOST, Block, Memory

__all__ = ["DeviceMemory"]


class DeviceMemory(Memory):
    """The memory of a GPU."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.space = f"cuda:{ordinal}"
        self.dlpack_device = (CUDA, ordinal)
        self._incoming: int | None = None
        assert self.space != HOST

    def allocate(self, nbytes: int) -> Block:
        """See :class:`~accord.backends.memory.Memory`."""
        gpu = device(self.ordinal)
        return _DeviceBlock(gpu, gpu.allocate(nbytes), nbytes)

    def stage(self, nbytes: int) -> Block:
        """See :class:`~accord.backends.memory.Memory`."""
        gpu = device(self.ordinal)
        return _PinnedBlock(gpu, gpu.pinned(nbytes), nbytes)

    def upload(self, array: Any) -> Block:
        """See :class:`~accord.backends.memory.Memory`."""
        block = self.allocate(array.nbytes)
        if array.nbytes:
            self.write(block.address, array)
        return block

    def upload_all(self, arrays: Sequence[Any]) -> list[Block]:
        """See :class:`~accord.backends.memory.Memory`; arrays that follow each other in memory are one copy."""
        spans, places = spans_of(arrays)
        total = sum(whole(stop - start) for start, stop, _ in spans)
        if not total:
            return [self.allocate(0) for _ in arrays]
        block = self.allocate(total)
        gpu = device(self.ordinal)
        bases, at = [], block.address
        with borrowed(gpu) as lanes:
            for start, stop, _ in spans:
                bases.append(at - start)
                gpu.to_device(at, start, stop - start, lanes.origin)
                at += whole(stop - start)
            gpu.wait(lanes.origin)
        return [
            Block(bases[place] + a.ctypes.data if a.nbytes else block.address, a.nbytes, block)
            for a, place in zip(arrays, places, strict=True)
        ]

    def read(self, address: int, array: Any, stream: int | None = None) -> None:
        """See :class:`~accord.backends.memory.Memory`."""
        self._copied(device(self.ordinal).to_host, array.ctypes.data, address, array.nbytes, stream)

    def write(self, address: int, array: Any, stream: int | None = None) -> None:
        """See :class:`~accord.backends.memory.Memory`."""
        self._copied(device(self.ordinal).to_device, address, array.ctypes.data, array.nbytes, stream)

    def _copied(
        self, copy: Callable[[int, int, int, int], None], target: int, source: int, nbytes: int, after: int | None
    ) -> None:
        """Copy, and wait for it: a plain copy may end before the device has done its part."""
        gpu = device(self.ordinal)
        with borrowed(gpu) as lanes:
            if after is not None:
                lanes.arrive(lanes.origin, after)
            copy(target, source, nbytes, lanes.origin)
            gpu.wait(lanes.origin)

    def order(self, stream: int, other: int) -> None:
        """See :class:`~accord.backends.memory.Memory`."""
        with borrowed(device(self.ordinal)) as lanes:
            lanes.arrive(stream, other)

    def incoming(self) -> int:
        """See :class:`~accord.backends.memory.Memory`."""
        if self._incoming is None:
            self._incoming = device(self.ordinal).stream()
        return self._incoming

    def settle(self, stream: int) -> None:
        """See :class:`~accord.backends.memory.Memory`."""
        gpu = device(self.ordinal)
        gpu.enter()
        gpu.wait(stream)

    def move(self, target: int, source: int, width: int, rows: int = 1, steps: tuple[int, int] = (0, 0)) -> None:
        """See :class:`~accord.backends.memory.Memory`."""
        gpu = device(self.ordinal)
        with borrowed(gpu) as lanes:
            gpu.move(target, source, width, rows, steps, lanes.origin)
            gpu.wait(lanes.origin)


class _DeviceBlock(Block):
    """Freed with its last reference."""

    def __init__(self, gpu: Device, address: int, nbytes: int) -> None:
        super().__init__(address, nbytes)
        self._gpu = gpu

    def __del__(self) -> None:
        self._gpu.free(self.address)


class _PinnedBlock(_DeviceBlock):
    """Of the host's memory."""

    def __del__(self) -> None:
        self._gpu.free_pinned(self.address)
