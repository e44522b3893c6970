"""Records as CUPTI gives them, of runs that never were: two steps on a GPU with one on the host between them."""

from __future__ import annotations

import struct
from typing import Any

from accord.backends.cuda.cupti import Activity, Call, Copy, Kernel, Wait
from accord.profile.device import Expected, RunWindows, Window
from accord.profile.occupancy import Limits

H200 = Limits(processors=132, threads=2048, blocks=32, registers=65536, shared=233472, reserved=1024)
#: Numbers of the default stream and of Accord's.
DEFAULT, OWN, OTHER = 7, 13, 14
EXECUTOR = 1000


def key(step: int) -> tuple[int, int]:
    return EXECUTOR, step


def kernel(name: str, start: int, end: int, correlation: int, **changes: Any) -> Kernel:
    known: dict[str, Any] = {
        "name": name, "start": start, "end": end, "stream": OWN, "context": 1, "correlation": correlation, "node": 0,
        "grid": (264, 1, 1), "block": (256, 1, 1), "registers": 64, "shared": 0, "local": 0, **changes,
    }  # fmt: skip
    return Kernel(**known)


def copy(direction: str, start: int, end: int, correlation: int, **changes: Any) -> Copy:
    known: dict[str, Any] = {
        "direction": direction, "source": "pinned", "target": "device", "nbytes": 4096, "start": start, "end": end,
        "stream": OWN, "context": 1, "correlation": correlation, "node": 0, **changes,
    }  # fmt: skip
    return Copy(**known)


def call(name: str, start: int, end: int, correlation: int, *, runtime: bool = False) -> Call:
    return Call(name, runtime, start, end, 1, correlation)


class Story:
    """Runs, told by the nanosecond; each call of ``run`` begins one."""

    def __init__(self) -> None:
        self.activity = Activity(default_streams={(1, DEFAULT)})
        self.runs: list[RunWindows] = []

    def run(self, start: int, end: int) -> None:
        self.runs.append(RunWindows(start, end))

    def segment(
        self,
        start: int,
        end: int,
        *steps: int,
        copies: tuple[tuple[int, int], ...] = (),
        names: tuple[str | None, ...] = (),
    ) -> None:
        """A native one: ``steps`` launch a kernel each, of ``names`` if they are told; ``copies`` are (step, bytes)."""
        launches = [Expected(key(s), None, n) for s, n in zip(steps, names or ("",) * len(steps), strict=True)]
        launches += [Expected(key(s), n) for s, n in copies]
        every = tuple(dict.fromkeys(e.step for e in launches))
        self.runs[-1].windows.append(Window(every, start, end, host=False, launches=tuple(launches)))

    def host(self, start: int, end: int, step: int) -> None:
        self.runs[-1].windows.append(Window((key(step),), start, end, host=True))

    def add(self, *records: Kernel | Copy | Call | Wait) -> None:
        self.activity.records += records


def kernel_bytes(**fields: int) -> bytes:
    """A kernel's record as version 9 of the structure lies in memory."""
    data = bytearray(208)
    places = {
        "kind": ("I", 0), "registers": ("H", 6), "start": ("Q", 16), "end": ("Q", 24), "context": ("I", 44),
        "stream": ("I", 48), "grid": ("I", 52), "block": ("I", 64), "static": ("I", 76), "dynamic": ("I", 80),
        "local": ("I", 84), "correlation": ("I", 92), "name": ("Q", 104), "node": ("Q", 144),
    }  # fmt: skip
    for axis in (56, 60, 68, 72):
        struct.pack_into("<I", data, axis, 1)
    for name, value in fields.items():
        form, place = places[name]
        struct.pack_into(f"<{form}", data, place, value)
    return bytes(data)
