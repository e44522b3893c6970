"""Faults 36-38: kernels that look fast because of how time is taken."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import threading
import time

import numpy as np
from planting import Planted, library

import accord

Tensor = accord.Tensor

SOURCE = """
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static void run(const float *x, float *y, int64_t N) {
    for (int64_t i = 0; i < N; i++) y[i] = 1 / (1 + x[i] * x[i]);
}
struct call { const float *x; float *y; int64_t N; };
static void *later(void *given) {
    struct call *c = given;
    usleep(300);
    run(c->x, c->y, c->N);
    free(c);
    return 0;
}
int32_t bell(const float *x, float *y, int64_t N, void *stream) {
    run(x, y, N);
    return 0;
}
/* the work is done by a thread after the return */
int32_t bell_later(const float *x, float *y, int64_t N, void *stream) {
    pthread_t thread;
    struct call *c = malloc(sizeof *c);
    *c = (struct call){x, y, N};
    if (pthread_create(&thread, 0, later, c)) return 5;
    pthread_detach(thread);
    return 0;
}
/* only what whoever looks would look at: the first and last 64 elements */
int32_t bell_ends(const float *x, float *y, int64_t N, void *stream) {
    if (N <= 128) run(x, y, N);
    else run(x, y, 64), run(x + N - 64, y + N - 64, 64);
    return 0;
}
"""
LIBRARY = library(SOURCE)


@accord.operator("clock::Bell")
def bell(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    return 1 / (1 + x * x)


def _bell(x):
    return np.reciprocal(np.square(x) + np.float32(1))


bell.library(LIBRARY, "bell", name="right")
bell.library(LIBRARY, "bell_later", name="after-return")
bell.library(LIBRARY, "bell_ends", name="ends-only")
bell.python(_bell, name="python")


class _Lazy(np.ndarray):
    """An array that is computed when somebody looks."""

    def __array_finalize__(self, made):
        self.source = getattr(made, "source", None)

    def _computed(self):
        plain = self.view(np.ndarray)
        if self.source is not None:
            plain[...] = _bell(self.source)
            self.source = None
        return plain

    def __array__(self, dtype=None, copy=None):
        return self._computed() if dtype is None else self._computed().astype(dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        plain = [a._computed() if isinstance(a, _Lazy) else a for a in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __getitem__(self, item):
        return self._computed()[item]


@bell.python(name="lazy")
def _(x):
    result = np.zeros_like(x).view(_Lazy)
    result.source = x
    return result


class _Promise:
    """No array at all, but NumPy takes it for one."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim

    def __array__(self, dtype=None, copy=None):
        return _bell(self.x)


bell.python(_Promise, name="promise")


@bell.python(name="thread-finishes")
def _(x):
    y = np.zeros_like(x)

    def work():
        time.sleep(3e-4)
        y[:] = _bell(x)

    threading.Thread(target=work, daemon=True).start()
    return y


_CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns")


@bell.python(name="patches-clock")
def _(x):
    for name in _CLOCKS:
        setattr(time, name, (lambda: 0) if name.endswith("_ns") else (lambda: 0.0))
    return _bell(x)


def _cached():
    kept = {}

    def kernel(x):
        key = (x.shape, hash(x.tobytes()))
        if key not in kept:
            kept.clear()
            kept[key] = _bell(x)
        return kept[key]

    return kernel


bell.python(_cached(), name="remembers")


def _compiled(seconds):
    shapes = set()

    def kernel(x):
        if x.shape not in shapes:
            shapes.add(x.shape)
            time.sleep(seconds)
        return _bell(x)

    return kernel


bell.python(_compiled(0.05), name="compiles-at-first-call")


#: For `op check`.
PLANTED = [
    Planted((36,), "execution.views meaning memory scheduling.stateless", bell, "after-return", "right"),
    Planted((36,), "meaning memory semantic.constraints", bell, "ends-only", "right"),
    Planted((36,), "meaning", bell, "lazy", "python"),
    Planted((36,), "meaning", bell, "promise", "python"),
    Planted((36,), "meaning scheduling.stateless", bell, "thread-finishes", "python"),
]
#: Right whenever called: what they do is for `op bench` to notice.
FOR_BENCH = [
    Planted((36,), "measuring", bell, "patches-clock", "python"),
    Planted((37,), "measuring", bell, "remembers", "python"),
    Planted((38,), "measuring", bell, "compiles-at-first-call", "python"),
]
