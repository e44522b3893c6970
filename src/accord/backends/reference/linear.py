"""Matrix products: MatMul, Gemm, Einsum and their integer and quantised forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.backends.reference.elementwise import align
from accord.backends.reference.quantization import quantize_values
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, to_accumulator, widen

__all__ = ["integer_matmul"]


@implements("MatMul")
def matmul(_op: OpNode, a: Array, b: Array) -> Array:
    """Matrix product with NumPy's rules; floats add in float64, integers wrap around."""
    return np.asarray(np.matmul(to_accumulator(a), to_accumulator(b))).astype(a.dtype)


@implements("Gemm")
def gemm(op: OpNode, a: Array, b: Array, c: Array | None = None) -> Array:
    """``alpha * a @ b + beta * c``, either factor transposed on request; ``c`` broadcasts to the product."""
    require(a.ndim == b.ndim == 2, f"matrices are needed, found ranks {a.ndim} and {b.ndim}")
    left = to_accumulator(a).T if op["transA"] else to_accumulator(a)
    right = to_accumulator(b).T if op["transB"] else to_accumulator(b)
    result: Any = np.matmul(left, right)
    if op["alpha"] != 1:
        result = op["alpha"] * result
    if c is not None and op["beta"] != 0:
        addend = (
            to_accumulator(c)
            if op.version >= 7
            else np.broadcast_to(align(op, result, to_accumulator(c)), result.shape)
        )
        result = result + op["beta"] * np.broadcast_to(addend, result.shape)
    return np.asarray(result).astype(a.dtype)


@implements("Einsum")
def einsum(op: OpNode, *inputs: Array) -> Array:
    """Sum of products by the Einstein convention."""
    equation = op["equation"].replace(" ", "")
    return np.asarray(np.einsum(equation, *[to_accumulator(x) for x in inputs])).astype(inputs[0].dtype)


def integer_matmul(a: Array, b: Array) -> Array:
    """Product of matrices of small integers as int32.

    The product is taken in float64, which is exact while every sum stays below 2⁵³ and far faster in NumPy than
    its integer product; the result wraps around like int32 arithmetic.
    """
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))
    return np.asarray(product).astype(np.int64).astype(np.int32)


def _per_row(zero: Array | None, x: Array, axis: int) -> Array:
    """The tensor as int32 less its zero point, which is one value or one for each row or column."""
    values = x.astype(np.int32)
    if zero is None:
        return values
    point = zero.astype(np.int32)
    if point.ndim == 1 and point.size > 1:
        point = np.expand_dims(point, axis)
    return np.asarray(values - point)


@implements("MatMulInteger")
def matmul_integer(_op: OpNode, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    """Product of 8-bit matrices less their zero points, accumulated in 32 bits."""
    return integer_matmul(_per_row(a_zero, a, 1), _per_row(b_zero, b, 0))


@implements("QLinearMatMul")
def qlinear_matmul(
    _op: OpNode,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    """Product of quantised matrices, quantised again."""
    product = integer_matmul(_per_row(a_zero, a, 1), _per_row(b_zero, b, 0))
    rows = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    factor = widen(rows) * widen(b_scale) / widen(y_scale)
    return quantize_values(product * factor, y_zero, y_zero.dtype)
