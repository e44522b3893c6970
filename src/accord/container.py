"""What the control groups of a container allow; both versions of the interface, at every level above this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_quota", "limits"]

_ROOT = Path("/")


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Folders of the control groups that this process is in, the innermost first."""
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        start = base / controller if controllers else base
        parts = [p for p in path.split("/") if p and p != ".."]
        for k in range(len(parts), -1, -1):
            yield start.joinpath(*parts[:k])
    yield base  # inside a container the paths are those of the host
    yield base / controller


def limits(controller: str, *names: str, root: Path = _ROOT) -> list[int]:
    """Numbers in files of control groups; words such as "max" are no limit.

    Args:
        controller: "memory", "pids".
        names: Of the files, in both versions.
        root: Of the file system, for tests.
    """
    found = []
    for folder in dict.fromkeys(_folders(controller, root)):
        for name in names:
            with contextlib.suppress(ValueError):
                found.append(int(_text(folder / name)))
    return found


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Cores' worth of time that this process may use; None where there is no limit."""
    shares = []
    for folder in dict.fromkeys(_folders("cpu", root)):
        words = _text(folder / "cpu.max").split() or [
            _text(folder / f"cpu.cfs_{n}_us").strip() for n in ("quota", "period")
        ]
        with contextlib.suppress(ValueError, IndexError, ZeroDivisionError):
            if (quota := int(words[0])) > 0:
                shares.append(quota / int(words[1]))
    return min(shares, default=None)
