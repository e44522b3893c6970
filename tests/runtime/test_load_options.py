"""``accord.load`` passes on where external data lies and how large a model may be."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import accord
from accord.errors import ExternalDataError, LimitError
from accord.model.limits import Limits
from builders import model, node


def test_base_dir_finds_the_weights_of_a_model_given_as_bytes(tmp_path):
    w = np.arange(600, dtype=np.float32)
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": (np.float32, [600])}, ["y"], {"w": w})
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    data = (tmp_path / "m.onnx").read_bytes()
    with pytest.raises(ExternalDataError, match="base_dir"):
        accord.load(data)
    x = np.ones(600, np.float32)
    np.testing.assert_array_equal(accord.load(data, base_dir=tmp_path)(x)[0], w + 1)
    np.testing.assert_array_equal(accord.load(tmp_path / "m.onnx")(x)[0], w + 1)


def test_limits_are_the_callers():
    proto = model([node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["y"])], {"x": (np.float32, [2])}, ["y"])
    with pytest.raises(LimitError):
        accord.load(proto, limits=Limits(max_nodes=1))
    assert accord.load(proto, limits=Limits(max_nodes=2))(np.ones(2, np.float32))[0].sum() == 2
