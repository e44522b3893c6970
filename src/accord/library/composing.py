"""What compositions share, beside what the operators of other domains are made with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from accord.contract.contract import Tolerance
from accord.contract.operator import Operator
from accord.library.reference import ACCUMULATE, FLOATS
from accord.ops.microsoft.common import cast, dims, reshape, size

__all__ = ["cast", "dims", "filled", "floats", "pixels", "reshape", "size", "transposed"]

#: For what is computed in one pass with wide sums: a few units in the last place.
_TIGHT = {
    "float64": Tolerance(1e-12, 1e-12),
    "float32": Tolerance(2e-5, 2e-6),
    "float16": Tolerance(2e-3, 1e-4),
    "bfloat16": Tolerance(1.6e-2, 1e-3),
}


def floats(operator: Operator, *, tight: bool = True, **promises: Any) -> Operator:
    """Promises that operators on real numbers have in common.

    Args:
        operator: The operator, with a type variable T.
        tight: Its results are right to a few units in the last place; not so where long sums cancel.
        promises: Of its meaning.
    """
    operator.types(T=FLOATS).execution(accumulate=ACCUMULATE, layouts=("contiguous", "strided"))
    tolerance = {**operator.contract.semantic.tolerance, **(_TIGHT if tight else {})}
    return operator.semantic(tolerance=tolerance, **promises)


def filled(b: Any, value: float, like: Any, length: Any) -> Any:
    """A vector of one number: a constant where its length is known."""
    if isinstance(length, int):
        return b.const(np.full(length, value, b.fact(like).dtype.numpy()))
    return b("Expand", b.scalar(value, like), length)


def transposed(b: Any, x: Any) -> Any:
    """A matrix with its axes exchanged."""
    return b("Transpose", x, perm=(1, 0))


def pixels(b: Any, x: Any, *sizes: int) -> Any:
    """Batch and channels of ``x`` and an image of ``sizes``, as a shape."""
    return dims(b, size(b, x, 0), size(b, x, 1), *sizes)


def default_scale(size: int, scale: float) -> float:
    """``scale``, or ``1 / sqrt(size)`` for 0."""
    return scale or 1 / math.sqrt(max(1, size))
