"""Inverse of matrices, and paths through matrices of costs."""

from __future__ import annotations

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, widen
from accord.ops.microsoft.schemas import DOMAIN


@implements("Inverse", domain=DOMAIN)
def inverse(op: OpNode, x: Array) -> Array:
    """Inverse of each matrix ``[..., N, N]``."""
    require(x.ndim >= 2 and x.shape[-1] == x.shape[-2], f"matrices of shape {list(x.shape[-2:])} are not square")
    return np.asarray(np.linalg.inv(widen(x))).astype(x.dtype)


@implements("DynamicTimeWarping", domain=DOMAIN)
def dynamic_time_warping(op: OpNode, cost: Array) -> Array:
    """Row and column of each step of the cheapest path from the first element to the last, ``[2, steps]``.

    Steps go down, right, or both. Sakoe and Chiba, "Dynamic programming algorithm optimization for spoken word
    recognition" (1978); of equal sums the diagonal step wins only if it is less than both others, as in speech models.
    """
    matrix = cost[0] if cost.ndim == 3 else cost
    require(matrix.ndim == 2, f"a matrix of costs has rank 2, not {matrix.ndim}")
    rows, columns = matrix.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    came = np.zeros((rows + 1, columns + 1), np.int64)
    for j in range(1, columns + 1):
        for i in range(1, rows + 1):
            diagonal, above, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            if diagonal < above and diagonal < left:
                best, step = diagonal, 0
            elif above < diagonal and above < left:
                best, step = above, 1
            else:
                best, step = left, 2
            total[i, j] = matrix[i - 1, j - 1] + best
            came[i, j] = step
    # Along the borders there is one way back.
    came[0, :] = 2
    came[:, 0] = 1
    path = []
    i, j = rows, columns
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = came[i, j]
        i, j = i - (step != 2), j - (step != 1)
    return np.array(path[::-1], np.int32).reshape(-1, 2).T.copy()
