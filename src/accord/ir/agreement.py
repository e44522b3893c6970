"""What the shapes of a graph take for granted of sizes that only a run can tell."""

from __future__ import annotations

from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["Agreement"]


@record
class Agreement:
    """Two sizes that a shape rule takes to agree although only a run can tell.

    Attributes:
        size: A size.
        other: One that it must equal.
        what: "inner sizes", in the plural, for messages.
        ones: ``other`` may be 1 as well: it is broadcast.
        condition: The condition of a contract that holds if they agree, for messages.
    """

    size: DimLike
    other: DimLike
    what: str
    ones: bool = False
    condition: str = ""

    def holds(self, size: int, other: int) -> bool:
        """True if these values agree."""
        return size == other or (self.ones and other == 1)
