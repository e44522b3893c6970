"""accord op bench, op docs, op gates and gate on the command line."""

from __future__ import annotations

import json

import pytest
from cli_harness import call, data

from accord.contract.registry import unregister
from bench_harness import TRICKS, declare


@pytest.fixture(autouse=True)
def _forget():
    yield
    unregister("shop", "Double")


def test_the_command_line(tmp_path):
    load = declare(tmp_path)
    found = data("op", "bench", "Double", "--load", load, "--sizes", "N=100", "--runs", "20", "--against", "")
    assert found["operator"] == "shop::Double"
    assert found["shapes"] == [[100]]
    json.dumps(found)
    result = call("op", "bench", "Double", "--load", load, "--kernel", "python", "--runs", "20", "--against", "")
    assert result.exit_code == 0, result.output
    for words in ("cold p50", "reference", "load + first call"):
        assert words in result.stdout
    wrong = declare(tmp_path, TRICKS["wrong"][0], "wrong.py")
    result = call("op", "bench", "Double", "--load", wrong, "--runs", "20", "--against", "")
    assert result.exit_code == 1
    assert "is wrong" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--sizes", "N"], 2, "write NAME=NUMBER"),
        (["--against", "caffe"], 2, "there are onnxruntime"),
        (["--kernel", "none"], 1, "there is no kernel 'none'"),
        (["--sizes", "M=3"], 1, "there is no size 'M'"),
        (["--attribute", "a=3"], 1, "there is no attribute 'a'"),
    ],
)
def test_wrong_use(tmp_path, arguments, code, words):
    result = call("op", "bench", "Double", "--load", declare(tmp_path), "--against", "", *arguments)
    assert result.exit_code == code
    assert words in result.stderr


def test_a_file_that_cannot_be_loaded(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("import nothing_of_this_name\n")
    result = call("op", "bench", "shop::Double", "--load", str(path))
    assert result.exit_code == 1
    assert "nothing_of_this_name" in result.stderr
    result = call("op", "bench", "shop::Nothing", "--load", declare(tmp_path))
    assert result.exit_code == 1
    assert "no operator shop::Nothing" in result.stderr


def test_documents(tmp_path):
    load, out = declare(tmp_path), tmp_path / "docs"
    arguments = ("op", "docs", "--load", load, "--out", str(out))
    result = call(*arguments, "--check")
    assert result.exit_code == 1
    assert "shop.Double.md: missing" in result.stdout
    assert data(*arguments)["written"] == ["shop.Double.md"]
    assert data(*arguments, "--check")["stale"] == {}
    (out / "shop.Double.md").write_text("mine")
    result = call(*arguments, "--check")
    assert result.exit_code == 1
    assert "shop.Double.md: stale" in result.stdout
    assert call("op", "docs").exit_code == 2
    (out / "checks.json").write_text("{")
    result = call(*arguments)
    assert result.exit_code == 2
    assert "are damaged" in result.stderr
    assert (out / "shop.Double.md").read_text() == "mine"


def test_a_gate_without_a_baseline(tmp_path):
    result = call("gate", "--baseline", str(tmp_path / "b.json"))
    assert result.exit_code == 2
    assert "there is no baseline" in result.stderr
    path = tmp_path / "b.json"
    path.write_text("{}")
    result = call("gate", declare(tmp_path), "--baseline", str(path), "--update", "--json")
    assert result.exit_code == 2
    assert "is no baseline" in json.loads(result.stdout)["error"]["message"]
    assert path.read_text() == "{}"
    result = call("gate", "--baseline", str(path), "--markdown", str(tmp_path / "nowhere" / "a.md"))
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr
