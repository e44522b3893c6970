"""What a single call shows: how it ended, what it wrote, what it gave."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.workbench.cases import KINDS, Case
from accord.workbench.compare import Mismatch, same_bits
from accord.workbench.findings import Finding
from accord.workbench.lab import Lab, Trial
from accord.workbench.oracle import Expected
from accord.workbench.subject import Outcome, Trouble

__all__ = ["FAILS", "finding", "judged", "known", "settled", "status_finding", "taken", "unequal"]

_ENDS, _TOUCHES = "the kernel ends its process", "the kernel touches memory that it was not given"
_WRONG = ("meaning", "execution.accumulate", "semantic.nan", "semantic.batch", "scheduling.deterministic")
#: What is told as it is.
_SETTLED = ("does not end", "more and more memory", "printed")
#: What is not looked into where a promise is known to be broken on which all others rest.
_EFFECTS = {
    "meaning": _WRONG,
    "execution.accumulate": ("scheduling.deterministic", "semantic.batch"),
    "semantic.batch": ("execution.accumulate",),
    "execution.workspace": (*_WRONG, "execution.thread_safe", "scheduling.stateless"),
    "execution.alignment": _WRONG,
    "scheduling.stateless": (*_WRONG, "execution.thread_safe", "execution.views"),
    "scheduling.deterministic": (*_WRONG, "scheduling.stateless", "execution.thread_safe"),
}
#: Faults of a call that gives an error instead of results.
FAILS = (30,)
#: Processes that are asked whether a call is wrong in itself; alignment of memory that suits every instruction.
_PROCESSES, _LINE = 3, 64

_TROUBLES = {
    "input": ("execution.in_place", (5, 34), "inputs are read only, unless an output is declared to take their place",
              "Work on a copy, or declare `in_place`."),
    "outside": ("memory", (16,), "nothing beside the elements of its outputs is written",
                "Check the loop's bounds and the tail that no block divides."),
    "workspace": ("execution.workspace", (20,), "no more scratch memory than declared is used",
                  "Correct the expression in `workspace`, or what the kernel uses."),
    "alias": ("execution.views", (6, 7), "results are memory of their own, unless `views` or `in_place` is declared",
              "Return a copy, or declare the view."),
    "overlap": ("execution.layouts", (18,), "each element of an output is memory of its own, which may be written",
                "Return an array that owns its elements: a copy of what was broadcast."),
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
    kinds = {t.kind for t in ordered}
    for trouble in ordered:
        few = trouble.kind in ("alias", "overlap") and kinds >= {"alias"} and _nothing_to_do(trial.case)
        if trouble.kind != "printed" and not few:
            return _trouble(lab, trial.case, trouble)
    mismatch = lab.wrong(trial, outcome)
    if mismatch is not None:
        return _mismatch(lab, trial.case, mismatch)
    printed = [t for t in ordered if t.kind == "printed"]
    return _trouble(lab, trial.case, printed[0]) if printed else None


def _nothing_to_do(case: Case) -> bool:
    """A reordering of one element gives what there was, and NumPy then a view of it."""
    # axes that no name speaks of are not reordered
    few = (*(case.sizes.values() or case.lead), *(n for s in case.shapes.values() for n in s))
    return min(few, default=_FEW) < _FEW


def known(lab: Lab, found: Finding) -> bool:
    """Whether another check has found the same, or what explains it."""
    if any(f.clause == found.clause and (f.faults == found.faults or set(f.faults) & set(found.faults))
           for f in lab.findings):  # fmt: skip
        return True
    causes = {f.clause for f in lab.findings}
    ended = {f.what for f in lab.findings} & {_ENDS, _TOUCHES}
    return (
        any(cause in causes and found.clause in effects for cause, effects in _EFFECTS.items())
        or ("execution.workspace" in causes and found.clause == "memory" and 16 not in found.faults)
        or ("execution.alignment" in causes and found.clause == "memory" and 19 in found.faults)
        or (bool(ended) and found.what in (_ENDS, _TOUCHES))
    )


def settled(lab: Lab, trial: Trial, found: Finding | None, when: str = "after other calls") -> Finding | None:
    """The same finding, or the one that explains it.

    What is right where memory is aligned, or 0, needs that; a call that is right in a process of its own is wrong
    because of earlier calls; results that differ from process to process are not deterministic.
    """
    if found is None or known(lab, found) or any(words in found.what for words in _SETTLED):
        return found
    if lab.subject.writes:
        explained = _cured(lab, trial, found)
        if explained is not None:
            return explained
    if found.clause == "execution.accumulate":
        explained = _of_others(lab, trial, found)
        if explained is not None:
            return explained
    first, second = [], []
    for _ in range(_PROCESSES):
        alone = lab.fresh()
        try:
            first.append(lab.call(trial, alone))
            second.append(lab.call(trial, alone) if first[-1].ok else first[-1])
        finally:
            alone.child.close()
    ran = [o for o in first if o.ok and not o.troubles]
    if lab.exact and len(ran) == len(first) and not all(_equal(ran[0], o) for o in ran):
        return unequal(lab, trial.case, "in another process", (33, 34, 8))
    first_wrong, second_wrong = ([judged(lab, trial, o) is not None for o in outcomes] for outcomes in (first, second))
    if all(first_wrong) and any(second_wrong):
        return found
    which, faults = ("in the first call of a process", (34, 8)) if all(first_wrong) else (when, (7, 8, 43))
    return finding(
        lab, "scheduling.stateless", f"the result depends on earlier calls: {which}, {found.what}", faults=faults,
        case=trial.case, expected=found.expected, found=found.found,
        remedy="Keep nothing from one call to the next; what has to survive is an input and an output (`state`).",
    )  # fmt: skip


def taken(sizes: Any, name: str, x: Any, order: Any) -> Any:
    """Slices ``order`` of ``x`` along the axis of the size ``name``; all of it if it has none."""
    if x is None or sizes is None or name not in sizes:
        return x
    return np.ascontiguousarray(np.take(x, order, sizes.index(name) - len(sizes)))


def _of_others(lab: Lab, trial: Trial, found: Finding) -> Finding | None:
    """A result that is a little wrong because of the other slices of a batch: each slice by itself is right."""
    for name in lab.contract.semantic.batch:
        n = trial.case.sizes.get(name, 0)
        parts = [_slice(lab, trial, name, k) for k in sorted({0, n // 2, n - 1}) if n > 1]
        if parts and all(p is not None and judged(lab, p, lab.call(p)) is None for p in parts):
            return finding(
                lab, "semantic.batch", f"a slice along '{name}' is right by itself, and wrong beside others",
                faults=(35, 13), case=trial.case, expected=found.expected, found=found.found,
                remedy="Compute each slice from nothing but itself, or do not declare it batch-invariant.",
            )  # fmt: skip
    return None


def _slice(lab: Lab, trial: Trial, name: str, k: int) -> Trial | None:
    """The call for slice ``k`` along a batch axis alone."""
    case = trial.case.but(sizes={**trial.case.sizes, name: 1})
    if not lab.explorer.fits(case):
        return None
    s = lab.contract.semantic
    order = np.array([k])
    inputs = [taken(p.sizes, name, x, order) for p, x in zip(s.inputs, trial.inputs, strict=True)]
    expected = []
    for p, x in zip(s.outputs, trial.expected, strict=True):
        value, slack, own = (taken(p.sizes, name, v, order) for v in (x.value, x.slack, x.own))
        expected.append(Expected(value, slack, x.choices, own))
    return Trial(case, inputs, expected)


def _cured(lab: Lab, trial: Trial, found: Finding) -> Finding | None:
    """What is broken, if calls are right with memory of another kind, and wrong without, each time."""
    misread = found.clause in ("meaning", "execution.accumulate", "semantic.nan") and found.faults != FAILS
    unwritten = found.clause == "memory" and 19 in found.faults
    crashed = found.clause == "execution.alignment"
    if (misread or unwritten or crashed) and _helps(lab, trial, alignment=_LINE):
        return found if crashed else _misaligned(lab, trial.case, found.expected, found.found)
    if crashed:  # an instruction that is not allowed met something else
        return _ended(lab, trial.case, found.found.partition(": an instruction")[0])
    if (misread or unwritten) and lab.subject.memory.workspace and _helps(lab, trial, clear="workspace"):
        return _left_over(lab, "execution.workspace", "the workspace", trial.case, found)
    if misread and _helps(lab, trial, clear="outputs"):
        return _left_over(lab, "memory", "its output", trial.case, found)
    return None


def _helps(lab: Lab, trial: Trial, **how: Any) -> bool:
    """Whether calls are right with memory of a kind, and wrong without, in turn."""
    for _ in range(2):
        if judged(lab, trial, lab.call(trial, **how)) is not None or judged(lab, trial, lab.call(trial)) is None:
            return False
    return True


def _left_over(lab: Lab, clause: str, what: str, case: Case, found: Finding) -> Finding:
    return finding(
        lab, clause, f"the result depends on what {what} held before the call", faults=(20, 19), case=case,
        expected=found.expected, found=found.found, remedy="Write before reading: what memory holds is not defined.",
    )  # fmt: skip


def _misaligned(lab: Lab, case: Case, expected: str, found: str) -> Finding:
    return finding(
        lab, "execution.alignment", "the kernel needs pointers that are more aligned than declared", faults=(15,),
        case=case, expected=f"{expected} with pointers aligned to {lab.subject.memory.alignment} bytes", found=found,
        remedy="Declare `alignment`, or use loads that take any address.",
    )  # fmt: skip


def _ended(lab: Lab, case: Case, found: str) -> Finding:
    return finding(
        lab, "process", _ENDS, case=case, expected="a status, whatever happens", found=found,
        remedy="Check bounds, tails and null pointers.",
    )  # fmt: skip


def _equal(a: Outcome, b: Outcome) -> bool:
    return all(map(same_bits, a.outputs, b.outputs))


def unequal(lab: Lab, case: Case, when: str, faults: tuple[int, ...]) -> Finding:
    """Other bits for equal inputs."""
    return finding(
        lab, "scheduling.deterministic", f"equal inputs give other bits {when}", faults=faults, case=case,
        expected="equal bits", found="results that differ",
        remedy="Add in a fixed order, use no random numbers; or declare `deterministic=False`.",
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
        null = bool(outcome.reply.get("null"))
        none_given = null and bool(lab.subject.memory.workspace) and not lab.subject.workspace(case)
        workspace = outside and (outcome.text.endswith("the workspace") or none_given)
        if outcome.reply.get("aligned"):
            return _misaligned(lab, case, "results", outcome.text)
        if not outside:
            return _ended(lab, case, outcome.text)
        return finding(
            lab,
            "execution.workspace" if workspace else "memory",
            _TOUCHES,
            faults=(20,) if workspace else (22, 17) if null else (16, 11, 14),
            case=case,
            expected="only the tensors and the workspace are touched",
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
        lab, "meaning", "the kernel fails", faults=FAILS, case=case, expected="results", found=outcome.text,
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
    # an elementwise operator has no sum that could lose digits
    sums = lab.contract.scheduling.fuses != "elementwise"
    if sums and m.kind != "constant" and (case.values != "normal" or m.close):
        return finding(
            lab, "execution.accumulate", f"output '{m.output}' loses precision for {KINDS[case.values]}",
            faults=(32,), **facts,
            remedy="Accumulate in the declared type, subtract the mean before squaring, the maximum before exp.",
        )  # fmt: skip
    return finding(
        lab, "meaning", f"output '{m.output}' is not what the reference gives", faults=(1, 2, 3, 4, 9, 13, 43), **facts,
        remedy="Compare the kernel with the reference for this case.",
    )  # fmt: skip
