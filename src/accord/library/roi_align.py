"""RoIAlign: He et al., "Mask R-CNN", ICCV 2017, section 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from accord.contract.contract import NanPolicy
from accord.contract.operator import Tensor, operator
from accord.library.composing import floats
from accord.library.reference import Array, narrow, wide

__all__ = ["roi_align"]


def _sampled(image: Array, y: Array, x: Array) -> Array:
    """Bilinear values at (y, x): positions up to one pixel outside count as on the border, others as zero."""
    _, height, width = image.shape
    inside = (y > -1) & (y < height) & (x > -1) & (x < width)
    y, x = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
    r0, c0 = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    r1, c1 = np.minimum(r0 + 1, height - 1), np.minimum(c0 + 1, width - 1)
    wy, wx = y - r0, x - c0
    top = image[:, r0, c0] * (1 - wx) + image[:, r0, c1] * wx
    bottom = image[:, r1, c0] * (1 - wx) + image[:, r1, c1] * wx
    return np.where(inside, top * (1 - wy) + bottom * wy, 0.0)


@operator("accord::RoIAlign")
def roi_align(
    x: Tensor["T", "N", "C", "H", "W"],
    rois: Tensor["T", "R", 4],
    images: Tensor["int64", "R"],
    *,
    height: int,
    width: int,
    samples: int = 2,
    spatial_scale: float = 1.0,
) -> Tensor["T", "R", "C", "height", "width"]:
    """Boxes (x1, y1, x2, y2) of images cut into ``height`` by ``width`` bins; a bin is the mean of its samples.

    A bin has ``samples`` by ``samples`` of them, evenly spread; the centre of pixel (0, 0) is at (0.5, 0.5).
    """
    z, boxes = wide(x), wide(rois)
    found = np.zeros((len(boxes), x.shape[1], height, width))
    for k, (x1, y1, x2, y2) in enumerate(boxes * np.float64(np.float32(spatial_scale)) - 0.5):
        rows = y1 + (np.arange(height * samples) + 0.5) * ((y2 - y1) / (height * samples))
        columns = x1 + (np.arange(width * samples) + 0.5) * ((x2 - x1) / (width * samples))
        values = _sampled(z[images[k]], *np.meshgrid(rows, columns, indexing="ij"))
        found[k] = values.reshape(-1, height, samples, width, samples).mean((2, 4))
    return narrow(found, x)


floats(roi_align, tight=False, nan=NanPolicy.UNDEFINED).types(T=("float32", "float64", "float16"))
roi_align.constraint("height >= 1", "width >= 1", "samples >= 1", "N >= 1", "H >= 1", "W >= 1")
roi_align.values(images=(0, "N - 1"))


@roi_align.examples
def boxes_in_images(
    rng: np.random.Generator, sizes: Mapping[str, int], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Boxes whose corners are in order."""
    scale = np.array([sizes["W"], sizes["H"]]) / attributes.get("spatial_scale", 1.0)
    corners = np.sort(rng.random((sizes["R"], 2, 2)), axis=1) * scale
    return {"rois": corners.reshape(-1, 4)}


@roi_align.composition
def regions(
    b: Any, x: Any, rois: Any, images: Any, *, height: int, width: int, samples: int, spatial_scale: float
) -> Any:
    """ONNX's operator."""
    return b(
        "RoiAlign",
        *(x, rois, images),
        mode="avg",
        coordinate_transformation_mode="half_pixel",
        output_height=height,
        output_width=width,
        sampling_ratio=samples,
        spatial_scale=spatial_scale,
    )
