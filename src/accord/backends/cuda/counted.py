"""Kernels whose data tells how large their results are: a number is fetched, then the results are made.

What is counted, and where each element goes, is found in blocks: how many a block has, what that comes to before each,
and then each element's place.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field, fields, replace
from typing import Any, Final

import numpy as np

from accord.backends.cuda.late import start_native
from accord.backends.cuda.loop_phases import lower_loops
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, lowered, program_phase
from accord.backends.loops.values import Reduction, Result
from accord.backends.memory import DeviceArray
from accord.backends.prepared import Prepared
from accord.backends.protocol import HostKernel, NativeKernel, Phase
from accord.expr.lang import Expr, cast, const, operand
from accord.expr.primitives import idiv, irem, select
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.strides import Access
from accord.record import record

__all__ = ["CountedKernel", "NonZeroKernel"]

#: Elements of a block.
_BLOCK: Final = 1024
#: Kernels that are kept ready.
_KEPT: Final = 32


@record
class CountedKernel(HostKernel):
    """What such kernels share.

    Attributes:
        name: For people.
        ordinal: The GPU's number.
    """

    name: str = field()  # not the class's own default
    ordinal: int = 0
    _prepared: OrderedDict[Hashable, Prepared] = field(default_factory=OrderedDict, compare=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, compare=False, repr=False)

    #: It is made of plain values, so a stored plan can hold it.
    portable = True

    def __reduce__(self) -> tuple[object, ...]:
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        return functools.partial(type(self), **kept), ()

    @property
    def space(self) -> str:  # type: ignore[override]
        """The GPU's memory."""
        from accord.backends.cuda import backend

        return backend.numbered(self.ordinal).space

    def of(self, ordinal: int) -> CountedKernel:
        """The same on another GPU."""
        return replace(self, ordinal=ordinal, _prepared=OrderedDict(), _lock=threading.Lock())

    def start(self, key: Hashable, make: Callable[[], NativeKernel], operands: Sequence[DeviceArray]) -> None:
        """Run a kernel of known sizes, which is made if it is not kept from before.

        Args:
            key: What it depends on.
            make: Makes it; its phases may be loop programs.
            operands: What it reads, then what it writes.

        Raises:
            ExecutionError: it refused its data.
        """
        from accord.backends.cuda import backend

        with self._lock:
            found = self._prepared.get(key)
            if found is None:
                kernel = lowered(make(), lower_loops)
                sizes = [D.evaluate(d, {}) for d in kernel.dims]
                found = self._prepared[key] = Prepared(backend.numbered(self.ordinal), kernel, sizes)
                if len(self._prepared) > _KEPT:
                    self._prepared.popitem(last=False)
            else:
                self._prepared.move_to_end(key)
        start_native(found, operands)


class Places:
    """Where elements that count go: programs over blocks of a line.

    Args:
        count: Elements of the line.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.blocks = -(-count // _BLOCK)

    def counting(self, values: Sequence[Operand], chosen: Expr, sources: Sequence[int], target: int) -> list[Phase]:
        """Phases that write to an i64 tensor what came before each block, and what all came to.

        Args:
            values: Operands over blocks and their elements.
            chosen: Whether an element counts, a bool of the operands.
            sources: Which of the kernel's operands they are.
            target: Which of them is the tensor, of ``blocks + 1`` elements.
        """
        number = len(values)
        found = cast(chosen, "i64")
        each = LoopProgram(
            (self.blocks, _BLOCK),
            frozenset({1}),
            (*values, Result(0)),
            (Reduction("add", (found,)),),
            (Output(operand(number, "i64"), Access((1, 0))),),
        )
        own = operand(0, "i64")
        joined = LoopProgram(
            (1, self.blocks),
            frozenset({1}),
            (Operand("i64", Access((0, 1))), Result(0), Result(1)),
            (Reduction("add", (own,), "exclusive"), Reduction("add", (own,))),
            (Output(operand(1, "i64"), Access((0, 1))), Output(operand(2, "i64"), Access((0, 0), self.blocks))),
        )
        return [program_phase(each, sources, (target,)), program_phase(joined, (target,), (target, target))]

    def placing(
        self,
        values: Sequence[Operand],
        chosen: Expr,
        stored: Sequence[tuple[Expr, Access]],
        total: int,
        sources: Sequence[int],
        targets: Sequence[int],
    ) -> Phase:
        """The phase that stores something for each element that counts.

        Args:
            values: Operands over blocks and their elements.
            chosen: Whether an element counts.
            stored: What is stored, and where the first one goes: the stride along what counts is the access's own.
            total: How many count.
            sources: Which of the kernel's operands ``values`` are, then the tensor of :meth:`counting`.
            targets: Which of them the results are.
        """
        before, own = len(values), len(values) + 1
        all_: tuple[Operand | Result, ...] = (*values, Operand("i64", Access((1, 0))), Result(0))
        at = select(chosen, operand(before, "i64") + operand(own, "i64"), const(-1, "i64"))
        outputs = tuple(
            Output(e, Access((0, 0), a.offset), (Lookup(at, a.strides[0], total, "skip"),)) for e, a in stored
        )
        reduction = Reduction("add", (cast(chosen, "i64"),), "exclusive")
        program = LoopProgram((self.blocks, _BLOCK), frozenset({1}), all_, (reduction,), outputs)
        return program_phase(program, sources, targets)

    @property
    def position(self) -> Operand:
        """The number of an element."""
        return Operand("i64", Access((_BLOCK, 1)), memory=False)

    def element(self, dtype: str, number: int, offset: DimLike = 0) -> Operand:
        """An element of a line; ``number`` is that of :attr:`position` among the values. 0 behind the end."""
        place = Lookup(operand(number, "i64"), 1, self.count, "skip")
        return Operand(dtype, Access((0, 0), offset), lookups=(place,))


@record
class NonZeroKernel(CountedKernel):
    """Coordinates of elements that are not zero, rising.

    Attributes:
        dtype: Of the elements.
    """

    dtype: str = ""

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """int64 ``[rank, count]``."""
        (x,) = inputs
        places = Places(x.size)
        counts = DeviceArray.empty(x.memory, (places.blocks + 1,), np.dtype(np.int64))
        values = [places.position, places.element(self.dtype, 0)]
        chosen = cast(operand(1, self.dtype), "bool")
        total = 0
        if x.size:
            self.start(
                ("count", x.size),
                lambda: NativeKernel("count", tuple(places.counting(values, chosen, (0,), 1)), (0,)),
                (x, counts),
            )
            total = int(counts.view((1,), places.blocks * 8).numpy()[0])
        result = DeviceArray.empty(x.memory, (len(x.shape), total), np.dtype(np.int64))
        if result.size:
            stored = []
            rest = operand(0, "i64")
            for axis in range(len(x.shape) - 1, -1, -1):
                values.append(Operand("i64", Access((0, 0), x.shape[axis]), memory=False))
                size = operand(len(values) - 1, "i64")
                stored.append((irem(rest, size) if axis else rest, Access((1,), axis * total)))
                rest = idiv(rest, size)

            def make() -> NativeKernel:
                phase = places.placing(values, chosen, stored, total, (0, 1), (2,) * len(stored))
                return NativeKernel("non zero", (phase,), (0, 1))

            self.start(("place", x.shape, total), make, (x, counts, result))
        return [result]
