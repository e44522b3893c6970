"""Programs on several threads: every task is done once, whoever else runs; nothing spins, nothing hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accord
from accord.backends.cpu import program, threads
from accord.backends.cpu.machine import machine
from accord.backends.cpu.threads import ThreadPool
from accord.errors import ExecutionError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node
from cpu_harness import Counting

pytestmark = pytest.mark.skipif(machine().arch != "x86_64", reason="machine code can be linked for x86-64 only")


@pytest.fixture
def wide(monkeypatch):
    """A pool that takes this machine for one of four cores."""
    found = ThreadPool(4)
    monkeypatch.setattr(program, "pool", lambda: found)
    yield found
    found.close()


@pytest.fixture(scope="module")
def shared_pool():
    found = ThreadPool(4)
    yield found
    found.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 70) | st.sampled_from([1, 2, 1000]), min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from([0, 20, 300]),
)
def test_every_task_is_done_once(shared_pool, tasks, count, turns):
    with pytest.MonkeyPatch.context() as m:
        m.setattr(program, "pool", lambda: shared_pool)
        c = Counting(tasks, turns, count)
        for _ in range(6):  # also after the phases' threads were settled
            c.run()
        assert c.used() <= set(range(min(count, 4)))


def test_a_long_phase_is_shared(wide):
    c = Counting([64, 64], 2000, 3)
    for _ in range(50):
        c.run()
        if c.used() == {0, 1, 2}:
            break
        time.sleep(0.01)
    assert c.used() == {0, 1, 2}


def test_small_work_stays_on_the_calling_thread(wide):
    c = Counting([4, 2, 8], 0, 3)
    for _ in range(5):
        c.run()
    assert c.used() == {0}
    assert c.program._threads == 1
    c = Counting([64, 2], 400, 3)
    for _ in range(5):
        c.run()
    assert c.program._rows[:, 4].tolist()[0] > 1
    assert c.program._threads == 3


def test_one_task_or_one_thread_wakes_nobody(monkeypatch):
    fresh = ThreadPool(4)
    monkeypatch.setattr(program, "pool", lambda: fresh)
    for c in (Counting([1, 1], 50, 4), Counting([50, 50], 50, 1)):
        for _ in range(5):
            c.run()
    assert not fresh._threads
    fresh.close()


def test_phases_are_timed(wide):
    for count in (1, 3):
        c = Counting([20, 1, 200], 500, count)
        seconds = np.full(3, -1.0)
        for _ in range(4):
            began = time.perf_counter()
            c.runs += 1
            assert c.program.run_timed(seconds) == -1
            whole = time.perf_counter() - began
        assert (seconds > 0).all()
        assert 0.1 * whole < seconds.sum() <= whole
        assert seconds[2] > seconds[1]


@pytest.mark.parametrize("cores", [2, 4])
def test_many_python_threads_share_the_pool(monkeypatch, cores):
    busy = ThreadPool(cores)
    monkeypatch.setattr(program, "pool", lambda: busy)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(6):
                tasks = rng.integers(1, 60, int(rng.integers(1, 8))).tolist()
                c = Counting(tasks, int(rng.choice([0, 30, 200])), int(rng.integers(1, 6)))
                for _ in range(40):
                    c.run()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert not failures
    assert not any(w.is_alive() for w in workers)
    assert busy._word(threads.Layout.ACTIVE).value == 0
    owners = [
        busy._word(threads.Layout.SLOTS_AT + k * threads.Layout.SLOT + threads.Layout.OWNER) for k in range(cores - 1)
    ]
    assert [o.value for o in owners] == [0] * (cores - 1)
    busy.close()


def test_more_runs_at_once_than_teams(monkeypatch):
    monkeypatch.setattr(threads, "_TEAMS", 1)
    small = ThreadPool(4)
    monkeypatch.setattr(program, "pool", lambda: small)
    programs = [Counting([64, 64], 100, 4) for _ in range(4)]
    workers = [threading.Thread(target=lambda c=c: [c.run() for _ in range(50)]) for c in programs]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert [c.runs for c in programs] == [50] * 4
    assert all((c.counts[0] == 50).all() for c in programs)
    small.close()


def test_a_closed_pool_still_runs(monkeypatch):
    closed = ThreadPool(4)
    monkeypatch.setattr(program, "pool", lambda: closed)
    c = Counting([64], 100, 4)
    c.run()
    workers = list(closed._threads)
    assert workers
    closed.close()
    assert not any(w.is_alive() for w in workers)
    for _ in range(5):
        c.run()
    assert c.used() == {0}


def test_a_system_without_more_threads(monkeypatch):
    poor = ThreadPool(4)
    monkeypatch.setattr(program, "pool", lambda: poor)
    start, started = threading.Thread.start, []

    def refuse(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    c = Counting([64, 64], 300, 4)
    for _ in range(20):
        c.run()
    assert len(poor._threads) == 1
    assert c.used() <= {0, 1}
    poor.close()


def test_nothing_runs_when_idle(wide):
    c = Counting([64, 64], 500, 4)
    for _ in range(10):
        c.run()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.01


def test_sleeping_workers_are_woken(wide):
    c = Counting([64], 2000, 4)
    found = set()
    for _ in range(60):
        c.run()
        time.sleep(0.005)  # long enough for all of them to fall asleep
        found |= c.used()
    assert found == {0, 1, 2, 3}


# whole models


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_workers_keep_off_the_processor_of_the_calling_thread(monkeypatch):
    fresh = ThreadPool(2)
    monkeypatch.setattr(program, "pool", lambda: fresh)
    allowed = os.sched_getaffinity(0)
    c = Counting([64, 64], 2000, 2)
    try:
        for cpu in (min(allowed), max(allowed), min(allowed)):
            os.sched_setaffinity(0, {cpu})
            until = time.monotonic() + 10
            while time.monotonic() < until:  # a worker says its number when it starts
                c.run()
                worker = fresh._threads[0].native_id
                if worker and os.sched_getaffinity(worker) == allowed - {cpu}:
                    break
            assert os.sched_getaffinity(worker) == allowed - {cpu}
    finally:
        os.sched_setaffinity(0, allowed)
        fresh.close()


@pytest.mark.parametrize("count", [2, 4])
def test_results_do_not_depend_on_the_threads(wide, count):
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((16, 8, 3, 3)).astype(np.float32),
        "v": rng.standard_normal((64, 96)).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w"], ["t"], pads=[1, 1, 1, 1]),
        node("Relu", ["t"], ["u"]),
        node("MatMul", ["u", "v"], ["p"]),
        node("Softmax", ["p"], ["y"]),
    ]
    proto = model(nodes, {"x": ("float32", ["n", 8, 64, 64])}, ["y"], weights)
    one, many = Model(proto, Options(threads=1)), Model(proto, Options(threads=count))
    for n in (1, 3):
        x = rng.standard_normal((n, 8, 64, 64)).astype(np.float32)
        want = one(x)[0]
        for _ in range(6):
            np.testing.assert_array_equal(many(x)[0], want)


def test_refused_values_are_reported_from_any_thread(wide):
    proto = model([node("Gather", ["x", "i"], ["y"])], {"x": ("float32", [50, 40]), "i": ("int64", ["n"])}, ["y"])
    m = Model(proto, Options(threads=4))
    x = np.ones((50, 40), np.float32)
    good = np.zeros(3000, np.int64)
    bad = good.copy()
    bad[2990] = 50
    for _ in range(5):
        assert m(x, good)[0].shape == (3000, 40)
        with pytest.raises(ExecutionError, match="outside its axis"):
            m(x, bad)


def test_sizes_known_late_have_scratch_for_all_threads(wide):
    """MatMul of what NonZero found: its workspace is made while running."""
    nodes = [
        node("NonZero", ["x"], ["nz"]),
        node("Cast", ["nz"], ["f"], to=1),
        node("Transpose", ["f"], ["t"], perm=[1, 0]),
        node("MatMul", ["t", "w"], ["y"]),
    ]
    rng = np.random.default_rng(1)
    w = rng.standard_normal((2, 900)).astype(np.float32)
    m = accord.load(model(nodes, {"x": ("float32", [60, 60])}, ["y"], {"w": w}), threads=4)
    for _ in range(5):
        x = (rng.random((60, 60)) < 0.3).astype(np.float32)
        np.testing.assert_allclose(m(x)[0], np.stack(np.nonzero(x), 1).astype(np.float32) @ w, rtol=1e-5, atol=1e-4)


# processes

SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, {tests!r})
from cpu_harness import Counting
from accord.backends.cpu import threads
from accord.backends.cpu.threads import ThreadPool
threads._Process.pool = ThreadPool(4)
c = Counting([64, 64], 300, 4)
for _ in range(5):
    c.run()
{rest}
"""


def script(rest: str) -> str:
    code = SCRIPT.format(tests=str(Path(__file__).parents[1]), rest=rest)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
import warnings
warnings.simplefilter("ignore")  # newer Pythons warn of forking with threads
pid = os.fork()
if pid == 0:
    threads._Process.pool = threads._Process.pool or ThreadPool(4)
    for _ in range(20):
        c.run()
    os._exit(0 if len(threads.pool()._threads) == 3 else 1)
_, status = os.waitpid(pid, 0)
for _ in range(20):
    c.run()
print(os.waitstatus_to_exitcode(status), threads.pool() is before)
"""


def test_a_forked_child_has_workers_of_its_own():
    assert script("before = threads.pool()" + FORK) == "0 True\n"


def test_the_interpreter_ends_while_workers_sleep_and_while_they_run():
    assert script("print('end')") == "end\n"
    assert script("time.sleep(0.3); print('end')") == "end\n"
    running = """
def forever():
    d = Counting([64, 64], 300, 4)
    while True:
        d.run()
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
print("end")
"""
    assert script(running) == "end\n"
