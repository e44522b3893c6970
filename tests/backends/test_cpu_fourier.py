"""Fourier transforms, windows and mel filters in machine code against NumPy in float64 and the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import run_strided

from accord.backends.butterflies import factors
from accord.errors import AccordError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
#: Greatest error, relative to the greatest element of a transform.
TOLERANCE = {"float32": 1e-6, "float64": 2e-15, "float16": 1e-3}
LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 20, 25, 30, 32, 37, 40, 48, 64, 74, 96, 100, 101, 128, 202, 256]


def signal(shape, dtype, rng):
    return rng.standard_normal(shape).astype(dtype)


def as_complex(x):
    x = x.astype(np.float64)
    return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)


def transformed(x, axis, length, *, inverse, onesided):
    """What DFT gives, in float64."""
    z = as_complex(x)
    if inverse and onesided:
        return np.fft.irfft(z, length, axis)[..., np.newaxis]
    function = np.fft.ifft if inverse else np.fft.fft
    z = np.fft.rfft(z.real, length, axis) if onesided else function(z, length, axis)
    return np.stack([z.real, z.imag], -1)


def agree(found, wanted, dtype):
    assert found.shape == wanted.shape and found.dtype == dtype
    scale = np.abs(wanted).max(initial=1e-3)
    np.testing.assert_allclose(found.astype(np.float64), wanted, atol=TOLERANCE[dtype] * scale, rtol=0)


@st.composite
def transforms(draw):
    rank = draw(st.integers(1, 3))
    axis = draw(st.integers(0, rank - 1))
    shape = [draw(st.sampled_from([1, 2, 5, 16, 19, 33])) for _ in range(rank)]
    shape[axis] = draw(st.sampled_from(LENGTHS))
    inverse, onesided = draw(st.booleans()), draw(st.booleans())
    parts = draw(st.integers(1, 2))
    if onesided:
        parts = 2 if inverse else 1
    length = draw(st.sampled_from([None, None, *LENGTHS]))
    if inverse and onesided and length is None and shape[axis] == 1:
        length = 1
    return {
        "shape": (*shape, parts),
        "axis": axis,
        "inverse": inverse,
        "onesided": onesided,
        "length": length,
        "dtype": draw(st.sampled_from(["float32", "float32", "float64", "float16"])),
        "symbolic": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32)),
    }


def dft_model(case: dict[str, Any], *, constant: bool = True) -> tuple[Any, dict[str, np.ndarray]]:
    shape, default = case["shape"], case["axis"] == len(case["shape"]) - 2
    names, sizes = ["x", "", ""], {}
    if case["length"] is not None:
        names[1], sizes["n"] = "n", np.array(case["length"], np.int64)
    if not default or case["seed"] % 2:
        names[2], sizes["a"] = "a", np.array(case["axis"], np.int64)
    while not names[-1]:
        names.pop()
    declared = [*(f"d{i}" for i in range(len(shape) - 1)), shape[-1]] if case["symbolic"] else shape
    inputs: dict[str, Any] = {"x": (case["dtype"], declared)}
    if not constant:
        inputs |= {n: (v.dtype, v.shape) for n, v in sizes.items()}
    attributes = {"inverse": int(case["inverse"]), "onesided": int(case["onesided"])}
    proto = model([node("DFT", names, ["y"], **attributes)], inputs, ["y"], sizes if constant else {}, opset=20)
    feeds = {"x": signal(shape, case["dtype"], np.random.default_rng(case["seed"]))}
    return proto, feeds if constant else feeds | sizes


@SETTINGS
@given(transforms(), st.booleans())
def test_dft(case, constant):
    proto, feeds = dft_model(case, constant=constant)
    how = {k: case[k] for k in ("inverse", "onesided")}
    wanted = transformed(feeds["x"], case["axis"], case["length"], **how)
    agree(Model(proto, Options(level=0, strict=True))(feeds)[0], wanted, case["dtype"])


@SETTINGS
@given(transforms())
def test_dft_of_any_strides(case):
    proto, feeds = dft_model(case)
    how = {k: case[k] for k in ("inverse", "onesided")}
    wanted = transformed(feeds["x"], case["axis"], case["length"], **how)
    agree(run_strided(proto, feeds, case["seed"])[0], wanted, case["dtype"])


@pytest.mark.parametrize("length", [1021, 2000, 2042, 4096, 6007, 10000, 16384])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("symbolic", [False, True])
def test_long_transforms(length, parts, symbolic):
    x = signal((2, length, parts), "float32", np.random.default_rng(length))
    declared = ["b", "n", parts] if symbolic else x.shape
    proto = model(
        [node("DFT", ["x", "", "a"], ["y"])],
        {"x": (np.float32, declared)},
        ["y"],
        {"a": np.array(1, np.int64)},
        opset=20,
    )
    wanted = transformed(x, 1, None, inverse=False, onesided=False)
    agree(Model(proto, Options(level=0, strict=True))(x)[0], wanted, "float32")


@SETTINGS
@given(
    st.sampled_from([(1, 70), (2, 300), (3, 129)]),
    st.sampled_from([4, 9, 16, 20, 37, 64]),
    st.integers(1, 20),
    st.sampled_from(["window", "length", "both", "neither"]),
    st.booleans(),
    st.integers(1, 2),
    st.sampled_from(["float32", "float64", "float16"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_stft(shape, length, step, given_by, onesided, parts, dtype, constant, symbolic, seed):
    rng = np.random.default_rng(seed)
    parts = 1 if onesided else parts
    x = signal((*shape, parts), dtype, rng)
    if given_by == "neither":
        length = shape[1]
    w = signal((length,), dtype, rng) if given_by in ("window", "both") else np.ones(length, dtype)
    names = ["x", "s", "w" if given_by in ("window", "both") else "", "n" if given_by in ("length", "both") else ""]
    while not names[-1]:
        names.pop()
    sizes = {"s": np.array(step, np.int64), "n": np.array(length, np.int64)}
    sizes = {n: v for n, v in sizes.items() if n in names}
    inputs: dict[str, Any] = {"x": (dtype, ["b", "t", parts] if symbolic else x.shape)}
    if "w" in names:
        inputs["w"] = (dtype, ["l"] if symbolic else w.shape)
    feeds = {"x": x} | ({"w": w} if "w" in names else {})
    if not constant:
        inputs |= {n: (v.dtype, v.shape) for n, v in sizes.items()}
        feeds |= sizes
    proto = model(
        [node("STFT", names, ["y"], onesided=int(onesided))], inputs, ["y"], sizes if constant else {}, opset=17
    )
    z = as_complex(x)
    starts = np.arange((shape[1] - length) // step + 1) * step
    frames = z[:, starts[:, None] + np.arange(length)] * w.astype(np.float64)
    y = np.fft.rfft(frames.real) if onesided else np.fft.fft(frames)
    wanted = np.stack([y.real, y.imag], -1)
    agree(Model(proto, Options(level=0, strict=True))(feeds)[0], wanted, dtype)
    if constant:
        agree(run_strided(proto, feeds, seed)[0], wanted, dtype)


def test_silence_beside_noise_stays_silence():
    x = np.zeros((1, 1600, 1), np.float32)
    x[0, 800:, 0] = 1000 * np.random.default_rng(0).standard_normal(800)
    sizes = {"s": np.array(80, np.int64), "n": np.array(400, np.int64)}
    proto = model([node("STFT", ["x", "s", "", "n"], ["y"])], {"x": (np.float32, x.shape)}, ["y"], sizes, opset=17)
    y = Model(proto, Options(level=0, strict=True))(x)[0]
    assert not y[0, :6].any() and y[0, 6:].any()


@given(st.integers(1, 5000))
def test_factors(n):
    found = factors(n)
    assert math.prod(found) == n
    assert all(f in (8, 4) or all(f % d for d in range(2, f)) for f in found)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 16, 400, 1025])
@pytest.mark.parametrize("constant", [False, True])
def test_windows(op, size, constant):
    for attributes in ({}, {"periodic": 0}, {"output_datatype": 11}, {"output_datatype": 10, "periodic": 0}):
        n = np.array(size, np.int32)
        proto = model(
            [node(op, ["n"], ["y"], **attributes)],
            {} if constant else {"n": (np.int32, [])},
            ["y"],
            {"n": n} if constant else {},
        )
        feeds = {} if constant else {"n": n}
        found = Model(proto, Options(level=0, strict=True))(feeds)[0]
        wanted = Model(proto, Options(level=0, reference=True))(feeds)[0]
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        eps = np.finfo(found.dtype).eps
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), atol=4 * eps, rtol=0)


@pytest.mark.parametrize(
    ("bins", "length", "rate", "low", "high"),
    [
        (80, 400, 16000, 0.0, 8000.0),
        (8, 16, 8192, 0.0, 4096.0),
        (40, 512, 44100, 20.0, 20000.0),
        (3, 7, 100, 1.0, 90.0),
    ],
)
@pytest.mark.parametrize("constant", ["", "nl", "nlrab"])
def test_mel_filters(bins, length, rate, low, high, constant):
    numbers = {
        "n": np.array(bins, np.int64),
        "l": np.array(length, np.int64),
        "r": np.array(rate, np.int64),
        "a": np.array(low, np.float32),
        "b": np.array(high, np.float32),
    }
    constants = {n: v for n, v in numbers.items() if n in constant}
    feeds = {n: v for n, v in numbers.items() if n not in constant}
    proto = model(
        [node("MelWeightMatrix", list(numbers), ["y"])], {n: (v.dtype, []) for n, v in feeds.items()}, ["y"], constants
    )
    found = Model(proto, Options(level=0, strict=True))(feeds)[0]
    wanted = Model(proto, Options(level=0, reference=True))(feeds)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_sizes_that_come_with_the_inputs_may_change():
    proto = model(
        [node("DFT", ["x", "n", "a"], ["y"])],
        {"x": (np.float32, ["b", "t", 1]), "n": (np.int64, []), "a": (np.int64, [])},
        ["y"],
        opset=20,
    )
    fast = Model(proto, Options(level=0, strict=True))
    for shape, length, axis in [((3, 8, 1), 8, 1), ((3, 8, 1), 5, 1), ((3, 8, 1), 5, 0), ((4, 7, 1), 5, 0)]:
        x = signal(shape, "float32", np.random.default_rng(length))
        y = fast({"x": x, "n": np.array(length), "a": np.array(axis)})[0]
        agree(y, transformed(x, axis, length, inverse=False, onesided=False), "float32")


@pytest.mark.parametrize(("shape", "length"), [((2, 8, 1), 0), ((2, 8, 1), -3), ((2, 0, 1), None)])
def test_no_transform_of_length_zero(shape, length):
    names = ["x", "n"] if length is not None else ["x"]
    inputs: dict[str, Any] = {"x": (np.float32, ["b", "t", 1])}
    feeds = {"x": np.zeros(shape, np.float32)}
    if length is not None:
        inputs["n"], feeds["n"] = (np.int64, []), np.array(length)
    proto = model([node("DFT", names, ["y"])], inputs, ["y"], opset=20)
    with pytest.raises(AccordError):
        Model(proto, Options(level=0, strict=True))(feeds)


@pytest.mark.parametrize("parts", [1, 2])
def test_bfloat16(parts):
    import ml_dtypes

    x = signal((20, 24, parts), "float32", np.random.default_rng(parts)).astype(ml_dtypes.bfloat16)
    proto = model([node("DFT", ["x"], ["y"])], {"x": (x.dtype, x.shape)}, ["y"], opset=20)
    found = Model(proto, Options(level=0, strict=True))(x)[0]
    wanted = transformed(x, 1, None, inverse=False, onesided=False)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=np.abs(wanted).max() / 256)
