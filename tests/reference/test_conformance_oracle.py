"""Every test case that the ONNX project ships, through ``evaluate``."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase as Case
from onnx.backend.test.loader import load_model_tests

from accord.backends.reference.compare import assert_outputs_match
from accord.backends.reference.evaluator import evaluate

_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
_LIGHT = sorted((_DATA / "light").glob("*.onnx"))
#: Without a seed shared with whoever computed the expected values, only their distribution can be right.
_RANDOM = {"Bernoulli", "RandomUniformLike"}


def _node_cases() -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute their expected values, some by dividing by zero
        return load_model_tests(kind="node")


_NODE_CASES = _node_cases()
_FILE_CASES = [
    case for kind in ("simple", "pytorch-converted", "pytorch-operator") for case in load_model_tests(kind=kind)
]


def _value(item: Any) -> Any:
    return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def test_all_cases_are_here() -> None:
    assert len(_NODE_CASES) == 1884
    assert len(_FILE_CASES) == 23 + 82 + 35
    assert len(_LIGHT) == 9


@pytest.mark.parametrize("case", _NODE_CASES, ids=lambda case: case.name)
def test_node(case: Case) -> None:
    if "image_decoder" in case.name and importlib.util.find_spec("PIL") is None:
        pytest.skip("needs Pillow")
    names = [value.name for value in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        feeds = dict(zip(names, map(_value, inputs), strict=True))
        if _RANDOM & {node.op_type for node in case.model.graph.node}:
            _check_bernoulli(case, feeds, _value(outputs[0]))
        else:
            assert_outputs_match([_value(o) for o in outputs], evaluate(case.model, feeds), case.rtol, case.atol)


def _check_bernoulli(case: Case, feeds: dict[str, Any], expected: Any) -> None:
    (probability,) = feeds.values()
    if case.model.graph.node[0].op_type != "Bernoulli":
        probability = 1 - probability  # the function body of the schema is one where the random number is greater
    runs = [evaluate(case.model, feeds)[0] for _ in range(400)]
    for run in runs[:3]:
        assert run.dtype == expected.dtype
        assert run.shape == expected.shape
    draws = np.stack(runs).astype(np.float64)
    assert set(np.unique(draws)) <= {0.0, 1.0}
    if any(attribute.name == "seed" for node in case.model.graph.node for attribute in node.attribute):
        assert (draws == draws[0]).all()
    else:
        # Five standard deviations of the mean of 400 draws.
        spread = 5 * np.sqrt(probability * (1 - probability) / len(runs))
        assert (np.abs(draws.mean(axis=0) - probability) <= spread).all()


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


@pytest.mark.parametrize("case", _FILE_CASES, ids=lambda case: f"{case.kind}-{case.name}")
def test_file(case: Case) -> None:
    folder = Path(case.model_dir)
    graph = onnx.load(folder / "model.onnx").graph
    data_sets = sorted(folder.glob("test_data_set*"))
    assert data_sets
    for data in data_sets:
        inputs = [_read(data / f"input_{i}.pb", v.type) for i, v in enumerate(graph.input[: _count(data, "input")])]
        expected = [_read(data / f"output_{i}.pb", v.type) for i, v in enumerate(graph.output)]
        feeds = dict(zip([value.name for value in graph.input], inputs, strict=False))
        assert_outputs_match(expected, evaluate(folder / "model.onnx", feeds), case.rtol, case.atol)


def _count(folder: Path, kind: str) -> int:
    return len(list(folder.glob(f"{kind}_*.pb")))


@pytest.mark.parametrize("path", _LIGHT, ids=lambda path: path.stem)
def test_light_network(path: Path) -> None:
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    (value,) = [value for value in model.graph.input if value.name not in weights]
    shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
    # The input that the runner of the ONNX project makes for these networks.
    ramp = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
    expected = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    assert value.type.tensor_type.elem_type == helper.np_dtype_to_tensor_dtype(ramp.dtype)
    assert_outputs_match([numpy_helper.to_array(expected)], evaluate(model, {value.name: ramp}), 1e-3, 1e-7)
