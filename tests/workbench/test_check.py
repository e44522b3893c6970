"""Planted kernels are found by the promise that they break; right ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from accord.workbench.run import check_operator

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def check(build):
    path = build("planted", (HERE / "planted.c").read_text())

    def run(name, kernel, seconds=1.5, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PLANTED", str(path))
            files = [str(HERE / "declared.py")]
            (report,) = check_operator(f"workbench::{name}", files, kernel=kernel, seconds=seconds, **options)
        return report

    return run


#: The others are slow all together.
QUICK = {"reads_past", "leaves_tail", "changes_input", "mixes_rows", "fixed_slope"}


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("Scale", "right"),
        ("Norm", "right"),
        ("Gate", "right"),
        ("Shuffle", "right"),
        ("Twice", "right_strides"),
    ],
)
@pytest.mark.slow
def test_a_right_kernel_passes(check, name, kernel):
    report = check(name, kernel, seconds=4)
    assert not report.findings
    assert report.calls > 300


@pytest.mark.parametrize(
    ("name", "kernel", "clause", "fault"),
    [
        pytest.param(*row, marks=[] if row[1] in QUICK else pytest.mark.slow)
        for row in (
            ("Scale", "reads_past", "memory", 16),
            ("Scale", "writes_past", "memory", 16),
            ("Scale", "reads_before", "memory", 16),
            ("Scale", "leaves_tail", "memory", 19),
            ("Scale", "more_workspace", "execution.workspace", 20),
            ("Scale", "old_workspace", "execution.workspace", 20),
            ("Scale", "static_memory", "execution.thread_safe", 20),
            ("Scale", "needs_weight", "execution.nullable", 22),
            ("Scale", "few_times", "scheduling.stateless", 8),
            ("Scale", "replays", "scheduling.stateless", 7),
            ("Scale", "changes_input", "execution.in_place", 5),
            ("Shuffle", "swallows", "semantic.constraints", 30),
            ("Scale", "prints", "process", 30),
            ("Scale", "hangs", "process", None),
            ("Scale", "exits", "process", None),
            ("Scale", "leaks", "process", None),
            ("Scale", "counts_in_32_bits", "memory", 17),
            ("Scale", "loses_nan", "semantic.nan", 10),
            ("Scale", "wants_alignment", "execution.alignment", 15),
            ("Scale", "random_bits", "scheduling.deterministic", 33),
            ("Scale", "ignores_alpha", "meaning", 9),
            ("Scale", "one_shape", "meaning", 43),
            ("Norm", "mixes_rows", "meaning", 13),
            ("Norm", "naive_variance", "execution.accumulate", 32),
            ("Norm", "half", "execution.accumulate", 32),
            ("Norm", "batch", "semantic.batch", 35),
            ("Norm", "raises", "semantic.constraints", 11),
            ("Norm", "same_memory", "scheduling.stateless", 6),
            ("Norm", "fingerprint", "scheduling.stateless", 7),
            ("Norm", "reference", "meaning", 12),
            ("Norm", "empty", "meaning", 4),
            ("Norm", "pointers", "execution.layouts", 14),
            ("Norm", "a_list", "meaning", None),
            ("Norm", "two", "meaning", None),
            ("Norm", "in_input", "execution.in_place", 5),
            ("Gate", "fixed_slope", "meaning", 9),
            ("Shuffle", "unshuffles", "meaning", 9),
            ("Twice", "last_stride", "execution.layouts", 14),
            ("Twice", "output_strides", "execution.layouts", 14),
            ("Twice", "negative_strides", "execution.layouts", 14),
            ("Twice", "overlapping", "execution.layouts", 18),
            ("Twice", "short_strides", "memory", 17),
            ("Exp", "unshifted", "execution.accumulate", 32),
            ("Loose", None, "semantic.tolerance", 3),
        )
    ],
)
def test_a_planted_fault_is_found_by_its_clause(check, name, kernel, clause, fault):
    report = check(name, kernel)
    assert report.findings, report
    found = next((f for f in report.findings if f.clause == clause), None)
    assert found is not None, report.findings
    assert fault is None or fault in found.faults
    if found.case is not None:
        again = check(name, kernel, case=found.case.json())
        assert clause in {f.clause for f in again.findings}, "the reproduction shows it again"
