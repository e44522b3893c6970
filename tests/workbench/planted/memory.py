"""Faults 14-18 and 20: strides, alignment, bounds, offsets, workspace."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import platform

import numpy as np
from planting import Planted, library

import accord

Tensor = accord.Tensor

SOURCE = """
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define STRIDED(name) \\
    int32_t name(const float *x, float *y, int64_t N, int64_t D, int64_t sx0, int64_t sx1, int64_t sy0, int64_t sy1, \\
                 void *stream)
/* Two outputs in one place are no output: such strides are refused. */
#define REFUSE if ((N > 1 && !sy0) || (D > 1 && !sy1)) return 1;
#define LOOP(from, to) \\
    for (int64_t n = 0; n < N; n++) \\
        for (int64_t d = 0; d < D; d++) y[to] = x[from] > 0 || x[from] != x[from] ? x[from] : 0.1f * x[from];

STRIDED(leaky) { REFUSE LOOP(n * sx0 + d * sx1, n * sy0 + d * sy1) return 0; }
STRIDED(leaky_last_stride) { REFUSE LOOP(n * sx0 + d, n * sy0 + d * sy1) return 0; }
STRIDED(leaky_output_stride) { REFUSE LOOP(n * sx0 + d * sx1, n * sy0 + d) return 0; }
STRIDED(leaky_contiguous) { REFUSE LOOP(n * D + d, n * D + d) return 0; }
/* 0 taken for "not given" */
STRIDED(leaky_zero) {
    REFUSE
    if (!sx1) sx1 = 1;
    if (!sx0) sx0 = D;
    LOOP(n * sx0 + d * sx1, n * sy0 + d * sy1)
    return 0;
}
STRIDED(leaky_negative) {
    REFUSE
    sx0 = llabs(sx0), sx1 = llabs(sx1);
    LOOP(n * sx0 + d * sx1, n * sy0 + d * sy1)
    return 0;
}
/* transposed is recognised, and then the rest of the strides is believed to follow */
STRIDED(leaky_transposed) {
    REFUSE
    if (sx0 == 1 && D > 1) sx1 = N;
    LOOP(n * sx0 + d * sx1, n * sy0 + d * sy1)
    return 0;
}
STRIDED(leaky_takes_all) { LOOP(n * sx0 + d * sx1, n * sy0 + d * sy1) return 0; }
/* offsets in 32 bits */
STRIDED(leaky_int) {
    REFUSE
    int a = sx0, b = sx1;
    LOOP((int)((unsigned)n * a + (unsigned)d * b), n * sy0 + d * sy1)
    return 0;
}

#if defined(__x86_64__)
#include <xmmintrin.h>
#define SILU(load) \\
    int64_t i = 0; \\
    for (; i + 4 <= N; i += 4) { \\
        float v[4]; \\
        _mm_storeu_ps(v, load(x + i)); \\
        for (int j = 0; j < 4; j++) y[i + j] = v[j] / (1 + expf(-v[j])); \\
    } \\
    for (; i < N; i++) y[i] = x[i] / (1 + expf(-x[i])); \\
    return 0;
static __m128 rounds_down(const float *x) { return _mm_load_ps((const float *)((uintptr_t)x & ~(uintptr_t)15)); }
int32_t silu(const float *x, float *y, int64_t N, void *stream) { SILU(_mm_loadu_ps) }
int32_t silu_aligned(const float *x, float *y, int64_t N, void *stream) { SILU(_mm_load_ps) }
int32_t silu_rounds(const float *x, float *y, int64_t N, void *stream) { SILU(rounds_down) }
#endif

/* Depthwise convolution along L, same size, K odd, zeros outside. */
static void depthwise(const float *x, const float *w, float *y, int64_t N, int64_t C, int64_t L, int64_t K) {
    for (int64_t i = 0; i < N * C; i++)
        for (int64_t l = 0; l < L; l++) {
            double total = 0;
            for (int64_t k = 0; k < K; k++) {
                int64_t at = l + k - K / 2;
                if (at >= 0 && at < L) total += (double)x[i * L + at] * w[i % C * K + k];
            }
            y[i * L + l] = total;
        }
}
int32_t conv(const float *x, const float *w, float *y, int64_t N, int64_t C, int64_t L, int64_t K, void *stream) {
    depthwise(x, w, y, N, C, L, K);
    return 0;
}
/* the read outside is done, and its value masked away */
int32_t conv_reads(const float *x, const float *w, float *y, int64_t N, int64_t C, int64_t L, int64_t K, void *stream) {
    for (int64_t i = 0; i < N * C; i++)
        for (int64_t l = 0; l < L; l++) {
            double total = 0;
            for (int64_t k = 0; k < K; k++) {
                int64_t at = l + k - K / 2;
                float v = *(const volatile float *)(x + i * L + at);
                if (at >= 0 && at < L) total += (double)v * w[i % C * K + k];
            }
            y[i * L + l] = total;
        }
    return 0;
}
/* loads whole vectors of eight weights */
int32_t conv_reads_weights(const float *x, const float *w, float *y, int64_t N, int64_t C, int64_t L, int64_t K,
                           void *stream) {
    volatile float sink = 0;
    for (int64_t c = 0; c < C; c++)
        for (int64_t k = 0; k < (K + 7) / 8 * 8; k++) sink = *(const volatile float *)(w + c * K + k);
    depthwise(x, w, y, N, C, L, K);
    return 0;
}
/* stores whole vectors of four at the end of a row; the next row covers it up, after the last one nothing does */
int32_t conv_writes(const float *x, const float *w, float *y, int64_t N, int64_t C, int64_t L, int64_t K,
                    void *stream) {
    for (int64_t i = N * C * L; L && i < (N * C * L + 3) / 4 * 4; i++) y[i] = 0;
    depthwise(x, w, y, N, C, L, K);
    return 0;
}
int32_t conv_writes_before(const float *x, const float *w, float *y, int64_t N, int64_t C, int64_t L, int64_t K,
                           void *stream) {
    if (N * C * L) *(volatile float *)(y - 1) = 0;
    depthwise(x, w, y, N, C, L, K);
    return 0;
}
/* writes far away, where another tensor of the same slab lies */
int32_t conv_writes_far(const float *x, const float *w, float *y, int64_t N, int64_t C, int64_t L, int64_t K,
                        void *stream) {
    depthwise(x, w, y, N, C, L, K);
    if (N * C * L > 6) y[N * C * L + 5] = 0;
    return 0;
}

int32_t gather(const int8_t *table, const int64_t *index, int8_t *y, int64_t V, int64_t D, int64_t N, void *stream) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) y[n * D + d] = table[index[n] * D + d];
    return 0;
}
int32_t gather_int(const int8_t *table, const int64_t *index, int8_t *y, int64_t V, int64_t D, int64_t N,
                   void *stream) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++)
            y[n * D + d] = table[(int32_t)((uint32_t)index[n] * (uint32_t)D + (uint32_t)d)];
    return 0;
}
int32_t gather_reads_ahead(const int8_t *table, const int64_t *index, int8_t *y, int64_t V, int64_t D, int64_t N,
                           void *stream) {
    volatile int64_t next = 0;
    for (int64_t n = 0; n < N; n++) {
        next = ((const volatile int64_t *)index)[n + 1];
        memcpy(y + n * D, table + index[n] * D, D);
    }
    return 0;
}

/* Sum of each column in two levels: partial sums of 64 rows in the workspace. */
#define COLUMNS(name, have, clear, memory) \\
    int32_t name(const float *x, float *y, int64_t N, int64_t D, void *workspace, int64_t bytes, void *stream) { \\
        int64_t blocks = (N + 63) / 64; \\
        double *part = (double *)(memory); \\
        if (bytes < (have)) return 3; \\
        if (clear) memset(part, 0, 8 * blocks * D); \\
        for (int64_t n = 0; n < N; n++) \\
            for (int64_t d = 0; d < D; d++) part[n / 64 * D + d] += x[n * D + d]; \\
        for (int64_t d = 0; d < D; d++) { \\
            double total = 0; \\
            for (int64_t b = 0; b < blocks; b++) total += part[b * D + d]; \\
            y[d] = total; \\
        } \\
        return 0; \\
    }
static double shared[1 << 20];
COLUMNS(columns, 8 * blocks * D, 1, workspace)
COLUMNS(columns_needs_more, 0, 1, workspace)
COLUMNS(columns_dirty, 8 * blocks * D, 0, workspace)
COLUMNS(columns_static, 0, 1, shared)
/* zeroed once, and left clean at the end of each call: so it believes */
int32_t columns_first_clear(const float *x, float *y, int64_t N, int64_t D, void *workspace, int64_t bytes,
                            void *stream) {
    static void *cleared;
    static int64_t size;
    double *part = workspace;
    int64_t count = (N + 63) / 64 * D;
    if (cleared != workspace || size < count) memset(part, 0, 8 * count), cleared = workspace, size = count;
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) part[n / 64 * D + d] += x[n * D + d];
    for (int64_t d = 0; d < D; d++) {
        double total = 0;
        for (int64_t b = 0; b < (N + 63) / 64; b++) total += part[b * D + d], part[b * D + d] = 0;
        y[d] = total;
    }
    return 0;
}
"""
LIBRARY = library(SOURCE)
X86 = platform.machine() in ("x86_64", "AMD64")

# 14, 17, 18: strides


@accord.operator("memory::LeakyRelu")
def leaky(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    return np.where(x < 0, 0.1 * x, x)


leaky.execution(layouts=("contiguous", "strided")).scheduling(fuses="elementwise")
leaky.library(LIBRARY, "leaky", name="right")
for _fault in ("last_stride", "output_stride", "contiguous", "zero", "negative", "transposed", "takes_all", "int"):
    leaky.library(LIBRARY, f"leaky_{_fault}", name=_fault.replace("_", "-"))


@accord.operator("memory::RowNorm")
def row_norm(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N"]:
    return np.sqrt((x * x).sum(-1))


row_norm.execution(layouts=("contiguous", "strided"))
row_norm.python(lambda x: np.sqrt(np.square(x, dtype=np.float64).sum(-1)).astype(x.dtype), name="right")


@row_norm.python(name="memory-order")
def _(x):
    flat = x.ravel(order="K").reshape(x.shape)  # the elements as they lie in memory, not as they are counted
    return np.sqrt(np.square(flat, dtype=np.float64).sum(-1)).astype(x.dtype)


@row_norm.python(name="from-pointer")
def _(x):
    rows = np.lib.stride_tricks.as_strided(x, x.shape, (x.strides[0], x.itemsize))
    return np.sqrt(np.square(rows, dtype=np.float64).sum(-1)).astype(x.dtype)


@accord.operator("memory::RowMean")
def row_mean(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    """The mean of a row in each of its places."""
    return np.broadcast_to(x.mean(-1, keepdims=True), x.shape)


row_mean.constraint("D >= 1")
row_mean.python(
    lambda x: np.tile(x.mean(-1, keepdims=True, dtype=np.float64), (1, x.shape[1])).astype("f"), name="right"
)
row_mean.python(
    lambda x: np.broadcast_to(x.mean(-1, keepdims=True, dtype=np.float64).astype("f"), x.shape), name="broadcast"
)

# 15: alignment


@accord.operator("memory::Silu")
def silu(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    return x / (1 + np.exp(-x))


silu.scheduling(fuses="elementwise")
if X86:
    silu.library(LIBRARY, "silu", name="unaligned-loads")
    silu.library(LIBRARY, "silu_aligned", name="declares-16", execution={"alignment": 16})
    silu.library(LIBRARY, "silu_aligned", name="aligned-loads")
    silu.library(LIBRARY, "silu_rounds", name="rounds-down")
    silu.library(LIBRARY, "silu_rounds", name="rounds-nothing", execution={"alignment": 16})

# 16: bounds


@accord.operator("memory::DepthwiseConv")
def depthwise(x: Tensor["float32", "N", "C", "L"], w: Tensor["float32", "C", "K"]) -> Tensor["float32", "N", "C", "L"]:
    y, length, half = np.zeros(x.shape, np.result_type(x, w)), x.shape[2], w.shape[1] // 2
    for k in range(w.shape[1]):
        first, last = max(0, half - k), min(length, length + half - k)
        if first < last:
            y[..., first:last] += x[..., first + k - half : last + k - half] * w[:, k : k + 1]
    return y


depthwise.constraint("K % 2 == 1")
depthwise.library(LIBRARY, "conv", name="right")
for _fault in ("reads", "reads_weights", "writes", "writes_before", "writes_far"):
    depthwise.library(LIBRARY, f"conv_{_fault}", name=_fault.replace("_", "-"))


@accord.operator("memory::Gather")
def gather(table: Tensor["int8", "V", "D"], index: Tensor["int64", "N"]) -> Tensor["int8", "N", "D"]:
    return table[index]


gather.constraint("V >= 1").values(index=(0, "V - 1"))
gather.library(LIBRARY, "gather", name="right")
gather.library(LIBRARY, "gather_int", name="offsets-of-32-bits")
gather.library(LIBRARY, "gather_reads_ahead", name="reads-next-index")
gather.python(lambda table, index: table[index], name="python")


@gather.python(name="python-32-bits")
def _(table, index):
    width = np.int32(table.shape[1])
    with np.errstate(over="ignore"):
        flat = index.astype(np.int32)[:, None] * width + np.arange(width, dtype=np.int32)
    return table.reshape(-1)[flat]


# 20: workspace


@accord.operator("memory::ColumnSums")
def columns(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "D"]:
    return x.sum(0)


_SPACE = {"workspace": "8 * D * ceildiv(N, 64)"}
columns.library(LIBRARY, "columns", name="right", execution=_SPACE)
columns.library(LIBRARY, "columns_needs_more", name="too-little", execution={"workspace": "8 * D * (N // 64)"})
columns.library(LIBRARY, "columns_needs_more", name="half", execution={"workspace": "4 * D * ceildiv(N, 64)"})
columns.library(LIBRARY, "columns_dirty", name="not-cleared", execution=_SPACE)
columns.library(LIBRARY, "columns_first_clear", name="cleared-once", execution=_SPACE)
columns.library(LIBRARY, "columns_static", name="shared-between-threads", execution={"workspace": "8 * D"})


def _one_buffer():
    kept = np.zeros((1 << 20), np.float64)

    def kernel(x):
        sums = kept[: x.shape[1]]
        sums[:] = 0
        for row in x:
            sums += row
        return sums.astype(x.dtype)

    return kernel


columns.python(lambda x: x.sum(0, dtype=np.float64).astype(x.dtype), name="python")
columns.python(_one_buffer(), name="python-shared")

PLANTED = [
    *(Planted((14,), "execution.layouts memory", leaky, n, "right") for n in (
        "last-stride", "output-stride", "contiguous", "zero", "negative", "transposed")),
    Planted((14,), "execution.layouts memory", row_norm, "memory-order", "right"),
    Planted((14,), "execution.layouts memory", row_norm, "from-pointer", "right"),
    *([
        Planted((15,), "execution.alignment", silu, "aligned-loads", "unaligned-loads"),
        Planted((15,), "execution.alignment", silu, "rounds-down", "rounds-nothing"),
        Planted((15,), "execution.alignment", silu, "aligned-loads", "declares-16"),
    ] if X86 else []),
    *(Planted((16,), "memory", depthwise, n, "right") for n in (
        "reads", "reads-weights", "writes", "writes-before", "writes-far")),
    Planted((16,), "memory", gather, "reads-next-index", "right"),
    Planted((17,), "memory execution.layouts", leaky, "int", "right"),
    Planted((17,), "memory", gather, "offsets-of-32-bits", "right"),
    Planted((17,), "memory meaning", gather, "python-32-bits", "python"),
    Planted((18,), "execution.layouts semantic.constraints", leaky, "takes-all", "right"),
    Planted((18,), "execution.layouts execution.views", row_mean, "broadcast", "right"),
    *(Planted((20,), "execution.workspace", columns, n, "right") for n in (
        "too-little", "half", "not-cleared", "cleared-once")),
    Planted((20,), "execution.workspace execution.thread_safe", columns, "shared-between-threads", "right"),
    Planted((20,), "execution.workspace execution.thread_safe", columns, "python-shared", "python"),
]  # fmt: skip
