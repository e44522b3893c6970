"""The command line, ``accord VERB``: one verb a file, what they share in :mod:`accord.cli.common`."""

from __future__ import annotations

import importlib

import click

import accord
from accord.cli.common import WithExamples, closest, wrong_use

__all__ = ["main"]

#: Where each verb lives; its module is imported when the verb is used, or listed.
VERBS = {
    "run": "accord.cli.run",
    "explain": "accord.cli.explain",
    "bench": "accord.cli.bench",
    "profile": "accord.cli.profile",
    "gate": "accord.cli.gate",
    "tune": "accord.cli.tune",
    "bisect": "accord.cli.bisect",
    "conformance": "accord.cli.conformance",
    "op": "accord.cli.op",
    "demo": "accord.cli.demo",
}


class _Verbs(WithExamples, click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        del ctx
        if cmd_name not in VERBS:
            raise wrong_use(f"there is no verb '{cmd_name}'.{closest(cmd_name, list(VERBS))}")
        command: click.Command = importlib.import_module(VERBS[cmd_name]).command
        return command


@click.group(
    cls=_Verbs,
    examples=(
        "accord run model.onnx",
        "accord explain model.onnx --shape x=1x3x224x224",
        "accord bench model.onnx --against onnxruntime",
        "accord VERB --help",
    ),
)
@click.version_option(accord.__version__, prog_name="accord")
def main() -> None:
    """Run, explain, measure and check ONNX models.

    Exit codes: 0 all well, 1 something failed, 2 wrong use.
    """
