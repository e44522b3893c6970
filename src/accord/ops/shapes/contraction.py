"""Shape rules of matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import int_attr, ints_attr, operator, product, rank_of, same_dtype, same_size, str_attr
from accord.ops.shapes.spatial import Window, window_of

INT32 = ir.DataType.INT32


# matrix products -------------------------------------------------------------------------------------------------


def matmul_shape(n: Inference, a_index: int, b_index: int) -> Shape | None:
    """The shape of ``a @ b`` with NumPy's rules: vectors gain an axis that goes away again, the rest broadcasts."""
    a, b = rank_of(n, a_index, least=1), rank_of(n, b_index, least=1)
    if a is None or b is None:
        return None
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] is not inner:
        same_size(n, a[-1], inner, "inner sizes", value=b_index)
    if len(a) <= 2 and len(b) <= 2:
        return rows + columns
    stack = a[:-2]
    if stack != b[:-2]:
        stack = n.broadcast(stack, b[:-2]) or ()
    return stack + rows + columns


@operator("MatMul", inputs=2)
def matmul(n: Inference) -> list[Fact]:
    """The product's shape, the inputs' dtype."""
    return [TensorFact(same_dtype(n, 0, 1), matmul_shape(n, 0, 1))]


@operator("MatMulInteger", inputs=2)
def matmul_integer(n: Inference) -> list[Fact]:
    """int32."""
    same_dtype(n, 0, 2)
    same_dtype(n, 1, 3)
    return [TensorFact(INT32, matmul_shape(n, 0, 1))]


@operator("QLinearMatMul", inputs=8)
def qlinear_matmul(n: Inference) -> list[Fact]:
    """The dtype of the output's zero point."""
    same_dtype(n, 0, 2)
    same_dtype(n, 3, 5)
    return [TensorFact(n.tensor(7).dtype, matmul_shape(n, 0, 3))]


@operator("Gemm", inputs=2)
def gemm(n: Inference) -> list[Fact]:
    """``[M, N]``; C broadcasts to it."""
    dtype = same_dtype(n, 0, 1, 2)
    a, b = rank_of(n, 0, 2), rank_of(n, 1, 2)
    if a is not None and int_attr(n, "transA", 0):
        a = (a[1], a[0])
    if b is not None and int_attr(n, "transB", 0):
        b = (b[1], b[0])
    if a is not None and b is not None:
        same_size(n, a[1], b[0], "inner sizes", value=1)
    shape = (n.fresh() if a is None else a[0], n.fresh() if b is None else b[1])
    c = n.tensor(2).shape if n.has(2) else None
    if c is not None:
        n.require(len(c) <= 2, "C has the wrong rank", expected="at most 2", found=len(c), value=2)
        for d, s in zip(reversed(shape), reversed(c), strict=False):
            if isinstance(d, int) and isinstance(s, int) and s not in (1, d):
                raise n.error("C does not broadcast to the product", expected=f"1 or {d}", found=s, value=2)
            n.agree(d, s, "sizes of the product and C", ones=True)
    return [TensorFact(dtype, shape)]


# convolutions ----------------------------------------------------------------------------------------------------


def _filter(n: Inference, x: Shape | None, w: Shape | None) -> Shape | None:
    """Kernel sizes from the weight, which must agree with ``kernel_shape``; None where neither tells."""
    stated = ints_attr(n, "kernel_shape", low=1)
    if w is None:
        if stated is not None or x is None:
            return stated
        return n.fresh_shape(len(x) - 2)
    kernel = w[2:]
    for k in kernel:
        n.require(not isinstance(k, int) or k > 0, "the kernel is empty", expected="1 or more", found=k, value=1)
    if stated is None:
        return kernel
    n.require(
        len(stated) == len(kernel), "kernel_shape differs from the weight", expected=list(kernel), found=list(stated)
    )
    for k, s in zip(kernel, stated, strict=True):
        same_size(n, k, s, "kernel_shape and the weight")
    return stated


def _check_channels(n: Inference, x: Shape | None, w: Shape | None, group: int) -> None:
    """Data have ``group`` times the weight's channels; filters divide into groups."""
    if w is None:
        return
    filters, depth = w[0], w[1]
    if isinstance(filters, int) and filters % group:
        raise n.error("filters do not divide into groups", expected=f"a multiple of {group}", found=filters)
    if x is not None and isinstance(x[1], int) and isinstance(depth, int) and x[1] != depth * group:
        raise n.error(
            "numbers of channels differ", expected=f"{depth} * group {group} = {depth * group}", found=x[1], value=0
        )
    if x is not None:
        n.agree(depth * group, x[1], "numbers of channels")


def _check_bias(n: Inference, index: int, filters: DimLike | None) -> None:
    if n.has(index) and filters is not None:
        bias = rank_of(n, index, 1)
        if bias is not None:
            same_size(n, filters, bias[0], "numbers of filters and biases", value=index)


def conv_shape(n: Inference, x_index: int, w_index: int, bias: int) -> Shape | None:
    """``[N, filters, window positions]``."""
    x, w = rank_of(n, x_index, least=3), rank_of(n, w_index, least=3)
    if x is not None and w is not None and len(x) != len(w):
        raise n.error("data and weight differ in rank", expected=len(x), found=len(w), value=w_index)
    group = int_attr(n, "group", 1, low=1)
    _check_channels(n, x, w, group)
    kernel = _filter(n, x, w)
    if kernel is None:
        return None
    window = window_of(n, kernel)
    filters: DimLike = n.fresh() if w is None else w[0]
    _check_bias(n, bias, None if w is None else filters)
    if x is None:
        return (n.fresh(), filters, *n.fresh_shape(len(kernel)))
    n.require(len(x) == len(kernel) + 2, "kernel has the wrong rank", expected=len(x) - 2, found=len(kernel))
    return (x[0], filters, *window.sizes(n, x[2:]))


@operator("Conv", inputs=2)
def conv(n: Inference) -> list[Fact]:
    """The inputs' dtype."""
    return [TensorFact(same_dtype(n, 0, 1, 2), conv_shape(n, 0, 1, 2))]


@operator("ConvInteger", inputs=2)
def conv_integer(n: Inference) -> list[Fact]:
    """int32."""
    same_dtype(n, 0, 2)
    same_dtype(n, 1, 3)
    return [TensorFact(INT32, conv_shape(n, 0, 1, len(n.inputs)))]


@operator("QLinearConv", inputs=8)
def qlinear_conv(n: Inference) -> list[Fact]:
    """The dtype of the output's zero point."""
    same_dtype(n, 0, 2)
    same_dtype(n, 3, 5)
    return [TensorFact(n.tensor(7).dtype, conv_shape(n, 0, 3, 8))]


@operator("DeformConv", inputs=3)
def deform_conv(n: Inference) -> list[Fact]:
    """As Conv; the offsets have ``offset_group * kernel * axes`` channels and the output's sizes."""
    dtype = same_dtype(n, 0, 1, 2, 3, 4)
    shape = conv_shape(n, 0, 1, 3)
    groups = int_attr(n, "offset_group", 1, low=1)
    if shape is not None:
        w = n.tensor(1).shape
        kernel = product(n, w[2:]) if w is not None else None
        for index, per in ((2, len(shape) - 2), (4, 1)):
            other = rank_of(n, index, len(shape)) if n.has(index) else None
            if other is None:
                continue
            same_size(n, shape[0], other[0], "batch sizes", value=index)
            if kernel is not None:
                same_size(n, kernel * groups * per, other[1], "numbers of offset channels", value=index)
            for a, b in zip(shape[2:], other[2:], strict=True):
                same_size(n, a, b, "sizes of output and offsets", value=index)
    return [TensorFact(dtype, shape)]


@operator("ConvTranspose", inputs=2)
def conv_transpose(n: Inference) -> list[Fact]:
    """``[N, M/group * group, sizes]``; sizes from the formula of the ONNX text, or from ``output_shape``."""
    dtype = same_dtype(n, 0, 1, 2)
    x, w = rank_of(n, 0, least=3), rank_of(n, 1, least=3)
    if x is not None and w is not None:
        n.require(len(x) == len(w), "data and weight differ in rank", expected=len(x), found=len(w), value=1)
        same_size(n, x[1], w[0], "numbers of channels", value=1)
    group = int_attr(n, "group", 1, low=1)
    if w is not None and isinstance(w[0], int) and w[0] % group:
        raise n.error("channels do not divide into groups", expected=f"a multiple of {group}", found=w[0])
    kernel = _filter(n, x, w)
    if kernel is None:
        return [TensorFact(dtype, None)]
    n.require(
        x is None or len(x) == len(kernel) + 2, "kernel has the wrong rank", expected="one per axis", found=len(kernel)
    )
    window = window_of(n, kernel)
    rank = len(kernel)
    extra = ints_attr(n, "output_padding", length=rank, low=0) or (0,) * rank
    stated = ints_attr(n, "output_shape", low=0)
    filters: DimLike = n.fresh() if w is None else w[1] * group
    _check_bias(n, 2, None if w is None else filters)
    batch: DimLike = n.fresh() if x is None else x[0]
    if stated is not None:
        # Some exporters write batch and channels as well.
        n.require(len(stated) in (rank, rank + 2), "output_shape has the wrong length", expected=rank, found=stated)
        return [TensorFact(dtype, (batch, filters, *stated[-rank:]))]
    if x is None:
        return [TensorFact(dtype, (batch, filters, *n.fresh_shape(rank)))]
    sizes = tuple(_grown(n, window, i, d, extra[i]) for i, d in enumerate(x[2:]))
    return [TensorFact(dtype, (batch, filters, *sizes))]


def _grown(n: Inference, window: Window, axis: int, size: DimLike, extra: int) -> DimLike:
    stride = window.strides[axis]
    if window.auto_pad.startswith("SAME"):
        return size * stride
    out = (size - 1) * stride + extra + window.extent(axis) - window.begins[axis] - window.ends[axis]
    n.require(not isinstance(out, int) or out >= 0, "the result would be negative", expected="a size", found=str(out))
    return out


@operator("CausalConvWithState", inputs=2)
def causal_conv(n: Inference) -> list[Fact]:
    """The input's shape, and the state ``[N, C, k - 1]``."""
    dtype = same_dtype(n, 0, 1, 2, 3)
    x, w = rank_of(n, 0, 3), rank_of(n, 1, 3)
    str_attr(n, "activation", "none", among=("none", "silu", "swish"))
    past = rank_of(n, 3, 3) if n.has(3) else None
    state: list[DimLike] = [n.fresh() if x is None else x[0], n.fresh() if x is None else x[1], n.fresh()]
    if w is not None:
        n.require(not isinstance(w[2], int) or w[2] > 0, "the kernel is empty", expected="1 or more", found=0, value=1)
        same_size(n, 1, w[1], "depthwise channels", value=1)
        state[1] = same_size(n, state[1], w[0], "numbers of channels", value=1) if x is not None else w[0]
        state[2] = w[2] - 1
        _check_bias(n, 2, w[0])
    if past is not None:
        known: Mapping[int, bool] = {0: x is not None, 1: x is not None or w is not None, 2: w is not None}
        for i, d in enumerate(past):
            state[i] = same_size(n, state[i], d, "sizes of the state", value=3) if known[i] else d
    return [TensorFact(dtype, x), TensorFact(dtype, tuple(state))]
