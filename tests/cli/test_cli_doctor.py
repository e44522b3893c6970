"""accord doctor and accord advise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_harness import IMAGE, call, data, write
from click.testing import CliRunner

from accord.cli import main
from accord.doctor import findings

LOG = """\
[E:onnxruntime:] Non-zero status code returned while running Gemm node. Name:'fc1' \
Status Message: CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED
RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB
"""


def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accord", "doctor", *arguments], input=text, capture_output=True, text=True, check=False
    )


def test_the_environment():
    found = data("doctor")
    assert found["ok"]
    assert found["environment"]["packages"]["numpy"]
    text = call("doctor").stdout
    for words in ("system", "Python", "CPU", "cores", "memory", "/dev/shm", "packages", "backends", "NVIDIA", "cache"):
        assert words in text


def test_something_broken_is_exit_code_1(monkeypatch: pytest.MonkeyPatch):
    finding = findings.Finding("x", "broken", "the what", "the why", "the remedy")
    monkeypatch.setattr(findings, "judge", lambda _: [finding])
    result = call("doctor")
    assert result.exit_code == 1
    assert all(words in result.stdout for words in ("broken: the what", "the why", "the remedy"))
    shown = call("doctor", "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["findings"][0]["id"] == "x"


def test_a_log(tmp_path: Path):
    path = tmp_path / "server.log"
    path.write_text(LOG)
    result = call("doctor", "--log", str(path))
    assert result.exit_code == 0
    for words in ("1. PyTorch is out of GPU memory: 12.50 MiB asked for", "[torch-cuda-oom]", "cause:", "confirm:",
                  "remedy:", "follows from: torch-cuda-oom", "Gemm node fc1 failed",
                  "3 known errors in 2 lines; 1 of them",
                  "pytorch/pytorch#16417"):  # fmt: skip
        assert words in result.stdout
    found = data("doctor", "--log", str(path))
    assert [d["id"] for d in found["diagnoses"]] == ["torch-cuda-oom", "cublas-alloc", "ort-node-failed"]
    assert found["diagnoses"][1]["consequence_of"] == ["torch-cuda-oom"]


def test_standard_input_in_this_process():
    result = CliRunner().invoke(main, ["doctor", "--log", "-", "--json"], input=LOG.encode())
    assert json.loads(result.stdout)["diagnoses"][0]["id"] == "torch-cuda-oom"


def test_text_on_a_pipe():
    result = piped(LOG, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["lines"] == 2
    assert "environment" in json.loads(piped("", "--json").stdout)


def test_nothing_known(tmp_path: Path):
    path = tmp_path / "x.log"
    path.write_text("fine\nERROR: the frobnicator fell over\n")
    result = call("doctor", "--log", str(path))
    assert result.exit_code == 1
    assert "No known error in 2 lines." in result.stdout
    assert "2: ERROR: the frobnicator fell over" in result.stdout
    path.write_text("fine\n")
    result = call("doctor", "--log", str(path))
    assert (result.exit_code, "No line looks like an error either." in result.stdout) == (1, True)
    path.write_text("")
    result = call("doctor", "--log", str(path))
    assert (result.exit_code, result.stdout.strip()) == (1, "the log is empty")


def test_wrong_files(tmp_path: Path):
    missing = call("doctor", "--log", str(tmp_path / "none.log"))
    assert missing.exit_code == 2
    assert "No such file" in missing.stderr
    assert call("doctor", "--log", str(tmp_path)).exit_code == 2


def test_advise(tmp_path: Path):
    path = write(tmp_path)
    result = call("advise", path, "--target", "nvidia")
    assert result.exit_code == 0, result.output
    for words in ("1. Accord: suits", "target nvidia (--target nvidia)", "a backend for 'cuda' is installed",
                  "What would put another one first:", "--team ops: Triton Inference Server",
                  "not measurements"):  # fmt: skip
        assert words in result.stdout
    found = data("advise", path, "--weights", "trained", "--team", "python")
    assert found["ranking"][0]["runtime"].startswith("PyTorch")
    assert found["traits"]["free_axes"][0] == "image[0] = N"
    assert found["accord"]["error"] == ""
    assert all(mark["fact"] and mark["reason"] for v in found["ranking"] for mark in v["marks"])


def test_advise_on_a_model_with_an_operator_of_ones_own(tmp_path: Path):
    source = (
        "import accord\n\n\n@accord.operator('advised::Same')\n"
        "def same(x: accord.Tensor['float32', 'N']) -> accord.Tensor['float32', 'N']:\n"
        '    """Nothing."""\n    return x\n'
    )
    (tmp_path / "same.py").write_text(source)
    text = """<ir_version: 8, opset_import: ["": 17, "advised": 1]>
g (float[N] x) => (float[N] y) { y = advised.Same(x) }"""
    path = write(tmp_path, text)
    assert "advised" in data("advise", path)["accord"]["error"]
    assert data("advise", path, "--load", str(tmp_path / "same.py"))["accord"]["error"] == ""


def test_advise_errors(tmp_path: Path):
    assert call("advise", str(tmp_path / "none.onnx")).exit_code == 2
    wrong = call("advise", write(tmp_path, IMAGE), "--target", "toaster")
    assert wrong.exit_code == 2
    assert "'cpu', 'nvidia', 'intel', 'arm', 'edge'" in wrong.stderr
    (tmp_path / "bad.onnx").write_bytes(b"<html>not found</html>")
    bad = call("advise", str(tmp_path / "bad.onnx"))
    assert bad.exit_code == 1
    assert "error:" in bad.stderr
