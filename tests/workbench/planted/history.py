"""Faults 6-9, 12, 41 and 42: results that come from somewhere else than from this call's inputs."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import time

import numpy as np
from planting import Planted, library

import accord
from accord.contract.contract import Values

Tensor = accord.Tensor

SOURCE = """
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void product(const float *a, const float *b, float *y, int64_t N, int64_t K, int64_t M) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t m = 0; m < M; m++) {
            double total = 0;
            for (int64_t k = 0; k < K; k++) total += (double)a[n * K + k] * b[k * M + m];
            y[n * M + m] = total;
        }
}
int32_t matmul(const float *a, const float *b, float *y, int64_t N, int64_t K, int64_t M, void *stream) {
    product(a, b, y, N, K, M);
    return 0;
}
/* keyed by pointer: weights are packed once, and a buffer that is used again for others is not noticed */
int32_t matmul_packed(const float *a, const float *b, float *y, int64_t N, int64_t K, int64_t M, void *stream) {
    static const float *seen;
    static float *packed;
    static int64_t size;
    if (seen != b || size != K * M) {
        free(packed);
        packed = malloc(sizeof(float) * (K * M + 1));
        memcpy(packed, b, sizeof(float) * K * M);
        seen = b;
        size = K * M;
    }
    product(a, packed, y, N, K, M);
    return 0;
}
/* the second call with the same pointers and sizes returns at once */
int32_t matmul_skips(const float *a, const float *b, float *y, int64_t N, int64_t K, int64_t M, void *stream) {
    static const void *seen[3];
    static int64_t repeats;
    if (seen[0] == a && seen[1] == b && seen[2] == y && ++repeats > 2) return 0;
    if (seen[0] != a || seen[1] != b || seen[2] != y) repeats = 0;
    seen[0] = a, seen[1] = b, seen[2] = y;
    product(a, b, y, N, K, M);
    return 0;
}
/* a counter that wraps: right for the first 40 calls */
int32_t matmul_tires(const float *a, const float *b, float *y, int64_t N, int64_t K, int64_t M, void *stream) {
    static int32_t calls;
    product(a, b, y, N, K, M);
    if (++calls > 40 && N && M) y[0] += 1;
    return 0;
}
static float sigmoid(float x) { return 1 / (1 + expf(-x)); }
/* One step of an LSTM: gates i, f, g, o come in; c is the state. */
static void step(const float *gates, const float *c, float *h, float *next, int64_t N, int64_t H) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t j = 0; j < H; j++) {
            const float *g = gates + n * 4 * H + j;
            float cell = sigmoid(g[H]) * c[n * H + j] + sigmoid(g[0]) * tanhf(g[2 * H]);
            h[n * H + j] = sigmoid(g[3 * H]) * tanhf(cell);
            next[n * H + j] = cell;
        }
}
int32_t lstm(const float *gates, const float *c, float *h, float *next, int64_t N, int64_t H, void *stream) {
    step(gates, c, h, next, N, H);
    return 0;
}
/* keeps the state in a static as well, and believes that one when it is given what looks like it */
int32_t lstm_static(const float *gates, const float *c, float *h, float *next, int64_t N, int64_t H, void *stream) {
    static float kept[1 << 16];
    static int64_t size;
    if (size == N * H && N * H <= 1 << 16) step(gates, kept, h, next, N, H);
    else step(gates, c, h, next, N, H);
    size = N * H;
    if (size <= 1 << 16) memcpy(kept, next, sizeof(float) * size);
    return 0;
}
int32_t decay(const float *x, float *y, int64_t N, double alpha, void *stream) {
    for (int64_t n = 0; n < N; n++) y[n] = (1 - alpha) * x[n];
    return 0;
}
/* an average over calls in what was declared stateless: the last output is read back from where it was put */
int32_t decay_reads_output(const float *x, float *y, int64_t N, double alpha, void *stream) {
    static float *last;
    static int64_t size;
    int again = last == y && size == N;
    for (int64_t n = 0; n < N; n++) y[n] = (1 - alpha) * x[n] + (again ? alpha * y[n] : 0);
    last = y, size = N;
    return 0;
}
int32_t batch_norm(const float *x, const float *scale, const float *bias, const float *mean, const float *var, float *y,
                   int64_t N, int64_t C, int64_t L, double eps, void *stream) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < C; c++) {
            double factor = scale[c] / sqrt(var[c] + eps);
            for (int64_t l = (n * C + c) * L; l < (n * C + c + 1) * L; l++) y[l] = (x[l] - mean[c]) * factor + bias[c];
        }
    return 0;
}
/* folded at the first call, for statistics look like constants */
int32_t batch_norm_folds(const float *x, const float *scale, const float *bias, const float *mean, const float *var,
                         float *y, int64_t N, int64_t C, int64_t L, double eps, void *stream) {
    static double *factor, *shift;
    static int64_t channels = -1;
    if (channels != C) {
        free(factor), free(shift);
        factor = malloc(8 * (C + 1)), shift = malloc(8 * (C + 1));
        for (int64_t c = 0; c < C; c++) {
            factor[c] = scale[c] / sqrt(var[c] + eps);
            shift[c] = bias[c] - mean[c] * factor[c];
        }
        channels = C;
    }
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < C; c++)
            for (int64_t l = 0; l < L; l++) y[(n * C + c) * L + l] = x[(n * C + c) * L + l] * factor[c] + shift[c];
    return 0;
}
"""
LIBRARY = library(SOURCE)

# 6: aliases


@accord.operator("history::ChannelShuffle")
def channel_shuffle(x: Tensor["T", "N", "C", "L"], *, groups: int = 1) -> Tensor["T", "N", "C", "L"]:
    n, c, length = x.shape
    return x.reshape(n, groups, c // groups, length).swapaxes(1, 2).reshape(n, c, length).copy()


channel_shuffle.types(T=["float32", "int8"]).constraint("groups >= 1", "C % groups == 0")


@channel_shuffle.python(name="right")
def _(x, *, groups):
    n, c, length = x.shape
    y = np.empty_like(x)
    y.reshape(n, c // groups, groups, length)[...] = x.reshape(n, groups, c // groups, length).swapaxes(1, 2)
    return y


@channel_shuffle.python(name="view")
def _(x, *, groups):
    n, c, length = x.shape
    return x.reshape(n, groups, c // groups, length).swapaxes(1, 2).reshape(n, c, length)  # one group: x itself


@accord.operator("history::Relu")
def relu(x: Tensor["float32", ..., "D"]) -> Tensor["float32", ..., "D"]:
    return np.where(x < 0, 0, x)


relu.scheduling(fuses="elementwise").python(lambda x: np.where(x < 0, np.float32(0), x), name="right")
relu.python(lambda x: x if not (x < 0).any() else np.where(x < 0, np.float32(0), x), name="nothing-to-do")


@accord.operator("history::Transpose")
def transpose(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "D", "N"]:
    return x.T.copy()


transpose.python(lambda x: x.T.copy(), name="right")
transpose.python(lambda x: x.T, name="view")


# 7: replay


@accord.operator("history::MatMul")
def matmul(a: Tensor["float32", "N", "K"], b: Tensor["float32", "K", "M"]) -> Tensor["float32", "N", "M"]:
    return a @ b


matmul.library(LIBRARY, "matmul", name="right")
matmul.library(LIBRARY, "matmul_packed", name="packs-by-pointer")
matmul.library(LIBRARY, "matmul_skips", name="skips-repeats")
matmul.library(LIBRARY, "matmul_tires", name="first-forty")


@accord.operator("history::CumSum")
def cumsum(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    return np.cumsum(x, -1)


@cumsum.python(name="right")
def _(x):
    return np.cumsum(x, -1, dtype=np.float64).astype(x.dtype)


def _replaying(key):
    kept = {}

    def kernel(x):
        k = key(x)
        if k not in kept:
            kept[k] = np.cumsum(x, -1, dtype=np.float64).astype(x.dtype)
        return kept[k].copy()

    return kernel


cumsum.python(_replaying(lambda x: x.shape), name="by-shape")
cumsum.python(_replaying(lambda x: (x.shape, x.ctypes.data)), name="by-pointer")
cumsum.python(_replaying(lambda x: (x.shape, x[:1, :4].tobytes(), x[-1:, -4:].tobytes())), name="by-fingerprint")
cumsum.python(_replaying(lambda x: (x.shape, round(float(x.sum(dtype=np.float64)), 2))), name="by-sum")


@accord.operator("history::Top1")
def top1(x: Tensor["float32", "N", "D"]) -> tuple[Tensor["float32", "N"], Tensor["int64", "N"]]:
    return x.max(-1), x.argmax(-1)


top1.constraint("D >= 1")
top1.python(lambda x: (x.max(-1), x.argmax(-1)), name="right")


def _first_result():
    kept = []

    def kernel(x):
        if not kept or kept[0][0].shape != x.shape[:1] or x.shape[0] < 2:
            kept[:] = [(x.max(-1), x.argmax(-1))]
        return kept[0]

    return kernel


top1.python(_first_result(), name="replays")

# 8: hidden state


@accord.operator("history::LSTMCell")
def lstm_cell(
    gates: Tensor["float32", "N", "4 * H"], c: Tensor["float32", "N", "H"]
) -> tuple[Tensor["float32", "N", "H"], Tensor["float32", "N", "H"]]:
    i, f, g, o = np.split(gates, 4, -1)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


lstm_cell.execution(state=((1, 1),))
lstm_cell.library(LIBRARY, "lstm", name="right")
lstm_cell.library(LIBRARY, "lstm_static", name="static")


@accord.operator("history::Decay")
def decay(x: Tensor["float32", "N"], *, alpha: float = 0.25) -> Tensor["float32", "N"]:
    return (1 - alpha) * x


decay.library(LIBRARY, "decay", name="right")
decay.library(LIBRARY, "decay_reads_output", name="reads-its-output")


@decay.python(name="stateless")
def _(x, *, alpha):
    return x * x.dtype.type(1 - alpha)


def _average():
    last = {}

    def kernel(x, *, alpha):
        before = last.get(x.shape, 0)
        last[x.shape] = (x * (1 - alpha) + alpha * before).astype(x.dtype)
        return last[x.shape].copy()

    return kernel


def _in_what_it_returned():
    """The state is the array that was returned last: memory that the runtime may use for something else."""
    last = []

    def kernel(x, *, alpha):
        result = x * x.dtype.type(1 - alpha)
        if last and last[0].shape == x.shape:
            result += x.dtype.type(alpha) * last[0]
        last[:] = [result]
        return result

    return kernel


def _first_calls(count):
    calls = [0]

    def kernel(x, *, alpha):
        calls[0] += 1
        return x * x.dtype.type(1 - alpha if calls[0] <= count else 1)

    return kernel


decay.python(_average(), name="closure")
decay.python(_in_what_it_returned(), name="returned-array")
decay.python(_first_calls(60), name="first-sixty")

# 9: right only where it is looked at


@accord.operator("history::Softplus")
def softplus(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    return np.logaddexp(x, 0)


softplus.scheduling(fuses="elementwise")
softplus.python(lambda x: np.logaddexp(x, np.float32(0)), name="right")


def _in_a_hurry():
    last = [0.0, None]

    def kernel(x):
        now = time.perf_counter()
        soon = now - last[0] < 2e-3 and last[1] is not None and last[1].shape == x.shape
        last[0] = now
        if not soon:
            last[1] = np.logaddexp(x, np.float32(0))
        return last[1].copy()

    return kernel


def _only_small(x):
    y = np.empty_like(x)
    y[:] = 0
    y[:, :100] = np.logaddexp(x[:, :100], np.float32(0))
    return y


softplus.python(_in_a_hurry(), name="skips-when-timed")
softplus.python(_only_small, name="tested-widths")

# 12: something else does the work


@accord.operator("history::Gelu")
def gelu(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


gelu.scheduling(fuses="elementwise")


@gelu.python(name="right")
def _(x):
    wide = x.astype(np.float64)
    return (0.5 * wide * (1 + np.tanh(0.7978845608028654 * (wide + 0.044715 * wide**3)))).astype(x.dtype)


@gelu.python(name="calls-reference")
def _(x):
    return gelu(x)


def _other_runtime():
    sessions = []

    def kernel(x):
        if not sessions:
            import onnxruntime as ort
            from onnx import TensorProto, helper

            value = helper.make_tensor_value_info
            graph = helper.make_graph(
                [helper.make_node("Gelu", ["x"], ["y"], approximate="tanh")],
                "g",
                [value("x", TensorProto.FLOAT, [None, None])],
                [value("y", TensorProto.FLOAT, [None, None])],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
            sessions.append(ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]))
        return sessions[0].run(None, {"x": x})[0]

    return kernel


gelu.python(_other_runtime(), name="other-runtime")

# 42: what looks constant


@accord.operator("history::BatchNorm")
def batch_norm(
    x: Tensor["float32", "N", "C", "L"],
    scale: Tensor["float32", "C"],
    bias: Tensor["float32", "C"],
    mean: Tensor["float32", "C"],
    var: Tensor["float32", "C"],
    *,
    eps: float = 1e-5,
) -> Tensor["float32", "N", "C", "L"]:
    scale, bias, mean, var = (a[:, None] for a in (scale, bias, mean, var))
    return (x - mean) / np.sqrt(var + eps) * scale + bias


batch_norm.values(var=Values(low=0.1, high=4.0))
batch_norm.library(LIBRARY, "batch_norm", name="right")
batch_norm.library(LIBRARY, "batch_norm_folds", name="folds-once")

PLANTED = [
    Planted((6,), "execution.views", channel_shuffle, "view", "right"),
    Planted((6,), "execution.views", relu, "nothing-to-do", "right"),
    Planted((6,), "execution.views", transpose, "view", "right"),
    Planted((7,), "scheduling.stateless meaning", matmul, "packs-by-pointer", "right"),
    Planted((7,), "scheduling.stateless meaning", cumsum, "by-shape", "right"),
    Planted((7,), "scheduling.stateless meaning", cumsum, "by-pointer", "right"),
    Planted((7,), "scheduling.stateless meaning", cumsum, "by-fingerprint", "right"),
    Planted((7,), "scheduling.stateless meaning", cumsum, "by-sum", "right"),
    Planted((7,), "scheduling.stateless meaning", top1, "replays", "right"),
    Planted((8,), "scheduling.stateless meaning", lstm_cell, "static", "right"),
    Planted((8,), "scheduling.stateless meaning", decay, "closure", "stateless"),
    Planted((8,), "scheduling.stateless meaning", decay, "first-sixty", "stateless"),
    Planted((8,), "scheduling.stateless meaning", matmul, "first-forty", "right"),
    Planted((9,), "scheduling.stateless meaning", softplus, "skips-when-timed", "right"),
    Planted((9,), "meaning memory semantic.constraints", softplus, "tested-widths", "right"),
    Planted((9, 7), "scheduling.stateless meaning", matmul, "skips-repeats", "right"),
    Planted((12,), "meaning", gelu, "calls-reference", "right"),
    Planted((12,), "meaning", gelu, "other-runtime", "right"),
    Planted((41, 8), "scheduling.stateless scheduling.fuses memory", decay, "reads-its-output", "right"),
    Planted((41, 8), "scheduling.stateless scheduling.fuses memory", decay, "returned-array", "stateless"),
    Planted((42, 7), "scheduling.fuses scheduling.stateless meaning", batch_norm, "folds-once", "right"),
]
