"""Accord as an ONNX backend, also under ONNX's own runner."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import accord.onnx_backend as backend
from accord.errors import InputError, UnknownOperatorError, UnsupportedError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["":17]> g {text}')


ADD = (
    "(float[N,3] x, float[3] w = {1,2,3}, float[N,3] y) => (float[N,3] z, float[N,3] s) { z = Add(x, w) s = Sub(z, y)}"
)


def test_inputs_by_order_and_name() -> None:
    rep = backend.prepare(model(ADD), "CPU")
    w = np.array([1, 2, 3], np.float32)
    for inputs in ([X, X], [X, w, X], {"x": X, "y": X}, {"x": X, "w": w, "y": X}):
        outputs = rep.run(inputs)
        np.testing.assert_array_equal(outputs[0], X + w)
        np.testing.assert_array_equal(outputs["s"], np.broadcast_to(w, X.shape))
    with pytest.raises(InputError, match="too many"):
        rep.run([X, w, X, X])
    with pytest.raises(InputError, match="missing"):
        rep.run([X])


def test_one_input_alone() -> None:
    text = "(float[N,3] x) => (float[N,3] y) { y = Neg(x) }"
    np.testing.assert_array_equal(backend.run_model(model(text), X)[0], -X)


def test_options_are_passed_on() -> None:
    text = "(int64[N] x) => (int64[N] y) { y = ai.onnx.ml.LabelEncoder<keys_int64s=[1], values_int64s=[2]>(x) }"
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["":17, "ai.onnx.ml":2]> g {text}')
    with pytest.raises(UnsupportedError):
        backend.prepare(proto, strict=True)
    assert not backend.is_compatible(proto, strict=True)
    assert backend.is_compatible(proto, level=0, rtol=1)


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CPU:1")
    assert not backend.supports_device("TPU")


@pytest.mark.parametrize(
    ("node", "inputs", "expected"),
    [
        (helper.make_node("Add", ["a", "b"], ["c"]), [X, X], [X + X]),
        (helper.make_node("Add", ["a", "a"], ["c"]), [X], [X + X]),
        (helper.make_node("TopK", ["x", "k"], ["", "i"]), [X[0], np.array([2])], [np.array([2, 1])]),
        (helper.make_node("Clip", ["x", "", "high"], ["y"]), [X, np.float32(2)], [np.minimum(X, 2)]),
        (helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0), [[X, X]], [np.concatenate([X, X])]),
        (helper.make_node("SplitToSequence", ["x"], ["y"], axis=0), [X], [[X[:1], X[1:]]]),
    ],
)
def test_run_node(node: Any, inputs: Any, expected: Any) -> None:
    outputs = backend.run_node(node, inputs)
    assert len(outputs) == len(expected)
    for a, b in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_run_node_of_an_old_version() -> None:
    node = helper.make_node("Upsample", ["x", "s"], ["y"])
    inputs = [X.reshape(1, 1, 2, 3), np.array([1, 1, 2, 2], np.float32)]
    (y,) = backend.run_node(node, inputs, opset_version=9, outputs_info=[(np.float32, (1, 1, 4, 6))])
    np.testing.assert_array_equal(y[0, 0], X.repeat(2, 0).repeat(2, 1))


def test_wrong_nodes() -> None:
    with pytest.raises(UnknownOperatorError):
        backend.run_node(helper.make_node("NoSuch", ["x"], ["y"]), [X])
    for inputs in ([X], [X, X, X], {"a": X}):
        with pytest.raises(InputError, match="wrong inputs"):
            backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), inputs)
    with pytest.raises(InputError, match="empty sequence"):
        backend.run_node(helper.make_node("SequenceLength", ["s"], ["n"]), [[]])


def test_under_the_runner_of_onnx() -> None:
    """A sample of every kind of case; ``accord conformance`` runs all."""
    import warnings

    from onnx.backend.test import BackendTest

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # ONNX computes its expected results with overflows
        cases = BackendTest(backend.AccordBackend, __name__)
    cases.include(
        "test_(add|matmul_2d|sequence_insert_at_front|if|identity_opt|sign_model|Linear|operator_add_broadcast)_cpu"
    )
    suite = cases.test_suite
    result = unittest.TestResult()
    suite.run(result)
    run = result.testsRun - len(result.skipped)
    assert result.failures == result.errors == []
    assert run == 8
