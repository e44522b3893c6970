"""Profiles of runs on a GPU that is there, with what should not happen planted."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import ctypes

import numpy as np
import pytest

import accord
from accord.backends.cuda.driver import argument_array
from accord.backends.memory import DeviceArray
from accord.kernels.device import architecture, visible
from accord.profile.advice import advise
from accord.profile.device_peaks import peaks_of
from accord.profile.profile import profile
from builders import model, node

pytestmark = pytest.mark.skipif(not visible(), reason="there is no GPU")
Tensor = accord.Tensor
F = np.float32
CARELESS = 'extern "C" __global__ void careless(float *x) { x[threadIdx.x] *= 2.0f; }'


@pytest.fixture
def gpu():
    from accord.backends.cuda.driver import device

    return device()


def careless_operator(gpu):
    """An operator that starts a kernel on the default stream, waits for the device, and copies what is not pinned."""
    from cuda.core import Program, ProgramOptions

    cubin = bytes(Program(CARELESS, "c++", ProgramOptions(arch=f"sm_{architecture()}")).compile("cubin").code)
    address = gpu.allocate(4096)
    values, addresses = argument_array(1)

    @accord.operator("careless::Double")
    def double(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
        gpu.enter()
        values[0] = address
        gpu.launch(gpu.function(cubin, "careless", (64, 1, 1), 0), (1, 1, 1), ctypes.addressof(addresses), 0)
        gpu.call("cuCtxSynchronize")
        gpu.call("cuMemcpyHtoD", address, x.ctypes.data, x.nbytes)
        return 2 * x

    return double


def test_what_should_not_happen_is_named_with_its_step(gpu):
    careless_operator(gpu)
    nodes = [
        node("Softmax", ["x"], ["a"], name="before"),
        node("Double", ["a"], ["b"], name="users", domain="careless"),
        node("Softmax", ["b"], ["y"], name="after"),
    ]
    m = accord.load(model(nodes, {"x": (F, [64])}, ["y"], domains={"careless": 1}), device="cuda")
    found = profile(m, {"x": np.arange(64, dtype=F)}, runs=5)
    assert found.device is not None, found.without_device
    named = {(f.kind, f.what) for f in found.device.findings if found.node_of(f.step) == "users"}
    assert named >= {
        ("default stream", "careless"),
        ("synchronisation", "cuCtxSynchronize"),
        ("synchronisation", "cuMemcpyHtoD"),
        ("pageable copy", "host to device"),
    }
    texts = {a.rule: a.text for a in advise(found)}
    assert "careless in users" in texts["default-stream"]
    assert "cuCtxSynchronize in users" in texts["synchronisation"]


def test_kernels_of_a_graph_have_their_steps(gpu):
    nodes = [node("Softmax", ["x"], ["s0"], name="n0", axis=1)]
    nodes += [node("ReduceSum", [f"s{k}", "axes"], [f"r{k}"], name=f"r{k}", keepdims=1) for k in range(3)]
    nodes += [node("Softmax", [f"r{k}"], [f"t{k}"], name=f"t{k}", axis=0) for k in range(3)]
    nodes += [node("Add", [f"s{k}", f"t{k}"], [f"s{k + 1}"], name=f"a{k}") for k in range(3)]
    nodes.sort(key=lambda n: (n.name != "n0", n.name[1:], "rta".index(n.name[0]) if n.name[0] in "rta" else 0))
    proto = model(nodes, {"x": (F, [512, 256])}, ["s3"], {"axes": np.array([1], np.int64)})
    m = accord.load(proto, device="cuda")
    x = DeviceArray.empty(m_memory(m), (512, 256), np.dtype(F))
    x.assign(np.random.default_rng(0).standard_normal((512, 256)).astype(F))
    found = profile(m, {"x": x}, runs=10)
    assert found.device is not None, found.without_device
    launched = [found.node_of(k.step) for k in found.device.kernels]
    assert None not in launched
    steps = [s.node for s in found.steps if s.backend == "cuda" and not s.is_transfer]
    assert list(dict.fromkeys(launched)) == steps
    assert all(k.graph for k in found.device.kernels)
    assert found.device.without_graph == ""
    assert all(0 < k.seconds < 1e-3 for k in found.device.kernels)
    assert found.device.lost == 0


def m_memory(m):
    return next(b.memory for b in m.executor_for({"x": np.zeros((512, 256), F)})[0].backends.values() if b.memory)


def test_peaks_are_those_of_a_gpu(gpu):
    at = peaks_of(gpu, again=True)
    assert at.multiply["f16"].best > 1e13
    assert at.levels[-1].copy.best > 1e11
