"""Kernels that are wrong for a value that only some cases have: a small type, an attribute, sizes of several names."""

# ruff: noqa: F821, UP037, ANN, D
from __future__ import annotations

from typing import Literal

import numpy as np
from planting import Planted

import accord
from accord.contract.contract import Values

Tensor = accord.Tensor


@accord.operator("variants::Negative")
def negative(x: Tensor["T", "N"]) -> Tensor["T", "N"]:
    return -x


negative.types(T=["float16", "float8_e4m3fn", "float8_e5m2"])


@negative.python(name="right")
def _(x):
    return (-x.astype(np.float32)).astype(x.dtype)


@negative.python(name="not-eight-bits")
def _(x):
    return (-x.astype(np.float32)).astype(x.dtype) if x.dtype.itemsize > 1 else x.copy()


@accord.operator("variants::Dequantise")
def dequantise(x: Tensor["Q", "N"], scale: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    return x.astype(scale.dtype) * scale


dequantise.types(Q=["int8", "int4", "uint4"])
dequantise.python(lambda x, scale: x.astype(np.float32) * scale, name="right")
dequantise.python(
    lambda x, scale: (x.astype(np.uint8) & 15).astype(np.float32) * scale if "4" in x.dtype.name
    else x.astype(np.float32) * scale,
    name="four-bits-without-sign",
)  # fmt: skip


@accord.operator("variants::Rounded")
def rounded(x: Tensor["float32", "N"], *, to: Literal["even", "zero", "floor"] = "even") -> Tensor["float32", "N"]:
    return {"even": np.rint, "zero": np.trunc, "floor": np.floor}[to](x)


rounded.python(lambda x, *, to: rounded_to(x, to), name="right")
rounded.python(lambda x, *, to: np.rint(x) if to == "even" else np.trunc(x), name="two-of-three")


def rounded_to(x, to):
    return np.rint(x) if to == "even" else np.trunc(x) if to == "zero" else np.floor(x)


@accord.operator("variants::Interleave")
def interleave(x: Tensor["float32", "N", "C"], *, parts: int = 2) -> Tensor["float32", "N", "C"]:
    """Columns of the parts in turn."""
    n, c = x.shape
    return x.reshape(n, parts, c // parts).swapaxes(1, 2).reshape(n, c)


interleave.constraint("parts >= 1", "C % parts == 0")


def interleaved(x, parts):
    n, c = x.shape
    y = np.empty_like(x)
    y.reshape(n, c // parts, parts)[...] = x.reshape(n, parts, c // parts).swapaxes(1, 2)
    return y


interleave.python(lambda x, *, parts: interleaved(x, parts), name="right")
interleave.python(
    lambda x, *, parts: interleaved(x, parts) if 1 < parts < x.shape[1] or x.shape[1] < 2 else x, name="is-its-input"
)
interleave.python(lambda x, *, parts: interleaved(x, parts if parts <= 2 else 2 - x.shape[1] % 2), name="two-parts")


@accord.operator("variants::Lengths")
def lengths(start: Tensor["int32", "R + 1"], weight: Tensor["float32", "R"]) -> Tensor["float32", "R"]:
    return np.diff(start) * weight


lengths.constraint("R >= 1").values(start=Values(0, 1000, increasing=True))
lengths.python(lambda start, weight: ((start[1:] - start[:-1]) * weight).astype(np.float32), name="right")
lengths.python(lambda start, weight: (np.diff(start) * weight[::-1]).astype(np.float32), name="backwards")


@accord.operator("variants::Starts")
def starts(start: Tensor["int32", "R + 1"]) -> Tensor["int32", "R", 2]:
    """Both ends of each range; R stands in no size by itself."""
    return np.stack([start[:-1], start[1:]], -1)


starts.python(lambda start: np.stack([start[:-1], start[1:]], -1), name="right")
starts.python(lambda start: np.stack([start[:-1], start[:-1]], -1), name="one-end")


@accord.operator("variants::Steps")
def steps(x: Tensor["float32", "N", "L"]) -> Tensor["float32", "N", "L - 1"]:
    return x[:, 1:] - x[:, :-1]


steps.constraint("L >= 1")
steps.python(lambda x: x[:, 1:] - x[:, :-1], name="right")
steps.python(lambda x: np.diff(x[:, ::-1]), name="backwards")


PLANTED = [
    Planted((9,), "meaning", negative, "not-eight-bits", "right"),
    Planted((9,), "meaning", dequantise, "four-bits-without-sign", "right"),
    Planted((9,), "meaning", rounded, "two-of-three", "right"),
    Planted((6,), "execution.views", interleave, "is-its-input", "right"),
    Planted((9,), "meaning", interleave, "two-parts", "right"),
    Planted((11,), "meaning", lengths, "backwards", "right"),
    Planted((11,), "meaning", starts, "one-end", "right"),
    Planted((11,), "meaning", steps, "backwards", "right"),
]
