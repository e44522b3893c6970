"""What the last `accord op check` of an operator found, kept beside its document.

A file ``checks.json``::

    {"kind": "accord check records", "format": 1,
     "operators": {"shop::Gate": {"c": {"digest": "…", "seed": 0, "calls": 812, "dtypes": ["float32"],
                                        "sizes": {"N": [0, 257]}, "checks": {"meaning": 40},
                                        "findings": ["execution.accumulate: …"], "notes": []}}}}
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from accord.errors import AccordError, InputError

__all__ = ["FORMAT", "CheckRecord", "add_records", "read_records", "write_json"]

FORMAT: Final = 1
_KIND: Final = "accord check records"


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """What checking one kernel found.

    Attributes:
        digest: Hash of its code then; see :func:`accord.workbench.author.code_digest`.
        seed: All that was drawn follows from it.
        calls: How many.
        dtypes: That it was called with.
        sizes: Least and greatest by name.
        checks: Cases by check.
        findings: Clause and sentence of each; none where it keeps its contract, as far as was tried.
        notes: What was not tried, and why.
    """

    digest: str
    seed: int = 0
    calls: int = 0
    dtypes: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    checks: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_records(path: Path) -> dict[str, dict[str, CheckRecord]]:
    """Records by operator and kernel; none if there is no such file.

    Raises:
        InputError: it is something else, or damaged.
    """
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["kind"] != _KIND or data["format"] != FORMAT:
            raise InputError(f"'{path}' holds no check records of format {FORMAT}", found=data.get("format"))
        return {op: {k: _record(r) for k, r in kernels.items()} for op, kernels in data["operators"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"the check records '{path}' are damaged: {type(error).__name__}: {error}",
            remedy="Remove the file and check again: accord op check NAME --record FILE.",
        ) from error


def add_records(path: Path, operator: str, records: Mapping[str, CheckRecord]) -> None:
    """Put the records of an operator's kernels into a file, beside those that it has.

    Raises:
        InputError: the file is something else; it stays as it is.
        AccordError: it cannot be written.
    """
    known = read_records(path)
    known[operator] = {**known.get(operator, {}), **records}
    operators = {op: {k: asdict(r) for k, r in sorted(kernels.items())} for op, kernels in sorted(known.items())}
    write_json(path, {"kind": _KIND, "format": FORMAT, "operators": operators})


def _record(data: Mapping[str, Any]) -> CheckRecord:
    return CheckRecord(
        digest=str(data["digest"]),
        seed=int(data["seed"]),
        calls=int(data["calls"]),
        dtypes=tuple(data["dtypes"]),
        sizes={n: (int(low), int(high)) for n, (low, high) in data["sizes"].items()},
        checks={n: int(v) for n, v in data["checks"].items()},
        findings=tuple(data["findings"]),
        notes=tuple(data["notes"]),
    )


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON; the file is complete or as it was.

    Raises:
        AccordError: it cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
                file.write("\n")
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise AccordError(f"'{path}' cannot be written: {error.strerror or error}") from error
