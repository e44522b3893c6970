"""Transposed convolutions as ordinary ones, one for each comb of output pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accord.backends.products import operands_of
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = ["Comb", "combs", "combs_of"]


@record
class Comb:
    """One output in ``step`` along an axis of a transposed convolution: those at ``first + q * step``.

    Output ``q`` of them reads the input at ``q + offset`` and what follows in steps of ``dilation``, once for each of
    ``taps``; so the outputs of one comb for each axis are an ordinary convolution (Shi et al., "Is the deconvolution
    layer the same as a convolutional layer?", 2016).

    Attributes:
        first: First output.
        step: From output to output.
        taps: The kernel's elements that meet these outputs, from the lowest input upwards.
        offset: Input that the first of them reads, relative to ``q``.
        dilation: From input to input.
    """

    first: int
    step: int
    taps: tuple[int, ...]
    offset: int
    dilation: int


def combs(taps: int, step: int, dilation: int, pad: int) -> list[Comb]:
    """The combs of an axis: input ``i`` and tap ``t`` add to output ``i * step + t * dilation - pad``."""
    found = []
    for first in range(step):
        met = [t for t in reversed(range(taps)) if (first + pad - t * dilation) % step == 0]
        offset = (first + pad - met[0] * dilation) // step if met else 0
        found.append(Comb(first, step, tuple(met), offset, dilation // math.gcd(step, dilation)))
    return found


def combs_of(view: NodeView, most: int) -> tuple[Shape, Shape, str, list[list[Comb]]] | Reason:
    """Shapes of image and weights of a ConvTranspose, their type, and the combs of each axis; ``most`` of all axes."""
    found = operands_of(view, 2)
    if isinstance(found, Reason):
        return found
    (x, w), dtype = found
    out = view.output().shape
    axes = len(x) - 2
    if out is None or not 1 <= axes <= 3 or len(w) != axes + 2:
        return Reason("only one to three spatial axes")
    if not D.is_known(w) or 0 in w:
        return Reason("the weights' shape is only known at run time, or they are empty")
    taps = [int(k) for k in w[2:]]
    steps, dilations = ([int(s) for s in view.attr(n, (1,) * axes)] for n in ("strides", "dilations"))
    if math.prod(steps) > most:
        return Reason(f"strides {steps} would take {math.prod(steps)} convolutions")
    pads = _pads(view, x[2:], out[2:], taps, steps, dilations)
    if not D.is_known(pads):
        return Reason(f"the padding depends on sizes: {', '.join(str(p) for p in pads)}")
    return x, tuple(w), dtype, [combs(*axis) for axis in zip(taps, steps, dilations, map(int, pads), strict=True)]


def _pads(
    view: NodeView, sizes: Shape, out: Shape, taps: Sequence[int], steps: Sequence[int], dilations: Sequence[int]
) -> list[DimLike]:
    """What is cut off in front of each axis."""
    axes = len(steps)
    mode = view.attr("auto_pad", "NOTSET")
    mode = mode.decode() if isinstance(mode, bytes) else str(mode)
    if mode in ("NOTSET", "VALID") and not view.attr("output_shape", ()):
        pads = view.attr("pads", ()) if mode == "NOTSET" else ()
        return [int(p) for p in (pads or (0,) * axes)[:axes]]
    extra = view.attr("output_padding", ()) or (0,) * axes
    front: list[DimLike] = []
    for size, n, k, s, d, e in zip(sizes, out, taps, steps, dilations, extra, strict=True):
        total = D.maximum((size - 1) * s + int(e) + (k - 1) * d + 1 - n, 0)
        front.append(D.floordiv(total, 2) if mode == "SAME_UPPER" else D.ceildiv(total, 2))
    return front
