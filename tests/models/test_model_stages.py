"""Every stage before the plan is a valid ONNX model that gives the same outputs in ONNX Runtime."""

from __future__ import annotations

import onnx
import pytest
from models_harness import ALL, QUICK, check, content, marked, peer

from accord.runtime.pipeline import STAGES, Options, compile_model
from accord.runtime.save import save_stage


@pytest.mark.parametrize("name", [marked(name, quick=name in QUICK) for name in ALL])
def test_stages_run_in_onnxruntime(name, tmp_path):
    written = []

    def dump(stage, model, analyzer):
        if stage in STAGES:
            written.append(tmp_path / f"{stage}.onnx")
            save_stage(model, analyzer, written[-1])

    compile_model(content(name), Options(), on_stage=dump)
    assert [path.stem for path in written] == list(STAGES)
    for path in written:
        onnx.checker.check_model(path, full_check=True)
        check(name, peer(path))
        path.unlink()
