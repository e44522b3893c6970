"""Generated kernels of resampling against the reference: shapes, strides, dtypes, attributes, epilogues."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import empty_like, laid_out, layouts, run_node, values
from onnx import numpy_helper

from accord.backends.reference.evaluator import evaluate
from accord.cli.suites import load_suite
from accord.errors import AccordError
from accord.expr.lang import operand
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
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


@SETTINGS
@given(st.data())
def test_regions(data):
    dtype = data.draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    pooled = data.draw(st.booleans())
    images, channels = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 3, 16, 70]))
    x = values((images, channels, data.draw(st.sampled_from([1, 2, 9])), data.draw(st.sampled_from([1, 2, 13]))), dtype)
    count = data.draw(st.integers(1, 4))
    scale = data.draw(st.sampled_from([0.25, 1.0]))
    corners = values((count, 4), dtype) * 3 / scale
    sizes = np.abs(values((count, 2), dtype)) * 6 / scale
    boxes = np.concatenate([corners[:, :2], corners[:, :2] + sizes], 1).astype(dtype)
    if data.draw(st.booleans()):
        boxes = np.round(boxes)
    if data.draw(st.booleans()):
        boxes[0, 2:] = boxes[0, :2] - 1  # the wrong way around
    number = np.arange(count) % images
    if pooled:
        boxes = np.concatenate([number[:, np.newaxis].astype(dtype), boxes], 1)
        shape = [data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))]
        built = node("MaxRoiPool", ["x", "r"], ["y"], pooled_shape=shape, spatial_scale=scale)
        feeds = {"x": x, "r": boxes}
    else:
        attributes = {
            "mode": data.draw(st.sampled_from(["avg", "max"])),
            "output_height": data.draw(st.integers(1, 4)),
            "output_width": data.draw(st.integers(1, 4)),
            "sampling_ratio": data.draw(st.integers(0, 3)),
            "coordinate_transformation_mode": data.draw(st.sampled_from(["half_pixel", "output_half_pixel"])),
        }
        built = node("RoiAlign", ["x", "r", "b"], ["y"], spatial_scale=scale, **attributes)
        feeds = {"x": x, "r": boxes, "b": number}
    proto = model([built], {n: (a.dtype, a.shape) for n, a in feeds.items()}, ["y"])
    expected = evaluate(proto, feeds)[0]
    out = empty_like(expected.shape, dtype, *data.draw(layouts(4)))
    run_node(proto, {**feeds, "x": laid_out(x, *data.draw(layouts(4)))}, [out])
    close(out, expected, dtype, loose=4)


def test_a_region_of_no_image_is_refused():
    proto = model(
        [node("RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=2)],
        {"x": (np.float32, (2, 3, 4, 4)), "r": (np.float32, (1, 4)), "b": (np.int64, (1,))},
        ["y"],
    )
    feeds = {"x": values((2, 3, 4, 4)), "r": np.array([[0, 0, 2, 2]], np.float32)}
    run_node(proto, {**feeds, "b": np.array([1])}, [empty_like((1, 3, 2, 2), np.float32)])
    for number, box in ((2, [0, 0, 2, 2]), (-1, [0, 0, 2, 2]), (0, [0, 0, np.inf, 2]), (0, [np.nan, 0, 2, 2])):
        wrong = {**feeds, "r": np.array([box], np.float32), "b": np.array([number])}
        with pytest.raises(IndexError):
            run_node(proto, wrong, [empty_like((1, 3, 2, 2), np.float32)])


def check_copies(data, op, shape, dtype, constants) -> None:
    """An operator that copies elements of ``x``, of sizes that are known or not, however operands lie."""
    declared = [f"d{i}" if data.draw(st.booleans()) else n for i, n in enumerate(shape)]
    proto = model([op], {"x": (dtype, declared)}, ["y"], constants)
    x = values(shape, dtype)
    expected = evaluate(proto, {"x": x})[0]
    out = empty_like(expected.shape, dtype, *data.draw(layouts(len(shape))))
    feeds = {"x": laid_out(x, *data.draw(layouts(len(shape))))}
    run_node(proto, feeds, [out], sizes={f"d{i}": n for i, n in enumerate(shape)})
    close(out, expected, dtype)


@SETTINGS
@given(st.data())
def test_padding_by_copies(data):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.sampled_from([1, 2, 5, 8, 17])) for _ in range(rank))
    axes = sorted(data.draw(st.permutations(range(rank)))[: data.draw(st.integers(1, rank))])
    pads = [data.draw(st.integers(-min(2, (shape[a] - 1) // 2), 6)) for a in (*axes, *axes)]
    dtype = data.draw(st.sampled_from(["float32", "float16", "int8", "int64", "bool"]))
    mode = data.draw(st.sampled_from(["edge", "reflect", "wrap"]))
    constants = {"p": np.array(pads, np.int64), "a": np.array(axes, np.int64)}
    check_copies(data, node("Pad", ["x", "p", "", "a"], ["y"], mode=mode), shape, dtype, constants)


@SETTINGS
@given(st.data())
def test_center_crop_pad(data):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.sampled_from([1, 2, 5, 8, 17])) for _ in range(rank))
    axes = data.draw(st.permutations(range(rank)))[: data.draw(st.integers(1, rank))]
    sizes = [data.draw(st.integers(1, 20)) for _ in axes]
    dtype = data.draw(st.sampled_from(["float32", "float16", "int8", "int64", "bool"]))
    constants = {"s": np.array(sizes, np.int64)}
    check_copies(data, node("CenterCropPad", ["x", "s"], ["y"], axes=axes), shape, dtype, constants)


@SETTINGS
@given(st.data())
def test_affine_grid(data):
    rank = data.draw(st.sampled_from([2, 3]))
    size = [data.draw(st.integers(1, 3)), 2, *(data.draw(st.sampled_from([1, 2, 7, 19])) for _ in range(rank))]
    dtype = data.draw(st.sampled_from(["float32", "float64", "float16"]))
    theta = values((size[0], rank, rank + 1), dtype)
    proto = model(
        [node("AffineGrid", ["t", "s"], ["y"], align_corners=data.draw(st.integers(0, 1)))],
        {"t": (dtype, theta.shape)},
        ["y"],
        {"s": np.array(size, np.int64)},
    )
    expected = evaluate(proto, {"t": theta})[0]
    out = empty_like(expected.shape, dtype, *data.draw(layouts(rank + 2)))
    run_node(proto, {"t": laid_out(theta, *data.draw(layouts(3)))}, [out])
    close(out, expected, dtype)


def test_every_case_of_the_suite_whose_sizes_are_constant():
    """The suite gives sizes, scales and pads as inputs, which leaves a result's shape to the run."""
    sampled = {"Resize", "Upsample", "AffineGrid", "CenterCropPad", "Col2Im", "MaxUnpool", "Pad"}
    done = 0
    for case in load_suite("node", "resize|upsample|affine|crop_pad|col2im|unpool|_pad"):
        proto = case.model()
        if len(proto.graph.node) != 1 or proto.graph.node[0].op_type not in sampled:
            continue
        for given_, expected in case.data(proto):
            constant = onnx.ModelProto()
            constant.CopyFrom(proto)
            named = dict(zip((i.name for i in proto.graph.input), given_, strict=True))
            for number, value in enumerate(proto.graph.input):
                if number > (proto.graph.node[0].op_type == "MaxUnpool"):
                    constant.graph.initializer.append(numpy_helper.from_array(named.pop(value.name), value.name))
                    constant.graph.input.remove(value)
            found = Model(constant, Options(level=0, strict=True))(named)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=case.name)
            done += 1
    assert done > 50


def test_nothing_is_read_from_an_empty_image():
    grid, box = np.zeros((1, 2, 2, 2), np.float32), np.array([[0, 0, 2, 2]], np.float32)
    x = np.zeros((1, 3, 0, 4), np.float32)
    shape = [1, 3, "h", 4]
    cases = [
        (node("Resize", ["x", "", "", "s"], ["y"]), {}, {"s": np.array([1, 3, 2, 4], np.int64)}),
        (node("Pad", ["x", "p"], ["y"], mode="edge"), {}, {"p": np.array([0, 0, 1, 0] * 2, np.int64)}),
        (node("GridSample", ["x", "g"], ["y"]), {"g": grid}, {}),
        (node("RoiAlign", ["x", "r", "b"], ["y"]), {"r": box, "b": np.array([0])}, {}),
    ]
    for built, others, constants in cases:
        inputs = {"x": (np.float32, shape)} | {n: (a.dtype, a.shape) for n, a in others.items()}
        ready = Model(model([built], inputs, ["y"], constants), Options(level=0, strict=True))
        with pytest.raises(AccordError):
            ready({"x": x, **others})
    inputs = {"x": (np.float32, shape)}
    center = node("CenterCropPad", ["x", "s"], ["y"])
    ready = Model(model([center], inputs, ["y"], {"s": np.array([1, 3, 2, 4], np.int64)}), Options(strict=True))
    np.testing.assert_array_equal(ready({"x": x})[0], np.zeros((1, 3, 2, 4)))
