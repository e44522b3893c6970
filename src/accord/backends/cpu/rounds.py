"""Rounds of work inside a task that further threads help with, where each round needs all that the one before has made.

A *team* has several tasks. Who comes first leads: it does the whole work, round after round, and what is not worth
sharing alone. Who comes later is a member from the next round on: the leader cuts each round into as many parts as
there are members then. Everybody does the part of its own number; then the leader takes those that nobody has begun,
and waits for those that were. So a member that is late, asleep, or not given a core costs nothing but its help, and the
tasks of a team may also run one after the other.

A team's memory is zero at first. Its lines of the cache: the round that is open with its number of parts, and what the
leader hands on with it; how many have come, and whether the work is over; for each part the last round for which it was
taken and the last one in which it was done. All grow only, so whoever has been held up sees that it is late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.machine import machine

__all__ = ["MOST_MEMBERS", "TEAM_BYTES", "Rounds"]

#: Tasks of a team at most.
MOST_MEMBERS: Final = 4
_LINE: Final = 64
#: Memory of a team; with room to start at a line.
TEAM_BYTES: Final = (3 + MOST_MEMBERS) * _LINE
_HANDED: Final = 8
_PAUSES: Final = {
    "x86_64": ("void @llvm.x86.sse2.pause()", "void @llvm.x86.sse2.pause()"),
    "aarch64": ("void @llvm.aarch64.hint(i32)", "void @llvm.aarch64.hint(i32 1)"),
}


class Rounds:
    """Writes one task of a team: joins it.

    Args:
        b: Where to write.
        memory: Address of the team's memory.

    Attributes:
        leads: Whether this thread leads, an i1.
        follows: The opposite.
        member: Number of this thread in the team; 0 leads.
    """

    def __init__(self, b: Builder, memory: str) -> None:
        self._b = b
        whole = b.op(f"and i64 {b.add(b.op(f'ptrtoint ptr {memory} to i64'), _LINE - 1)}, {-_LINE}")
        self._open = b.op(f"inttoptr i64 {whole} to ptr")
        self._come = self._at(_LINE)
        self._over = self._at(_LINE + 8)
        self.member = b.op(f"atomicrmw add ptr {self._come}, i64 1 acq_rel")
        self.leads = b.compare("eq", self.member, 0)
        self.follows = b.compare("ne", self.member, 0)

    def _at(self, offset: str | int) -> str:
        return self._b.op(f"getelementptr i8, ptr {self._open}, i64 {offset}")

    @property
    def handed(self) -> str:
        """Address of 56 bytes that the leader writes before a round and all read in it."""
        return self._at(_HANDED)

    def left(self, rounds: str) -> str:
        """``rounds``, or 0 for a member that comes when all is over."""
        b = self._b
        late = b.compare("ne", b.op(f"load atomic i64, ptr {self._over} acquire, align 8"), 0)
        return b.op(f"select i1 {late}, i64 0, i64 {rounds}")

    def end(self) -> None:
        """The leader has finished."""
        self._b.emit(f"store atomic i64 1, ptr {self._over} release, align 8")

    @contextmanager
    def shared(self, number: str) -> Iterator[tuple[str, str]]:
        """A round: what is written inside is done for each part, and done when code goes on behind it.

        Args:
            number: Of the round, from 1 on, growing.

        Yields:
            Number of the part and of all parts.
        """
        b = self._b
        opened = b.op(f"shl i64 {number}, 8")
        with b.when(self.leads):
            members = b.min(b.op(f"load atomic i64, ptr {self._come} monotonic, align 8"), MOST_MEMBERS)
            b.emit(f"store atomic i64 {b.op(f'or i64 {opened}, {members}')}, ptr {self._open} release, align 8")
        with b.when(self.follows):
            self._wait(self._open, opened)
        state = b.op(f"load atomic i64, ptr {self._open} acquire, align 8")
        parts = b.op(f"and i64 {state}, 255")
        # a member that came after the round was opened has no part in it, and none that is rounds behind has
        mine = b.compare("slt", self.member, parts)
        current = b.compare("eq", b.op(f"lshr i64 {state}, 8"), number)
        end = b.op(f"select i1 {b.op(f'and i1 {mine}, {current}')}, i64 {b.add(self.member, 1)}, i64 0")
        with b.loop(self.member, b.op(f"select i1 {self.leads}, i64 {parts}, i64 {end}")) as part:
            taken, done = self._part(part)
            before = b.op(f"load atomic i64, ptr {taken} monotonic, align 8")
            with b.when(b.compare("slt", before, number)):
                pair = b.op(f"cmpxchg ptr {taken}, i64 {before}, i64 {number} acq_rel monotonic")
                with b.when(b.op(f"extractvalue {{ i64, i1 }} {pair}, 1")):
                    yield part, parts
                    b.emit(f"store atomic i64 {number}, ptr {done} release, align 8")
        with b.loop(1, b.op(f"select i1 {self.leads}, i64 {parts}, i64 0")) as part:
            self._wait(self._part(part)[1], number)

    def _part(self, number: str) -> tuple[str, str]:
        """Addresses of the last round for which a part was taken, and in which it was done."""
        b = self._b
        line = b.add(b.mul(number, _LINE), 2 * _LINE)
        return self._at(line), self._at(b.add(line, 8))

    def _wait(self, address: str, least: str) -> None:
        """Until the number at an address has grown to ``least``."""
        b = self._b
        declared, called = _PAUSES[machine().arch]
        look, pause, go_on = (b.fresh(n).lstrip("%") for n in ("look", "pause", "on"))
        b.declare(f"declare {declared}")
        b.emit(f"br label %{look}")
        b.label(look)
        there = b.compare("sge", b.op(f"load atomic i64, ptr {address} acquire, align 8"), least)
        b.emit(f"br i1 {there}, label %{go_on}, label %{pause}")
        b.label(pause)
        b.emit(f"call {called}")
        b.emit(f"br label %{look}")
        b.label(go_on)
