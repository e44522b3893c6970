"""What a process runs in: the system, its limits, the packages, GPUs. Only looked at: nothing heavy is imported."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accord.container import cpu_quota, limits
from accord.errors import BackendError, CompileError
from accord.storage import cache_folder, cache_limit

__all__ = ["Cache", "Cpu", "Environment", "Limits", "Nvidia", "look"]

#: Packages whose versions matter, as their distributions are named.
PACKAGES = (
    "accord", "numpy", "onnx", "onnx-ir", "llvmlite", "ml-dtypes", "protobuf",
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-training",
    "onnxruntime-qnn", "ort-nightly", "ort-nightly-gpu", "onnxruntime-extensions",
    "torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "openvino", "openvino-dev",
    "tensorrt", "tensorrt-cu11", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-cu12-libs", "tensorrt-cu12-bindings",
    "tensorrt-cu13-libs", "tensorrt-cu13-bindings",
    "tritonclient", "cuda-core", "cuda-bindings", "cuda-python", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x",
    "tensorflow", "jax", "scipy", "scikit-learn", "pandas", "numba", "opencv-python", "opencv-python-headless",
    "mkl", "intel-openmp",
)  # fmt: skip
#: Variables that set how many threads libraries make.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_PROC_BIND",
    "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "KMP_DUPLICATE_LIB_OK",
)  # fmt: skip
_OTHER_VARIABLES = ("ACCORD_CPU", "ACCORD_CACHE", "ACCORD_CACHE_LIMIT", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
_CUDA_LIBRARIES = ("libcudart", "libcublasLt", "libcublas", "libcudnn", "libnvrtc", "libnvJitLink", "libnvinfer")
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu",
    "usr/lib/wsl/lib", "usr/local/nvidia/lib64", "usr/local/cuda/lib64",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor.

    Attributes:
        model: What it is sold as.
        arch: "x86_64", "aarch64" ...
        features: Instruction sets that generated code can use, by LLVM's names; empty if Accord cannot be imported.
        vector_bits: Width of vectors.
        caches: Bytes of the data caches, first level first.
        host_cores: Logical cores of the machine.
        allowed_cores: Logical cores that affinity allows.
        physical_cores: Physical cores among these.
        quota: Cores' worth of time that the container may use; None without a limit.
        runtime_threads: Threads that Accord makes.
    """

    model: str
    arch: str
    features: tuple[str, ...]
    vector_bits: int
    caches: tuple[int, ...]
    host_cores: int
    allowed_cores: int
    physical_cores: int
    quota: float | None
    runtime_threads: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Memory and other limits, in bytes; None where there is none or the system does not tell.

    Attributes:
        memory: Of the machine.
        container_memory: That the container may use.
        available: That can be had now.
        shared: Size of ``/dev/shm``.
        shared_free: What of it is free.
        pids: Threads and processes that the container may have.
    """

    memory: int | None
    container_memory: int | None
    available: int | None
    shared: int | None
    shared_free: int | None
    pids: int | None


@dataclass(frozen=True, slots=True)
class Nvidia:
    """NVIDIA driver, devices and libraries.

    Attributes:
        module: Version of the loaded kernel module; None without one.
        library: Version of ``libcuda`` by its file's name; None if it is not found.
        cuda: CUDA version of the driver, as major × 1000 + minor × 10; None if it cannot be asked.
        devices: Names of device files.
        libraries: CUDA libraries in reach: file name to folder.
    """

    module: str | None = None
    library: str | None = None
    cuda: int | None = None
    devices: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cache:
    """Accord's cache on disk.

    Attributes:
        folder: Where it is; None if nothing is kept.
        size: Bytes in it.
        limit: Bytes that it may have.
        writable: New entries can be kept.
        trusted: Nobody else may write to it; otherwise it is not used.
        disk_free: Bytes that are free on its disk.
    """

    folder: str | None
    size: int = 0
    limit: int = 0
    writable: bool = False
    trusted: bool = True
    disk_free: int | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process runs in.

    Attributes:
        system: Operating system and kernel.
        libc: C library and its version.
        container: Kind of container; "" outside of one.
        python: Version of Python.
        executable: Path of the interpreter.
        cpu: Processor.
        limits: Memory and other limits.
        variables: Environment variables that matter and are set.
        packages: Installed distributions that matter, with versions.
        requirements: What those say that they need: distribution to texts as in its metadata.
        openmp: OpenMP libraries in the environment: file name to folder.
        nvidia: NVIDIA driver, devices, libraries.
        cache: Accord's cache.
        backends: Name of each backend of Accord, with its device.
        broken_backends: Why backends could not be found; "" if they could.
        bad_cpu: Why the processor cannot be used as asked for; "" if it can.
    """

    system: str
    libc: str
    container: str
    python: str
    executable: str
    cpu: Cpu
    limits: Limits
    variables: Mapping[str, str]
    packages: Mapping[str, str]
    requirements: Mapping[str, tuple[str, ...]]
    openmp: Mapping[str, str]
    nvidia: Nvidia
    cache: Cache
    backends: Mapping[str, str]
    broken_backends: str = ""
    bad_cpu: str = ""


def look(root: Path = Path("/")) -> Environment:
    """The environment of this process.

    Args:
        root: Where the file system begins; another one than the system's for tests.
    """
    packages, requirements = _packages()
    backends, broken = _backends()
    return Environment(
        system=f"{platform.system()} {platform.release()}",
        libc=" ".join(platform.libc_ver()).strip(),
        container=_container(root),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        executable=sys.executable,
        cpu=_cpu(root),
        limits=_limits(root),
        variables={n: os.environ[n] for n in (*THREAD_VARIABLES, *_OTHER_VARIABLES) if n in os.environ},
        packages=packages,
        requirements=requirements,
        openmp=_openmp(),
        nvidia=_nvidia(root),
        cache=_cache(),
        backends=backends,
        broken_backends=broken,
        bad_cpu=_bad_cpu(),
    )


# files


def _text(path: Path) -> str:
    """The first part of a file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 16).decode(errors="replace")
    except OSError:
        return ""


def _names(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


# parts


def _container(root: Path) -> str:
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "Kubernetes"
    for name, kind in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
        if (root / name).exists():
            return kind
    return "WSL" if "microsoft" in _text(root / "proc/version").lower() else ""


def _cpu(root: Path) -> Cpu:
    model = re.search(r"^(?:model name|Processor|Model)\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    sibling_lists = [
        _text(root / f"sys/devices/system/cpu/cpu{k}/topology/thread_siblings_list") or str(k) for k in allowed
    ]
    seen = Cpu(
        model=model[1].strip() if model else platform.processor() or "unknown",
        arch=platform.machine(),
        features=(),
        vector_bits=0,
        caches=(),
        host_cores=os.cpu_count() or 1,
        allowed_cores=len(allowed),
        physical_cores=len(set(sibling_lists)),
        quota=cpu_quota(root),
        runtime_threads=0,
    )
    try:
        from accord.backends.cpu.machine import usable_cores, whole_machine
    except ImportError:  # a package that Accord needs is missing; the findings say which
        return seen
    machine = whole_machine()
    return dataclasses.replace(
        seen,
        features=tuple(sorted(machine.has)),
        vector_bits=machine.vector_bits,
        caches=(machine.l1d, machine.l2, machine.l3),
        runtime_threads=usable_cores(),
    )


def _bad_cpu() -> str:
    try:
        from accord.backends.cpu.machine import machine

        machine()
    except CompileError as error:
        return str(error)
    except ImportError:
        return ""
    return ""


def _limits(root: Path) -> Limits:
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE))
    sizes = {name: int(value) << 10 for name, value in meminfo.items()}
    total = sizes.get("MemTotal")
    limit = min(limits("memory", "memory.max", "memory.limit_in_bytes", root=root), default=None)
    if limit is not None and total is not None and limit >= total:
        limit = None  # version 1 writes a number near 2^63 for no limit
    used = min(limits("memory", "memory.current", "memory.usage_in_bytes", root=root), default=0)
    available = sizes.get("MemAvailable")
    if limit is not None:
        available = min(limit - used, available) if available is not None else limit - used
    shared = shared_free = None
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(root / "dev/shm")
        shared, shared_free = usage.total, usage.free
    pids = min(limits("pids", "pids.max", root=root), default=None)
    return Limits(total, limit, available, shared, shared_free, pids)


def _packages() -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    from importlib.metadata import distributions

    wanted = set(PACKAGES)
    versions: dict[str, str] = {}
    requirements: dict[str, tuple[str, ...]] = {}
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name in versions or not (name in wanted or name.startswith("nvidia-")):
            continue  # the first one on the path is the one that is imported
        versions[name] = distribution.version or "unknown"
        requirements[name] = tuple(distribution.requires or ())
    order = {name: k for k, name in enumerate(PACKAGES)}
    ranked = sorted(versions, key=lambda n: (order.get(n, len(order)), n))
    return {n: versions[n] for n in ranked}, requirements


def _site_folders() -> list[Path]:
    return [Path(p) for p in sys.path if p.endswith("-packages")]


def _openmp() -> dict[str, str]:
    """OpenMP libraries that packages bring, and the interpreter's own."""
    found: dict[str, str] = {}
    for folder in _site_folders():
        for place in ("*.libs", "*/lib", "*/libs", "*/.libs", "*/.dylibs"):
            for path in _names(folder, f"{place}/lib*omp*"):
                found[path.name] = str(path.parent)
    for path in _names(Path(sys.prefix) / "lib", "lib*omp*"):
        found[path.name] = str(path.parent)
    return {n: f for n, f in found.items() if re.match(r"lib(?:gomp|iomp5|omp|vcomp)\b|lib(?:gomp|iomp5|omp)-", n)}


def _nvidia(root: Path) -> Nvidia:
    module = re.search(r"(?:Kernel Module|Module for \S+)\s+([\d.]+)", _text(root / "proc/driver/nvidia/version"))
    devices = [p.name for p in _names(root / "dev", "nvidia*") if p.name[6:].isdigit()]
    folders = [root / f for f in _LIBRARY_FOLDERS]
    if root == Path("/"):
        folders += [Path(f) for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
        folders += [p for site in _site_folders() for p in _names(site / "nvidia", "*/lib")]
        folders += [p for site in _site_folders() for p in _names(site, "tensorrt*_libs")]
    library = _driver_library(folders)
    return Nvidia(
        module[1] if module else None,
        library,
        _driver_cuda() if root == Path("/") and library is not None else None,
        tuple(devices),
        dict(_cuda_libraries(folders)),
    )


def _driver_library(folders: Iterable[Path]) -> str | None:
    """The version of the driver's library: of the file that ``libcuda.so.1`` links to, or else of one beside it."""
    for folder in folders:
        found = sorted(_names(folder, "libcuda.so.*"))
        resolved = [p.resolve() for p in found if p.name.endswith(".so.1") and p.exists()]
        versions = [p.name.removeprefix("libcuda.so.") for p in [*resolved, *found]]
        if versions:
            return next((v for v in versions if re.fullmatch(r"\d+\.[\d.]+", v)), versions[0])
    return None


def _driver_cuda() -> int | None:
    """The CUDA version that the driver knows; asking needs no GPU and starts nothing."""
    version = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
            return version.value or None
    return None


def _cuda_libraries(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    seen = set()
    for folder in folders:
        for path in _names(folder, "lib*.so.*"):
            stem, _, version = path.name.partition(".so.")
            if stem in _CUDA_LIBRARIES and version.isdigit() and path.name not in seen:
                seen.add(path.name)
                yield path.name, str(folder)


def _cache() -> Cache:
    folder = cache_folder()
    if folder is None:
        return Cache(None)
    size = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += (Path(base) / name).stat().st_size
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    trusted = True
    if folder.exists() and hasattr(os, "getuid"):
        info = folder.stat()
        trusted = info.st_uid == os.getuid() and not info.st_mode & 0o022
    free = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(nearest).free
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return Cache(str(folder), size, cache_limit(), writable, trusted, free)


def _backends() -> tuple[dict[str, str], str]:
    try:
        from accord.backends.discovery import available_backends

        return {name: backend.device for name, backend in available_backends().items()}, ""
    except (BackendError, ImportError) as error:
        return {}, str(error)
