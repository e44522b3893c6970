"""What the machine at hand can do at most: multiply-adds, and bytes from each level of memory. Measured, then kept.

Each figure is the best of several short measurements: what else the machine does can only make one slower. How far the
middle one lies below the best tells how quiet the machine was.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from accord.backends.cpu.jit import load
from accord.backends.cpu.machine import machine
from accord.backends.cpu.program import CpuProgram, KernelCode
from accord.backends.protocol import Launch, Phase
from accord.model.limits import physical_memory
from accord.profile.probes import CopyProbe, MultiplyProbe, ReadProbe, block_bytes, multiply_dtypes
from accord.storage import Storage

__all__ = ["Level", "Peaks", "Rate", "bound", "keep_peaks", "kept_peaks", "measure", "peaks"]

#: Tasks for each thread in one measurement: enough for a thread that starts late to find some left.
_TASKS: Final = 8
#: Turns of the multiply-add loop, and bytes that are moved, in one task: some tens of microseconds.
_TURNS: Final = 8_000
_MOVED: Final = 2 << 20
#: A figure is measured for so many seconds, and by one thread only until so many measurements in a row were no better:
#: on a machine with other work it takes longer to meet a moment in which all threads run.
_SECONDS: Final = 0.06
_REPEATS: Final = 7
#: Bytes of a region of what is larger than the caches of one core.
_REGION: Final = 128 << 10
#: Most bytes of the region that is to be in memory and in no cache.
_MOST: Final = 256 << 20
#: A figure whose middle measurement is this far below the best was disturbed.
_NOISY: Final = 0.25
#: So are figures of several threads that together do less than this part of what so many single ones do.
_SCALES: Final = 0.6


@dataclass(frozen=True, slots=True)
class Rate:
    """A measured speed.

    Attributes:
        best: Operations or bytes a second.
        spread: How much slower the middle measurement was, relative to the best.
    """

    best: float
    spread: float

    def better(self, other: Rate) -> Rate:
        """The faster of two."""
        return self if self.best >= other.best else other


@dataclass(frozen=True, slots=True)
class Level:
    """A level of memory.

    Attributes:
        name: "L1", "L2", "L3" or "memory".
        capacity: Bytes that it holds for all threads together; None for memory.
        read: Bytes a second, all threads together.
        copy: The same for copying; what is read and what is written both count.
    """

    name: str
    capacity: int | None
    read: Rate
    copy: Rate


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the machine can do on a number of threads.

    Attributes:
        threads: How many.
        multiply: Operations a second by dtype: "f32", "f64", and "i8" where there are instructions for it; a
            multiply-add is two.
        levels: The fastest first.
        scaling: Multiply-adds in "f32" against those of one thread.
    """

    threads: int
    multiply: Mapping[str, Rate]
    levels: tuple[Level, ...]
    scaling: float = 1.0

    @property
    def disturbed(self) -> bool:
        """Whether something else seems to have run meanwhile; threads that share a core look the same."""
        near = (r for x in self.levels if x.capacity is not None for r in (x.read, x.copy))
        noisy = max(r.spread for r in (*self.multiply.values(), *near)) > _NOISY
        return noisy or self.scaling < _SCALES * self.threads

    def level(self, nbytes: int) -> Level:
        """The fastest level that holds ``nbytes``."""
        return next(x for x in self.levels if x.capacity is None or nbytes <= x.capacity)

    def better(self, other: Peaks) -> Peaks:
        """The best of two measurements."""
        multiply = {d: r.better(other.multiply[d]) for d, r in self.multiply.items()}
        levels = tuple(
            Level(a.name, a.capacity, a.read.better(b.read), a.copy.better(b.copy))
            for a, b in zip(self.levels, other.levels, strict=True)
        )
        return Peaks(self.threads, multiply, levels, max(self.scaling, other.scaling))

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "disturbed": self.disturbed}


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that the machine needs for some work.

    Attributes:
        seconds: The greater of the two.
        arithmetic: Seconds for the operations; 0 where they are unknown.
        transfer: Seconds for the bytes.
        level: The level of memory that holds them.
    """

    seconds: float
    arithmetic: float
    transfer: float
    level: str


def bound(at: Peaks, dtype: str | None, operations: int, read: int, written: int) -> Bound:
    """The least time for an amount of work: the roofline of Williams, Waterman and Patterson (2009), as a time.

    Args:
        at: Peaks.
        dtype: What is computed with; None or a dtype without a peak leaves the operations out.
        operations: Arithmetic operations.
        read: Bytes read.
        written: Bytes written.
    """
    rate = None if dtype is None else at.multiply.get(dtype)
    arithmetic = operations / rate.best if rate is not None else 0.0
    level = at.level(read + written)
    both = min(read, written)
    transfer = 2 * both / level.copy.best + (read + written - 2 * both) / level.read.best
    return Bound(max(arithmetic, transfer), arithmetic, transfer, level.name)


# measuring


def peaks(threads: int, *, again: bool = False) -> Peaks:
    """The peaks of this machine on ``threads`` threads: those kept, or measured now, which takes about a second.

    Figures that were disturbed are kept for this process only.

    Args:
        threads: How many threads.
        again: Measure even if figures are kept; the best of both are kept then.
    """
    key = _key(threads)
    known = kept_peaks(key)
    if known is not None and not again:
        return known
    found = measure(threads)
    if threads > 1:
        one = peaks(1, again=again).multiply["f32"].best
        found = replace(found, scaling=found.multiply["f32"].best / one)
    if known is not None:
        found = found.better(known)
    keep_peaks(key, found)
    return found


def measure(threads: int) -> Peaks:
    """Measure the peaks on ``threads`` threads."""
    at = machine()
    multiplies = [MultiplyProbe(d) for d in multiply_dtypes(at)]
    load([*multiplies, ReadProbe(), CopyProbe()])
    sums = _aligned(64 * threads)
    tasks = _TASKS * threads
    multiply = {}
    for probe in multiplies:
        seconds = _times(probe, (_TURNS,), [sums], tasks, threads)
        multiply[probe.dtype] = _rate(probe.operations * _TURNS * tasks, seconds)
    shared = at.l3 or at.l2 * threads
    memory = _aligned(max(min(max(4 * shared, 32 << 20), _MOST, physical_memory() // 8), at.l2 * threads))
    memory[::4096] = 1  # pages exist once they are written to
    levels = [
        Level(name, size * threads, *_in_own_cache(memory, sums, size // 2, threads))
        for name, size in (("L1", at.l1d), ("L2", at.l2))
    ]
    if at.l3 > at.l2 * threads:
        levels.append(Level("L3", at.l3, *_in_shared(memory[: at.l3 // 2], sums, threads)))
    levels.append(Level("memory", None, *_in_shared(memory, sums, threads)))
    return Peaks(threads, multiply, tuple(levels))


def _in_own_cache(
    memory: np.ndarray[Any, Any], sums: np.ndarray[Any, Any], size: int, threads: int
) -> tuple[Rate, Rate]:
    """Speed of reading and of copying ``size`` bytes a thread again and again."""
    tasks, rates = _TASKS * threads, []
    for probe, parts in ((ReadProbe(), 1), (CopyProbe(), 2)):
        blocks = max(1, size // (parts * block_bytes()))
        moved = parts * blocks * block_bytes()
        passes = max(1, _MOVED // moved)
        operands = [memory, sums if parts == 1 else memory[blocks * block_bytes() * threads :]]
        seconds = _times(probe, (blocks, passes, 0), operands, tasks, threads)
        rates.append(_rate(moved * passes * tasks, seconds))
    return rates[0], rates[1]


def _in_shared(memory: np.ndarray[Any, Any], sums: np.ndarray[Any, Any], threads: int) -> tuple[Rate, Rate]:
    """Speed of reading all of ``memory`` region by region, and of copying one half of it to the other."""
    rates = []
    for probe, parts in ((ReadProbe(), 1), (CopyProbe(), 2)):
        regions = max(1, memory.nbytes // (parts * _REGION))
        operands = [memory, sums if parts == 1 else memory[regions * _REGION :]]
        seconds = _times(probe, (_REGION // block_bytes(), 1, regions), operands, regions, threads)
        rates.append(_rate(parts * _REGION * regions, seconds))
    return rates[0], rates[1]


def _times(
    code: KernelCode, params: tuple[int, ...], operands: list[np.ndarray[Any, Any]], tasks: int, threads: int
) -> list[float]:
    """Seconds of each measurement."""
    table = np.array([a.ctypes.data for a in operands], np.int64)
    phase = Phase(code, tuple(range(len(operands))), ())
    program = CpuProgram([(phase, Launch(params, tasks))], [table], threads)
    program.run()
    seconds = np.empty(1)
    found: list[float] = []
    best, since, end = float("inf"), 0, time.perf_counter() + _SECONDS
    while (threads > 1 or since < _REPEATS) and time.perf_counter() < end:
        program.run_timed(seconds)
        found.append(float(seconds[0]))
        since = 0 if found[-1] < 0.98 * best else since + 1
        best = min(best, found[-1])
    return found


def _rate(amount: float, seconds: list[float]) -> Rate:
    best = min(seconds)
    return Rate(amount / best, 1 - best / statistics.median(seconds))


def _aligned(nbytes: int) -> np.ndarray[Any, Any]:
    raw = np.zeros(nbytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + nbytes]


# keeping

#: What this process measured.
_MEASURED: dict[str, Peaks] = {}


def _key(threads: int) -> str:
    here = Path(__file__)
    own = b"".join(here.with_name(name).read_bytes() for name in (here.name, "probes.py"))
    text = f"{machine().key} {machine().cores} {_model_name()} {threads} {hashlib.sha256(own).hexdigest()}"
    return hashlib.sha256(text.encode()).hexdigest()


def _model_name() -> str:
    """What the processor is sold as: clocks differ between processors of one make."""
    try:
        with Path("/proc/cpuinfo").open("rb", buffering=0) as file:
            text = file.read(8192).decode(errors="replace")
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")


def keep_peaks(key: str, found: Peaks) -> None:
    """Keep figures for this process, and on disk unless they were disturbed."""
    _MEASURED[key] = found
    if not found.disturbed:
        Storage("peaks").write(key, [json.dumps(found.data()).encode()])


def kept_peaks(key: str) -> Peaks | None:
    """Figures that were kept."""
    return _MEASURED.get(key) or _read(key)


def _read(key: str) -> Peaks | None:
    payload = Storage("peaks").read(key)
    if payload is None:
        return None
    try:
        found = json.loads(bytes(payload))
        levels = tuple(Level(x["name"], x["capacity"], Rate(**x["read"]), Rate(**x["copy"])) for x in found["levels"])
        multiply = {d: Rate(**r) for d, r in found["multiply"].items()}
        return Peaks(found["threads"], multiply, levels, found["scaling"])
    except (ValueError, KeyError, TypeError):
        return None
