"""Calls of the library's operators for their GPU kernels: tails, empty tensors, absent inputs, every attribute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from builders import model, node

F = np.float32
DTYPES = {"float32": F, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}
FLOATS = ("float32", "float16", "bfloat16")


#: Relative to the greatest magnitude of an output: a few roundings of what is stored, or of long sums in float32.
CLOSE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2, "int8": 0}


class Draw:
    """Random arrays of one type."""

    def __init__(self, dtype: str) -> None:
        self.rng = np.random.default_rng(len(dtype))
        self.dtype = DTYPES[dtype]

    def __call__(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> np.ndarray:
        if self.dtype is np.int8:
            return self.rng.integers(-128, 128, shape).astype(np.int8)
        return (self.rng.standard_normal(shape) * scale + mean).astype(self.dtype)

    def maybe(self, wanted: bool, *shape: int) -> np.ndarray | None:
        return self(*shape) if wanted else None


Call = tuple[list[Any], dict[str, Any]]
CALLS: dict[str, tuple[tuple[str, ...], Callable[[Draw], Iterator[Call]]]] = {}


def calls_of(*operators: str, types: tuple[str, ...] = FLOATS):
    def add(f):
        for name in operators:
            CALLS[name] = types, f
        return f

    return add


@calls_of("channel_shuffle", types=("float32", "float16", "int8"))
def _(draw):
    for n, c, h, w, g in [(1, 6, 7, 7, 3), (2, 8, 4, 4, 2), (0, 4, 3, 3, 2), (2, 4, 0, 3, 2), (3, 12, 5, 1, 12)]:
        yield [draw(n, c, h, w)], {"groups": g}
    yield [draw(2, 40, 33, 31)], {"groups": 4}


@calls_of("pixel_shuffle", types=("float32", "float16", "int8"))
def _(draw):
    for n, c, h, w, f in [(1, 8, 4, 6, 2), (2, 9, 6, 3, 3), (1, 4, 2, 70, 2), (0, 4, 2, 2, 2), (1, 16, 4, 8, 4)]:
        yield [draw(n, c, h, w)], {"factor": f}


@calls_of("pixel_unshuffle", types=("float32", "float16", "int8"))
def _(draw):
    for n, c, h, w, f in [(1, 8, 4, 6, 2), (2, 3, 6, 9, 3), (1, 4, 2, 140, 2), (0, 4, 2, 2, 2), (1, 2, 8, 8, 4)]:
        yield [draw(n, c, h, w)], {"factor": f}


ROWS = [(3, 7), (2, 3, 64), (5,), (0, 4), (2, 1), (4, 1000), (3, 1024), (2, 8192), (2, 17000)]


@calls_of("layer_norm")
def _(draw):
    for shape, weighted, biased in itertools.product(ROWS, (False, True), (False, True)):
        x = draw(*shape, scale=3, mean=5)
        yield [x, draw.maybe(weighted, shape[-1]), draw.maybe(biased, shape[-1])], {"eps": 1e-4}


@calls_of("rms_norm")
def _(draw):
    for shape, weighted in itertools.product(ROWS, (False, True)):
        yield [draw(*shape, scale=3, mean=1), draw.maybe(weighted, shape[-1])], {}


@calls_of("softmax")
def _(draw):
    for shape in ROWS:
        yield [draw(*shape, scale=3)], {}
    x = draw(4, 9)
    x[1], x[2, 3], x[3, 2] = -np.inf, np.nan, np.inf
    yield [x], {}


@calls_of("group_norm")
def _(draw):
    for n, c, h, w, g in [(1, 6, 7, 7, 3), (2, 8, 4, 4, 2), (0, 4, 3, 3, 2), (3, 12, 5, 1, 12), (1, 8, 40, 40, 2)]:
        for given in (False, True):
            yield [draw(n, c, h, w, mean=3), draw.maybe(given, c), draw.maybe(given, c)], {"groups": g}


@calls_of("gelu", "silu", "mish", "hard_sigmoid", "hard_swish")
def _(draw):
    for n in (0, 1, 5000):
        yield [draw(n, scale=4)], {}
    yield [np.array([0, -0.0, np.nan, np.inf, 1e4, -1e4, 1e-5, 88, -88, -104], draw.dtype)], {}


@calls_of("linear")
def _(draw):
    for shape, n, k in [((3,), 5, 7), ((2, 20), 33, 64), ((150,), 70, 40), ((0, 3), 4, 5), ((2, 2), 3, 0)]:
        for given in (False, True):
            inputs = [draw(*shape, k), draw(n, k, scale=max(1, k) ** -0.5), draw.maybe(given, n)]
            yield [*inputs, draw.maybe(given, *shape, n)], {}
    for activation in ("relu", "gelu", "gelu_tanh", "silu", "hard_swish", "sigmoid", "tanh"):
        yield [draw(9, 24), draw(17, 24, scale=0.3), draw(17), None], {"activation": activation}


HEADS = [
    (1, 2, 1, 5, 9, 8, 8),
    (2, 4, 2, 70, 70, 16, 24),
    (1, 1, 1, 130, 200, 33, 16),
    (1, 2, 2, 40, 10, 16, 16),
    (1, 2, 1, 150, 210, 128, 128),
    (0, 2, 2, 4, 4, 4, 4),
    (1, 1, 1, 3, 0, 4, 4),
]


def heads(draw, b, h, g, q, k, d, e):
    return [draw(b, h, q, d), draw(b, g, k, d), draw(b, g, k, e)]


@calls_of("attention")
def _(draw):
    kinds = [{}, {"causal": True}, {"window": 3}, {"window": 0, "causal": True}, {"scale": 0.3}, {"window": 1 << 40}]
    for sizes, attributes, masked in itertools.product(HEADS, kinds, (False, True)):
        b, h, _, q, k, _, _ = sizes
        mask = draw.maybe(masked, b, h, q, k)
        if masked and k > 2:
            mask[..., 0] = mask[:, :, :2] = -np.inf
        yield [*heads(draw, *sizes), mask], attributes
    for d, e in [(80, 80), (16, 64), (64, 128), (33, 33), (128, 16)]:
        for causal in (False, True):
            yield [*heads(draw, 1, 1, 1, 130, 200, d, e), None], {"causal": causal}


@calls_of("alibi_attention")
def _(draw):
    for sizes in HEADS:
        yield heads(draw, *sizes), {}


@calls_of("soft_cap_attention")
def _(draw):
    for sizes in HEADS:
        yield heads(draw, *sizes), {"cap": 2.0}


@calls_of("sliding_window_attention")
def _(draw):
    for sizes, window in itertools.product(HEADS, (0, 4)):
        yield heads(draw, *sizes), {"window": window}


@calls_of("prefix_attention")
def _(draw):
    for sizes in HEADS:
        yield heads(draw, *sizes), {"prefix": 3}


@calls_of("qkv_attention")
def _(draw):
    for b, s, m, h, g, d in [(1, 5, 8, 2, 1, 4), (2, 70, 20, 4, 2, 16), (0, 3, 4, 2, 2, 4), (1, 40, 64, 3, 3, 33)]:
        p = (h + 2 * g) * d
        for given, causal in itertools.product((False, True), (False, True)):
            inputs = [draw(b, s, m), draw(p, m, scale=m**-0.5), draw.maybe(given, p)]
            yield inputs, {"heads": h, "groups": g, "causal": causal}


@calls_of("conv2d")
def _(draw):
    for n, c, h, w, m, kh, kw, g, attributes in [
        (1, 3, 9, 8, 5, 3, 3, 1, {"padding": 1}),
        (2, 4, 7, 7, 6, 1, 1, 2, {}),
        (2, 6, 10, 9, 6, 3, 2, 6, {"stride": 2, "padding": 1}),
        (1, 3, 8, 8, 6, 3, 3, 3, {"dilation": 2, "activation": "hard_swish"}),
        (1, 20, 12, 12, 40, 3, 3, 1, {"stride": 3, "activation": "relu"}),
        (0, 3, 5, 5, 2, 3, 3, 1, {}),
        (2, 64, 8, 7, 20, 3, 3, 2, {"padding": 1, "dilation": 2, "activation": "gelu"}),
        (1, 48, 8, 8, 70, 3, 2, 1, {"stride": 2, "padding": 1}),
        (1, 80, 4, 8, 16, 1, 1, 1, {}),
        (1, 16, 6, 6, 8, 2, 2, 1, {}),
        (1, 32, 9, 9, 70, 5, 5, 1, {"padding": 2}),
        (0, 16, 5, 5, 2, 3, 3, 1, {}),
        (3, 34, 11, 13, 70, 3, 3, 1, {"padding": 2, "activation": "silu"}),
    ]:
        scale = (c // g * kh * kw) ** -0.5
        yield [draw(n, c, h, w), draw(m, c // g, kh, kw, scale=scale), draw(m)], {"groups": g, **attributes}


def deformed(draw):
    for n, c, h, w, m, kh, kw, g, og, attributes in [
        (1, 4, 9, 8, 5, 3, 3, 1, 1, {"padding": 1}),
        (2, 4, 7, 7, 6, 1, 1, 2, 2, {}),
        (1, 6, 10, 9, 6, 3, 2, 1, 3, {"stride": 2, "padding": 1}),
        (1, 4, 8, 8, 8, 3, 3, 4, 2, {"dilation": 2}),
        (1, 40, 6, 6, 20, 3, 3, 2, 4, {"padding": 1}),
        (0, 4, 5, 5, 4, 3, 3, 1, 1, {"padding": 1}),
    ]:
        p, d, s = attributes.get("padding", 0), attributes.get("dilation", 1), attributes.get("stride", 1)
        oh, ow = ((v + 2 * p - d * (k - 1) - 1) // s + 1 for v, k in ((h, kh), (w, kw)))
        for given in (False, True):
            x, weight = draw(n, c, h, w), draw(m, c // g, kh, kw, scale=0.2)
            mask, bias = draw.maybe(given, n, og * kh * kw, oh, ow), draw.maybe(given, m)
            yield x, weight, (n, 2 * og * kh * kw, oh, ow), mask, bias, {"groups": g, "offset_groups": og, **attributes}


@calls_of("deform_conv2d", types=("float32", "float16"))
def _(draw):
    for x, weight, shape, mask, bias, attributes in deformed(draw):
        offset = draw(*shape, scale=3)
        if offset.size:
            offset[0, 0, 0, 0] = 6e4
        yield [x, weight, offset, mask, bias], attributes


@calls_of("quantized_deform_conv2d", types=("float32", "float16"))
def _(draw):
    for x, weight, shape, mask, bias, attributes in deformed(draw):
        codes = draw.rng.integers(-128, 128, shape).astype(np.int8)
        yield [x, weight, codes, np.array([0.03125], F), mask, bias], attributes


@calls_of("resize_bilinear")
def _(draw):
    for n, c, h, w, height, width in [
        *[(1, 2, 5, 7, 10, 14), (2, 1, 9, 300, 4, 1000), (1, 1, 1, 1, 3, 3), (1, 3, 8, 8, 1, 1)],
        *[(0, 1, 2, 2, 3, 3), (1, 1, 64, 64, 63, 129), (1, 1, 3, 3000, 3, 2999)],
    ]:
        for aligned in (False, True):
            yield [draw(n, c, h, w)], {"height": height, "width": width, "align_corners": aligned}


@calls_of("grid_sample", types=("float32",))
def _(draw):
    for n, c, h, w, oh, ow in [
        *[(1, 2, 5, 7, 10, 14), (2, 11, 9, 30, 4, 100), (1, 1, 1, 1, 3, 3), (0, 1, 2, 2, 3, 3)],
        *[(2, 70, 5, 7, 10, 14), (1, 16, 1, 1, 3, 3), (0, 16, 2, 2, 3, 3)],
    ]:
        for aligned in (False, True):
            grid = draw.rng.uniform(-1.5, 1.5, (n, oh, ow, 2)).astype(draw.dtype)
            if n:
                grid[0, 0, 0] = [1e30, -1e30]
            yield [draw(n, c, h, w), grid], {"align_corners": aligned}


@calls_of("roi_align", types=("float32",))
def _(draw):
    for n, c, h, w, r, height, width, samples in [
        *[(1, 2, 5, 7, 3, 2, 2, 2), (2, 20, 9, 30, 5, 7, 7, 2), (1, 1, 1, 1, 0, 3, 3, 1), (1, 3, 6, 6, 4, 3, 2, 3)],
        *[(2, 72, 9, 30, 3, 9, 9, 2), (1, 16, 1, 1, 0, 3, 3, 1)],
    ]:
        corners = np.sort(draw.rng.random((r, 2, 2)), axis=1) * [w, h]
        images = draw.rng.integers(0, n, r)
        sizes = {"height": height, "width": width, "samples": samples, "spatial_scale": 0.5}
        yield [draw(n, c, h, w), (corners.reshape(-1, 4) * 2).astype(draw.dtype), images], sizes


@calls_of("non_max_suppression", types=("float32",))
def _(draw):
    for count in (0, 1, 5, 33, 200, 700):
        centre = draw.rng.integers(0, 4, (count, 2)) * 10 + draw.rng.random((count, 2)) * 4
        half = 2 + draw.rng.random((count, 2)) * 4
        scores = (draw.rng.permutation(count) // 2 - 1).astype(F)  # some are equal, some are not more than 0
        yield [np.concatenate([centre - half, centre + half], 1).astype(F), scores], {"iou": 0.3}


def rows_of(draw, rows, elements):
    inner = np.sort(draw.rng.integers(0, elements + 1, rows - 1))
    return np.array([0, *inner, elements], np.int64)


@calls_of("sparse_matmul", types=("float32",))
def _(draw):
    for rows, elements, k, n in [(3, 9, 7, 5), (1, 0, 3, 3), (19, 300, 50, 140), (2, 0, 4, 4)]:
        columns = draw.rng.integers(0, k, elements)
        yield [draw(elements), columns, rows_of(draw, rows, elements), draw(k, n)], {}


@calls_of("block_sparse_matmul", types=("float32",))
def _(draw):
    for rows, elements, across, n in [(3, 9, 7, 5), (1, 0, 3, 3), (9, 40, 10, 140)]:
        for br, bc in [(1, 1), (3, 5), (16, 16), (40, 70)]:
            k = across * bc - bc // 2
            columns = draw.rng.integers(0, -(-k // bc), elements)
            inputs = [draw(elements, br, bc), columns, rows_of(draw, rows, elements), draw(k, n)]
            yield inputs, {"rows": rows * br - br // 2}


CELLS = [(1, 3, 5, 1), (20, 40, 33, 3), (3, 8, 70, 4), (0, 3, 4, 2), (2, 3, 4, 0)]


@calls_of("lstm_cell", "lstm")
def _(draw):
    for n, i, h, length in CELLS:
        for given in (False, True):
            weights = [draw(4 * h, i, scale=i**-0.5), draw(4 * h, h, scale=h**-0.5), draw.maybe(given, 4 * h)]
            yield [(length, n, i), draw(n, h), draw(n, h), *weights], {}


@calls_of("gru_cell")
def _(draw):
    for n, i, h, _ in CELLS:
        for given in (False, True):
            weights = [draw(3 * h, i, scale=i**-0.5), draw(3 * h, h, scale=h**-0.5)]
            yield [draw(n, i), draw(n, h), *weights, draw.maybe(given, 3 * h), draw.maybe(given, 3 * h)], {}


@calls_of("ctc_forward", "ctc_loss")
def _(draw):
    for length, n, c, s in [(6, 2, 5, 2), (30, 3, 40, 7), (4, 2, 3, 0), (0, 1, 3, 1), (150, 1, 30, 20)]:
        x = draw(length, n, c).astype(np.float64)
        x = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True)).astype(draw.dtype)
        lengths, labels = draw.rng.integers(0, length + 1, n), draw.rng.integers(0, s + 1, n)
        lengths[0], labels[-1] = length, s
        yield [x, draw.rng.integers(0, c, (n, s)), lengths, labels], {"blank": 1}


@calls_of("ctc_greedy_decode")
def _(draw):
    for length, n, c in [(6, 2, 5), (300, 3, 3), (4, 2, 1100), (0, 1, 3)]:
        x, lengths = draw(length, n, c), draw.rng.integers(0, length + 1, n)
        lengths[0] = length
        if length:
            x[0, 0] = -np.inf
        yield [x, lengths], {"blank": 0}


def calls(operator: str, dtype: str) -> Iterator[Call]:
    """Inputs and attributes of calls of an operator."""
    draw = Draw(dtype)
    for inputs, attributes in CALLS[operator][1](draw):
        first = inputs[0]
        if isinstance(first, tuple):  # of a sequence; a cell sees one step
            inputs = [draw(*(first if operator == "lstm" else first[1:])), *inputs[1:]]  # noqa: PLW2901
        yield inputs, attributes


def wanted(operator, inputs, attributes):
    with np.errstate(all="ignore"):
        result = operator(*inputs, **attributes)
    return result if isinstance(result, tuple) else (result,)


def agree(out, exact, close, what):
    if exact.dtype.kind in "iu":
        np.testing.assert_array_equal(out, exact, what)
        return
    a, b = out.astype(np.float64), exact.astype(np.float64)
    top = np.abs(b[np.isfinite(b)]).max(initial=1e-3)
    np.testing.assert_allclose(a, b, rtol=close, atol=close * top, err_msg=what)


def of_one(contract, inputs, attributes, *, symbolic, count):
    """A model of one node called "one", and its feed; sizes of its inputs are known, or symbols of their own."""
    names = [None if x is None else f"x{i}" for i, x in enumerate(inputs)]
    while names and names[-1] is None:
        names.pop()
    shapes = {
        n: (x.dtype, [f"{n}_{a}" for a in range(x.ndim)] if symbolic else list(x.shape))
        for n, x in zip(names, inputs, strict=False)
        if n is not None
    }
    outputs = [f"y{j}" for j in range(count)]
    one = node(contract.semantic.name, [n or "" for n in names], outputs, domain="accord", name="one", **attributes)
    return model([one], shapes, outputs, domains={"accord": 1}), {n: inputs[int(n[1:])] for n in shapes}


def steps(m):
    """Backend and kernel of each step that is no copy."""
    return [(s.placement.backend, s.kernel.name) for s in m.plan.steps if not s.kernel.name.startswith("copy")]
