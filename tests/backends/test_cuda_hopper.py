"""Contractions for Hopper's warp groups: their text on NumPy with a thread for each group, and compiled."""

from __future__ import annotations

import ctypes
import math
import re

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (190 MB; pip install 'accord[cuda]')")

from contraction_harness import Tensor, convolution, evaluated, packed, product
from disassembly import disassembled
from gluon_harness import Descriptor, Pointer, run_gluon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accord.backends.cuda import program
from accord.backends.cuda.code import Binary, TensorMap, Variant, binary_of
from accord.backends.cuda.contraction import Factor, contraction_kernel
from accord.backends.cuda.convolution import Convolution
from accord.backends.cuda.hopper_contraction import HopperContraction
from accord.backends.cuda.packing import packing_of
from accord.backends.cuda.tiles import Device, Tile, candidates, launches, text_of
from accord.backends.cuda.walks import suits_hopper
from accord.backends.epilogue import Extra, with_sum
from accord.errors import CompileError, ExecutionError
from accord.expr.lang import call, cast, const, operand
from accord.ir.strides import Access
from accord.kernels.architectures import ARCHITECTURES

H200 = Device(90, 227 << 10, 132)
FEW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
#: Relative to the sum of magnitudes, by what is stored.
NEAR = {"f16": 1e-3, "bf16": 1e-2, "f32": 1e-6}


def run(kernel, sizes, tile, tensors, seed=0):
    """Run the text; ``tensors`` are in the order of its pointers."""
    text, launch = text_of(kernel, tile, sizes), launches(kernel, tile, sizes)[0]
    assert isinstance(text, HopperContraction)
    written = text.text()
    heading = re.search(rf"def {text.symbol}\((.*)\):", written)
    assert heading is not None
    names = re.findall(r"\w+_map(?=[,)])", heading[1])
    memories = [t.memory.view(np.int8) if t.memory.dtype == bool else t.memory for t in tensors]
    values = dict(zip([f"p{i}" for i in range(len(tensors))], memories, strict=True))
    for name, m in zip(names, launch.maps, strict=True):
        values[name] = Descriptor(Pointer(memories[m.operand], m.offset), m.shape, m.strides, m.block, steps=m.steps)
    values |= {"work": np.zeros(1, np.float32)} | dict(launch.constants)
    values |= zip(kernel.integers, launch.params, strict=True)
    run_gluon(text.symbol, written, values, launch.grid[0], seed)


def agrees(out, expected, size):
    error = np.abs(out.values.astype(np.float64) - expected)
    assert np.isfinite(error).all()
    assert (error <= NEAR[out.dtype] * (size + np.abs(expected) + 1)).all(), error.max()


#: Rows of a block, columns, elements of a step, steps in flight, blocks; taken in turns.
tiles = st.builds(
    lambda m, n, k, stages, blocks, group, turns: Tile(
        m * (1 if turns else 2), n, k, stages=stages, group=group, hopper=blocks, turns=turns
    ),
    st.sampled_from([16, 32]), st.sampled_from([16, 32, 48, 80]), st.sampled_from([16, 32]), st.integers(2, 4),
    st.integers(1, 4), st.sampled_from([1, 2]), st.booleans(),
)  # fmt: skip


@given(
    shape=st.tuples(*[st.sampled_from([1, 3, 16, 40, 57])] * 2), depth=st.sampled_from([8, 24, 40, 50]),
    batch=st.sampled_from([(), (1,), (3,), (2, 2)]), dtype=st.sampled_from(["f16", "bf16"]),
    stored=st.sampled_from(["f16", "f32", "bf16"]), tile=tiles, seed=st.integers(0, 2**32 - 1), data=st.data(),
)  # fmt: skip
@FEW
def test_products(shape, depth, batch, dtype, stored, tile, seed, data):
    """Either order of A, B and the result in memory, a batch that repeats, sizes that no tile divides, any extras."""
    rng = np.random.default_rng(seed)
    (m, n), k, b = shape, depth, len(batch)
    groups = (batch, (m,), (n,), (k,))

    def tensor(dtype, *sizes, repeated=(), whole=False):
        inner = data.draw(st.sampled_from([i for i in (0, 1) if sizes[i] % 8 == 0] or [1] if whole else [0, 1]))
        return Tensor(rng, dtype, (*batch, *sizes), repeated, [*range(b), b + 1 - inner, b + inner])

    repeated = tuple(range(b)) if data.draw(st.booleans()) else ()
    a, w = tensor(dtype, m, k, repeated=repeated, whole=True), tensor(dtype, k, n, whole=True)
    out = tensor(stored, m, n)
    beside = [tensor("f16", m, n, repeated=r) for r in data.draw(st.lists(st.sampled_from(
        [(), (b,), (b + 1,), tuple(range(b + 1)), tuple(range(b + 2))]), max_size=2))]  # fmt: skip
    total = operand(0, "f32")
    for i in range(len(beside)):
        total = total + cast(operand(1 + i, "f16"), "f32") * const(2.0, "f32")
    kernel, dims = contraction_kernel(
        *groups, Factor(dtype, a.access), Factor(dtype, w.access), out.access, cast(total, stored),
        [Extra("f16", x.access) for x in beside],
    )  # fmt: skip
    numbers = evaluated(dims)
    if not suits_hopper(kernel, numbers):
        assert depth % 8 or 1 in shape
        with pytest.raises(CompileError, match="copy engine"):
            launches(kernel, tile, numbers)
        return
    before = out.memory.copy()
    run(kernel, numbers, tile, [a, w, *beside, out], seed)
    expected = product(a.values, w.values, groups) + 2 * sum(x.values.astype(np.float64) for x in beside)
    size = product(*(np.abs(x.values.astype(np.float64)) for x in (a, w)), groups)
    agrees(out, expected, size)
    written = np.zeros(before.shape, bool)
    np.lib.stride_tricks.as_strided(written[out.access.offset :], out.shape, out.access.strides)[...] = True
    np.testing.assert_array_equal(out.memory[~written], before[~written])


@pytest.mark.parametrize("turns", [False, True])
def test_epilogues(turns):
    """Gelu of what a bias makes of sums, and a residual; and a condition as a result."""
    rng, (m, n, k) = np.random.default_rng(1), (70, 96, 40)
    a, w = (Tensor(rng, "f16", s, order=(0, 1)) for s in ((m, k), (k, n)))
    bias, residual = Tensor(rng, "f16", (m, n), repeated=(0,)), Tensor(rng, "f16", (m, n), order=(0, 1))
    x = operand(0, "f32") + cast(operand(1, "f16"), "f32")
    extras = [Extra("f16", bias.access), Extra("f16", residual.access)]
    gelu = cast(call("gelu_erf", x) + cast(operand(2, "f16"), "f32"), "f16")
    larger = call("gt", x, cast(operand(2, "f16"), "f32"), dtype="bool")
    tile = Tile(32 if turns else 64, 48, 16, stages=3, hopper=3, turns=turns)
    wide = product(a.values, w.values, ((), (m,), (n,), (k,))) + bias.values
    for expr in (gelu, larger):
        out = Tensor(rng, expr.dtype, (m, n), order=(0, 1))
        kernel, dims = contraction_kernel(
            (), (m,), (n,), (k,), Factor("f16", a.access), Factor("f16", w.access), out.access, expr, extras
        )
        run(kernel, evaluated(dims), tile, [a, w, bias, residual, out])
        if expr.dtype == "bool":
            unsure = np.abs(wide - residual.values) < 1e-4
            assert ((out.values == (wide > residual.values)) | unsure).all()
            continue
        expected = wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))) + residual.values
        np.testing.assert_allclose(out.values.astype(np.float64), expected, rtol=2e-3, atol=2e-3)


def test_convolutions_of_one_tap_are_contractions_of_pixels():
    rng, (images, c, size, m) = np.random.default_rng(1), (2, 24, 6, 40)
    order = (0, 2, 3, 1)
    x, out = (Tensor(rng, "f16", (images, n, size, size), order=order) for n in (c, m))
    w = Tensor(rng, "f16", (m, c, 1, 1), order=(2, 3, 1, 0))
    made = Convolution(images, 1, c, m, (size, size), (size, size), (1, 1), (1, 1), (1, 1), (0, 0))
    kernel, dims = made.kernel(
        Factor("f16", x.access), Factor("f16", w.access), out.access, cast(operand(0, "f32"), "f16")
    )
    run(kernel, evaluated(dims), Tile(64, 32, 16, stages=2, hopper=2), [x, w, out])
    expected = np.einsum("ncyx,mc->nmyx", x.values.astype(np.float64), w.values[:, :, 0, 0].astype(np.float64))
    np.testing.assert_allclose(out.values.astype(np.float64), expected, rtol=2e-3, atol=4e-3)


@pytest.mark.parametrize("taps", [(7, 7), (3, 5), (5,)])
def test_images_of_few_channels(taps, tmp_path):
    """Packed; what lies beside a window may be infinite, and no tap of it counts."""
    rank, rng = len(taps), np.random.default_rng(len(taps))
    size, columns = (12,) * rank, 24
    outs = tuple((n + 2 - t) // 2 + 1 for n, t in zip(size, taps, strict=True))
    made = Convolution(2, 1, 3, columns, size, outs, taps, (2,) * rank, (1,) * rank, (1,) * rank)
    packing = packing_of(made, "f16")
    assert packing is not None
    order = [0, *range(2, 2 + rank), 1]
    x, out = (Tensor(rng, "f16", s, order=order) for s in ((2, 3, *size), (2, columns, *outs)))
    weights = rng.standard_normal((columns, 3, *taps)).astype(np.float16)
    x.values[..., size[-1] // 2] = np.inf
    kernel, dims = packing.kernel(out.access, cast(operand(0, "f32"), "f16"))
    assert kernel.tail
    tile = Tile(64, 24, 32, stages=3, hopper=2)
    run(kernel, evaluated(dims), tile, [*packed(tmp_path, packing, x, weights), out])
    place = ((2,) * rank, (1,) * rank, (1,) * rank, outs, 1)
    known, wild = np.where(np.isinf(x.values), 0, x.values), np.isinf(x.values)
    finite = convolution(wild, np.ones_like(weights), *place) == 0
    assert 0 < finite.sum() < finite.size
    error = np.abs(out.values.astype(np.float64) - convolution(known, weights, *place))[finite]
    assert (error <= 2e-3 * convolution(np.abs(known), np.abs(weights), *place)[finite] + 1e-3).all()
    assert not np.isfinite(out.values[~finite].astype(np.float32)).any()


@st.composite
def images(draw):
    """A convolution: images, groups, and its axes."""
    rank = draw(st.integers(1, 3))
    axes = st.tuples(*[st.integers(2, 9 if rank < 3 else 4)] * rank)
    outs, taps = draw(axes), draw(st.tuples(*[st.integers(1, 3)] * rank))
    steps, dilations = (draw(st.tuples(*[st.integers(1, 2)] * rank)) for _ in range(2))
    pads = draw(st.tuples(*[st.integers(0, 3)] * rank))
    beyond = draw(st.tuples(*[st.integers(-2, 1)] * rank))
    numbers = zip(outs, taps, steps, dilations, pads, beyond, strict=True)
    ins = tuple(max(1, (o - 1) * s + (t - 1) * d + 1 - p + b) for o, t, s, d, p, b in numbers)
    return draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2])), (ins, outs, taps, steps, dilations, pads)


@given(
    case=images(), channels=st.sampled_from([8, 24]), columns=st.sampled_from([8, 40]), tile=tiles,
    dtype=st.sampled_from(["f16", "bf16"]), last=st.booleans(), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(FEW, max_examples=60)
def test_convolutions(case, channels, columns, tile, dtype, last, seed):
    """Taps outside of the image, steps, dilations, boxes that reach beyond the result; a bias and a residual."""
    count, groups, (ins, outs, taps, steps, dilations, pads) = case
    rank = len(taps)
    rng, order = np.random.default_rng(seed), [0, *range(2, rank + 2), 1]
    x = Tensor(rng, dtype, (count, groups * channels, *ins), order=order, gap=8)
    laid = order if last else [*range(2, rank + 2), 1, 0]
    w = Tensor(rng, dtype, (groups * columns, channels, *taps), order=laid)
    shape = (count, groups * columns, *outs)
    bias = Tensor(rng, "f32", shape, repeated=(0, *range(2, rank + 2)))
    beside = Tensor(rng, dtype, shape, order=order)
    out = Tensor(rng, dtype, shape, order=None if seed % 3 == 0 else order)
    total = operand(0, "f32") + operand(1, "f32") + cast(operand(2, dtype), "f32")
    kernel, dims = Convolution(count, groups, channels, columns, ins, outs, taps, steps, dilations, pads).kernel(
        Factor(dtype, x.access), Factor(dtype, w.access), out.access, cast(total, dtype),
        [Extra("f32", bias.access), Extra(dtype, beside.access)],
    )  # fmt: skip
    sizes = evaluated(dims)
    if not suits_hopper(kernel, sizes):
        assert 1 in outs or rank + (groups > 1) > 2  # a row axis of one, or more axes than the copy engine walks
        return
    run(kernel, sizes, tile, [x, w, bias, beside, out], seed)
    parameters = (steps, dilations, pads, outs, groups)
    expected = convolution(x.values, w.values, *parameters) + bias.values + beside.values.astype(np.float64)
    agrees(out, expected, convolution(abs(x.values), abs(w.values), *parameters))


def linear(m, n, k, kind=""):
    """Row-major, with weights as they are stored."""
    total, extras = operand(0, "f32") + cast(operand(1, "f16"), "f32"), [Extra("f16", Access((0, 1)))]
    if kind == "gelu":
        total = call("gelu_erf", total)
    if kind == "residual":
        total, extras = total + cast(operand(2, "f16"), "f32"), [*extras, Extra("f16", Access((n, 1)))]
    kernel, dims = contraction_kernel(
        (), (m,), (n,), (k,), Factor("f16", Access((k, 1))), Factor("f16", Access((1, k))), Access((n, 1)),
        cast(total, "f16"), extras,
    )  # fmt: skip
    return kernel, evaluated(dims)


def layer(m, n, k):
    """A product whose sum, as ONNX has it, is of f16 before something is added."""
    stored = call("gelu_erf", cast(operand(0, "f16"), "f32") + cast(operand(1, "f16"), "f32"))
    kernel, dims = contraction_kernel(
        (), (m,), (n,), (k,), Factor("f16", Access((k, 1))), Factor("f16", Access((n, 1))), Access((n, 1)),
        with_sum(cast(stored, "f16"), "f32"), [Extra("f16", Access((0, 1)))],
    )  # fmt: skip
    return kernel, evaluated(dims)


def pixels(channels, size, columns, step, pad):
    """A convolution of 3 by 3 with channels last, with a bias and a residual, and ReLU."""
    out = (size + 2 * pad - 3) // step + 1
    x, y = (Access((n * n * c, 1, n * c, c)) for n, c in ((size, channels), (out, columns)))
    total = operand(0, "f32") + cast(operand(1, "f16"), "f32") + cast(operand(2, "f16"), "f32")
    kernel, dims = Convolution(
        32, 1, channels, columns, (size, size), (out, out), (3, 3), (step, step), (1, 1), (pad, pad)
    ).kernel(
        Factor("f16", x), Factor("f16", Access((9 * channels, 1, 3 * channels, channels))), y,
        cast(call("max", total, const(0.0, "f32")), "f16"), [Extra("f16", Access((0, 1, 0, 0))), Extra("f16", y)],
    )  # fmt: skip
    return kernel, evaluated(dims)


PROBLEMS = {
    "images": pixels(128, 28, 128, 1, 1),
    "every second pixel": pixels(256, 28, 256, 2, 1),
    "taps inside": pixels(64, 35, 96, 1, 0),
    "of ONNX": layer(6304, 3072, 768),
    "one wave": linear(4096, 768, 3072, "residual"),
    "gelu": linear(6304, 3072, 768, "gelu"),
    "large": linear(8192, 8192, 8192),
    "few rows": linear(1024, 768, 768),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_best_tiles_compile_well(name, tmp_path):
    kernel, sizes = PROBLEMS[name]
    found = [t for t in candidates(kernel, sizes, H200, 12) if t.hopper]
    assert found
    for tile in found[:3]:
        launch = launches(kernel, tile, sizes)[0]
        made = binary_of(Variant.of(text_of(kernel, tile, sizes), launch, aligned=True), 90)
        assert made.spills == 0, tile
        assert made.threads == (512 if tile.m % 3 == 0 else 384)
        assert made.shared <= ARCHITECTURES["sm_90"].shared
        assert len(made.maps) == len(launch.maps)
        code = "\n".join(disassembled(made.cubin, tmp_path))
        assert code.count("HGMMA") > 2 * code.count("WARPGROUP.ARRIVE"), "each product waits for the one before"


def test_three_groups():
    rng, (m, n, k) = np.random.default_rng(1), (100, 80, 40)
    a, w, out = (Tensor(rng, "f16", s, order=(0, 1)) for s in ((m, k), (k, n), (m, n)))
    kernel, dims = contraction_kernel(
        (), (m,), (n,), (k,), Factor("f16", a.access), Factor("f16", w.access), out.access,
        cast(operand(0, "f32"), "f16"),
    )  # fmt: skip
    run(kernel, evaluated(dims), Tile(48, 48, 16, stages=3, group=1, hopper=3), [a, w, out])
    groups = ((), (m,), (n,), (k,))
    agrees(out, product(a.values, w.values, groups), product(abs(a.values), abs(w.values), groups))


def test_ways_of_one_shape_are_both_offered():
    """Groups that work together and groups that take turns are two tiles, also where rows and columns are the same."""
    kernel, sizes = PROBLEMS["gelu"]
    found = candidates(kernel, sizes, H200, 24)
    shapes = [(t.m, t.n, t.hopper > 0, t.turns) for t in found]
    assert max(map(shapes.count, shapes)) <= 2
    assert {(128, 128, True, False), (128, 128, True, True)} <= set(shapes)
    assert any(t.m % 3 == 0 for t in found)


def test_where_it_is_not_used():
    kernel, sizes = PROBLEMS["large"]
    assert not any(t.hopper for t in candidates(kernel, sizes, Device(100, 227 << 10, 148), 64))
    for m, n, k in ((64, 64, 100), (64, 64, 4)):  # rows of A are no whole 16 bytes
        kernel, sizes = linear(m, n, k)
        assert not suits_hopper(kernel, sizes)
        assert not any(t.hopper for t in candidates(kernel, sizes, H200, 64))
    a, b = (Factor("f32", Access((64, 1))) for _ in range(2))
    kernel, dims = contraction_kernel((), (64,), (64,), (64,), a, b, Access((64, 1)), operand(0, "f32"))
    assert not suits_hopper(kernel, evaluated(dims))


def test_a_symbol_names_one_text():
    texts: dict[str, str] = {}
    count = 0
    for kernel, sizes in PROBLEMS.values():
        for tile in (t for t in candidates(kernel, sizes, H200, 64) if t.hopper):
            text = text_of(kernel, tile, sizes)
            assert texts.setdefault(text.symbol, text.text()) == text.text()
            count += 1
    assert 4 < len(texts) <= count


class Recorder:
    """A device that notes which tensor maps are written, and where arguments of launches are."""

    architecture = 90

    def __init__(self):
        self.maps, self.started = [], []

    def write_map(self, target, address, *described):
        assert target % 64 == 0
        self.maps.append((target, address, *described))

    def function(self, cubin, name, block, shared, cluster):
        return name

    def launch(self, function, grid, parameters, stream, *, early):
        assert not early
        self.started.append((grid, parameters))


def test_the_host_describes_operands(monkeypatch):
    """A description is written once for each address, and is an argument with its shape and strides behind it."""
    kernel, sizes = PROBLEMS["one wave"]
    tile = next(t for t in candidates(kernel, sizes, H200, 12) if t.hopper)
    launch, text = launches(kernel, tile, sizes)[0], text_of(kernel, tile, sizes)
    boxes = tuple((3, (m.block[0], 64)) for m in launch.maps)
    binary = Binary(b"", "name", 384, 1024, 2, 0, 168, 0, maps=boxes)
    monkeypatch.setattr(program, "binary_of", lambda variant, target: binary)
    gpu, table = Recorder(), np.array([1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20, 0], np.int64)
    one = program._Kernel(gpu, text, launch, table, 0)
    one.start(0)
    one.start(0)
    a, *others = gpu.maps
    assert a[1:] == (1 << 20, "f16", (4096, 3072), [6144], (64, 64), 3, ())
    assert [m[1] for m in others] == [2 << 20] * (len(others) - 1) + [5 << 20]
    table[0] += 4096
    one.start(0)
    assert [m[1] for m in gpu.maps[len(others) + 1 :]] == [(1 << 20) + 4096]
    count = len(table) + sum(1 + 2 * len(m.shape) for m in launch.maps)
    cells = (ctypes.c_void_p * count).from_address(gpu.started[0][1])
    values = [ctypes.c_int64.from_address(c).value for c in cells[len(table) + 1 : len(table) + 5]]
    assert cells[len(table)] == a[0]
    assert values == [4096, 3072, 3072, 1]
    assert [grid for grid, _ in gpu.started] == [launch.grid] * 3
    table[0] += 2
    with pytest.raises(ExecutionError, match="multiple of 16 bytes"):
        one.start(0)


def test_maps_are_types_that_gluon_knows():
    assert TensorMap(0, 0, "bf16", (8, 64), (64, 1), (8, 32)).type == (
        "tensordesc<bf16[8, 32],NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2, "
        "transposed=False, fp4_padded=False, cga_layout=[])>"
    )
    assert "swizzle_byte_width=128" in TensorMap(0, 0, "f32", (1, 8, 64), (1, 64, 1), (1, 8, 96)).type
    assert "swizzle_byte_width=0" in TensorMap(0, 0, "f16", (4, 64), (64, 1), (4, 64)).type
