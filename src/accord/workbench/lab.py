"""What checks work with: a kernel, the oracle, the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from accord.contract.contract import Contract, KernelDeclaration
from accord.contract.sizes import names_in
from accord.workbench.buffers import FILLS
from accord.workbench.cases import Case, accepts, kinds_for
from accord.workbench.compare import Mismatch, compare
from accord.workbench.explore import Explorer
from accord.workbench.findings import Finding
from accord.workbench.nursery import Nursery
from accord.workbench.oracle import Expected, Oracle
from accord.workbench.subject import Outcome, Subject, UnusableError

__all__ = ["Check", "Lab", "Trial"]

Array: TypeAlias = "np.ndarray[Any, Any]"


#: Elements of the largest input of a kernel that is interpreted.
_INTERPRETED = 20_000


@dataclass(slots=True)
class Trial:
    """A call and what should have come of it.

    Attributes:
        case: The case.
        inputs: Its inputs.
        expected: Its outputs.
    """

    case: Case
    inputs: list[Array | None]
    expected: list[Expected]


class Lab:
    """One kernel under test.

    Attributes:
        contract: Of the operator.
        kernel: The declaration; None for the reference.
        subject: The kernel in its process.
        oracle: The reference in another.
        explorer: Cases for it.
        seed: Everything follows from it.
        tried: Number of calls.
        notes: What was not tried, and why.
        dtypes: Of inputs of calls that came to an end.
        ranges: Least and greatest of each size in them.
        failed: Number of cases that could not be tried, for other reasons than the kernel's.
        untried: Those reasons, and how often.
        findings: So far.
    """

    def __init__(
        self,
        nursery: Nursery,
        files: Sequence[str],
        contract: Contract,
        kernel: KernelDeclaration | None,
        oracle: Oracle,
        seed: int,
    ) -> None:
        self.contract = contract
        self.kernel = kernel
        self.oracle = oracle
        self.seed = seed
        self.subject = Subject(nursery, files, contract, kernel)
        self.explorer = Explorer(contract, kernel, seed, _INTERPRETED if self.interpreted else 200_000)
        self.tried = 0
        self.notes: list[str] = []
        self.dtypes: set[str] = set()
        self.ranges: dict[str, tuple[int, int]] = {}
        self.failed = 0
        self.untried: dict[str, int] = {}
        self.findings: list[Finding] = []
        self.kinds = kinds_for(contract.semantic)
        self._nursery, self._files = nursery, files

    @property
    def name(self) -> str:
        """Of the kernel."""
        return "reference" if self.kernel is None else self.kernel.name

    @property
    def graph(self) -> bool:
        """The kernel runs as part of a graph only."""
        return self.subject.kind in ("expression", "composition", "generated")

    @property
    def interpreted(self) -> bool:
        """The kernel runs in Triton's interpreter: slowly, and one call at a time."""
        return self.subject.kind == "triton"

    @property
    def fixed(self) -> bool:
        """The kernel is chosen only where all sizes are known when a model is loaded."""
        conditions = getattr(self.kernel, "constraints", ())
        return self.subject.fixed or any(n in self.explorer.names for c in conditions for n in names_in(c))

    def fresh(self) -> Subject:
        """The kernel in a new process, which the caller closes."""
        return Subject(self._nursery, self._files, self.contract, self.kernel)

    def trial(self, case: Case) -> Trial | None:
        """A case with inputs and outputs; None where the contract or the reference does not take it."""
        if not accepts(self.contract, case):
            return None  # nothing is promised there, by the reference neither
        try:
            inputs = self.oracle.inputs(case)
            return Trial(case, inputs, self.oracle.expected(case, inputs, self.subject.memory))
        except UnusableError:
            return None

    def expect(self, trial: Trial, inputs: list[Array | None]) -> Trial | None:
        """The same case with other inputs."""
        try:
            return Trial(trial.case, inputs, self.oracle.expected(trial.case, inputs, self.subject.memory))
        except UnusableError:
            return None

    def call(self, trial: Trial, subject: Subject | None = None, **how: Any) -> Outcome:
        """Call the kernel."""
        self.tried += 1
        shapes = [e.own.shape for e in trial.expected]
        outcome = (subject or self.subject).call(trial.case, trial.inputs, shapes, **how)
        if outcome.ok:
            self.dtypes |= {x.dtype.name for x in trial.inputs if x is not None}
            for name, n in trial.case.sizes.items():
                low, high = self.ranges.get(name, (n, n))
                self.ranges[name] = (min(low, n), max(high, n))
        return outcome

    def wrong(self, trial: Trial, outcome: Outcome) -> Mismatch | None:
        """The first output that is not what it should be."""
        return next(iter(compare(self.contract, trial.case, outcome.outputs, trial.expected)), None)

    def sound(self, trial: Trial) -> bool:
        """Whether the plainest form of a call is right, so that what is wrong with another form is that form's."""
        for fill in FILLS:
            plain = Trial(trial.case.but(layouts={}, in_place=(), side="end", fill=fill), trial.inputs, trial.expected)
            outcome = self.call(plain)
            if not outcome.ok or outcome.troubles or self.wrong(plain, outcome) is not None:
                return False
            if not self.subject.writes:
                break
        return True

    def knows(self, found: Finding) -> bool:
        """Whether the plain form of a call has shown the same."""
        return found.clause != "meaning" and any(f.clause == found.clause for f in self.findings)

    @property
    def exact(self) -> bool:
        """Equal inputs are promised to give equal bits."""
        return bool(self.contract.semantic.deterministic and self.subject.scheduling.deterministic)

    def rng(self, case: Case) -> np.random.Generator:
        """Random numbers that depend on a case and nothing else."""
        return np.random.default_rng((self.seed, case.seed, 7))

    def close(self) -> None:
        """End the process."""
        self.subject.child.close()


@dataclass(frozen=True, slots=True)
class Check:
    """One family of faults.

    Attributes:
        name: For people.
        cases: Which cases it looks at, the most telling first.
        examine: What it finds in one; None for nothing.
        applies: Whether it concerns a kernel.
        share: Of the time.
        least: Number of cases that are looked at however long they take.
        every: It goes on after a finding: each clause found is reported once.
    """

    name: str
    cases: Callable[[Lab], Iterator[Case]]
    examine: Callable[[Lab, Case], Finding | None]
    applies: Callable[[Lab], bool] = lambda _: True
    share: float = 1.0
    least: int = 2
    every: bool = False


def now() -> float:
    """Seconds."""
    return time.monotonic()
