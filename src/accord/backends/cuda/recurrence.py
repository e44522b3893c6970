"""The time loop of recurrent layers in Triton: a program has a direction and some entries of the batch, and walks all
steps with their states in memory, which its threads share.

What a step adds from the input was multiplied before, for all steps at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from accord.backends.cuda.code import CudaLaunch, KernelText
from accord.backends.cuda.lines import HEAD, NEXT, WAIT, Code, ceildiv, power_of_two
from accord.backends.cuda.printer import TYPES, TritonPrinter
from accord.backends.gates import Cell, Pass
from accord.record import record

__all__ = ["SIZES", "STRIDES", "RecurrenceKernel", "recurrence_launch"]

#: Integers of a launch: these, then for each operand in :data:`STRIDES` its offset and strides.
SIZES: Final = ("steps", "batch", "hidden", "first", "count", "reversed", "total")
#: Operands and the axes of their strides; the workspace has no gaps.
STRIDES: Final = {
    "r": ("direction", "row", "k"),
    "bias": ("direction", "column"),
    "peepholes": ("direction", "column"),
    "lengths": ("entry",),
    "h0": ("direction", "entry", "unit"),
    "c0": ("direction", "entry", "unit"),
    "y": ("step", "direction", "entry", "unit"),
    "y_h": ("direction", "entry", "unit"),
    "y_c": ("direction", "entry", "unit"),
}
#: Entries of a program at most, units of a tile, and terms of a piece of a sum.
_ENTRIES, _UNITS, _TERMS = 4, 32, 32


@record
class RecurrenceKernel(KernelText):
    """One cell in some directions. Pointers: operands that are there, in the order of :data:`STRIDES`; the workspace.

    In the workspace are the projected inputs [direction, step, entry, gate, unit], then the states of all entries
    [state, direction, entry, unit]: two hidden states by turns, then those of the cell.

    Attributes:
        cell: A time step.
        stored: Element type of tensors.
        dtype: Of the arithmetic, and of the workspace.
        index: Element type of the lengths.
        given: Which operands are there.
    """

    cell: Cell
    stored: str
    dtype: str
    index: str
    given: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        passes = [(p.gates, p.source, p.reads, [(n, e.key) for n, e in p.writes]) for p in self.cell.passes]
        text = f"{passes};{self.cell.gates};{self.cell.states};{self.stored};{self.dtype};{self.index};{self.given}"
        return f"recurrence_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of the operands."""
        return (*(self.index if n == "lengths" else self.stored for n in self.given), self.dtype)

    @property
    def numbers(self) -> list[str]:
        """Names of the integers."""
        strides = [(n, a) for n in self.given for a in ("offset", *STRIDES[n])]
        return [*SIZES, *(f"{n}_{a}" for n, a in strides)]

    def text(self) -> str:
        """The module."""
        return _Writer(self).module()


class _Writer:
    def __init__(self, kernel: RecurrenceKernel) -> None:
        self.k = kernel
        self.code = Code()
        self.states = ("h", *kernel.cell.states)
        self.type = TYPES[kernel.dtype]
        self.count = 0

    def module(self) -> str:
        k, code = self.k, self.code
        code(
            "direction = tl.program_id(1) + first",
            "b = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)",
            "b_in = b < batch",
            "backwards = (direction == 1) | (reversed == 1)",
            "each = count * batch * hidden",
            f"inputs = work + direction.to(tl.int64) * steps * batch * hidden * {k.cell.gates}",
            "own = work + total + ((direction - first) * batch + b).to(tl.int64)[:, None] * hidden",
            WAIT,
        )
        if "lengths" in k.given:
            code(
                "length = tl.load(lengths + lengths_offset + b * lengths_entry, mask=b_in, other=0).to(tl.int32)",
                "length = tl.minimum(tl.maximum(length, 0), steps)",
            )
        else:
            code("length = b * 0 + steps")
        self._start()
        code("tl.debug_barrier()")
        with code.indented("for s in range(steps):"):
            code(
                "active = s < length",
                "t = tl.where(active & backwards, length - 1 - s, s)",
                "now = (s % 2) * each",
                "later = each - now",
            )
            for p in k.cell.passes:
                with self._units():
                    self._pass(p)
                code("tl.debug_barrier()")
        code(NEXT, "now = (steps % 2) * each")
        with self._units():
            self._tile()
            for name, state in (("y_h", "h"), ("y_c", "c")):
                if name in k.given:
                    value = f"tl.load({self._place(state)}, mask=inside, other=0.0)"
                    code(f"tl.store({self._at(name)}, {value}.to({TYPES[k.stored]}), mask=inside)")
        parameters = [*k.given, "work", *k.numbers]
        constants = [f"{n}: tl.constexpr" for n in ("ENTRIES", "UNITS", "TERMS")]
        return HEAD + code.function(k.symbol, [*parameters, *constants])

    def _units(self) -> AbstractContextManager[None]:
        return self.code.indented("for unit in range(0, hidden, UNITS):")

    def _tile(self) -> None:
        self.code("u = unit + tl.arange(0, UNITS)", "u_in = u < hidden", "inside = b_in[:, None] & u_in[None, :]")

    def _place(self, state: str, *, new: bool = False) -> str:
        """Addresses of a state's tile."""
        if state == "h":
            return f"own + {'later' if new else 'now'} + u[None, :]"
        return f"own + {1 + self.states.index(state)} * each + u[None, :]"

    def _at(self, name: str) -> str:
        """Addresses of a tile of an operand."""
        terms = [f"{name} + {name}_offset + direction * {name}_direction"]
        if name == "y":
            terms.append("t[:, None] * y_step")
        return " + ".join([*terms, f"b[:, None] * {name}_entry", f"u[None, :] * {name}_unit"])

    def _start(self) -> None:
        """States before the first step."""
        code = self.code
        code("now = each * 0")
        with self._units():
            self._tile()
            for name, state in (("h0", "h"), ("c0", "c")):
                if state in self.states:
                    value = f"tl.zeros([ENTRIES, UNITS], {self.type})"
                    if name in self.k.given:
                        value = f"tl.load({self._at(name)}, mask=inside, other=0.0).to({self.type})"
                    code(f"tl.store({self._place(state)}, {value}, mask=inside)")

    def _pass(self, p: Pass) -> None:
        """One product with recurrence weights, and the new states of a tile of units."""
        k, code = self.k, self.code
        self._tile()
        for g in p.gates:
            code(f"sum{g} = tl.zeros([ENTRIES, UNITS], {self.type})")
        source = "own + now" if p.source == "h" else f"own + {1 + self.states.index(p.source)} * each"
        with code.indented("for term in range(0, hidden, TERMS):"):
            code(
                "k = term + tl.arange(0, TERMS)",
                "k_in = k < hidden",
                f"x = tl.load({source} + k[None, :], mask=b_in[:, None] & k_in[None, :], other=0.0)",
                "r_in = u_in[:, None] & k_in[None, :]",
            )
            for g in p.gates:
                code(
                    f"at = r_offset + direction * r_direction + ({g} * hidden + u)[:, None] * r_row + k[None, :] * r_k",
                    f"w = tl.load(r + at, mask=r_in, other=0.0).to({self.type})",
                    f"sum{g} += tl.sum(x[:, None, :] * w[None, :, :], 2)",
                )
        apart = p.gates[-1] if "rb" in p.reads else -1
        operands = [f"sum{g}" for g in p.gates]
        for g in p.gates:
            place = f"((t[:, None] * batch + b[:, None]).to(tl.int64) * {k.cell.gates} + {g}) * hidden + u[None, :]"
            code(f"in{g} = tl.load(inputs + {place}, mask=inside, other=0.0)")
            if "bias" in k.given:
                code(f"in{g} += {self._constant('bias', f'{g} * hidden')}")
                if g != apart:
                    code(f"in{g} += {self._constant('bias', f'{k.cell.gates + g} * hidden')}")
            operands.append(f"in{g}")
        for name in p.reads:
            if name in self.states:
                code(f"old_{name} = tl.load({self._place(name)}, mask=inside, other=0.0)")
                operands.append(f"old_{name}")
            elif name == "rb":
                code(f"own_bias = {self._constant('bias', f'{k.cell.gates + apart} * hidden')}")
                operands.append("own_bias")
            else:
                code(f"{name} = {self._constant('peepholes', f'{name[1:]} * hidden')}")
                operands.append(name)
        self.count += 1
        printer = TritonPrinter(code, f"x{self.count}_")
        made = [(name, printer.value(e, operands)) for name, e in p.writes]
        for name, value in made:
            code(
                f"kept = tl.load({self._place(name)}, mask=inside, other=0.0)",
                f"new = tl.where(active[:, None], {value}, kept)",
                f"tl.store({self._place(name, new=True)}, new, mask=inside)",
            )
            if name == "h" and "y" in k.given:
                code(
                    f"shown = tl.where(active[:, None], new, 0.0).to({TYPES[k.stored]})",
                    f"tl.store({self._at('y')}, shown, mask=inside)",
                )

    def _constant(self, name: str, first: str) -> str:
        """A number of each unit."""
        at = f"{name}_offset + direction * {name}_direction + ({first} + u) * {name}_column"
        return f"tl.load({name} + {at}, mask=u_in, other=0.0).to({self.type})[None, :]"


def recurrence_launch(hints: tuple[str, ...], sizes: Sequence[int]) -> CudaLaunch:
    """The launch for the values of the kernel's numbers, of which ``hints`` tells what is known."""
    _, batch, hidden, _, count, *_ = sizes
    entries = min(_ENTRIES, power_of_two(max(batch, 1)))
    grid = (ceildiv(batch, entries), count, 1)
    tasks = grid[0] * count if hidden else 0
    constants = (("ENTRIES", entries), ("UNITS", _UNITS), ("TERMS", _TERMS))
    wide = any(abs(n) >= 1 << 31 for n in sizes)
    return CudaLaunch(tuple(sizes), tasks, grid, constants, hints, wide)
