"""Every test case that the ONNX project ships, through ``evaluate``."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from accord.backends.reference.compare import judge
from accord.backends.reference.evaluator import evaluate
from accord.cli.suites import Case, is_random, load_suite

_COUNTS = {"node": 1884, "simple": 23, "pytorch-converted": 82, "pytorch-operator": 35, "light": 9}
_CASES = {suite: load_suite(suite) for suite in _COUNTS}


def _feeds(model: onnx.ModelProto, inputs: list[Any]) -> dict[str, Any]:
    """Inputs by name; those that have an initializer may be left out together."""
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input]
    names = names if len(names) == len(inputs) else [name for name in names if name not in weights]
    return dict(zip(names, inputs, strict=True))


def test_all_cases_are_here() -> None:
    assert {suite: len(cases) for suite, cases in _CASES.items()} == _COUNTS


@pytest.mark.parametrize(
    "case", [case for cases in _CASES.values() for case in cases], ids=lambda case: f"{case.suite}-{case.name}"
)
def test_case(case: Case) -> None:
    model = case.model()
    data = list(case.data(model))
    assert data
    for inputs, expected in data:
        actual = evaluate(model, _feeds(model, inputs))
        if judge(expected, actual, case.rtol, case.atol, random=is_random(model)):
            # Whatever else draws numbers shares its seed with the expected values, or draws none in these cases.
            assert case.name.startswith("bernoulli")


@pytest.mark.parametrize(
    "case", [case for case in _CASES["node"] if case.name.startswith("bernoulli")], ids=lambda case: case.name
)
def test_bernoulli_element_by_element(case: Case) -> None:
    model = case.model()
    ((inputs, _),) = case.data(model)
    (probability,) = inputs
    if model.graph.node[0].op_type != "Bernoulli":
        probability = 1 - probability  # the function body of the schema is one where the random number is greater
    draws = np.stack([evaluate(model, _feeds(model, inputs))[0] for _ in range(400)]).astype(np.float64)
    assert set(np.unique(draws)) <= {0.0, 1.0}
    if any(attribute.name == "seed" for node in model.graph.node for attribute in node.attribute):
        assert (draws == draws[0]).all()
    else:
        # Five standard deviations of the mean of 400 draws.
        spread = 5 * np.sqrt(probability * (1 - probability) / len(draws))
        assert (np.abs(draws.mean(axis=0) - probability) <= spread).all()
