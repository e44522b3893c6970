"""NonMaxSuppression: greedy, as in Felzenszwalb et al., "Object Detection with Discriminatively Trained Part-Based
Models", PAMI 2010, section 7.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from accord.contract.contract import NanPolicy
from accord.contract.operator import Tensor, operator

__all__ = ["non_max_suppression"]


@operator("accord::NonMaxSuppression")
def non_max_suppression(
    boxes: Tensor["float32", "B", 4], scores: Tensor["float32", "B"], *, iou: float = 0.5, score: float = 0.0
) -> Tensor["int64", "kept"]:
    """Numbers of the boxes that are kept, best first.

    Boxes (x1, y1, x2, y2) with more than ``score`` are taken in order of their scores; one that shares more than
    ``iou`` of its union with a box kept before is left out. ``iou`` counts as 0 or 1 where it lies beyond.
    """
    kept: list[int] = []
    bound = np.float32(min(max(iou, 0.0), 1.0))
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for i in np.argsort(-scores, kind="stable"):
        if not scores[i] > np.float32(score):
            continue
        low = np.maximum(boxes[kept, :2], boxes[i, :2])
        high = np.minimum(boxes[kept, 2:], boxes[i, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        if not (shared > bound * (area[i] + area[kept] - shared)).any():
            kept.append(int(i))
    return np.array(kept, np.int64)


non_max_suppression.semantic(nan=NanPolicy.UNDEFINED)
non_max_suppression.execution(layouts=("contiguous", "strided"))


@non_max_suppression.examples
def overlapping(rng: np.random.Generator, sizes: Mapping[str, int], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Boxes around a few places, with different scores."""
    del attributes
    count = sizes["B"]
    centre = rng.integers(0, 4, (count, 2)) * 10 + rng.random((count, 2)) * 4
    half = 2 + rng.random((count, 2)) * 4
    boxes = np.concatenate([centre - half, centre + half], 1)
    return {"boxes": boxes.astype(np.float32), "scores": (rng.permutation(count) + 1).astype(np.float32)}


@non_max_suppression.composition
def column(b: Any, boxes: Any, scores: Any, *, iou: float, score: float) -> Any:
    """ONNX's operator for one image and class; the last of its three columns."""
    selected = b(
        "NonMaxSuppression",
        b("Unsqueeze", boxes, b.ints(0)),
        b("Unsqueeze", scores, b.ints(0, 1)),
        b.ints((1 << 31) - 1),
        b.const(np.array([min(max(iou, 0.0), 1.0)], np.float32)),
        b.const(np.array([score], np.float32)),
    )
    return b("Gather", selected, b.const(np.array(2, np.int64)), axis=1)
