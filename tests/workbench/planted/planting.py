"""What the files of planted faults share: one entry as data, and C text made into a shared library."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@dataclass(frozen=True)
class Planted:
    """A kernel that breaks its contract, and one of the same design that keeps it.

    Attributes:
        faults: Numbers in the list of known faults.
        clauses: Of the contract, separated by spaces: a finding has to name one of them.
        operator: Which declares both kernels.
        wrong: Name of the kernel that must be found.
        right: Name of the kernel that must pass.
        twin: Operator of the right kernel, where the fault is in the declaration itself.
    """

    faults: tuple[int, ...]
    clauses: str
    operator: Any
    wrong: str
    right: str
    twin: Any = None

    def kernel(self, right: bool) -> tuple[Any, str]:
        """Operator and name of one of the two kernels."""
        return (self.twin or self.operator, self.right) if right else (self.operator, self.wrong)


def library(source: str) -> str:
    """Path of a shared library of C text; it is compiled once, whoever asks for it."""
    folder = Path(tempfile.gettempdir()) / f"accord-planted-{os.getuid()}"
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:20]}.so"
    if COMPILER is not None and not path.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            text, made = Path(work) / "kernels.c", Path(work) / "kernels.so"
            text.write_text(source)
            command = [COMPILER, "-O2", "-fPIC", "-shared", "-pthread", "-o", made, text, "-lm"]
            subprocess.run(command, check=True)
            made.replace(path)
    return str(path)
