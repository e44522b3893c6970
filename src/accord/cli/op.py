"""``accord op``: what operators promise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from accord.cli import op_bench, op_docs, op_gates
from accord.cli.check import check_command, header_command, new_command
from accord.cli.common import Screen, Verb, WithExamples, line, plural, table, wrong_use
from accord.cli.op_compile import command as compile_command
from accord.cli.sources import load_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.contract.contract import Contract, Parameter

__all__ = ["command"]

_LIST_EXAMPLES = ("accord op list", "accord op list --filter Pool", "accord op list --domain com.microsoft --json")
_SHOW_EXAMPLES = ("accord op show Conv", "accord op show com.microsoft::Gelu", "accord op show Resize --opset 11")


class _Group(WithExamples, click.Group):
    pass


@click.group("op", cls=_Group, examples=(*_LIST_EXAMPLES[:2], *_SHOW_EXAMPLES[:2]))
def command() -> None:
    """Declare operators, show their contracts, and check their kernels."""


for verb in (new_command, header_command, check_command, op_bench.command, op_docs.command, op_gates.command):
    command.add_command(verb)


@command.command("list", cls=Verb, examples=_LIST_EXAMPLES)
@load_option
@click.option("--domain", help="Only operators of this domain; ai.onnx is ONNX's own.")
@click.option("--filter", "pattern", default="", metavar="REGEX", help="Only operators whose name matches.")
@click.pass_obj
def list_command(screen: Screen, domain: str | None, pattern: str) -> None:
    """List the operators that have a contract."""
    import accord.ops.catalog  # noqa: F401  makes the operators of com.microsoft known
    from accord.contract.registry import all_contracts

    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise wrong_use(f"--filter {pattern}: not a regular expression: {error}") from error
    chosen = sorted(
        (
            c
            for c in all_contracts()
            if domain in (None, c.semantic.domain or "ai.onnx") and wanted.search(c.semantic.qualified_name)
        ),
        key=lambda c: (c.semantic.domain, c.semantic.name),
    )
    if not chosen:
        raise wrong_use("no operator has such a domain and name.")
    rows = [
        {
            "operator": c.semantic.qualified_name,
            "since": c.semantic.since_version,
            "inputs": _arity(c.semantic.min_inputs, c.semantic.max_inputs),
            "outputs": _arity(c.semantic.min_outputs, c.semantic.max_outputs),
            "fuses": c.scheduling.fuses,
            "deterministic": c.scheduling.deterministic,
        }
        for c in chosen
    ]

    def draw(console: Console) -> None:
        titles = ("operator", ">since", "inputs", "outputs", "fuses as")
        table(console, plural(len(rows), "operator"), titles, [list(r.values())[:-1] for r in rows])

    screen.show({"operators": rows}, draw)


@command.command("show", cls=Verb, examples=_SHOW_EXAMPLES)
@click.argument("name")
@load_option
@click.option("--opset", type=click.IntRange(1), help="Version of the operator's domain. [default: the newest]")
@click.pass_obj
def show_command(screen: Screen, name: str, opset: int | None) -> None:
    """Show the contract of NAME, or of domain::NAME."""
    from accord.contract.registry import NEWEST
    from accord.workbench.loading import find_contract

    data = _described(find_contract(name, NEWEST if opset is None else opset))
    screen.show(data, lambda console: _draw(console, data))


def _arity(least: int, most: int | None) -> str:
    return f"{least}+" if most is None else str(least) if least == most else f"{least}-{most}"


def _parameter(p: Parameter, contract: Contract) -> dict[str, Any]:
    types = sorted(contract.semantic.types.get(p.type, ()))
    return {"name": p.name, "type": p.type, "option": p.option, "types": types}


def _described(contract: Contract) -> dict[str, Any]:
    s, e, k = contract.semantic, contract.execution, contract.scheduling
    return {
        "operator": s.qualified_name,
        "since": s.since_version,
        "inputs": [_parameter(p, contract) for p in s.inputs],
        "outputs": [_parameter(p, contract) for p in s.outputs],
        "attributes": [
            {"name": a.name, "kind": a.kind, "required": a.required, "default": a.default}
            for a in s.attributes.values()
        ],
        "constraints": list(s.constraints),
        "tolerance": {dtype: {"rtol": t.rtol, "atol": t.atol} for dtype, t in s.tolerance.items()},
        "nan": s.nan.value,
        "deterministic": s.deterministic,
        "execution": {
            "layouts": list(e.layouts),
            "alignment": e.alignment,
            "accumulate": dict(e.accumulate),
            "in_place": [list(pair) for pair in e.in_place],
            "views": [list(pair) for pair in e.views],
            "nullable": list(e.nullable),
            "workspace": e.workspace is not None,
            "thread_safe": e.thread_safe,
            "architectures": list(e.architectures),
        },
        "scheduling": {
            "fuses": k.fuses,
            "epilogue": k.epilogue,
            "stream": k.stream,
            "capture_safe": k.capture_safe,
            "stateless": k.stateless,
            "deterministic": k.deterministic,
            "host_sync": k.host_sync,
        },
        "doc": s.doc.strip(),
    }


def _draw(console: Console, data: Mapping[str, Any]) -> None:
    line(console, f"{data['operator']}, since version {data['since']}", style="bold")
    for kind in ("inputs", "outputs"):
        rows = [(p["name"], p["type"], p["option"], ", ".join(p["types"])) for p in data[kind]]
        if rows:
            table(console, kind.capitalize(), ("name", "type", "", "may be"), rows)
    given = [(a["name"], a["kind"], "required" if a["required"] else _text(a["default"])) for a in data["attributes"]]
    if given:
        table(console, "Attributes", ("name", "kind", "default"), given)
    facts = [
        ("constraints", "; ".join(data["constraints"])),
        ("tolerance", "; ".join(f"{d}: rtol {t['rtol']:g}, atol {t['atol']:g}" for d, t in data["tolerance"].items())),
        ("NaN", data["nan"]),
        *((name.replace("_", " "), _text(value)) for name, value in data["execution"].items()),
        *((name.replace("_", " "), _text(value)) for name, value in data["scheduling"].items()),
    ]
    table(console, "Promises", ("what", "value"), [f for f in facts if f[1]])
    if data["doc"]:
        console.print(data["doc"], markup=False)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k} in {v}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(" ← ".join(map(str, v)) if isinstance(v, list) else str(v) for v in value)
    return "" if value is None else str(value)


command.add_command(compile_command)
