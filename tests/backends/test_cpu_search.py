"""Generated sorting and search against the reference: lengths, k, ties, NaN, zeros, strides, dtypes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import agree, strided_model

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


@SETTINGS
@given(st.lists(st.sampled_from([0, 1, 3, 17, 70]), max_size=3), st.sampled_from([*INTEGERS, *FLOATS, "bool"]), seeds)
def test_non_zero(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(shape) < rng.random(), ties(rng, tuple(shape), dtype), np.zeros((), dtype))
    agree(*strided_model(node("NonZero", ["x"], ["y"]), {"x": x}, seed=seed, symbolic=bool(seed % 2)))


def test_non_zero_over_several_blocks():
    x = (np.arange(200_000) % 3 == 0).reshape(2, 100_000)
    agree(*strided_model(node("NonZero", ["x"], ["y"]), {"x": x}))


@SETTINGS
@given(
    st.lists(st.sampled_from([1, 2, 3, 40]), min_size=1, max_size=3),
    st.sampled_from([*INTEGERS, *FLOATS]),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_unique(shape, dtype, ordered, whole, seed):
    rng = np.random.default_rng(seed)
    x = ties(rng, tuple(shape), dtype)
    attributes = {"sorted": int(ordered)}
    if not whole:
        attributes["axis"] = int(rng.integers(-len(shape), len(shape)))
        if np.dtype(dtype).kind == "f":  # few different slices, and NumPy compares NaN in slices as it likes
            x = np.round(np.nan_to_num(x, posinf=2, neginf=-2)).astype(dtype)
    agree(*strided_model(node("Unique", ["x"], ["y", "f", "i", "c"], **attributes), {"x": x}, seed=seed))


def boxes(rng: np.random.Generator, shape: tuple[int, ...], center: bool) -> np.ndarray:
    """Small integers, so that overlaps are often exactly a threshold."""
    first, second = rng.integers(0, 12, (*shape, 2)), rng.integers(0, 12, (*shape, 2))
    return np.concatenate([first, 1 + second // 2 if center else second], axis=-1).astype(np.float32)


@SETTINGS
@given(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 1, 5, 60, 200]), st.sampled_from([0, 1]), st.data(), seeds
)
def test_non_max_suppression(images, classes, count, center, data, seed):
    rng = np.random.default_rng(seed)
    feeds = {"b": boxes(rng, (images, count), bool(center))}
    feeds["s"] = rng.choice(np.array([0.1, 0.5, 0.9, np.nan, -1.0], np.float32), (images, classes, count))
    feeds["s"] += np.float32(0.01) * rng.integers(0, 20, feeds["s"].shape).astype(np.float32)
    feeds["m"] = np.array([data.draw(st.sampled_from([0, 1, 7, 2**40]))], np.int64)
    feeds["t"] = np.array([data.draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))], np.float32)
    names = ["b", "s", "m", "t"]
    if data.draw(st.booleans()):
        feeds["l"] = np.array([0.4], np.float32)
        names.append("l")
    op = node("NonMaxSuppression", names, ["y"], center_point_box=center)
    agree(*strided_model(op, feeds, seed=seed, symbolic=True))


def test_a_threshold_that_is_no_overlap_is_refused():
    feeds = {"b": np.zeros((1, 1, 4), np.float32), "s": np.zeros((1, 1, 1), np.float32)}
    feeds |= {"m": np.array([1]), "t": np.array([1.5], np.float32)}
    proto, feeds = strided_model(node("NonMaxSuppression", list(feeds), ["y"]), feeds)
    with pytest.raises(ExecutionError, match="outside"):
        Model(proto, Options(level=0, strict=True))(feeds)
