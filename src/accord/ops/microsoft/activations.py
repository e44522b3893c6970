"""Expansions: activations, with the additions and dropouts that are fused into them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, cast, constant_array, half, like_cast
from accord.ops.microsoft.schemas import DOMAIN

__all__: list[str] = []


def _add(b: Builder, x: ir.Value, *others: ir.Value | None) -> ir.Value:
    for other in others:
        if other is not None:
            x = b("Add", x, other)
    return x


@expands("Gelu", domain=DOMAIN)
def gelu(b: Builder, n: Inference) -> Outputs:
    """The exact form, with erf."""
    return [b("Gelu", required(n, 0))]


@expands("BiasGelu", domain=DOMAIN)
def bias_gelu(b: Builder, n: Inference) -> Outputs:
    """Gelu of a sum."""
    return [b("Gelu", b("Add", required(n, 0), required(n, 1)))]


@expands("FastGelu", domain=DOMAIN)
def fast_gelu(b: Builder, n: Inference) -> Outputs:
    """The tanh form; its cubic coefficient 0.035677 is 0.044715 * sqrt(2 / pi)."""
    return [b("Gelu", _add(b, required(n, 0), given(n, 1)), approximate="tanh")]


@expands("GemmFastGelu", domain=DOMAIN)
def gemm_fast_gelu(b: Builder, n: Inference) -> Outputs:
    """FastGelu of a matrix product."""
    product = b("MatMul", required(n, 0), required(n, 1))
    return [b("Gelu", _add(b, product, given(n, 2)), approximate="tanh")]


@expands("QuickGelu", domain=DOMAIN)
def quick_gelu(b: Builder, n: Inference) -> Outputs:
    """Swish with another default."""
    return [b("Swish", required(n, 0), alpha=n.attr("alpha", 1.702))]


@expands("BiasSplitGelu", domain=DOMAIN)
def bias_split_gelu(b: Builder, n: Inference) -> Outputs:
    """The left half is scaled by Gelu of the right half."""
    left, right = b.multi("Split", 2, b("Add", required(n, 0), required(n, 1)), axis=-1, num_outputs=2)
    return [b("Mul", left, b("Gelu", right))]


@expands("ScaledSiLU", domain=DOMAIN)
def scaled_silu(b: Builder, n: Inference) -> Outputs:
    """In 16-bit types the scaled input, the sigmoid and the product are each rounded."""
    x = required(n, 0)
    wide = cast(b, x, ir.DataType.FLOAT) if half(b.fact(x).dtype) else x
    scale = given(n, 1)
    factor = b.scalar(n.attr("alpha", 1.0), wide) if scale is None else like_cast(b, scale, wide)
    scaled = like_cast(b, b("Mul", wide, factor), x)
    return [b("Mul", scaled, b("Sigmoid", scaled))]


@expands("SwiGLU", domain=DOMAIN)
def swiglu(b: Builder, n: Inference) -> Outputs:
    """Arithmetic in float32, rounded once (twice with ``round_activation``)."""
    gate, up = required(n, 0), given(n, 1)
    if up is None:
        gate, up = b.multi("Split", 2, gate, axis=-1, num_outputs=2)
    wide_gate, wide_up = (cast(b, v, ir.DataType.FLOAT) for v in (gate, up))
    limit = n.attr("limit", 0.0)
    if limit > 0:
        high, low = b.scalar(limit, wide_gate), b.scalar(-limit, wide_gate)
        wide_gate, wide_up = b("Clip", wide_gate, None, high), b("Clip", wide_up, low, high)
    activated = b("Swish", wide_gate, alpha=n.attr("activation_alpha", 1.0))
    if n.attr("round_activation", 0):
        activated = cast(b, like_cast(b, activated, gate), ir.DataType.FLOAT)
    beta = n.attr("activation_beta", 0.0)
    shifted = b("Add", wide_up, b.scalar(beta, wide_up)) if beta else wide_up
    return [like_cast(b, b("Mul", activated, shifted), gate)]


@expands("BiasAdd", domain=DOMAIN)
def bias_add(b: Builder, n: Inference) -> Outputs:
    """Two additions."""
    return [_add(b, *(v for v in n.node.inputs if v is not None))]


@expands("BiasSoftmax", domain=DOMAIN)
def bias_softmax(b: Builder, n: Inference) -> Outputs:
    """Softmax over the axes from ``axis`` on, which count as one.

    ``is_inner_broadcast`` tells the kernel how the bias repeats; the shapes say the same.
    """
    rank = n.tensor(0).rank
    if rank is None:
        return None
    axis = n.axis(n.attr("axis", 1), rank)
    scores = b("Add", required(n, 0), required(n, 1))
    if axis == rank - 1:
        return [b("Softmax", scores, axis=-1)]
    softmax = b("Softmax", b("Flatten", scores, axis=axis), axis=-1)
    return [b("Reshape", softmax, b("Shape", required(n, 0)))]


def _is_training(b: Builder, n: Inference, index: int) -> bool:
    """True unless it is certain that the mode is inference."""
    flag = given(n, index)
    if flag is None:
        return False
    value = constant_array(b, flag)
    return value is None or bool(value.any())


def _bit_mask(b: Builder, x: ir.Value) -> ir.Value:
    """One bit for each element, all set, in uint32."""
    elements = b("Size", x)
    words = b("Div", b("Add", elements, b.const(np.array(31, np.int64))), b.const(np.array(32, np.int64)))
    return b("Expand", b.const(np.array(0xFFFFFFFF, np.uint32)), b("Reshape", words, b.ints(1)))


def _kept(b: Builder, x: ir.Value) -> ir.Value:
    return b("Expand", b.const(np.array(True)), b("Shape", x))


@expands("BiasDropout", "BitmaskBiasDropout", domain=DOMAIN)
def bias_dropout(b: Builder, n: Inference) -> Outputs:
    """Inference only: nothing is dropped."""
    if _is_training(b, n, 4):
        return None
    output = _add(b, *(v for v in n.node.inputs[:3] if v is not None))
    mask = _bit_mask if n.node.op_type == "BitmaskBiasDropout" else _kept
    return [output, mask(b, output)] if len(n.node.outputs) > 1 else [output]


@expands("BitmaskDropout", domain=DOMAIN)
def bitmask_dropout(b: Builder, n: Inference) -> Outputs:
    """Inference only: nothing is dropped."""
    if _is_training(b, n, 2):
        return None
    x = required(n, 0)
    output = b("Identity", x)
    return [output, _bit_mask(b, x)] if len(n.node.outputs) > 1 else [output]
