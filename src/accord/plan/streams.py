"""Which steps of a plan run on which stream, and what has to wait for what.

The steps of a device between two that the host runs may overlap where nothing orders them. The longest path by
estimated work keeps stream 0, so nothing stands between its steps. A path beside it gets another stream where its
work is more than the events cost that it needs; what is left follows whatever it waits for last. Events stand where a
step needs one of another stream that earlier events and the order on each stream do not put before it already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from accord.backends.memory import HOST
from accord.backends.protocol import Backend, Concurrency, NativeKernel
from accord.ir import dims as D
from accord.ir.compute import representative
from accord.ir.dims import DimLike
from accord.plan.plan import Plan, Step
from accord.record import record

__all__ = ["Task", "dependencies", "divide", "events", "with_streams"]


@record
class Task:
    """A step as the division sees it.

    Attributes:
        seconds: Estimated time.
        after: Numbers of the earlier tasks whose end it needs.
        engine: 0: it computes; 1 or 2: it copies to the device or from it, which an engine of its own does.
    """

    seconds: float
    after: tuple[int, ...] = ()
    engine: int = 0


def divide(tasks: Sequence[Task], *, most: int, event: float) -> list[int]:
    """The stream of each task.

    Args:
        tasks: In the order in which they are started, which is one that their dependencies allow.
        most: Streams for what computes; large copies have two more.
        event: Seconds that waiting for another stream costs.
    """
    if not tasks or most < 2 or sum(t.seconds for t in tasks) <= 2 * event:
        return [0] * len(tasks)
    readers: list[list[int]] = [[] for _ in tasks]
    for i, t in enumerate(tasks):
        for a in t.after:
            readers[a].append(i)
    streams = dict.fromkeys(_longest(tasks, range(len(tasks)))[1], 0)
    streams |= {
        i: most - 1 + t.engine for i, t in enumerate(tasks) if i not in streams and t.engine and t.seconds > 2 * event
    }
    ends: list[float] = []
    for t in tasks:
        ends.append(max((ends[a] for a in t.after), default=0.0) + t.seconds)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(most)]
    rest = [i for i in range(len(tasks)) if i not in streams]
    while rest:
        seconds, path = _longest(tasks, rest)
        if seconds <= event * max(2, _crossings(path, tasks, readers)):
            break
        span = ends[path[0]] - tasks[path[0]].seconds, ends[path[-1]]
        chosen = min(range(1, most), key=lambda s: _overlap(span, busy[s]))
        busy[chosen].append(span)
        streams.update(dict.fromkeys(path, chosen))
        rest = [i for i in rest if i not in streams]
    for i in rest:
        last = max(tasks[i].after, key=lambda a: ends[a], default=-1)
        streams[i] = streams[last] if last >= 0 else _stream_of_reader(i, readers, streams)
    return [streams[i] for i in range(len(tasks))]


def _longest(tasks: Sequence[Task], among: Sequence[int]) -> tuple[float, list[int]]:
    """The path of most work that has only tasks of ``among``, and its seconds."""
    best: dict[int, float] = {}
    before: dict[int, int] = {}
    for i in among:
        source = max((a for a in tasks[i].after if a in best), key=best.__getitem__, default=-1)
        best[i] = tasks[i].seconds + best.get(source, 0.0)
        before[i] = source
    path = [max(best, key=best.__getitem__)]
    seconds = best[path[0]]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return seconds, path[::-1]


def _crossings(path: Sequence[int], tasks: Sequence[Task], readers: Sequence[Sequence[int]]) -> int:
    """Places at which a path waits for others, and at which others wait for it."""
    inside = set(path)
    waits = sum(not inside.issuperset(tasks[i].after) for i in path)
    return waits + sum(not inside.issuperset(readers[i]) for i in path)


def _overlap(span: tuple[float, float], spans: Sequence[tuple[float, float]]) -> float:
    return sum(max(0.0, min(span[1], stop) - max(span[0], start)) for start, stop in spans)


def _stream_of_reader(task: int, readers: Sequence[Sequence[int]], streams: Mapping[int, int]) -> int:
    """The stream of the first task that reads what a task makes, or what that one's first reader makes ..."""
    while task not in streams and readers[task]:
        task = min(readers[task])
    return streams.get(task, 0)


def events(streams: Sequence[int], after: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """For each task the tasks of other streams whose events it waits for, and what has ended when it starts.

    Args:
        streams: Of each task.
        after: Tasks whose end each needs.

    Returns:
        The fewest events that give all dependencies; and sets of tasks, a bit for each.
    """
    waits: list[tuple[int, ...]] = []
    ended: list[int] = []
    last: dict[int, int] = {}  # on each stream
    for i, (stream, needed) in enumerate(zip(streams, after, strict=True)):
        before = last.get(stream, -1)
        known = 0 if before < 0 else ended[before] | 1 << before
        found = []
        for a in sorted(needed, reverse=True):  # a later one may imply an earlier one, never the other way round
            if not known >> a & 1:
                found.append(a)
                known |= ended[a] | 1 << a
        waits.append(tuple(found[::-1]))
        ended.append(known)
        last[stream] = i
    return waits, ended


def dependencies(plan: Plan, steps: Sequence[int], homes: Mapping[int, int]) -> list[tuple[int, ...]]:
    """For each of ``steps`` the numbers among them of those that must end before it starts.

    A step that reads needs what wrote the memory; one that writes (in place, a part of a join) needs what read or wrote
    it too. Two parts of one join are apart.

    Args:
        plan: The plan.
        steps: Native steps of one program, in order.
        homes: Slots that are parts of a join: the slot that joins them.
    """
    written: dict[int, list[tuple[int, int]]] = {}  # root → tasks and their slots
    read: dict[int, list[tuple[int, int]]] = {}
    found = []
    for task, index in enumerate(steps):
        step = plan.steps[index]
        needed: set[int] = set()
        for slots, is_write in ((step.inputs, False), (step.outputs, True)):
            for slot in slots:
                if slot < 0:
                    continue
                root = plan.slots[slot].root
                earlier = [*written.get(root, ()), *(read.get(root, ()) if is_write else ())]
                needed.update(t for t, other in earlier if not _apart(slot, other, homes))
        needed.discard(task)
        found.append(tuple(sorted(needed)))
        for slot in step.inputs:
            if slot >= 0:
                read.setdefault(plan.slots[slot].root, []).append((task, slot))
        for slot in step.outputs:
            if slot >= 0:
                _note_write(plan, task, slot, written, read)
    return found


def _note_write(
    plan: Plan,
    task: int,
    slot: int,
    written: dict[int, list[tuple[int, int]]],
    read: dict[int, list[tuple[int, int]]],
) -> None:
    s = plan.slots[slot]
    if slot == s.root or (s.offset == 0 and s.nbytes == plan.slots[s.root].nbytes):  # all others came before
        written[s.root] = [(task, slot)]
        read[s.root] = [(t, i) for t, i in read.get(s.root, ()) if t == task]
    else:
        written.setdefault(s.root, []).append((task, slot))


def _apart(slot: int, other: int, homes: Mapping[int, int]) -> bool:
    """Whether two slots of one root are different parts of a join."""
    if slot not in homes or other not in homes:
        return False
    return other not in _around(slot, homes) and slot not in _around(other, homes)


def _around(slot: int, homes: Mapping[int, int]) -> list[int]:
    """A slot, the one that joins it to others, and so on."""
    chain = [slot]
    while chain[-1] in homes:
        chain.append(homes[chain[-1]])
    return chain


def with_streams(plan: Plan, backends: Mapping[str, Backend], homes: Mapping[int, int]) -> Plan:
    """The plan with its steps on streams.

    Args:
        plan: With all steps on stream 0.
        backends: By name.
        homes: As for :func:`dependencies`.
    """
    steps = list(plan.steps)
    for run in plan.native_runs:
        able = backends[run.backend].concurrency
        if able is None or len(run.steps) < 2:
            continue
        after = dependencies(plan, run.steps, homes)
        tasks = [_task(plan, plan.steps[i], a, able) for i, a in zip(run.steps, after, strict=True)]
        streams = divide(tasks, most=able.streams, event=able.event)
        waits, _ = events(streams, after)
        for i, stream, wait in zip(run.steps, streams, waits, strict=True):
            steps[i] = replace(steps[i], stream=stream, waits=tuple(run.steps[w] for w in wait))
    return replace(plan, steps=tuple(steps)) if any(s.stream for s in steps) else plan


def _task(plan: Plan, step: Step, after: tuple[int, ...], able: Concurrency) -> Task:
    kernel = step.kernel
    assert isinstance(kernel, NativeKernel)
    slots = [plan.slots[i] for i in dict.fromkeys((*(step.inputs[i] for i in kernel.reads), *step.outputs)) if i >= 0]
    if step.placement.op == "Copy":
        moved = plan.slots[step.outputs[0]]
        engine = 2 if moved.space == HOST else 1
        return Task(able.least + _typical(moved.nbytes) / able.link, after, engine)
    moving = sum(_typical(s.nbytes) for s in slots) / able.bandwidth
    return Task(able.least + max(moving, _typical(kernel.flops) / able.flops), after)


def _typical(d: DimLike) -> int:
    """A size for representative sizes of the symbols; 0 where it has no value for these."""
    try:
        return max(0, D.evaluate(d, {s: representative(s) for s in D.symbols_of(d)}))
    except ZeroDivisionError:
        return 0
