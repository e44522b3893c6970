"""Checking an operator: all checks on all its kernels, within a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from accord.contract.contract import Contract, KernelDeclaration
from accord.errors import AccordError, ContractError, InputError
from accord.workbench.buffers import Layout
from accord.workbench.cases import Case
from accord.workbench.checks import all_checks
from accord.workbench.checks.judge import known
from accord.workbench.checks.meaning import SIZES
from accord.workbench.compiled import compiled, lacking
from accord.workbench.explore import elements
from accord.workbench.findings import Finding
from accord.workbench.lab import Check, Lab, now
from accord.workbench.nursery import Nursery
from accord.workbench.oracle import Oracle
from accord.workbench.records import CheckRecord
from accord.workbench.subject import Child, Outcome, UnusableError

__all__ = ["Report", "check_operator"]

#: Seconds for one kernel.
BUDGET = 5.0
#: Seconds for making the case of one finding smaller.
_SHRINKING = 1.0
#: Seconds by which a check may be late for the cases that it has to look at.
_PATIENCE = 6.0
_HUNG = 1
#: Cases of one check that show what is known before it is left.
_AGAIN = 10
#: Cases that may fail, for other reasons than the kernel's, before one is tried.
_FAILED = 12
#: What findings say whose calls are not to be repeated.
_ENDLESS = ("does not end", "more and more memory")
#: Faults that findings name which only tensors of more than 2³¹ elements show.
_LARGE = (17,)
#: Elements of an input of a case that is given.
_MOST = 1 << 26

Progress = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What checking one kernel gave.

    Attributes:
        kernel: Its name.
        kind: Of it.
        findings: Nothing where it keeps its contract, as far as was tried.
        calls: Number of calls.
        seconds: Time.
        checks: Check → number of cases that it looked at.
        notes: What was not tried, and why.
        digest: Hash of its code, see :func:`accord.workbench.author.code_digest`; "" for a reference.
        dtypes: Of inputs of its calls.
        ranges: Least and greatest of each size in them.
    """

    kernel: str
    kind: str
    findings: list[Finding] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0
    checks: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    digest: str = ""
    dtypes: tuple[str, ...] = ()
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)

    def record(self, seed: int) -> CheckRecord:
        """What is kept of it beside the operator's document."""
        return CheckRecord(
            self.digest, seed, self.calls, self.dtypes, self.ranges, self.checks,
            tuple(f"{f.clause}: {f.what}" for f in self.findings), tuple(self.notes),
        )  # fmt: skip


def check_operator(
    name: str,
    files: Sequence[str] = (),
    *,
    kernel: str | None = None,
    device: str | None = None,
    case: str | None = None,
    seed: int = 0,
    seconds: float = BUDGET,
    progress: Progress = lambda _: None,
) -> list[Report]:
    """Check the kernels of an operator, each in processes of its own.

    Args:
        name: "domain::Name".
        files: Python files that declare operators.
        kernel: Only this one.
        device: Only kernels for "cpu" or "cuda"; None: those for the CPU, or all if there are none.
        case: Only this call, as JSON.
        seed: All that is drawn follows from it.
        seconds: For each kernel.
        progress: Is told what is being done.

    Raises:
        AccordError: the operator is not known, or a file cannot be loaded.
        ContractError: the reference does not do what is declared.
    """
    with contextlib.ExitStack() as stack:
        nursery = stack.enter_context(contextlib.closing(Nursery()))
        contract = _described(nursery, name, files)
        chosen = _chosen(contract, kernel, device)
        one = None if case is None else _given(case, contract)
        oracle = Oracle(nursery, files, contract)
        stack.callback(oracle.child.close)
        reports = []
        for k in chosen:
            if k is not None and k.device != "cpu":
                reports.append(_for_gpu(nursery, files, contract, k, oracle, seed, one, seconds, progress))
                continue
            lab = Lab(nursery, files, contract, k, oracle, seed)
            with contextlib.closing(lab):
                reports.append(_checked(lab, one, seconds, progress))
        return reports


def _for_gpu(
    nursery: Nursery,
    files: Sequence[str],
    contract: Contract,
    kernel: KernelDeclaration,
    oracle: Oracle,
    seed: int,
    one: Case | None,
    seconds: float,
    progress: Progress,
) -> Report:
    """A kernel for GPUs without one: Triton's interpreter runs it, and its compiler says where it fits."""
    why = lacking() if kernel.kind == "triton" else "kernels of this kind run on a GPU only"
    if why is None:
        with (
            contextlib.closing(Nursery(interprets=True)) as interpreting,
            contextlib.closing(Lab(interpreting, files, contract, kernel, oracle, seed)) as lab,
        ):
            report = _checked(lab, one, seconds, progress)
            report.notes.append("threads, streams and barriers: that needs a GPU; Triton's interpreter has none")
    else:
        report = Report(kernel.name, kernel.kind, notes=[f"its calls: {why}"])
    if one is None and (why is None or kernel.kind == "cuda"):
        progress(f"{kernel.name}: compilers")
        findings, notes = compiled(nursery, files, contract, kernel, 2 * seconds)
        report.findings += findings
        report.notes += notes
    return report


def _described(nursery: Nursery, name: str, files: Sequence[str]) -> Contract:
    """The contract, as the files declare it; they are imported in a process of their own."""
    from accord.contract.serial import as_contract

    domain, _, short = name.rpartition("::")
    with contextlib.closing(Child(nursery, files)) as child:
        found = child.ask({"do": "describe", "domain": domain, "name": short}, limit=60.0)
    if isinstance(found, Outcome):
        raise ContractError(
            f"{', '.join(files) or name}: {found.text}" if found.status == "failed" and found.reply.get("declared")
            else f"the file cannot be imported: {found.text}",
            found=", ".join(files) or None,
            remedy="Import it in Python by itself to see why.",
        )  # fmt: skip
    reply = found[0]
    if "error" in reply:
        raise AccordError(reply["text"])
    contract = as_contract(reply["contract"])
    if reply["contract"]["semantic"]["examples"] is None:
        return contract
    return dataclasses.replace(contract, semantic=dataclasses.replace(contract.semantic, examples=_elsewhere))


def _given(text: str, contract: Contract) -> Case:
    case = Case.of(text, contract)
    if elements(contract.semantic, case) > _MOST:
        raise InputError("the case is too large", expected=f"tensors of {_MOST} elements at most", found=text)
    return case


def _elsewhere(*_: Any) -> Any:
    """Stands for examples, which are made in a process of their own."""
    raise ContractError("examples are made in the process that loaded the user's file, not in this one")


def _chosen(contract: Contract, kernel: str | None, device: str | None) -> list[KernelDeclaration | None]:
    if kernel is not None:
        return [contract.kernel(kernel)]
    found = [k for k in contract.kernels if k.device == (device or "cpu")]
    if found:
        return [*found]
    if device is not None:
        raise InputError(
            f"{contract.semantic.qualified_name} has no kernel for device '{device}'",
            found=", ".join(f"{k.name} ({k.device})" for k in contract.kernels) or "no kernels",
        )
    return [None, *contract.kernels]


def _checked(lab: Lab, one: Case | None, seconds: float, progress: Progress) -> Report:
    report = Report(lab.name, lab.subject.kind, lab.findings)
    began = now()
    checks = [c for c in all_checks() if c.applies(lab)]
    shares = sum(c.share for c in checks)
    hung = 0
    sizes, first = checks[0], iter(list[Case]())
    for c in checks:
        left = seconds - (now() - began)
        until = now() + max(0.05, left * c.share / shares)
        shares -= c.share
        progress(f"{lab.name}: {c.name}")
        cases: Iterator[Case] = c.cases(lab) if one is None else iter([one])
        if c.name == SIZES:
            sizes, first = c, cases
        hung += _looked(lab, c, cases, until, report)
        if hung >= _HUNG or (report.findings and now() - began > seconds + 2 * _PATIENCE):
            lab.notes.append("the other checks were left out, for there are findings enough")
            break
    else:
        if not report.findings and one is None and now() < began + seconds:  # more sizes, in the time that is left
            _looked(lab, sizes, first, began + seconds, report)
    if lab.tried == 0:
        lab.notes.append("no case could be made from the contract: give one with --case")
    lab.notes += [f"{why} (cases: {count})" for why, count in lab.untried.items()]
    report.calls, report.seconds = lab.tried, now() - began
    report.notes, report.dtypes, report.ranges = lab.notes, tuple(sorted(lab.dtypes)), lab.ranges
    report.digest = lab.subject.digest()
    return report


def _looked(lab: Lab, check: Check, cases: Iterator[Case], until: float, report: Report) -> int:
    """One check, until something is found or the time is over; how often the kernel did not end."""
    hung = again = 0
    for count, case in enumerate(cases, 1):
        found = _examined(lab, check, case)
        report.checks[check.name] = report.checks.get(check.name, 0) + 1
        if found is not None and not known(lab, found):
            report.findings.append(_smaller(lab, check, found))
            hung += found.clause == "process" and any(words in found.what for words in _ENDLESS)
            if not check.every or found.clause in ("process", "memory"):
                break
        elif found is not None:
            again += 1
        late = now() > until and (count >= check.least or report.findings or now() > until + _PATIENCE)
        if late or again >= _AGAIN:
            break
    return hung


def _examined(lab: Lab, check: Check, case: Case) -> Finding | None:
    """What a check finds in a case; a case that cannot be tried is noted, and others are."""
    try:
        return check.examine(lab, case)
    except UnusableError:
        return None
    except ContractError as error:  # the reference, or the examples, are not what is declared
        found = _contradiction(lab, case, error)
        first: Exception = error
    except Exception as error:  # noqa: BLE001 - whatever one case raises, there are others
        found, first = None, error
        why = f"{type(error).__name__}: {error}"
        lab.untried[why] = lab.untried.get(why, 0) + 1
    lab.failed += 1
    if lab.failed >= _FAILED and lab.tried == 0:
        raise first
    return found


def _contradiction(lab: Lab, case: Case, error: ContractError) -> Finding:
    return Finding(
        "semantic", "reference", error.message, case=case, expected=str(error.expected or "what is declared"),
        found=str(error.found or error), remedy=error.remedy or "Correct the declaration, or the reference.",
    )  # fmt: skip


def _smaller(lab: Lab, check: Check, found: Finding) -> Finding:
    """The finding with the smallest case that still shows it."""
    if found.case is None or found.faults == _LARGE or any(words in found.what for words in _ENDLESS):
        return found
    until = now() + _SHRINKING
    progress = True
    while progress and now() < until:
        progress = False
        assert found.case is not None
        for case in _simpler(found.case):
            if now() > until:
                break
            if not lab.explorer.fits(case):
                continue
            again = _examined(lab, check, case)
            if again is not None and again.clause == found.clause and again.case is not None:
                found = again
                progress = True
                break
    return found


def _simpler(case: Case) -> Iterator[Case]:
    """Cases that are simpler in one way, the simplest first."""
    usual = Case()
    for name in ("layouts", "nulls", "in_place", "attributes", "values", "side", "fill", "seed"):
        if getattr(case, name) != getattr(usual, name):
            yield case.but(**{name: getattr(usual, name)})
    for n in case.layouts:
        yield case.but(layouts={k: v for k, v in case.layouts.items() if k != n})
    for n, layout in case.layouts.items():
        for f in dataclasses.fields(Layout):
            if getattr(layout, f.name):
                yield case.but(layouts={**case.layouts, n: dataclasses.replace(layout, **{f.name: ()})})
    for n in case.nulls:
        yield case.but(nulls=tuple(x for x in case.nulls if x != n))
    for n, size in case.sizes.items():
        for less in sorted({1, 2, 3, size // 2, size * 3 // 4, size - 1}):
            if 0 <= less < size:
                yield case.but(sizes={**case.sizes, n: less})
    for i, size in enumerate(case.lead):
        yield case.but(lead=(*case.lead[:i], *case.lead[i + 1 :]))
        if size > 1:
            yield case.but(lead=(*case.lead[:i], size // 2, *case.lead[i + 1 :]))
    if case.shapes:
        every: list[Any] = list(case.shapes.values())
        if len(set(every)) == 1 and every[0]:
            for shape in (every[0][1:], tuple(max(1, n // 2) for n in every[0])):
                if shape != every[0]:
                    yield case.but(shapes=dict.fromkeys(case.shapes, shape))
