"""The seven gates: what was not run is not said to have passed."""

from __future__ import annotations

import pytest

from accord.contract.registry import unregister
from accord.contract.sources import load_file
from accord.workbench import gates
from accord.workbench.document import documents, write_documents
from accord.workbench.findings import Finding
from accord.workbench.gates import GATES, compiled, seven_gates
from accord.workbench.loading import find_contract
from accord.workbench.measure import Wanted
from accord.workbench.run import Report
from bench_harness import declare


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gates")
    path = declare(folder)
    load_file(path)
    contract = find_contract("shop::Double")
    write_documents(documents([contract], folder), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gates, "check_operator", lambda *a, **k: [Report("python", "python", calls=7, checks={"meaning": 3})]
        )
        wanted = Wanted("shop::Double", (path,), {"N": (100,)})
        yield {g.name: g for g in seven_gates(wanted, contract, folder=folder, seconds=0.5)}
    unregister("shop", "Double")


def test_there_are_seven(found):
    assert list(found) == list(GATES)
    assert all(g.status in ("pass", "fail", "not measured") and g.evidence for g in found.values())


def test_each_says_what_it_saw(found):
    assert found["architectures"].status == "not measured"
    assert "no kernel for a GPU" in found["architectures"].evidence[0]
    assert found["memory safety"].status == "pass"
    assert "7 calls" in found["memory safety"].evidence[0]
    assert found["observability"].status == "pass"
    assert "shop::Double" in found["observability"].evidence[0] or "Double" in found["observability"].evidence[0]
    for name in ("integration with each runtime", "hot update"):
        assert found[name].status == "not measured"


def test_a_release_without_baseline_is_none(found):
    release = found["guarded, documented release"]
    assert release.status == "fail"
    assert len(release.evidence) == 1, "the document is up to date"
    assert "there is no baseline" in release.evidence[0]


def test_findings_fail_the_gate_of_their_clause():
    memory = Report("c", "library", [Finding("memory", "c", "writes outside")], calls=3)
    numbers = Report("d", "library", [Finding("execution.accumulate", "d", "loses")], calls=3)
    by = gates._by_clause
    assert by([memory, numbers], "", gates._MEMORY) == ("fail", ("c: memory: writes outside",))
    assert by([memory, numbers], "", gates._NUMBERS) == ("fail", ("d: execution.accumulate: loses",))
    assert by([Report("c", "library")], "", gates._MEMORY)[0] == "not measured"
    assert by([], "", gates._MEMORY)[0] == "not measured"
    assert by([], "it crashed", gates._MEMORY) == ("not measured", ("the check could not be run: it crashed",))


def test_architectures():
    good = {"kernel": "t", "architecture": "sm_80", "faults": [], "spills": 8}
    assert compiled([good, {**good, "architecture": "sm_90", "spills": 0}]) == (
        "pass",
        ("t: within the limits of sm_80, sm_90; a thread spills at most 8 bytes",),
    )
    assert compiled([good, {**good, "faults": ["too much shared memory"]}]) == (
        "fail",
        ("t on sm_80: too much shared memory",),
    )
    assert compiled([])[0] == "not measured"
