"""What a user's file may do: a clear message, exit code 1, and nothing else is harmed."""

from __future__ import annotations

import json
import sys

import pytest
from cli_harness import call

OPERATOR = """
import ctypes, os, sys, time
import numpy as np
import accord
Tensor = accord.Tensor
@accord.operator("bad::Twice")
def twice(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    return x * 2
"""


@pytest.fixture
def check(tmp_path):
    def run(text, *options, name="bad::Twice"):
        path = tmp_path / "operators.py"
        path.write_text(text)
        return call("op", "check", name, "--load", str(path), "--seconds", "1", *options)

    return run


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def f(:", "SyntaxError"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("raise SystemExit(5)", "SystemExit"),
        ("import time", "no operator bad::Twice is known"),
    ],
)
def test_files_that_cannot_be_loaded(check, text, words):
    result = check(text)
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_is_not_there():
    result = call("op", "check", "bad::Twice", "--load", "nowhere.py")
    assert result.exit_code == 1
    assert "there is no file" in result.stderr


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("def k(x): raise RuntimeError('no')", "RuntimeError: no"),
        ("def k(x): return 'text'", "no array but str"),
        ("def k(x): return x * 2, x", "returned 2 results"),
        ("def k(x): return (x * 2).astype('float64')", "another dtype"),
        ("def k(x): return (x * 2).reshape(1, -1)", "another shape"),
        ("def k(x): return None", "no array but NoneType"),
        ("def k(x): sys.exit(0)", "SystemExit"),
        ("def k(x): os.kill(os.getpid(), 9)", "SIGKILL"),
        ("def k(x): ctypes.string_at(8)", "SIGSEGV"),
        ("def k(x, y): return x", "TypeError"),
    ],
)
def test_kernels_that_do_not_compute(check, kernel, words):
    result = check(f"{OPERATOR}\n@twice.python\n{kernel}\n")
    assert result.exit_code == 1
    assert words in result.stdout


def test_a_reference_that_does_something_else_than_declared(check):
    result = check(OPERATOR.replace("return x * 2", "return x[:1]"))
    assert result.exit_code == 1
    assert "another shape than the declaration" in result.stdout
    result = check(OPERATOR.replace("return x * 2", "os._exit(1)"))
    assert result.exit_code == 1
    assert "the reference cannot be evaluated" in result.stderr


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("{", "not understood"),
        ('{"colour": 1}', "not understood"),
        ("{}", "what the shape of 'x' is"),
        ('{"sizes": {"N": -1}}', "what the shape of 'x' is"),
        ('{"sizes": {"N": 3}, "values": "odd"}', "'values' is not known"),
        ('{"sizes": {"N": 1000000000000}}', "too large"),
    ],
)
def test_cases_that_are_none(check, case, words):
    result = check(f"{OPERATOR}\ntwice.python(lambda x: x * 2)", "--case", case)
    assert result.exit_code == 2
    assert words in result.stderr


def test_one_case_that_cannot_be_made_ends_no_check(check):
    seldom = "if len(x) == 16: raise KeyError\n    if len(x) == 17: return x[:1]\n    return x * 2"
    result = check(f"{OPERATOR.replace('return x * 2', seldom)}\ntwice.python(lambda x: x * 2)")
    assert result.exit_code == 1
    assert "another shape than the declaration" in result.stdout
    assert result.stdout.count("expected") == 1, "what the kernel computes is right"


def test_what_was_verified_is_kept_for_the_document(check, tmp_path):
    result = check(f"{OPERATOR}\ntwice.python(lambda x: x * 2)", "--record", str(tmp_path / "docs"))
    assert result.exit_code == 0, result.output
    folder = tmp_path / "docs"
    written = call("op", "docs", "bad::Twice", "--load", str(tmp_path / "operators.py"), "--out", str(folder))
    assert written.exit_code == 0, written.output
    (text,) = (p.read_text() for p in folder.glob("*.md"))
    assert "nothing found in" in text
    assert "N 0 to 100000" in text


def test_kernels_that_need_a_gpu_are_not_called_right(check):
    from accord.workbench.compiled import lacking

    text = f"""{OPERATOR}
from accord.contract.code import TritonCode
twice.triton(TritonCode("nowhere:kernel", lambda known: (1,)))
"""
    result = check(text, "--kernel", "triton")
    if lacking() is None:
        assert result.exit_code == 1
        assert "cannot be imported" in result.stdout
    else:
        assert "kernel triton (triton): not checked" in result.stdout
        assert lacking() in result.stdout


def test_kernels_of_files_are_compiled(tmp_path):
    path = tmp_path / "operators.py"
    path.write_text(OPERATOR.replace("bad::", "compile::"))
    result = call("op", "compile", "compile::Twice", "--load", str(path))
    assert result.exit_code == 2
    assert "compile::Twice has no Triton or CUDA kernel" in result.stderr


def test_unknown_kernels(check):
    result = check(OPERATOR, "--kernel", "c")
    assert result.exit_code == 1
    assert "there is no kernel 'c'" in result.stderr


def test_json(check):
    result = check(f"{OPERATOR}\ntwice.python(lambda x: x * 2.5)", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    (finding,) = found["kernels"][0]["findings"]
    assert finding["clause"] == "meaning"
    assert finding["reproduce"].startswith("accord op check bad::Twice --load ")
    assert json.loads(finding["case"])["sizes"] == {"N": 1}


def test_a_new_operator_passes_at_once(tmp_path):
    assert call("op", "new", "shop::HardGate", "--dir", str(tmp_path)).exit_code == 0
    path = str(tmp_path / "hard_gate.py")
    result = call("op", "check", "shop::HardGate", "--load", path, "--seconds", "3")
    assert result.exit_code == 0, result.output
    again = call("op", "new", "shop::HardGate", "--dir", str(tmp_path))
    assert again.exit_code == 1
    assert "is there already" in again.stderr
    assert call("op", "new", "HardGate", "--dir", str(tmp_path)).exit_code == 1


def test_prototypes(tmp_path):
    path = tmp_path / "operators.py"
    path.write_text(OPERATOR.replace("bad::", "header::"))
    result = call("op", "header", "header::Twice", "--load", str(path))
    assert result.exit_code == 0, result.output
    assert (
        "int32_t twice(\n    const float *x,\n    float *output,\n    int64_t N,\n    void *stream);" in result.stdout
    )
    assert call("op", "header", "header::Twice", "--type", "T=int8").exit_code == 2


def test_a_model_with_a_users_operator_runs(tmp_path):
    from onnx import parser

    path = tmp_path / "operators.py"
    path.write_text(OPERATOR.replace("bad::", "run::"))
    model = tmp_path / "m.onnx"
    text = '<ir_version: 8, opset_import: ["":17, "run":1]> g (float[N] x) => (float[N] y) { y = run.Twice(x) }'
    model.write_bytes(parser.parse_model(text).SerializeToString())
    assert call("run", str(model)).exit_code == 1
    result = call("run", str(model), "--load", str(path))
    assert result.exit_code == 0, result.output
    for module in [m for m in sys.modules if m.startswith("accord_operators_")]:
        del sys.modules[module]
