"""Results against the reference: sizes, values, lengths."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from accord.contract.registry import TOLERANCE
from accord.workbench.cases import Case, dtype_of
from accord.workbench.checks.judge import FAILS, finding, judged, settled
from accord.workbench.compare import compare, tolerance_of
from accord.workbench.findings import Finding
from accord.workbench.lab import Check, Lab
from accord.workbench.oracle import Expected

__all__ = ["CHECKS", "SIZES"]

#: The check that goes on with any sizes while there is time.
SIZES = "sizes"
LENGTHS = (1_000, 10_000, 100_000)


def _twice(lab: Lab, case: Case) -> Finding | None:
    """The call with memory of one pattern, then of the other."""
    trial = lab.trial(case)
    if trial is None:
        return None
    found = judged(lab, trial, lab.call(trial))
    if found is None:
        trial.case = case.but(fill="bits" if case.fill == "nan" else "nan")
        found = judged(lab, trial, lab.call(trial))
    return settled(lab, trial, found)


def _once(lab: Lab, case: Case) -> Finding | None:
    trial = lab.trial(case)
    return None if trial is None else settled(lab, trial, judged(lab, trial, lab.call(trial)))


def _special(lab: Lab, case: Case) -> Finding | None:
    """Special values; what is wrong with usual ones too is not theirs."""
    found = _once(lab, case)
    if found is None or case.values == "normal":
        return found
    return _once(lab, case.but(values="normal")) or found


def _sizes(lab: Lab) -> Iterator[Case]:
    first = lab.explorer.typical(types=lab.explorer.types()[0])
    if first is not None:
        yield first
    yield from lab.explorer


def _values(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    kinds = [k for k in lab.kinds if k != "normal"]
    bases = [e.typical(), *(e.case(sizes=dict.fromkeys(e.names, s)) for s in (64, 33, 8, 2, 1))]
    for base, types, seed in itertools.product(bases, e.types(), (0, 1, 2)):
        if base is not None:
            for kind in kinds:
                yield base.but(types=types, values=kind, seed=seed)


def _long(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    # all lengths first: a busy machine may leave time for nothing else
    for kind, length, types, name in itertools.product(("normal", "offset", "rows"), LENGTHS, e.types(), e.names):
        case = e.long(name, length, types=types, lead=(2,), values=kind)
        if case is not None:
            yield case


def _length(lab: Lab, case: Case) -> Finding | None:
    found = _once(lab, case)
    if found is None or found.faults == FAILS or found.clause not in ("meaning", "execution.accumulate"):
        return found
    # wrong for any length: then length is not what matters
    longest = max(case.sizes.values(), default=0)
    for size in (16, 15, 12, 8):
        short = case.but(sizes={n: min(s, size) if s == longest else s for n, s in case.sizes.items()})
        if lab.explorer.fits(short) and short != case:
            if (small := _special(lab, short)) is not None:
                return small
            break
    memory = lab.subject.memory
    small_types = {"float16", "bfloat16"} & set(case.types.values())
    if found.clause == "meaning" and not small_types:  # not a little wrong: another loop for large sizes, or none
        return dataclasses.replace(found, what=f"{found.what} where a size is {longest}")
    declared = ", ".join(f"{k} in {v}" for k, v in memory.accumulate.items()) or "the tolerance, at any length"
    return finding(
        lab, "execution.accumulate", f"the error grows with the length: too large at {longest}", faults=(32,),
        case=case, expected=f"{declared}: {found.expected}", found=found.found,
        remedy="Accumulate in the declared type, in several partial sums.",
    )  # fmt: skip


def _tolerances(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    for types in e.types():
        base = e.typical(types=types)
        if base is not None:
            yield base


def _telling(lab: Lab, case: Case) -> Finding | None:
    """A tolerance that accepts zeros, or results in another order, accepts anything.

    A kernel that does not need it is right all the same: then it is a note about the contract.
    """
    trials = [t for seed in range(3) if (t := lab.trial(case.but(seed=seed, values="normal"))) is not None]
    loose: list[str] = []
    needed = False
    plain = dataclasses.replace(lab.contract, semantic=dataclasses.replace(lab.contract.semantic, tolerance={}))
    for t in trials:
        fakes = []
        for p, x in zip(lab.contract.semantic.outputs, t.expected, strict=True):
            dtype = dtype_of(p, case)
            told = tolerance_of(lab.contract, dtype) != TOLERANCE.get(dtype)
            finite = x.slack is not None and x.value.size > 3 and np.isfinite(x.value).all()
            fakes.append(_fake(x) if told and finite and np.std(x.value) > 0 else None)
        usable = [f for f in fakes if f is not None]
        if not usable or compare(lab.contract, case, fakes, [_strict(x) for x in t.expected]):
            return None
        loose.append(str(case.types))
        outcome = lab.call(t)
        needed = needed or not outcome.ok or bool(compare(plain, case, outcome.outputs, t.expected))
    if not loose:
        return None
    shown = {n: f"rtol {t.rtol:g}, atol {t.atol:g}" for n, t in lab.contract.semantic.tolerance.items()
             if n in {dtype_of(p, case) for p in lab.contract.semantic.outputs}}  # fmt: skip
    if not needed:
        lab.notes.append(f"tolerance: {shown} accepts the right results in another order; this kernel needs none of it")
        return None
    return finding(
        lab, "semantic.tolerance", "the tolerance is so loose that the right results in another order pass",
        faults=(1, 3), expected="a tolerance that tells results from noise", found=str(shown),
        remedy="Declare what the kernel really reaches: `tolerance(dtype, rtol=..., atol=...)`.",
    )  # fmt: skip


def _fake(e: Expected) -> Any:
    """Results that are certainly wrong: the right ones, in another order."""
    return np.roll(e.own.reshape(-1), e.own.size // 2 + 1).reshape(e.own.shape)


def _strict(e: Expected) -> Expected:
    return Expected(e.value, np.zeros_like(e.value), [], e.own) if e.slack is not None else e


CHECKS = (
    Check(SIZES, _sizes, _twice, share=3.0, least=150),
    Check("values", _values, _special, share=1.5, least=50, every=True),
    Check("length", _long, _length, share=2.0, least=12),
    Check("tolerance", _tolerances, _telling, share=0.3),
)
