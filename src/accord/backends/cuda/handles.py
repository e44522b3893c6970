"""What a device holds for whoever refers to it: machine code that was loaded, graphs that were captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accord.backends.cuda.driver import Device

__all__ = ["Function", "Graph"]


class Function:
    """A kernel on a device, unloaded with the last reference to it.

    Attributes:
        handle: The driver's.
        block: Threads of a block, three axes.
        shared: Bytes of dynamic shared memory.
        cluster: Blocks of a cluster.
        unload: Called when nobody has it any more.
    """

    def __init__(
        self,
        handle: int,
        block: tuple[int, int, int],
        shared: int,
        cluster: int = 1,
        unload: Callable[[], None] | None = None,
    ) -> None:
        self.handle = handle
        self.block = block
        self.shared = shared
        self.cluster = cluster
        self._unload = unload

    def __del__(self) -> None:
        if self._unload is not None:
            self._unload()


class Graph:
    """What was captured, destroyed with the last reference to it.

    Attributes:
        handle: The driver's.
        kernels: What it starts, which it keeps.
        used: When it was started last.
    """

    def __init__(self, gpu: Device, handle: Any, kernels: Sequence[Any]) -> None:
        self._gpu = gpu
        self.handle = handle
        self.kernels = kernels
        self.used = 0.0

    def __del__(self) -> None:
        self._gpu.forget(self.handle)
