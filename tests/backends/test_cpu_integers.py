"""Products of 8-bit integers against the reference, bit by bit: shapes, strides, zero points, requantisation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import empty_like, laid_out, layouts, run_node, view_of

from accord.backends.cpu import CpuBackend
from accord.backends.cpu.lanes import lanes
from accord.backends.protocol import NativeKernel
from accord.backends.reference.evaluator import evaluate
from accord.expr.lang import call, cast, const, operand
from accord.ir.reason import Reason
from accord.runtime.model import Model
from accord.runtime.options import Options
from builders import model, node

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TYPES = ("uint8", "int8")
Array = Any

rngs = st.integers(0, 1 << 30).map(np.random.default_rng)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, kind: str = "any") -> Array:
    """All values, or such as make the longest sums: only the least, only the greatest, or both."""
    info = np.iinfo(dtype)
    if kind == "any":
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    ends = {"least": [info.min], "greatest": [info.max], "ends": [info.min, info.max]}[kind]
    return rng.choice(np.array(ends, dtype), shape)


kinds = st.sampled_from(["any", "any", "least", "greatest", "ends"])


def check(
    op: str,
    inputs: Mapping[str, Array],
    constants: frozenset[str],
    orders: Mapping[str, tuple[Any, ...]] | None = None,
    out: tuple[Any, ...] = (),
    named: bool = False,
    **attributes: Any,
) -> NativeKernel:
    """Run a node on its kernel and compare; inputs that are None are left out."""
    names = [n if a is not None else "" for n, a in inputs.items()]
    given_ = {n: a for n, a in inputs.items() if a is not None}
    feeds = {n: a for n, a in given_.items() if n not in constants}
    fixed = {n: a for n, a in given_.items() if n in constants}
    shapes = {n: [f"{n}{i}" if named else d for i, d in enumerate(a.shape)] for n, a in feeds.items()}
    proto = model(
        [node(op, names, ["y"], **attributes)], {n: (a.dtype, shapes[n]) for n, a in feeds.items()}, ["y"], fixed
    )
    expected = evaluate(proto, feeds)[0]
    laid = {n: laid_out(a, *(orders or {}).get(n, ())) for n, a in feeds.items()}
    result = empty_like(expected.shape, expected.dtype, *out)
    sizes = {f"{n}{i}": d for n, a in feeds.items() for i, d in enumerate(a.shape)}
    kernel = run_node(proto, laid, [result], sizes=sizes, seed=expected.size)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == expected.dtype
    return kernel


def zeros(draw, rng: np.random.Generator, dtype: str, *shapes: tuple[int, ...]) -> Array:
    """A zero point, or none."""
    shape = draw(st.sampled_from([None, (), (1,), *shapes]))
    return None if shape is None else integers(rng, shape, dtype, draw(kinds))


sizes = st.sampled_from([1, 1, 2, 3, 5, 8, 15, 16, 17, 29, 33, 48, 50, 64, 97])
lengths = st.sampled_from([1, 2, 3, 4, 7, 8, 31, 64, 65, 129, 260])
BATCHES = [((), ()), ((), ()), ((3,), ()), ((3,), (3,)), ((2, 1), (3,)), ((), (2,)), ((2, 3), (2, 3))]


@SETTINGS
@given(st.data(), rngs)
def test_products(data, rng):
    draw = data.draw
    lead_a, lead_b = draw(st.sampled_from(BATCHES))
    m, n, k = draw(sizes), draw(sizes), draw(lengths)
    left, right = draw(st.sampled_from(TYPES)), draw(st.sampled_from(TYPES))
    a, b = integers(rng, (*lead_a, m, k), left, draw(kinds)), integers(rng, (*lead_b, k, n), right, draw(kinds))
    inputs = {
        "a": a,
        "b": b,
        "c": zeros(draw, rng, left, (m,), (*lead_a, m, 1)),
        "d": zeros(draw, rng, right, (n,), (*lead_b, 1, n)),
    }
    constant = draw(st.sampled_from([frozenset("bcd"), frozenset("bd"), frozenset("b"), frozenset()]))
    orders = {"a": draw(layouts(a.ndim)), "b": draw(layouts(b.ndim))}
    out = draw(layouts(np.matmul(a[..., :1], b[..., :1, :]).ndim))
    check("MatMulInteger", inputs, constant, orders, out)


def test_long_sums_are_cut_into_several():
    rng = np.random.default_rng(7)
    for k in (2500, 4099):
        for left, right in ((a, b) for a in TYPES for b in TYPES):
            a, b = integers(rng, (37, k), left, "greatest"), integers(rng, (k, 70), right, "greatest")
            zero = {"c": np.array(3, left), "d": integers(rng, (70,), right)}
            check("MatMulInteger", {"a": a, "b": b} | zero, frozenset("bd"))
            check("MatMulInteger", {"a": a, "b": b} | zero, frozenset())


@pytest.mark.parametrize("constants", [frozenset("bcd"), frozenset()])
def test_vectors_and_nothing(constants):
    rng = np.random.default_rng(1)
    for a, b in (((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5,)), ((0, 3), (3, 2)), ((3, 0), (0, 2))):
        inputs = {"a": integers(rng, a, "uint8"), "b": integers(rng, b, "int8")}
        check("MatMulInteger", {**inputs, "c": np.uint8(9), "d": np.int8(-4)}, constants)


def test_a_vector_with_zero_points_for_rows_is_refused():
    inputs = {"a": (np.uint8, (4,)), "b": (np.uint8, (4, 2)), "c": (np.uint8, ()), "d": (np.uint8, (2,))}
    proto = model([node("MatMulInteger", list(inputs), ["y"])], inputs, ["y"])
    assert isinstance(CpuBackend().known(view_of(proto)), Reason)


@SETTINGS
@given(st.data(), rngs)
def test_quantised_products(data, rng):
    draw = data.draw
    m, n, k = draw(sizes), draw(sizes), draw(lengths)
    left, right, result = (draw(st.sampled_from(TYPES)) for _ in range(3))
    rows, columns = draw(st.sampled_from([(), (m,)])), draw(st.sampled_from([(), (n,), (1, n)]))
    step = draw(st.sampled_from([1e-5, 1e-3, 1.0, 4.0]))
    inputs = {
        "a": integers(rng, (m, k), left, draw(kinds)),
        "as": np.asarray(rng.random(rows) + 0.1, np.float32),
        "az": integers(rng, rows, left),
        "b": integers(rng, (k, n), right, draw(kinds)),
        "bs": np.asarray((rng.random(columns) + 0.1) * step, np.float32),
        "bz": integers(rng, columns, right) * draw(st.sampled_from([0, 1])),
        "ys": np.float32(draw(st.sampled_from([0.25, 1.0, 3.7]))),
        "yz": integers(rng, (), result),
    }
    constants = frozenset(inputs) - {"a"} - draw(st.sampled_from([set(), {"as"}, {"az"}, {"bz"}, {"b", "ys"}]))
    check("QLinearMatMul", inputs, constants)


# images

IMAGES = st.sampled_from(
    [
        # channels, filters, groups, taps, sizes
        (8, 16, 1, (3, 3), (9, 10)),
        (3, 20, 1, (3, 3), (12, 13)),
        (64, 32, 2, (3, 3), (9, 8)),
        (24, 70, 1, (3, 3), (10, 7)),
        (16, 64, 1, (1, 1), (7, 6)),
        (7, 9, 1, (5,), (20,)),
        (6, 6, 3, (2, 3), (7, 8)),
        (4, 8, 4, (3, 3), (8, 8)),
        (5, 4, 1, (2, 2, 3), (4, 5, 6)),
        (132, 18, 1, (3, 3), (7, 9)),
        (515, 5, 1, (3, 1), (7, 7)),
    ]
)


@st.composite
def convolutions(draw):
    """Shapes of image and filters, and attributes."""
    channels, filters, groups, taps, space = draw(IMAGES)
    axes = len(taps)
    attributes: dict[str, Any] = {"group": groups}
    attributes["strides"] = draw(st.sampled_from([[1] * axes, [1] * axes, [2] * axes, [1, 2, 1][:axes]]))
    attributes["dilations"] = draw(st.sampled_from([[1] * axes, [1] * axes, [2] * axes]))
    pads = st.integers(0, 2)
    attributes |= draw(
        st.sampled_from([{"auto_pad": "SAME_UPPER"}, {}])
        if groups == 1 and attributes["dilations"] == [1] * axes
        else st.just({})
    )
    if "auto_pad" not in attributes:
        attributes["pads"] = draw(st.just([2] * 2 * axes) | st.lists(pads, min_size=2 * axes, max_size=2 * axes))
        reach = [(t - 1) * d + 1 for t, d in zip(taps, attributes["dilations"], strict=True)]
        if any(r > n for r, n in zip(reach, space, strict=True)):
            attributes["pads"] = [r for r in reach for _ in range(2)]
    return (draw(st.sampled_from([1, 2])), channels, *space), (filters, channels // groups, *taps), attributes


@SETTINGS
@given(st.data(), rngs, convolutions())
def test_convolutions(data, rng, what):
    draw = data.draw
    image, filters, attributes = what
    left, right = draw(st.sampled_from(TYPES)), draw(st.sampled_from(TYPES))
    inputs = {
        "x": integers(rng, image, left, draw(kinds)),
        "w": integers(rng, filters, right, draw(kinds)),
        "c": zeros(draw, rng, left),
        "d": zeros(draw, rng, right, (filters[0],)),
    }
    constants = draw(st.sampled_from([frozenset("wcd"), frozenset("wd"), frozenset("w"), frozenset()]))
    check("ConvInteger", inputs, constants, {"x": draw(layouts(len(image)))}, draw(layouts(len(image))), **attributes)


@SETTINGS
@given(st.data(), rngs, convolutions())
def test_quantised_convolutions(data, rng, what):
    draw = data.draw
    image, filters, attributes = what
    left, right, result = (draw(st.sampled_from(TYPES)) for _ in range(3))
    each = draw(st.sampled_from([(), (1,), (filters[0],)]))
    step = draw(st.sampled_from([1e-5, 1e-3, 1.0]))
    inputs = {
        "x": integers(rng, image, left, draw(kinds)),
        "xs": np.float32(0.02),
        "xz": integers(rng, (), left),
        "w": integers(rng, filters, right, draw(kinds)),
        "ws": np.asarray((rng.random(each) + 0.1) * step, np.float32),
        "wz": integers(rng, each, right) * draw(st.sampled_from([0, 1])),
        "ys": np.float32(draw(st.sampled_from([0.25, 3.7]))),
        "yz": integers(rng, (), result),
        "b": rng.integers(-(10 ** draw(st.integers(1, 8))), 10**5, filters[0], np.int32),
    }
    if draw(st.booleans()):
        del inputs["b"]
    constants = frozenset(inputs) - {"x"} - draw(st.sampled_from([set(), {"xz"}, {"ws"}, {"b"}, {"wz"}, {"w", "ys"}]))
    check("QLinearConv", inputs, constants, {"x": draw(layouts(len(image)))}, draw(layouts(len(image))), **attributes)


# fused, symbolic


def test_an_epilogue_of_floats():
    """What dynamic quantisation makes of a product: scaled, a bias for each column, an activation."""
    rng = np.random.default_rng(3)
    for k in (64, 66):
        a, b = integers(rng, (21, k), "uint8"), integers(rng, (k, 35), "uint8")
        scale, bias = np.float32(0.03), rng.standard_normal(35).astype(np.float32)
        proto = model(
            [node("MatMulInteger", ["a", "b", "c", "d"], ["y"])],
            {"a": (a.dtype, a.shape), "c": (np.uint8, ())},
            ["y"],
            {"b": b, "d": np.uint8(131)},
        )
        feeds = {"a": a, "c": np.array(77, np.uint8)}
        total = evaluate(proto, feeds)[0].astype(np.float32)
        x = cast(operand(0, "i32"), "f32") * operand(1, "f32") + operand(2, "f32")
        expr = call("max", x, const(0.0, "f32"))
        out = empty_like(total.shape, np.float32)
        run_node(proto, feeds, [out], epilogue=(expr, [("f32", np.asarray(scale)), ("f32", bias)]))
        np.testing.assert_allclose(out, np.maximum(total * scale + bias, 0), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("constant", [True, False])
def test_sizes_that_only_a_run_tells(constant):
    rng = np.random.default_rng(4)
    a, b = integers(rng, (2, 19, 36), "int8"), integers(rng, (36, 41), "uint8")
    inputs = {"a": a, "b": b, "c": np.int8(-7), "d": integers(rng, (41,), "uint8")}
    check("MatMulInteger", inputs, frozenset("bcd") if constant else frozenset(), named=True)
    x, w = integers(rng, (2, 12, 9, 11), "uint8"), integers(rng, (20, 12, 3, 3), "int8")
    inputs = {"x": x, "w": w, "c": np.uint8(120), "d": np.int8(2)}
    check("ConvInteger", inputs, frozenset("wcd"), named=True, pads=[1, 1, 1, 1])


@SETTINGS
@given(st.data(), rngs)
def test_dynamic_quantisation(data, rng):
    shape = data.draw(st.sampled_from([(), (1,), (7,), (3, 5), (2, 3, 33), (4, 8, 15, 9), (0, 3)]))
    x = rng.standard_normal(shape) * data.draw(st.sampled_from([1e-4, 1.0, 100.0])) + data.draw(st.floats(-9, 9))
    x = np.asarray(x * data.draw(st.sampled_from([0, 1, 1])), np.float32)
    proto = model([node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], {"x": (x.dtype, shape)}, ["y", "s", "z"])
    expected = evaluate(proto, {"x": x})
    found = [empty_like(e.shape, e.dtype) for e in expected]
    run_node(proto, {"x": laid_out(x, *data.draw(layouts(x.ndim) if shape else st.just(())))}, found)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(f, e)


@pytest.mark.parametrize("shape", [(3, 43696), (257, 256), (0, 48), (5, 7, 48)])
@pytest.mark.parametrize("extreme", [0, -1])
def test_dynamic_quantisation_in_parts(shape, extreme):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + np.float32(3)
    if x.size:
        x.reshape(-1)[extreme] = -20
    nodes, outputs = [node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], ["y", "s", "z"]
    known = model(nodes, {"x": (x.dtype, shape)}, outputs)
    expected = evaluate(known, {"x": x})
    found = [empty_like(e.shape, e.dtype) for e in expected]
    kernel = run_node(known, {"x": x}, found)
    assert len(kernel.phases) == (3 if x.size > 65536 else 1)
    open_ = model(nodes, {"x": (x.dtype, [*(f"d{i}" for i in range(len(shape) - 1)), shape[-1]])}, outputs)
    compiled: Any = Model(open_, Options(level=0, strict=True))
    assert len(compiled.plan.steps[0].kernel.phases) == 3
    for f, o, e in zip(found, compiled(x), expected, strict=True):
        np.testing.assert_array_equal(f, e)
        np.testing.assert_array_equal(o, e)


# other machines


def several() -> None:
    """A little of everything."""
    rng = np.random.default_rng(11)
    for left in TYPES:
        for right in TYPES:
            for kind in ("any", "greatest", "least"):
                zero = {"c": integers(rng, (), left, kind), "d": integers(rng, (33,), right)}
                a, b = integers(rng, (21, 70), left, kind), integers(rng, (70, 33), right, kind)
                for constants in (frozenset("bcd"), frozenset()):
                    check("MatMulInteger", {"a": a, "b": b} | zero, constants)
                for channels, filters in ((12, 33), (3, 9)):
                    x, w = (
                        integers(rng, (2, channels, 7, 9), left, kind),
                        integers(rng, (filters, channels, 3, 3), right),
                    )
                    zero["d"] = integers(rng, (filters,), right)
                    check("ConvInteger", {"x": x, "w": w} | zero, frozenset("wd"), pads=[1, 2, 0, 1], strides=[1, 2])
                scales = [np.float32(s) for s in (0.1, 0.02, 3.0)]
                names = "abcdefgh"
                inputs = (a, scales[0], zero["c"], b, scales[1], np.array(0, right), scales[2], np.array(3, left))
                check("QLinearMatMul", dict(zip(names, inputs, strict=True)), frozenset(names[1:]))


@pytest.mark.parametrize("level", ["avx2", "sse2"])
def test_lesser_processors(level):
    """Two elements a lane instead of four."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    code = "import test_cpu_integers as t; t.several(); assert t.lanes().count == 2"
    env = {**os.environ, "ACCORD_CPU": level, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_this_processor():
    several()
    assert lanes().count in (2, 4)


def test_a_single_narrow_element_at_the_end_of_a_line_is_stored_alone():
    """LLVM 22 makes of a narrowing and a masked store of one element a store of the wide element."""
    x = np.linspace(-3, 3, 2 * 3 * 33, dtype=np.float32).reshape(2, 3, 33)
    proto = model([node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], {"x": (x.dtype, x.shape)}, ["y", "s", "z"])
    found = [empty_like(e.shape, e.dtype) for e in evaluate(proto, {"x": x})]
    run_node(proto, {"x": laid_out(x, (0, 1, 2), (0, 0, 1))}, found)  # fails where something is written beside
