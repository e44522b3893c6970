"""Baselines: what kernels took on a machine, kept in a file that knows where it is from."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from accord.errors import InputError
from accord.workbench.machine import identity, versions
from accord.workbench.measure import Wanted
from accord.workbench.records import write_json

__all__ = ["FORMAT", "KINDS", "Baseline", "BaselineError", "Entry", "Samples", "key_of", "read", "write"]

#: Of the file; raised when what it says is understood differently.
FORMAT: Final = 1
_NAME: Final = "accord gate baseline"
#: What a block measures.
KINDS: Final = ("kernel", "arithmetic", "copy")
#: 95th percentiles in seconds by process, then block, then :data:`KINDS`.
Samples = list[list[dict[str, float]]]


class BaselineError(InputError):
    """A baseline cannot be used: damaged, of another format, or from another machine."""


@dataclass(slots=True)
class Entry:
    """One kernel on one set of arguments.

    Attributes:
        wanted: The operator and its arguments; ``load`` holds absolute paths.
        kernel: Its name.
        digest: Hash of the kernel's code.
        calibration: Sizes of the calibration kernels, and a hash of their code.
        samples: What was measured.
        seconds: Percentiles over all runs.
    """

    wanted: Wanted
    kernel: str
    digest: str
    calibration: dict[str, Any]
    samples: Samples
    seconds: dict[str, float]


@dataclass(slots=True)
class Baseline:
    """A file.

    Attributes:
        machine: What must be the same; see :func:`accord.workbench.machine.identity`.
        versions: What may differ.
        entries: By :func:`key_of`.
    """

    machine: dict[str, Any]
    versions: dict[str, str]
    entries: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> Baseline:
        """For this machine."""
        return cls(_place(), versions())

    def check_machine(self, path: Path) -> None:
        """Raise unless it is from this machine with these settings.

        Raises:
            BaselineError: it is not; the message says what differs.
        """
        here = _place()
        differ = [n for n in here if self.machine.get(n) != here[n]]
        if differ:
            raise BaselineError(
                f"the baseline '{path.name}' is from another machine, or was measured with other settings",
                expected=", ".join(f"{n} {self.machine.get(n)}" for n in differ),
                found=", ".join(f"{n} {here[n]}" for n in differ),
                remedy="Times of two machines cannot be compared: measure a baseline of this one into another file "
                "(--update with a new name).",
            )


def _place() -> dict[str, Any]:
    """The identity of the machine; threads belong to the entries."""
    return {n: v for n, v in identity(1).items() if n != "threads"}


def key_of(wanted: Wanted, kernel: str) -> str:
    """An entry's name: the operator, the kernel, and what the call was asked to be."""
    parts = [f"{n}={'x'.join(map(str, v))}" for n, v in sorted(wanted.sizes.items())]
    parts += [f"{n}={json.dumps(v)}" for n, v in sorted(wanted.attributes.items())]
    parts += [wanted.dtype] if wanted.dtype else []
    parts += [f"threads={wanted.threads}"] if wanted.threads != 1 else []
    return " ".join([f"{wanted.op}/{kernel}", *parts])


def read(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        BaselineError: there is none, or it is damaged, something else, or of another format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BaselineError(
            f"there is no baseline '{path}'", remedy="Measure one: accord gate FILE --baseline B --update."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"the baseline '{path}' cannot be read: {error}") from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise BaselineError(f"the baseline '{path}' is damaged: it is no JSON ({error})", remedy=_AGAIN) from error
    if not isinstance(data, dict) or data.get("kind") != _NAME:
        raise BaselineError(f"'{path}' is no baseline", expected=f'a file whose "kind" is "{_NAME}"')
    if data.get("format") != FORMAT:
        raise BaselineError(
            f"the baseline '{path}' is of another format", expected=FORMAT, found=data.get("format"), remedy=_AGAIN
        )
    try:
        if data["checksum"] != _checksum(data):
            raise BaselineError(
                f"the baseline '{path}' is damaged: its content does not fit its checksum", remedy=_AGAIN
            )
        entries = {k: _entry(e, path.parent) for k, e in data["entries"].items()}
        return Baseline(dict(data["machine"]), dict(data["versions"]), entries)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BaselineError(
            f"the baseline '{path}' is damaged: {type(error).__name__}: {error}", remedy=_AGAIN
        ) from error


_AGAIN = "Restore it, or move it away and measure again with --update."


def write(path: Path, baseline: Baseline) -> None:
    """Write a baseline; the file is complete or as it was.

    Raises:
        AccordError: it cannot be written.
    """
    folder = path.resolve().parent
    data: dict[str, Any] = {
        "kind": _NAME,
        "format": FORMAT,
        "machine": baseline.machine,
        "versions": baseline.versions,
        "entries": {k: _data(e, folder) for k, e in sorted(baseline.entries.items())},
    }
    data["checksum"] = _checksum(data)
    write_json(path, data)


def _checksum(data: Mapping[str, Any]) -> str:
    text = json.dumps([data["machine"], data["versions"], data["entries"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _data(e: Entry, folder: Path) -> dict[str, Any]:
    w = e.wanted
    return {
        "op": w.op,
        "load": [Path(os.path.relpath(p, folder)).as_posix() for p in w.load],
        "sizes": {n: list(v) for n, v in w.sizes.items()},
        "attributes": dict(w.attributes),
        "dtype": w.dtype,
        "seed": w.seed,
        "threads": w.threads,
        "kernel": e.kernel,
        "digest": e.digest,
        "calibration": e.calibration,
        "seconds": e.seconds,
        "samples": e.samples,
    }


def _entry(data: Mapping[str, Any], folder: Path) -> Entry:
    wanted = Wanted(
        op=str(data["op"]),
        load=tuple(str((folder / p).resolve()) for p in data["load"]),
        sizes={n: tuple(map(int, v)) for n, v in data["sizes"].items()},
        attributes=dict(data["attributes"]),
        dtype=data["dtype"],
        seed=int(data["seed"]),
        threads=int(data["threads"]),
    )
    samples = [[{k: float(b[k]) for k in KINDS} for b in process] for process in data["samples"]]
    _check(samples)
    seconds = {n: float(v) for n, v in data["seconds"].items()}
    return Entry(wanted, str(data["kernel"]), str(data["digest"]), dict(data["calibration"]), samples, seconds)


def _check(samples: Sequence[Sequence[Mapping[str, float]]]) -> None:
    if len(samples) < 2 or not all(samples):
        raise ValueError("there are too few samples")
    if not all(math.isfinite(v) and v > 0 for process in samples for b in process for v in b.values()):
        raise ValueError("a time is not positive")
