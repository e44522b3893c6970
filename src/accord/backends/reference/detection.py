"""Operators of object detection: regions of interest and non-maximum suppression."""

from __future__ import annotations

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, require_room, scalar, widen


def _corners(boxes: Array, center: bool) -> Array:
    """Boxes as (y1, x1, y2, x2) with ordered corners."""
    values = boxes.astype(np.float64)
    if center:
        x, y, width, height = np.moveaxis(values, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], axis=-1)
    first, second = values[..., :2], values[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _overlap(box: Array, others: Array) -> Array:
    """Intersection over union of one box with several; 0 if the union is empty."""
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    area = np.prod(box[2:] - box[:2])
    union = area + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1), 0.0)


@implements("NonMaxSuppression")
def non_max_suppression(
    op: OpNode,
    boxes: Array,
    scores: Array,
    max_boxes: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
) -> Array:
    """Keep the best boxes of each class that do not overlap a better one by more than a threshold."""
    require(boxes.ndim == scores.ndim == 3 and boxes.shape[2] == 4, "boxes and scores must have rank 3")
    require(
        boxes.shape[0] == scores.shape[0] and boxes.shape[1] == scores.shape[2],
        f"boxes {boxes.shape} and scores {scores.shape} do not fit",
    )
    limit = 0 if max_boxes is None else int(scalar(max_boxes))
    threshold = 0.0 if iou_threshold is None else float(scalar(iou_threshold))
    require(0 <= threshold <= 1, f"iou_threshold {threshold} is outside [0, 1]")
    least = None if score_threshold is None else float(scalar(score_threshold))
    selected = []
    for batch, all_boxes in enumerate(_corners(boxes, bool(op["center_point_box"]))):
        for label, row in enumerate(scores[batch]):
            order = np.argsort(-row.astype(np.float64), kind="stable")
            if least is not None:
                order = order[row[order] > least]
            kept = 0
            while order.size and kept < limit:
                best, order = order[0], order[1:]
                selected.append((batch, label, int(best)))
                kept += 1
                order = order[_overlap(all_boxes[best], all_boxes[order]) <= threshold]
    return np.array(selected, dtype=np.int64).reshape(-1, 3)


def _axis_samples(start: float, size: float, bins: int, ratio: int, length: int) -> tuple[Array, Array, Array]:
    """Sampling points of all bins along one axis: lower neighbour, weight of the upper one, whether it counts."""
    points = ratio if ratio > 0 else int(np.ceil(size))
    require_room((bins, max(points, 0)))
    offsets = (np.arange(points) + 0.5) / max(points, 1)
    position = (start + (np.arange(bins)[:, np.newaxis] + offsets) * size).reshape(-1)
    inside = (position >= -1) & (position <= length)
    position = np.clip(position, 0, length - 1)
    low = np.minimum(np.floor(position), max(length - 2, 0)).astype(np.int64)
    return low, position - low, inside


@implements("RoiAlign")
def roi_align(op: OpNode, x: Array, rois: Array, batch_indices: Array) -> Array:
    """Mean or maximum of bilinear samples in each bin of each region.

    He et al., "Mask R-CNN" (2017). The maximum is over the four weighted neighbours of every sample, as the
    operator's conformance cases have it.
    """
    require(op["mode"] in ("avg", "max"), f"mode '{op['mode']}' is unknown")
    require(rois.ndim == 2 and rois.shape[1] == 4, f"regions have the shape {rois.shape}")
    height, width = op["output_height"], op["output_width"]
    require_room((len(rois), x.shape[1], height, width))
    images = widen(x).astype(np.float64)
    shifted = (op["coordinate_transformation_mode"] or "output_half_pixel") == "half_pixel"
    bounds = widen(rois).astype(np.float64) * op["spatial_scale"] - (0.5 if shifted else 0.0)
    result = np.zeros((len(rois), x.shape[1], height, width))
    for number, (x1, y1, x2, y2) in enumerate(bounds):
        image = images[int(batch_indices[number])]
        extent_y, extent_x = y2 - y1, x2 - x1
        if not shifted:  # a malformed region counts as one pixel
            extent_y, extent_x = max(extent_y, 1.0), max(extent_x, 1.0)
        y_low, y_part, y_in = _axis_samples(y1, extent_y / height, height, op["sampling_ratio"], x.shape[2])
        x_low, x_part, x_in = _axis_samples(x1, extent_x / width, width, op["sampling_ratio"], x.shape[3])
        y_high, x_high = np.minimum(y_low + 1, x.shape[2] - 1), np.minimum(x_low + 1, x.shape[3] - 1)
        require_room((4, x.shape[1], len(y_in), len(x_in)))
        counts = y_in[:, np.newaxis] & x_in
        corners = [
            np.where(counts, np.outer(wy, wx) * image[:, iy][:, :, ix], 0.0)
            for iy, wy in ((y_low, 1 - y_part), (y_high, y_part))
            for ix, wx in ((x_low, 1 - x_part), (x_high, x_part))
        ]
        points = (len(y_low) // height, len(x_low) // width)
        if not all(points):
            continue
        bins = np.stack(corners).reshape(4, x.shape[1], height, points[0], width, points[1])
        if op["mode"] == "avg":
            result[number] = bins.sum(axis=(0, 3, 5)) / (points[0] * points[1])
        else:
            result[number] = bins.max(axis=(0, 3, 5))
    return result.astype(x.dtype)


@implements("MaxRoiPool")
def max_roi_pool(op: OpNode, x: Array, rois: Array) -> Array:
    """Maximum over each bin of each region, with bounds rounded to whole pixels; an empty bin gives zero.

    Girshick, "Fast R-CNN" (2015).
    """
    require(rois.ndim == 2 and rois.shape[1] == 5, f"regions have the shape {rois.shape}")
    height, width = op["pooled_shape"]
    require_room((len(rois), x.shape[1], height, width))
    wide, regions = widen(x), widen(rois).astype(np.float64)
    result = np.zeros((len(rois), x.shape[1], height, width), dtype=wide.dtype)
    for number, region in enumerate(regions):
        batch = int(region[0])
        require(0 <= batch < len(x), f"region {number} names image {batch} of {len(x)}")
        # Halves round away from zero, as the C function round does.
        x1, y1, x2, y2 = np.floor(np.abs(region[1:] * op["spatial_scale"]) + 0.5) * np.sign(region[1:])
        size_y, size_x = max(y2 - y1 + 1, 1) / height, max(x2 - x1 + 1, 1) / width
        for row in range(height):
            top = int(np.clip(np.floor(row * size_y) + y1, 0, x.shape[2]))
            bottom = int(np.clip(np.ceil((row + 1) * size_y) + y1, 0, x.shape[2]))
            for column in range(width):
                left = int(np.clip(np.floor(column * size_x) + x1, 0, x.shape[3]))
                right = int(np.clip(np.ceil((column + 1) * size_x) + x1, 0, x.shape[3]))
                if bottom > top and right > left:
                    result[number, :, row, column] = wide[batch, :, top:bottom, left:right].max(axis=(1, 2))
    return result.astype(x.dtype)
