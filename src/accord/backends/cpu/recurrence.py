"""The time loop of recurrent layers in machine code.

A team of tasks (:mod:`accord.backends.cpu.rounds`) is one direction of a block of batch entries; it runs over all time
steps. A step multiplies the block's states with each panel of recurrence weights; while a panel's sums are in the cache
nearest to the registers, its units' gates and new states follow. Where a step is worth it, the team's members share its
panels, and each keeps its own in its cache. The hidden state has two places that take turns, since a step needs all of
the old one.

An entry's states lie together in scratch memory: hidden state twice, the cell's other states, sums of one panel for
each member.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar

from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.projection import Panel, Rows, emit_product, product_functions
from accord.backends.cpu.rounds import MOST_MEMBERS, TEAM_BYTES, Rounds
from accord.backends.gates import Cell, Pass
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import bits, cast, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.strides import Access
from accord.record import record

__all__ = [
    "CheckedRecurrenceCode",
    "Place",
    "Places",
    "RecurrenceCode",
    "RecurrenceWriter",
    "recurrence_phase",
    "state_elements",
    "team_elements",
]

#: Optional inputs and outputs, in the order of the operands, and how many strides each has.
_TENSORS = {"h0": 3, "c0": 3, "lengths": 1, "y": 4, "y_h": 3, "y_c": 3}
_SIZES = (
    "steps",
    "batch",
    "hidden",
    "panels",
    "first_direction",
    "reverse",
    "block",
    "blocks",
    "members",
    "teams_at",
    "inputs_at",
    "inputs_step",
    "inputs_entry",
    "inputs_direction",
    "states_at",
    "peepholes_at",
    "bias_at",
)
#: Weights of one direction's pass up to this size are read again for each low block; larger ones pay for higher blocks.
_NEAR_BYTES = 1 << 20
#: About how many products with weights of each type one core does in a nanosecond; how many nanoseconds a column of
#: gates takes.
_PRODUCTS = {"f32": 60, "f64": 30, "i32": 400}
_GATE_NS = 0.4
#: Nanoseconds of a step for each member of a team: what the others made takes some hundred to come.
_MEMBER_NS = 500


@record
class RecurrenceCode(KernelCode):
    """One time loop.

    Operands: weights, scratch memory, then peepholes, recurrence bias and those of :data:`_TENSORS` that there are.

    Attributes:
        cell: What a step does.
        dtype: Element type of states and weights: "f32" or "f64".
        stored: Element type of initial states and outputs.
        units: Units of a panel.
        heights: Of tiles.
        tensors: Names of the optional operands, each with False if the stride of its units is not known to be 1.
        further: Operands with a parameter of their own, and its name.
    """

    further: ClassVar[tuple[tuple[str, str], ...]] = ()

    cell: Cell
    dtype: str
    stored: str
    units: int
    heights: tuple[int, ...]
    tensors: tuple[tuple[str, bool], ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        passes = [(p.gates, p.source, p.reads, [(n, e.key) for n, e in p.writes]) for p in self.cell.passes]
        text = (
            f"{self.cell.gates};{self.cell.states};{passes};"
            f"{self.dtype};{self.stored};{self.units};{self.heights};{self.tensors}"
        )
        return "recurrence_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def params(self) -> list[str]:
        """Names of the parameters in order."""
        names = [*_SIZES, *(f"weights{i}" for i in range(len(self.cell.passes)))]
        for tensor, _ in self.tensors:
            names += [n for name, n in self.further if name == tensor]
            if tensor in _TENSORS:
                names += [f"{tensor}_at", *(f"{tensor}_{a}" for a in range(_TENSORS[tensor]))]
        return names

    def module(self, name: str) -> str:
        """LLVM text."""
        return RecurrenceWriter(self, name).write()


class CheckedRecurrenceCode(RecurrenceCode):
    """A time loop that reads sequence lengths: one outside [0, steps] is refused."""

    checks = True


def state_elements(cell: Cell, units: int, panels: DimLike) -> DimLike:
    """Elements of scratch memory that one batch entry of one direction needs."""
    return panels * (units * (2 + len(cell.states))) + MOST_MEMBERS * cell.gates * units


def team_elements(dtype: str, directions: int, batch: DimLike, height: int) -> DimLike:
    """Elements of scratch memory, zero at first, that the teams of blocks of at least ``height`` entries need."""
    return D.ceildiv(batch, height) * (directions * TEAM_BYTES * 8 // bits(dtype))


class RecurrenceWriter:
    """Writes the kernel: :meth:`write` is the function, the rest are its parts from the outside to the inside."""

    def __init__(self, code: RecurrenceCode, name: str) -> None:
        self.code = code
        self.cell = code.cell
        self.dtype = code.dtype
        self.b = b = Builder(name)
        self.p = {n: b.param(i) for i, n in enumerate(code.params)}
        self.width = Panel(code.dtype, 1, code.units).width
        self.weights = b.operand(0)
        scratch = b.operand(1)
        self.tensor = {n: b.operand(2 + i) for i, (n, _) in enumerate(code.tensors)}
        self.unit = dict(code.tensors)
        for n in _TENSORS:
            if n in self.tensor:
                self.tensor[n] = b.address(self.tensor[n], self.element(n), self.p[f"{n}_at"])
        self.padded = b.mul(self.p["panels"], code.units)
        self.inputs = b.address(scratch, self.dtype, self.p["inputs_at"])
        self.states = b.address(scratch, self.dtype, self.p["states_at"])
        # places in an entry's states, in elements; the hidden state's is chosen by the step
        self.place = {s: b.mul(self.padded, 2 + i) for i, s in enumerate(self.cell.states)}
        self.sums_at = b.mul(self.padded, 2 + len(self.cell.states))
        self.entry_size = b.add(self.sums_at, MOST_MEMBERS * self.cell.gates * code.units)
        # what is multiplied: its type, and how many elements of it there are
        self.summed = self.dtype
        self.depth = self.p["hidden"]

    def element(self, tensor: str) -> str:
        """Element type of one of :data:`_TENSORS`."""
        return "i32" if tensor == "lengths" else self.code.stored

    def at(self, tensor: str, *indices: str) -> str:
        """Address of an element, or of a row, of an optional operand."""
        base = self.tensor[tensor]
        for axis, index in enumerate(indices):
            base = self.b.address(base, self.element(tensor), self.b.mul(index, self.p[f"{tensor}_{axis}"]))
        return base

    def entry(self, index: str) -> str:
        """Address of the states of an entry of the task's block."""
        return self.b.address(self.block_states, self.dtype, self.b.mul(index, self.entry_size))

    # the function

    def write(self) -> str:
        """LLVM text of the module."""
        b, p = self.b, self.p
        teams = b.address(b.operand(1), self.dtype, p["teams_at"])
        with b.loop("%first", "%last") as task:
            number, block = b.divmod(b.divmod(task, p["members"])[0], p["blocks"])
            self.direction = b.add(number, p["first_direction"])
            self.backward = b.compare("ne", b.op(f"or i64 {self.direction}, {p['reverse']}"), 0)
            self.first = b.mul(block, p["block"])
            self.count = b.min(b.sub(p["batch"], self.first), p["block"])
            entry = b.add(b.mul(self.direction, p["batch"]), self.first)
            self.block_states = b.address(self.states, self.dtype, b.mul(entry, self.entry_size))
            team = b.add(b.mul(self.direction, p["blocks"]), block)
            self.rounds = Rounds(b, b.op(f"getelementptr i8, ptr {teams}, i64 {b.mul(team, TEAM_BYTES)}"))
            self.own_sums_at = b.add(self.sums_at, b.mul(self.rounds.member, self.cell.gates * self.code.units))
            with b.when(self.rounds.leads):
                self._begin()
            stop = self._longest()
            states = (("i64", "0"), ("i64", self.padded))
            with b.loop_carrying(0, self.rounds.left(stop), 1, states) as (step, (old, new), following):
                with b.when(self.rounds.leads):
                    self._prepare(step, old)
                for number_, pass_ in enumerate(self.cell.passes):
                    self._pass(number_, pass_, step, old, new)
                following.extend((new, old))
            with b.when(self.rounds.leads):
                self.rounds.end()
                self._clear(stop)
                self._finish(following[0])
        functions: dict[str, Builder] = {}
        for pass_ in self.cell.passes:
            for f in product_functions(self._panel(pass_), self.code.heights, self.summed, unit=True):
                functions[f.name] = f
        return b.module(*functions.values())

    def _panel(self, pass_: Pass) -> Panel:
        return Panel(self.summed, len(pass_.gates), self.code.units)

    # before the first step and after the last

    def _begin(self) -> None:
        """Initial states."""
        b = self.b
        with b.loop(0, self.count) as row:
            states = self.entry(row)
            for tensor, state in (("h0", "h"), ("c0", "c")):
                if state != "h" and state not in self.place:
                    continue
                target = b.address(states, self.dtype, self.place[state]) if state != "h" else states
                if tensor in self.tensor:
                    self._load_state(tensor, self.at(tensor, self.direction, b.add(self.first, row)), target)
                    continue
                with b.loop(0, self.padded, self.width) as u:
                    Printer(b, self.width).store(self.dtype, self._zero(), b.address(target, self.dtype, u))

    def _load_state(self, tensor: str, source: str, target: str) -> None:
        """Copy one entry's initial state."""
        b, stored = self.b, self.code.stored
        x = cast(operand(0, stored), self.dtype)
        if self.unit[tensor]:
            with self._vectors() as (u, count):
                printer = Printer(b, self.width)
                loaded = printer.load_masked(stored, b.address(source, stored, u), count)
                printer.store(self.dtype, printer.value(x, [loaded]), b.address(target, self.dtype, u))
            return
        with b.loop(0, self.p["hidden"]) as u:
            one = Printer(b, 1)
            loaded = one.load(stored, b.address(source, stored, b.mul(u, self.p[f"{tensor}_2"])))
            one.store(self.dtype, one.value(x, [loaded]), b.address(target, self.dtype, u))

    def _zero(self) -> str:
        return "zeroinitializer" if self.width > 1 else "0.0"

    @contextmanager
    def _vectors(self) -> Iterator[tuple[str, str]]:
        """A loop over the hidden units: first unit and number of units of each vector."""
        with self.b.loop(0, self.p["hidden"], self.width) as u:
            yield u, self.b.min(self.b.sub(self.p["hidden"], u), self.width)

    def _longest(self) -> str:
        """Number of steps that some entry of the block takes."""
        b = self.b
        if "lengths" not in self.tensor:
            return self.p["steps"]
        with b.loop_carrying(0, self.count, 1, (("i64", "0"),)) as (row, (most,), following):
            following.append(b.max(most, self._length(row, check=True)))
        return following[0]

    def _length(self, row: str, *, check: bool = False) -> str:
        """Steps of an entry of the block, brought into [0, steps]."""
        b = self.b
        if "lengths" not in self.tensor:
            return self.p["steps"]
        narrow = b.op(f"load i32, ptr {self.at('lengths', b.add(self.first, row))}")
        given = b.op(f"sext i32 {narrow} to i64")
        length = b.max(b.min(given, self.p["steps"]), 0)
        if check:
            word = b.op(f"getelementptr i64, ptr %params, i64 {len(self.p)}")
            b.branch(b.compare("ne", given, length), lambda: b.emit(f"store i64 1, ptr {word}"))
        return length

    def _clear(self, stop: str) -> None:
        """Outputs of the steps that no entry of the block takes."""
        if "y" not in self.tensor or "lengths" not in self.tensor:
            return
        b = self.b
        with b.loop(stop, self.p["steps"]) as step, b.loop(0, self.count) as row, self._vectors() as (u, count):
            self._store(self._zero(), self._y(step, row), u, count)

    def _finish(self, hidden: str) -> None:
        """Final states; ``hidden`` is where the hidden state is."""
        b = self.b
        for tensor, place in (("y_h", hidden), ("y_c", self.place.get("c", ""))):
            if tensor not in self.tensor:
                continue
            with b.loop(0, self.count) as row:
                source = b.address(self.entry(row), self.dtype, place)
                target = self.at(tensor, self.direction, b.add(self.first, row))
                with self._vectors() as (u, count):
                    printer = Printer(b, self.width)
                    loaded = printer.load(self.dtype, b.address(source, self.dtype, u))
                    value = printer.value(cast(operand(0, self.dtype), self.code.stored), [loaded])
                    self._store(value, target, u, count)

    def _y(self, time: str, row: str) -> str:
        return self.at("y", time, self.direction, self.b.add(self.first, row))

    def _store(self, value: str, row: str, u: str, count: str) -> None:
        """Store the first ``count`` elements of a vector of the stored type."""
        b, stored = self.b, self.code.stored
        printer = Printer(b, self.width)
        at = b.address(row, stored, u)
        b.branch(
            b.compare("sge", count, self.width),
            lambda: printer.store(stored, value, at),
            lambda: printer.store_masked(stored, value, at, count),
        )

    # a step

    def _prepare(self, step: str, old: str) -> None:
        """What the leader does before a step's products; ``old`` is where the hidden states are."""

    def _multiplied(self, pass_: Pass, old: str) -> str:
        """Where in an entry's states that is what a pass multiplies."""
        return old if pass_.source == "h" else self.place[pass_.source]

    def _pass(self, number: int, pass_: Pass, step: str, old: str, new: str) -> None:
        """All panels of one product, each followed by its units' states."""
        b, p, passes = self.b, self.p, len(self.cell.passes)
        panel = self._panel(pass_)
        size = b.mul(self.depth, panel.line)
        weights = b.address(self.weights, self.dtype, p[f"weights{number}"])
        weights = b.address(weights, self.dtype, b.mul(b.mul(self.direction, p["panels"]), size))
        rows = Rows(
            self.count,
            b.address(self.block_states, self.dtype, self._multiplied(pass_, old)),
            self.entry_size,
            1,
            b.address(self.block_states, self.dtype, self.own_sums_at),
            self.entry_size,
        )
        odd = b.compare("ne", b.op(f"and i64 {step}, 1"), 0)
        with self.rounds.shared(b.add(b.mul(step, passes), number + 1)) as (part, parts):
            start = b.op(f"udiv i64 {b.mul(p['panels'], part)}, {parts}")
            end = b.op(f"udiv i64 {b.mul(p['panels'], b.add(part, 1))}, {parts}")
            self._begin_part()
            with b.loop(start, end) as turn:
                # every other step goes back over the panels: those that it starts with are still in the cache
                back = b.sub(b.add(start, b.sub(end, 1)), turn)
                index = b.op(f"select i1 {odd}, i64 {back}, i64 {turn}")
                at = b.address(weights, self.dtype, b.mul(index, size))
                emit_product(b, panel, self.code.heights, self.summed, rows, at, self.depth)
                with b.loop(0, self.count) as row:
                    self._units(pass_, index, row, step, (old, new))

    def _begin_part(self) -> None:
        """What a thread does before its part of a product's panels."""

    def _units(self, pass_: Pass, panel: str, row: str, step: str, hidden: tuple[str, str]) -> None:
        """New states of a panel's units of one entry; ``hidden`` is where the hidden states are and will be."""
        b = self.b
        length = self._length(row)
        last = b.sub(b.sub(length, 1), step)
        time = b.op(f"select i1 {self.backward}, i64 {last}, i64 {step}")
        for part in range(self.code.units // self.width):
            place = Place(panel, part, row, time, *hidden)
            if "lengths" not in self.tensor:
                self._unit(pass_, place)
                continue
            b.branch(
                b.compare("slt", step, length),
                functools.partial(self._unit, pass_, place),
                functools.partial(self._ended, pass_, place, step),
            )

    def _unit(self, pass_: Pass, place: Place) -> None:
        """New states of one vector of units of one entry."""
        b, dtype, width, units = self.b, self.dtype, self.width, self.code.units
        printer = Printer(b, width)
        states = self.entry(place.row)
        lane = place.part * width
        first = b.add(b.mul(place.panel, units), lane)
        sums = b.address(b.address(states, dtype, self.own_sums_at), dtype, lane)
        inputs = b.address(self.inputs, dtype, b.mul(self.direction, self.p["inputs_direction"]))
        inputs = b.address(inputs, dtype, b.mul(place.time, self.p["inputs_step"]))
        inputs = b.address(inputs, dtype, b.mul(b.add(self.first, place.row), self.p["inputs_entry"]))
        operands = self._sums(pass_, place, [b.address(sums, dtype, i * units) for i in range(len(pass_.gates))])
        operands += [self._input(place, inputs, g, first) for g in pass_.gates]
        for name in pass_.reads:
            operands.append(printer.load(dtype, self._read(name, place, states, first, lane)))
        values = {name: printer.value(expr, operands) for name, expr in pass_.writes}
        stored = {
            name: printer.value(cast(expr, self.code.stored), operands)
            for name, expr in pass_.writes
            if name == "h" and "y" in self.tensor
        }
        for name, value in values.items():
            target = place.new if name == "h" else self.place[name]
            printer.store(dtype, value, b.address(b.address(states, dtype, target), dtype, first))
        if stored:
            self._store(stored["h"], self._y(place.time, place.row), first, b.sub(self.p["hidden"], first))

    def _sums(self, pass_: Pass, place: Place, sums: Sequence[str]) -> list[str]:
        """A vector of each gate's sums, from where they are."""
        del pass_, place
        return [Printer(self.b, self.width).load(self.dtype, at) for at in sums]

    def _input(self, place: Place, line: str, gate: int, first: str) -> str:
        """A vector of a gate's projected inputs from unit ``first`` on; ``line`` is where those of all gates are."""
        del first
        lane = gate * self.code.units + place.part * self.width
        at = self.b.add(self.b.mul(place.panel, self.cell.gates * self.code.units), lane)
        return Printer(self.b, self.width).load(self.dtype, self.b.address(line, self.dtype, at))

    def _read(self, name: str, place: Place, states: str, first: str, lane: int) -> str:
        """Address of a further operand of a pass."""
        b, units = self.b, self.code.units
        if name == "h":
            return b.address(b.address(states, self.dtype, place.old), self.dtype, first)
        if name in self.place:
            return b.address(b.address(states, self.dtype, self.place[name]), self.dtype, first)
        number = b.add(b.mul(self.direction, self.p["panels"]), place.panel)
        if name == "rb":
            base = b.address(self.tensor["bias"], self.dtype, self.p["bias_at"])
            return b.address(base, self.dtype, b.add(b.mul(number, units), lane))
        base = b.address(self.tensor["peepholes"], self.dtype, self.p["peepholes_at"])
        return b.address(base, self.dtype, b.add(b.mul(number, 3 * units), int(name[1:]) * units + lane))

    def _ended(self, pass_: Pass, place: Place, step: str) -> None:
        """A sequence that has ended keeps its states, and its outputs are zero."""
        if all(name != "h" for name, _ in pass_.writes):
            return
        b, dtype = self.b, self.dtype
        printer = Printer(b, self.width)
        states = self.entry(place.row)
        first = b.add(b.mul(place.panel, self.code.units), place.part * self.width)
        kept = printer.load(dtype, b.address(b.address(states, dtype, place.old), dtype, first))
        printer.store(dtype, kept, b.address(b.address(states, dtype, place.new), dtype, first))
        if "y" in self.tensor:
            self._store(self._zero(), self._y(step, place.row), first, b.sub(self.p["hidden"], first))


@record
class Place:
    """Where in a step code is: panel, vector of the panel's units, entry of the block, time, and hidden states."""

    panel: str
    part: int
    row: str
    time: str
    old: str
    new: str


@record
class Places:
    """Where operands lie.

    Attributes:
        weights: Where each pass's panels begin, in elements of the weights.
        inputs: Projected inputs in scratch memory: first element; strides of step, entry and direction.
        states: States in scratch memory, see :func:`state_elements`.
        teams: Teams in scratch memory, see :func:`team_elements`.
        peepholes: First element of the packed peepholes.
        bias: First element of the packed recurrence bias.
        tensors: Access of each optional operand: lengths over [batch], states over [direction, batch, hidden], outputs
            over [step, direction, batch, hidden].
    """

    weights: tuple[DimLike, ...]
    inputs: tuple[DimLike, DimLike, DimLike, DimLike]
    states: DimLike
    teams: DimLike
    peepholes: DimLike
    bias: DimLike
    tensors: Mapping[str, Access]


def recurrence_phase(
    cell: Cell,
    dtypes: tuple[str, str],
    units: int,
    heights: tuple[int, ...],
    sizes: tuple[DimLike, DimLike, DimLike, DimLike],
    directions: tuple[int, int, bool],
    places: Places,
    operands: Mapping[str, int],
    make: Callable[..., RecurrenceCode] | None = None,
    further: Mapping[str, tuple[DimLike, ...]] = MappingProxyType({}),
) -> Phase:
    """The time loop of some directions.

    Args:
        cell: What a step does.
        dtypes: Of states, and of initial states and outputs.
        units: Units of a panel.
        heights: Of tiles.
        sizes: Steps, batch, hidden units, panels.
        directions: First direction, number of directions, and whether direction 0 runs backwards.
        places: Where operands lie.
        operands: Number of each operand: "weights", "scratch", then in this order as far as they exist "peepholes",
            "bias", those of ``further``, "h0", "c0", "lengths", "y", "y_h", "y_c".
        make: Makes the code from its attributes; by default one of the classes here.
        further: Further operands and the parameters that belong to each, if the code has such. The batch is not cut
            into blocks then.
    """
    optional = [n for n in ("peepholes", "bias", *further, *_TENSORS) if n in operands]
    unit = [n not in ("h0", "c0") or places.tensors[n].strides[-1] == 1 for n in optional]
    if make is None:
        make = CheckedRecurrenceCode if "lengths" in operands else RecurrenceCode
    code = make(cell, *dtypes, units, heights, tuple(zip(optional, unit, strict=True)))
    steps, batch, hidden, panels = sizes
    first, count, reverse = directions
    dims: list[DimLike] = [steps, batch, hidden, panels, first, int(reverse), count]
    dims += [places.teams, *places.inputs, places.states, places.peepholes, places.bias, *places.weights]
    for n in optional:
        dims += further.get(n, ())
        if n in _TENSORS:
            dims += [places.tensors[n].offset, *places.tensors[n].strides]
    numbers = tuple(operands[n] for n in ("weights", "scratch", *optional))
    columns = sum(len(p.gates) for p in cell.passes) * units
    weights = "i32" if further else dtypes[0]
    return Phase(code, numbers, tuple(dims), functools.partial(_launch, 0 if further else heights[0], columns, weights))


def _launch(height: int, columns: int, weights: str, sizes: Sequence[int]) -> Launch:
    """Tasks of ``height`` or more entries (0: of all) and a panel's ``columns``; ``weights`` are of this type."""
    steps, batch, hidden, panels, first, reverse, count, *rest = sizes
    size = panels * hidden * columns * (bits(weights) // 8)  # bytes of one direction's weights
    tiles = min(4, max(1, size // _NEAR_BYTES))
    block = height * tiles or max(1, batch)
    blocks = -(-batch // block)
    step_ns = min(block, batch) * panels * columns * (hidden / _PRODUCTS[weights] + _GATE_NS)
    members = max(1, min(MOST_MEMBERS, panels, int(step_ns / _MEMBER_NS)))
    params = (steps, batch, hidden, panels, first, reverse, block, blocks, members, *rest)
    return Launch(params, count * blocks * members)
