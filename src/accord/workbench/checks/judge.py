"""What a single call shows: how it ended, what it wrote, what it gave."""

from __future__ import annotations

from accord.workbench.cases import KINDS, Case
from accord.workbench.compare import Mismatch
from accord.workbench.findings import Finding
from accord.workbench.lab import Lab, Trial
from accord.workbench.subject import Outcome, Trouble

__all__ = ["finding", "judged", "settled", "status_finding"]

_TROUBLES = {
    "input": ("execution.in_place", (5, 34), "inputs are read only, unless an output is declared to take their place",
              "Work on a copy, or declare `in_place`."),
    "outside": ("memory", (16,), "nothing beside the elements of its outputs is written",
                "Check the loop's bounds and the tail that no block divides."),
    "workspace": ("execution.workspace", (20,), "no more scratch memory than declared is used",
                  "Correct the expression in `workspace`, or what the kernel uses."),
    "alias": ("execution.views", (6, 7), "results are memory of their own, unless `views` or `in_place` is declared",
              "Return a copy, or declare the view."),
    "output": ("meaning", (39,), "the declared outputs are returned, as arrays",
               "Return one NumPy array for each declared output."),
    "printed": ("process", (30,), "an error is a status or an exception, and nothing is printed",
                "Return a status other than 0 (or raise) instead of printing."),
}  # fmt: skip


#: Sizes below this leave a reordering little to do.
_FEW = 4


def finding(lab: Lab, clause: str, what: str, **facts: object) -> Finding:
    """A finding about the kernel under test."""
    return Finding(clause, lab.name, what, **facts)  # type: ignore[arg-type]


def judged(lab: Lab, trial: Trial, outcome: Outcome) -> Finding | None:
    """What is wrong with a call that the contract accepts, the gravest first; None for nothing."""
    found = status_finding(lab, trial.case, outcome)
    if found is not None:
        return found
    ordered = sorted(outcome.troubles, key=lambda t: list(_TROUBLES).index(t.kind))
    for trouble in ordered:
        if trouble.kind != "printed" and not (trouble.kind == "alias" and _nothing_to_do(trial.case)):
            return _trouble(lab, trial.case, trouble)
    mismatch = lab.wrong(trial, outcome)
    if mismatch is not None:
        return _mismatch(lab, trial.case, mismatch)
    printed = [t for t in ordered if t.kind == "printed"]
    return _trouble(lab, trial.case, printed[0]) if printed else None


def _nothing_to_do(case: Case) -> bool:
    """A reordering of one element gives what there was, and NumPy then a view of it."""
    few = (*case.sizes.values(), *case.lead, *(n for s in case.shapes.values() for n in s))
    return min(few, default=_FEW) < _FEW or bool(case.attributes)


def settled(lab: Lab, trial: Trial, found: Finding | None, when: str = "after other calls") -> Finding | None:
    """The same finding, or one about state where the call is right in a process of its own."""
    if found is None or "does not end" in found.what or "printed" in found.what:
        return found
    for _ in range(2):
        alone = lab.fresh()
        try:
            if judged(lab, trial, lab.call(trial, alone)) is not None:
                return found
        finally:
            alone.child.close()
    return finding(
        lab, "scheduling.stateless", f"the result depends on earlier calls: {when}, {found.what}", faults=(7, 8, 43),
        case=trial.case, expected=found.expected, found=found.found,
        remedy="Keep nothing from one call to the next; what has to survive is an input and an output (`state`).",
    )  # fmt: skip


def _trouble(lab: Lab, case: Case, trouble: Trouble) -> Finding:
    clause, faults, expected, remedy = _TROUBLES[trouble.kind]
    return finding(
        lab, clause, trouble.text, faults=faults, case=case, expected=expected, found=trouble.text, remedy=remedy
    )


def status_finding(lab: Lab, case: Case, outcome: Outcome) -> Finding | None:
    """What is wrong with how a call ended."""
    if outcome.ok:
        return None
    if outcome.status == "hung":
        return finding(
            lab, "process", "the kernel does not end", case=case, expected="an end", found=outcome.text,
            remedy="Look for a loop that does not end for these sizes.",
        )  # fmt: skip
    if outcome.status == "crashed":
        outside = bool(outcome.reply.get("outside"))
        workspace = outside and outcome.text.endswith("the workspace")
        null = outside and "not given" in outcome.text
        if outcome.reply.get("aligned"):
            return finding(
                lab, "execution.alignment", "the kernel needs pointers that are more aligned than declared",
                faults=(15,), case=case, expected=f"pointers aligned to {lab.subject.memory.alignment} bytes",
                found=outcome.text, remedy="Declare `alignment`, or use loads that take any address.",
            )  # fmt: skip
        return finding(
            lab,
            "execution.workspace" if workspace else "memory" if outside else "process",
            "the kernel touches memory that it was not given" if outside else "the kernel ends its process",
            faults=(20,) if workspace else (22, 17) if null else (16, 11, 14) if outside else (),
            case=case,
            expected="only the tensors and the workspace are touched" if outside else "a status, whatever happens",
            found=outcome.text,
            remedy="Check bounds, tails and null pointers.",
        )
    if outcome.reply.get("error") == "MemoryError":
        return finding(
            lab, "process", "the kernel takes more and more memory", case=case, expected="memory for this call",
            found=outcome.text, remedy="Scratch memory is declared as `workspace`; look for a size that is wrong.",
        )  # fmt: skip
    if outcome.status == "refused":
        return finding(
            lab, _refused_clause(case), "the kernel refuses a call that its contract accepts",
            faults=(11, 22, 43), case=case, expected="results", found=outcome.text,
            remedy="Compute it, or say in the kernel's `constraints` and `types` for what it is.",
        )  # fmt: skip
    return finding(
        lab, "meaning", "the kernel fails", faults=(30,), case=case, expected="results", found=outcome.text,
        remedy="Compute it, or return status 1 for what the contract does not accept.",
    )  # fmt: skip


def _refused_clause(case: Case) -> str:
    if case.nulls:
        return "execution.nullable"
    return "execution.layouts" if case.layouts else "semantic.constraints"


def _mismatch(lab: Lab, case: Case, m: Mismatch) -> Finding:
    facts = {"case": case, "expected": m.expected, "found": m.found}
    if m.kind in ("type", "shape"):
        return finding(
            lab, "meaning", f"output '{m.output}' has another {'dtype' if m.kind == 'type' else 'shape'}", **facts,
            remedy="Make the output as the declaration says.",
        )  # fmt: skip
    if m.kind == "unwritten":
        return finding(
            lab, "memory", f"elements of output '{m.output}' are not written", faults=(19, 4, 11), **facts,
            remedy="Write every element, also in tails and for empty groups.",
        )  # fmt: skip
    if case.values in ("nan", "inf", "masked"):
        return finding(
            lab, "semantic.nan", f"output '{m.output}' treats NaN or infinity in another way than the reference",
            faults=(10,), **facts,
            remedy="Give NaN where the reference does (a maximum must not lose it), or declare another `nan` policy.",
        )  # fmt: skip
    if case.layouts:
        return finding(
            lab, "execution.layouts", f"output '{m.output}' is wrong where elements do not lie side by side",
            faults=(14, 18), **facts,
            remedy="Use the strides that are given, or refuse the call; or take 'strided' out of `layouts`.",
        )  # fmt: skip
    if case.nulls:
        return finding(
            lab, "execution.nullable", f"output '{m.output}' is wrong where {', '.join(case.nulls)} is absent",
            faults=(22, 39), **facts, remedy="Treat a null pointer (None) as the reference does.",
        )  # fmt: skip
    if case.in_place:
        return finding(
            lab, "execution.in_place", f"output '{m.output}' is wrong where it takes the memory of its input",
            faults=(5,), **facts, remedy="Read each element before it is overwritten, or do not declare `in_place`.",
        )  # fmt: skip
    if case.values != "normal" or m.close:
        return finding(
            lab, "execution.accumulate", f"output '{m.output}' loses precision for {KINDS[case.values]}",
            faults=(32,), **facts,
            remedy="Accumulate in the declared type, subtract the mean before squaring, the maximum before exp.",
        )  # fmt: skip
    return finding(
        lab, "meaning", f"output '{m.output}' is not what the reference gives", faults=(1, 2, 3, 4, 9, 13, 43), **facts,
        remedy="Compare the kernel with the reference for this case.",
    )  # fmt: skip
