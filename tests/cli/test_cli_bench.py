"""accord bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_harness import NAN, call, data, write

from accord.cli.bench import _summary
from accord.workbench import peers

SHAPE = ["--shape", "image=1x3x8x8"]


def test_alone(tmp_path: Path) -> None:
    found = data("bench", write(tmp_path), *SHAPE, "--runs", "3")
    (model,) = found["models"]
    assert set(model["summary"]) == {"accord"}
    assert 0 < model["summary"]["accord"]["min"] <= model["summary"]["accord"]["median"]
    assert found["geometric_means"] == {}
    roofline = model["roofline"]
    assert roofline["operations"] >= 2 * 4 * 8 * 8 * 3
    assert roofline["flops_per_second"] == pytest.approx(roofline["operations"] / model["summary"]["accord"]["median"])
    assert 0 < roofline["peak"] <= roofline["roofline"]
    text = call("bench", write(tmp_path), *SHAPE, "--runs", "3").stdout
    assert "of this machine's peak; " in text
    assert " of its roofline" in text


def test_against_onnxruntime(tmp_path: Path) -> None:
    first, second = write(tmp_path), write(tmp_path, NAN, "second.onnx")
    arguments = ["bench", first, second, "--against", "onnxruntime", "--runs", "4", "--threads", "1", *SHAPE]
    output = tmp_path / "raw.json"
    found = data(*arguments, "--output", str(output))
    raw = json.loads(output.read_text(encoding="utf-8"))
    assert (raw["threads"], raw["runs"]) == (1, 4)
    for model, full in zip(found["models"], raw["models"], strict=True):
        assert model["differences"] == model["failures"] == {}
        assert {name: len(times) for name, times in full["seconds"].items()} == {"accord": 4, "onnxruntime": 4}
        medians = {name: float(np.median(times)) for name, times in full["seconds"].items()}
        assert model["ratios"]["onnxruntime"] == pytest.approx(medians["onnxruntime"] / medians["accord"])
    ratios = [m["ratios"]["onnxruntime"] for m in found["models"]]
    assert found["geometric_means"]["onnxruntime"] == pytest.approx(np.sqrt(np.prod(ratios)))
    text = call(*arguments).stdout
    assert "geometric mean of the ratios" in text
    assert "agree" in text


def test_a_peer_that_differs_fails_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(path: Path, threads: int) -> peers.Runner:
        right = peers._onnxruntime(path, threads)

        def run(feed: Any) -> list[Any]:
            first, *rest = right(feed)
            return [first + 1, *rest]

        return run

    monkeypatch.setitem(peers.PEERS, "onnxruntime", wrong)
    result = call("bench", write(tmp_path), *SHAPE, "--runs", "2", "--against", "onnxruntime")
    assert result.exit_code == 1
    assert "onnxruntime differs: " in result.stdout


def test_a_peer_that_cannot_run_the_model_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, threads: int) -> peers.Runner:
        raise RuntimeError("no\n  such operator")

    def late(path: Path, threads: int) -> peers.Runner:
        def run(feed: Any) -> list[Any]:
            raise ValueError

        return run

    for made, message in ((broken, "onnxruntime cannot run 'model.onnx': no such operator"), (late, "ValueError")):
        monkeypatch.setitem(peers.PEERS, "onnxruntime", made)
        result = call("bench", write(tmp_path), *SHAPE, "--runs", "2", "--against", "onnxruntime")
        assert result.exit_code == 0
        assert message in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "onnxruntme"], "Did you mean 'onnxruntime'?"),
        (["--runs", "0"], "not in the range"),
        (["--output", "no/such/file.json"], "there is no folder"),
        (["--shape", "imag=1x3x2x2"], "Did you mean 'image'?"),
        (["--shape", "imag"], "write NAME="),
    ],
)
def test_wrong_use(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = call("bench", write(tmp_path), "--runs", "1", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_missing_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "no_such_runtime", peers._onnxruntime)
    result = call("bench", write(tmp_path), "--against", "no_such_runtime")
    assert result.exit_code == 1
    assert "peer 'no_such_runtime' is not installed" in result.stderr


def test_percentiles() -> None:
    times = [i / 100 for i in range(1, 101)]
    assert _summary(times) == {"median": 0.505, "p95": 0.95, "min": 0.01}
    assert _summary([3.0]) == {"median": 3.0, "p95": 3.0, "min": 3.0}
