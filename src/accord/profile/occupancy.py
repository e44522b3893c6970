"""How many blocks of a kernel a multiprocessor holds at once, and how well a grid fills the device.

The rules are those of CUDA's occupancy calculator: registers are given to a warp in pieces, shared memory to a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["Limits", "Occupancy", "occupancy"]

_WARP: Final = 32
#: Registers that a warp gets at a time, warps that share a register file, bytes of shared memory that a block gets.
_REGISTERS, _FILES, _SHARED = 256, 4, 128


@dataclass(frozen=True, slots=True)
class Limits:
    """What one multiprocessor has.

    Attributes:
        processors: How many multiprocessors the device has.
        threads: That are resident at most.
        blocks: Likewise.
        registers: Of all threads.
        shared: Bytes of shared memory of all blocks.
        reserved: Bytes of it that each block takes for the system.
    """

    processors: int
    threads: int
    blocks: int
    registers: int
    shared: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How a kernel fills the device, in theory: as if all its blocks took equally long.

    Attributes:
        blocks: Resident on a multiprocessor.
        share: Of the threads that it could hold.
        limit: What there is too little of for more: "threads", "blocks", "registers", "shared memory"; "grid" if the
            grid has too few blocks.
        waves: Times that the whole device is filled with blocks.
    """

    blocks: int
    share: float
    limit: str
    waves: float

    @property
    def wasted(self) -> float:
        """The part of the time in which a last wave that is not full leaves multiprocessors idle."""
        return 1 - self.waves / math.ceil(self.waves) if self.waves else 0.0


def occupancy(at: Limits, threads: int, registers: int, shared: int, blocks: int) -> Occupancy:
    """Of a kernel.

    Args:
        at: The device.
        threads: Of a block.
        registers: Of a thread.
        shared: Bytes of a block, static and dynamic.
        blocks: Of the grid.
    """
    warps = math.ceil(threads / _WARP)
    per_warp = _rounded(max(registers, 1) * _WARP, _REGISTERS)
    by_registers = at.registers // _FILES // per_warp * _FILES // warps
    taken = _rounded(shared + at.reserved, _SHARED) if shared + at.reserved else 0
    found = {
        "threads": at.threads // (warps * _WARP),
        "blocks": at.blocks,
        "registers": by_registers,
        "shared memory": at.shared // taken if taken else at.blocks,
    }
    limit = min(found, key=found.__getitem__)
    resident = max(found[limit], 1)  # it ran
    waves = blocks / (resident * at.processors)
    present = min(resident, math.ceil(blocks / at.processors))
    return Occupancy(resident, present * warps * _WARP / at.threads, "grid" if present < resident else limit, waves)


def _rounded(n: int, step: int) -> int:
    return -(-n // step) * step
