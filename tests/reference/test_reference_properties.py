"""Random attributes and shapes against ONNX Runtime, where it follows the specification.

Left out are the places where it does not: dilated windows with automatic padding, strides longer than the kernel with
automatic padding, ``ceil_mode`` with VALID, clipping of an LSTM's cell, regions of Resize, align_corners with
fractional lengths, backward slices whose end is the highest integer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference_harness import onnxruntime_outputs, run

pytest.importorskip("onnxruntime")

_SETTINGS = settings(max_examples=40, deadline=None)
_seeds = st.integers(0, 2**32 - 1)


def _agree(
    op: str,
    inputs: list[Any],
    outputs: int = 1,
    *,
    opset: int = 21,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    **attributes: Any,
) -> None:
    want = onnxruntime_outputs(op, inputs, outputs, opset=opset, **attributes)
    assume(want is not None)
    assert want is not None
    have = run(op, inputs, outputs, opset=opset, **attributes)
    for left, right in zip([have] if outputs == 1 else have, want, strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)


def _normal(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@st.composite
def _windows(draw: st.DrawFn, pooling: bool = False) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Spatial lengths, and kernel_shape, strides, dilations, padding."""
    rank = draw(st.integers(1, 3))

    def axes(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel = axes(1, 3)
    mode = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    same = mode.startswith("SAME")
    strides = [draw(st.integers(1, k if same else 3)) for k in kernel]
    dilations = [1] * rank if same else axes(1, 2)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "auto_pad": mode, "dilations": dilations}
    if mode == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, k - 1 if pooling else 2)) for k in kernel * 2]
    # Five elements hold the longest window; of longer ones ONNX Runtime rounds the count towards zero, not down.
    return tuple(axes(5 if pooling else 3, 7)), attributes


@_SETTINGS
@given(_windows(), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.booleans(), _seeds)
def test_conv(
    window: tuple[tuple[int, ...], dict[str, Any]], groups: int, inner: int, outer: int, biased: bool, seed: int
) -> None:
    spatial, attributes = window
    channels = groups * outer
    x, w, b = _normal(seed, (2, groups * inner, *spatial), (channels, inner, *attributes["kernel_shape"]), (channels,))
    _agree("Conv", [x, w, b if biased else None], group=groups, **attributes)


@_SETTINGS
@given(_windows(), st.integers(1, 2), st.integers(1, 2), st.booleans(), st.integers(0, 2), _seeds)
def test_conv_transpose(
    window: tuple[tuple[int, ...], dict[str, Any]], groups: int, outer: int, biased: bool, extra: int, seed: int
) -> None:
    spatial, attributes = window
    assume(not attributes["auto_pad"].startswith("SAME"))
    most = [max(s, d) - 1 for s, d in zip(attributes["strides"], attributes["dilations"], strict=True)]
    padding = [min(extra, limit) for limit in most]
    x, w, b = _normal(
        seed, (2, groups * 2, *spatial), (groups * 2, outer, *attributes["kernel_shape"]), (groups * outer,)
    )
    _agree("ConvTranspose", [x, w, b if biased else None], group=groups, output_padding=padding, **attributes)


@_SETTINGS
@given(
    _windows(pooling=True),
    st.sampled_from(["MaxPool", "AveragePool", "LpPool"]),
    st.booleans(),
    st.integers(0, 1),
    _seeds,
)
def test_pooling(window: tuple[tuple[int, ...], dict[str, Any]], op: str, ceil: bool, option: int, seed: int) -> None:
    spatial, attributes = window
    attributes = {**attributes, "ceil_mode": int(ceil and attributes["auto_pad"] == "NOTSET")}
    extra = {"MaxPool": "storage_order", "AveragePool": "count_include_pad", "LpPool": "p"}[op]
    attributes[extra] = option + (op == "LpPool")
    (x,) = _normal(seed, (2, 2, *spatial))
    _agree(op, [x], 2 if op == "MaxPool" else 1, **attributes)


@_SETTINGS
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data(), _seeds)
def test_pad(shape: list[int], data: st.DataObject, seed: int) -> None:
    mode = data.draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
    least = -1 if mode != "reflect" else 0
    pads = [data.draw(st.integers(least, n - 1 if mode == "reflect" else 3)) for n in shape * 2]
    (x,) = _normal(seed, tuple(shape))
    fill = np.array(1.5, np.float32) if data.draw(st.booleans()) else None
    _agree("Pad", [x, np.array(pads), fill], mode=mode)


@_SETTINGS
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data(), _seeds)
def test_slice(shape: list[int], data: st.DataObject, seed: int) -> None:
    (x,) = _normal(seed, tuple(shape))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    bounds = st.one_of(st.integers(-9, 9), st.just(-(2**63)))
    starts, ends = ([data.draw(bounds) for _ in axes] for _ in range(2))
    steps = [data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3])) for _ in axes]
    named = [axis - len(shape) * data.draw(st.integers(0, 1)) for axis in axes]
    _agree("Slice", [x, *map(np.array, (starts, ends, named, steps))])


@_SETTINGS
@given(
    st.sampled_from(
        ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"],
    ),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from([np.float32, np.float64, np.int32]),
    st.integers(0, 1),
    st.integers(0, 1),
    st.data(),
    _seeds,
)
def test_reduce(name: str, shape: list[int], dtype: Any, keep: int, noop: int, data: st.DataObject, seed: int) -> None:
    assume(not (name.startswith("Log") and dtype is np.int32))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    x = np.random.default_rng(seed).uniform(0.5, 4, shape).astype(dtype)
    chosen = np.array(axes, np.int64) if axes or data.draw(st.booleans()) else None
    opset = 13 if name == "Sum" else 18
    _agree(f"Reduce{name}", [x, chosen], opset=opset, keepdims=keep, noop_with_empty_axes=noop)


@_SETTINGS
@given(
    st.sampled_from(["nearest", "linear", "cubic"]),
    st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]),
    st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.sampled_from([0.5, 2.0, 1.5, 3.0]), st.sampled_from([0.5, 2.0, 0.75, 1.0])),
    st.booleans(),
    st.booleans(),
    _seeds,
)
def test_resize(
    mode: str,
    transformation: str,
    rounding: str,
    spatial: tuple[int, int],
    sizes: tuple[int, int],
    scales: tuple[float, float],
    by_size: bool,
    antialias: bool,
    seed: int,
) -> None:
    (x,) = _normal(seed, (1, 2, *spatial))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": transformation}
    if mode == "nearest":
        # ONNX Runtime takes positions in float32: only scales that are exact there give comparable ties.
        assume(not by_size)
        attributes["nearest_mode"] = rounding
    if mode == "cubic":
        attributes["exclude_outside"] = int(antialias)
    if antialias and mode != "nearest" and transformation == "half_pixel":
        attributes |= {"antialias": 1, "exclude_outside": 1}
    if by_size:
        inputs = [x, None, None, np.array([1, 2, *sizes])]
    else:
        lengths = [n * s for n, s in zip(spatial, scales, strict=True)]
        assume(min(lengths) >= 1)
        assume(transformation != "align_corners" or all(length == int(length) for length in lengths))
        inputs = [x, None, np.array([1, 1, *scales], np.float32)]
    _agree("Resize", inputs, opset=19, atol=1e-4, **attributes)


_PARAMETERS = {"LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1, "HardSigmoid": 2, "Affine": 2, "ScaledTanh": 2}
_ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", *_PARAMETERS]


@pytest.mark.parametrize(
    ("op", "gates", "functions", "states"), [("RNN", 1, 1, 1), ("GRU", 3, 2, 1), ("LSTM", 4, 3, 2)]
)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), seed=_seeds)
def test_recurrent(op: str, gates: int, functions: int, states: int, data: st.DataObject, seed: int) -> None:
    steps, batch, size, hidden = (data.draw(st.integers(1, 4)) for _ in range(4))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    x, w, r, b, h, c, p = _normal(
        seed,
        (steps, batch, size),
        (count, gates * hidden, size),
        (count, gates * hidden, hidden),
        (count, 2 * gates * hidden),
        (count, batch, hidden),
        (count, batch, hidden),
        (count, 3 * hidden),
    )
    lengths = np.array([data.draw(st.integers(1, steps)) for _ in range(batch)], np.int32)
    given_inputs = [data.draw(st.booleans()) for _ in range(5)]
    optional = [b, lengths, h, *([c, p] if op == "LSTM" else [])]
    inputs = [x, w, r, *(v if keep else None for v, keep in zip(optional, given_inputs, strict=False))]
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if op == "GRU":
        attributes["linear_before_reset"] = data.draw(st.integers(0, 1))
    if op == "LSTM":
        attributes["input_forget"] = data.draw(st.integers(0, 1))
    elif data.draw(st.booleans()):
        attributes["clip"] = 0.7
    if data.draw(st.booleans()):
        names = [data.draw(st.sampled_from(_ACTIVATIONS)) for _ in range(functions * count)]
        attributes["activations"] = names
        parameters = [n for n in names if n in _PARAMETERS]
        # ONNX Runtime has defaults of its own, so every parameter is given.
        attributes["activation_alpha"] = [0.25 + 0.1 * i for i, _ in enumerate(parameters)] or None
        attributes["activation_beta"] = [0.5 + 0.1 * i for i, n in enumerate(parameters) if _PARAMETERS[n] > 1] or None
    _agree(op, inputs, 1 + states, opset=14, rtol=1e-3, atol=1e-4, **attributes)


@_SETTINGS
@given(
    st.sampled_from(["linear", "nearest", "cubic"]),
    st.sampled_from(["zeros", "border", "reflection"]),
    st.integers(0, 1),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    _seeds,
)
def test_grid_sample(mode: str, padding: str, aligned: int, spatial: tuple[int, int], seed: int) -> None:
    x, grid = _normal(seed, (2, 2, *spatial), (2, 3, 2, 2))
    _agree("GridSample", [x, grid], opset=20, atol=1e-4, mode=mode, padding_mode=padding, align_corners=aligned)


@_SETTINGS
@given(
    st.sampled_from(["none", "add", "mul", "max", "min"]),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.data(),
    _seeds,
)
def test_scatter_elements(reduction: str, shape: list[int], data: st.DataObject, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    inner = tuple(data.draw(st.integers(1, n)) for n in shape)
    rng = np.random.default_rng(seed)
    x, updates = _normal(seed, tuple(shape), inner)
    if reduction == "none":  # no place may be named twice
        indices = np.argsort(rng.random(inner), axis=axis)
    else:
        indices = rng.integers(-shape[axis], shape[axis], inner)
    _agree("ScatterElements", [x, indices, updates], opset=18, axis=axis, reduction=reduction)


@_SETTINGS
@given(
    st.sampled_from([np.uint8, np.int8, np.uint16, np.int16]),
    st.sampled_from(["tensor", "axis", "block"]),
    _seeds,
)
def test_quantisation(dtype: Any, granularity: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape: tuple[int, ...] = {"tensor": (), "axis": (4,), "block": (3, 2)}[granularity]
    block = 2 if granularity == "block" else 0
    x = (rng.standard_normal((3, 4)) * 100).astype(np.float32)
    scale = np.asarray(rng.uniform(0.1, 2, shape).astype(np.float32))
    zero = np.asarray(rng.integers(0, 20, shape).astype(dtype))
    _agree("QuantizeLinear", [x, scale, zero], axis=1, block_size=block)
    quantised = rng.integers(0, 100, (3, 4)).astype(dtype)
    _agree("DequantizeLinear", [quantised, scale, zero], axis=1, block_size=block)
