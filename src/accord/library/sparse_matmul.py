"""Products with sparse matrices: rows of single elements (CSR), or of dense blocks (BSR).

Buluç et al., "Parallel sparse matrix-vector and matrix-transpose-vector multiplication using compressed sparse
blocks", SPAA 2009, for what blocks gain; Saad, "Iterative Methods for Sparse Linear Systems", 2003, section 3.4, for
the formats. Where the CSR operands are constants, the rule ``block-sparse`` turns them into blocks at load, of the size
that its estimate says is fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from accord.contract.contract import NanPolicy, Values
from accord.contract.operator import Tensor, operator
from accord.library.composing import floats
from accord.library.reference import narrow, wide

__all__ = ["block_sparse_matmul", "sparse_matmul"]


@operator("accord::SparseMatMul")
def sparse_matmul(
    values: Tensor["T", "E"],
    columns: Tensor["int64", "E"],
    starts: Tensor["int64", "R"],
    dense: Tensor["T", "K", "N"],
) -> Tensor["T", "R - 1", "N"]:
    """A CSR matrix of R - 1 rows and K columns times a dense one.

    Row i has the elements ``starts[i]`` to ``starts[i + 1]`` of ``values``, in the columns that ``columns`` says.
    """
    b = wide(dense)
    result = np.zeros((len(starts) - 1, b.shape[1]))
    for i in range(len(result)):
        own = slice(int(starts[i]), int(starts[i + 1]))
        result[i] = wide(values[own]) @ b[columns[own]]
    return narrow(result, values)


@operator("accord::BlockSparseMatMul")
def block_sparse_matmul(
    blocks: Tensor["T", "E", "BR", "BC"],
    columns: Tensor["int64", "E"],
    starts: Tensor["int64", "R"],
    dense: Tensor["T", "K", "N"],
    *,
    rows: int,
) -> Tensor["T", "rows", "N"]:
    """A matrix of dense blocks times a dense one.

    Row i of blocks has the blocks ``starts[i]`` to ``starts[i + 1]``; the first of their columns is
    ``columns * BC``. What of a block lies beyond the matrix (``rows``, K) does not count.
    """
    b = wide(dense)
    high, across = blocks.shape[1:]
    if not (len(starts) - 2) * high < rows <= (len(starts) - 1) * high:
        raise ValueError(f"{len(starts) - 1} rows of blocks of {high} rows do not make {rows} rows")
    result = np.zeros(((len(starts) - 1) * high, b.shape[1]))
    for i in range(len(starts) - 1):
        for e in range(int(starts[i]), int(starts[i + 1])):
            part = b[int(columns[e]) * across : (int(columns[e]) + 1) * across]
            result[i * high : (i + 1) * high] += wide(blocks[e])[:, : len(part)] @ part
    return narrow(result[:rows], blocks)


for _operator in (sparse_matmul, block_sparse_matmul):
    floats(_operator, tight=False, nan=NanPolicy.PROPAGATE, batch=("N",)).constraint("R >= 1", "K >= 1")
    _operator.types(T=("float32", "float64")).execution(accumulate={}).scheduling(fuses="opaque")
    _operator.values(starts=Values(0, "E", increasing=True))
    _operator.kernel("rows", "generated", None)
sparse_matmul.values(columns=(0, "K - 1"))
block_sparse_matmul.values(columns=(0, "(K - 1) // max(BC, 1)"))
block_sparse_matmul.constraint("BR >= 1", "BC >= 1", "rows <= (R - 1) * BR", "rows > (R - 2) * BR")


def _starts(rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
    inner = np.sort(rng.integers(0, sizes["E"] + 1, max(0, sizes["R"] - 2)))
    return {"starts": np.array([0, *inner, sizes["E"]][: sizes["R"]], np.int64)}


@sparse_matmul.examples
def every_element_in_a_row(
    rng: np.random.Generator, sizes: Mapping[str, int], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """The first row starts at 0, the last one ends at the last element."""
    del attributes
    return _starts(rng, sizes)


@block_sparse_matmul.examples
def every_block_in_a_row(
    rng: np.random.Generator, sizes: Mapping[str, int], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """As for single elements."""
    del attributes
    return _starts(rng, sizes)
