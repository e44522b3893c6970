"""Functions of one element, alone and as the epilogues of products."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(z):
    """``1 / (1 + exp(-z))``: no overflow in float32, since exp of a large number is infinite and its inverse 0."""
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
def tanh(z):
    """Through the exponential of a negative number; near 0, where that would cancel, a polynomial."""
    size = tl.abs(z)
    e = tl.exp(-2.0 * size)
    far = (1.0 - e) / (1.0 + e)
    s = z * z
    near = size * (1.0 + s * (-0.3333333333 + s * (0.1333333333 + s * -0.0539682540)))
    far = tl.where(size < 0.1, near, far)
    return tl.where(z < 0, -far, far)


@triton.jit
def short_gelu(z):
    """GELU to 16 bits: ``max(z, 0)`` less ``abs(z)`` times the tail of the normal distribution behind it.

    The tail's logarithm is a polynomial, right to 2**-15.8 of the tail where halves have values (to 2**-12.5 beyond 6).
    """
    size = tl.minimum(tl.abs(z), 14.6)  # where the tail has no value in float32
    power = size * -1.8103464e-09 + 1.356319e-07
    power = power * size + -4.4354763e-06
    power = power * size + 8.382879e-05
    power = power * size + -0.0010263067
    power = power * size + 0.008706627
    power = power * size + -0.054088703
    power = power * size + -0.45859313
    power = power * size + -1.1510899
    power = power * size + -1.000021
    return tl.where(z < 0.0, 0.0, z) - size * tl.exp2(power)


@triton.jit
def activated(z, ACTIVATION: tl.constexpr, SHORT: tl.constexpr):
    """``z``, float32, through the activation of that name; ``SHORT``: it is rounded to 16 bits."""
    if ACTIVATION == "relu":
        z = tl.where(z < 0.0, 0.0, z)
    elif ACTIVATION == "gelu" and SHORT:
        z = short_gelu(z)
    elif ACTIVATION == "gelu":
        z = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # 1 + tanh(u) = 2 sigmoid(2u)
        z = z * sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    elif ACTIVATION == "silu":
        z = tl.where(z == float("-inf"), float("nan"), z) * sigmoid(z)
    elif ACTIVATION == "mish":
        # tanh(log(1 + e)) = n / (n + 2), n = e (e + 2)
        e = tl.exp(tl.minimum(z, 20.0))
        n = e * (e + 2.0)
        z = tl.where(z > 20.0, z, z * n / (n + 2.0))
    elif ACTIVATION == "hard_sigmoid":
        z = tl.minimum(tl.maximum(z * 0.16666666666666666 + 0.5, 0.0, tl.PropagateNan.ALL), 1.0, tl.PropagateNan.ALL)
    elif ACTIVATION == "hard_swish":
        z = z * tl.minimum(
            tl.maximum(z * 0.16666666666666666 + 0.5, 0.0, tl.PropagateNan.ALL), 1.0, tl.PropagateNan.ALL
        )
    elif ACTIVATION == "sigmoid":
        z = sigmoid(z)
    elif ACTIVATION == "tanh":
        z = tanh(z)
    else:
        tl.static_assert(ACTIVATION == "none", "there is no activation of that name")
    return z


@triton.jit
def elementwise(x, output, lead, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """One activation of ``lead`` elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    SHORT: tl.constexpr = x.dtype.element_ty.primitive_bitwidth == 16
    z = activated(tl.load(x + at, mask=at < lead, other=0).to(tl.float32), ACTIVATION, SHORT)
    tl.store(output + at, z.to(output.dtype.element_ty), mask=at < lead)
