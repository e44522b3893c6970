#!/usr/bin/env python
"""Checks all planted kernels and their right twins, and writes docs/planted.md: what was found, by which clause."""

from __future__ import annotations

import importlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "workbench" / "planted"
sys.path[:0] = [str(ROOT / "src"), str(FOLDER)]

HEAD = """# Planted faults

Each row is a kernel that breaks its contract in a way that was seen in the field, beside one of the same design that
keeps it ([`tests/workbench/planted`](../tests/workbench/planted)). `scripts/planted_faults` writes this page.

"""


def findings(task: tuple[Path, Any, str]) -> list[str]:
    """Clauses that the check of one kernel names."""
    from accord.errors import AccordError
    from accord.workbench.run import check_operator

    file, operator, kernel = task
    name = operator.contract.semantic.qualified_name
    try:
        (report,) = check_operator(name, [str(file)], kernel=kernel, seconds=3.0)
        clauses = list(dict.fromkeys(f.clause for f in report.findings))
    except AccordError as error:
        clauses = [f"not checked: {error}"]
    print(f"{name} {kernel}: {', '.join(clauses) or 'nothing found'}", flush=True)
    return clauses


def main() -> None:
    """Write the page; status 1 where a fault was missed or a twin was not let pass."""
    began = time.monotonic()
    planted = [
        (file, p)
        for file in sorted(FOLDER.glob("*.py"))
        for p in getattr(importlib.import_module(file.stem), "PLANTED", ())
    ]
    tasks = {(file, *p.kernel(right)) for file, p in planted for right in (False, True)}
    tasks = sorted(tasks, key=lambda t: (str(t[0]), t[1].contract.semantic.name, t[2]))
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(tasks, pool.map(findings, tasks), strict=True))
    rows, missed, alarms = [], 0, 0
    for file, p in planted:
        wrong, right = p.kernel(right=False), p.kernel(right=True)
        clauses, alarm = found[file, *wrong], found[file, *right]
        missed += not set(clauses) & set(p.clauses.split())
        alarms += bool(alarm)
        contract = wrong[0].contract
        name = f"`{contract.semantic.qualified_name}` `{p.wrong}`"
        kind = contract.kernel(p.wrong).kind
        rows.append((p.faults, name, kind, ", ".join(clauses) or "**nothing**", ", ".join(alarm) or "passes"))
    lines = ["| fault | kernel | kind | found by clause | right twin |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(map(str, f))} | {' | '.join(rest)} |" for f, *rest in sorted(rows)]
    text = f"{len(rows)} kernels: {len(rows) - missed} found by a clause that they break; {alarms} false alarms.\n\n"
    (ROOT / "docs" / "planted.md").write_text(HEAD + text + "\n".join(lines) + "\n")
    print(f"{text.strip()} {time.monotonic() - began:.0f} s")
    sys.exit(bool(missed or alarms))


if __name__ == "__main__":
    main()
