"""What a benchmark must know of the machine it runs on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["gpu", "invocation", "machine", "settle"]

_DISTRIBUTIONS = (
    *("accord", "numpy", "onnx", "onnxruntime", "openvino", "llvmlite"),
    *("cuda-bindings", "cuda-core", "triton", "torch", "torchvision", "transformers", "onnxruntime-gpu"),
)
#: What nvidia-smi tells of a GPU.
_ASKED = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit")


def invocation() -> str:
    """How this was called, with the names of files: where they are is nobody's business."""
    folder = Path(sys.argv[0]).resolve().parent.name
    given = (a if not Path(a).is_absolute() else Path(a).name for a in sys.argv[1:])
    return " ".join(["python", f"{folder}/{Path(sys.argv[0]).name}", *given])


def machine() -> dict[str, Any]:
    """Processor, memory, system and versions; what a figure is worth nothing without."""
    info = Path("/proc/cpuinfo")
    fields = (
        dict(map(str.strip, f.split(":", 1)) for f in info.read_text().splitlines() if ":" in f)
        if info.exists()
        else {}
    )
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": fields.get("model name", platform.processor()),
        "family": f"{fields.get('cpu family', '?')}/{fields.get('model', '?')}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def gpu() -> list[dict[str, str]]:
    """The GPUs of this machine, as ``nvidia-smi`` tells; none where it is not there."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(_ASKED, map(str.strip, line.split(",")), strict=True)) for line in done.stdout.splitlines()]


def settle(limit: float = 60.0) -> None:
    """Wait until hardly anything else runs, at most ``limit`` seconds; times taken before that mean little."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        before = _busy_ticks()
        time.sleep(0.25)
        if before is None or _busy_ticks() - before <= 2:  # a tick is 10 ms: 2 of 50 on two cores
            return


def _busy_ticks() -> int | None:
    """Ticks in which the cores worked since the start; None where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _waiting, *others = map(int, stat.read_text().splitlines()[0].split()[1:])
    return user + nice + system + sum(others[:3])
