"""Convolutions and pools of random geometry: against the specification's equations, and against ONNX Runtime.

ONNX Runtime is asked only where it follows the specification. It refuses dilated convolutions with automatic padding,
ignores dilations and ``ceil_mode`` in automatic padding of pools, counts windows longer than the input by rounding
towards zero, and limits ``output_padding`` by the stride alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference_harness import assert_agrees, assert_close, normal, run

_SETTINGS = settings(max_examples=40, deadline=None)
_seeds = st.integers(0, 2**32 - 1)
_Axes = list[tuple[int, int, int]]


@st.composite
def _windows(draw: st.DrawFn, peer: bool = False, pooling: bool = False) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Spatial lengths, and kernel_shape, strides, dilations, padding.

    Args:
        peer: Only what ONNX Runtime treats as specified.
        pooling: Padding below the kernel's length, so that every window holds an element.
    """
    rank = draw(st.integers(1, 3 if peer else 2))

    def axes(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel = axes(1, 3)
    mode = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    same = mode.startswith("SAME")
    strides = [draw(st.integers(1, k if same and peer else 3)) for k in kernel]
    dilations = [1] * rank if same and peer else axes(1, 2)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "auto_pad": mode, "dilations": dilations}
    if mode == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, k - 1 if pooling else 2)) for k in kernel * 2]
    return tuple(axes(5 if peer else 1, 7)), attributes


# --- the specification's equations ---------------------------------------------------------------------------


def _geometry(
    spatial: tuple[int, ...], attributes: dict[str, Any], ceil: bool = False
) -> tuple[list[int], list[int], list[int]]:
    """Output lengths, and padding before and behind, of Conv and the pools."""
    rank, mode = len(spatial), attributes["auto_pad"]
    pads = attributes.get("pads", [0] * (2 * rank))
    lengths, before, behind = [], [], []
    for axis, n in enumerate(spatial):
        s = attributes["strides"][axis]
        extent = attributes["dilations"][axis] * (attributes["kernel_shape"][axis] - 1) + 1
        left, right = pads[axis], pads[axis + rank]
        if mode.startswith("SAME"):
            count = math.ceil(Fraction(n, s))
            total = max((count - 1) * s + extent - n, 0)
            left = total // 2 if mode == "SAME_UPPER" else total - total // 2
            right = total - left
        elif ceil and mode == "NOTSET":
            count = math.ceil(Fraction(n + left + right - extent, s) + 1)
            while count > 0 and (count - 1) * s >= n + left:
                count -= 1
        else:
            count = math.floor(Fraction(n + left + right - extent, s) + 1)
        lengths.append(count)
        before.append(left)
        behind.append(right)
    return lengths, before, behind


def _taps(place: tuple[int, ...], before: list[int], attributes: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Kernel positions and the input positions below them; the latter may lie in the padding."""
    for tap in itertools.product(*map(range, attributes["kernel_shape"])):
        yield (
            tap,
            tuple(
                p * s - b + t * d
                for p, s, b, t, d in zip(
                    place, attributes["strides"], before, tap, attributes["dilations"], strict=True
                )
            ),
        )


def _inside(at: tuple[int, ...], spatial: tuple[int, ...]) -> bool:
    return all(0 <= a < n for a, n in zip(at, spatial, strict=True))


def _convolution(x: Any, w: Any, groups: int, attributes: dict[str, Any]) -> Any:
    spatial = x.shape[2:]
    lengths, before, _ = _geometry(spatial, attributes)
    inner, outer = w.shape[1], w.shape[0] // groups
    y = np.zeros((len(x), len(w), *lengths))
    for place in np.ndindex(*lengths):
        for tap, at in _taps(place, before, attributes):
            if _inside(at, spatial):
                column = x[(slice(None), slice(None), *at)].astype(np.float64)
                for m in range(len(w)):
                    g = m // outer
                    y[(slice(None), m, *place)] += column[:, g * inner : (g + 1) * inner] @ w[(m, slice(None), *tap)]
    return y


@_SETTINGS
@given(_windows(), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), _seeds)
def test_conv_by_its_equation(
    window: tuple[tuple[int, ...], dict[str, Any]], groups: int, inner: int, outer: int, seed: int
) -> None:
    spatial, attributes = window
    assume(min(_geometry(spatial, attributes)[0]) > 0)
    x, w = normal(seed, (2, groups * inner, *spatial), (groups * outer, inner, *attributes["kernel_shape"]))
    assert_close(run("Conv", [x, w], group=groups, **attributes), _convolution(x, w, groups, attributes), 1e-5, 1e-5)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@_SETTINGS
@given(_windows(pooling=True), st.booleans(), st.booleans(), _seeds)
def test_pools_by_their_equations(
    op: str, window: tuple[tuple[int, ...], dict[str, Any]], ceil: bool, include: bool, seed: int
) -> None:
    spatial, attributes = window
    lengths, before, behind = _geometry(spatial, attributes, ceil)
    assume(min(lengths) > 0)
    (x,) = normal(seed, (1, 2, *spatial))
    padded = [(-b, n + a) for b, n, a in zip(before, spatial, behind, strict=True)]
    want = np.zeros((1, 2, *lengths))
    for place in np.ndindex(*lengths):
        at_all = [at for _, at in _taps(place, before, attributes)]
        values = np.array([x[(0, slice(None), *at)] for at in at_all if _inside(at, spatial)], dtype=np.float64)
        assume(len(values) > 0)  # what an empty window gives is not specified
        if op == "MaxPool":
            result = values.max(axis=0)
        elif op == "LpPool":
            result = np.sqrt(np.square(values).sum(axis=0))
        else:
            declared = [all(low <= a < high for a, (low, high) in zip(at, padded, strict=True)) for at in at_all]
            result = values.sum(axis=0) / (sum(declared) if include else len(values))
        want[(0, slice(None), *place)] = result
    options = {"count_include_pad": int(include)} if op == "AveragePool" else {}
    got = run(op, [x], opset=22, ceil_mode=int(ceil), **options, **attributes)
    assert_close(got, want, 1e-5, 1e-5)


@_SETTINGS
@given(_windows(), st.integers(1, 2), st.integers(1, 2), st.data(), _seeds)
def test_conv_transpose_by_its_equations(
    window: tuple[tuple[int, ...], dict[str, Any]], groups: int, outer: int, data: st.DataObject, seed: int
) -> None:
    spatial, attributes = window
    rank, mode = len(spatial), attributes["auto_pad"]
    strides, dilations, kernel = (attributes[k] for k in ("strides", "dilations", "kernel_shape"))
    extra = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    # Without padding, and without what output_padding appends.
    bare = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(spatial, strides, kernel, dilations, strict=True)]
    full = [f + e for f, e in zip(bare, extra, strict=True)]
    pads = attributes.get("pads", [0] * (2 * rank))
    shape = [f + data.draw(st.integers(-2, 1)) for f in full] if data.draw(st.booleans()) else None
    if shape is not None:
        lengths = shape
        attributes = {k: v for k, v in attributes.items() if k != "pads"} | {"output_shape": shape}
    elif mode.startswith("SAME"):
        lengths = [n * s for n, s in zip(spatial, strides, strict=True)]
    else:
        lengths = [f - pads[i] - pads[i + rank] for i, f in enumerate(full)]
    assume(min(lengths) > 0)
    before = pads[:rank]
    if shape is not None or mode.startswith("SAME"):
        totals = [max(f - n, 0) for f, n in zip(full, lengths, strict=True)]
        before = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals]
    x, w = normal(seed, (2, groups * 2, *spatial), (groups * 2, outer, *kernel))
    want = np.zeros((2, groups * outer, *lengths))
    for place in np.ndindex(*spatial):
        for tap, at in _taps(place, before, attributes):
            if _inside(at, tuple(lengths)):
                for g in range(groups):
                    pixel = x[(slice(None), slice(2 * g, 2 * g + 2), *place)].astype(np.float64)
                    want[(slice(None), slice(g * outer, (g + 1) * outer), *at)] += (
                        pixel @ w[(slice(2 * g, 2 * g + 2), slice(None), *tap)]
                    )
    got = run("ConvTranspose", [x, w], group=groups, output_padding=extra, **attributes)
    assert_close(got, want, 1e-5, 1e-5)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool", "Conv"])
def test_a_window_longer_than_the_input_is_an_error_or_leaves_nothing(op: str) -> None:
    from accord.errors import ExecutionError

    x = np.ones((1, 1, 2), np.float32)
    inputs = [x, np.ones((1, 1, 5), np.float32)] if op == "Conv" else [x]
    with pytest.raises(ExecutionError, match="does not fit"):
        run(op, inputs, kernel_shape=[5])


# --- ONNX Runtime --------------------------------------------------------------------------------------------


@_SETTINGS
@given(_windows(peer=True), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.booleans(), _seeds)
def test_conv(
    window: tuple[tuple[int, ...], dict[str, Any]], groups: int, inner: int, outer: int, biased: bool, seed: int
) -> None:
    spatial, attributes = window
    channels = groups * outer
    x, w, b = normal(seed, (2, groups * inner, *spatial), (channels, inner, *attributes["kernel_shape"]), (channels,))
    assert_agrees("Conv", [x, w, b if biased else None], group=groups, **attributes)


@_SETTINGS
@given(_windows(peer=True), st.integers(1, 2), st.integers(1, 2), st.booleans(), st.integers(0, 2), _seeds)
def test_conv_transpose(
    window: tuple[tuple[int, ...], dict[str, Any]], groups: int, outer: int, biased: bool, extra: int, seed: int
) -> None:
    spatial, attributes = window
    assume(not attributes["auto_pad"].startswith("SAME"))
    padding = [min(extra, s - 1) for s in attributes["strides"]]
    x, w, b = normal(
        seed, (2, groups * 2, *spatial), (groups * 2, outer, *attributes["kernel_shape"]), (groups * outer,)
    )
    assert_agrees("ConvTranspose", [x, w, b if biased else None], group=groups, output_padding=padding, **attributes)


@_SETTINGS
@given(
    _windows(peer=True, pooling=True),
    st.sampled_from(["MaxPool", "AveragePool", "LpPool"]),
    st.booleans(),
    st.integers(0, 1),
    _seeds,
)
def test_pooling(window: tuple[tuple[int, ...], dict[str, Any]], op: str, ceil: bool, option: int, seed: int) -> None:
    spatial, attributes = window
    attributes = {**attributes, "ceil_mode": int(ceil and attributes["auto_pad"] == "NOTSET")}
    extra = {"MaxPool": "storage_order", "AveragePool": "count_include_pad", "LpPool": "p"}[op]
    attributes[extra] = option + (op == "LpPool")
    (x,) = normal(seed, (2, 2, *spatial))
    assert_agrees(op, [x], 2 if op == "MaxPool" else 1, **attributes)


@_SETTINGS
@given(_windows(peer=True), st.integers(1, 2), st.sampled_from([np.uint8, np.int8]), st.booleans(), _seeds)
def test_quantised_convolutions(
    window: tuple[tuple[int, ...], dict[str, Any]], groups: int, dtype: Any, by_channel: bool, seed: int
) -> None:
    spatial, attributes = window
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 100, (1, groups * 2, *spatial)).astype(dtype)
    w = rng.integers(0, 100, (groups * 2, 2, *attributes["kernel_shape"])).astype(dtype)
    x_zero, y_zero = (np.array(v, dtype) for v in rng.integers(0, 9, 2))
    shape = (groups * 2,) if by_channel else ()
    w_scale = np.asarray(rng.uniform(0.01, 0.1, shape), np.float32)
    w_zero = np.full(shape, 3, dtype)
    bias = rng.integers(-50, 50, groups * 2).astype(np.int32)
    x_scale, y_scale = np.array(0.1, np.float32), np.array(0.7, np.float32)
    inputs = [x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias]
    # Where the value lies in the middle of two, the last bit of the factor decides.
    assert_agrees("QLinearConv", inputs, opset=10, steps=1, group=groups, **attributes)
    if dtype == np.uint8:
        assert_agrees("ConvInteger", [x, w, x_zero, np.array(3, dtype)], opset=10, group=groups, **attributes)


def test_max_unpool_inverts_max_pool() -> None:
    (x,) = normal(0, (2, 2, 4, 6))
    options: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, places = run("MaxPool", [x], 2, **options)
    assert_agrees("MaxUnpool", [y, places], opset=11, **options)
    image = run("MaxUnpool", [y, places], opset=11, **options)
    assert_close(image, np.where(np.isin(x, y), x, 0))
