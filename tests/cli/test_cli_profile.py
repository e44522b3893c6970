"""accord profile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_harness import IMAGE, MIXED, call, data, write

from accord.profile import profile as module
from accord.profile.peaks import Level, Peaks, Rate

SHAPE = ["--shape", "image=1x3x16x16", "--runs", "2"]
PEAKS = Peaks(1, {"f32": Rate(1e12, 0.0)}, (Level("memory", None, Rate(1e11, 0.0), Rate(1e11, 0.0)),))


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    asked: list[bool] = []

    def peaks(threads: int, again: bool = False) -> Peaks:
        asked.append(again)
        return PEAKS

    monkeypatch.setattr(module, "peaks", peaks)
    return asked


def test_tables(tmp_path: Path) -> None:
    result = call("profile", write(tmp_path), *SHAPE, "--threads", "1")
    assert result.exit_code == 0, result.output
    for words in (
        "model.onnx: image 1×3×16×16; 1 thread, 2 runs",
        "of the roofline",
        "This machine on 1 thread, measured: GFLOP/s f32 1000",
        "Steps by time",
        "Conv+Relu",
        "By operator",
        "Memory: arena",
        "Advice",
    ):
        assert words in result.stdout
    assert result.stderr == ""


def test_files(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    found = data("profile", write(tmp_path), *SHAPE, "--out", str(out), "--level", "2")
    assert found["written"] == [str(out / "op_profile.json"), str(out / "trace.json")]
    assert sorted(p.name for p in out.iterdir()) == ["op_profile.json", "trace.json"]
    stored = json.loads((out / "op_profile.json").read_text(encoding="utf-8"))
    assert stored["options"] == {"device": "cpu", "level": 2, "disabled_rules": []}
    assert {k: v for k, v in found.items() if k != "written"} == stored
    trace = json.loads((out / "trace.json").read_text(encoding="utf-8"))
    names = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X"]
    assert names == [s["node"] for s in stored["steps"]]
    conv = next(s for s in stored["steps"] if s["op"].startswith("Conv"))
    assert conv["operations"] == 2 * 4 * 16 * 16 * 3


def test_a_sum_of_the_rest(tmp_path: Path) -> None:
    result = call("profile", write(tmp_path), *SHAPE, "--level", "0", "--top", "1")
    assert "steps that take" in result.stdout
    assert "steps that take" not in call("profile", write(tmp_path), *SHAPE, "--level", "0", "--top", "0").stdout


def test_fallbacks_are_advised_on(tmp_path: Path) -> None:
    found = data("profile", write(tmp_path, MIXED), "--shape", "N=50", "--shape", "list=3", "--runs", "2")
    (step,) = (s for s in found["steps"] if s["op"] == "ai.onnx.ml::LabelEncoder")
    assert step["fallback"]
    assert "ai.onnx.ml::LabelEncoder runs on the slow backend 'reference'" in " ".join(
        a["text"] for a in found["advice"]
    )


def test_given_inputs_are_used(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 5, 5), np.float32))
    found = data("profile", write(tmp_path, IMAGE), "--input", f"image={tmp_path / 'x.npy'}", "--runs", "1")
    assert found["inputs"] == {"image": [2, 3, 5, 5]}


def test_peaks_are_measured_again_on_request(tmp_path: Path, known_machine: list[bool]) -> None:
    data("profile", write(tmp_path), *SHAPE, "--peaks")
    assert known_machine == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "0"], "not in the range"),
        (["--top", "-1"], "not in the range"),
        (["--out", "{model}"], "is a file"),
        (["--out", "{model}/below"], "--out"),
        (["--input", "imge=x.npy"], "Did you mean 'image'?"),
        (["--shape", "image=1x3x4"], "does not fit"),
        (["--disable-rule", "fuse-epilog"], "Did you mean 'fuse-epilogue'?"),
        (["--device", "cpuu"], "no backend serves device"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, tmp_path: Path) -> None:
    model = write(tmp_path)
    result = call("profile", model, *(a.format(model=model) for a in arguments))
    assert result.exit_code in ((1,) if "--device" in arguments else (2,)), result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_no_model(tmp_path: Path) -> None:
    assert call("profile", str(tmp_path / "none.onnx")).exit_code == 2
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    result = call("profile", str(tmp_path / "bad.onnx"))
    assert result.exit_code == 1
    assert "error:" in result.stderr
