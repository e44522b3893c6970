"""The table itself: inputs as declared, weights that make comparing outputs mean something, checked downloads."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.models import TABLE, Wheel, with_weights
from models_harness import ALL, content, make_feed, peer

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_models"
SHUFFLENET = Path(onnx.__file__).parent / "backend/test/data/light/light_shufflenet.onnx"


@pytest.mark.parametrize("name", list(ALL))
def test_inputs_have_the_shapes_of_the_table_and_follow_the_seed(name):
    entry = ALL[name]
    for case, shapes in enumerate(entry.shapes):
        feed, again, other = make_feed(entry, case), make_feed(entry, case), make_feed(entry, case, seed=1)
        assert {n: np.shape(v) for n, v in feed.items()} == dict(shapes)
        assert all(np.array_equal(v, again[n]) for n, v in feed.items())
        assert any(not np.array_equal(v, other[n]) for n, v in feed.items())
        assert all(v.dtype in (np.float32, np.int32, np.int64) and v.flags.c_contiguous for v in feed.values())


def test_the_table_has_a_speed_case_of_every_model():
    assert len(TABLE) == 16
    assert all(e.shapes for e in ALL.values())
    assert len({e.file for e in ALL.values()}) == len(ALL)


def test_light_models_get_weights_and_nothing_else_changes():
    stored, made = onnx.load(SHUFFLENET), with_weights(onnx.load(SHUFFLENET))
    onnx.checker.check_model(made, full_check=True)
    left = [n.op_type for n in stored.graph.node if n.op_type != "ConstantOfShape"]
    assert [n.op_type for n in made.graph.node] == left
    assert list(made.graph.output) == list(stored.graph.output)
    floats = [onnx.numpy_helper.to_array(t) for t in made.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert len(floats) == 5 * 49 + 3  # convolutions with normalisations of four parameters; a bias; one Gemm
    assert all(len(np.unique(w)) > 1 for w in floats)
    assert made == with_weights(onnx.load(SHUFFLENET)) != with_weights(onnx.load(SHUFFLENET), seed=1)


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "inception_v2", "squeezenet", "shufflenet"])
def test_outputs_of_light_models_depend_on_their_input(name):
    """By much more than the tolerance, or a mistake in an early layer would not be seen."""
    run = peer(content(name))
    (a,), (b,) = run(make_feed(ALL[name], 0)), run(make_feed(ALL[name], 0, seed=1))
    assert np.abs(a - b).max() > 0.02 * np.abs(a).max()


@pytest.mark.network
def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path):
    loader = importlib.machinery.SourceFileLoader("fetch_models", str(SCRIPT))
    spec = importlib.util.spec_from_loader("fetch_models", loader)
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    loader.exec_module(script)
    member = "nudenet/320n.onnx"
    with pytest.raises(ValueError, match="has SHA-256 c15d8273"):
        script.fetch(Wheel("nudenet", "3.4.2", {member: "0" * 64}), [member], tmp_path)
    with pytest.raises(KeyError, match="absent"):
        script.fetch(Wheel("nudenet", "3.4.2", {"absent": "0" * 64}), ["absent"], tmp_path)
    with pytest.raises(OSError, match="pip download failed"):
        script.fetch(Wheel("nudenet", "0.0.0.1", {}), [], tmp_path)
    assert not list(tmp_path.iterdir())
