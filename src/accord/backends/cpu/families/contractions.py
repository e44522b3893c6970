"""MatMul, Gemm and Conv on the register tile."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.conv import conv_phase
from accord.backends.cpu.families.table import known, selects
from accord.backends.cpu.matmul import matmul_phase, panel_bytes
from accord.backends.cpu.tile import Epilogue, Extra
from accord.backends.protocol import Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.expr.lang import Expr, call, const, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import broadcast_access, contiguous

__all__ = ["conv", "gemm", "matmul"]

_TYPES = ("f32", "f64")


def _inputs(view: NodeView, count: int) -> tuple[list[Shape], str] | Reason:
    shapes: list[Shape] = []
    dtype = ""
    for i in range(count):
        found = known(view.tensor(i), f"input {i}")
        if isinstance(found, Reason):
            return found
        shapes.append(found[0])
        dtype = found[1]
    if dtype not in _TYPES:
        return Reason(f"the tile is generated for {' and '.join(_TYPES)}, not for {dtype}")
    return shapes, dtype


@selects("MatMul")
def matmul(view: NodeView) -> Kernel | Reason:
    """A batch of products with NumPy's rules."""
    found = _inputs(view, 2)
    if isinstance(found, Reason):
        return found
    (a, b), dtype = found
    if not a or not b:
        return Reason("a scalar operand")
    if len(a) == 1:
        a = (1, *a)
    if len(b) == 1:
        b = (*b, 1)
    m, k, n = a[-2], a[-1], b[-1]
    batch = view.broadcast(a[:-2], b[:-2]) or ()
    strides_a = [s * (m * k) for s in broadcast_access(a[:-2], batch).strides]
    strides_b = [s * (k * n) for s in broadcast_access(b[:-2], batch).strides]
    strides_c = [s * (m * n) for s in contiguous(batch)]
    if all(s == 0 for s in strides_b) and strides_a == [s * (m * k) for s in contiguous(batch)]:
        m, batch = m * D.product(batch), ()  # one matrix B: all rows of A are one matrix
        strides_a, strides_b, strides_c = [], [], []
    epilogue = Epilogue(operand(0, dtype))
    phase = matmul_phase(
        dtype, m, n, k, (k, 1), (n, 1), batch, (strides_a, strides_b, strides_c), epilogue, (0, 1, 2, 3)
    )
    return NativeKernel(
        f"matmul {dtype}",
        (phase,),
        (0, 1),
        workspace=panel_bytes(k, dtype),
        flops=2 * D.product((*batch, m, n, k)),
    )


@selects("Gemm")
def gemm(view: NodeView) -> Kernel | Reason:
    """``alpha * A B + beta * C``."""
    found = _inputs(view, 2)
    if isinstance(found, Reason):
        return found
    (a, b), dtype = found
    if len(a) != 2 or len(b) != 2:
        return Reason("operands must be matrices")
    trans_a, trans_b = bool(view.attr("transA", 0)), bool(view.attr("transB", 0))
    m, k = a[::-1] if trans_a else a
    n = b[0] if trans_b else b[1]
    a_strides: tuple[DimLike, DimLike] = (1, m) if trans_a else (k, 1)
    b_strides: tuple[DimLike, DimLike] = (1, k) if trans_b else (n, 1)
    reads = [0, 1]
    constants = {}
    weights = view.tensor(1)
    if trans_b and weights.is_const:
        constants[1] = weights.numpy().T.copy(order="C")
        b_strides = (n, 1)
    total: Expr = operand(0, dtype)
    if float(view.attr("alpha", 1.0)) != 1.0:
        total = call("mul", total, const(float(view.attr("alpha", 1.0)), dtype))
    extras: tuple[Extra, ...] = ()
    beta = float(view.attr("beta", 1.0))
    if view.has(2) and beta != 0.0:
        kind = _bias_kind(view.tensor(2).shape, m, n)
        if kind is None:
            return Reason("the bias broadcasts in a way that is only known at run time")
        extras = (Extra(kind, dtype),)
        bias: Expr = operand(1, dtype)
        if beta != 1.0:
            bias = call("mul", bias, const(beta, dtype))
        total = call("add", total, bias)
        reads.append(2)
    operands = tuple(range(len(reads) + 2))
    phase = matmul_phase(dtype, m, n, k, a_strides, b_strides, (), ((), (), ()), Epilogue(total, extras), operands)
    return NativeKernel(
        f"gemm {dtype}",
        (phase,),
        tuple(reads),
        constants=constants,
        workspace=panel_bytes(k, dtype),
        flops=2 * D.product((m, n, k)),
    )


def _bias_kind(shape: Shape | None, m: DimLike, n: DimLike) -> str | None:
    """Which extra a bias is that broadcasts to [m, n]."""
    if shape is None or len(shape) > 2:
        return None
    rows, columns = (1, 1, *shape)[-2:]
    if columns == n and rows == 1:
        return "column"
    if columns == 1 and rows == m:
        return "row"
    if columns == n and rows == m:
        return "tile"
    return None


@selects("Conv")
def conv(view: NodeView) -> Kernel | Reason:
    """Convolution over one to three spatial axes."""
    found = _inputs(view, 2)
    if isinstance(found, Reason):
        return found
    (x, w), dtype = found
    out = view.output().shape
    rank = len(x) - 2
    if out is None or not 1 <= rank <= 3 or len(w) != rank + 2:
        return Reason("only one to three spatial axes")
    if not D.is_known(w):
        return Reason("the weights' shape is only known at run time")
    group = int(view.attr("group", 1))
    kernel = [int(k) for k in w[2:]]
    strides = [int(s) for s in view.attr("strides", (1,) * rank)]
    dilations = [int(d) for d in view.attr("dilations", (1,) * rank)]
    pads = _front_pads(view, x[2:], out[2:], kernel, strides, dilations)
    bias = view.has(2)
    dtype_bias = operand(1, dtype)
    total = call("add", operand(0, dtype), dtype_bias) if bias else operand(0, dtype)
    epilogue = Epilogue(total, (Extra("row", dtype),) if bias else ())
    reads = (0, 1, 2) if bias else (0, 1)
    phase, scratch = conv_phase(
        dtype,
        x[0],
        group,
        (int(w[1]), int(w[0]) // group),
        x[2:],
        out[2:],
        kernel,
        strides,
        pads,
        dilations,
        epilogue,
        tuple(range(len(reads) + 2)),
    )
    flops = 2 * D.product((*out, *w[1:]))
    # the scratch operand exists even where the convolution reads the image itself
    return NativeKernel(f"conv {dtype}", (phase,), reads, workspace=D.maximum(scratch, 64), flops=flops)


def _front_pads(
    view: NodeView,
    sizes: Shape,
    out: Shape,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[DimLike]:
    rank = len(kernel)
    mode = view.attr("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return [int(p) for p in view.attr("pads", (0,) * 2 * rank)[:rank]]
    if mode == "VALID":
        return [0] * rank
    pads: list[DimLike] = []
    for size, n, k, s, d in zip(sizes, out, kernel, strides, dilations, strict=True):
        total = D.maximum((n - 1) * s + (k - 1) * d + 1 - size, 0)
        pads.append(D.floordiv(total, 2) if mode == "SAME_UPPER" else D.ceildiv(total, 2))
    return pads
