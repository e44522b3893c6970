"""The public surface: names come late, importing takes no time, and code for ONNX Runtime runs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from session_harness import model_bytes

import accord

#: As found in many programs; only the import line differs.
PROGRAM = """
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.intra_op_num_threads = 1
wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
providers = [p for p in wanted if p in ort.get_available_providers()]
session = ort.InferenceSession(content, sess_options=options, providers=providers)
name = session.get_inputs()[0].name
feed = {i.name: np.ones([d if isinstance(d, int) else 2 for d in i.shape], np.float32) for i in session.get_inputs()}
outputs = session.run([o.name for o in session.get_outputs()], feed)
"""


def test_a_program_for_onnxruntime() -> None:
    import onnxruntime

    results = []
    for module in (accord, onnxruntime):
        scope = {"ort": module, "np": np, "content": model_bytes()}
        exec(compile(PROGRAM, "program", "exec"), scope)
        results.append(scope["outputs"])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_public_name_exists() -> None:
    for name in accord.__all__:
        assert getattr(accord, name) is not None
        assert name in dir(accord)
    with pytest.raises(AttributeError, match="no attribute 'InferencSession'"):
        _ = accord.InferencSession


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, accord; print([m for m in ('numpy', 'onnx', 'onnx_ir', 'llvmlite', 'rich') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
