"""What a GPU can do at most: arithmetic from its units and clock, bandwidth from copies measured once and kept.

A device at its power limit lowers its clock, so the rates of its matrix units are upper bounds.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from accord.profile.occupancy import Limits
from accord.profile.peaks import Level, Peaks, Rate, keep_peaks, kept_peaks

if TYPE_CHECKING:
    from accord.backends.cuda.driver import Device

__all__ = ["attribute", "limits_of", "peaks_of"]

#: Operations of one multiprocessor in one clock by compute capability; a multiply-add is two. Those of matrix units
#: are for sums in float32 and matrices without zeros to skip.
_RATES: Final[Mapping[int, Mapping[str, int]]] = {
    75: {"f16": 1024, "i8": 2048, "f32": 128, "f64": 4},
    80: {"f16": 2048, "bf16": 2048, "tf32": 1024, "i8": 4096, "f32": 128, "f64": 128},
    86: {"f16": 512, "bf16": 512, "tf32": 256, "i8": 2048, "f32": 256, "f64": 4},
    89: {"f16": 512, "bf16": 512, "tf32": 256, "i8": 2048, "f32": 256, "f64": 4},
    90: {"f16": 4096, "bf16": 4096, "tf32": 2048, "i8": 8192, "f32": 256, "f64": 256},
    100: {"f16": 8192, "bf16": 8192, "tf32": 4096, "i8": 16384, "f32": 256, "f64": 128},
    120: {"f16": 512, "bf16": 512, "tf32": 256, "i8": 2048, "f32": 256, "f64": 4},
}
#: Bytes of a copy that is in no cache, and copies in one measurement.
_LARGE: Final = 512 << 20
_COPIES, _REPEATS = 8, 7


def attribute(gpu: Device, name: str) -> int:
    """An attribute of a device by its name in the driver's interface, without ``CU_DEVICE_ATTRIBUTE_``."""
    from accord.backends.cuda.driver import bindings

    handle = gpu.call("cuDeviceGet", gpu.ordinal)
    return int(
        gpu.call("cuDeviceGetAttribute", getattr(bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)
    )


def limits_of(gpu: Device) -> Limits:
    """What its multiprocessors have."""
    return Limits(
        processors=gpu.processors,
        threads=attribute(gpu, "MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks=attribute(gpu, "MAX_BLOCKS_PER_MULTIPROCESSOR"),
        registers=attribute(gpu, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared=attribute(gpu, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        reserved=attribute(gpu, "RESERVED_SHARED_MEMORY_PER_BLOCK"),
    )


def peaks_of(gpu: Device, *, again: bool = False) -> Peaks:
    """The peaks of a GPU: those kept, or measured now, which takes some tens of milliseconds.

    Args:
        gpu: The device.
        again: Measure even if figures are kept; the best of both are kept then.
    """
    driver = gpu.call("cuDriverGetVersion")
    key = hashlib.sha256(f"{gpu.name} {gpu.architecture} {gpu.processors} {driver}".encode()).hexdigest()
    known = kept_peaks(key)
    if known is not None and not again:
        return known
    clock = attribute(gpu, "CLOCK_RATE") * 1e3
    rates = rates_of(gpu.architecture)
    cache = attribute(gpu, "L2_CACHE_SIZE")
    near, far = _copy_rate(gpu, cache // 4, _COPIES * 8), _copy_rate(gpu, _LARGE, _COPIES)
    found = Peaks(
        1,
        {d: Rate(n * gpu.processors * clock, 0.0) for d, n in rates.items()},
        (Level("L2", cache, near, near), Level("memory", None, far, far)),
    )
    found = found if known is None else found.better(known)
    keep_peaks(key, found)
    return found


def rates_of(architecture: int) -> Mapping[str, int]:
    """Operations of one multiprocessor in one clock; those of the newest architecture that is no newer than this."""
    return _RATES[max((a for a in _RATES if a <= architecture), default=min(_RATES))]


def _copy_rate(gpu: Device, nbytes: int, copies: int) -> Rate:
    """Bytes a second of copies within the device; what is read and what is written both count."""
    address = gpu.allocate(2 * nbytes)
    stream: Any = gpu.stream()
    try:
        seconds = []
        for _ in range(_REPEATS):
            start, stop = gpu.event(), gpu.event()
            gpu.record(start, stream)
            for _ in range(copies):
                gpu.call("cuMemcpyDtoDAsync", address + nbytes, address, nbytes, stream)
            gpu.record(stop, stream)
            gpu.wait(stream)
            seconds.append(gpu.seconds(start, stop))
    finally:
        gpu.free(address)
    best = min(seconds)
    return Rate(2 * nbytes * copies / best, 1 - best / statistics.median(seconds))
