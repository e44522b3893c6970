"""Contractions and convolutions in Triton: in its interpreter beside NumPy, and compiled; no GPU is needed."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (190 MB; pip install 'accord[cuda]')")

from contraction_harness import Tensor, compiled, convolution, evaluated, packed, product, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accord.backends.cuda import tile_choice
from accord.backends.cuda.code import exact_hints
from accord.backends.cuda.contraction import Factor, accumulator, contraction_kernel
from accord.backends.cuda.convolution import Convolution
from accord.backends.cuda.packing import packing_of
from accord.backends.cuda.tiles import Device, Tile, candidates, launches
from accord.backends.epilogue import Extra
from accord.errors import CompileError
from accord.expr.lang import call, cast, const, operand
from accord.ir import dims as D
from accord.ir.strides import Access
from accord.kernels.architectures import ARCHITECTURES

H200 = Device(90, 227 << 10, 132)
FEW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
#: Relative to the sum of magnitudes: of the sums' type, and of what is stored.
NEAR = {"f32": 1e-6, "f64": 1e-14, "f16": 1e-3, "bf16": 1e-2, "i32": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("contractions")


def agrees(got, expected, size, dtype):
    """Within rounding of sums of terms whose magnitudes sum to ``size``."""
    if np.asarray(got).dtype.kind in "iu":
        np.testing.assert_array_equal(got, expected)
        return
    error = np.abs(np.asarray(got, np.float64) - expected)
    assert np.isfinite(error).all()
    assert (error <= NEAR[dtype] * (size + np.abs(expected) + 1)).all(), error.max()


sizes = st.sampled_from([0, 1, 2, 3, 5, 8, 16, 17, 33, 50])
tiles = st.builds(
    Tile, st.sampled_from([16, 32]), st.sampled_from([16, 32]), st.sampled_from([32, 64]), st.just(4),
    st.sampled_from([1, 2]), st.sampled_from([1, 3]), st.sampled_from([1, 1, 2, 5]), st.booleans(),
)  # fmt: skip


def tile_for(tile, kernel):
    """``flat`` means something only where there are several depth axes; sums that are made across are not split."""
    if kernel.across:
        return Tile(tile.m, tile.n, tile.k)
    return tile if kernel.axes[3] > 1 else Tile(tile.m, tile.n, tile.k, splits=tile.splits, group=tile.group)


@st.composite
def groups_of_axes(draw):
    """Shapes of batch, rows, columns and depth."""
    most = [draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=2))]
    for _ in range(3):
        several = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=3)
        most.append(draw(st.one_of(st.lists(sizes, min_size=1, max_size=1), several)))
    return tuple(map(tuple, most))


@given(groups_of_axes(), tiles, st.sampled_from(["f32", "f16", "bf16", "f64", "i8"]), st.integers(0, 2**32), st.data())
@FEW
def test_products_of_any_strides(folder, groups, tile, dtype, seed, data):
    """Batch, rows, columns and depth of several axes, in any order in memory, repeated, with gaps."""
    batch, rows, columns, depth = groups
    rng = np.random.default_rng(seed)

    def tensor(kind, *shapes, repeats=True):
        shape = sum(shapes, ())
        repeated = data.draw(st.sets(st.sampled_from(range(len(shape))), max_size=1)) if repeats and shape else ()
        return Tensor(rng, kind, shape, repeated, gap=data.draw(st.sampled_from([0, 0, 3])))

    a, b = tensor(dtype, batch, rows, depth), tensor(dtype, batch, depth, columns)
    sums = accumulator(dtype)
    stored = "i32" if sums == "i32" else dtype
    beside = tensor(stored, batch, rows, columns)
    out = tensor(stored, batch, rows, columns, repeats=False)
    total = operand(0, sums) + cast(operand(1, stored), sums) * const(2, sums)
    kernel, dims = contraction_kernel(
        *groups, Factor(dtype, a.access), Factor(dtype, b.access), out.access, cast(total, stored),
        [Extra(stored, beside.access)],
    )  # fmt: skip
    before = out.memory.copy()
    run(folder, kernel, evaluated(dims), tile_for(tile, kernel), [a, b, beside, out])
    expected = product(a.values, b.values, groups) + 2 * beside.values.astype(np.float64)
    size = product(np.abs(a.values.astype(np.float64)), np.abs(b.values.astype(np.float64)), groups)
    agrees(out.values, expected, size, stored)
    out.values[...] = 0
    written = np.zeros(before.shape, bool)
    mark = np.lib.stride_tricks.as_strided(written[out.access.offset :], out.shape, out.access.strides)
    mark[...] = True
    np.testing.assert_array_equal(out.memory[~written], before[~written])


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_epilogues_of_any_broadcast(folder, shape, splits):
    """An extra along some of batch, rows and columns; a condition as a result."""
    b, m, n, k = 2, 19, 37, 65
    rng = np.random.default_rng(3)
    a, w, out = (Tensor(rng, t, s) for t, s in (("f16", (b, m, k)), ("f16", (b, k, n)), ("bool", (b, m, n))))
    extra = Tensor(rng, "f32", (b, m, n), repeated=set(range(3)) - set(shape))
    expr = call("gt", call("tanh", operand(0, "f32")), operand(1, "f32"), dtype="bool")
    kernel, dims = contraction_kernel(
        (b,), (m,), (n,), (k,), Factor("f16", a.access), Factor("f16", w.access), out.access, expr,
        [Extra("f32", extra.access)],
    )  # fmt: skip
    run(folder, kernel, evaluated(dims), Tile(16, 32, 32, splits=splits), [a, w, extra, out])
    wide = np.tanh(product(a.values, w.values, ((b,), (m,), (n,), (k,))))
    unsure = np.abs(wide - extra.values) < 1e-5
    assert ((out.values == (wide > extra.values)) | unsure).all()
    assert unsure.mean() < 0.5


def test_an_epilogue_need_not_use_the_sum(folder):
    rng = np.random.default_rng(3)
    a, b, out = (Tensor(rng, "f32", s) for s in ((20, 5), (5, 20), (20, 20)))
    bias = Tensor(rng, "f32", (20, 20), repeated=(0,))
    kernel, dims = contraction_kernel(
        (), (20,), (20,), (5,), Factor("f32", a.access), Factor("f32", b.access), out.access, operand(1, "f32"),
        [Extra("f32", bias.access)],
    )  # fmt: skip
    run(folder, kernel, evaluated(dims), Tile(16, 16, 16), [a, b, bias, out])
    np.testing.assert_array_equal(out.values, bias.values)


@given(st.sampled_from([1, 7, 32, 40]), st.sampled_from([0, 1, 5, 32, 70]), st.integers(0, 2**32), tiles)
@FEW
def test_weights_as_codes(folder, n, k, seed, tile):
    """Prologues with scales along the columns of B and with offsets along the depth of A; infinite where nothing is."""
    rng, m = np.random.default_rng(seed), 18
    a, codes, out = Tensor(rng, "f32", (m, k)), Tensor(rng, "u8", (k, n)), Tensor(rng, "f32", (m, n))
    scale, added = Tensor(rng, "f32", (k, n), repeated=(0,)), Tensor(rng, "f32", (m, k), repeated=(0,))
    added.memory[:] = np.abs(added.memory) + 1
    left = operand(0, "f32") / call("abs", operand(1, "f32"))
    right = (cast(operand(0, "u8"), "f32") - const(128, "f32")) * operand(1, "f32")
    kernel, dims = contraction_kernel(
        (), (m,), (n,), (k,),
        Factor("f32", a.access, left, (Extra("f32", added.access),)),
        Factor("u8", codes.access, right, (Extra("f32", scale.access),)),
        out.access, operand(0, "f32"),
    )  # fmt: skip
    run(folder, kernel, evaluated(dims), tile_for(tile, kernel), [a, codes, added, scale, out])
    wide = [a.values / added.values, (codes.values.astype(np.float64) - 128) * scale.values]
    groups = ((), (m,), (n,), (k,))
    agrees(out.values, product(*wide, groups), product(*map(np.abs, wide), groups), "f32")


def of_codes(zeros, m, n, k):
    """``(a - za) @ (b - zb)`` of a: u8, b: i8; zero points over rows of A and columns of B, if any."""
    factors = []
    for dtype, steps, over in (("u8", (k, 1), (1, 0)), ("i8", (n, 1), (0, 1))):
        less = cast(operand(1, dtype), "i32") if zeros else const(0, "i32")
        extras = (Extra(dtype, Access(over)),) if zeros else ()
        factors.append(Factor(dtype, Access(steps), cast(cast(operand(0, dtype), "i32") - less, "f16"), extras))
    return contraction_kernel((), (m,), (n,), (k,), *factors, Access((n, 1)), operand(0, "i32"), precision="whole")


@given(st.booleans(), st.booleans(), st.sampled_from([1, 31, 259, 700]), st.integers(0, 2**32), tiles)
@FEW
def test_sums_of_whole_numbers_are_exact(folder, zeros, extreme, k, seed, tile):
    """Also beyond what float32 holds, 2**24: the largest differences are 255 in size."""
    rng, (m, n) = np.random.default_rng(seed), (18, 20)
    lying = [("u8", (m, k)), ("i8", (k, n)), *([("u8", (m,)), ("i8", (n,))] if zeros else []), ("i32", (m, n))]
    tensors = [Tensor(rng, dtype, shape, order=range(len(shape))) for dtype, shape in lying]
    if extreme:
        for t, value in zip(tensors, (255, -128, 0, 127), strict=False):
            t.memory[:] = value
    kernel, dims = of_codes(zeros, m, n, k)
    run(folder, kernel, evaluated(dims), tile_for(tile, kernel), tensors)
    left, right, *less, out = [t.values.astype(np.int64) for t in tensors]
    if zeros:
        left, right = left - less[0][:, None], right - less[1]
    np.testing.assert_array_equal(out, left @ right)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("orders", [((0, 1, 2), (0, 1, 2)), ((0, 2, 1), (0, 1, 2)), ((0, 1, 2), (0, 2, 1))])
def test_descriptors(folder, orders, splits):
    """Either axis of A and of B may be that of the neighbours; tiles reach beyond all edges."""
    b, m, n, k = 2, 40, 56, 72
    rng = np.random.default_rng(5)
    a, w = (Tensor(rng, "f16", s, order=o) for s, o in zip(((b, m, k), (b, k, n)), orders, strict=True))
    out, scale = Tensor(rng, "f32", (b, m, n)), Tensor(rng, "f32", (b, m, k), repeated=(0, 2))
    scaled = cast(cast(operand(0, "f16"), "f32") * operand(1, "f32"), "f16")
    kernel, dims = contraction_kernel(
        (b,), (m,), (n,), (k,), Factor("f16", a.access, scaled, (Extra("f32", scale.access),)),
        Factor("f16", w.access), out.access, operand(0, "f32"),
    )  # fmt: skip
    assert kernel.describable
    run(folder, kernel, evaluated(dims), Tile(32, 32, 32, splits=splits, described=True), [a, w, scale, out])
    left = (a.values.astype(np.float32) * scale.values).astype(np.float16)
    groups = ((b,), (m,), (n,), (k,))
    agrees(out.values, product(left, w.values, groups), product(abs(left), abs(w.values), groups), "f32")


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    axes = []
    for _ in range(rank):
        taps, step, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
        before, after = draw(st.integers(-1, 2)), draw(st.integers(0, 2))
        size = draw(st.integers(1, 6 if rank > 1 else 20))
        outputs = (size + before + after - (taps - 1) * dilation - 1) // step + 1
        axes.append((size, max(0, outputs), taps, step, dilation, before))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    return (
        draw(st.integers(0, 2)),
        groups,
        draw(st.sampled_from([1, 3, 16, 20])),
        draw(st.sampled_from([1, 5, 32])),
        axes,
    )


@given(convolutions(), tiles, st.sampled_from(["f32", "f16"]), st.booleans(), st.integers(0, 2**32))
@FEW
def test_convolutions(folder, case, tile, dtype, last, seed):
    """One to three axes, groups, steps, dilations, padding before and behind (also negative), in any layout."""
    images, groups, channels, columns, axes = case
    ins, outs, taps, steps, dilations, pads = zip(*axes, strict=True)
    rng, rank = np.random.default_rng(seed), len(axes)
    order = (0, *range(2, 2 + rank), 1) if last else None
    x = Tensor(rng, dtype, (images, groups * channels, *ins), order=order)
    w = Tensor(rng, dtype, (groups * columns, channels, *taps), order=(*range(2, 2 + rank), 1, 0) if last else None)
    out = Tensor(rng, dtype, (images, groups * columns, *outs), order=order)
    bias = Tensor(rng, dtype, out.shape, repeated=set(range(2 + rank)) - {1})
    expr = call("max", operand(0, "f32") + cast(operand(1, dtype), "f32"), const(0.0, "f32"))
    kernel, dims = Convolution(images, groups, channels, columns, ins, outs, taps, steps, dilations, pads).kernel(
        Factor(dtype, x.access), Factor(dtype, w.access), out.access, cast(expr, dtype), [Extra(dtype, bias.access)]
    )
    run(folder, kernel, evaluated(dims), tile_for(tile, kernel), [x, w, bias, out])
    parameters = (steps, dilations, pads, outs, groups)
    size = convolution(np.abs(x.values), np.abs(w.values), *parameters)
    expected = np.maximum(convolution(x.values, w.values, *parameters) + bias.values.astype(np.float64), 0)
    agrees(out.values, expected, size, dtype)


@given(
    st.integers(1, 3), st.integers(1, 7), st.integers(2, 8), st.integers(1, 3), st.sampled_from(["f16", "bf16"]),
    st.booleans(), tiles, st.integers(0, 2**32),
)  # fmt: skip
@FEW
def test_images_of_few_channels_are_packed(folder, rank, channels, taps, step, dtype, last, tile, seed):
    """Any number of them, any padding; what lies beside a window may be infinite."""
    rng = np.random.default_rng(seed)
    images, columns, taps = int(rng.integers(0, 3)), int(rng.integers(1, 20)), (*rng.integers(1, 4, rank - 1), taps)
    steps, dilations = (*rng.integers(1, 4, rank - 1), step), (*rng.integers(1, 3, rank - 1), 1)
    pads, outs = rng.integers(-1, 3, rank), rng.integers(0 if seed % 9 == 0 else 1, 6, rank)
    sizes = (outs - 1) * steps + (np.array(taps) - 1) * dilations + 1 - pads - rng.integers(-1, 3, rank)
    ins, outs, taps, steps, dilations, pads = (
        tuple(map(int, v)) for v in (np.maximum(sizes, 1), outs, taps, steps, dilations, pads)
    )
    problem = Convolution(images, 1, channels, columns, ins, outs, taps, steps, dilations, pads)
    packing = packing_of(problem, dtype)
    assert packing is not None
    order = (0, *range(2, 2 + rank), 1) if last else None
    x, out = (Tensor(rng, dtype, s, order=order) for s in ((images, channels, *ins), (images, columns, *outs)))
    weights = rng.standard_normal((columns, channels, *taps)).astype(x.memory.dtype)
    if x.values.size and seed % 2:
        x.values[..., -1] = np.inf  # the last column of each row
    kernel, dims = packing.kernel(out.access, cast(operand(0, "f32"), dtype))
    tensors = [*packed(folder, packing, x, weights), out]
    run(folder, kernel, evaluated(dims), tile_for(tile, kernel), tensors)
    place = (steps, dilations, pads, outs, 1)
    wild = np.isinf(x.values)
    finite = convolution(wild, np.ones_like(weights), *place) == 0
    known = np.where(wild, 0, x.values)
    expected, size = convolution(known, weights, *place), convolution(np.abs(known), np.abs(weights), *place)
    agrees(out.values[finite], expected[finite], size[finite], dtype)
    assert not np.isfinite(out.values[~finite].astype(np.float32)).any()


@given(
    st.integers(1, 3), st.sampled_from([1, 2, 3, 4]), st.sampled_from(["f16", "bf16"]), st.booleans(), tiles,
    st.integers(0, 2**32),
)  # fmt: skip
@FEW
def test_patches_are_packed_as_the_rows_of_a_product(folder, rank, channels, dtype, last, tile, seed):
    """Windows that lie side by side; images may have more than whole ones, or end within one."""
    rng = np.random.default_rng(seed)
    images, columns = int(rng.integers(0, 3)), int(rng.integers(1, 20))
    taps = (*map(int, rng.integers(1, 4, rank - 1)), 8)
    outs = tuple(map(int, rng.integers(1, 4, rank)))
    ins = tuple(max(1, o * t + int(rng.integers(-1, 2))) for o, t in zip(outs, taps, strict=True))
    problem = Convolution(images, 1, channels, columns, ins, outs, taps, taps, (1,) * rank, (0,) * rank)
    packing = packing_of(problem, dtype)
    assert packing is not None and packing.patches
    order = (0, *range(2, 2 + rank), 1) if last else None
    x, out = (Tensor(rng, dtype, s, order=order) for s in ((images, channels, *ins), (images, columns, *outs)))
    weights = rng.standard_normal((columns, channels, *taps)).astype(x.memory.dtype)
    kernel, dims = packing.kernel(out.access, cast(operand(0, "f32"), dtype))
    assert kernel.axes[3] == 1
    tensors = [*packed(folder, packing, x, weights), out]
    run(folder, kernel, evaluated(dims), tile_for(tile, kernel), tensors)
    place = (taps, (1,) * rank, (0,) * rank, outs, 1)
    expected = convolution(x.values, weights, *place)
    agrees(out.values, expected, convolution(np.abs(x.values), np.abs(weights), *place), dtype)


@given(st.integers(1, 3), st.sampled_from([1, 5, 40]), st.sampled_from([1, 7, 40]), st.integers(1, 4), st.data())
@FEW
def test_products_made_across(folder, columns, batch, rows, depth, data):
    """Many small products, of any strides, also of an operand that repeats; long sums are not unrolled."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    depth = data.draw(st.sampled_from([depth, 60]))
    groups = ((batch,), (rows,), (columns,), (depth,))
    repeated = data.draw(st.sampled_from([(), (0,), (1,), (2,)]))
    a, b = Tensor(rng, "f16", (batch, rows, depth), repeated), Tensor(rng, "f32", (batch, depth, columns))
    out = Tensor(rng, "f32", (batch, rows, columns))
    kernel, dims = contraction_kernel(
        *groups, Factor("f16", a.access, cast(operand(0, "f16"), "f32") + 1.0), Factor("f32", b.access), out.access,
        operand(0, "f32"), across=True,
    )  # fmt: skip
    run(folder, kernel, evaluated(dims), Tile(16, 32, 16), [a, b, out])
    wide = a.values.astype(np.float64) + 1
    agrees(out.values, product(wide, b.values, groups), product(abs(wide), abs(b.values), groups), "f32")


def symbolic_linear():
    m, k = D.symbol("m"), D.symbol("k")
    kernel, dims = contraction_kernel(
        (), (m,), (48,), (k,), Factor("f16", Access((k, 1))), Factor("f16", Access((48, 1))), Access((48, 1)),
        cast(operand(0, "f32"), "f16"),
    )  # fmt: skip
    return kernel, dims


def test_one_kernel_serves_all_sizes(folder):
    kernel, dims = symbolic_linear()
    rng = np.random.default_rng(0)
    for m, k in ((1, 7), (33, 16), (5, 1), (0, 4), (4, 0)):
        env = {"m": m, "k": k}
        numbers = evaluated(dims, env)
        a, b, out = (Tensor(rng, "f16", s, order=(0, 1)) for s in ((m, k), (k, 48), (m, 48)))
        for tile in [t for t in candidates(kernel, numbers, H200, 64) if not t.hopper][:2]:
            run(folder, kernel, numbers, tile, [a, b, out])
            groups = ((), (m,), (48,), (k,))
            agrees(
                out.values, product(a.values, b.values, groups), product(abs(a.values), abs(b.values), groups), "f16"
            )


def test_a_symbol_names_one_text():
    texts = {}
    for precision in ("ieee", "tf32"):
        for columns in (1, 8):
            for dtype in ("f32", "f16"):
                kernel, _ = contraction_kernel(
                    (), (9,), (columns,), (8,), Factor(dtype, Access((8, 1))), Factor(dtype, Access((columns, 1))),
                    Access((columns, 1)), operand(0, "f32"), precision=precision,
                )  # fmt: skip
                assert texts.setdefault(kernel.symbol, kernel.text()) == kernel.text()
    assert len(texts) == 8


def linear(dtype, m, n, k, act=True, precision="ieee"):
    """``gelu(x @ w + bias) + residual``."""
    sums = accumulator(dtype)
    total = operand(0, sums)
    if act:
        total = total + cast(operand(1, dtype), sums)
        total = total * 0.5 * (call("erf", total * math.sqrt(0.5)) + 1.0) + cast(operand(2, dtype), sums)
    extras = [Extra(dtype, Access((0, 1))), Extra(dtype, Access((n, 1)))] if act else []
    return contraction_kernel(
        (), (m,), (n,), (k,), Factor(dtype, Access((k, 1))), Factor(dtype, Access((n, 1))), Access((n, 1)),
        cast(total, dtype) if sums != "i32" else total, extras, precision=precision,
    )  # fmt: skip


def image(channels, size):
    return Access((size * size * channels, 1, size * channels, channels))


def conv2d(dtype, images, channels, size, taps, columns, step=1, groups=1):
    pad = taps // 2
    outputs = (size + 2 * pad - taps) // step + 1
    total = call("max", operand(0, "f32") + cast(operand(1, dtype), "f32"), const(0.0, "f32"))
    total_columns = columns * groups
    weights = Access((1, total_columns, taps * channels * total_columns, channels * total_columns))
    made = Convolution(
        images, groups, channels, columns, (size, size), (outputs, outputs), (taps, taps), (step, step), (1, 1),
        (pad, pad),
    )  # fmt: skip
    return made.kernel(
        Factor(dtype, image(channels * groups, size)), Factor(dtype, weights), image(total_columns, outputs),
        cast(total, dtype), [Extra(dtype, Access((0, 1, 0, 0)))],
    )  # fmt: skip


PROBLEMS = {
    "large": linear("f16", 4096, 3072, 768),
    "small": linear("bf16", 128, 768, 768),
    "one row": linear("f16", 1, 1000, 2048),
    "odd": linear("f16", 197, 1001, 333),
    "float32": linear("f32", 512, 512, 512),
    "tf32": linear("f32", 512, 512, 512, precision="tf32"),
    "float64": linear("f64", 128, 128, 128, act=False),
    "int8": linear("i8", 512, 512, 512, act=False),
    "codes": of_codes(False, 128, 384, 384),
    "codes less zero points": of_codes(True, 37, 1536, 384),
    "convolution": conv2d("f16", 32, 64, 56, 3, 64),
    "convolution of few channels": conv2d("f16", 8, 3, 224, 7, 64, 2),
    "depthwise": conv2d("f16", 2, 1, 56, 3, 1, groups=96),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_tile_by_rule_compiles_without_spills(name, architecture):
    kernel, dims = PROBLEMS[name]
    a = ARCHITECTURES[architecture]
    (tile, *_) = candidates(kernel, list(dims), Device(a.number, a.shared, 132))
    for built in compiled(kernel, list(dims), tile, a.number):
        assert built.spills == 0, (tile, built.name)
        assert built.shared <= a.shared


@pytest.mark.parametrize("rows", [1, 6, 20, 33, 64, 100])
@pytest.mark.parametrize("batch", [1, 1000])
def test_every_product_has_a_tile(rows, batch):
    accesses = (Access((rows * 8, 8, 1)), Access((8 * 5, 5, 1)), Access((rows * 5, 5, 1)))
    a, b, out = accesses
    kernel, dims = contraction_kernel(
        (batch,), (rows,), (5,), (8,), Factor("f16", a), Factor("f16", b), out, operand(0, "f32")
    )
    assert candidates(kernel, list(dims), H200)


@pytest.mark.parametrize("rows", [1, 16, 40, 64, 200, 5000])
@pytest.mark.parametrize("depth", [16, 768, 3072, 100_000])
@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_every_product_has_a_tile_that_needs_no_workspace(rows, depth, dtype, monkeypatch):
    """Where sizes are known only in the run, there is no room for parts of sums, and no text but the kernel's own."""
    monkeypatch.setattr(tile_choice, "gpu", lambda: H200)
    kernel, dims = linear(dtype, rows, 768, depth)
    choice = tile_choice.contraction_choice(kernel, exact_hints(dims), (), 0, (*dims, 0), plain=True)
    assert choice.rule.splits == 1
    assert not choice.rule.hopper


def test_candidates_fit_and_differ():
    for kernel, dims in PROBLEMS.values():
        found = candidates(kernel, list(dims), H200)
        assert 1 <= len(found) <= 6
        assert len(set(found)) == len(found)
        p = kernel.problem(list(dims))
        for t in found:
            assert launches(kernel, t, list(dims))[0].tasks >= p.batch
            assert t.splits == 1 or t.splits <= -(-p.k // t.k)


def test_descriptors_are_offered_where_launches_have_scratch_memory():
    for name, wanted in (("large", True), ("odd", False), ("convolution", False), ("float32", False)):
        kernel, dims = PROBLEMS[name]
        assert not any(t.described for t in candidates(kernel, list(dims), H200, 64))
        assert any(t.described for t in candidates(kernel, list(dims), H200, 64, described=True)) == wanted


def test_few_tiles_with_long_sums_are_split_and_many_are_not():
    kernel, dims = linear("f16", 16, 768, 8192)
    assert any(t.splits > 1 for t in candidates(kernel, list(dims), H200))
    kernel, dims = linear("f16", 8192, 8192, 8192)
    first, *others = candidates(kernel, list(dims), H200)
    assert first.m * first.n >= 128 * 128
    assert all(t.splits == 1 for t in (first, *others))


def test_faults_are_named():
    a, b = Factor("f16", Access((8, 1))), Factor("f16", Access((8, 1)))
    with pytest.raises(CompileError, match="one type"):
        contraction_kernel((), (8,), (8,), (8,), a, Factor("f32", b.access), Access((8, 1)), operand(0, "f32"))
    with pytest.raises(CompileError, match="no contraction multiplies u16"):
        u = Factor("u16", a.access)
        contraction_kernel((), (8,), (8,), (8,), u, u, Access((8, 1)), operand(0, "f32"))
    with pytest.raises(CompileError, match="no way to multiply"):
        contraction_kernel((), (8,), (8,), (8,), a, b, Access((8, 1)), operand(0, "f32"), precision="fast")
    with pytest.raises(CompileError, match="as float16"):
        f = Factor("f32", a.access)
        contraction_kernel((), (8,), (8,), (8,), f, f, Access((8, 1)), operand(0, "i32"), precision="whole")
    with pytest.raises(CompileError, match="as many products"):
        kernel, dims = PROBLEMS["codes"]
        launches(kernel, Tile(16, 16, 512), list(dims))
    with pytest.raises(CompileError, match="not those of its axes"):
        contraction_kernel((3,), (8,), (8,), (8,), a, b, Access((8, 1)), operand(0, "f32"))
    kernel, dims = PROBLEMS["depthwise"]
    with pytest.raises(CompileError, match="not split"):
        launches(kernel, Tile(16, 16, 16, splits=2), list(dims))
    with pytest.raises(CompileError, match="no descriptors"):
        launches(kernel, Tile(16, 16, 16, described=True), list(dims))
