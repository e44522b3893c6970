"""The demo model's own operator, declared as a user would declare it."""

# The sizes in Tensor[...] are names for people, not Python names; linters are told so.
# ruff: noqa: F821, UP037
# mypy: disable-error-code="name-defined,type-arg,misc,valid-type,return-value,no-any-return,attr-defined"

from __future__ import annotations

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
