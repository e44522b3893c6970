"""The processor that code is generated for, described without LLVM.

A process whose kernels all come from the cache needs this and never loads LLVM, so names and features are read from
what Linux says of the processor. ``ACCORD_CPU`` (``avx2``, ``sse2`` or ``native``) leaves features out, to run on a
good machine what a lesser one would run.
"""

from __future__ import annotations

import functools
import math
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from accord.container import cpu_quota
from accord.errors import CompileError
from accord.record import record

__all__ = ["Machine", "describe", "machine", "usable_cores", "whole_machine"]

#: LLVM's features of x86-64 that change which instructions it chooses → their names in Linux's list.
_X86_FLAGS: Final[dict[str, str]] = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "popcnt": "popcnt",
    "cx16": "cx16",
    "sahf": "lahf_lm",
    "lzcnt": "abm",
    "movbe": "movbe",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "fma4": "fma4",
    "xop": "xop",
    "tbm": "tbm",
    "gfni": "gfni",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avxvnni": "avx_vnni",
    "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16",
    "avxneconvert": "avx_ne_convert",
    "avxifma": "avx_ifma",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
    "amx-fp16": "amx_fp16",
}

_ARM_FLAGS: Final[dict[str, str]] = {
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "lse": "atomics",
}

_V2: Final = frozenset({"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf"})
_V3: Final = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

#: Values of ``ACCORD_CPU`` that leave features out: what may stay.
_LEVELS: Final[dict[str, frozenset[str]]] = {"avx2": _V3, "sse2": frozenset()}

#: (vendor, family) → (models, LLVM's name), first match; names choose the order of instructions, not which exist.
_NAMES: Final[dict[tuple[str, int], tuple[tuple[range | tuple[int, ...], str], ...]]] = {
    ("AuthenticAMD", 0x17): ((range(0x30), "znver1"), (range(0x30, 0x100), "znver2")),
    ("AuthenticAMD", 0x19): (
        (range(0x10), "znver3"),
        (range(0x10, 0x20), "znver4"),
        (range(0x20, 0x60), "znver3"),
        (range(0x60, 0x100), "znver4"),
    ),
    ("AuthenticAMD", 0x1A): ((range(0x100), "znver5"),),
    ("HygonGenuine", 0x18): ((range(0x100), "znver1"),),
    ("GenuineIntel", 6): (
        ((0x2A, 0x2D), "sandybridge"),
        ((0x3A, 0x3E), "ivybridge"),
        ((0x3C, 0x3F, 0x45, 0x46), "haswell"),
        ((0x3D, 0x47, 0x4F, 0x56), "broadwell"),
        ((0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6), "skylake"),
        ((0x55,), "skylake-avx512"),
        ((0x66,), "cannonlake"),
        ((0x6A, 0x6C), "icelake-server"),
        ((0x7D, 0x7E), "icelake-client"),
        ((0x8C, 0x8D), "tigerlake"),
        ((0x8F,), "sapphirerapids"),
        ((0x97, 0x9A), "alderlake"),
        ((0xA7,), "rocketlake"),
        ((0xAA, 0xAC), "meteorlake"),
        ((0xAD,), "graniterapids"),
        ((0xAE,), "graniterapids-d"),
        ((0xAF,), "sierraforest"),
        ((0xB6,), "grandridge"),
        ((0xB7, 0xBA, 0xBF), "raptorlake"),
        ((0xBD,), "lunarlake"),
        ((0xBE,), "gracemont"),
        ((0xB5, 0xC5), "arrowlake"),
        ((0xC6,), "arrowlake-s"),
        ((0xCF,), "emeraldrapids"),
    ),
}

#: Level and type of a cache in Linux's list → what is assumed where the list is missing, in bytes.
_CACHES: Final[dict[tuple[str, str], int]] = {
    ("1", "Data"): 32 << 10,
    ("2", "Unified"): 512 << 10,
    ("3", "Unified"): 4 << 20,
}


@record
class Machine:
    """The processor that code is generated for.

    Attributes:
        arch: "x86_64" or "aarch64".
        cpu: LLVM's name of it.
        has: LLVM's names of the features that may be used: "avx2", "avx512f", "avx512vnni", "amx-tile" ...
        lacks: Features that ``cpu`` might imply and that must not be used.
        vector_bits: Width of the widest vector register that is worth using.
        l1d: Bytes of the first-level data cache of a core.
        l2: Bytes of the second-level cache.
        l3: Bytes of the third-level cache, shared by several cores; 0 where there is none.
        cores: Threads that can run at once in this process: logical cores, as far as affinity and quota allow.
    """

    arch: str
    cpu: str
    has: frozenset[str]
    lacks: frozenset[str]
    vector_bits: int
    l1d: int
    l2: int
    l3: int
    cores: int

    def width(self, dtype_bits: int) -> int:
        """Elements of ``dtype_bits`` bits in one vector register."""
        return max(1, self.vector_bits // dtype_bits)

    @functools.cached_property
    def features(self) -> str:
        """LLVM's feature string."""
        return ",".join([*(f"+{f}" for f in sorted(self.has)), *(f"-{f}" for f in sorted(self.lacks))])

    @property
    def triple(self) -> str:
        """LLVM's target triple."""
        return f"{self.arch}-unknown-linux-gnu"

    @functools.cached_property
    def key(self) -> str:
        """All of it that generated code may depend on, as text."""
        return f"{self.triple} {self.cpu} {self.features} {self.vector_bits} {self.l1d} {self.l2} {self.l3}"


@functools.cache
def machine() -> Machine:
    """The machine at hand, as ``ACCORD_CPU`` lets code see it.

    Raises:
        CompileError: ``ACCORD_CPU`` is not understood.
    """
    return _at_hand(os.environ.get("ACCORD_CPU") or "native")


@functools.cache
def whole_machine() -> Machine:
    """The machine at hand with all that it can do, whatever ``ACCORD_CPU`` says."""
    return _at_hand("native")


def _at_hand(level: str) -> Machine:
    try:
        with Path("/proc/cpuinfo").open("rb", buffering=0) as file:
            text = file.read(8192).decode(errors="replace")  # the first processors: the file has one record for each
    except OSError:
        text = ""
    return describe(platform.machine(), text, level, _cache_sizes(), min(len(_allowed()), _quota()))


def describe(
    arch: str, cpuinfo: str, level: str, caches: tuple[int, int, int] = (32 << 10, 512 << 10, 4 << 20), cores: int = 1
) -> Machine:
    """The machine that Linux's description of a processor is of.

    Args:
        arch: As the system calls it.
        cpuinfo: The first record of ``/proc/cpuinfo``; further text is ignored.
        level: "native", or a value of ``ACCORD_CPU`` that leaves features out.
        caches: Bytes of the data caches of the first three levels.
        cores: Threads that can run at once.

    Raises:
        CompileError: the level is not known.
    """
    if level != "native" and level not in _LEVELS:
        raise CompileError(
            "the environment variable ACCORD_CPU is not understood",
            expected=", ".join(["native", *_LEVELS]),
            found=level,
            remedy="Correct it or unset it.",
        )
    fields: dict[str, str] = {}
    for line in cpuinfo.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    if arch.lower() in ("aarch64", "arm64"):
        flags = set(fields.get("Features", "").split())
        has = frozenset(f for f, flag in _ARM_FLAGS.items() if flag in flags) | {"neon"}
        return Machine("aarch64", "generic", has, frozenset(_ARM_FLAGS) - has, 128, *caches, cores)
    flags = set(fields.get("flags", "").split())
    allowed = _LEVELS.get(level, frozenset(_X86_FLAGS))
    has = frozenset(f for f, flag in _X86_FLAGS.items() if flag in flags and f in allowed)
    bits = 512 if has >= _V4 else 256 if "avx2" in has else 128
    return Machine("x86_64", _name(fields, has, level), has, frozenset(_X86_FLAGS) - has, bits, *caches, cores)


def _name(fields: Mapping[str, str], has: frozenset[str], level: str) -> str:
    """LLVM's name of an x86-64 processor; of the widest generic one where it is not known."""
    generic = next((n for n, f in (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2)) if has >= f), "x86-64")
    if level != "native":
        return generic
    try:
        known = _NAMES[fields["vendor_id"], int(fields["cpu family"])]
        model = int(fields["model"])
    except (KeyError, ValueError):
        return generic
    name = next((n for models, n in known if model in models), generic)
    if name == "skylake-avx512":  # three makes share the number
        name = "cooperlake" if "avx512bf16" in has else "cascadelake" if "avx512vnni" in has else name
    return name


def _cache_sizes() -> tuple[int, int, int]:
    """Bytes of the data caches, first level first, of the core that the process is most likely to use."""
    found = dict(_read_caches(Path(f"/sys/devices/system/cpu/cpu{min(_allowed())}/cache")))
    if found:  # the list is there: a level that it lacks does not exist
        found.setdefault(("3", "Unified"), 0)
    first, second, third = (found.get(kind, assumed) for kind, assumed in _CACHES.items())
    return first, second, third


def _read_caches(folder: Path) -> Iterator[tuple[tuple[str, str], int]]:
    units = {"K": 10, "M": 20, "G": 30}
    for index in range(8):
        try:
            kind, level, size = ((folder / f"index{index}" / n).read_text().strip() for n in ("type", "level", "size"))
            yield (level, kind), int(size[:-1]) << units[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):  # the last one was read, or the system does not tell
            return


def usable_cores() -> int:
    """Physical cores that affinity and the container's CPU quota allow: as many threads as computing gains from.

    Logical cores of one physical core share its arithmetic units.
    """
    return min(len({_siblings(k) for k in _allowed()}), _quota())


def _allowed() -> set[int]:
    """Numbers of the logical cores that affinity allows."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _siblings(processor: int) -> str:
    """Which physical core a logical one is part of."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(processor)


def _quota() -> int:
    """Cores' worth of time that the container may use; all of them where there is no limit."""
    quota = cpu_quota()
    return (os.cpu_count() or 1) if quota is None else max(1, math.ceil(quota))
