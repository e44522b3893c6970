"""What is read of a machine, and what is said of it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from accord.doctor.environment import Cache, Environment, Limits, Nvidia, look
from accord.doctor.findings import LEVELS, judge

GIB = 1 << 30


@pytest.fixture(scope="module")
def sound() -> Environment:
    """An environment in which nothing is wrong."""
    seen = look()
    cpu = dataclasses.replace(
        seen.cpu, arch="x86_64", features=("avx", "avx2"), host_cores=8, allowed_cores=8, quota=None, runtime_threads=8
    )
    return dataclasses.replace(
        seen,
        cpu=cpu,
        limits=Limits(32 * GIB, None, 16 * GIB, 8 * GIB, 8 * GIB, None),
        variables={},
        packages={"accord": "0.1.0", "numpy": "2.4.0", "onnx": "1.23.2"},
        requirements={},
        openmp={},
        nvidia=Nvidia(),
        cache=Cache("/cache", 0, 4 * GIB, True, True, 50 * GIB),
        backends={"cpu": "cpu", "reference": "cpu"},
        broken_backends="",
        bad_cpu="",
    )


def changed(e: Environment, **changes) -> Environment:
    """``e`` with fields changed; "limits.memory" is a field of a field."""
    for name, value in changes.items():
        outer, _, inner = name.partition("__")
        e = dataclasses.replace(
            e, **{outer: dataclasses.replace(getattr(e, outer), **{inner: value}) if inner else value}
        )
    return e


def test_nothing_is_wrong_with_a_sound_environment(sound):
    assert judge(sound) == []


ALL = {
    "backends": ({"backends": {}, "broken_backends": "x failed"}, "accord-backends", "broken"),
    "not installed": ({"backends": {}}, "accord-not-installed", "broken"),
    "bad ACCORD_CPU": ({"bad_cpu": "not understood"}, "accord-cpu", "broken"),
    "ACCORD_CPU": ({"variables": {"ACCORD_CPU": "sse2"}}, "accord-cpu", "note"),
    "requirement": ({"requirements": {"onnx": ("numpy<2",)}}, "requirements", "warning"),
    "own requirement": ({"requirements": {"accord": ("numpy>=3",)}}, "requirements", "broken"),
    "missing": ({"requirements": {"accord": ("llvmlite>=0.50",)}}, "requirements", "broken"),
    "numpy": ({"packages": {"numpy": "2.1.3", "onnxruntime": "1.18.1"}}, "numpy-abi", "broken"),
    "numpy torch": ({"packages": {"numpy": "2.0.0", "torch": "2.2.2+cu121"}}, "numpy-abi", "broken"),
    "two runtimes": ({"packages": {"onnxruntime": "1.32", "onnxruntime-gpu": "1.32"}}, "same-module", "warning"),
    "two CUDAs": ({"packages": {"nvidia-cudnn-cu11": "9", "nvidia-cublas-cu12": "12"}}, "cuda-packages", "warning"),
    "tensorrt": (
        {"packages": {"tensorrt-cu12-libs": "10.1", "tensorrt-cu12-bindings": "10.2"}}, "tensorrt-parts", "broken"
    ),
    "openmp": ({"openmp": {"libgomp-a34b3233.so.1": "/a", "libiomp5.so": "/b"}}, "openmp", "warning"),
    "openmp hidden": ({"variables": {"KMP_DUPLICATE_LIB_OK": "TRUE"}}, "openmp-hidden", "warning"),
    "too many threads": ({"variables": {"OMP_NUM_THREADS": "64"}}, "threads", "warning"),
    "few cores": ({"cpu__allowed_cores": 2, "cpu__runtime_threads": 2}, "threads", "warning"),
    "quota": ({"cpu__quota": 2.0}, "accord-threads", "warning"),
    "small quota": ({"cpu__quota": 0.5, "cpu__runtime_threads": 1}, "quota", "warning"),
    "no avx2": ({"cpu__features": ("sse4.2",)}, "instruction-set", "note"),
    "pids": ({"limits__pids": 20}, "pids", "warning"),
    "memory": ({"limits__available": GIB // 2}, "memory", "warning"),
    "small shm": ({"limits__shared": 64 << 20}, "shared-memory", "warning"),
    "full shm": ({"limits__shared_free": 1}, "shared-memory", "warning"),
    "cache off": ({"cache": Cache(None)}, "cache", "note"),
    "cache read-only": ({"cache__writable": False}, "cache", "warning"),
    "cache of others": ({"cache__trusted": False}, "cache", "warning"),
    "disk": ({"cache__disk_free": 1 << 20}, "disk", "warning"),
    "driver": (
        {"nvidia": Nvidia("550.54", "550.90", None, ("nvidia0",))}, "driver-mismatch", "broken"
    ),
    "hidden gpu": ({"nvidia": Nvidia("550.54", "550.54")}, "gpu-hidden", "warning"),
    "no libcuda": ({"nvidia": Nvidia("550.54", None, None, ("nvidia0",))}, "libcuda", "broken"),
    "gpu package": ({"packages": {"onnxruntime-gpu": "1.32"}}, "no-gpu", "note"),
    "gpu off": (
        {"nvidia": Nvidia("5", "5", None, ("nvidia0",)), "variables": {"CUDA_VISIBLE_DEVICES": ""}},
        "cuda-visible-devices",
        "warning",
    ),
    "old driver": (
        {"nvidia": Nvidia("5", "5", 12020, ("nvidia0",)), "packages": {"nvidia-cuda-runtime-cu13": "13.0"}},
        "driver-old",
        "broken",
    ),
    "no cublas": (
        {"nvidia": Nvidia("5", "5", 13000, ("nvidia0",)), "packages": {"cuda-bindings": "13.0", "triton": "3.9"}},
        "cublas",
        "note",
    ),
    "cuda twice": (
        {"variables": {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}, "packages": {"nvidia-cublas-cu12": "12"}},
        "cuda-twice",
        "warning",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ALL)
def test_each_finding(sound, kind):
    changes, name, severity = ALL[kind]
    found = {f.id: f for f in judge(changed(sound, **changes))}
    assert name in found
    assert found[name].severity == severity
    assert all((found[name].what, found[name].why, found[name].remedy))


def test_the_worst_comes_first(sound):
    found = judge(changed(sound, cache=Cache(None), broken_backends="x", limits__available=1))
    ranks = [LEVELS.index(f.severity) for f in found]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}


def test_versions_that_are_good_enough_give_nothing(sound):
    packages = {"numpy": "2.4.6", "onnxruntime": "1.32.0", "torch": "2.13.0+cpu", "scipy": "1.14.0rc1"}
    assert judge(changed(sound, packages=packages)) == []
    old = {"numpy": "1.26.4", "onnxruntime": "1.16.0", "torch": "2.1"}
    assert judge(changed(sound, packages=old)) == []


def test_markers_of_requirements_count(sound):
    requirements = {"onnx": ("numpy<1; python_version < '3'", "numpy<1; extra == 'old'", "not a requirement !!")}
    assert judge(changed(sound, requirements=requirements)) == []


# files


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = "MemTotal:       33554432 kB\nMemFree: 1 kB\nMemAvailable:   16777216 kB\n"


@pytest.mark.parametrize(
    "files",
    [
        {  # version 2, within a container: the group's path is the root
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/pids.max": "100\n",
        },
        {  # version 2, on the host, limits further up
            "proc/self/cgroup": "0::/a.slice/b.scope\n",
            "sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/a.slice/b.scope/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/a.slice/memory.max": "max\n",
            "sys/fs/cgroup/a.slice/b.scope/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/a.slice/b.scope/pids.max": "100\n",
        },
        {  # version 1
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n3:pids:/docker/abc\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/pids/pids.max": "100\n",
        },
    ],
    ids=["v2 container", "v2 host", "v1"],
)
def test_limits_of_control_groups(tmp_path, files):
    root = write(tmp_path, {**files, "proc/meminfo": MEMINFO})
    seen = look(root)
    assert seen.cpu.quota == 1.5
    assert (seen.limits.memory, seen.limits.container_memory) == (32 * GIB, 4 * GIB)
    assert seen.limits.available == 3 * GIB
    assert seen.limits.pids == 100


def test_no_limits(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
        "proc/meminfo": MEMINFO,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    seen = look(write(tmp_path, files))
    assert seen.cpu.quota is None
    assert seen.limits.container_memory is None
    assert seen.limits.available == 16 * GIB


def test_a_machine_that_tells_nothing(tmp_path):
    seen = look(tmp_path)
    assert seen.limits == Limits(None, None, None, None, None, None)
    assert seen.nvidia == Nvidia()
    assert not [f for f in judge(seen) if f.severity == "broken"]


def test_nvidia(tmp_path):
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    files = {
        "proc/driver/nvidia/version": version,
        "dev/nvidia0": "",
        "dev/nvidiactl": "",
        "dev/nvidia-uvm": "",
        "usr/lib/x86_64-linux-gnu/libcuda.so.1": "",
        "usr/lib/x86_64-linux-gnu/libcuda.so.550.90.07": "",
        "usr/lib/x86_64-linux-gnu/libcudart.so.12": "",
        "usr/lib/x86_64-linux-gnu/libcudnn.so.9": "",
        "usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0": "",
    }
    seen = look(write(tmp_path, files)).nvidia
    assert (seen.module, seen.library, seen.devices) == ("550.54.15", "550.90.07", ("nvidia0",))
    assert list(seen.libraries) == ["libcudart.so.12", "libcudnn.so.9"]


def test_the_open_kernel_module(tmp_path):
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build\n"
    assert look(write(tmp_path, {"proc/driver/nvidia/version": version})).nvidia.module == "570.158.01"


def test_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "none" / "yet"))
    assert look().cache.writable
    folder = tmp_path / "cache"
    write(folder, {"code/a.entry": "x" * 1000})
    monkeypatch.setenv("ACCORD_CACHE", str(folder))
    assert look().cache.size == 1000
    folder.chmod(0o777)
    assert not look().cache.trusted
    monkeypatch.setenv("ACCORD_CACHE", "off")
    assert look().cache.folder is None


def test_here():
    seen = look()
    assert seen.packages["numpy"]
    assert seen.backends["cpu"] == "cpu"
    assert seen.cpu.allowed_cores >= seen.cpu.physical_cores >= 1


def test_looking_imports_nothing_heavy():
    code = (
        "import sys; from accord.doctor.environment import look; from accord.doctor.findings import judge;"
        "judge(look());"
        "print([m for m in ('torch', 'onnxruntime', 'openvino', 'tensorrt', 'triton', 'llvmlite') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_package_is_a_finding_and_no_crash():
    code = (
        "import sys; sys.modules['numpy'] = None;"
        "from accord.doctor.environment import look; from accord.doctor.findings import judge;"
        "print([f.id for f in judge(look()) if f.severity == 'broken'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "accord-backends" in done.stdout
