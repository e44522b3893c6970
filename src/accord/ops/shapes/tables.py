"""Symbolic elements of short tensors of rank 2.

Sizes are a vector nearly everywhere. Exporters turn the order of pads around with a matrix, though: one row for each
axis, the rows reversed, transposed, and a vector again. Only what moves elements knows such matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.facts import TensorFact, constant_fact
from accord.ops.shapes.common import elements, with_elements

__all__ = ["table_of", "with_table"]


def table_of(fact: TensorFact) -> np.ndarray[Any, Any] | None:
    """The elements of a short tensor of rank 1 or 2: an array of integers and symbolic sizes; else None."""
    if fact.shape is None or not D.is_known(fact.shape) or len(fact.shape) not in (1, 2):
        return None
    items = fact.table if len(fact.shape) == 2 else elements(fact)
    if items is None:
        return None
    made = np.empty(len(items), object)
    made[:] = items
    return made.reshape(fact.shape)


def with_table(dtype: ir.DataType | None, items: np.ndarray[Any, Any]) -> TensorFact:
    """A tensor of rank 1 or 2 with these elements; content that the dtype does not hold is left out."""
    flat = with_elements(dtype, (items.size,), tuple(items.reshape(-1)))
    if items.ndim == 1:
        return flat
    if flat.const is not None:
        return constant_fact(flat.numpy().reshape(items.shape))
    return TensorFact(dtype, items.shape, table=flat.data)
