"""RMSNorm: Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, equation 4."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.library.composing import filled, floats, size
from accord.library.reference import narrow, wide

__all__ = ["rms_norm"]


@operator("accord::RMSNorm")
def rms_norm(
    x: Tensor["T", ..., "D"], weight: Tensor["T", "D"] | None = None, *, eps: float = 1e-5
) -> Tensor["T", ..., "D"]:
    """Each row divided by the root of the mean of its squares plus ``eps``; times ``weight``."""
    z = wide(x)
    if z.size:
        z = z / np.sqrt((z * z).mean(-1, keepdims=True) + eps)
    return narrow(z if weight is None else z * wide(weight), x)


floats(rms_norm).scheduling(fuses="reduction")


@rms_norm.composition
def one_reduction(b: Any, x: Any, weight: Any, *, eps: float) -> Any:
    """One loop nest."""
    length = b.shape(x)[-1]
    scale = filled(b, 1.0, x, length if isinstance(length, int) else size(b, x, -1)) if weight is None else weight
    return b("RMSNormalization", x, scale, axis=-1, epsilon=eps)
