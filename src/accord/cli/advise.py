"""``accord advise``: which runtime suits a model, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from accord.cli.common import Screen, Verb, line, model_argument, plural, size_text
from accord.cli.sources import load_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.doctor.advice import Advice

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., object])


def _choices(function: F) -> F:
    from accord.doctor.advice import TARGETS, TEAMS, WEIGHTS

    target = click.option(
        "--target", type=click.Choice(TARGETS), help="Hardware that it will run on. [default: what is here]"
    )
    weights = click.option(
        "--weights",
        type=click.Choice(WEIGHTS),
        default="fixed",
        show_default=True,
        help="Whether weights stay, are replaced while it serves, or are trained.",
    )
    team = click.option("--team", type=click.Choice(TEAMS), help="Who works with it.")
    return target(weights(team(function)))


@click.command(
    "advise",
    cls=Verb,
    examples=(
        "accord advise model.onnx",
        "accord advise model.onnx --target nvidia --team ops",
        "accord advise model.onnx --weights updated --json",
    ),
)
@model_argument
@_choices
@load_option
@click.pass_obj
def command(screen: Screen, model: Path, target: str | None, weights: str, team: str | None) -> None:
    """Rank the runtimes for MODEL, each with the facts that speak for it and against it.

    The ranking follows rules; nothing is measured. accord bench --against measures.
    """
    from accord.doctor.advice import advise, case_of
    from accord.doctor.environment import look
    from accord.doctor.traits import fit_of, traits_of

    traits = traits_of(model)
    with screen.progress(f"compiling {model.name}"):
        fit = fit_of(model)
    advice = advise(case_of(traits, fit, look(), target=target, weights=weights, team=team))
    data = {
        "model": str(model),
        "traits": dataclasses.asdict(traits),
        "accord": dataclasses.asdict(fit),
        "options": {"target": target, "weights": weights, "team": team},
        "target": {"kind": advice.case.target, "because": advice.case.found},
        "ranking": [dataclasses.asdict(v) for v in advice.ranking],
        "changes": [{"if": words, "first": runtime} for words, runtime in advice.changes.items()],
    }
    screen.show(data, lambda console: _draw(console, advice))


def _draw(console: Console, advice: Advice) -> None:
    from accord.doctor.advice import BLOCKED

    t, case = advice.case.traits, advice.case
    size = f"{plural(t.nodes, 'node')}, {size_text(t.weight_bytes)} of weights"
    line(console, f"{t.name}: {size}, target {case.target} ({case.found})")
    for number, verdict in enumerate(advice.ranking, 1):
        line(console, f"{number}. {verdict.runtime}: {verdict.fit}", style="bold")
        for mark in verdict.marks:
            sign = "no" if mark.points <= BLOCKED else f"{mark.points:+d}"
            line(console, f"   {sign:>3}  {mark.fact} → {mark.reason}")
    if advice.changes:
        line(console, "What would put another one first:")
        for words, runtime in advice.changes.items():
            line(console, f"  {words}: {runtime}")
    else:
        line(console, "No single change of target, weights, team or sizes puts another one first.")
    line(console, "These are rules, not measurements: accord bench --against measures.")
