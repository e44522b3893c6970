"""Runs, copies, graphs and the caller's memory."""

from __future__ import annotations

import numpy as np
import pytest

import accord
from accord.backends.memory import DeviceArray
from accord.errors import ExecutionError, InputError
from builders import model, node

F = np.float32


def chain(**options):
    nodes = [
        node("Add", ["x", "b"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "w"], ["h"]),  # on the host as long as no kernel for it is there
        node("Tanh", ["h"], ["t"]),
        node("ReduceSum", ["t"], ["y"], keepdims=0),
    ]
    proto = model(nodes, {"x": (F, ["n", 30]), "b": (F, [30])}, ["y", "p"], {"w": np.eye(30, 4, dtype=F)})
    return accord.load(proto, device="cuda", **options)


def expected(x, b):
    e = np.exp(x + b)
    p = e / e.sum(1, keepdims=True)
    return np.tanh(p @ np.eye(30, 4)).sum(), p


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_values_are_right_at_every_level_and_size(gpu, level):
    m = chain(level=level)
    assert {"cuda"} <= {s.placement.backend for s in m.plan.steps}
    rng = np.random.default_rng(0)
    for n in (1, 5, 5, 5, 5, 2, 5):
        x, b = rng.standard_normal((n, 30)).astype(F), rng.standard_normal(30).astype(F)
        y, p = m(x, b)
        want, shares = expected(x, b)
        np.testing.assert_allclose(y, want, rtol=1e-5)
        np.testing.assert_allclose(p, shares, rtol=1e-5)


def test_kernels_start_early_behind_kernels_alone(gpu):
    """In all runs, of which some are captured or replayed; the first kernel of each is behind copies."""
    nodes = [node("Softmax", ["x"], ["a"]), node("CumSum", ["a", "one"], ["b"]), node("ReduceSum", ["b"], ["y"])]
    m = accord.load(model(nodes, {"x": (F, [4, 6])}, ["y"], {"one": np.array(1)}), device="cuda")
    for run in range(5):
        gpu.started.clear()
        gpu.early.clear()
        m(np.ones((4, 6), F))
        assert len(gpu.started) > 1
        assert gpu.early == ([] if run > 2 else gpu.started[1:])


def test_a_size_that_recurs_becomes_a_graph(gpu):
    nodes = [
        node("Softmax", ["x"], ["a"]),
        node("Transpose", ["a"], ["t"], perm=[1, 0]),
        node("Softmax", ["t"], ["y"]),
    ]
    m = accord.load(model(nodes, {"x": (F, ["n", 6])}, ["y"]), device="cuda")
    rng = np.random.default_rng(0)
    replayed = []
    for _ in range(5):
        x = rng.standard_normal((3, 6)).astype(F)
        got = m(x)[0]
        e = np.exp(x - x.max(1, keepdims=True))
        a = (e / e.sum(1, keepdims=True)).T
        f = np.exp(a - a.max(1, keepdims=True))
        np.testing.assert_allclose(got, f / f.sum(1, keepdims=True), rtol=1e-5)
        replayed.append(gpu.replayed)
    assert replayed == [0, 0, 1, 2, 3]


def on_device(gpu, array):
    from accord.backends.cuda.memory import DeviceMemory

    made = DeviceArray.empty(DeviceMemory(), array.shape, array.dtype)
    made.assign(array)
    return made


def simple():
    proto = model(
        [node("Relu", ["x"], ["r"]), node("Add", ["r", "z"], ["s"]), node("Softmax", ["s"], ["y"])],
        {"x": (F, ["n", 8]), "z": (F, ["n", 8])},
        ["y"],
    )
    return accord.load(proto, device="cuda")


def softmax(v):
    e = np.exp(v - v.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def copies_of(gpu):
    """Where the bytes of each copy of a run are noted."""
    copies = []
    for name in ("to_device", "to_host"):
        original = getattr(gpu, name)
        setattr(gpu, name, lambda *a, f=original: copies.append(a[2]) or f(*a))
    return copies


def test_memory_of_the_device_goes_in_and_out_without_copies(gpu):
    m = simple()
    rng = np.random.default_rng(0)
    copies = copies_of(gpu)
    for k in range(6):
        x, z = rng.standard_normal((2, 3, 8)).astype(F)
        far_x, far_z, out = on_device(gpu, x), on_device(gpu, z), on_device(gpu, np.zeros((3, 8), F))
        copies.clear()
        if k % 3 == 0:
            result = m.run_into({"x": far_x, "z": far_z}, {"y": out})
            assert result[0] is out and not copies
            got = out.numpy()
        elif k % 3 == 1:
            got = m(x, far_z)[0]
            assert copies == [96, 96]
        else:
            got = m(x, z)[0]
            assert len(copies) == 3
        np.testing.assert_allclose(got, softmax(np.maximum(x, 0) + z), rtol=1e-5)
        np.testing.assert_array_equal(far_x.numpy(), x)  # nothing is computed in the caller's input
        np.testing.assert_array_equal(far_z.numpy(), z)


def test_an_output_may_be_made_on_the_device(gpu):
    m = simple()
    x, z = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(F)
    far = on_device(gpu, x)
    (y,) = m.run_into({"x": far, "z": z}, {"y": far.memory})
    assert isinstance(y, DeviceArray)
    np.testing.assert_allclose(y.numpy(), softmax(np.maximum(x, 0) + z), rtol=1e-5)


def test_an_output_over_an_input_is_right(gpu):
    m = simple()
    x, z = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(F)
    far = on_device(gpu, x)
    m.run_into({"x": far, "z": z}, {"y": far})
    np.testing.assert_allclose(far.numpy(), softmax(np.maximum(x, 0) + z), rtol=1e-5)


def test_what_does_not_fit_is_refused(gpu):
    m = simple()
    x, z = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(F)
    with pytest.raises(InputError, match="wrong dtype"):
        m(on_device(gpu, x.astype(np.float64)), z)
    with pytest.raises(InputError, match="does not fit"):
        m.run_into({"x": x, "z": z}, {"y": on_device(gpu, np.zeros((2, 8), F))})


def test_binding(gpu):
    proto = model([node("Exp", ["x"], ["y"])], {"x": (F, ["n"])}, ["y"])
    session = accord.InferenceSession(proto.SerializeToString(), providers=["CUDAExecutionProvider"])
    x = np.linspace(0, 1, 5, dtype=F)
    binding = session.io_binding()
    value = accord.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
    assert value.device_name() == "cuda"
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y", "cuda")
    session.run_with_iobinding(binding)
    (out,) = binding.get_outputs()
    assert out.device_name() == "cuda" and out.shape() == [5]
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], np.exp(x), rtol=1e-6)


def test_an_index_outside_is_refused_and_the_model_lives_on(gpu):
    proto = model([node("Gather", ["x", "i"], ["y"])], {"x": (F, [4, 3]), "i": (np.int64, ["n"])}, ["y"])
    m = accord.load(proto, device="cuda")
    x = np.arange(12, dtype=F).reshape(4, 3)
    for _ in range(4):
        with pytest.raises(ExecutionError, match="outside its axis"):
            m(x, np.array([0, 4]))
        np.testing.assert_array_equal(m(x, np.array([3, -4, 1]))[0], x[[3, -4, 1]])


WAYS = ("host", "first", "second", "new", "made", "over")


@pytest.mark.parametrize("seed", range(6))
def test_runs_on_the_same_memory_and_on_others_in_any_order(gpu, seed):
    """What a run finds out once for some memory holds for that memory alone, whatever ran since."""
    rng = np.random.default_rng(seed)
    m = simple()
    sets = {n: [on_device(gpu, np.zeros((3, 8), F)) for _ in range(3)] for n in ("first", "second")}
    order = [*rng.choice(WAYS, 8), "first", "first", "first", "first", *rng.choice(WAYS, 8), "first"]
    for k, way in enumerate(order):
        x, z = rng.standard_normal((2, 3, 8)).astype(F)
        if way == "host":
            got = m(x, z)[0]
        else:
            far = sets[way] if way in sets else [on_device(gpu, np.zeros((3, 8), F)) for _ in range(3)]
            for array, content in zip(far, (x, z), strict=False):
                array.assign(content)
            into = {"made": far[0].memory, "over": far[1]}.get(way, far[2])
            if k == 14:
                m.trim()
            (result,) = m.run_into({"x": far[0], "z": far[1]}, {"y": into})
            assert way == "made" or result is into
            got = result.numpy()
        np.testing.assert_allclose(got, softmax(np.maximum(x, 0) + z), rtol=1e-5)


def test_runs_on_the_same_memory_with_another_arena(gpu):
    """As it happens when several threads give theirs back in another order."""
    from accord.runtime.arena import Arena

    m = simple()
    far = [on_device(gpu, np.zeros((3, 8), F)) for _ in range(3)]
    executor, _ = m.executor_for({"x": far[0], "z": far[1]})
    copies = copies_of(gpu)
    rng = np.random.default_rng(0)
    for k in range(8):
        x, z = rng.standard_normal((2, 3, 8)).astype(F)
        far[0].assign(x)
        far[1].assign(z)
        if k > 3:
            executor._arenas.append(Arena())
        copies.clear()
        m.run_into({"x": far[0], "z": far[1]}, {"y": far[2]})
        assert not copies
        np.testing.assert_allclose(far[2].numpy(), softmax(np.maximum(x, 0) + z), rtol=1e-5)


def test_runs_on_the_same_memory_are_matched_twice(gpu, monkeypatch):
    from accord.runtime.inputs import Matcher

    m = simple()
    far = [on_device(gpu, np.full((3, 8), v, F)) for v in (1, 2, 0)]
    matched = []
    original = Matcher.__call__
    monkeypatch.setattr(Matcher, "__call__", lambda *a: matched.append(1) or original(*a))
    for k in range(6):
        far[0].assign(np.full((3, 8), k, F) + np.arange(8, dtype=F))
        m.run_into({"x": far[0], "z": far[1]}, {"y": far[2]})
        np.testing.assert_allclose(far[2].numpy(), softmax(np.tile(np.arange(8.0), (3, 1))), rtol=1e-5)
    assert len(matched) == 2


def test_an_error_of_a_run_on_the_same_memory_is_the_same(gpu):
    proto = model([node("Gather", ["x", "i"], ["y"])], {"x": (F, [4, 3]), "i": (np.int64, [2])}, ["y"])
    m = accord.load(proto, device="cuda")
    x = np.arange(12, dtype=F).reshape(4, 3)
    far = [on_device(gpu, a) for a in (x, np.zeros(2, np.int64), np.zeros((2, 3), F))]
    for _ in range(4):
        far[1].assign(np.array([0, 4]))
        with pytest.raises(ExecutionError, match="outside its axis"):
            m.run_into({"x": far[0], "i": far[1]}, {"y": far[2]})
        far[1].assign(np.array([3, 1]))
        m.run_into({"x": far[0], "i": far[1]}, {"y": far[2]})
        np.testing.assert_array_equal(far[2].numpy(), x[[3, 1]])


def test_a_watch_sees_runs_on_the_same_memory(gpu):
    from accord.runtime.watch import Collector, watched

    m = simple()
    far = [on_device(gpu, np.zeros((3, 8), F)) for _ in range(3)]
    for _ in range(3):
        m.run_into({"x": far[0], "z": far[1]}, {"y": far[2]})
    collector = Collector(lambda *_: lambda: None)
    with watched(collector):
        m.run_into({"x": far[0], "z": far[1]}, {"y": far[2]})
    assert collector.runs


class Lent:
    """An array of another library, of which only its interface is known."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, "strides": None}


class Tensor(Lent):
    """As PyTorch's."""

    @property
    def shape(self):
        return self.array.shape

    @property
    def dtype(self):
        return str(self.array.dtype)

    def data_ptr(self):
        return self.array.address

    def is_contiguous(self):
        return True


Tensor.__module__ = "torch"


@pytest.mark.parametrize("kind", [Lent, Tensor])
def test_arrays_of_other_libraries(gpu, kind):
    import gc
    import weakref

    m = simple()
    rng = np.random.default_rng(0)
    own = [on_device(gpu, np.zeros((3, 8), F)) for _ in range(3)]
    for _ in range(5):
        x, z = rng.standard_normal((2, 3, 8)).astype(F)
        own[0].assign(x)
        own[1].assign(z)
        far = [kind(a) for a in own]
        (y,) = m.run_into({"x": far[0], "z": far[1]}, {"y": far[2]})
        np.testing.assert_allclose(y.numpy(), softmax(np.maximum(x, 0) + z), rtol=1e-5)
        assert y.address == own[2].address
    alive = [weakref.ref(a) for a in far]
    del far
    gc.collect()
    assert [a() is None for a in alive] == [True, True, False]  # the result keeps the memory that it is in
    del y
    gc.collect()
    assert alive[2]() is None


def test_threads_on_memory_of_their_own(gpu):
    """Frames and arenas are lent anew for each run."""
    from concurrent.futures import ThreadPoolExecutor

    m = simple()

    def work(k):
        rng = np.random.default_rng(k)
        far = [on_device(gpu, np.zeros((3, 8), F)) for _ in range(3)]
        for _ in range(8):
            x, z = rng.standard_normal((2, 3, 8)).astype(F)
            far[0].assign(x)
            far[1].assign(z)
            m.run_into({"x": far[0], "z": far[1]}, {"y": far[2]})
            np.testing.assert_allclose(far[2].numpy(), softmax(np.maximum(x, 0) + z), rtol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_threads_share_a_model(gpu):
    from concurrent.futures import ThreadPoolExecutor

    m = simple()
    rng = np.random.default_rng(0)
    pairs = [rng.standard_normal((2, 1 + k % 3, 8)).astype(F) for k in range(12)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda p: m(p[0], p[1])[0], pairs))
    for (x, z), got in zip(pairs, results, strict=True):
        np.testing.assert_allclose(got, softmax(np.maximum(x, 0) + z), rtol=1e-5)


def test_nothing_is_left_on_the_device(gpu):
    m = simple()
    x, z = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(F)
    for _ in range(4):
        m(x, z)
    before = len(gpu.blocks)
    for _ in range(4):
        m(x, z)
    assert len(gpu.blocks) == before
    m.trim()
    del m
    import gc

    gc.collect()
    assert not gpu.blocks and len(gpu.events) == len(gpu.idle)  # one for the streams of a run
