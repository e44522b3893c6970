"""Generated gathers and scatters against the reference: shapes, strides, dtypes, reductions, indices out of range."""

from __future__ import annotations

import ml_dtypes
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
DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int16", "int64", "bool", "complex64", "complex128"]
shapes = st.lists(st.sampled_from([1, 2, 3, 5, 17]), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**32 - 1)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    if kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def indices(rng: np.random.Generator, shape: tuple[int, ...], size: int, dtype: str) -> np.ndarray:
    return rng.integers(-size, size, shape).astype(dtype)


@SETTINGS
@given(shapes, st.data(), st.sampled_from(DTYPES), st.sampled_from(["int32", "int64"]), seeds, st.booleans())
def test_gather(shape, data, dtype, index_dtype, seed, symbolic):
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    places = data.draw(st.lists(st.sampled_from([0, 1, 2, 20]), max_size=2).map(tuple))
    x, i = values(rng, shape, dtype), indices(rng, places, shape[axis], index_dtype)
    join = {}
    out = np.take(x, i, axis)
    if out.ndim and not symbolic and dtype != "complex128":
        join = {"y": (out.ndim - 1, np.zeros((*out.shape[:-1], 1), dtype))}
    op = node("Gather", ["x", "i"], ["y"], axis=axis)
    agree(*strided_model(op, {"x": x, "i": i}, seed=seed, symbolic=symbolic, join=join))


@SETTINGS
@given(shapes, st.data(), st.sampled_from(DTYPES), st.sampled_from(["int32", "int64"]), seeds, st.booleans())
def test_gather_elements(shape, data, dtype, index_dtype, seed, symbolic):
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    places = tuple(data.draw(st.integers(0, n if a != axis % len(shape) else 30)) for a, n in enumerate(shape))
    op = node("GatherElements", ["x", "i"], ["y"], axis=axis)
    feeds = {"x": values(rng, shape, dtype), "i": indices(rng, places, shape[axis], index_dtype)}
    agree(*strided_model(op, feeds, seed=seed, symbolic=symbolic))


def coordinates(rng: np.random.Generator, places: tuple[int, ...], sizes: tuple[int, ...]) -> np.ndarray:
    return np.stack([indices(rng, places, n, "int64") for n in sizes], axis=-1)


@SETTINGS
@given(shapes, st.data(), st.sampled_from(DTYPES), seeds)
def test_gather_nd(shape, data, dtype, seed):
    rng = np.random.default_rng(seed)
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    places = (*shape[:batch], *data.draw(st.lists(st.integers(0, 9), max_size=2)))
    op = node("GatherND", ["x", "i"], ["y"], batch_dims=batch)
    i = coordinates(rng, places, shape[batch : batch + depth])
    agree(*strided_model(op, {"x": values(rng, shape, dtype), "i": i}, seed=seed))


SCATTER_DTYPES = [*DTYPES, "bfloat16"]


def number_dtypes(reduction: str) -> list[str]:
    """Complex numbers have no order, and no generated arithmetic."""
    return DTYPES if reduction == "none" else [d for d in DTYPES if not d.startswith("complex")]


@SETTINGS
@given(shapes, st.data(), st.sampled_from(["none", "add", "mul", "max", "min"]), seeds, st.booleans())
def test_scatter_elements(shape, data, reduction, seed, symbolic):
    rng = np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from(number_dtypes(reduction)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    places = tuple(data.draw(st.integers(0, n if a != axis % len(shape) else 30)) for a, n in enumerate(shape))
    feeds = {"x": values(rng, shape, dtype), "i": indices(rng, places, shape[axis], "int64")}
    feeds["u"] = values(rng, places, dtype)
    op = node("ScatterElements", ["x", "i", "u"], ["y"], axis=axis, reduction=reduction)
    tolerance = 1e-3 if dtype == "float16" else 1e-6
    agree(*strided_model(op, feeds, seed=seed, symbolic=symbolic), rtol=tolerance, atol=tolerance)


@SETTINGS
@given(shapes, st.data(), st.sampled_from(["none", "add", "mul", "max", "min"]), seeds)
def test_scatter_nd(shape, data, reduction, seed):
    rng = np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from(number_dtypes(reduction)))
    depth = data.draw(st.integers(1, len(shape)))
    places = tuple(data.draw(st.lists(st.integers(0, 9), max_size=2)))
    x = values(rng, shape, dtype)
    feeds = {"x": x, "i": coordinates(rng, places, shape[:depth])}
    feeds["u"] = values(rng, (*places, *shape[depth:]), dtype)
    op = node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction)
    tolerance = 1e-3 if dtype == "float16" else 1e-6
    join = {"y": (0, x[:1])} if dtype != "complex128" else {}
    agree(*strided_model(op, feeds, seed=seed, join=join), rtol=tolerance, atol=tolerance)


def test_sums_of_half_floats_are_taken_in_float32():
    dtype = ml_dtypes.bfloat16
    x, i, u = np.zeros(2, dtype), np.zeros(3000, np.int64), np.ones(3000, dtype)
    op = node("ScatterElements", ["x", "i", "u"], ["y"], reduction="add")
    proto, feeds = strided_model(op, {"x": x, "i": i, "u": u})
    assert float(agree(proto, feeds)(feeds)[0][0]) == 3008.0  # 3000 is no bfloat16


@SETTINGS
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 9), st.sampled_from(["linear", "circular"]), seeds)
def test_tensor_scatter(batch, room, length, mode, seed):
    rng = np.random.default_rng(seed)
    length = min(length, room)
    shape = (batch, 3, room, 5)
    feeds = {"x": values(rng, shape, "float32"), "u": values(rng, (batch, 3, length, 5), "float32")}
    if seed % 3:
        feeds["w"] = rng.integers(0, room - length + 1 if mode == "linear" else 3 * room, batch)
    op = node("TensorScatter", list(feeds), ["y"], mode=mode)
    agree(*strided_model(op, feeds, seed=seed))


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "float16"])
@pytest.mark.parametrize("k", [-2, 0, 3, 9])
def test_eye_like(dtype, k):
    op = node("EyeLike", ["x"], ["y"], k=k)
    agree(*strided_model(op, {"x": np.zeros((4, 7), dtype)}, symbolic=True))


_OUTSIDE = {
    "Gather": (node("Gather", ["x", "i"], ["y"], axis=1), {"x": (3, 4), "i": [0, 4]}),
    "negative": (node("Gather", ["x", "i"], ["y"], axis=0), {"x": (3, 4), "i": [-4]}),
    "empty axis": (node("Gather", ["x", "i"], ["y"], axis=0), {"x": (0, 4), "i": [0]}),
    "GatherElements": (node("GatherElements", ["x", "i"], ["y"], axis=0), {"x": (3, 4), "i": [[0, 1, 2, 3]]}),
    "too many": (node("GatherElements", ["x", "i"], ["y"], axis=0), {"x": (3, 4), "i": [[0, 1, 2, 1, 0]]}),
    "GatherND": (node("GatherND", ["x", "i"], ["y"]), {"x": (3, 4), "i": [[0, 4]]}),
    "ScatterElements": (
        node("ScatterElements", ["x", "i", "u"], ["y"], axis=1),
        {"x": (3, 4), "i": [[0, -5]], "u": (1, 2)},
    ),
    "ScatterElements add": (
        node("ScatterElements", ["x", "i", "u"], ["y"], axis=1, reduction="add"),
        {"x": (3, 4), "i": [[0, 7]], "u": (1, 2)},
    ),
    "too many rows": (
        node("ScatterElements", ["x", "i", "u"], ["y"], axis=1),
        {"x": (1, 4), "i": [[0], [1]], "u": (2, 1)},
    ),
    "ScatterND": (node("ScatterND", ["x", "i", "u"], ["y"]), {"x": (3, 4), "i": [[3]], "u": (1, 4)}),
    "TensorScatter": (node("TensorScatter", ["x", "u", "i"], ["y"]), {"x": (1, 4, 2), "u": (1, 3, 2), "i": [2]}),
    "TensorScatter below": (
        node("TensorScatter", ["x", "u", "i"], ["y"], mode="circular"),
        {"x": (1, 4, 2), "u": (1, 3, 2), "i": [-1]},
    ),
}


@pytest.mark.parametrize("name", _OUTSIDE)
def test_an_index_outside_its_axis_is_refused(name):
    op, made = _OUTSIDE[name]
    feeds = {n: np.ones(v, np.float32) if isinstance(v, tuple) else np.array(v, np.int64) for n, v in made.items()}
    declared = {n: (a.dtype, [f"{n}{i}" for i in range(a.ndim)]) for n, a in feeds.items()}
    if op.op_type in ("GatherND", "ScatterND"):
        declared["i"] = (np.int64, ["k", feeds["i"].shape[1]])
    compiled = Model(model([op], declared, ["y"]), Options(level=0, strict=True))
    with pytest.raises(ExecutionError, match="outside its axis") as caught:
        compiled({n: feeds[n] for n in feeds})
    assert caught.value.op == op.op_type


def test_data_is_not_copied_where_nobody_needs_it_afterwards():
    nodes = [node("Neg", ["x"], ["n"]), node("ScatterND", ["n", "i", "u"], ["y"])]
    declared = {"x": (np.float32, (64, 64)), "i": (np.int64, (2, 1)), "u": (np.float32, (2, 64))}
    nodes.append(node("Neg", ["y"], ["z"]))
    compiled = Model(model(nodes, declared, ["z"]), Options(level=0, strict=True))
    slots = {s.name: s for s in compiled.compiled.plan.slots}
    assert slots["y"].root == slots["n"].root
    feeds = {"x": np.ones((64, 64), np.float32), "i": np.array([[1], [63]]), "u": np.full((2, 64), 5, np.float32)}
    (z,) = compiled(feeds)
    assert set(np.flatnonzero(z[:, 0] == -5)) == {1, 63} and np.count_nonzero(z == 1) == 62 * 64
