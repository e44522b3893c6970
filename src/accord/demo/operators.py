"""The demo model's own operator, declared as a user would declare it."""

# The sizes in Tensor[...] are names for people, not Python names; linters are told so.
# ruff: noqa: F821, UP037
# mypy: disable-error-code="name-defined,type-arg,misc,valid-type,return-value,no-any-return,attr-defined"

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.operator import Tensor, operator

__all__ = ["channel_shuffle"]


@operator("accord.demo::ChannelShuffle", since=1)
def channel_shuffle(x: Tensor["T", "N", "C", "H", "W"], *, groups: int) -> Tensor["T", "N", "C", "H", "W"]:
    """Interleave the channels of ``groups`` groups (Zhang et al., "ShuffleNet", CVPR 2018, section 3.1)."""
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w))


channel_shuffle.constraint("groups >= 1", "C % groups == 0")
channel_shuffle.types(T=["float32", "float16", "bfloat16", "int8"])


@channel_shuffle.composition
def moved(b: Any, x: Any, *, groups: int) -> Any:
    """Two views and a permutation, which the compiler joins with what comes before and after."""
    count = b.ints(groups)
    batch, channels, image = (b("Shape", x, **part) for part in ({"end": 1}, {"start": 1, "end": 2}, {"start": 2}))
    split = b("Concat", batch, count, b("Div", channels, count), image, axis=0)
    y = b("Transpose", b("Reshape", x, split, allowzero=1), perm=(0, 2, 1, 3, 4))
    return b("Reshape", y, b("Shape", x), allowzero=1)
