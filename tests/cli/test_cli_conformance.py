"""accord conformance, on a few cases of each suite."""

from __future__ import annotations

import pytest
from cli_harness import call, data

from accord.backends.cpu import CpuBackend
from accord.cli.suites import load_suite
from accord.ir.reason import Reason


@pytest.mark.parametrize(
    ("suite", "pattern", "count"),
    [
        ("node", "^(add|abs|bernoulli)$", 3),
        ("simple", "^(sign_model|shrink)$", 2),
        ("pytorch-converted", "^Linear$", 1),
        ("pytorch-operator", "^operator_add_broadcast$", 1),
        ("light", "squeezenet", 1),
    ],
)
def test_suites(suite: str, pattern: str, count: int) -> None:
    found = data("conformance", "--suite", suite, "--filter", pattern)
    totals = found["suites"][suite]
    assert (totals["passed"], totals["failed"]) == (count, 0)
    assert sum(totals["steps"].values()) >= count
    assert found["failures"] == []


def test_random_operators_are_judged_by_distribution() -> None:
    found = data("conformance", "--suite", "node", "--filter", "^bernoulli")
    assert found["random"]  # ten draws of one case are those expected once in some hundred runs
    assert all(n.startswith("bernoulli") for n in found["random"])
    assert "judged by distribution: " in call("conformance", "--filter", "^bernoulli").stdout


def test_failures_and_fall_backs_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "known", lambda self, view: Reason("not today"))
    arguments = ("conformance", "--suite", "node", "--filter", "^(abs|acos)$")
    result = call(*arguments, "--strict")
    assert result.exit_code == 1
    assert "FallbackError" in result.stdout
    found = data(*arguments)
    assert found["suites"]["node"]["native"] == 0
    assert [(f["op"], f["reason"], f["cases"]) for f in found["fallbacks"]] == [
        ("Abs", "cpu: not today", ["abs"]),
        ("Acos", "cpu: not today", ["acos"]),
    ]
    assert "not today" in call(*arguments).stdout


def test_a_fall_back_while_running_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is chosen when it runs may find that there is none."""
    monkeypatch.setattr("accord.backends.cpu.late._form", lambda view: Reason("not now"))
    monkeypatch.setattr("accord.backends.late.LateNode.refuses", lambda late, view: False)
    found = data("conformance", "--suite", "node", "--filter", "^tile$")
    assert [(f["op"], f["reason"]) for f in found["fallbacks"]] == [
        ("late Tile", "no kernel is generated for these inputs (not now)")
    ]


def test_wrong_use() -> None:
    for arguments, message in (
        (["--suite", "nodes"], "Invalid value for '--suite'"),
        (["--filter", "("], "not a regular expression"),
        (["--suite", "simple", "--filter", "zzz"], "no case of simple matches 'zzz'"),
    ):
        result = call("conformance", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr


def test_every_case_of_the_small_suites_has_data() -> None:
    for suite in ("simple", "pytorch-converted", "pytorch-operator"):
        cases = load_suite(suite)
        assert len(cases) > 20
        for case in cases[:5]:
            model = case.model()
            for inputs, outputs in case.data(model):
                assert len(inputs) <= len(model.graph.input)
                assert len(outputs) == len(model.graph.output)
