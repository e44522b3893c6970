"""Deformable convolutions, by offsets that are numbers or codes."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from accord.backends.cpu.conv import Convolution, Image
from accord.backends.cpu.deform import deform_phases, offset_table
from accord.backends.cpu.families.contractions import convolution_of, packed_weights
from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.patches import Window
from accord.backends.epilogue import accumulator, with_sum
from accord.backends.products import operands_of, with_bias
from accord.backends.protocol import Arrangement, Constant, Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.ir import dims as D
from accord.ir.reason import Reason
from accord.ir.strides import channels_last

__all__ = ["deform_conv", "quantized_deform_conv"]


@arranges("DeformConv")
@arranges("QuantizedDeformConv2d", domain="accord")
def deformed_images(view: NodeView) -> Arrangement:
    """Channels follow each other in the image and in what is written; weights have no gaps."""
    shape = view.output().shape
    if shape is None or len(shape) < 3:
        return Arrangement()
    order = channels_last(len(shape))
    return Arrangement((order, tuple(range(len(shape)))), (order,), strided=True)


@selects("DeformConv", epilogue=True)
def deform_conv(view: NodeView) -> Kernel | Reason:
    """Convolution whose taps are read at offsets, over one to three spatial axes."""
    found = operands_of(view, 3)
    if isinstance(found, Reason):
        return found
    (x, w, _), dtype = found
    convolution = convolution_of(view, x, w, Image(dtype, view.access(0)), constant=view.tensor(1).is_const)
    if isinstance(convolution, Reason):
        return convolution
    # blocks of interpolated rows are of the sums' type, whatever was asked for
    return _kernel(view, replace(convolution, halves=""), int(view.attr("offset_group", 1)), bias=3)


@selects("QuantizedDeformConv2d", domain="accord")
def quantized_deform_conv(view: NodeView) -> Kernel | Reason:
    """The same over two axes, with codes and a constant scale."""
    found = operands_of(view, 2)
    codes, out = view.tensor(2), view.output().shape
    if isinstance(found, Reason):
        return found
    if codes.dtype is None or codes.dtype.name not in ("INT8", "INT4"):
        return Reason("codes are int8 or int4")
    (x, w), dtype = found
    scale = float(view.tensor(3).numpy().reshape(()))
    if not math.isfinite(scale):
        return Reason("the scale is infinite")
    if out is None or not D.is_known(w) or 0 in w:
        return Reason("the kernel's size is only known at run time")
    stride, padding, dilation, groups, alike = (
        int(view.attr(name, default))
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1), ("offset_groups", 1))
    )
    window = Window(tuple(w[2:]), (stride, stride), (dilation, dilation))
    shape = (x[0], groups, w[1], w[0] // groups, x[2:], out[2:], window, (padding, padding))
    convolution = Convolution(*shape, Image(dtype, view.access(0)), view.tensor(1).is_const)
    bits = 4 if codes.dtype.name == "INT4" else 8
    table = functools.partial(offset_table, "f64" if dtype == "f64" else "f32", scale, bits)
    return _kernel(view, convolution, alike, bias=5, table=table)


def _kernel(
    view: NodeView, convolution: Convolution, alike: int, *, bias: int, table: Constant | None = None
) -> Kernel | Reason:
    """The kernel.

    Args:
        view: The node: image, weights, offsets; the mask is input 4.
        convolution: What it would be without offsets.
        alike: Groups of channels with offsets of their own.
        bias: Which input is the bias.
        table: For offsets that are codes; it takes the place of input 3.
    """
    out, dtype, access = view.output().shape, convolution.x.dtype, convolution.x.access
    assert out is not None
    if access.strides[1] != 1:
        return Reason("the image's channels are apart")
    tensors = (2, 4) if view.has(4) else (2,)
    epilogue, _ = with_bias(view, dtype, out, bias)
    reads = (0, 1, *tensors, *((3,) if table is not None else ()))
    first, count = len(reads), len(epilogue.extras)
    phases, scratch = deform_phases(
        convolution,
        alike,
        [view.access(i) for i in tensors],
        [Image(e.dtype, e.access) for e in epilogue.extras],
        Image(epilogue.expr.dtype, view.output_access()),
        with_sum(epilogue.expr, accumulator(dtype)),
        (0, 1, *range(first, first + count + 2), *range(2, first)),
        coded=table is not None,
    )
    constants: dict[int, Constant] = {} if table is None else {3: table}
    if convolution.constant:
        constants[1] = functools.partial(packed_weights, view.tensor(1), convolution, False)
    reads = (*reads, bias) if view.has(bias) else reads
    flops = 2 * D.product((*out, convolution.length))
    return NativeKernel(f"deform conv {dtype}", tuple(phases), reads, constants, workspace=scratch, flops=flops)
