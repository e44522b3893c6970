"""Values that ``onnx.reference`` or ONNX Runtime get wrong, derived from the specification with plain NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from reference_harness import assert_close, run


def _random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- convolution ---------------------------------------------------------------------------------------------


def _transposed(x: Any, w: Any, strides: list[int], dilations: list[int]) -> Any:
    """Every input element adds a scaled kernel, element by element; no padding cut off yet."""
    n, c = x.shape[:2]
    lengths = [
        s * (size - 1) + (k - 1) * d + 1
        for s, size, k, d in zip(strides, x.shape[2:], w.shape[2:], dilations, strict=True)
    ]
    y = np.zeros((n, w.shape[1], *lengths))
    for place in np.ndindex(x.shape[2:]):
        for tap in np.ndindex(w.shape[2:]):
            at = tuple(p * s + t * d for p, s, t, d in zip(place, strides, tap, dilations, strict=True))
            y[(slice(None), slice(None), *at)] += (
                x[(slice(None), slice(None), *place)] @ w[(slice(None), slice(None), *tap)]
            )
    assert x.shape[1] == c
    return y


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("kernel", [3, 4])
def test_conv_transpose_auto_pad(mode: str, stride: int, kernel: int) -> None:
    x, w = _random(1, 2, 4), _random(2, 3, kernel, seed=1)
    full = _transposed(x, w, [stride], [1])
    total = max(full.shape[2] - 4 * stride, 0)
    before = total // 2 if mode == "SAME_UPPER" else total - total // 2
    want = np.pad(full, ((0, 0), (0, 0), (0, 4 * stride)))[:, :, before : before + 4 * stride]
    assert_close(run("ConvTranspose", [x, w], auto_pad=mode, strides=[stride]), want.astype(np.float32))


@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER"])
@pytest.mark.parametrize("length", [8, 9, 10])
def test_conv_transpose_output_shape(mode: str, length: int) -> None:
    x, w = _random(1, 2, 4), _random(2, 3, 4, seed=1)
    full = _transposed(x, w, [2], [1])
    total = full.shape[2] - length
    before = total // 2 if mode == "SAME_UPPER" else total - total // 2
    got = run("ConvTranspose", [x, w], auto_pad=mode, strides=[2], output_shape=[length])
    assert_close(got, full[:, :, before : before + length].astype(np.float32))


def test_equal_filters_give_equal_channels() -> None:
    # In float32 a matrix product may round equal rows differently, which a softmax of large scores then shows.
    x = _random(1, 512, 3, 3) * np.float32(1e6)
    w = np.repeat(_random(1, 512, 1, 1, seed=1), 1000, axis=0)
    y = run("Conv", [x, w])
    assert (y == y[:, :1]).all()


# --- padding, slicing, indexing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "pads", "want"),
    [
        ("constant", [-1, 2], [2, 3, 4, 0, 0]),
        ("constant", [-2, -1], [3]),
        ("constant", [-4, 2], [0, 0]),
        ("edge", [2, -1], [1, 1, 1, 2, 3]),
        ("reflect", [-1, 2], [2, 3, 4, 3, 2]),
        ("reflect", [0, 5], [1, 2, 3, 4, 3, 2, 1, 2, 3]),
        ("wrap", [-1, 2], [2, 3, 4, 2, 3]),
    ],
)
def test_pad_removes_and_repeats(mode: str, pads: list[int], want: list[float]) -> None:
    x = np.array([1, 2, 3, 4], np.float32)
    assert_close(run("Pad", [x, np.array(pads)], mode=mode), np.array(want, np.float32))


def test_backward_slice_from_before_the_axis_contains_its_first_element() -> None:
    x = np.arange(5, dtype=np.float32)
    ends = np.array([np.iinfo(np.int64).min])
    got = run("Slice", [x, np.array([-9]), ends, np.array([0]), np.array([-1])])
    assert_close(got, x[:1])


def test_unique_keeps_the_order_of_appearance_without_other_outputs() -> None:
    assert run("Unique", [np.array([2, 1, 1, 3, 4, 3])], sorted=0).tolist() == [2, 1, 3, 4]
    rows = np.array([[5, 1, 5], [2, 3, 2]])
    y, first, inverse, counts = run("Unique", [rows], 4, sorted=0, axis=1)
    assert y.tolist() == [[5, 1], [2, 3]]
    assert (first.tolist(), inverse.tolist(), counts.tolist()) == ([0, 1], [0, 1, 0], [2, 1])


def test_index_out_of_range_is_an_error() -> None:
    from accord.errors import ExecutionError

    for op, inputs in (
        ("Gather", [_random(3), np.array([3])]),
        ("GatherElements", [_random(3), np.array([-4])]),
        ("GatherND", [_random(3), np.array([[7]])]),
        ("ScatterND", [_random(3), np.array([[3]]), _random(1)]),
    ):
        with pytest.raises(ExecutionError, match="outside"):
            run(op, inputs)


# --- resize --------------------------------------------------------------------------------------------------


def test_resize_crops_its_region() -> None:
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 6)
    roi = np.array([0, 0.2, 1, 0.8], np.float32)
    # Source positions 1 to 4; the number of elements follows from the region: floor(6 × 0.6 × 2) = 7.
    got = run(
        "Resize",
        [x, roi, np.array([1, 2], np.float32)],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    assert_close(got, (1 + np.linspace(1, 4, 7))[None].astype(np.float32))


def test_resize_extrapolates_outside_its_region() -> None:
    x = np.array([[1, 2, 3]], np.float32)
    got = run(
        "Resize",
        [x, np.array([0, -0.5, 1, 1.5], np.float32), None, np.array([1, 5])],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.0,
    )
    assert_close(got, np.array([[9, 1, 2, 3, 9]], np.float32))  # positions -1, 0, 1, 2, 3


def test_resize_crop_to_one_element_takes_the_middle() -> None:
    got = run(
        "Resize",
        [np.array([0, 10, 20, 30, 40], np.float32), np.array([0.5, 1], np.float32), None, np.array([1])],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    assert_close(got, np.array([30], np.float32))


@pytest.mark.parametrize(("mode", "want"), [("half_pixel", 2.5), ("pytorch_half_pixel", 1.0)])
def test_resize_to_length_one(mode: str, want: float) -> None:
    x = np.array([1, 2, 3, 4], np.float32)
    got = run("Resize", [x, None, None, np.array([1])], mode="linear", coordinate_transformation_mode=mode)
    assert_close(got, np.array([want], np.float32))


@pytest.mark.parametrize("exclude", [0, 1])
def test_resize_antialias_at_the_edges(exclude: int) -> None:
    x = _random(9)
    got = run("Resize", [x, None, None, np.array([3])], mode="linear", antialias=1, exclude_outside=exclude)
    want = []
    for i in range(3):
        position = (i + 0.5) * 3 - 0.5
        taps = np.arange(int(np.floor(position)) - 4, int(np.floor(position)) + 6)
        weights = np.maximum(1 - np.abs(taps - position) / 3, 0)
        if exclude:
            weights = np.where((taps >= 0) & (taps < 9), weights, 0)
        want.append((weights * x[np.clip(taps, 0, 8)]).sum() / weights.sum())
    assert_close(got, np.array(want, np.float32))


def test_resize_finds_exact_positions() -> None:
    # 7 elements to 3: the middle one lies exactly on element 3, whichever way numbers are rounded on the way.
    got = run(
        "Resize", [np.arange(7, dtype=np.float32), None, None, np.array([3])], mode="nearest", nearest_mode="ceil"
    )
    assert got[1] == 3


def test_infinite_neighbour_of_weight_zero_does_not_count() -> None:
    x = np.array([[[[1, np.inf], [2, 3]]]], np.float32)
    scales = np.array([1, 1, 1, 1.5], np.float32)
    got = run("Resize", [x, None, scales], mode="linear", coordinate_transformation_mode="asymmetric")
    assert got[0, 0, :, 0].tolist() == [1, 2]
    grid = np.array([[[[-1, -1]]]], np.float32)
    assert run("GridSample", [x, grid], mode="linear", align_corners=1).item() == 1


# --- sampling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aligned", [0, 1])
def test_grid_sample_cubic_border_pads_each_neighbour(aligned: int) -> None:
    x = _random(1, 1, 1, 4)
    points = np.array([-3, -1.3, -1.05, -0.9, 0.2, 0.95, 1.2, 2], np.float32)
    grid = np.stack([points, np.zeros_like(points)], axis=-1)[None, None]
    got = run("GridSample", [x, grid], mode="cubic", padding_mode="border", align_corners=aligned)
    want = []
    for point in points.astype(np.float64):
        position = (point + 1) / 2 * 3 if aligned else ((point + 1) * 4 - 1) / 2
        base = int(np.floor(position))
        total = 0.0
        for tap in range(base - 1, base + 3):
            t = abs(position - tap)
            a = -0.75
            weight = (a + 2) * t**3 - (a + 3) * t**2 + 1 if t <= 1 else a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
            total += weight * x[0, 0, 0, min(max(tap, 0), 3)]
        want.append(total)
    assert_close(got[0, 0, 0], np.array(want, np.float32), atol=1e-5)


def test_deform_conv_in_three_dimensions_samples_linearly() -> None:
    x, w = _random(1, 2, 3, 3, 3), _random(2, 1, 2, 2, 2, seed=1)
    offset = np.zeros((1, 8 * 3, 2, 2, 2), np.float32)
    plain = run("Conv", [x, w], group=2)
    assert_close(run("DeformConv", [x, w, offset], group=2), plain, atol=1e-5)
    offset[:, 2::3] = 0.25  # along the last axis
    shifted = np.concatenate([0.75 * x[..., :2] + 0.25 * x[..., 1:], 0.75 * x[..., 2:]], axis=-1)
    assert_close(run("DeformConv", [x, w, offset], group=2), run("Conv", [shifted, w], group=2), atol=1e-5)


# --- normalisation and softmax -------------------------------------------------------------------------------


def test_log_softmax_stays_finite() -> None:
    x = np.array([[0, -1000, 1000], [-1e30, 0, 0]], np.float32)
    want = [[-1000, -2000, 0], [-1e30, -np.log(2), -np.log(2)]]
    assert_close(run("LogSoftmax", [x]), np.array(want, np.float32))
    half = np.array([[60000, -60000, 0]], np.float16)
    assert run("LogSoftmax", [half]).tolist() == [[0, -np.inf, -60000]]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_axis_zero_is_not_a_missing_axis(op: str) -> None:
    x = _random(3, 4)
    assert_close(run(op, [x], axis=0), run(op, [x.T.copy()], axis=-1).T)


def test_half_precision_softmax_of_a_long_row() -> None:
    # The sum, 100,000, is beyond float16.
    got = run("Softmax", [np.zeros((1, 100_000), np.float16)])
    assert_close(got, np.full((1, 100_000), 1e-5, np.float16), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_statistics(dtype: Any) -> None:
    x = (np.random.default_rng(0).standard_normal((2, 3, 5000)) * 300 + 2000).astype(dtype)
    one, zero = np.ones(3, dtype), np.zeros(3, dtype)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(axis=2, keepdims=True)) / np.sqrt(wide.var(axis=2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        run("InstanceNormalization", [x, one, zero], opset=22).astype(np.float64), want, rtol=2**-7, atol=2**-7
    )
    mean = run("ReduceMean", [x, np.array([2])], keepdims=0)
    np.testing.assert_allclose(mean.astype(np.float64), wide.mean(axis=2), rtol=2**-8)
    rms = run("RMSNormalization", [x, np.ones(5000, dtype)], opset=23).astype(np.float64)
    want = wide / np.sqrt(np.square(wide).mean(axis=2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(rms, want, rtol=2**-7)


def test_instance_normalization_with_a_large_mean() -> None:
    x = (_random(1, 1, 1000) + np.float32(10000)).astype(np.float32)
    wide = x.astype(np.float64)
    want = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    assert_close(run("InstanceNormalization", [x, np.ones(1, np.float32), np.zeros(1, np.float32)]), want, 1e-5, 1e-5)


def test_lrn_sums_over_every_channel_of_a_small_batch() -> None:
    x = _random(1, 5, 2)
    want = np.zeros_like(x, dtype=np.float64)
    for c in range(5):
        near = x[:, max(0, c - 1) : c + 2].astype(np.float64)
        want[:, c] = x[:, c] / (1 + 0.1 / 3 * np.square(near).sum(axis=1)) ** 0.75
    assert_close(run("LRN", [x], size=3, alpha=0.1), want, 1e-5, 1e-6)


def test_lp_normalization_of_signed_numbers() -> None:
    x = np.array([[3, -1], [0, 0]], np.float32)
    assert_close(run("LpNormalization", [x], p=1), np.array([[0.75, -0.25], [0, 0]], np.float32))
    assert_close(run("LpNormalization", [x.T.copy()], p=1, axis=0), np.array([[0.75, 0], [-0.25, 0]], np.float32))


def test_layer_normalization_gives_its_statistics_in_the_stash_type() -> None:
    x = _random(2, 4).astype(np.float16)
    y, mean, inverse = run("LayerNormalization", [x, np.ones(4, np.float16)], 3, stash_type=TensorProto.FLOAT)
    assert (y.dtype, mean.dtype, inverse.dtype) == (np.float16, np.float32, np.float32)
    assert mean.shape == (2, 1)


def test_attention_shows_the_raw_product_although_it_is_capped() -> None:
    q, k = _random(1, 1, 2, 4), _random(1, 1, 3, 4, seed=1)
    raw = q @ k.transpose(0, 1, 3, 2) / 2
    outputs = [
        run("Attention", [q, k, k], 4, opset=25, softcap=0.5, qk_matmul_output_mode=mode)[3] for mode in range(2)
    ]
    assert_close(outputs[0], raw)
    assert_close(outputs[1], np.tanh(raw / 0.5) * np.float32(0.5))


def test_causal_attention_counts_from_the_cached_keys() -> None:
    # One query, two new keys, three cached: the query is at place 3 and does not see the last key.
    q, k, v = _random(1, 1, 1, 4), _random(1, 1, 2, 4, seed=1), _random(1, 1, 2, 4, seed=2)
    past_k, past_v = _random(1, 1, 3, 4, seed=3), _random(1, 1, 3, 4, seed=4)
    got, *_ = run("Attention", [q, k, v, None, past_k, past_v], 3, opset=24, is_causal=1)
    keys, values = (np.concatenate(pair, axis=2)[:, :, :4] for pair in ((past_k, k), (past_v, v)))
    weights = np.exp(q @ keys.transpose(0, 1, 3, 2) / 2)
    assert_close(got, (weights / weights.sum(axis=-1, keepdims=True) @ values).astype(np.float32))


# --- arithmetic ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_integer_division_is_defined_everywhere(dtype: Any) -> None:
    low = np.iinfo(dtype).min
    a = np.array([low, low, 7, -7, 7, -7, -6, 0], dtype)
    b = np.array([-1, 0, 0, 0, -2, 2, 3, 5], dtype)
    assert run("Div", [a, b]).tolist() == [low, 0, 0, 0, -3, -3, -2, 0]
    assert run("Mod", [a, b]).tolist() == [0, 0, 0, 0, -1, 1, 0, 0]
    assert run("Mod", [a, b], fmod=1).tolist() == [0, 0, 0, 0, 1, -1, 0, 0]


def test_integer_power_with_a_negative_exponent() -> None:
    base, exponent = np.array([2, 1, -1, -1, 0], np.int32), np.array([-1, -3, -2, -3, -1], np.int32)
    assert run("Pow", [base, exponent]).tolist() == [0, 1, 1, -1, 0]


def test_limits_that_cross_give_the_upper_one() -> None:
    x = np.array([-5, 0, 5, np.nan], np.float32)
    got = run("Clip", [x, np.array(2, np.float32), np.array(1, np.float32)])
    assert got[:3].tolist() == [1, 1, 1]
    assert np.isnan(got[3])


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremes_keep_nan(op: str) -> None:
    got = run(op, [np.array([1, np.nan], np.float32), np.array([np.nan, 2], np.float32)])
    assert np.isnan(got).all()


def test_range_counts_exactly() -> None:
    start = 2**62
    got = run("Range", [np.array(start), np.array(start + 7), np.array(3)], opset=11)
    assert got.tolist() == [start, start + 3, start + 6]
    half = [np.array(v, np.float16) for v in (0, 3000, 1)]
    got = run("Range", half, opset=27)
    assert got.size == 3000
    assert got.dtype == np.float16
    assert run("Range", [np.array(5), np.array(1), np.array(2)], opset=11).shape == (0,)


def test_reductions_over_nothing() -> None:
    x = np.zeros((2, 0), np.float32)
    axes = np.array([1])
    want = {"ReduceSum": 0, "ReduceProd": 1, "ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceLogSumExp": -np.inf}
    for op, value in want.items():
        assert run(op, [x, axes], keepdims=0).tolist() == [value, value]


def test_log_sum_exp_of_large_and_infinite_numbers() -> None:
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    got = run("ReduceLogSumExp", [x, np.array([1])], keepdims=0)
    assert_close(got, np.array([1000 + np.log(2), -np.inf, np.inf], np.float32))


# --- conversion ----------------------------------------------------------------------------------------------


def test_cast_saturates_or_not() -> None:
    x = np.array([500, np.inf, -np.inf, np.nan], np.float32)
    to = TensorProto.FLOAT8E4M3FN
    assert str(run("Cast", [x], to=to).astype(np.float32).tolist()) == "[448.0, 448.0, -448.0, nan]"
    assert np.isnan(run("Cast", [x], to=to, saturate=0).astype(np.float32)).all()


def test_cast_to_powers_of_two() -> None:
    x = np.array([0, 1.4, 1.5, 2, np.inf, np.nan], np.float32)
    cast = {
        mode: run("Cast", [x], opset=24, to=TensorProto.FLOAT8E8M0, round_mode=mode).view(np.uint8).tolist()
        for mode in ("up", "down", "nearest")
    }
    assert cast["up"] == [0, 128, 128, 128, 254, 255]
    assert cast["down"] == [0, 127, 127, 128, 254, 255]
    assert cast["nearest"] == [0, 127, 128, 128, 254, 255]
    strict = run("Cast", [x], opset=24, to=TensorProto.FLOAT8E8M0, round_mode="nearest", saturate=0)
    assert strict.view(np.uint8).tolist() == [255, 127, 128, 128, 255, 255]


def test_cast_of_floats_out_of_range_is_the_same_everywhere() -> None:
    x = np.array([np.nan, 300, -300, 1e30, -1e30], np.float32)
    assert run("Cast", [x], to=TensorProto.UINT8).tolist() == [0, 44, 212, 0, 0]
    assert run("Cast", [x], to=TensorProto.INT64).tolist()[3:] == [2**63 - 1, -(2**63)]
    large = np.array([2.0**63 + 2**40], np.float64)
    assert run("Cast", [large], to=TensorProto.UINT64).tolist() == [2**63 + 2**40]


def test_cast_between_numbers_and_strings() -> None:
    words = np.array(["1.5", "-INF", "nan", "1e3", " 7 "], object)
    got = run("Cast", [words], to=TensorProto.FLOAT)
    assert_close(got, np.array([1.5, -np.inf, np.nan, 1000, 7], np.float32))
    assert run("Cast", [np.array([1, -2])], to=TensorProto.STRING).tolist() == ["1", "-2"]


def test_quantisation_saturates_large_numbers() -> None:
    x = np.array([1e20, -1e20, np.nan, 2.5, 3.5], np.float32)
    scale = np.array(1, np.float32)
    assert run("QuantizeLinear", [x, scale, np.array(1, np.int8)]).tolist() == [127, -128, 1, 3, 5]


# --- text, spectra, models -----------------------------------------------------------------------------------


def test_strings_keep_their_accents() -> None:
    got = run("StringNormalizer", [np.array(["Été", "the", ""], object)], case_change_action="LOWER", stopwords=["The"])
    assert got.tolist() == ["été", ""]


@pytest.mark.parametrize(
    ("pattern", "text", "want"),
    [(r"\d+", "12", True), (r"\d+", "१२", False), (r"[[:upper:]]x\z", "Ax", True), (r"\Qa.b\E", "a.b", True)],
)
def test_regular_expressions_of_re2(pattern: str, text: str, want: bool) -> None:
    assert run("RegexFullMatch", [np.array([text], object)], pattern=pattern).tolist() == [want]


def test_windows_by_their_formulas() -> None:
    n = np.arange(6)
    hamming = 25 / 46 - 21 / 46 * np.cos(2 * np.pi * n / 5)
    assert_close(run("HammingWindow", [np.array(6)], periodic=0), hamming.astype(np.float32))
    assert run("HannWindow", [np.array(1)], periodic=0).tolist() == [1]


def test_every_tree_leaf_counts() -> None:
    # One node on feature 0 with two leaves; a missing value goes to the true branch.
    attributes = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "nodes_missing_value_tracks_true": [1, 0, 0],
    }
    x = np.array([[0.5], [0.6], [np.nan]], np.float32)
    votes = {"treeids": [0, 0, 0], "nodeids": [1, 2, 2], "ids": [0, 0, 1], "weights": [1.0, 2.0, 3.0]}
    regression = run(
        "TreeEnsembleRegressor",
        [x],
        domain="ai.onnx.ml",
        opset=3,
        n_targets=2,
        base_values=[10.0, 20.0],
        **attributes,
        **{f"target_{k}": v for k, v in votes.items()},
    )
    assert regression.tolist() == [[11, 20], [12, 23], [11, 20]]
    labels, scores = run(
        "TreeEnsembleClassifier",
        [x],
        2,
        domain="ai.onnx.ml",
        opset=3,
        classlabels_strings=["no", "yes"],
        **attributes,
        **{f"class_{k}": v for k, v in votes.items()},
    )
    assert labels.tolist() == ["no", "yes", "no"]
    assert scores.tolist() == [[1, 0], [2, 3], [1, 0]]


@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
@pytest.mark.parametrize("missing", [0, 1])
def test_the_node_decides_where_nan_goes(mode: str, missing: int) -> None:
    got = run(
        "TreeEnsembleRegressor",
        [np.array([[np.nan]], np.float32)],
        domain="ai.onnx.ml",
        opset=3,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_modes=[f"BRANCH_{mode}", "LEAF", "LEAF"],
        nodes_values=[0.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        nodes_missing_value_tracks_true=[missing, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[1.0, 2.0],
    )
    assert got.item() == (1 if missing else 2)


def test_maps() -> None:
    rows = run(
        "ZipMap", [np.array([[1, 2], [3, 4]], np.float32)], domain="ai.onnx.ml", opset=1, classlabels_int64s=[7, 9]
    )
    assert rows == [{7: 1.0, 9: 2.0}, {7: 3.0, 9: 4.0}]
    packed = run("CastMap", [{9: 2.0, 7: 1.0}], domain="ai.onnx.ml", opset=1)
    assert packed.tolist() == [[1, 2]]
    spread = run("CastMap", [{2: 5.0}], domain="ai.onnx.ml", opset=1, map_form="SPARSE", max_map=4)
    assert spread.tolist() == [[0, 0, 5, 0]]
    vector = run(
        "DictVectorizer", [{"a": 4.0, "c": 8.0}], domain="ai.onnx.ml", opset=1, string_vocabulary=["a", "c", "b"]
    )
    assert vector.tolist() == [4, 8, 0]


def test_label_encoder_treats_nan_as_a_key() -> None:
    x = np.array([1, np.nan, 5], np.float32)
    keys = onnx.numpy_helper.from_array(np.array([1, np.nan], np.float32))
    values = onnx.numpy_helper.from_array(np.array([10, 20], np.int64))
    default = onnx.numpy_helper.from_array(np.array([-1], np.int64))
    got = run(
        "LabelEncoder",
        [x],
        domain="ai.onnx.ml",
        opset=4,
        keys_tensor=keys,
        values_tensor=values,
        default_tensor=default,
    )
    assert got.tolist() == [10, 20, -1]


def test_average_pool_counts_declared_padding_only() -> None:
    # ceil_mode adds a window that reaches one element beyond the padding; that element never counts.
    x = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    options: dict[str, Any] = {"kernel_shape": [3], "strides": [3], "pads": [1, 0], "ceil_mode": 1}
    assert_close(run("AveragePool", [x], **options)[0, 0], np.array([1.5, 4], np.float32))
    padded = run("AveragePool", [x], count_include_pad=1, **options)
    assert_close(padded[0, 0], np.array([1, 4], np.float32))
    longer = run("AveragePool", [x[:, :, :4]], count_include_pad=1, **options)
    assert_close(longer[0, 0], np.array([1, 3.5], np.float32))


def test_max_pool_indices_in_both_orders() -> None:
    x = _random(2, 2, 4, 5)
    options: dict[str, Any] = {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "strides": [2, 2]}
    y, rows = run("MaxPool", [x], 2, **options)
    _, columns = run("MaxPool", [x], 2, storage_order=1, **options)
    for place in itertools.product(*map(range, y.shape)):
        n, c, h, w = np.unravel_index(rows[place], x.shape)
        assert (n, c) == place[:2]
        assert x[n, c, h, w] == y[place]
        assert columns[place] == (n * 2 + c) * 20 + w * 4 + h
