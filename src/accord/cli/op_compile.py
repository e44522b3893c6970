"""``accord op compile``: an operator's GPU kernels for every architecture, without a GPU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import FAILED, Screen, Verb, line, plural, size_text, table, wrong_use
from accord.cli.sources import load_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.contract.contract import Contract
    from accord.kernels.architectures import Compilation

__all__ = ["command"]

_EXAMPLES = (
    "accord op compile accord::LayerNorm",
    "accord op compile accord::ChannelShuffle --arch sm_90 --arch sm_86 --kernel cuda",
    "accord op compile shop::Norm --load norm.py",
    "accord op compile accord::Attention --size S=4096 --json",
)


@click.command("compile", cls=Verb, examples=_EXAMPLES)
@click.argument("name")
@load_option
@click.option("--arch", "names", multiple=True, metavar="SM", help="Only for this architecture; repeatable.")
@click.option("--kernel", "only", metavar="NAME", help="Only this kernel. [default: all for a GPU]")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="A size or attribute; repeatable.")
@click.pass_context
def command(ctx: click.Context, name: str, names: tuple[str, ...], only: str | None, sizes: tuple[str, ...]) -> None:
    """Compile the Triton and CUDA kernels of NAME for each architecture; no GPU is needed.

    Registers, spilled registers and shared memory are read out of the machine code and held against the limits of the
    architecture. The exit code is 1 if a kernel does not compile or takes more than there is.
    """
    from accord.kernels.architectures import compile_report
    from accord.workbench.loading import find_contract

    contract = find_contract(name)
    chosen = [k for k in contract.kernels if k.kind in ("triton", "cuda") and only in (None, k.name)]
    if not chosen:
        raise wrong_use(_nothing(contract, only))
    sample = dict(map(_size, sizes))
    report = [c for k in chosen for c in compile_report(contract, k, names, [sample] if sample else ())]
    screen: Screen = ctx.obj
    data = {"operator": contract.semantic.qualified_name, "compilations": [dataclasses.asdict(c) for c in report]}
    screen.show(data, lambda console: _draw(console, report))
    if any(c.faults for c in report):
        ctx.exit(FAILED)


def _nothing(contract: Contract, only: str | None) -> str:
    there = ", ".join(f"{k.name} ({k.kind})" for k in contract.kernels) or "none"
    which = f" called '{only}'" if only else ""
    return f"{contract.semantic.qualified_name} has no Triton or CUDA kernel{which}. Its kernels: {there}."


def _size(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise wrong_use(f"--size {text}: expected NAME=N")
    try:
        return name, int(value)
    except ValueError:
        return name, value


def _draw(console: Console, report: list[Compilation]) -> None:
    titles = ("kernel", "for", "types", ">registers", ">spilled", ">shared", ">threads", ">blocks", "")
    rows = [
        (
            f"{c.kernel}: {c.entry}",
            c.architecture,
            ", ".join(c.types.values()),
            c.registers,
            size_text(c.spills) if c.spills else "",
            size_text(c.shared) if c.shared else "",
            c.threads,
            c.blocks,
            "; ".join((*c.faults, *c.remarks)) or "fits",
        )
        for c in report
    ]
    table(console, plural(len(report), "compilation"), titles, rows)
    faults = sum(bool(c.faults) for c in report)
    line(console, f"{plural(faults, 'fault')}." if faults else "All fit.", style="bold red" if faults else "green")
