"""Streams: every order that streams and events allow gives the same, with the fewest events."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accord
from accord.backends.protocol import Concurrency
from accord.plan.plan import Storage
from accord.plan.streams import Task, divide, events
from builders import model, node
from networks import ROWS, all_but, inputs, networks, two_branches

F = np.float32
PURE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
WHOLE = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
#: A device on which everything is worth a stream.
EAGER = Concurrency(streams=4, event=0.0, least=1.0, flops=1e30, bandwidth=1e30, link=1e30)


def tasks_of(seconds, edges):
    return [Task(s, tuple(sorted({a for a, b in edges if b == i}))) for i, s in enumerate(seconds)]


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 14))
    edges = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    seconds = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    engines = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=count, max_size=count))
    tasks = tasks_of(seconds, {(a, b) for a, b in edges if a < b})
    return [Task(t.seconds, t.after, e) for t, e in zip(tasks, engines, strict=True)]


def reachable(streams, waits):
    """For each task those that ended before it starts, found in the plain way."""
    before = []
    for i, s in enumerate(streams):
        direct = {*waits[i], *(j for j in range(i) if streams[j] == s)}
        before.append(direct.union(*(before[j] for j in direct)))
    return before


@PURE
@given(graphs(), st.integers(1, 5), st.integers(0, 3))
def test_events_give_all_dependencies_and_none_is_idle(tasks, most, event):
    after = [t.after for t in tasks]
    streams = divide(tasks, most=most, event=event)
    assert all(0 <= s < (most + 2 if any(t.engine for t in tasks) else most) for s in streams)
    waits, ended = events(streams, after)
    before = reachable(streams, waits)
    assert [{j for j in range(len(tasks)) if e >> j & 1} for e in ended] == before
    assert all(before[i].issuperset(t.after) for i, t in enumerate(tasks))
    assert all(streams[w] != streams[i] for i, found in enumerate(waits) for w in found)
    for i, found in enumerate(waits):
        for w in found:
            fewer = [tuple(x for x in f if (k, x) != (i, w)) for k, f in enumerate(waits)]
            assert not all(b.issuperset(t.after) for b, t in zip(reachable(streams, fewer), tasks, strict=True))


@PURE
@given(graphs(), st.integers(2, 5), st.integers(0, 3))
def test_the_longest_path_keeps_stream_0(tasks, most, event):
    streams = divide(tasks, most=most, event=event)
    longest: list[float] = []
    on_first: list[float] = []
    for i, t in enumerate(tasks):
        longest.append(t.seconds + max((longest[a] for a in t.after), default=0))
        kept = max((on_first[a] for a in t.after), default=0)
        on_first.append(kept + t.seconds if streams[i] == 0 else kept)
    assert max(on_first) == max(longest)


def test_a_chain_has_one_stream():
    chain = tasks_of([5] * 6, {(i, i + 1) for i in range(5)})
    assert divide(chain, most=4, event=0) == [0] * 6


@pytest.mark.parametrize("work, stream", [(1.0, 0), (4.0, 0), (4.1, 1)])
def test_a_branch_has_a_stream_if_its_work_is_more_than_two_events(work, stream):
    diamond = tasks_of([1, 9, work, 1], {(0, 1), (0, 2), (1, 3), (2, 3)})
    assert divide(diamond, most=4, event=2.0) == [0, 0, stream, 0]


def test_a_short_step_follows_what_it_waits_for_last():
    """It must not hold up the longest path: on stream 0 the steps after it would wait for the branch too."""
    tasks = tasks_of([1, 8, 8, 7, 0.5, 8], {(0, 1), (1, 2), (0, 3), (3, 4), (1, 4), (2, 5), (4, 5)})
    assert divide(tasks, most=4, event=1.0) == [0, 0, 0, 1, 1, 0]


def test_branches_side_by_side_have_streams_of_their_own_and_later_ones_use_them_again():
    edges = {(0, i) for i in (1, 2, 3)} | {(i, 4) for i in (1, 2, 3)} | {(4, i) for i in (5, 6)} | {(5, 7), (6, 7)}
    streams = divide(tasks_of([1, 9, 8, 7, 1, 9, 8, 1], edges), most=3, event=1.0)
    assert streams == [0, 0, 1, 2, 0, 0, 1, 0]


def test_large_copies_have_streams_of_their_own():
    tasks = [Task(9), Task(5, (), 1), Task(2, (0, 1)), Task(5, (0,), 2), Task(9, (2,)), Task(0.1, (2,), 2)]
    assert divide(tasks, most=4, event=1.0) == [0, 4, 0, 5, 0, 0]


# whole plans


def far_model(far, proto, level):
    far.concurrency = EAGER
    return accord.load(proto, device="far", level=level)


@WHOLE
@given(proto=networks(), level=st.sampled_from([0, 1, 3]), seed=st.integers(0, 1000))
def test_every_order_gives_the_same(far, proto, level, seed):
    """Each phase in turn comes as late as it can, so that whatever lacks an event comes too early."""
    m = far_model(far, proto, level)
    expected = accord.load(proto, level=level)
    far.next = random.Random(seed).choice
    far.started.clear()
    for number in range(len(m.plan.steps) + 2):
        given = inputs(number)
        for got, want in zip(m(given), expected(given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        far.next = all_but(number)


def cells(m, frame, slot):
    """The places of all elements of a slot, exactly."""
    plan, sizes = m.plan, frame.sizes
    s = plan.slots[slot]
    index = np.zeros(sizes.shapes[slot], np.int64)
    strides = sizes.strides.get(slot) or [int(np.prod(index.shape[a + 1 :])) for a in range(index.ndim)]
    for axis, stride in enumerate(strides):
        index += (np.arange(index.shape[axis]) * stride).reshape([-1] + [1] * (index.ndim - axis - 1))
    place = frame._bases.get(s.root, 0) if s.storage is Storage.ARENA else (s.root + 1) << 32
    start = place + sizes.offsets.get(slot, 0)
    return {(s.space, int(start + i * s.dtype.itemsize)) for i in index.reshape(-1)}


def races(m):
    """Pairs of steps that use the same memory, one of them writing, though neither waits for the other."""
    plan = m.plan
    executor = m._first.executor
    frame, _ = executor.memory(dict.fromkeys(plan.symbols, ROWS))
    found = []
    for run in plan.native_runs:
        numbers = {i: k for k, i in enumerate(run.steps)}
        steps = [plan.steps[i] for i in run.steps]
        before = reachable([s.stream for s in steps], [[numbers[w] for w in s.waits] for s in steps])
        use = []
        for s in steps:
            read = [
                cells(m, frame, i) for i in (s.inputs[k] for k in s.kernel.reads) if plan.slots[i].dtype is not None
            ]
            written = [cells(m, frame, i) for i in (*s.outputs, s.workspace) if i >= 0]
            use.append((set().union(*read), set().union(*written)))
        for j, (read, written) in enumerate(use):
            for i in range(j):
                if i not in before[j] and (use[i][1] & (read | written) or use[i][0] & written):
                    found.append((run.steps[i], run.steps[j]))
    return found


@WHOLE
@given(proto=networks(), level=st.sampled_from([0, 1, 3]))
def test_steps_that_may_overlap_share_no_memory(far, proto, level):
    assert not races(far_model(far, proto, level))


def test_a_missing_event_is_found(far):
    """The tests above can fail: without any one event of a plan, an order is found that gives something else."""
    m = far_model(far, two_branches(), 1)
    plan = m.plan
    pairs = [(i, w) for i, s in enumerate(plan.steps) for w in s.waits]
    assert pairs
    given = inputs(0)
    expected = list(accord.load(two_branches())(given))
    executor = m._first.executor
    for i, w in pairs:
        steps = list(plan.steps)
        steps[i] = replace(steps[i], waits=tuple(k for k in steps[i].waits if k != w))
        broken = replace(plan, steps=tuple(steps))
        found = False
        for late in range(len(steps)):
            far.next = all_but(late)
            runs = type(executor)(broken, executor.backends, executor.device)
            got = runs.run(list(given.values()))
            found = found or not all(np.allclose(a, b, rtol=1e-5) for a, b in zip(got, expected, strict=True))
        assert found, (i, w)


def test_a_step_without_elements_hands_on_what_it_waits_for(far):
    """Values of no rows start nothing; what comes after still waits for what came before."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Concat", ["a", "e"], ["b"], axis=0),
        node("Softmax", ["z"], ["c"]),
        node("MatMul", ["c", "w"], ["d"]),
        node("Concat", ["e", "e"], ["none"], axis=0),
        node("MatMul", ["none", "w"], ["nothing"]),
        node("Concat", ["b", "nothing", "d"], ["y"], axis=0),
    ]
    shapes = {"x": (F, ["n", 4]), "z": (F, ["n", 4]), "e": (F, ["k", 4])}
    proto = model(nodes, shapes, ["y"], {"w": np.linspace(0, 1, 16, dtype=F).reshape(4, 4)})
    m, expected = far_model(far, proto, 1), accord.load(proto)
    for k in (0, 2):
        for number in range(len(m.plan.steps)):
            far.next = all_but(number)
            x, z = np.random.default_rng(number).standard_normal((2, 3, 4)).astype(F)
            given = {"x": x, "z": z, "e": np.ones((k, 4), F)}
            np.testing.assert_allclose(m(given)[0], expected(given)[0], rtol=1e-5)


def test_without_concurrency_a_plan_is_as_it_was(far):
    m = accord.load(two_branches(), device="far")
    assert m.plan.is_serial and not any(s.waits for s in m.plan.steps)
