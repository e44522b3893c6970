"""Operators with inputs that decide sizes or how they compute, as every device meets them in a run."""

from __future__ import annotations

import numpy as np

from builders import node

__all__ = ["COMMON", "ints"]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


#: By name: the node, and its inputs beside ``x`` of shape [3, 4, 5].
COMMON = {
    "ReduceSum": (node("ReduceSum", ["x", "a"], ["y"], keepdims=0), {"a": ints(2, 0)}),
    "ReduceMax": (node("ReduceMax", ["x", "a"], ["y"]), {"a": ints(-1)}),
    "Reshape": (node("Reshape", ["x", "a"], ["y"]), {"a": ints(2, -1)}),
    "Expand": (node("Expand", ["x", "a"], ["y"]), {"a": ints(2, 3, 1, 5)}),
    "Tile": (node("Tile", ["x", "a"], ["y"]), {"a": ints(2, 1, 3)}),
    "Slice": (
        node("Slice", ["x", "a", "b", "c", "d"], ["y"]),
        {"a": ints(-1, 0), "b": ints(-9, 4), "c": ints(1, 2), "d": ints(-2, 3)},
    ),
    "Pad": (
        node("Pad", ["x", "a", "b", "c"], ["y"]),
        {"a": ints(1, 0, 2, -1), "b": np.float32(7), "c": ints(0, 2)},
    ),
    "Split": (node("Split", ["x", "a"], ["y", "z"], axis=1), {"a": ints(1, 3)}),
    "ConstantOfShape": (node("ConstantOfShape", ["a"], ["y"]), {"a": ints(2, 3)}),
    "OneHot": (node("OneHot", ["a", "b", "v"], ["y"]), {"a": ints(1, 3), "b": np.array(4), "v": ints(2, 9)}),
}
