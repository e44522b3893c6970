"""``accord op new``, ``header`` and ``check``: write an operator, and prove its kernels against its contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import FAILED, Screen, Verb, line, plural, wrong_use
from accord.cli.sources import files_option, load_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.workbench.run import Report

__all__ = ["check_command", "header_command", "new_command"]


@click.command(
    "check",
    cls=Verb,
    examples=(
        "accord op check shop::ChannelShuffle --load shuffle.py",
        "accord op check shop::Norm --load norm.py --kernel c --seconds 30",
        """accord op check shop::Norm --load norm.py --case '{"sizes": {"N": 1, "D": 17}}'""",
        "accord op check shop::Norm --load norm.py --record docs/operators",
        "accord op check Softmax",
    ),
)
@click.argument("name")
@files_option
@click.option("--kernel", metavar="NAME", help="Only this kernel.")
@click.option(
    "--device",
    type=click.Choice(("cpu", "cuda")),
    help="Only kernels for it; without a GPU, Triton's are interpreted. [default: cpu, or all if none is for it]",
)
@click.option("--case", metavar="JSON", help="Only this call, as a finding gives it.")
@click.option("--seed", default=0, show_default=True, help="All that is drawn follows from it.")
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the operators' documents: what was found is kept in its checks.json, for `accord op docs`.",
)
@click.option("--seconds", type=click.FloatRange(0.1), help="Time for each kernel. [default: 5]")
@click.pass_obj
def check_command(
    screen: Screen,
    name: str,
    files: tuple[str, ...],
    kernel: str | None,
    device: str | None,
    case: str | None,
    seed: int,
    record: Path | None,
    seconds: float | None,
) -> None:
    """Check the kernels of NAME against its contract, each in a process of its own.

    Exit codes: 0 nothing was found, 1 something was.
    """
    from accord.workbench.run import BUDGET, check_operator

    began = time.monotonic()
    with screen.progress(f"checking {name}") as advance:
        reports = check_operator(
            name, files, kernel=kernel, device=device, case=case, seed=seed, seconds=seconds or BUDGET, progress=advance
        )
    if record is not None:
        from accord.workbench.document import CHECKS
        from accord.workbench.records import add_records

        record.mkdir(parents=True, exist_ok=True)
        add_records(record / CHECKS, name, {r.kernel: r.record(seed) for r in reports if r.digest and r.calls})
    data = {
        "operator": name,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 3),
        "kernels": [
            {
                "kernel": r.kernel,
                "kind": r.kind,
                "checked": bool(r.calls),
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
        verdict = plural(len(r.findings), "finding") if r.findings else "nothing found" if r.calls else "not checked"
        run = f" in {plural(r.calls, 'call')}, {r.seconds:.1f} s" if r.calls else ""
        line(
            console,
            f"{name}, kernel {r.kernel} ({r.kind}): {verdict}{run}",
            style="bold red" if r.findings else "bold green" if r.calls else "bold yellow",
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


@click.command(
    "new", cls=Verb, examples=("accord op new shop::ChannelShuffle", "accord op new shop::Gate --dir operators")
)
@click.argument("name")
@click.option(
    "--dir", "folder", default=".", type=click.Path(file_okay=False, path_type=Path), help="Where the file goes."
)
@click.pass_obj
def new_command(screen: Screen, name: str, folder: Path) -> None:
    """Write a file that declares the operator NAME: reference, two kernels, and room for a third in C."""
    from accord.workbench.template import write

    path = write(name, folder)

    def draw(console: Console) -> None:
        line(console, f"written: {path}", style="bold")
        line(console, f"next: accord op check {name} --load {path}")

    screen.show({"operator": name, "file": str(path)}, draw)


@click.command(
    "header",
    cls=Verb,
    examples=(
        "accord op header shop::Scale --load scale.py",
        "accord op header shop::Scale --load scale.py --type T=int8",
    ),
)
@click.argument("name")
@load_option
@click.option("--kernel", metavar="NAME", help="Whose memory clauses count. [default: the first C function, or none]")
@click.option("--type", "types", multiple=True, metavar="T=DTYPE", help="A type variable's dtype. [default: float32]")
@click.pass_obj
def header_command(screen: Screen, name: str, kernel: str | None, types: tuple[str, ...]) -> None:
    """Print the C prototype of a kernel of NAME: its parameters follow from the contract."""
    from accord.contract.contract import KernelDeclaration
    from accord.contract.dtypes import ONNX_TYPES, short_name
    from accord.kernels.signature import prototype, symbol_of
    from accord.workbench.loading import find_contract
    from accord.workbench.template import file_name

    contract = find_contract(name)
    s = contract.semantic
    chosen = dict(pair.partition("=")[::2] for pair in types)
    for variable, dtype in chosen.items():
        if variable not in s.types or ONNX_TYPES.get(dtype) not in s.types[variable]:
            raise wrong_use(f"--type {variable}={dtype}: the operator has {_allowed(s.types, short_name)}.")
    given = {
        v: ONNX_TYPES[chosen.get(v, "float32" if ONNX_TYPES["float32"] in allowed else short_name(min(allowed)))]
        for v, allowed in s.types.items()
    }
    own = contract.kernel(kernel) if kernel is not None else next(
        (k for k in contract.kernels if k.kind == "library"), KernelDeclaration("c", "library", "cpu", None)
    )  # fmt: skip
    pattern = getattr(own.code, "symbol", file_name(s.name) + "".join(f"_{{{v}}}" for v in s.types))
    text = prototype(contract, own, given, symbol_of(pattern, given))
    data = {"operator": s.qualified_name, "prototype": text}
    screen.show(data, lambda console: line(console, f"#include <stdint.h>\n\n{text}"))


def _allowed(types: Mapping[str, frozenset[str]], short: Callable[[str], str]) -> str:
    return (
        "; ".join(f"{v} in {', '.join(sorted(map(short, allowed)))}" for v, allowed in types.items())
        or "no type variables"
    )
