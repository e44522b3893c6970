"""Profiles of runs on an emulated GPU whose work is recorded as CUPTI would."""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner

import accord
from accord.backends.cuda import cupti
from accord.backends.cuda.cupti import Activity, Call, Copy, Kernel
from accord.backends.cuda.memory import DeviceMemory
from accord.cli import main
from accord.errors import BackendError
from accord.profile import device_runs
from accord.profile import profile as module
from accord.profile.occupancy import Limits
from accord.profile.peaks import Level, Peaks, Rate
from accord.profile.profile import profile
from builders import model, node

F = np.float32
PEAKS = Peaks(
    1, {"f32": Rate(1e15, 0.0), "f16": Rate(1e16, 0.0)}, (Level("memory", None, Rate(1e14, 0.0), Rate(1e14, 0.0)),)
)


def chain():
    nodes = [
        node("Softmax", ["x"], ["p"]),
        node("MatMul", ["p", "w"], ["h"]),
        node("Unique", ["h"], ["z"]),  # on the host
        node("Tanh", ["h"], ["t"]),
        node("ReduceSum", ["t"], ["y"], keepdims=0),
    ]
    return model(nodes, {"x": (F, [6, 30])}, ["y", "z"], {"w": np.eye(30, 4, dtype=F)})


WAYS = {"to_device": ("host to device", "pinned", "device"), "to_host": ("device to host", "device", "pinned")}
FEED = {"x": np.random.default_rng(0).standard_normal((6, 30)).astype(F)}


@pytest.fixture
def known_device(monkeypatch):
    monkeypatch.setattr(device_runs, "limits_of", lambda gpu: Limits(4, 2048, 32, 65536, 100 << 10, 1024))
    monkeypatch.setattr(module, "peaks_of", lambda gpu, again=False: PEAKS)


@pytest.fixture
def recorder(monkeypatch, gpu, known_device):
    """Writes a record for whatever the device does while something is being recorded."""
    open_: list[Activity] = []
    numbers = itertools.count(1)
    graph = [0]  # the number of the call that replays one
    original = gpu.issue, gpu.replay

    def called(name):
        now, own = time.perf_counter_ns(), next(numbers)
        open_[-1].records.append(Call(name, False, now, now + 1, 1, own))
        return own

    def issue(name, work, after, nbytes, node=0):
        if not open_:
            return original[0](name, work, after, nbytes, node)
        own = graph[0] if node else called("cuMemcpyAsync" if nbytes else "cuLaunchKernel")
        records = open_[-1].records

        def done():
            begun = time.perf_counter_ns()
            work()
            ended = time.perf_counter_ns()
            if nbytes:
                direction, *ends = WAYS[name]
                records.append(Copy(direction, *ends, nbytes, begun, ended, 13, 1, own, node))
            else:
                records.append(Kernel(name, begun, ended, 13, 1, own, node, (2, 1, 1), (128, 1, 1), 32, 0, 0))

        return original[0](name, done, after, nbytes, node)

    def replay(made, stream):
        graph[0] = called("cuGraphLaunch") if open_ else 0
        original[1](made, stream)

    monkeypatch.setattr(gpu, "issue", issue)
    monkeypatch.setattr(gpu, "replay", replay)

    @contextmanager
    def recording():
        open_.append(Activity(_now=time.perf_counter_ns))
        yield open_[-1]
        open_.pop()

    monkeypatch.setattr(cupti, "recording", recording)


def test_each_kernel_and_copy_has_its_step(recorder):
    m = accord.load(chain(), device="cuda")
    found = profile(m, FEED, runs=3)
    assert found.device is not None
    assert found.without_device == ""
    named = [(found.node_of(k.step), k.graph) for k in found.device.kernels]
    steps = [s for s in found.steps if s.backend == "cuda" and not s.is_transfer]
    assert {n for n, _ in named} == {s.node for s in steps}
    moved = {found.node_of(c.step): (c.direction, c.nbytes) for c in found.device.copies}
    assert moved["x.to.cuda:0"] == ("host to device", 720)
    assert moved["h.to.host"] == ("device to host", 96)
    by_step = found.device.by_step()
    for s in steps:  # the step's time is the device's
        key = next(k for k, place in found.keys.items() if found.steps[place] is s)
        assert s.median == pytest.approx(by_step[key], abs=1e-9)
        assert s.bound is not None
    host = next(s for s in found.steps if s.op == "Unique")
    assert (host.backend, host.bound) == ("cpu", None)
    assert next(s for s in found.steps if s.is_transfer).bound is None
    assert "pageable-copies" not in {a["rule"] for a in found.data()["advice"]}


def test_a_copy_in_pieces_is_one_steps(recorder, monkeypatch):
    from accord.backends.cuda import parts
    from accord.profile import device

    monkeypatch.setattr(parts, "_LARGE", 100)
    for module_ in (parts, device):
        monkeypatch.setattr(module_, "PIECE", 100)
    found = profile(accord.load(chain(), device="cuda"), FEED, runs=3)
    pieces = [c.nbytes for c in found.device.copies if found.node_of(c.step) == "x.to.cuda:0"]
    assert pieces == [100] * 7 + [20]
    assert {found.node_of(c.step) for c in found.device.copies} >= {"x.to.cuda:0", "h.to.host"}


def test_operands_on_the_device_have_their_sizes_and_are_not_fetched(gpu, known_device, monkeypatch):
    m = accord.load(chain(), device="cuda")
    m(FEED)
    from accord.runtime.observed import observe
    from accord.runtime.watch import Collector, watched

    read = []
    monkeypatch.setattr(DeviceMemory, "read", lambda *a: read.append(a))
    executor, values = m.executor_for(FEED)
    collector = Collector(observe)
    with watched(collector):
        executor.run(values)
    facts = {t.step.placement.op: t.facts for t in collector.runs[0].times if t.step.placement.op != "Copy"}
    product = facts["MatMul"]
    assert [(o.dtype, o.shape, o.nbytes, o.constant) for o in product.inputs] == [
        ("float", (6, 30), 720, False),
        ("float", (30, 4), 480, True),
    ]
    assert (product.read, product.constants, product.written, product.operations) == (1200, 480, 96, 1440)
    assert read == []


def test_without_cupti_events_are_used_and_the_reason_is_said(gpu, known_device, monkeypatch, tmp_path):
    @contextmanager
    def refuses():
        raise BackendError("CUPTI is not there")
        yield

    monkeypatch.setattr(cupti, "recording", refuses)
    found = profile(accord.load(chain(), device="cuda"), FEED, runs=2)
    assert found.device is None
    assert "CUPTI is not there" in found.without_device
    times = [s.median for s in found.steps if s.backend == "cuda"]
    assert times == pytest.approx([1e-6] * len(times))  # what the emulated events say
    assert found.data()["device"] == {"missing": found.without_device}


def test_the_command_shows_kernels_copies_and_gaps(recorder, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(chain().SerializeToString())
    done = CliRunner().invoke(
        main, ["profile", str(path), "--device", "cuda", "--runs", "2", "--out", str(tmp_path / "p")]
    )
    assert done.exit_code == 0, done.output
    for words in ("emulated: TFLOP/s", "Kernels by time", "Copies", "What the GPU waits for", "pinned", "Advice"):
        assert words in done.stdout
    assert "emulated, stream 13" in (tmp_path / "p" / "trace.json").read_text()
