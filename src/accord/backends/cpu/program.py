"""Running consecutive phases with one call from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from accord.backends.cpu.jit import cache_key, entries
from accord.backends.cpu.repetition import run_rounds
from accord.backends.cpu.threads import pool
from accord.backends.cpu.walker import FIELDS
from accord.backends.protocol import Array, Launch, Phase, Program, Rounds, StoredCodeError
from accord.record import record

__all__ = ["CompiledCode", "CpuProgram", "KernelCode", "address_of", "word_of", "words_of"]

#: Runs whose phases are timed, to see which are worth sharing.
_TRIALS: Final = 3

#: Nanoseconds of work that a thread must get from a phase to be given any: starting and ending it takes about 1000.
_SHARE_NS: Final = 2_000

#: Nanoseconds of work worth sharing in a whole program for which sleeping workers are woken.
_WAKE_NS: Final = 20_000


class CpuProgram(Program):
    """Rows of (function, parameters, operands, tasks, threads) for the walker.

    The first runs share every phase that has several tasks, and are timed; after them, each phase keeps as many threads
    as its measured work is worth.
    """

    def __init__(self, launches: Sequence[tuple[Phase, Launch]], operands: Sequence[Array], threads: int = 1) -> None:
        words: list[int] = []
        starts = []
        for _, launch in launches:
            starts.append(len(words))
            words += map(word_of, launch.params)
            words.append(0)  # the refusal
        self._params = np.array(words, np.int64)
        self._operands = list(operands)
        base = self._params.ctypes.data
        rows = np.array(
            [
                (address_of(phase), base + 8 * start, table.__array_interface__["data"][0], launch.tasks, threads)
                for (phase, launch), start, table in zip(launches, starts, operands, strict=True)
            ],
            np.int64,
        ).reshape(len(launches), FIELDS)
        self._rows = rows
        self._address = rows.ctypes.data
        self._count = len(launches)
        self._threads = threads if bool((rows[:, 3] > 1).any()) else 1
        #: Phases that may refuse their data, and the word that says so.
        self._checked = [
            (k, starts[k] + len(launch.params))
            for k, (phase, launch) in enumerate(launches)
            if getattr(phase.code, "checks", False)
        ]
        self._trials = _TRIALS if self._threads > 1 else 0
        self._best = np.full(len(launches), np.iinfo(np.int64).max, np.int64)

    def run(self) -> int:
        """Run all phases; the number of the first that set its refusal word, else -1."""
        if self._trials:
            self._try()
        else:
            p = pool()
            if self._threads > 1:
                p.require(self._threads)
            p.walk(self._address, self._count, p.address, self._threads, 0)
        return self._refusal() if self._checked else -1

    @property
    def repeats(self) -> bool:
        """Once it is known how many threads each phase is worth."""
        return not self._trials

    def repeat(self, rounds: Rounds, count: int) -> tuple[int, int]:
        """Run up to ``count`` rounds; returns how many there were, and as :meth:`run`."""
        p = pool()
        if self._threads > 1:
            p.require(self._threads)
        base = self._params.ctypes.data
        checks = [(base + 8 * word,) for _, word in self._checked]
        program = (self._address, self._count, p.address, self._threads)
        done = run_rounds(program, p.walk_address, rounds, checks, count)
        return done, self._refusal() if self._checked else -1

    def run_timed(self, seconds: Array) -> int:
        """As :meth:`run`, and how long each phase took.

        Args:
            seconds: Receives one float64 for each phase.
        """
        np.multiply(self._try() if self._trials else self._walk_timed(), 1e-9, out=seconds)
        return self._refusal() if self._checked else -1

    def _try(self) -> Array:
        """One of the first runs; the nanoseconds of each phase."""
        times = self._walk_timed()
        np.minimum(self._best, times, out=self._best)
        self._trials -= 1
        if not self._trials:
            self._settle()
        return times

    def _walk_timed(self) -> Array:
        """Run all phases; the nanoseconds of each."""
        times = np.zeros(self._count, np.int64)
        p = pool()
        if self._threads > 1:
            p.require(self._threads)
        p.walk(self._address, self._count, p.address, self._threads, times.ctypes.data)
        return times

    def _settle(self) -> None:
        """Choose the threads of each phase by what its work was at most."""
        rows = self._rows
        work = self._best * np.minimum(rows[:, 3], self._threads)
        rows[:, 4] = np.clip(work // _SHARE_NS, 1, self._threads)
        if int(work[rows[:, 4] > 1].sum()) < _WAKE_NS:
            self._threads = 1

    def _refusal(self) -> int:
        found = -1
        for k, word in self._checked:
            if self._params[word]:
                if found < 0:
                    found, self.refusal = k, int(self._params[word])
                self._params[word] = 0  # all of them: the next run begins anew
        return found


def words_of(launch: Launch) -> Array:
    """The parameters as machine code reads them, and the word in which it may refuse its data."""
    return np.array([*map(word_of, launch.params), 0], np.int64)


def word_of(param: Any) -> int:
    """A parameter as machine code reads it: an address where it is code."""
    return param.address if isinstance(param, KernelCode) else param


def address_of(phase: Phase) -> int:
    """Machine code of a phase, compiled when it is first needed."""
    code = phase.code
    if not isinstance(code, KernelCode):
        raise TypeError(f"the CPU backend cannot compile {type(code).__name__}")
    return code.address


class KernelCode:
    """What a phase's ``code`` is: hashable, and able to write its module.

    Attributes:
        checks: The kernel may refuse its data. It then sets the word after its last parameter to something other
            than zero, and goes on without reading or writing outside its operands.
    """

    checks: ClassVar[bool] = False

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "_address"}  # it means nothing to another process

    def as_stored(self) -> CompiledCode:
        """What a stored plan has in its place."""
        needs = tuple(code.as_stored() for code in self.needs)
        return CompiledCode(self.symbol, cache_key(self), self.checks, needs)

    @property
    def symbol(self) -> str:
        """A name by content: equal names mean equal machine code, for one version of Accord and one machine."""
        raise TypeError(f"{type(self).__name__} has no symbol")

    @property
    def needs(self) -> tuple[KernelCode, ...]:
        """Code of functions whose addresses its launches will ask for, to be compiled together with it."""
        return ()

    def module(self, name: str) -> str:
        """LLVM text of a module that defines kernel ``name``."""
        raise TypeError(f"{type(self).__name__} has no module")

    @property
    def address(self) -> int:
        """Address of the machine code in this process, compiled when it is first needed."""
        known = self.__dict__.get("_address")
        if known is None:
            symbol = self.symbol
            known = self.__dict__["_address"] = entries(self)[symbol]
        return int(known)


@record
class CompiledCode(KernelCode):
    """Code that was compiled before: a stored plan knows no more of it than where its machine code is kept.

    Attributes:
        name: Its symbol.
        key: Of its machine code in the cache.
        refuses: Its ``checks``.
        functions: Its ``needs``.
    """

    name: str
    key: bytes
    refuses: bool
    functions: tuple[CompiledCode, ...] = ()

    @property
    def checks(self) -> bool:  # type: ignore[override]
        """As of the code that it stands for."""
        return self.refuses

    @property
    def needs(self) -> tuple[KernelCode, ...]:
        """As of the code that it stands for."""
        return self.functions

    @property
    def symbol(self) -> str:
        """The name."""
        return self.name

    def module(self, name: str) -> str:
        """Never: its text is not known.

        Raises:
            StoredCodeError: the cache has lost its machine code.
        """
        raise StoredCodeError(f"the machine code of {name} is no longer in the cache")
