"""Strides: how the elements of a tensor lie in memory.

An element of index ``i`` lies ``offset + sum(i[a] * strides[a])`` elements after the start of the tensor's memory.
A layout is nothing more than this: channels-last is row-major strides of another axis order, a transposed or sliced
tensor is the same memory under other strides, and a stride of 0 repeats.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.record import record

__all__ = [
    "Access",
    "Order",
    "Reshaping",
    "axis_groups",
    "broadcast_access",
    "channels_last",
    "contiguous",
    "in_order",
    "order_of",
    "reshaped",
    "reshaping",
]

#: Axes from the outermost to the innermost one in memory; row-major is (0, 1, 2, ...).
Order: TypeAlias = tuple[int, ...]


@record
class Access:
    """How a tensor is walked: element ``offset + sum(index[a] * strides[a])``."""

    strides: tuple[DimLike, ...]
    offset: DimLike = 0


def contiguous(shape: Shape) -> tuple[DimLike, ...]:
    """Row-major strides of ``shape``."""
    return in_order(shape, tuple(range(len(shape))))


def in_order(shape: Shape, order: Order) -> tuple[DimLike, ...]:
    """Strides of a tensor without gaps whose axes lie in memory as ``order`` says."""
    strides: list[DimLike] = [0] * len(shape)
    step: DimLike = 1
    for axis in reversed(order):
        strides[axis] = step
        step = _beyond(step, shape[axis])
    return tuple(strides)


def _beyond(step: DimLike, size: DimLike) -> DimLike:
    """The stride of the axis outside one of ``size`` whose stride is ``step``.

    Around an empty axis it is as for one element: a stride of 0 would say that elements are repeated.
    """
    return step if size == 0 else step * size


def channels_last(rank: int) -> Order:
    """Batch, spatial axes, channels: the order in which convolutions read and write."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


def broadcast_access(shape: Shape, out: Shape, own: Access | None = None) -> Access:
    """Access of an operand of ``shape`` that is broadcast to ``out``; ``own`` is how it lies (default: row-major)."""
    if own is None:
        own = Access(contiguous(shape))
    lead = len(out) - len(shape)
    strides: list[DimLike] = [0] * lead
    for d, stride, o in zip(shape, own.strides, out[lead:], strict=True):
        if d == o or (isinstance(d, int) and d != 1):
            strides.append(stride)
        elif d == 1:
            strides.append(0)
        else:  # 1 or the output's size, known only when it runs: the factor is 0 for 1 and 1 for anything larger
            strides.append(stride * D.minimum(d - 1, 1))
    return Access(tuple(strides), own.offset)


def order_of(shape: Shape, access: Access) -> Order | None:
    """The order of axes in which a tensor without gaps lies; None if it has gaps or repeats.

    Axes of size 1 and empty ones stay where the row-major order of their neighbours puts them.
    """
    row_major = tuple(range(len(shape)))
    if access.strides == in_order(shape, row_major):
        return row_major
    long = [a for a in row_major if shape[a] not in (0, 1)]
    found: list[int] = []
    step: DimLike = 1
    while len(found) < len(long):
        match = [a for a in long if a not in found and access.strides[a] == step]
        if not match:
            return None
        found.append(match[0])
        step = step * shape[match[0]]
    order = list(reversed(found))
    for a in row_major:  # any other axis follows the axis before it
        if a not in order:
            order.insert(order.index(a - 1) + 1 if a - 1 in order else 0, a)
    return tuple(order)


def reshaped(shape: Shape, access: Access, target: Shape) -> Access | None:
    """Access of the same memory under another shape; None if that needs a copy, or if sizes do not tell."""
    if access.strides == contiguous(shape):
        return Access(contiguous(target), access.offset)
    found = axis_groups(shape, target)
    if found is None:
        return None
    strides: list[DimLike] = [0] * len(target)
    for axes, group in found:
        for outer, inner in itertools.pairwise(axes):
            if access.strides[outer] != access.strides[inner] * shape[inner]:
                return None
        step = access.strides[axes[-1]]
        for a in reversed(group):
            strides[a] = step
            step = _beyond(step, target[a])
    return Access(tuple(strides), access.offset)


def axis_groups(shape: Shape, target: Shape) -> list[tuple[list[int], list[int]]] | None:
    """The shortest runs of axes of both shapes that hold the same elements; None if sizes do not tell.

    Axes of size 1 are in no run.
    """
    source = [a for a, d in enumerate(shape) if d != 1]
    left = [a for a, d in enumerate(target) if d != 1]
    found: list[tuple[list[int], list[int]]] = []
    while source and left:
        axes, group = [source.pop(0)], [left.pop(0)]
        total, product = shape[axes[0]], target[group[0]]
        while product != total:
            grow_target = _smaller(product, total)
            if grow_target is None or not (left if grow_target else source):
                return None
            if grow_target:
                group.append(left.pop(0))
                product = product * target[group[-1]]
            else:
                axes.append(source.pop(0))
                total = total * shape[axes[-1]]
        found.append((axes, group))
    return None if source or left else found


@record
class Reshaping:
    """A reshape as a copy over axes that are parts of axes of both shapes.

    Attributes:
        extents: Sizes of the parts.
        source: Access of the input over the parts.
        parts: For each part the output's axis and how many of its elements one step along the part is.
        order: The order of the output's axes that is nearest to how the input lies.
    """

    extents: Shape
    source: Access
    parts: tuple[tuple[int, DimLike], ...]
    order: Order

    def target(self, access: Access) -> Access:
        """Access of the output over the parts."""
        return Access(tuple(access.strides[a] * step for a, step in self.parts), access.offset)


def reshaping(shape: Shape, access: Access, target: Shape) -> Reshaping | None:
    """The copy that a reshape needs where axes are only joined or cut; None if it is not of this kind."""
    found = axis_groups(shape, target)
    if found is None or any(len(axes) > 1 and len(group) > 1 for axes, group in found):
        return None
    extents: list[DimLike] = []
    strides: list[DimLike] = []
    parts: list[tuple[int, DimLike]] = []
    unit: int | None = None  # the output's axis that has the neighbouring elements
    for axes, group in found:
        sizes = [shape[a] for a in axes] if len(axes) > 1 else [target[a] for a in group]
        step: DimLike = 1 if len(axes) > 1 else access.strides[axes[0]]
        made: list[tuple[DimLike, DimLike, tuple[int, DimLike]]] = []
        for k in reversed(range(len(sizes))):
            if len(axes) > 1:
                made.append((sizes[k], access.strides[axes[k]], (group[0], step)))
                if access.strides[axes[k]] == 1:
                    unit = group[0]
            else:
                made.append((sizes[k], step, (group[k], 1)))
                if step == 1:
                    unit = group[k]
            step = step * sizes[k]
        for size, stride, part in reversed(made):
            extents.append(size)
            strides.append(stride)
            parts.append(part)
    order = channels_last(len(target)) if unit == 1 and len(target) > 2 else tuple(range(len(target)))
    return Reshaping(tuple(extents), Access(tuple(strides), access.offset), tuple(parts), order)


def _smaller(product: DimLike, total: DimLike) -> bool | None:
    """Whether the target's group is the one to grow: ``total`` is a multiple of ``product``; None if unclear."""
    if isinstance(product, int) and isinstance(total, int):
        return product < total
    if product == 0 or total == 0:
        return None
    if D.floordiv(total, product) * product == total and total != product:
        return True
    if D.floordiv(product, total) * total == product and total != product:
        return False
    return None
