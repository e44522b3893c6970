"""What every verb shares: help, quick start, JSON, exit codes, one readable block for an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_harness import call, write

from accord.cli import VERBS, main
from accord.cli.common import closest, plural, seconds_text, size_text


def verbs() -> list[tuple[str, ...]]:
    """Every verb, and the verbs below a verb."""
    found: list[tuple[str, ...]] = []
    for name in VERBS:
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            found += [(name, inner) for inner in command.commands]
        else:
            found.append((name,))
    return found


@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_help_has_examples_and_common_options(verb: tuple[str, ...]) -> None:
    result = call(*verb, "--help")
    assert result.exit_code == 0
    assert f"Examples:\n  accord {verb[0]}" in result.output
    for option in ("--json", "--traceback"):
        assert option in result.output
    assert call(*verb, "-h").output == result.output


@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_who_takes_models_or_operators_takes_files_that_declare_operators(verb: tuple[str, ...]) -> None:
    command: click.Command = main
    for name in verb:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    taken = {p.name for p in command.params if isinstance(p, click.Argument)} & {"model", "models", "name"}
    assert (verb[-1] == "new") or not taken or "--load" in call(*verb, "--help").output


def test_help_of_all() -> None:
    result = call("--help")
    assert all(name in result.output for name in VERBS)
    assert call("--version").output.startswith("accord, version 0.")


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from accord.cli import main
main(["--help"], standalone_mode=False)
assert not {"numpy", "onnx", "onnx_ir", "rich"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_as_a_module() -> None:
    run = subprocess.run([sys.executable, "-m", "accord", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("accord, version")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "no verb 'rnu'. Did you mean 'run'?"),
        (["run"], "Missing argument 'MODEL'"),
        (["run", "no.onnx"], "'no.onnx' does not exist"),
        (["run", "."], "is a directory"),
        (["run", "{model}", "--level", "7"], "not in the range"),
        (["run", "{model}", "--threads", "0"], "not in the range"),
        (["run", "{model}", "--disable-rule", "fold-constant"], "Did you mean 'fold-constants'?"),
        (["explain", "{model}", "--rule", "zzzzzz"], "there is no such rule. There are: "),
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    model = write(tmp_path)
    result = call(*(a.format(model=model) for a in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_an_error_is_one_block(tmp_path: Path) -> None:
    model = write(tmp_path)
    result = call("run", model, "--shape", "image=1x3x4x4", "--input", "k=[1.5, 2]")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: wrong size on axis 0\n  value    k\n  expected [1]\n  found    [2]\n")
    assert "Traceback" not in result.stderr
    text = '<ir_version: 8, opset_import: ["":17]> g (float[N] x) => (float[N] y) { y = NoSuch(x) }'
    result = call("run", write(tmp_path, text))
    assert result.exit_code == 1
    assert "NoSuch" in result.stderr
    assert "\n  op       NoSuch\n" in result.stderr


def test_an_error_as_json(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"this is no model")
    result = call("run", str(tmp_path / "m.onnx"), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["type"] == "ModelFormatError"
    assert result.stderr.startswith("error: ")


def test_traceback(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"this is no model")
    result = call("run", str(tmp_path / "m.onnx"), "--traceback")
    assert type(result.exception).__name__ == "ModelFormatError"


def test_a_defect_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import accord.cli.placed

    def broken(plan: object) -> str:
        raise KeyError("oops")

    monkeypatch.setattr(accord.cli.placed, "fallback_counts", broken)
    result = call("run", write(tmp_path), "--shape", "image=1x3x4x4")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: KeyError: 'oops'\n  remedy   This is a defect")


def test_no_progress_where_nobody_sees_it(tmp_path: Path) -> None:
    result = call("explain", write(tmp_path), "--shape", "image=1x3x4x4")
    assert result.exit_code == 0
    assert result.stderr == ""


def test_words() -> None:
    assert [plural(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [size_text(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]
    assert [seconds_text(s) for s in (2e-6, 3.1e-3, 2)] == ["2.00 µs", "3.10 ms", "2.00 s"]
    assert closest("imge", ["image", "mask"]) == " Did you mean 'image'?"
    assert closest("x", []) == " There is none."
