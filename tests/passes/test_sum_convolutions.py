"""Convolutions of one tensor that are added up."""

from __future__ import annotations

import pytest
from rules_harness import F, batch_norm, check, compiled, fired, ops, rand, reasons

from builders import model, node

BRANCHES = {
    "a pixel in a 3x3": ({"kernel": (3, 3), "pads": [1, 1, 1, 1]}, {"kernel": (1, 1)}),
    "with strides": (
        {"kernel": (3, 3), "pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"kernel": (1, 1), "strides": [2, 2]},
    ),
    "of equal size": ({"kernel": (2, 3), "pads": [0, 1, 0, 1]}, {"kernel": (2, 3), "pads": [0, 1, 0, 1]}),
    "a row in a square": ({"kernel": (3, 3), "pads": [1, 1, 1, 1]}, {"kernel": (1, 3), "pads": [0, 1, 0, 1]}),
    "uneven padding": ({"kernel": (3, 2), "pads": [2, 0, 0, 1]}, {"kernel": (2, 1), "pads": [1, 0, 0, 0]}),
    "dilated": ({"kernel": (3, 3), "pads": [2, 2, 2, 2], "dilations": [2, 2]}, {"kernel": (1, 1)}),
    "of one axis": ({"kernel": (5,), "pads": [2, 2]}, {"kernel": (3,), "pads": [1, 1]}),
}


def branch(name: str, out: str, groups: int, kernel: tuple[int, ...], **attributes) -> tuple:
    """A convolution of 4 channels and its weights."""
    weights = {f"w{name}": rand(4, 4 // groups, *kernel), f"b{name}": rand(4)}
    return node("Conv", ["x", *weights], [out], group=groups, **attributes), weights


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", BRANCHES)
@pytest.mark.parametrize("swapped", [False, True])
def test_convolutions_of_one_tensor_are_added_up(kind, groups, swapped):
    first, second = BRANCHES[kind][:: -1 if swapped else 1]
    size = (7, 8)[: len(first["kernel"])]
    (a, wa), (b, wb) = branch("a", "a", groups, **first), branch("b", "b", groups, **second)
    proto = model([a, b, node("Add", ["a", "b"], ["y"])], {"x": (F, ["n", 4, *size])}, ["y"], wa | wb)
    check(proto, {"x": rand(2, 4, *size)}, "sum-convolutions", ["Conv"])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_normalisation_of_the_same_tensor_is_a_branch(groups):
    a, wa = branch("a", "a", groups, (3, 3), pads=[1, 1, 1, 1])
    b, wb = branch("b", "b", groups, (1, 1))
    norm = {f"norm.{k}": v for k, v in batch_norm(4).items()}
    nodes = [a, b, node("BatchNormalization", ["x", *norm], ["c"])]
    nodes += [node("Add", ["a", "b"], ["s"]), node("Add", ["c", "s"], ["y"])]
    weights = wa | wb | norm
    proto = model(nodes, {"x": (F, [2, 4, 6, 5])}, ["y"], weights)
    check(proto, {"x": rand(2, 4, 6, 5)}, "sum-convolutions", ["Conv"])


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("order", [("a", "c"), ("c", "a")])
def test_a_normalisation_beside_a_kernel_of_one_tap(groups, order):
    a, wa = branch("a", "a", groups, (1, 1))
    norm = {f"norm.{k}": v for k, v in batch_norm(4).items()}
    nodes = [a, node("BatchNormalization", ["x", *norm], ["c"]), node("Add", order, ["y"])]
    proto = model(nodes, {"x": (F, [2, 4, 6, 5])}, ["y"], wa | norm)
    check(proto, {"x": rand(2, 4, 6, 5)}, "sum-convolutions", ["Conv"])


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"kernel": (1, 3), "pads": [0, 1, 0, 1]}, "neither kernel lies within the other one"),
        ({"kernel": (1, 1), "groups": 2}, "the convolutions have other groups"),
        ({"kernel": (1, 1), "auto_pad": "SAME_UPPER"}, "the padding of Conv_1 depends on sizes"),
    ],
)
def test_convolutions_that_are_not_added_up_say_why(second, reason):
    (a, wa) = branch("a", "a", 1, (3, 1), pads=[1, 0, 1, 0])
    (b, wb) = branch("b", "b", second.pop("groups", 1), **second)
    proto = model([a, b, node("Add", ["a", "b"], ["y"])], {"x": (F, [1, 4, 6, 5])}, ["y"], wa | wb)
    m = compiled(proto)
    assert [op for op in ops(m) if op == "Conv"] == ["Conv", "Conv"]
    assert any(reason.split("Conv_1")[0] in r for r in reasons(m, "sum-convolutions"))


def test_a_convolution_with_other_uses_stays():
    (a, wa), (b, wb) = branch("a", "a", 1, (1, 1)), branch("b", "b", 1, (1, 1))
    proto = model([a, b, node("Add", ["a", "b"], ["y"])], {"x": (F, [1, 4, 6, 5])}, ["y", "a"], wa | wb)
    assert "sum-convolutions" not in fired(compiled(proto))
