"""accord bisect."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_harness import IMAGE, call, data, write

from faults import Doubled, Negated, chain, install_kernel, install_rules

SHAPE = ["--shape", "image=1x3x8x8"]


def written(folder: Path, *operators: str) -> str:
    path = folder / "chain.onnx"
    path.write_bytes(chain(*operators).SerializeToString())
    return str(path)


def test_all_well(tmp_path: Path) -> None:
    result = call("bisect", write(tmp_path, IMAGE), *SHAPE)
    assert result.exit_code == 0, result.output
    assert "nothing is wrong: all outputs agree with the reference backend" in result.stdout
    found = data("bisect", write(tmp_path, IMAGE), *SHAPE)
    assert (found["fault"], found["disabled_rules"]) == ("none", [])


def test_a_wrong_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_rules(monkeypatch, Doubled())
    model = written(tmp_path, "Tanh", "Exp", "Neg", "Abs")
    result = call("bisect", model)
    assert result.exit_code == 1
    for words in (
        "chain.onnx: 1 patch",
        "output 'y': 12 of 12 elements beyond 1e-05 + 0.001 × |right|",
        "it is right after patch #0 and wrong after #1:",
        "rule  doubled-neg, in phase added",
        "node  neg_2 (Neg)",
        "what  its input doubled",
        "the rule is at fault: with reference kernels the graph that it made is wrong as well",
        "load(..., disabled_rules=['doubled-neg']), or --disable-rule doubled-neg",
    ):
        assert words in result.stdout
    found = json.loads(call("bisect", model, "--json").stdout)
    assert (found["fault"], found["disabled_rules"]) == ("patch", ["doubled-neg"])
    assert (found["patch"]["serial"], found["patch"]["node"], found["patch"]["rule"]) == (1, "neg_2", "doubled-neg")
    assert call("bisect", model, "--disable-rule", "doubled-neg").exit_code == 0


def test_a_wrong_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_rules(monkeypatch, Negated())
    install_kernel(monkeypatch, "Max", lambda a, b: np.maximum(a, b) + np.float32(0.5))
    model = written(tmp_path, "Tanh", "Abs")
    result = call("bisect", model)
    assert result.exit_code == 1
    for words in (
        "the rule is not at fault: with reference kernels the graph that it made is right",
        "(Max), kernel 'added Max' of backend 'cpu'",
        "given the same inputs, 'y': 12 of 12 elements beyond",
        "greatest error 0.5",
    ):
        assert words in result.stdout
    found = json.loads(call("bisect", model, "--json").stdout)
    assert found["step"]["kernel"] == "added Max"
    assert call("bisect", model, "--atol", "1").exit_code == 0


def test_a_wrong_kernel_without_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_rules(monkeypatch)
    install_kernel(monkeypatch, "Tanh", lambda x: x)
    result = call("bisect", written(tmp_path, "Exp", "Tanh"))
    assert result.exit_code == 1
    assert "it is wrong without any patch: no rewrite rule is at fault" in result.stdout
    assert "the kernel is at fault: tanh_1 (Tanh), kernel 'added Tanh' of backend 'cpu'" in result.stdout


def test_infinite_errors_are_still_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_rules(monkeypatch)
    install_kernel(monkeypatch, "Tanh", lambda x: x * np.float32(np.nan))
    text = call("bisect", written(tmp_path, "Tanh"), "--json").stdout
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["trials"][0] == {
        "patches": 0,
        "right": False,
        "worst": {**found["trials"][0]["worst"], "excess": None, "error": None, "found": "nan", "beyond": 12},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rtol", "-1"], "not in the range"),
        (["--atol", "much"], "not a valid float"),
        (["--level", "4"], "not in the range"),
        (["--input", "imge=x.npy"], "Did you mean 'image'?"),
        (["--shape", "image=1x3x4"], "does not fit"),
        (["--disable-rule", "remove-identty"], "Did you mean 'remove-identity'?"),
        (["--device", "null"], "computes nothing"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = call("bisect", write(tmp_path), *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
