"""Sliding windows: convolutions of groups of few channels, and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from accord.backends.cpu.depthwise import depthwise_phase
from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.images import accumulator
from accord.backends.cpu.jit import machine
from accord.backends.cpu.lrn import lrn_phase
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.cpu.pools import Pooling, pool_phase
from accord.backends.cpu.unpool import fold_phase, unpool_phase
from accord.backends.epilogue import Epilogue
from accord.backends.images import Axis, channels_last_arrangement, window_axes
from accord.backends.loops.table import known, output_operands
from accord.backends.protocol import Arrangement, Array, Kernel, NativeKernel
from accord.backends.root import RootView, epilogue_of
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, Expr, bits, call, const, operand
from accord.expr.primitives import abs_, sqrt
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous
from accord.record import record

__all__ = ["counted_of", "depthwise_kernel", "is_depthwise", "packed_taps", "pool_of", "pooling_of"]

#: Channels of a group up to which its convolution is computed lane by lane and not as a matrix product.
_FEW_INPUTS, _FEW_OUTPUTS = 4, 16
_FLOATS = ("f32", "f64", "f16", "bf16")
_NUMPY = {"f32": np.float32, "f64": np.float64}


def is_depthwise(view: NodeView, filters: int = 1) -> bool:
    """Whether a Conv has several groups of so few channels that lanes run along channels rather than along a sum.

    Args:
        view: The node.
        filters: Which input the filters are.
    """
    w = view.tensor(filters).shape
    group = int(view.attr("group", 1))
    if w is None or group < 2 or not isinstance(w[0], int) or not isinstance(w[1], int):
        return False
    return w[1] <= _FEW_INPUTS and w[0] // group <= _FEW_OUTPUTS


def depthwise_kernel(view: NodeView) -> Kernel | Reason:
    """The kernel of a Conv for which :func:`is_depthwise` holds; any strides, lanes along channels."""
    found = [known(view.tensor(i), f"input {i}") for i in (0, 1)]
    for f in found:
        if isinstance(f, Reason):
            return f
    (x, dtype), (w, _) = found  # type: ignore[misc]
    out = view.output().shape
    rank = len(x) - 2
    if dtype not in _FLOATS:
        return Reason(f"depthwise convolutions are generated for floats, not for {dtype}")
    if out is None or not 1 <= rank <= 3 or len(w) != rank + 2:
        return Reason("only one to three spatial axes")
    if not D.is_known(w):
        return Reason("the weights' shape is only known at run time")
    shape = tuple(int(d) for d in w)
    count = int(view.attr("group", 1))
    axes = window_axes(view, x[2:], out[2:], shape[2:])
    acc = accumulator(dtype)
    constants: dict[int, Array] = {}
    if view.tensor(1).is_const:
        constants[1] = packed_taps(view.tensor(1).numpy(), acc)
        padded = constants[1].shape
        weights = (acc, Access(contiguous(padded)), True)
    else:
        own = view.access(1)
        weights = (dtype, Access((*own.strides[2:], own.strides[1], own.strides[0]), own.offset), False)
    bias = None
    reads = (0, 1, 2) if view.has(2) else (0, 1)
    if view.has(2):
        own = view.access(2)
        bias = (dtype, Access((0, own.strides[0]), own.offset))
    epilogue = epilogue_of(view)
    phase = depthwise_phase(
        x[0],
        shape[0],
        axes,
        (shape[1], shape[0] // count),
        (dtype, view.access(0)),
        weights,
        bias,
        view.output_access(),
        epilogue,
        tuple(range(len(reads) + len(epilogue.extras) + 1)),
    )
    flops = 2 * D.product((*out, *shape[1:]))
    return NativeKernel(f"depthwise conv {dtype}", (phase,), reads, constants=constants, flops=flops)


def packed_taps(weights: Array, acc: str) -> Array:
    """Weights [M, C / group, taps] as [taps, C / group, M padded to whole vectors]."""
    lanes = machine().width(bits(acc))
    moved = np.moveaxis(weights, (0, 1), (-1, -2)).astype(_NUMPY[acc])
    width = [(0, 0)] * (moved.ndim - 1) + [(0, -moved.shape[-1] % lanes)]
    return np.ascontiguousarray(np.pad(moved, width))


@arranges("MaxPool", "AveragePool", "LpPool")
def arrange_pool(view: NodeView) -> Arrangement:
    """Channels-last."""
    return channels_last_arrangement(view)


@record
class PoolProblem:
    """What a pool asks for.

    Attributes:
        shape: Of the input.
        dtype: Of the input.
        out: Shape of the output.
        axes: Spatial axes.
        pooling: What is computed.
        epilogue: What is stored.
        indices: How the indices of maxima lie; None: they are not wanted.
        operands: Which of the kernel's operands a phase gets: all.
        flops: Operations.
    """

    shape: Shape
    dtype: str
    out: Shape
    axes: tuple[Axis, ...]
    pooling: Pooling
    epilogue: Epilogue
    indices: Access | None
    operands: tuple[int, ...]
    flops: DimLike


def pool_of(view: NodeView) -> PoolProblem | Reason:
    """What a pool over one to three spatial axes asks for."""
    found = known(view.tensor(0), "the input")
    if isinstance(found, Reason):
        return found
    x, dtype = found
    out = view.output().shape
    kernel = [int(k) for k in view.attr("kernel_shape")]
    rank = len(kernel)
    if out is None or not 1 <= rank <= 3 or dtype == "bool":
        return Reason("only numbers over one to three spatial axes")
    pooling = pooling_of(view, accumulator(dtype), dtype)
    if isinstance(pooling, Reason):
        return pooling
    epilogue = epilogue_of(view)
    numbers = output_operands(view.node, 1 + len(epilogue.extras))
    if numbers[0] < 0:
        return Reason("only the indices are wanted")
    indices = view.output_access(1) if len(numbers) > 1 and numbers[1] >= 0 else None
    return PoolProblem(
        x,
        dtype,
        out,
        tuple(window_axes(view, x[2:], out[2:], kernel)),
        pooling,
        epilogue,
        indices,
        tuple(range(2 + len(epilogue.extras) + (indices is not None))),
        D.product((*out, *kernel)),
    )


@selects("MaxPool", "AveragePool", "LpPool", epilogue=True)
def pool(view: NodeView) -> Kernel | Reason:
    """Pools over one to three spatial axes; any strides, lanes along channels."""
    p = pool_of(view)
    if isinstance(p, Reason):
        return p
    phase = pool_phase(
        p.shape[0],
        p.shape[1],
        p.axes,
        (p.dtype, view.access(0)),
        view.output_access(),
        p.pooling,
        p.epilogue,
        p.operands,
        counted=counted_of(view, p.axes),
        indices=p.indices,
        column_major=bool(view.attr("storage_order", 0)),
    )
    return NativeKernel(f"{view.node.op_type} {p.dtype}", (phase,), (0,), flops=p.flops)


def pooling_of(view: NodeView, acc: str, dtype: str) -> Pooling | Reason:
    """What the operator computes, in type ``acc``."""
    x, total = operand(0, acc), operand(0, acc)
    if view.node.op_type == "MaxPool":
        unsigned, size = dtype.startswith("u"), bits(dtype)
        lowest = float("-inf") if dtype in FLOATS else 0 if unsigned else -(1 << (size - 1))
        return Pooling(x, "max", lowest, total, False)
    if dtype not in FLOATS:
        return Reason(f"{view.node.op_type} is generated for floats, not for {dtype}")
    if view.node.op_type == "AveragePool":
        return Pooling(x, "add", 0.0, total * operand(1, acc), True)
    p = int(view.attr("p", 2))
    powers: dict[int, tuple[Expr, Expr]] = {1: (abs_(x), total), 2: (x * x, sqrt(total))}
    general = (call("pow", abs_(x), const(p, acc)), call("pow", total, const(1.0 / p, acc))) if p > 2 else None
    chosen = powers.get(p, general)
    return Reason(f"the norm of order {p}") if chosen is None else Pooling(chosen[0], "add", 0.0, chosen[1], False)


def counted_of(view: NodeView, axes: Sequence[Axis]) -> list[tuple[DimLike, DimLike]]:
    """Where the elements begin and end that an average is taken over: of the image, or of the padding as well."""
    if not view.attr("count_include_pad", 0):
        return [(0, a.size) for a in axes]
    pads = view.attr("pads") or (0,) * 2 * len(axes)
    mode = view.attr("auto_pad") or "NOTSET"
    bounds: list[tuple[DimLike, DimLike]] = []
    for a, axis in enumerate(axes):
        behind = int(pads[len(axes) + a]) if mode == "NOTSET" else 0
        end = axis.size + behind
        if mode.startswith("SAME"):  # the padding ends where the last window does
            end = D.maximum((axis.out - 1) * axis.stride - axis.pad + (axis.kernel - 1) * axis.dilation + 1, end)
        bounds.append((axis.pad * -1, end))
    return bounds


def unpooled_of(view: NodeView) -> tuple[tuple[Shape, str], Shape, Shape] | Reason:
    """What a MaxUnpool asks for: shape and type of its input, the image that indices count in, the output's shape."""
    found = known(view.tensor(0), "the input")
    if isinstance(found, Reason):
        return found
    x, dtype = found
    out, rank = view.output().shape, len(x) - 2
    if out is None or dtype == "bool" or isinstance(view, RootView):
        return Reason("the rank is not known, or something follows that is computed with it")
    if view.has(2) and view.tensor(2).elements() is None:
        return Reason("the output's sizes are only known at run time")
    kernel = [int(k) for k in view.attr("kernel_shape")]
    strides = [int(s) for s in view.attr("strides") or (1,) * rank]
    pads = [int(p) for p in view.attr("pads") or (0,) * 2 * rank]
    inverse: list[DimLike] = [
        (n - 1) * s - pads[a] - pads[rank + a] + k
        for a, (n, s, k) in enumerate(zip(x[2:], strides, kernel, strict=True))
    ]
    return found, (*x[:2], *inverse), out


@selects("MaxUnpool")
def max_unpool(view: NodeView) -> Kernel | Reason:
    """Zeros, then each element where its index says."""
    asked = unpooled_of(view)
    if isinstance(asked, Reason):
        return asked
    (x, dtype), whole, out = asked
    target = view.output_access()
    fill = pointwise_phase(out, [], [(dtype, target)], [const(0, dtype)], (2,))
    put = unpool_phase(dtype, x, whole, out, (view.access(0), view.access(1), target), (0, 1, 2))
    return NativeKernel(f"MaxUnpool {dtype}", (fill, put), (0, 1))


def columns_of(view: NodeView) -> list[Axis] | Reason:
    """The spatial axes of a Col2Im: what its columns are windows of."""
    image, block = view.tensor(1).elements(), view.tensor(2).elements()
    if image is None or block is None or not D.is_known(block) or view.output().shape is None:
        return Reason("the image's or the blocks' sizes are only known at run time")
    found = known(view.tensor(0), "the input")
    if isinstance(found, Reason) or found[1] not in _FLOATS or isinstance(view, RootView):
        return Reason("only floats, and nothing that is computed with them")
    kernel = [int(k) for k in block]
    rank = len(kernel)
    axes = window_axes(view, image, image, kernel)
    pads = [int(p) for p in view.attr("pads") or (0,) * 2 * rank]
    return [
        replace(a, out=D.floordiv(a.size + pads[k] + pads[rank + k] - ((a.kernel - 1) * a.dilation + 1), a.stride) + 1)
        for k, a in enumerate(axes)
    ]


@selects("Col2Im")
def col2im(view: NodeView) -> Kernel | Reason:
    """Sums of the columns that hold a pixel."""
    found, axes, out = known(view.tensor(0), "the input"), columns_of(view), view.output().shape
    if isinstance(found, Reason):
        return found
    if isinstance(axes, Reason):
        return axes
    assert out is not None
    x, dtype = found
    phase = fold_phase(dtype, x[0], out[1], axes, (view.access(0), view.output_access()))
    return NativeKernel(f"Col2Im {dtype}", (phase,), (0,), flops=D.product((*out, *(a.kernel for a in axes))))


@arranges("LRN")
def arrange_lrn(view: NodeView) -> Arrangement:
    """Channels-last."""
    return channels_last_arrangement(view)


@selects("LRN")
def lrn(view: NodeView) -> Kernel | Reason:
    """Each element by a power of the mean square over neighbouring channels."""
    found = known(view.tensor(0), "the input")
    if isinstance(found, Reason):
        return found
    x, dtype = found
    if dtype not in _FLOATS or len(x) < 3 or isinstance(view, RootView):
        return Reason("only images of floats, and nothing that is computed with them")
    size = int(view.attr("size"))
    if size < 1:
        return Reason(f"a window of {size} channels")
    weights = (float(view.attr("alpha", 1e-4)), float(view.attr("beta", 0.75)), float(view.attr("bias", 1.0)))
    phase = lrn_phase(x, size, weights, dtype, view.access(0), view.output_access())
    return NativeKernel(f"LRN {dtype}", (phase,), (0,), flops=D.product((*x, 2 * size + 8)))
