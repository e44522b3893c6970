"""``accord bisect``: the rewrite, or the kernel, that makes a result wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from accord.cli.common import (
    FAILED,
    Choices,
    Given,
    Screen,
    Verb,
    compile_options,
    feed_options,
    line,
    model_argument,
    plural,
    table,
    wrong_use,
)
from accord.cli.sources import load_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.profile.bisect import Verdict

__all__ = ["command"]


@click.command(
    "bisect",
    cls=Verb,
    examples=(
        "accord bisect model.onnx",
        "accord bisect model.onnx --input image=photo.npy --rtol 1e-2 --atol 1e-4",
        "accord bisect model.onnx --level 2 --disable-rule fuse-epilogue",
    ),
)
@model_argument
@feed_options
@click.option("--rtol", type=click.FloatRange(0), help="Relative tolerance. [default: what contracts declare]")
@click.option("--atol", type=click.FloatRange(0), help="Absolute tolerance. [default: what contracts declare]")
@load_option
@compile_options
@click.pass_context
def command(
    ctx: click.Context,
    model: Path,
    given: Given,
    rtol: float | None,
    atol: float | None,
    choices: Choices,
) -> None:
    """Find the first rewrite of MODEL that changes an output beyond the tolerance.

    The outputs of the reference backend on the graph as it was loaded are taken for right. Where the compiled model
    differs, patches are left out by halving until one is found after which the result is wrong; then it is told
    whether the rule is at fault or a kernel, and how to go on without it. Exit code 1 if a fault was found.
    """
    from accord.profile.bisect import bisect
    from accord.profile.difference import Bounds

    screen: Screen = ctx.obj
    if choices.device == "null":
        raise wrong_use("--device null: it computes nothing that could be compared.")
    compiled = choices.compile(model, screen)
    feed = given.feed(compiled, screen)
    with screen.progress(f"bisecting {model.name}") as advance:
        verdict = bisect(model, dict(feed), choices.options(), Bounds(rtol, atol), advance)
    lines = _report(verdict)
    data = {
        "model": str(model),
        "level": choices.level,
        **verdict.data(),
        "report": lines,
        "disabled_rules": [] if verdict.patch is None else sorted({*choices.disabled_rules, verdict.patch.rule}),
    }

    def draw(console: Console) -> None:
        rows = [
            (t.patches, "right" if t.is_right else "wrong", "" if t.worst is None else f"{t.worst.excess:.3g}")
            for t in verdict.trials
        ]
        table(
            console,
            f"{model.name}: {plural(verdict.patches, 'patch', 'patches')}",
            (">patches", "result", ">error / tolerance"),
            rows,
        )
        for text in lines:
            line(console, text)

    screen.show(data, draw)
    if verdict.fault != "none":
        ctx.exit(FAILED)


def _report(v: Verdict) -> list[str]:
    """What was found, in words."""
    worst = v.worst
    if v.fault == "none":
        near = "" if worst is None else f"; the worst is '{worst.value}' at {worst.excess:.2g} of its tolerance"
        return [f"nothing is wrong: all outputs agree with the reference backend{near}"]
    found = [f"output {worst}"]
    if v.fault == "random":
        return [*found, "but the reference differs from itself as well: the model draws random numbers"]
    if v.patch is None:
        found.append("it is wrong without any patch: no rewrite rule is at fault")
    else:
        p = v.patch
        found.append(f"it is right after patch #{p.serial - 1} and wrong after #{p.serial}:")
        found.append(f"  rule  {p.rule}, in phase {p.phase}")
        found.append(f"  node  {p.node} ({p.op})")
        if p.note:
            found.append(f"  what  {p.note}")
        found.append(f"  made  {', '.join(p.added) or 'nothing'}")
    found += _cause(v)
    if v.patch is not None:
        found += _way_on(v)
    if v.unchecked and v.fault == "rounding":
        found.append(f"not checked: {', '.join(v.unchecked)}")
    return found


def _cause(v: Verdict) -> list[str]:
    if v.fault == "patch":
        return ["the rule is at fault: with reference kernels the graph that it made is wrong as well"]
    if v.fault == "normalise":
        return ["the choice of branches for the sizes at hand is at fault: the graph is wrong with reference kernels"]
    before = []
    if v.reference_agrees and v.patch is not None:
        before.append("the rule is not at fault: with reference kernels the graph that it made is right")
    if v.step is None:
        before.append("no step alone is beyond the tolerance: errors of several steps add up")
        if v.quantising:
            rounds = plural(v.quantising, "node rounds", "nodes round")
            before.append(f"{rounds} to few bits, where the smallest error can become a whole level")
        return before
    p = v.step.placement
    kernel = "" if p.kernel is None else f", kernel '{p.kernel.name}' of backend '{p.backend}'"
    step = f"{p.node} ({p.op}){kernel}"
    if v.step.memory:
        return [*before, f"memory is at fault: before {step} its input '{v.step.difference.value}' was overwritten"]
    return [*before, f"the kernel is at fault: {step}", f"  given the same inputs, {v.step.difference}"]


def _way_on(v: Verdict) -> list[str]:
    assert v.patch is not None
    rule = v.patch.rule
    if v.without is None or v.without.is_right:
        return [
            f"without the rule all outputs are right: load(..., disabled_rules=['{rule}']), or --disable-rule {rule}"
        ]
    return [f"without the rule '{rule}' outputs are wrong as well: bisect again with --disable-rule {rule}"]
