"""What must not depend on what was before, on what else happens, or on how often: state, order, threads, batches."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from accord.errors import AccordError
from accord.workbench.buffers import is_float
from accord.workbench.cases import Case
from accord.workbench.checks.judge import finding, judged, settled, status_finding, taken, unequal
from accord.workbench.compare import same_bits
from accord.workbench.findings import Finding
from accord.workbench.lab import Check, Lab, Trial
from accord.workbench.subject import Outcome, results_of

__all__ = ["CHECKS"]

_MANY = 400
_THREADS, _EACH = 4, 8
_PAGE = 4096
#: Bytes by which memory may grow with every call: what allocators keep comes to less.
_LEAK = 8192


def _usual(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    for types in e.types():
        for base in (e.typical(types=types), e.case(types=types)):
            if base is not None and 0 not in base.sizes.values():
                yield base


# state


def _variations(lab: Lab, trial: Trial) -> Iterator[list[Any]]:
    """Other inputs of the same shapes, more and less alike: most of a fingerprint stays the same."""
    rng = lab.rng(trial.case)
    usable = [i for i, x in enumerate(trial.inputs) if x is not None and x.size > 1]
    for turn in range(10):
        if not usable:
            return
        inputs = [None if x is None else x.copy() for x in trial.inputs]
        i = usable[turn % len(usable)]
        flat = np.asarray(inputs[i]).reshape(-1)
        a, b = rng.choice(flat.size, 2, replace=False)
        if turn % 3 == 0 or not is_float(flat.dtype):
            flat[[a, b]] = flat[[b, a]]
        else:
            flat[a] = flat[a] + flat.dtype.type(3)
        yield inputs
    for seed in (101, 102):
        try:
            yield lab.oracle.inputs(trial.case.but(seed=trial.case.seed + seed))
        except AccordError:
            return


def _replay(lab: Lab, case: Case) -> Finding | None:
    """Calls that look alike but are not, in the same memory and in other."""
    trial = lab.trial(case)
    if trial is None or not lab.sound(trial):
        return None
    others = [t for inputs in _variations(lab, trial) if (t := lab.expect(trial, inputs)) is not None]
    # the same sizes and data with other attributes
    changed = [case.but(attributes=a) for a in lab.explorer.attributes()[1:5]]
    others += [t for c in changed if c != case and lab.explorer.fits(c) and (t := lab.trial(c)) is not None]
    sequence = [*others, trial, *others[:2], trial]
    for k, t in enumerate(sequence):
        shift = _PAGE * (k // 4 % 3)
        outcome = lab.call(t) if lab.graph else lab.call(t, shift=shift)
        found = judged(lab, t, outcome)
        if found is not None:
            return _state(settled(lab, t, found, "after other inputs of the same shapes"))
    return _held(lab, trial, others)


def _state(found: Finding | None) -> Finding | None:
    """What is wrong alone too is for other checks."""
    return found if found is not None and found.clause == "scheduling.stateless" else None


def _held(lab: Lab, trial: Trial, others: list[Trial]) -> Finding | None:
    """Results belong to the caller: they stay as they are, and may be overwritten."""
    if lab.subject.writes or lab.graph or not others:
        return None
    subject = lab.fresh()
    try:
        first = lab.call(trial, subject, hold=True)
        lab.call(others[0], subject)
        later = subject.child.ask({"do": "held", "scribble": True})
        if isinstance(later, Outcome) or "error" in later[0] or not first.ok:
            return None
        kept = results_of(*later)
        again = lab.call(trial, subject)
        for a, b in zip(first.outputs, kept, strict=False):
            if not same_bits(a, b):
                return finding(
                    lab, "scheduling.stateless", "a later call changes the results of an earlier one", faults=(6, 7),
                    case=trial.case, expected="results that stay as they are", found="memory that is used again",
                    remedy="Return new memory for each call.",
                )  # fmt: skip
        found = judged(lab, trial, again)
        return _state(settled(lab, trial, found, "after the caller overwrote a result"))
    finally:
        subject.child.close()


def _many(lab: Lab, case: Case) -> Finding | None:
    """Many calls of several shapes."""
    bases = [case, *(c for c in (lab.explorer.case(types=case.types) for _ in range(3)) if c is not None)]
    trials = [t for c in bases if (t := lab.trial(c)) is not None and lab.sound(t)]
    if not trials:
        return None
    subject = lab.fresh()
    try:
        for k in range(_MANY // 4 if lab.graph or lab.interpreted else _MANY):
            trial = trials[k % len(trials)]
            found = judged(lab, trial, lab.call(trial, subject))
            if found is not None:
                return _state(settled(lab, trial, found, f"at call {k + 1}"))
    finally:
        subject.child.close()
    return None


def _first(lab: Lab, case: Case) -> Finding | None:
    """The first calls of a process, and later ones."""
    trial = lab.trial(case)
    if trial is None or not lab.sound(trial):
        return None
    old = lab.call(trial)
    subject = lab.fresh()
    try:
        made = [lab.call(trial, subject) for _ in range(3)]
    finally:
        subject.child.close()
    for k, outcome in enumerate(made):
        found = judged(lab, trial, outcome)
        if found is not None:
            return finding(
                lab, "scheduling.stateless" if found.clause != "execution.in_place" else found.clause,
                f"in call {k + 1} of a new process: {found.what}", faults=(34, 8), case=case, expected=found.expected,
                found=found.found, remedy="Tune on memory of your own; the first call is a call like any other.",
            )  # fmt: skip
    if not lab.exact:
        return None
    for outcome in made:
        if not all(map(same_bits, outcome.outputs, old.outputs)):
            return unequal(lab, case, "in another process", (33, 34, 8))
    return None


# equal bits


def _large_too(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    for types in e.types():
        big = e.case(types=types, sizes=dict.fromkeys(e.names, 400 if len(e.names) < 3 else 24), lead=(2,))
        for base in (e.typical(types=types), big):
            if base is not None:
                yield base


def _repeat(lab: Lab, case: Case) -> Finding | None:
    trial = lab.trial(case)
    if trial is None:
        return None
    first = lab.call(trial)
    if not first.ok or first.troubles:
        return None
    for _ in range(12):
        again = lab.call(trial)
        if again.ok and not all(map(same_bits, first.outputs, again.outputs)):
            return unequal(lab, case, "when called again", (33,))
    return None


# batches


def _batches(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    for n, name, types in itertools.product((4, 9, 17, 33), lab.contract.semantic.batch, e.types()):
        for base in (e.typical(types=types), e.case(types=types), e.long(e.names[-1], 257, types=types)):
            if base is not None:
                case = base.but(sizes={**base.sizes, name: n})
                if e.fits(case):
                    yield case


def _sliced(lab: Lab, case: Case) -> Finding | None:
    trial = lab.trial(case)
    if trial is None:
        return None
    if {f.clause for f in lab.findings} & {"scheduling.stateless", "scheduling.deterministic"}:
        return None  # what differs from call to call differs from slice to slice
    whole = lab.call(trial)
    if not whole.ok or not lab.sound(trial):
        return None
    s = lab.contract.semantic
    rng = lab.rng(case)
    for name in s.batch:
        n = case.sizes.get(name, 0)
        orders = [np.arange(n)[part] for part in (slice(0, 1), slice(1, 3), slice(n - 1, n), slice(0, n // 2 + 1))]
        orders += [np.arange(n)[::-1], rng.permutation(n)]
        for order in orders:
            if len(order) == 0:
                continue
            part = case.but(sizes={**case.sizes, name: len(order)})
            if not lab.explorer.fits(part):
                continue
            inputs = [taken(p.sizes, name, x, order) for p, x in zip(s.inputs, trial.inputs, strict=True)]
            expected = list(trial.expected)
            for e, (p, x) in enumerate(zip(s.outputs, trial.expected, strict=True)):
                expected[e] = type(x)(x.value, x.slack, x.choices, taken(p.sizes, name, x.own, order))
            outcome = lab.call(Trial(part, inputs, expected))
            wanted = [taken(p.sizes, name, a, order) for p, a in zip(s.outputs, whole.outputs, strict=True)]
            if outcome.ok and not all(map(same_bits, wanted, outcome.outputs)):
                return finding(
                    lab, "semantic.batch", f"a slice along '{name}' by itself gives other bits", faults=(35,),
                    case=case,
                    expected="the bits of that slice", found=f"others for {name} = {list(map(int, order))[:6]}",
                    remedy=f"Choose blocks and the order of sums whatever {name} is; or do not declare `batch`.",
                )  # fmt: skip
    return None


# threads


def _together(lab: Lab, case: Case) -> Finding | None:
    if "scheduling.stateless" in {f.clause for f in lab.findings}:
        return None  # what is kept from call to call is shared by threads
    trials = [t for seed in range(_THREADS) if (t := lab.trial(case.but(seed=seed))) is not None and lab.sound(t)]
    if len(trials) < _THREADS:
        return None
    for _ in range(3):
        prepared = [
            [lab.subject.image(t.case, t.inputs, [e.own.shape for e in t.expected]) for _ in range(_EACH)]
            for t in trials
        ]
        try:
            outcomes = lab.subject.threads(prepared, case)
        finally:
            for lane in prepared:
                for p in lane:
                    p.image.close()
        lab.tried += len(outcomes)
        for k, outcome in enumerate(outcomes):
            trial = trials[k // _EACH]
            found = judged(lab, trial, outcome)
            if found is not None and not lab.sound(trial):
                return _state(settled(lab, trial, found, "after many"))
            if found is not None:
                return finding(
                    lab, "execution.thread_safe", f"in {_THREADS} threads at once: {found.what}", faults=(20, 8),
                    case=case, expected=found.expected, found=found.found,
                    remedy="Use no static memory (declare a `workspace`), or declare `thread_safe=False`.",
                )  # fmt: skip
    return None


# memory that grows


def _grows(lab: Lab, case: Case) -> Finding | None:
    trial = lab.trial(case)
    if trial is None:
        return None
    subject = lab.fresh()  # the other one may have used up its memory
    rng = lab.rng(case)
    sizes = []
    calls = 120
    try:
        if judged(lab, trial, lab.call(trial, subject)) is not None:
            return None
        for k in range(3 * calls):
            if k % calls == calls // 3:
                sizes.append(subject.child.resident())
            for x in trial.inputs:
                if x is not None and x.size and is_float(x.dtype):
                    x.reshape(-1)[rng.integers(x.size)] += x.dtype.type(1)
            outcome = lab.call(trial, subject)
            if not outcome.ok:  # it was right before: the memory that it may have is used up
                full = outcome.reply.get("error") == "MemoryError"
                return status_finding(lab, case, outcome) if full else None
    finally:
        subject.child.close()
    grown = np.diff(sizes)
    per_call = grown.min() / calls
    if per_call < _LEAK or grown.max() > 3 * grown.min():
        return None
    return finding(
        lab, "process", "memory grows with every call", faults=(8,), case=case, expected="the memory that there was",
        found=f"about {per_call / 1024:.0f} KiB more for each call", remedy="Free what a call takes; keep no results.",
    )  # fmt: skip


def _sizeable(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    for k in (128, 40, 12):
        base = e.case(sizes=dict.fromkeys(e.names, k), lead=(2,))
        if base is not None:
            yield base
            return


def _once_only(lab: Lab) -> Iterator[Case]:
    with contextlib.suppress(StopIteration):
        yield next(_usual(lab))


CHECKS = (
    Check("earlier calls", _usual, _replay, lambda lab: lab.contract.semantic.deterministic),
    Check("new processes", _usual, _first, lambda lab: lab.contract.semantic.deterministic, share=0.7),
    Check("equal bits", _large_too, _repeat, lambda lab: lab.exact, share=0.5),
    Check("batches", _batches, _sliced, lambda lab: bool(lab.contract.semantic.batch), share=0.7, least=6),
    Check("threads", _large_too, _together,
          lambda lab: not lab.graph and not lab.interpreted and lab.subject.memory.thread_safe
          and lab.contract.semantic.deterministic),
    Check("many calls", _once_only, _many, lambda lab: lab.contract.semantic.deterministic),
    Check("memory", _sizeable, _grows, lambda lab: not lab.graph and not lab.interpreted, share=0.5),
)  # fmt: skip
