"""Phases of loop programs: one kernel, whose tile may be measured, or several stages where rows are few and long."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from accord.backends.cuda.choices import Choice, Chosen, Operand, Started
from accord.backends.cuda.code import CudaLaunch, exact_hints, hints_of
from accord.backends.cuda.lines import ceildiv
from accord.backends.cuda.loops import LoopKernel, LoopTile, geometry, is_wide, loop_kernel, reach, tiles
from accord.backends.loops.program import LoopProgram, Lowered
from accord.backends.loops.split import Buffer, Stage, can_split, parts_of, split
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import bits
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["LoopChoice", "loop_choice", "lower_loops"]

#: Elements that take a program as long as a kernel more takes.
_WORTH = 16384


def lower_loops(program: LoopProgram, sources: Sequence[int], targets: Sequence[int], scratch: int) -> Lowered:
    """A phase that runs ``program``; see :func:`accord.backends.loops.program.lowered`.

    Raises:
        CompileError: a place waits for a reduction.
    """
    kernel, dims = loop_kernel(program)
    cut = _cut(program, kernel, dims) if scratch >= 0 else None
    if cut is not None:
        return _in_stages(*split(program, *cut), sources, targets, scratch)
    launch: Callable[[Sequence[int]], Launch]
    if _is_choice(kernel):  # rows whose length is always the same have no elements that may be outside
        launch = Chosen(functools.partial(loop_choice, kernel, exact_hints(dims)), 0)
    else:
        launch = functools.partial(_launch, kernel, hints_of(dims))
    return Lowered((Phase(kernel, (*sources, *targets), dims, launch),), 0, kernel.may_overwrite)


def _cut(program: LoopProgram, kernel: LoopKernel, dims: Sequence[DimLike]) -> tuple[int, int] | None:
    """The axis to cut and into how many parts, where rows are long and keep few processors busy."""
    sizes = [d for d in dims if isinstance(d, int)]
    if not can_split(program) or len(sizes) < len(dims) or 0 in sizes[: kernel.kept + kernel.reduced]:
        return None
    from accord.backends.cuda.driver import device

    processors = device().processors
    programs = geometry(kernel, sizes).grid[0]
    extents = sizes[: kernel.kept + kernel.reduced]
    each = math.prod(extents) // programs
    if 2 * programs > processors or each < 2 * _WORTH:
        return None
    rows = ceildiv(math.prod(extents[: kernel.kept]), programs)
    found = parts_of(program, 2 * processors // programs, ceildiv(_WORTH, rows))
    if found is None or each < _WORTH * len(split(program, *found)[0]):
        return None
    return found


def _in_stages(
    stages: Sequence[Stage], buffers: Sequence[Buffer], sources: Sequence[int], targets: Sequence[int], scratch: int
) -> Lowered:
    """Phases for stages, whose buffers follow each other in the workspace."""
    starts: list[int] = []
    end = 0
    for b in buffers:
        starts.append(end)
        end += -(-b.count * max(8, bits(b.dtype)) // 8 // 256) * 256
    phases = []
    for stage in stages:
        kernel, dims = loop_kernel(stage.program)
        launch = functools.partial(_launch, kernel, hints_of(dims))
        numbers = [(n, of) for of, ns in ((sources, stage.sources), (targets, stage.targets)) for n in ns]
        places = tuple(scratch if n < 0 else of[n] for n, of in numbers)
        shifts = tuple(starts[~n] if n < 0 else 0 for n, _ in numbers)
        phases.append(Phase(kernel, places, dims, functools.partial(_shifted, launch, shifts)))
    return Lowered(tuple(phases), end, _never)


def _shifted(
    launch: Callable[[Sequence[int]], CudaLaunch], shifts: tuple[int, ...], sizes: Sequence[int]
) -> CudaLaunch:
    return replace(launch(sizes), shifts=shifts)


def _never(output: int, number: int) -> bool:
    """Stages read operands after others have stored outputs."""
    del output, number
    return False


def _launch(
    kernel: LoopKernel, hints: tuple[str, ...], sizes: Sequence[int], tile: LoopTile | None = None
) -> CudaLaunch:
    shape = geometry(kernel, sizes, tile)
    extents = sizes[: kernel.kept + kernel.reduced]
    wide = is_wide(kernel, sizes)
    constants = (("BM", shape.rows), ("BR", shape.columns), ("WHOLE", shape.whole), ("WIDE", wide))
    tasks = 0 if 0 in extents[: kernel.kept] else math.prod(shape.grid)
    made = CudaLaunch.of(kernel.names, sizes, hints, (*shape.grid, 1), dict(constants), wide=wide, warps=shape.warps)
    return replace(made, tasks=tasks)


# tiles by measurement


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
        return (Started(self.kernel, _launch(self.kernel, self.hints, self.sizes, way)),)

    def operands(self) -> tuple[Operand, ...]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        first = len(self.kernel.pointers) - len(self.kernel.outputs)
        counts = reach(self.kernel, self.sizes)
        memory = zip(self.kernel.pointers, counts, strict=True)
        return tuple(Operand(dtype, count, written=i >= first) for i, (dtype, count) in enumerate(memory))


def _is_choice(kernel: LoopKernel) -> bool:
    """Whether rows can be spread in several ways, and made-up data says how long that takes."""
    plain = not any(s.places or s.combine for s in kernel.streams)
    return plain and bool(kernel.reductions)


def loop_choice(kernel: LoopKernel, hints: tuple[str, ...], sizes: Sequence[int]) -> LoopChoice | None:
    """The choice for values of the kernel's dims; None if the result is empty."""
    known = tuple(sizes)
    if 0 in known[: kernel.kept]:
        return None
    return LoopChoice(kernel, hints, known, next(iter(tiles(kernel, known)), LoopTile(1, 4)))
