"""``accord op gates``: the seven gates to production."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accord.cli.common import FAILED, Screen, Verb, line
from accord.cli.op_bench import operator_options, parse_attributes, parse_sizes
from accord.cli.sources import files_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.workbench.gates import Gate

__all__ = ["command"]

_STYLES = {"pass": "green", "fail": "red", "not measured": "yellow"}


@click.command("gates", cls=Verb, examples=("accord op gates shop::Gate --load ops.py --docs docs/operators",))
@click.argument("name")
@files_option
@operator_options
@click.option(
    "--docs",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/operators"),
    show_default=True,
    help="Folder of documents and baseline.",
)
@click.option("--seconds", type=click.FloatRange(0.1), default=6.0, show_default=True, help="Of checking, each kernel.")
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    files: tuple[str, ...],
    sizes: tuple[str, ...],
    attribute: tuple[str, ...],
    dtype: str | None,
    threads: int,
    docs: Path,
    seconds: float,
) -> None:
    """Try the seven gates for operator NAME: each pass, fail, or not measured, with the evidence.

    Exit code 1 if one fails; what was not measured is no failure and no pass.
    """
    from accord.workbench.gates import seven_gates
    from accord.workbench.loading import find_contract, load_files
    from accord.workbench.measure import Wanted

    screen: Screen = ctx.obj
    wanted = Wanted(name, files, parse_sizes(sizes), parse_attributes(attribute), dtype, 0, threads)
    load_files(files)
    contract = find_contract(name)
    with screen.progress(f"gates of {name}") as advance:
        found = seven_gates(wanted, contract, folder=docs, seconds=seconds, advance=advance)
    data = {"operator": contract.semantic.qualified_name, "gates": [g.data() for g in found]}
    screen.show(data, lambda console: _draw(console, contract.semantic.qualified_name, found))
    if any(g.status == "fail" for g in found):
        ctx.exit(FAILED)


def _draw(console: Console, name: str, gates: Sequence[Gate]) -> None:
    line(console, name, style="bold")
    for number, g in enumerate(gates, 1):
        line(console, f"{number} {g.name}: {g.status}", style=_STYLES[g.status])
        for text in g.evidence:
            line(console, f"    {text}")
