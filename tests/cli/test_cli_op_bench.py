"""accord op bench, op docs, op gates and gate on the command line."""

from __future__ import annotations

import json

import pytest
from cli_harness import call, data

from bench_harness import TRICKS, declare


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
