"""Softmax, normalisations, losses, matrix products and activations against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_harness import assert_agrees, assert_close, normal, run

_SETTINGS = settings(max_examples=40, deadline=None)
_seeds = st.integers(0, 2**32 - 1)
_shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@_SETTINGS
@given(
    st.sampled_from(["Softmax", "LogSoftmax", "Hardmax"]),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.sampled_from([11, 13]),
    st.sampled_from([0.25, 1, 50]),
    st.data(),
    _seeds,
)
def test_softmax(op: str, shape: list[int], opset: int, width: float, data: st.DataObject, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = (np.random.default_rng(seed).integers(-8, 8, shape) * width).astype(np.float32)
    assert_agrees(op, [x], opset=opset, axis=axis)


@_SETTINGS
@given(st.integers(1, 3), st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data(), _seeds)
def test_normalisations(batch: int, channels: int, spatial: list[int], data: st.DataObject, seed: int) -> None:
    shape = [batch, channels, *spatial]
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    inner = shape[axis:]
    x, scale, bias, mean, variance, gain, shift = normal(seed, shape, *[[channels]] * 4, inner, inner)
    epsilon = {"epsilon": data.draw(st.sampled_from([1e-5, 1e-2]))}
    training = data.draw(st.booleans())
    batch_inputs = [x, scale, bias, mean, np.abs(variance)]
    options = {"training_mode": int(training), "momentum": 0.8}
    assert_agrees("BatchNormalization", batch_inputs, 3 if training else 1, opset=15, atol=1e-4, **options, **epsilon)
    assert_agrees("InstanceNormalization", [x, scale, bias], opset=6, atol=1e-4, **epsilon)
    layer = [x, gain, data.draw(st.sampled_from([None, shift]))]
    assert_agrees("LayerNormalization", layer, 3, opset=17, rtol=1e-3, atol=1e-3, axis=axis, **epsilon)
    assert_agrees("RMSNormalization", [x, gain], opset=23, axis=axis, **epsilon)
    assert_agrees("LpNormalization", [x], opset=1, axis=axis, p=data.draw(st.integers(1, 2)))


@_SETTINGS
@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 3, 5]), _seeds)
def test_normalisations_over_channels(groups: int, inner: int, size: int, seed: int) -> None:
    channels = groups * inner
    x, scale, bias = normal(seed, (2, channels, 3, 2), (channels,), (channels,))
    assert_agrees("GroupNormalization", [x, scale, bias], atol=1e-4, num_groups=groups)
    assert_agrees("LRN", [x], opset=13, size=size, alpha=0.1, beta=0.6, bias=1.5)
    assert_agrees("MeanVarianceNormalization", [x], opset=13, rtol=1e-3, axes=[0, 2, 3])


@_SETTINGS
@given(st.integers(1, 3), st.lists(st.integers(1, 3), max_size=2), st.data(), _seeds)
def test_losses(batch: int, spatial: list[int], data: st.DataObject, seed: int) -> None:
    (x,) = normal(seed, (batch, 4, *spatial))
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 4, (batch, *spatial))
    weight = data.draw(st.sampled_from([None, rng.uniform(0.1, 1, 4).astype(np.float32)]))
    reduction = data.draw(st.sampled_from(["none", "sum", "mean"]))
    # Without a target that counts, ONNX Runtime's mean is 0 where the formula divides 0 by 0.
    ignored = data.draw(st.sampled_from([None, *([v for v in range(4) if (target != v).any()])]))
    options = {"reduction": reduction, "ignore_index": ignored}
    assert_agrees("SoftmaxCrossEntropyLoss", [x, target, weight], 2, opset=13, **options)
    assert_agrees("NegativeLogLikelihoodLoss", [x, target, weight], opset=13, **options)


_EQUATIONS = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "ii->i",
    "ii",
    "ij->ji",
    "i,j->ij",
    "...ij,...jk->...ik",
    "ij,ij",
    "bhid,bhjd->bhij",
    "abc,cd,de->abe",
    "i,i",
    "ijk->kj",
    "...i,i",
    "Ab,bA",
]


@_SETTINGS
@given(st.sampled_from(_EQUATIONS), st.data(), _seeds)
def test_einsum(equation: str, data: st.DataObject, seed: int) -> None:
    lengths: dict[str, int] = {}
    shapes = []
    for term in equation.split("->", maxsplit=1)[0].split(","):
        leading = [2, 3] if term.startswith("...") else []
        shapes.append(leading + [lengths.setdefault(c, data.draw(st.integers(1, 4))) for c in term.removeprefix("...")])
    assert_agrees("Einsum", normal(seed, *shapes), opset=12, equation=equation)


@_SETTINGS
@given(st.tuples(*[st.integers(1, 5)] * 3), st.data(), _seeds)
def test_matrix_products(sizes: tuple[int, int, int], data: st.DataObject, seed: int) -> None:
    m, k, n = sizes
    across, down = data.draw(st.booleans()), data.draw(st.booleans())
    a, b, *addends = normal(seed, (k, m) if across else (m, k), (n, k) if down else (k, n), (n,), (m, 1), (m, n), ())
    options = {"alpha": data.draw(st.sampled_from([1.0, 0.5])), "beta": data.draw(st.sampled_from([1.0, 0.0, 2.0]))}
    addend = data.draw(st.sampled_from([None, *addends]))
    assert_agrees("Gemm", [a, b, addend], opset=13, transA=int(across), transB=int(down), **options)
    shapes = [((k,), (k,)), ((m, k), (k,)), ((k,), (2, k, n)), ((2, 1, m, k), (3, k, n)), ((m, 0), (0, n))]
    assert_agrees("MatMul", normal(seed, *data.draw(st.sampled_from(shapes))), opset=13)


@_SETTINGS
@given(st.tuples(*[st.integers(1, 5)] * 3), st.sampled_from([np.uint8, np.int8]), st.booleans(), _seeds)
def test_quantised_products(sizes: tuple[int, int, int], dtype: Any, by_column: bool, seed: int) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(seed)
    low = np.iinfo(dtype).min
    a, b = (rng.integers(low, low + 256, shape).astype(dtype) for shape in ((m, k), (k, n)))
    shape = (n,) if by_column else ()
    b_zero = rng.integers(low, low + 256, shape).astype(dtype)
    a_zero, y_zero = (np.array(v, dtype) for v in (3, 4))
    assert_agrees("MatMulInteger", [a, b, a_zero, np.asarray(b_zero)], opset=10)
    b_scale = np.asarray(rng.uniform(0.01, 0.1, shape), np.float32)
    scales = [np.array(v, np.float32) for v in (0.1, 0.9)]
    inputs = [a, scales[0], a_zero, b, b_scale, np.asarray(b_zero), scales[1], y_zero]
    assert_agrees("QLinearMatMul", inputs, opset=10, steps=1)


@_SETTINGS
@given(st.integers(1, 5), st.sampled_from([0, 1, 100]), st.sampled_from([0, 5, -5]), _seeds)
def test_dynamic_quantisation(rows: int, width: float, offset: float, seed: int) -> None:
    (x,) = normal(seed, (rows, 3))
    assert_agrees("DynamicQuantizeLinear", [(x * width + offset).astype(np.float32)], 3, opset=11)


def _packed(x: Any) -> Any:
    """(batch, heads, length, size) to (batch, length, heads * size)."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


@_SETTINGS
@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.data(), _seeds)
def test_attention(batch: int, heads: int, group: int, queries: int, keys: int, data: st.DataObject, seed: int) -> None:
    size, value_size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    past = data.draw(st.sampled_from([0, 0, 2]))
    if past:  # of a causal frontier, ONNX Runtime counts from the end, not from the cached keys
        keys = queries
    total = past + keys
    masks = [(queries, total), (batch, 1, queries, total), (1, heads * group, queries, total)]
    q, k, v, past_k, past_v, *added = normal(
        seed,
        (batch, heads * group, queries, size),
        (batch, heads, keys, size),
        (batch, heads, keys, value_size),
        (batch, heads, past, size),
        (batch, heads, past, value_size),
        *masks,
    )
    mask = data.draw(st.sampled_from([None, added[0] < 0.5, *added]))
    # What ONNX Runtime shows as biased scores has a finite number for minus infinity.
    options: dict[str, Any] = {
        "is_causal": data.draw(st.integers(0, 1)),
        "softcap": data.draw(st.sampled_from([None, 1.5])),
        "scale": data.draw(st.sampled_from([None, 0.3])),
        "qk_matmul_output_mode": data.draw(st.sampled_from([0, 1, 3])),
    }
    if data.draw(st.booleans()):
        q, k, v = (_packed(t) for t in (q, k, v))
        options |= {"q_num_heads": heads * group, "kv_num_heads": heads}
    inputs = [q, k, v, mask, *([past_k, past_v] if past else [])]
    assert_agrees("Attention", inputs, 4, opset=24, rtol=1e-3, atol=1e-4, **options)


@_SETTINGS
@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.sampled_from([2, 4, 6]), st.data(), _seeds)
def test_rotary_embedding(batch: int, heads: int, length: int, size: int, data: st.DataObject, seed: int) -> None:
    rotated = data.draw(st.sampled_from([s for s in (0, 2, 4) if s < size]))
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0, 6, (8, (rotated or size) // 2))
    caches = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    (x,) = normal(seed, (batch, heads, length, size))
    options: dict[str, Any] = {"interleaved": data.draw(st.integers(0, 1)), "rotary_embedding_dim": rotated}
    if rotated or data.draw(st.booleans()):
        x, options = _packed(x), options | {"num_heads": heads}
    positions = rng.integers(0, 8, (batch, length))
    assert_agrees("RotaryEmbedding", [x, *caches, positions], opset=23, **options)


_UNARY = (
    "Abs Neg Ceil Floor Round Sign Sqrt Exp Log Erf Sigmoid Tanh Softplus Softsign Elu Selu Celu HardSigmoid HardSwish "
    "Mish ThresholdedRelu LeakyRelu Shrink Relu Gelu Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Reciprocal "
    "IsNaN IsInf"
).split()
_OPTIONS: dict[str, dict[str, Any]] = {
    **{op: {"alpha": 0.7} for op in ("Elu", "Celu", "LeakyRelu", "ThresholdedRelu")},
    "Shrink": {"lambd": 1.0, "bias": 0.5},
}


@pytest.mark.parametrize("op", _UNARY)
def test_functions_of_one_variable(op: str) -> None:
    x = np.array([*np.arange(-24, 25) / 8, -100, -20, 20, 60, np.nan, np.inf, -np.inf, -0.0], np.float32)
    if op in ("HardSwish", "Mish"):
        x = x[np.isfinite(x)]  # the formula's infinity times zero
    if op == "Softplus":
        x = x[x != -100]  # ONNX Runtime rounds to zero what float32 can hold
    assert_agrees(op, [x], opset=20, **_OPTIONS.get(op, {}))


_BINARY = "Add Sub Mul Div Max Min Pow Mod Equal Less Greater LessOrEqual GreaterOrEqual".split()


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
@pytest.mark.parametrize("op", _BINARY)
def test_functions_of_two_variables(op: str, dtype: Any) -> None:
    a, b = (np.arange(-6, 6).reshape(2, 3, 2).astype(dtype), np.array([[-3], [1], [2]], dtype))
    if op == "Pow":
        b = np.abs(b)
    options = {"fmod": int(dtype == np.float32)} if op == "Mod" else {}
    assert_agrees(op, [a, b], opset=15, **options)


def test_negative_gelu_does_not_cancel() -> None:
    # 0.5 x (1 + erf(x / √2)) by its asymptotic series, and the approximation by the exponential of its tail.
    x = np.array([-8.0])
    series = sum(c / 64**n for n, c in enumerate((1, -1, 3, -15, 105, -945, 10395)))
    want = -np.exp(-32) / np.sqrt(2 * np.pi) * series
    assert_close(run("Gelu", [x], opset=20), np.array([want]), 1e-6, 0)
    tail = 2 * np.sqrt(2 / np.pi) * (8 + 0.044715 * 512)
    assert_close(run("Gelu", [x], opset=20, approximate="tanh"), np.array([-8 * np.exp(-tail)]), 1e-9, 0)
