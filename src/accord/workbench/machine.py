"""What a figure must be kept with: the machine and the settings that it was measured with."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

import accord
from accord.backends.cpu.machine import machine
from accord.model.limits import physical_memory

__all__ = ["identity", "versions"]


def identity(threads: int) -> dict[str, Any]:
    """What must be the same for two figures to be compared.

    Args:
        threads: For one run.
    """
    at = machine()
    return {
        "processor": _processor(),
        "instructions": f"{at.arch} {hashlib.sha256(at.key.encode()).hexdigest()[:12]}",
        "cores": at.cores,
        "memory": f"{_power_of_two(physical_memory() >> 30)} GiB",
        "ACCORD_CPU": os.environ.get("ACCORD_CPU") or "native",
        "threads": threads,
    }


def versions() -> dict[str, str]:
    """What may differ, and is told if it does."""
    return {"accord": accord.__version__, "python": platform.python_version(), "numpy": np.__version__}


def _power_of_two(number: int) -> int:
    """The least power of two that is not less: what is left of the memory differs between boots."""
    return 1 << max(0, number - 1).bit_length() if number > 1 else 1


def _processor() -> str:
    """Name, family, model and stepping, as Linux says."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0]
    except OSError:
        return platform.processor() or platform.machine()
    fields = {n.strip(): v.strip() for n, _, v in (line.partition(":") for line in text.splitlines())}
    known = [fields[n] for n in ("model name", "cpu family", "model", "stepping") if n in fields]
    return "/".join(known) or platform.machine()
