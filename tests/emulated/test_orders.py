"""Several streams on an emulated GPU that does everything in the worst order that streams and events allow."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accord
from accord.backends.cuda import CudaBackend, parts
from accord.backends.cuda.driver import DeviceMemory
from accord.backends.memory import DeviceArray
from accord.backends.protocol import Concurrency
from accord.runtime.executor import Executor
from networks import all_but, inputs, networks, two_branches

F = np.float32


@pytest.fixture
def eager(gpu, monkeypatch):
    """A GPU on which everything is worth a stream."""
    able = Concurrency(streams=4, event=0.0, least=1.0, flops=1e30, bandwidth=1e30, link=1e30)
    monkeypatch.setattr(CudaBackend, "concurrency", able)
    return gpu


def every_order(gpu, run, expected, seed):
    """See that all orders that are tried give what is expected.

    Random ones while operations are started one by one and when they are captured; then each operation of the graph in
    turn comes as late as it can.
    """
    gpu.choose = random.Random(seed).choice
    runs = [*range(5)]
    while runs:
        k, first = runs.pop(0), gpu.issued
        given = inputs(k)
        for got, want in zip(run(given), expected(given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        if k == 4:
            runs = [*range(100, 100 + gpu.issued - first)]
        if runs and runs[0] >= 100:
            gpu.choose = all_but(gpu.issued + runs[0] - 100)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(proto=networks(most=8), level=st.sampled_from([0, 1, 3]), seed=st.integers(0, 1000), apart=st.booleans())
def test_every_order_gives_the_same(eager, proto, level, seed, apart):
    with pytest.MonkeyPatch.context() as patch:
        if apart:  # copies to the device are started apart from what is captured, piece by piece
            patch.setattr(parts, "_LARGE", 1)
            patch.setattr(parts, "PIECE", 20)
        every_order(eager, accord.load(proto, device="cuda", level=level), accord.load(proto, level=level), seed)


@pytest.mark.parametrize("apart", [False, True])
def test_a_missing_event_is_found(eager, monkeypatch, apart):
    """The test above can fail: whichever event of a plan is left out, some order gives something else."""
    if apart:
        monkeypatch.setattr(parts, "_LARGE", 1)
    m, expected = accord.load(two_branches(), device="cuda", level=1), accord.load(two_branches())
    plan, executor = m.plan, m._first.executor
    crossing = [(i, w) for i, step in enumerate(plan.steps) for w in step.waits]
    assert len(crossing) >= 3
    for i, w in crossing:
        steps = list(plan.steps)
        steps[i] = replace(steps[i], waits=tuple(k for k in steps[i].waits if k != w))
        broken = Executor(replace(plan, steps=tuple(steps)), executor.backends, executor.device)
        with pytest.raises(AssertionError):
            every_order(eager, lambda given, broken=broken: broken.run(list(given.values())), expected, 0)


def test_what_is_on_the_device_already_leaves_one_graph(eager, monkeypatch):
    monkeypatch.setattr(parts, "_LARGE", 1)
    m, expected = accord.load(two_branches(), device="cuda", level=1), accord.load(two_branches())
    memory = DeviceMemory()
    far = {n: DeviceArray.empty(memory, (3, 4), np.dtype(F)) for n in ("x", "z")}
    into = {n: DeviceArray.empty(memory, (3, 4), np.dtype(F)) for n in ("y", "e")}
    eager.choose = random.Random(0).choice
    for k in range(12):
        given = inputs(k)
        before = eager.replayed
        if k % 3 == 0:
            found = m(given)
            assert eager.replayed - before <= 2
        else:
            for name, array in given.items():
                far[name].assign(array)
            found = [a.numpy() for a in m.run_into(far, into)]
            assert eager.replayed - before == (k >= 4)
        for got, want in zip(found, expected(given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
