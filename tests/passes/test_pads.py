"""Padding in front of convolutions becomes theirs."""

from __future__ import annotations

import numpy as np
import pytest
from rules_harness import F, check, compiled, fired, rand, reasons

from builders import model, node

RULE = "fold-pad-into-convolution"
AROUND = [0, 0, 1, 1, 0, 0, 1, 1]


def padded(
    amounts, *, value=None, axes=None, mode="constant", shape=(2, 4, 9, 8), kernel=(6, 2, 3, 3), group=2, **attributes
):
    constants = {"pads": np.array(amounts, np.int64), "w": rand(*kernel), "b": rand(kernel[0])}
    names = ["x", "pads", "", ""]
    if value is not None:
        constants["value"], names[2] = np.array(value, F), "value"
    if axes is not None:
        constants["axes"], names[3] = np.array(axes, np.int64), "axes"
    while not names[-1]:
        names.pop()
    nodes = [
        node("Pad", names, ["p"], mode=mode),
        node("Conv", ["p", "w", "b"], ["y"], group=group, **attributes),
    ]
    return model(nodes, {"x": (F, list(shape))}, ["y"], constants)


@pytest.mark.parametrize(
    "case",
    [
        {"amounts": [0, 0, 1, 2, 0, 0, 3, 0]},
        {"amounts": [0, 0, 0, 0, 0, 0, 1, 1], "strides": [2, 2], "value": 0.0},
        {"amounts": [1, 0, 2, 1], "axes": [-1, 2], "pads": [1, 0, 0, 2]},
        {"amounts": [0, 0, 2, 2, 0, 0, 2, 2], "auto_pad": "VALID", "dilations": [2, 1]},
        {"amounts": [0, 0, 4, 0, 0, 5], "shape": (1, 4, 20), "kernel": (6, 2, 7)},
    ],
)
def test_zeros_around_an_image_are_the_convolutions_own(case):
    check(padded(**case), {"x": rand(*case.get("shape", (2, 4, 9, 8)))}, RULE, ["Conv"])


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"amounts": AROUND, "value": 1.0}, "zeros"),
        ({"amounts": AROUND, "mode": "reflect"}, "constant"),
        ({"amounts": AROUND, "auto_pad": "SAME_UPPER"}, "auto_pad"),
        ({"amounts": [0, 0, -1, 1, 0, 0, 1, 1]}, "cuts"),
        ({"amounts": [0, 2, 1, 1, 0, 0, 1, 1], "kernel": (6, 3, 3, 3)}, "channels"),
    ],
)
def test_what_a_convolution_does_not_pad(case, why):
    m = compiled(padded(**case))
    assert RULE not in fired(m)
    assert any(why in r for r in reasons(m, RULE))
