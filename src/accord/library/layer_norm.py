"""LayerNorm: Ba, Kiros and Hinton, "Layer Normalization", 2016, equations 3 and 4."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.library.composing import filled, floats, size
from accord.library.reference import narrow, wide

__all__ = ["layer_norm"]


@operator("accord::LayerNorm")
def layer_norm(
    x: Tensor["T", ..., "D"],
    weight: Tensor["T", "D"] | None = None,
    bias: Tensor["T", "D"] | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor["T", ..., "D"]:
    """Each row minus its mean, divided by the root of its variance plus ``eps``; times ``weight``, plus ``bias``."""
    z = wide(x)
    if z.size:
        z = z - z.mean(-1, keepdims=True)
        z = z / np.sqrt((z * z).mean(-1, keepdims=True) + eps)
    z = z if weight is None else z * wide(weight)
    return narrow(z if bias is None else z + wide(bias), x)


floats(layer_norm).scheduling(fuses="reduction")


@layer_norm.composition
def two_levels(b: Any, x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    """One loop nest: rows stay in the first cache between the passes for mean, variance and result."""
    length = b.shape(x)[-1]
    scale = filled(b, 1.0, x, length if isinstance(length, int) else size(b, x, -1)) if weight is None else weight
    return b("LayerNormalization", x, scale, bias, axis=-1, epsilon=eps)
