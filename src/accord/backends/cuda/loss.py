"""A device that is lost: a kernel failed in a way after which nothing of the process runs there any more.

The driver tells it with some later call, and not which kernel it was. So whoever starts kernels says which of them may
be running, and the error names those: one, where it was waited for before and after, else all candidates.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Final, Protocol

from accord.errors import DeviceLostError

__all__ = ["Losable", "Work"]

#: After these every later call fails too.
_FATAL: Final = frozenset(
    {"ILLEGAL_ADDRESS", "LAUNCH_FAILED", "HARDWARE_STACK_ERROR", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS"}
    | {"INVALID_ADDRESS_SPACE", "INVALID_PC", "ASSERT", "LAUNCH_TIMEOUT", "ECC_UNCORRECTABLE"}
)
#: Candidates that an error names.
_MOST_NAMED: Final = 8


class Work(Protocol):
    """Kernels that are started together."""

    def suspects(self) -> tuple[list[str], list[str]]:
        """Those that were started and are not known to be done, for people: users' kernels, then others."""
        ...


class Losable:
    """A device that may be lost.

    Args:
        ordinal: Its number.

    Attributes:
        ordinal: Its number.
        lost: Why nothing can be run any more; None: it can.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.lost: str | None = None
        self._works: weakref.WeakSet[Work] = weakref.WeakSet()
        self._lock = threading.Lock()

    def watch(self, work: Work) -> None:
        """Ask this one too, if the device is lost."""
        with self._lock:
            self._works.add(work)

    def note_loss(self, kind: str) -> None:
        """Remember what was running, if an error, by its name in CUDA, is one after which nothing runs any more."""
        kind = kind.removeprefix("CUDA_ERROR_")
        if kind in _FATAL and self.lost is None:
            with self._lock:
                works = list(self._works)
            self.lost = _blame(kind, works)

    def refuse_lost(self) -> None:
        """See that the device is there.

        Raises:
            DeviceLostError: it is lost.
        """
        if self.lost is not None:
            raise DeviceLostError(
                f"GPU {self.ordinal} is lost to this process: {self.lost}",
                remedy="Start the process again. ACCORD_CUDA_BLOCKING=1 waits after each kernel and names the one that "
                "fails, `compute-sanitizer` the access; `accord op check` proves a user's kernel.",
            )


def _blame(kind: str, works: Sequence[Work]) -> str:
    own: list[str] = []
    others: list[str] = []
    for work in works:
        mine, rest = work.suspects()
        own += mine
        others += rest
    every = [*own, *others]
    what = kind.replace("_", " ").lower()
    if not every:
        return f"{what} in a kernel that Accord did not start"
    if len(every) == 1:
        return f"{what} in {every[0]}"
    more = len(every) - _MOST_NAMED
    named = "; ".join(every[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return f"{what} in one of these, which were running (users' kernels first): {named}"
