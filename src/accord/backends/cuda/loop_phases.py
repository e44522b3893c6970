"""Phases of loop programs: one kernel, whose tile may be measured, or several stages where rows are few and long."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from accord.backends.cuda.choices import Chosen
from accord.backends.cuda.code import exact_hints, hints_of
from accord.backends.cuda.lines import ceildiv
from accord.backends.cuda.loop_choice import loop_choice, loop_launch, shifted_launch
from accord.backends.cuda.loops import LoopKernel, geometry, loop_kernel
from accord.backends.loops.program import LoopProgram, Lowered
from accord.backends.loops.split import Buffer, Stage, can_split, parts_of, split
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import bits
from accord.ir.dims import DimLike

__all__ = ["lower_loops"]

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
        launch = functools.partial(loop_launch, kernel, hints_of(dims))
    return Lowered((Phase(kernel, (*sources, *targets), dims, launch),), 0, _always)


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
        launch = functools.partial(loop_launch, kernel, hints_of(dims))
        numbers = [(n, of) for of, ns in ((sources, stage.sources), (targets, stage.targets)) for n in ns]
        places = tuple(scratch if n < 0 else of[n] for n, of in numbers)
        shifts = tuple(starts[~n] if n < 0 else 0 for n, _ in numbers)
        phases.append(Phase(kernel, places, dims, functools.partial(shifted_launch, launch, shifts)))
    return Lowered(tuple(phases), end, _never)


def _always(output: int, number: int) -> bool:
    """A program reads its elements before it stores them, and stores what is constant along rows last."""
    del output, number
    return True


def _never(output: int, number: int) -> bool:
    """Stages read operands after others have stored outputs."""
    del output, number
    return False


def _is_choice(kernel: LoopKernel) -> bool:
    """Whether rows can be spread in several ways, and made-up data says how long that takes."""
    plain = not any(s.places or s.combine for s in kernel.streams)
    return plain and bool(kernel.reductions)
