"""``accord tune``: choices between kernels by measurement, which later loads find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accord.cli.common import (
    Choices,
    Given,
    Screen,
    Verb,
    compile_options,
    feed_options,
    line,
    model_argument,
    plural,
    seconds_text,
    table,
)
from accord.cli.sources import load_option

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["command"]


@click.command(
    "tune",
    cls=Verb,
    examples=(
        "accord tune model.onnx",
        "accord tune model.onnx --shape x=1x3x640x640 --threads 1",
        "accord tune model.onnx --device cuda --shape batch=32",
    ),
)
@model_argument
@feed_options
@click.option("--runs", type=click.IntRange(1), default=24, show_default=True, help="Timed runs of each alternative.")
@load_option
@compile_options
@click.pass_obj
def command(
    screen: Screen,
    model: Path,
    given: Given,
    runs: int,
    choices: Choices,
) -> None:
    """Choose between the kernels of MODEL that are right by measuring them, and remember what is faster.

    Loads of the same file with the same options make the same choices. Sizes that are not given are assumed. On a GPU
    it is the ways to start kernels that are measured, and what is found counts for every model with such kernels.
    """
    from accord.backends.discovery import own_backend

    own = own_backend(choices.device)
    if own is not None and own.memory is not None:
        _tune_device(screen, model, given, choices)
        return
    from accord.profile.tuning import tune_with

    with screen.progress(f"tuning {model.name}") as advance:
        found = tune_with(model, lambda loaded: given.feed(loaded, screen), choices.options(), runs, advance)

    def draw(console: Console) -> None:
        if not found.nodes:
            line(console, "no kernel of this model has alternatives")
            return
        rows = []
        for n in found.nodes:
            times = ", ".join(f"{a} {seconds_text(s)}" for a, s in n.seconds.items())
            gain = f"{seconds_text(n.gain)} ({n.gain / n.seconds[n.rule]:.0%})" if n.chosen != n.rule else ""
            rows.append((n.node, n.op, times, n.chosen, gain))
        columns = ("node", "operator", "alternatives, the one by rule first", "chosen", ">gain")
        table(console, f"Medians of {plural(runs, 'run')}", columns, rows)
        changed = plural(len(found.choices), "kernel")
        gain = f", which saves {seconds_text(found.gain)} a run" if found.choices else ""
        line(console, f"{changed} of {len(found.nodes)} other than by rule{gain}; remembered for later loads")

    screen.show({"model": str(model), **found.data()}, draw)


def _tune_device(screen: Screen, path: Path, given: Given, choices: Choices) -> None:
    """Measure the ways to start a model's kernels on a device."""
    from accord.cli.placed import draw_measured, measured

    model = replace(choices, tuning="full").compile(path, screen)
    feed = given.feed(model, screen)
    with screen.progress(f"tuning {path.name}"):
        model.warm_up([feed])
    rows = measured(model, {name: value.shape for name, value in feed.items() if hasattr(value, "shape")})

    def draw(console: Console) -> None:
        if rows:
            draw_measured(console, rows)
        else:
            line(console, "no kernel of this model can be started in several ways")

    screen.show({"model": str(path), "ways": rows}, draw)
