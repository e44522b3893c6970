"""Generated kernels of sliding windows against the reference: shapes, strides, dtypes, attributes, epilogues."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import empty_like, laid_out, layouts, run_node, values, view_of

from accord.backends.cpu.depthwise import DepthwiseCode
from accord.backends.cpu.families.windows import depthwise_kernel, is_depthwise
from accord.backends.cpu.jit import compile_function
from accord.backends.cpu.llvm import Builder, module_text
from accord.backends.images import channels_last_arrangement
from accord.backends.reference.evaluator import evaluate
from accord.errors import AccordError, ExecutionError
from accord.expr.lang import cast, operand
from accord.expr.primitives import max_
from accord.ir import dims as D
from accord.runtime.model import Model
from accord.runtime.options import Options
from builders import model, node

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 4e-3}


def close(found: np.ndarray, expected: np.ndarray, dtype: str = "float32") -> None:
    assert found.shape == expected.shape
    if np.dtype(dtype).kind in "iu":
        np.testing.assert_array_equal(found, expected)
    else:
        loose = TOLERANCE[dtype]
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=loose, atol=loose)


def convolution(x: tuple[int, ...], constants: dict[str, np.ndarray], **attributes: Any) -> Any:
    """A model of one Conv of "x" and its constant weights."""
    inputs = {"x": (np.float32, x)}
    return model([node("Conv", ["x", *constants], ["y"], **attributes)], inputs, ["y"], constants)


@st.composite
def window(draw, rank: int, *, large: bool = False):
    """Input sizes and window attributes of which at least one position is left."""
    kernel = [draw(st.integers(1, 5 if not large else 12)) for _ in range(rank)]
    strides = [draw(st.sampled_from([1, 1, 2, 3, 5])) for _ in range(rank)]
    dilations = [draw(st.sampled_from([1, 1, 1, 2, 5])) for _ in range(rank)]
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    begins, ends = ([draw(st.integers(0, (e - 1) // 2 + 1)) for e in extents] for _ in range(2))
    most = {1: 60, 2: 24, 3: 9}[rank]
    sizes = [
        draw(st.integers(max(1, e - b - a), max(1, e - b - a) + most))
        for e, b, a in zip(extents, begins, ends, strict=True)
    ]
    return sizes, kernel, {"strides": strides, "dilations": dilations, "pads": [*begins, *ends]}


@SETTINGS
@given(st.data())
def test_depthwise(data):
    rank = data.draw(st.sampled_from([1, 2, 2, 2, 3]))
    sizes, kernel, attributes = data.draw(window(rank, large=rank == 1))
    dtype = data.draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    inputs, outputs = data.draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 2), (4, 4), (2, 16)]))
    group = data.draw(st.sampled_from([2, 3, 8, 16, 17, 33]))
    if data.draw(st.booleans()):
        attributes = {
            "strides": attributes["strides"],
            "auto_pad": data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"])),
        }
    constant = data.draw(st.integers(0, 3)) > 0
    x = values((data.draw(st.integers(1, 2)), group * inputs, *sizes), dtype)
    w = values((group * outputs, inputs, *kernel), dtype)
    bias = values((len(w),), dtype)
    names = ["x", "w", "b"] if data.draw(st.booleans()) else ["x", "w"]
    shape: Any = [f"d{i}" if data.draw(st.booleans()) else n for i, n in enumerate(x.shape)]
    shape[1] = x.shape[1]
    given_ = {"x": (dtype, shape)}
    if not constant:
        given_ |= {"w": (dtype, w.shape)}
    proto = model(
        [node("Conv", names, ["y"], group=group, **attributes)],
        given_,
        ["y"],
        {"b": bias} | ({"w": w} if constant else {}),
    )
    feeds = {"x": laid_out(x, *data.draw(layouts(rank + 2)))}
    if not constant:
        feeds["w"] = w
    expected = evaluate(proto, {"x": x, "w": w} if not constant else {"x": x})[0]
    out = empty_like(expected.shape, dtype, *data.draw(layouts(rank + 2)))
    run_node(
        proto, feeds, [out], select=depthwise_kernel, sizes={f"d{i}": n for i, n in enumerate(x.shape)}, seed=sizes[0]
    )
    close(out, expected, dtype)


@SETTINGS
@given(st.sampled_from([3, 16, 40]), st.data())
def test_depthwise_with_an_epilogue(channels, data):
    x, w = values((2, channels, 9, 14)), values((channels, 1, 3, 3))
    proto = model(
        [node("Conv", ["x", "w"], ["y"], group=channels, pads=[1] * 4)], {"x": (np.float32, x.shape)}, ["y"], {"w": w}
    )
    plain = evaluate(proto, {"x": x})[0]
    # relu(y) * scale per channel + residual + one value a pixel, stored as f16
    scale = values((channels, 1, 1))
    residual = laid_out(values(plain.shape), *data.draw(layouts(4)))
    pixel = values((2, 1, 9, 14))
    expr = max_(operand(0, "f32"), 0.0) * operand(1, "f32") + operand(2, "f32") + operand(3, "f32")
    out = empty_like(plain.shape, np.float16, *data.draw(layouts(4)))
    run_node(
        proto,
        {"x": laid_out(x, (0, 2, 3, 1))},
        [out],
        select=depthwise_kernel,
        epilogue=(cast(expr, "f16"), [("f32", scale), ("f32", residual), ("f32", pixel)]),
    )
    close(out, (np.maximum(plain, 0) * scale + residual + pixel).astype(np.float16), "float16")


def test_what_counts_as_depthwise():
    for group, inputs, outputs, expected in [(8, 1, 1, True), (8, 4, 16, True), (8, 5, 5, False), (1, 1, 8, False)]:
        w = values((group * outputs, inputs, 3, 3))
        proto = convolution((1, group * inputs, 5, 5), {"w": w}, group=group)
        assert is_depthwise(view_of(proto)) is expected


def test_images_lie_channels_last():
    proto = convolution((1, 4, 5, 5), {"w": values((4, 1, 3, 3))}, group=4)
    asked = channels_last_arrangement(view_of(proto))
    assert asked.outputs == ((0, 2, 3, 1),) and asked.inputs == ((0, 2, 3, 1),)
    there = channels_last_arrangement(view_of(proto, {"x": laid_out(values((1, 4, 5, 5)), (0, 2, 3, 1), (0, 0, 0, 4))}))
    assert there.inputs == (None,)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (5, 3), (3, 40), (0, 126), (100, 26)])
def test_a_depthwise_convolution_fills_rows_of_a_panel(first, count):
    """A kernel of another module calls it for some pixels."""
    x, w, bias = values((2, 20, 7, 9)), values((20, 1, 3, 3)), values((20,))
    proto = convolution(x.shape, {"w": w, "b": bias}, group=20, pads=[1] * 4)
    expected = evaluate(proto, {"x": x})[0].transpose(0, 2, 3, 1).reshape(-1, 20)
    image = laid_out(x, (0, 2, 3, 1))
    kernel = depthwise_kernel(view_of(proto, {"x": image, "y": empty_like(x.shape, np.float32, (0, 2, 3, 1))}))
    (phase,) = kernel.phases
    assert isinstance(phase.code, DepthwiseCode)
    caller = Builder("panel_test")
    caller.emit(
        "call void @fill(ptr %params, ptr %operands, i64 %first, i64 %last, "
        f"ptr {caller.operand(4)}, i64 {caller.sub(32, 0)})"
    )
    text = module_text([caller, *phase.code.producer("fill")])
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)(compile_function(caller.name, text))
    launch = phase.launch([D.evaluate(d, {}) for d in phase.dims])
    params = np.array(launch.params, np.int64)
    panel = np.full((count + 1, 32), np.nan, np.float32)
    arrays = [image, kernel.constants[1], bias, panel, panel]
    operands = np.array([a.ctypes.data for a in arrays], np.int64)
    call(params.ctypes.data, operands.ctypes.data, first, count, 0)
    close(panel[:count, :20], expected[first : first + count])
    assert np.isnan(panel[count]).all() and np.isnan(panel[:, 20:]).all()


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_pools_of_images_shorter_than_the_window(op, symbolic):
    """There is no position, or one that reaches past the end; less than none is an error."""
    found = set()
    for n, k, s, pad, ceil in itertools.product((1, 2), (3, 4), (1, 2, 3), (0, 1), (0, 1)):
        attributes = {"kernel_shape": [k], "strides": [s], "pads": [pad, 0], "ceil_mode": ceil}
        shape = [1, 3, "n" if symbolic else n]
        proto = model([node(op, ["x"], ["y"], **attributes)], {"x": ("float32", shape)}, ["y"])
        x = values((1, 3, n))
        try:
            (expected,) = evaluate(proto, {"x": x})
        except ExecutionError:
            with pytest.raises(AccordError):
                Model(proto, Options())(x)
            found.add("error")
            continue
        close(Model(proto, Options())(x)[0], expected)
        found.add(expected.shape[2])
    assert found == {0, 1, "error"}


@SETTINGS
@given(st.data())
def test_pools(data):
    rank = data.draw(st.sampled_from([1, 2, 2, 2, 3]))
    sizes, kernel, attributes = data.draw(window(rank))
    op = data.draw(st.sampled_from(["MaxPool", "MaxPool", "AveragePool", "LpPool"]))
    numbers = ["float32", "float32", "float64", "float16"]
    dtype = data.draw(st.sampled_from([*numbers, "int8", "uint8"] if op == "MaxPool" else numbers))
    attributes["kernel_shape"] = kernel
    attributes["ceil_mode"] = data.draw(st.integers(0, 1))
    if op == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    if op == "LpPool":
        attributes["p"] = data.draw(st.integers(1, 3))
    if data.draw(st.integers(0, 3)) == 0:
        del attributes["pads"]
        attributes["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        if attributes["auto_pad"] == "VALID":
            sizes = [n + (k - 1) * d for n, k, d in zip(sizes, kernel, attributes["dilations"], strict=True)]
    indices = op == "MaxPool" and data.draw(st.booleans())
    if indices:
        attributes["storage_order"] = data.draw(st.integers(0, 1))
    x = values((data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 3, 8, 16, 21, 64, 70])), *sizes), dtype)
    if np.dtype(dtype).kind == "f" and op == "MaxPool":  # equal and special values
        x = np.round(x)
        x[np.random.default_rng(3).random(x.shape) < 0.02] = data.draw(st.sampled_from([np.nan, -np.inf, np.inf, 1]))
    shape = [f"d{i}" if data.draw(st.booleans()) else n for i, n in enumerate(x.shape)]
    names = ["y", "i"] if indices else ["y"]
    proto = model([node(op, ["x"], names, **attributes)], {"x": (dtype, shape)}, names)
    expected = evaluate(proto, {"x": x})
    out = [empty_like(e.shape, e.dtype, *data.draw(layouts(rank + 2))) for e in expected]
    run_node(
        proto,
        {"x": laid_out(x, *data.draw(layouts(rank + 2)))},
        out,
        sizes={f"d{i}": n for i, n in enumerate(x.shape)},
        seed=sizes[0],
    )
    close(out[0], expected[0], dtype)
    if indices:
        np.testing.assert_array_equal(out[1], expected[1])


@SETTINGS
@given(st.sampled_from(["MaxPool", "AveragePool"]), st.data())
def test_a_pool_with_an_epilogue(op, data):
    x = values((2, 19, 8, 13))
    proto = model([node(op, ["x"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)], {"x": (np.float32, x.shape)}, ["y"])
    plain = evaluate(proto, {"x": x})[0]
    scale, residual = values((19, 1, 1)), laid_out(values(plain.shape), *data.draw(layouts(4)))
    out = empty_like(plain.shape, np.float32, *data.draw(layouts(4)))
    expr = operand(0, "f32") * operand(1, "f32") + operand(2, "f32")
    run_node(proto, {"x": x}, [out], epilogue=(expr, [("f32", scale), ("f32", residual)]))
    close(out, plain * scale + residual)


@SETTINGS
@given(st.data())
def test_max_unpool(data):
    rank = data.draw(st.sampled_from([1, 2, 3]))
    _, kernel, attributes = data.draw(window(rank))
    attributes = {"strides": attributes["strides"], "kernel_shape": kernel}
    # windows that end where the image does, so that the pool can be inverted
    sizes = [k + s * data.draw(st.integers(0, 3)) for k, s in zip(kernel, attributes["strides"], strict=True)]
    x = values((data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3)), *sizes))
    pooled = model([node("MaxPool", ["x"], ["y", "i"], **attributes)], {"x": (np.float32, x.shape)}, ["y", "i"])
    y, index = evaluate(pooled, {"x": x})
    given_: dict[str, Any] = {"y": (np.float32, y.shape), "i": (np.int64, index.shape)}
    constants = {}
    if data.draw(st.booleans()):
        constants["o"] = np.array([*x.shape[:2], *(n + data.draw(st.integers(-1, 2)) for n in sizes)], np.int64)
        constants["o"] = np.maximum(constants["o"], 1)
    proto = model([node("MaxUnpool", ["y", "i", *constants], ["z"], **attributes)], given_, ["z"], constants)
    expected = evaluate(proto, {"y": y, "i": index})[0]
    out = empty_like(expected.shape, np.float32, *data.draw(layouts(rank + 2)))
    feeds = {"y": laid_out(y, *data.draw(layouts(rank + 2))), "i": laid_out(index, *data.draw(layouts(rank + 2)))}
    run_node(proto, feeds, [out])
    close(out, expected)
    feeds["i"][(0,) * (rank + 2)] = 2**40
    with pytest.raises(IndexError):
        run_node(proto, feeds, [out])


@SETTINGS
@given(st.data())
def test_col2im(data):
    rank = data.draw(st.sampled_from([1, 2, 3]))
    sizes, kernel, attributes = data.draw(window(rank))
    dtype = data.draw(st.sampled_from(["float32", "float64", "float16"]))
    positions = 1
    for a in range(rank):
        extent = (kernel[a] - 1) * attributes["dilations"][a] + 1
        room = sizes[a] + attributes["pads"][a] + attributes["pads"][rank + a] - extent
        positions *= room // attributes["strides"][a] + 1
    channels = data.draw(st.integers(1, 3))
    x = values((2, channels * int(np.prod(kernel)), positions), dtype)
    proto = model(
        [node("Col2Im", ["x", "s", "k"], ["y"], **attributes)],
        {"x": (dtype, x.shape)},
        ["y"],
        {"s": np.array(sizes, np.int64), "k": np.array(kernel, np.int64)},
    )
    expected = evaluate(proto, {"x": x})[0]
    out = empty_like(expected.shape, dtype, *data.draw(layouts(rank + 2)))
    run_node(proto, {"x": laid_out(x, *data.draw(layouts(3)))}, [out])
    close(out, expected, dtype)


@SETTINGS
@given(st.data())
def test_lrn(data):
    rank = data.draw(st.sampled_from([3, 4, 5]))
    dtype = data.draw(st.sampled_from(["float32", "float64", "float16"]))
    channels = data.draw(st.sampled_from([1, 3, 16, 17, 40]))
    attributes = {
        "size": data.draw(st.integers(1, 7)),
        "alpha": data.draw(st.sampled_from([1e-4, 0.5])),
        "beta": data.draw(st.sampled_from([0.75, 0.5, 1.0, 0.6])),
        "bias": data.draw(st.sampled_from([1.0, 2.0])),
    }
    x = values((2, channels, *[5, 3, 2][: rank - 2]), dtype)
    proto = model([node("LRN", ["x"], ["y"], **attributes)], {"x": (dtype, ["n", *x.shape[1:]])}, ["y"])
    expected = evaluate(proto, {"x": x})[0]
    out = empty_like(expected.shape, dtype, *data.draw(layouts(rank)))
    run_node(proto, {"x": laid_out(x, *data.draw(layouts(rank)))}, [out], sizes={"n": 2})
    close(out, expected, dtype)
