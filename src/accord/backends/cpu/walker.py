"""The native loops of ``walker.ll``: layout of the memory that they share, and their source."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

from accord.backends.cpu.jit import text_key
from accord.backends.cpu.machine import machine

__all__ = ["FIELDS", "MAX_CPUS", "MAX_THREADS", "Layout", "WalkerSource"]

#: Words of a row: function, parameters, operands, tasks, most threads.
FIELDS: Final = 5

#: Members that a team can have.
MAX_THREADS: Final = 128

#: Processors, by the system's numbers, that threads can be kept away from.
MAX_CPUS: Final = 1024

#: Chunks for each member: enough to even out differences of speed, few enough to cost nothing.
_CHUNKS: Final = 8


class Layout:
    """Where things are in a pool's memory, in bytes."""

    STOP = 0
    CORES = 8
    SPIN = 16
    SYSCALL = 24
    CLOCK = 32
    WORKERS = 40
    TEAMS = 48
    TEAMS_AT = 56
    ACTIVE = 64
    GETCPU = 72
    CPUS = 128
    SLOTS_AT = 128 + MAX_CPUS // 8

    STATE = 0
    FUNCTION = 64
    PARAMS = 72
    OPERANDS = 80
    TASKS = 88
    CHUNKS = 96
    TICKET = 104
    MEMBERS = 112
    SLEEPS = 128
    OWNER = 136
    THREAD = 144
    AVOIDS = 152
    SLOT = 192

    DONE = 192
    BUSY = 256
    PHASE = 264
    MEMBER = 320
    TEAM = 320 + 8 * MAX_THREADS

    @classmethod
    def size(cls, workers: int, teams: int) -> int:
        """Bytes of a pool."""
        return cls.SLOTS_AT + workers * cls.SLOT + teams * cls.TEAM


#: What differs between processors: the hint to a core that a thread is waiting, and numbers of system calls.
_PROCESSOR: Final[dict[str, dict[str, str | int]]] = {
    "x86_64": {
        "pause": "@llvm.x86.sse2.pause()",
        "declared_pause": "@llvm.x86.sse2.pause()",
        "futex": 202,
        "gettid": 186,
        "sched_setaffinity": 203,
        "sched_yield": 24,
    },
    "aarch64": {
        "pause": "@llvm.aarch64.hint(i32 1)",
        "declared_pause": "@llvm.aarch64.hint(i32)",
        "futex": 98,
        "gettid": 178,
        "sched_setaffinity": 122,
        "sched_yield": 124,
    },
}


class WalkerSource:
    """The module of three functions: ``symbol`` walks, with "_worker" it serves, with "_stop" it ends the workers."""

    symbol = "accord_walk"

    @functools.cached_property
    def key(self) -> bytes:
        """What its machine code is kept under."""
        return text_key(self.module(self.symbol))

    def module(self, name: str) -> str:
        """LLVM text."""
        numbers = {k: v for k, v in vars(Layout).items() if isinstance(v, int)}
        words: dict[str, str | int] = {
            **numbers,
            **_PROCESSOR[machine().arch],
            "FIELDS": FIELDS,
            "MAX_THREADS": MAX_THREADS,
            "MAX_CPUS": MAX_CPUS,
            "CPU_WORDS": MAX_CPUS // 64,
            "CPU_BYTES": MAX_CPUS // 8,
            "chunks": _CHUNKS,
            "walk": name,
            "worker": f"{name}_worker",
            "stop": f"{name}_stop",
        }
        template = Path(__file__).with_name("walker.ll").read_text()
        return re.sub(r"\$\{(\w+)\}", lambda found: str(words[found[1]]), template)
