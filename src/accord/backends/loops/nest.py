"""Loop nests: merging of axes over a common iteration space.

A nest has *axes* with symbolic extents, outermost first. Each operand has a base offset and one stride an axis, in
elements; stride 0 repeats. Axes that every operand walks like one are merged, so the machine code depends on the
pattern that is left and not on the shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access

__all__ = ["magnitude", "merge_axes"]


def merge_axes(
    extents: Shape, accesses: Sequence[Access], groups: Sequence[int] | None = None
) -> tuple[Shape, list[Access], list[int]]:
    """Merge neighbouring axes where all operands allow it, and drop axes of extent 1.

    Args:
        extents: Of all axes.
        accesses: Of all operands.
        groups: A label for each axis; only axes with the same label are merged.

    Returns:
        The new extents, accesses and labels.
    """
    labels = list(groups) if groups is not None else [0] * len(extents)
    sizes: list[DimLike] = []
    strides: list[list[DimLike]] = [[] for _ in accesses]
    kept: list[int] = []
    for axis, size in enumerate(extents):
        if size == 1:
            continue
        steps = [a.strides[axis] for a in accesses]
        if (
            sizes
            and kept[-1] == labels[axis]
            and all(s[-1] == step * size for s, step in zip(strides, steps, strict=True))
        ):
            sizes[-1] = sizes[-1] * size
            for s, step in zip(strides, steps, strict=True):
                s[-1] = step
        else:
            sizes.append(size)
            kept.append(labels[axis])
            for s, step in zip(strides, steps, strict=True):
                s.append(step)
    merged = [Access(tuple(s), a.offset) for s, a in zip(strides, accesses, strict=True)]
    return tuple(sizes), merged, kept


def magnitude(d: DimLike) -> int:
    """Roughly how large a size or stride is; symbols count as sizes of the same middling value. For sorting only."""
    if isinstance(d, int):
        return abs(d)
    try:
        return abs(D.evaluate(d, dict.fromkeys(D.symbols_of(d), 61)))
    except ZeroDivisionError:
        return 61
