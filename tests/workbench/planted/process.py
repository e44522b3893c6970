"""Kernels that do harm to whoever runs them, or return what is no result: crash, hang, leak, exit, wrong type."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import os
import time

import numpy as np
from planting import Planted, library

import accord

Tensor = accord.Tensor

SOURCE = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FLIP(name, ...) \\
    int32_t name(const float *x, float *y, int64_t N, int64_t D, void *stream) { \\
        __VA_ARGS__ \\
        for (int64_t n = 0; n < N; n++) \\
            for (int64_t d = 0; d < D; d++) y[n * D + d] = x[n * D + D - 1 - d]; \\
        return 0; \\
    }
FLIP(flip, )
FLIP(flip_crashes, if (D == 33) *(volatile int *)8 = 1;)
FLIP(flip_divides, { volatile int64_t rows = N, each = 64 / rows; (void)each; })
FLIP(flip_exits, if (D > 40) exit(0);)
FLIP(flip_aborts, if (D > 40) abort();)
FLIP(flip_hangs, { volatile int64_t d = D; while (d % 2 == 1 && d > 16) d += 2; })
FLIP(flip_leaks, { char *volatile lost = malloc(4 << 20); if (lost) memset(lost, 1, 4 << 20); })
FLIP(flip_overflows, { volatile char room[256]; for (int64_t d = 0; d < D; d++) room[d] = 1; })
FLIP(flip_fails, if (D > 40) return -7;)
"""
LIBRARY = library(SOURCE)


@accord.operator("process::Flip")
def flip(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    return x[:, ::-1].copy()


flip.library(LIBRARY, "flip", name="right")
for _fault in ("crashes", "divides", "exits", "aborts", "hangs", "leaks", "overflows", "fails"):
    flip.library(LIBRARY, f"flip_{_fault}", name=_fault)

flip.python(lambda x: x[:, ::-1].copy(), name="python")
flip.python(lambda x: x[:, ::-1].astype(np.float64), name="another-dtype")
flip.python(lambda x: x[:, ::-1].reshape(-1).copy(), name="another-shape")
flip.python(lambda x: x[:, ::-1].tolist(), name="list")
flip.python(lambda x: None, name="nothing")
flip.python(lambda x: (x[:, ::-1].copy(), x.copy()), name="two-outputs")
flip.python(lambda x: x[:, ::-1].copy() if x.shape[1] < 40 else os._exit(0), name="ends-process")


@flip.python(name="raises")
def _(x):
    if x.shape[1] % 16 == 1 and x.shape[1] > 1:
        raise RuntimeError("an illegal memory access was encountered")
    return x[:, ::-1].copy()


@flip.python(name="sleeps")
def _(x):
    if x.shape[0] > 30:
        time.sleep(3600)
    return x[:, ::-1].copy()


@flip.python(name="grows")
def _(x, kept=[]):  # noqa: B006 - this is the leak
    kept.append(np.ones(1 << 20))
    return x[:, ::-1].copy()


PLANTED = [
    *(Planted((30,), "process meaning memory", flip, n, "right") for n in (
        "crashes", "divides", "exits", "aborts", "hangs", "overflows")),
    *(Planted((30,), "process meaning memory", flip, n, "python") for n in ("ends-process", "sleeps")),
    *(Planted((30,), "process memory scheduling.stateless", flip, n, r) for n, r in (
        ("leaks", "right"), ("grows", "python"))),
    Planted((30,), "meaning process semantic.constraints", flip, "fails", "right"),
    *(Planted((30,), "meaning process memory semantic.constraints", flip, n, "python") for n in (
        "raises", "another-dtype", "another-shape", "list", "nothing", "two-outputs")),
]  # fmt: skip
