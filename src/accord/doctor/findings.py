"""What is wrong or unusual in an environment, why it matters, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from accord.doctor.environment import Environment

__all__ = ["LEVELS", "Finding", "judge"]

#: From the worst to the mildest: something cannot work; something will hurt; worth knowing.
LEVELS = ("broken", "warning", "note")
_GIB: Final = 1 << 30
#: Docker's default size of /dev/shm is 64 MiB.
_SMALL_SHARED: Final = 256 << 20
_LITTLE_MEMORY: Final = 1 << 30
_LITTLE_DISK: Final = 1 << 30
#: Less than this part of the host's cores in a container is what libraries that count the host's cores go wrong with.
_FEW_CORES: Final = 0.75
#: First versions that were compiled for NumPy 2.
_NUMPY_2: Final = {
    "onnxruntime": "1.19", "onnxruntime-gpu": "1.19", "torch": "2.3", "torchvision": "0.18", "scipy": "1.13",
    "scikit-learn": "1.4.2", "pandas": "2.2.2", "numba": "0.60", "opencv-python": "4.10", "tensorflow": "2.18",
    "opencv-python-headless": "4.10", "onnx": "1.16.2", "llvmlite": "0.43", "ml-dtypes": "0.4", "jax": "0.4.26",
}  # fmt: skip
#: Distributions that bring the same import package, so that files of one overwrite the other's.
_EXCLUSIVE: Final = (
    ("onnxruntime", ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino",
                     "onnxruntime-training", "onnxruntime-qnn", "ort-nightly", "ort-nightly-gpu")),
    ("triton", ("triton", "pytorch-triton")),
    ("cv2", ("opencv-python", "opencv-python-headless")),
    ("cupy", ("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")),
    ("tensorrt", ("tensorrt-cu11", "tensorrt-cu12", "tensorrt-cu13")),
)  # fmt: skip
_FOR_GPU: Final = ("onnxruntime-gpu", "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "cupy-cuda12x", "cupy-cuda13x")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about an environment.

    Attributes:
        id: Of the check.
        severity: One of :data:`LEVELS`.
        what: What was found.
        why: Why it matters.
        remedy: What to do.
    """

    id: str
    severity: str
    what: str
    why: str
    remedy: str


def judge(environment: Environment) -> list[Finding]:
    """All findings, the worst first."""
    found = (f for check in _CHECKS for f in check(environment))
    return sorted(found, key=lambda f: LEVELS.index(f.severity))


# packages


def _accord(e: Environment) -> Iterator[Finding]:
    if e.broken_backends:
        yield Finding(
            "accord-backends",
            "broken",
            f"Accord's backends cannot be loaded: {e.broken_backends}",
            "No model can be compiled before that is corrected.",
            "Install, update or uninstall the package that is named.",
        )
    elif "cpu" not in e.backends:
        yield Finding(
            "accord-not-installed",
            "broken",
            "Accord's entry points are not there: it runs from a folder and is not installed",
            "Backends are found through the entry points of installed packages, so none is found.",
            "pip install accord, or pip install -e . in a clone.",
        )
    if e.bad_cpu:
        yield Finding("accord-cpu", "broken", e.bad_cpu, "No code can be generated.", "Correct or unset ACCORD_CPU.")
    elif "ACCORD_CPU" in e.variables:
        yield Finding(
            "accord-cpu",
            "note",
            f"ACCORD_CPU={e.variables['ACCORD_CPU']} leaves instruction sets out",
            "Generated code is slower than this processor allows.",
            "Unset it, unless that is what you test.",
        )


def _requirements(e: Environment) -> Iterator[Finding]:
    """Requirements of the packages that matter against what is installed, as ``pip check``."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.utils import canonicalize_name
    except ImportError:
        yield Finding(
            "requirements",
            "broken",
            "the package 'packaging' is missing, which onnx-ir needs",
            "onnx-ir cannot be imported without it.",
            "pip install packaging",
        )
        return
    for name, texts in e.requirements.items():
        for text in texts:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            needed = canonicalize_name(requirement.name)
            there = e.packages.get(needed)
            own = name == "accord"
            if there is None:
                if own and needed in ("numpy", "onnx", "onnx-ir", "llvmlite", "ml-dtypes"):
                    yield _missing(needed, str(requirement.specifier))
            elif not requirement.specifier.contains(there, prereleases=True):
                yield Finding(
                    "requirements",
                    "broken" if own else "warning",
                    f"{name} {e.packages[name]} needs {needed}{requirement.specifier}, and {there} is installed",
                    "Versions that do not belong together fail at import, or crash or compute wrongly later.",
                    f"pip install '{needed}{requirement.specifier}', or another version of {name}.",
                )


def _missing(name: str, versions: str) -> Finding:
    return Finding(
        "requirements",
        "broken",
        f"{name} is not installed",
        "Accord needs it.",
        f"pip install '{name}{versions}'",
    )


def _numpy(e: Environment) -> Iterator[Finding]:
    if not e.packages.get("numpy", "").startswith("2."):
        return
    for name, first in _NUMPY_2.items():
        version = e.packages.get(name)
        if version is not None and _release(version) < _release(first):
            yield Finding(
                "numpy-abi",
                "broken",
                f"{name} {version} was compiled for NumPy 1, and NumPy {e.packages['numpy']} is installed",
                "NumPy 2 changed its binary interface: the import fails with '_ARRAY_API not found', or it crashes.",
                f"pip install -U '{name}>={first}', or pip install 'numpy<2' until that is possible.",
            )


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version: "2.4.1+cu121" is (2, 4, 1)."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:  # 0rc1
            break
    return tuple(numbers)


def _exclusive(e: Environment) -> Iterator[Finding]:
    for module, names in _EXCLUSIVE:
        there = [n for n in names if n in e.packages]
        if len(there) > 1:
            yield Finding(
                "same-module",
                "warning",
                f"{' and '.join(there)} are installed together; all bring the module '{module}'",
                "The files of the one installed last overwrite the other's; which of them works is chance, and a GPU "
                "is often lost without an error.",
                f"pip uninstall {' '.join(there)}, then install the one you need.",
            )
    majors = sorted({n.rpartition("-cu")[2] for n in e.packages if n.startswith("nvidia-") and "-cu" in n})
    majors = [m for m in majors if m.isdigit()]
    if len(majors) > 1:
        yield Finding(
            "cuda-packages",
            "warning",
            f"NVIDIA's packages for CUDA {' and '.join(majors)} are installed together",
            "Programs may load libraries of both; the result is undefined symbols, or crashes.",
            "Make an environment for each, or reinstall the frameworks for one CUDA version.",
        )
    for major in ("12", "13"):
        versions = {e.packages[n] for n in (f"tensorrt-cu{major}-{p}" for p in ("libs", "bindings")) if n in e.packages}
        if len(versions) > 1:
            yield Finding(
                "tensorrt-parts",
                "broken",
                f"TensorRT's libraries and bindings have different versions: {', '.join(sorted(versions))}",
                "Its Python package works with libraries of exactly its own version only.",
                f"pip install -U tensorrt-cu{major} (all its parts in one command).",
            )


def _openmp(e: Environment) -> Iterator[Finding]:
    families: dict[str, str] = {}
    for name, folder in e.openmp.items():
        families.setdefault(next(f for f in ("libgomp", "libiomp5", "libomp") if name.startswith(f)), folder)
    if len(families) > 1:
        named = ", ".join(f"{name} in {folder}" for name, folder in families.items())
        yield Finding(
            "openmp",
            "warning",
            f"{len(families)} kinds of OpenMP library: {named}",
            "In one process each makes a pool of threads for all cores, and two of one kind end the program with "
            "'OMP: Error #15'.",
            "Take packages from one source (only pip, or only conda-forge); set OMP_NUM_THREADS. "
            "KMP_DUPLICATE_LIB_OK hides the message and may give wrong results.",
        )
    if e.variables.get("KMP_DUPLICATE_LIB_OK", "").lower() in ("true", "1", "yes"):
        yield Finding(
            "openmp-hidden",
            "warning",
            "KMP_DUPLICATE_LIB_OK is set",
            "It lets two copies of OpenMP run in one process, which may crash or compute wrongly.",
            "Unset it and remove one of the copies.",
        )


# limits


def _threads(e: Environment) -> Iterator[Finding]:
    cpu = e.cpu
    usable = min(cpu.allowed_cores, cpu.quota if cpu.quota is not None else cpu.allowed_cores)
    chosen = e.variables.get("OMP_NUM_THREADS", "").split(",")[0]
    if chosen.isdigit() and int(chosen) > max(1, usable):
        yield Finding(
            "threads",
            "warning",
            f"OMP_NUM_THREADS={chosen}, and {usable:g} cores may be used",
            "Threads that share a core wait for each other at each barrier; that is often slower than one thread.",
            f"OMP_NUM_THREADS={max(1, int(usable))}",
        )
    elif usable <= cpu.host_cores * _FEW_CORES and not chosen:
        yield Finding(
            "threads",
            "warning",
            f"{usable:g} of the host's {cpu.host_cores} cores may be used, and OMP_NUM_THREADS is not set",
            "Libraries that count the host's cores make a thread for each, and these share the few that are allowed.",
            f"OMP_NUM_THREADS={max(1, int(usable))}, and the number of threads in each runtime's own options.",
        )
    if cpu.quota is not None and cpu.runtime_threads > max(1.0, cpu.quota) + 1:
        yield Finding(
            "accord-threads",
            "warning",
            f"Accord would use {cpu.runtime_threads} threads, and the container has {cpu.quota:g} cores' worth of time",
            "The system stops the whole container for the rest of each period when its time is used up: runs jitter.",
            f"accord.load(..., threads={max(1, int(cpu.quota))}), or --threads.",
        )
    if cpu.quota is not None and cpu.quota < 1:
        yield Finding(
            "quota",
            "warning",
            f"the container may use {cpu.quota:g} of one core",
            "Each run is stopped in the middle when the share of a period (0.1 s mostly) is used up.",
            "Give the container at least one core (--cpus, resources.limits.cpu).",
        )
    if cpu.arch in ("x86_64", "AMD64") and cpu.features and "avx2" not in cpu.features:
        yield Finding(
            "instruction-set",
            "note",
            "the processor, or the virtual machine, has no AVX2",
            "Vectors are half as wide, and many wheels end with 'Illegal instruction'.",
            "If the machine is virtual, let the hypervisor pass the host's processor through.",
        )
    if e.limits.pids is not None and e.limits.pids < 4 * max(cpu.host_cores, 16):
        yield Finding(
            "pids",
            "warning",
            f"the container may have {e.limits.pids} threads and processes",
            "Pools as large as the host's cores reach that, and then nothing can be started.",
            "Raise --pids-limit, or set the numbers of threads.",
        )


def _memory(e: Environment) -> Iterator[Finding]:
    limits = e.limits
    if limits.available is not None and limits.available < _LITTLE_MEMORY:
        yield Finding(
            "memory",
            "warning",
            f"{_size(limits.available)} of memory are available",
            "A model that needs more ends the process without a message of its own.",
            "Raise the container's limit, or stop other programs; accord explain MODEL --shape ... tells the need.",
        )
    if limits.shared is not None and limits.shared < _SMALL_SHARED:
        yield Finding(
            "shared-memory",
            "warning",
            f"/dev/shm has {_size(limits.shared)}",
            "Data loaders, Triton Inference Server's Python models and NCCL pass tensors there and end with "
            "'Bus error'.",
            "docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with medium: Memory.",
        )
    elif limits.shared and limits.shared_free is not None and limits.shared_free < limits.shared // 20:
        yield Finding(
            "shared-memory",
            "warning",
            f"/dev/shm is full: {_size(limits.shared_free)} of {_size(limits.shared)} free",
            "Processes that pass tensors there end with 'Bus error'.",
            "Remove what ended programs left there.",
        )


def _cache(e: Environment) -> Iterator[Finding]:
    cache = e.cache
    if cache.folder is None:
        yield Finding(
            "cache",
            "note",
            "Accord's cache is off",
            "Each process compiles its models anew.",
            "Unset ACCORD_CACHE=off, or set HOME or ACCORD_CACHE to a folder.",
        )
        return
    if not cache.writable or not cache.trusted:
        what = "cannot be written" if not cache.writable else "belongs to somebody else, or others may write to it"
        yield Finding(
            "cache",
            "warning",
            f"Accord's cache {cache.folder} {what}",
            "It is not used: each process compiles its models anew.",
            "ACCORD_CACHE=folder of your own, or chmod go-w.",
        )
    elif cache.disk_free is not None and cache.disk_free < _LITTLE_DISK:
        yield Finding(
            "disk",
            "warning",
            f"{_size(cache.disk_free)} are free on the disk of {cache.folder}",
            "Caches, engines and models cannot be written.",
            "Free some, or point ACCORD_CACHE and other caches elsewhere.",
        )


# GPU


def _driver(e: Environment) -> Iterator[Finding]:
    gpu = e.nvidia
    wanting = [n for n in _FOR_GPU if n in e.packages]
    if gpu.module and gpu.library and gpu.module != gpu.library and "compat" not in gpu.library:
        yield Finding(
            "driver-mismatch",
            "broken",
            f"the NVIDIA kernel module has version {gpu.module}, and libcuda {gpu.library}",
            "Every CUDA program fails: 'Driver/library version mismatch', or error 803.",
            "Reboot, or reload the kernel module; in containers take cuda-compat out of LD_LIBRARY_PATH.",
        )
    if gpu.module and not gpu.devices:
        yield Finding(
            "gpu-hidden",
            "warning",
            "an NVIDIA driver is loaded, and no device file is visible",
            "This process cannot use the GPU.",
            "docker run --gpus all (with the NVIDIA Container Toolkit); check permissions of /dev/nvidia*.",
        )
    if gpu.devices and gpu.library is None:
        yield Finding(
            "libcuda",
            "broken",
            f"{len(gpu.devices)} NVIDIA devices, and no libcuda.so",
            "CUDA programs do not start: 'libcuda.so.1: cannot open shared object file'.",
            "Install the driver's libraries; in containers NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
        )
    if wanting and not gpu.devices:
        yield Finding(
            "no-gpu",
            "note",
            f"{', '.join(wanting)}: made for NVIDIA GPUs, and none is visible",
            "They fall back to the CPU, or fail.",
            "Start the process with the GPU, or install the package for the CPU.",
        )
    if gpu.devices and e.variables.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        yield Finding(
            "cuda-visible-devices",
            "warning",
            "CUDA_VISIBLE_DEVICES hides all GPUs",
            "Programs find no GPU.",
            "Unset it, or list the numbers of those to use.",
        )
    needed = [n.rpartition("-cu")[2] for n in e.packages if n.startswith("nvidia-cuda-runtime-cu")]
    newest = max((int(n) for n in needed if n.isdigit()), default=0)
    if gpu.cuda is not None and newest > gpu.cuda // 1000:
        yield Finding(
            "driver-old",
            "broken",
            f"packages for CUDA {newest} are installed, and the driver knows CUDA "
            f"{gpu.cuda // 1000}.{gpu.cuda % 1000 // 10}",
            "A driver runs its own major version of CUDA and older ones.",
            "Update the driver, or install builds for the older CUDA.",
        )
    ours = gpu.devices and {"cuda-bindings", "triton"} <= e.packages.keys()
    if ours and not any(n.startswith("libcublasLt.") for n in gpu.libraries):
        yield Finding(
            "cublas",
            "note",
            "cuBLASLt is not installed",
            "For device 'cuda', matrix products that it computes faster than Accord's own kernels are not given to it.",
            "pip install nvidia-cublas (for a driver of CUDA 12: nvidia-cublas-cu12)",
        )
    folders = [f for f in e.variables.get("LD_LIBRARY_PATH", "").split(":") if "cuda" in f.lower()]
    if folders and any(n.startswith("nvidia-") for n in e.packages):
        yield Finding(
            "cuda-twice",
            "warning",
            f"LD_LIBRARY_PATH names {folders[0]}, and NVIDIA's packages are installed by pip as well",
            "The folder is searched first, and its versions are mixed with the packages' own: 'undefined symbol'.",
            "Unset LD_LIBRARY_PATH: pip's packages are found without it.",
        )


def _size(nbytes: float) -> str:
    return f"{nbytes / _GIB:.1f} GiB" if nbytes >= _GIB else f"{nbytes / (1 << 20):.0f} MiB"


_CHECKS: Final[tuple[Callable[[Environment], Iterator[Finding]], ...]] = (
    _accord,
    _requirements,
    _numpy,
    _exclusive,
    _openmp,
    _threads,
    _memory,
    _cache,
    _driver,
)
