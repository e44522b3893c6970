"""Loop programs on the CPU.

The code makes one *pass* over the reduced axes for each level of reductions that wait for others, and computes full
space again in each pass, or, where that is expensive (an exponential), keeps it in a row buffer of the thread. So a
row that fits the cache is read from memory once. Parts of row space are computed once a row. Without reductions
there are no passes, and a program is a pointwise kernel.

Vectors lie along the innermost reduced axis (several accumulators, joined at the row's end) or along the innermost
kept axis (a block of neighbouring rows), whichever the operands walk with unit stride; axes are sorted by the strides
of the operand that matters most, and merged. A pointwise operand whose unit stride lies along another axis goes
through a tile that is transposed in registers; if that axis is short and its elements follow each other (colours of
pixels, groups of shuffled channels), vectors are woven.

Sums of floats are added up in pieces of at most 64 for each accumulator, which are joined with compensation (Neumaier,
1974), so the error does not grow with the length.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.launches import launch_loops
from accord.backends.cpu.loop_code import LoopCode, Stream, copies_of, lanes_of, row_bytes
from accord.backends.loops.nest import magnitude, merge_axes
from accord.backends.loops.program import LoopProgram, Lowered, Operand
from accord.backends.protocol import Phase
from accord.errors import CompileError
from accord.expr.cost import cost_of
from accord.expr.lang import bits
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.strides import Access

__all__ = ["loop_phase", "lower_loops"]


#: Cycles: of an element that is loaded or stored alone; of one that is transposed; of one in a chain of operations; of
#: joining the lanes of an accumulator.
_STRIDED, _TURNED, _SERIAL, _JOIN = 1.3, 0.35, 4.0, 24.0


#: Rows that are woven at most: each vector is shuffled once for each of them.
_MOST_WOVEN = 8

#: Elements up to which the pieces of a row are written out without a loop.
_SHORT_LINE = 64


def loop_phase(
    program: LoopProgram, sources: Sequence[int], targets: Sequence[int], scratch: int
) -> tuple[Phase, DimLike]:
    """A phase that runs ``program``.

    Args:
        program: What to compute.
        sources: For each operand with memory which of the kernel's operands it is; two may be the same.
        targets: For each output which of the kernel's operands it is.
        scratch: Which of the kernel's operands the workspace is; only used if there is one.

    Returns:
        The phase, and the bytes of workspace that each thread needs.

    Raises:
        CompileError: an output has no place for each of its elements, or places are computed.
    """
    if any(o.lookups for o in program.operands) or any(o.lookups for o in program.outputs):
        raise CompileError("the CPU's loops compute no places")
    nest = _Nest(program)
    code = nest.code()
    dims: list[DimLike] = list(nest.extents)
    for stream, access in zip(nest.streams, nest.accesses, strict=True):
        dims.append(access.offset)
        dims.extend(s for s, kind in zip(access.strides, stream.kinds, strict=True) if kind == "s")
    row = row_bytes(code, D.product(nest.extents[code.kept :]))
    operands = (*sources, *targets)
    if row != 0:
        dims.append(row)
        operands = (*operands, scratch)
    weight = sum(cost_of(e) for e in (*code.results, *(a for r in code.reductions for a in r.args)))
    tiles = code.staged and not code.reduced
    form = (code.kept, code.reduced, code.across, tiles, code.woven, lanes_of(code) * copies_of(code), weight)
    return Phase(code, operands, tuple(dims), functools.partial(launch_loops, form)), row


def lower_loops(program: LoopProgram, sources: Sequence[int], targets: Sequence[int], scratch: int) -> Lowered:
    """As :func:`loop_phase`, for :func:`~accord.backends.loops.program.lowered`."""
    phase, workspace = loop_phase(program, sources, targets, scratch)
    assert isinstance(phase.code, LoopCode)
    return Lowered((phase,), workspace, phase.code.may_overwrite)


class _Nest:
    """A program's axes sorted and merged.

    Attributes:
        extents: Kept axes, then reduced ones.
        accesses: Of operands, then of outputs, over these axes.
        streams: What the machine code knows of each of them.
    """

    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        order = self._order()
        labels = [int(a in program.reduced) for a in order]
        accesses = [Access(tuple(a.strides[i] for i in order), a.offset) for a in program.accesses]
        extents, merged, groups = merge_axes(tuple(program.extents[i] for i in order), accesses, labels)
        kept = groups.count(0)
        if not kept:  # a single row
            extents, kept = (1, *extents), 1
            merged = [Access((0, *a.strides), a.offset) for a in merged]
        if program.reductions and kept == len(extents):  # all reduced axes have size 1
            extents = (*extents, 1)
            merged = [Access((*a.strides, 0), a.offset) for a in merged]
        self.extents, self.accesses, self.kept = extents, merged, kept
        self.reduced = len(extents) - kept
        self._choose_lanes()
        self.streams = self._streams()

    # the order of axes

    def _order(self) -> list[int]:
        """Kept axes, then reduced ones, each from the outermost to the innermost in memory."""
        p = self.program
        reference = self._reference()
        axes = range(len(p.extents))
        size = [magnitude(s) for s in reference.strides]
        for a in reversed(axes):  # an axis that the reference repeats stays outside the one after it
            if size[a] == 0:
                size[a] = size[a + 1] if a + 1 < len(size) else 0
        return sorted(axes, key=lambda a: (a in p.reduced, -size[a]))

    def _reference(self) -> Access:
        """The operand whose order of axes is followed: the largest one of full space, else the first output."""
        p = self.program
        outputs = [o.access for o in p.outputs]
        if not p.reduced:
            return max(outputs, key=_axes_walked)
        operands = [o.access for o in p.operands if o.memory]
        return max([*operands, *outputs], key=_axes_walked)

    # lanes

    def _choose_lanes(self) -> None:
        self.across = False
        self.staged = False
        self.woven = 0
        if self.reduced:
            best = min([-1, *reversed(range(self.kept))], key=self._row_cycles)
            self.across = best < 0
            if not self.across:
                self._move_last(best)
                self.staged = any(self._is_turned(a, self.kept - 1) for a in self._sources())
        elif self.kept > 1 and not self._weave():
            self._stage()

    def _row_cycles(self, axis: int) -> float:
        """Roughly what a row costs with vectors along the kept ``axis``, or, for -1, along the last reduced one."""
        p = self.program
        width = machine().width(32)
        inner = self.extents[-1] if isinstance(self.extents[-1], int) else 256
        outer = D.known_product(self.extents[self.kept : -1])
        lines = 4 if outer is None else outer
        lanes = self.extents[axis] if axis >= 0 else width
        used = min(width, lanes) if isinstance(lanes, int) and lanes > 0 else width
        total = 0.0
        for a in self._memory():
            if not any(s != 0 for s in a.strides[self.kept :]):
                continue
            strided = a.strides[axis] not in (0, 1)
            if axis < 0:
                total += lines * (_STRIDED * inner if strided else math.ceil(inner / width))
            elif strided and self._is_turned(a, axis):
                total += lines * inner * _TURNED * width / used
            else:
                total += lines * inner * (_STRIDED * width if strided else 1) / used
        if axis >= 0:
            return total
        if any(r.running for r in p.reductions):
            return total + lines * inner * _SERIAL
        return total + _JOIN * len(p.reductions)

    def _is_turned(self, access: Access, axis: int) -> bool:
        """Whether an operand is transposed on its way to lanes along ``axis``."""
        return self._can_turn and access.strides[-1] == 1 and access.strides[axis] not in (0, 1)

    @functools.cached_property
    def _can_turn(self) -> bool:
        """Masked loads of narrow elements are single loads on some machines."""
        widest = min((bits(o.dtype) for o in self.program.operands if o.memory), default=64)
        return widest >= 32 or {"avx512bw", "avx512vl"} <= machine().has

    def _weave(self) -> bool:
        """Find a short axis whose rows are woven in some operands or outputs, and put it before that of the lanes."""
        p = self.program
        dtypes = [o.dtype for o in p.operands if o.memory] + [o.expr.dtype for o in p.outputs]
        # single bytes and halves are shuffled one by one on some machines
        if "bool" in dtypes or (min(map(bits, dtypes)) < 32 and "avx512vbmi" not in machine().has):
            return False
        short = [n if isinstance(n, int) and 1 < n <= _MOST_WOVEN else 0 for n in self.extents]
        pairs = [(short[axis], axis, lane) for axis, lane in itertools.permutations(range(self.kept), 2) if short[axis]]
        for rows, axis, lane in sorted(pairs):
            length = self.extents[lane]
            if isinstance(length, int) and length < machine().width(32) // 2:
                continue
            strides = [(a.strides[axis], a.strides[lane]) for a in self._memory()]
            woven = strides.count((1, rows))
            if woven and woven < len(strides) and all(s == (1, rows) or s[1] in (0, 1) for s in strides):
                self._permute([i for i in range(self.kept) if i not in (axis, lane)] + [axis, lane])
                self.woven = rows
                return True
        return False

    def _stage(self) -> None:
        """Move an axis that strided operands walk with unit stride next to the innermost one."""
        inner = self.kept - 1
        gain = [0] * self.kept
        for a in self._sources():
            if a.strides[inner] not in (0, 1) and 1 in a.strides[:inner]:
                gain[a.strides.index(1)] += 1
        axis = max(range(inner), key=lambda i: gain[i])
        if gain[axis] and self._can_turn:
            order = [i for i in range(inner) if i != axis] + [axis, inner]
            self._permute(order)
            self.staged = True

    def _move_last(self, axis: int) -> None:
        """Make ``axis`` the last kept one."""
        self._permute([i for i in range(self.kept) if i != axis] + [axis])

    def _permute(self, order: list[int]) -> None:
        order = [*order, *range(self.kept, self.kept + self.reduced)]
        self.extents = tuple(self.extents[i] for i in order)
        self.accesses = [Access(tuple(a.strides[i] for i in order), a.offset) for a in self.accesses]

    def _memory(self) -> list[Access]:
        """Of operands with memory and of outputs."""
        return [*self._sources(), *self.accesses[len(self.program.operands) :]]

    def _sources(self) -> list[Access]:
        return [a for a, o in zip(self.accesses, self.program.operands, strict=False) if o.memory]

    # code

    def _streams(self) -> list[Stream]:
        p = self.program
        dtypes = [(o.dtype, o.memory) for o in p.operands] + [(o.expr.dtype, True) for o in p.outputs]
        return [
            Stream(dtype, "".join(_kind(s) for s in a.strides), memory)
            for (dtype, memory), a in zip(dtypes, self.accesses, strict=True)
        ]

    def code(self) -> LoopCode:
        p = self.program
        count = len(p.operands)
        streams = iter(self.streams[:count])
        values = tuple(next(streams) if isinstance(v, Operand) else v for v in p.values)
        elements = D.known_product(self.extents[self.kept :])
        last = self.extents[-1]
        short = self.across and self.reduced > 1 and isinstance(last, int) and 0 < last <= _SHORT_LINE
        code = LoopCode(
            kept=self.kept,
            reduced=self.reduced,
            across=self.across,
            staged=self.staged,
            values=values,
            reductions=p.reductions,
            outputs=tuple(self.streams[count:]),
            results=tuple(o.expr for o in p.outputs),
            long=elements is None or elements > 64,
            line=last if short and isinstance(last, int) else 0,
            woven=self.woven,
        )
        for j, expr in enumerate(code.results):
            if code.is_full(expr) and not code.outputs[j].varies(self.kept):
                raise CompileError("an output of full space is stored as one of row space", value=f"output {j}")
        return code


def _kind(stride: DimLike) -> str:
    return str(stride) if stride in (0, 1) else "s"


def _axes_walked(access: Access) -> int:
    return sum(s != 0 for s in access.strides)
