"""Every stage before the plan is a valid ONNX model that gives the same outputs in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from models_harness import ALL, QUICK, check, content, marked, peer

from accord.runtime.options import Options
from accord.runtime.pipeline import STAGES, compile_model
from accord.runtime.save import save_stage
from builders import model, node


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


def test_a_wrong_rank_that_the_file_states_for_an_output_is_corrected(tmp_path):
    """Exporters do state such; once the graph's own shapes are known, the file would be no valid model."""
    proto = model([node("Flatten", ["x"], ["y"])], {"x": (np.float32, ["n", 3, 4])}, ["y"])
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3, 4]))
    shapes = {}

    def dump(stage, graph, analyzer):
        if stage == "normalised":
            save_stage(graph, analyzer, tmp_path / "model.onnx")
            dumped = onnx.load(tmp_path / "model.onnx")
            onnx.checker.check_model(dumped, full_check=True)
            shapes[stage] = len(dumped.graph.output[0].type.tensor_type.shape.dim)

    compile_model(proto, Options(), on_stage=dump)
    assert shapes == {"normalised": 2}
