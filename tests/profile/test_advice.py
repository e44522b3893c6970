"""Advice: each rule speaks where its figures say so, names them, and is silent else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profile_harness import PEAKS, efficient, profile_of, step

from accord.ir.reason import Reason
from accord.passes.manager import SkippedRule
from accord.profile.advice import Advice, advise
from accord.profile.profile import Profile
from accord.runtime.observed import Operand


def said(found: Profile, rule: str) -> Advice:
    """The one piece of advice of a rule."""
    (advice,) = (a for a in advise(found) if a.rule == rule)
    return advice


def rules(found: Profile) -> set[str]:
    return {a.rule for a in advise(found)}


def test_nothing_stands_out() -> None:
    assert advise(profile_of(efficient("a"), efficient("b"), efficient("c", 3.0))) == []


def test_fallbacks_are_said_with_their_reason() -> None:
    slow = [
        step(f"norm{k}", "StringNormalizer", fallback=True, backend="reference", reason="cpu: no kernel", dtype=None)
        for k in range(2)
    ]
    advice = said(profile_of(*slow, efficient("a", 2.0)), "fallback")
    assert (
        "StringNormalizer runs on the slow backend 'reference' in 2 steps and takes 2 ms of 4 ms (50%)" in advice.text
    )
    assert "because cpu: no kernel." in advice.text
    assert advice.nodes == ("norm0", "norm1")
    assert advice.share == pytest.approx(0.5)
    assert "fallback" not in rules(profile_of(*slow, efficient("a", 60.0)))


def test_a_slow_step_is_held_against_the_machine() -> None:
    slow = step("conv", operations=2 * 32 * 100 * 64)
    advice = said(profile_of(slow), "slow")
    assert (
        "conv (kernel) takes 100% of the run at 0.41 GFLOP/s, 0% of what the machine can (100 GFLOP/s)" in advice.text
    )
    assert "its shapes do not explain it" in advice.text
    assert advice.figures["limit"] == "arithmetic"
    assert "slow" not in rules(profile_of(slow, efficient("rest", 20.0))), "too short to matter"


def test_a_slow_step_that_moves_bytes() -> None:
    slow = step("copy", "Concat", read=10**6, written=10**6, dtype=None)
    text = said(profile_of(slow), "slow").text
    assert "at 2 GB/s, 20% of what memory gives (10 GB/s)" in text


@pytest.mark.parametrize(
    ("shape", "operations", "words"),
    [
        ((1, 3, 100), 2 * 300 * 64, "its 3 output channels fill 3 of "),
        ((1, 64, 100), 2 * 6400 * 9, "each of its sums has only 9 terms"),
        ((1, 64, 2), 2 * 128 * 640, "only 2 rows share each weight"),
    ],
)
def test_shapes_that_explain_a_slow_product(shape: tuple[int, ...], operations: int, words: str) -> None:
    slow = step("conv", "Conv+Relu", outputs=(Operand("float", shape, 4),), operations=operations)
    assert words in said(profile_of(slow), "slow").text


def test_slow_steps_name_calls_and_threads() -> None:
    slow = step("conv", operations=2 * 32 * 100 * 64, calls=10, single=1.1e-3)
    text = said(profile_of(slow, threads=4, single=1.1e-3), "slow").text
    assert "4 threads make it 1.10 times as fast as one" in text
    assert "it runs 10 times, 100 µs each" in text


def test_a_step_at_the_speed_of_memory_can_only_be_fused() -> None:
    bound_step = step("add", "Add", 1.0, read=5 * 10**6, written=4 * 10**6, sources=("conv",), readers=("pool",))
    skipped = [SkippedRule("fuse-loops", "add", "Add", Reason("conv has another reader"))]
    advice = said(profile_of(bound_step, skipped=lambda: skipped), "memory-bound")
    assert "90% of what memory gives" in advice.text
    assert "(conv, pool)" in advice.text
    assert "fuse-loops left it alone: conv has another reader" in advice.text


def test_copies_into_another_order_of_axes() -> None:
    copy = step("y.reorder", "Identity", 1.0, read=10**6, written=10**6, sources=("conv",), readers=("lstm",))
    advice = said(profile_of(copy, efficient("rest", 9.0)), "reorders")
    assert "1 value is brought into another order of axes, which takes 1 ms of 10 ms (10%)" in advice.text
    assert "y (1 MB, 1 ms) from conv to lstm" in advice.text
    assert "reorders" not in rules(profile_of(copy, efficient("rest", 99.0)))


def test_many_tiny_steps() -> None:
    tiny = [step(f"s{k}", "Add", 1e-3) for k in range(12)]
    advice = said(profile_of(*tiny), "tiny")
    assert "12 of 12 steps take less than 2 µs each, together 100% of the run" in advice.text
    assert "the sizes 'N' are free" in advice.text
    assert "free batch axis" in said(profile_of(*tiny, symbolic=()), "tiny").text
    assert "tiny" not in rules(profile_of(*tiny, efficient("rest", 1.0)))


def test_time_outside_steps() -> None:
    advice = said(profile_of(efficient("a"), outside=1e-3), "outside")
    assert "1 ms of 2 ms (50%) pass outside the steps" in advice.text
    assert "outside" not in rules(profile_of(efficient("a"), outside=1e-5))


def test_threads_that_do_not_help() -> None:
    steps = [replace(efficient("a"), single=1.05e-3), replace(efficient("b", 0.1), single=2e-4)]
    found = profile_of(*steps, threads=2, single=1.25e-3, peaks=replace(PEAKS, threads=2, scaling=2.0))
    advice = said(found, "threads")
    assert "2 threads make the run 1.14 times as fast as one. Most is lost in: a " in advice.text
    assert "With threads=1 a run takes 1.25 ms" in advice.text
    busy = said(replace(found, peaks=replace(PEAKS, threads=2, scaling=1.1)), "threads")
    assert "(1.10 times for plain arithmetic: they share cores, or other programs use them)" in busy.text
    assert "threads" not in rules(replace(found, single=2.1e-3))


def test_control_flow_that_costs() -> None:
    outer = step("loop", "Loop", 1.0, backend="runtime", bound=None)
    inner = replace(efficient("body"), within=("loop",), calls=200)
    advice = said(profile_of(outer, inner), "control-flow")
    assert "takes 50% of the run (1 ms) besides the steps of its bodies, which run up to 200 times" in advice.text


def test_steps_that_are_prepared_in_each_run() -> None:
    late = [replace(efficient(f"late{k}"), late=True) for k in range(2)]
    advice = said(profile_of(*late, efficient("rest")), "late")
    assert "2 steps take 2 ms of 3 ms (67%) and must be prepared anew in each run" in advice.text


def test_double_precision() -> None:
    double = step("d", operations=45_000_000, dtype="f64")
    assert "1 step computes in float64" in said(profile_of(double), "float64").text


def test_a_disturbed_measurement() -> None:
    found = profile_of(efficient("a"), median=3e-3)
    assert "The middle run took 3 ms, 3.0 times as long" in said(found, "noise").text
    assert "noise" not in rules(replace(found, median=1.1e-3))


def test_what_takes_most_comes_first() -> None:
    small = step("small", "A", 1.0, fallback=True, backend="reference", dtype=None)
    large = step("large", "B", 5.0, fallback=True, backend="reference", dtype=None)
    assert [a.nodes for a in advise(profile_of(small, large))] == [("large",), ("small",)]
