"""Padding, slices, reductions, sampling and quantisation against ONNX Runtime, where it follows the specification.

Left out are the places where it does not: scales with a region, and regions that keep the length, of Resize;
align_corners with fractional lengths; backward slices whose end is the highest integer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference_harness import assert_agrees, normal

_SETTINGS = settings(max_examples=40, deadline=None)
_seeds = st.integers(0, 2**32 - 1)


@_SETTINGS
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data(), _seeds)
def test_pad(shape: list[int], data: st.DataObject, seed: int) -> None:
    mode = data.draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
    reflects = mode == "reflect"
    before = [data.draw(st.integers(0 if reflects else max(-1, 1 - n), n - 1 if reflects else 3)) for n in shape]
    # ONNX Runtime needs something to be left of every axis.
    after = [
        data.draw(st.integers(0 if reflects else max(-1, 1 - n - min(b, 0)), n - 1 if reflects else 3))
        for n, b in zip(shape, before, strict=True)
    ]
    pads = before + after
    (x,) = normal(seed, tuple(shape))
    fill = np.array(1.5, np.float32) if data.draw(st.booleans()) else None
    assert_agrees("Pad", [x, np.array(pads), fill], mode=mode)
    axes = data.draw(st.permutations(range(len(shape))))[: data.draw(st.integers(1, len(shape)))]
    chosen = [before[axis] for axis in axes] + [after[axis] for axis in axes]
    named = np.array([axis - len(shape) * data.draw(st.integers(0, 1)) for axis in axes])
    assert_agrees("Pad", [x, np.array(chosen), None, named], mode=mode)


@_SETTINGS
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data(), _seeds)
def test_slice(shape: list[int], data: st.DataObject, seed: int) -> None:
    (x,) = normal(seed, tuple(shape))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    bounds = st.one_of(st.integers(-9, 9), st.just(-(2**63)))
    starts, ends = ([data.draw(bounds) for _ in axes] for _ in range(2))
    steps = [data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3])) for _ in axes]
    named = [axis - len(shape) * data.draw(st.integers(0, 1)) for axis in axes]
    assert_agrees("Slice", [x, *map(np.array, (starts, ends, named, steps))])


@_SETTINGS
@given(
    st.sampled_from(
        ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"],
    ),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from([np.float32, np.float64, np.int32]),
    st.integers(0, 1),
    st.integers(0, 1),
    st.data(),
    _seeds,
)
def test_reduce(name: str, shape: list[int], dtype: Any, keep: int, noop: int, data: st.DataObject, seed: int) -> None:
    assume(not (name.startswith("Log") and dtype is np.int32))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    x = np.random.default_rng(seed).uniform(0.5, 4, shape).astype(dtype)
    chosen = np.array(axes, np.int64) if axes or data.draw(st.booleans()) else None
    opset = 13 if name == "Sum" else 18
    assert_agrees(f"Reduce{name}", [x, chosen], opset=opset, keepdims=keep, noop_with_empty_axes=noop)


@_SETTINGS
@given(
    st.sampled_from(["nearest", "linear", "cubic"]),
    st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]),
    st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.sampled_from([0.5, 2.0, 1.5, 3.0]), st.sampled_from([0.5, 2.0, 0.75, 1.0])),
    st.booleans(),
    st.booleans(),
    _seeds,
)
def test_resize(
    mode: str,
    transformation: str,
    rounding: str,
    spatial: tuple[int, int],
    sizes: tuple[int, int],
    scales: tuple[float, float],
    by_size: bool,
    antialias: bool,
    seed: int,
) -> None:
    (x,) = normal(seed, (1, 2, *spatial))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": transformation}
    if mode == "nearest":
        # ONNX Runtime takes positions in float32: only scales that are exact there give comparable ties.
        assume(not by_size)
        attributes["nearest_mode"] = rounding
    if mode == "cubic":
        attributes["exclude_outside"] = int(antialias)
    if antialias and mode != "nearest" and transformation == "half_pixel":
        attributes |= {"antialias": 1, "exclude_outside": 1}
    if by_size:
        inputs = [x, None, None, np.array([1, 2, *sizes])]
    else:
        lengths = [n * s for n, s in zip(spatial, scales, strict=True)]
        assume(min(lengths) >= 1)
        assume(transformation != "align_corners" or all(length == int(length) for length in lengths))
        inputs = [x, None, np.array([1, 1, *scales], np.float32)]
    assert_agrees("Resize", inputs, opset=19, atol=1e-4, **attributes)


@_SETTINGS
@given(
    st.sampled_from(["linear", "cubic"]),
    st.integers(1, 6),
    st.integers(1, 8),
    st.tuples(st.integers(-9, 40), st.integers(-9, 40)),
    _seeds,
)
def test_resize_regions(mode: str, source: int, target: int, region: tuple[int, int], seed: int) -> None:
    assume(source != target)  # ONNX Runtime then copies, whatever the region
    start, end = sorted(v / 32 for v in region)
    (x,) = normal(seed, (1, 1, source, 3))
    roi = np.array([0, 0, start, 0, 1, 1, end, 1], np.float32)
    options = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    # Between the ends: whether a position on the last element is inside is a matter of rounding for float32.
    places = [(start + i * (end - start) / max(target - 1, 1)) * (source - 1) for i in range(target)]
    assume(all(abs(p - edge) > 1e-3 for p in places for edge in (0, source - 1)))
    assert_agrees("Resize", [x, roi, None, np.array([1, 1, target, 3])], opset=19, atol=1e-4, mode=mode, **options)


@_SETTINGS
@given(
    st.sampled_from(["linear", "nearest", "cubic"]),
    st.sampled_from(["zeros", "border", "reflection"]),
    st.integers(0, 1),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    _seeds,
)
def test_grid_sample(mode: str, padding: str, aligned: int, spatial: tuple[int, int], seed: int) -> None:
    x, grid = normal(seed, (2, 2, *spatial), (2, 3, 2, 2))
    assert_agrees("GridSample", [x, grid], opset=20, atol=1e-4, mode=mode, padding_mode=padding, align_corners=aligned)


@_SETTINGS
@given(
    st.sampled_from([np.uint8, np.int8, np.uint16, np.int16]),
    st.sampled_from(["tensor", "axis", "block"]),
    st.sampled_from([2, 3]),  # two blocks of four elements; of threes, the second is a part
    _seeds,
)
def test_quantisation(dtype: Any, granularity: str, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape: tuple[int, ...] = {"tensor": (), "axis": (4,), "block": (3, 2)}[granularity]
    block = length if granularity == "block" else 0
    x = (rng.standard_normal((3, 4)) * 100).astype(np.float32)
    scale = np.asarray(rng.uniform(0.1, 2, shape).astype(np.float32))
    zero = np.asarray(rng.integers(0, 20, shape).astype(dtype))
    assert_agrees("QuantizeLinear", [x, scale, zero], axis=1, block_size=block)
    quantised = rng.integers(0, 100, (3, 4)).astype(dtype)
    assert_agrees("DequantizeLinear", [quantised, scale, zero], axis=1, block_size=block)
