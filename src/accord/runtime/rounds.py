"""Rounds of a loop whose body is native and whose values keep their sizes: bound once, started again and again.

What a round hands to the next one has two arrays, which are read and written by turns; what is collected is written to
where it belongs. So a round takes one copy of the operand table and one call.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from accord.errors import ExecutionError
from accord.model.limits import physical_memory
from accord.runtime.arena import Arena
from accord.runtime.frame import Frame
from accord.runtime.watch import WATCH

if TYPE_CHECKING:
    from accord.runtime.executor import Executor

__all__ = ["Body", "Result", "Rows", "refuse_too_many", "run_rounds"]

Array: TypeAlias = "np.ndarray[Any, Any]"
#: How many rounds there were, what the last one handed on, and what was collected, a row for each round.
Result: TypeAlias = "tuple[int, list[Any], list[Array]]"

#: Rounds for which there is room at first, where nobody says how many there are.
_ROOM = 64


@dataclass(slots=True)
class Rows:
    """An input of which each round reads a row.

    Attributes:
        array: Row-major, rows first.
        backwards: The last row comes first.
    """

    array: Array
    backwards: bool = False


@dataclass(slots=True)
class Body:
    """The inputs of a body in their order, and how it goes on.

    Attributes:
        round: Receives the number of the round; None: the body does not ask for it.
        condition: What the body is told of the condition; its first output then says whether there is another round.
        carried: What the first round gets of what a round hands to the next.
        rows: Inputs that are read by rows.
        captured: Values from outside.
        count: The most rounds; None: no limit.
    """

    round: Array | None
    condition: Array | None
    carried: Sequence[Any]
    rows: Sequence[Rows]
    captured: Sequence[Any]
    count: int | None

    def inputs(self, carried: Sequence[Any]) -> list[Any]:
        """Of a round that gets ``carried``; of rows any one."""
        lead = [v for v in (self.round, self.condition) if v is not None]
        return [*lead, *carried, *(r.array[0] for r in self.rows), *self.captured]


def run_rounds(child: Executor, env: Mapping[str, int], body: Body) -> Result | None:
    """All rounds; None, with nothing done, where they have to be run one by one.

    Raises:
        ExecutionError: a kernel failed, or what is collected does not fit into memory.
    """
    fixed = [*body.carried, *body.captured]
    if body.count == 0 or child.device.memory is not None or child.device.zeros or WATCH.get() is not None:
        return None
    if child._contents or not all(isinstance(v, np.ndarray) and v.dtype != object for v in fixed):
        return None
    body.carried = [np.asarray(v, order="C") for v in body.carried]
    body.captured = [np.asarray(v, order="C") for v in body.captured]
    key, _ = child._sizes(body.inputs(body.carried), env)
    found: Result | None = child._on_frame(key, lambda frame, arena: _rounds(child, frame, arena, body))
    return found


def _rounds(child: Executor, frame: Frame, arena: Arena, body: Body) -> Result | None:
    if any(isinstance(s, int) for s in frame.segments):
        return None
    plan = child.plan
    made = [(frame.returned.get(i), plan.slots[i].dtype) for i in plan.outputs]
    if any(shape is None or dtype is None for shape, dtype in made):
        return None
    lead = int(body.condition is not None)
    if lead and (math.prod(made[0][0] or ()) != 1 or made[0][1] != np.bool_):
        return None
    first = lead + len(body.carried)
    if any((v.shape, v.dtype) != m for v, m in zip(body.carried, made[lead:first], strict=True)):
        return None
    return _Rounds(child, frame, arena, body, made).run()


class _Rounds:
    """One loop's rounds on a frame of its body."""

    def __init__(self, child: Executor, frame: Frame, arena: Arena, body: Body, made: Sequence[Any]) -> None:
        self.child, self.frame, self.arena, self.body = child, frame, arena, body
        self.plan = child.plan
        self.lead = int(body.condition is not None)
        self.first = self.lead + len(body.carried)
        room = _ROOM if body.count is None else body.count
        if body.count is not None and body.condition is not None:
            room = min(room, 1 << 12)  # the condition may end it long before
        self.made = made
        #: Where a round writes the condition and one row of what is collected, by position.
        single = [*range(self.lead), *range(self.first, len(made))]
        self.single = {p: np.empty(*made[p]) for p in single}
        self.collected = [np.empty((room, *shape), dtype) for shape, dtype in made[self.first :]]
        refuse_too_many(sum(c.nbytes for c in self.collected), 0)
        roots = Counter(self.plan.slots[i].root for i in self.plan.outputs)
        owned = {position: root for position, _, root, _ in child._owned}
        #: Positions among what is collected whose rows are written in place, and the table's entries for them.
        self.in_place: list[tuple[int, list[tuple[int, int]]]] = []
        #: Positions among what is collected whose rows are copied.
        self.copied: list[int] = []
        for k in range(len(self.collected)):
            root = owned.get(self.first + k)
            if root is None or roots[root] != 1:
                self.copied.append(k)
            else:
                self.in_place.append((k, frame._entries.get(root, [])))
        #: The same of inputs that are read by rows.
        self.read: list[tuple[Rows, list[tuple[int, int]]]] = []
        self.fetched: list[tuple[Rows, Array]] = []
        at = len([v for v in (body.round, body.condition) if v is not None]) + len(body.carried)
        self.now = [np.array(r.array[0]) for r in body.rows]
        for k, rows in enumerate(body.rows):
            slot = self.plan.inputs[at + k]
            if roots[slot]:
                self.fetched.append((rows, self.now[k]))
            else:
                self.read.append((rows, frame._entries.get(slot, [])))
        self.owned = owned

    def run(self) -> Result:
        """All rounds."""
        body, frame = self.body, self.frame
        table, cells = frame._table, frame._cells
        hands: list[Sequence[Any]] = [body.carried, self._arrays()]
        ways = [self._way(hands[0], hands[1])]
        programs = [s for s in frame.segments if not isinstance(s, int)]
        goes_on = self.single[0] if self.lead else None
        addresses = [c.ctypes.data for c in self.collected]
        widths = [c[:1].nbytes for c in self.collected]
        reads = [
            (cell, start + rows.array.ctypes.data, -width if rows.backwards else width, len(rows.array))
            for rows, entries in self.read
            for width in [rows.array[:1].nbytes]
            for cell, start in entries
        ]
        i = way = 0
        while body.count is None or i < body.count:
            if i == 1:
                hands.append(self._arrays())
                ways.append(self._way(hands[1], hands[2]))
            elif i == 2:
                ways.append(self._way(hands[2], hands[1]))
            words, copies = ways[way]
            table[:] = words
            if body.round is not None:
                body.round[...] = i
            if self.collected and i == len(self.collected[0]):
                self._grow(i)
                addresses = [c.ctypes.data for c in self.collected]
            for k, entries in self.in_place:
                for cell, start in entries:
                    cells[cell] = addresses[k] + i * widths[k] + start  # type: ignore[index]
            for cell, address, width, count in reads:
                row = count - 1 - i if width < 0 else i
                cells[cell] = address + row * abs(width)  # type: ignore[index]
            for rows, place in self.fetched:
                np.copyto(place, rows.array[-1 - i if rows.backwards else i])
            for program, steps in programs:
                failed = program.run()
                if failed >= 0:
                    raise self.child._refused(steps[failed], program.refusal)
            for target, source in copies:
                np.copyto(target, source)
            for k in self.copied:
                self.collected[k][i] = self.single[self.first + k]
            i += 1
            way = 1 + (i - 1) % 2
            if goes_on is not None and not goes_on.item():
                break
        return i, list(hands[1 + (i - 1) % 2]), [c if len(c) == i else c[:i] for c in self.collected]

    def _arrays(self) -> list[Array]:
        """New ones for what a round hands on."""
        return [np.empty(shape, dtype) for shape, dtype in self.made[self.lead : self.first]]

    def _way(self, carried: Sequence[Any], handed: Sequence[Any]) -> tuple[Array, list[tuple[Array, Any]]]:
        """The operand table of a round, and what is copied after it."""
        frame, plan = self.frame, self.plan
        inputs = self.body.inputs(carried)
        at = len(inputs) - len(self.body.captured) - len(self.now)
        inputs[at : at + len(self.now)] = self.now
        outputs = self.single | dict(enumerate(handed, self.lead))
        arrays = dict(zip(plan.inputs, inputs, strict=True))
        for position, root in self.owned.items():
            arrays.setdefault(root, outputs[position])
        for i, value in zip(plan.inputs, inputs, strict=True):
            frame.values[i] = value
        frame.bind_caller(arrays, self.arena)
        others = [p for p in outputs if p not in self.owned]
        return frame._table.copy(), [(outputs[p], frame.values[plan.outputs[p]]) for p in others]

    def _grow(self, rounds: int) -> None:
        refuse_too_many(sum(c.nbytes for c in self.collected), rounds)
        for k, c in enumerate(self.collected):
            larger = np.empty((2 * rounds, *c.shape[1:]), c.dtype)
            larger[:rounds] = c
            self.collected[k] = larger


def refuse_too_many(held: int, rounds: int) -> None:
    """Refuse to collect ``held`` bytes and as many more.

    Raises:
        ExecutionError: there is not so much memory.
    """
    if 2 * held > physical_memory():
        raise ExecutionError(
            "the loop's scan outputs do not fit into memory",
            expected=f"at most {physical_memory() // 2:,} bytes",
            found=f"{held:,} bytes after {rounds} iterations",
            remedy="Check the number of iterations and the condition.",
        )
