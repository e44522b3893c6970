"""Sliding windows: convolutions of groups of few channels, and pools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accord.backends.cpu.depthwise import depthwise_phase
from accord.backends.cpu.epilogue import epilogue_of
from accord.backends.cpu.families.table import known
from accord.backends.cpu.images import accumulator
from accord.backends.cpu.jit import machine
from accord.backends.cpu.windows import Axis
from accord.backends.protocol import Arrangement, Array, Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.expr.lang import bits
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, channels_last, contiguous

__all__ = ["channels_last_arrangement", "depthwise_kernel", "is_depthwise"]

#: Channels of a group up to which its convolution is computed lane by lane and not as a matrix product.
_FEW_INPUTS, _FEW_OUTPUTS = 4, 16
_FLOATS = ("f32", "f64", "f16", "bf16")
_NUMPY = {"f32": np.float32, "f64": np.float64}


def channels_last_arrangement(view: NodeView, inputs: Sequence[int] = (0,)) -> Arrangement:
    """Outputs in the order batch, spatial axes, channels; so are the images in ``inputs`` whose channels are apart."""
    orders = []
    for i in range(max(inputs, default=-1) + 1):
        rank = view.tensor(i).rank if i in inputs else None
        apart = rank is not None and rank > 2 and view.access(i).strides[1] != 1
        orders.append(channels_last(rank) if apart and rank is not None else None)
    outputs = []
    for k in range(len(view.node.outputs)):
        rank = view.output(k).rank
        outputs.append(None if rank is None else channels_last(rank))
    return Arrangement(tuple(orders), tuple(outputs), strided=True)


def window_axes(view: NodeView, sizes: Shape, out: Shape, kernel: Sequence[int]) -> list[Axis]:
    """The spatial axes of a node with strides, dilations and padding.

    Args:
        view: The node.
        sizes: Spatial sizes of the input.
        out: Window positions.
        kernel: Taps along each axis.
    """
    rank = len(kernel)
    strides = [int(s) for s in view.attr("strides") or (1,) * rank]
    dilations = [int(d) for d in view.attr("dilations") or (1,) * rank]
    mode = view.attr("auto_pad") or "NOTSET"
    pads: list[DimLike] = [0] * rank
    if mode == "NOTSET":
        pads = [int(p) for p in (view.attr("pads") or (0,) * 2 * rank)[:rank]]
    elif mode != "VALID":
        for a, (size, n, k) in enumerate(zip(sizes, out, kernel, strict=True)):
            total = D.maximum((n - 1) * strides[a] + (k - 1) * dilations[a] + 1 - size, 0)
            pads[a] = D.floordiv(total, 2) if mode == "SAME_UPPER" else D.ceildiv(total, 2)
    return [Axis(*v) for v in zip(out, sizes, kernel, strides, pads, dilations, strict=True)]


def is_depthwise(view: NodeView) -> bool:
    """Whether a Conv has several groups of so few channels that lanes run along channels rather than along a sum."""
    w = view.tensor(1).shape
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
        constants[1] = _packed(view.tensor(1).numpy(), acc)
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


def _packed(weights: Array, acc: str) -> Array:
    """Weights [M, C / group, taps] as [taps, C / group, M padded to whole vectors]."""
    lanes = machine().width(bits(acc))
    moved = np.moveaxis(weights, (0, 1), (-1, -2)).astype(_NUMPY[acc])
    width = [(0, 0)] * (moved.ndim - 1) + [(0, -moved.shape[-1] % lanes)]
    return np.ascontiguousarray(np.pad(moved, width))
