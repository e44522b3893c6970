"""One arena for all intermediate values: offsets from lifetimes.

Offsets are chosen for one representative set of sizes by placing large blocks first, each at the lowest place where no
block that lives at the same time lies (greedy by size; Pisarchyk and Lee, "Efficient Memory Management for Deep
Neural Net Inference", 2020, section 4.2). What is kept is not the offsets but the *order* of overlapping blocks:
for other sizes each block starts where the highest of the blocks below it ends. So a new shape needs one pass of
additions, and two blocks that live at the same time can never overlap, whatever the sizes.

On several streams, blocks share memory only where all uses of the one have ended before any of the other starts, by the
order on each stream and by the events that the plan has for its data: no event is there for the sake of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from accord.record import record

__all__ = ["ALIGNMENT", "ArenaOrder", "Block", "align", "arrange"]

#: Offsets are multiples of this: a cache line, and the widest vector register.
ALIGNMENT = 64


@record
class Block:
    """A block of memory that is needed from step ``first`` to step ``last``, both included.

    On several streams the numbers of steps do not say what has ended when another one starts; sets of steps, a bit for
    each, then do. The sets may be left out where steps end in the order of their numbers.

    Attributes:
        key: Its number.
        first: The first step that uses it.
        last: The last one.
        uses: All of them.
        ended: Steps that have surely ended when any of ``uses`` starts.
    """

    key: int
    first: int
    last: int
    uses: int = 0
    ended: int = 0

    def meets(self, other: Block) -> bool:
        """Whether both may be in use at the same time, so that they cannot share memory."""
        return not (self._precedes(other) or other._precedes(self))

    def _precedes(self, other: Block) -> bool:
        return self.last < other.first and not self.uses & ~other.ended


@record
class ArenaOrder:
    """Which blocks lie below which.

    Attributes:
        order: Keys from the lowest to the highest.
        below: For each of ``order``: positions in ``order`` of the blocks that must end before it starts.
    """

    order: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]

    def offsets(self, nbytes: dict[int, int]) -> tuple[dict[int, int], int]:
        """Offset of each block in bytes, and the size of the arena, for these sizes."""
        ends: list[int] = []
        offsets: dict[int, int] = {}
        for key, below in zip(self.order, self.below, strict=True):
            start = 0
            for i in below:
                start = max(start, ends[i])
            offsets[key] = start
            ends.append(start + align(nbytes[key]))
        return offsets, max(ends, default=0)


def align(n: int) -> int:
    """``n`` rounded up to a multiple of :data:`ALIGNMENT`."""
    return -(-n // ALIGNMENT) * ALIGNMENT


def arrange(blocks: Sequence[Block], nbytes: dict[int, int]) -> ArenaOrder:
    """The order of ``blocks`` that is good for the sizes ``nbytes`` and right for any."""
    by_size = sorted(blocks, key=lambda b: (-nbytes[b.key], b.first, b.key))
    placed: list[tuple[int, int, Block]] = []  # offset, end, block
    offset_of: dict[int, int] = {}
    for block in by_size:
        busy = sorted((start, end) for start, end, other in placed if other.meets(block))
        size = align(nbytes[block.key])
        at = 0
        for start, end in busy:
            if start - at >= size:
                break
            at = max(at, end)
        placed.append((at, at + size, block))
        offset_of[block.key] = at
    ordered = sorted(blocks, key=lambda b: (offset_of[b.key], b.first, b.key))
    below: list[tuple[int, ...]] = []
    for i, block in enumerate(ordered):
        below.append(tuple(j for j in range(i) if ordered[j].meets(block)))
    return ArenaOrder(tuple(b.key for b in ordered), tuple(below))
