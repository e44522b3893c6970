"""Generated contractions against the reference: shapes, strides, dtypes, broadcasts, attributes, epilogues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import empty_like, laid_out, run_node, view_of

import accord
from accord.backends.cpu import CpuBackend
from accord.backends.cpu.blocking import MOST_CHUNK, Problem, chunks_of, cut
from accord.backends.cpu.jit import machine
from accord.backends.cpu.tile import tile_heights, vectors_for
from accord.backends.protocol import NativeKernel
from accord.backends.reference.evaluator import evaluate
from accord.expr.lang import bits, call, cast, const, operand
from accord.expr.primitives import gt, max_
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RNG = np.random.default_rng(5)
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 4e-3}


def values(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def close(found: np.ndarray, expected: np.ndarray, dtype: str = "float32", k: int = 1) -> None:
    assert found.shape == expected.shape
    loose = TOLERANCE[dtype]
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=loose, atol=loose * max(1.0, k**0.5)
    )


@st.composite
def layouts(draw, rank: int):
    """An order of axes and gaps after each: mostly row-major or channels-last without gaps."""
    last = (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))
    usual = [last, last, tuple(range(rank))]
    order = draw(st.sampled_from(usual) | st.permutations(range(rank)).map(tuple))
    gaps = draw(st.just(()) | st.tuples(*[st.integers(0, 2)] * rank))
    return order, gaps


def sizes_of(**shapes: tuple[int, ...]) -> dict[str, int]:
    return {f"{name}{i}": n for name, shape in shapes.items() for i, n in enumerate(shape)}


def declared(draw, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Each shape with some sizes named."""
    return {
        name: [f"{name}{i}" if draw(st.integers(0, 3)) == 0 else n for i, n in enumerate(shape)]
        for name, shape in shapes.items()
    }


# products

few = st.sampled_from([1, 1, 2, 3, 5, 8])
many = st.sampled_from([1, 2, 7, 13, 16, 17, 29, 33, 48, 49, 64, 80, 97])
BATCHES = [
    ((), ()),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((), (4,)),
    ((2, 1), (1, 3)),
    ((1,), (5,)),
    ((2, 3), ()),
    ((2, 3), (2, 1)),
]


@SETTINGS
@given(st.data())
def test_products(data):
    draw = data.draw
    lead_a, lead_b = draw(st.sampled_from(BATCHES))
    m, n, k = draw(few | many), draw(few | many), draw(many | st.sampled_from([0, 200, 600, 1100]))
    if k > 200:
        m, n, lead_a, lead_b = min(m, 33), min(n, 40), (), ()
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    a, b = values((*lead_a, m, k), dtype), values((*lead_b, k, n), dtype)
    constant = draw(st.booleans())
    shapes = declared(draw, a=a.shape, b=b.shape)
    inputs = {"a": (dtype, shapes["a"]), "b": (dtype, shapes["b"])}
    if constant:
        del inputs["b"]
    proto = model([node("MatMul", ["a", "b"], ["y"])], inputs, ["y"], {"b": b} if constant else {})
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    feeds = {"a": laid_out(a, *draw(layouts(a.ndim)))} | (
        {} if constant else {"b": laid_out(b, *draw(layouts(b.ndim)))}
    )
    out = empty_like(expected.shape, dtype, *draw(layouts(expected.ndim)))
    run_node(proto, feeds, [out], sizes=sizes_of(a=a.shape, b=b.shape), seed=m)
    close(out, expected, dtype, k)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 3)),
        ((0, 3), (3, 2)),
        ((0, 2, 3), (3, 4)),
        ((0, 2, 3), (0, 3, 4)),
        ((2, 3), (0, 3, 4)),
        ((2, 0), (0, 3)),
    ],
)
def test_products_of_vectors_and_nothing(a, b, constant):
    x, y = values(a), values(b)
    inputs = {"a": (np.float32, a)} | ({} if constant else {"b": (np.float32, b)})
    proto = model([node("MatMul", ["a", "b"], ["y"])], inputs, ["y"], {"b": y} if constant else {})
    expected = np.matmul(x, y)
    out = np.full(np.shape(expected), np.nan, np.float32)
    run_node(proto, {"a": x, "b": y}, [out])
    close(out, np.asarray(expected))


@SETTINGS
@given(st.data())
def test_gemm(data):
    draw = data.draw
    m, n, k = draw(many), draw(many), draw(many)
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    dtype = draw(st.sampled_from(["float32", "float64", "float16"]))
    a = values((k, m) if trans_a else (m, k), dtype)
    b = values((n, k) if trans_b else (k, n), dtype)
    bias = draw(st.sampled_from([None, (), (1,), (n,), (m, 1), (m, n), (1, n)]))
    feeds = {"a": laid_out(a, *draw(layouts(2)))}
    inputs = {"a": (dtype, a.shape)}
    constants = {}
    if draw(st.booleans()):
        constants["b"] = b
    else:
        inputs["b"], feeds["b"] = (dtype, b.shape), laid_out(b, *draw(layouts(2)))
    if bias is not None:
        inputs["c"], feeds["c"] = (dtype, bias), values(bias, dtype)
    attributes = {
        "transA": int(trans_a),
        "transB": int(trans_b),
        "alpha": 0.5,
        "beta": draw(st.sampled_from([1.0, 1.5, 0.0])),
    }
    proto = model(
        [node("Gemm", ["a", "b"] + ["c"] * (bias is not None), ["y"], **attributes)], inputs, ["y"], constants
    )
    wide = {name: x.astype(np.float64) for name, x in {"b": b, **feeds}.items()}
    left, right = (wide["a"].T if trans_a else wide["a"]), (wide["b"].T if trans_b else wide["b"])
    expected = 0.5 * (left @ right) + (attributes["beta"] * wide["c"] if bias is not None else 0)
    out = empty_like((m, n), dtype, *draw(layouts(2)))
    run_node(proto, feeds, [out], seed=n)
    close(out, expected, dtype, k)


@SETTINGS
@given(st.data())
def test_products_with_an_epilogue(data):
    """A result of another type, extras of every broadcast, one of them with gaps."""
    draw = data.draw
    batch, m, n, k = draw(st.sampled_from([(), (3,), (2, 2)])), draw(many), draw(many), draw(many)
    a, b = values((*batch, m, k)), values((k, n))
    shape = (*batch, m, n)
    broadcast = tuple(d if draw(st.booleans()) else 1 for d in shape)
    bias, other = values((n,)), laid_out(values(broadcast, np.float16), *draw(layouts(len(shape))))
    proto = model([node("MatMul", ["a", "b"], ["y"])], {"a": (np.float32, a.shape)}, ["y"], {"b": b})
    x = call("add", operand(0, "f32"), operand(1, "f32")) * cast(operand(2, "f16"), "f32")
    result, dtype = draw(
        st.sampled_from(
            [
                (x, "float32"),
                (max_(x, const(0.0, "f32")), "float32"),
                (cast(x, "f16"), "float16"),
                (gt(x, const(0.0, "f32")), "bool"),
            ]
        )
    )
    expected = (a.astype(np.float64) @ b + bias) * other.astype(np.float64)
    out = empty_like(shape, dtype, *draw(layouts(len(shape))))
    extras = [("f32", bias), ("f16", other)]
    run_node(proto, {"a": laid_out(a, *draw(layouts(a.ndim)))}, [out], epilogue=(result, extras), seed=k)
    if dtype == "bool":
        near = np.abs(expected) < 1e-3
        np.testing.assert_array_equal(out[~near], (expected > 0)[~near])
    else:
        close(out, np.maximum(expected, 0) if result.op == "max" else expected, dtype, k)


# convolutions


@st.composite
def convolutions(draw):
    """Input shape, weights' shape, attributes."""
    axes = draw(st.sampled_from([1, 2, 2, 2, 3]))
    group = draw(st.sampled_from([1, 1, 1, 2, 3]))
    c = group * draw(st.sampled_from([1, 3, 4, 5, 16, 20, 33, 65] if axes < 3 else [1, 3, 5]))
    m = group * draw(st.sampled_from([1, 2, 7, 16, 24, 33]))
    kernel = [draw(st.integers(1, 4 if axes < 3 else 2)) for _ in range(axes)]
    if draw(st.integers(0, 4)) == 0:
        kernel = [1] * axes
    dilations = [draw(st.sampled_from([1, 1, 2])) for _ in range(axes)]
    strides = [draw(st.sampled_from([1, 1, 2, 3])) for _ in range(axes)]
    attributes: dict[str, Any] = {"group": group, "strides": strides}
    mode = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [1] * axes
    if mode == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, 2)) for _ in range(2 * axes)]
        least = [
            max(1, e - b - a)
            for e, b, a in zip(extents, attributes["pads"][:axes], attributes["pads"][axes:], strict=True)
        ]
    else:
        attributes["auto_pad"] = mode
        least = extents
    attributes["dilations"] = dilations
    most = {1: 40, 2: 14, 3: 5}[axes]
    size = [draw(st.integers(low, low + most)) for low in least]
    return (draw(st.integers(1, 3)), c, *size), (m, c // group, *kernel), attributes


@SETTINGS
@given(st.data())
def test_convolutions(data):
    draw = data.draw
    shape, weights, attributes = draw(convolutions())
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    x, w, bias = values(shape, dtype), values(weights, dtype), values(weights[:1], dtype)
    names = ["x", "w", "b"] if draw(st.booleans()) else ["x", "w"]
    constant = draw(st.integers(0, 3)) > 0
    inputs = {"x": (dtype, declared(draw, x=shape)["x"])}
    inputs["x"][1][1] = shape[1]
    constants = {"b": bias}
    if constant:
        constants["w"] = w
    else:
        inputs["w"] = (dtype, weights)
    proto = model([node("Conv", names, ["y"], **attributes)], inputs, ["y"], constants)
    wide = model(
        [node("Conv", names, ["y"], **attributes)],
        {"x": ("float64", shape), "w": ("float64", weights)},
        ["y"],
        {"b": bias.astype(np.float64)},
    )
    expected = evaluate(wide, {"x": x.astype(np.float64), "w": w.astype(np.float64)})[0]
    feeds = {"x": laid_out(x, *draw(layouts(len(shape))))} | ({} if constant else {"w": w})
    out = empty_like(expected.shape, dtype, *draw(layouts(len(shape))))
    run_node(proto, feeds, [out], sizes=sizes_of(x=shape), seed=shape[-1])
    close(out, expected, dtype, int(np.prod(weights[1:])))


@SETTINGS
@given(st.data())
def test_every_alternative_is_right(data):
    """Whatever way is chosen, not only the one by rule: many columns, short lines, few tiles."""
    draw = data.draw
    group = draw(st.sampled_from([1, 1, 2]))
    c, m = (
        group * draw(st.sampled_from([3, 16, 20, 65][group - 1 :])),
        group * draw(st.sampled_from([7, 16, 33, 70, 130])),
    )
    taps = draw(st.sampled_from([(3,), (3, 3), (3, 3), (3, 3), (2, 5)]))
    shape = (draw(st.integers(1, 2)), c, *(draw(st.integers(t, 12)) for t in taps))
    attributes: dict[str, Any] = {"group": group, "pads": [draw(st.integers(0, 1)) for _ in range(2 * len(taps))]}
    attributes["strides"] = [draw(st.sampled_from([1, 1, 2]))] * len(taps)
    x, w = values(shape), values((m, c // group, *taps))
    proto = model(
        [node("Conv", ["x", "w"], ["y"], **attributes)],
        {"x": (np.float32, declared(draw, x=shape)["x"])},
        ["y"],
        {"w": w},
    )
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = c
    wide = model(
        [node("Conv", ["x", "w"], ["y"], **attributes)],
        {n: ("float64", a.shape) for n, a in (("x", x), ("w", w))},
        ["y"],
    )
    exact = evaluate(wide, {"x": x.astype(np.float64), "w": w.astype(np.float64)})[0]
    residual = laid_out(values(exact.shape), *draw(layouts(len(shape))))
    result = (call("add", operand(0, "f32"), operand(1, "f32")), [("f32", residual)])
    feeds = {"x": laid_out(x, *draw(layouts(len(shape))))}
    order = draw(layouts(len(shape)))

    def run(choice: str | None) -> NativeKernel:
        out = empty_like(exact.shape, np.float32, *order)
        kernel = run_node(proto, feeds, [out], epilogue=result, sizes=sizes_of(x=shape), seed=c, choice=choice)
        close(out, exact + residual, k=int(np.prod(w.shape[1:])))
        return kernel

    by_rule = run(None)
    assert len(by_rule.alternatives) > 1
    assert by_rule.alternative == by_rule.alternatives[0]
    assert ("winograd" in by_rule.alternatives) == (
        taps == (3, 3) and attributes["strides"] == [1, 1] and min(c, m) >= 16 * group
    )
    for choice in by_rule.alternatives:
        kernel = run(choice)
        assert kernel.alternative == choice
        assert kernel.alternatives == by_rule.alternatives
        assert ("winograd" in kernel.name) == (choice == "winograd")


@SETTINGS
@given(st.data())
def test_convolutions_with_an_epilogue(data):
    """A residual of any layout is added, the sum is cut at zero."""
    draw = data.draw
    shape, weights, attributes = draw(convolutions())
    x, w = values(shape), values(weights)
    proto = model([node("Conv", ["x", "w"], ["y"], **attributes)], {"x": (np.float32, shape)}, ["y"], {"w": w})
    plain = evaluate(proto, {"x": x})[0]
    scale = values((weights[0], *(1,) * (len(shape) - 2)))
    residual = laid_out(values(plain.shape), *draw(layouts(len(shape))))
    result = max_(call("add", operand(0, "f32") * operand(1, "f32"), operand(2, "f32")), const(0.0, "f32"))
    out = empty_like(plain.shape, np.float32, *draw(layouts(len(shape))))
    feeds = {"x": laid_out(x, *draw(layouts(len(shape))))}
    run_node(proto, feeds, [out], epilogue=(result, [("f32", scale), ("f32", residual)]), seed=shape[-1])
    close(out, np.maximum(plain * scale + residual, 0), k=int(np.prod(weights[1:])))


@SETTINGS
@given(st.data())
def test_convolutions_with_fewer_products(data):
    """Kernels of 3x3 with many channels go through Winograd's transforms: odd sizes, gaps, groups, epilogues."""
    draw = data.draw
    group = draw(st.sampled_from([1, 1, 2]))
    c, m = group * draw(st.sampled_from([16, 17, 35, 48])), group * draw(st.sampled_from([16, 24, 33, 70]))
    sizes = draw(st.tuples(st.integers(14, 20), st.integers(22, 27)))
    pads = [draw(st.integers(0, 2)) for _ in range(4)]
    dtype = draw(st.sampled_from(["float32", "float32", "float16"]))
    x, w = values((draw(st.integers(1, 2)), c, *sizes), dtype), values((m, c // group, 3, 3), dtype)
    shape: Any = list(x.shape)
    if draw(st.booleans()):
        shape[2:] = ["x2", "x3"]
    nodes = [node("Conv", ["x", "w"], ["y"], pads=pads, group=group)]
    proto = model(nodes, {"x": (dtype, shape)}, ["y"], {"w": w})
    kernel_view = view_of(proto)
    assert "winograd" in getattr(CpuBackend().select(kernel_view), "name", "")
    wide = {name: v.astype(np.float64) for name, v in {"x": x, "w": w}.items()}
    expected = evaluate(model(nodes, {n: (v.dtype, v.shape) for n, v in wide.items()}, ["y"]), wide)[0]
    residual = laid_out(values(expected.shape), *draw(layouts(4)))
    kind = {"float32": "f32", "float16": "f16"}[dtype]
    result = max_(cast(operand(0, kind), "f32") + operand(1, "f32"), const(0.0, "f32"))
    out = empty_like(expected.shape, np.float32, *draw(layouts(4)))
    feeds = {"x": laid_out(x, *draw(layouts(4)))}
    run_node(proto, feeds, [out], epilogue=(result, [("f32", residual)]), sizes=sizes_of(x=x.shape), seed=c)
    close(out, np.maximum(expected + residual, 0), dtype, 9 * c)


@pytest.mark.parametrize("channels", [16, 64, 200])
def test_fewer_products_are_accurate(channels):
    """The error stays below twice that of a direct sum of float32 products in runs of 144."""
    x, w = values((1, channels, 24, 24)), values((16, channels, 3, 3))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    exact = np.einsum("nchwij,mcij->nmhw", windows.astype(np.float64), w.astype(np.float64), optimize=True)
    direct = np.zeros(exact.shape, np.float32)
    for first in range(0, channels, 16):
        run = np.zeros(exact.shape, np.float32)
        for c, i, j in np.ndindex(min(16, channels - first), 3, 3):
            run += windows[:, None, first + c, :, :, i, j] * w[None, :, first + c, i, j, None, None]
        direct += run
    proto = model([node("Conv", ["x", "w"], ["y"])], {"x": (np.float32, x.shape)}, ["y"], {"w": w})
    out = empty_like(exact.shape, np.float32, (0, 2, 3, 1))
    run_node(proto, {"x": laid_out(x, (0, 2, 3, 1))}, [out])
    assert np.sqrt(np.mean((out - exact) ** 2)) < 2 * np.sqrt(np.mean((direct - exact) ** 2))


@SETTINGS
@given(st.data())
def test_transposed_convolutions(data):
    draw = data.draw
    axes = draw(st.sampled_from([1, 2, 2, 3]))
    group = draw(st.sampled_from([1, 1, 2]))
    c, m = group * draw(st.sampled_from([1, 3, 16, 20])), draw(st.sampled_from([1, 5, 16, 24]))
    kernel = [draw(st.integers(1, 4 if axes < 3 else 2)) for _ in range(axes)]
    strides = [draw(st.integers(1, 3)) for _ in range(axes)]
    dilations = [draw(st.sampled_from([1, 1, 2])) for _ in range(axes)]
    attributes: dict[str, Any] = {"group": group, "strides": strides, "dilations": dilations}
    sizes = [draw(st.integers(1, {1: 20, 2: 7, 3: 3}[axes])) for _ in range(axes)]
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)]
    kind = draw(st.sampled_from(["pads", "pads", "output_shape", "SAME_UPPER", "SAME_LOWER"]))
    if kind == "pads":
        begins = [draw(st.integers(0, min(2, f - 1))) for f in full]
        ends = [draw(st.integers(0, min(2, f - 1 - b))) for f, b in zip(full, begins, strict=True)]
        attributes["pads"] = [*begins, *ends]
        attributes["output_padding"] = [draw(st.integers(0, s - 1)) for s in strides]
    elif kind == "output_shape":
        attributes["output_shape"] = [draw(st.integers(max(1, f - 3), f + 2)) for f in full]
    else:
        attributes["auto_pad"] = kind
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    shape = (draw(st.integers(1, 2)), c, *sizes)
    x, w, bias = values(shape, dtype), values((c, m, *kernel), dtype), values((m * group,), dtype)
    names = ["x", "w", "b"] if draw(st.booleans()) else ["x", "w"]
    symbolic: Any = list(shape)
    if kind == "pads" and draw(st.booleans()):
        symbolic[2:] = [f"x{i}" for i in range(2, len(shape))]
    nodes = [node("ConvTranspose", names, ["y"], **attributes)]
    constants, inputs = {"b": bias}, {"x": (dtype, symbolic)}
    if constant := draw(st.booleans()):
        constants["w"] = w
    else:
        inputs["w"] = (dtype, w.shape)
    proto = model(nodes, inputs, ["y"], constants)
    wide = {name: v.astype(np.float64) for name, v in {"x": x, "w": w, "b": bias}.items()}
    expected = evaluate(model(nodes, {n: (v.dtype, v.shape) for n, v in wide.items()}, ["y"]), wide)[0]
    out = empty_like(expected.shape, dtype, *draw(layouts(len(shape))))
    feeds = {"x": laid_out(x, *draw(layouts(len(shape))))}
    feeds |= {} if constant else {"w": laid_out(w, *draw(layouts(len(shape))))}
    run_node(proto, feeds, [out], sizes=sizes_of(x=shape), seed=sizes[0])
    close(out, expected, dtype, int(np.prod((c, *kernel))))


@pytest.mark.parametrize("stride", [200, 2**40])
def test_strides_that_would_take_too_many_convolutions(stride):
    """One pixel: the output is no larger than the kernel, whatever the stride."""
    x, w = values((1, 2, 1, 1)), values((2, 3, 3, 3))
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], strides=[stride, stride])]
    compiled = Model(model(nodes, {"x": (np.float32, x.shape)}, ["y"], {"w": w}), Options())
    assert not any(isinstance(s.kernel, NativeKernel) for s in compiled.compiled.plan.steps)
    np.testing.assert_allclose(compiled({"x": x})[0], np.einsum("c,cmhw->mhw", x.reshape(2), w)[np.newaxis], 1e-5, 1e-6)


@SETTINGS
@given(st.data())
def test_deformable_convolutions(data):
    """Offsets within, between and far outside the pixels, some of them no numbers; masks, groups, epilogues."""
    draw = data.draw
    shape, weights, attributes = draw(convolutions())
    attributes.pop("auto_pad", None)
    axes, group = len(shape) - 2, attributes["group"]
    pads = attributes.setdefault("pads", [0] * 2 * axes)
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    extents = [(k - 1) * d + 1 for k, d in zip(weights[2:], attributes["dilations"], strict=True)]
    totals = [n + b + a for n, b, a in zip(shape[2:], pads[:axes], pads[axes:], strict=True)]
    out = [(n - e) // s + 1 for n, e, s in zip(totals, extents, attributes["strides"], strict=True)]
    shared = draw(st.sampled_from([g for g in range(1, shape[1] + 1) if shape[1] % g == 0]))
    attributes["offset_group"] = shared
    taps = int(np.prod(weights[2:])) * shared
    x, w, bias = values(shape, dtype), values(weights, dtype), values(weights[:1], dtype)
    offsets = (values((shape[0], taps * axes, *out)) * draw(st.sampled_from([0, 0.7, 3]))).astype(dtype)
    rare = draw(st.sampled_from([0.0, 1.0, -2.0, 1e4, -np.inf, np.nan]))
    offsets[RNG.random(offsets.shape) < 0.1] = rare
    mask = RNG.random((shape[0], taps, *out)).astype(dtype)
    feeds = {"x": x, "w": w, "o": offsets, "b": bias, "m": mask}
    names = ["x", "w", "o", "b" if draw(st.booleans()) else "", "m" if draw(st.booleans()) else ""]
    nodes = [node("DeformConv", names, ["y"], **attributes)]
    used = {n: v for n, v in feeds.items() if n in names}
    expected = evaluate(
        model(nodes, {n: ("float64", v.shape) for n, v in used.items()}, ["y"]),
        {n: v.astype(np.float64) for n, v in used.items()},
    )[0]
    constants = {n: used.pop(n) for n in ("w", "b") if n in used and draw(st.booleans())}
    symbolic: Any = {n: list(v.shape) for n, v in used.items()}
    symbolic["x"] = [d if a == 1 or draw(st.booleans()) else f"x{a}" for a, d in enumerate(shape)]
    proto = model(nodes, {n: (dtype, s) for n, s in symbolic.items()}, ["y"], constants)
    laid = {n: laid_out(v, *draw(layouts(v.ndim))) for n, v in used.items() if n in "om"}
    laid |= {n: v for n, v in used.items() if n in "wb"}
    order = (0, *range(2, axes + 2), 1)
    laid["x"] = laid_out(x, order, [draw(st.integers(0, 2)) for _ in range(axes + 1)])
    scale = values((weights[0], *(1,) * axes))
    kind = {"float32": "f32", "float64": "f64", "float16": "f16"}[dtype]
    result = cast(operand(0, kind), "f32") * operand(1, "f32")
    target = empty_like(expected.shape, np.float32, *draw(layouts(len(shape))))
    run_node(proto, laid, [target], epilogue=(result, [("f32", scale)]), sizes=sizes_of(x=shape), seed=group)
    loose = dtype if dtype == "float16" else "float32"
    close(target, expected * scale, loose, int(np.prod(weights[1:])))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("c", "m", "taps"), [(33, 1, 2), (65, 8, 2), (64, 8, 3), (64, 9, 3)])
def test_convolutions_of_many_channels_to_a_few(c, m, taps, constant):
    """Sums along k of some hundred products, in vectors along k."""
    x, w = values((1, c, 6, 7)), values((m, c, taps, taps))
    inputs = {"x": (np.float32, x.shape)} | ({} if constant else {"w": (np.float32, w.shape)})
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[taps // 2] * 4)]
    proto = model(nodes, inputs, ["y"], {"w": w} if constant else {})
    feeds = {"x": x} | ({} if constant else {"w": w})
    close(accord.load(proto.SerializeToString())(feeds)[0], evaluate(proto, feeds)[0], k=c * taps * taps)


def test_a_weight_of_zero_hides_an_infinite_pixel():
    """Between two rows of the image, and beside it: what does not take part is not read."""
    x = np.full((1, 1, 3, 3), np.inf, np.float32)
    x[0, 0, 1] = 2
    offsets = np.zeros((1, 2, 3, 3), np.float32)
    offsets[0, 0] = [[1], [0], [-1]]
    offsets[0, 1] = [[0], [0.5], [0]]
    proto = model(
        [node("DeformConv", ["x", "w", "o"], ["y"])],
        {"x": (np.float32, x.shape), "o": (np.float32, offsets.shape)},
        ["y"],
        {"w": np.ones((1, 1, 1, 1), np.float32)},
    )
    out = empty_like((1, 1, 3, 3), np.float32)
    run_node(proto, {"x": laid_out(x, (0, 2, 3, 1)), "o": offsets}, [out])
    np.testing.assert_array_equal(out[0, 0], [[2, 2, 2], [2, 2, 1], [2, 2, 2]])


def test_convolutions_ask_for_channels_last():
    proto = model(
        [node("Conv", ["x", "w"], ["y"])], {"x": (np.float32, ("n", 8, "h", "w"))}, ["y"], {"w": values((4, 8, 3, 3))}
    )
    assert CpuBackend().arrange(view_of(proto)).outputs == ((0, 2, 3, 1),)


# how they are cut


@SETTINGS
@given(st.integers(0, 5000), st.lists(st.integers(1, MOST_CHUNK), max_size=60))
def test_chunks_cover_k(k, pieces):
    for chunks, total in ((chunks_of(k), k), (chunks_of(sum(pieces), pieces), sum(pieces))):
        assert chunks[0].start == 0
        assert [c.start + c.length for c in chunks] == [*(c.start for c in chunks[1:]), total]
        assert all(c.length <= MOST_CHUNK for c in chunks)


@SETTINGS
@given(st.data())
def test_tasks_cover_a_problem(data):
    draw = data.draw
    dtype = draw(st.sampled_from(["f32", "f64"]))
    m, n, k = draw(st.integers(1, 5000)), draw(st.integers(1, 3000)), draw(st.integers(0, 5000))
    vectors = vectors_for(dtype, n)
    problem = Problem(
        dtype,
        vectors,
        heights=tile_heights(dtype, vectors),
        wide=vectors * machine().width(bits(dtype)),
        groups=draw(st.integers(1, 20)),
        m=m,
        n=n,
        chunks=chunks_of(k),
        row_bytes=draw(st.sampled_from([0, 4 * k, 4096])),
        right=draw(st.sampled_from(["packed", "ready", "made"])),
        apart=0,
        tables=0,
    )
    blocks = cut(problem)
    assert blocks.row_tasks * blocks.task_rows >= m > (blocks.row_tasks - 1) * blocks.task_rows
    assert blocks.column_tasks * blocks.task_panels >= blocks.panels > (blocks.column_tasks - 1) * blocks.task_panels
    assert blocks.task_rows % blocks.block == 0
    assert 1 <= blocks.last_vectors <= vectors
    assert tile_heights(dtype, vectors)[0] * vectors <= 28
