"""Faults 39, 40 and faults of meaning in kernels that become part of a graph: expressions and compositions."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import numpy as np
from planting import Planted

import accord
from accord.contract.contract import Values
from accord.expr.lang import call
from accord.expr.primitives import gt, lt, select

Tensor = accord.Tensor

# 39: versions


@accord.operator("graphs::Threshold", since=1)
def threshold(x: Tensor["float32", ..., "D"], *, alpha: float = 0.5) -> Tensor["float32", ..., "D"]:
    return np.where(x > alpha, x, 0 * x)


@accord.operator("graphs::Threshold", since=3)
def soft_threshold(x: Tensor["float32", ..., "D"], *, alpha: float = 0.5) -> Tensor["float32", ..., "D"]:
    """From version 3 on what is left over the threshold, not the whole value."""
    return np.where(x > alpha, x - alpha, 0 * x)


for _o in (threshold, soft_threshold):
    _o.scheduling(fuses="elementwise")


def _whole(x, *, alpha):
    return select(gt(x, alpha), x, x * 0.0)


def _rest(x, *, alpha):
    return select(gt(x, alpha), x - alpha, x * 0.0)


soft_threshold.expression(_rest, name="right")
soft_threshold.expression(_whole, name="of-version-1")


@accord.operator("graphs::Weights")
def weights(x: Tensor["float32", "N", "H", "W"]) -> Tensor["float32", "N", "H", "W"]:
    """Softmax over all places of an image."""
    e = np.exp(x - x.max((1, 2), keepdims=True))
    return e / e.sum((1, 2), keepdims=True)


weights.constraint("H >= 1", "W >= 1")


@weights.composition(name="right", constraints=["N >= 1"])
def _(b, x):
    flat = b("Reshape", x, b.ints(0, -1))
    return b("Reshape", b("Softmax", flat), b("Shape", x))


# up to opset 12 this is over all axes from axis 1 on, from then on over axis 1
weights.composition(lambda b, x: b("Softmax", x, axis=1), name="of-opset-11")


@accord.operator("graphs::Linear")
def linear(
    x: Tensor["float32", "N", "K"], w: Tensor["float32", "K", "M"], bias: Tensor["float32", "M"] | None = None
) -> Tensor["float32", "N", "M"]:
    return x @ w if bias is None else x @ w + bias


@linear.composition(name="right")
def _(b, x, w, bias):
    y = b("MatMul", x, w)
    return y if bias is None else b("Add", y, bias)


# no rule for a node without a bias
linear.composition(lambda b, x, w, bias: b("Add", b("MatMul", x, w), bias), name="needs-bias")
linear.composition(lambda b, x, w, bias: b("MatMul", x, w), name="forgets-bias")


@accord.operator("graphs::LayerNorm")
def layer_norm(x: Tensor["float32", "B", "S", "D"], *, eps: float = 1e-5) -> Tensor["float32", "B", "S", "D"]:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


layer_norm.constraint("D >= 1").semantic(batch=("B", "S"))


def _composed(axes):
    def kernel(b, x, *, eps):
        centred = b("Sub", x, b("ReduceMean", x, b.ints(*axes)))
        variance = b("ReduceMean", b("Mul", centred, centred), b.ints(*axes))
        return b("Div", centred, b("Sqrt", b("Add", variance, b.scalar(eps, x))))

    return kernel


layer_norm.composition(_composed([-1]), name="right")
layer_norm.composition(_composed([1, 2]), name="over-the-sequence")


@accord.operator("graphs::ChannelShuffle")
def channel_shuffle(
    x: Tensor["float32", "N", "C", "H", "W"], *, groups: int = 2
) -> Tensor["float32", "N", "C", "H", "W"]:
    n, c, h, w = x.shape
    return x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w)


channel_shuffle.constraint("groups >= 1", "C % groups == 0")


def _shuffled(order):
    def kernel(b, x, *, groups):
        n, c, h, w = b.shape(x)
        if not all(isinstance(d, int) for d in (c, h, w)):
            parts = b("Shape", x)
            split = b("Concat", b("Slice", parts, b.ints(0), b.ints(1)), b.ints(*order(groups)),
                      b("Slice", parts, b.ints(2), b.ints(4)), axis=0)  # fmt: skip
        else:
            first, second = order(groups)
            split = b.ints(n if isinstance(n, int) else -1, *(
                (first, c // groups) if first == groups else (c // groups, second)), h, w)  # fmt: skip
        y = b("Transpose", b("Reshape", x, split, allowzero=1), perm=[0, 2, 1, 3, 4])
        return b("Reshape", y, b("Shape", x), allowzero=1)

    return kernel


channel_shuffle.composition(_shuffled(lambda groups: (groups, -1)), name="right", constraints=["N >= 1"])
channel_shuffle.composition(_shuffled(lambda groups: (-1, groups)), name="transposed-groups")

# what one element is


@accord.operator("graphs::Gelu")
def gelu(x: Tensor["float32", ..., "D"], b: Tensor["float32", "D"] | None = None) -> Tensor["float32", ..., "D"]:
    z = x if b is None else x + b
    return 0.5 * z * (1 + _erf(z / np.sqrt(2)))


def _erf(x):
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x) if np.size(x) else np.zeros(np.shape(x))


gelu.scheduling(fuses="elementwise").values(x=Values(spread=2.0))


@gelu.expression(name="right")
def _(x, b):
    z = x if b is None else x + b
    return z * 0.5 * (call("erf", z * 0.7071067811865476) + 1.0)


@gelu.expression(name="tanh-form")
def _(x, b):
    z = x if b is None else x + b
    return z * 0.5 * (call("tanh", (z + z * z * z * 0.044715) * 0.7978845608028654) + 1.0)


@gelu.expression(name="none-raises")
def _(x, b):
    z = x + b
    return z * 0.5 * (call("erf", z * 0.7071067811865476) + 1.0)


@accord.operator("graphs::HardSwish")
def hard_swish(x: Tensor["float32", ..., "D"]) -> Tensor["float32", ..., "D"]:
    return x * np.minimum(np.maximum(x + 3, 0), 6) / 6


hard_swish.scheduling(fuses="elementwise")


# a comparison with NaN is false: which branch is then taken decides
@hard_swish.expression(name="right")
def _(x):
    z = x + 3.0
    z = select(lt(z, 0.0), z * 0.0, z)
    return x * select(gt(z, 6.0), z * 0.0 + 6.0, z) / 6.0


@hard_swish.expression(name="drops-nan")
def _(x):
    z = x + 3.0
    z = select(gt(z, 0.0), z, 0.0)
    return select(gt(z, 0.0), x * select(lt(z, 6.0), z, 6.0) / 6.0, 0.0)


PLANTED = [
    Planted((39,), "meaning", soft_threshold, "of-version-1", "right"),
    Planted((39,), "meaning", weights, "of-opset-11", "right"),
    Planted((39, 22), "execution.nullable", linear, "needs-bias", "right"),
    Planted((2,), "execution.nullable meaning", linear, "forgets-bias", "right"),
    Planted((13,), "meaning semantic.batch", layer_norm, "over-the-sequence", "right"),
    Planted((3,), "meaning", channel_shuffle, "transposed-groups", "right"),
    Planted((3,), "meaning", gelu, "tanh-form", "right"),
    Planted((22,), "execution.nullable", gelu, "none-raises", "right"),
    Planted((10,), "semantic.nan", hard_swish, "drops-nan", "right"),
]
