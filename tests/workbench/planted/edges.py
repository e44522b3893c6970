"""Faults 10, 11, 19, 22, 30 and 43: special values, empty and odd sizes, absent inputs, errors that nobody hears of."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import itertools
import threading

import numpy as np
from planting import Planted, library

import accord
from accord.contract.contract import NanPolicy, Values

Tensor = accord.Tensor

SOURCE = """
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void row_max(const float *x, float *y, int64_t N, int64_t D, int keeps_nan) {
    for (int64_t n = 0; n < N; n++) {
        float most = -INFINITY;
        for (int64_t d = 0; d < D; d++) {
            float v = x[n * D + d];
            if (v > most || (keeps_nan && isnan(v))) most = v;
            if (keeps_nan && isnan(most)) break;
        }
        y[n] = most;
    }
}
int32_t max_keeps(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    row_max(x, y, N, D, 1);
    return 0;
}
int32_t max_drops(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    row_max(x, y, N, D, 0);
    return 0;
}
/* one thread block for at least one row */
int32_t max_one_row(const float *x, float *y, int64_t N, int64_t D, void *stream) {
    row_max(x, y, N ? N : 1, D, 1);
    return 0;
}
static void scale(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D, int64_t from,
                  int64_t to) {
    for (int64_t n = from; n < to && n < N; n++)
        for (int64_t d = 0; d < D; d++) y[n * D + d] = x[n * D + d] * (w ? w[d] : 1) + (b ? b[d] : 0);
}
int32_t affine(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D, void *stream) {
    scale(x, w, b, y, N, D, 0, N);
    return 0;
}
/* the rows after the last whole block of four are left */
int32_t affine_blocks(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D, void *stream) {
    if (N < 4) scale(x, w, b, y, N, D, 0, N);
    for (int64_t n = 0; n + 4 <= N; n += 4) scale(x, w, b, y, N, D, n, n + 4);
    return 0;
}
int32_t affine_crashes(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D, void *stream) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) y[n * D + d] = x[n * D + d] * w[d] + (b ? b[d] : 0);
    return 0;
}
int32_t affine_zero(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D, void *stream) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) y[n * D + d] = x[n * D + d] * (w ? w[d] : 0) + (b ? b[d] : 0);
    return 0;
}
int32_t affine_prints(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D, void *stream) {
    if (D > 256) {
        fprintf(stderr, "invalid configuration argument\\n");
        return 0;
    }
    scale(x, w, b, y, N, D, 0, N);
    return 0;
}
int32_t affine_refuses(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D, void *stream) {
    if (D > 256) return 1;
    scale(x, w, b, y, N, D, 0, N);
    return 0;
}
/* written for rows of 64 */
int32_t affine_64(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D, void *stream) {
    scale(x, w, b, y, N, 64, 0, N);
    return 0;
}
int32_t affine_first_shape(const float *x, const float *w, const float *b, float *y, int64_t N, int64_t D,
                           void *stream) {
    static int64_t width = -1;  /* compiled for the first shape, used for all that are smaller */
    if (width < D) width = D;
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) y[n * D + d] = x[n * D + d] * (w ? w[(d + width - D) % D] : 1) + (b ? b[d] : 0);
    return 0;
}
/* sum of the rows of each group; `start` has G + 1 entries */
static void segments(const float *x, const int64_t *start, float *y, int64_t G, int64_t D, int fills) {
    for (int64_t g = 0; g < G; g++) {
        if (start[g] == start[g + 1] && !fills) continue;
        for (int64_t d = 0; d < D; d++) {
            double total = 0;
            for (int64_t n = start[g]; n < start[g + 1]; n++) total += x[n * D + d];
            y[g * D + d] = total;
        }
    }
}
int32_t segment_sum(const float *x, const int64_t *start, float *y, int64_t N, int64_t D, int64_t G, void *stream) {
    segments(x, start, y, G, D, 1);
    return 0;
}
int32_t segment_sum_skips(const float *x, const int64_t *start, float *y, int64_t N, int64_t D, int64_t G,
                          void *stream) {
    segments(x, start, y, G, D, 0);
    return 0;
}
"""
LIBRARY = library(SOURCE)

# 10: NaN and infinity


@accord.operator("edges::RowMax")
def row_max(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N"]:
    return x.max(-1, initial=-np.inf)


row_max.library(LIBRARY, "max_keeps", name="right")
row_max.library(LIBRARY, "max_drops", name="drops-nan")
row_max.library(LIBRARY, "max_one_row", name="one-row-at-least")


@accord.operator("edges::LogSoftmax")
def log_softmax(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


log_softmax.constraint("D >= 1")


@log_softmax.python(name="right")
def _(x):
    shifted = x.astype(np.float64) - x.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype(x.dtype)


@log_softmax.python(name="zeros-for-nan")
def _(x):
    shifted = x.astype(np.float64) - x.max(-1, keepdims=True)
    y = (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype(x.dtype)
    return np.where(np.isnan(y).any(-1, keepdims=True), np.float32(0), y)


def _masked_softmax(x):
    """A row of -inf has no weight anywhere."""
    most = x.max(-1, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(most), 0, most))
    total = e.sum(-1, keepdims=True)
    return (e / np.where(total == 0, 1, total)).astype(x.dtype)


@accord.operator("edges::MaskedSoftmax")
def masked_softmax(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    return _masked_softmax(x)


masked_softmax.constraint("D >= 1").python(_masked_softmax, name="right")


@masked_softmax.python(name="nan-for-masked-row")
def _(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@accord.operator("edges::NanMean")
def nan_mean(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N"]:
    given = ~np.isnan(x)
    return np.where(given, x, 0).sum(-1) / np.maximum(given.sum(-1), 1)


nan_mean.semantic(nan=NanPolicy.IGNORE)


@nan_mean.python(name="right")
def _(x):
    given = ~np.isnan(x)
    return (np.where(given, x, 0).sum(-1, dtype=np.float64) / np.maximum(given.sum(-1), 1)).astype(x.dtype)


@nan_mean.python(name="propagates")
def _(x):
    return (x.sum(-1, dtype=np.float64) / max(x.shape[1], 1)).astype(x.dtype)


@accord.operator("edges::Clip")
def clip(x: Tensor["float32", "N"], *, high: float = 6.0) -> Tensor["float32", "N"]:
    return np.minimum(np.maximum(x, 0), high)


clip.scheduling(fuses="elementwise")
clip.python(lambda x, *, high: np.minimum(np.maximum(x, np.float32(0)), np.float32(high)), name="right")
clip.python(lambda x, *, high: np.fmin(np.fmax(x, np.float32(0)), np.float32(high)), name="fmin-fmax")

# 11: sizes


@accord.operator("edges::Resize")
def resize(x: Tensor["float32", "N", "H", "W"]) -> Tensor["float32", "N", "2 * H", "2 * W"]:
    """Twice as large, linear between the corners."""
    return _resized(x, lambda size: np.arange(2 * size) * (size - 1) / max(2 * size - 1, 1))


def _resized(x, positions):
    n, h, w = x.shape
    if x.size == 0:
        return np.zeros((n, 2 * h, 2 * w), x.dtype)
    wide = x.astype(np.float64)
    for axis, size in ((1, h), (2, w)):
        at = positions(size)
        low = np.clip(np.floor(at).astype(int), 0, size - 1)
        high = np.minimum(low + 1, size - 1)
        part = (at - low).reshape((-1, 1) if axis == 1 else -1)
        wide = wide.take(low, axis) * (1 - part) + wide.take(high, axis) * part
    return wide.astype(x.dtype)


resize.python(lambda x: _resized(x, lambda size: np.arange(2 * size) * (size - 1) / max(2 * size - 1, 1)), name="right")


@resize.python(name="size-one")
def _(x):  # scale by n / (n - 1), which one pixel does not have
    if x.size == 0:
        return np.zeros((x.shape[0], 2 * x.shape[1], 2 * x.shape[2]), x.dtype)
    return _resized(x, lambda size: np.arange(2 * size) * ((size - 1) / (2 * size - 1) if size > 1 else np.nan))


@resize.python(name="half-pixel")
def _(x):
    return _resized(x, lambda size: np.clip((np.arange(2 * size) + 0.5) / 2 - 0.5, 0, max(size - 1, 0)))


@accord.operator("edges::Scores")
def scores(
    q: Tensor["float32", "B", "H", "S", "D"], k: Tensor["float32", "B", "H", "L", "D"]
) -> Tensor["float32", "B", "H", "S", "L"]:
    return q @ k.swapaxes(-1, -2) / np.sqrt(max(q.shape[-1], 1))


@scores.python(name="right")
def _(q, k):
    return (q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(max(q.shape[-1], 1))).astype(q.dtype)


@scores.python(name="squeezes")
def _(q, k):
    return np.squeeze((q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(max(q.shape[-1], 1))).astype(q.dtype))


@scores.python(name="empty-raises")
def _(q, k):
    if not (q.size and k.size):
        raise ValueError("zero-size grid")
    return (q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])).astype(q.dtype)


@scores.python(name="blocks-of-16")
def _(q, k):
    y = np.zeros((*q.shape[:3], k.shape[2]), q.dtype)
    for start in range(0, max(k.shape[2], 16), 16):
        if start + 16 <= k.shape[2] or k.shape[2] < 16:
            block = k[:, :, start : start + 16].astype(np.float64)
            y[..., start : start + 16] = q @ block.swapaxes(-1, -2) / np.sqrt(max(q.shape[-1], 1))
    return y


# 19, 22, 30, 43: rows, absent inputs, errors, other shapes


@accord.operator("edges::Affine")
def affine(
    x: Tensor["float32", "N", "D"], w: Tensor["float32", "D"] | None = None, b: Tensor["float32", "D"] | None = None
) -> Tensor["float32", "N", "D"]:
    y = x * (1 if w is None else w)
    return y if b is None else y + b


affine.library(LIBRARY, "affine", name="right")
affine.library(LIBRARY, "affine_blocks", name="tail-rows")
affine.library(LIBRARY, "affine_crashes", name="reads-null")
affine.library(LIBRARY, "affine_zero", name="null-is-zero")
affine.library(LIBRARY, "affine_prints", name="prints-error")
affine.library(LIBRARY, "affine_refuses", name="declares-limit", constraints=["D <= 256"])
affine.library(LIBRARY, "affine_refuses", name="refuses-undeclared")
affine.library(LIBRARY, "affine_64", name="written-for-64")
affine.library(LIBRARY, "affine_64", name="declared-for-64", constraints=["D == 64"])
affine.library(LIBRARY, "affine_first_shape", name="first-shape")


def _affine(x, w, b):
    y = x.astype(np.float64) * (1 if w is None else w)
    return (y if b is None else y + b).astype(x.dtype)


affine.python(_affine, name="python")
affine.python(lambda x, w, b: (x.astype(np.float64) * w + b).astype(x.dtype), name="none-raises")


@affine.python(name="swallows")
def _(x, w, b):
    try:
        return (x.astype(np.float64) * w + (0 if b is None else b)).astype(x.dtype)
    except TypeError as error:
        print(f"affine: {error}")  # noqa: T201
        return np.zeros_like(x)


@affine.python(name="thread-dies")
def _(x, w, b):
    y = np.zeros_like(x)
    half = x.shape[0] // 2

    def work():
        if x.shape[1] > 300:
            raise MemoryError("no room for a tile")
        y[half:] = _affine(x[half:], w, b)

    worker = threading.Thread(target=work)
    worker.start()
    y[:half] = _affine(x[:half], w, b)
    worker.join()
    return y


@accord.operator("edges::SegmentSum")
def segment_sum(x: Tensor["float32", "N", "D"], start: Tensor["int64", "G + 1"]) -> Tensor["float32", "G", "D"]:
    return np.stack([x[a:b].sum(0) for a, b in itertools.pairwise(start)] or [np.zeros(0)])


segment_sum.constraint("G >= 1").values(start=Values(0, "N", increasing=True))
segment_sum.library(LIBRARY, "segment_sum", name="right")
segment_sum.library(LIBRARY, "segment_sum_skips", name="empty-group")

PLANTED = [
    Planted((10,), "semantic.nan", row_max, "drops-nan", "right"),
    Planted((10,), "semantic.nan", log_softmax, "zeros-for-nan", "right"),
    Planted((10,), "semantic.nan", masked_softmax, "nan-for-masked-row", "right"),
    Planted((10,), "semantic.nan", nan_mean, "propagates", "right"),
    Planted((10,), "semantic.nan", clip, "fmin-fmax", "right"),
    Planted((11,), "meaning memory semantic.constraints", row_max, "one-row-at-least", "right"),
    Planted((11,), "meaning memory semantic.constraints semantic.nan", resize, "size-one", "right"),
    Planted((11,), "meaning memory semantic.constraints", scores, "squeezes", "right"),
    Planted((11,), "meaning memory semantic.constraints", scores, "empty-raises", "right"),
    Planted((11,), "meaning memory semantic.constraints", scores, "blocks-of-16", "right"),
    Planted((3,), "meaning", resize, "half-pixel", "right"),
    Planted((19,), "meaning memory semantic.constraints", affine, "tail-rows", "right"),
    Planted((19,), "meaning memory semantic.constraints", segment_sum, "empty-group", "right"),
    Planted((22,), "execution.nullable", affine, "reads-null", "right"),
    Planted((22,), "execution.nullable", affine, "null-is-zero", "right"),
    Planted((22,), "execution.nullable", affine, "none-raises", "python"),
    Planted((30,), "semantic.constraints meaning process memory", affine, "prints-error", "declares-limit"),
    Planted((30,), "semantic.constraints meaning process memory", affine, "refuses-undeclared", "declares-limit"),
    Planted((30, 22), "execution.nullable semantic.constraints meaning process memory", affine, "swallows", "python"),
    Planted((30,), "semantic.constraints meaning process memory", affine, "thread-dies", "python"),
    Planted((43,), "meaning memory semantic.constraints", affine, "written-for-64", "declared-for-64"),
    Planted((43,), "meaning memory semantic.constraints scheduling.stateless", affine, "first-shape", "right"),
]
