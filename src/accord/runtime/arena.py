"""The memory of a run: one block in each memory that a plan needs, and the blocks of a plan in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from accord.backends.memory import HOST, Block, DeviceArray, Memory
from accord.backends.protocol import Pending
from accord.plan.arena import ALIGNMENT, ArenaOrder, arrange
from accord.plan.arena import Block as Span
from accord.plan.plan import Plan, Storage

__all__ = ["Arena", "Orders", "arena_blocks", "orders_for"]


class Arena:
    """One block of aligned memory in the host's memory, and one in each other memory that a plan needs; they only grow.

    Attributes:
        buffer: The host's.
        address: Where it begins.
        blocks: The others, by space.
        staging: Memory of the host that devices read and write by themselves, by their space.
        scratch: What steps need whose sizes only earlier steps tell, by space.
        pending: What may still use all this, though the run that it belongs to has returned.
        version: Another number whenever a block is a new one, in this arena or any other.
    """

    _versions = itertools.count(1)

    def __init__(self) -> None:
        self.version = 0
        self._raw = np.empty(0, np.uint8)
        self.buffer = self._raw
        self.address = 0
        self.blocks: dict[str, Block] = {}
        self.staging: dict[str, Block] = {}
        self.scratch: dict[str, Block] = {}
        self.pending: Pending | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in all memories."""
        return self.buffer.nbytes + sum(
            b.nbytes for b in (*self.blocks.values(), *self.staging.values(), *self.scratch.values())
        )

    def ensure_in(self, memory: Memory, nbytes: int) -> int:
        """The address of the block in ``memory``, which has room for at least ``nbytes`` bytes."""
        return self._room(self.blocks, memory.space, nbytes, memory.allocate)

    def ensure_staging(self, memory: Memory, nbytes: int) -> int:
        """The address of the memory on the way to ``memory``, which has room for at least ``nbytes`` bytes."""
        return self._room(self.staging, memory.space, nbytes, memory.stage)

    def scratch_in(self, memory: Memory | None, nbytes: int) -> int:
        """The address of scratch memory in ``memory`` (None: the host's) with room for at least ``nbytes`` bytes."""
        if memory is None:
            return self._room(self.scratch, HOST, nbytes, _in_host)
        return self._room(self.scratch, memory.space, nbytes, memory.allocate)

    def _room(self, blocks: dict[str, Block], space: str, nbytes: int, allocate: Callable[[int], Block]) -> int:
        """The address of a block of ``blocks`` with room for at least ``nbytes`` bytes."""
        block = blocks.get(space)
        if block is None or block.nbytes < nbytes:
            self.settle()
            blocks.pop(space, None)  # before the larger one is asked for
            block = None
            block = blocks[space] = allocate(nbytes)
            self.version = next(Arena._versions)
        return block.address

    def settle(self) -> None:
        """Wait for what is pending."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None

    def __del__(self) -> None:
        self.settle()

    def holds(self, array: DeviceArray) -> bool:
        """Whether an array is in one of the blocks."""
        block = self.blocks.get(array.space)
        return block is not None and block.address <= array.address < block.address + block.nbytes

    def ensure(self, nbytes: int) -> None:
        """Have room for at least ``nbytes`` bytes. What was in it is lost when it grows."""
        if nbytes > self.buffer.nbytes:
            self._raw = np.empty(nbytes + ALIGNMENT, np.uint8)
            start = -self._raw.ctypes.data % ALIGNMENT
            self.buffer = self._raw[start : start + nbytes]
            self.address = self.buffer.ctypes.data


def _in_host(nbytes: int) -> Block:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return Block(raw.ctypes.data + start, nbytes, raw)


def arena_blocks(plan: Plan, space: str = HOST) -> list[Span]:
    """The blocks that a plan needs in a memory: one for each memory class that lives in the arena."""
    spans: dict[int, tuple[int, int]] = {}
    for s in plan.slots:
        if s.storage is Storage.ARENA and s.space == space:
            first, last = spans.get(s.root, (s.first, s.last))
            spans[s.root] = (min(first, s.first), max(last, s.last))
    if plan.is_serial:
        return [Span(root, first, last) for root, (first, last) in spans.items()]
    uses = dict.fromkeys(spans, 0)
    ended = dict.fromkeys(spans, -1)
    for index, before in enumerate(plan.ended()):
        if plan.is_free(index):
            continue
        for root in {plan.slots[i].root for i in plan.steps[index].touched}:
            if root in spans:
                uses[root] |= 1 << index
                ended[root] &= before
    return [Span(root, first, last, uses[root], ended[root]) for root, (first, last) in spans.items()]


#: By space, what arranges its arena for given sizes of the slots.
Orders: TypeAlias = "Mapping[str, Callable[[Mapping[int, int]], ArenaOrder]]"


def orders_for(plan: Plan) -> Orders:
    """For each memory a function that arranges its arena for the first sizes it sees and keeps that order."""
    return {space: _order_for(plan, space) for space in sorted({HOST, *(s.space for s in plan.slots)})}


def _order_for(plan: Plan, space: str) -> Callable[[Mapping[int, int]], ArenaOrder]:
    blocks = arena_blocks(plan, space)
    cached: list[ArenaOrder] = []

    def order(nbytes: Mapping[int, int]) -> ArenaOrder:
        if not cached:
            cached.append(arrange(blocks, dict(nbytes)))
        return cached[0]

    return order
