"""Windows over images, on any device: spatial axes with strides, dilations and padding; channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accord.backends.protocol import Arrangement
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import channels_last
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = ["Axis", "channels_last_arrangement", "window_axes"]


@record
class Axis:
    """A spatial axis at load time.

    Attributes:
        out: Window positions.
        size: Of the input.
        kernel: Taps.
        stride: Of the window.
        pad: Padding in front.
        dilation: Distance of taps.
    """

    out: DimLike
    size: DimLike
    kernel: int
    stride: int
    pad: DimLike
    dilation: int


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
