"""Each planted fault is found, by the clause that it breaks; each right twin passes."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from accord.contract.registry import unregister
from accord.errors import AccordError

FOLDER = Path(__file__).parent / "planted"
FILES = sorted(p for p in FOLDER.glob("*.py") if p.stem != "planting")
#: Seconds for one kernel: enough for what was planted. On a slower machine, or one that is not alone, a fault has
#: four times as many.
SECONDS, MORE = 3.0, 12.0


def _planted():
    """All entries with their file; what the checks try is declared in processes of their own."""
    sys.path.insert(0, str(FOLDER))
    try:
        found = [(file, p) for file in FILES for p in importlib.import_module(file.stem).PLANTED]
    finally:
        sys.path.remove(str(FOLDER))
    for _, p in found:
        for operator, _ in (p.kernel(right=False), p.kernel(right=True)):
            unregister(operator.contract.semantic.domain, operator.contract.semantic.name)
    return found


def _cases(right):
    """One kernel a case; quick is the first of each fault, the rest is for the slow suite."""
    cases, faults = {}, set()
    for file, p in PLANTED:
        operator, kernel = p.kernel(right)
        name = f"{operator.contract.semantic.qualified_name}-{kernel}"
        new = name not in cases
        quick = p.faults[0] not in faults
        faults.add(p.faults[0])
        if new or (quick and cases[name].marks):
            label = name if right else f"{'+'.join(map(str, p.faults))}-{name}"
            cases[name] = pytest.param(file, p, marks=[] if quick else [pytest.mark.slow], id=label)
    return list(cases.values())


PLANTED = _planted()


def findings(file, operator, kernel, seconds=SECONDS):
    from accord.workbench.run import check_operator

    if operator.contract.kernel(kernel).kind == "library" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    name = operator.contract.semantic.qualified_name
    (report,) = check_operator(name, [str(file)], kernel=kernel, seconds=seconds)
    return report.findings


@pytest.mark.parametrize(("file", "planted"), _cases(right=False))
def test_a_planted_fault_is_found(file, planted):
    found = findings(file, *planted.kernel(right=False)) or findings(file, *planted.kernel(right=False), MORE)
    assert found, "nothing was found"
    assert {f.clause for f in found} & set(planted.clauses.split()), [f"{f.clause}: {f.what}" for f in found]


@pytest.mark.parametrize(("file", "planted"), _cases(right=True))
def test_a_right_twin_passes(file, planted):
    found = findings(file, *planted.kernel(right=True))
    assert not found, [f"{f.clause}: {f.what}; expected {f.expected}, found {f.found}; {f.case}" for f in found]


def test_every_fault_that_needs_no_gpu_is_planted():
    wanted = {*range(1, 21), 22, 30, *range(32, 38), *range(39, 44)}
    bench = importlib.import_module("clock").FOR_BENCH
    planted = {n for _, p in PLANTED for n in p.faults} | {n for p in bench for n in p.faults}
    assert not wanted - planted


def _measured(kernel):
    from accord.workbench.measure import Wanted, measure

    wanted = Wanted("clock::Bell", (str(FOLDER / "clock.py"),), {"N": (4096,)})
    return measure(wanted, kernels=[kernel], runs=40, others=())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["lazy", "promise", "thread-finishes", "patches-clock", "after-return", "ends-only"])
def test_the_bench_times_no_trick(kernel):
    try:
        failed = [f["label"] for f in _measured(kernel)["failed"]]
    except AccordError as error:  # already the process of the reference has another clock
        failed = [kernel] if "clock" in str(error) else []
    assert any(label.startswith(kernel) for label in failed)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["right", "python"])
def test_the_bench_times_right_twins(kernel):
    assert not _measured(kernel)["failed"]


@pytest.mark.slow
def test_the_first_call_is_no_part_of_the_times():
    (times,) = (c for c in _measured("compiles-at-first-call")["candidates"] if c["label"] == "compiles-at-first-call")
    assert times["first"] > 0.05
    assert times["warm"]["p95"] < 0.05
