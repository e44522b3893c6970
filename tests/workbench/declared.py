"""Operators with kernels that keep their promises, and kernels that each break one."""

# ruff: noqa: F821, ANN, D
import os
import re
from pathlib import Path

import numpy as np

import accord
from accord.expr.lang import call

Tensor = accord.Tensor
F = np.float32


@accord.operator("workbench::Scale")
def scale(
    x: Tensor["float32", "N", "D"], w: Tensor["float32", "D"] | None = None, *, alpha: float = 0.5
) -> Tensor["float32", "N", "D"]:
    y = x * x.dtype.type(alpha)
    return y if w is None else y * w


scale.constraint("D >= 1").execution(workspace="4 * D", in_place=((0, 0),)).semantic(batch=("N",))
for name in re.findall(r"^int32_t (\w+)\(ARGS\)", (Path(__file__).parent / "planted.c").read_text(), re.MULTILINE):
    scale.library(os.environ["PLANTED"], name, name=name)


@accord.operator("workbench::Norm")
def norm(x: Tensor["T", "N", "D"], w: Tensor["T", "D"] | None = None, *, eps: float = 1e-5) -> Tensor["T", "N", "D"]:
    z = x - x.mean(-1, keepdims=True)
    y = z / np.sqrt((z * z).mean(-1, keepdims=True) + eps)
    return (y if w is None else y * w).astype(x.dtype)


norm.types(T=["float32", "float16"]).constraint("D >= 1").semantic(batch=("N",))
norm.execution(accumulate={"float16": "float32"})


def normalised(x, w, eps, axis=-1, squares=None, dtype=F):
    z = x.astype(dtype)
    mean = z.sum(-1, keepdims=True, dtype=dtype) / dtype(x.shape[-1])
    v = squares(z, mean) if squares else ((z - mean) ** 2).mean(axis, keepdims=True, dtype=dtype)
    y = (z - mean) / np.sqrt(v + dtype(eps))
    return (y if w is None else y * w.astype(dtype)).astype(x.dtype)


@norm.python(name="right")
def _(x, w, *, eps):
    return normalised(x, w, eps)


@norm.python(name="mixes_rows")
def _(x, w, *, eps):
    return normalised(x, w, eps, axis=None)


@norm.python(name="naive_variance")
def _(x, w, *, eps):
    return normalised(x, w, eps, squares=lambda z, mean: (z * z).mean(-1, keepdims=True) - mean * mean)


@norm.python(name="half")
def _(x, w, *, eps):
    return normalised(x, w, eps, dtype=x.dtype.type)


@norm.python(name="batch")
def _(x, w, *, eps):
    y = normalised(x, w, eps)
    return y if len(x) % 2 else np.nextafter(y, y.dtype.type(np.inf))


@norm.python(name="raises")
def _(x, w, *, eps):
    if x.shape[1] % 8:
        raise ValueError("only whole blocks")
    return normalised(x, w, eps)


RESULTS = {}


@norm.python(name="same_memory")
def _(x, w, *, eps):
    out = RESULTS.setdefault((x.shape, x.dtype), np.empty_like(x, order="C"))
    out[...] = normalised(x, w, eps)
    return out


@norm.python(name="fingerprint")
def _(x, w, *, eps):
    key = (x.shape, x.dtype, float(x.astype(np.float64).sum().round(3)), None if w is None else w.tobytes(), eps)
    return RESULTS.setdefault(key, normalised(x, w, eps)).copy()


@norm.python(name="reference")
def _(x, w, *, eps):
    return norm(x, w, eps=eps)


@norm.python(name="empty")
def _(x, w, *, eps):
    return np.empty(x.shape, x.dtype)


@norm.python(name="pointers")
def _(x, w, *, eps):
    flat = np.ndarray(x.shape, x.dtype, np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,)).copy())
    return normalised(flat, w, eps)


@norm.python(name="a_list")
def _(x, w, *, eps):
    return (normalised(x, w, eps).tolist(),)


@norm.python(name="two")
def _(x, w, *, eps):
    y = normalised(x, w, eps)
    return y, y


@norm.python(name="in_input")
def _(x, w, *, eps):
    x[...] = normalised(x, w, eps)
    return x


@accord.operator("workbench::Gate")
def gate(x: Tensor["T", ..., "D"], b: Tensor["T", "D"], *, slope: float = 1.5) -> Tensor["T", ..., "D"]:
    z = x + b
    return z / (1 + np.exp(-slope * z))


gate.types(T=["float32", "float16"]).scheduling(fuses="elementwise")


@gate.expression(name="right")
def _(x, b, *, slope):
    z = x + b
    return z * call("sigmoid", z * slope)


@gate.expression(name="fixed_slope")
def _(x, b, *, slope):
    z = x + b
    return z * call("sigmoid", z * 1.5)


@accord.operator("workbench::Shuffle")
def shuffle(x: Tensor["T", "N", "C", "W"], *, groups: int = 2) -> Tensor["T", "N", "C", "W"]:
    n, c, w = x.shape
    return x.reshape(n, groups, c // groups, w).swapaxes(1, 2).reshape(n, c, w)


shuffle.constraint("C % groups == 0").types(T=["float32", "int8"]).tolerance("float32", rtol=0, atol=0)


@shuffle.composition(name="right")
def _(b, x, *, groups):
    n, c, w = (b("Shape", x, start=k, end=k + 1) for k in range(3))
    y = b("Reshape", x, multi(b, n, b.ints(groups), b("Div", c, b.ints(groups)), w), allowzero=1)
    return b("Reshape", b("Transpose", y, perm=[0, 2, 1, 3]), b("Shape", x), allowzero=1)


@shuffle.composition(name="unshuffles")
def _(b, x, *, groups):
    n, c, w = (b("Shape", x, start=k, end=k + 1) for k in range(3))
    y = b("Reshape", x, multi(b, n, b("Div", c, b.ints(groups)), b.ints(groups), w), allowzero=1)
    return b("Reshape", b("Transpose", y, perm=[0, 2, 1, 3]), b("Shape", x), allowzero=1)


@shuffle.python(name="swallows")
def _(x, *, groups):
    try:
        return shuffle(x, groups=groups).copy()
    except ValueError:
        return np.zeros_like(x)


def multi(b, *sizes):
    return b("Concat", *sizes, axis=0)


@accord.operator("workbench::Exp")
def softmax(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


softmax.constraint("D >= 1")


@softmax.python(name="unshifted")
def _(x):
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)


@accord.operator("workbench::Loose")
def loose(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    return np.tanh(x)


loose.tolerance("float32", rtol=1.0, atol=10.0)


@accord.operator("workbench::Twice")
def twice(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
    return x * 2


twice.execution(layouts=("contiguous", "strided"))
for name in re.findall(r"^int32_t (\w+)\(STRIDED\)", (Path(__file__).parent / "planted.c").read_text(), re.MULTILINE):
    twice.library(os.environ["PLANTED"], name, name=name)
