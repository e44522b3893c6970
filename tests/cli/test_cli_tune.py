"""accord tune, and what accord explain shows of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_harness import IMAGE, call, data, write

from accord.profile import tuning
from accord.runtime.watch import WatchedRun
from builders import model, node


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "cache"))


def convolution(folder: Path) -> str:
    w = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["c"], name="conv"), node("Relu", ["c"], ["y"])]
    path = folder / "conv.onnx"
    path.write_bytes(model(nodes, {"x": ("float32", ["N", 32, 20, 20])}, ["y"], {"w": w}).SerializeToString())
    return str(path)


def favour_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_node(run: WatchedRun) -> dict[str, float]:
        kernels = {t.step.placement.node: t.step.kernel for t in run.times}
        return {n: 1e-3 if getattr(k, "alternative", "") == "patches" else 2e-3 for n, k in kernels.items()}

    monkeypatch.setattr(tuning, "_by_node", by_node)


def test_explain_shows_what_tune_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = convolution(tmp_path)
    assert data("explain", path)["tuned"] == []
    favour_patches(monkeypatch)
    found = data("tune", path, "--runs", "2", "--shape", "N=2")
    (n,) = found["nodes"]
    assert (n["rule"], n["chosen"], n["gain"]) == ("winograd", "patches", 1e-3)
    assert found["choices"] == {n["node"]: "patches"}
    (shown,) = data("explain", path)["tuned"]
    assert shown == {"node": n["node"], "op": "Conv+Relu", "alternative": "patches", "rule": "winograd"}
    assert "Kernels chosen by accord tune" in call("explain", path).stdout
    assert data("explain", path, "--threads", "1")["tuned"] == []


def test_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    favour_patches(monkeypatch)
    result = call("tune", convolution(tmp_path), "--runs", "2")
    assert result.exit_code == 0, result.output
    for words in ("Medians of 2 runs", "conv", "Conv+Relu", "winograd 2.00 ms", "patches 1.00 ms", "1.00 ms (50%)"):
        assert words in result.stdout
    assert "1 kernel of 1 other than by rule, which saves 1.00 ms a run; remembered for later loads" in result.stdout
    assert "size 'N' is not given: 1 taken" in result.stderr


def test_a_model_without_alternatives(tmp_path: Path) -> None:
    result = call("tune", write(tmp_path, IMAGE), "--shape", "image=1x3x8x8")
    assert result.exit_code == 0, result.output
    assert "no kernel of this model has alternatives" in result.stdout


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = convolution(tmp_path)
    wrong = call("tune", path, "--shape", "M=2")
    assert wrong.exit_code == 2
    assert "no input or size 'M'" in wrong.stderr
    assert call("tune", path, "--device", "null").exit_code == 1
    monkeypatch.setenv("ACCORD_CACHE", "off")
    off = call("tune", path)
    assert off.exit_code == 1
    assert "nothing could be remembered" in off.stderr
