"""Generated sorting and search against the reference: lengths, k, ties, NaN, zeros, strides, dtypes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strided_harness import agree, strided_model

from accord.errors import ExecutionError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
seeds = st.integers(0, 2**32 - 1)


def ties(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values with many equal ones; extremes, NaN, infinities and zeros of both signs among them."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        info = np.iinfo(dtype)
        pool = [info.min, info.max, 0, 1, 5, info.max // 2, *((-1, -7) if kind == "i" else ())]
        return rng.choice(np.array(pool, dtype), shape)
    pool = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.0, 6e-5], dtype)
    return np.where(rng.random(shape) < 0.3, rng.choice(pool, shape), rng.standard_normal(shape).astype(dtype))


@SETTINGS
@given(
    st.lists(st.sampled_from([1, 2, 5]), max_size=3),
    st.sampled_from([1, 3, 16, 40, 129, 400, 900]),
    st.data(),
    st.sampled_from([*INTEGERS, *FLOATS]),
    seeds,
    st.booleans(),
)
def test_top_k(rows, length, data, dtype, seed, symbolic):
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(0, len(rows)))
    shape = (*rows[:axis], length, *rows[axis:])
    k = data.draw(st.one_of(st.integers(0, min(length, 5)), st.integers(0, length), st.just(length)))
    x = ties(rng, shape, dtype)
    outputs = data.draw(st.sampled_from([["y", "i"], ["", "i"], ["y", ""]]))
    op = node("TopK", ["x", "k"], outputs, axis=axis, largest=data.draw(st.integers(0, 1)))
    join = {}
    if outputs[0] and not symbolic:
        out = [k if a == axis else n for a, n in enumerate(shape)]
        join = {"y": (0, np.zeros((1, *out[1:]), dtype))}
    feeds = {"x": x, "k": np.array([k], np.int64)}
    agree(*strided_model(op, feeds, seed=seed, symbolic=symbolic, plain=["k"], join=join))


@pytest.mark.parametrize("length", [128, 129, 5000])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_a_long_line_in_bad_order(length, dtype):
    """Every element is better than all before it, so the buffer fills again and again."""
    x = np.arange(length).astype(dtype)
    proto, feeds = strided_model(node("TopK", ["x", "k"], ["y", "i"]), {"x": x, "k": np.array([7])}, plain=["k"])
    agree(proto, feeds)


def test_k_beyond_the_axis_is_refused():
    proto = model([node("TopK", ["x", "k"], ["y", "i"])], {"x": (np.float32, ["n"])}, ["y", "i"], {"k": np.array([9])})
    compiled = Model(proto, Options(level=0, strict=True))
    assert compiled({"x": np.arange(9, dtype=np.float32)})[1][0] == 8
    with pytest.raises(ExecutionError):
        compiled({"x": np.arange(8, dtype=np.float32)})
