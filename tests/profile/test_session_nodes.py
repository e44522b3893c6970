"""Profiles of sessions: nodes in ONNX Runtime's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from profile_harness import convolution, loop

import accord

X = {"x": np.random.default_rng(1).random((2, 8, 16, 16), np.float32)}


def recorded(runtime: Any, folder: Path, content: bytes, feed: dict[str, Any], runs: int = 2) -> list[dict[str, Any]]:
    options = runtime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / runtime.__name__)
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, feed)
    found: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return found


def test_nodes_are_as_in_onnxruntime(tmp_path: Path) -> None:
    content = convolution().SerializeToString()
    ours = [e for e in recorded(accord, tmp_path, content, X) if e["cat"] == "Node"]
    theirs = [e for e in recorded(onnxruntime, tmp_path, content, X) if e["cat"] == "Node"]
    pattern = next(e for e in theirs if e["args"]["op_name"] == "MatMul")
    event = next(e for e in ours if e["args"]["op_name"] == "MatMul")
    assert event.keys() == pattern.keys()
    memory_and_pool = {k for k in pattern["args"] if k.startswith("mem_")} | {"thread_scheduling_stats"}
    assert pattern["args"].keys() - memory_and_pool <= event["args"].keys()
    for key in ("output_size", "activation_size", "output_type_shape", "provider", "parameter_size"):
        assert type(event["args"][key]) is type(pattern["args"][key])
    assert event["args"]["output_type_shape"] == pattern["args"]["output_type_shape"] == [{"float": [2, 16, 14, 32]}]
    assert event["args"]["output_size"] == pattern["args"]["output_size"]
    assert event["args"]["provider"] == pattern["args"]["provider"]
    assert event["name"].endswith("_kernel_time")


def test_nodes_lie_within_their_runs(tmp_path: Path) -> None:
    events = recorded(accord, tmp_path, convolution().SerializeToString(), X, runs=3)
    runs = [e for e in events if e["name"] == "model_run"]
    nodes = [e for e in events if e["cat"] == "Node"]
    assert len(runs) == 3
    assert len(nodes) % 3 == 0
    for e in nodes:
        assert any(r["ts"] <= e["ts"] and e["ts"] + e["dur"] <= r["ts"] + r["dur"] + 1 for r in runs)


def test_bodies_are_in_it(tmp_path: Path) -> None:
    feed = {"x": np.zeros(5, np.float32), "count": np.array(4)}
    events = recorded(accord, tmp_path, loop().SerializeToString(), feed, runs=1)
    names = [e["args"]["op_name"].split("+")[0] for e in events if e["cat"] == "Node"]
    assert names.count("Exp") == 4
    assert names.count("Loop") == 1


def test_a_failed_run_is_recorded_and_the_session_lives_on(tmp_path: Path) -> None:
    options = accord.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "p")
    session = accord.InferenceSession(convolution().SerializeToString(), options)
    with pytest.raises(accord.errors.InputError):
        session.run(None, {"x": np.zeros((2, 7, 16, 16), np.float32)})
    session.run(None, X)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    assert [e["name"] for e in events].count("model_run") == 2
