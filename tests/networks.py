"""Random models with branches, views, joins and several outputs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from builders import model, node

F = np.float32
#: Rows of all values, which have four columns.
ROWS = 3


class _Nodes:
    def __init__(self) -> None:
        self.nodes: list = []

    def add(self, op, inputs, outputs=1, **attributes):
        """A node; its outputs, or its one output."""
        name = f"node{len(self.nodes)}"
        names = [f"v{len(self.nodes)}.{k}" for k in range(outputs)]
        self.nodes.append(node(op, inputs, names, name=name, **attributes))
        return names if outputs > 1 else names[0]


def _unary(g, draw, a, b):
    return g.add(draw(st.sampled_from(["Relu", "Tanh", "Neg", "Softmax"])), [a])


def _binary(g, draw, a, b):
    return g.add(draw(st.sampled_from(["Add", "Mul", "Sub"])), [a, b])


def _product(g, draw, a, b):
    return g.add("MatMul", [a, "w"])


def _join(g, draw, a, b):
    axis = draw(st.sampled_from([0, 1]))
    joined = g.add("Concat", [a, b], axis=axis)
    if draw(st.booleans()):
        joined = g.add("Tanh", [joined])
    return g.add("Slice", [joined, "zero", "rows" if axis == 0 else "columns", f"axis{axis}"])


def _split(g, draw, a, b):
    left, right = g.add("Split", [a], 2, axis=1, num_outputs=2)
    return g.add("Concat", [g.add("Tanh", [right]), left], axis=1)


def _transposed(g, draw, a, b):
    return g.add("Transpose", [g.add("Neg", [g.add("Transpose", [a], perm=[1, 0])])], perm=[1, 0])


def _reshaped(g, draw, a, b):
    return g.add("Reshape", [g.add("Tanh", [g.add("Reshape", [a, "flat"])]), "square"])


KINDS = [_unary, _binary, _product, _join, _split, _transposed, _reshaped]


@st.composite
def networks(draw, most=14):
    """A model of inputs x and z."""
    g, values = _Nodes(), ["x", "z"]
    for _ in range(draw(st.integers(2, most))):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        values.append(draw(st.sampled_from(KINDS))(g, draw, a, b))
    outputs = [values[-1], *draw(st.lists(st.sampled_from(values[2:]), max_size=3))]
    constants = {
        "w": np.linspace(-1, 1, 16, dtype=F).reshape(4, 4),
        "zero": np.array([0]), "rows": np.array([ROWS]), "columns": np.array([4]),
        "axis0": np.array([0]), "axis1": np.array([1]), "flat": np.array([-1]), "square": np.array([-1, 4]),
    }  # fmt: skip
    return model(g.nodes, {"x": (F, [ROWS, 4]), "z": (F, [ROWS, 4])}, list(dict.fromkeys(outputs)), constants)


def two_branches():
    """A branch for each of inputs x and z, and their sum."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["b"]),
        node("MatMul", ["z", "w"], ["c"]),
        node("Softmax", ["c"], ["d"]),
        node("Add", ["b", "d"], ["y"]),
        node("Tanh", ["d"], ["e"]),
    ]
    w = np.linspace(-1, 1, 16, dtype=F).reshape(4, 4)
    return model(nodes, {"x": (F, [3, 4]), "z": (F, [3, 4])}, ["y", "e"], {"w": w})


def inputs(seed):
    """Values for x and z."""
    x, z = np.random.default_rng(seed).standard_normal((2, ROWS, 4)).astype(F)
    return {"x": x, "z": z}


def all_but(number):
    """Picks any other than this one, which so comes as late as it can."""
    return lambda ready: next((k for k in ready if getattr(k, "number", k) != number), ready[0])
