"""GroupNorm: Wu and He, "Group Normalization", ECCV 2018, section 3.1."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.library.composing import filled, floats, size
from accord.library.reference import narrow, wide

__all__ = ["group_norm"]


@operator("accord::GroupNorm")
def group_norm(
    x: Tensor["T", "N", "C", "H", "W"],
    weight: Tensor["T", "C"] | None = None,
    bias: Tensor["T", "C"] | None = None,
    *,
    groups: int,
    eps: float = 1e-5,
) -> Tensor["T", "N", "C", "H", "W"]:
    """Each group of channels of an image normalised; times ``weight``, plus ``bias``, one of each a channel."""
    n, c, h, w = x.shape
    z = wide(x).reshape(n, groups, c // groups * h * w)
    if z.size:
        z = z - z.mean(-1, keepdims=True)
        z = z / np.sqrt((z * z).mean(-1, keepdims=True) + eps)
    z = z.reshape(x.shape)
    z = z if weight is None else z * wide(weight)[:, None, None]
    return narrow(z if bias is None else z + wide(bias)[:, None, None], x)


floats(group_norm, batch=("N",)).constraint("groups >= 1", "C % groups == 0").scheduling(fuses="reduction")


@group_norm.composition
def two_levels(b: Any, x: Any, weight: Any, bias: Any, *, groups: int, eps: float) -> Any:
    """One loop nest for statistics and result."""
    channels = b.shape(x)[1]
    length = channels if isinstance(channels, int) else size(b, x, 1)
    scale = filled(b, 1.0, x, length) if weight is None else weight
    shift = filled(b, 0.0, x, length) if bias is None else bias
    return b("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=eps)
