"""accord op."""

from __future__ import annotations

import subprocess
import sys

from cli_harness import call, data


def test_list() -> None:
    found = data("op", "list", "--filter", "^(Max|Average)Pool$", "--domain", "ai.onnx")
    assert [o["operator"] for o in found["operators"]] == ["AveragePool", "MaxPool"]
    assert found["operators"][1]["outputs"] == "1-2"
    assert len(data("op", "list")["operators"]) > 200
    assert "2 operators" in call("op", "list", "--filter", "^(Max|Average)Pool$").stdout


def test_show() -> None:
    found = data("op", "show", "Conv", "--opset", "11")
    assert (found["operator"], found["since"]) == ("Conv", 11)
    assert [(p["name"], p["option"]) for p in found["inputs"]] == [("X", "single"), ("W", "single"), ("B", "optional")]
    assert found["execution"]["nullable"] == ["B"]
    assert found["scheduling"]["fuses"] == "contraction"
    text = call("op", "show", "Conv").stdout
    for part in ("Conv, since version", "auto_pad", "float32: rtol 0.001", "float16 in float32"):
        assert part in text


def test_unknown_operators() -> None:
    result = call("op", "show", "Convv")
    assert result.exit_code == 1
    assert "Did you mean Conv" in result.stderr
    result = call("op", "show", "Upsample")
    assert result.exit_code == 1
    assert "removed in version 10" in result.stderr
    assert data("op", "show", "Upsample", "--opset", "9")["since"] == 9


def test_a_new_process_knows_the_operators_of_every_domain() -> None:
    for verb in (["list", "--filter", "^com.microsoft::Gelu$"], ["show", "com.microsoft::Gelu"]):
        run = subprocess.run([sys.executable, "-m", "accord", "op", *verb], capture_output=True, text=True, check=False)
        assert run.returncode == 0 and "com.microsoft::Gelu" in run.stdout, run.stderr


def test_wrong_use() -> None:
    assert call("op", "list", "--filter", "(").exit_code == 2
    result = call("op", "list", "--domain", "nowhere")
    assert result.exit_code == 2
    assert "no operator" in result.stderr
