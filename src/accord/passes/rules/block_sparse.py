"""Constant sparse matrices in blocks: CSR becomes BSR where that is estimated to be faster."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext

__all__ = ["BlockSparse", "choose_blocks", "to_blocks"]

#: Time for an element of a block against that for an element of CSR, by rows of a block: a line of the dense matrix is
#: loaded once for all rows. (Zen 5, 512 by 512 and 2048 by 2048 at 50 to 95 % of zeros, 64 to 512 columns.)
_COSTS = {1: 1.0, 4: 0.4, 8: 0.3, 16: 0.26}
_WIDTHS = (1, 4, 8, 16)


def _numbered(starts: Any, columns: Any, high: int, across: int, width: int) -> Any:
    """For each element the number of its block, counted along rows of blocks."""
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return rows // high * -(-width // across) + columns // across


def choose_blocks(starts: Any, columns: Any, width: int) -> tuple[int, int, float]:
    """Rows and columns of the blocks with the least estimated time, and their elements for each one of the matrix.

    Args:
        starts: Of rows.
        columns: Of elements.
        width: Columns of the matrix.
    """
    best, found = 1.0, (1, 1, 1.0)
    for high, cost in _COSTS.items():
        for across in _WIDTHS:
            if high == 1 and across > 1:
                continue  # a line of the dense matrix would serve one row as before
            blocks = len(np.unique(_numbered(starts, columns, high, across, width)))
            fill = blocks * high * across / max(1, len(columns))
            if fill * cost < best:
                best, found = fill * cost, (high, across, fill)
    return found


def to_blocks(values: Any, columns: Any, starts: Any, width: int, high: int, across: int) -> tuple[Any, Any, Any]:
    """A CSR matrix in blocks: the blocks, their columns, the starts of rows of blocks. Equal places are summed."""
    number = _numbered(starts, columns, high, across, width)
    own, place = np.unique(number, return_inverse=True)
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    blocks = np.zeros((len(own), high, across), values.dtype)
    np.add.at(blocks, (place, rows % high, columns % across), values)
    block_rows = -(-(len(starts) - 1) // high)
    wide = -(-width // across)
    block_starts = np.searchsorted(own, np.arange(block_rows + 1) * wide)
    return blocks, (own % wide).astype(np.int64), block_starts.astype(np.int64)


class BlockSparse(Rule):
    """A product with a constant CSR matrix → one with the same matrix in blocks."""

    name: ClassVar[str] = "block-sparse"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = frozenset({("accord", "SparseMatMul")})

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the blocks."""
        parts = [context.constant(v) for v in node.inputs[:3]]
        shape = context.tensor(node.inputs[3]).shape
        if any(p is None for p in parts):
            return Reason("the sparse matrix is no constant")
        if shape is None or not isinstance(shape[0], int):
            return Reason("the number of its columns is not known")
        values, columns, starts = (np.asarray(p) for p in parts)
        width = shape[0]
        if len(starts) < 2 or not len(columns):
            return Reason("the matrix is empty")
        if starts[0] < 0 or starts[-1] > len(columns) or (np.diff(starts) < 0).any():
            return Reason("the starts of rows do not increase, or lie outside the elements")
        values, columns = values[starts[0] : starts[-1]], columns[starts[0] : starts[-1]]
        starts = starts - starts[0]
        if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < width:
            return Reason("a column lies outside the matrix")
        high, across, fill = choose_blocks(starts, columns, width)
        density = len(columns) / ((len(starts) - 1) * width)
        if (high, across) == (1, 1):
            return Reason(f"{density:.1%} of the elements are there, too scattered for blocks")
        blocks = to_blocks(values, columns, starts, width, high, across)
        b = context.builder()
        rows = len(starts) - 1
        y = b("BlockSparseMatMul", *map(b.const, blocks), node.inputs[3], domain="accord", rows=rows)
        note = f"blocks of {high} x {across}: {fill:.2f} stored for each of {len(columns)} elements ({density:.1%})"
        return patch_from(b, node, [y], note)
