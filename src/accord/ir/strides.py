"""Strides: how the elements of a tensor lie in memory.

An element of index ``i`` lies ``offset + sum(i[a] * strides[a])`` elements after the start of the tensor's memory.
A layout is nothing more than this: channels-last is row-major strides of another axis order, a transposed or sliced
tensor is the same memory under other strides, and a stride of 0 repeats.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape

__all__ = ["Access", "Order", "broadcast_access", "channels_last", "contiguous", "in_order", "order_of", "reshaped"]

#: Axes from the outermost to the innermost one in memory; row-major is (0, 1, 2, ...).
Order: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
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
        step = step * shape[axis]
    return tuple(strides)


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

    Axes of size 1 stay where the row-major order of their neighbours puts them.
    """
    row_major = tuple(range(len(shape)))
    if access.strides == in_order(shape, row_major):
        return row_major
    long = [a for a in row_major if shape[a] != 1]
    found: list[int] = []
    step: DimLike = 1
    while len(found) < len(long):
        match = [a for a in long if a not in found and access.strides[a] == step]
        if not match:
            return None
        found.append(match[0])
        step = step * shape[match[0]]
    order = list(reversed(found))
    for a in row_major:  # an axis of size 1 follows the axis before it
        if a not in order:
            order.insert(order.index(a - 1) + 1 if a - 1 in order else 0, a)
    return tuple(order)


def reshaped(shape: Shape, access: Access, target: Shape) -> Access | None:
    """Access of the same memory under another shape; None if that needs a copy, or if sizes do not tell."""
    if access.strides == contiguous(shape):
        return Access(contiguous(target), access.offset)
    strides: list[DimLike] = []
    source = [a for a, d in enumerate(shape) if d != 1]
    at = 0
    left = list(target)
    while left:
        size = left.pop(0)
        if size == 1:
            strides.append(0)
            continue
        if at == len(source):
            return None
        # the shortest groups of axes of both shapes that hold the same number of elements
        group, axes, total = [size], [source[at]], shape[source[at]]
        at += 1
        product: DimLike = size
        while product != total:
            grow_target = _smaller(product, total)
            if grow_target is None:
                return None
            if grow_target:
                if not left:
                    return None
                following = left.pop(0)
                group.append(following)
                product = product * following
            else:
                if at == len(source):
                    return None
                axes.append(source[at])
                total = total * shape[source[at]]
                at += 1
        for outer, inner in itertools.pairwise(axes):
            if access.strides[outer] != access.strides[inner] * shape[inner]:
                return None
        step = access.strides[axes[-1]]
        inside: list[DimLike] = []
        for d in reversed(group):
            inside.append(step)
            step = step * d
        strides.extend(reversed(inside))
    if at != len(source):
        return None
    return Access(tuple(strides), access.offset)


def _smaller(product: DimLike, total: DimLike) -> bool | None:
    """Whether the target's group is the one to grow: ``total`` is a multiple of ``product``; None if unclear."""
    if isinstance(product, int) and isinstance(total, int):
        return product < total
    if D.floordiv(total, product) * product == total and total != product:
        return True
    if D.floordiv(product, total) * total == product and total != product:
        return False
    return None
