"""``accord op bench``: times of an operator's kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import FAILED, Screen, Verb, line, seconds_text, size_text, table, wrong_use
from accord.cli.sources import files_option

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["command", "operator_options", "parse_attributes", "parse_sizes"]


def operator_options(function: Any) -> Any:
    """Add what says how an operator is called: ``--sizes``, ``--attribute``, ``--dtype``, ``--threads``."""
    options = (
        click.option(
            "--sizes",
            multiple=True,
            metavar="N=64,D=1024",
            help="Sizes by name, ...=8x16 for leading axes, x=64x1024 for an input whose axes have no names.",
        ),
        click.option("--attribute", multiple=True, metavar="NAME=VALUE", help="An attribute, as JSON; repeatable."),
        click.option("--dtype", help="What type variables stand for. [default: float32 where allowed]"),
        click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads for one run."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def parse_sizes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``N=64,x=2x3`` as sizes by name."""
    found = {}
    for part in (p for text in texts for p in text.split(",") if p):
        name, equals, value = part.partition("=")
        numbers = value.lower().replace("×", "x").split("x")
        if not equals or not name or not all(n.strip().isdecimal() for n in numbers):
            raise wrong_use(f"--sizes {part}: write NAME=NUMBER, or NAME=2x3 for several axes.")
        found[name.strip()] = tuple(map(int, numbers))
    return found


def parse_attributes(texts: Sequence[str]) -> dict[str, Any]:
    """``groups=2`` as attributes by name; what is no JSON is a string."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise wrong_use(f"--attribute {text}: write NAME=VALUE.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


@click.command(
    "bench",
    cls=Verb,
    examples=(
        "accord op bench Softmax --sizes input=64x1024",
        "accord op bench shop::Gate --load ops.py --sizes ...=64,D=1024 --kernel c",
        "accord op bench shop::Gate --load ops.py --save baseline.json",
    ),
)
@click.argument("name")
@files_option
@click.option("--kernel", "kernels", multiple=True, metavar="K", help="Only this kernel; repeatable.")
@operator_options
@click.option("--runs", type=click.IntRange(20), default=1000, show_default=True, help="Timed runs of each candidate.")
@click.option("--against", metavar="PEERS", help="Other runtimes, commas between. [default: all that are installed]")
@click.option("--seed", default=0, show_default=True, help="Of the values.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Baseline for `accord gate` to write to.")
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    files: tuple[str, ...],
    kernels: tuple[str, ...],
    sizes: tuple[str, ...],
    attribute: tuple[str, ...],
    dtype: str | None,
    threads: int,
    runs: int,
    against: str | None,
    seed: int,
    save: Path | None,
) -> None:
    """Time the kernels of operator NAME.

    Beside them: the built-in operator of the same name, the composition and the reference through the runtime, and
    other runtimes. Outputs are compared before times are taken; candidates take turns, each in a process of its own.
    "Warm" times are those of the same inputs again and again, "cold" ones those of inputs that have left the caches.
    The first call, which may compile, is no part of either.
    """
    from accord.workbench.measure import PEERS, Wanted, measure

    screen: Screen = ctx.obj
    others = PEERS if against is None else tuple(p.strip() for p in against.split(",") if p.strip())
    for other in others:
        if other not in PEERS:
            raise wrong_use(f"--against {other}: there are {', '.join(PEERS)}.")
    wanted = Wanted(name, files, parse_sizes(sizes), parse_attributes(attribute), dtype, seed, threads)
    with screen.progress(f"measuring {name}") as advance:
        data = measure(wanted, kernels=kernels, runs=runs, others=others, advance=advance)
    if save is not None and not data["failed"]:
        from accord.workbench.gate import save as save_baseline

        chosen = [c["name"] for c in data["candidates"] if c["what"] == "kernel"]
        with screen.progress(f"baseline of {name}") as advance:
            data["baseline"] = save_baseline(save, [(wanted, k) for k in chosen], advance=advance)
    screen.show(data, lambda console: _draw(console, data))
    if data["failed"]:
        ctx.exit(FAILED)


def _draw(console: Console, data: Mapping[str, Any]) -> None:
    shapes = ", ".join("–" if s is None else "×".join(map(str, s)) or "scalar" for s in data["shapes"])
    work = f"{size_text(data['bytes']['read'])} read, {size_text(data['bytes']['written'])} written"
    if data["operations"] is not None:
        work += f", {data['operations'] / 1e6:.3g} M operations"
    line(console, f"{data['operator']} on {shapes}: {work}", style="bold")
    rows = []
    for c in data["candidates"]:
        warm, cold = c["warm"], c["cold"]
        rows.append(
            (
                c["label"],
                *(seconds_text(warm[p]) for p in ("p50", "p95", "p99")),
                *(seconds_text(cold[p]) for p in ("p50", "p95")),
                "" if c["of_builtin"] is None else f"{c['of_builtin']:.2f}",
                _bandwidth(warm),
                "" if warm["roofline"] is None else f"{warm['roofline']:.0%}",
                _bandwidth(cold),
                seconds_text(c["load"] + c["first"]),
            )
        )
    titles = ("candidate", ">p50", ">p95", ">p99", ">cold p50", ">cold p95", ">speed", ">warm GB/s", ">of roofline",
              ">cold GB/s", ">load + first call")  # fmt: skip
    table(console, f"{data['runs']} runs each, threads: {data['threads']}", titles, rows)
    line(
        console,
        "speed: against the built-in, 1 is as fast. GB/s: bytes of inputs and outputs, and where they came from.",
    )
    if data["peaks"] is not None and data["peaks"]["disturbed"]:
        line(console, "the machine was busy while its peaks were measured: shares are uncertain", style="yellow")
    for s in data["not_measured"]:
        line(console, f"{s['label']}: not measured: {s['why']}")
    for f in data["failed"]:
        line(console, f"{f['label']}: {f['error']}", style="red")


def _bandwidth(figures: Mapping[str, Any]) -> str:
    source = f" {figures['source']}" if figures["source"] else ""
    return f"{figures['bandwidth'] / 1e9:.3g}{source}"
