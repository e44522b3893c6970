"""The transforms of Winograd's convolution with tiles of 2 x 4 outputs, as functions that all its kernels share.

See :mod:`accord.backends.cpu.winograd` for the choice of the points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Array
from accord.expr.lang import const
from accord.record import record

__all__ = ["ACROSS", "DOWN", "PRODUCTS", "TransformCode", "weights_transform"]

#: Points of evaluation across, beside 0 and infinity: +-A and +-B.
_A: Final = 0.625
_B: Final = 1.5
#: Outputs of a tile and inputs that they need, down and across.
DOWN: Final = (2, 4)
ACROSS: Final = (4, 6)
PRODUCTS: Final = DOWN[1] * ACROSS[1]
_DTYPE: Final = "f32"

#: Of the inputs: address, bytes from line to line and from pixel to pixel; of the products' rows: address, bytes from
#: one to the next; channels. Whole vectors are read and written.
_INPUTS: Final = "ptr %from, i64 %line, i64 %pixel, ptr %to, i64 %product, i64 %count"
#: Of the products' sums: address, bytes from one to the next; of the outputs: address, bytes from line to line and from
#: pixel to pixel; columns.
_OUTPUTS: Final = "ptr %from, i64 %product, ptr %to, i64 %line, i64 %pixel, i64 %count"


def _evaluation(*points: float) -> Array:
    """The transform of a kernel of three taps: its value at each point over the factors (p - q), and at infinity."""
    factors = [math.prod(p - q for q in points if q != p) for p in points]
    rows = [[p**t / f for t in range(3)] for p, f in zip(points, factors, strict=True)]
    return np.array([*rows, [0.0, 0.0, 1.0]])


def weights_transform() -> Array:
    """From the 9 taps of a kernel to the 24 elements of a tile, as a matrix [24, 9]."""
    return np.kron(_evaluation(0.0, 1.0, -1.0), _evaluation(0.0, _A, -_A, _B, -_B))


@record
class TransformCode(KernelCode):
    """One of the transforms: "inputs" or "outputs"."""

    kind: str

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"winograd_{self.kind}"

    def module(self, name: str) -> str:
        """LLVM text."""
        inputs = self.kind == "inputs"
        b = Builder(name, _INPUTS if inputs else _OUTPUTS)
        width = machine().width(32)
        shape = (DOWN[1], ACROSS[1]) if inputs else (DOWN[0], ACROSS[0])
        products = [self._moved(b, "%to" if inputs else "%from", [("%product", k)]) for k in range(PRODUCTS)]
        pixels = [
            self._moved(b, "%from" if inputs else "%to", [("%line", y), ("%pixel", x)])
            for y in range(shape[0])
            for x in range(shape[1])
        ]
        sources, targets = (pixels, products) if inputs else (products, pixels)
        with b.loop(0, "%count", width) as c:
            printer, arithmetic = Printer(b, width), _Arithmetic(b, width)
            loaded = [printer.load(_DTYPE, b.address(place, _DTYPE, c)) for place in sources]
            results = arithmetic.inputs(loaded) if inputs else arithmetic.outputs(loaded)
            for place, value in zip(targets, results, strict=True):
                printer.store(_DTYPE, value, b.address(place, _DTYPE, c))
        return b.module()

    @staticmethod
    def _moved(b: Builder, start: str, steps: Sequence[tuple[str, int]]) -> str:
        distance = "0"
        for step, count in steps:
            distance = b.add(distance, b.mul(step, count) if count else "0")
        return start if distance == "0" else b.op(f"getelementptr i8, ptr {start}, i64 {distance}")


class _Arithmetic:
    """The transforms, on vectors of channels."""

    def __init__(self, b: Builder, width: int) -> None:
        self.b, self.type = b, vector(_DTYPE, width)
        self.printer = Printer(b, width)
        self.fma = f"{self.type} @llvm.fmuladd.v{width}{_DTYPE}"
        b.declare(f"declare {self.fma}({', '.join([self.type] * 3)})")

    def _plus(self, x: str, y: str) -> str:
        return self.b.op(f"fadd {self.type} {x}, {y}")

    def _minus(self, x: str, y: str) -> str:
        return self.b.op(f"fsub {self.type} {x}, {y}")

    def _times(self, x: str, factor: float) -> str:
        return self.b.op(f"fmul {self.type} {x}, {self._constant(factor)}")

    def _add(self, x: str, factor: float, y: str) -> str:
        """``x * factor + y``."""
        arguments = ", ".join(f"{self.type} {v}" for v in (x, self._constant(factor), y))
        return self.b.op(f"call {self.fma}({arguments})")

    def _constant(self, value: float) -> str:
        return self.printer.value(const(value, _DTYPE), [])

    def inputs(self, d: Sequence[str]) -> list[str]:
        """24 elements of a tile from 4 lines of 6 pixels."""
        lines = [self._inputs_across(d[y * ACROSS[1] : (y + 1) * ACROSS[1]]) for y in range(DOWN[1])]
        columns = [self._inputs_down([line[x] for line in lines]) for x in range(ACROSS[1])]
        return [column[y] for y in range(DOWN[1]) for column in columns]

    def outputs(self, m: Sequence[str]) -> list[str]:
        """2 lines of 4 pixels from 24 elements of a tile."""
        columns = [self._outputs_down(m[x :: ACROSS[1]]) for x in range(ACROSS[1])]
        return [value for y in range(DOWN[0]) for value in self._outputs_across([column[y] for column in columns])]

    def _inputs_down(self, d: Sequence[str]) -> list[str]:
        """Points 0, 1, -1 and infinity."""
        return [self._minus(d[2], d[0]), self._plus(d[2], d[1]), self._minus(d[2], d[1]), self._minus(d[3], d[1])]

    def _outputs_down(self, m: Sequence[str]) -> list[str]:
        """Two outputs of four sums."""
        return [self._plus(self._plus(m[1], m[2]), m[0]), self._plus(self._minus(m[1], m[2]), m[3])]

    def _inputs_across(self, d: Sequence[str]) -> list[str]:
        """Points 0, A, -A, B, -B and infinity: products of the factors (x - p) of all other points."""
        a, b = _A * _A, _B * _B
        found = [self._add(d[2], -(a + b), self._add(d[0], a * b, d[4]))]
        for point, other in ((_A, b), (_B, a)):
            even, odd = self._add(d[2], -other, d[4]), self._add(d[1], -other, d[3])
            found += [self._add(odd, point, even), self._add(odd, -point, even)]
        return [*found, self._add(d[3], -(a + b), self._add(d[1], a * b, d[5]))]

    def _outputs_across(self, m: Sequence[str]) -> list[str]:
        """Four outputs of six sums: powers of the points."""
        even = self._plus(m[1], m[2]), self._plus(m[3], m[4])
        odd = self._minus(m[1], m[2]), self._minus(m[3], m[4])
        found = [self._plus(self._plus(even[0], even[1]), m[0])]
        for power, pair in ((1, odd), (2, even)):
            found.append(self._add(pair[0], _A**power, self._times(pair[1], _B**power)))
        return [*found, self._add(odd[0], _A**3, self._add(odd[1], _B**3, m[5]))]
