"""Counters of the hardware from Nsight Compute (``ncu``), which runs a command and prints them as CSV."""

from __future__ import annotations

import csv
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from accord.errors import BackendError
from accord.profile.device import DeviceProfile

__all__ = ["Counters", "counters_of", "parse", "with_counters"]

_OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
_BYTES: Final = "dram__bytes.sum"
#: What the units that ncu prints stand for.
_UNITS: Final = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 0.01}


@dataclass(frozen=True, slots=True)
class Counters:
    """What the hardware counted of a kernel.

    Attributes:
        occupancy: Resident warps of those that there could be, while the kernel ran.
        nbytes: Read from the device's memory and written to it.
    """

    occupancy: float
    nbytes: float


def parse(text: str) -> dict[str, Counters]:
    """Medians by name of the kernel, from what ``ncu --csv --page raw`` prints: a row of names, one of units, the rest.

    Raises:
        BackendError: there is no such table; what ncu said instead is in the message.
    """
    lines = text.splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"') and _OCCUPANCY in line), None)
    if start is None:
        said = " ".join(line for line in lines if line.startswith("==ERROR==")) or text.strip()[-300:]
        raise BackendError(
            f"Nsight Compute gave no counters: {said or 'nothing'}",
            remedy="Where the driver keeps profiling to the administrator (NVreg_RestrictProfilingToAdminUsers), "
            "run as root.",
        )
    names, units, *rows = csv.reader(lines[start:])
    found: dict[str, list[Counters]] = {}
    for row in rows:
        if len(row) == len(names):
            values = dict(zip(names, row, strict=True))
            scaled = [_number(values[m], units[names.index(m)]) for m in (_OCCUPANCY, _BYTES)]
            found.setdefault(values["Kernel Name"], []).append(Counters(*scaled))
    return {
        name: Counters(statistics.median(c.occupancy for c in own), statistics.median(c.nbytes for c in own))
        for name, own in found.items()
    }


def counters_of(command: Sequence[str], seconds: float) -> dict[str, Counters]:
    """The counters of the kernels that a command runs.

    Args:
        command: A program and its arguments; the fewer kernels it runs the better, since each runs several times.
        seconds: After which it is ended.

    Raises:
        BackendError: ncu is not there, gives nothing, or takes too long.
    """
    tool = _tool()
    given = ["--csv", "--page", "raw", "--metrics", f"{_OCCUPANCY},{_BYTES}", "--clock-control", "none"]
    try:
        done = subprocess.run(
            [tool, *given, "--target-processes", "all", *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            f"Nsight Compute was not done within {seconds:.0f} s", remedy="Profile fewer steps."
        ) from error
    return parse(done.stdout + done.stderr)


def _tool() -> str:
    places = ["", *_folders()]
    for place in places:
        found = shutil.which("ncu", path=place or None)
        if found is not None:
            return found
    raise BackendError(
        "Nsight Compute (ncu) is not there",
        remedy="Install the package nsight-compute of the CUDA toolkit, or profile without --counters.",
    )


def _folders() -> Iterable[str]:
    own = sorted(Path("/usr/local").glob("cuda*/bin"), reverse=True)
    return [os.fspath(p) for p in (*own, *sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True))]


def _number(text: str, unit: str) -> float:
    return float(text.replace(",", "")) * _UNITS.get(unit, 1)


def with_counters(device: DeviceProfile, counters: Mapping[str, Counters]) -> DeviceProfile:
    """A profile with what the hardware counted of the kernels that have the same names."""
    kernels = tuple(
        k if (c := counters.get(k.name)) is None else replace(k, achieved=c.occupancy, memory_bytes=round(c.nbytes))
        for k in device.kernels
    )
    return replace(device, kernels=kernels)
