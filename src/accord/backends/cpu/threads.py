"""The threads that programs share: one pool for the process, used by all sessions and by runs at the same time.

Workers are Python threads that sit in a compiled loop without the interpreter's lock (``walker.ll``). They are started
when a program first asks for them, spin for a moment between phases, and sleep otherwise. Together with the threads
that call, no more run than there are cores: a run takes the workers that are free and goes on alone if there are none.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from typing import Final

from accord.backends.cpu.jit import entries
from accord.backends.cpu.machine import machine
from accord.backends.cpu.memory import zeroed
from accord.backends.cpu.walker import MAX_CPUS, MAX_THREADS, Layout, WalkerSource

__all__ = ["ThreadPool", "pool"]

#: Runs that can use workers at the same time; further ones go on alone.
_TEAMS: Final = 16

#: How long a worker looks for work before it sleeps: longer than Python takes from one run to the next.
_SPIN_NS: Final = 50_000

_Walk = Callable[[int, int, int, int, int], None]


@functools.cache
def _functions() -> tuple[_Walk, Callable[[int, int], None], Callable[[int], None]]:
    """The compiled loops: walk, worker, stop. They let go of the interpreter's lock."""
    source = WalkerSource()
    found = entries(source)
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    return (
        ctypes.CFUNCTYPE(None, pointer, word, pointer, word, pointer)(found[source.symbol]),
        ctypes.CFUNCTYPE(None, pointer, pointer)(found[f"{source.symbol}_worker"]),
        ctypes.CFUNCTYPE(None, pointer)(found[f"{source.symbol}_stop"]),
    )


class ThreadPool:
    """Workers and the memory that they share.

    Args:
        cores: Threads that may run at once, those that call included.

    Attributes:
        address: Of the memory, for :attr:`walk`.
        walk: ``walk(rows, count, address, threads, times)``: run rows on up to ``threads`` threads; ``times`` is the
            address of one int64 for each row that receives its nanoseconds, or 0.
        walk_address: Where its machine code is.
    """

    def __init__(self, cores: int) -> None:
        self._capacity = min(cores, MAX_THREADS) - 1
        self.address = zeroed(Layout.size(self._capacity, _TEAMS))
        library = ctypes.CDLL(None)
        for at, value in {
            Layout.CORES: cores,
            Layout.SPIN: _SPIN_NS,
            Layout.SYSCALL: ctypes.cast(library.syscall, ctypes.c_void_p).value,
            Layout.CLOCK: ctypes.cast(library.clock_gettime, ctypes.c_void_p).value,
            Layout.GETCPU: ctypes.cast(library.sched_getcpu, ctypes.c_void_p).value,
            Layout.TEAMS: _TEAMS,
            Layout.TEAMS_AT: Layout.SLOTS_AT + self._capacity * Layout.SLOT,
        }.items():
            self._word(at).value = value or 0
        for cpu in os.sched_getaffinity(0):
            if cpu < MAX_CPUS:
                self._word(Layout.CPUS + cpu // 64 * 8).value |= 1 << cpu % 64
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.walk, self._work, self._stop = _functions()
        self.walk_address = ctypes.cast(self.walk, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def require(self, threads: int) -> None:
        """Have workers for a run on ``threads`` threads, as far as there are cores for them."""
        if len(self._threads) >= min(threads - 1, self._capacity):
            return
        with self._lock:
            while len(self._threads) < min(threads - 1, self._capacity) and not self._closed:
                k = len(self._threads)
                slot = self.address + Layout.SLOTS_AT + k * Layout.SLOT
                thread = threading.Thread(
                    target=self._work, args=(self.address, slot), name=f"accord-worker-{k}", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the system has no more, or the interpreter is ending
                    self._capacity = k
                    return
                self._threads.append(thread)
                self._word(Layout.WORKERS).value = k + 1

    def close(self) -> None:
        """End the workers; runs under way and later ones go on alone."""
        with self._lock:
            self._closed = True
            self._stop(self.address)
            for thread in self._threads:
                thread.join()

    def _word(self, at: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + at)


class _Process:
    """The pool of this process, made when it is first needed."""

    pool: ThreadPool | None = None
    lock = threading.Lock()


def pool() -> ThreadPool:
    """The pool that all programs of this process share."""
    found = _Process.pool
    if found is None:
        with _Process.lock:
            found = _Process.pool
            if found is None:
                found = _Process.pool = ThreadPool(machine().cores)
    return found


def _close() -> None:
    if _Process.pool is not None:
        _Process.pool.close()


def _after_fork() -> None:
    """A child process has none of its parent's workers, and the state of their memory means nothing to it."""
    _Process.pool = None
    _Process.lock = threading.Lock()


atexit.register(_close)
os.register_at_fork(after_in_child=_after_fork)
