"""How loops are started, and how their rows are spread as a choice.

Stored plans need this, so nothing is imported that reads models or writes kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from accord.backends.cuda.choices import Choice, Operand, Started
from accord.backends.cuda.code import CudaLaunch
from accord.backends.cuda.loops import LoopKernel, LoopTile, geometry, is_wide, reach, tiles
from accord.record import record

__all__ = ["LoopChoice", "loop_choice", "loop_launch", "shifted_launch"]


def loop_launch(
    kernel: LoopKernel, hints: tuple[str, ...], sizes: Sequence[int], tile: LoopTile | None = None
) -> CudaLaunch:
    """How a kernel is started.

    Args:
        kernel: The kernel.
        hints: What is known of its sizes in general, see :func:`~accord.backends.cuda.code.exact_hints`.
        sizes: Values of its dims.
        tile: How rows are spread; None: by rule.
    """
    shape = geometry(kernel, sizes, tile)
    extents = sizes[: kernel.kept + kernel.reduced]
    wide = is_wide(kernel, sizes)
    constants = (("BM", shape.rows), ("BR", shape.columns), ("WHOLE", shape.whole), ("WIDE", wide))
    tasks = 0 if 0 in extents[: kernel.kept] else math.prod(shape.grid)
    made = CudaLaunch.of(kernel.names, sizes, hints, (*shape.grid, 1), dict(constants), wide=wide, warps=shape.warps)
    return replace(made, tasks=tasks)


def shifted_launch(
    launch: Callable[[Sequence[int]], CudaLaunch], shifts: tuple[int, ...], sizes: Sequence[int]
) -> CudaLaunch:
    """What ``launch`` makes of sizes, with bytes added to the addresses of operands."""
    return replace(launch(sizes), shifts=shifts)


@record
class LoopChoice(Choice):
    """How the rows of one loop are spread.

    Attributes:
        kernel: The pattern.
        hints: What is known of sizes in general, see :func:`~accord.backends.cuda.code.exact_hints`.
        sizes: Values of its dims.
        rule: The tile by rule.
    """

    kernel: LoopKernel
    hints: tuple[str, ...]
    sizes: tuple[int, ...]
    rule: LoopTile

    kinds = (LoopTile,)

    @property
    def content(self) -> str:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        return repr((self.kernel.symbol, self.sizes, self.hints))

    def ways(self) -> Sequence[LoopTile]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        return tiles(self.kernel, self.sizes) or (self.rule,)

    def started(self, way: LoopTile) -> tuple[Started, ...]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        return (Started(self.kernel, loop_launch(self.kernel, self.hints, self.sizes, way)),)

    def operands(self) -> tuple[Operand, ...]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        first = len(self.kernel.pointers) - len(self.kernel.outputs)
        counts = reach(self.kernel, self.sizes)
        memory = zip(self.kernel.pointers, counts, strict=True)
        return tuple(Operand(dtype, count, written=i >= first) for i, (dtype, count) in enumerate(memory))


def loop_choice(kernel: LoopKernel, hints: tuple[str, ...], sizes: Sequence[int]) -> LoopChoice | None:
    """The choice for values of the kernel's dims; None if the result is empty."""
    known = tuple(sizes)
    if 0 in known[: kernel.kept]:
        return None
    return LoopChoice(kernel, hints, known, next(iter(tiles(kernel, known)), LoopTile(1, 4)))
