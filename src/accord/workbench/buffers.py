"""Guarded memory that two processes share.

An **image** is one file in memory with a section for each tensor, in whole pages. The parent maps it as it is, fills it
and looks at it afterwards. The kernel's process maps each section by itself with pages before and after it that nobody
may touch, so that a tensor ends (or begins) exactly where memory ends. What a section has beside its tensor, because of
alignment or of gaps between elements, is filled with a known pattern: a write there is seen afterwards.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "FILLS",
    "LANE",
    "PAGE",
    "Image",
    "Layout",
    "Mapped",
    "Pieces",
    "Section",
    "arena",
    "distances",
    "dtype_named",
    "info",
    "is_float",
    "is_integer",
    "limits",
    "place",
    "unit",
]

Array: TypeAlias = "np.ndarray[Any, Any]"

PAGE = mmap.PAGESIZE
#: Bytes that nobody may touch before and after each section.
GUARD = 16 << 20
#: Address space for one call, and the number of calls that can be there at once.
LANE, LANES = 64 << 30, 16
#: What memory holds that nobody has written: NaN in every float type and -1; a large number in every type.
FILLS = {"nan": 0xFF, "bits": 0x7B}
_NOWHERE, _RW = 0, mmap.PROT_READ | mmap.PROT_WRITE
_FIXED, _ANONYMOUS, _NORESERVE, _SHARED, _PRIVATE, _POPULATE = 0x10, 0x20, 0x4000, 1, 2, 0x8000


def dtype_named(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; "bfloat16" and the 8-bit floats too."""
    import ml_dtypes  # noqa: F401

    return np.dtype(name)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a floating type; NumPy takes bfloat16 and some of 8 bits for something else."""
    return dtype.kind == "f" or dtype.name == "bfloat16" or dtype.name.startswith("float8")


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether it is an integer type; NumPy takes those of 4 bits for something else."""
    return dtype.kind in "iu" or dtype.name in ("int4", "uint4")


def limits(dtype: str) -> tuple[int, int]:
    """Least and greatest value of an integer type."""
    import ml_dtypes

    found = ml_dtypes.iinfo(dtype_named(dtype))  # type: ignore[no-untyped-call]
    return int(found.min), int(found.max)


def info(dtype: str) -> Any:
    """``finfo`` of any floating type."""
    import ml_dtypes

    return ml_dtypes.finfo(dtype_named(dtype))  # type: ignore[no-untyped-call]


def unit(dtype: str) -> float:
    """How much of itself a value may change when it is rounded to a type; for float64 what float64 can still show."""
    return max(float(info(dtype).eps) / 2, 1e-10)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the elements of a tensor lie, whatever its sizes.

    Attributes:
        order: Axes from the outermost to the innermost; empty: as they are.
        gaps: For each axis, how many times further apart than need be its elements are; empty: 1.
        flip: Axes with a negative stride.
        repeat: Axes with stride 0.
    """

    order: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()
    flip: tuple[int, ...] = ()
    repeat: tuple[int, ...] = ()

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Strides in elements."""
        found = [0] * len(shape)
        step = 1
        for axis in reversed(self.order or range(len(shape))):
            if axis in self.repeat:
                continue
            step *= self.gaps[axis] if self.gaps else 1
            found[axis] = -step if axis in self.flip else step
            step *= max(1, shape[axis])
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Section:
    """One tensor in an image.

    Attributes:
        start: Of its first page, in the file.
        pages: Their number.
        at: Byte of its first element, from ``start``.
        low: First byte that belongs to an element, from ``start``.
        high: Byte after the last one.
        shape: Its shape.
        strides: In bytes.
        dtype: Name.
    """

    start: int
    pages: int
    at: int
    low: int
    high: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(data: Mapping[str, Any]) -> Section:
        """From what JSON made of it."""
        return Section(**{**data, "shape": tuple(data["shape"]), "strides": tuple(data["strides"])})

    def array(self, memory: Any, start: int | None = None) -> Array:
        """The tensor in ``memory``, where its section starts at ``start``."""
        base = self.start if start is None else start
        return np.ndarray(self.shape, dtype_named(self.dtype), memory, base + self.at, self.strides)


def place(
    start: int, shape: Sequence[int], dtype: str, layout: Layout, side: str = "end", alignment: int = 1
) -> Section:
    """Where a tensor goes.

    Args:
        start: First byte of the section, a multiple of the page size.
        shape: Of the tensor.
        dtype: Name.
        layout: Of its elements.
        side: Where it lies: "end" (memory ends after it), "begin" (memory begins with it), "skew" (before the end, and
            aligned to no more than asked for).
        alignment: Bytes of which the address of the first element is a multiple.
    """
    item = dtype_named(dtype).itemsize
    alignment = max(alignment, item)
    strides = [s * item for s in layout.strides(shape)]
    empty = 0 in shape
    reach = [0 if empty else s * (n - 1) for s, n in zip(strides, shape, strict=True)]
    below, above = -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + (0 if empty else item)
    room = below + above + 2 * alignment
    pages = max(1, math.ceil(room / PAGE))
    total = pages * PAGE
    if side == "begin":
        at = math.ceil(below / alignment) * alignment
    else:
        at = (total - above) // alignment * alignment
        if side == "skew" and at % (2 * alignment) == 0 and at - alignment >= below:
            at -= alignment
    return Section(start, pages, at, at - below, at + above, tuple(shape), tuple(strides), dtype)


class Image:
    """Memory of one call.

    Attributes:
        file: Of the memory.
        sections: In it.
    """

    def __init__(self, sections: Sequence[Section], fill: str) -> None:
        self.sections = list(sections)
        size = max(PAGE, sum(s.pages for s in sections) * PAGE)
        self.file = os.memfd_create("image")
        os.ftruncate(self.file, size)
        self._memory = mmap.mmap(self.file, size)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._bytes[:] = FILLS[fill]
        self._before: Array | None = None

    def array(self, i: int) -> Array:
        """The tensor of a section."""
        return self.sections[i].array(self._memory)

    def remember(self) -> None:
        """Keep what is there now."""
        self._before = self._bytes.copy()

    def before(self, i: int) -> Array:
        """What the tensor of a section was when :meth:`remember` was called."""
        assert self._before is not None
        return self.sections[i].array(self._before)

    def damage(self, i: int, *, whole: bool) -> tuple[int, int] | None:
        """First and last changed byte of a section, from the tensor's first byte on; None if nothing was changed.

        Args:
            i: The section.
            whole: The tensor's own elements may not change either.
        """
        assert self._before is not None
        s = self.sections[i]
        span = slice(s.start, s.start + s.pages * PAGE)
        now, then = self._bytes[span], self._before[span]
        if np.array_equal(now, then):
            return None
        if not whole:
            now = now.copy()
            elements = np.ndarray(s.shape, f"V{dtype_named(s.dtype).itemsize}", now, s.at, s.strides)
            elements[...] = np.ndarray(s.shape, elements.dtype, then, s.at, s.strides)
        changed = np.flatnonzero(now != then)
        return (int(changed[0]) - s.low, int(changed[-1]) - s.low) if changed.size else None

    def spec(self) -> list[dict[str, Any]]:
        """Sections as JSON."""
        return [asdict(s) for s in self.sections]

    def close(self) -> None:
        """Give the memory back."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def distances(sections: Sequence[Section]) -> list[int]:
    """Where each section's pages lie in a lane."""
    found, cursor = [], GUARD
    for s in sections:
        found.append(cursor)
        cursor += s.pages * PAGE + GUARD
    return found


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    return libc


def _map(address: int | None, size: int, access: int, flags: int, file: int = -1, offset: int = 0) -> int:
    found = _libc().mmap(address, size, access, flags, file, offset)
    if found in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, f"memory cannot be mapped: {os.strerror(number)}")
    return int(found)


@functools.cache
def arena() -> int:
    """Start of the address space of this process in which calls are mapped; none of it is memory."""
    return _map(None, LANE * LANES, _NOWHERE, _PRIVATE | _ANONYMOUS | _NORESERVE)


class Mapped:
    """An image in the process that calls the kernel.

    Args:
        file: Of the image.
        sections: In it.
        lane: Which part of the arena it takes.
        shift: Bytes by which all addresses differ from those of shift 0; a multiple of the page size.
    """

    def __init__(self, file: int, sections: Sequence[Section], lane: int = 0, shift: int = 0) -> None:
        self._base = arena() + lane * LANE + shift
        self._sections = sections
        self._places = [self._base + d for d in distances(sections)]
        for s, address in zip(sections, self._places, strict=True):
            _map(address, s.pages * PAGE, _RW, _SHARED | _FIXED, file, s.start)

    def array(self, i: int) -> Array:
        """The tensor of a section."""
        s = self._sections[i]
        memory = (ctypes.c_ubyte * (s.pages * PAGE)).from_address(self._places[i])
        return s.array(memory, 0)

    def range(self, i: int) -> tuple[int, int]:
        """Addresses of a section's tensor: its first byte and the byte after its last."""
        s = self._sections[i]
        return self._places[i] + s.low, self._places[i] + s.high

    def close(self) -> None:
        """Make the addresses nobody's again."""
        if self._sections:
            end = self._places[-1] + self._sections[-1].pages * PAGE
            _map(self._base, end - self._base, _NOWHERE, _PRIVATE | _ANONYMOUS | _NORESERVE | _FIXED)


class Pieces:
    """A tensor that pages of a file make up, mapped more than once where they are named more than once.

    Args:
        file: With the pages.
        lane: Which part of the arena it takes; it lies in the middle.
        pieces: Address from the tensor's first element, start in the file, bytes.
    """

    def __init__(self, file: int, lane: int, pieces: Sequence[Sequence[int]]) -> None:
        self._start = arena() + lane * LANE + 3 * LANE // 8
        self._size = max(at + size for at, _, size in pieces)
        for at, start, size in pieces:
            _map(self._start + at, size, _RW, _SHARED | _FIXED | _POPULATE, file, start)

    def array(self, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Array:
        """The tensor."""
        memory = (ctypes.c_ubyte * self._size).from_address(self._start)
        return np.ndarray(tuple(shape), dtype_named(dtype), memory, 0, tuple(strides))  # type: ignore[arg-type]

    def close(self) -> None:
        """Make the addresses nobody's again."""
        _map(self._start, self._size, _NOWHERE, _PRIVATE | _ANONYMOUS | _NORESERVE | _FIXED)
