"""Families of operators as loop programs and contractions, against the reference: layouts, types, edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import agree, strided_model

import accord
from accord.backends.cuda.families import search
from accord.errors import ExecutionError
from builders import model, node

F = np.float32
SETTINGS = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SEEDS = st.integers(0, 2**32 - 1)


def check(op, feeds, *, seed=0, plain=(), tolerance=1e-5, **more):
    proto, given_ = strided_model(op, feeds, seed=seed, symbolic=bool(seed % 2), plain=plain, **more)
    return agree(proto, given_, rtol=tolerance, atol=tolerance, device="cuda")


@SETTINGS
@given(
    st.sampled_from([(1,), (7,), (3, 5), (2, 0, 3), (2, 3, 40)]),
    st.sampled_from(["float32", "float16", "float64", "int32", "int64"]),
    st.booleans(),
    st.booleans(),
    SEEDS,
)
def test_running_sums(gpu, shape, dtype, exclusive, reverse, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, shape).astype(dtype)
    axis = int(rng.integers(-len(shape), len(shape)))
    made = node("CumSum", ["x", "a"], ["y"], exclusive=int(exclusive), reverse=int(reverse))
    check(made, {"x": x, "a": np.array(axis)}, seed=seed, plain=("a",), tolerance=4e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_sums_of_long_rows(gpu, exclusive):
    """Rows are walked in pieces, and what they come to is carried from one to the next."""
    x = np.random.default_rng(0).standard_normal((1, 17000)).astype(F)
    check(
        node("CumSum", ["x", "a"], ["y"], exclusive=exclusive), {"x": x, "a": np.array(1)}, plain=("a",), tolerance=1e-4
    )


@SETTINGS
@given(
    st.sampled_from(["nearest", "linear", "cubic"]),
    st.sampled_from(["zeros", "border", "reflection"]),
    st.booleans(),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["float32", "float64", "float16"]),
    SEEDS,
)
def test_grid_sample(gpu, mode, padding, aligned, rank, dtype, seed):
    rng = np.random.default_rng(seed)
    if mode == "cubic" and rank == 3:
        rank = 2
    sizes, out = rng.integers(1, 5, rank), rng.integers(0, 4, rank)
    x = rng.standard_normal((2, 3, *sizes)).astype(dtype)
    grid = rng.uniform(-1.6, 1.6, (2, *out, rank)).astype(dtype)
    made = node("GridSample", ["x", "g"], ["y"], mode=mode, padding_mode=padding, align_corners=int(aligned))
    check(made, {"x": x, "g": grid}, seed=seed, tolerance=6e-3 if dtype == "float16" else 2e-5)


@SETTINGS
@given(st.sampled_from([2, 3]), st.booleans(), SEEDS)
def test_affine_grid(gpu, rank, aligned, seed):
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((2, rank, rank + 1)).astype(F)
    size = np.array([2, 3, *rng.integers(1, 6, rank)], np.int64)
    check(
        node("AffineGrid", ["t", "s"], ["y"], align_corners=int(aligned)),
        {"t": theta, "s": size},
        seed=seed,
        plain=("s",),
    )


@SETTINGS
@given(
    st.sampled_from([1, 2, 7]),
    st.sampled_from([2, 8, 20]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["float32", "float16"]),
    SEEDS,
)
def test_rotary_embedding(gpu, length, size, packed, interleaved, partial, looked_up, dtype, seed):
    rng = np.random.default_rng(seed)
    heads = 2
    width = max(2, size // 4 * 2) if partial else size
    shape = (2, length, heads * size) if packed else (2, heads, length, size)
    angles = rng.uniform(-3, 3, (11 if looked_up else 2, *(() if looked_up else (length,)), width // 2))
    feeds = {"x": rng.standard_normal(shape).astype(dtype)}
    feeds |= {"c": np.cos(angles).astype(dtype), "s": np.sin(angles).astype(dtype)}
    if looked_up:
        feeds["p"] = rng.integers(0, 11, (2, length))
    attributes = {"interleaved": int(interleaved)}
    attributes |= {"rotary_embedding_dim": width} if partial else {}
    attributes |= {"num_heads": heads} if packed else {}
    check(node("RotaryEmbedding", list(feeds), ["y"], **attributes), feeds, seed=seed, tolerance=3e-3)


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_outside_the_caches_is_refused(gpu, position):
    op = node("RotaryEmbedding", ["x", "c", "s", "p"], ["y"])
    feeds = {"x": np.ones((1, 1, 1, 4), F), "p": np.array([[position]])} | dict.fromkeys("cs", np.ones((3, 2), F))
    compiled = accord.load(model([op], {n: (a.dtype, a.shape) for n, a in feeds.items()}, ["y"]), device="cuda")
    with pytest.raises(ExecutionError, match="outside"):
        compiled(feeds)


@SETTINGS
@given(
    st.sampled_from([1, 2, 3, 4, 5, 6, 8, 10, 11, 15, 16, 22, 37, 60]),
    st.sampled_from(["forward", "inverse", "onesided", "real again"]),
    st.booleans(),
    st.sampled_from([None, 5, 12]),
    st.sampled_from(["float32", "float64"]),
    SEEDS,
)
def test_fourier_transforms(gpu, length, kind, complex_, size, dtype, seed):
    rng = np.random.default_rng(seed)
    onesided, inverse = kind in ("onesided", "real again"), kind in ("inverse", "real again")
    parts = {"onesided": 1, "real again": 2}.get(kind, 2 if complex_ else 1)
    if kind == "real again" and size is None and length == 1:
        length = 2
    x = rng.standard_normal((2, length, 3, parts)).astype(dtype)
    feeds = {"x": x, "n": np.array(size or length), "a": np.array(1)}
    made = node("DFT", ["x", "n" if size else "", "a"], ["y"], onesided=int(onesided), inverse=int(inverse))
    if not size:
        del feeds["n"]
    proto, given_ = strided_model(made, feeds, seed=seed, plain=("n", "a"))
    agree(proto, given_, rtol=1e-4, atol=1e-4, device="cuda")


def test_a_transform_of_unknown_length(gpu):
    made = node("DFT", ["x", "", "a"], ["y"])
    proto = model([made], {"x": (F, [1, "n", 1])}, ["y"], {"a": np.array(1)})
    for n in (4, 9):
        x = np.random.default_rng(n).standard_normal((1, n, 1)).astype(F)
        agree(proto, {"x": x}, rtol=1e-4, atol=1e-4, device="cuda")


@SETTINGS
@given(st.sampled_from([4, 6, 9]), st.sampled_from([1, 3]), st.booleans(), st.booleans(), SEEDS)
def test_transforms_of_frames(gpu, length, step, windowed, onesided, seed):
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.standard_normal((2, 20, 1)).astype(F), "s": np.array(step), "w": rng.random(length).astype(F)}
    feeds["n"] = np.array(length)
    made = node("STFT", ["x", "s", "w" if windowed else "", "n"], ["y"], onesided=int(onesided))
    if not windowed:
        del feeds["w"]
    check(made, feeds, plain=("s", "n"), tolerance=1e-4)


@SETTINGS
@given(st.sampled_from([1, 2]), SEEDS)
def test_columns_to_images(gpu, rank, seed):
    rng = np.random.default_rng(seed)
    image, block, strides, dilations = (rng.integers(low, high, rank) for low, high in ((4, 8), (1, 4), (1, 3), (1, 3)))
    pads = rng.integers(0, 2, 2 * rank)
    room = image + pads[:rank] + pads[rank:] - (dilations * (block - 1) + 1)
    counts = room // strides + 1
    if min(counts) < 1:
        return
    x = rng.standard_normal((2, 3 * int(np.prod(block)), int(np.prod(counts)))).astype(F)
    made = node(
        "Col2Im", ["x", "i", "b"], ["y"], strides=strides.tolist(), dilations=dilations.tolist(), pads=pads.tolist()
    )
    check(made, {"x": x, "i": image.astype(np.int64), "b": block.astype(np.int64)}, seed=seed, plain=("i", "b"))


@SETTINGS
@given(st.sampled_from([1, 2, 3, 5, 8]), st.sampled_from(["float32", "float16"]), SEEDS)
def test_normalisation_over_channels(gpu, size, dtype, seed):
    x = np.random.default_rng(seed).standard_normal((2, 6, 3, 4)).astype(dtype)
    check(node("LRN", ["x"], ["y"], size=size, alpha=0.1, beta=0.6, bias=1.5), {"x": x}, seed=seed, tolerance=3e-3)


def test_unpooling(gpu):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 2, 2)).astype(F)
    i = np.arange(96).reshape(6, 16)[:, [0, 7, 9, 14]].reshape(x.shape)
    check(node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2]), {"x": x, "i": i})
    compiled = accord.load(
        model(
            [node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
            {"x": (F, x.shape), "i": (np.int64, i.shape)},
            ["y"],
        ),
        device="cuda",
    )
    with pytest.raises(ExecutionError, match="outside"):
        compiled({"x": x, "i": i + 96})


@SETTINGS
@given(st.integers(0, 1), st.sampled_from(["float32", "int8", "bool"]), SEEDS)
def test_reversed_sequences(gpu, time, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, (4, 4, 3)).astype(dtype)
    made = node("ReverseSequence", ["x", "n"], ["y"], time_axis=time, batch_axis=1 - time)
    check(made, {"x": x, "n": rng.integers(0, 5, 4)}, seed=seed)


@SETTINGS
@given(st.sampled_from(["linear", "circular"]), st.booleans(), st.sampled_from(["float32", "float16", "int8"]), SEEDS)
def test_rows_into_caches(gpu, mode, started, dtype, seed):
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.integers(0, 9, (2, 3, 7, 4)).astype(dtype), "u": rng.integers(0, 9, (2, 3, 2, 4)).astype(dtype)}
    if started:
        feeds["i"] = rng.integers(0, 7 if mode == "circular" else 6, 2)
    check(node("TensorScatter", list(feeds), ["y"], mode=mode), feeds, seed=seed)


TYPES = st.sampled_from(["int8", "uint8"])


def codes(rng, dtype, shape):
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


@SETTINGS
@given(TYPES, TYPES, st.booleans(), st.sampled_from([1, 5, 300]), SEEDS)
def test_products_of_integers(gpu, left, right, rows, depth, seed):
    rng = np.random.default_rng(seed)
    a, b = codes(rng, left, (2, 3, depth)), codes(rng, right, (depth, 4))
    feeds = {"a": a, "b": b, "za": rng.integers(0, 100, (2, 3, 1) if rows else ()).astype(left)}
    feeds["zb"] = rng.integers(0, 100, (4,) if rows else ()).astype(right)
    check(node("MatMulInteger", list(feeds), ["y"]), feeds, seed=seed)


@SETTINGS
@given(TYPES, TYPES, st.sampled_from([1, 2]), st.booleans(), SEEDS)
def test_quantised_convolutions(gpu, left, right, groups, constant, seed):
    rng = np.random.default_rng(seed)

    feeds = {
        "x": codes(rng, left, (2, 4, 5, 6)),
        "sx": F(0.02),
        "zx": codes(rng, left, ()),
        "w": codes(rng, right, (4, 4 // groups, 3, 2)),
        "sw": rng.uniform(0.01, 0.05, 4).astype(F),
        "zw": np.zeros(4, right),
        "sy": F(0.4),
        "zy": codes(rng, left, ()),
        "b": rng.integers(-50, 50, 4).astype(np.int32),
    }
    made = node("QLinearConv", list(feeds), ["y"], pads=[1, 0, 1, 1], strides=[1, 2], group=groups)
    check(made, feeds, seed=seed, plain=("w",) if constant else ())


@SETTINGS
@given(st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.booleans(), SEEDS)
def test_transposed_convolutions(gpu, rank, groups, constant, seed):
    rng = np.random.default_rng(seed)
    sizes, taps, steps, dilations = (rng.integers(1, high, rank) for high in (5, 4, 4, 3))
    pads = [int(p) for p in np.tile(np.minimum(rng.integers(0, 2, rank), (taps - 1) * dilations // 2), 2)]
    feeds = {
        "x": rng.standard_normal((2, 4, *sizes)).astype(F),
        "w": rng.standard_normal((4, 3, *taps)).astype(F),
        "b": rng.standard_normal(3 * groups).astype(F),
    }
    attributes = {"strides": steps.tolist(), "dilations": dilations.tolist(), "pads": pads, "group": groups}
    check(node("ConvTranspose", list(feeds), ["y"], **attributes), feeds, seed=seed, plain=("w",) if constant else ())


@SETTINGS
@given(
    st.sampled_from([(5,), (3, 1), (2, 7, 3), (2, 0, 3)]),
    st.sampled_from(["float32", "float16", "float64", "int8", "uint64"]),
    st.booleans(),
    SEEDS,
)
def test_first_elements(gpu, shape, dtype, largest, seed):
    """Ties come by rising index, NaN is greater than all others."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, shape).astype(dtype)
    if dtype.startswith("float"):
        x[rng.random(shape) < 0.3] = np.nan
    axis = int(rng.integers(-len(shape), len(shape)))
    feeds = {"x": x, "k": np.array([int(rng.integers(0, shape[axis] + 1))])}
    made = node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=int(largest))
    check(made, feeds, seed=seed, plain=("k",) if seed % 3 else ())


@pytest.mark.parametrize("length", [48, 50])
def test_first_elements_of_long_lines(gpu, monkeypatch, length):
    """Best of blocks are candidates for the next round; the last block may not be whole."""
    monkeypatch.setattr(search, "_BLOCK", 8)
    monkeypatch.setattr(search, "_LONGEST", 8)
    monkeypatch.setenv("ACCORD_CACHE", "off")
    x = np.random.default_rng(0).integers(0, 9, (2, length)).astype(F)
    x[0, :3] = np.nan
    made = check(node("TopK", ["x", "k"], ["v", "i"]), {"x": x, "k": np.array([2])}, plain=("k",))
    (kernel,) = (s.kernel for s in made.plan.steps if s.placement.op == "TopK")
    assert len(kernel.phases) == 3


@SETTINGS
@given(
    st.sampled_from([(), (1,), (7,), (3, 0), (3, 5), (2, 3, 4), (3000,)]),
    st.sampled_from(["float32", "float16", "int64", "bool"]),
    SEEDS,
)
def test_places_of_what_is_not_zero(gpu, shape, dtype, seed):
    rng = np.random.default_rng(seed)
    x = np.asarray(rng.integers(-1, 2, shape) * (rng.random(shape) < 0.7)).astype(dtype)
    check(node("NonZero", ["x"], ["y"]), {"x": x}, seed=seed)


def test_more_elements_than_there_are(gpu):
    nodes = [node("Shape", ["z"], ["k"]), node("TopK", ["x", "k"], ["v", "i"])]
    m = accord.load(model(nodes, {"x": (F, [2, "n"]), "z": (F, ["k"])}, ["v", "i"]), device="cuda")
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(F)
    np.testing.assert_array_equal(m(x, np.ones(2, F))[0], np.sort(x)[:, :2:-1])
    with pytest.raises(ExecutionError):
        m(x, np.ones(6, F))


@SETTINGS
@given(
    st.sampled_from([(1, 1, 1), (2, 2, 9), (1, 3, 0), (1, 2, 40)]),
    st.sampled_from([0, 1, 3, 100]),
    st.sampled_from([None, 0.0, 0.4]),
    st.sampled_from([None, -0.5, 0.3]),
    st.booleans(),
    SEEDS,
)
def test_suppression(gpu, sizes, limit, overlap, least, center, seed):
    """Ties come by rising number; scores below zero count, NaN comes last."""
    rng = np.random.default_rng(seed)
    images, classes, count = sizes
    boxes = rng.integers(0, 6, (images, count, 4)).astype(F)
    scores = rng.integers(-2, 4, (images, classes, count)).astype(F) / 4
    scores[rng.random(scores.shape) < 0.1] = np.nan
    feeds = {"b": boxes, "s": scores, "n": np.array([limit])}
    if overlap is not None:
        feeds["o"] = np.array([overlap], F)
    if least is not None:
        feeds["l"] = np.array([least], F)
    names = [n if n in feeds else "" for n in ("b", "s", "n", "o", "l")]
    check(node("NonMaxSuppression", names, ["y"], center_point_box=int(center)), feeds, seed=seed)


@SETTINGS
@given(
    st.sampled_from(["ScatterElements", "ScatterND"]),
    st.sampled_from(["add", "mul", "max", "min"]),
    st.sampled_from(["float32", "float16", "float64", "int8", "int64"]),
    SEEDS,
)
def test_updates_that_meet(gpu, op, reduction, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (3, 4, 2)).astype(dtype)
    if op == "ScatterElements":
        axis = int(rng.integers(3))
        i = rng.integers(-x.shape[axis], x.shape[axis], [int(rng.integers(1, d + 1)) for d in x.shape])
        attributes, shape = {"axis": axis}, i.shape
    else:
        depth = int(rng.integers(1, 3))
        i = rng.integers(-3, 3, (2, 3, depth))
        attributes, shape = {}, (2, 3, *x.shape[depth:])
    feeds = {"x": x, "i": i, "u": rng.integers(-3, 4, shape).astype(dtype)}
    check(node(op, list(feeds), ["y"], reduction=reduction, **attributes), feeds, seed=seed, tolerance=1e-3)


@pytest.mark.parametrize("reduction", ["mul", "add"])
def test_an_update_outside_is_refused(gpu, reduction):
    op = node("ScatterElements", ["x", "i", "u"], ["y"], reduction=reduction)
    feeds = {"x": np.ones(3, F), "i": np.array([1, 3]), "u": np.ones(2, F)}
    compiled = accord.load(model([op], {n: (a.dtype, a.shape) for n, a in feeds.items()}, ["y"]), device="cuda")
    with pytest.raises(ExecutionError, match="outside"):
        compiled(feeds)
