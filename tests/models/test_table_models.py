"""Every model gives ONNX Runtime's outputs on real-looking inputs, at every level and at several shapes."""

from __future__ import annotations

import pytest
from models_harness import ALL, HUGE, QUICK, check, content, marked

from accord.runtime.model import Model
from accord.runtime.options import MAX_LEVEL, Options


@pytest.mark.parametrize(
    ("name", "level"),
    [
        marked(name, level, quick=name in QUICK or (level == MAX_LEVEL and name not in HUGE))
        for name in ALL
        for level in range(MAX_LEVEL + 1)
    ],
)
def test_outputs_are_onnxruntimes(name, level):
    check(name, Model(content(name), Options(level=level)))
