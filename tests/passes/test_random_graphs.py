"""Random graphs give the reference's outputs at every level."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_graphs import RandomGraph
from random_nodes import MAKERS, random_graph

from accord.runtime.model import Model
from accord.runtime.options import MAX_LEVEL, Options

UNBOUNDED = settings(deadline=None, suppress_health_check=list(HealthCheck))


def check(graph: RandomGraph, proto: onnx.ModelProto) -> None:
    """It is right at every level, on one thread or two."""
    for level in range(MAX_LEVEL + 1):
        model = Model(proto, Options(level=level, threads=1 + level % 2))
        wrong = graph.check(model(graph.feeds))
        assert wrong is None, f"level {level}: {wrong}"


@settings(UNBOUNDED, max_examples=60)
@given(st.randoms(use_true_random=False))
def test_random_graphs(source):
    made = random_graph(source)
    assume(made is not None)
    check(*made)


@settings(UNBOUNDED, max_examples=30)
@given(st.randoms(use_true_random=False))
def test_random_graphs_over_two_memories(far, source):
    """Some nodes run on a device, the others between copies; which they are is drawn too."""
    made = random_graph(source)
    assume(made is not None)
    graph, proto = made
    share = source.choice([0.0, 0.5, 0.8, 1.0])
    chosen: dict[str, bool] = {}
    far.takes = lambda n: chosen.setdefault(f"{n.op_type} {n.name}", source.random() < share)
    for level in range(MAX_LEVEL + 1):
        wrong = graph.check(Model(proto, Options(device="far", level=level, threads=1))(graph.feeds))
        assert wrong is None, f"level {level}: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4000, 500))
def test_many_random_graphs(first):
    for seed in range(first, first + 500):
        made = random_graph(random.Random(seed))
        if made is not None:
            check(*made)


def test_every_kind_of_node_comes_about():
    seen: set[str] = set()
    levels: set[bool] = set()
    for seed in range(400):
        made = random_graph(random.Random(seed))
        if made is not None:
            seen |= {n.op_type for n in made[0].nodes}
            levels |= {any(isinstance(d, str) for d in shape) for _, shape in made[0].inputs.values()}
    assert levels == {False, True}
    assert len(seen) > 95
    assert len(set(MAKERS)) == 30


def test_a_wrong_element_is_found():
    """Of a value that is exact, and of one that rounding may change."""
    graph = RandomGraph(random.Random(1))
    x = graph.input(np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4))
    graph.add("Relu", [x])
    graph.add("Exp", [x], exact=False)
    graph.finish()
    right = [v.array for v in graph.outputs]
    assert graph.check(right) is None
    for k, v in enumerate(graph.outputs):
        wrong = [a.copy() for a in right]
        wrong[k][1, 2] *= 1 + 4e-5
        assert v.name in str(graph.check(wrong))
        wrong[k] = right[k].astype(np.float64)
        assert "float64" in str(graph.check(wrong))
