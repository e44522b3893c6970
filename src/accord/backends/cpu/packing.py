"""Weights of recurrent layers in the order in which machine code reads them.

A *panel* holds ``units`` neighbouring hidden units: for each step along the summed axis first all units of one gate,
then those of the next. So one element of a state vector meets all gates of the panel's units in one line of memory,
and the sums of a unit's gates end in registers of equal lanes. The last panel may have more units than there are; what
is computed for those is never looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.protocol import Array, Phase
from accord.expr.lang import cast, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Packing", "joined"]

#: Bytes of a cache line: a vector that crosses one is loaded twice.
_LINE = 64
_NUMPY = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8, "i32": np.int32}


@record
class Packing:
    """How a tensor [directions, gates * hidden, k] becomes [directions, panels, k, gates, units].

    Attributes:
        gates: For each gate of a panel the gates of the tensor that are added up (biases come in pairs).
        directions: 1 or 2.
        hidden: Hidden units.
        units: Units of a panel.
        k: Length of the summed axis; 1 for what has none (biases, peepholes).
        dtype: Element type of the panels: a key of :data:`_NUMPY`.
    """

    gates: tuple[tuple[int, ...], ...]
    directions: int
    hidden: DimLike
    units: int
    k: DimLike
    dtype: str

    @property
    def panels(self) -> DimLike:
        """Panels of one direction."""
        return D.ceildiv(self.hidden, self.units)

    @property
    def size(self) -> DimLike:
        """Elements of one direction."""
        return self.panels * self.k * (len(self.gates) * self.units)

    def packed(self, tensor: Array) -> Array:
        """The panels of a constant, flat and aligned to a cache line.

        Args:
            tensor: [directions, gates * hidden] or [directions, gates * hidden, k]: any floating-point type, or of
                the panels' own.
        """
        assert isinstance(self.hidden, int) and isinstance(self.panels, int) and isinstance(self.k, int)
        dtype = np.dtype(_NUMPY[self.dtype])
        source = tensor.astype(dtype).reshape(self.directions, -1, self.hidden, self.k)
        whole = np.zeros((self.directions, len(self.gates), self.panels * self.units, self.k), dtype)
        for gate, parts in enumerate(self.gates):
            whole[:, gate, : self.hidden] = sum(source[:, part] for part in parts)
        parted = whole.reshape(self.directions, len(self.gates), self.panels, self.units, self.k)
        result = _aligned(parted.size, dtype)
        result.reshape(self.directions, self.panels, self.k, len(self.gates), self.units)[...] = parted.transpose(
            0, 2, 4, 1, 3
        )
        return result

    def phases(self, dtype: str, access: Access, offset: DimLike, operands: tuple[int, int]) -> list[Phase]:
        """Phases that pack a tensor when the model runs.

        Args:
            dtype: Element type of the tensor.
            access: How it lies; of two axes if it has no summed one.
            offset: Where the panels begin, in elements.
            operands: Numbers of the tensor and of the memory for the panels.
        """
        count, units = len(self.gates), self.units
        direction, row, *rest = access.strides
        column: DimLike = rest[0] if rest else 0
        line = count * units
        panel = self.k * line
        full, left = D.floordiv(self.hidden, units), D.modulo(self.hidden, units)
        phases = []
        for gate, parts in enumerate(self.gates):
            value = cast(operand(0, dtype), self.dtype)
            for i in range(1, len(parts)):
                value = value + cast(operand(i, dtype), self.dtype)
            pieces: list[tuple[DimLike, DimLike, DimLike]] = [(full, units, 0), (1, left, full)]
            for panels, lanes, first in pieces:
                if panels == 0 or lanes == 0:
                    continue
                extents = (self.directions, panels, self.k, lanes)
                sources = [
                    Access(
                        (direction, row * units, column, row),
                        access.offset + (self.hidden * part + first * units) * row,
                    )
                    for part in parts
                ]
                target = Access((self.size, panel, line, 1), offset + first * panel + gate * units)
                phases.append(
                    pointwise_phase(
                        extents,
                        [(dtype, s) for s in sources],
                        [(self.dtype, target)],
                        [value],
                        (*(operands[0],) * len(parts), operands[1]),
                    )
                )
        return phases


def joined(parts: Sequence[Array]) -> Array:
    """Flat arrays one behind the other, aligned to a cache line."""
    result = _aligned(sum(p.size for p in parts), parts[0].dtype)
    np.concatenate(parts, out=result)
    return result


def _aligned(size: int, dtype: np.dtype[np.generic]) -> Array:
    """An uninitialised flat array that begins at a cache line."""
    memory = np.empty(size * dtype.itemsize + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size * dtype.itemsize].view(dtype)
