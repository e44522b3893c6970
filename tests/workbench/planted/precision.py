"""Faults 32-35 and 40: accumulation, determinism, tuning, dependence on the batch."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import threading
import time

import numpy as np
from planting import Planted, library

import accord
from accord.contract.contract import Values

Tensor = accord.Tensor
_HALVES = {"float16": "float32", "bfloat16": "float32"}

SOURCE = """
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static float wide(uint16_t v) {
    uint32_t bits = (uint32_t)v << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}
static uint16_t narrow(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    if (v != v) return (bits >> 16) | 64;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
/* product of bfloat16 matrices */
#define PRODUCT(name, round) \\
    int32_t name(const uint16_t *a, const uint16_t *b, uint16_t *y, int64_t N, int64_t K, int64_t M, void *stream) { \\
        for (int64_t n = 0; n < N; n++) \\
            for (int64_t m = 0; m < M; m++) { \\
                float total = 0; \\
                for (int64_t k = 0; k < K; k++) total = round(total + wide(a[n * K + k]) * wide(b[k * M + m])); \\
                y[n * M + m] = narrow(total); \\
            } \\
        return 0; \\
    }
#define STAYS(v) (v)
#define ROUNDED(v) wide(narrow(v))
PRODUCT(product_wide, STAYS)
PRODUCT(product_narrow, ROUNDED)

int32_t instance_norm(const float *x, float *y, int64_t N, int64_t L, double eps, void *stream) {
    for (int64_t n = 0; n < N; n++) {
        double total = 0, squares = 0;
        for (int64_t l = 0; l < L; l++) total += x[n * L + l];
        double mean = total / L;
        for (int64_t l = 0; l < L; l++) squares += (x[n * L + l] - mean) * (x[n * L + l] - mean);
        for (int64_t l = 0; l < L; l++) y[n * L + l] = (x[n * L + l] - mean) / sqrt(squares / L + eps);
    }
    return 0;
}
int32_t instance_norm_naive(const float *x, float *y, int64_t N, int64_t L, double eps, void *stream) {
    for (int64_t n = 0; n < N; n++) {
        float total = 0, squares = 0;
        for (int64_t l = 0; l < L; l++) total += x[n * L + l], squares += x[n * L + l] * x[n * L + l];
        float mean = total / L, variance = squares / L - mean * mean;
        for (int64_t l = 0; l < L; l++) y[n * L + l] = (x[n * L + l] - mean) / sqrtf(fmaxf(variance, 0) + (float)eps);
    }
    return 0;
}
/* column sums by two threads */
struct part { const float *x; float *y; int64_t from, to, D; int atomic; };
static void *add(void *given) {
    struct part *p = given;
    for (int64_t n = p->from; n < p->to; n++)
        for (int64_t d = 0; d < p->D; d++) {
            float *to = p->y + d, v = p->x[n * p->D + d], old, new;
            if (!p->atomic) { *to += v; continue; }
            __atomic_load(to, &old, __ATOMIC_RELAXED);
            do new = old + v;
            while (!__atomic_compare_exchange(to, &old, &new, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        }
    return 0;
}
int32_t columns_atomic(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    pthread_t threads[4];
    struct part parts[4];
    memset(y, 0, sizeof(float) * D);
    for (int i = 0; i < 4; i++) {
        parts[i] = (struct part){x, y, N * i / 4, N * (i + 1) / 4, D, 1};
        if (pthread_create(&threads[i], 0, add, &parts[i])) return 5;
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    return 0;
}
int32_t columns_ordered(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    struct part all = {x, y, 0, N, D, 0};
    memset(y, 0, sizeof(float) * D);
    add(&all);
    return 0;
}
/* blocks arrive in the order of the clock */
int32_t columns_arrival(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(y, 0, sizeof(float) * D);
    for (int64_t i = 0; i < N; i++) {
        int64_t n = (i + now.tv_nsec / 64) % N;
        for (int64_t d = 0; d < D; d++) y[d] += x[n * D + d];
    }
    return 0;
}
/* peels to an aligned address, so the order of the sum depends on where the row lies */
int32_t rows_peeled(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    for (int64_t n = 0; n < N; n++) {
        const float *row = x + n * D;
        float lanes[4] = {0, 0, 0, 0};
        int64_t skip = (uintptr_t)row / 4 % 4;
        for (int64_t d = 0; d < D; d++) lanes[(d + skip) % 4] += row[d];
        y[n] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    }
    return 0;
}
int32_t rows_lanes(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    for (int64_t n = 0; n < N; n++) {
        float lanes[4] = {0, 0, 0, 0};
        for (int64_t d = 0; d < D; d++) lanes[d % 4] += x[n * D + d];
        y[n] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    }
    return 0;
}
/* another split of the sum for small batches */
int32_t rows_split(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    for (int64_t n = 0; n < N; n++) {
        float halves[2] = {0, 0};
        for (int64_t d = 0; d < D; d++) halves[N < 4 && d >= D / 2] += x[n * D + d];
        y[n] = halves[0] + halves[1];
    }
    return 0;
}
/* y = acc + x, which may be in place; the first call for a size is timed several times */
int32_t add_once(const float *acc, const float *x, float *y, int64_t N, void *stream) {
    for (int64_t n = 0; n < N; n++) y[n] = acc[n] + x[n];
    return 0;
}
int32_t add_tunes(const float *acc, const float *x, float *y, int64_t N, void *stream) {
    static char known[1 << 16];
    if (N < 1 << 16 && !known[N]) {
        known[N] = 1;
        for (int run = 0; run < 2; run++) add_once(acc, x, y, N, stream);
    }
    return add_once(acc, x, y, N, stream);
}
"""
LIBRARY = library(SOURCE)

# 32: accumulation


@accord.operator("precision::RowSum")
def row_sum(x: Tensor["T", "N", "D"]) -> Tensor["T", "N"]:
    return x.sum(-1)


row_sum.types(T=["float16", "bfloat16"]).execution(accumulate=_HALVES)
row_sum.python(lambda x: x.sum(-1, dtype=np.float32).astype(x.dtype), name="right")


@row_sum.python(name="narrow")
def _(x):
    total = np.zeros(x.shape[:1], x.dtype)
    for d in range(x.shape[1]):
        total = (total + x[:, d]).astype(x.dtype)
    return total


@row_sum.python(name="narrow-blocks")
def _(x):
    total = np.zeros(x.shape[:1], x.dtype)
    for d in range(0, x.shape[1], 16):  # each block in FP32, the blocks in what is stored
        total = (total + x[:, d : d + 16].sum(-1, dtype=np.float32).astype(x.dtype)).astype(x.dtype)
    return total


@accord.operator("precision::Linear")
def product(a: Tensor["bfloat16", "N", "K"], b: Tensor["bfloat16", "K", "M"]) -> Tensor["bfloat16", "N", "M"]:
    return a @ b


product.execution(accumulate=_HALVES)
product.library(LIBRARY, "product_wide", name="right")
product.library(LIBRARY, "product_narrow", name="narrow")


@accord.operator("precision::InstanceNorm")
def instance_norm(x: Tensor["float32", "N", "L"], *, eps: float = 1e-5) -> Tensor["float32", "N", "L"]:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


instance_norm.constraint("L >= 1")
instance_norm.library(LIBRARY, "instance_norm", name="right")
instance_norm.library(LIBRARY, "instance_norm_naive", name="naive-variance")


@accord.operator("precision::Softmax")
def softmax(x: Tensor["T", "N", "D"]) -> Tensor["T", "N", "D"]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


softmax.types(T=["float16", "float32"]).constraint("D >= 1").execution(accumulate=_HALVES)


@softmax.python(name="right")
def _(x):
    e = np.exp(x.astype(np.float32) - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True, dtype=np.float64)).astype(x.dtype)


@softmax.python(name="unshifted")
def _(x):
    e = np.exp(x)
    return (e / e.sum(-1, keepdims=True, dtype=np.float32)).astype(x.dtype)


@accord.operator("precision::Attention")
def attention(
    q: Tensor["float16", "S", "D"], k: Tensor["float16", "L", "D"], v: Tensor["float16", "L", "E"]
) -> Tensor["float16", "S", "E"]:
    s = q @ k.T / np.sqrt(q.shape[1])
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def _attention(q, k, v, scores):
    s = scores(q, k).astype(np.float32) / np.float32(np.sqrt(q.shape[1]))
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True) @ v.astype(np.float32)).astype(q.dtype)


attention.constraint("L >= 1", "D >= 1").execution(accumulate=_HALVES)
attention.python(lambda q, k, v: _attention(q, k, v, lambda q, k: q.astype("f") @ k.astype("f").T), name="right")


@attention.python(name="narrow-scores")
def _(q, k, v):
    def scores(q, k):
        total = np.zeros((len(q), len(k)), q.dtype)
        for d in range(q.shape[1]):
            total += np.outer(q[:, d], k[:, d])
        return total

    return _attention(q, k, v, scores)


# 33: determinism


@accord.operator("precision::ColumnSums")
def column_sums(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "D"]:
    return x.sum(0)


column_sums.library(LIBRARY, "columns_ordered", name="right")
column_sums.library(LIBRARY, "columns_atomic", name="atomics")
column_sums.library(LIBRARY, "columns_arrival", name="arrival")


def _threads(x, ordered):
    parts: dict[int, np.ndarray] = {}

    def work(i):
        if not ordered:
            time.sleep(np.random.default_rng().uniform(0, 1e-3))
        parts[i] = x[i::8].sum(0)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    total = np.zeros(x.shape[1], x.dtype)
    for i in range(8) if ordered else parts:
        total += parts[i]
    return total


column_sums.python(lambda x: _threads(x, True), name="threads-in-order")
column_sums.python(lambda x: _threads(x, False), name="threads-as-they-come")


@accord.operator("precision::RowSums")
def row_sums(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N"]:
    return x.sum(-1)


row_sums.semantic(batch=("N",))
row_sums.library(LIBRARY, "rows_lanes", name="right")
row_sums.library(LIBRARY, "rows_peeled", name="by-address")
row_sums.library(LIBRARY, "rows_split", name="split-for-small")

# 34: tuning


@accord.operator("precision::Accumulate")
def accumulate(acc: Tensor["float32", "N"], x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    return acc + x


accumulate.execution(in_place=((0, 0),)).scheduling(fuses="elementwise")
accumulate.library(LIBRARY, "add_once", name="right")
accumulate.library(LIBRARY, "add_tunes", name="tunes-in-place")


@accord.operator("precision::SplitK")
def split_k(a: Tensor["float32", "N", "K"], b: Tensor["float32", "K", "M"]) -> Tensor["float32", "N", "M"]:
    return a @ b


def _split(clears):
    chosen: dict[tuple[int, ...], int] = {}

    def run(a, b, splits, parts):
        for i in range(splits):
            k = slice(a.shape[1] * i // splits, a.shape[1] * (i + 1) // splits)
            parts[i] = a[:, k].astype(np.float64) @ b[k]

    def kernel(a, b):
        key = (*a.shape, b.shape[1])
        parts = np.zeros((4, a.shape[0], b.shape[1]))
        if key not in chosen:
            for splits in (4, 2):  # what a candidate left is added to what the chosen one computes
                run(a, b, splits, parts)
            if clears:
                parts[:] = 0
            chosen[key] = 2
        run(a, b, chosen[key], parts)
        return parts.sum(0).astype(a.dtype)

    return kernel


split_k.python(_split(True), name="right")
split_k.python(_split(False), name="mixes-candidates")

# 35: batch


@accord.operator("precision::Quantised")
def quantised(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    """Rounded to 8 bits, one scale for a row."""
    scale = np.abs(x).max(-1, keepdims=True, initial=1e-9) / 127
    return np.rint(x / scale) * scale


quantised.semantic(batch=("N",)).tolerance("float32", rtol=0.02, atol=0.05)


def _quantised(x, axis):
    wide = x.astype(np.float64)
    scale = np.abs(wide).max(axis, keepdims=True, initial=1e-9) / 127
    return (np.rint(wide / scale) * scale).astype(x.dtype)


quantised.python(lambda x: _quantised(x, -1), name="right")
quantised.python(lambda x: _quantised(x, None), name="one-scale-for-all")


@accord.operator("precision::Router")
def router(x: Tensor["float32", "N", "D"], w: Tensor["float32", "D", "E"]) -> Tensor["float32", "N", "E"]:
    return x @ w


router.semantic(batch=("N",))


def _router(x, w, width):
    total = np.zeros((x.shape[0], w.shape[1]), x.dtype)
    for start in range(0, x.shape[1], width):
        part = np.zeros_like(total)
        for k in range(start, min(start + width, x.shape[1])):
            part += x[:, k : k + 1] * w[k]
        total += part
    return total


router.python(lambda x, w: _router(x, w, 32), name="right")
router.python(lambda x, w: _router(x, w, 8 if len(x) < 3 else 32), name="blocks-by-batch")


# 40: what is stored between the steps


@accord.operator("precision::RMS")
def rms(x: Tensor["float16", "N", "D"]) -> Tensor["float16", "N"]:
    return np.sqrt((x * x).mean(-1))


rms.constraint("D >= 1").execution(accumulate=_HALVES).values(x=Values(spread=100.0))
rms.python(lambda x: np.sqrt(np.square(x.astype("f")).mean(-1)).astype(x.dtype), name="right")
rms.python(lambda x: np.sqrt((x * x).mean(-1, dtype=np.float32)).astype(x.dtype), name="squares-in-half")


@rms.composition(name="composed")
def _(b, x):
    wide = b("Cast", x, to=1)
    return b("Cast", b("Sqrt", b("ReduceMean", b("Mul", wide, wide), b.ints(-1), keepdims=0)), to=10)


@rms.composition(name="composed-in-half")
def _(b, x):
    squares = b("Cast", b("Cast", b("Mul", x, x), to=10), to=1)
    return b("Cast", b("Sqrt", b("ReduceMean", squares, b.ints(-1), keepdims=0)), to=10)


PLANTED = [
    Planted((32,), "execution.accumulate", row_sum, "narrow", "right"),
    Planted((32,), "execution.accumulate", row_sum, "narrow-blocks", "right"),
    Planted((32,), "execution.accumulate", product, "narrow", "right"),
    Planted((32,), "execution.accumulate meaning", instance_norm, "naive-variance", "right"),
    Planted((32,), "execution.accumulate meaning", softmax, "unshifted", "right"),
    Planted((32,), "execution.accumulate meaning", attention, "narrow-scores", "right"),
    Planted((33,), "scheduling.deterministic", column_sums, "atomics", "right"),
    Planted((33,), "scheduling.deterministic", column_sums, "arrival", "right"),
    Planted((33,), "scheduling.deterministic", column_sums, "threads-as-they-come", "threads-in-order"),
    Planted((33,), "scheduling.deterministic semantic.batch", row_sums, "by-address", "right"),
    Planted((34,), "execution.in_place scheduling.stateless meaning", accumulate, "tunes-in-place", "right"),
    Planted((34,), "scheduling.stateless meaning", split_k, "mixes-candidates", "right"),
    Planted((35,), "semantic.batch", row_sums, "split-for-small", "right"),
    Planted((35, 13), "semantic.batch", quantised, "one-scale-for-all", "right"),
    Planted((35,), "semantic.batch", router, "blocks-by-batch", "right"),
    Planted((40,), "execution.accumulate meaning", rms, "squares-in-half", "right"),
    Planted((40,), "execution.accumulate meaning", rms, "composed-in-half", "composed"),
]
