"""Memories: where kernels find their operands.

The host's memory is NumPy's. A device that cannot read it has a memory of its own; the plan puts copies on the edges
between the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["HOST", "Block", "Memory"]

#: The space that Python reads.
HOST = "host"


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
    """

    space: str

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
