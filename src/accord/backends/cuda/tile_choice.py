"""The ways of a contraction as a choice: tiles of our kernels, and algorithms of cuBLASLt for what it has too."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final, TypeAlias

from accord.backends.cuda import cublas
from accord.backends.cuda.choices import Choice, Operand, Started
from accord.backends.cuda.code import CudaLaunch, KernelText
from accord.backends.cuda.contraction import ContractionKernel
from accord.backends.cuda.driver import device
from accord.backends.cuda.library_product import LibraryProduct, MatrixProduct, ProductLaunch, product_of
from accord.backends.cuda.tiles import Device, Tile, candidates, launches, text_of, workspace
from accord.errors import CompileError
from accord.expr.lang import bits
from accord.record import record

__all__ = ["ContractionChoice", "contraction_choice", "gpu"]

Way: TypeAlias = Tile | LibraryProduct

#: Tiles that are measured, and algorithms of the library.
_MEASURED, _ALGORITHMS = 8, 6
#: Bytes of a workspace that tiles worth a measurement may take, where the one by rule takes less.
_ROOM: Final = 32 << 20


@record
class ContractionChoice(Choice):
    """The ways of one contraction.

    Attributes:
        kernel: The kernel.
        sizes: Values of its ``names``.
        hints: What is known of these for all sizes, see :class:`~accord.backends.cuda.code.CudaLaunch`.
        room: Bytes of its workspace.
        cold: Numbers of the pointers that are to weights.
        rule: The tile by rule.
        place: Byte of the workspace where parts of sums begin.
    """

    kernel: ContractionKernel
    sizes: tuple[int, ...]
    hints: tuple[str, ...]
    room: int
    cold: tuple[int, ...]
    rule: Tile
    place: int = 0

    kinds = (Tile, LibraryProduct)

    @property
    def content(self) -> str:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        library = "" if self.product is None else cublas.identity(device().driver_version)
        return repr((self.kernel.symbol, self.sizes, self.hints, self.room, self.cold, library))

    @property
    def product(self) -> MatrixProduct | None:
        """What cuBLASLt would be asked for; None if it has no such product."""
        return product_of(self.kernel, self.sizes)

    def has(self, way: Way) -> bool:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        return isinstance(way, Tile) or not cublas.lacking(device())

    def lacking(self) -> str:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        return "" if self.product is None else cublas.lacking(device())

    def launch(self, number: int) -> CudaLaunch | ProductLaunch:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        found = super().launch(number)
        shifts = (*(0,) * (len(self.kernel.pointers) - 1), self.place)
        return dataclasses.replace(found, shifts=shifts) if self.place and found.tasks else found

    def ways(self) -> Sequence[Way]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        found = candidates(self.kernel, self.sizes, gpu(), _MEASURED, described=True)
        tiles = (t for t in dict.fromkeys((self.rule, *found)) if workspace(self.kernel, t, self.sizes) <= self.room)
        product = self.product
        return (*tiles, *(cublas.algorithms(device(), product, self.room, _ALGORITHMS) if product else ()))

    def started(self, way: Way) -> tuple[Started, ...]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        if isinstance(way, LibraryProduct):
            if self.product is None:
                raise CompileError("cuBLASLt has no such product")
            return (Started(None, ProductLaunch((), 1, self.product, way.algorithm, way.workspace)),)
        texts = self.texts(way)
        return tuple(map(Started, texts, launches(self.kernel, way, self.sizes, self.hints)))

    def texts(self, tile: Tile) -> tuple[KernelText, KernelText]:
        """What multiplies, and what adds the parts of sums."""
        return text_of(self.kernel, tile, self.sizes), self.kernel.parts

    def operands(self) -> tuple[Operand, ...]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        counts = self.kernel.reach(self.sizes)
        *types, sums = self.kernel.pointers
        result = len(types) - 1
        found = [
            Operand(dtype, count, i in self.cold, i == result, nan=self.product is not None and i == 0)
            for i, (dtype, count) in enumerate(zip(types, counts, strict=True))
        ]
        return (*found, Operand(sums, max(1, 8 * self.room // bits(sums))))


def contraction_choice(
    kernel: ContractionKernel,
    hints: tuple[str, ...],
    cold: tuple[int, ...],
    room: int | None,
    sizes: Sequence[int],
    *,
    plain: bool = False,
) -> ContractionChoice | None:
    """The choice for given sizes; None if the result is empty.

    Args:
        kernel: The kernel.
        hints: What is known of sizes in general.
        cold: Numbers of the pointers that are to weights.
        room: Bytes of the workspace; None: as many as tiles want.
        sizes: Values of the kernel's ``names``, then the byte of the workspace where parts of sums begin.
        plain: The tile by rule is of the kernel's own text.
    """
    *values, place = sizes
    known = tuple(values)
    p = kernel.problem(known)
    if not p.batch * p.m * p.n:
        return None
    tiles = _ranked(kernel, known, gpu())
    if room is None:
        wanted = [workspace(kernel, t, known) for t in tiles[:_MEASURED]]
        room = max(wanted[0], *(n for n in wanted if n <= _ROOM), 0)
    rule = next(t for t in tiles if workspace(kernel, t, known) <= room and not (plain and t.hopper))
    return ContractionChoice(kernel, known, hints, room, cold, rule, place)


@functools.lru_cache(maxsize=4096)
def _ranked(kernel: ContractionKernel, sizes: tuple[int, ...], on: Device) -> tuple[Tile, ...]:
    return candidates(kernel, sizes, on, None)  # long sums of few rows: only the last ones are not split


def gpu() -> Device:
    """What tiles are chosen for."""
    found = device()
    return Device(found.architecture, found.shared, found.processors)
