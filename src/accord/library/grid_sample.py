"""GridSample: Jaderberg et al., "Spatial Transformer Networks", NeurIPS 2015, equation 5."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.contract import NanPolicy
from accord.contract.operator import Tensor, operator
from accord.library.composing import floats
from accord.library.reference import bilinear, narrow, wide

__all__ = ["grid_sample"]


@operator("accord::GridSample")
def grid_sample(
    x: Tensor["T", "N", "C", "H", "W"], grid: Tensor["T", "N", "OH", "OW", 2], *, align_corners: bool = False
) -> Tensor["T", "N", "C", "OH", "OW"]:
    """Pixels of ``x`` at the positions of ``grid`` (x, y; -1 and 1 are the borders), bilinear; zero outside."""
    n, c, h, w = x.shape
    z, g = wide(x), wide(grid)
    found = []
    for image, place in zip(z, g, strict=True):
        px, py = place[..., 0], place[..., 1]
        if align_corners:
            px, py = (px + 1) / 2 * (w - 1), (py + 1) / 2 * (h - 1)
        else:
            px, py = ((px + 1) * w - 1) / 2, ((py + 1) * h - 1) / 2
        found.append(bilinear(image, py, px))
    return narrow(np.stack(found) if found else np.zeros((n, c, *grid.shape[1:3])), x)


floats(grid_sample, tight=False, nan=NanPolicy.UNDEFINED, batch=("N",)).constraint("H >= 1", "W >= 1")
grid_sample.values(grid=(-1.5, 1.5))


@grid_sample.composition
def taps(b: Any, x: Any, grid: Any, *, align_corners: int) -> Any:
    """ONNX's operator."""
    return b("GridSample", x, grid, mode="linear", padding_mode="zeros", align_corners=align_corners)
