"""Places along an axis."""

from __future__ import annotations

from accord.ir import dims as D
from accord.ir.dims import DimLike

__all__ = ["from_front"]


def from_front(index: DimLike, size: DimLike) -> DimLike:
    """An index of an axis, where negative ones count from the end, as one that counts from the front; not clamped."""
    if isinstance(index, int):
        return index if index >= 0 else size + index
    if index == size:
        return index
    if index == -1 * size:
        return 0  # of an axis without elements too
    low, high = D.lower_bound(index), D.upper_bound(index)
    if low is not None and low >= 0:
        return index
    if high is not None and high < 0:
        return size + index
    negative = D.minimum(D.maximum(index * -1, 0), 1)  # 1 for negative ones, else 0
    return index + size * negative
