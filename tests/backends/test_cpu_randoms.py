"""Random tensors: with a seed the numbers of the reference, without one new ones with every run."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from accord.errors import ExecutionError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SHAPES = [[0], [1], [3, 7], [311], [2, 313], [40, 100]]
TYPES = [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16]


def both(proto, feeds, rtol: float = 0.0) -> Model:
    fast = Model(proto, Options(level=0, strict=True))
    slow = Model(proto, Options(level=0, reference=True))
    for a, b in zip(fast(feeds), slow(feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=rtol)
    return fast


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("op", "numbers"), [("RandomUniform", {"low": -2.0, "high": 5.0}), ("RandomNormal", {"mean": 1.0, "scale": 2.5})]
)
def test_tensors(op, numbers, shape, dtype):
    proto = model([node(op, [], ["y"], shape=shape, dtype=dtype, seed=7.0, **numbers)], {}, ["y"])
    both(proto, {}, rtol=1e-3 if dtype == TensorProto.FLOAT16 else 1e-6)


@pytest.mark.parametrize("op", ["RandomUniformLike", "RandomNormalLike"])
def test_like(op):
    proto = model([node(op, ["x"], ["y"], seed=3.0)], {"x": (np.float32, ["n", "m"])}, ["y"])
    both(proto, {"x": np.zeros((20, 33), np.float32)}, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_bernoulli(dtype):
    proto = model([node("Bernoulli", ["x"], ["y"], seed=1.0, dtype=TensorProto.BOOL)], {"x": (dtype, ["n"])}, ["y"])
    both(proto, {"x": np.linspace(0, 1, 1000).astype(dtype)})


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("training", [False, True])
def test_dropout(ratio, training, dtype):
    inputs = {"x": (dtype, ["n", 50]), "r": (np.float32, []), "t": (np.bool_, [])}
    proto = model([node("Dropout", ["x", "r", "t"], ["y", "m"], seed=5)], inputs, ["y", "m"])
    x = np.random.default_rng(1).standard_normal((30, 50)).astype(dtype)
    both(proto, {"x": x, "r": np.float32(ratio), "t": np.array(training)}, rtol=2e-3 if dtype == "float16" else 1e-6)


def test_a_ratio_of_1_is_refused_in_training():
    inputs = {"x": (np.float32, [3]), "r": (np.float32, []), "t": (np.bool_, [])}
    compiled = Model(model([node("Dropout", ["x", "r", "t"], ["y"])], inputs, ["y"]), Options(strict=True))
    x = np.ones(3, np.float32)
    assert compiled({"x": x, "r": np.float32(1), "t": np.array(False)})[0].tolist() == [1, 1, 1]
    with pytest.raises(ExecutionError, match="ratio"):
        compiled({"x": x, "r": np.float32(1), "t": np.array(True)})


def test_without_a_seed_numbers_are_new():
    compiled = Model(model([node("RandomNormal", [], ["y"], shape=[5000])], {}, ["y"]), Options(strict=True))
    first, second = compiled({})[0], compiled({})[0]
    assert not (first == second).any()
    for y in (first, second):
        assert abs(y.mean()) < 0.1 and abs(y.std() - 1) < 0.05
