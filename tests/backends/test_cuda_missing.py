"""What asking for device "cuda" says where something is missing, too old, or not there."""

from __future__ import annotations

import subprocess
import sys
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import pytest

import accord
from accord.backends.cuda import CudaBackend, driver
from accord.errors import BackendError
from builders import model, node

PROTO = model([node("Exp", ["x"], ["y"])], {"x": (np.float32, ["n"])}, ["y"])


class Status(IntEnum):
    SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


class Attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


def bindings(*, start=0, version=13000, count=1, capability=(9, 0), no_library=False):
    """The driver's interface as far as a device that is refused needs it."""

    def initialise(flags):
        if no_library:
            raise RuntimeError("Failed to dlopen libcuda.so.1")
        return (Status(start),)

    return SimpleNamespace(
        cuInit=initialise,
        cuDriverGetVersion=lambda: (Status.SUCCESS, version),
        cuDeviceGetCount=lambda: (Status.SUCCESS, count),
        cuDeviceGet=lambda ordinal: (Status.SUCCESS, ordinal),
        cuDeviceGetName=lambda length, handle: (Status.SUCCESS, b"Old GPU\0\0"),
        cuDeviceGetAttribute=lambda a, handle: (
            Status.SUCCESS,
            capability[a - Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
        ),
        CUdevice_attribute=Attribute,
    )


@pytest.mark.parametrize(
    ("facts", "message", "remedy"),
    [
        ({"no_library": True}, "no NVIDIA driver on this machine.*libcuda", "Install the driver"),
        ({"start": 100}, "driver cannot be used: CUDA_ERROR_NO_DEVICE", "nvidia-smi"),
        ({"version": 12030}, r"driver is too old.*CUDA 12\.4 or newer.*CUDA 12\.3", "Update the driver"),
        ({"count": 0}, "there is no GPU here", "nvidia-smi"),
        ({"capability": (7, 0)}, r"GPU 0 \(Old GPU\) is too old.*7\.5 or newer.*7\.0", "another GPU"),
    ],
)
def test_what_is_wrong_is_said_when_the_device_is_asked_for(monkeypatch, facts, message, remedy):
    monkeypatch.setattr(driver, "bindings", lambda: bindings(**facts))
    driver.count.cache_clear()
    driver._device.cache_clear()
    monkeypatch.setattr("accord.backends.cuda._missing_package", lambda: None)
    try:
        with pytest.raises(BackendError, match=message) as caught:
            accord.load(PROTO, device="cuda")
        assert remedy in (caught.value.remedy or "")
    finally:
        driver.count.cache_clear()
        driver._device.cache_clear()


@pytest.mark.parametrize("package", ["cuda-bindings", "triton"])
def test_a_missing_package_is_named(monkeypatch, package):
    monkeypatch.setattr("accord.backends.cuda._missing_package", lambda: package)
    with pytest.raises(BackendError, match=f"needs the package {package}") as caught:
        CudaBackend().require()
    assert caught.value.remedy == "pip install 'accord[cuda]'"


#: Finds the named packages as if they were not installed.
WITHOUT = """
import importlib.util, sys
gone = {gone!r}
find = importlib.util.find_spec
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
USE = """
import numpy as np
import accord
from onnx import TensorProto, helper
value = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"])
graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", [value("x")], [value("y")])
proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
assert accord.load(proto)(np.zeros(2, np.float32))[0].tolist() == [1, 1]
accord.get_available_providers()
loaded = sorted(n for n in sys.modules if n.partition(".")[0] in ("cuda", "triton", "nvidia"))
assert not loaded, loaded
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_nothing_of_cuda_is_imported_before_a_gpu_is_asked_for():
    run(f"import sys\n{USE}")


@pytest.mark.parametrize("gone", [("cuda",), ("triton",)])
def test_without_a_package_everything_else_works(gone):
    asked = """
try:
    accord.load(proto, device="cuda")
except accord.errors.BackendError as error:
    print(error)
"""
    said = run(WITHOUT.format(gone=gone) + USE + asked)
    assert "needs the package" in said
    assert "accord[cuda]" in said
    assert ("cuda-bindings" if gone == ("cuda",) else "triton") in said
