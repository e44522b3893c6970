"""Pools, convolutions of few channels and resampling in Triton beside NumPy; no GPU is needed."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (190 MB; pip install 'accord[cuda]')")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_harness import NUMPY, compiled, function_of, memory

from accord.backends.cpu.pools import Pooling
from accord.backends.cpu.taptables import Positions, Taps
from accord.backends.cuda.taptables import table_kernel
from accord.backends.cuda.windows import (
    depthwise_kernel,
    pool_kernel,
    resample_kernel,
    window_geometry,
)
from accord.backends.epilogue import Epilogue, Extra
from accord.backends.images import Axis
from accord.errors import CompileError
from accord.expr.lang import call, cast, operand
from accord.expr.primitives import max_
from accord.ir.strides import Access
from accord.kernels.architectures import ARCHITECTURES, over_limits
from accord.kernels.interpreter import interpret_elsewhere

Array = np.ndarray[Any, Any]
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 4e-3, "bf16": 4e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("triton")


class Laid:
    """A tensor in memory: channels first or last, with something around it."""

    def __init__(self, values: Array, *, last: bool) -> None:
        order = [0, *range(2, values.ndim), 1] if last and values.ndim > 2 else list(range(values.ndim))
        self.shape, self.order = values.shape, order
        self.memory = np.full(values.size + 5, 7, values.dtype)
        self.view[...] = values

    @property
    def access(self) -> Access:
        steps = [0] * len(self.shape)
        size = 1
        for a in reversed(self.order):
            steps[a] = size
            size *= self.shape[a]
        return Access(tuple(steps), 3)

    @property
    def view(self) -> Array:
        steps = tuple(s * self.memory.itemsize for s in self.access.strides)
        return np.lib.stride_tricks.as_strided(self.memory[3:], self.shape, steps)


def drawn(rng, shape, dtype):
    values = rng.standard_normal(shape) * (9 if dtype[0] in "iu" else 1)
    return np.abs(values).astype(NUMPY[dtype]) if dtype[0] == "u" else values.astype(NUMPY[dtype])


def run(folder, kernel, dims, arrays):
    """Start a kernel in the interpreter; ``arrays`` by the names of pointers."""
    programs, constants = window_geometry(kernel, dims, max(a.size for a in arrays.values()))
    values = {n: memory(a) for n, a in arrays.items()} | dict(zip(kernel.names, dims, strict=True)) | constants
    function = function_of(folder, kernel.symbol, kernel.text())
    given_ = {n: values[n] for n in function.arg_names}
    interpret_elsewhere([(function, given_, (programs, 1, 1))], list(arrays.values()), kernel.symbol)


def windows(x, axes, neutral):
    """For each output position along the spatial axes its taps, the index of each in the plane, and what is inside."""
    for place in itertools.product(*(range(a.out) for a in axes)):
        taps, numbers = [], []
        for tap in itertools.product(*(range(a.kernel) for a in axes)):
            at = [o * a.stride - a.pad + t * a.dilation for o, t, a in zip(place, tap, axes, strict=True)]
            inside = all(0 <= p < a.size for p, a in zip(at, axes, strict=True))
            taps.append(x[(..., *at)] if inside else np.full(x.shape[:2], neutral, x.dtype))
            numbers.append((at, inside))
        yield place, taps, numbers


@st.composite
def axes_of(draw, rank):
    found = []
    for _ in range(rank):
        kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        size = draw(st.integers(1, 9))
        pad = draw(st.integers(0, kernel))
        behind = draw(st.integers(0, kernel))
        room = size + pad + behind - (kernel - 1) * dilation - 1
        found.append(Axis(max(0, room) // stride + 1 + draw(st.integers(0, 1)), size, kernel, stride, pad, dilation))
    return found


X = operand(0, "f32")
POOLS = {
    "max": ("max", -math.inf, lambda x, t: t, False),
    "average": ("add", 0.0, lambda x, t: t * operand(1, "f32"), True),
    "norm": ("add", 0.0, lambda x, t: call("sqrt", t), False),
}


@SETTINGS
@given(data=st.data(), name=st.sampled_from(sorted(POOLS)), seed=st.integers(0, 99), last=st.booleans())
def test_pools(folder, data, name, seed, last):
    rng = np.random.default_rng(seed)
    axes = data.draw(axes_of(data.draw(st.integers(1, 3))))
    dtype = data.draw(st.sampled_from(["f32", "f16", "bf16"]))
    images, channels = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 3, 16]))
    x = Laid(drawn(rng, (images, channels, *(a.size for a in axes)), dtype), last=last)
    y = Laid(np.zeros((images, channels, *(a.out for a in axes)), np.float32), last=data.draw(st.booleans()))
    extra = Laid(drawn(rng, y.shape, "f32"), last=False)
    join, neutral, after, counts = POOLS[name]
    before = X * X if name == "norm" else X
    pooling = Pooling(before, join, neutral, after(X, X), counts)
    epilogue = Epilogue(max_(cast(operand(0, dtype), "f32") + operand(1, "f32"), 0.0), (Extra("f32", extra.access),))
    counted = [(-a.pad, a.size + 1) if seed % 2 else (0, a.size) for a in axes]
    kernel, dims = pool_kernel(images, channels, axes, (dtype, x.access), y.access, pooling, epilogue, counted=counted)
    run(folder, kernel, dims, {"x": x.memory, "e0": extra.memory, "y": y.memory})
    expected = np.zeros(y.shape)
    for place, taps, numbers in windows(x.view.astype(np.float64), axes, neutral):
        value = (
            np.max(taps, 0) if name == "max" else np.sum(taps, 0) if name == "average" else np.sum(np.square(taps), 0)
        )
        if name == "average":
            inside = [all(low <= p < high for p, (low, high) in zip(at, counted, strict=True)) for at, _ in numbers]
            value = value / sum(inside) if any(inside) else np.full_like(value, np.nan)
        expected[(..., *place)] = np.sqrt(value) if name == "norm" else value
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.maximum(expected.astype(NUMPY[dtype]).astype(np.float64) + extra.view, 0)
    near = TOLERANCE[dtype]
    known = np.isfinite(expected)
    np.testing.assert_allclose(y.view[known], expected[known], rtol=near, atol=near)


@SETTINGS
@given(data=st.data(), seed=st.integers(0, 99), dtype=st.sampled_from(["f32", "i32", "u8", "f64", "i64"]))
def test_indices_of_maxima(folder, data, seed, dtype):
    rng = np.random.default_rng(seed)
    axes = data.draw(axes_of(data.draw(st.integers(1, 2))))
    major = data.draw(st.booleans())
    x = Laid(np.round(drawn(rng, (2, 3, *(a.size for a in axes)), dtype)), last=data.draw(st.booleans()))
    if dtype[0] == "f":
        x.view[rng.random(x.shape) < 0.1] = np.nan
        x.view[rng.random(x.shape) < 0.2] = -np.inf
    shape = (2, 3, *(a.out for a in axes))
    y, found = Laid(np.zeros(shape, NUMPY[dtype]), last=False), Laid(np.zeros(shape, np.int64), last=True)
    low = -math.inf if dtype[0] == "f" else 0 if dtype == "u8" else int(np.iinfo(NUMPY[dtype]).min)
    pooling = Pooling(operand(0, dtype), "max", low, operand(0, dtype), False)
    kernel, dims = pool_kernel(
        2, 3, axes, (dtype, x.access), y.access, pooling, Epilogue(operand(0, dtype)), indices=found.access,
        column_major=major,
    )  # fmt: skip
    run(folder, kernel, dims, {"x": x.memory, "y": y.memory, "i": found.memory})
    plane = math.prod(a.size for a in axes)
    for place, taps, numbers in windows(x.view, axes, low):
        for n, c in itertools.product(range(2), range(3)):
            inside = [(t[n, c], at) for t, (at, ok) in zip(taps, numbers, strict=True) if ok]
            nans = [k for k, (v, _) in enumerate(inside) if np.isnan(v)]
            best = nans[0] if nans else max(range(len(inside)), key=lambda k: (inside[k][0], -k), default=None)
            index = -1
            if best is not None:
                index = 0
                pairs = list(zip(inside[best][1], axes, strict=True))
                for p, a in reversed(pairs) if major else pairs:
                    index = index * a.size + p
                np.testing.assert_equal(y.view[(n, c, *place)], inside[best][0])
            assert found.view[(n, c, *place)] == index + (n * 3 + c) * plane


@SETTINGS
@given(
    data=st.data(), seed=st.integers(0, 99), dtype=st.sampled_from(["f32", "f16", "bf16", "f64"]), last=st.booleans()
)
def test_convolutions_of_few_channels(folder, data, seed, dtype, last):
    rng = np.random.default_rng(seed)
    axes = data.draw(axes_of(data.draw(st.integers(1, 3))))
    groups = data.draw(st.sampled_from([1, 3, 8]))
    inputs, outputs = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (3, 2)]))
    x = Laid(drawn(rng, (2, groups * inputs, *(a.size for a in axes)), dtype), last=last)
    w = Laid(drawn(rng, (groups * outputs, inputs, *(a.kernel for a in axes)), dtype), last=data.draw(st.booleans()))
    b = Laid(drawn(rng, (groups * outputs,), dtype), last=False) if data.draw(st.booleans()) else None
    acc = "f64" if dtype == "f64" else "f32"
    y = Laid(np.zeros((2, groups * outputs, *(a.out for a in axes)), NUMPY[acc]), last=last)
    kernel, dims = depthwise_kernel(
        2, groups * outputs, axes, (inputs, outputs), (dtype, x.access), (dtype, w.access),
        None if b is None else (dtype, b.access), y.access, Epilogue(max_(cast(operand(0, dtype), acc), 0.0)),
    )  # fmt: skip
    run(folder, kernel, dims, {"x": x.memory, "w": w.memory, "y": y.memory} | ({} if b is None else {"b": b.memory}))
    expected = np.zeros(y.shape)
    flat = w.view.astype(np.float64).reshape(groups, outputs, inputs, -1)
    for place, taps, _ in windows(x.view.astype(np.float64), axes, 0.0):
        seen = np.stack(taps, -1).reshape(2, groups, inputs, -1)
        expected[(..., *place)] = np.einsum("ngik,goik->ngo", seen, flat).reshape(2, -1)
    expected += 0.0 if b is None else b.view.astype(np.float64).reshape(-1, *[1] * len(axes))
    near = 4 * TOLERANCE[dtype]
    np.testing.assert_allclose(y.view.astype(np.float64), np.maximum(expected, 0), rtol=near, atol=near)


def table(folder, taps, positions, dtype, source, target):
    kernel, dims = table_kernel(taps, positions, dtype, source, target)
    indices, weights = np.zeros(dims[0] * dims[1], np.int64), np.zeros(dims[0] * dims[1], NUMPY[dtype])
    function = function_of(folder, kernel.symbol, kernel.text())
    names = [n for n in function.arg_names if n not in ("indices", "weights", "BLOCK")]
    values = dict(zip(names, dims, strict=True)) | {
        "indices": memory(indices),
        "weights": memory(weights),
        "BLOCK": 256,
    }
    given_ = {n: values[n] for n in function.arg_names}
    interpret_elsewhere([(function, given_, (-(-target // 256), 1, 1))], [indices, weights], kernel.symbol)
    return indices, weights, dims[1]


def position(mode, x, source, target):
    """Where an element lies in the source, as ONNX says."""
    scale = Fraction(target, source)
    return {
        "asymmetric": x / scale,
        "half_pixel": (x + Fraction(1, 2)) / scale - Fraction(1, 2),
        "align_corners": Fraction(x * (source - 1), target - 1) if target > 1 else Fraction(0),
    }[mode]


@SETTINGS
@given(
    data=st.data(), seed=st.integers(0, 99), mode=st.sampled_from(["asymmetric", "half_pixel", "align_corners"]),
    kind=st.sampled_from(["nearest", "linear"]), dtype=st.sampled_from(["f32", "f16", "f64"]),
)  # fmt: skip
def test_resize(folder, data, seed, mode, kind, dtype):
    rng = np.random.default_rng(seed)
    sources, targets = ([data.draw(st.integers(1, 9)) for _ in range(2)] for _ in range(2))
    acc = "f32" if dtype == "f16" else dtype
    taps, positions = Taps(kind, "round_prefer_floor"), Positions(mode)
    x = Laid(drawn(rng, (2, 3, *sources), dtype), last=data.draw(st.booleans()))
    y = Laid(np.zeros((2, 3, *targets), NUMPY[dtype]), last=data.draw(st.booleans()))
    # nearest elements are copied, and keep their type
    acc = acc if taps.weighted else dtype
    epilogue, after = Epilogue(operand(0, dtype) * 2.0), cast(operand(0, acc), dtype)
    kernel, dims = resample_kernel(
        (2, 3, *targets), (2, 3), (taps.count,) * 2, (dtype, x.access), y.access, taps, acc, after, epilogue
    )
    arrays = {"x": x.memory, "y": y.memory}
    parts = []
    for a in (0, 1):
        indices, weights, _ = table(folder, taps, positions, acc, sources[a], targets[a])
        arrays |= {f"t{a + 2}": indices} | ({f"h{a + 2}": weights} if taps.weighted else {})
        matrix = np.zeros((targets[a], sources[a]))
        for o in range(targets[a]):
            at = position(mode, o, sources[a], targets[a])
            if kind == "nearest":
                matrix[o, min(max(math.ceil(at - Fraction(1, 2)), 0), sources[a] - 1)] = 1
            else:
                low = math.floor(at)
                for p, share in ((low, 1 - (at - low)), (low + 1, at - low)):
                    matrix[o, min(max(p, 0), sources[a] - 1)] += float(share)
        parts.append(matrix)
    run(folder, kernel, dims, arrays)
    expected = 2 * np.einsum("ncij,oi,pj->ncop", x.view.astype(np.float64), *parts)
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(y.view.astype(np.float64), expected, rtol=near, atol=near)


def test_positions_outside_are_filled(folder):
    taps, positions = Taps("linear", outside=True), Positions("tf_crop_and_resize", None, Fraction(0), Fraction(2))
    indices, weights, count = table(folder, taps, positions, "f32", 4, 5)
    x, y = Laid(np.arange(4, dtype=np.float32).reshape(1, 1, 4), last=False), np.zeros(5, np.float32)
    kernel, dims = resample_kernel(
        (1, 1, 5), (2,), (count,), ("f32", x.access), Access((5, 5, 1), 0), taps, "f32", X, Epilogue(X), 9.0
    )
    run(folder, kernel, dims, {"x": x.memory, "y": y, "t2": indices, "h2": weights})
    np.testing.assert_allclose(y, [0, 1.5, 3, 9, 9])  # 0, 1.5, 3, 4.5, 6


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("last", [False, True])
def test_a_convolution_compiles_without_spills(folder, architecture, last):
    axes = [Axis(56, 56, 3, 1, 1, 1)] * 2
    channels = 96
    steps = (channels * 3136, 1, channels * 56, channels) if last else (channels * 3136, 3136, 56, 1)
    image, bias = ("f16", Access(steps, 0)), ("f16", Access((1,), 0))
    weights = ("f16", Access((1, 0, channels * 3, channels) if last else (9, 0, 3, 1), 0))
    out = Epilogue(max_(operand(0, "f16"), 0.0))
    kernel, dims = depthwise_kernel(32, channels, axes, (1, 1), image, weights, bias, image[1], out)
    _, constants = window_geometry(kernel, dims, 32 * channels * 3136)
    values = dict.fromkeys(kernel.memory, "float16") | dict(zip(kernel.names, dims, strict=True)) | constants
    made = compiled(folder, kernel.symbol, kernel.text(), values, architecture, num_warps=4)
    assert over_limits(ARCHITECTURES[f"sm_{architecture}"], made.resources, made.shared, made.threads)[0] == []
    assert made.resources.stack == 0


def test_convolutions_are_of_floats():
    with pytest.raises(CompileError, match="not of i32"):
        access = Access((1, 1, 1), 0)
        depthwise_kernel(
            1, 1, [Axis(1, 1, 1, 1, 0, 1)], (1, 1), ("i32", access), ("i32", access), None, access, Epilogue(X)
        )
