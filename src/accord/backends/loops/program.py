"""Loop programs: any connected group of elementwise, broadcast and reducing operators as one kernel.

A program has *axes*; some are *reduced*, the others are *kept*. Every operand is walked over all axes by its strides,
so a broadcast operand has stride 0 and a transposed one has the strides of its memory. What is computed are
expressions (:mod:`accord.expr.lang`) of numbered *values*:

* an operand's element. An operand without memory is its own position, ``offset + sum(index[a] * strides[a])``: so an
  expression can ask for an index;
* the result of a *reduction* of other expressions over all reduced axes; or, of a running one, what it has come to at
  an element.

An expression is of *row space* if it is the same all along the reduced axes (a mean), else of *full space*. Outputs
are expressions of either. A normalisation reads::

    x = value 0; mean = add(x) / n; variance = add((x - mean)**2) / n; output = (x - mean) / sqrt(variance + eps)

A phase whose code is a program belongs to no device yet: a backend lowers it (:func:`lowered`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from accord.backends.loops.values import Reduction, Result
from accord.backends.protocol import NativeKernel, Phase
from accord.expr.lang import Expr, cast
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Lookup", "LoopProgram", "Lowered", "Operand", "Output", "elements", "lowered", "pointwise", "program_phase"]


@record
class Lookup:
    """A part of an operand's or output's place that is computed: ``index * stride`` elements.

    Attributes:
        index: An i64 of values before this one; only an output's may wait for reductions.
        stride: Elements from one index to the next.
        size: Of the axis that is looked up.
        outside: What an index that is not from 0 to ``size - 1`` means: "refuse": it counts from the end where it is
            negative, else the run fails; "skip": the element is :attr:`Operand.other`, or is not stored.
    """

    index: Expr
    stride: DimLike
    size: DimLike
    outside: str = "refuse"


@record
class Operand:
    """A value that is read.

    Attributes:
        dtype: Element type in memory; "i64" of a position.
        access: Over all axes of the program.
        memory: False: the value is its position.
        lookups: Computed parts of its place. Not every device's loops have them.
        other: What it is where a lookup is skipped.
    """

    dtype: str
    access: Access
    memory: bool = True
    lookups: tuple[Lookup, ...] = ()
    other: float | int = 0


@record
class Output:
    """What is stored: an expression and where its elements lie. Its strides are 0 along reduced axes, or on none.

    Attributes:
        expr: What is stored.
        access: Where.
        lookups: Computed parts of the place. Not every device's loops have them.
        combine: "" or how it joins what is there: "add", "min", "max"; several may meet at one place.
    """

    expr: Expr
    access: Access
    lookups: tuple[Lookup, ...] = ()
    combine: str = ""


@record
class LoopProgram:
    """See the module's text.

    Attributes:
        extents: Of all axes.
        reduced: Numbers of the reduced axes.
        values: What the expressions' operands stand for.
        reductions: In an order in which each only needs those before it.
        outputs: What is stored.
    """

    extents: Shape
    reduced: frozenset[int]
    values: tuple[Operand | Result, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Output, ...]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The values that are read, in order."""
        return tuple(v for v in self.values if isinstance(v, Operand))

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Of all operands, then of all outputs."""
        return (*(o.access for o in self.operands), *(o.access for o in self.outputs))


def program_phase(
    program: LoopProgram, sources: Sequence[int], targets: Sequence[int], scratch: int | None = None
) -> Phase:
    """A phase of no device that runs ``program``.

    Args:
        program: What to compute.
        sources: For each operand with memory which of the kernel's operands it is; two may be the same.
        targets: For each output which of the kernel's operands it is.
        scratch: Which of the kernel's operands the workspace is, if the kernel has no other use for one.
    """
    return Phase(program, (*sources, *targets, *(() if scratch is None else (scratch,))), ())


def pointwise(
    extents: Shape,
    inputs: Sequence[tuple[str, Access]],
    outputs: Sequence[tuple[str, Access]],
    exprs: Sequence[Expr],
    operands: Sequence[int],
) -> Phase:
    """A phase of no device that computes every output element from one element of each operand.

    This covers elementwise operators, broadcasting, and (with the expression "x") every movement of data that is
    affine: transpose, slice, expand, tile, depth-to-space, the parts of concat and split.

    Args:
        extents: The iteration space.
        inputs: dtype and access of each input, in the order of the expressions' operands.
        outputs: dtype and access of each output.
        exprs: One for each output.
        operands: Which of the kernel's operands they are: inputs, then outputs.
    """
    n = len(inputs)
    return program_phase(elements(extents, inputs, outputs, exprs), operands[:n], operands[n:])


def elements(
    extents: Shape,
    inputs: Sequence[tuple[str, Access]],
    outputs: Sequence[tuple[str, Access]],
    exprs: Sequence[Expr],
) -> LoopProgram:
    """The program of :func:`pointwise`."""
    return LoopProgram(
        extents,
        frozenset(),
        tuple(Operand(dtype, access) for dtype, access in inputs),
        (),
        tuple(Output(cast(e, dtype), access) for e, (dtype, access) in zip(exprs, outputs, strict=True)),
    )


@record
class Lowered:
    """A program on a device.

    Attributes:
        phases: Of the device, one after the other.
        workspace: Bytes of scratch memory for each thread.
        may_overwrite: Whether an output (by number) may take the memory of a value (by number) that has the same
            strides and type.
    """

    phases: tuple[Phase, ...]
    workspace: DimLike
    may_overwrite: Callable[[int, int], bool]


#: From a program, its sources, targets and workspace (-1: there is none to be had) to the device's phases.
Lower = Callable[[LoopProgram, Sequence[int], Sequence[int], int], Lowered]


def lowered(kernel: NativeKernel, lower: Lower) -> NativeKernel:
    """``kernel`` with every phase of no device replaced by one of the device that ``lower`` knows."""
    if not any(isinstance(p.code, LoopProgram) for p in kernel.phases):
        return kernel
    phases: list[Phase] = []
    workspace = kernel.workspace
    free = max(o for p in kernel.phases for o in p.operands) + 1 if workspace == 0 else -1
    in_place = kernel.in_place
    for phase in kernel.phases:
        program = phase.code
        if not isinstance(program, LoopProgram):
            phases.append(phase)
            continue
        read = [i for i, v in enumerate(program.values) if isinstance(v, Operand) and v.memory]
        n, m = len(read), len(read) + len(program.outputs)
        scratch = phase.operands[m] if len(phase.operands) > m else free
        made = lower(program, phase.operands[:n], phase.operands[n:m], scratch)
        phases.extend(made.phases)
        if made.workspace != 0:  # phases use it one after the other
            workspace = D.maximum(workspace, made.workspace)
        place = dict(zip(phase.operands[:n], read, strict=True))
        numbers = {i: place.get(kernel.reads.index(i)) for _, i in in_place}
        in_place = tuple((j, i) for j, i in in_place if (at := numbers[i]) is None or made.may_overwrite(j, at))
    return replace(kernel, phases=tuple(phases), workspace=workspace, in_place=in_place)
