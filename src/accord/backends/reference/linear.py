"""Matrix products: MatMul, Gemm, Einsum and their integer and quantised forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.backends.reference.elementwise import align
from accord.backends.reference.quantization import quantize_values
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, to_accumulator, widen


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
        addend = np.broadcast_to(align(op, result, to_accumulator(c)), result.shape)
        result = result + (addend if op["beta"] == 1 else op["beta"] * addend)
    return np.asarray(result).astype(a.dtype)


@implements("Einsum")
def einsum(op: OpNode, *inputs: Array) -> Array:
    """Sum of products by the Einstein convention."""
    equation = op["equation"].replace(" ", "")
    return np.asarray(np.einsum(equation, *[to_accumulator(x) for x in inputs])).astype(inputs[0].dtype)


def _centred(x: Array, zero: Array | None, axis: int) -> Array:
    """The tensor in float64 less its zero point, which is one value or one for each row or column."""
    values = x.astype(np.float64)
    if zero is None:
        return values
    point = zero.astype(np.float64)
    if point.ndim == 1 and point.size > 1:
        point = np.expand_dims(point, axis)
    return np.asarray(values - point)


def _product(a: Array, a_zero: Array | None, b: Array, b_zero: Array | None) -> Array:
    """Product of matrices of 8-bit elements less their zero points, in float64.

    For integers it is exact as long as every sum stays below 2⁵³, and far faster in NumPy than its integer product.
    """
    return np.asarray(np.matmul(_centred(a, a_zero, 1), _centred(b, b_zero, 0)))


@implements("MatMulInteger")
def matmul_integer(_op: OpNode, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    """Product of 8-bit matrices less their zero points, accumulated in 32 bits."""
    # Sums beyond 32 bits wrap around.
    return _product(a, a_zero, b, b_zero).astype(np.int64).astype(np.int32)


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
    product = _product(a, a_zero, b, b_zero)
    rows = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    factor = widen(rows) * widen(b_scale) / widen(y_scale)
    return quantize_values(product * factor, y_zero, y_zero.dtype)
