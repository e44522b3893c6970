"""scripts/gpu.py: parts that pass, fail, hang, and cannot be run."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "gpu.py"


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("gpu_command", PATH)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(text):
    return [sys.executable, "-c", text]


def test_each_part_has_its_outcome_and_none_ends_the_others(gpu, tmp_path, capsys):
    write = [*python("import sys; open(sys.argv[1], 'w').write('{\"speed\": 3}')"), "{output}"]
    chosen = {
        "hangs": gpu.Part("sleeps", python("import time; print('begun', flush=True); time.sleep(60)"), 1.0),
        "fails": gpu.Part("exits", python("raise SystemExit('no good')"), 10),
        "missing": gpu.Part("needs", python(""), 10, ("no_such_package",)),
        "tool": gpu.Part("needs", python(""), 10, tool="no-such-tool"),
        "passes": gpu.Part("writes", write, 10),
    }
    output = tmp_path / "gpu.json"
    assert gpu.run(chosen, output, 100, "command") == 1
    found = json.loads(output.read_text())
    parts = found["parts"]
    assert {n: p["outcome"] for n, p in parts.items()} == {
        "hangs": "time limit", "fails": "failed", "missing": "not run", "tool": "not run", "passes": "passed"
    }  # fmt: skip
    assert parts["hangs"]["tail"] == "begun\n"
    assert parts["fails"]["tail"] == "no good\n"
    assert parts["missing"]["why"] == "not installed: no_such_package"
    assert parts["tool"]["why"] == "no-such-tool is not there"
    assert parts["passes"]["figures"] == {"speed": 3}
    assert found["machine"]["cores"] >= 1
    assert "hangs: time limit" in capsys.readouterr().out


def test_no_part_begins_when_the_time_is_over(gpu, tmp_path):
    output = tmp_path / "gpu.json"
    assert gpu.run({"late": gpu.Part("", python(""), 10)}, output, -1, "") == 0
    assert json.loads(output.read_text())["parts"]["late"]["outcome"] == "left out"


def test_what_a_sanitizer_found_is_counted_also_without_its_summary(gpu):
    ended = "========= Invalid __global__ read of size 4 bytes\n========= Invalid __global__ write of size 2 bytes\n"
    assert gpu.sanitizer_figures(ended)["found"] == 2
    two = (
        "[gw0] [ 50%] PASSED tests/a.py::test_a[b] \n========= COMPUTE-SANITIZER\n"
        "[gw1] [100%] FAILED tests/a.py::test_b \n========= ERROR SUMMARY: 0 errors\n"
        "=========     Saved host backtrace\n========= ERROR SUMMARY: 3 errors\n"
    )
    assert gpu.sanitizer_figures(two) == {
        "found": 3, "processes": 2, "passed": 1, "failed": 1, "which failed": ["tests/a.py::test_b"],
        "said": ["========= ERROR SUMMARY: 0 errors", "========= ERROR SUMMARY: 3 errors"],
    }  # fmt: skip
    assert gpu.sanitizer_figures("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors)")["found"] == 2


def test_every_part_runs_something_that_is_there(gpu):
    for part in gpu.parts(None).values():
        for word in part.command:
            if word.endswith(".py"):
                assert (gpu.ROOT / word).is_file(), word
