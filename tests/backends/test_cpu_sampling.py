"""Generated kernels of resampling against the reference: shapes, strides, dtypes, attributes, epilogues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import empty_like, laid_out, layouts, run_node, values

from accord.backends.reference.evaluator import evaluate
from accord.expr.lang import operand
from builders import model, node

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TOLERANCE = {"float32": 2e-5, "float64": 1e-10, "float16": 4e-3}


def close(found: np.ndarray, expected: np.ndarray, dtype: str, *, loose: float = 1.0) -> None:
    assert found.shape == expected.shape
    if np.dtype(dtype).kind in "iub":
        np.testing.assert_array_equal(found, expected)
    else:
        limit = TOLERANCE[dtype] * loose
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=limit, atol=limit)


MODES = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
]


@SETTINGS
@given(st.data())
def test_resize(data):
    rank = data.draw(st.sampled_from([2, 3, 4, 4, 5]))
    shape = tuple(
        data.draw(st.sampled_from([1, 2, 3, 5, 8, 16, 19] if rank < 5 else [1, 2, 4, 7])) for _ in range(rank)
    )
    count = data.draw(st.integers(1, min(3, rank)))
    axes = (
        sorted(data.draw(st.permutations(range(rank)))[:count])
        if data.draw(st.booleans())
        else list(range(rank))[-count:]
    )
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]))
    dtypes = ["float32", "float32", "float64", "float16", "uint8", "int32"]
    dtype = data.draw(st.sampled_from([*dtypes, "bool"] if mode == "nearest" else dtypes))
    attributes: dict[str, Any] = {"axes": axes, "mode": mode}
    attributes["coordinate_transformation_mode"] = data.draw(st.sampled_from(MODES))
    if mode == "nearest":
        attributes["nearest_mode"] = data.draw(
            st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
        )
    else:
        attributes["antialias"] = data.draw(st.integers(0, 1))
        attributes["exclude_outside"] = data.draw(st.integers(0, 1))
        attributes["cubic_coeff_a"] = data.draw(st.sampled_from([-0.75, -0.5]))
    constants = {}
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        attributes["extrapolation_value"] = 3.0
        starts = [data.draw(st.sampled_from([-0.25, 0.0, 0.125, 0.3])) for _ in axes]
        constants["r"] = np.array(
            [*starts, *(s + data.draw(st.sampled_from([0.5, 0.75, 1.25])) for s in starts)], np.float32
        )
    scales = [data.draw(st.sampled_from([0.26, 0.5, 0.6, 1.0, 1.3, 2.0, 2.5, 3.0])) for _ in axes]
    extents = [1.0] * count
    if constants:
        extents = [float(b - a) for a, b in zip(constants["r"][:count], constants["r"][count:], strict=True)]
    # never an empty result
    scales = [max(s, 1.01 / (shape[a] * e)) for s, a, e in zip(scales, axes, extents, strict=True)]
    by_sizes = data.draw(st.booleans())
    if by_sizes:
        constants["z"] = np.array([max(1, round(shape[a] * s)) for a, s in zip(axes, scales, strict=True)], np.int64)
        attributes["keep_aspect_ratio_policy"] = data.draw(
            st.sampled_from(["stretch", "stretch", "not_larger", "not_smaller"])
        )
    else:
        constants["s"] = np.array(scales, np.float32)
    names = ["x", "r" if "r" in constants else "", "s" if "s" in constants else "", "z" if by_sizes else ""]
    declared: list[Any] = list(shape)
    if by_sizes and attributes["keep_aspect_ratio_policy"] == "stretch":
        declared = [f"d{i}" if data.draw(st.booleans()) else n for i, n in enumerate(shape)]
    proto = model([node("Resize", names, ["y"], **attributes)], {"x": (dtype, declared)}, ["y"], constants)
    x = values(shape, dtype)
    expected = evaluate(proto, {"x": x})[0]
    out = empty_like(expected.shape, dtype, *data.draw(layouts(rank)))
    run_node(
        proto,
        {"x": laid_out(x, *data.draw(layouts(rank)))},
        [out],
        sizes={f"d{i}": n for i, n in enumerate(shape)},
        seed=count,
    )
    if np.dtype(dtype).kind in "iu" and mode != "nearest":  # halves are rounded after sums in another order
        assert np.abs(out.astype(np.int64) - expected.astype(np.int64)).max(initial=0) <= 1
    else:
        close(out, expected, dtype, loose=8)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_with_an_epilogue(mode):
    x = values((2, 19, 6, 7))
    proto = model(
        [node("Resize", ["x", "", "s"], ["y"], mode=mode)],
        {"x": (np.float32, ["n", 19, "h", "w"])},
        ["y"],
        {"s": np.array([1, 1, 2, 2], np.float32)},
    )
    plain = evaluate(proto, {"x": x})[0]
    scale, residual = values((19, 1, 1)), laid_out(values(plain.shape), (0, 2, 3, 1))
    out = empty_like(plain.shape, np.float32, (0, 2, 3, 1))
    expr = operand(0, "f32") * operand(1, "f32") + operand(2, "f32")
    run_node(
        proto,
        {"x": laid_out(x, (0, 2, 3, 1))},
        [out],
        epilogue=(expr, [("f32", scale), ("f32", residual)]),
        sizes={"n": 2, "h": 6, "w": 7},
    )
    close(out, plain * scale + residual, "float32")


@SETTINGS
@given(st.data())
def test_grid_sample(data):
    rank = data.draw(st.sampled_from([1, 2, 2, 3]))
    dtype = data.draw(st.sampled_from(["float32", "float32", "float64", "float16", "int32", "uint8"]))
    batch = data.draw(st.integers(1, 2))
    sizes = tuple(data.draw(st.sampled_from([1, 2, 5, 9])) for _ in range(rank))
    positions = tuple(data.draw(st.sampled_from([1, 3, 8, 11])) for _ in range(rank))
    x = values((batch, data.draw(st.sampled_from([1, 3, 16, 20])), *sizes), dtype)
    if dtype == "int32":
        x //= 1000
    kind = data.draw(st.sampled_from(["float32", "float32", "float64"]))
    grid = (values((batch, *positions, rank), kind) * data.draw(st.sampled_from([0.5, 1, 3]))).astype(kind)
    if data.draw(st.booleans()):  # exact places, and none
        grid = np.round(grid * 4) / 4
        grid[values(grid.shape) > 2] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))
    attributes = {
        "mode": data.draw(st.sampled_from(["nearest", "linear", "cubic"])),
        "padding_mode": data.draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": data.draw(st.integers(0, 1)),
    }
    declared = [f"d{i}" if data.draw(st.booleans()) else n for i, n in enumerate(x.shape)]
    proto = model(
        [node("GridSample", ["x", "g"], ["y"], **attributes)],
        {"x": (dtype, [batch, *declared[1:]]), "g": (kind, grid.shape)},
        ["y"],
    )
    expected = evaluate(proto, {"x": x, "g": grid})[0]
    out = empty_like(expected.shape, dtype, *data.draw(layouts(rank + 2)))
    feeds = {"x": laid_out(x, *data.draw(layouts(rank + 2))), "g": laid_out(grid, *data.draw(layouts(rank + 2)))}
    run_node(proto, feeds, [out], sizes={f"d{i}": n for i, n in enumerate(x.shape)}, seed=rank)
    if np.dtype(dtype).kind in "iu":  # truncated after sums in another order
        limit = 0 if attributes["mode"] == "nearest" else 1
        assert np.abs(out.astype(np.int64) - expected.astype(np.int64)).max(initial=0) <= limit
    else:
        close(out, expected, dtype, loose=8)
