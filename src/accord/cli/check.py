"""``accord op check``: prove an operator's kernels against its contract."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import FAILED, Screen, Verb, line, plural
from accord.cli.sources import files_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.workbench.run import Report

__all__ = ["check_command"]


@click.command(
    "check",
    cls=Verb,
    examples=(
        "accord op check shop::ChannelShuffle --load shuffle.py",
        "accord op check shop::Norm --load norm.py --kernel c --seconds 30",
        """accord op check shop::Norm --load norm.py --case '{"sizes": {"N": 1, "D": 17}}'""",
        "accord op check Softmax",
    ),
)
@click.argument("name")
@files_option
@click.option("--kernel", metavar="NAME", help="Only this kernel. [default: all for the CPU]")
@click.option("--case", metavar="JSON", help="Only this call, as a finding gives it.")
@click.option("--seed", default=0, show_default=True, help="All that is drawn follows from it.")
@click.option("--seconds", type=click.FloatRange(0.1), help="Time for each kernel. [default: 6]")
@click.pass_obj
def check_command(
    screen: Screen,
    name: str,
    files: tuple[str, ...],
    kernel: str | None,
    case: str | None,
    seed: int,
    seconds: float | None,
) -> None:
    """Check the kernels of NAME against its contract, each in a process of its own.

    Exit codes: 0 nothing was found, 1 something was.
    """
    from accord.workbench.run import BUDGET, check_operator

    began = time.monotonic()
    with screen.progress(f"checking {name}") as advance:
        reports = check_operator(
            name, files, kernel=kernel, case=case, seed=seed, seconds=seconds or BUDGET, progress=advance
        )
    data = {
        "operator": name,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 3),
        "kernels": [
            {
                "kernel": r.kernel,
                "kind": r.kind,
                "calls": r.calls,
                "checks": r.checks,
                "findings": [f.data(name, files, seed) for f in r.findings],
                "notes": r.notes,
            }
            for r in reports
        ],
    }
    screen.show(data, lambda console: _draw(console, name, files, seed, reports))
    if any(r.findings for r in reports):
        click.get_current_context().exit(FAILED)


def _draw(console: Console, name: str, files: Sequence[str], seed: int, reports: Sequence[Report]) -> None:
    for r in reports:
        verdict = plural(len(r.findings), "finding") if r.findings else "nothing found"
        line(
            console,
            f"{name}, kernel {r.kernel} ({r.kind}): {verdict} in {plural(r.calls, 'call')}, {r.seconds:.1f} s",
            style="bold red" if r.findings else "bold green",
        )
        for f in r.findings:
            facts: list[tuple[str, Any]] = [
                ("expected", f.expected),
                ("found", f.found),
                ("faults", ", ".join(map(str, f.faults))),
                ("again", f.reproduction(name, files, seed)),
                ("remedy", f.remedy),
            ]
            line(console, f"  {f.clause}: {f.what}", style="bold")
            for label, text in facts:
                if text:
                    line(console, f"    {label:<9}{text}")
        for note in r.notes:
            line(console, f"  not tried: {note}", style="yellow")
