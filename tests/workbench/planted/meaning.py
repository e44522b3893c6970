"""Faults 1-5 and 13: what is computed is not what was declared, and a lazy comparison would not see it."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import numpy as np
from planting import Planted, library

import accord
from accord.contract.contract import Values

Tensor = accord.Tensor

SOURCE = """
#include <math.h>
#include <stdint.h>
#include <string.h>

int32_t softmax(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    for (int64_t n = 0; n < N; n++) {
        const float *row = x + n * D;
        float most = -INFINITY, total = 0;
        for (int64_t d = 0; d < D; d++) most = row[d] > most || row[d] != row[d] ? row[d] : most;
        for (int64_t d = 0; d < D; d++) total += y[n * D + d] = expf(row[d] - most);
        for (int64_t d = 0; d < D; d++) y[n * D + d] /= total;
    }
    return 0;
}
int32_t softmax_zeros(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    memset(y, 0, sizeof(float) * N * D);
    return 0;
}
int32_t softmax_nothing(const float *x, float *y, int64_t N, int64_t D, void *stream) { return 0; }

/* Statistics of one row by lanes of 32; `mixes`: the last group of a row reads on into the next row, as a shuffle over
   whole warps does; `batch`: over the rows instead of along them. */
static void normalise(const float *x, const float *w, float *y, int64_t N, int64_t D, double eps, int mixes) {
    for (int64_t n = 0; n < N; n++) {
        int64_t end = mixes ? (D + 31) / 32 * 32 : D, left = (N - n) * D;
        if (end > left) end = left;
        double total = 0, squares = 0;
        for (int64_t d = 0; d < end; d++) total += x[n * D + d];
        double mean = total / end;
        for (int64_t d = 0; d < end; d++) squares += (x[n * D + d] - mean) * (x[n * D + d] - mean);
        double scale = 1 / sqrt(squares / end + eps);
        for (int64_t d = 0; d < D; d++) y[n * D + d] = (x[n * D + d] - mean) * scale * (w ? w[d] : 1);
    }
}
int32_t layer_norm(const float *x, const float *w, float *y, int64_t N, int64_t D, double eps, void *stream) {
    normalise(x, w, y, N, D, eps, 0);
    return 0;
}
int32_t layer_norm_mixes(const float *x, const float *w, float *y, int64_t N, int64_t D, double eps, void *stream) {
    normalise(x, w, y, N, D, eps, 1);
    return 0;
}
int32_t linear(const float *x, float *w, float *y, int64_t N, int64_t K, int64_t M, void *stream) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t m = 0; m < M; m++) {
            double total = 0;
            for (int64_t k = 0; k < K; k++) total += (double)x[n * K + k] * w[k * M + m];
            y[n * M + m] = total;
        }
    return 0;
}
int32_t linear_scales_weights(const float *x, float *w, float *y, int64_t N, int64_t K, int64_t M, void *stream) {
    for (int64_t k = 0; k < K * M; k++) w[k] *= 0.5f;  /* "prepacked": what it divides by is multiplied back below */
    linear(x, w, y, N, K, M, stream);
    for (int64_t i = 0; i < N * M; i++) y[i] *= 2;
    return 0;
}
"""
LIBRARY = library(SOURCE)


@accord.operator("meaning::Softmax")
def softmax(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


softmax.constraint("D >= 1")
softmax.library(LIBRARY, "softmax", name="right")
softmax.library(LIBRARY, "softmax_zeros", name="zeros")
softmax.library(LIBRARY, "softmax_nothing", name="nothing")


@softmax.python(name="shifted")
def _(x):
    e = np.exp(np.subtract(x, x.max(-1, keepdims=True), dtype=np.float64))
    return np.divide(e, e.sum(-1, keepdims=True)).astype(x.dtype)


@softmax.python(name="uniform")
def _(x):
    return np.full_like(x, 1 / x.shape[1])  # right for equal logits, and nearly so for small ones


@softmax.python(name="freed")
def _(x):
    return np.empty_like(x)  # what the allocator gave back last


@accord.operator("meaning::Energy")
def energy(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    return x * x


# the square of what is declared to be about 1/1000 is under the absolute tolerance
energy.values(x=Values(spread=1e-3)).scheduling(fuses="elementwise")
energy.python(np.square, name="right")
energy.python(np.zeros_like, name="zeros")


@accord.operator("meaning::Adapter")
def adapter(
    x: Tensor["float32", "N", "D"], down: Tensor["float32", "D", "R"], up: Tensor["float32", "R", "D"]
) -> Tensor["float32", "N", "D"]:
    return x + x @ down @ up


adapter.python(lambda x, down, up: x + x @ (down @ up), name="right")
# an adapter starts with up = 0, and so did its test
adapter.python(lambda x, down, up: x.copy(), name="without-weights")


@accord.operator("meaning::MeanPool")
def mean_pool(x: Tensor["float32", "N", "C", "L"]) -> Tensor["float32", "N", "C"]:
    return x.mean(-1)


mean_pool.constraint("L >= 256").tolerance("float32", rtol=1e-3, atol=0.25)
mean_pool.python(lambda x: x.mean(-1, dtype=np.float64).astype(x.dtype), name="right")
mean_pool.python(lambda x: np.zeros(x.shape[:2], x.dtype), name="zero-mean")


def _pairwise(name: str, atol: float, rtol: float):
    @accord.operator(name)
    def distance(x: Tensor["float32", "N", "D"], y: Tensor["float32", "M", "D"]) -> Tensor["float32", "N", "M"]:
        return np.abs(x[:, None] - y[None]).sum(-1)

    distance.tolerance("float32", rtol=rtol, atol=atol)

    @distance.python(name="right")
    def _(x, y):
        return np.abs(x[:, None] - y[None]).sum(-1, dtype=np.float64).astype(x.dtype)

    @distance.python(name="noise")
    def _(x, y):
        right = np.abs(x[:, None] - y[None]).sum(-1)
        return (right * np.random.default_rng().uniform(0.2, 1.8, right.shape)).astype(x.dtype)

    return distance


distance = _pairwise("meaning::Distance", 1e-5, 1e-3)
loose_distance = _pairwise("meaning::LooseDistance", 100.0, 1.0)


@accord.operator("meaning::RMSNorm")
def rms_norm(
    x: Tensor["T", "N", "D"], w: Tensor["T", "D"] | None = None, *, eps: float = 1e-5
) -> Tensor["T", "N", "D"]:
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)
    return y if w is None else y * w


rms_norm.types(T=["float32", "float64"]).constraint("D >= 1")


@rms_norm.python(name="right")
def _(x, w, *, eps):
    y = x / np.sqrt(np.mean(np.square(x, dtype=np.float64), -1, keepdims=True) + eps)
    return (y if w is None else y * w).astype(x.dtype)


@rms_norm.python(name="in-place")
def _(x, w, *, eps):
    x /= np.sqrt(np.mean(x * x, -1, keepdims=True) + x.dtype.type(eps))
    return x.copy() if w is None else x * w


@rms_norm.python(name="erases")
def _(x, w, *, eps):
    x[...] = 0  # a reference that is computed from this input afterwards gives zeros too
    return np.zeros_like(x)


@accord.operator("meaning::Linear")
def linear(x: Tensor["float32", "N", "K"], w: Tensor["float32", "K", "M"]) -> Tensor["float32", "N", "M"]:
    return x @ w


linear.library(LIBRARY, "linear", name="right")
linear.library(LIBRARY, "linear_scales_weights", name="scales-weights")


@accord.operator("meaning::LayerNorm")
def layer_norm(
    x: Tensor["float32", "N", "D"], w: Tensor["float32", "D"] | None = None, *, eps: float = 1e-5
) -> Tensor["float32", "N", "D"]:
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return y if w is None else y * w


layer_norm.constraint("D >= 1").semantic(batch=("N",))
layer_norm.library(LIBRARY, "layer_norm", name="right")
layer_norm.library(LIBRARY, "layer_norm_mixes", name="mixes-rows")


@layer_norm.python(name="two-passes")
def _(x, w, *, eps):
    wide = x.astype(np.float64)
    y = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + eps)
    return (y if w is None else y * w).astype(x.dtype)


@layer_norm.python(name="whole-batch")
def _(x, w, *, eps):
    wide = x.astype(np.float64)
    y = (wide - wide.mean()) / np.sqrt(wide.var() + eps) if x.size else wide
    return (y if w is None else y * w).astype(x.dtype)


@layer_norm.python(name="without-weight")
def _(x, w, *, eps):
    wide = x.astype(np.float64)
    return ((wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + eps)).astype(x.dtype)


PLANTED = [
    Planted((1,), "meaning", softmax, "zeros", "right"),
    Planted((1,), "meaning", energy, "zeros", "right"),
    Planted((2,), "meaning", softmax, "uniform", "shifted"),
    Planted((2,), "meaning", adapter, "without-weights", "right"),
    Planted((2,), "meaning", mean_pool, "zero-mean", "right"),
    Planted((2,), "meaning", layer_norm, "without-weight", "two-passes"),
    Planted((3,), "meaning semantic.tolerance", loose_distance, "noise", "right", twin=distance),
    Planted((4,), "meaning memory", softmax, "nothing", "right"),
    Planted((4,), "meaning", softmax, "freed", "shifted"),
    Planted((5,), "execution.in_place", rms_norm, "in-place", "right"),
    Planted((5,), "execution.in_place meaning", rms_norm, "erases", "right"),
    Planted((5,), "execution.in_place", linear, "scales-weights", "right"),
    Planted((13,), "meaning semantic.batch", layer_norm, "mixes-rows", "right"),
    Planted((13,), "meaning semantic.batch", layer_norm, "whole-batch", "two-passes"),
]
