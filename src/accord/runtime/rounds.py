"""Rounds of a loop whose body is native and whose values keep their sizes: bound once, started again and again.

What a round hands to the next one has two arrays, which are read and written by turns; what is collected is written to
where it belongs. So a round takes one copy of the operand table and one call.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from accord.backends.protocol import Program, Rounds
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

#: Bytes for which there is room at first, where a condition says how many rounds there are.
_ROOM = 1 << 20
#: Fewer rounds are started one by one.
_FEW = 4
#: Seconds of rounds that are run with one call: nothing interrupts it.
_CALL = 0.05


@dataclass(slots=True)
class Rows:
    """An input of which each round reads a row.

    Attributes:
        array: Row-major, rows first.
        backwards: The last row comes first.
    """

    array: Array
    backwards: bool = False

    @property
    def step(self) -> int:
        """Bytes from the row of one round to that of the next."""
        width: int = self.array[:1].nbytes
        return -width if self.backwards else width

    def place(self, i: int) -> int:
        """Which row round ``i`` reads."""
        return len(self.array) - 1 - i if self.backwards else i


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


@dataclass(slots=True)
class _Way:
    """How a round is started.

    Attributes:
        words: The operand table.
        copies: What is copied after it: target and source.
    """

    words: Array
    copies: list[tuple[Array, Array]]

    @property
    def is_plain(self) -> bool:
        """Whether all that is copied lies without gaps."""
        return all(t.flags.c_contiguous and s.flags.c_contiguous and t.dtype == s.dtype for t, s in self.copies)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _turn(i: int) -> int:
    """Which way round ``i`` is started, and which arrays hold what it is given."""
    return i if i < 3 else 1 + (i - 1) % 2


class _Rounds:
    """One loop's rounds on a frame of its body."""

    def __init__(self, child: Executor, frame: Frame, arena: Arena, body: Body, made: Sequence[Any]) -> None:
        self.child, self.frame, self.arena, self.body = child, frame, arena, body
        self.plan = child.plan
        self.lead = int(body.condition is not None)
        self.first = self.lead + len(body.carried)
        self.made = made
        #: Where a round writes the condition and one row of what is collected, by position.
        single = [*range(self.lead), *range(self.first, len(made))]
        self.single = {p: np.empty(*made[p]) for p in single}
        row = sum(self.single[p].nbytes for p in range(self.first, len(made)))
        room = max(1, _ROOM // max(row, 1))
        if body.count is not None:  # a condition may end it long before
            room = body.count if body.condition is None else min(room, body.count)
        self.collected: list[Array] = [np.empty((room, *shape), dtype) for shape, dtype in made[self.first :]]
        refuse_too_many(sum(c.nbytes for c in self.collected), 0)
        roots = Counter(self.plan.slots[i].root for i in self.plan.outputs)
        #: The first of the outputs that are the same memory is where it is written; others are copies.
        owned: dict[int, int] = {}
        for position, _, written, _ in child._owned:
            if written not in owned.values():
                owned[position] = written
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
        #: Outputs that no phase writes where they are wanted: position and slot.
        self.others = [(p, i) for p, i in enumerate(self.plan.outputs) if p not in owned]
        #: Inputs before those that are carried.
        self.given = at - len(body.carried)
        self.places = [_address(c) for c in self.collected]
        self.programs = [s for s in frame.segments if not isinstance(s, int)]

    def run(self) -> Result:
        """All rounds."""
        body = self.body
        hands: list[Sequence[Any]] = [body.carried, self._arrays()]
        ways = [self._first_way(hands[1])]
        i, goes_on, began = 0, True, time.perf_counter()
        while goes_on and (body.count is None or i < body.count):
            if i == 1:
                hands.append(self._arrays())
                ways.append(self._way(ways[0], hands[1], hands[2]))
            elif i == 2:
                ways.append(self._way(ways[0], hands[2], hands[1]))
            if self.collected and i == len(self.collected[0]):
                self._grow(i)
            if i > 2 and (body.count is None or body.count - i >= _FEW) and self._is_native(ways):
                pace = (time.perf_counter() - began) / i
                most = [max(1, int(_CALL / pace)), *(len(c) - i for c in self.collected)]
                i += self._several(ways[1:], i, min(most if body.count is None else [*most, body.count - i]))
            else:
                self._one(ways[_turn(i)], i)
                i += 1
            goes_on = not self.lead or bool(self.single[0].item())
        return i, list(hands[_turn(i)]), [c if len(c) == i else c[:i] for c in self.collected]

    def _one(self, way: _Way, i: int) -> None:
        """Round ``i``."""
        table, cells = self.frame._table, self.frame._cells
        table[:] = way.words
        if self.body.round is not None:
            self.body.round[...] = i
        for cell, value, _ in self._moving(i):
            cells[cell] = value  # type: ignore[index]
        for rows, place in self.fetched:
            np.copyto(place, rows.array[rows.place(i)])
        for program, steps in self.programs:
            self._refuse(steps, program.run(), program)
        for target, source in way.copies:
            np.copyto(target, source)
        for k in self.copied:
            self.collected[k][i] = self.single[self.first + k]

    def _several(self, ways: Sequence[_Way], i: int, most: int) -> int:
        """Up to ``most`` rounds from round ``i`` on, with one call; how many there were."""
        ((program, steps),) = self.programs
        table = self.frame._table
        base = _address(table)
        counters = [(base + 8 * cell, value, step) for cell, value, step in self._moving(i)]
        if self.body.round is not None:
            counters.append((_address(self.body.round), i, 1))
        before = [
            (_address(place), _address(rows.array) + rows.place(i) * place.nbytes, place.nbytes, 0, rows.step)
            for rows, place in self.fetched
        ]
        after = [[(_address(t), _address(s), t.nbytes, 0, 0) for t, s in w.copies] for w in ways]
        collected = []
        for k in self.copied:
            row = self.single[self.first + k]
            target = self.places[k] + i * row.nbytes
            collected.append((target, _address(row), row.nbytes, row.nbytes, 0))
        now, then = (1, 0) if _turn(i) == 2 else (0, 1)
        rounds = Rounds(
            table,
            (ways[now].words, ways[then].words),
            counters,
            before,
            (after[now], after[then]),
            collected,
            _address(self.single[0]) if self.lead else 0,
        )
        done, failed = program.repeat(rounds, most)
        self._refuse(steps, failed, program)
        return done

    def _is_native(self, ways: Sequence[_Way]) -> bool:
        return len(self.programs) == 1 and self.programs[0][0].repeats and all(w.is_plain for w in ways)

    def _refuse(self, steps: Sequence[int], failed: int, program: Program) -> None:
        if failed >= 0:
            raise self.child._refused(steps[failed], program.refusal)

    def _moving(self, i: int) -> list[tuple[int, int, int]]:
        """Entries of the table that are other places in each round: which, where in round ``i``, and the step."""
        found = []
        for k, entries in self.in_place:
            width = self.single[self.first + k].nbytes
            address = self.places[k] + i * width
            found += [(cell, address + start, width) for cell, start in entries]
        for rows, entries in self.read:
            address = _address(rows.array) + rows.place(i) * abs(rows.step)
            found += [(cell, address + start, rows.step) for cell, start in entries]
        return found

    def _arrays(self) -> list[Array]:
        """New ones for what a round hands on."""
        return [np.empty(shape, dtype) for shape, dtype in self.made[self.lead : self.first]]

    def _first_way(self, handed: Sequence[Array]) -> _Way:
        """How the first round is started."""
        frame, plan = self.frame, self.plan
        inputs = self.body.inputs(self.body.carried)
        at = len(inputs) - len(self.body.captured) - len(self.now)
        inputs[at : at + len(self.now)] = self.now
        outputs = self.single | dict(enumerate(handed, self.lead))
        arrays = dict(zip(plan.inputs, inputs, strict=True))
        for position, root in self.owned.items():
            arrays.setdefault(root, outputs[position])
        for i, value in zip(plan.inputs, inputs, strict=True):
            frame.values[i] = value
        frame.bind_caller(arrays, self.arena)
        copies = [(outputs[p], frame.values[i]) for p, i in self.others]
        return _Way(frame._table.copy(), copies)

    def _way(self, first: _Way, carried: Sequence[Array], handed: Sequence[Array]) -> _Way:
        """How a later round is started, which differs in what it is given and hands on."""
        frame, plan = self.frame, self.plan
        words = first.words.copy()
        arrays = dict(zip(plan.inputs[self.given :], carried, strict=False))
        arrays |= {self.owned[p]: a for p, a in enumerate(handed, self.lead) if p in self.owned}
        for slot, array in arrays.items():
            entries = frame._entries.get(slot)
            if entries:
                address = _address(array)
                for cell, start in entries:
                    words[cell] = address + start
        outputs = self.single | dict(enumerate(handed, self.lead))
        copies = []
        for (p, i), (_, before) in zip(self.others, first.copies, strict=True):
            root = plan.slots[i].root
            copies.append((outputs[p], frame._caller_part(i, arrays[root]) if root in arrays else before))
        return _Way(words, copies)

    def _grow(self, rounds: int) -> None:
        refuse_too_many(sum(c.nbytes for c in self.collected), rounds)
        room = 2 * rounds if self.body.count is None else min(2 * rounds, self.body.count)
        for k, c in enumerate(self.collected):
            larger = np.empty((room, *c.shape[1:]), c.dtype)
            larger[:rounds] = c
            self.collected[k] = larger
            self.places[k] = _address(larger)


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
