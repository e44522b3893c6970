"""Several GPUs in one process, and several threads on one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import accord
from accord.backends.discovery import backend_named
from accord.backends.memory import DeviceArray
from accord.errors import BackendError, InputError
from builders import model, node
from emulated_gpu import DEVICES, install

F = np.float32


@pytest.fixture
def gpus(monkeypatch):
    install(monkeypatch.setattr, 2)
    return list(DEVICES)


def proto():
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Softmax", ["h"], ["p"]),
        node("Transpose", ["p"], ["t"], perm=[1, 0]),
        node("ReduceSum", ["t"], ["y"], keepdims=0),
        node("LayerNorm", ["h", "s", "b"], ["z"], domain="accord"),
    ]
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((6, 8)).astype(F), "s": np.ones(8, F), "b": np.zeros(8, F)}
    return model(nodes, {"x": (F, ["n", 6])}, ["y", "z"], constants, domains={"accord": 1})


def inputs(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((int(n), 6)).astype(F) for n in rng.integers(1, 9, count)]


def test_models_on_two_gpus_keep_apart(gpus):
    reference = accord.load(proto())
    models = [accord.load(proto(), device=f"cuda:{k}") for k in range(2)]
    constants = [len(g.blocks) for g in gpus]
    assert constants[0] == constants[1] > 0
    assert {s.placement.backend for s in models[1].plan.steps} == {"cuda:1", "plan"}
    assert [g.started for g in gpus] == [[], []]
    for x in inputs(6):
        for k, (m, other) in enumerate([models, models[::-1]]):
            before = len(gpus[1 - k].started)
            for got, expected in zip(m(x), reference(x), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
            assert len(gpus[1 - k].started) == before
            del other
    gpus[0].failing = set(gpus[0].started)
    with pytest.raises(accord.errors.ExecutionError, match="GPU 0 is lost"):
        models[0](x)
    np.testing.assert_allclose(models[1](x)[0], reference(x)[0], rtol=1e-5)


def test_what_is_chosen_by_the_device_is_chosen_by_its_own(gpus):
    gpus[1].architecture = 90
    for k, architecture in enumerate((80, 90)):
        m = accord.load(proto(), device=f"cuda:{k}")
        (own,) = [s.kernel for s in m.plan.steps if s.kernel.name == "accord::LayerNorm (triton)"]
        assert own.phases[0].code.architecture == architecture


@pytest.mark.parametrize("number", ["2", "17"])
def test_a_wrong_number_is_an_error_that_says_how_many_there_are(gpus, number):
    with pytest.raises(BackendError, match=rf"no GPU number {number}.*Expected: 0 to 1.*Found: 2 GPUs"):
        accord.load(proto(), device=f"cuda:{number}")
    for device in ("cuda:", "cuda:-1", "cuda:x", "cpu:1"):
        with pytest.raises(BackendError, match=r"names no device|no device"):
            accord.load(proto(), device=device)


@pytest.mark.parametrize("given", [1, "1", None])
def test_a_session_runs_on_the_device_of_its_providers_option(gpus, given):
    options = {} if given is None else {"device_id": given}
    session = accord.InferenceSession(proto().SerializeToString(), providers=[("CUDAExecutionProvider", options)])
    (x,) = inputs(1)
    expected = accord.load(proto())(x)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected[0], rtol=1e-5)
    used = 0 if given is None else 1
    assert gpus[used].started
    assert not gpus[1 - used].started
    assert session.get_provider_options()["CUDAExecutionProvider"] == ({} if given is None else {"device_id": "1"})
    with pytest.raises(InputError, match=r"device_id.*is no number"):
        accord.InferenceSession(proto().SerializeToString(), providers=[("CUDAExecutionProvider", {"device_id": "a"})])
    with pytest.raises(BackendError, match="2 GPUs"):
        accord.InferenceSession(proto().SerializeToString(), providers=[("CUDAExecutionProvider", {"device_id": 2})])


@pytest.mark.parametrize("home", [0, 1])
def test_values_and_bindings_are_on_the_device_of_their_number(gpus, home):
    session = accord.InferenceSession(
        proto().SerializeToString(), providers=[("CUDAExecutionProvider", {"device_id": 1})]
    )
    (x,) = inputs(1)
    expected = accord.load(proto())(x)
    value = accord.OrtValue.ortvalue_from_numpy(x, "cuda", home)
    assert value.data_ptr() in gpus[home].blocks
    binding = session.io_binding()
    binding.bind_input("x", "cuda", home, F, x.shape, value.data_ptr())
    binding.bind_output("y", "cuda", home)
    binding.bind_output("z", "cuda", 1 - home)
    session.run_with_iobinding(binding)
    y, z = binding.get_outputs()
    assert y.data_ptr() in gpus[home].blocks
    assert z.data_ptr() in gpus[1 - home].blocks
    for got, exact in zip((y, z), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), exact, rtol=1e-5, atol=1e-5)
    with pytest.raises(BackendError, match="2 GPUs"):
        accord.OrtValue.ortvalue_from_numpy(x, "cuda", 2)
    with pytest.raises(BackendError, match="not supported"):
        accord.OrtValue.ortvalue_from_numpy(x, "cpu", 1)


class Foreign:
    """Another library's array."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def test_another_librarys_array_is_known_by_its_address(gpus):
    (x,) = inputs(1)
    memory = backend_named("cuda:1").memory
    far = DeviceArray.empty(memory, x.shape, x.dtype)
    far.assign(x)
    copies = []
    for g in gpus:
        g.to_device = lambda *a, f=g.to_device: copies.append(a[2]) or f(*a)
    for device, count in (("cuda:1", 0), ("cuda:0", 1)):
        m = accord.load(proto(), device=device)
        copies.clear()
        np.testing.assert_allclose(m(Foreign(far))[0], accord.load(proto())(x)[0], rtol=1e-5)
        assert len(copies) == count


def test_four_threads_on_one_session_get_their_own_results(gpu):
    """Sizes in any order, so that frames, arenas and graphs are made, shared, dropped and met again."""
    reference, m = accord.load(proto()), accord.load(proto(), device="cuda")
    feeds = inputs(12)
    expected = [reference(x) for x in feeds]
    failures = []
    start = threading.Barrier(4)

    def work(seed):
        rng = np.random.default_rng(seed)
        start.wait()
        try:
            for turn in range(60):
                k = int(rng.integers(len(feeds)))
                for got, exact in zip(m(feeds[k]), expected[k], strict=True):
                    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
                if turn % 20 == 19 and seed == 0:
                    m.trim()
        except BaseException as error:  # noqa: BLE001  whatever a thread raises is told by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]
    assert gpu.replayed
