"""Sizes that a sliding window leaves: shared by convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.infer import Inference
from accord.ops.shapes.common import ints_attr, str_attr

__all__ = ["Window", "window_of"]

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over some spatial axes; every tuple has one entry per axis.

    Attributes:
        kernel: Its size.
        strides: Its step.
        dilations: Distance of the elements it looks at.
        begins: Padding in front of each axis.
        ends: Padding behind each axis.
        auto_pad: NOTSET, VALID, SAME_UPPER or SAME_LOWER.
    """

    kernel: Shape
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    auto_pad: str

    def extent(self, axis: int) -> DimLike:
        """Size of the window with its gaps."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def sizes(self, n: Inference, spatial: Sequence[DimLike], *, pool: bool = False, ceil: bool = False) -> Shape:
        """Number of window positions on each axis (the output shapes of Conv and MaxPool in the ONNX text).

        A pool's window may be longer than the padded axis by up to a stride: then there is no position.

        Raises:
            ModelTypeError: the window is too long for an axis of known size.
        """
        return tuple(self._size(n, axis, size, pool, ceil) for axis, size in enumerate(spatial))

    def _size(self, n: Inference, axis: int, size: DimLike, pool: bool, ceil: bool) -> DimLike:
        stride = self.strides[axis]
        if self.auto_pad.startswith("SAME"):
            return D.ceildiv(size, stride)
        begin, extent = self.begins[axis], self.extent(axis)
        padded = size + (begin + self.ends[axis])
        room = padded - extent
        count = D.floordiv(room, stride) + 1
        whole = stride == 1 and isinstance(extent, int) and self.ends[axis] < extent
        if ceil and self.auto_pad != "VALID" and not whole:
            # A window that would start in the padding behind the axis is left out.
            count = D.minimum(D.ceildiv(room, stride) + 1, D.ceildiv(size + begin, stride))
        left = count if pool else room
        if isinstance(left, int) and left < 0:
            raise n.error(f"the kernel does not fit on spatial axis {axis}", expected=f"at most {padded}", found=extent)
        return count


def window_of(n: Inference, kernel: Shape) -> Window:
    """The window that the node's attributes describe, one entry per axis of ``kernel``.

    Raises:
        ModelTypeError: an attribute has the wrong length, a stride or dilation is below 1, or a pad is negative.
    """
    rank = len(kernel)
    strides = ints_attr(n, "strides", length=rank, low=1) or (1,) * rank
    dilations = ints_attr(n, "dilations", length=rank, low=1) or (1,) * rank
    auto_pad = str_attr(n, "auto_pad", "NOTSET", among=(*AUTO_PADS, "")) or "NOTSET"
    pads = ints_attr(n, "pads", length=2 * rank, low=0)
    if pads is None or auto_pad != "NOTSET":
        pads = (0,) * (2 * rank)
    return Window(kernel, strides, dilations, pads[:rank], pads[rank:], auto_pad)
