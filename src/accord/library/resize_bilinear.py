"""ResizeBilinear: interpolation between the four nearest pixels, as PyTorch's ``interpolate`` defines positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.library.composing import dims, floats, size
from accord.library.reference import Array, narrow, wide

__all__ = ["resize_bilinear"]


def _positions(source: int, target: int, aligned: bool) -> tuple[Array, Array, Array]:
    """For each output its two sources, and the weight of the second."""
    i = np.arange(target)
    at = i * ((source - 1) / max(1, target - 1)) if aligned else (i + 0.5) * (source / target) - 0.5
    at = np.clip(at, 0, source - 1)
    low = np.floor(at).astype(np.int64)
    return low, np.minimum(low + 1, source - 1), at - low


@operator("accord::ResizeBilinear")
def resize_bilinear(
    x: Tensor["T", "N", "C", "H", "W"], *, height: int, width: int, align_corners: bool = False
) -> Tensor["T", "N", "C", "height", "width"]:
    """Images of ``height`` by ``width`` pixels; corners lie on corners, or else half a pixel from the border."""
    z = wide(x)
    r0, r1, r = _positions(x.shape[2], height, align_corners)
    c0, c1, c = _positions(x.shape[3], width, align_corners)
    z = z[:, :, r0] * (1 - r)[:, None] + z[:, :, r1] * r[:, None]
    return narrow(z[..., c0] * (1 - c) + z[..., c1] * c, x)


floats(resize_bilinear, batch=("N", "C")).constraint("height >= 1", "width >= 1", "H >= 1", "W >= 1")


@resize_bilinear.composition
def tables_of_taps(b: Any, x: Any, *, height: int, width: int, align_corners: int) -> Any:
    """Resize."""
    mode = "align_corners" if align_corners else "half_pixel"
    target = dims(b, size(b, x, 0), size(b, x, 1), height, width)
    return b("Resize", x, None, None, target, mode="linear", coordinate_transformation_mode=mode)
