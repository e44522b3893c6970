"""Stages as files, and runs into the caller's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser
from session_harness import X

import accord
from accord.errors import AccordError, InputError
from accord.runtime import save
from accord.runtime.options import Options
from accord.runtime.pipeline import STAGES, compile_model

TEXT = """<ir_version: 8, opset_import: ["":17]> g (float[N,3] x, bool flag) => (float[N,3] y)
<float[3] w = {1,2,3}> {
  a = Mul(x, w)
  b = Relu(a)
  y = If(flag) <
    then_branch = t () => (float[N,3] p) <float[1] u = {1}> { c = Add(b, u)  p = Neg(c) },
    else_branch = e () => (float[N,3] q) { q = Abs(b) }
  >
}"""


def stages(tmp_path: Path, level: int = 3) -> dict[str, Path]:
    written: dict[str, Path] = {}

    def on_stage(stage: str, model: ir.Model, analyzer: Any) -> None:
        before = [(v.name, v.type, v.shape) for n in model.graph.all_nodes() for v in n.outputs]
        if stage in STAGES:
            written[stage] = tmp_path / f"{stage}.onnx"
            save.save_stage(model, analyzer, written[stage])
        assert before == [(v.name, v.type, v.shape) for n in model.graph.all_nodes() for v in n.outputs]

    compile_model(parser.parse_model(TEXT), Options(level=level), on_stage=on_stage)
    return written


def test_stages_carry_facts_and_compute_the_same(tmp_path: Path) -> None:
    feed = {"x": X, "flag": np.array(True)}
    expected = -(X * np.float32([1, 2, 3]) + 1)
    for stage, path in stages(tmp_path).items():
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        np.testing.assert_array_equal(onnxruntime.InferenceSession(path).run(None, feed)[0], expected)
        if stage != "loaded":
            shapes = {
                v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
                for v in model.graph.value_info
            }
            assert shapes["b"] == ["N", 3]


def test_large_weights_go_to_a_file_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "_MAX_EMBEDDED", 4)
    monkeypatch.setattr(save, "_SMALL", 0)
    path = stages(tmp_path)["loaded"]
    assert (tmp_path / "loaded.onnx.data").stat().st_size >= 12
    feed = {"x": X, "flag": np.array(False)}
    np.testing.assert_array_equal(
        onnxruntime.InferenceSession(path).run(None, feed)[0], np.abs(X * np.float32([1, 2, 3]))
    )


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    (tmp_path / "blocked").mkdir()
    model = ir.serde.deserialize_model(parser.parse_model(TEXT))
    with pytest.raises(AccordError, match="cannot write"):
        save.save_stage(model, None, tmp_path / "blocked")
    assert [p.name for p in tmp_path.iterdir()] == ["blocked"]


def test_run_into() -> None:
    model = accord.load(parser.parse_model(TEXT))
    feed = {"x": X, "flag": np.array(False)}
    out = np.full((2, 3), 7, np.float32)
    outputs = model.run_into(feed, {"y": out})
    assert outputs["y"] is out
    np.testing.assert_array_equal(out, np.abs(X * np.float32([1, 2, 3])))
    strided = np.zeros((2, 6), np.float32)[:, ::2]  # filled after the run
    assert model.run_into(feed, {"y": strided})[0] is strided
    np.testing.assert_array_equal(strided, out)
    with pytest.raises(InputError, match="no output 'z'"):
        model.run_into(feed, {"z": out})
    with pytest.raises(InputError, match="does not fit"):
        model.run_into(feed, {"y": out[:1]})
