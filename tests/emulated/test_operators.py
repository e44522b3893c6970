"""Kernels of the CUDA backend in whole models, beside the CPU's."""

from __future__ import annotations

import numpy as np
import pytest

import accord
from accord.backends.cuda.code import Variant
from builders import model, node
from emulated_gpu import EmulatedKernel

F = np.float32


def inputs_of(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(d) for n, (d, s) in shapes.items()}


def check(nodes, shapes, outputs=("y",), constants=None, tolerance=2e-5, sizes=None):
    """The same on both devices; nothing but copies runs on the host."""
    proto = model(nodes, shapes, list(outputs), constants)
    near, far = accord.load(proto), accord.load(proto, device="cuda")
    elsewhere = {s.placement.op for s in far.plan.steps if s.placement.backend not in ("cuda", "plan")}
    assert not elsewhere, elsewhere
    given = inputs_of({n: (d, tuple((sizes or {}).get(a, a) for a in s)) for n, (d, s) in shapes.items()})
    for got, want in zip(far(given), near(given), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_few_queries_and_many_keys(gpu):
    """The keys are split among programs, and a second kernel joins what they found."""
    shapes = {"q": (F, [1, 4, 3, 16]), "k": (F, [1, 2, 700, 16]), "v": (F, [1, 2, 700, 16])}
    check([node("Attention", ["q", "k", "v"], ["y"])], shapes)
    assert any(name.endswith("_joined") for name in gpu.started)


@pytest.mark.parametrize("mask", [[], [2, 1, 1, 70], [70, 70]])
def test_what_is_left_of_queries_and_keys(gpu, mask):
    """Sizes are known: they are compiled in, and smaller blocks are for what is left."""
    shapes = {"q": (F, [2, 70, 32]), "k": (F, [2, 70, 32]), "v": (F, [2, 70, 32])} | ({"m": (F, mask)} if mask else {})
    nodes = [node("Attention", list(shapes), ["y"], q_num_heads=2, kv_num_heads=2)]
    check(nodes, shapes)


def test_new_sizes_take_no_further_machine_code(gpu, monkeypatch):
    seen = []
    begin = EmulatedKernel.__init__

    def record(self, gpu, code, launch, *rest):
        seen.append(Variant.of(code, launch, aligned=True))
        begin(self, gpu, code, launch, *rest)

    gpu.started.clear()  # skips on a GPU that is there, of which it is not known what was started
    monkeypatch.setattr(EmulatedKernel, "__init__", record)
    m = model(
        [node("Attention", ["x", "x", "x"], ["y"], q_num_heads=2, kv_num_heads=2)], {"x": (F, ["b", "n", 32])}, ["y"]
    )
    far = accord.load(m, device="cuda", tuning="off")
    for b, n in ((2, 70), (2, 97), (3, 128), (5, 193)):
        far(np.zeros((b, n, 32), F))
    assert len(seen) >= 4 and len(set(seen)) == 1


def test_keys_of_the_past(gpu):
    shapes = {n: (F, [1, 2, 2, 16]) for n in ("q", "k", "v")} | {n: (F, [1, 2, 640, 16]) for n in ("pk", "pv")}
    nodes = [node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "nk", "nv"], is_causal=1)]
    check(nodes, shapes, ["y", "nk", "nv"])


@pytest.mark.parametrize("dtype", [F, np.float16])
def test_product_with_what_follows(gpu, dtype):
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "b"], ["c"]),
        node("Gelu", ["c"], ["g"]),
        node("Add", ["g", "r"], ["y"]),
    ]
    shapes = {"x": (dtype, [2, "n", 24]), "r": (dtype, [2, "n", 40])}
    rng = np.random.default_rng(1)
    constants = {"w": rng.standard_normal((24, 40)).astype(dtype), "b": rng.standard_normal(40).astype(dtype)}
    check(nodes, shapes, constants=constants, tolerance=2e-5 if dtype is F else 4e-3, sizes={"n": 5})


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_convolution_with_what_follows(gpu, groups):
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1], strides=[2, 1], group=groups),
        node("Relu", ["a"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2]),
        node("GlobalAveragePool", ["m"], ["y"]),
    ]
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.standard_normal((8, 8 // groups, 3, 3)).astype(F),
        "b": rng.standard_normal(8).astype(F),
    }
    check(nodes, {"x": (F, ["n", 8, 9, 7])}, constants=constants, sizes={"n": 2})


@pytest.mark.parametrize(("images", "channels", "taps"), [("n", 3, (5, 7)), (2, 1, (5, 7)), (2, 7, (16, 30))])
def test_images_of_few_channels_are_packed(gpu, images, channels, taps):
    """Also where sums are long, and split: their parts lie behind the packed images."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], pads=[3, 3, 3, 3], strides=[2, 2], dilations=[2, 1]),
        node("Relu", ["a"], ["y"]),
    ]
    rng = np.random.default_rng(1)
    constants = {
        "w": (rng.standard_normal((8, channels, *taps)) / 32).astype(np.float16),
        "b": rng.standard_normal(8).astype(np.float16),
    }
    check(nodes, {"x": (np.float16, [images, channels, 36, 35])}, constants=constants, tolerance=4e-3, sizes={"n": 3})
    assert any(name.startswith("pack_") for name in gpu.started)
    assert any(name.endswith("_parts") for name in gpu.started) == (channels == 7)


def test_one_matrix_for_a_batch_is_one_product(gpu):
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    check(nodes, {"x": (F, [7, 1, 16])}, constants={"w": np.ones((16, 8), F)})
    proto = model(nodes, {"x": (F, [7, 1, 16])}, ["y"], {"w": np.ones((16, 8), F)})
    (step,) = (s for s in accord.load(proto, device="cuda").plan.steps if s.placement.op == "MatMul")
    assert step.kernel.phases[0].code.axes[0] == 0  # no batch axis


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_products_are_tf32_only_where_that_was_asked_for(gpu, precision):
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Attention", ["m", "m", "m"], ["a"], q_num_heads=2, kv_num_heads=2),
        node("Reshape", ["a", "s"], ["i"]),
        node("Conv", ["i", "f"], ["y"]),
    ]
    constants = {"w": np.ones((16, 32), F), "s": np.array([1, 8, 4, 8]), "f": np.ones((4, 8, 3, 3), F)}
    m = accord.load(model(nodes, {"x": (F, [1, 8, 16])}, ["y"], constants), device="cuda", precision=precision)
    texts = [p.code.text() for s in m.plan.steps for p in getattr(s.kernel, "phases", ()) if hasattr(p.code, "text")]
    products = [t for t in texts if "tl.dot(" in t]
    assert len(products) >= 3
    assert all(('"tf32"' in t) == (precision == "tf32") for t in products)


@pytest.mark.parametrize("dtype", [F, np.float16])
def test_deformable_convolution(gpu, dtype):
    """ONNX's is the library's where both axes are alike."""
    shapes = {"x": (dtype, ["n", 8, 7, 9]), "w": (dtype, [6, 4, 3, 3]), "o": (dtype, ["n", 36, 4, 5])}
    shapes |= {"b": (dtype, [6]), "m": (dtype, ["n", 18, 4, 5])}
    one = node(
        "DeformConv", list(shapes), ["y"], group=2, offset_group=2, strides=[2, 2], dilations=[1, 1], pads=[1, 1, 1, 1]
    )
    check([one], shapes, tolerance=2e-5 if dtype is F else 2e-2, sizes={"n": 2})


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("channels", [3, 20])
def test_regions(gpu, mode, channels):
    """Boxes within the image, of no size, and partly outside of it."""
    one = node(
        "RoiAlign", ["x", "r", "i"], ["y"], output_height=3, output_width=2, sampling_ratio=2, spatial_scale=0.5,
        coordinate_transformation_mode=mode,
    )  # fmt: skip
    boxes = np.array([[2, 3, 15, 12], [4, 4, 4, 4], [-7, -3, 40, 30]], F)
    check([one], {"x": (F, [2, channels, 9, 11])}, constants={"r": boxes, "i": np.array([0, 1, 1])}, tolerance=1e-4)
