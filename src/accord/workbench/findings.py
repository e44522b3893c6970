"""What a check found."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accord.workbench.cases import Case

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise.

    Attributes:
        clause: Of the contract that is broken ("meaning", "execution.layouts" ...).
        kernel: Name; "reference" where an operator has no kernel.
        what: In one sentence.
        faults: Numbers of the known faults that look like this.
        case: The smallest call found that shows it; None where no single call does.
        expected: What the contract promises.
        found: What happened.
        remedy: What to do.
    """

    clause: str
    kernel: str
    what: str
    faults: tuple[int, ...] = ()
    case: Case | None = None
    expected: str = ""
    found: str = ""
    remedy: str = ""

    def reproduction(self, operator: str, files: Sequence[str], seed: int = 0) -> str:
        """A line that shows it again."""
        words = ["accord", "op", "check", operator]
        for f in files:
            words += ["--load", f]
        words += ["--kernel", self.kernel] if self.kernel != "reference" else []
        words += ["--case", self.case.json()] if self.case is not None else ["--seed", str(seed)]
        return " ".join(map(shlex.quote, words))

    def data(self, operator: str, files: Sequence[str], seed: int = 0) -> dict[str, Any]:
        """As JSON."""
        return {
            "clause": self.clause,
            "kernel": self.kernel,
            "what": self.what,
            "expected": self.expected,
            "found": self.found,
            "faults": list(self.faults),
            "case": None if self.case is None else self.case.json(),
            "reproduce": self.reproduction(operator, files, seed),
            "remedy": self.remedy,
        }
