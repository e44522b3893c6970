"""What the device calls of the driver, on a driver that only notes it."""

from __future__ import annotations

import ctypes
import enum
import struct

import pytest

from accord.backends.cuda import driver
from accord.errors import ExecutionError

P, U = ctypes.c_void_p, ctypes.c_uint
#: Functions that are called by their addresses, with the types that CUDA's header gives them.
ENTRIES = {
    "cuCtxSetCurrent": (P,),
    "cuStreamSynchronize": (P,),
    "cuGraphLaunch": (P, P),
    "cuEventRecord": (P, P),
    "cuStreamWaitEvent": (P, P, U),
    "cuLaunchKernel": (P, U, U, U, U, U, U, U, P, P, P),
    "cuLaunchKernelEx": (P, P, P, P),
}
#: Members of CUlaunchAttributeID.
CLUSTER, DEPENDENT = 4, 6


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Numbers:
    """An enumeration whose members are all 6, as that of programmatic stream serialization is."""

    def __getattr__(self, name):
        return CLUSTER if name == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION" else DEPENDENT


def configuration(address):
    """The fields of a ``CUlaunchConfig`` as CUDA's header lays them out, with number and value of its attributes."""
    *sizes, stream, attributes, count = struct.unpack("7I4xQQI", ctypes.string_at(address, 52))
    found = [struct.unpack("I4xi2I", ctypes.string_at(attributes + 72 * k, 20)) for k in range(count)]
    return *sizes, stream, found


class FakeDriver:
    """Stands for ``cuda.bindings.driver``."""

    CUresult = Status

    def __init__(self):
        self.called = []
        self.status = 0
        self.kept = {name: self._entry(name, types) for name, types in ENTRIES.items()}

    def _entry(self, name, types):
        def noted(*arguments):
            if name == "cuLaunchKernelEx":
                arguments = (*configuration(arguments[0]), *arguments[1:])
            self.called.append((name, *arguments))
            return self.status

        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(noted)

    def cuGetProcAddress(self, name, version, flags):  # noqa: N802
        assert (version, flags) == (driver.OLDEST_DRIVER, 0)
        return 0, ctypes.cast(self.kept[name.decode()], P).value, None

    def __getattr__(self, name):
        if not name.startswith("cu"):
            return Numbers()
        results = {
            "cuDriverGetVersion": 13000,
            "cuDeviceGetName": b"fake\0\0",
            "cuDeviceGetAttribute": 9,
            "cuDevicePrimaryCtxRetain": 7,
        }
        return lambda *_: (0, *([results[name]] if name in results else [0] if "Get" in name else []))


@pytest.fixture
def fake(monkeypatch):
    made = FakeDriver()
    monkeypatch.setattr(driver, "bindings", lambda: made)
    monkeypatch.setattr(driver, "count", lambda: 1)
    return made


def test_calls_of_a_run_have_the_arguments_of_cudas_header(fake):
    gpu = driver.Device(0)
    gpu.enter()
    gpu.replay(0x1234567890, 5)
    gpu.wait(5)
    gpu.wait(0)
    gpu.record(0x123456789ABC, 5)
    gpu.follow(6, 0x123456789ABC)
    gpu.launch(driver.Function(0xABCDEF012345, (128, 2, 1), 4096), (2, 3, 4), 0x7F0000000000, 5)
    assert fake.called == [
        ("cuCtxSetCurrent", 7),
        ("cuGraphLaunch", 0x1234567890, 5),
        ("cuStreamSynchronize", 5),
        ("cuStreamSynchronize", None),
        ("cuEventRecord", 0x123456789ABC, 5),
        ("cuStreamWaitEvent", 6, 0x123456789ABC, 0),
        ("cuLaunchKernel", 0xABCDEF012345, 2, 3, 4, 128, 2, 1, 4096, 5, 0x7F0000000000, None),
    ]


def test_an_error_of_the_driver_is_raised_by_whatever_call_meets_it(fake):
    gpu = driver.Device(0)
    fake.status = Status.CUDA_ERROR_NOT_READY
    with pytest.raises(ExecutionError, match="cuGraphLaunch failed: CUDA_ERROR_NOT_READY"):
        gpu.replay(1, 2)
    assert gpu.lost is None
    fake.status = Status.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(MemoryError, match="GPU 0"):
        gpu.launch(driver.Function(1, (32, 1, 1), 0), (1, 1, 1), 0, 2)
    fake.status = Status.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(ExecutionError, match="GPU 0 is lost"):
        gpu.wait(2)
    fake.status = 0
    with pytest.raises(ExecutionError, match="illegal address"):
        gpu.enter()


def test_programs_of_several_blocks_are_started_as_clusters(fake):
    gpu = driver.Device(0)
    function = driver.Function(11, (128, 1, 1), 4096, 2)
    gpu.launch(function, (3, 4, 5), 22, 33)
    gpu.launch(function, (3, 4, 5), 22, 33, early=True)
    cluster, early = (CLUSTER, 2, 1, 1), (DEPENDENT, 1, 0, 0)
    assert fake.called == [
        ("cuLaunchKernelEx", 6, 4, 5, 128, 1, 1, 4096, 33, attributes, 11, 22, None)
        for attributes in ([cluster], [cluster, early])
    ]


def test_a_kernel_that_waits_by_itself_may_start_early(fake):
    gpu = driver.Device(0)
    gpu.launch(driver.Function(0xABCDEF012345, (64, 2, 1), 512), (2, 3, 4), 0x7F0000000000, 0x7E0000000000, early=True)
    (called,) = fake.called
    assert called[:8] == ("cuLaunchKernelEx", 2, 3, 4, 64, 2, 1, 512)
    assert called[8:] == (0x7E0000000000, [(DEPENDENT, 1, 0, 0)], 0xABCDEF012345, 0x7F0000000000, None)


def test_giving_back_keeps_the_threads_device_and_never_raises(fake):
    calls = []
    fake.cuCtxPushCurrent = lambda context: calls.append(("push", context)) or (0,)
    fake.cuCtxPopCurrent = lambda: calls.append(("pop",)) or (0, 7)
    fake.cuMemFree = lambda address: calls.append(("free", address)) or (fake.status,)
    gpu = driver.Device(0)
    gpu.free(99)
    assert calls == [("push", 7), ("free", 99), ("pop",)]
    fake.status = Status.CUDA_ERROR_ILLEGAL_ADDRESS
    gpu.free(99)
    assert gpu.lost is not None
    calls.clear()
    gpu.free(99)
    assert not calls
    with pytest.raises(ExecutionError, match="that Accord did not start"):
        gpu.enter()
