"""Reductions of few long rows are cut into programs that work side by side."""

from __future__ import annotations

import numpy as np
import pytest

import accord
from builders import model, node

F = np.float32
#: Worth more kernels: a program would take longer than they do.
LONG = 1 << 17


def check(gpu, nodes, x, constants=None, outputs=("y",), phases=2, tolerance=2e-5, **shapes):
    proto = model(nodes, {"x": (x.dtype.type, list(x.shape))}, list(outputs), constants)
    far = accord.load(proto, device="cuda")
    (step,) = (s for s in far.plan.steps if s.placement.backend == "cuda" and s.placement.op != "Copy")
    assert len(step.kernel.phases) == phases
    for got, want in zip(far(x=x), accord.load(proto)(x=x), strict=True):
        assert got.dtype == want.dtype
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, want)


def rand(*shape, dtype=F):
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "Prod"])
def test_reductions(gpu, op):
    x = rand(2, LONG)
    if op == "Prod":
        x = 1 + x / 1000
    tolerance = 2e-4 if op == "Prod" else 2e-5  # the CPU rounds 131,072 times, one after the other
    check(gpu, [node(f"Reduce{op}", ["x", "a"], ["y"])], x, {"a": np.array([1])}, tolerance=tolerance)


@pytest.mark.parametrize("op", ["ReduceLogSumExp", "Softmax"])
def test_two_levels(gpu, op):
    """The greatest first, then the sum; and what is stored along rows at the end."""
    if op == "Softmax":
        check(gpu, [node("Softmax", ["x"], ["y"], axis=-1)], rand(1, LONG), phases=5)
    else:
        check(gpu, [node(op, ["x", "a"], ["y"])], rand(1, LONG), {"a": np.array([1])}, phases=4)


def test_normalisation_with_what_is_the_same_for_rows(gpu):
    names = ["y", "m", "d"]
    constants = {"s": rand(LONG), "b": rand(LONG)}
    check(gpu, [node("LayerNormalization", ["x", "s", "b"], names)], rand(2, LONG), constants, names, phases=6)


def test_not_a_number_wins(gpu):
    x = rand(2, LONG)
    x[1, 50000] = np.nan
    check(gpu, [node("ReduceMax", ["x", "a"], ["y"])], x, {"a": np.array([1])})


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_where_the_extreme_is(gpu, op, last):
    x = np.zeros((2, LONG), F)
    sign = 1 if op == "ArgMax" else -1
    x[0, [100, 50000]], x[1, 70000] = sign, sign
    check(gpu, [node(op, ["x"], ["y"], axis=1, select_last_index=last)], x)


@pytest.mark.parametrize("dtype", [F, np.float16])
def test_pool_of_all_pixels_with_channels_last(gpu, dtype):
    nodes = [node("Conv", ["x", "w"], ["c"]), node("GlobalAveragePool", ["c"], ["y"])]
    x, w = rand(1, 3, 160, 96, dtype=dtype), {"w": rand(8, 3, 1, 1, dtype=dtype)}
    proto = model(nodes, {"x": (dtype, [1, 3, 160, 96])}, ["y"], w)
    far = accord.load(proto, device="cuda")
    step = next(s for s in far.plan.steps if s.placement.op == "GlobalAveragePool")
    assert len(step.kernel.phases) == 2
    tolerance = 2e-5 if dtype is F else 2e-3
    np.testing.assert_allclose(far(x=x)[0], accord.load(proto)(x=x)[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "length"), [(64, 4096), (2, 8192), (2, 131071)], ids=["many rows", "short", "prime"])
def test_what_is_not_cut(gpu, rows, length):
    check(
        gpu, [node("ReduceSum", ["x", "a"], ["y"])], rand(rows, length), {"a": np.array([1])}, phases=1, tolerance=1e-4
    )
