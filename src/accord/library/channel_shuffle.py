"""ChannelShuffle: Zhang et al., "ShuffleNet", CVPR 2018, section 3.1."""

from __future__ import annotations

from typing import Any

from accord.contract.operator import Tensor, operator
from accord.library.composing import dims, size
from accord.library.reference import Array, narrow

__all__ = ["channel_shuffle"]


@operator("accord::ChannelShuffle")
def channel_shuffle(x: Tensor["T", "N", "C", "H", "W"], *, groups: int) -> Tensor["T", "N", "C", "H", "W"]:
    """Interleave the channels of ``groups`` groups: channel ``g * C/groups + k`` goes to ``k * groups + g``."""
    n, c, h, w = x.shape
    y: Array = x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w)
    return narrow(y, x)


channel_shuffle.constraint("groups >= 1", "C % groups == 0")
channel_shuffle.types(T=("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"))
channel_shuffle.semantic(batch=("N",))
channel_shuffle.execution(layouts=("contiguous", "strided"))
channel_shuffle.scheduling(fuses="movement")


@channel_shuffle.composition
def one_pass(b: Any, x: Any, *, groups: int) -> Any:
    """Views and one permutation: the compiler copies once, or not at all where what follows reads it in place."""
    batch, channels, *image = (size(b, x, axis) for axis in range(4))
    y = b("Reshape", x, dims(b, batch, groups, b("Div", channels, b.ints(groups)), *image))
    return b("Reshape", b("Transpose", y, perm=(0, 2, 1, 3, 4)), dims(b, batch, channels, *image))
