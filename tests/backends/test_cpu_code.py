"""Machine code as LLVM makes it: what went wrong once, by kind."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import accord
from builders import model, node

X = np.array([-3.3, -0.57, -0.1, -0.95, 0.5, 3.3, -7.0, 0.25] * 5, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("op", ["Elu", "Selu", "Celu"])
def test_a_choice_between_a_value_and_bits_made_from_it(op, dtype):
    """A select whose arms are x and a bitwise combination with x was one wrong instruction."""
    x = X.astype(dtype)
    m = accord.load(model([node(op, ["x"], ["y"])], {"x": (dtype, ["n"])}, ["y"], opset=28), strict=True)
    wide = x.astype(np.float64)
    alpha, gamma = {"Elu": (1, 1), "Selu": (1.6732632423543772, 1.0507009873554805), "Celu": (1, 1)}[op]
    want = gamma * np.where(wide < 0, alpha * np.expm1(wide), wide)
    np.testing.assert_allclose(m(x)[0].astype(np.float64), want, rtol=1e-2 if dtype != np.float32 else 1e-6)


def test_a_choice_between_integers_and_their_bits():
    x = np.arange(-20, 20, dtype=np.int32)
    nodes = [
        node("BitwiseAnd", ["x", "mask"], ["a"]),
        node("Less", ["x", "zero"], ["c"]),
        node("Where", ["c", "a", "x"], ["y"]),
    ]
    constants = {"mask": np.int32(0x55), "zero": np.int32(0)}
    m = accord.load(model(nodes, {"x": (np.int32, ["n"])}, ["y"], constants), strict=True)
    np.testing.assert_array_equal(m(x)[0], np.where(x < 0, x & 0x55, x))
