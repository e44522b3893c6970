"""Loop nests: how operands are addressed over a common iteration space, and merging of axes.

A nest has *axes* with symbolic extents, outermost first. Each operand has a base offset and one stride an axis, in
elements; stride 0 repeats. Axes that every operand walks like one are merged, so the machine code depends on the
pattern that is left and not on the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape

__all__ = ["Access", "broadcast_access", "contiguous", "merge_axes"]


@dataclass(frozen=True, slots=True)
class Access:
    """How one operand is walked: element ``offset + sum(index[a] * strides[a])``."""

    strides: tuple[DimLike, ...]
    offset: DimLike = 0


def contiguous(shape: Shape) -> tuple[DimLike, ...]:
    """Row-major strides of ``shape``."""
    strides: list[DimLike] = []
    step: DimLike = 1
    for d in reversed(shape):
        strides.append(step)
        step = step * d
    return tuple(reversed(strides))


def broadcast_access(shape: Shape, out: Shape) -> Access:
    """Access of a contiguous operand of ``shape`` that is broadcast to ``out``."""
    own = contiguous(shape)
    lead = len(out) - len(shape)
    strides: list[DimLike] = [0] * lead
    for d, stride, o in zip(shape, own, out[lead:], strict=True):
        if d == o or (isinstance(d, int) and d != 1):
            strides.append(stride)
        elif d == 1:
            strides.append(0)
        else:  # 1 or the output's size, known only when it runs: the factor is 0 for 1 and 1 for anything larger
            strides.append(stride * D.minimum(d - 1, 1))
    return Access(tuple(strides))


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
