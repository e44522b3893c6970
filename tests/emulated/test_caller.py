"""The caller's streams: what is on them comes first, what is put on them later comes after."""

from __future__ import annotations

import ctypes
import gc
import random

import numpy as np
import pytest

import accord
from accord.backends.cuda.driver import DeviceMemory
from accord.backends.memory import DeviceArray
from builders import model, node

F = np.float32
SHAPE = (3, 8)
ORDERS = {
    "first": lambda ready: ready[0],
    "last": lambda ready: ready[-1],
    "random": random.Random(0).choice,
}


@pytest.fixture(params=list(ORDERS))
def ordered(gpu, request):
    gpu.choose = ORDERS[request.param]
    return gpu


def two_inputs():
    nodes = [node("Relu", ["x"], ["r"]), node("Add", ["r", "z"], ["s"]), node("Softmax", ["s"], ["y"])]
    return accord.load(model(nodes, {"x": (F, SHAPE), "z": (F, SHAPE)}, ["y"]), device="cuda")


def wanted(x, z):
    e = np.exp(np.maximum(x, 0) + z)
    return e / e.sum(1, keepdims=True)


def values(seed):
    return np.random.default_rng(seed).standard_normal((2, *SHAPE)).astype(F)


class Foreign:
    """An array of another library: ``stream`` as its interface gives it, or none at all."""

    def __init__(self, array, **facts):
        self._array = array
        self._facts = facts

    @property
    def __cuda_array_interface__(self):
        facts = {k: v for k, v in self._array.__cuda_array_interface__.items() if k != "stream"}
        return {**facts, **self._facts}


def empty():
    return DeviceArray.empty(DeviceMemory(), SHAPE, np.dtype(F))


def fill(gpu, far, array, stream):
    """Fill an array some time later."""
    held = array.tobytes()
    gpu.put("producer", lambda: ctypes.memmove(far.address, held, len(held)), stream)


def taken(gpu, far, stream):
    """What is in an array some time later."""
    found = np.zeros(SHAPE, F)
    gpu.put("consumer", lambda: ctypes.memmove(found.ctypes.data, far.address, found.nbytes), stream)
    return found


@pytest.mark.parametrize("facts", [{"version": 3, "stream": 77}, {"version": 2}], ids=["named", "default"])
def test_inputs_that_are_still_made_are_waited_for(ordered, facts):
    gpu, m = ordered, two_inputs()
    stream = facts.get("stream", 1)
    gpu.add_stream(stream)
    for k in range(5):
        x, z = values(k)
        far = empty()
        fill(gpu, far, x, stream)
        np.testing.assert_allclose(m(Foreign(far, **facts), z)[0], wanted(x, z), rtol=1e-5)


def test_nothing_is_waited_for_that_says_it_is_there(gpu):
    m = two_inputs()
    x, z = values(0)
    far = empty()
    far.assign(x)
    gpu.put("other", lambda: None, 1)
    gpu.choose = lambda ready: next((o for o in ready if o.name != "other"), ready[0])
    m(Foreign(far, version=3, stream=None), z)
    assert [o.name for o in gpu.pending] == ["other"]


def test_a_run_on_the_callers_stream(ordered):
    """It returns at once; runs one after the other on one stream, with the same memory, are all right."""
    gpu, m = ordered, two_inputs()
    stream = gpu.stream()
    found = []
    for k in range(6):
        x, z = values(k)
        far_x, far_z, out = empty(), empty(), empty()
        fill(gpu, far_x, x, stream)
        fill(gpu, far_z, z, stream)
        before = len(gpu.started)
        (y,) = m.run_into({"x": far_x, "z": far_z}, {"y": out}, stream=stream)
        if k:  # what has to be made at the first run waits
            assert len(gpu.started) == before
        assert y is out and y.stream == stream
        found.append((taken(gpu, out, stream), wanted(x, z), far_x, far_z, out))
    gpu.wait(stream)
    for got, want, *_ in found:
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_same_memory_on_one_stream_after_the_other(ordered):
    """A run whose memory another one may still use waits for that one: on the device, or before the host writes."""
    gpu, m = ordered, two_inputs()
    streams = [gpu.stream(), gpu.stream(), None]
    found = []
    for k in range(12):
        x, z = values(k)
        far, out, stream = empty(), empty(), streams[k % 3]
        far.assign(x)
        given = {"x": far, "z": z}
        if k % 2:  # nothing from the host
            given["z"] = empty()
            given["z"].assign(z)
        if stream is None:
            np.testing.assert_allclose(m(given)[0], wanted(x, z), rtol=1e-5)
        else:
            m.run_into(given, {"y": out}, stream=stream)
            found.append((out, wanted(x, z), given))
    for out, want, _ in found:
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-5)


def test_what_the_host_needs_is_there_when_the_call_returns(ordered):
    gpu, m = ordered, two_inputs()
    stream = gpu.stream()
    for k in range(4):
        x, z = values(k)
        far = empty()
        fill(gpu, far, x, stream)
        (y,) = m.run_into({"x": far, "z": z}, {}, stream=stream)
        np.testing.assert_allclose(y, wanted(x, z), rtol=1e-5)


def test_an_output_is_written_after_what_its_memory_was_used_for(ordered):
    gpu, m = ordered, two_inputs()
    other, out = gpu.stream(), empty()
    x, z = values(0)
    out.assign(z)
    seen = taken(gpu, out, other)
    target = Foreign(out, version=3, stream=other)
    m.run_into({"x": x, "z": z}, {"y": target})
    gpu.wait(other)
    np.testing.assert_array_equal(seen, z)
    np.testing.assert_allclose(out.numpy(), wanted(x, z), rtol=1e-5)


def test_a_session_runs_on_the_stream_of_its_options(gpu):
    stream = gpu.stream()
    proto = model([node("Exp", ["x"], ["y"])], {"x": (F, [5])}, ["y"])
    options = {"user_compute_stream": str(stream)}
    session = accord.InferenceSession(proto.SerializeToString(), providers=[("CUDAExecutionProvider", options)])
    x = np.linspace(0, 1, 5, dtype=F)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", accord.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
    binding.bind_ortvalue_output("y", accord.OrtValue.ortvalue_from_numpy(np.zeros(5, F), "cuda", 0))
    for _ in range(3):
        session.run_with_iobinding(binding)
    assert gpu.pending
    binding.synchronize_outputs()
    assert not gpu.pending
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], np.exp(x), rtol=1e-6)
    assert session.get_provider_options()["CUDAExecutionProvider"] == options


class Exchanged:
    """An array of another library that has DLPack only; its work on the array is on a stream of its own."""

    def __init__(self, array, stream):
        self._array, self._stream = array, stream
        self.asked = []

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream):
        self.asked.append(stream)
        self._array.memory.order(stream, self._stream)
        return self._array.__dlpack__(stream=-1)


def test_arrays_with_dlpack_are_taken_without_a_copy_and_waited_for(ordered, monkeypatch):
    gpu, m = ordered, two_inputs()
    other, moved, original = gpu.stream(), [], gpu.to_device
    monkeypatch.setattr(gpu, "to_device", lambda *a: moved.append(a[2]) or original(*a))
    for k in range(4):
        x, z = values(k)
        far = empty()
        fill(gpu, far, x, other)
        given = Exchanged(far, other)
        moved.clear()
        np.testing.assert_allclose(m(given, z)[0], wanted(x, z), rtol=1e-5)
        assert moved == [z.nbytes] and len(given.asked) == 1


def test_what_a_run_leaves_is_handed_over_with_dlpack(ordered):
    """The consumer's stream waits for the run's; the memory is kept as long as the consumer has it."""
    from accord.backends import dlpack

    gpu, m = ordered, two_inputs()
    stream, mine = gpu.stream(), gpu.stream()
    x, z = values(0)
    far = [empty(), empty()]
    for array, content in zip(far, (x, z), strict=True):
        fill(gpu, array, content, stream)
    (y,) = m.run_into(dict(zip("xz", far, strict=True)), {"y": DeviceMemory()}, stream=stream)
    assert y.__dlpack_device__() == (2, 0)
    got = dlpack.taken(y, mine)
    assert (got.shape, got.dtype, got.address) == (SHAPE, F, y.address)
    address, found = y.address, np.zeros(SHAPE, F)
    del y
    assert address in gpu.blocks
    gpu.put("consumer", lambda: ctypes.memmove(found.ctypes.data, address, found.nbytes), mine)
    gpu.wait(mine)
    np.testing.assert_allclose(found, wanted(x, z), rtol=1e-5)
    got.owner = None
    gc.collect()
    assert address not in gpu.blocks
