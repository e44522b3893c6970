"""``accord op docs``: the documents of operators."""

from __future__ import annotations

from pathlib import Path

import click

from accord.cli.common import FAILED, Screen, Verb, line, wrong_use
from accord.cli.sources import files_option

__all__ = ["command"]


@click.command(
    "docs",
    cls=Verb,
    examples=(
        "accord op docs --load ops.py --out docs/operators",
        "accord op docs shop::Gate --load ops.py --out docs/operators --check",
    ),
)
@click.argument("name", required=False)
@files_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/operators"),
    show_default=True,
    help="Folder of the documents; checks.json and baseline.json in it are read.",
)
@click.option("--check", is_flag=True, help="Write nothing; a document that is missing or stale is a failure.")
@click.pass_context
def command(ctx: click.Context, name: str | None, files: tuple[str, ...], out: Path, check: bool) -> None:
    """Write the document of operator NAME, or of all operators that the files declare."""
    from accord.workbench.document import documents, stale, write_documents
    from accord.workbench.loading import find_contract, load_files

    screen: Screen = ctx.obj
    if name is None and not files:
        raise wrong_use("name an operator, or give --load FILE.")
    declared = load_files(files)
    contracts = declared if name is None else [find_contract(name)]
    if not contracts:
        raise wrong_use("the files declare no operator.")
    made = documents(contracts, out)
    if check:
        wrong = stale(made, out)
        data = {"folder": str(out), "documents": sorted(made), "stale": wrong}
        texts = [f"{out / n}: {why}" for n, why in wrong.items()] or [f"{len(made)} up to date"]
        screen.show(data, lambda console: line(console, "\n".join(texts)))
        if wrong:
            ctx.exit(FAILED)
        return
    written = write_documents(made, out)
    data = {"folder": str(out), "documents": sorted(made), "written": written}
    screen.show(
        data, lambda console: line(console, f"{out}: {len(written)} written, {len(made) - len(written)} as before")
    )
