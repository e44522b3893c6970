"""The test suites that the ``onnx`` package carries, as cases with data."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from accord.contract.registry import contract_for
from accord.errors import AccordError

__all__ = ["Case", "is_random", "load_suite"]

_RTOL, _ATOL = 1e-3, 1e-7
#: Inputs and expected outputs.
DataSet = tuple[list[Any], list[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    Attributes:
        name: Without the prefix "test_".
        suite: The suite's name.
        model: Makes the model.
        data: From the model to pairs of inputs, in the model's order, and expected outputs.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """

    name: str
    suite: str
    model: Callable[[], onnx.ModelProto]
    data: Callable[[onnx.ModelProto], Iterator[DataSet]]
    rtol: float = _RTOL
    atol: float = _ATOL


def load_suite(suite: str, pattern: str = "") -> list[Case]:
    """The cases of ``suite`` whose names match the regular expression ``pattern``, sorted by name."""
    cases = _node_cases() if suite == "node" else _light_cases() if suite == "light" else _folder_cases(suite)
    wanted = re.compile(pattern)
    return sorted((c for c in cases if wanted.search(c.name)), key=lambda c: c.name)


def is_random(model: onnx.ModelProto) -> bool:
    """True if an operator of the model draws random numbers."""
    versions = {o.domain: o.version for o in model.opset_import}
    return any(_draws(node, versions.get(node.domain, 1)) for node in _all_nodes(model.graph))


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body)


def _draws(node: onnx.NodeProto, version: int) -> bool:
    if node.op_type == "Dropout" and node.domain == "":
        return True  # in training mode; elsewhere the results are equal in any case
    try:
        return not contract_for(node.domain, node.op_type, version).scheduling.deterministic
    except AccordError:
        return False


def _data_folder() -> Path:
    from onnx.backend.test import loader

    return Path(loader.DATA_DIR)


# operators, made in memory


def _node_cases() -> Iterator[Case]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # computing expected results overflows on purpose
        loaded = load_model_tests(kind="node")
    for test in loaded:
        yield Case(
            test.name.removeprefix("test_"),
            "node",
            lambda test=test: test.model,  # type: ignore[misc]
            lambda _, test=test: (  # type: ignore[misc]
                ([_array(v) for v in inputs], [_array(v) for v in outputs]) for inputs, outputs in test.data_sets
            ),
            test.rtol,
            test.atol,
        )


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [_array(v) for v in value]
    return value if value is None or isinstance(value, dict) else np.asarray(value)


# folders with model.onnx and test_data_set_N


def _folder_cases(suite: str) -> Iterator[Case]:
    for folder in (_data_folder() / suite).iterdir():
        file = folder / "model.onnx"
        if file.exists():
            settings = folder / "data.json"
            found = json.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
            yield Case(
                folder.name.removeprefix("test_"),
                suite,
                lambda file=file: onnx.load(file),  # type: ignore[misc]
                lambda model, folder=folder: _stored(model, folder),  # type: ignore[misc]
                found.get("rtol", _RTOL),
                found.get("atol", _ATOL),
            )


def _stored(model: onnx.ModelProto, folder: Path) -> Iterator[DataSet]:
    for data in sorted(folder.glob("test_data_set_*")):
        yield _read_all(data, "input", model.graph.input), _read_all(data, "output", model.graph.output)


def _read_all(folder: Path, kind: str, declared: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda f: int(f.stem.rpartition("_")[2]))
    return [_read(file, value.type) for file, value in zip(files, declared, strict=False)]


def _read(file: Path, kind: onnx.TypeProto) -> Any:
    content = file.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


# networks with made-up weights


def _light_cases() -> Iterator[Case]:
    for file in (_data_folder() / "light").glob("*.onnx"):
        yield Case(
            file.stem.removeprefix("light_"),
            "light",
            lambda file=file: onnx.load(file),  # type: ignore[misc]
            lambda model, file=file: _light(model, file),  # type: ignore[misc]
        )


def _light(model: onnx.ModelProto, file: Path) -> Iterator[DataSet]:
    """The inputs for which the expected outputs were stored: n equal steps from 0 to 1."""
    weights = {w.name for w in model.graph.initializer}
    inputs = []
    for value in model.graph.input:
        if value.name not in weights:
            shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    expected = [
        _read(file.with_name(f"{file.stem}_output_{i}.pb"), value.type) for i, value in enumerate(model.graph.output)
    ]
    yield inputs, expected
