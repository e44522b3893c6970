"""One arena for all intermediate values: offsets from lifetimes.

Offsets are chosen for one representative set of sizes by placing large blocks first, each at the lowest place where no
block that lives at the same time lies (greedy by size; Pisarchyk and Lee, "Efficient Memory Management for Deep
Neural Net Inference", 2020, section 4.2). What is kept is not the offsets but the *order* of overlapping blocks:
for other sizes each block starts where the highest of the blocks below it ends. So a new shape needs one pass of
additions, and two blocks that live at the same time can never overlap, whatever the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from accord.record import record

__all__ = ["ALIGNMENT", "ArenaOrder", "Block", "arrange"]

#: Offsets are multiples of this: a cache line, and the widest vector register.
ALIGNMENT = 64


@record
class Block:
    """A block of memory that is needed from step ``first`` to step ``last``, both included."""

    key: int
    first: int
    last: int


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
        busy = sorted(
            (start, end) for start, end, other in placed if other.first <= block.last and block.first <= other.last
        )
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
        below.append(tuple(j for j in range(i) if ordered[j].first <= block.last and block.first <= ordered[j].last))
    return ArenaOrder(tuple(b.key for b in ordered), tuple(below))
