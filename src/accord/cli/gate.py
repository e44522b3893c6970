"""``accord gate``: kernels against a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import FAILED, Screen, Verb, line, plural, seconds_text, table, wrong_use

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["command"]

_STYLES = {"pass": "green", "faster": "green", "fail": "red", "error": "red"}


@click.command(
    "gate",
    cls=Verb,
    examples=(
        "accord gate ops.py --baseline baseline.json --update",
        "accord gate --baseline baseline.json",
        "accord gate --baseline baseline.json --json --markdown summary.md",
    ),
)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--baseline", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The stored times.")
@click.option("--only", multiple=True, metavar="BENCHMARK", help="Only this entry of the baseline; repeatable.")
@click.option("--update", is_flag=True, help="Measure, and write the baseline instead of comparing with it.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="File for the report as Markdown.")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    baseline: Path,
    only: tuple[str, ...],
    update: bool,
    markdown: Path | None,
) -> None:
    """Compare kernels with a baseline; a loss of p95 over 5 % that also exceeds the noise fails.

    FILES are Python files that declare operators; without any, those that the baseline was measured with. With
    --update, all kernels for the CPU that FILES declare are measured into the baseline (and those that it has, without
    FILES). Exit codes: 0 no loss, 1 a loss or a kernel that cannot be measured, 2 a baseline that cannot be used.
    """
    from accord.workbench import gate

    screen: Screen = ctx.obj
    if markdown is not None and not markdown.parent.is_dir():
        raise wrong_use(f"--markdown {markdown}: there is no folder '{markdown.parent}'.")
    if update:
        from accord.workbench.baseline import read

        chosen = gate.declared(files) if files else [(e.wanted, e.kernel) for e in read(baseline).entries.values()]
        if not chosen:
            raise wrong_use("the files declare no operator with a kernel for the CPU.")
        with screen.progress("measuring") as advance:
            data = gate.save(baseline, chosen, advance=advance)
        screen.show(
            data, lambda console: line(console, f"{baseline}: {plural(len(data['entries']), 'entry', 'entries')}")
        )
        return
    with screen.progress("measuring") as advance:
        report = gate.gate(baseline, files, keys=only, advance=advance)
    if markdown is not None:
        try:
            markdown.write_text(gate.markdown(report), encoding="utf-8")
        except OSError as error:
            raise wrong_use(f"--markdown {markdown}: {error.strerror or error}") from error
    screen.show(report, lambda console: _draw(console, report))
    if report["verdict"] == "fail":
        ctx.exit(FAILED)


def _draw(console: Console, report: Mapping[str, Any]) -> None:
    from accord.workbench.gate import sentence

    rows = []
    for r in report["benchmarks"]:
        seconds = r.get("seconds")
        times = ("", "") if seconds is None else tuple(seconds_text(seconds[k]["p95"]) for k in ("baseline", "now"))
        machine = "" if seconds is None else f"{max(r['machine'].values()):+.1%}"
        rows.append((r["benchmark"], r["verdict"], *times, machine, sentence(r)))
    titles = ("benchmark", "verdict", ">p95 then", ">p95 now", ">machine", "")
    table(console, f"against {report['baseline']}", titles, rows)
    for note in report["notes"]:
        line(console, note)
    line(console, f"gate: {report['verdict']}", style=_STYLES[report["verdict"]])
