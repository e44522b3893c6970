"""The seven gates to production: each passed, failed, or not measured, with the evidence.

Nothing passes that was not run now, but for what a baseline and documents say by being there and fitting the code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from accord.contract.contract import Contract
from accord.contract.serial import as_contract
from accord.errors import AccordError
from accord.workbench.document import BASELINE, documents, stale
from accord.workbench.measure import Advance, Session, Wanted
from accord.workbench.remote import Remote
from accord.workbench.run import Report, check_operator

__all__ = ["GATES", "Gate", "seven_gates"]

PASS, FAIL, UNKNOWN = "pass", "fail", "not measured"
GATES: Final = (
    "architectures",
    "memory safety",
    "numerical stability",
    "integration with each runtime",
    "observability",
    "hot update",
    "guarded, documented release",
)
#: Clauses of the contract that findings of a check belong to.
_MEMORY: Final = ("memory", "process", "execution.workspace", "execution.nullable")
_NUMBERS: Final = ("meaning", "execution.accumulate", "semantic")


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate.

    Attributes:
        name: Of :data:`GATES`.
        status: "pass", "fail" or "not measured".
        evidence: What was run and found, or why nothing was.
    """

    name: str
    status: str
    evidence: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "evidence": list(self.evidence)}


def seven_gates(
    wanted: Wanted,
    contract: Contract,
    *,
    folder: Path,
    seconds: float,
    advance: Advance = lambda text: None,
) -> list[Gate]:
    """Try each gate.

    Args:
        wanted: The operator and arguments for a run.
        contract: Of the operator, with code.
        folder: Where documents and baseline are.
        seconds: Of checking, for each kernel.
        advance: Called with what comes next.

    Raises:
        AccordError: the operator is not known, or cannot be loaded.
    """
    op = contract.semantic.qualified_name
    advance(GATES[0])
    architectures = _architectures(wanted)
    advance("checking")
    reports, failure = _checked(op, wanted.load, seconds)
    advance(GATES[4])
    return [
        Gate(GATES[0], *architectures),
        Gate(GATES[1], *_by_clause(reports, failure, _MEMORY)),
        Gate(GATES[2], *_by_clause(reports, failure, _NUMBERS)),
        Gate(GATES[3], UNKNOWN, ("nothing exports the operator to other runtimes yet",)),
        Gate(GATES[4], *_observed(wanted, op)),
        Gate(GATES[5], UNKNOWN, ("no server exchanges kernels while it runs yet",)),
        Gate(GATES[6], *_release(contract, folder)),
    ]


Result = tuple[str, tuple[str, ...]]


def _architectures(wanted: Wanted) -> Result:
    with tempfile.TemporaryDirectory(prefix="accord-gates-") as folder:
        worker = Remote("the compiler", Path(folder), limit=600.0)
        try:
            described = worker.call("describe", load=list(wanted.load), op=wanted.op)
            as_contract(described["contracts"][0])
            found = worker.call("architectures")
        except AccordError as error:
            return UNKNOWN, (str(error),)
        finally:
            worker.close()
    if not found["kernels"]:
        return UNKNOWN, ("no kernel for a GPU is declared",)
    return compiled(found["compiled"])


def compiled(found: Sequence[Mapping[str, Any]]) -> Result:
    """The first gate from what compiling gave: no faults on any architecture, and which spill."""
    faults = [f"{c['kernel']} on {c['architecture']}: {f}" for c in found for f in c["faults"]]
    if faults:
        return FAIL, tuple(faults)
    by_kernel: dict[str, dict[str, int]] = {}
    for c in found:
        spills = by_kernel.setdefault(c["kernel"], {})
        spills[c["architecture"]] = max(spills.get(c["architecture"], 0), int(c["spills"] or 0))
    if not by_kernel:
        return UNKNOWN, ("nothing was compiled",)
    return PASS, tuple(
        f"{kernel}: within the limits of {', '.join(spills)}; a thread spills at most {max(spills.values())} bytes"
        for kernel, spills in by_kernel.items()
    )


def _checked(op: str, files: Sequence[str], seconds: float) -> tuple[list[Report], str]:
    try:
        return check_operator(op, files, seconds=seconds), ""
    except AccordError as error:
        return [], str(error)


def _by_clause(reports: Sequence[Report], failure: str, clauses: Sequence[str]) -> Result:
    if failure:
        return UNKNOWN, (f"the check could not be run: {failure}",)
    findings = [
        f"{f.kernel}: {f.clause}: {f.what}" for r in reports for f in r.findings if f.clause.startswith(tuple(clauses))
    ]
    if findings:
        return FAIL, tuple(findings)
    idle = [r.kernel for r in reports if not r.calls]
    if idle or not reports:
        return UNKNOWN, tuple(f"kernel {k} was not called" for k in idle) or ("there is no kernel to check",)
    return PASS, tuple(
        f"{r.kernel}: nothing found in {r.calls} calls ({', '.join(f'{n}: {c}' for n, c in r.checks.items())})"
        for r in reports
    )


def _observed(wanted: Wanted, op: str) -> Result:
    """Whether a profile of a model with the operator says where its time goes, in a process of its own."""
    try:
        with Session(wanted) as session:
            opened = session.open("the operator in a model", "profile")
            steps = opened.first["facts"]["profile"]
    except AccordError as error:
        return UNKNOWN, (f"no profile was taken: {error}",)
    found = [s for s in steps if op in s["op"] or op.rpartition("::")[2] in s["op"]]
    if not found:
        names = ", ".join(s["op"] for s in steps) or "no step"
        return FAIL, (f"the profile of a model with it names {names}",)
    return PASS, tuple(f"the profile names {s['op']}, kernel {s['kernel']}, {s['median'] * 1e6:.1f} µs" for s in found)


def _release(contract: Contract, folder: Path) -> Result:
    missing: list[str] = []
    try:
        made = documents([contract], folder)
    except AccordError as error:
        return FAIL, (str(error),)
    missing += [f"document {folder / n} is {why}: accord op docs writes it" for n, why in stale(made, folder).items()]
    if not (folder / BASELINE).is_file():
        missing.append(f"there is no baseline {folder / BASELINE}: accord gate FILE --baseline … --update measures one")
    elif "## Baseline" not in next(iter(made.values())):
        missing.append("the baseline has no times of the present code")
    if missing:
        return FAIL, tuple(missing)
    return PASS, (f"{folder / BASELINE} has times of the present code", "the document is up to date")
