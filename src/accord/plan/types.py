"""Types of values as the runtime needs them: what facts say, without the graph's library.

So a stored plan loads without it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from accord.ir.dims import Shape
from accord.record import record

__all__ = ["OpaqueType", "OptionalType", "SequenceType", "TensorType", "ValueType"]


@record
class TensorType:
    """A tensor.

    Attributes:
        name: ONNX's name of the element type in lower case ("float", "int64", "string"); None while unknown.
        dtype: NumPy's element type, ``object`` for strings; None while unknown.
        shape: Symbolic sizes; None where the rank is unknown.
    """

    name: str | None
    dtype: np.dtype[Any] | None
    shape: Shape | None

    @property
    def is_text(self) -> bool:
        """True for strings."""
        return self.name == "string"


@record
class SequenceType:
    """A sequence; ``element`` is what all elements have in common, if anything."""

    element: ValueType | None


@record
class OptionalType:
    """A value that may be absent."""

    element: ValueType | None


@record
class OpaqueType:
    """Something else; ``text`` describes it."""

    text: str


ValueType: TypeAlias = TensorType | SequenceType | OptionalType | OpaqueType
